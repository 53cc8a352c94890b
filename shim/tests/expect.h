/* What a test program says that it sent, for the test to compare with what the profiler saw.
 *
 * Every rank writes lines `KIND SOURCE DESTINATION MESSAGES BYTES`, of ranks in MPI_COMM_WORLD, to the file named by
 * the program's first argument and its rank. Nothing of it is sent by MPI.
 */
#ifndef WAYSTAGE_TEST_EXPECT_H
#define WAYSTAGE_TEST_EXPECT_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 64
#define MOST_KINDS 8

static struct {
    const char *kind;
    long long messages[MOST_RANKS][MOST_RANKS], bytes[MOST_RANKS][MOST_RANKS];
} expected[MOST_KINDS];

static int world_rank, world_size;

static inline void expect(const char *kind, int source, int destination, long long bytes)
{
    for (int i = 0; i < MOST_KINDS; i++) {
        if (expected[i].kind == NULL)
            expected[i].kind = kind;
        if (strcmp(expected[i].kind, kind) == 0) {
            expected[i].messages[source][destination]++;
            expected[i].bytes[source][destination] += bytes;
            return;
        }
    }
    MPI_Abort(MPI_COMM_WORLD, 9);
}

/* This rank sends to the one that is `rank` in MPI_COMM_WORLD. */
static inline void expect_send(int rank, long long bytes)
{
    expect("p2p", world_rank, rank, bytes);
}

/* The rank in MPI_COMM_WORLD of `rank` in `comm`, asked of that rank itself. */
static inline int world_of(MPI_Comm comm, int rank)
{
    int size, all[MOST_RANKS];
    MPI_Comm_size(comm, &size);
    MPI_Allgather(&world_rank, 1, MPI_INT, all, 1, MPI_INT, comm);
    return all[rank];
}

static inline void expect_begin(int *argc, char ***argv)
{
    int level;
    MPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    if (world_size > MOST_RANKS || *argc < 2)
        MPI_Abort(MPI_COMM_WORLD, 8);
}

static inline void expect_write(char **argv)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", argv[1], world_rank);
    FILE *file = fopen(name, "w");
    if (file == NULL)
        MPI_Abort(MPI_COMM_WORLD, 7);
    for (int i = 0; i < MOST_KINDS && expected[i].kind != NULL; i++)
        for (int s = 0; s < world_size; s++)
            for (int d = 0; d < world_size; d++)
                if (expected[i].messages[s][d] > 0)
                    fprintf(file, "%s %d %d %lld %lld\n", expected[i].kind, s, d, expected[i].messages[s][d],
                            expected[i].bytes[s][d]);
    fclose(file);
}

static inline void expect_end(char **argv)
{
    expect_write(argv);
    MPI_Finalize();
}

#endif
