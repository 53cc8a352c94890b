/* Beginning, forking, and moving about. Nothing is done at the end: what was recorded is in shared memory already. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include "opened.h"
#include "program.h"
#include "real.h"
#include "ring.h"
#include "touch.h"

static long absent(void)
{
    errno = ENOSYS;
    return -1;
}

void *real_find(_Atomic(void *) *kept, const char *name)
{
    int error = errno;
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        found = (void *)absent;
    atomic_store_explicit(kept, found, memory_order_relaxed);
    errno = error;
    return found;
}

static void after_fork(void)
{
    touch_forked();
    opened_forked();
    ring_forked();
}

__attribute__((constructor)) static void begin(void)
{
    int error = errno;
    ring_attach();
    if (segment != NULL) {
        pthread_atfork(opened_forking, NULL, after_fork);
        program_came();
    }
    errno = error;
}

/* The child puts itself on the list too, but perhaps only after this program has ended. */
EXPORT pid_t fork(void)
{
    REAL(pid_t, fork, (void));
    pid_t child = real_fork();
    if (segment != NULL && child > 0)
        ring_enroll((uint32_t)child);
    return child;
}

EXPORT int chdir(const char *path)
{
    REAL(int, chdir, (const char *));
    int result = real_chdir(path);
    touch_forget(AT_FDCWD);
    return result;
}

EXPORT int fchdir(int fd)
{
    REAL(int, fchdir, (int));
    int result = real_fchdir(fd);
    touch_forget(AT_FDCWD);
    return result;
}

/* Within another root, paths mean other files: what changes there is lost, and counted. */
EXPORT int chroot(const char *path)
{
    REAL(int, chroot, (const char *));
    int result = real_chroot(path);
    if (result == 0)
        touch_elsewhere();
    return result;
}
