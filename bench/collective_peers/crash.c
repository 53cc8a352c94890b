/* Writes and reads collectively for some time: crash SECONDS WORDS PATH PROGRESS. Each round all ranks write WORDS
 * 32-bit words each, in blocks in turn, into one of SLOTS parts of the file; every fifth round is synced and read back,
 * and after every odd one a part of an earlier round is read. Word i of round r is i x 2654435761 + 12345 + r. The file
 * PROGRESS has the number of writes that have ended, an int. Rank 0 prints one line of JSON: rounds, slots, words of a
 * round, wrong bytes read back, the median time of a write and the time above it of all writes, in seconds.
 */
#define _XOPEN_SOURCE 700
#include "checked.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SLOTS = 8, BLOCK = 256, MOST = 1 << 20 };

static uint32_t word(int i, int rank, int ranks, int round)
{
    uint32_t index = (uint32_t)(i / BLOCK * BLOCK * ranks + rank * BLOCK + i % BLOCK);
    return index * 2654435761u + 12345u + (uint32_t)round;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc != 5)
        MPI_Abort(MPI_COMM_WORLD, 2);
    double seconds = atof(argv[1]);
    int words = atoi(argv[2]) / BLOCK * BLOCK, rank, ranks, round = 0, go = 1;
    long wrong = 0, all = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint32_t *data = malloc(sizeof *data * (size_t)words), *back = malloc(sizeof *back * (size_t)words);
    double *took = malloc(sizeof *took * MOST);
    MPI_Datatype strided, type;
    MPI_Type_vector(words / BLOCK, BLOCK, BLOCK * ranks, MPI_UINT32_T, &strided);
    MPI_Type_create_resized(strided, 0, (MPI_Aint)words * 4 * ranks, &type);
    MPI_Type_commit(&type);
    int progress = rank == 0 ? open(argv[4], O_WRONLY | O_CREAT, 0666) : -1;
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, argv[3], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    check(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK * 4, MPI_UINT32_T, type, "native", MPI_INFO_NULL), "view");
    for (double began = MPI_Wtime(); go && round < MOST; round++) {
        for (int i = 0; i < words; i++)
            data[i] = word(i, rank, ranks, round);
        MPI_Offset at = (MPI_Offset)(round % SLOTS) * words;
        double start = MPI_Wtime();
        check(MPI_File_write_at_all(file, at, data, words, MPI_UINT32_T, MPI_STATUS_IGNORE), "write");
        took[round] = MPI_Wtime() - start;
        int ended = round + 1;
        if (rank == 0 && pwrite(progress, &ended, sizeof ended, 0) != sizeof ended)
            MPI_Abort(MPI_COMM_WORLD, 3);
        if (round % 5 == 4) {
            check(MPI_File_sync(file), "sync");
            check(MPI_File_read_at_all(file, at, back, words, MPI_UINT32_T, MPI_STATUS_IGNORE), "read");
            for (int i = 0; i < words; i++)
                wrong += back[i] == data[i] ? 0 : 4;
        }
        int earlier = round - round % (SLOTS - 1) - 1;
        if (round % 2 == 1 && earlier >= 0) {
            MPI_Offset from = (MPI_Offset)(earlier % SLOTS) * words;
            check(MPI_File_read_at_all(file, from, back, words, MPI_UINT32_T, MPI_STATUS_IGNORE), "read");
            for (int i = 0; i < words; i++)
                wrong += back[i] == word(i, rank, ranks, earlier) ? 0 : 4;
        }
        go = MPI_Wtime() - began < seconds;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    check(MPI_File_close(&file), "close");
    MPI_Type_free(&strided);
    MPI_Type_free(&type);
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        double above = 0;
        qsort(took, (size_t)round, sizeof *took, by_value);
        for (int i = 0; i < round; i++)
            above += took[i] > took[round / 2] ? took[i] - took[round / 2] : 0;
        printf("{\"rounds\": %d, \"slots\": %d, \"words\": %d, \"wrong\": %ld, \"write_s\": %.6f, \"above_s\": %.3f}\n",
        round,
               SLOTS, words * ranks, all, took[round / 2], above);
        fflush(stdout);
    }
    free(data);
    free(back);
    free(took);
    MPI_Finalize();
    return 0;
}
