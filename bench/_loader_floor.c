/* The system calls of reading small files and nothing else: loader_floor(ROOT, PATHS, FILES, BYTES, THREADS) gives the
 * number of bytes read.
 *
 * For each file of BYTES bytes openat2(2) below ROOT as the loader opens it, statx(2) of what the open brought,
 * pread(2) of one byte more than the file has, and close(2). Thread t of n reads files t, t + n, t + 2n, ... Nothing is
 * compared, kept or delivered. PATHS are FILES paths, each ended by a zero byte. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_THREADS 1024

struct part {
    int root;
    const char **paths;
    long files, first, step;
    size_t bytes;
    long read; /* -1 where a file could not be read. */
};

static void *work(void *given) {
    struct part *part = given;
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    struct statx found;
    char *buffer = malloc(part->bytes + 1);
    for (long file = part->first; file < part->files; file += part->step) {
        int fd = (int)syscall(SYS_openat2, part->root, part->paths[file], &how, sizeof how);
        ssize_t bytes = -1;
        if (fd >= 0 && statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &found) == 0)
            bytes = pread(fd, buffer, part->bytes + 1, 0);
        if (fd >= 0) close(fd);
        if (bytes < 0) {
            part->read = -1;
            break;
        }
        part->read += bytes;
    }
    free(buffer);
    return NULL;
}

/* -1 where a file could not be read, or no thread started. */
long loader_floor(const char *root, const char *paths, long files, size_t bytes, int threads) {
    if (threads < 1 || threads > MOST_THREADS) return -1;
    int at = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at < 0) return -1;
    const char **each = malloc((size_t)files * sizeof *each);
    for (long file = 0; file < files; file++, paths += strlen(paths) + 1) each[file] = paths;
    pthread_t thread[MOST_THREADS];
    struct part part[MOST_THREADS];
    int started = 0;
    long read = 0;
    for (; started < threads; started++) {
        part[started] = (struct part){at, each, files, started, threads, bytes, 0};
        if (pthread_create(&thread[started], NULL, work, &part[started]) != 0) break;
    }
    for (int number = 0; number < started; number++) {
        pthread_join(thread[number], NULL);
        read = read < 0 || part[number].read < 0 ? -1 : read + part[number].read;
    }
    free(each);
    close(at);
    return started < threads ? -1 : read;
}
