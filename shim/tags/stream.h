/* What Open MPI's TCP transport sends and receives: btl/tcp frames with headers of pml/ob1 (Open MPI 4).
 *
 * Arrives: the bytes of a connection, in order. Leaves: of each frame, primitive and communicator.
 * Must not know: sockets, rings, how tags reach packets. */
#ifndef WAYSTAGE_TAGS_STREAM_H
#define WAYSTAGE_TAGS_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct meaning {
    unsigned char primitive; /* the code of python/waystage/interconnect/tags.py */
    bool known;
    uint32_t communicator;
};

#define FRAME_HEADER 8
#define FRAME_NEEDED 72 /* bytes of a frame's beginning that say what it is */

/* A frame's beginning, as sent: what it belongs to. `peer` is whom it goes to. */
struct meaning stream_sent(const unsigned char *frame, size_t bytes, uint32_t peer);

/* A frame's beginning, as received from `peer`: remembers what later frames refer to. */
void stream_received(const unsigned char *frame, size_t bytes, uint32_t peer);

/* The bytes of a frame in all, from its header; 0 where it is none. */
uint64_t stream_length(const unsigned char *header);

#endif
