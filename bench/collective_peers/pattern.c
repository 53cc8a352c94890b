#include "pattern.h"

#include <string.h>

#define PIECE 4096
#define BLOCK 40000 /* no multiple of a page or stripe */
#define SITE 576    /* a lattice site of Grid: 4 x 3 x 3 complex doubles (mpich#7935) */

static int strided(int64_t block, int64_t bytes, int rank, int ranks, struct pattern *made)
{
    made->extents = bytes / block;
    made->length = block;
    made->first = rank * block;
    made->stride = ranks * block;
    made->bytes = made->extents * block;
    made->total = made->bytes * ranks;
    made->displacement = made->first;
    return MPI_Type_create_hvector((int)made->extents, (int)block, made->stride, MPI_BYTE, &made->filetype);
}

static int array(int64_t bytes, int rank, int ranks, struct pattern *made)
{
    int grid[4] = {0, 0, 0, 0}, at[4], side = 1, left = rank;
    MPI_Datatype site;
    if (MPI_Dims_create(ranks, 4, grid) != MPI_SUCCESS)
        return MPI_ERR_ARG;
    while ((int64_t)side * side * side * side * SITE < bytes)
        side++;
    for (int i = 3; i >= 0; i--) {
        at[i] = left % grid[i];
        left /= grid[i];
        made->subsizes[i] = side;
        made->sizes[i] = side * grid[i];
        made->starts[i] = at[i] * side;
    }
    made->is_array = 1;
    made->extents = (int64_t)side * side * side;
    made->length = (int64_t)side * SITE;
    made->bytes = made->extents * made->length;
    made->total = made->bytes * ranks;
    if (MPI_Type_contiguous(SITE, MPI_BYTE, &site) != MPI_SUCCESS)
        return MPI_ERR_TYPE;
    int status = MPI_Type_create_subarray(4, made->sizes, made->subsizes, made->starts, MPI_ORDER_C, site, &made->filetype);
    MPI_Type_free(&site);
    return status;
}

int pattern_make(const char *name, int64_t bytes, int rank, int ranks, struct pattern *made)
{
    int status = MPI_ERR_ARG;
    memset(made, 0, sizeof *made);
    if (strcmp(name, "contiguous") == 0) {
        /* A quarter of a stripe more than whole ones: ranks meet inside stripes. */
        made->extents = 1;
        made->length = made->bytes = bytes + (256 << 10);
        made->first = made->displacement = rank * made->bytes;
        made->total = made->bytes * ranks;
        status = MPI_Type_contiguous((int)made->bytes, MPI_BYTE, &made->filetype);
    } else if (strcmp(name, "strided") == 0) {
        status = strided(BLOCK, bytes, rank, ranks, made);
    } else if (strcmp(name, "pieces") == 0) {
        status = strided(PIECE, bytes, rank, ranks, made);
    } else if (strcmp(name, "subarray") == 0) {
        status = array(bytes, rank, ranks, made);
    }
    if (status == MPI_SUCCESS)
        status = MPI_Type_commit(&made->filetype);
    return status == MPI_SUCCESS ? 0 : -1;
}

int64_t pattern_offset(const struct pattern *of, int64_t index)
{
    if (!of->is_array)
        return of->first + index * of->stride;
    int64_t row = 0, left = index;
    int64_t place[3];
    for (int i = 2; i >= 0; i--) {
        place[i] = left % of->subsizes[i] + of->starts[i];
        left /= of->subsizes[i];
    }
    for (int i = 0; i < 3; i++)
        row = row * of->sizes[i] + place[i];
    return (row * of->sizes[3] + of->starts[3]) * SITE;
}
