/* The coll component of Open MPI: MPI_Bcast and MPI_Allgather by multicast where that was measured to be faster.
 *
 * Arrives: calls of both, on communicators of several hosts.
 * Leaves: the data at every rank, by multicast or by the component that would have carried out the call. An allgather
 * is a broadcast of each rank's block, one after the other.
 * Must not know: how a tree is found, how datagrams are lost.
 *
 * Every decision is made by all ranks from what all of them know: the bytes of a call, the number of calls, values that
 * one rank told or all reduced. By size class (powers of two) the first calls go by Open MPI's own algorithm, the next
 * ones by multicast; from then on the faster one is used, and both are measured again from time to time.
 */
#include "group.h"
#include "transfer.h"

#include "ompi_config.h"

#include "agent.h"

#include "mpi.h"
#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/mca/mca.h"
#include "ompi/proc/proc.h"
#include "opal/mca/base/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PRIORITY 95
#define FROM_BYTES (32 << 10)
#define MOST_RANKS 1024
#define CLASSES 64
#define TRIAL 3               /* calls by each way; the fastest of each counts */
#define MEASURED_AGAIN 256    /* calls after which both ways are measured again; then four times as many */
#define WATCHED 64            /* calls by multicast after which all ranks compare what they lost */
#define MOST_LOST 4           /* a quarter of the chunks, at any rank: the tree is given up */
#define ASKED_AGAIN 64        /* large calls after which a group is asked for again; then four times as many */

struct class {
    uint64_t calls, again;
    double seconds[2];
    bool multicast;
};

typedef struct {
    mca_coll_base_module_t super;
    mca_coll_base_module_bcast_fn_t bcast;
    mca_coll_base_module_t *bcast_module;
    mca_coll_base_module_allgather_fn_t allgather;
    mca_coll_base_module_t *allgather_module;
    struct ws_group group;
    bool open;
    uint64_t large, ask_at, ask_next;
    uint64_t chunks, lost; /* of the last calls by multicast */
    struct class bcasts[CLASSES], allgathers[CLASSES];
} ws_module_t;

static struct ws_counts counts;
static uint64_t bytes_from = FROM_BYTES;
static bool always; /* for tests: without measuring */
static const char *stats_file;

static void construct(ws_module_t *module)
{
    memset((char *)module + sizeof module->super, 0, sizeof *module - sizeof module->super);
    module->group.multicast = module->group.unicast = -1;
    module->ask_next = ASKED_AGAIN;
}

static void destruct(ws_module_t *module)
{
    ws_group_close(&module->group);
    if (module->bcast_module != NULL)
        OBJ_RELEASE(module->bcast_module);
    if (module->allgather_module != NULL)
        OBJ_RELEASE(module->allgather_module);
}

OBJ_CLASS_DECLARATION(ws_module_t);
OBJ_CLASS_INSTANCE(ws_module_t, mca_coll_base_module_t, construct, destruct);

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint32_t world_rank(MPI_Comm comm, int rank)
{
    return OMPI_CAST_RTE_NAME(&ompi_comm_peer_lookup(comm, rank)->super.proc_name)->vpid;
}

/* -- the group ----------------------------------------------------------------------------------------------------- */

static void give_up(ws_module_t *module)
{
    module->open = false;
    ws_group_close(&module->group);
    module->ask_at = module->large + module->ask_next;
    module->ask_next *= 4;
}

/* Every rank calls it at the same large call. */
static void open_group(ws_module_t *module, MPI_Comm comm)
{
    uint32_t ranks = (uint32_t)ompi_comm_size(comm), mine = (uint32_t)ompi_comm_rank(comm);
    struct ws_offer offer = {0};
    struct ws_card card = {0}, *cards = calloc(ranks, sizeof *cards);
    uint32_t *worlds = calloc(ranks, sizeof *worlds);

    if (mine == 0 && worlds != NULL && cards != NULL) {
        for (uint32_t i = 0; i < ranks; i++)
            worlds[i] = world_rank(comm, (int)i);
        ws_group_ask(&module->group, &offer, worlds, ranks);
    }
    free(worlds);
    bool told = module->bcast(&offer, sizeof offer, MPI_BYTE, 0, comm, module->bcast_module) == OMPI_SUCCESS;
    if (told && offer.valid) {
        if (cards != NULL)
            ws_group_join(&module->group, &offer, ranks, &card);
        /* Where memory lacks, the others see no valid card. */
        struct ws_card *all = cards != NULL ? cards : malloc(ranks * sizeof *all);
        if (all != NULL && module->allgather(&card, sizeof card, MPI_BYTE, all, sizeof card, MPI_BYTE, comm,
                                             module->allgather_module) == OMPI_SUCCESS)
            module->open = ws_group_agree(&module->group, all, ranks, mine);
        if (all != cards)
            free(all);
    }
    free(cards);
    if (!module->open)
        give_up(module);
}

static bool group_ready(ws_module_t *module, MPI_Comm comm)
{
    if (!module->open && module->large >= module->ask_at)
        open_group(module, comm);
    return module->open;
}

/* -- one call ------------------------------------------------------------------------------------------------------ */

static int transfer(ws_module_t *module, MPI_Comm comm, uint8_t *data, size_t bytes, int root)
{
    uint64_t chunks = counts.chunks, lost = counts.lost;
    int result = ws_transfer(&module->group, comm, data, bytes, (uint32_t)root, &counts);
    module->chunks += counts.chunks - chunks;
    module->lost += counts.lost - lost;
    return result;
}

static int by_multicast(ws_module_t *module, void *buffer, int count, struct ompi_datatype_t *type, int root,
                        MPI_Comm comm, size_t bytes)
{
    uint8_t *data = buffer, *packed = NULL;
    bool sends = ompi_comm_rank(comm) == root;
    int position = 0, result = OMPI_SUCCESS;

    if (ompi_datatype_is_contiguous_memory_layout(type, count)) {
        ptrdiff_t lower, extent;
        ompi_datatype_get_true_extent(type, &lower, &extent);
        data += lower;
    } else {
        data = packed = malloc(bytes);
        if (packed == NULL)
            return OMPI_ERR_OUT_OF_RESOURCE;
        if (sends)
            result = PMPI_Pack(buffer, count, type, packed, (int)bytes, &position, comm);
    }
    if (result == OMPI_SUCCESS)
        result = transfer(module, comm, data, bytes, root);
    if (result == OMPI_SUCCESS && packed != NULL && !sends)
        result = PMPI_Unpack(packed, (int)bytes, &position, buffer, count, type, comm);
    free(packed);
    return result;
}

/* Every rank calls it at the same call: whether none of them lost much since the last time. */
static bool tree_works(ws_module_t *module, MPI_Comm comm)
{
    int bad = module->lost > module->chunks / MOST_LOST, any = 1;

    module->chunks = module->lost = 0;
    return comm->c_coll->coll_allreduce(&bad, &any, 1, MPI_INT, MPI_MAX, comm,
                                        comm->c_coll->coll_allreduce_module) == OMPI_SUCCESS &&
           !any;
}

/* Which way a call goes, and where its seconds belong; NULL: nowhere. */
static bool chosen(ws_module_t *module, MPI_Comm comm, struct class *class, double **measured)
{
    uint64_t call = class->calls++;

    *measured = NULL;
    if (always)
        return group_ready(module, comm);
    if (class->again != 0 && call == class->again) {
        call = 0;
        class->calls = 1;
        class->again *= 4;
    }
    if (class->again == 0)
        class->again = MEASURED_AGAIN;
    if (call < 2 * TRIAL) {
        bool multicast = call >= TRIAL;
        if (call == 0)
            class->seconds[0] = class->seconds[1] = 1e9;
        if (multicast && !group_ready(module, comm)) {
            class->multicast = false;
            return false;
        }
        *measured = &class->seconds[multicast];
        return multicast;
    }
    if (call == 2 * TRIAL && module->open) {
        double slowest[2];
        int result = comm->c_coll->coll_allreduce(class->seconds, slowest, 2, MPI_DOUBLE, MPI_MAX, comm,
                                                  comm->c_coll->coll_allreduce_module);
        class->multicast = result == OMPI_SUCCESS && slowest[1] < slowest[0];
    }
    if (class->multicast && module->open && call % WATCHED == 0 && !tree_works(module, comm))
        give_up(module);
    return class->multicast && module->open;
}

static int bcast(void *buffer, int count, struct ompi_datatype_t *type, int root, struct ompi_communicator_t *comm,
                 mca_coll_base_module_t *base)
{
    ws_module_t *module = (ws_module_t *)base;
    size_t size = 0;
    double *measured;

    ompi_datatype_type_size(type, &size);
    size_t bytes = size * (size_t)(count > 0 ? count : 0);
    /* PMPI_Pack counts in int; whether a type has gaps is known to this rank alone. */
    if (bytes < bytes_from || bytes > INT32_MAX)
        return module->bcast(buffer, count, type, root, comm, module->bcast_module);
    module->large++;
    bool multicast = chosen(module, comm, &module->bcasts[63 - __builtin_clzll(bytes)], &measured);
    double began = measured != NULL ? now_s() : 0;
    int result = multicast ? by_multicast(module, buffer, count, type, root, comm, bytes)
                           : module->bcast(buffer, count, type, root, comm, module->bcast_module);
    if (measured != NULL && now_s() - began < *measured)
        *measured = now_s() - began;
    return result;
}

static int gather_by_multicast(ws_module_t *module, const void *send, int sent, struct ompi_datatype_t *send_type,
                               void *receive, int received, struct ompi_datatype_t *type, MPI_Comm comm, size_t block)
{
    int ranks = ompi_comm_size(comm), mine = ompi_comm_rank(comm), position = 0, result = OMPI_SUCCESS;
    int total = ranks * (int)block, from = mine * (int)block;
    ptrdiff_t lower, extent, skip;
    uint8_t *data = receive, *packed = NULL;

    ompi_datatype_get_extent(type, &lower, &extent);
    if (ompi_datatype_is_contiguous_memory_layout(type, received * ranks)) {
        ompi_datatype_get_true_extent(type, &skip, &lower);
        data += skip;
    } else {
        data = packed = malloc((size_t)total);
        if (packed == NULL)
            return OMPI_ERR_OUT_OF_RESOURCE;
    }
    if (send != MPI_IN_PLACE)
        result = PMPI_Pack(send, sent, send_type, data, total, &from, comm);
    else if (packed != NULL)
        result = PMPI_Pack((uint8_t *)receive + mine * received * extent, received, type, packed, total, &from, comm);
    for (int root = 0; result == OMPI_SUCCESS && root < ranks; root++)
        result = transfer(module, comm, data + (size_t)root * block, block, root);
    for (int rank = 0; packed != NULL && result == OMPI_SUCCESS && rank < ranks; rank++)
        result = PMPI_Unpack(packed, total, &position, (uint8_t *)receive + rank * received * extent, received, type, comm);
    free(packed);
    return result;
}

static int allgather(const void *send, int sent, struct ompi_datatype_t *send_type, void *receive, int received,
                     struct ompi_datatype_t *type, struct ompi_communicator_t *comm, mca_coll_base_module_t *base)
{
    ws_module_t *module = (ws_module_t *)base;
    size_t size = 0;
    double *measured;

    ompi_datatype_type_size(type, &size);
    size_t block = size * (size_t)(received > 0 ? received : 0);
    if (block < bytes_from || block * (size_t)ompi_comm_size(comm) > INT32_MAX)
        return module->allgather(send, sent, send_type, receive, received, type, comm, module->allgather_module);
    module->large++;
    bool multicast = chosen(module, comm, &module->allgathers[63 - __builtin_clzll(block)], &measured);
    double began = measured != NULL ? now_s() : 0;
    int result = multicast
                     ? gather_by_multicast(module, send, sent, send_type, receive, received, type, comm, block)
                     : module->allgather(send, sent, send_type, receive, received, type, comm, module->allgather_module);
    if (measured != NULL && now_s() - began < *measured)
        *measured = now_s() - began;
    return result;
}

/* -- the component ------------------------------------------------------------------------------------------------- */

static int enable(mca_coll_base_module_t *base, struct ompi_communicator_t *comm)
{
    ws_module_t *module = (ws_module_t *)base;
    if (comm->c_coll->coll_bcast == NULL || comm->c_coll->coll_bcast_module == NULL ||
        comm->c_coll->coll_allgather == NULL || comm->c_coll->coll_allgather_module == NULL)
        return OMPI_ERROR;
    module->bcast = comm->c_coll->coll_bcast;
    module->bcast_module = comm->c_coll->coll_bcast_module;
    OBJ_RETAIN(module->bcast_module);
    module->allgather = comm->c_coll->coll_allgather;
    module->allgather_module = comm->c_coll->coll_allgather_module;
    OBJ_RETAIN(module->allgather_module);
    return OMPI_SUCCESS;
}

static int init_query(bool progress_threads, bool threads)
{
    (void)progress_threads, (void)threads;
    const char *from = getenv("WAYSTAGE_MULTICAST_FROM"), *mode = getenv("WAYSTAGE_MULTICAST"),
               *limit = getenv("WAYSTAGE_MULTICAST_WAIT_MS");
    if (mode == NULL || strcmp(mode, "off") == 0)
        return OMPI_ERR_NOT_AVAILABLE;
    always = strcmp(mode, "always") == 0;
    if (from != NULL && strtoull(from, NULL, 10) > 0)
        bytes_from = strtoull(from, NULL, 10);
    if (limit != NULL && atoi(limit) > 0)
        ws_group_limit_ms = atoi(limit);
    stats_file = getenv("WAYSTAGE_MULTICAST_STATS");
    return OMPI_SUCCESS;
}

static mca_coll_base_module_t *comm_query(struct ompi_communicator_t *comm, int *priority)
{
    static bool reported;
    bool apart = false;

    if (comm == MPI_COMM_WORLD && !reported) {
        agent_report(ompi_comm_rank(comm), ompi_comm_size(comm));
        reported = true;
    }
    if (OMPI_COMM_IS_INTER(comm) || ompi_comm_size(comm) < 2 || ompi_comm_size(comm) > MOST_RANKS)
        return NULL;
    ompi_process_name_t own = *OMPI_CAST_RTE_NAME(&ompi_comm_peer_lookup(comm, ompi_comm_rank(comm))->super.proc_name);
    for (int i = 0; i < ompi_comm_size(comm); i++) {
        ompi_proc_t *proc = ompi_comm_peer_lookup(comm, i);
        if (OMPI_CAST_RTE_NAME(&proc->super.proc_name)->jobid != own.jobid)
            return NULL; /* of another MPI_COMM_WORLD, which the controller knows by other ranks */
        apart |= !OPAL_PROC_ON_LOCAL_NODE(proc->super.proc_flags);
    }
    if (!apart)
        return NULL;
    ws_module_t *module = OBJ_NEW(ws_module_t);
    module->super.coll_module_enable = enable;
    module->super.coll_bcast = bcast;
    module->super.coll_allgather = allgather;
    *priority = PRIORITY;
    return &module->super;
}

static int component_close(void)
{
    char name[4096];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (stats_file == NULL || rank == NULL ||
        snprintf(name, sizeof name, "%s.%s", stats_file, rank) >= (int)sizeof name)
        return OMPI_SUCCESS;
    FILE *file = fopen(name, "we");
    if (file == NULL)
        return OMPI_SUCCESS;
    fprintf(file,
            "{\"operations\": %" PRIu64 ", \"chunks\": %" PRIu64 ", \"sent\": %" PRIu64 ", \"lost\": %" PRIu64
            ", \"repaired\": %" PRIu64 ", \"foreign\": %" PRIu64 "}\n",
            counts.operations, counts.chunks, counts.sent, counts.lost, counts.repaired, counts.foreign);
    fclose(file);
    return OMPI_SUCCESS;
}

__attribute__((visibility("default"))) mca_coll_base_component_2_0_0_t mca_coll_waystage_component = {
    .collm_version = {MCA_COLL_BASE_VERSION_2_0_0, .mca_component_name = "waystage",
                      MCA_BASE_MAKE_VERSION(component, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION),
                      .mca_close_component = component_close},
    .collm_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .collm_init_query = init_query,
    .collm_comm_query = comm_query,
};
