/* This rank's connection to the aggregator process of its node, and which ranks share a node. */
#ifndef WAYSTAGE_IO_NODE_H
#define WAYSTAGE_IO_NODE_H

#include "library.h"
#include <mpi.h>

#define WS_ADDRESS_BYTES 128

struct ws_nodes {
    int count;
    char (*address)[WS_ADDRESS_BYTES]; /* of each node, in the order of its first rank */
    int *of_rank;
};

/* NULL where there is none; ws_node_why() says why. With MPI_THREAD_MULTIPLE each file has its own. */
ws_io_node *ws_node_connect(void);
void ws_node_release(ws_io_node *node);
const char *ws_node_why(void);

/* Collective; `node` is NULL on a rank that has no aggregator. -1, or the first such rank, or the first of which the
 * address does not fit the others'; then nothing is to be freed. Of a communicator with the ranks of MPI_COMM_WORLD the
 * nodes are gathered once. */
int ws_nodes_gather(MPI_Comm comm, ws_io_node *node, struct ws_nodes *nodes);
void ws_nodes_free(struct ws_nodes *nodes);

#endif
