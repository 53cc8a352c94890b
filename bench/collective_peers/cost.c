/* What a file view costs a client, a fragmented write an aggregator, a small write a program: cost view|peak|small
 * NUMBER PATH.
 *
 * view: MPI_File_set_view of a vector of NUMBER blocks of 8 bytes, 64 bytes apart: `view_us`, the longest of any rank,
 * and `view_kib`, how much the rank's resident memory grew at most. peak: NUMBER extents of 8 bytes a rank,
 * interleaved, are written and read back; `peak_kib` is how much the resident memory of the aggregator process on this
 * node grew at most, 0 where there is none. small: NUMBER writes of 4 KiB a rank, one after the other, are written and
 * read back; `small_us` is the median time of a write.
 */
#include <dirent.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void die(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(int status, const char *what)
{
    if (status != MPI_SUCCESS)
        die(what);
}

/* A value in KiB of /proc/PID/status, such as VmHWM; 0 where there is none. */
static long status_kib(const char *pid, const char *key)
{
    char path[300], line[256];
    long value = 0;
    snprintf(path, sizeof path, "/proc/%s/status", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtol(line + strlen(key) + 1, NULL, 10);
    fclose(file);
    return value;
}

/* The process whose command line has the word `aggregator`; the launch has its own process namespace. */
static int find_aggregator(char pid[32])
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int found = 0;
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
        char path[300], words[4096];
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || strlen(entry->d_name) > 30)
            continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        size_t length = fread(words, 1, sizeof words - 1, file);
        fclose(file);
        words[length] = 0;
        for (size_t at = 0; at < length; at += strlen(words + at) + 1)
            if (strcmp(words + at, "aggregator") == 0)
                found = 1;
        if (found)
            strcpy(pid, entry->d_name);
    }
    if (folder != NULL)
        closedir(folder);
    return found;
}

static MPI_File open_file(const char *path)
{
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    return file;
}

static void view(int64_t blocks, const char *path)
{
    MPI_Datatype type;
    double longest[2], cost[2];
    MPI_File file = open_file(path);
    /* Once before, so that code and connections are there. */
    check(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "set_view");
    MPI_Type_create_hvector((int)blocks, 8, 64, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    MPI_Barrier(MPI_COMM_WORLD);
    long before = status_kib("self", "VmRSS");
    double began = MPI_Wtime();
    check(MPI_File_set_view(file, 0, MPI_BYTE, type, "native", MPI_INFO_NULL), "set_view");
    cost[0] = (MPI_Wtime() - began) * 1e6;
    long high = status_kib("self", "VmHWM"), after = status_kib("self", "VmRSS");
    cost[1] = (double)((after > before ? after : before) - before);
    if (high > after && high > before && cost[1] < (double)(high - before) && high - before > 1024)
        cost[1] = (double)(high - before);
    MPI_Reduce(cost, longest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"view_us\": %.3f, \"view_kib\": %.0f}\n", longest[0], longest[1]);
    MPI_Type_free(&type);
    MPI_File_close(&file);
}

static void peak(int64_t extents, const char *path)
{
    char pid[32] = "";
    MPI_Datatype type;
    MPI_File file = open_file(path);
    uint64_t *words = malloc((size_t)extents * 8), *read = malloc((size_t)extents * 8);
    long long wrong = 0, all_wrong;
    if (words == NULL || read == NULL)
        die("out of memory");
    for (int64_t i = 0; i < extents; i++)
        words[i] = (uint64_t)(i * ranks + rank) * 0x9e3779b97f4a7c15u;
    MPI_Type_create_hvector((int)extents, 8, 8 * (MPI_Aint)ranks, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    check(MPI_File_set_view(file, 8 * rank, MPI_BYTE, type, "native", MPI_INFO_NULL), "set_view");
    int there = find_aggregator(pid);
    long before = there ? status_kib(pid, "VmRSS") : 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    check(MPI_File_write_all(file, words, (int)extents * 8, MPI_BYTE, MPI_STATUS_IGNORE), "write_all");
    double wrote = MPI_Wtime() - began;
    check(MPI_File_read_at_all(file, 0, read, (int)extents * 8, MPI_BYTE, MPI_STATUS_IGNORE), "read_at_all");
    for (int64_t i = 0; i < extents; i++)
        wrong += read[i] == words[i] ? 0 : 8;
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"peak_kib\": %ld, \"base_kib\": %ld, \"write_s\": %.6f, \"wrong_read\": %lld, \"bytes\": %lld}\n",
               there ? status_kib(pid, "VmHWM") - before : 0, before, wrote, all_wrong, (long long)extents * 8 * ranks);
    MPI_Type_free(&type);
    MPI_File_close(&file);
    free(words);
    free(read);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void small(int64_t calls, const char *path)
{
    enum { WORDS = 512 };
    uint64_t words[WORDS], read[WORDS];
    long long wrong = 0, all_wrong;
    double *took = calloc((size_t)calls + 1, sizeof *took);
    MPI_File file = open_file(path);
    if (took == NULL)
        die("out of memory");
    /* One more before: connections are made with the first. */
    for (int64_t call = 0; call <= calls; call++) {
        for (int i = 0; i < WORDS; i++)
            words[i] = (uint64_t)((call * ranks + rank) * WORDS + i) * 0x9e3779b97f4a7c15u;
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        MPI_Offset at = (call * ranks + rank) * (MPI_Offset)sizeof words;
        check(MPI_File_write_at_all(file, at, words, sizeof words, MPI_BYTE, MPI_STATUS_IGNORE), "write_at_all");
        took[call] = MPI_Wtime() - began;
    }
    for (int64_t call = 0; call <= calls; call++) {
        MPI_Offset at = (call * ranks + rank) * (MPI_Offset)sizeof words;
        check(MPI_File_read_at(file, at, read, sizeof read, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
        for (int i = 0; i < WORDS; i++)
            wrong += read[i] == (uint64_t)((call * ranks + rank) * WORDS + i) * 0x9e3779b97f4a7c15u ? 0 : 8;
    }
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    qsort(took + 1, (size_t)calls, sizeof *took, by_value);
    if (rank == 0)
        printf("{\"small_us\": %.1f, \"wrong_read\": %lld}\n", took[1 + calls / 2] * 1e6, all_wrong);
    MPI_File_close(&file);
    free(took);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4)
        die("usage: cost view|peak|small NUMBER PATH");
    if (strcmp(argv[1], "view") == 0)
        view(atoll(argv[2]), argv[3]);
    else if (strcmp(argv[1], "small") == 0 && atoll(argv[2]) > 0)
        small(atoll(argv[2]), argv[3]);
    else
        peak(atoll(argv[2]), argv[3]);
    MPI_Finalize();
    return 0;
}
