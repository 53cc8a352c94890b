/* Changes the files of its working directory by one call that is named by its argument.
 *
 * There are: files `a` and `b`, directory `d` with file `x` and directory `d/e` with file `y`, symbolic links `l` to
 * `a` and `m` to `d`, hard links `h` and `d/h2` of one file, an empty directory `z`. The answer is 0 where the call
 * succeeded. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

extern char **environ;

/* Through pointers that the compiler cannot follow: the checked forms have no declarations. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int directory, const char *path, int flags);
int __openat64_2(int directory, const char *path, int flags);

static int fill(int fd)
{
    if (fd < 0 || write(fd, "written", 7) != 7)
        return -1;
    return close(fd);
}

static int directory(void)
{
    return open("d", O_RDONLY | O_DIRECTORY);
}

static int stream(FILE *file)
{
    if (file == NULL || fputs("written", file) < 0)
        return -1;
    return fclose(file);
}

#define CALL(name, expression)                                                                                         \
    static int call_##name(void)                                                                                       \
    {                                                                                                                  \
        return (expression);                                                                                           \
    }
#define CALLS                                                                                                          \
    X(open, fill(open("n", O_CREAT | O_WRONLY, 0644)))                                                                 \
    X(open64, fill(open64("n", O_CREAT | O_RDWR, 0644)))                                                               \
    X(open_existing, fill(open("a", O_WRONLY)))                                                                        \
    X(open_truncating, close(open("a", O_RDONLY | O_TRUNC)))                                                           \
    X(open_through_link, fill(open("l", O_WRONLY | O_APPEND)))                                                         \
    X(open_below_link, fill(open("m/n", O_CREAT | O_WRONLY, 0644)))                                                    \
    X(open_dots, fill(open("d/e/../../d/./n", O_CREAT | O_WRONLY, 0644)))                                              \
    X(open_2, fill(__open_2("a", O_WRONLY)))                                                                           \
    X(open64_2, fill(__open64_2("a", O_WRONLY)))                                                                       \
    X(openat, fill(openat(directory(), "n", O_CREAT | O_WRONLY, 0644)))                                                \
    X(openat64, fill(openat64(directory(), "n", O_CREAT | O_WRONLY, 0644)))                                            \
    X(openat_2, fill(__openat_2(directory(), "x", O_WRONLY)))                                                          \
    X(openat64_2, fill(__openat64_2(directory(), "x", O_WRONLY)))                                                      \
    X(creat, fill(creat("n", 0600)))                                                                                   \
    X(creat64, fill(creat64("a", 0600)))                                                                               \
    X(mkstemp, fill(mkstemp(strcpy(name, "d/tXXXXXX"))))                                                               \
    X(mkostemp, fill(mkostemp(strcpy(name, "tXXXXXX"), O_CLOEXEC)))                                                    \
    X(mkstemps, fill(mkstemps(strcpy(name, "tXXXXXX.dat"), 4)))                                                        \
    X(mkostemps64, fill(mkostemps64(strcpy(name, "tXXXXXX.dat"), 4, 0)))                                               \
    X(mkdtemp, mkdtemp(strcpy(name, "tXXXXXX")) == NULL)                                                               \
    X(fopen, stream(fopen("n", "w")))                                                                                  \
    X(fopen64, stream(fopen64("a", "a")))                                                                              \
    X(fopen_plus, stream(fopen("a", "r+")))                                                                            \
    X(freopen, stream(freopen("n", "w", fopen("a", "r"))))                                                             \
    X(fdopen, stream(fdopen(open("n", O_CREAT | O_WRONLY, 0644), "w")))                                                \
    X(rename, rename("a", "n"))                                                                                        \
    X(rename_over, rename("a", "b"))                                                                                   \
    X(rename_directory, rename("d", "n"))                                                                              \
    X(rename_directory_and_write, rename("d", "z") != 0 || fill(open("z/e/n", O_CREAT | O_WRONLY, 0644)))              \
    X(renameat, renameat(directory(), "x", AT_FDCWD, "n"))                                                             \
    X(renameat2, renameat2(AT_FDCWD, "d", AT_FDCWD, "z", RENAME_EXCHANGE))                                             \
    X(unlink, unlink("a"))                                                                                             \
    X(unlink_other_name, unlink("h"))                                                                                  \
    X(unlinkat, unlinkat(directory(), "x", 0))                                                                         \
    X(unlinkat_directory, unlinkat(AT_FDCWD, "z", AT_REMOVEDIR))                                                       \
    X(remove, remove("a"))                                                                                             \
    X(remove_directory, remove("z"))                                                                                   \
    X(rmdir, rmdir("z"))                                                                                               \
    X(rmdir_and_file, rmdir("z") != 0 || fill(open("z", O_CREAT | O_WRONLY, 0644)))                                    \
    X(link, link("a", "n"))                                                                                            \
    X(linkat, linkat(AT_FDCWD, "a", directory(), "n", 0))                                                              \
    X(linkat_nameless, nameless())                                                                                     \
    X(write_other_name, fill(open("h", O_WRONLY)))                                                                     \
    X(symlink, symlink("a", "n"))                                                                                      \
    X(symlinkat, symlinkat("x", directory(), "n"))                                                                     \
    X(mkdir, mkdir("n", 0755))                                                                                         \
    X(mkdirat, mkdirat(directory(), "n", 0755))                                                                        \
    X(mkfifo, mkfifo("n", 0644))                                                                                       \
    X(mkfifoat, mkfifoat(directory(), "n", 0644))                                                                      \
    X(mknod, mknod("n", S_IFREG | 0644, 0))                                                                            \
    X(mknodat, mknodat(directory(), "n", S_IFIFO | 0644, 0))                                                           \
    X(truncate, truncate("a", 1))                                                                                      \
    X(truncate64, truncate64("a", 1 << 20))                                                                            \
    X(chmod, chmod("a", 0600))                                                                                         \
    X(fchmod, fchmod(open("a", O_RDONLY), 0600))                                                                       \
    X(fchmodat, fchmodat(directory(), "x", 0600, 0))                                                                   \
    X(chmod_through_link, chmod("l", 0600))                                                                            \
    X(utime, utime("a", &(struct utimbuf){1, 2}))                                                                      \
    X(utimes, utimes("a", (struct timeval[2]){{1, 0}, {2, 0}}))                                                        \
    X(lutimes, lutimes("l", (struct timeval[2]){{1, 0}, {2, 0}}))                                                      \
    X(futimes, futimes(open("a", O_RDONLY), (struct timeval[2]){{1, 0}, {2, 0}}))                                      \
    X(futimens, futimens(open("a", O_RDONLY), (struct timespec[2]){{1, 0}, {2, 0}}))                                   \
    X(utimensat, utimensat(directory(), "x", (struct timespec[2]){{1, 0}, {2, 0}}, AT_SYMLINK_NOFOLLOW))               \
    X(setxattr, setxattr("a", "user.n", "v", 1, 0))                                                                    \
    X(openat2_by_syscall, openat2())                                                                                   \
    X(open_by_syscall, fill((int)syscall(SYS_openat, AT_FDCWD, "n", O_CREAT | O_WRONLY, 0644)))                        \
    X(rename_by_syscall, (int)syscall(SYS_renameat2, AT_FDCWD, "d", AT_FDCWD, "n", 0))                                 \
    X(unlink_by_syscall, (int)syscall(SYS_unlinkat, AT_FDCWD, "a", 0))                                                 \
    X(bind, local_socket("n", 0))                                                                                      \
    X(bind_by_syscall, local_socket("d/n", 1))                                                                         \
    X(by_handle, by_handle())                                                                                          \
    X(chmod_by_syscall, (int)syscall(SYS_fchmodat, directory(), "x", 0600))                                            \
    X(chown_by_syscall, (int)syscall(SYS_fchownat, AT_FDCWD, "a", -1, -1, 0))                                          \
    X(utime_by_syscall, (int)syscall(SYS_utimensat, AT_FDCWD, "a", (struct timespec[2]){{1, 0}, {2, 0}}, 0))           \
    X(setxattr_by_syscall, (int)syscall(SYS_setxattr, "a", "user.n", "v", 1, 0))                                       \
    X(link_by_syscall, (int)syscall(SYS_linkat, AT_FDCWD, "a", directory(), "n", 0))                                   \
    X(mknod_by_syscall, (int)syscall(SYS_mknodat, AT_FDCWD, "n", S_IFIFO | 0644, 0))                                   \
    X(older_calls_by_syscall, older_calls())                                                                           \
    X(after_chdir, chdir("d/e") != 0 || fill(open("n", O_CREAT | O_WRONLY, 0644)) != 0 || chdir("..") != 0 ||          \
                       fill(open("n", O_CREAT | O_WRONLY, 0644)))                                                      \
    X(after_fchdir, fchdir(directory()) != 0 || fill(open("n", O_CREAT | O_WRONLY, 0644)))                             \
    X(descriptor_again, descriptor_again())                                                                            \
    X(duplicated, duplicated())                                                                                        \
    X(copied, copied())                                                                                                \
    X(mapped, mapped())                                                                                                \
    X(closed_and_written_by_child, closed_and_written_by_child())                                                      \
    X(closefrom, closed_otherwise(0))                                                                                  \
    X(close_range, closed_otherwise(1))                                                                                \
    X(exec, exec())                                                                                                    \
    X(spawn, spawn())                                                                                                  \
    X(vfork, in_vfork())                                                                                               \
    X(exit_now, (fill(open("n", O_CREAT | O_WRONLY, 0644)), _exit(0), 0))                                              \
    X(deep, deep())                                                                                                    \
    X(strange_names, strange_names())

static char name[64];

static int nameless(void)
{
    char link[64];
    int fd = open("d", O_TMPFILE | O_RDWR, 0644);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fd < 0 || linkat(AT_FDCWD, link, AT_FDCWD, "d/n", AT_SYMLINK_FOLLOW) != 0)
        return -1;
    return fill(fd);
}

static int openat2(void)
{
    uint64_t how[3] = {O_CREAT | O_WRONLY, 0644, 0};
    return fill((int)syscall(SYS_openat2, AT_FDCWD, "n", how, sizeof how));
}

/* The number of a directory's descriptor is used again for another directory. */
static int descriptor_again(void)
{
    int first = directory();
    if (fill(openat(first, "n", O_CREAT | O_WRONLY, 0644)) != 0 || close(first) != 0)
        return -1;
    int second = open("d/e", O_RDONLY | O_DIRECTORY);
    if (second != first || fill(openat(second, "o", O_CREAT | O_WRONLY, 0644)) != 0)
        return -1;
    int third = open("z", O_RDONLY | O_DIRECTORY);
    return dup2(third, second) != second || fill(openat(second, "p", O_CREAT | O_WRONLY, 0644));
}

static int duplicated(void)
{
    int fd = open("n", O_CREAT | O_WRONLY, 0644), copy = dup(fd);
    return fill(fd) != 0 || fill(copy);
}

static int local_socket(const char *name, int direct)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, name, strlen(name)); /* Not ended by a NUL that counts. */
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (direct)
        return (int)syscall(SYS_bind, fd, &address, bytes);
    return bind(fd, (struct sockaddr *)&address, bytes);
}

static int by_handle(void)
{
    struct {
        struct file_handle handle;
        unsigned char bytes[MAX_HANDLE_SZ];
    } of = {.handle.handle_bytes = MAX_HANDLE_SZ};
    int mount, fd = directory();
    if (name_to_handle_at(AT_FDCWD, "a", &of.handle, &mount, 0) != 0)
        return -1;
    fd = open_by_handle_at(fd, &of.handle, O_WRONLY);
    if (fd < 0 && errno == EPERM)
        errno = ENOSYS;
    return fill(fd);
}

/* Those that newer architectures do not have. */
static int older_calls(void)
{
#ifdef SYS_link
    return syscall(SYS_link, "a", "n1") != 0 || syscall(SYS_symlink, "a", "n2") != 0 ||
           syscall(SYS_mknod, "n3", S_IFIFO | 0644, 0) != 0 || syscall(SYS_chmod, "b", 0600) != 0 ||
           syscall(SYS_mkdir, "n4", 0755) != 0 || syscall(SYS_rename, "n4", "n5") != 0;
#else
    errno = ENOSYS;
    return -1;
#endif
}

static int copied(void)
{
    int from = open("a", O_RDONLY), to = open("n", O_CREAT | O_WRONLY, 0644);
    return copy_file_range(from, NULL, to, NULL, 3, 0) != 3 || close(to);
}

static int mapped(void)
{
    int fd = open("n", O_CREAT | O_RDWR, 0644);
    if (fd < 0 || ftruncate(fd, 4096) != 0)
        return -1;
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || close(fd) != 0)
        return -1;
    usleep(20000);
    at[0] = 'x';
    return msync(at, 4096, MS_SYNC);
}

static int closed_and_written_by_child(void)
{
    int fd = open("n", O_CREAT | O_WRONLY, 0644), status;
    pid_t child = fork();
    if (child == 0) {
        usleep(50000);
        _exit(fill(fd));
    }
    return close(fd) != 0 || waitpid(child, &status, 0) != child || status;
}

static int closed_otherwise(int how)
{
    int fd = open("n", O_CREAT | O_WRONLY, 0644);
    if (fd < 0 || write(fd, "written", 7) != 7)
        return -1;
    if (how == 0)
        closefrom(fd);
    else if (close_range((unsigned)fd, (unsigned)fd, 0) != 0)
        return -1;
    return fill(open("d/n", O_CREAT | O_WRONLY, 0644));
}

static int exec(void)
{
    execlp("sh", "sh", "-c", "cd d/e && echo written > n && mv n o && exec sh -c 'echo more >> o'", (char *)NULL);
    return -1;
}

static int spawn(void)
{
    posix_spawn_file_actions_t actions;
    char *words[] = {"echo", "written", NULL};
    pid_t child;
    int status;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "n", O_CREAT | O_WRONLY, 0644);
    if (posix_spawnp(&child, "echo", &actions, NULL, words, environ) != 0)
        return -1;
    return waitpid(child, &status, 0) != child || status;
}

static int in_vfork(void)
{
    int status;
    pid_t child = vfork();
    if (child == 0) {
        execlp("touch", "touch", "n", (char *)NULL);
        _exit(1);
    }
    return waitpid(child, &status, 0) != child || status;
}

/* Below a directory whose path is longer than PATH_MAX. */
static int deep(void)
{
    char part[201];
    memset(part, 'p', 200);
    part[200] = '\0';
    for (int level = 0; level < 25; level++)
        if (mkdir(part, 0755) != 0 || chdir(part) != 0)
            return -1;
    return fill(open("n", O_CREAT | O_WRONLY, 0644));
}

static int strange_names(void)
{
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = '\0';
    const char *names[] = {"with\nline", "not\xff\xfeutf8", "-dash", " ", longest, "\"'\\"};
    for (size_t number = 0; number < sizeof names / sizeof *names; number++)
        if (fill(open(names[number], O_CREAT | O_WRONLY, 0644)) != 0)
            return -1;
    return 0;
}

#define X CALL
CALLS
#undef X

int main(int count, char **words)
{
    static const struct {
        const char *name;
        int (*call)(void);
    } calls[] = {
#define X(name, expression) {#name, call_##name},
        CALLS
#undef X
    };
    for (size_t number = 0; number < sizeof calls / sizeof *calls; number++) {
        if (count < 2)
            puts(calls[number].name);
        else if (strcmp(words[1], calls[number].name) == 0)
            return calls[number].call() == 0 ? 0 : errno == ENOSYS || errno == EOPNOTSUPP ? 77 : 1;
    }
    return count < 2 ? 0 : 2;
}
