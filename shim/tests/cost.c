/* How long messages take: `cost self MESSAGES` of a rank to itself, `cost stream MESSAGES SIZE` from rank 0 to rank 1
 * in windows of 64. Prints nanoseconds a message, the least of several trials: what disturbs a trial only ever adds.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 64
#define TRIALS 15

static char *out, *in;
static MPI_Request requests[2 * WINDOW];

static void self_window(int size)
{
    for (int i = 0; i < WINDOW; i++)
        MPI_Irecv(in, size, MPI_BYTE, 0, 1, MPI_COMM_SELF, &requests[i]);
    for (int i = 0; i < WINDOW; i++)
        MPI_Isend(out, size, MPI_BYTE, 0, 1, MPI_COMM_SELF, &requests[WINDOW + i]);
    MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE);
}

static void stream_window(int rank, int size)
{
    char done = 0;
    for (int i = 0; i < WINDOW; i++) {
        if (rank == 0)
            MPI_Isend(out + i * size, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
        else
            MPI_Irecv(in + i * size, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(&done, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&done, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int self = argc > 1 && strcmp(argv[1], "self") == 0;
    long windows = argc > 2 ? atol(argv[2]) / WINDOW : 1000;
    int size = argc > 3 ? atoi(argv[3]) : 8;
    out = calloc(WINDOW, (size_t)size + 1);
    in = calloc(WINDOW, (size_t)size + 1);
    double least = 1e9;
    /* The first trial warms up: connections, tables, caches. */
    for (int trial = 0; trial <= TRIALS; trial++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (long i = 0; i < windows; i++) {
            if (self)
                self_window(size);
            else
                stream_window(rank, size);
        }
        double took = MPI_Wtime() - start;
        if (trial > 0 && took < least)
            least = took;
    }
    if (rank == 0)
        printf("%.3f\n", least / ((double)windows * WINDOW) * 1e9);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
