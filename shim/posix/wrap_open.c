/* Calls that open or create files. See open_files.h.
 *
 * A record is made before the call: a program may be killed within it, when the file is there already. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "real.h"
#include "path_record.h"
#include "wrap.h"

/* O_TMPFILE makes a file without a name, and O_PATH opens nothing. */
enum access access_of_flags(int flags)
{
    if ((flags & O_PATH) != 0 || (flags & O_TMPFILE) == O_TMPFILE)
        return ACCESS_READ;
    if ((flags & O_ACCMODE) == O_WRONLY)
        return ACCESS_WRITE_ONLY;
    return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0 ? ACCESS_WRITE : ACCESS_READ;
}

/* The same for a mode of fopen(3). */
static enum access access_of_mode(const char *mode)
{
    return strpbrk(mode, "wa+") != NULL ? ACCESS_WRITE : ACCESS_READ;
}

static bool has_mode(int flags)
{
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

#define MODE_OF(flags)                                                                                                 \
    mode_t mode = 0;                                                                                                   \
    if (has_mode(flags)) {                                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

#define OPEN(symbol)                                                                                                   \
    EXPORT int symbol(const char *path, int flags, ...)                                                                \
    {                                                                                                                  \
        MODE_OF(flags)                                                                                                 \
        REAL(int, symbol, (const char *, int, ...));                                                                   \
        uint64_t token = open_file_record(AT_FDCWD, path, access_of_flags(flags));                                     \
        int fd = real_##symbol(path, flags, mode);                                                                     \
        open_file_add(fd, token);                                                                                      \
        return fd;                                                                                                     \
    }

#define OPENAT(symbol)                                                                                                 \
    EXPORT int symbol(int directory, const char *path, int flags, ...)                                                 \
    {                                                                                                                  \
        MODE_OF(flags)                                                                                                 \
        REAL(int, symbol, (int, const char *, int, ...));                                                              \
        uint64_t token = open_file_record(directory, path, access_of_flags(flags));                                    \
        int fd = real_##symbol(directory, path, flags, mode);                                                          \
        open_file_add(fd, token);                                                                                      \
        return fd;                                                                                                     \
    }

/* What <fcntl.h> calls with _FORTIFY_SOURCE where no mode is given. */
#define OPEN_CHECKED(symbol)                                                                                           \
    EXPORT int symbol(const char *path, int flags);                                                                    \
    EXPORT int symbol(const char *path, int flags)                                                                     \
    {                                                                                                                  \
        REAL(int, symbol, (const char *, int));                                                                        \
        uint64_t token = open_file_record(AT_FDCWD, path, access_of_flags(flags));                                     \
        int fd = real_##symbol(path, flags);                                                                           \
        open_file_add(fd, token);                                                                                      \
        return fd;                                                                                                     \
    }

#define OPENAT_CHECKED(symbol)                                                                                         \
    EXPORT int symbol(int directory, const char *path, int flags);                                                     \
    EXPORT int symbol(int directory, const char *path, int flags)                                                      \
    {                                                                                                                  \
        REAL(int, symbol, (int, const char *, int));                                                                   \
        uint64_t token = open_file_record(directory, path, access_of_flags(flags));                                    \
        int fd = real_##symbol(directory, path, flags);                                                                \
        open_file_add(fd, token);                                                                                      \
        return fd;                                                                                                     \
    }

#define CREAT(symbol)                                                                                                  \
    EXPORT int symbol(const char *path, mode_t mode)                                                                   \
    {                                                                                                                  \
        REAL(int, symbol, (const char *, mode_t));                                                                     \
        uint64_t token = open_file_record(AT_FDCWD, path, ACCESS_WRITE_ONLY);                                          \
        int fd = real_##symbol(path, mode);                                                                            \
        open_file_add(fd, token);                                                                                      \
        return fd;                                                                                                     \
    }

/* The template has the name when the call returns. */
#define MKSTEMP(symbol, params, types, args)                                                                           \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        int fd = real_##symbol args;                                                                                   \
        if (fd >= 0)                                                                                                   \
            open_file_add(fd, open_file_record(AT_FDCWD, name, ACCESS_WRITE));                                         \
        return fd;                                                                                                     \
    }

#define FOPEN(symbol)                                                                                                  \
    EXPORT FILE *symbol(const char *path, const char *mode)                                                            \
    {                                                                                                                  \
        REAL(FILE *, symbol, (const char *, const char *));                                                            \
        open_file_record(AT_FDCWD, path, access_of_mode(mode));                                                        \
        FILE *stream = real_##symbol(path, mode);                                                                      \
        if (segment != NULL && stream != NULL)                                                                         \
            open_file_add(fileno_unlocked(stream), 0);                                                                 \
        return stream;                                                                                                 \
    }

/* With no path it is the same file in another mode: what is open on it may now be writable. */
#define FREOPEN(symbol)                                                                                                \
    EXPORT FILE *symbol(const char *path, const char *mode, FILE *stream)                                              \
    {                                                                                                                  \
        REAL(FILE *, symbol, (const char *, const char *, FILE *));                                                    \
        if (segment != NULL && stream != NULL)                                                                         \
            open_file_closing(fileno_unlocked(stream), false);                                                         \
        if (path != NULL)                                                                                              \
            open_file_record(AT_FDCWD, path, access_of_mode(mode));                                                    \
        else if (segment != NULL && stream != NULL && access_of_mode(mode) != ACCESS_READ)                             \
            record_descriptor(RING_OPENED, fileno_unlocked(stream));                                                   \
        FILE *again = real_##symbol(path, mode, stream);                                                               \
        if (segment != NULL && again != NULL)                                                                          \
            open_file_add(fileno_unlocked(again), 0);                                                                  \
        return again;                                                                                                  \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_CHECKED(__open_2)
OPEN_CHECKED(__open64_2)
OPENAT_CHECKED(__openat_2)
OPENAT_CHECKED(__openat64_2)
CREAT(creat)
CREAT(creat64)
MKSTEMP(mkstemp, (char *name), (char *), (name))
MKSTEMP(mkstemp64, (char *name), (char *), (name))
MKSTEMP(mkostemp, (char *name, int flags), (char *, int), (name, flags))
MKSTEMP(mkostemp64, (char *name, int flags), (char *, int), (name, flags))
MKSTEMP(mkstemps, (char *name, int suffix), (char *, int), (name, suffix))
MKSTEMP(mkstemps64, (char *name, int suffix), (char *, int), (name, suffix))
MKSTEMP(mkostemps, (char *name, int suffix, int flags), (char *, int, int), (name, suffix, flags))
MKSTEMP(mkostemps64, (char *name, int suffix, int flags), (char *, int, int), (name, suffix, flags))
FOPEN(fopen)
FOPEN(fopen64)
FREOPEN(freopen)
FREOPEN(freopen64)

EXPORT char *mkdtemp(char *name)
{
    REAL(char *, mkdtemp, (char *));
    char *made = real_mkdtemp(name);
    if (made != NULL)
        record_path(RING_MADE, AT_FDCWD, made, 0);
    return made;
}

/* The C library opens it later, by calls that cannot be seen: that it will be looked at is enough. */
EXPORT int posix_spawn_file_actions_addopen(
    posix_spawn_file_actions_t *restrict actions, int fd, const char *restrict path, int flags, mode_t mode)
{
    REAL(int, posix_spawn_file_actions_addopen, (posix_spawn_file_actions_t *, int, const char *, int, mode_t));
    if (access_of_flags(flags) != ACCESS_READ)
        record_path(RING_OPENED, AT_FDCWD, path, 0);
    return real_posix_spawn_file_actions_addopen(actions, fd, path, flags, mode);
}

/* By a handle, which says no path: what was opened is asked. */
EXPORT int open_by_handle_at(int mount, struct file_handle *handle, int flags)
{
    REAL(int, open_by_handle_at, (int, struct file_handle *, int));
    int fd = real_open_by_handle_at(mount, handle, flags);
    if (fd >= 0 && access_of_flags(flags) != ACCESS_READ)
        record_descriptor(RING_OPENED, fd);
    return fd;
}
