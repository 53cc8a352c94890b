/* A program that sends a known message and then ends as its second argument says; rank 1 does the deed. */
#define _GNU_SOURCE
#include "../mpi/live.h"
#include "expect.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

enum { FINISHED = 1 }; /* FLAG_FINISHED of shim/mpi/encode.h */

/* Wait until every other rank is within MPI_Finalize, as the profiler's files of them say; without them, not at all. */
static void await_others(void)
{
    const char *output = getenv("WAYSTAGE_PROFILE_OUTPUT");
    for (int rank = 0; output != NULL && rank < world_size; rank++) {
        char name[4096];
        struct live_header live = {.flags = 0};
        snprintf(name, sizeof name, "%s.live-%06d", output, rank);
        int file = rank == world_rank ? -1 : open(name, O_RDONLY);
        while (file >= 0 && pread(file, &live, sizeof live, 0) == sizeof live && !(live.flags & FINISHED))
            usleep(1000);
        if (file >= 0)
            close(file);
    }
}

static void on_term(int number)
{
    static const char text[] = "own handler\n";
    (void)number;
    if (write(1, text, sizeof text - 1) < 0)
        _exit(3);
    _exit(42);
}

int main(int argc, char **argv)
{
    char out[1000] = {0}, in[1000];
    expect_begin(&argc, &argv);
    const char *how = argc > 2 ? argv[2] : "end";
    int to = (world_rank + 1) % world_size, from = (world_rank + world_size - 1) % world_size;
    if (strcmp(how, "handler") == 0)
        signal(SIGTERM, on_term);
    MPI_Sendrecv(out, 700 + world_rank, MPI_BYTE, to, 1, in, 1000, MPI_BYTE, from, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    expect_send(to, 700 + world_rank);
    MPI_Barrier(MPI_COMM_WORLD);
    expect_write(argv);
    printf("rank %d was here\n", world_rank);
    fflush(stdout);
    if (strcmp(how, "end") != 0 && world_rank == 1) {
        if (strcmp(how, "leave") == 0 || strcmp(how, "vanish") == 0)
            await_others();
        if (strcmp(how, "abort") == 0)
            MPI_Abort(MPI_COMM_WORLD, 5);
        if (strcmp(how, "error") == 0)
            MPI_Send(out, 1, MPI_BYTE, world_size + 3, 1, MPI_COMM_WORLD);
        if (strcmp(how, "segv") == 0)
            *(volatile int *)16 = 1;
        if (strcmp(how, "kill") == 0)
            raise(SIGKILL);
        if (strcmp(how, "term") == 0 || strcmp(how, "handler") == 0)
            raise(SIGTERM);
        if (strcmp(how, "exit") == 0 || strcmp(how, "leave") == 0)
            exit(6);
        if (strcmp(how, "vanish") == 0)
            raise(SIGKILL);
    }
    /* With "leave" and "vanish" the others are within MPI_Finalize when rank 1 is gone. */
    if (strcmp(how, "end") != 0 && strcmp(how, "leave") != 0 && strcmp(how, "vanish") != 0)
        sleep(30);
    MPI_Finalize();
    return 0;
}
