/* One broadcast over a group. */
#ifndef WAYSTAGE_MULTICAST_TRANSFER_H
#define WAYSTAGE_MULTICAST_TRANSFER_H

#include "group.h"

#include <mpi.h>

struct ws_counts {
    uint64_t operations, chunks, sent, lost, repaired, foreign;
};

/* Every rank of `comm` calls it with the same `bytes` and `root`; on return `buffer` has the root's. An MPI error code.
 * `counts` is added to: `chunks` of all operations, `sent` by multicast, `lost` on the way to this rank, `repaired` by
 * the ring, `foreign` datagrams that were not believed. */
int ws_transfer(struct ws_group *group, MPI_Comm comm, uint8_t *buffer, size_t bytes, uint32_t root,
                struct ws_counts *counts);

#endif
