#include "start.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Above the descriptors that programs and launchers number themselves. */
#define LOCK_DESCRIPTOR 200
#define TRIES 1000

/* Launchers' marks of a rank. Slurm's is in batch scripts too. */
static const char *rank_of_launcher(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            return getenv(names[i]);
    return NULL;
}

static uint32_t hash_of(const char *text) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

/* A node is a host name and a network namespace, or what WAYSTAGE_IO_NODE says. */
static int find_folder(char folder[WS_FOLDER_BYTES]) {
    const char *base = getenv("WAYSTAGE_IO_BASE"), *named = getenv("WAYSTAGE_IO_NODE");
    char node[512] = "";
    if (base == NULL)
        return 0;
    if (named != NULL)
        snprintf(node, sizeof node, "%s", named);
    else if (gethostname(node, sizeof node - 64) == 0) {
        size_t used = strlen(node);
        ssize_t got = readlink("/proc/self/ns/net", node + used, 63);
        node[used + (got > 0 ? (size_t)got : 0)] = '\0';
    }
    int length = snprintf(folder, WS_FOLDER_BYTES, "%s-%08x", base, hash_of(node));
    return length > 0 && length < WS_FOLDER_BYTES;
}

/* Made by another user before us, it would be that user's socket that ranks talk to. */
static int is_ours(const char *folder) {
    struct stat is;
    return lstat(folder, &is) == 0 && S_ISDIR(is.st_mode) && is.st_uid == geteuid() && (is.st_mode & 077) == 0;
}

/* Locks the folder's file for this process and what it executes. 1: locked; 0: the folder is going away. */
static int hold(const char *folder) {
    char path[WS_FOLDER_BYTES + 8];
    struct stat held, named;
    snprintf(path, sizeof path, "%s/lock", folder);
    int low = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (low < 0)
        return 0;
    int lock = fcntl(low, F_DUPFD, LOCK_DESCRIPTOR);
    close(low);
    if (lock < 0)
        return 0;
    while (flock(lock, LOCK_SH) != 0 && errno == EINTR) {
    }
    if (fstat(lock, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino)
        return 1;
    close(lock);
    return 0;
}

/* A rank that does not reach the aggregator calls it: where the supervisor was killed, and the aggregator with it,
 * another one takes its place. It is no child of the rank, which may wait for its own. */
__attribute__((visibility("default"))) void ws_node_revive(void) {
    char folder[WS_FOLDER_BYTES], mark[WS_FOLDER_BYTES + 16];
    if (getenv("WAYSTAGE_IO_AGGREGATOR") == NULL || !find_folder(folder) || !is_ours(folder))
        return;
    snprintf(mark, sizeof mark, "%s/supervisor", folder);
    int held = open(mark, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (held < 0)
        return;
    int alive = flock(held, LOCK_EX | LOCK_NB) != 0;
    close(held);
    if (alive)
        return;
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0)
            ws_supervise(folder);
        _exit(0);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
}

static void join_node(void) {
    char folder[WS_FOLDER_BYTES], socket[WS_FOLDER_BYTES + 8];
    if (!find_folder(folder))
        return;
    snprintf(socket, sizeof socket, "%s/socket", folder);
    /* Programs that a rank's script starts inherit the lock. Of another node the variable says nothing. */
    const char *inherited = getenv("WAYSTAGE_IO_SOCKET");
    if (inherited != NULL && strcmp(inherited, socket) == 0)
        return;
    for (int tries = 0; tries < TRIES; tries++) {
        int made = mkdir(folder, 0700) == 0;
        if (!made && errno != EEXIST) {
            ws_say("%s cannot be made: %s", folder, strerror(errno));
            return;
        }
        if (!made && !is_ours(folder)) {
            ws_say("%s belongs to another user: remove it", folder);
            return;
        }
        if (!hold(folder)) {
            struct timespec pause = {0, 5000000};
            nanosleep(&pause, NULL);
            continue;
        }
        setenv("WAYSTAGE_IO_SOCKET", socket, 1);
        if (made && fork() == 0)
            ws_supervise(folder);
        return;
    }
    ws_say("%s: no place for the sockets of this node", folder);
}

/* `--mca io romio321` or OMPI_MCA_io leave Waystage's component out, and nothing of Waystage would notice. */
static void check_selection(const char *rank) {
    const char *io = getenv("OMPI_MCA_io"), *way = getenv("WAYSTAGE_IO_WAY");
    if (io == NULL || way == NULL || strcmp(way, "component") != 0 || strcmp(rank, "0") != 0)
        return;
    int excludes = *io == '^';
    int named = strstr(io, "waystage") != NULL, ompio = strstr(io, "ompio") != NULL;
    setenv("WAYSTAGE_IO_WAY", "said", 1);
    if (excludes ? named || ompio : !named || !ompio)
        ws_say("OMPI_MCA_io=%s leaves Waystage out: collective I/O is Open MPI's own; unset it, or set it to"
               " waystage,ompio",
               io);
}

__attribute__((constructor)) static void start(void) {
    const char *rank = rank_of_launcher();
    if (rank == NULL || getenv("WAYSTAGE_IO_AGGREGATOR") == NULL)
        return;
    check_selection(rank);
    join_node();
}
