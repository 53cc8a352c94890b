#include "start.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORDS 64
/* An aggregator that exits this often by itself, each time within QUICK_S seconds, is not started again. */
#define MAX_FAILURES 5
#define QUICK_S 5
/* From SIGTERM to SIGKILL. */
#define GRACE_MS 5000

static void nothing(int signal) { (void)signal; }

/* Standard streams to the log: an open pipe of the launcher would keep it waiting. */
static void detach(const char *folder) {
    char log[WS_FOLDER_BYTES + 8];
    setsid();
    prctl(PR_SET_NAME, "waystage-io");
    snprintf(log, sizeof log, "%s/log", folder);
    syscall(SYS_close_range, 0u, ~0u, 0u);
    int null = open("/dev/null", O_RDWR);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    if (chdir("/") != 0)
        _exit(1);
    for (int fd = 3; fd < 8; fd++)
        close(fd);
}

/* `--option VALUE` where `variable` is set. */
static int add_option(char **words, int count, const char *option, const char *variable) {
    char *value = getenv(variable);
    if (value == NULL || count > MAX_WORDS - 2)
        return count;
    words[count] = (char *)(uintptr_t)option;
    words[count + 1] = value;
    return count + 2;
}

static pid_t start_aggregator(void) {
    pid_t parent = getpid(), child = fork();
    if (child != 0)
        return child;
    char *words[MAX_WORDS + 1], *text = strdup(getenv("WAYSTAGE_IO_AGGREGATOR"));
    int count = 0;
    for (char *word = text; word != NULL && count < MAX_WORDS;) {
        char *end = strchr(word, '\n');
        if (end != NULL)
            *end = '\0';
        words[count++] = word;
        word = end != NULL ? end + 1 : NULL;
    }
    count = add_option(words, count, "--name", "WAYSTAGE_IO_NODE");
    count = add_option(words, count, "--listen", "WAYSTAGE_IO_LISTEN");
    words[count] = NULL;
    unsetenv("LD_PRELOAD");
    signal(SIGCHLD, SIG_DFL);
    signal(SIGALRM, SIG_DFL);
    /* As if it were killed: its successor then takes the same port. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        execv(words[0], words);
    fprintf(stderr, "%s cannot be started: %s\n", words[0], strerror(errno));
    _exit(127);
}

static void end_aggregator(pid_t process) {
    if (process <= 0)
        return;
    kill(process, SIGTERM);
    for (int waited = 0; waited < GRACE_MS; waited += 10) {
        struct timespec pause = {0, 10000000};
        if (waitpid(process, NULL, WNOHANG) == process)
            return;
        nanosleep(&pause, NULL);
    }
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
}

/* Whether to start it again; 0 after too many failures. */
static int again(int status, time_t started, int *failures) {
    if (WIFSIGNALED(status) || time(NULL) - started >= QUICK_S)
        *failures = 0;
    else
        ++*failures;
    return *failures < MAX_FAILURES;
}

/* What the aggregator put there: the folder is this launch's alone. */
static void remove_folder(const char *folder) {
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;)
        unlinkat(dirfd(entries), entry->d_name, 0);
    if (entries != NULL)
        closedir(entries);
    rmdir(folder);
}

void ws_supervise(const char *folder) {
    char path[WS_FOLDER_BYTES + 16], failed[WS_FOLDER_BYTES + 16];
    detach(folder);
    snprintf(path, sizeof path, "%s/supervisor", folder);
    int only = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (only < 0 || flock(only, LOCK_EX | LOCK_NB) != 0)
        _exit(0);
    /* Ranks find it and wait no longer: crates/collective_client/src/node.rs. */
    snprintf(failed, sizeof failed, "%s/failed", folder);
    unlink(failed);
    /* A wait for a lock can be interrupted, not polled. The timer covers a child's end just before the wait. */
    struct sigaction action = {.sa_handler = nothing};
    sigset_t all;
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigaction(SIGCHLD, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGTERM, SIG_IGN); /* the ranks' end decides */
    snprintf(path, sizeof path, "%s/lock", folder);
    int lock = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), failures = 0;
    time_t started = time(NULL);
    pid_t process = start_aggregator();
    struct itimerval second = {{1, 0}, {1, 0}};
    setitimer(ITIMER_REAL, &second, NULL);
    while (lock >= 0 && flock(lock, LOCK_EX) != 0 && errno == EINTR) {
        int status;
        if (process > 0 && waitpid(process, &status, WNOHANG) == process) {
            process = 0;
            if (again(status, started, &failures)) {
                started = time(NULL);
                process = start_aggregator();
            } else {
                close(open(failed, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
            }
        }
    }
    end_aggregator(process);
    remove_folder(folder);
    _exit(0);
}
