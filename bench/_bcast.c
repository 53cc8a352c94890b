/* MPI_Bcast by message size, as the OSU micro-benchmark osu_bcast defines it: calls from rank 0, each after a barrier;
 * here the time of the slowest rank, and with every byte checked.
 *
 * Arguments: [--calls N] [--roots] [--vector] [--late RANK] [--allgather] sizes in bytes. --roots lets every rank be
 * root by turns, --vector sends every second int, --late lets a rank sleep before each call, --allgather gathers that
 * number of bytes of each rank in place instead. Rank 0 prints {"wrong": bytes, "size": [seconds, ...], ...} of every
 * call, the first one included. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* As in the lab's own programs: a rank that waits sleeps, or the emulated network would have no processor. */
int sched_yield(void)
{
    struct timespec pause = {.tv_nsec = 100 * 1000};
    nanosleep(&pause, NULL);
    return 0;
}

static uint32_t word(uint32_t call, uint32_t at)
{
    return (at + 1) * 2654435761u ^ call * 40503u;
}

int main(int argc, char **argv)
{
    int rank, ranks, calls = 10, roots = 0, stride = 1, late = -1, gather = 0;
    uint64_t wrong = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "--calls") == 0 && at + 1 < argc)
            calls = atoi(argv[++at]);
        else if (strcmp(argv[at], "--late") == 0 && at + 1 < argc)
            late = atoi(argv[++at]);
        else if (strcmp(argv[at], "--roots") == 0)
            roots = 1;
        else if (strcmp(argv[at], "--allgather") == 0)
            gather = 1;
        else if (strcmp(argv[at], "--vector") == 0)
            stride = 2;
    }
    double *seconds = calloc((size_t)(calls > 0 ? calls : 1), sizeof *seconds);
    if (calls < 1 || seconds == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    if (rank == 0)
        printf("{");
    for (; at < argc; at++) {
        uint32_t count = (uint32_t)(strtoul(argv[at], NULL, 10) / sizeof(uint32_t));
        uint32_t blocks = gather ? (uint32_t)ranks : 1, step = (uint32_t)stride, all = blocks * count * step;
        uint32_t *data = malloc((size_t)all * sizeof *data + 4);
        MPI_Datatype sparse, type;
        if (count < 1 || data == NULL)
            MPI_Abort(MPI_COMM_WORLD, 2);
        MPI_Type_vector((int)count, 1, stride, MPI_UINT32_T, &sparse);
        MPI_Type_create_resized(sparse, 0, (MPI_Aint)(count * step * sizeof *data), &type);
        MPI_Type_commit(&type);
        for (int call = 0; call < calls; call++) {
            uint32_t owner = gather ? (uint32_t)rank : 0;
            int root = roots ? call % ranks : 0;
            for (uint32_t i = 0; i < all; i++)
                data[i] = (gather ? i / (count * step) == owner : rank == root) && i % step == 0
                              ? word((uint32_t)call, i)
                              : 7;
            if (rank == late) {
                struct timespec pause = {.tv_nsec = 30 * 1000 * 1000};
                nanosleep(&pause, NULL);
            } else {
                MPI_Barrier(late < 0 ? MPI_COMM_WORLD : MPI_COMM_SELF);
            }
            double began = MPI_Wtime();
            if (gather)
                MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, 1, type, MPI_COMM_WORLD);
            else
                MPI_Bcast(data, 1, type, root, MPI_COMM_WORLD);
            seconds[call] = MPI_Wtime() - began;
            for (uint32_t i = 0; i < all; i++)
                if (data[i] != (i % step == 0 ? word((uint32_t)call, i) : 7))
                    wrong += sizeof *data;
        }
        MPI_Reduce(rank ? seconds : MPI_IN_PLACE, seconds, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("\"%s\": [", argv[at]);
            for (int call = 0; call < calls; call++)
                printf("%s%.7f", call ? ", " : "", seconds[call]);
            printf("], ");
            fflush(stdout);
        }
        MPI_Type_free(&type);
        MPI_Type_free(&sparse);
        free(data);
    }
    MPI_Reduce(rank ? &wrong : MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("\"wrong\": %llu}\n", (unsigned long long)wrong);
    free(seconds);
    MPI_Finalize();
    return 0;
}
