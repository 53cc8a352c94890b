/* MPI_Allreduce by message size, as the OSU micro-benchmark osu_allreduce defines it: the mean over iterations of a
 * call's time, each preceded by a barrier; here of the slowest rank, and with the result checked.
 *
 * Arguments: --calls N, --small-calls N (below 64 KiB), then sizes in bytes. Rank 0 prints
 * {"size": [seconds, ...], ...} of every call, the first one included. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A rank that waits sleeps, or the emulated network would have no processor: a twentieth of the time that it has waited
 * in this call, so that no call takes 5 % longer by it. */
static double waits_since;

int sched_yield(void)
{
    double nap_ns = (MPI_Wtime() - waits_since) * 1e9 / 20;
    struct timespec pause = {.tv_nsec = (long)(nap_ns < 50e3 ? 50e3 : nap_ns > 2e6 ? 2e6 : nap_ns)};
    nanosleep(&pause, NULL);
    return 0;
}

int main(int argc, char **argv)
{
    int rank, ranks, large_calls = 10, small_calls = 0, first = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (; argc > first + 1 && strncmp(argv[first], "--", 2) == 0; first += 2)
        *(strcmp(argv[first], "--calls") == 0 ? &large_calls : &small_calls) = atoi(argv[first + 1]);
    if (small_calls == 0)
        small_calls = large_calls;
    if (small_calls < 1 || large_calls < 1)
        MPI_Abort(MPI_COMM_WORLD, 2);
    double *seconds = calloc((size_t)(small_calls > large_calls ? small_calls : large_calls), sizeof *seconds);
    if (rank == 0)
        printf("{");
    for (int at = first; at < argc; at++) {
        long size = atol(argv[at]);
        int count = (int)(size / (long)sizeof(float)), calls = size < 65536 ? small_calls : large_calls;
        float *send = malloc((size_t)size + 4), *receive = malloc((size_t)size + 4);
        if (size < 4 || send == NULL || receive == NULL || seconds == NULL)
            MPI_Abort(MPI_COMM_WORLD, 2);
        for (int i = 0; i < count; i++)
            send[i] = (float)(rank + i % 7);
        for (int call = 0; call < calls; call++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double began = waits_since = MPI_Wtime();
            MPI_Allreduce(send, receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            seconds[call] = MPI_Wtime() - began;
        }
        for (int i = 0; i < count; i++)
            if (receive[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7)))
                MPI_Abort(MPI_COMM_WORLD, 3);
        MPI_Reduce(rank ? seconds : MPI_IN_PLACE, seconds, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%s\"%ld\": [", at > first ? ", " : "", size);
            for (int call = 0; call < calls; call++)
                printf("%s%.7f", call ? ", " : "", seconds[call]);
            printf("]");
            fflush(stdout);
        }
        free(send);
        free(receive);
    }
    if (rank == 0)
        printf("}\n");
    free(seconds);
    MPI_Finalize();
    return 0;
}
