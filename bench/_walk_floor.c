/* The system calls of a walk and nothing else: walk_floor(ROOT, THREADS, ATTRIBUTE) gives the number of entries.
 *
 * For each directory openat(2) by its path below ROOT, statx(2), getdents64(2) with 64 KiB until it gives nothing, and
 * close(2); for each entry statx(2), for each symbolic link readlinkat(2), and, where an attribute's name is given,
 * for each file getxattrat(2) with 256 bytes. Directories wait on one stack for all threads. Nothing is sorted, kept,
 * counted by kind or checked, and no order is that of the disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMES_BYTES (64 << 10)
#define VALUE_BYTES 256
#define MOST_THREADS 1024
#define GETXATTRAT 464 /* Linux 6.13, asm-generic/unistd.h */

struct entry {
    uint64_t inode, next;
    unsigned short bytes;
    unsigned char type;
    char name[];
};

struct arguments {
    uint64_t value;
    uint32_t size, flags;
};

struct walk {
    int root;
    const char *attribute;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char **waiting;
    size_t count, room;
    int busy, failed;
    long entries;
};

static void push(struct walk *walk, const char *folder, const char *name) {
    size_t before = strlen(folder), bytes = strlen(name) + 1;
    char *path = malloc(before + 1 + bytes);
    if (before) memcpy(path, folder, before), path[before++] = '/';
    memcpy(path + before, name, bytes);
    pthread_mutex_lock(&walk->lock);
    if (walk->count == walk->room) walk->waiting = realloc(walk->waiting, (walk->room *= 2) * sizeof(char *));
    walk->waiting[walk->count++] = path;
    pthread_cond_signal(&walk->changed);
    pthread_mutex_unlock(&walk->lock);
}

/* The next directory; NULL where none waits and no thread may find one. */
static char *take(struct walk *walk) {
    pthread_mutex_lock(&walk->lock);
    walk->busy--;
    while (walk->count == 0 && walk->busy > 0) pthread_cond_wait(&walk->changed, &walk->lock);
    char *path = walk->count ? walk->waiting[--walk->count] : NULL;
    if (path) walk->busy++;
    else pthread_cond_broadcast(&walk->changed);
    pthread_mutex_unlock(&walk->lock);
    return path;
}

/* Whether it could be read; the entries it has are added to `entries`. */
static int directory(struct walk *walk, const char *path, char *names, long *entries) {
    struct statx found;
    char value[VALUE_BYTES], target[4096];
    int fd = openat(walk->root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) != 0) return 0;
    long bytes;
    while ((bytes = syscall(SYS_getdents64, fd, names, NAMES_BYTES)) > 0) {
        for (long at = 0; at < bytes;) {
            struct entry *entry = (struct entry *)(names + at);
            const char *name = entry->name;
            at += entry->bytes;
            if (name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]))) continue;
            if (statx(fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &found) != 0) continue;
            ++*entries;
            if (S_ISDIR(found.stx_mode)) {
                push(walk, path, name);
            } else if (S_ISLNK(found.stx_mode)) {
                (void)!readlinkat(fd, name, target, sizeof target);
            } else if (walk->attribute) {
                struct arguments arguments = {.value = (uint64_t)value, .size = sizeof value};
                syscall(GETXATTRAT, fd, name, AT_SYMLINK_NOFOLLOW, walk->attribute, &arguments, sizeof arguments);
            }
        }
    }
    close(fd);
    return bytes == 0;
}

static void *work(void *given) {
    struct walk *walk = given;
    char *names = malloc(NAMES_BYTES), *path;
    long entries = 0;
    int failed = 0;
    while ((path = take(walk))) {
        failed |= !directory(walk, path, names, &entries);
        free(path);
    }
    free(names);
    pthread_mutex_lock(&walk->lock);
    walk->entries += entries;
    walk->failed |= failed;
    pthread_mutex_unlock(&walk->lock);
    return NULL;
}

/* -1 where a directory could not be read, or no thread started. */
long walk_floor(const char *root, int threads, const char *attribute) {
    pthread_t thread[MOST_THREADS];
    struct walk walk = {.root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .attribute = attribute, .room = 1024};
    if (walk.root < 0 || threads < 1 || threads > MOST_THREADS) return -1;
    pthread_mutex_init(&walk.lock, NULL);
    pthread_cond_init(&walk.changed, NULL);
    walk.waiting = malloc(walk.room * sizeof(char *));
    walk.busy = threads;
    push(&walk, "", "");
    int started = 0;
    while (started < threads && pthread_create(&thread[started], NULL, work, &walk) == 0) started++;
    if (started < threads) {
        pthread_mutex_lock(&walk.lock);
        walk.busy -= threads - started;
        walk.failed = 1;
        pthread_cond_broadcast(&walk.changed);
        pthread_mutex_unlock(&walk.lock);
    }
    for (int number = 0; number < started; number++) pthread_join(thread[number], NULL);
    while (walk.count > 0) free(walk.waiting[--walk.count]);
    free(walk.waiting);
    close(walk.root);
    return walk.failed ? -1 : walk.entries;
}
