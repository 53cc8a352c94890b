/* The node's service of tags: what is asked and answered (crates/tags/src/wire.rs has the same). */
#ifndef WAYSTAGE_TAGS_SERVICE_H
#define WAYSTAGE_TAGS_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* Where a connection's tags are written: `head` counts the entries ever written; entry n is at n modulo `entries`. The
 * newest is also in the first line, where most packets find it. A packet's position is at most 2^31 from it. */
struct tag_entry {
    uint64_t position; /* of the message's first byte, as the kernel counts acknowledged bytes */
    uint64_t tag;      /* 0: the bytes belong to no message */
};

struct tag_ring {
    uint64_t head;
    struct tag_entry newest;
    uint64_t check; /* position * TAG_CHECK ^ tag: the newest was read whole */
    uint64_t unused[4];
    struct tag_entry entries[];
};

#define TAG_CHECK UINT64_C(0x9e3779b97f4a7c15)

struct tag_field {
    unsigned char shift, width;
};

struct tag_service {
    unsigned slots, entries;
    struct tag_field communicator, source, destination;
};

/* Joins the job of the environment's ticket. False, and said once, where there is no service or no permission. */
bool service_join(struct tag_service *service);

/* Lets `ring` number `slot` hold for the TCP socket `fd`. */
bool service_add(int fd, unsigned slot);

struct tag_ring *service_ring(unsigned slot);

#endif
