/* Calls that change what an entry says of a file besides its content: mode, owner, times, and by extended attributes
 * ctime.
 *
 * By descriptor they work on files opened for reading too, whose path is asked for then: the descriptor may be any. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#include "real.h"
#include "path_record.h"

#define BY_PATH(symbol, params, types, args, directory, path)                                                          \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        record_path(RING_ATTRIBUTES, directory, path, 0);                                                              \
        return real_##symbol args;                                                                                     \
    }

#define BY_DESCRIPTOR(symbol, params, types, args)                                                                     \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        record_descriptor(RING_ATTRIBUTES, fd);                                                                        \
        return real_##symbol args;                                                                                     \
    }

#define BY_EITHER(symbol, params, types, args)                                                                         \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        record_path_or_descriptor(RING_ATTRIBUTES, fd, path);                                                          \
        return real_##symbol args;                                                                                     \
    }

BY_PATH(chmod, (const char *path, mode_t mode), (const char *, mode_t), (path, mode), AT_FDCWD, path)
BY_PATH(lchmod, (const char *path, mode_t mode), (const char *, mode_t), (path, mode), AT_FDCWD, path)
BY_EITHER(fchmodat, (int fd, const char *path, mode_t mode, int flags), (int, const char *, mode_t, int),
    (fd, path, mode, flags))
BY_DESCRIPTOR(fchmod, (int fd, mode_t mode), (int, mode_t), (fd, mode))

BY_PATH(chown, (const char *path, uid_t owner, gid_t group), (const char *, uid_t, gid_t), (path, owner, group),
    AT_FDCWD, path)
BY_PATH(lchown, (const char *path, uid_t owner, gid_t group), (const char *, uid_t, gid_t), (path, owner, group),
    AT_FDCWD, path)
BY_EITHER(fchownat, (int fd, const char *path, uid_t owner, gid_t group, int flags),
    (int, const char *, uid_t, gid_t, int), (fd, path, owner, group, flags))
BY_DESCRIPTOR(fchown, (int fd, uid_t owner, gid_t group), (int, uid_t, gid_t), (fd, owner, group))

BY_PATH(utime, (const char *path, const struct utimbuf *times), (const char *, const struct utimbuf *), (path, times),
    AT_FDCWD, path)
BY_PATH(utimes, (const char *path, const struct timeval times[2]), (const char *, const struct timeval *),
    (path, times), AT_FDCWD, path)
BY_PATH(lutimes, (const char *path, const struct timeval times[2]), (const char *, const struct timeval *),
    (path, times), AT_FDCWD, path)
BY_EITHER(utimensat, (int fd, const char *path, const struct timespec times[2], int flags),
    (int, const char *, const struct timespec *, int), (fd, path, times, flags))
BY_EITHER(futimesat, (int fd, const char *path, const struct timeval times[2]),
    (int, const char *, const struct timeval *), (fd, path, times))
BY_DESCRIPTOR(futimens, (int fd, const struct timespec times[2]), (int, const struct timespec *), (fd, times))
BY_DESCRIPTOR(futimes, (int fd, const struct timeval times[2]), (int, const struct timeval *), (fd, times))

BY_PATH(setxattr, (const char *path, const char *name, const void *value, size_t size, int flags),
    (const char *, const char *, const void *, size_t, int), (path, name, value, size, flags), AT_FDCWD, path)
BY_PATH(lsetxattr, (const char *path, const char *name, const void *value, size_t size, int flags),
    (const char *, const char *, const void *, size_t, int), (path, name, value, size, flags), AT_FDCWD, path)
BY_DESCRIPTOR(fsetxattr, (int fd, const char *name, const void *value, size_t size, int flags),
    (int, const char *, const void *, size_t, int), (fd, name, value, size, flags))
BY_PATH(removexattr, (const char *path, const char *name), (const char *, const char *), (path, name), AT_FDCWD, path)
BY_PATH(lremovexattr, (const char *path, const char *name), (const char *, const char *), (path, name), AT_FDCWD, path)
BY_DESCRIPTOR(fremovexattr, (int fd, const char *name), (int, const char *), (fd, name))
