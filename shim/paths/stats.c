/* See stats.h. */
#define _GNU_SOURCE
#include "stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CLASSES 32

static struct {
    const char *file;
    int rank;
    uint64_t first, first_ns, first_max_ns, later, later_ns, unanswered;
    uint64_t later_below[CLASSES]; /* calls of less than 2^i ns */
} stats;

uint64_t stats_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void stats_start(int rank)
{
    stats.file = getenv("WAYSTAGE_PATHS_STATS");
    stats.rank = rank;
}

bool stats_wanted(void)
{
    return stats.file != NULL;
}

/* The clock is read twice, since without statistics none is: the first time it may not be in the processor's cache. */
uint64_t stats_begin(void)
{
    if (!stats_wanted())
        return 0;
    stats_now_ns();
    return stats_now_ns();
}

void stats_unanswered(bool unanswered)
{
    stats.unanswered += unanswered;
}

void stats_call(bool first, uint64_t took)
{
    if (first) {
        stats.first++;
        stats.first_ns += took;
        if (took > stats.first_max_ns)
            stats.first_max_ns = took;
    } else {
        unsigned class = took ? 64 - (unsigned)__builtin_clzll(took) : 0;
        stats.later++;
        stats.later_ns += took;
        stats.later_below[class < CLASSES ? class : CLASSES - 1]++;
    }
}

__attribute__((destructor)) static void tell_stats(void)
{
    char name[4096];
    if (stats.file == NULL || snprintf(name, sizeof name, "%s.%d", stats.file, stats.rank) >= (int)sizeof name)
        return;
    FILE *file = fopen(name, "we");
    if (file == NULL)
        return;
    fprintf(file,
            "{\"first\": %" PRIu64 ", \"first_ns\": %" PRIu64 ", \"first_max_ns\": %" PRIu64 ", \"later\": %" PRIu64
            ", \"later_ns\": %" PRIu64 ", \"unanswered\": %" PRIu64 ", \"later_below\": [",
            stats.first, stats.first_ns, stats.first_max_ns, stats.later, stats.later_ns, stats.unanswered);
    for (int i = 0; i < CLASSES; i++)
        fprintf(file, "%s%" PRIu64, i ? ", " : "", stats.later_below[i]);
    fputs("]}\n", file);
    fclose(file);
}
