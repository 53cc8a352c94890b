/* A rank that waits sleeps, or the emulated network would have no processor. Open MPI polls while it waits and calls
 * sched_yield between two polls (mpi_yield_when_idle).
 *
 * It sleeps a twentieth of the time that it has waited, so that no wait takes much longer by it, and 0.5 ms at most. A
 * wait begins where the rank was busy before. Linked into the programs of `bench mpi-jobs`, preloaded into others. */
#define _GNU_SOURCE
#include <sched.h>
#include <time.h>

#define BUSY_NS 200e3
#define LEAST_NS 50e3
#define MOST_NS 500e3

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

int sched_yield(void)
{
    static double began, last;
    double now = now_ns();

    if (now - last > BUSY_NS)
        began = now;
    double nap = (now - began) / 20;
    nap = nap < LEAST_NS ? LEAST_NS : nap > MOST_NS ? MOST_NS : nap;
    nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL);
    last = now_ns();
    return 0;
}
