/* The access patterns of bench/collective.py: which extents of a shared file each rank has.
 *
 * A rank's extents ascend; together the ranks cover the file once. The 32-bit word at word index i of the file is
 * word_at(i), so that any reader can verify any byte.
 */
#ifndef PATTERN_H
#define PATTERN_H

#include <mpi.h>
#include <stdint.h>

struct pattern {
    MPI_Datatype filetype;
    MPI_Offset displacement;
    int64_t bytes;       /* of this rank */
    int64_t total;       /* of all ranks */
    int64_t extents;     /* of this rank */
    int64_t length;      /* of each extent */
    /* for arrays of sites */
    int sizes[4], subsizes[4], starts[4];
    int64_t first, stride; /* for strided extents: offset of the first, distance */
    int is_array;
};

static inline uint32_t word_at(int64_t index)
{
    return (uint32_t)index * 2654435761u + 12345u;
}

/* `bytes` is the amount of a rank, about. Names: contiguous, strided, pieces, subarray. Returns 0, or -1. */
int pattern_make(const char *name, int64_t bytes, int rank, int ranks, struct pattern *made);

/* The file offset of extent `index` of this rank. */
int64_t pattern_offset(const struct pattern *of, int64_t index);

#endif
