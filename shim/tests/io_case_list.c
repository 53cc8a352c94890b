/* The cases: users' complaints about collective I/O, and traps of its implementations, each with its report. */
#include "io_cases.h"

static MPI_Datatype committed(MPI_Datatype type) {
    MPI_Type_commit(&type);
    return type;
}

static void finish(MPI_File file, MPI_Datatype type) {
    MPI_File_close(&file);
    if (type != MPI_DATATYPE_NULL)
        MPI_Type_free(&type);
}

/* Gaps that were there as zeros: ROMIO and ompio leave bytes of their buffers in gaps beyond the end of a file. */
static MPI_File zeroed(const char *path) {
    MPI_File file = created(path);
    MPI_File_set_size(file, 65536);
    return file;
}

static MPI_Datatype strided(int count, int block) {
    MPI_Datatype type;
    MPI_Type_vector(count, block, block * size, MPI_INT, &type);
    return committed(type);
}

/* mpich#7935: a 4-D array, split in the last two dimensions. */
static void subarray_4d(const char *name, const char *path) {
    int sizes[4] = {6, 5, 4 * size, 12}, part[4] = {6, 5, 4, 12}, start[4] = {0, 0, 4 * rank, 0};
    MPI_Datatype type;
    MPI_Type_create_subarray(4, sizes, part, start, MPI_ORDER_C, MPI_INT, &type);
    MPI_File file = created(path);
    round_trip(name, file, committed(type), 0, 6 * 5 * 4 * 12);
    finish(file, type);
}

/* mpich#7645: pieces of 4 KiB of each rank in turn. */
static void pieces_4k(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Datatype type = strided(64, 1024);
    round_trip(name, file, type, (MPI_Offset)rank * 4096, 64 * 1024);
    finish(file, type);
}

/* mpich#6984: all ranks on one node, contiguous. */
static void one_node(const char *name, const char *path) {
    MPI_File file = created(path);
    round_trip(name, file, MPI_INT, (MPI_Offset)rank * 400000, 100000);
    finish(file, MPI_DATATYPE_NULL);
}

/* mpich#7531: the number of aggregators is a hint; more than there are nodes do no harm. */
static void aggregators(const char *name, const char *path) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "cb_nodes", "64");
    MPI_Info_set(info, "cb_buffer_size", "65536");
    finish(created(path), MPI_DATATYPE_NULL);
    MPI_File file = opened(path, MPI_MODE_RDWR, info);
    MPI_Datatype type = strided(500, 77);
    round_trip(name, file, type, (MPI_Offset)rank * 77 * 4, 500 * 77);
    MPI_Info_free(&info);
    finish(file, type);
}

/* mpich#6985: gaps in memory. */
static void memory_gaps(const char *name, const char *path) {
    enum { COUNT = 3000 };
    MPI_Datatype every_third;
    MPI_Status status;
    int *values = numbered(3 * COUNT, rank * 10000), *back = calloc(3 * COUNT, sizeof *back), differ = 0;
    MPI_Type_create_resized(MPI_INT, 0, 3 * sizeof(int), &every_third);
    MPI_Type_commit(&every_third);
    MPI_File file = created(path);
    MPI_Offset at = (MPI_Offset)rank * COUNT * 4;
    say(name, "write", class_of(MPI_File_write_at_all(file, at, values, COUNT, every_third, &status)));
    say(name, "count", counted(&status, every_third));
    say(name, "read", class_of(MPI_File_read_at_all(file, at, back, COUNT, every_third, &status)));
    for (int i = 0; i < 3 * COUNT; i++)
        differ += back[i] != (i % 3 == 0 ? values[i] : 0);
    say(name, "differ", differ);
    free(values);
    free(back);
    finish(file, every_third);
}

/* mpich#2182: a view of many pieces, of which few are used; then independent access through it. */
static void large_view(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Datatype type = strided(200000, 1);
    MPI_Status status;
    round_trip(name, file, type, (MPI_Offset)rank * 4, 300);
    int value = rank, back = -1;
    MPI_Offset byte;
    say(name, "write_at", class_of(MPI_File_write_at(file, 400, &value, 1, MPI_INT, &status)));
    say(name, "read_at", class_of(MPI_File_read_at(file, 400, &back, 1, MPI_INT, &status)));
    say(name, "differ", back != value);
    MPI_File_get_byte_offset(file, 400, &byte);
    say(name, "byte", byte);
    MPI_Offset displacement;
    MPI_Datatype etype, filetype;
    char representation[MPI_MAX_DATAREP_STRING];
    MPI_File_get_view(file, &displacement, &etype, &filetype, representation);
    int bytes;
    MPI_Type_size(filetype, &bytes);
    say(name, "view", displacement + bytes + (etype == MPI_INT) + strcmp(representation, "native"));
    MPI_Type_free(&filetype);
    finish(file, type);
}

/* ompi#12718, ompi#6285: ranks with different amounts, some with nothing. */
static void uneven(const char *name, const char *path) {
    MPI_File file = zeroed(path);
    MPI_Datatype type = strided(1000, 3);
    round_trip(name, file, type, (MPI_Offset)rank * 12, rank % 2 == 0 ? 2999 - 7 * rank : 0);
    finish(file, type);
}

/* ompi#4446, mpich#316, mpich PR#4956: gaps keep what was there, without locks or read-modify-write. */
static void gaps_stay(const char *name, const char *path) {
    MPI_File file = created(path);
    int *old = numbered(5000, -5000);
    if (rank == 0)
        MPI_File_write_at(file, 0, old, 5000, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_sync(file);
    MPI_Datatype type;
    MPI_Type_vector(200, 2, 5 * size, MPI_INT, &type);
    MPI_Type_commit(&type);
    round_trip(name, file, type, (MPI_Offset)rank * 20, 400);
    MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    int here = 0;
    MPI_File_read_at(file, 4, &here, 1, MPI_INT, MPI_STATUS_IGNORE);
    say(name, "gap", here);
    free(old);
    finish(file, type);
}

/* ompi#11182: many collectives in a row, with traffic between them. */
static void many(const char *name, const char *path) {
    MPI_File file = created(path);
    int wrong = 0;
    for (int i = 0; i < 60; i++) {
        int value = rank * 100 + i, back = 0, from;
        MPI_File_write_at_all(file, (MPI_Offset)(i * size + rank) * 4, &value, 1, MPI_INT, MPI_STATUS_IGNORE);
        MPI_Sendrecv(&value, 1, MPI_INT, (rank + 1) % size, 0, &from, 1, MPI_INT, (rank + size - 1) % size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_File_read_at_all(file, (MPI_Offset)(i * size + (rank + size - 1) % size) * 4, &back, 1, MPI_INT,
                             MPI_STATUS_IGNORE);
        wrong += back != from;
    }
    say(name, "wrong", wrong);
    finish(file, MPI_DATATYPE_NULL);
}

/* ompi#13376: extents that cross the boundaries of stripes. */
static void across_stripes(const char *name, const char *path) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "striping_unit", "4096");
    MPI_Info_set(info, "striping_factor", "4");
    finish(created(path), MPI_DATATYPE_NULL);
    MPI_File file = opened(path, MPI_MODE_RDWR, info);
    MPI_Datatype type = strided(40, 999);
    round_trip(name, file, type, 13 + (MPI_Offset)rank * 999 * 4, 40 * 999);
    MPI_Info_free(&info);
    finish(file, type);
}

/* ompi#10132: the hint is in force. */
static void striping_hint(const char *name, const char *path) {
    MPI_Info info;
    char value[64] = "";
    int found = 0;
    MPI_Info_create(&info);
    MPI_Info_set(info, "striping_unit", "1048576");
    finish(created(path), MPI_DATATYPE_NULL);
    MPI_File file = opened(path, MPI_MODE_RDWR, info);
    MPI_Info_free(&info);
    MPI_File_get_info(file, &info);
    MPI_Info_get(info, "striping_unit", 63, value, &found);
    say(name, "unit", atoi(value));
    MPI_Info_free(&info);
    finish(file, MPI_DATATYPE_NULL);
}

/* mpich#6408, #5604, #3736: ranks whose hints differ. */
static void hints_differ(const char *name, const char *path) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "cb_nodes", rank == 0 ? "2" : "1");
    MPI_Info_set(info, "romio_cb_write", rank == 1 ? "disable" : "enable");
    finish(created(path), MPI_DATATYPE_NULL);
    MPI_File file = opened(path, MPI_MODE_RDWR, info);
    MPI_Datatype type = strided(50, 10);
    round_trip(name, file, type, (MPI_Offset)rank * 40, 500);
    MPI_Info_free(&info);
    finish(file, type);
}

/* darshan#317, ompi#8841: a view without a byte on some ranks. */
static void zero_length_view(const char *name, const char *path) {
    MPI_Datatype type;
    MPI_Type_contiguous(rank == 0 ? 100 : 0, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_File file = created(path);
    round_trip(name, file, type, 0, rank == 0 ? 100 : 0);
    finish(file, type);
}

/* ompi#2783: APPEND moves the individual pointer. */
static void append(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Offset position;
    int values[100] = {0};
    MPI_File_write_at_all(file, (MPI_Offset)rank * 400, values, 100, MPI_INT, MPI_STATUS_IGNORE);
    finish(file, MPI_DATATYPE_NULL);
    file = opened(path, MPI_MODE_RDWR | MPI_MODE_APPEND, MPI_INFO_NULL);
    MPI_File_get_position(file, &position);
    say(name, "position", position);
    MPI_File_get_position_shared(file, &position);
    say(name, "shared", position);
    finish(file, MPI_DATATYPE_NULL);
}

/* ompi#4507, mpich#5302: blocks of no bytes, and bounds beyond the data. */
static void zero_byte_blocks(const char *name, const char *path) {
    int blocks[4] = {0, 2, 0, 1};
    MPI_Aint places[4] = {0, 4, 40, 20};
    MPI_Datatype types[4] = {MPI_BYTE, MPI_INT, MPI_DOUBLE, MPI_INT}, parts, type;
    MPI_Type_create_struct(4, blocks, places, types, &parts);
    MPI_Type_create_resized(parts, 0, 24 * size, &type);
    MPI_Type_commit(&type);
    MPI_File file = zeroed(path);
    round_trip(name, file, type, (MPI_Offset)rank * 24, 3 * 50);
    MPI_Type_free(&parts);
    finish(file, type);
}

/* mpich#7169: a subarray of subarrays. */
static void nested_subarrays(const char *name, const char *path) {
    int inner_sizes[2] = {4, 6}, inner_part[2] = {2, 3}, inner_start[2] = {1, 2};
    int sizes[2] = {3, 2 * size}, part[2] = {3, 2}, start[2] = {0, 2 * rank};
    MPI_Datatype inner, type;
    MPI_Type_create_subarray(2, inner_sizes, inner_part, inner_start, MPI_ORDER_FORTRAN, MPI_INT, &inner);
    MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_C, inner, &type);
    MPI_Type_commit(&type);
    MPI_File file = zeroed(path);
    round_trip(name, file, type, 0, 6 * 6);
    MPI_Type_free(&inner);
    finish(file, type);
}

/* mpich#2915, #3903: displacements in memory in any order. */
static void unordered_memory(const char *name, const char *path) {
    int places[4] = {30, 10, 0, 20}, blocks[4] = {5, 1, 7, 3}, differ = 0;
    int *values = numbered(200, rank * 1000), *back = calloc(200, sizeof *back);
    MPI_Datatype type;
    MPI_Type_indexed(4, blocks, places, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_File file = created(path);
    MPI_File_write_at_all(file, (MPI_Offset)rank * 128, values, 2, type, MPI_STATUS_IGNORE);
    MPI_File_read_at_all(file, (MPI_Offset)rank * 128, back, 2, type, MPI_STATUS_IGNORE);
    for (int i = 0; i < 200; i++)
        differ += back[i] != 0 && back[i] != values[i];
    say(name, "differ", differ);
    say(name, "last", back[64]);
    free(values);
    free(back);
    finish(file, type);
}

/* UnifyFS#543, #544, #547, #549: what is the library's beside what is native. */
static void shared_pointer(const char *name, const char *path) {
    MPI_File file = created(path);
    int value = 7 + rank;
    MPI_Offset position;
    say(name, "write", class_of(MPI_File_write_ordered(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE)));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_get_position_shared(file, &position);
    say(name, "position", position);
    value = 100 + rank;
    MPI_File_write_at_all(file, (MPI_Offset)(size + rank) * 4, &value, 1, MPI_INT, MPI_STATUS_IGNORE);
    finish(file, MPI_DATATYPE_NULL);
}

static void atomic(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Datatype type = strided(20, 3);
    say(name, "set", class_of(MPI_File_set_atomicity(file, 1)));
    round_trip(name, file, type, (MPI_Offset)rank * 12, 60);
    MPI_File_set_atomicity(file, 0);
    round_trip(name, file, type, (MPI_Offset)rank * 12 + 10000, 60);
    finish(file, type);
}

static void preallocate(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Offset bytes;
    say(name, "preallocate", class_of(MPI_File_preallocate(file, 10000)));
    MPI_File_get_size(file, &bytes);
    say(name, "size", bytes);
    int value = rank;
    MPI_File_write_at_all(file, (MPI_Offset)rank * 4, &value, 1, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_get_size(file, &bytes);
    say(name, "size", bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_set_size(file, 8);
    MPI_File_get_size(file, &bytes);
    say(name, "size", bytes);
    finish(file, MPI_DATATYPE_NULL);
}

/* Grid#381: offsets that need 64 bits. */
static void beyond_4_gib(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Offset bytes;
    MPI_Datatype type = strided(10, 4);
    round_trip(name, file, type, ((MPI_Offset)5 << 30) + rank * 16, 40);
    MPI_File_get_size(file, &bytes);
    say(name, "size", bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_set_size(file, 4096);
    finish(file, type);
}

static void split(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Status status;
    int *values = numbered(100, rank * 100), *back = calloc(100, sizeof *back);
    MPI_File_set_view(file, (MPI_Offset)rank * 400, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    MPI_File_write_all_begin(file, values, 100, MPI_INT);
    MPI_File_write_all_end(file, values, &status);
    say(name, "count", counted(&status, MPI_INT));
    MPI_File_read_at_all_begin(file, 0, back, 100, MPI_INT);
    MPI_File_read_at_all_end(file, back, &status);
    say(name, "differ", memcmp(values, back, 400) != 0);
    free(values);
    free(back);
    finish(file, MPI_DATATYPE_NULL);
}

/* A read that meets the end of the file, in whole and in broken elements. */
static void end_of_file(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Status status;
    MPI_Count elements;
    char text[100] = {0};
    int values[100];
    if (rank == 0)
        MPI_File_write_at(file, 0, text, 90, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    say(name, "read", class_of(MPI_File_read_at_all(file, 8, values, 100, MPI_INT, &status)));
    MPI_Get_elements_x(&status, MPI_BYTE, &elements);
    say(name, "bytes", elements);
    say(name, "undefined", counted(&status, MPI_INT) == MPI_UNDEFINED);
    say(name, "read", class_of(MPI_File_read_at_all(file, 1000, values, 100, MPI_INT, &status)));
    say(name, "count", counted(&status, MPI_INT));
    finish(file, MPI_DATATYPE_NULL);
}

static void pointers(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Datatype type = strided(10, 2);
    MPI_Offset position;
    int values[40] = {0};
    MPI_File_set_view(file, (MPI_Offset)rank * 8, MPI_INT, type, "native", MPI_INFO_NULL);
    MPI_File_write_all(file, values, 20, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_write(file, values, 4, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_get_position(file, &position);
    say(name, "position", position);
    MPI_File_seek(file, -6, MPI_SEEK_CUR);
    MPI_File_get_position(file, &position);
    say(name, "position", position);
    MPI_File_get_byte_offset(file, position, &position);
    say(name, "byte", position);
    finish(file, type);
}

static void nonblocking(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Request request;
    MPI_Status status;
    int value = rank + 5, back = 0;
    MPI_File_iwrite_at_all(file, (MPI_Offset)rank * 4, &value, 1, MPI_INT, &request);
    MPI_Wait(&request, &status);
    say(name, "count", counted(&status, MPI_INT));
    MPI_File_read_at_all(file, (MPI_Offset)rank * 4, &back, 1, MPI_INT, &status);
    say(name, "differ", back != value);
    finish(file, MPI_DATATYPE_NULL);
}

/* Pairs, structures with padding, and distributed arrays. */
static void datatypes(const char *name, const char *path) {
    struct pair {
        double value;
        int index;
    } pairs[50], back[50];
    memset(pairs, 0, sizeof pairs);
    memset(back, 0, sizeof back);
    for (int i = 0; i < 50; i++)
        pairs[i] = (struct pair){rank + i / 8.0, i};
    MPI_File file = created(path);
    MPI_File_write_at_all(file, (MPI_Offset)rank * 600, pairs, 50, MPI_DOUBLE_INT, MPI_STATUS_IGNORE);
    MPI_File_read_at_all(file, (MPI_Offset)rank * 600, back, 50, MPI_DOUBLE_INT, MPI_STATUS_IGNORE);
    int differ = 0;
    for (int i = 0; i < 50; i++)
        differ += back[i].value != pairs[i].value || back[i].index != pairs[i].index;
    say(name, "differ", differ);
    int sizes[2] = {12, 5 * size}, ways[2] = {MPI_DISTRIBUTE_NONE, MPI_DISTRIBUTE_CYCLIC},
        arguments[2] = {MPI_DISTRIBUTE_DFLT_DARG, 2}, grid[2] = {1, size}, bytes;
    MPI_Datatype type;
    MPI_Type_create_darray(size, rank, 2, sizes, ways, arguments, grid, MPI_ORDER_C, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_Type_size(type, &bytes);
    round_trip(name, file, type, 4096, bytes / 4);
    finish(file, type);
}

static int handled;
static void handler(MPI_File *file, int *error, ...) {
    (void)file;
    handled += class_of(*error) == MPI_ERR_READ_ONLY || class_of(*error) == MPI_ERR_ACCESS;
}

/* An error reaches the file's handler, once, and returns. */
static void errors(const char *name, const char *path) {
    MPI_Errhandler own;
    int value = 1;
    finish(created(path), MPI_DATATYPE_NULL);
    MPI_File file = opened(path, MPI_MODE_RDONLY, MPI_INFO_NULL);
    MPI_File_create_errhandler(handler, &own);
    MPI_File_set_errhandler(file, own);
    say(name, "failed", MPI_File_write_at_all(file, 0, &value, 1, MPI_INT, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    say(name, "handled", handled);
    MPI_Errhandler_free(&own);
    finish(file, MPI_DATATYPE_NULL);
}

/* ompi#4990: SEQUENTIAL is kept, and such a file works. */
static void sequential(const char *name, const char *path) {
    finish(created(path), MPI_DATATYPE_NULL);
    MPI_File file = opened(path, MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL, MPI_INFO_NULL);
    int value = rank, amode = 0;
    MPI_File_get_amode(file, &amode);
    say(name, "amode", amode == (MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL));
    say(name, "write", class_of(MPI_File_write_ordered(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE)));
    finish(file, MPI_DATATYPE_NULL);
}

/* A rank posts a large message, then enters the collective; its receiver takes it first. */
static void progress(const char *name, const char *path) {
    enum { COUNT = 500000 };
    int *mine = numbered(COUNT, rank), *got = calloc(COUNT, sizeof *got);
    MPI_Request request;
    MPI_File file = created(path);
    MPI_Isend(mine, COUNT, MPI_INT, (rank + 1) % size, 1, MPI_COMM_WORLD, &request);
    if (rank % 2 == 1)
        MPI_Recv(got, COUNT, MPI_INT, rank - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_File_write_at_all(file, (MPI_Offset)rank * 4000, mine, 1000, MPI_INT, MPI_STATUS_IGNORE);
    if (rank % 2 == 0)
        MPI_Recv(got, COUNT, MPI_INT, (rank + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    say(name, "got", got[COUNT - 1]);
    free(mine);
    free(got);
    finish(file, MPI_DATATYPE_NULL);
}

#define CASE(name) {#name, name}
const struct io_case io_cases[] = {
    CASE(subarray_4d),  CASE(pieces_4k),        CASE(one_node),         CASE(aggregators),      CASE(memory_gaps),
    CASE(large_view),   CASE(uneven),           CASE(gaps_stay),        CASE(many),             CASE(across_stripes),
    CASE(striping_hint), CASE(hints_differ),    CASE(zero_length_view), CASE(append),           CASE(zero_byte_blocks),
    CASE(nested_subarrays), CASE(unordered_memory), CASE(shared_pointer), CASE(atomic),         CASE(preallocate),
    CASE(beyond_4_gib), CASE(split),            CASE(end_of_file),      CASE(pointers),         CASE(nonblocking),
    CASE(datatypes),    CASE(errors),           CASE(sequential),       CASE(progress),
    CASE(shared_views), CASE(by_itself),        CASE(openings),         {NULL, NULL},
};
