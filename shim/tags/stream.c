/* See stream.h. Offsets are those of btl_tcp_hdr.h and pml_ob1_hdr.h, as seen on connections of Open MPI 4.1.
 *
 * A long message is announced (RNDV, RGET), with a number that later frames repeat: the request. The receiver answers
 * (ACK, PUT with an address of its memory); the sender sends FRAG with the request, or writes to that address, and
 * then FIN. Numbers of requests are addresses of the sender's memory: they are kept by peer and direction. */
#define _GNU_SOURCE
#include "stream.h"

#include <string.h>

enum { SEND = 1, PUT_DATA = 2, GET_DATA = 3 };
enum { MATCH = 0x41, RNDV, RGET, ACK, NACK, FRAG, GET, PUT, FIN };

#define KEPT 4096 /* announced messages of a process at a time; a power of two */

/* `what` keeps requests of ours, requests of a peer, memory of a peer and descriptors of a peer apart. */
struct kept {
    uint64_t number;
    uint32_t peer;
    uint32_t what;
    struct meaning meaning;
};

enum { OURS = 1, THEIRS = 2, MEMORY = 3, DESCRIPTOR = 4 };

static struct kept table[KEPT];
static unsigned char spin;

static uint64_t u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static struct kept *slot_of(uint64_t number, uint32_t peer, uint32_t what)
{
    uint64_t mixed = (number ^ (number >> 15) ^ ((uint64_t)peer << 7) ^ what) * UINT64_C(0x9e3779b97f4a7c15);
    return &table[mixed >> 52];
}

static void keep(uint64_t number, uint32_t peer, uint32_t what, struct meaning meaning)
{
    while (__atomic_test_and_set(&spin, __ATOMIC_ACQUIRE))
        ;
    *slot_of(number, peer, what) = (struct kept){number, peer, what, meaning};
    __atomic_clear(&spin, __ATOMIC_RELEASE);
}

static struct meaning recall(uint64_t number, uint32_t peer, uint32_t what)
{
    struct meaning found = {0};
    while (__atomic_test_and_set(&spin, __ATOMIC_ACQUIRE))
        ;
    const struct kept *kept = slot_of(number, peer, what);
    if (kept->number == number && kept->peer == peer && kept->what == what)
        found = kept->meaning;
    __atomic_clear(&spin, __ATOMIC_RELEASE);
    return found;
}

/* ompi/mca/coll/base/coll_tags.h, as shim/mpi/classify.c has it; codes are those of tags.py. */
static unsigned char primitive_of(int32_t tag)
{
    enum { P2P = 1, FIRST_COLLECTIVE = 7, NONBLOCKING = 24, SETUP = 26 };
    if (tag > -10)
        return P2P;
    if (tag >= -26)
        return (unsigned char)(FIRST_COLLECTIVE + (-10 - tag));
    return tag <= -31078 && tag >= -31080 ? SETUP : NONBLOCKING;
}

static struct meaning matched(const unsigned char *pml)
{
    uint16_t context;
    int32_t tag;
    memcpy(&context, pml + 2, sizeof context);
    memcpy(&tag, pml + 8, sizeof tag);
    return (struct meaning){.primitive = primitive_of(tag), .known = true, .communicator = context};
}

uint64_t stream_length(const unsigned char *header)
{
    uint32_t size;
    uint16_t count;
    memcpy(&count, header + 2, sizeof count);
    memcpy(&size, header + 4, sizeof size);
    if (header[1] == SEND)
        return FRAME_HEADER + (uint64_t)size;
    if (header[1] == PUT_DATA || header[1] == GET_DATA)
        return FRAME_HEADER + (uint64_t)size + 16 * (uint64_t)count;
    return header[1] == 4 ? FRAME_HEADER + (uint64_t)size : 0;
}

struct meaning stream_sent(const unsigned char *frame, size_t bytes, uint32_t peer)
{
    const unsigned char *pml = frame + FRAME_HEADER;
    struct meaning none = {0};
    if (frame[1] == PUT_DATA && bytes >= FRAME_HEADER + 16)
        return recall(u64(pml), peer, MEMORY);
    if (frame[1] != SEND || bytes < FRAME_HEADER + 16)
        return none;
    switch (frame[0]) {
    case MATCH:
        return matched(pml);
    case RNDV:
    case RGET:
        none = matched(pml);
        if (bytes >= FRAME_HEADER + 32)
            keep(u64(pml + 24), peer, OURS, none);
        return none;
    case ACK:
    case NACK:
    case PUT:
        return recall(u64(pml + 8), peer, THEIRS);
    case FRAG:
        return bytes >= FRAME_HEADER + 24 ? recall(u64(pml + 16), peer, OURS) : none;
    case FIN:
        return bytes >= FRAME_HEADER + 24 ? recall(u64(pml + 16), peer, DESCRIPTOR) : none;
    default:
        return none;
    }
}

void stream_received(const unsigned char *frame, size_t bytes, uint32_t peer)
{
    const unsigned char *pml = frame + FRAME_HEADER;
    if (frame[1] != SEND || bytes < FRAME_HEADER + 32)
        return;
    if (frame[0] == RNDV || frame[0] == RGET)
        keep(u64(pml + 24), peer, THEIRS, matched(pml));
    if (frame[0] == PUT && bytes >= FRAME_HEADER + 56) {
        struct meaning meaning = recall(u64(pml + 8), peer, OURS);
        keep(u64(pml + 40), peer, MEMORY, meaning);
        keep(u64(pml + 16), peer, DESCRIPTOR, meaning);
    }
}
