/* What every shipped communication pattern shares: options, the loop, and the report.
 *
 * Arrives: --iterations N --message BYTES --time-ms MS [--spin].
 * Leaves: one line of JSON from rank 0, and status 0 only if every byte that arrived was right.
 * Must not know: which pattern runs in the loop.
 *
 * {"ranks": 3, "iterations": 50, "message": 65536, "total_s": 1.5, "iteration_s": [0.03, ...]}
 * An iteration's time is that of its slowest rank, without the computation.
 */
#ifndef WAYSTAGE_HARNESS_H
#define WAYSTAGE_HARNESS_H

#include <mpi.h>

struct pattern {
    int rank;
    int size;
    int message;         /* bytes to each peer */
    unsigned char *send; /* size * message bytes */
    unsigned char *recv;
};

/* One iteration's communication; and which rank's data is then in block number `block` of recv, or -1. */
typedef void exchange_fn(struct pattern *p);
typedef int sender_fn(const struct pattern *p, int block);

/* For patterns that leave no rank's own block in recv. */
int no_sender(const struct pattern *p, int block);

/* Ends all ranks where the bytes of recv differ; a reduction or broadcast of first blocks, of one value, has one. */
void check_one_value(const struct pattern *p);

int harness_main(int argc, char **argv, exchange_fn *exchange, sender_fn *sender);

#endif
