/* Beginning, forking, and moving about. Nothing is done at the end: what was recorded is in shared memory already. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/types.h>
#include <unistd.h>

#include "opened.h"
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
    if (ring != NULL)
        pthread_atfork(opened_forking, NULL, after_fork);
    errno = error;
}

/* The child puts itself on the list too, but perhaps only after this program has ended. */
EXPORT pid_t fork(void)
{
    REAL(pid_t, fork, (void));
    pid_t child = real_fork();
    if (ring != NULL && child > 0)
        ring_enroll((uint32_t)child);
    return child;
}

#define SPAWN(symbol)                                                                                                  \
    EXPORT int symbol(pid_t *restrict child, const char *restrict file,                                                \
        const posix_spawn_file_actions_t *restrict actions, const posix_spawnattr_t *restrict attributes,              \
        char *const words[restrict], char *const environment[restrict])                                                \
    {                                                                                                                  \
        REAL(int, symbol,                                                                                              \
            (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *,      \
                char *const *));                                                                                       \
        pid_t made = 0;                                                                                                \
        int result = real_##symbol(&made, file, actions, attributes, words, environment);                              \
        if (result == 0 && child != NULL)                                                                              \
            *child = made;                                                                                             \
        if (result == 0 && ring != NULL)                                                                               \
            ring_enroll((uint32_t)made);                                                                               \
        return result;                                                                                                 \
    }

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

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
