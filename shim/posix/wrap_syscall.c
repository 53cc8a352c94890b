/* syscall(2): how programs reach calls that their C library has no function for, openat2 above all. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "open_files.h"
#include "program.h"
#include "real.h"
#include "path_record.h"
#include "wrap.h"

/* `began` is 0 before the call, and after it when it began. */
static void seen(long number, const long words[6], uint64_t began)
{
    const char *first = (const char *)words[0], *second = (const char *)words[1];
    switch (number) {
    case SYS_unlinkat:
        record_path(RING_REMOVED, (int)words[0], second, (words[2] & AT_REMOVEDIR) != 0 ? 0 : began);
        break;
    case SYS_renameat2:
        record_path(RING_MOVED, (int)words[0], second, began);
        record_path(RING_MOVED, (int)words[2], (const char *)words[3], began);
        break;
    case SYS_linkat:
        record_path(RING_LINKED, (int)words[0], second, 0);
        record_path(RING_LINKED, (int)words[2], (const char *)words[3], 0);
        break;
    case SYS_symlinkat:
        record_path(RING_SYMLINK, (int)words[1], (const char *)words[2], began);
        break;
    case SYS_mkdirat:
    case SYS_mknodat:
        record_path(RING_MADE, (int)words[0], second, 0);
        break;
    case SYS_truncate:
        record_path(RING_TRUNCATED, AT_FDCWD, first, 0);
        break;
    case SYS_bind:
        record_address(second, (size_t)words[2]);
        break;
    case SYS_fchmodat:
#ifdef SYS_fchmodat2
    case SYS_fchmodat2:
#endif
    case SYS_fchownat:
    case SYS_utimensat:
        record_path_or_descriptor(RING_ATTRIBUTES, (int)words[0], second);
        break;
#ifdef SYS_setxattrat
    case SYS_setxattrat:
    case SYS_removexattrat:
        record_path_or_descriptor(RING_ATTRIBUTES, (int)words[0], second);
        break;
#endif
    case SYS_setxattr:
    case SYS_lsetxattr:
    case SYS_removexattr:
    case SYS_lremovexattr:
        record_path(RING_ATTRIBUTES, AT_FDCWD, first, 0);
        break;
    case SYS_fchmod:
    case SYS_fchown:
    case SYS_fsetxattr:
    case SYS_fremovexattr:
        record_descriptor(RING_ATTRIBUTES, (int)words[0]);
        break;
#ifdef SYS_renameat
    case SYS_renameat:
        record_path(RING_MOVED, (int)words[0], second, began);
        record_path(RING_MOVED, (int)words[2], (const char *)words[3], began);
        break;
#endif
#ifdef SYS_unlink /* Older architectures have these besides. */
    case SYS_unlink:
    case SYS_rmdir:
        record_path(RING_REMOVED, AT_FDCWD, first, number == SYS_rmdir ? 0 : began);
        break;
    case SYS_rename:
        record_path(RING_MOVED, AT_FDCWD, first, began);
        record_path(RING_MOVED, AT_FDCWD, second, began);
        break;
    case SYS_mkdir:
    case SYS_mknod:
        record_path(RING_MADE, AT_FDCWD, first, 0);
        break;
    case SYS_link:
        record_path(RING_LINKED, AT_FDCWD, first, 0);
        record_path(RING_LINKED, AT_FDCWD, second, 0);
        break;
    case SYS_symlink:
        record_path(RING_SYMLINK, AT_FDCWD, second, began);
        break;
    case SYS_chmod:
    case SYS_chown:
    case SYS_lchown:
    case SYS_utime:
    case SYS_utimes:
        record_path(RING_ATTRIBUTES, AT_FDCWD, first, 0);
        break;
    case SYS_futimesat:
        record_path_or_descriptor(RING_ATTRIBUTES, (int)words[0], second);
        break;
#endif
    default:
        break;
    }
}

static uint64_t seen_opening(long number, const long words[6])
{
    switch (number) {
    case SYS_openat:
        return open_file_record((int)words[0], (const char *)words[1], access_of_flags((int)words[2]));
#ifdef SYS_openat2
    case SYS_openat2: /* struct open_how begins with the flags, as 64 bits. */
        if (words[2] != 0 && (size_t)words[3] >= sizeof(uint64_t))
            open_file_record((int)words[0], (const char *)words[1], access_of_flags((int)*(const uint64_t *)words[2]));
        return 0;
#endif
#ifdef SYS_open
    case SYS_open:
        return open_file_record(AT_FDCWD, (const char *)words[0], access_of_flags((int)words[1]));
    case SYS_creat:
        return open_file_record(AT_FDCWD, (const char *)words[0], ACCESS_WRITE_ONLY);
#endif
    default:
        return 0;
    }
}

static bool opens(long number)
{
    switch (number) {
    case SYS_openat:
#ifdef SYS_openat2
    case SYS_openat2:
#endif
#ifdef SYS_open
    case SYS_open:
    case SYS_creat:
#endif
        return true;
    default:
        return false;
    }
}

/* Descriptors that come and go this way are not told of, so that a number used again is not taken for the former
 * file. */
static void before(long number, const long words[6])
{
    switch (number) {
    case SYS_close:
        open_file_closing((int)words[0], false);
        break;
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_dup3:
        open_file_closing((int)words[1], false);
        open_file_shared((int)words[0]);
        break;
#ifdef SYS_close_range
    case SYS_close_range:
        open_files_closing((unsigned)words[0], (unsigned)words[1]);
        break;
#endif
    case SYS_chdir:
    case SYS_fchdir:
        directory_cache_drop(AT_FDCWD);
        break;
    case SYS_execve:
        program_starts(0, (const char *)words[0], ring_now());
        break;
    case SYS_execveat:
        program_starts(0, (const char *)words[1], ring_now());
        break;
    default:
        break;
    }
}

/* Records that need the result of the call. */
static void after(long number, long result)
{
    switch (number) {
    case SYS_chdir:
    case SYS_fchdir:
        directory_cache_drop(AT_FDCWD);
        break;
    case SYS_execve:
    case SYS_execveat:
        program_failed(0);
        break;
    case SYS_open_by_handle_at:
        if (result >= 0)
            record_descriptor(RING_OPENED, (int)result);
        break;
#ifdef SYS_io_uring_setup
    case SYS_io_uring_setup:
        if (result >= 0)
            program_unobservable("io_uring");
        break;
#endif
    default:
        break;
    }
}

EXPORT long syscall(long number, ...)
{
    long words[6];
    va_list rest;
    va_start(rest, number);
    for (int word = 0; word < 6; word++)
        words[word] = va_arg(rest, long);
    va_end(rest);
    REAL(long, syscall, (long, ...));
    if (segment == NULL)
        return real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    before(number, words);
    uint64_t began = ring_now();
    seen(number, words, 0);
    uint64_t token = seen_opening(number, words);
    long result = real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (result == 0)
        seen(number, words, began);
    if (opens(number))
        open_file_add((int)result, token);
    after(number, result);
    return result;
}
