/* What calls cost, for benchmarks: where WAYSTAGE_PATHS_STATS names a file, each rank leaves one with its number. */
#ifndef WAYSTAGE_PATHS_STATS_H
#define WAYSTAGE_PATHS_STATS_H

#include <stdbool.h>
#include <stdint.h>

void stats_start(int rank);
bool stats_wanted(void);
/* The time, ns, where statistics are wanted; else 0. */
uint64_t stats_begin(void);
uint64_t stats_now_ns(void);

/* The time that a call took in this library; `first` where it was declared, learned or waited for. */
void stats_call(bool first, uint64_t took_ns);

/* A wait ended without an answer. */
void stats_unanswered(bool unanswered);

#endif
