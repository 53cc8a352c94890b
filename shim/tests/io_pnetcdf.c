/* PnetCDF, collective: a record variable and a fixed one, in strides of each rank, and read back. */
#include <pnetcdf.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, size, file, dimensions[2], fixed, record, records, wrong = 0, all, values[30], back[30] = {0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < 30; i++)
        values[i] = rank * 100 + i;
    wrong += ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file) != NC_NOERR;
    ncmpi_def_dim(file, "time", NC_UNLIMITED, &records);
    ncmpi_def_dim(file, "x", 10 * size, &dimensions[1]);
    dimensions[0] = records;
    ncmpi_def_var(file, "fixed", NC_INT, 1, &dimensions[1], &fixed);
    ncmpi_def_var(file, "record", NC_INT, 2, dimensions, &record);
    wrong += ncmpi_enddef(file) != NC_NOERR;
    MPI_Offset start[2] = {0, rank}, count[2] = {3, 10}, stride[2] = {1, size};
    wrong += ncmpi_put_vars_int_all(file, record, start, count, stride, values) != NC_NOERR;
    wrong += ncmpi_put_vars_int_all(file, fixed, &start[1], &count[1], &stride[1], values) != NC_NOERR;
    wrong += ncmpi_get_vars_int_all(file, record, start, count, stride, back) != NC_NOERR;
    for (int i = 0; i < 30; i++)
        wrong += back[i] != values[i];
    ncmpi_close(file);
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("wrong %d\n", all);
    MPI_Finalize();
    return 0;
}
