/* Start-up, fork, and changes of directory. Nothing is done at exit: all records are in shared memory already. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include "open_files.h"
#include "program.h"
#include "real.h"
#include "ring.h"
#include "path_record.h"

static long absent(void)
{
    errno = ENOSYS;
    return -1;
}

void *next_function(_Atomic(void *) *kept, const char *name)
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
    directory_cache_forked();
    open_files_after_fork();
    ring_forked();
}

__attribute__((constructor)) static void begin(void)
{
    int error = errno;
    ring_attach();
    if (segment != NULL) {
        pthread_atfork(open_files_before_fork, NULL, after_fork);
        program_loaded();
    }
    errno = error;
}

/* The child enrols itself too, but perhaps only after this program has ended. */
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
    directory_cache_drop(AT_FDCWD);
    return result;
}

EXPORT int fchdir(int fd)
{
    REAL(int, fchdir, (int));
    int result = real_fchdir(fd);
    directory_cache_drop(AT_FDCWD);
    return result;
}

/* Below another root, paths mean other files: changes are only counted. */
EXPORT int chroot(const char *path)
{
    REAL(int, chroot, (const char *));
    int result = real_chroot(path);
    if (result == 0)
        record_root_changed();
    return result;
}
