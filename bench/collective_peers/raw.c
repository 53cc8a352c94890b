/* Writes a pattern to a shared file and reads it back: raw WAY PATTERN BYTES_A_RANK PATH.
 *
 * WAY: mpiio, MPI_File_write_all and read_all of any implementation; alltoallv, what users write by hand, two phases
 * with MPI_Alltoallv and POSIX; independent, a pwrite or pread for each extent. Rank 0 prints one line of JSON: the
 * longest time of any rank for each step, in seconds, and the number of wrong bytes read back.
 */
#define _GNU_SOURCE
#include "pattern.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN, VIEW, WRITE, CLOSE, READ_OPEN, READ, STEPS };
static const char *const NAMES[STEPS] = {"open_s", "view_s", "write_s", "close_s", "read_open_s", "read_s"};

static int rank, ranks;
static double took[STEPS], began;

static void die(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(int status, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (status == MPI_SUCCESS)
        return;
    MPI_Error_string(status, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void step(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
}

static void ends(int which)
{
    took[which] = MPI_Wtime() - began;
}

static void *room(int64_t bytes)
{
    void *at = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (at == NULL)
        die("out of memory");
    return at;
}

static void fill(const struct pattern *of, char *buffer)
{
    uint32_t *word = (uint32_t *)buffer;
    for (int64_t i = 0; i < of->extents; i++)
        for (int64_t at = pattern_offset(of, i) / 4, end = at + of->length / 4; at < end; at++)
            *word++ = word_at(at);
}

static int64_t count_wrong(const struct pattern *of, const char *buffer)
{
    const unsigned char *found = (const unsigned char *)buffer;
    int64_t wrong = 0;
    for (int64_t i = 0; i < of->extents; i++)
        for (int64_t at = pattern_offset(of, i) / 4, end = at + of->length / 4; at < end; at++, found += 4) {
            uint32_t word = word_at(at);
            if (memcmp(&word, found, 4) != 0)
                for (int byte = 0; byte < 4; byte++)
                    wrong += found[byte] != ((unsigned char *)&word)[byte];
        }
    return wrong;
}

static void all_pwrite(int file, const char *from, int64_t bytes, int64_t offset)
{
    while (bytes > 0) {
        ssize_t done = pwrite(file, from, (size_t)bytes, offset);
        if (done <= 0)
            die("pwrite failed");
        from += done, bytes -= done, offset += done;
    }
}

static void all_pread(int file, char *into, int64_t bytes, int64_t offset)
{
    while (bytes > 0) {
        ssize_t done = pread(file, into, (size_t)bytes, offset);
        if (done <= 0)
            die("pread failed");
        into += done, bytes -= done, offset += done;
    }
}

static int open_posix(const char *path, int flags)
{
    int file = -1;
    if (rank == 0 && (file = open(path, flags | O_CREAT, 0666)) < 0)
        die("cannot open the file");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0 && (file = open(path, flags)) < 0)
        die("cannot open the file");
    return file;
}

/* -- MPI-IO -------------------------------------------------------------------------------------------------------- */

static void mpiio(const struct pattern *of, const char *path, char *buffer, char *read)
{
    MPI_File file;
    step();
    check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    ends(OPEN);
    step();
    check(MPI_File_set_view(file, of->displacement, MPI_BYTE, of->filetype, "native", MPI_INFO_NULL), "set_view");
    ends(VIEW);
    step();
    check(MPI_File_write_all(file, buffer, (int)of->bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write_all");
    ends(WRITE);
    step();
    check(MPI_File_close(&file), "close");
    ends(CLOSE);
    step();
    check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), "open for reading");
    check(MPI_File_set_view(file, of->displacement, MPI_BYTE, of->filetype, "native", MPI_INFO_NULL), "set_view");
    ends(READ_OPEN);
    step();
    check(MPI_File_read_all(file, read, (int)of->bytes, MPI_BYTE, MPI_STATUS_IGNORE), "read_all");
    ends(READ);
    check(MPI_File_close(&file), "close after reading");
}

/* -- independent --------------------------------------------------------------------------------------------------- */

static void independent(const struct pattern *of, const char *path, char *buffer, char *read)
{
    step();
    int file = open_posix(path, O_RDWR);
    ends(OPEN);
    step();
    for (int64_t i = 0; i < of->extents; i++)
        all_pwrite(file, buffer + i * of->length, of->length, pattern_offset(of, i));
    ends(WRITE);
    step();
    for (int64_t i = 0; i < of->extents; i++)
        all_pread(file, read + i * of->length, of->length, pattern_offset(of, i));
    ends(READ);
    close(file);
}

/* -- two phases by hand -------------------------------------------------------------------------------------------- */

#define ALIGN (1 << 20)

struct plan {
    int aggregators, *leaders, own; /* own: index of this rank's slice, or -1 */
    int64_t slice;
    /* pairs (offset, length) to and from each rank, and their bytes */
    int *pairs_to, *pairs_from, *pair_places_to, *pair_places_from;
    int *bytes_to, *bytes_from, *places_to, *places_from;
    int64_t *mine, *theirs;
    int all_pairs;
    char *packed, *image;
    int64_t image_bytes;
};

static void choose_leaders(struct plan *p)
{
    MPI_Comm node;
    int local, *all = room(ranks * (int64_t)sizeof *all);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local);
    MPI_Allgather(&local, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    p->leaders = room(ranks * (int64_t)sizeof *all);
    p->own = -1;
    for (int i = 0; i < ranks; i++)
        if (all[i] == 0) {
            if (i == rank)
                p->own = p->aggregators;
            p->leaders[p->aggregators++] = i;
        }
    free(all);
    MPI_Comm_free(&node);
}

/* Calls `each` for the parts of this rank's extents, cut at slices, in ascending order. */
static void for_each_part(const struct pattern *of, const struct plan *p,
                          void (*each)(struct plan *, int to, int64_t offset, int64_t length))
{
    for (int64_t i = 0; i < of->extents; i++) {
        int64_t offset = pattern_offset(of, i), end = offset + of->length;
        while (offset < end) {
            int64_t index = offset / p->slice, stop = (index + 1) * p->slice;
            int64_t length = (end < stop ? end : stop) - offset;
            each((struct plan *)p, p->leaders[index], offset, length);
            offset += length;
        }
    }
}

static void count_part(struct plan *p, int to, int64_t offset, int64_t length)
{
    (void)offset;
    p->pairs_to[to] += 2;
    p->bytes_to[to] += (int)length;
}

static int *filled; /* pairs so far, to each rank */

static void list_part(struct plan *p, int to, int64_t offset, int64_t length)
{
    int64_t *pair = p->mine + p->pair_places_to[to] + filled[to];
    pair[0] = offset, pair[1] = length;
    filled[to] += 2;
}

static int sum_up(const int *counts, int *places)
{
    int sum = 0;
    for (int i = 0; i < ranks; i++)
        places[i] = sum, sum += counts[i];
    return sum;
}

static void make_plan(const struct pattern *of, struct plan *p)
{
    int **arrays[] = {&p->pairs_to, &p->pairs_from, &p->pair_places_to, &p->pair_places_from,
                      &p->bytes_to, &p->bytes_from, &p->places_to,      &p->places_from, &filled};
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if ((*arrays[i] = calloc((size_t)ranks, sizeof(int))) == NULL)
            die("out of memory");
    choose_leaders(p);
    p->slice = (of->total / p->aggregators + ALIGN) / ALIGN * ALIGN;
    for_each_part(of, p, count_part);
    MPI_Alltoall(p->pairs_to, 1, MPI_INT, p->pairs_from, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Alltoall(p->bytes_to, 1, MPI_INT, p->bytes_from, 1, MPI_INT, MPI_COMM_WORLD);
    int sent = sum_up(p->pairs_to, p->pair_places_to);
    p->all_pairs = sum_up(p->pairs_from, p->pair_places_from);
    sum_up(p->bytes_to, p->places_to);
    p->mine = room(sent * (int64_t)sizeof(int64_t));
    p->theirs = room(p->all_pairs * (int64_t)sizeof(int64_t));
    p->packed = room(sum_up(p->bytes_from, p->places_from));
    for_each_part(of, p, list_part);
    MPI_Alltoallv(p->mine, p->pairs_to, p->pair_places_to, MPI_INT64_T, p->theirs, p->pairs_from, p->pair_places_from,
                  MPI_INT64_T, MPI_COMM_WORLD);
    if (p->own >= 0) {
        int64_t begin = p->own * p->slice, end = begin + p->slice < of->total ? begin + p->slice : of->total;
        p->image_bytes = end > begin ? end - begin : 0;
        p->image = room(p->image_bytes);
    }
}

/* Extents ascend and slices too, so that a rank's buffer is already in the order of the ranks that it sends to. */
static void hand_write(const struct pattern *of, int file, char *buffer)
{
    struct plan p;
    make_plan(of, &p);
    MPI_Alltoallv(buffer, p.bytes_to, p.places_to, MPI_BYTE, p.packed, p.bytes_from, p.places_from, MPI_BYTE,
                  MPI_COMM_WORLD);
    const char *from = p.packed;
    for (int i = 0; i < p.all_pairs; i += 2) {
        memcpy(p.image + (p.theirs[i] - p.own * p.slice), from, (size_t)p.theirs[i + 1]);
        from += p.theirs[i + 1];
    }
    if (p.own >= 0)
        all_pwrite(file, p.image, p.image_bytes, p.own * p.slice);
}

static void hand_read(const struct pattern *of, int file, char *buffer)
{
    struct plan p;
    make_plan(of, &p);
    if (p.own >= 0)
        all_pread(file, p.image, p.image_bytes, p.own * p.slice);
    char *into = p.packed;
    for (int i = 0; i < p.all_pairs; i += 2) {
        memcpy(into, p.image + (p.theirs[i] - p.own * p.slice), (size_t)p.theirs[i + 1]);
        into += p.theirs[i + 1];
    }
    MPI_Alltoallv(p.packed, p.bytes_from, p.places_from, MPI_BYTE, buffer, p.bytes_to, p.places_to, MPI_BYTE,
                  MPI_COMM_WORLD);
}

static void alltoallv(const struct pattern *of, const char *path, char *buffer, char *read)
{
    step();
    int file = open_posix(path, O_RDWR);
    ends(OPEN);
    step();
    hand_write(of, file, buffer);
    ends(WRITE);
    step();
    hand_read(of, file, read);
    ends(READ);
    close(file);
}

int main(int argc, char **argv)
{
    struct pattern of;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5)
        die("usage: raw WAY PATTERN BYTES_A_RANK PATH");
    if (pattern_make(argv[2], atoll(argv[3]), rank, ranks, &of) != 0)
        die("no such pattern");
    char *buffer = room(of.bytes), *read = room(of.bytes);
    fill(&of, buffer);
    memset(read, 0xee, (size_t)of.bytes);
    /* The file has its size beforehand: FUSE lets only writes within it run in parallel. */
    if (rank == 0) {
        int file = open(argv[4], O_RDWR | O_CREAT, 0666);
        if (file < 0 || ftruncate(file, of.total) != 0 || close(file) != 0)
            die("cannot make the file");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(argv[1], "mpiio") == 0)
        mpiio(&of, argv[4], buffer, read);
    else if (strcmp(argv[1], "alltoallv") == 0)
        alltoallv(&of, argv[4], buffer, read);
    else
        independent(&of, argv[4], buffer, read);
    long long wrong = count_wrong(&of, read), all_wrong;
    double longest[STEPS];
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(took, longest, STEPS, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"bytes\": %lld, \"wrong_read\": %lld", (long long)of.total, all_wrong);
        for (int i = 0; i < STEPS; i++)
            printf(", \"%s\": %.9f", NAMES[i], longest[i]);
        printf("}\n");
    }
    MPI_Type_free(&of.filetype);
    MPI_Finalize();
    return 0;
}
