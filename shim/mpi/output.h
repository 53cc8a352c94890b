/* Where a profile goes: one file for the run, or a part for each rank that does not reach MPI_Finalize. */
#ifndef WAYSTAGE_OUTPUT_H
#define WAYSTAGE_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "encode.h"

/* `world` is 0, or for processes that another MPI program started the number of their world; with several programs in
 * one world its `label` instead. False where the name is too long. */
bool output_name(const char *path, int rank, unsigned world, const char *label);

/* The first number of a spawned world whose name is free; it is taken from then on. Rank 0 alone asks. */
unsigned output_claim(const char *path);

/* Keep what this rank counts in a file beside the output, until output_gather is done or the rank has left its part. */
void output_begin(bool keep);

/* Rank 0 writes `head` and what every rank gives. Collective over all ranks of MPI_COMM_WORLD. */
void output_gather(const struct bytes *head, const struct bytes *part, int rank, int ranks);

/* This rank alone; whether its part is there. Safe within a signal handler. */
bool output_part(const struct bytes *head, const struct bytes *part);

/* What a handled signal may have left of a program that went on. */
void output_remove_part(void);

#endif
