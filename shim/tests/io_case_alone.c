/* More cases: what programs do between collective transfers. Views follow each other, pointers are shared, sizes
 * change, files are opened that cannot be. An implementation may put the work off, and still must do it.
 */
#include "io_cases.h"

static MPI_Datatype in_turn(int count, int block) {
    MPI_Datatype type;
    MPI_Type_vector(count, block, block * size, MPI_INT, &type);
    MPI_Type_commit(&type);
    return type;
}

static long long position_of(MPI_File file) {
    MPI_Offset position = -1;
    MPI_File_get_position_shared(file, &position);
    return position;
}

/* Shared pointers with a second and a third view: each view begins at 0, ordered access is in the order of ranks. */
void shared_views(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Status status;
    int values[4] = {rank, rank + 100, rank + 200, rank + 300}, back[4] = {0}, seven = 7;
    MPI_Datatype type = in_turn(64, 3), same;
    MPI_Type_vector(64, 2, 5, MPI_INT, &same);
    MPI_Type_commit(&same);
    MPI_File_set_size(file, 65536);
    MPI_File_set_view(file, (MPI_Offset)rank * 12, MPI_INT, type, "native", MPI_INFO_NULL);
    MPI_File_write_all(file, values, 4, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_set_view(file, 16384, MPI_INT, same, "native", MPI_INFO_NULL);
    say(name, "write", class_of(MPI_File_write_shared(file, &seven, 1, MPI_INT, &status)));
    say(name, "count", counted(&status, MPI_INT));
    MPI_Barrier(MPI_COMM_WORLD);
    say(name, "shared", position_of(file));
    MPI_Barrier(MPI_COMM_WORLD);
    say(name, "ordered", class_of(MPI_File_write_ordered(file, values, rank + 1, MPI_INT, MPI_STATUS_IGNORE)));
    MPI_Barrier(MPI_COMM_WORLD);
    say(name, "shared", position_of(file));
    MPI_Barrier(MPI_COMM_WORLD);
    say(name, "seek", class_of(MPI_File_seek_shared(file, size, MPI_SEEK_SET)));
    say(name, "begin", class_of(MPI_File_read_ordered_begin(file, back, rank + 1, MPI_INT)));
    say(name, "end", class_of(MPI_File_read_ordered_end(file, back, &status)));
    say(name, "count", counted(&status, MPI_INT));
    say(name, "differ", memcmp(values, back, sizeof *values * (size_t)(rank < 3 ? rank + 1 : 4)) != 0);
    MPI_File_set_view(file, 32768, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    say(name, "shared", position_of(file));
    MPI_Barrier(MPI_COMM_WORLD);
    say(name, "write", class_of(MPI_File_write_shared(file, &seven, 1, MPI_INT, MPI_STATUS_IGNORE)));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_seek_shared(file, -1, MPI_SEEK_CUR);
    say(name, "shared", position_of(file));
    MPI_File_close(&file);
    MPI_Type_free(&type);
    MPI_Type_free(&same);
}

/* Access by one rank, with and without gaps in its view, before any collective transfer; what it wrote is seen by the
 * others after the close. */
void by_itself(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Status status;
    MPI_Offset bytes;
    int *values = numbered(300, rank * 1000), *back = calloc(300, sizeof *back), tail = 0;
    MPI_Datatype type = in_turn(100, 3);
    say(name, "write", class_of(MPI_File_write_at(file, (MPI_Offset)rank * 1200, values, 300, MPI_INT, &status)));
    say(name, "count", counted(&status, MPI_INT));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_get_size(file, &bytes);
    say(name, "size", bytes);
    MPI_File_read_at(file, (MPI_Offset)rank * 1200, back, 300, MPI_INT, &status);
    say(name, "differ", memcmp(values, back, 1200) != 0);
    MPI_File_seek(file, -400, MPI_SEEK_END);
    MPI_File_read(file, back, 300, MPI_INT, &status);
    say(name, "count", counted(&status, MPI_INT));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_set_view(file, (MPI_Offset)rank * 12, MPI_INT, type, "native", MPI_INFO_NULL);
    MPI_File_write(file, values, 300, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    MPI_File_read(file, back, 300, MPI_INT, &status);
    say(name, "differ", memcmp(values, back, 1200) != 0);
    say(name, "sync", class_of(MPI_File_sync(file)));
    MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    if (rank == size - 1)
        MPI_File_write_at(file, 300 * size, &size, 1, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    FILE *plain = fopen(path, "rb");
    if (plain == NULL || fseek(plain, 1200L * size, SEEK_SET) != 0 || fread(&tail, sizeof tail, 1, plain) != 1)
        tail = -1;
    if (plain != NULL)
        fclose(plain);
    say(name, "tail", tail);
    free(values);
    free(back);
    MPI_Type_free(&type);
}

/* Files that cannot be opened, or not be made twice; and one whose size is set before and after it is opened again. */
void openings(const char *name, const char *path) {
    MPI_File file = created(path);
    MPI_Offset bytes;
    MPI_File_set_size(file, 5000);
    MPI_File_get_size(file, &bytes);
    say(name, "size", bytes);
    int amode = 0, atomic = -1, ranks = 0;
    MPI_Aint extent = 0;
    MPI_Group group;
    say(name, "amode", class_of(MPI_File_get_amode(file, &amode)) + amode);
    say(name, "atomic", class_of(MPI_File_get_atomicity(file, &atomic)) + atomic);
    say(name, "extent", class_of(MPI_File_get_type_extent(file, MPI_DOUBLE, &extent)) + extent);
    MPI_File_get_group(file, &group);
    MPI_Group_size(group, &ranks);
    MPI_Group_free(&group);
    say(name, "ranks", ranks);
    MPI_File_close(&file);
    int twice = MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR;
    say(name, "exists", class_of(MPI_File_open(MPI_COMM_WORLD, path, twice, MPI_INFO_NULL, &file)));
    char missing[4200];
    snprintf(missing, sizeof missing, "%s.missing", path);
    say(name, "missing", class_of(MPI_File_open(MPI_COMM_WORLD, missing, MPI_MODE_RDONLY, MPI_INFO_NULL, &file)));
    snprintf(missing, sizeof missing, "%s.none/file", path);
    say(name, "folder", class_of(MPI_File_open(MPI_COMM_WORLD, missing, twice, MPI_INFO_NULL, &file)));
    file = opened(path, MPI_MODE_RDONLY, MPI_INFO_NULL);
    MPI_File_get_size(file, &bytes);
    say(name, "size", bytes);
    say(name, "cut", class_of(MPI_File_set_size(file, 10)) != MPI_SUCCESS);
    MPI_File_close(&file);
    file = opened(path, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL);
    MPI_File_close(&file);
    say(name, "left", access(path, F_OK) == 0);
    file = created(path);
    MPI_File_close(&file);
}
