/* What a file costs: makes COUNT files of SIZE bytes in its working directory, REPEATS times, and removes them in between.
 *
 * Prints the nanoseconds of opening, writing and closing one, a line for each repetition. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int words, char **word)
{
    if (words != 4)
        return 2;
    int count = atoi(word[1]), repeats = atoi(word[3]);
    size_t size = strtoul(word[2], NULL, 10);
    char *content = calloc(1, size + 1), name[32];
    if (content == NULL)
        return 1;
    memset(content, 'x', size);
    for (int repeat = 0; repeat < repeats; repeat++) {
        double began = now_ns();
        for (int file = 0; file < count; file++) {
            snprintf(name, sizeof name, "output-%06d.dat", file);
            int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
            if (fd < 0 || (size > 0 && write(fd, content, size) != (ssize_t)size) || close(fd) != 0)
                return 1;
        }
        printf("%.1f\n", (now_ns() - began) / count);
        for (int file = 0; file < count; file++) {
            snprintf(name, sizeof name, "output-%06d.dat", file);
            if (unlink(name) != 0)
                return 1;
        }
    }
    return 0;
}
