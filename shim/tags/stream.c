/* See stream.h. Offsets are those of btl_tcp_hdr.h and pml_ob1_hdr.h, as seen on connections of Open MPI 4.1.
 *
 * A long message is announced (RNDV, RGET), with a number that later frames repeat: the request. The receiver answers
 * (ACK, PUT with an address of its memory); the sender sends FRAG with the request, or writes to that address, and
 * then FIN. Numbers of requests are addresses of the sender's memory: they are kept by peer and direction. */
#define _GNU_SOURCE
#include "stream.h"
#include "announced.h"

#include <string.h>

enum { SEND = 1, PUT_DATA = 2, GET_DATA = 3 };
enum { MATCH = 0x41, RNDV, RGET, ACK, NACK, FRAG, GET, PUT, FIN };

static uint64_t u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
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
        return announced_recall(u64(pml), peer, THEIR_MEMORY);
    if (frame[1] != SEND || bytes < FRAME_HEADER + 16)
        return none;
    switch (frame[0]) {
    case MATCH:
        return matched(pml);
    case RNDV:
    case RGET:
        none = matched(pml);
        if (bytes >= FRAME_HEADER + 32)
            announced_keep(u64(pml + 24), peer, OUR_REQUEST, none);
        return none;
    case ACK:
    case NACK:
    case PUT:
        return announced_recall(u64(pml + 8), peer, THEIR_REQUEST);
    case FRAG:
        return bytes >= FRAME_HEADER + 24 ? announced_recall(u64(pml + 16), peer, OUR_REQUEST) : none;
    case FIN:
        return bytes >= FRAME_HEADER + 24 ? announced_recall(u64(pml + 16), peer, THEIR_DESCRIPTOR) : none;
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
        announced_keep(u64(pml + 24), peer, THEIR_REQUEST, matched(pml));
    if (frame[0] == PUT && bytes >= FRAME_HEADER + 56) {
        struct meaning meaning = announced_recall(u64(pml + 8), peer, OUR_REQUEST);
        announced_keep(u64(pml + 40), peer, THEIR_MEMORY, meaning);
        announced_keep(u64(pml + 16), peer, THEIR_DESCRIPTOR, meaning);
    }
}
