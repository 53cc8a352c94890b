/* Where a profile goes: one file for the run, or a part for each rank that does not reach MPI_Finalize. */
#ifndef WAYSTAGE_OUTPUT_H
#define WAYSTAGE_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "encode.h"

/* `spawned`: by another MPI program, whose file has the name itself. False where the name is too long. */
bool output_name(const char *path, int rank, bool spawned);

/* Rank 0 writes `head` and what every rank gives. Collective over all ranks of MPI_COMM_WORLD. */
void output_gather(const struct bytes *head, const struct bytes *part, int rank, int ranks);

/* This rank alone. Safe within a signal handler. */
void output_part(const struct bytes *head, const struct bytes *part);

/* What a handled signal may have left of a program that went on. */
void output_remove_part(void);

#endif
