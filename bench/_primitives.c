/* The program of chapter 4's check (list 4.1 of the dissertation): calls of MPI_Bcast, then as many of MPI_Reduce,
 * again and again for some seconds.
 *
 * Arguments: seconds, calls of each, bytes, microseconds that a rank computes after a call. Rank 0 prints the number of
 * rounds. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A rank that waits sleeps, or the emulated network would have no processor. */
int sched_yield(void)
{
    struct timespec pause = {.tv_nsec = 1000 * 1000};
    nanosleep(&pause, NULL);
    return 0;
}

static void compute(int us)
{
    struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L};
    nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
    int rank, rounds = 0, more = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    int calls = argc > 2 ? atoi(argv[2]) : 100, bytes = argc > 3 ? atoi(argv[3]) : 1000;
    int us = argc > 4 ? atoi(argv[4]) : 0;
    char *out = calloc(1, (size_t)bytes + 1), *in = calloc(1, (size_t)bytes + 1);
    if (calls < 1 || bytes < 1 || out == NULL || in == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    double until = MPI_Wtime() + seconds;
    while (more) {
        for (int i = 0; i < calls; i++) {
            MPI_Bcast(out, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
            compute(us);
        }
        for (int i = 0; i < calls; i++) {
            MPI_Reduce(out, in, bytes, MPI_CHAR, MPI_BOR, 0, MPI_COMM_WORLD);
            compute(us);
        }
        rounds++;
        more = MPI_Wtime() < until;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("%d\n", rounds);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
