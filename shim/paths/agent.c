/* Lines of JSON over a unix socket: python/waystage/flows/mpi_wire.py.
 *
 * Arrives: this rank and what it is about to call; answers of the agent, which must be root's or the user's own.
 * Leaves: nothing that a program could notice: no signal, no output, no wait beyond a limit.
 * Must not know: MPI.
 */
#define _GNU_SOURCE
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SOCKET "/run/waystage/flows.sock"
#define AGAIN_MS 1000

static int fd = -1, of_rank = -1, of_size;
static int64_t tried_ms = -AGAIN_MS;
/* An order of 4,096 ranks takes 20 kB. */
static char received[32768], answer[32768];
static size_t held;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void leave(void)
{
    if (fd >= 0)
        close(fd);
    fd = -1;
    held = 0;
}

/* The first IPv4 address that is up and not of the loopback; all text in a line is of this process's own making. */
static void find_address(char *text, size_t room)
{
    struct ifaddrs *all;
    text[0] = '\0';
    if (getifaddrs(&all) != 0)
        return;
    for (struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (one->ifa_addr == NULL || one->ifa_addr->sa_family != AF_INET || one->ifa_flags & IFF_LOOPBACK ||
            !(one->ifa_flags & IFF_UP))
            continue;
        struct sockaddr_in in;
        memcpy(&in, one->ifa_addr, sizeof in);
        if (inet_ntop(AF_INET, &in.sin_addr, text, (socklen_t)room) != NULL)
            break;
    }
    freeifaddrs(all);
}

/* A name from the environment, as JSON would take it unquoted: the launcher makes it, and a user may change it. */
static const char *plain(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0' || strlen(text) > 128)
        return NULL;
    for (const char *at = text; *at != '\0'; at++)
        if (*at <= ' ' || *at > '~' || *at == '"' || *at == '\\')
            return NULL;
    return text;
}

static void start(void)
{
    char line[1024], host[128] = "", address[INET_ADDRSTRLEN], job[192] = "";
    const char *app = plain("WAYSTAGE_PATHS_APP"), *of_job = plain("WAYSTAGE_JOB");

    if (gethostname(host, sizeof host - 1) != 0 || app == NULL) {
        leave();
        return;
    }
    find_address(address, sizeof address);
    if (of_job != NULL)
        snprintf(job, sizeof job, ",\"job_id\":\"%s\"", of_job);
    int length = snprintf(line, sizeof line,
                          "{\"type\":\"mpi-start\",\"app\":\"%s\",\"host\":\"%s\",\"address\":\"%s\",\"rank\":%d,"
                          "\"size\":%d%s}",
                          app, host, address, of_rank, of_size, job);
    agent_send(line, length);
}

static bool trusted(void)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == 0 || peer.uid == geteuid());
}

bool agent_reached(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path = getenv("WAYSTAGE_FLOWS");
    int64_t now = now_ms();

    if (fd >= 0)
        return true;
    if (of_rank < 0 || now - tried_ms < AGAIN_MS)
        return false;
    tried_ms = now;
    if (path == NULL || path[0] == '\0')
        path = SOCKET;
    if (strlen(path) >= sizeof at.sun_path)
        return false;
    memcpy(at.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0 || !trusted()) {
        leave();
        return false;
    }
    start();
    return fd >= 0;
}

void agent_report(int rank, int size)
{
    of_rank = rank;
    of_size = size;
    agent_reached();
}

void agent_send(const char *line, int length)
{
    const char newline = '\n';
    /* A line goes whole or not at all: the socket's buffer is empty but for what was sent a moment ago. */
    if (fd < 0 || send(fd, line, (size_t)length, MSG_NOSIGNAL) != length || send(fd, &newline, 1, MSG_NOSIGNAL) != 1)
        leave();
}

/* Whether a complete line that was received names the key; complete lines are dropped. */
static bool named(const char *wanted)
{
    bool found = false;
    char *end;
    while ((end = memchr(received, '\n', held)) != NULL) {
        *end = '\0';
        if (strstr(received, "mpi-placed") != NULL && strstr(received, wanted) != NULL) {
            found = true;
            size_t length = strnlen(received, sizeof answer - 1);
            memcpy(answer, received, length);
            answer[length] = '\0';
        }
        size_t used = (size_t)(end - received) + 1;
        memmove(received, received + used, held - used);
        held -= used;
    }
    return found;
}

bool agent_placed(uint64_t key, int limit_ms)
{
    char wanted[32];
    int64_t until = now_ms() + limit_ms;

    snprintf(wanted, sizeof wanted, "\"%016" PRIx64 "\"", key);
    while (fd >= 0) {
        if (named(wanted))
            return true;
        int64_t left = until - now_ms();
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        if (left < 0 || (poll(&waiting, 1, (int)left) < 0 && errno != EINTR))
            return false;
        if (held == sizeof received)
            held = 0; /* no line of the agent is that long */
        ssize_t got = recv(fd, received + held, sizeof received - held, 0);
        if (got > 0)
            held += (size_t)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR))
            leave();
        else if (left == 0)
            return false;
    }
    return false;
}

bool agent_group(uint64_t key, int limit_ms, char *group, size_t room)
{
    static const char name[] = "\"group\":\"";
    if (!agent_placed(key, limit_ms))
        return false;
    const char *from = strstr(answer, name);
    size_t length = from != NULL ? strcspn(from += sizeof name - 1, "\"") : 0;
    if (length == 0 || length >= room)
        return false;
    memcpy(group, from, length);
    group[length] = '\0';
    return true;
}

bool agent_order(uint64_t key, int limit_ms, int *ranks, int count, bool *found)
{
    static const char name[] = "\"order\":[";
    *found = false;
    if (!agent_placed(key, limit_ms))
        return false;
    const char *at = strstr(answer, name);
    if (at == NULL)
        return true;
    at += sizeof name - 1;
    for (int i = 0; i < count; i++) {
        char *end;
        long rank = strtol(at, &end, 10);
        if (end == at || rank < 0 || rank >= count || *end != (i + 1 < count ? ',' : ']'))
            return true;
        ranks[i] = (int)rank;
        at = end + 1;
    }
    *found = true;
    return true;
}
