/* The storage alone: floor BYTES REQUEST_BYTES IN_FLIGHT PATH. Writes the pattern's BYTES to an existing file with
 * requests that end at multiples of REQUEST_BYTES, IN_FLIGHT of them at a time, from memory that is filled beforehand.
 * No MPI, no exchange, no copy but the file system's. Prints one line of JSON: the time of writing and close, in
 * seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096 };

static int64_t bytes, request, next;
static int file;
static char *data;
static pthread_barrier_t begins;

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(1);
    }
}

static void *writes(void *unused)
{
    pthread_barrier_wait(&begins); /* all have started */
    pthread_barrier_wait(&begins); /* the time runs */
    for (int64_t at; (at = __atomic_fetch_add(&next, request, __ATOMIC_RELAXED)) < bytes;) {
        int64_t end = at + request < bytes ? at + request : bytes;
        while (at < end) {
            ssize_t done = pwrite(file, data + at, (size_t)(end - at), at);
            must(done > 0, "pwrite");
            at += done;
        }
    }
    return unused;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    pthread_t threads[MOST];
    must(argc == 5, "usage: floor BYTES REQUEST_BYTES IN_FLIGHT PATH");
    bytes = atoll(argv[1]), request = atoll(argv[2]);
    long count = atol(argv[3]);
    must(bytes > 0 && bytes % 4 == 0 && request > 0 && count > 0 && count <= MOST, "arguments");
    /* Whole pages: a request of the kernel to a file system has a limited number of them. */
    must(posix_memalign((void **)&data, 4096, (size_t)bytes) == 0, "memory");
    /* word_at of pattern.h, which needs MPI. */
    for (int64_t word = 0; word < bytes / 4; word++)
        ((uint32_t *)data)[word] = (uint32_t)word * 2654435761u + 12345u;
    must((file = open(argv[4], O_RDWR)) >= 0, argv[4]);
    must(pthread_barrier_init(&begins, NULL, (unsigned)count + 1) == 0, "barrier");
    for (long thread = 0; thread < count; thread++)
        must(pthread_create(&threads[thread], NULL, writes, NULL) == 0, "thread");
    pthread_barrier_wait(&begins);
    double began = seconds();
    pthread_barrier_wait(&begins);
    for (long thread = 0; thread < count; thread++)
        pthread_join(threads[thread], NULL);
    must(close(file) == 0, "close");
    printf("{\"bytes\": %lld, \"wrong_read\": 0, \"write_s\": %.9f}\n", (long long)bytes, seconds() - began);
    return 0;
}
