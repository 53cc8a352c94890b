/* Writes the same strided pattern at growing offsets, N times, and with END until that file exists; then reads all of
   it back. Usage: io_loop FILE N [END]. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 300, BLOCK = 3 };

int main(int argc, char **argv) {
    int rank, size, wrong = 0, all, values[COUNT], rounds = atoi(argv[2]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_File file;
    MPI_Datatype strided, type;
    MPI_Type_vector(COUNT / BLOCK, BLOCK, BLOCK * size, MPI_INT, &strided);
    MPI_Type_create_resized(strided, 0, (MPI_Aint)COUNT * 4 * size, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&strided);
    MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    MPI_File_set_errhandler(file, MPI_ERRORS_ARE_FATAL);
    MPI_File_set_view(file, (MPI_Offset)rank * BLOCK * 4, MPI_INT, type, "native", MPI_INFO_NULL);
    for (int i = 0, more = argc > 3; i < rounds || more; i++) {
        for (int k = 0; k < COUNT; k++)
            values[k] = i * 1000 + k + rank * 7;
        MPI_File_write_all(file, values, COUNT, MPI_INT, MPI_STATUS_IGNORE);
        if (more) {
            more = access(argv[3], F_OK) != 0;
            MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        }
        if (i >= rounds)
            rounds = i + 1;
    }
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    for (int i = 0; i < rounds; i++) {
        MPI_File_read_all(file, values, COUNT, MPI_INT, MPI_STATUS_IGNORE);
        for (int k = 0; k < COUNT; k++)
            wrong += values[k] != i * 1000 + k + rank * 7;
    }
    MPI_File_close(&file);
    MPI_Type_free(&type);
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("wrong %d\n", all);
    MPI_Finalize();
    return 0;
}
