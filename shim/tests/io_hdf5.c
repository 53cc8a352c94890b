/* Parallel HDF5, collective: a 3-D dataset in blocks of each rank, chunked and contiguous, and read back. */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>

static long write_and_read(hid_t file, const char *name, int chunked, int rank, int size) {
    hsize_t whole[3] = {8, 6 * (hsize_t)size, 10}, part[3] = {8, 6, 10}, start[3] = {0, 6 * (hsize_t)rank, 0};
    hid_t space = H5Screate_simple(3, whole, NULL), memory = H5Screate_simple(3, part, NULL),
          create = H5Pcreate(H5P_DATASET_CREATE), transfer = H5Pcreate(H5P_DATASET_XFER);
    if (chunked) {
        hsize_t chunk[3] = {4, 5, 10};
        H5Pset_chunk(create, 3, chunk);
    }
    H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
    hid_t set = H5Dcreate2(file, name, H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, part, NULL);
    double *values = malloc(sizeof *values * 480), *back = calloc(480, sizeof *back);
    for (int i = 0; i < 480; i++)
        values[i] = rank * 1000 + i;
    long wrong = H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, space, transfer, values) < 0;
    wrong += H5Dread(set, H5T_NATIVE_DOUBLE, memory, space, transfer, back) < 0;
    for (int i = 0; i < 480; i++)
        wrong += values[i] != back[i];
    H5Dclose(set), H5Sclose(space), H5Sclose(memory), H5Pclose(create), H5Pclose(transfer);
    free(values);
    free(back);
    return wrong;
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access);
    long wrong = write_and_read(file, "contiguous", 0, rank, size) + write_and_read(file, "chunked", 1, rank, size), all;
    H5Fclose(file), H5Pclose(access);
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("wrong %ld\n", all);
    MPI_Finalize();
    return 0;
}
