/* An MPI-IO program that knows nothing of coupled names: it writes or reads a file of steps.
 *
 *     named write FILE STEPS    opens, writes and closes it in each step
 *     named sync FILE STEPS     opens it once, and calls MPI_File_sync in each step
 *     named die FILE STEPS      as `write`, but rank 1 is killed in the last step
 *     named read FILE           opens it until that fails, by rows, with any number of ranks
 *
 * The file: 16 bytes of head, then a matrix of ROWS x COLUMNS integers, of which each rank writes columns.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 96
#define COLUMNS 4096
#define HEAD 16
#define BYTES (HEAD + 4 * (MPI_Offset)ROWS * COLUMNS)

static int rank, ranks;

static void check(int result, const char *what) {
    if (result == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(result, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void expect(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int value(int step, int row, int column) { return step * 1000003 + row * COLUMNS + column; }

static void write_step(MPI_File file, int step) {
    int first = COLUMNS * rank / ranks, last = COLUMNS * (rank + 1) / ranks, columns = last - first;
    int *mine = malloc(sizeof *mine * (size_t)(columns + 2) * ROWS);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns; c++)
            mine[r * (columns + 2) + 1 + c] = value(step, r, first + c);
    int whole[2] = {ROWS, COLUMNS}, part[2] = {ROWS, columns}, at[2] = {0, first};
    int held[2] = {ROWS, columns + 2}, inside[2] = {0, 1};
    MPI_Datatype view, memory;
    MPI_Type_create_subarray(2, whole, part, at, MPI_ORDER_C, MPI_INT, &view);
    MPI_Type_create_subarray(2, held, part, inside, MPI_ORDER_C, MPI_INT, &memory);
    MPI_Type_commit(&view);
    MPI_Type_commit(&memory);
    MPI_Status status;
    int count;
    check(MPI_File_set_view(file, HEAD, MPI_INT, view, "native", MPI_INFO_NULL), "set_view");
    check(MPI_File_write_all(file, mine, 1, memory, &status), "write_all");
    MPI_Get_count(&status, memory, &count);
    expect(count == 1, "count of the write");
    check(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "set_view");
    if (rank == 0) {
        char head[HEAD + 1], back[HEAD + 1] = "";
        MPI_Request request;
        snprintf(head, sizeof head, "step %10d", step);
        check(MPI_File_iwrite_at(file, 0, head, HEAD, MPI_BYTE, &request), "iwrite_at");
        check(MPI_Wait(&request, &status), "wait");
        MPI_Get_count(&status, MPI_BYTE, &count);
        expect(count == HEAD, "count of the nonblocking write");
        int amode;
        MPI_File_get_amode(file, &amode);
        if ((amode & MPI_MODE_RDWR) != 0) {
            check(MPI_File_read_at(file, 0, back, HEAD, MPI_BYTE, &status), "read_at");
            expect(memcmp(head, back, HEAD) == 0, "what was read back");
        }
    }
    MPI_Offset bytes;
    MPI_Barrier(MPI_COMM_WORLD);
    check(MPI_File_get_size(file, &bytes), "get_size");
    expect(bytes == BYTES, "size");
    MPI_Type_free(&view);
    MPI_Type_free(&memory);
    free(mine);
}

static void read_step(MPI_File file) {
    int first = ROWS * rank / ranks, last = ROWS * (rank + 1) / ranks, step, count;
    int *mine = calloc((size_t)(last - first) * COLUMNS, sizeof *mine);
    char head[HEAD + 1] = "";
    MPI_Offset bytes;
    MPI_Status status;
    check(MPI_File_get_size(file, &bytes), "get_size");
    expect(bytes == BYTES, "size");
    check(MPI_File_read_at_all(file, 0, head, HEAD, MPI_CHAR, &status), "read_at_all");
    expect(sscanf(head, "step %d", &step) == 1, "head");
    check(MPI_File_set_view(file, HEAD + 4 * (MPI_Offset)first * COLUMNS, MPI_INT, MPI_INT, "native", MPI_INFO_NULL),
          "set_view");
    check(MPI_File_read(file, mine, (last - first) * COLUMNS, MPI_INT, &status), "read");
    for (int r = first; r < last; r++)
        for (int c = 0; c < COLUMNS; c++)
            expect(mine[(r - first) * COLUMNS + c] == value(step, r, c), "cell");
    MPI_Offset end;
    check(MPI_File_seek(file, -1, MPI_SEEK_END), "seek");
    check(MPI_File_get_position(file, &end), "get_position");
    expect(end == (ROWS - first) * (MPI_Offset)COLUMNS - 1, "position of the end");
    check(MPI_File_read(file, mine, 5, MPI_INT, &status), "read over the end");
    MPI_Get_count(&status, MPI_INT, &count);
    expect(count == 1 && mine[0] == value(step, ROWS - 1, COLUMNS - 1), "the last cell");
    free(mine);
    if (rank == 0)
        printf("step %d\n", step);
    fflush(stdout);
}

int main(int arguments, char **argument) {
    MPI_File file;
    MPI_Init(&arguments, &argument);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *what = argument[1], *name = argument[2];
    int steps = arguments > 3 ? atoi(argument[3]) : 0, mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    if (strcmp(what, "write") == 0 || strcmp(what, "die") == 0)
        for (int step = 0; step < steps; step++) {
            check(MPI_File_open(MPI_COMM_WORLD, name, mode, MPI_INFO_NULL, &file), "open");
            if (*what == 'd' && rank == 1 && step == steps - 1)
                raise(SIGKILL);
            write_step(file, step);
            check(MPI_File_close(&file), "close");
        }
    if (strcmp(what, "sync") == 0) {
        check(MPI_File_open(MPI_COMM_WORLD, name, mode, MPI_INFO_NULL, &file), "open");
        for (int step = 0; step < steps; step++) {
            write_step(file, step);
            check(MPI_File_sync(file), "sync");
        }
        check(MPI_File_close(&file), "close");
    }
    if (strcmp(what, "read") == 0) {
        int result, class;
        while ((result = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file)) == MPI_SUCCESS) {
            read_step(file);
            check(MPI_File_close(&file), "close");
        }
        MPI_Error_class(result, &class);
        if (rank == 0)
            printf("%s\n", class == MPI_ERR_NO_SUCH_FILE ? "no further file" : "another error");
    }
    MPI_Finalize();
    return 0;
}
