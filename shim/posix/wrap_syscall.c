/* syscall(2): how programs reach calls that their C library has no function for, openat2 above all. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "opened.h"
#include "program.h"
#include "real.h"
#include "touch.h"
#include "wrap.h"

/* `began` is 0 before the call, and after it when it began. */
static void seen(long number, const long words[6], uint64_t began)
{
    const char *first = (const char *)words[0], *second = (const char *)words[1];
    switch (number) {
    case SYS_unlinkat:
        touch_at(RING_REMOVED, (int)words[0], second, (words[2] & AT_REMOVEDIR) != 0 ? 0 : began);
        break;
    case SYS_renameat2:
        touch_at(RING_MOVED, (int)words[0], second, began);
        touch_at(RING_MOVED, (int)words[2], (const char *)words[3], began);
        break;
    case SYS_linkat:
        touch_at(RING_LINKED, (int)words[0], second, 0);
        touch_at(RING_LINKED, (int)words[2], (const char *)words[3], 0);
        break;
    case SYS_symlinkat:
        touch_at(RING_SYMLINK, (int)words[1], (const char *)words[2], began);
        break;
    case SYS_mkdirat:
    case SYS_mknodat:
        touch_at(RING_MADE, (int)words[0], second, 0);
        break;
    case SYS_truncate:
        touch_at(RING_TRUNCATED, AT_FDCWD, first, 0);
        break;
    case SYS_bind:
        touch_address(second, (size_t)words[2]);
        break;
    case SYS_fchmodat:
#ifdef SYS_fchmodat2
    case SYS_fchmodat2:
#endif
    case SYS_fchownat:
    case SYS_utimensat:
        touch_either(RING_ATTRIBUTES, (int)words[0], second);
        break;
#ifdef SYS_setxattrat
    case SYS_setxattrat:
    case SYS_removexattrat:
        touch_either(RING_ATTRIBUTES, (int)words[0], second);
        break;
#endif
    case SYS_setxattr:
    case SYS_lsetxattr:
    case SYS_removexattr:
    case SYS_lremovexattr:
        touch_at(RING_ATTRIBUTES, AT_FDCWD, first, 0);
        break;
    case SYS_fchmod:
    case SYS_fchown:
    case SYS_fsetxattr:
    case SYS_fremovexattr:
        touch_descriptor(RING_ATTRIBUTES, (int)words[0]);
        break;
#ifdef SYS_renameat
    case SYS_renameat:
        touch_at(RING_MOVED, (int)words[0], second, began);
        touch_at(RING_MOVED, (int)words[2], (const char *)words[3], began);
        break;
#endif
#ifdef SYS_unlink /* Older architectures have these besides. */
    case SYS_unlink:
    case SYS_rmdir:
        touch_at(RING_REMOVED, AT_FDCWD, first, number == SYS_rmdir ? 0 : began);
        break;
    case SYS_rename:
        touch_at(RING_MOVED, AT_FDCWD, first, began);
        touch_at(RING_MOVED, AT_FDCWD, second, began);
        break;
    case SYS_mkdir:
    case SYS_mknod:
        touch_at(RING_MADE, AT_FDCWD, first, 0);
        break;
    case SYS_link:
        touch_at(RING_LINKED, AT_FDCWD, first, 0);
        touch_at(RING_LINKED, AT_FDCWD, second, 0);
        break;
    case SYS_symlink:
        touch_at(RING_SYMLINK, AT_FDCWD, second, began);
        break;
    case SYS_chmod:
    case SYS_chown:
    case SYS_lchown:
    case SYS_utime:
    case SYS_utimes:
        touch_at(RING_ATTRIBUTES, AT_FDCWD, first, 0);
        break;
    case SYS_futimesat:
        touch_either(RING_ATTRIBUTES, (int)words[0], second);
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
        return opening((int)words[0], (const char *)words[1], opening_of((int)words[2]));
#ifdef SYS_openat2
    case SYS_openat2: /* struct open_how begins with the flags, as 64 bits. */
        if (words[2] != 0 && (size_t)words[3] >= sizeof(uint64_t))
            opening((int)words[0], (const char *)words[1], opening_of((int)*(const uint64_t *)words[2]));
        return 0;
#endif
#ifdef SYS_open
    case SYS_open:
        return opening(AT_FDCWD, (const char *)words[0], opening_of((int)words[1]));
    case SYS_creat:
        return opening(AT_FDCWD, (const char *)words[0], OPENING_ONLY_WRITES);
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

/* Descriptors that come and go this way are not told of, so that a number used again is not taken for the former file. */
static void before(long number, const long words[6])
{
    switch (number) {
    case SYS_close:
        closing((int)words[0], false);
        break;
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_dup3:
        closing((int)words[1], false);
        opened_shared((int)words[0]);
        break;
#ifdef SYS_close_range
    case SYS_close_range:
        closing_range((unsigned)words[0], (unsigned)words[1]);
        break;
#endif
    case SYS_chdir:
    case SYS_fchdir:
        touch_forget(AT_FDCWD);
        break;
    case SYS_execve:
        program_begins(0, (const char *)words[0], ring_now());
        break;
    case SYS_execveat:
        program_begins(0, (const char *)words[1], ring_now());
        break;
    default:
        break;
    }
}

/* What can be told only of a call that has returned. */
static void after(long number, long result)
{
    switch (number) {
    case SYS_chdir:
    case SYS_fchdir:
        touch_forget(AT_FDCWD);
        break;
    case SYS_execve:
    case SYS_execveat:
        program_failed(0);
        break;
    case SYS_open_by_handle_at:
        if (result >= 0)
            touch_descriptor(RING_OPENED, (int)result);
        break;
#ifdef SYS_io_uring_setup
    case SYS_io_uring_setup:
        if (result >= 0)
            program_blind("io_uring");
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
        opened((int)result, token);
    after(number, result);
    return result;
}
