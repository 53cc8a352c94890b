/* The kinds of messages, by number. python/waystage/patterns/kinds.py holds the same table; a test compares them. */
#ifndef WAYSTAGE_KINDS_H
#define WAYSTAGE_KINDS_H

#define KIND_PULLED 1   /* the recording rank receives the bytes */
#define KIND_PROTOCOL 2 /* carries bytes that another kind has counted */

/* X(number, identifier, name, group, flags) */
#define WAYSTAGE_KINDS(X)                                                                                              \
    X(0, UNSPLIT, "unsplit", "other", 0)                                                                               \
    X(1, P2P, "p2p", "p2p", 0)                                                                                         \
    X(2, PUT, "put", "one-sided", 0)                                                                                   \
    X(3, GET, "get", "one-sided", KIND_PULLED)                                                                         \
    X(4, ACCUMULATE, "accumulate", "one-sided", 0)                                                                     \
    X(5, RMA_PROTOCOL, "rma-protocol", "one-sided", KIND_PROTOCOL)                                                     \
    X(6, FILE_IO, "file-io", "other", 0)                                                                               \
    X(16, ALLGATHER, "allgather", "collective", 0)                                                                     \
    X(17, ALLGATHERV, "allgatherv", "collective", 0)                                                                   \
    X(18, ALLREDUCE, "allreduce", "collective", 0)                                                                     \
    X(19, ALLTOALL, "alltoall", "collective", 0)                                                                       \
    X(20, ALLTOALLV, "alltoallv", "collective", 0)                                                                     \
    X(21, ALLTOALLW, "alltoallw", "collective", 0)                                                                     \
    X(22, BARRIER, "barrier", "collective", 0)                                                                         \
    X(23, BCAST, "bcast", "collective", 0)                                                                             \
    X(24, EXSCAN, "exscan", "collective", 0)                                                                           \
    X(25, GATHER, "gather", "collective", 0)                                                                           \
    X(26, GATHERV, "gatherv", "collective", 0)                                                                         \
    X(27, REDUCE, "reduce", "collective", 0)                                                                           \
    X(28, REDUCE_SCATTER, "reduce_scatter", "collective", 0)                                                           \
    X(29, REDUCE_SCATTER_BLOCK, "reduce_scatter_block", "collective", 0)                                               \
    X(30, SCAN, "scan", "collective", 0)                                                                               \
    X(31, SCATTER, "scatter", "collective", 0)                                                                         \
    X(32, SCATTERV, "scatterv", "collective", 0)                                                                       \
    X(33, NONBLOCKING, "nonblocking", "collective", 0)                                                                 \
    X(34, NEIGHBOUR, "neighbour", "collective", 0)                                                                     \
    X(35, SETUP, "setup", "collective", 0)                                                                             \
    X(36, COLLECTIVE, "collective", "collective", 0)

enum kind {
#define X(number, identifier, name, group, flags) KIND_##identifier = number,
    WAYSTAGE_KINDS(X)
#undef X
};

#endif
