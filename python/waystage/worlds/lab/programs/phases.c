/* Phases of a pseudo-computation and one collective write to a shared file, which stays open: S-IOR of Isaila et al.,
 * "CLARISSE", section V. Each write replaces the one before. Rank 0 prints a line for each:
 *
 *     op NUMBER BEGAN_NS SECONDS ERROR
 *
 * BEGAN_NS is of CLOCK_REALTIME, SECONDS those of the slowest rank, ERROR an MPI error class. */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void compute(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0) {
    }
}

static long long now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 8) {
        fprintf(stderr, "usage: phases FILE BYTES OPERATIONS COMPUTE_S START_S AGGREGATORS BUFFER\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long long bytes = atoll(argv[2]);
    int operations = atoi(argv[3]);
    double compute_s = atof(argv[4]), start_s = atof(argv[5]);
    long long begin = bytes / size * rank, end = rank == size - 1 ? bytes : bytes / size * (rank + 1);
    char *data = malloc((size_t)(end - begin) + 1);
    if (data == NULL)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "cb_nodes", argv[6]);
    MPI_Info_set(info, "cb_buffer_size", argv[7]);
    MPI_File file;
    int class = MPI_SUCCESS;
    int code = MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, info, &file);
    if (code != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING];
        int length;
        MPI_Error_string(code, text, &length);
        fprintf(stderr, "error: %s cannot be opened: %s\n", argv[1], text);
        MPI_Abort(MPI_COMM_WORLD, 4);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("begun\n");
        fflush(stdout);
    }
    compute(start_s);
    for (int op = 1; op <= operations; op++) {
        compute(compute_s);
        memset(data, op + rank, (size_t)(end - begin));
        MPI_Barrier(MPI_COMM_WORLD);
        long long began_ns = now_ns(CLOCK_REALTIME), began = now_ns(CLOCK_MONOTONIC);
        code = MPI_File_write_at_all(file, begin, data, (int)(end - begin), MPI_BYTE, MPI_STATUS_IGNORE);
        double took = (double)(now_ns(CLOCK_MONOTONIC) - began) / 1e9, most;
        MPI_Error_class(code, &class);
        MPI_Reduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("op %d %lld %.6f %d\n", op, began_ns, most, class);
            fflush(stdout);
        }
    }
    MPI_File_close(&file);
    MPI_Info_free(&info);
    free(data);
    MPI_Finalize();
    return class != MPI_SUCCESS;
}
