/* The node's service of tags: what is asked and answered (crates/tags/src/wire.rs has the same). */
#ifndef WAYSTAGE_TAGS_SERVICE_H
#define WAYSTAGE_TAGS_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* Where a connection's tags are written: `head` counts the entries ever written; entry n is at n modulo `entries`. */
struct tag_entry {
    uint64_t position; /* of the message's first byte, as the kernel counts acknowledged bytes */
    uint64_t tag;      /* 0: the bytes belong to no message */
};

struct tag_ring {
    uint64_t head;
    uint64_t unused;
    struct tag_entry entries[];
};

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
