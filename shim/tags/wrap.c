/* The calls by which Open MPI's TCP transport uses its sockets, seen by a preloaded library. Calls are passed on
 * as they are, but that a frame ends a segment. A connection is known by its handshake. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "service.h"
#include "stream.h"

#define VISIBLE __attribute__((visibility("default")))
#define MAX_FD 65536
#define HANDSHAKE 24
#define MAGIC_AT 8
#define FAR (UINT64_C(1) << 29)
static const char magic[] = "OPAL-TCP-BTL";

enum { SAID = 1, HEARD = 2 };

/* Written by the thread that holds the connection's lock within the transport: sending and receiving are apart. */
struct stream {
    unsigned char handshake;
    bool tagged;
    uint32_t self, peer;
    /* sending */
    struct tag_ring *ring;
    uint64_t position, frame_end, last, noted;
    /* receiving */
    unsigned char begun[FRAME_NEEDED];
    uint64_t seen, length;
};

static struct stream *streams[MAX_FD];
static struct tag_service service;
static unsigned char *slot_owner; /* of each slot: whether a connection has it */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool joined;

static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_readv)(int, const struct iovec *, int);
static ssize_t (*real_send)(int, const void *, size_t, int);
static ssize_t (*real_recv)(int, void *, size_t, int);
static ssize_t (*real_sendmsg)(int, const struct msghdr *, int);
static int (*real_close)(int);

__attribute__((constructor)) static void find(void)
{
    real_writev = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    real_readv = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "readv");
    real_send = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    real_recv = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    real_sendmsg = (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    real_close = (int (*)(int))dlsym(RTLD_NEXT, "close");
}

static void join(void)
{
    joined = service_join(&service);
    if (joined)
        slot_owner = calloc(service.slots, 1);
    joined = slot_owner != NULL;
}

static struct stream *stream_at(int fd)
{
    return fd >= 0 && fd < MAX_FD ? __atomic_load_n(&streams[fd], __ATOMIC_ACQUIRE) : NULL;
}

/* Where the next written byte will be, counted as the kernel counts acknowledged bytes. */
static bool position_of(int fd, uint64_t *position)
{
    for (int tries = 0; tries < 100; tries++) {
        struct tcp_info before = {0}, after = {0};
        socklen_t size = sizeof before;
        int waiting;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &before, &size) != 0 || ioctl(fd, SIOCOUTQ, &waiting) != 0)
            return false;
        size = sizeof after;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &after, &size) != 0)
            return false;
        if (before.tcpi_bytes_acked == after.tcpi_bytes_acked) {
            *position = after.tcpi_bytes_acked + (uint64_t)waiting;
            return true;
        }
    }
    return false;
}

static void newest(struct tag_ring *ring, uint64_t position, uint64_t tag)
{
    __atomic_store_n(&ring->newest.position, position, __ATOMIC_RELAXED);
    __atomic_store_n(&ring->newest.tag, tag, __ATOMIC_RELAXED);
    __atomic_store_n(&ring->check, position * TAG_CHECK ^ tag, __ATOMIC_RELAXED);
}

/* From the stream's position on, bytes have this tag. */
static void note(struct stream *stream, uint64_t tag)
{
    struct tag_ring *ring = stream->ring;
    uint64_t head = ring->head;
    ring->entries[head % service.entries] = (struct tag_entry){.position = stream->position, .tag = tag};
    __atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
    newest(ring, stream->position, tag);
    stream->noted = stream->position;
    stream->last = tag;
}

static void begin(int fd, struct stream *stream)
{
    pthread_once(&once, join);
    if (!joined)
        return;
    pthread_mutex_lock(&lock);
    unsigned slot = 0;
    while (slot < service.slots && slot_owner[slot])
        slot++;
    if (slot < service.slots) {
        struct tag_ring *ring = service_ring(slot);
        ring->head = 0;
        newest(ring, 0, 0);
        if (position_of(fd, &stream->position) && service_add(fd, slot)) {
            slot_owner[slot] = 1;
            stream->frame_end = stream->position;
            stream->ring = ring;
        }
    }
    pthread_mutex_unlock(&lock);
}

static void handshake(int fd, const void *bytes, size_t size, unsigned char half)
{
    if (size != HANDSHAKE || fd < 0 || fd >= MAX_FD || memcmp((const char *)bytes + MAGIC_AT, magic, sizeof magic) != 0)
        return;
    struct stream *stream = stream_at(fd);
    if (stream == NULL) {
        stream = calloc(1, sizeof *stream);
        if (stream == NULL)
            return;
        __atomic_store_n(&streams[fd], stream, __ATOMIC_RELEASE);
    }
    uint32_t rank;
    memcpy(&rank, (const char *)bytes + 4, sizeof rank);
    *(half == SAID ? &stream->self : &stream->peer) = rank;
    stream->handshake |= half;
}

static uint64_t placed(struct tag_field field, uint32_t value)
{
    uint64_t most = (UINT64_C(1) << field.width) - 1;
    return (value < most ? value : most) << field.shift;
}

static uint64_t tag_of(const struct stream *stream, struct meaning meaning)
{
    if (!meaning.known)
        return 0;
    return (uint64_t)meaning.primitive << 43 | UINT64_C(6) << 40 | placed(service.communicator, meaning.communicator) |
           placed(service.source, stream->self) | placed(service.destination, stream->peer);
}

/* Before the kernel has the bytes: a packet may leave within the call. */
static void announce(struct stream *stream, const struct iovec *parts, int count)
{
    /* No packet is further than this, and a write, from the newest entry. */
    bool far = stream->ring->head == 0 || stream->position - stream->noted >= FAR;
    if (stream->position < stream->frame_end) {
        if (far)
            note(stream, stream->last);
        return;
    }
    unsigned char begun[FRAME_NEEDED];
    size_t bytes = 0;
    uint64_t all = 0;
    for (int i = 0; i < count; i++) {
        size_t part = parts[i].iov_len, room = sizeof begun - bytes;
        memcpy(begun + bytes, parts[i].iov_base, part < room ? part : room);
        bytes += part < room ? part : room;
        all += part;
    }
    uint64_t tag = bytes < FRAME_HEADER ? 0 : tag_of(stream, stream_sent(begun, bytes, stream->peer));
    stream->frame_end = stream->position + all;
    if (far || tag != stream->last)
        note(stream, tag);
}

VISIBLE ssize_t writev(int fd, const struct iovec *parts, int count)
{
    struct stream *stream = stream_at(fd);
    if (stream == NULL || stream->handshake != (SAID | HEARD))
        return real_writev(fd, parts, count);
    if (!stream->tagged) {
        stream->tagged = true;
        begin(fd, stream);
    }
    if (stream->ring == NULL)
        return real_writev(fd, parts, count);
    announce(stream, parts, count);
    /* A segment ends with the frame: the kernel would else put several messages into one, with one address. */
    struct msghdr whole = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)count};
    ssize_t done = real_sendmsg(fd, &whole, MSG_EOR);
    if (done > 0)
        stream->position += (uint64_t)done;
    return done;
}

/* Of what is received only the beginnings of frames are looked at. */
static void heard(struct stream *stream, const unsigned char *bytes, size_t size)
{
    while (size > 0) {
        size_t step = size;
        if (stream->seen < FRAME_NEEDED) {
            size_t room = FRAME_NEEDED - (size_t)stream->seen;
            uint64_t left = stream->length == 0 ? FRAME_HEADER - stream->seen : stream->length - stream->seen;
            step = step < room ? step : room;
            step = step < left ? step : (size_t)left;
            memcpy(stream->begun + stream->seen, bytes, step);
        } else if (step > stream->length - stream->seen) {
            step = (size_t)(stream->length - stream->seen);
        }
        stream->seen += step;
        bytes += step;
        size -= step;
        if (stream->length == 0 && stream->seen == FRAME_HEADER) {
            stream->length = stream_length(stream->begun);
            if (stream->length == 0) {
                stream->handshake = 0; /* not what this library knows: leave the connection alone */
                return;
            }
        }
        if (stream->length == 0)
            continue;
        bool whole = stream->seen == stream->length;
        if (step > 0 && (whole ? stream->seen <= FRAME_NEEDED : stream->seen == FRAME_NEEDED))
            stream_received(stream->begun, (size_t)stream->seen, stream->peer);
        if (whole)
            stream->seen = stream->length = 0;
    }
}

VISIBLE ssize_t readv(int fd, const struct iovec *parts, int count)
{
    ssize_t done = real_readv(fd, parts, count);
    struct stream *stream = stream_at(fd);
    if (done <= 0 || stream == NULL || stream->handshake != (SAID | HEARD))
        return done;
    int kept = errno;
    size_t left = (size_t)done;
    for (int i = 0; i < count && left > 0 && stream->handshake != 0; i++) {
        size_t part = parts[i].iov_len < left ? parts[i].iov_len : left;
        heard(stream, parts[i].iov_base, part);
        left -= part;
    }
    errno = kept;
    return done;
}

VISIBLE ssize_t send(int fd, const void *bytes, size_t size, int flags)
{
    ssize_t done = real_send(fd, bytes, size, flags);
    if (done == HANDSHAKE)
        handshake(fd, bytes, size, SAID);
    return done;
}

VISIBLE ssize_t recv(int fd, void *bytes, size_t size, int flags)
{
    ssize_t done = real_recv(fd, bytes, size, flags);
    if (done == HANDSHAKE)
        handshake(fd, bytes, size, HEARD);
    return done;
}

VISIBLE int close(int fd)
{
    struct stream *stream = stream_at(fd);
    if (stream != NULL) {
        __atomic_store_n(&streams[fd], NULL, __ATOMIC_RELEASE);
        if (stream->ring != NULL) {
            pthread_mutex_lock(&lock);
            for (unsigned slot = 0; slot < service.slots; slot++)
                if (service_ring(slot) == stream->ring)
                    slot_owner[slot] = 0;
            pthread_mutex_unlock(&lock);
        }
        free(stream);
    }
    return real_close(fd);
}
