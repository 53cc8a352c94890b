/* A pattern that changes: first a ring to the right, then one to the left. The arguments after the file: milliseconds
 * of each.
 */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <time.h>

static void ring(int step, double seconds)
{
    char out[256] = {0}, in[256];
    int to = (world_rank + step + world_size) % world_size, from = (world_rank - step + world_size) % world_size;
    double until = MPI_Wtime() + seconds;
    for (int go = 1; go;) {
        MPI_Sendrecv(out, 100, MPI_BYTE, to, 1, in, 256, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect_send(to, 100);
        go = MPI_Wtime() < until;
        /* All end in the same round. */
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

int main(int argc, char **argv)
{
    expect_begin(&argc, &argv);
    for (int i = 2; i < argc; i++)
        ring(i % 2 == 0 ? 1 : -1, atof(argv[i]) / 1000);
    expect_end(argv);
    return 0;
}
