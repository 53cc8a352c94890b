/* A broadcast by multicast that loses nothing.
 *
 * Arrives: the root's bytes; datagrams, of which some are lost, late or forged.
 * Leaves: the same bytes at every rank.
 * Must not know: how the group came about, datatypes, when a broadcast is worth it.
 *
 * Every receiver sends the root a credit when it enters. Before the last one came the root sends at most EAGER chunks,
 * and these only if all are known to have entered its operation before: a receiver that is late finds them in its
 * socket's buffer, and loses nothing. Further credits say how far each receiver is and how much it has lost; they open
 * the root's window, which follows the slowest and is halved by a loss (as TCP's, RFC 5681). A lost credit does no
 * harm: it is sent again.
 *
 * What a receiver has not got after the end it asks its left neighbour for, in the ring of ranks from the root on, by
 * MPI messages. A rank returns once it has everything and its right neighbour has said so too (Khalilov et al., arXiv
 * 2408.13356, have the ring).
 */
#define _GNU_SOURCE
#include "transfer.h"

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/mca/coll/base/coll_tags.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/request/request.h"
#include "opal/runtime/opal_progress.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#define TAG MCA_COLL_BASE_TAG_BCAST
#define BATCH 16
#define TURNS 16 /* batches at once: a flood must not keep a rank from its other work */
#define RANGES 64
#define EAGER 8                  /* twice this fits into a socket's buffer: FIRST_WINDOW in group.c */
#define CADENCE 8                /* chunks between two credits of a receiver */
#define LEAST_WINDOW CADENCE     /* below, no receiver would send a credit */
#define CREDIT_AGAIN_NS 2000000  /* without a datagram; doubled each time */
#define CREDIT_AGAIN_MOST_NS 64000000
#define STALLED_NS 40000000      /* without a credit of the slowest, and 4 round trips: what is in flight is lost */
#define STALLED_FIRST_NS 400000000 /* before a round trip was measured */
#define MOST_STALLS 2            /* in a row: the tree is dead, and the ring brings the rest */
#define REMIND_NS 4000000        /* a right neighbour that has not said it has everything; doubled each time */
#define REMIND_MOST_NS 256000000
#define QUIET_NS 2000000         /* after which what is missing is lost, once the left neighbour has everything */

enum { DONE, MISSING };

struct control {
    uint32_t operation, kind, count;
    struct {
        uint32_t first, count;
    } ranges[RANGES];
};

struct op {
    struct ws_group *group;
    MPI_Comm comm;
    uint8_t *buffer;
    size_t bytes;
    uint32_t chunks, root;
    int left, right; /* -1: none */
    struct ws_counts *counts;
    uint64_t *have;
    uint32_t got, horizon; /* chunks that are here; below the horizon nothing more is coming by multicast */
    /* The root. */
    uint32_t *upto, *lost, sent, slowest, ready, recovering, threshold, fraction;
    uint32_t stalls;
    bool ended, eager;
    uint32_t timed; /* the chunk whose round trip is measured, which was sent at `timed_ns`; 0: none */
    int64_t credited_ns, timed_ns;
    /* Receivers. */
    uint32_t told; /* the horizon in the last credit */
    bool begun, over, left_complete;
    int64_t heard_ns, credit_ns, credit_wait_ns;
    ompi_request_t *repairs[RANGES];
    struct control missing;
    uint32_t repairing;
    /* The ring. */
    struct control from_right;
    ompi_request_t *listening, *asking, *saying, *answers[RANGES];
    uint32_t answering;
    bool right_asks, right_done, said;
    int64_t remind_ns, remind_wait_ns;
    int error;
};

static bool has(const struct op *op, uint32_t at) { return op->have[at / 64] >> at % 64 & 1; }

static void take(struct op *op, uint32_t at)
{
    if (!has(op, at)) {
        op->have[at / 64] |= UINT64_C(1) << at % 64;
        op->got++;
    }
}

static bool complete(const struct op *op) { return op->got == op->chunks; }


/* -- the root ------------------------------------------------------------------------------------------------------ */

static void credited(struct op *op, const struct ws_header *credit)
{
    struct ws_group *group = op->group;
    uint32_t rank = credit->rank, first = credit->first, lost = credit->second;

    if (rank == group->mine || first > op->sent || lost > first)
        return;
    group->entered[rank] = group->operation;
    if (op->upto[rank] == UINT32_MAX) {
        op->upto[rank] = 0;
        op->ready++;
        op->credited_ns = ws_now_ns();
    }
    if (lost > op->lost[rank]) {
        op->lost[rank] = lost;
        if (op->slowest >= op->recovering) { /* once a window */
            group->window = group->window / 2 > LEAST_WINDOW ? group->window / 2 : LEAST_WINDOW;
            op->threshold = group->window;
            op->recovering = op->sent;
        }
    }
    if (first <= op->upto[rank])
        return;
    op->upto[rank] = first;
    uint32_t slowest = op->sent;
    for (uint32_t i = 0; i < group->ranks; i++)
        if (i != group->mine && op->upto[i] < slowest)
            slowest = op->upto[i];
    if (slowest <= op->slowest)
        return;
    if (group->window < op->threshold)
        group->window += slowest - op->slowest;
    else
        op->fraction += slowest - op->slowest;
    if (op->fraction >= group->window) {
        op->fraction -= group->window;
        group->window++;
    }
    if (group->window > group->most_in_flight)
        group->window = group->most_in_flight;
    op->slowest = slowest;
    op->stalls = 0;
    op->credited_ns = ws_now_ns();
    if (op->timed != 0 && slowest >= op->timed) {
        int64_t took = op->credited_ns - op->timed_ns;
        group->round_trip_ns += group->round_trip_ns == 0 ? took : (took - group->round_trip_ns) / 8;
        op->timed = 0;
    }
}

static void begin_as_root(struct op *op)
{
    for (uint32_t at = 0; at < op->chunks; at++)
        take(op, at);
    for (uint32_t i = 0; i < op->group->ranks; i++) {
        struct ws_header ready = {.rank = i};
        if (op->group->entered[i] == op->group->operation)
            credited(op, &ready);
    }
    op->eager = op->group->last_root == op->group->mine;
}

/* Chunks that may be sent now. */
static uint32_t allowed(struct op *op)
{
    struct ws_group *group = op->group;
    uint32_t until = op->slowest + group->window;

    if (op->ready < group->ranks - 1) {
        for (uint32_t i = 0; op->eager && i < group->ranks; i++)
            if (i != group->mine && group->operation - group->entered[i] > 1)
                return 0;
        until = op->eager ? EAGER : 0;
    }
    return until < op->chunks ? until : op->chunks;
}

static void send_chunks(struct op *op)
{
    struct ws_group *group = op->group;
    struct ws_header headers[BATCH];
    struct iovec parts[BATCH][2];
    struct mmsghdr messages[BATCH];
    uint32_t until = allowed(op);

    while (op->sent < until) {
        uint32_t count = until - op->sent < BATCH ? until - op->sent : BATCH;
        memset(messages, 0, sizeof messages);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t at = op->sent + i;
            headers[i] = ws_group_header(group, WS_DATA, at, op->chunks);
            parts[i][0] = (struct iovec){&headers[i], sizeof headers[i]};
            parts[i][1] = (struct iovec){op->buffer + (size_t)at * group->chunk,
                                         ws_chunk_bytes(op->bytes, group->chunk, at)};
            messages[i].msg_hdr = (struct msghdr){.msg_name = &group->address, .msg_namelen = sizeof group->address,
                                                  .msg_iov = parts[i], .msg_iovlen = 2};
        }
        int done = sendmmsg(group->unicast, messages, count, MSG_DONTWAIT);
        if (done < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS))
            return;
        /* What cannot be sent at all, the ring brings. */
        op->sent += done < 0 ? count : (uint32_t)done;
        if (op->timed == 0) {
            op->timed = op->sent;
            op->timed_ns = ws_now_ns();
        }
        op->counts->sent += done < 0 ? 0 : (uint64_t)done;
    }
}

static void root_sends(struct op *op, int64_t now)
{
    struct ws_group *group = op->group;
    int64_t patience = group->round_trip_ns == 0 ? STALLED_FIRST_NS : STALLED_NS + 4 * group->round_trip_ns;
    if (op->ready == group->ranks - 1 && op->sent > op->slowest && now - op->credited_ns > patience) {
        op->timed = 0;
        if (++op->stalls == MOST_STALLS)
            op->sent = op->chunks;
        op->slowest = op->sent;
        op->credited_ns = now;
        group->window = LEAST_WINDOW;
    }
    send_chunks(op);
    if (op->sent == op->chunks && !op->ended) {
        op->ended = true;
        ws_group_say(group, WS_END, &group->address, op->chunks, 0);
    }
}

/* -- receivers ----------------------------------------------------------------------------------------------------- */

static void credit(struct op *op, int64_t now)
{
    uint32_t lost = op->horizon > op->got ? op->horizon - op->got : 0;
    ws_group_say(op->group, WS_CREDIT, &op->group->peers[op->root], op->horizon, lost);
    op->told = op->horizon;
    op->credit_ns = now + op->credit_wait_ns;
}

static void heard(struct op *op, const struct ws_header *header, const uint8_t *data, size_t length, int64_t now)
{
    if (header->kind == WS_COMPLETE) {
        if ((int)header->rank == op->left)
            op->left_complete = true;
        return;
    }
    if (header->rank != op->root || op->left < 0)
        return;
    bool gap = false;
    if (header->kind == WS_DATA) {
        uint32_t at = header->first;
        if (at >= op->chunks || header->second != op->chunks ||
            length != ws_chunk_bytes(op->bytes, op->group->chunk, at))
            return;
        if (!has(op, at)) {
            memcpy(op->buffer + (size_t)at * op->group->chunk, data, length);
            take(op, at);
        }
        gap = at > op->horizon;
        if (at >= op->horizon)
            op->horizon = at + 1;
    } else if (header->kind == WS_END) {
        op->horizon = op->chunks;
        op->over = true;
    } else {
        return;
    }
    op->begun = true;
    op->heard_ns = now;
    op->credit_wait_ns = CREDIT_AGAIN_NS;
    op->credit_ns = now + CREDIT_AGAIN_NS;
    if (gap || op->horizon - op->told >= CADENCE)
        credit(op, now);
}

/* At most `most` at once: what follows is of the next operation, and stays in the socket's buffer until then. */
static void listen_to(struct op *op, int socket_of, uint32_t most)
{
    static __thread uint8_t data[BATCH][sizeof(struct ws_header) + WS_CHUNK_MOST];
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
    int count, turns = 0;

    if (most > BATCH)
        most = BATCH;
    do {
        memset(messages, 0, sizeof messages);
        for (uint32_t i = 0; i < most; i++) {
            parts[i] = (struct iovec){data[i], sizeof data[i]};
            messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
        }
        count = recvmmsg(socket_of, messages, most, MSG_DONTWAIT, NULL);
        int64_t now = count > 0 ? ws_now_ns() : 0;
        for (int i = 0; i < count; i++) {
            struct ws_header header;
            if (messages[i].msg_hdr.msg_flags & MSG_TRUNC ||
                !ws_parse(&header, data[i], messages[i].msg_len, op->group->token, op->group->ranks)) {
                op->counts->foreign++;
            } else if (header.operation != op->group->operation) {
                /* Of the operation before; or of a rank that is in the next already. */
                if (header.kind == WS_CREDIT && header.operation - op->group->entered[header.rank] < UINT32_MAX / 2)
                    op->group->entered[header.rank] = header.operation;
            } else if (header.kind == WS_CREDIT) {
                if (op->left < 0)
                    credited(op, &header);
            } else {
                heard(op, &header, data[i] + sizeof header, messages[i].msg_len - sizeof header, now);
            }
        }
    } while (count == BATCH && most == BATCH && ++turns < TURNS);
}

/* -- the ring ------------------------------------------------------------------------------------------------------ */

static void failed(struct op *op, int error)
{
    if (error != OMPI_SUCCESS && op->error == OMPI_SUCCESS)
        op->error = error;
}

static bool ended(struct op *op, ompi_request_t **request)
{
    int flag = 1;
    if (*request != MPI_REQUEST_NULL)
        failed(op, ompi_request_test(request, &flag, MPI_STATUS_IGNORE));
    return flag || op->error != OMPI_SUCCESS;
}

static bool all_ended(struct op *op, ompi_request_t **requests, uint32_t *count)
{
    while (*count > 0 && ended(op, &requests[*count - 1]))
        --*count;
    return *count == 0;
}

static void listen_to_right(struct op *op)
{
    failed(op, MCA_PML_CALL(irecv(&op->from_right, sizeof op->from_right, MPI_BYTE, op->right, TAG, op->comm,
                                  &op->listening)));
}

/* What the right neighbour lacks, once it is here. */
static void answer_right(struct op *op)
{
    const struct control *asked = &op->from_right;
    uint32_t count = asked->count < RANGES ? asked->count : RANGES;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = asked->ranges[i].first, chunks = asked->ranges[i].count;
        if (first >= op->chunks || chunks > op->chunks - first)
            return; /* not from this library */
        for (uint32_t at = first; !complete(op) && at < first + chunks; at++)
            if (!has(op, at))
                return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = asked->ranges[i].first;
        failed(op, MCA_PML_CALL(isend(op->buffer + (size_t)first * op->group->chunk,
                                      ws_range_bytes(op->bytes, op->group->chunk, first, asked->ranges[i].count), MPI_BYTE, op->right, TAG,
                                      MCA_PML_BASE_SEND_STANDARD, op->comm, &op->answers[i])));
    }
    op->answering = count;
    op->right_asks = false;
    listen_to_right(op);
}

static void right_neighbour(struct op *op, int64_t now)
{
    if (op->right < 0 || op->right_done)
        return;
    if (!op->right_asks && ended(op, &op->listening)) {
        op->right_done = op->from_right.kind == DONE;
        op->right_asks = !op->right_done;
    }
    if (op->right_asks && op->answering == 0)
        answer_right(op);
    if (!op->right_done && complete(op) && (op->left >= 0 || op->ended)) {
        if (op->remind_ns == 0)
            op->remind_ns = now + op->remind_wait_ns;
        if (now >= op->remind_ns) {
            ws_group_say(op->group, WS_COMPLETE, &op->group->peers[op->right], op->chunks, 0);
            op->remind_wait_ns = op->remind_wait_ns < REMIND_MOST_NS ? 2 * op->remind_wait_ns : REMIND_MOST_NS;
            op->remind_ns = now + op->remind_wait_ns;
        }
    }
}

static void ask_left(struct op *op)
{
    struct control *control = &op->missing;
    control->operation = op->group->operation;
    control->kind = MISSING;
    control->count = 0;
    for (uint32_t at = 0; at < op->chunks && control->count < RANGES;) {
        if (has(op, at)) {
            at++;
            continue;
        }
        uint32_t first = at;
        while (at < op->chunks && !has(op, at))
            at++;
        control->ranges[control->count].first = first;
        control->ranges[control->count++].count = at - first;
    }
    for (uint32_t i = 0; i < control->count; i++) {
        uint32_t first = control->ranges[i].first, count = control->ranges[i].count;
        failed(op, MCA_PML_CALL(irecv(op->buffer + (size_t)first * op->group->chunk, ws_range_bytes(op->bytes, op->group->chunk, first, count),
                                      MPI_BYTE, op->left, TAG, op->comm, &op->repairs[i])));
    }
    op->repairing = control->count;
    failed(op, MCA_PML_CALL(isend(control, sizeof *control, MPI_BYTE, op->left, TAG, MCA_PML_BASE_SEND_STANDARD,
                                  op->comm, &op->asking)));
}

static void left_neighbour(struct op *op, int64_t now)
{
    if (op->left < 0 || op->said)
        return;
    if (op->repairing > 0) {
        uint32_t before = op->missing.count;
        if (!all_ended(op, op->repairs, &op->repairing) || !ended(op, &op->asking))
            return;
        for (uint32_t i = 0; i < before; i++)
            for (uint32_t at = 0; at < op->missing.ranges[i].count; at++)
                take(op, op->missing.ranges[i].first + at), op->counts->repaired++;
        op->missing.count = 0;
    }
    if (complete(op)) {
        op->missing.operation = op->group->operation;
        op->missing.kind = DONE;
        op->missing.count = 0;
        failed(op, MCA_PML_CALL(isend(&op->missing, offsetof(struct control, ranges), MPI_BYTE, op->left, TAG,
                                      MCA_PML_BASE_SEND_STANDARD, op->comm, &op->saying)));
        op->said = true;
    } else if (op->over || (op->left_complete && (!op->begun || now - op->heard_ns > QUIET_NS))) {
        op->counts->lost += op->chunks - op->got;
        ask_left(op);
    } else if (now >= op->credit_ns) {
        op->credit_wait_ns = op->credit_wait_ns < CREDIT_AGAIN_MOST_NS ? 2 * op->credit_wait_ns : CREDIT_AGAIN_MOST_NS;
        credit(op, now);
    }
}

static bool finished(struct op *op)
{
    return complete(op) && (op->left < 0 ? op->ended : op->said && ended(op, &op->saying)) &&
           (op->right < 0 || op->right_done) && all_ended(op, op->answers, &op->answering);
}

int ws_transfer(struct ws_group *group, MPI_Comm comm, uint8_t *buffer, size_t bytes, uint32_t root,
                struct ws_counts *counts)
{
    struct op op = {.group = group, .comm = comm, .buffer = buffer, .bytes = bytes, .root = root, .counts = counts,
                    .chunks = (uint32_t)((bytes + group->chunk - 1) / group->chunk),
                    .threshold = UINT32_MAX, .credit_wait_ns = CREDIT_AGAIN_NS, .remind_wait_ns = REMIND_NS,
                    .listening = MPI_REQUEST_NULL, .asking = MPI_REQUEST_NULL, .saying = MPI_REQUEST_NULL};
    uint32_t place = (group->mine + group->ranks - root) % group->ranks;

    op.left = place == 0 ? -1 : (int)((group->mine + group->ranks - 1) % group->ranks);
    op.right = place == group->ranks - 1 ? -1 : (int)((group->mine + 1) % group->ranks);
    op.have = calloc(op.chunks / 64 + 1, sizeof *op.have);
    op.upto = malloc(group->ranks * sizeof *op.upto);
    op.lost = calloc(group->ranks, sizeof *op.lost);
    if (op.have == NULL || op.upto == NULL || op.lost == NULL)
        op.error = OMPI_ERR_OUT_OF_RESOURCE;
    else
        memset(op.upto, 0xff, group->ranks * sizeof *op.upto);
    group->operation++;
    counts->operations++;
    counts->chunks += op.chunks;
    if (op.error == OMPI_SUCCESS && place == 0)
        begin_as_root(&op);
    if (op.error == OMPI_SUCCESS && op.right >= 0)
        listen_to_right(&op);
    if (op.error == OMPI_SUCCESS && place != 0)
        credit(&op, ws_now_ns());
    while (op.error == OMPI_SUCCESS && !finished(&op)) {
        if (place == 0 ? group->loops : !complete(&op)) /* a root's own datagrams must not fill its buffer */
            listen_to(&op, group->multicast, place == 0 ? BATCH : op.chunks - op.got);
        listen_to(&op, group->unicast, BATCH);
        int64_t now = ws_now_ns();
        if (place == 0)
            root_sends(&op, now);
        left_neighbour(&op, now);
        right_neighbour(&op, now);
        opal_progress();
    }
    group->last_root = root;
    free(op.have);
    free(op.upto);
    free(op.lost);
    return op.error;
}
