/* A bare TCP relay: relay PORT HOST TO_PORT
 *
 * Each connection to PORT is joined with one to TO_PORT of HOST, an address; a thread for each direction reads and
 * writes what has come, up to 64 KiB. No encryption, no framing, no account of connections. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct way {
    int from, to;
};

static void *carry(void *given) {
    struct way way = *(struct way *)given;
    char buffer[64 << 10];
    ssize_t count;
    free(given);
    while ((count = read(way.from, buffer, sizeof buffer)) > 0)
        for (ssize_t at = 0, wrote; at < count; at += wrote)
            if ((wrote = write(way.to, buffer + at, count - at)) < 0) goto over;
over:
    shutdown(way.to, SHUT_WR);
    shutdown(way.from, SHUT_RD);
    return NULL;
}

static int begin(int from, int to) {
    pthread_t thread;
    struct way *way = malloc(sizeof *way);
    *way = (struct way){from, to};
    return pthread_create(&thread, NULL, carry, way) == 0 && pthread_detach(thread) == 0;
}

int main(int words, char **word) {
    int one = 1;
    if (words != 4) return 2;
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(word[1]))};
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(word[3]))};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (inet_pton(AF_INET, word[2], &there.sin_addr) != 1) return 2;
    if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, 16) != 0) return 1;
    for (;;) {
        int near = accept(listener, NULL, NULL), far = socket(AF_INET, SOCK_STREAM, 0);
        if (near < 0 || connect(far, (struct sockaddr *)&there, sizeof there) != 0) return 1;
        setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!begin(near, far) || !begin(far, near)) return 1;
    }
}
