/* Bursts of a shared file: burst PHASES COMPUTE_S BYTES_A_RANK PATH. Each phase all ranks write BYTES_A_RANK each, in
 * blocks in turn, after what was written before. First PHASES phases with a pause of COMPUTE_S before each, as a
 * program that computes, and one sync behind the last; then PHASES phases that are synced at once. Rank 0 prints one
 * line of JSON: bytes of the file, the median time of a write of the first phases, their time in all, and the median
 * time of write and sync of the others, in seconds.
 */
#define _XOPEN_SOURCE 700
#include "checked.h"
#include "pattern.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 32 << 10, MOST = 1000 };

/* The longest time of any rank since `began`. */
static double longest_since(double began)
{
    double took = MPI_Wtime() - began, longest;
    MPI_Allreduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return longest;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int phases = argc == 5 ? atoi(argv[1]) : 0;
    if (phases < 1 || phases > MOST)
        MPI_Abort(MPI_COMM_WORLD, 2);
    double compute = atof(argv[2]), took[2][MOST];
    int blocks = atoi(argv[3]) / BLOCK, bytes = blocks * BLOCK;
    int64_t each = (int64_t)bytes * ranks, total = each * 2 * phases;
    uint32_t *data = malloc((size_t)bytes);
    if (data == NULL)
        MPI_Abort(MPI_COMM_WORLD, 3);
    /* The file has its size beforehand: FUSE lets only writes within it run in parallel. */
    if (rank == 0) {
        int made = open(argv[4], O_RDWR | O_CREAT, 0666);
        if (made < 0 || ftruncate(made, total) != 0 || close(made) != 0)
            MPI_Abort(MPI_COMM_WORLD, 4);
    }
    MPI_Datatype strided, type;
    MPI_Type_vector(blocks, BLOCK, BLOCK * ranks, MPI_BYTE, &strided);
    MPI_Type_create_resized(strided, 0, (MPI_Aint)each, &type);
    MPI_Type_commit(&type);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, argv[4], MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    check(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, type, "native", MPI_INFO_NULL), "set_view");
    double run = 0, began = MPI_Wtime();
    for (int phase = 0; phase < 2 * phases; phase++) {
        int synced = phase >= phases;
        if (!synced)
            nanosleep(&(struct timespec){(time_t)compute, (long)((compute - (double)(time_t)compute) * 1e9)}, NULL);
        for (int i = 0; i < bytes / 4; i++) {
            int64_t at = (int64_t)(i / (BLOCK / 4) * ranks + rank) * (BLOCK / 4) + i % (BLOCK / 4);
            data[i] = word_at(phase * (each / 4) + at);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Offset to = (MPI_Offset)phase * bytes;
        check(MPI_File_write_at_all(file, to, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write");
        if (synced)
            check(MPI_File_sync(file), "sync");
        took[synced][phase % phases] = longest_since(start);
        if (phase == phases - 1) {
            check(MPI_File_sync(file), "sync");
            run = longest_since(began);
        }
    }
    check(MPI_File_close(&file), "close");
    for (int synced = 0; synced < 2; synced++)
        qsort(took[synced], (size_t)phases, sizeof took[0][0], by_value);
    if (rank == 0)
        printf("{\"bytes\": %lld, \"write_s\": %.6f, \"run_s\": %.6f, \"sync_s\": %.6f}\n", (long long)total,
               took[0][phases / 2], run, took[1][phases / 2]);
    MPI_Type_free(&strided);
    MPI_Type_free(&type);
    free(data);
    MPI_Finalize();
    return 0;
}
