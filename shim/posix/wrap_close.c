/* Calls that close or copy descriptors. See open_files.h. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "open_files.h"
#include "real.h"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

EXPORT int close(int fd)
{
    open_file_closing(fd, true);
    REAL(int, close, (int));
    return real_close(fd);
}

EXPORT int close_range(unsigned first, unsigned last, int flags)
{
    REAL(int, close_range, (unsigned, unsigned, int));
    int result = real_close_range(first, last, flags);
    if (result == 0 && ((unsigned)flags & CLOSE_RANGE_CLOEXEC) == 0)
        open_files_closing(first, last);
    return result;
}

EXPORT void closefrom(int first)
{
    open_files_closing(first < 0 ? 0 : (unsigned)first, ~0U);
    REAL(void, closefrom, (int));
    real_closefrom(first);
}

EXPORT int fclose(FILE *stream)
{
    if (segment != NULL)
        open_file_closing(fileno_unlocked(stream), false);
    REAL(int, fclose, (FILE *));
    return real_fclose(stream);
}

EXPORT int closedir(DIR *directory)
{
    DIR *volatile given = directory; /* Declared never to be NULL, for which it fails all the same. */
    if (segment != NULL && given != NULL)
        open_file_closing(dirfd(directory), false);
    REAL(int, closedir, (DIR *));
    return real_closedir(directory);
}

EXPORT int dup(int fd)
{
    REAL(int, dup, (int));
    int copy = real_dup(fd);
    open_file_duplicated(fd, copy);
    return copy;
}

/* Where it fails, `copy` may stay open: its closing is not told. */
EXPORT int dup2(int fd, int copy)
{
    if (fd != copy)
        open_file_closing(copy, false);
    REAL(int, dup2, (int, int));
    int result = real_dup2(fd, copy);
    open_file_duplicated(fd, result);
    return result;
}

EXPORT int dup3(int fd, int copy, int flags)
{
    open_file_closing(copy, false);
    REAL(int, dup3, (int, int, int));
    int result = real_dup3(fd, copy, flags);
    open_file_duplicated(fd, result);
    return result;
}

/* The third argument is a number, a pointer or absent: it is passed on as the wider one, as the C library does
 * itself. */
#define FCNTL(symbol)                                                                                                  \
    EXPORT int symbol(int fd, int command, ...)                                                                        \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, command);                                                                                       \
        void *argument = va_arg(rest, void *);                                                                         \
        va_end(rest);                                                                                                  \
        REAL(int, symbol, (int, int, ...));                                                                            \
        int result = real_##symbol(fd, command, argument);                                                             \
        if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)                                                          \
            open_file_duplicated(fd, result);                                                                          \
        return result;                                                                                                 \
    }

FCNTL(fcntl)
FCNTL(fcntl64)
