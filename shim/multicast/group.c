/* Sets up a communicator's group.
 *
 * Arrives: an address for the group from the controller, through the node's flow agent; what other ranks tell.
 * Leaves: sockets. Nothing that fails here is an error: the communicator goes on without a group.
 * Must not know: MPI, how data is sent.
 *
 * The socket of the group shares its port by SO_REUSEPORT, which the kernel grants to one user alone: no other user of
 * the host can read a broadcast. IP_MULTICAST_ALL is off: only the group's datagrams arrive.
 */
#define _GNU_SOURCE
#include "group.h"

#include "agent.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (4 << 20)
#define UDP_BYTES 28
#define OVERHEAD 2 /* the kernel counts about twice a datagram's bytes against a socket's buffer */
#define FIRST_WINDOW 16

int ws_group_limit_ms = 200;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    /* SplitMix64's finaliser (Steele et al. 2014). */
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
    return hash ^ hash >> 31;
}

static bool asked(const uint32_t *worlds, uint32_t ranks, uint32_t *address)
{
    uint64_t key = 0x6d756c7469636173u;
    size_t room = 256 + 12 * (size_t)ranks;
    char *line = malloc(room), group[INET_ADDRSTRLEN] = "";
    struct in_addr parsed;

    if (line == NULL || !agent_reached()) {
        free(line);
        return false;
    }
    for (uint32_t i = 0; i < ranks; i++)
        key = mix(key, worlds[i]);
    int length = snprintf(line, room,
                          "{\"type\":\"mpi-collective\",\"key\":\"%016" PRIx64 "\",\"primitive\":\"bcast\","
                          "\"algorithm\":\"multicast\",\"ranks\":[",
                          key);
    for (uint32_t i = 0; i < ranks; i++)
        length += snprintf(line + length, room - (size_t)length, "%s%" PRIu32, i ? "," : "", worlds[i]);
    length += snprintf(line + length, room - (size_t)length, "]}");
    agent_send(line, length);
    free(line);
    if (!agent_group(key, ws_group_limit_ms, group, sizeof group) || inet_pton(AF_INET, group, &parsed) != 1)
        return false;
    *address = ntohl(parsed.s_addr);
    return IN_MULTICAST(*address);
}

/* The first IPv4 address that is up and not of the loopback, as the agent has it; and its interface's MTU. */
static bool host_address(struct in_addr *address, int *mtu)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (struct ifaddrs *one = all; one != NULL && !found; one = one->ifa_next) {
        if (one->ifa_addr == NULL || one->ifa_addr->sa_family != AF_INET || one->ifa_flags & IFF_LOOPBACK ||
            !(one->ifa_flags & IFF_UP) || !(one->ifa_flags & IFF_MULTICAST))
            continue;
        struct sockaddr_in in;
        struct ifreq request = {0};
        memcpy(&in, one->ifa_addr, sizeof in);
        snprintf(request.ifr_name, sizeof request.ifr_name, "%s", one->ifa_name);
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        found = fd >= 0 && ioctl(fd, SIOCGIFMTU, &request) == 0;
        if (fd >= 0)
            close(fd);
        *address = in.sin_addr;
        *mtu = request.ifr_mtu;
    }
    freeifaddrs(all);
    return found;
}

static int opened(struct in_addr address, uint16_t port, bool shared)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = address, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, bytes = BUFFER_BYTES;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if ((shared && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ||
        bind(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in at = {0};
    socklen_t size = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &size) == 0 ? ntohs(at.sin_port) : 0;
}

static bool joined(struct ws_group *group, const struct ws_offer *offer, struct in_addr own)
{
    struct in_addr to = {htonl(offer->address)};
    struct ip_mreq membership = {.imr_multiaddr = to, .imr_interface = own};
    int off = 0;

    if (!IN_MULTICAST(offer->address) || offer->port > 65535)
        return false;
    if (group->multicast < 0)
        group->multicast = opened(to, (uint16_t)offer->port, true);
    group->unicast = opened(own, 0, false);
    if (group->multicast < 0 || group->unicast < 0)
        return false;
    group->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = to, .sin_port = htons((uint16_t)offer->port)};
    memcpy(group->token, offer->token, WS_TOKEN_BYTES);
    return setsockopt(group->multicast, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership) == 0 &&
           setsockopt(group->multicast, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off) == 0 &&
           setsockopt(group->unicast, IPPROTO_IP, IP_MULTICAST_IF, &own, sizeof own) == 0;
}

void ws_group_ask(struct ws_group *group, struct ws_offer *offer, const uint32_t *worlds, uint32_t ranks)
{
    memset(offer, 0, sizeof *offer);
    if (!asked(worlds, ranks, &offer->address) ||
        getrandom(offer->token, WS_TOKEN_BYTES, 0) != WS_TOKEN_BYTES)
        return;
    group->multicast = opened((struct in_addr){htonl(offer->address)}, 0, true);
    offer->port = group->multicast >= 0 ? port_of(group->multicast) : 0;
    offer->valid = offer->port != 0;
}

void ws_group_join(struct ws_group *group, const struct ws_offer *offer, uint32_t ranks, struct ws_card *card)
{
    struct in_addr own = {0};
    int mtu = 0, buffer = 0;
    socklen_t size = sizeof buffer;

    memset(card, 0, sizeof *card);
    group->peers = calloc(ranks, sizeof *group->peers);
    group->entered = calloc(ranks, sizeof *group->entered);
    if (group->peers == NULL || group->entered == NULL || !host_address(&own, &mtu) || !joined(group, offer, own) ||
        getsockopt(group->multicast, SOL_SOCKET, SO_RCVBUF, &buffer, &size) != 0)
        return;
    long chunk = mtu - UDP_BYTES - (long)sizeof(struct ws_header);
    if (chunk < WS_CHUNK_LEAST)
        return;
    card->chunk = (uint32_t)(chunk < WS_CHUNK_MOST ? chunk : WS_CHUNK_MOST);
    card->in_flight = (uint32_t)buffer / OVERHEAD;
    card->address = ntohl(own.s_addr);
    card->port = port_of(group->unicast);
    card->valid = card->port != 0;
}

bool ws_group_agree(struct ws_group *group, const struct ws_card *cards, uint32_t ranks, uint32_t mine)
{
    uint32_t chunk = WS_CHUNK_MOST, in_flight = UINT32_MAX;
    bool apart = false, shared = false;

    for (uint32_t i = 0; i < ranks; i++) {
        if (!cards[i].valid)
            return false;
        chunk = cards[i].chunk < chunk ? cards[i].chunk : chunk;
        in_flight = cards[i].in_flight < in_flight ? cards[i].in_flight : in_flight;
        apart |= cards[i].address != cards[0].address;
        shared |= i != mine && cards[i].address == cards[mine].address;
        group->peers[i] = (struct sockaddr_in){
            .sin_family = AF_INET,
            .sin_addr = {htonl(cards[i].address)},
            .sin_port = htons((uint16_t)cards[i].port),
        };
    }
    unsigned char loop = shared;
    setsockopt(group->unicast, IPPROTO_IP, IP_MULTICAST_LOOP, &loop, sizeof loop);
    group->loops = shared;
    group->chunk = chunk;
    group->most_in_flight = in_flight / (chunk + (uint32_t)sizeof(struct ws_header));
    if (group->most_in_flight < FIRST_WINDOW)
        group->most_in_flight = FIRST_WINDOW;
    group->window = FIRST_WINDOW;
    group->ranks = ranks;
    group->mine = mine;
    group->last_root = ranks;
    return apart;
}

struct ws_header ws_group_header(const struct ws_group *group, enum ws_kind kind, uint32_t first, uint32_t second)
{
    struct ws_header header = {.magic = WS_MAGIC, .kind = kind, .operation = group->operation, .rank = group->mine,
                               .first = first, .second = second};
    memcpy(header.token, group->token, WS_TOKEN_BYTES);
    return header;
}

void ws_group_say(const struct ws_group *group, enum ws_kind kind, const struct sockaddr_in *to, uint32_t first,
                  uint32_t second)
{
    struct ws_header header = ws_group_header(group, kind, first, second);
    (void)sendto(group->unicast, &header, sizeof header, 0, (const struct sockaddr *)to, sizeof *to);
}

int64_t ws_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void ws_group_close(struct ws_group *group)
{
    if (group->multicast >= 0)
        close(group->multicast);
    if (group->unicast >= 0)
        close(group->unicast);
    free(group->peers);
    free(group->entered);
    memset(group, 0, sizeof *group);
    group->multicast = group->unicast = -1;
}
