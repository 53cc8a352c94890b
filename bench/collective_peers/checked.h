/* What the programs of this folder share: errors of MPI end them with one line, and times are sorted for a median. */
#ifndef CHECKED_H
#define CHECKED_H

#include <mpi.h>
#include <stdio.h>

static inline void check(int status, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (status == MPI_SUCCESS)
        return;
    MPI_Error_string(status, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* For qsort of doubles. */
static inline int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
