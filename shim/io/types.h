/* MPI datatypes as nested loops of libwaystage_io.
 *
 * Arrives: a datatype's envelope and contents.
 * Leaves: a ws_io_type, kept as an attribute of the datatype, so that it is freed with it and a handle that MPI uses
 *         again gets a new one.
 * Must not know: files.
 */
#ifndef WAYSTAGE_IO_TYPES_H
#define WAYSTAGE_IO_TYPES_H

#include "library.h"
#include <mpi.h>

struct ws_type {
    ws_io_type *type; /* NULL where `dense` */
    int64_t size;     /* bytes of data */
    int64_t runs;     /* bound on the runs of bytes; saturates */
    int dense;        /* `size` bytes from 0, in order, and the extent is the size */
};

/* NULL: the datatype cannot be expressed (large counts of MPI 4, foreign combiners, no memory); never an MPI error. */
const struct ws_type *ws_type_of(MPI_Datatype type);

#endif
