/* Datagrams of a broadcast: what every one begins with, and the check of one that arrived.
 *
 * All ranks run the same library on one architecture, so numbers are in the machine's order. A datagram is believed if
 * it carries the communicator's token: 128 random bits that its ranks alone know.
 */
#ifndef WAYSTAGE_MULTICAST_DATAGRAM_H
#define WAYSTAGE_MULTICAST_DATAGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WS_TOKEN_BYTES 16
#define WS_CHUNK_MOST 8192
#define WS_CHUNK_LEAST 512

enum ws_kind {
    WS_DATA = 1, /* by multicast: chunk `first` of `chunks`, then its bytes */
    WS_END,      /* by multicast: all chunks were sent */
    WS_COMPLETE, /* to the next rank of the ring: this one can repair everything */
    WS_CREDIT,   /* to the root: chunks below `first` have come or are lost, `second` of them lost */
};

struct ws_header {
    uint32_t magic, kind;
    uint8_t token[WS_TOKEN_BYTES];
    uint32_t operation; /* of the communicator, counted by every rank */
    uint32_t rank;      /* the sender's, in the communicator */
    uint32_t first, second;
};

#define WS_MAGIC 0x57534d31u

/* Compares in constant time. */
static inline bool ws_same_token(const uint8_t *a, const uint8_t *b)
{
    unsigned differ = 0;
    for (int i = 0; i < WS_TOKEN_BYTES; i++)
        differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

/* Bytes of chunk `at` of a broadcast of `bytes`. */
static inline size_t ws_chunk_bytes(size_t bytes, size_t chunk, uint32_t at)
{
    size_t from = (size_t)at * chunk;
    return from >= bytes ? 0 : bytes - from < chunk ? bytes - from : chunk;
}

/* Bytes of `count` chunks from `first` on. */
static inline size_t ws_range_bytes(size_t bytes, size_t chunk, uint32_t first, uint32_t count)
{
    size_t from = (size_t)first * chunk, to = (size_t)(first + count) * chunk;
    return (to < bytes ? to : bytes) - from;
}

/* Copies the header of `length` received bytes; false for what is no datagram of these ranks. */
static inline bool ws_parse(struct ws_header *header, const uint8_t *data, size_t length, const uint8_t *token,
                            uint32_t ranks)
{
    if (length < sizeof *header)
        return false;
    memcpy(header, data, sizeof *header);
    return header->magic == WS_MAGIC && header->kind >= WS_DATA && header->kind <= WS_CREDIT &&
           ws_same_token(header->token, token) && header->rank < ranks;
}

#endif
