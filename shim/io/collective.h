/* One collective operation, from control point to the status that all ranks agree on. */
#ifndef WAYSTAGE_IO_COLLECTIVE_H
#define WAYSTAGE_IO_COLLECTIVE_H

#include "file.h"

struct ws_access {
    int write;
    MPI_Offset offset; /* in etypes */
    void *buffer;      /* not written to where `write` */
    MPI_Count count;
    MPI_Datatype type;
};

/* Collective. An MPI error class, which the file's error handler has had. */
int ws_collective(struct ws_file *file, const struct ws_access *access, MPI_Status *status);

/* The status of an access of `moved` bytes. */
void ws_set_status(MPI_Status *status, int64_t moved);

/* Etypes that an access covers. */
MPI_Offset ws_etypes(const struct ws_file *file, MPI_Count count, MPI_Datatype type);

#endif
