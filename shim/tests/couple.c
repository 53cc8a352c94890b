/* A writer or a reader of the coupled name "flow", in C: as in the Python programs of tests/io/test_coupling.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "waystage_io.h"

enum { X = 6, Y = 8, Z = 10, VERSIONS = 3 };

static void must(int code, const char *what)
{
    if (code != WS_IO_OK) {
        fprintf(stderr, "%s: %d: %s\n", what, code, ws_io_message());
        exit(1);
    }
}

/* Null and invented handles are errors, and nothing is read through them. */
static void attack(void)
{
    int64_t version;
    int invented;
    if (ws_io_commit(NULL, 0) != WS_IO_ARGUMENT || ws_io_commit((ws_io_coupling *)&invented, 0) != WS_IO_ARGUMENT
        || ws_io_next(NULL, 0, &version) != WS_IO_ARGUMENT || ws_io_couple(NULL, NULL) != WS_IO_ARGUMENT
        || ws_io_type_contiguous(2, NULL) != NULL || strlen(ws_io_message()) == 0)
        must(-1, "handles");
}

int main(int argc, char **argv)
{
    static int32_t cells[X][Y][Z + 3]; /* with a gap behind each row */
    const int64_t shape[] = {X, Y, Z}, sizes[] = {X, Y, Z + 3}, starts[] = {0, 0, 0};
    int writes = argc > 1 && strcmp(argv[1], "write") == 0;
    struct ws_io_couple how = {.name = "flow", .role = writes ? WS_IO_WRITER : WS_IO_READER, .size = 1, .timeout_ms = 60000};
    struct ws_io_box box = {"u", "<i4", sizeof cells[0][0][0], 3, shape, starts, shape};
    ws_io_coupling *flow;
    ws_io_type *element = ws_io_type_bytes(sizeof cells[0][0][0]);
    ws_io_type *memory = ws_io_type_subarray(3, sizes, shape, starts, 'C', element);
    attack();
    if (ws_io_abi() != WS_IO_ABI || memory == NULL)
        must(-1, "the datatype");
    must(ws_io_couple(&how, &flow), "couple");
    int64_t version = -1;
    int code = WS_IO_OK;
    while (writes ? ++version < VERSIONS : (code = ws_io_next(flow, version, &version)) == WS_IO_OK) {
        if (!writes)
            must(ws_io_get(flow, version, &box, cells, memory), "get");
        for (int x = 0; x < X; x++)
            for (int y = 0; y < Y; y++)
                for (int z = 0; z < Z + 3; z++) {
                    int32_t value = z < Z ? (x * Y + y) * Z + z + (int32_t)version : 0;
                    if (writes)
                        cells[x][y][z] = value;
                    else if (cells[x][y][z] != value)
                        must(-1, "a cell");
                }
        if (writes)
            must(ws_io_put(flow, version, &box, cells, memory), "put");
        must(ws_io_commit(flow, version), "commit");
        printf("%d\n", (int)version);
    }
    if (code != WS_IO_OK && code != WS_IO_ENDED)
        must(code, "next");
    must(ws_io_uncouple(flow, 60000), "uncouple");
    ws_io_type_free(memory);
    ws_io_type_free(element);
    return ws_io_commit(flow, 0) == WS_IO_ARGUMENT ? 0 : 1; /* freed */
}
