/* The system calls of a copy and nothing else: copy_floor SOURCE DESTINATION THREADS [verify]
 *
 * For each small file those that `waystage copy` makes; a large one extent by extent of 32 MiB, by
 * copy_file_range, or through memory where it is read back. No journal, no checks, no names but the last. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define EXTENT (32L << 20)
#define PIECE (256L << 10)
#define KERNEL_PIECE (8L << 20)
#define MOST (1L << 22)

struct large {
    int from, to, folder;
    long size, left;
    char name[256];
    struct statx was;
};

static char *directories[MOST];
static long found, next_directory, larges, next_large, extent;
static struct large *large[1 << 16];
static int source, destination, verify;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void must(int right, const char *what) {
    if (!right) {
        perror(what);
        exit(1);
    }
}

static void list(const char *path) {
    must(found < MOST, "too many directories");
    directories[found++] = strdup(path);
    if (*path) must(!mkdirat(destination, path, 0700), "mkdir");
    int fd = openat(source, *path ? path : ".", O_RDONLY | O_DIRECTORY);
    DIR *folder = fdopendir(fd);
    must(folder != NULL, path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_type != DT_DIR || !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char below[4096];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", entry->d_name);
        list(below);
    }
    closedir(folder);
}

static void move(int from, int to, long start, long end, char *buffer) {
    loff_t in = start, out = start;
    while (!verify && end - start > PIECE && in < end) {
        ssize_t count = copy_file_range(from, &in, to, &out, end - in < KERNEL_PIECE ? end - in : KERNEL_PIECE, 0);
        if (count <= 0) break;
    }
    for (long at = in; at < end;) {
        ssize_t count = pread(from, buffer, end - at < PIECE ? end - at : PIECE, at);
        must(count > 0 && pwrite(to, buffer, count, at) == count, "copy");
        at += count;
    }
    for (long at = start; verify && at < end;) {
        ssize_t count = pread(to, buffer, end - at < PIECE ? end - at : PIECE, at);
        must(count > 0, "read back");
        at += count;
    }
}

static void finish(int from, int to, int folder, const char *name, const struct statx *was) {
    struct statx now;
    struct fsxattr project;
    char names[1024];
    statx(from, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &now);
    flistxattr(from, names, sizeof names);
    ioctl(from, FS_IOC_FSGETXATTR, &project);
    struct timespec times[] = {{was->stx_atime.tv_sec, was->stx_atime.tv_nsec},
                               {was->stx_mtime.tv_sec, was->stx_mtime.tv_nsec}};
    must(!futimens(to, times), "times");
    must(!linkat(to, "", folder, name, AT_EMPTY_PATH), "link");
    close(to);
    close(from);
}

static void file(int in, int out, const char *name, char *buffer) {
    struct statx was, there, opened;
    must(!statx(in, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &was), "stat");
    if (!S_ISREG(was.stx_mode)) return;
    statx(out, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &there);
    int from = openat(in, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    statx(from, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &opened);
    int to = openat(out, ".", (verify ? O_RDWR : O_WRONLY) | O_TMPFILE, was.stx_mode & 0777);
    must(from >= 0 && to >= 0, name);
    if ((long)was.stx_size <= EXTENT) {
        move(from, to, 0, was.stx_size, buffer);
        finish(from, to, out, name, &was);
        return;
    }
    must(!ftruncate(to, was.stx_size), "size");
    struct large *one = malloc(sizeof *one);
    *one = (struct large){.from = from, .to = to, .folder = dup(out), .size = was.stx_size, .was = was};
    one->left = (one->size + EXTENT - 1) / EXTENT;
    snprintf(one->name, sizeof one->name, "%s", name);
    pthread_mutex_lock(&lock);
    large[larges++] = one;
    pthread_mutex_unlock(&lock);
}

static void *small_files(void *unused) {
    char *buffer = malloc(PIECE);
    for (long number; (number = __atomic_fetch_add(&next_directory, 1, __ATOMIC_RELAXED)) < found;) {
        const char *path = *directories[number] ? directories[number] : ".";
        int in = openat(source, path, O_RDONLY | O_DIRECTORY), out = openat(destination, path, O_RDONLY | O_DIRECTORY);
        DIR *folder = fdopendir(in);
        must(folder != NULL && out >= 0, path);
        for (struct dirent *entry; (entry = readdir(folder));)
            if (entry->d_type != DT_DIR) file(in, out, entry->d_name, buffer);
        closedir(folder);
        close(out);
    }
    free(buffer);
    return unused;
}

static void *extents(void *unused) {
    char *buffer = malloc(PIECE);
    for (;;) {
        pthread_mutex_lock(&lock);
        while (next_large < larges && extent * EXTENT >= large[next_large]->size) next_large++, extent = 0;
        struct large *one = next_large < larges ? large[next_large] : NULL;
        long start = extent++ * EXTENT;
        pthread_mutex_unlock(&lock);
        if (!one) break;
        move(one->from, one->to, start, start + EXTENT < one->size ? start + EXTENT : one->size, buffer);
        if (__atomic_sub_fetch(&one->left, 1, __ATOMIC_SEQ_CST) == 0) {
            finish(one->from, one->to, one->folder, one->name, &one->was);
            close(one->folder);
        }
    }
    free(buffer);
    return unused;
}

static void all(int threads, void *(*work)(void *)) {
    pthread_t thread[1024];
    for (int number = 0; number < threads; number++) must(!pthread_create(&thread[number], NULL, work, NULL), "thread");
    for (int number = 0; number < threads; number++) pthread_join(thread[number], NULL);
}

int main(int argc, char **argv) {
    must(argc >= 4, "copy_floor SOURCE DESTINATION THREADS [verify]");
    int threads = atoi(argv[3]) < 1024 ? atoi(argv[3]) : 1024;
    verify = argc > 4;
    must(!mkdir(argv[2], 0700), argv[2]);
    source = open(argv[1], O_RDONLY | O_DIRECTORY);
    destination = open(argv[2], O_RDONLY | O_DIRECTORY);
    must(source >= 0 && destination >= 0, argv[1]);
    list("");
    all(threads, small_files);
    all(threads, extents);
    return 0;
}
