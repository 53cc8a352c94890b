/* The I/O kernels of CLARISSE's evaluation (sections V.A and V.B) with parallel HDF5: kernels KERNEL STEPS PATH.
 *
 * vpic: VPIC-IO, 131,032 particles a process, a 1-D array of 32-bit values in each step. vorpal: VORPAL-IO, blocks of
 * 50 x 50 x 30 cells of three doubles, processes in a grid of p/15 x 5 x 3 where 15 divides p, else in a balanced one.
 * The datasets of all steps are made first, so that the file has its size; writing is timed after that, then reading
 * back. All transfers are collective. Word i of a dataset is word_at(i) plus its step. Rank 0 prints one line of JSON.
 */
#include "pattern.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTICLES 131032
#define MAX_STEPS 100

static int rank, ranks;

static void die(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static hid_t must(hid_t id, const char *what)
{
    if (id < 0)
        die(what);
    return id;
}

struct block {
    int dimensions;
    hsize_t all[4], part[4], start[4], words;
};

static void describe(const char *kernel, struct block *b)
{
    if (strcmp(kernel, "vpic") == 0) {
        b->dimensions = 1;
        b->all[0] = (hsize_t)PARTICLES * (hsize_t)ranks;
        b->part[0] = PARTICLES;
        b->start[0] = (hsize_t)PARTICLES * (hsize_t)rank;
        b->words = PARTICLES;
        return;
    }
    const hsize_t side[4] = {50, 50, 30, 6};
    int grid[3] = {ranks / 15, 5, 3}, left = rank;
    if (ranks % 15 != 0) {
        memset(grid, 0, sizeof grid);
        MPI_Dims_create(ranks, 3, grid);
    }
    b->dimensions = 4;
    b->words = 1;
    for (int i = 3; i >= 0; i--) {
        int at = 0, count = 1;
        if (i < 3) {
            count = grid[i];
            at = left % count;
            left /= count;
        }
        b->part[i] = side[i];
        b->all[i] = side[i] * (hsize_t)count;
        b->start[i] = side[i] * (hsize_t)at;
        b->words *= side[i];
    }
}

/* Word index in the dataset of each word of this rank, in order, to `visit`. */
static int64_t each_word(const struct block *b, uint32_t *words, int step, int compare)
{
    int64_t wrong = 0;
    hsize_t row = b->part[b->dimensions - 1], rows = b->words / row;
    for (hsize_t i = 0; i < rows; i++) {
        hsize_t left = i, place[4] = {0, 0, 0, 0}, base = 0;
        for (int d = b->dimensions - 2; d >= 0; d--) {
            place[d] = left % b->part[d];
            left /= b->part[d];
        }
        for (int d = 0; d < b->dimensions; d++)
            base = base * b->all[d] + b->start[d] + place[d];
        for (hsize_t k = 0; k < row; k++, words++) {
            uint32_t value = word_at((int64_t)(base + k)) + (uint32_t)step;
            if (!compare)
                *words = value;
            else
                wrong += *words == value ? 0 : 4;
        }
    }
    return wrong;
}

static void make(const char *path, int steps, const struct block *b, hid_t access, long long *offsets)
{
    char name[32];
    hid_t file = must(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access), "H5Fcreate");
    hid_t space = must(H5Screate_simple(b->dimensions, b->all, NULL), "H5Screate");
    hid_t how = must(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate");
    H5Pset_fill_time(how, H5D_FILL_TIME_NEVER);
    for (int step = 0; step < steps; step++) {
        snprintf(name, sizeof name, "step%d", step);
        hid_t set = must(H5Dcreate2(file, name, H5T_NATIVE_UINT32, space, H5P_DEFAULT, how, H5P_DEFAULT), "H5Dcreate");
        offsets[step] = (long long)H5Dget_offset(set);
        H5Dclose(set);
    }
    H5Pclose(how);
    H5Sclose(space);
    if (H5Fclose(file) < 0)
        die("H5Fclose");
}

/* Writes or reads all steps; the seconds of this rank. */
static double transfer(const char *path, int steps, const struct block *b, hid_t access, uint32_t *words, int write,
                       int64_t *wrong)
{
    char name[32];
    double spent = 0;
    hid_t how = must(H5Pcreate(H5P_DATASET_XFER), "H5Pcreate");
    H5Pset_dxpl_mpio(how, H5FD_MPIO_COLLECTIVE);
    hid_t memory = must(H5Screate_simple(1, &b->words, NULL), "H5Screate");
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    hid_t file = must(H5Fopen(path, write ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access), "H5Fopen");
    spent += MPI_Wtime() - began;
    for (int step = 0; step < steps; step++) {
        snprintf(name, sizeof name, "step%d", step);
        if (write)
            each_word(b, words, step, 0);
        else
            memset(words, 0xee, b->words * 4);
        MPI_Barrier(MPI_COMM_WORLD);
        began = MPI_Wtime();
        hid_t set = must(H5Dopen2(file, name, H5P_DEFAULT), "H5Dopen");
        hid_t space = must(H5Dget_space(set), "H5Dget_space");
        H5Sselect_hyperslab(space, H5S_SELECT_SET, b->start, NULL, b->part, NULL);
        herr_t done = write ? H5Dwrite(set, H5T_NATIVE_UINT32, memory, space, how, words)
                            : H5Dread(set, H5T_NATIVE_UINT32, memory, space, how, words);
        if (done < 0)
            die(write ? "H5Dwrite" : "H5Dread");
        H5Sclose(space);
        H5Dclose(set);
        spent += MPI_Wtime() - began;
        if (!write)
            *wrong += each_word(b, words, step, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
    if (H5Fclose(file) < 0)
        die("H5Fclose");
    spent += MPI_Wtime() - began;
    H5Sclose(memory);
    H5Pclose(how);
    return spent;
}

int main(int argc, char **argv)
{
    struct block b;
    long long offsets[MAX_STEPS], wrong, all_wrong;
    int64_t found = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int steps = argc == 4 ? atoi(argv[2]) : 0;
    if (steps < 1 || steps > MAX_STEPS)
        die("usage: kernels vpic|vorpal STEPS PATH");
    describe(argv[1], &b);
    uint32_t *words = malloc(b.words * 4);
    if (words == NULL)
        die("out of memory");
    hid_t access = must(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate");
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    /* Metadata in few writes, as applications set it. */
    H5Pset_coll_metadata_write(access, 1);
    make(argv[3], steps, &b, access, offsets);
    double times[2], longest[2];
    times[0] = transfer(argv[3], steps, &b, access, words, 1, &found);
    times[1] = transfer(argv[3], steps, &b, access, words, 0, &found);
    wrong = found;
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(times, longest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        long long words_in_all = (long long)b.words * ranks;
        printf("{\"bytes\": %lld, \"wrong_read\": %lld, \"write_s\": %.9f, \"read_s\": %.9f, \"offsets\": [", words_in_all * 4 * steps,
               all_wrong, longest[0], longest[1]);
        for (int i = 0; i < steps; i++)
            printf("%s%lld", i > 0 ? ", " : "", offsets[i]);
        printf("]}\n");
    }
    H5Pclose(access);
    free(words);
    MPI_Finalize();
    return 0;
}
