/* Calls that make, rename, link and remove names, and truncate by name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "real.h"
#include "path_record.h"

int __xmknod(int version, const char *path, mode_t mode, dev_t *device);
int __xmknodat(int version, int directory, const char *path, mode_t mode, dev_t *device);

/* A call on one name. The record is made before it: a program may be killed within the call, when it is done already.
 * Where a symbolic link may become another, a second one follows success and says when the call began, which `time`
 * is. */
#define ON_NAME(kind, time, symbol, params, types, args, directory, path)                                              \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        uint64_t began = time;                                                                                         \
        record_path(kind, directory, path, 0);                                                                         \
        int result = real_##symbol args;                                                                               \
        if (result == 0 && began != 0)                                                                                 \
            record_path(kind, directory, path, began);                                                                 \
        return result;                                                                                                 \
    }

/* A call on two. */
#define ON_NAMES(kind, time, symbol, params, types, args, from_directory, from, to_directory, to)                      \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        uint64_t began = time;                                                                                         \
        record_path(kind, from_directory, from, 0);                                                                    \
        record_path(kind, to_directory, to, 0);                                                                        \
        int result = real_##symbol args;                                                                               \
        if (result == 0 && began != 0) {                                                                               \
            record_path(kind, from_directory, from, began);                                                            \
            record_path(kind, to_directory, to, began);                                                                \
        }                                                                                                              \
        return result;                                                                                                 \
    }

ON_NAMES(RING_MOVED, ring_now(), rename, (const char *from, const char *to), (const char *, const char *), (from, to), AT_FDCWD,
    from, AT_FDCWD, to)
ON_NAMES(RING_MOVED, ring_now(), renameat, (int old, const char *from, int new, const char *to),
    (int, const char *, int, const char *), (old, from, new, to), old, from, new, to)
ON_NAMES(RING_MOVED, ring_now(), renameat2, (int old, const char *from, int new, const char *to, unsigned flags),
    (int, const char *, int, const char *, unsigned), (old, from, new, to, flags), old, from, new, to)

ON_NAME(RING_REMOVED, ring_now(), unlink, (const char *path), (const char *), (path), AT_FDCWD, path)
ON_NAME(RING_REMOVED, (flags & AT_REMOVEDIR) != 0 ? 0 : ring_now(), unlinkat, (int directory, const char *path, int flags), (int, const char *, int),
    (directory, path, flags), directory, path)
ON_NAME(RING_REMOVED, ring_now(), remove, (const char *path), (const char *), (path), AT_FDCWD, path)
ON_NAME(RING_REMOVED, 0, rmdir, (const char *path), (const char *), (path), AT_FDCWD, path)

ON_NAMES(RING_LINKED, 0, link, (const char *from, const char *to), (const char *, const char *), (from, to), AT_FDCWD,
    from, AT_FDCWD, to)

/* With an empty path, or by /proc/self/fd/N, a file opened by O_TMPFILE gets its name. */
EXPORT int linkat(int old, const char *from, int new, const char *to, int flags)
{
    REAL(int, linkat, (int, const char *, int, const char *, int));
    record_path(RING_LINKED, old, from, 0);
    record_path(RING_LINKED, new, to, 0);
    return real_linkat(old, from, new, to, flags);
}

ON_NAME(RING_SYMLINK, ring_now(), symlink, (const char *target, const char *path), (const char *, const char *), (target, path),
    AT_FDCWD, path)
ON_NAME(RING_SYMLINK, ring_now(), symlinkat, (const char *target, int directory, const char *path), (const char *, int, const char *),
    (target, directory, path), directory, path)

ON_NAME(RING_MADE, 0, mkdir, (const char *path, mode_t mode), (const char *, mode_t), (path, mode), AT_FDCWD, path)
ON_NAME(RING_MADE, 0, mkdirat, (int directory, const char *path, mode_t mode), (int, const char *, mode_t),
    (directory, path, mode), directory, path)
ON_NAME(RING_MADE, 0, mkfifo, (const char *path, mode_t mode), (const char *, mode_t), (path, mode), AT_FDCWD, path)
ON_NAME(RING_MADE, 0, mkfifoat, (int directory, const char *path, mode_t mode), (int, const char *, mode_t),
    (directory, path, mode), directory, path)
ON_NAME(RING_MADE, 0, mknod, (const char *path, mode_t mode, dev_t device), (const char *, mode_t, dev_t),
    (path, mode, device), AT_FDCWD, path)
ON_NAME(RING_MADE, 0, mknodat, (int directory, const char *path, mode_t mode, dev_t device),
    (int, const char *, mode_t, dev_t), (directory, path, mode, device), directory, path)

/* What programs that were linked to a C library before 2.33 call. */
ON_NAME(RING_MADE, 0, __xmknod, (int version, const char *path, mode_t mode, dev_t *device),
    (int, const char *, mode_t, dev_t *), (version, path, mode, device), AT_FDCWD, path)
ON_NAME(RING_MADE, 0, __xmknodat, (int version, int directory, const char *path, mode_t mode, dev_t *device),
    (int, int, const char *, mode_t, dev_t *), (version, directory, path, mode, device), directory, path)

void record_address(const void *address, size_t bytes)
{
    /* As long as the address says, with or without a NUL; abstract names begin with one. */
    char path[sizeof(struct sockaddr_un)];
    const struct sockaddr_un *local = address;
    size_t before = offsetof(struct sockaddr_un, sun_path);
    if (segment == NULL || address == NULL || bytes <= before || bytes > sizeof *local || local->sun_family != AF_UNIX)
        return;
    memcpy(path, local->sun_path, bytes - before);
    path[bytes - before] = '\0';
    record_path(RING_MADE, AT_FDCWD, path, 0);
}

/* A local socket has a name among files. */
EXPORT int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t bytes)
{
    REAL(int, bind, (int, __CONST_SOCKADDR_ARG, socklen_t));
    const struct sockaddr *plain;
    memcpy(&plain, &address, sizeof plain); /* It may be a union of pointers. */
    record_address(plain, bytes);
    return real_bind(fd, address, bytes);
}

ON_NAME(RING_TRUNCATED, 0, truncate, (const char *path, off_t size), (const char *, off_t), (path, size), AT_FDCWD, path)
ON_NAME(RING_TRUNCATED, 0, truncate64, (const char *path, off64_t size), (const char *, off64_t), (path, size), AT_FDCWD,
    path)
