/* What the cases of MPI-IO share: io_cases.c has main(), io_case_*.c the cases. */
#ifndef IO_CASES_H
#define IO_CASES_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct io_case {
    const char *name;
    void (*run)(const char *name, const char *path);
};

extern const struct io_case io_cases[];
extern int rank, size;

void say(const char *name, const char *what, long long mine);
MPI_File opened(const char *path, int amode, MPI_Info info);
MPI_File created(const char *path);
int class_of(int result);
int *numbered(int count, int first);
long long counted(MPI_Status *status, MPI_Datatype type);
void round_trip(const char *name, MPI_File file, MPI_Datatype filetype, MPI_Offset displacement, int count);

/* io_case_alone.c */
void shared_views(const char *name, const char *path);
void by_itself(const char *name, const char *path);
void openings(const char *name, const char *path);

#endif
