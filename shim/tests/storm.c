/* Makes files in its working directory in every way at once: COUNT of them, by threads, forked children, children
 * that end by _exit or are killed, and programs that they become. Some are renamed, linked, truncated and removed
 * again. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITERS 8

struct share {
    const char *who;
    int number, count;
};

static int make(const struct share *share)
{
    char name[64], other[64];
    snprintf(name, sizeof name, "%s-%d", share->who, share->number);
    if (mkdir(name, 0755) != 0)
        return -1;
    for (int file = 0; file < share->count; file++) {
        snprintf(name, sizeof name, "%s-%d/f%d", share->who, share->number, file);
        int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        if (fd < 0 || write(fd, name, (size_t)(file % 50)) < 0 || close(fd) != 0)
            return -1;
        snprintf(other, sizeof other, "%s-%d/g%d", share->who, share->number, file);
        int failed = file % 7 == 0   ? rename(name, other)
                     : file % 11 == 0 ? link(name, other)
                     : file % 13 == 0 ? truncate(name, file)
                     : file % 17 == 0 ? unlink(name)
                                      : 0;
        if (failed)
            return -1;
    }
    return 0;
}

static void *thread(void *share)
{
    return make(share) == 0 ? NULL : share;
}

static int threads(const char *who, int count)
{
    pthread_t ids[WRITERS];
    struct share shares[WRITERS];
    int failed = 0;
    for (int number = 0; number < WRITERS; number++) {
        shares[number] = (struct share){who, number, count / WRITERS};
        if (pthread_create(&ids[number], NULL, thread, &shares[number]) != 0)
            return -1;
    }
    for (int number = 0; number < WRITERS; number++) {
        void *result;
        pthread_join(ids[number], &result);
        failed |= result != NULL;
    }
    return failed;
}

/* `how`: 0 exit, 1 _exit, 2 killed by its own hand, 3 by another's while it works, 4 another program. */
static int children(const char *who, int count, int how, const char *self)
{
    pid_t ids[WRITERS];
    for (int number = 0; number < WRITERS; number++) {
        struct share share = {who, number, count / WRITERS};
        ids[number] = fork();
        if (ids[number] != 0)
            continue;
        if (how == 4) {
            char words[2][16];
            snprintf(words[0], sizeof words[0], "%d", number);
            snprintf(words[1], sizeof words[1], "%d", share.count);
            execl(self, self, who, words[0], words[1], (char *)NULL);
            _exit(1);
        }
        int failed = make(&share);
        if (how == 0)
            exit(failed != 0);
        if (how == 1)
            _exit(failed != 0);
        if (how == 2)
            raise(SIGKILL);
        pause();
    }
    if (how == 3)
        usleep(20000);
    int bad = 0;
    for (int number = 0; number < WRITERS; number++) {
        int status;
        if (how == 3)
            kill(ids[number], SIGKILL);
        waitpid(ids[number], &status, 0);
        bad |= how == 2 || how == 3 ? !WIFSIGNALED(status) : status != 0;
    }
    return bad;
}

int main(int count, char **words)
{
    if (count == 4) {
        struct share share = {words[1], atoi(words[2]), atoi(words[3])};
        return make(&share) != 0;
    }
    if (count != 2)
        return 2;
    int each = atoi(words[1]) / 6;
    return threads("thread", each) != 0 || children("exit", each, 0, words[0]) != 0
           || children("now", each, 1, words[0]) != 0 || children("killed", each, 2, words[0]) != 0
           || children("shot", each, 3, words[0]) != 0 || children("exec", each, 4, words[0]) != 0;
}
