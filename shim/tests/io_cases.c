/* MPI-IO by any implementation: each case writes a file FOLDER/CASE and rank 0 prints one line, both of which must be
 * the same for each implementation. Cases check what they read back themselves. Usage: io_cases FOLDER CASE...
 */
#include "io_cases.h"

int rank, size;

static long long sum(long long value) {
    long long all;
    MPI_Allreduce(&value, &all, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

void say(const char *name, const char *what, long long mine) {
    long long all = sum(mine);
    if (rank == 0)
        printf("%s %s %lld\n", name, what, all);
}

MPI_File opened(const char *path, int amode, MPI_Info info) {
    MPI_File file = MPI_FILE_NULL;
    int result = MPI_File_open(MPI_COMM_WORLD, path, amode, info, &file);
    if (result != MPI_SUCCESS) {
        fprintf(stderr, "%s: %d\n", path, result);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return file;
}

MPI_File created(const char *path) {
    if (rank == 0)
        unlink(path);
    MPI_Barrier(MPI_COMM_WORLD);
    return opened(path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
}

int class_of(int result) {
    int class;
    MPI_Error_class(result, &class);
    return class;
}

int *numbered(int count, int first) {
    int *values = malloc(sizeof *values * (size_t)(count > 0 ? count : 1));
    for (int i = 0; i < count; i++)
        values[i] = first + i;
    return values;
}

long long counted(MPI_Status *status, MPI_Datatype type) {
    int count;
    MPI_Get_count(status, type, &count);
    return count;
}

/* Writes `count` ints of `first`.. through a view, reads them back, says count, position and differences. */
void round_trip(const char *name, MPI_File file, MPI_Datatype filetype, MPI_Offset displacement, int count) {
    MPI_Status status;
    MPI_Offset position;
    int *values = numbered(count, rank * 1000003), *back = calloc((size_t)count + 1, sizeof *back);
    MPI_File_set_view(file, displacement, MPI_INT, filetype, "native", MPI_INFO_NULL);
    say(name, "write", class_of(MPI_File_write_all(file, values, count, MPI_INT, &status)));
    say(name, "count", counted(&status, MPI_INT));
    MPI_File_get_position(file, &position);
    say(name, "position", position);
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    say(name, "read", class_of(MPI_File_read_all(file, back, count, MPI_INT, &status)));
    say(name, "count", counted(&status, MPI_INT));
    say(name, "differ", count > 0 && memcmp(values, back, sizeof *values * (size_t)count) != 0);
    free(values);
    free(back);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 2; i < argc; i++) {
        char path[4096];
        const struct io_case *found = io_cases;
        snprintf(path, sizeof path, "%s/%s", argv[1], argv[i]);
        while (found->name != NULL && strcmp(found->name, argv[i]) != 0)
            found++;
        if (found->name == NULL) {
            fprintf(stderr, "there is no case %s\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        found->run(found->name, path);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("%s done\n", found->name);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
