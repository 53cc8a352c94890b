/* What the programs of `bench mpi-jobs` share: when they begin, and what they say. */
#ifndef WAYSTAGE_BENCH_MPI_JOB_H
#define WAYSTAGE_BENCH_MPI_JOB_H

#include <mpi.h>
#include <stdio.h>
#include <time.h>

/* Seconds since 1970: times of several programs are compared. */
static double job_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Rank 0 prints `ready` and reads a line, or the end of its input; then all ranks begin. Returns the time. */
static double job_begins(int rank)
{
    if (rank == 0) {
        puts("ready");
        fflush(stdout);
        for (int c = getchar(); c != EOF && c != '\n';)
            c = getchar();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return job_clock();
}

/* Rank 0 prints when the job began and ended, and how many results of all ranks are wrong. */
static void job_ends(int rank, double began, long wrong)
{
    MPI_Reduce(rank ? &wrong : MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"began\": %.6f, \"ended\": %.6f, \"wrong\": %ld}\n", began, job_clock(), wrong);
    fflush(stdout);
}

#endif
