#include "node.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 30000

static char why[512];

const char *ws_node_why(void) { return why; }

static int threads_share(void) {
    int provided;
    return PMPI_Query_thread(&provided) == MPI_SUCCESS && provided == MPI_THREAD_MULTIPLE;
}

static ws_io_node *connected(void) {
    const char *text = getenv("WAYSTAGE_IO_CONNECT_MS");
    int timeout_ms = text != NULL && atoi(text) > 0 ? atoi(text) : CONNECT_MS;
    ws_io_node *node = NULL;
    const char *problem = ws_library_load();
    if (problem == NULL && ws_library.connect(NULL, NULL, timeout_ms, &node) != WS_IO_OK) {
        problem = ws_library.message();
        node = NULL;
    }
    if (problem != NULL)
        snprintf(why, sizeof why, "%s", problem);
    return node;
}

ws_io_node *ws_node_connect(void) {
    /* Kept until the process ends, like the connections of MPI. After a failure the next file does not wait again. */
    static ws_io_node *shared;
    static int failed;
    if (failed)
        return NULL;
    if (shared != NULL && !threads_share())
        return shared;
    ws_io_node *node = connected();
    failed = node == NULL;
    if (!threads_share())
        shared = node;
    return node;
}

void ws_node_release(ws_io_node *node) {
    if (node != NULL && threads_share())
        ws_library.disconnect(node);
}

/* FNV-1a, 64 bits. Ranks compare hashes, since 128 bytes of each rank on each rank are much at 10^5 ranks. */
static uint64_t hash_of(const char *text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

struct mark {
    uint64_t hash;
    int rank;
};

static int by_hash(const void *a, const void *b) {
    const struct mark *x = a, *y = b;
    return x->hash != y->hash ? (x->hash < y->hash ? -1 : 1) : x->rank - y->rank;
}

/* Numbers the nodes by their first rank: of_rank, and the number of nodes. */
static int number(const uint64_t *hashes, int size, int *of_rank) {
    struct mark *marks = malloc(sizeof *marks * (size_t)size);
    int *first = malloc(sizeof *first * (size_t)size);
    int count = 0;
    if (marks != NULL && first != NULL) {
        for (int i = 0; i < size; i++)
            marks[i] = (struct mark){hashes[i], i};
        qsort(marks, (size_t)size, sizeof *marks, by_hash);
        for (int i = 0; i < size; i++)
            first[marks[i].rank] = i > 0 && marks[i].hash == marks[i - 1].hash ? first[marks[i - 1].rank] : marks[i].rank;
        for (int i = 0; i < size; i++)
            of_rank[i] = first[i] == i ? count++ : of_rank[first[i]];
    }
    free(marks);
    free(first);
    return count;
}

static int first_not(MPI_Comm comm, int rank, int ok) {
    int mine = ok ? INT_MAX : rank, first;
    PMPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm);
    return first == INT_MAX ? -1 : first;
}

/* Files of one process of threads may be opened in another order on each rank. */
static int is_of_world(MPI_Comm comm) {
    int how;
    return !threads_share() && PMPI_Comm_compare(comm, MPI_COMM_WORLD, &how) == MPI_SUCCESS &&
           (how == MPI_IDENT || how == MPI_CONGRUENT);
}

static int copied(struct ws_nodes *to, const struct ws_nodes *from, int size) {
    to->count = from->count;
    to->address = malloc(sizeof *to->address * (size_t)from->count);
    to->of_rank = malloc(sizeof *to->of_rank * (size_t)size);
    if (to->address == NULL || to->of_rank == NULL) {
        ws_nodes_free(to);
        return 0;
    }
    memcpy(to->address, from->address, sizeof *to->address * (size_t)from->count);
    memcpy(to->of_rank, from->of_rank, sizeof *to->of_rank * (size_t)size);
    return 1;
}

/* -1, or the first rank without an address. A rank without memory aborts: nothing works there. */
static int gather(MPI_Comm comm, int rank, int size, const char *mine, struct ws_nodes *nodes) {
    int first = -1;
    uint64_t *hashes = malloc(sizeof *hashes * (size_t)size), hash = *mine != '\0' ? hash_of(mine) | 1 : 0;
    int *lengths = calloc((size_t)size, sizeof *lengths), *places = calloc((size_t)size, sizeof *places);
    memset(nodes, 0, sizeof *nodes);
    nodes->of_rank = malloc(sizeof *nodes->of_rank * (size_t)size);
    if (hashes == NULL || lengths == NULL || places == NULL || nodes->of_rank == NULL)
        PMPI_Abort(comm, 1);
    PMPI_Allgather(&hash, 1, MPI_UINT64_T, hashes, 1, MPI_UINT64_T, comm);
    for (int i = size - 1; i >= 0; i--)
        first = hashes[i] == 0 ? i : first;
    if (first < 0) {
        nodes->count = number(hashes, size, nodes->of_rank);
        nodes->address = calloc((size_t)nodes->count + 1, sizeof *nodes->address);
        if (nodes->count == 0 || nodes->address == NULL)
            PMPI_Abort(comm, 1);
        for (int i = 0, seen = 0; i < size; i++)
            if (nodes->of_rank[i] == seen) { /* the first rank of a node */
                lengths[i] = WS_ADDRESS_BYTES;
                places[i] = seen++ * WS_ADDRESS_BYTES;
            }
        PMPI_Allgatherv(mine, lengths[rank], MPI_CHAR, nodes->address, lengths, places, MPI_CHAR, comm);
    }
    free(hashes);
    free(lengths);
    free(places);
    return first;
}

int ws_nodes_gather(MPI_Comm comm, ws_io_node *node, struct ws_nodes *nodes) {
    static struct ws_nodes world;
    char mine[WS_ADDRESS_BYTES] = "";
    int rank, size, of_world = is_of_world(comm);
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
    if (node != NULL && ws_library.address(node, mine, sizeof mine) != WS_IO_OK)
        mine[0] = '\0';
    if (of_world && world.count > 0) {
        int same = strcmp(world.address[world.of_rank[rank]], mine) == 0 && copied(nodes, &world, size);
        if (first_not(comm, rank, same) < 0)
            return -1;
        if (same)
            ws_nodes_free(nodes);
    }
    int first = gather(comm, rank, size, mine, nodes);
    if (first < 0)
        first = first_not(comm, rank, strcmp(nodes->address[nodes->of_rank[rank]], mine) == 0);
    if (first >= 0) {
        ws_nodes_free(nodes);
        return first;
    }
    if (of_world) {
        ws_nodes_free(&world);
        if (!copied(&world, nodes, size))
            PMPI_Abort(comm, 1);
    }
    return -1;
}

void ws_nodes_free(struct ws_nodes *nodes) {
    free(nodes->address);
    free(nodes->of_rank);
    memset(nodes, 0, sizeof *nodes);
}
