/* Messages whose every byte says what they belong to, so that a packet's tag can be compared with its contents.
 *
 *   tagged check ROUNDS       messages of five primitives on eight communicators
 *   tagged latency ROUNDS     half the round trip of 8 bytes, in microseconds
 *   tagged bandwidth ROUNDS   windows of 64 messages of 64 KiB, each answered once, in Mbit/s
 *
 * The last two follow the definitions of osu_latency and osu_bw. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { P2P, BCAST, REDUCE, ALLREDUCE, ALLGATHER, PRIMITIVES };
#define COMMUNICATORS 8
#define MOST 300000

static int mark(int primitive, int communicator)
{
    return 0x80 | primitive << 3 | communicator;
}

static void check(int rounds, int rank, int size)
{
    static const int sizes[] = {100, 1000, 30000, 100000, MOST};
    MPI_Comm comms[COMMUNICATORS];
    unsigned char *out = malloc(MOST), *in = malloc((size_t)MOST * (size_t)size);
    for (int i = 0; i < COMMUNICATORS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int round = 0; round < rounds; round++) {
        int c = round % COMMUNICATORS, primitive = (round / COMMUNICATORS) % PRIMITIVES;
        int bytes = sizes[(round / (COMMUNICATORS * PRIMITIVES) + round) % 5];
        memset(out, mark(primitive, c), (size_t)bytes);
        switch (primitive) {
        case P2P:
            MPI_Sendrecv(out, bytes, MPI_BYTE, (rank + 1) % size, 3, in, bytes, MPI_BYTE, (rank + size - 1) % size, 3,
                         comms[c], MPI_STATUS_IGNORE);
            break;
        case BCAST:
            MPI_Bcast(out, bytes, MPI_BYTE, round % size, comms[c]);
            break;
        case REDUCE:
            MPI_Reduce(out, in, bytes, MPI_BYTE, MPI_BOR, round % size, comms[c]);
            break;
        case ALLREDUCE:
            MPI_Allreduce(out, in, bytes, MPI_BYTE, MPI_BOR, comms[c]);
            break;
        default:
            MPI_Allgather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, comms[c]);
        }
    }
}

static void latency(int rounds, int rank)
{
    char b[8] = {0};
    double since = 0;
    for (int i = -rounds / 10; i < rounds; i++) {
        if (i == 0)
            since = MPI_Wtime();
        if (rank == 0) {
            MPI_Send(b, 8, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(b, 8, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(b, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(b, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
    }
    if (rank == 0)
        printf("%.4f\n", (MPI_Wtime() - since) / rounds / 2 * 1e6);
}

static void bandwidth(int rounds, int rank)
{
    enum { WINDOW = 64, BYTES = 65536 };
    char *b = calloc(WINDOW, BYTES), done = 0;
    MPI_Request requests[WINDOW];
    double since = 0;
    for (int i = -1; i < rounds && rank < 2; i++) {
        if (i == 0)
            since = MPI_Wtime();
        for (int w = 0; w < WINDOW; w++)
            if (rank == 0)
                MPI_Isend(b + w * BYTES, BYTES, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[w]);
            else
                MPI_Irecv(b + w * BYTES, BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[w]);
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(&done, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&done, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("%.4f\n", 8e-6 * WINDOW * BYTES * rounds / (MPI_Wtime() - since));
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *what = argc > 1 ? argv[1] : "check";
    int rounds = argc > 2 ? atoi(argv[2]) : 100;
    if (strcmp(what, "latency") == 0)
        latency(rounds, rank);
    else if (strcmp(what, "bandwidth") == 0)
        bandwidth(rounds, rank);
    else
        check(rounds, rank, size);
    MPI_Finalize();
    return 0;
}
