/* A communicator's multicast group: its address, sockets and token. */
#ifndef WAYSTAGE_MULTICAST_GROUP_H
#define WAYSTAGE_MULTICAST_GROUP_H

#include "datagram.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct ws_group {
    int multicast, unicast; /* sockets: bound to the group's address; to the host's, from which everything is sent */
    struct sockaddr_in address;
    struct sockaddr_in *peers; /* by rank of the communicator */
    uint32_t ranks, mine;
    uint8_t token[WS_TOKEN_BYTES];
    size_t chunk;
    uint32_t most_in_flight; /* chunks that the smallest socket buffer holds */
    bool loops;              /* other ranks on this host get this rank's datagrams too */
    uint32_t operation;
    uint32_t window; /* chunks in flight, of this rank as a root */
    int64_t round_trip_ns; /* from a chunk to the slowest receiver's credit for it, smoothed; 0: not measured yet */
    uint32_t *entered; /* by rank: the last operation with this rank as root that it is known to have entered */
    uint32_t last_root;
};

/* What rank 0 tells the others: the address that the controller gave, a free port and the token. */
struct ws_offer {
    uint32_t valid, address, port;
    uint8_t token[WS_TOKEN_BYTES];
};

/* What each rank tells of itself. */
struct ws_card {
    uint32_t valid, address, port, chunk, in_flight;
};

/* Rank 0 waits this long for the controller, once or a few times a communicator. */
extern int ws_group_limit_ms;

/* Rank 0: ask the agent for a tree between the hosts of `worlds`, ranks of the world, and open the group's socket. */
void ws_group_ask(struct ws_group *group, struct ws_offer *offer, const uint32_t *worlds, uint32_t ranks);

/* Every rank: open what is not open yet. */
void ws_group_join(struct ws_group *group, const struct ws_offer *offer, uint32_t ranks, struct ws_card *card);

/* Take what all ranks told; false where one of them cannot take part, or all are on one host. */
bool ws_group_agree(struct ws_group *group, const struct ws_card *cards, uint32_t ranks, uint32_t mine);

struct ws_header ws_group_header(const struct ws_group *group, enum ws_kind kind, uint32_t first, uint32_t second);

/* Send a datagram without data. One that is not sent is as one that is lost. */
void ws_group_say(const struct ws_group *group, enum ws_kind kind, const struct sockaddr_in *to, uint32_t first,
                  uint32_t second);

int64_t ws_now_ns(void);

void ws_group_close(struct ws_group *group);

#endif
