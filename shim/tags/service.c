/* See service.h. One round trip for the process and one for each connection; none for a message. */
#define _GNU_SOURCE
#include "service.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC 0x57544731u
#define JOIN 2
#define SOCKET 3
#define WAIT_S 2 /* a service that does not answer holds up a program no longer, and once */

struct message {
    uint32_t magic, word;
    uint64_t number, uid, serial;
    unsigned char code[32];
};

static int connection = -1;
static unsigned char *rings;
static size_t ring_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct tag_ring *service_ring(unsigned slot)
{
    return (struct tag_ring *)(rings + slot * ring_bytes);
}

/* Sends a request, with a descriptor unless -1; the reply's descriptor goes to *got, if not NULL. */
static bool ask(struct message *message, int sent, int *got)
{
    struct iovec part = {.iov_base = message, .iov_len = sizeof *message};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (sent >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof control.bytes;
        struct cmsghdr *first = CMSG_FIRSTHDR(&header);
        first->cmsg_level = SOL_SOCKET;
        first->cmsg_type = SCM_RIGHTS;
        first->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(first), &sent, sizeof sent);
    }
    if (sendmsg(connection, &header, MSG_NOSIGNAL) != (ssize_t)sizeof *message)
        return false;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    if (recvmsg(connection, &header, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *message)
        return false;
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    if (first != NULL && first->cmsg_type == SCM_RIGHTS) {
        int descriptor;
        memcpy(&descriptor, CMSG_DATA(first), sizeof descriptor);
        if (got != NULL)
            *got = descriptor;
        else
            close(descriptor);
    }
    return message->magic == MAGIC && message->word == 0;
}

static bool say(const char *why)
{
    const char *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (rank == NULL || strcmp(rank, "0") == 0)
        fprintf(stderr, "waystage: packets of this node get no tags: %s\n", why);
    return false;
}

static bool hex(const char **text, void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, *text += 2)
        if (sscanf(*text, "%2hhx", (unsigned char *)to + i) != 1)
            return false;
    return true;
}

bool service_join(struct tag_service *service)
{
    const char *path = getenv("WAYSTAGE_TAGS_SOCKET"), *ticket = getenv("WAYSTAGE_TAGS_TICKET");
    if (path == NULL || ticket == NULL)
        return false;
    struct message message = {.magic = MAGIC, .word = JOIN};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(ticket) != 112 || !hex(&ticket, &message.number, 56) || strlen(path) >= sizeof address.sun_path)
        return say("WAYSTAGE_TAGS_TICKET is damaged");
    strcpy(address.sun_path, path);
    connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct timeval wait = {.tv_sec = WAIT_S};
    if (connection < 0 || setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) != 0 ||
        setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) != 0 ||
        connect(connection, (struct sockaddr *)&address, sizeof address) != 0)
        return say("no tag service answers at WAYSTAGE_TAGS_SOCKET; an administrator starts one by "
                   "'waystage tags serve'");
    int map = -1;
    if (!ask(&message, -1, &map) || map < 0)
        return say("the tag service refused the job's ticket");
    service->slots = (unsigned)message.number;
    service->entries = (unsigned)(message.number >> 32);
    ring_bytes = message.uid;
    memcpy(&service->communicator, message.code, 6);
    void *mapped = mmap(NULL, service->slots * ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    close(map);
    if (mapped == MAP_FAILED)
        return say("their shared memory cannot be mapped");
    rings = mapped;
    return true;
}

bool service_add(int fd, unsigned slot)
{
    struct message message = {.magic = MAGIC, .word = SOCKET, .number = slot};
    pthread_mutex_lock(&lock);
    bool added = connection >= 0 && ask(&message, fd, NULL);
    pthread_mutex_unlock(&lock);
    return added;
}
