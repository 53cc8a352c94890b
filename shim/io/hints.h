/* Hints of an MPI_Info as texts, the same on all ranks.
 *
 * Programs that compute hints differently on each rank made ranks take different branches (mpich#6408, mpich#5604):
 * those of rank 0 hold for all.
 */
#ifndef WAYSTAGE_IO_HINTS_H
#define WAYSTAGE_IO_HINTS_H

#include <mpi.h>

#define WS_MAX_HINTS 64
#define WS_HINT_BYTES 256

struct ws_hints {
    int count;
    char text[2 * WS_MAX_HINTS][WS_HINT_BYTES]; /* key, value, key, value, ... */
};

/* Adds one; a key or value that is too long is left out. */
void ws_hints_add(struct ws_hints *hints, const char *key, const char *value);

/* NULL where it is not there. */
const char *ws_hints_get(const struct ws_hints *hints, const char *key);

/* 1 for "true", "enable" and "1", 0 for "false", "disable" and "0", else `otherwise`. */
int ws_hints_switch(const struct ws_hints *hints, const char *key, int otherwise);

/* Collective: replaces each rank's by those of rank 0, and with them `bytes` bytes at `more`. Returns whether the hints
 * were the same here before. */
int ws_hints_of_rank_0(struct ws_hints *hints, void *more, int bytes, MPI_Comm comm);

/* Keys whose values MPI_File_get_info reports as the aggregators have them; the last is NULL. */
extern const char *const ws_hints_in_force[];

#endif
