/* See fatal.h. */
#define _GNU_SOURCE
#include "fatal.h"

#include <signal.h>
#include <stddef.h>

#include "profile.h"

/* SIGTERM is what mpirun sends to the other ranks when one has died. */
static const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

static struct sigaction before[NSIG];

static void on_signal(int number, siginfo_t *info, void *context)
{
    const struct sigaction *old = &before[number];

    profile_abandon();
    if (!(old->sa_flags & SA_SIGINFO) && old->sa_handler == SIG_DFL) {
        /* Blocked until this handler returns; then the default action takes place. */
        sigaction(number, old, NULL);
        raise(number);
        return;
    }
    if (old->sa_flags & SA_RESETHAND)
        signal(number, SIG_DFL);
    if (old->sa_flags & SA_SIGINFO)
        old->sa_sigaction(number, info, context);
    else
        old->sa_handler(number);
}

void fatal_watch(void)
{
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        int number = signals[i];
        struct sigaction own;
        if (sigaction(number, NULL, &before[number]) != 0)
            continue;
        /* What the program ignores does not kill it. */
        if (!(before[number].sa_flags & SA_SIGINFO) && before[number].sa_handler == SIG_IGN)
            continue;
        own = before[number];
        own.sa_sigaction = on_signal;
        own.sa_flags = (before[number].sa_flags & ~SA_RESETHAND) | SA_SIGINFO;
        sigaction(number, &own, NULL);
    }
}

/* exit() without MPI_Finalize. */
static __attribute__((destructor)) void at_exit(void)
{
    profile_abandon();
}
