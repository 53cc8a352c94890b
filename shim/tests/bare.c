/* What calls cost on this machine by themselves: prints the nanoseconds of an empty system call and of fstat(2),
 * medians. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 101
#define CALLS 2000

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(void)
{
    double took[2][ROUNDS];
    struct stat found;
    for (int round = 0; round < ROUNDS; round++) {
        double began = now_ns();
        for (int call = 0; call < CALLS; call++)
            syscall(SYS_getppid);
        double between = now_ns();
        for (int call = 0; call < CALLS; call++)
            if (fstat(STDOUT_FILENO, &found) != 0)
                return 1;
        took[0][round] = (between - began) / CALLS;
        took[1][round] = (now_ns() - between) / CALLS;
    }
    for (int way = 0; way < 2; way++)
        qsort(took[way], ROUNDS, sizeof(double), by_size);
    printf("%.1f %.1f\n", took[0][ROUNDS / 2], took[1][ROUNDS / 2]);
    return 0;
}
