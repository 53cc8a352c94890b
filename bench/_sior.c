/* S-IOR: phases of a pseudo-computation and one collective write to a shared file that stays open. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *path = argv[1];
    int bytes = atoi(argv[2]), phases = atoi(argv[3]);
    double compute = atof(argv[4]);
    char *data = malloc(bytes);
    memset(data, rank + 1, bytes);
    MPI_File file;
    MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    for (int phase = 0; phase < phases; phase++) {
        usleep((useconds_t)(compute * 1e6));
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        MPI_Offset at = ((MPI_Offset)phase * size + rank) * bytes;
        int rc = MPI_File_write_at_all(file, at, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE);
        double took = MPI_Wtime() - began, most;
        MPI_Reduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) { printf("%d %.4f %d\n", phase + 1, most, rc); fflush(stdout); }
    }
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
