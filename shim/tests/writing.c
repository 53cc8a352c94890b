/* What a file costs with the preloaded library and without, in one process: makes COUNT pairs of files of SIZE bytes
 * in its working directory, REPEATS times, and removes them in between. Of each pair one is opened and closed as the
 * program's linker says, that is by the library where it is preloaded, and one by the C library itself; which comes
 * first alternates. So both meet the same machine, which differs from one second to the next by far more than the
 * library costs.
 *
 * Prints the nanoseconds of opening, writing and closing a file, a line for each repetition: the median without and
 * with, and the means of all but the slowest hundredth. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct calls {
    int (*open)(const char *path, int flags, ...);
    int (*close)(int fd);
};

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void name_of(char *name, size_t room, int way, int file)
{
    snprintf(name, room, "output-%d-%06d.dat", way, file);
}

/* Nanoseconds of one file, or negative. */
static double make(const struct calls *calls, const char *name, const char *content, size_t size)
{
    double began = now_ns();
    int fd = calls->open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    if (fd < 0 || (size > 0 && write(fd, content, size) != (ssize_t)size) || calls->close(fd) != 0)
        return -1;
    return now_ns() - began;
}

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double mean(const double *sorted, int count)
{
    int kept = count - count / 100;
    double sum = 0;
    for (int at = 0; at < kept; at++)
        sum += sorted[at];
    return sum / kept;
}

int main(int words, char **word)
{
    if (words != 4)
        return 2;
    int count = atoi(word[1]), repeats = atoi(word[3]);
    size_t size = strtoul(word[2], NULL, 10);
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (count < 1 || libc == NULL)
        return 2;
    struct calls ways[2] = {{.open = NULL}, {.open = open, .close = close}};
    /* POSIX lets a pointer to an object be one to a function; ISO C has no word for it. */
    *(void **)&ways[0].open = dlsym(libc, "open");
    *(void **)&ways[0].close = dlsym(libc, "close");
    char *content = calloc(1, size + 1), name[40];
    double *took[2] = {calloc((size_t)count, sizeof(double)), calloc((size_t)count, sizeof(double))};
    if (content == NULL || took[0] == NULL || took[1] == NULL || ways[0].open == NULL || ways[0].close == NULL)
        return 1;
    memset(content, 'x', size);
    for (int repeat = 0; repeat < repeats; repeat++) {
        for (int file = 0; file < count; file++) {
            for (int turn = 0; turn < 2; turn++) {
                int way = (file + turn) % 2;
                name_of(name, sizeof name, way, file);
                took[way][file] = make(&ways[way], name, content, size);
                if (took[way][file] < 0)
                    return 1;
            }
        }
        for (int way = 0; way < 2; way++) {
            qsort(took[way], (size_t)count, sizeof(double), by_size);
            for (int file = 0; file < count; file++) {
                name_of(name, sizeof name, way, file);
                if (unlink(name) != 0)
                    return 1;
            }
        }
        printf("%.1f %.1f %.1f %.1f\n", took[0][count / 2], took[1][count / 2], mean(took[0], count), mean(took[1], count));
    }
    return 0;
}
