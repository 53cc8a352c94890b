/* See harness.h. */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Open MPI polls while it waits, and calls this between two polls (mpi_yield_when_idle). In the lab the ranks share
 * the processors with the emulated network, whose packets would be lost meanwhile: a rank that waits must
 * really sleep. 100 us is little beside the 10 ms that a socket buffer holds at 100 Mbit/s. The executable's
 * definition goes before libc's.
 */
int sched_yield(void)
{
    struct timespec pause = {.tv_nsec = 100 * 1000};
    nanosleep(&pause, NULL);
    return 0;
}

struct options {
    long iterations;
    long message;
    double time_ms;
    int spin;
};

static void fail(const char *format, ...)
{
    va_list arguments;

    fputs("waystage program: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static double number(const char *option, const char *text, double low, double high)
{
    char *end = NULL;
    double value;

    if (text == NULL)
        fail("option %s needs a value", option);
    errno = 0;
    value = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(value >= low && value <= high))
        fail("option %s: '%s' is not between %.0f and %.0f", option, text, low, high);
    return value;
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.iterations = 50, .message = 65536, .time_ms = 0.0, .spin = 0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--spin") == 0) {
            o.spin = 1;
            continue;
        }
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--iterations") == 0)
            o.iterations = (long)number(argv[i], value, 1, 1e9);
        else if (strcmp(argv[i], "--message") == 0)
            o.message = (long)number(argv[i], value, 0, INT_MAX);
        else if (strcmp(argv[i], "--time-ms") == 0)
            o.time_ms = number(argv[i], value, 0, 1e9);
        else
            fail("unknown option '%s'", argv[i]);
        i++;
    }
    return o;
}

/* The "computation": sleeping leaves the processor to the emulated network, spinning does not. */
static void compute(double ms, int spin)
{
    if (ms <= 0)
        return;
    if (spin) {
        double until = MPI_Wtime() + ms / 1e3;
        while (MPI_Wtime() < until)
            ;
        return;
    }
    struct timespec left = {.tv_sec = (time_t)(ms / 1e3)};
    left.tv_nsec = (long)((ms / 1e3 - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* A value that tells sender, receiver and iteration apart, so that a stale or misplaced block is seen. */
static unsigned char stamp(int from, int to, long iteration)
{
    return (unsigned char)(from * 31 + to * 7 + iteration * 13 + 1);
}

static void fill(struct pattern *p, long iteration)
{
    for (int to = 0; to < p->size; to++)
        memset(p->send + (size_t)to * p->message, stamp(p->rank, to, iteration), p->message);
}

static void verify(const struct pattern *p, sender_fn *sender, long iteration)
{
    for (int block = 0; block < p->size; block++) {
        int from = sender(p, block);
        const unsigned char *at = p->recv + (size_t)block * p->message;
        if (from < 0 || p->message == 0)
            continue;
        unsigned char want = stamp(from, p->rank, iteration);
        /* The first byte is right and every byte equals the one before it. */
        if (at[0] != want || memcmp(at, at + 1, (size_t)p->message - 1) != 0)
            fail("rank %d got wrong data from rank %d in iteration %ld", p->rank, from, iteration);
    }
}

static void report(const struct pattern *p, const struct options *o, const double *seconds, double total)
{
    printf("{\"ranks\": %d, \"iterations\": %ld, \"message\": %d, \"total_s\": %.6f, \"iteration_s\": [", p->size,
           o->iterations, p->message, total);
    for (long i = 0; i < o->iterations; i++)
        printf("%s%.6f", i ? ", " : "", seconds[i]);
    printf("]}\n");
    fflush(stdout);
}

int no_sender(const struct pattern *p, int block)
{
    (void)p, (void)block;
    return -1;
}

void check_one_value(const struct pattern *p)
{
    if (p->message > 1 && memcmp(p->recv, p->recv + 1, (size_t)p->message - 1) != 0)
        MPI_Abort(MPI_COMM_WORLD, 3);
}

int harness_main(int argc, char **argv, exchange_fn *exchange, sender_fn *sender)
{
    struct pattern p = {0};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);

    struct options o = parse(argc, argv);
    p.message = (int)o.message;
    size_t room = (size_t)p.size * (size_t)p.message + 1;
    p.send = malloc(room);
    p.recv = malloc(room);
    double *seconds = calloc((size_t)o.iterations, sizeof *seconds);
    if (p.send == NULL || p.recv == NULL || seconds == NULL)
        fail("rank %d has no memory for %zu bytes", p.rank, 2 * room);

    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < o.iterations; i++) {
        compute(o.time_ms, o.spin);
        fill(&p, i);
        memset(p.recv, 0, room);
        double before = MPI_Wtime();
        exchange(&p);
        seconds[i] = MPI_Wtime() - before;
        verify(&p, sender, i);
    }
    double total = MPI_Wtime() - start;

    if (p.rank == 0) {
        MPI_Reduce(MPI_IN_PLACE, seconds, (int)o.iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Reduce(MPI_IN_PLACE, &total, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        report(&p, &o, seconds, total);
    } else {
        MPI_Reduce(seconds, NULL, (int)o.iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Reduce(&total, NULL, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    }
    free(seconds);
    free(p.send);
    free(p.recv);
    MPI_Finalize();
    return 0;
}
