/* See classify.h. The tags are those of Open MPI 4 and 5, ompi/mca/coll/base/coll_tags.h; users' tags are not
 * negative. */
#define _GNU_SOURCE
#include "classify.h"

#include <dlfcn.h>
#include <string.h>

#include "comms.h"
#include "kinds.h"

/* Agreeing on the number of an inter-communicator, ompi/communicator/communicator.h. */
#define LAST_SETUP_TAG (-31080)
#define FIRST_SETUP_TAG (-31078)

#define LEARNED 1024

static const unsigned char blocking[] = {
    KIND_ALLGATHER, KIND_ALLGATHERV, KIND_ALLREDUCE,      KIND_ALLTOALL,             KIND_ALLTOALLV, KIND_ALLTOALLW,
    KIND_BARRIER,   KIND_BCAST,      KIND_EXSCAN,         KIND_GATHER,               KIND_GATHERV,   KIND_REDUCE,
    KIND_REDUCE_SCATTER, KIND_REDUCE_SCATTER_BLOCK, KIND_SCAN, KIND_SCATTER, KIND_SCATTERV,
};

/* A word each, so that threads may read and write it without a lock: 24 bits of the communicator, tag, kind. */
static uint64_t learned[LEARNED];

static uint64_t learned_word(MPI_Comm comm, int tag)
{
    return ((((uint64_t)(uintptr_t)comm >> 4) & 0xffffff) << 40) | ((uint64_t)(uint32_t)tag << 8);
}

static uint64_t *learned_slot(uint64_t word)
{
    return &learned[((word >> 8) ^ (word >> 43)) % LEARNED];
}

/* Some algorithms begin with a local copy, so that their first message comes after the call. */
int classify_oldest(struct recorder *recorder, uintptr_t comm)
{
    for (int i = BEGUN_SLOTS - 1; i >= 0; i--) {
        int kind = recorder->begun[i].kind;
        if (kind != 0 && recorder->begun[i].comm == comm) {
            recorder->begun[i].kind = 0;
            return kind;
        }
    }
    return 0;
}

bool classify_waits(const struct recorder *recorder)
{
    for (int i = 0; i < BEGUN_SLOTS; i++)
        if (recorder->begun[i].kind != 0)
            return true;
    return false;
}

static int nonblocking(struct recorder *recorder, MPI_Comm comm, int tag)
{
    uint64_t word = learned_word(comm, tag), *slot = learned_slot(word);
    uint64_t known = __atomic_load_n(slot, __ATOMIC_RELAXED);
    if (known != 0 && (known & ~UINT64_C(0xff)) == word)
        return (int)(known & 0xff);
    int kind = recorder->hint & 0xff;
    if (kind != 0 && !(recorder->hint & HINT_LEARN))
        return kind;
    if (kind == 0 && (kind = classify_oldest(recorder, comm_key(comm))) == 0)
        return KIND_NONBLOCKING;
    recorder->learned = true;
    __atomic_store_n(slot, word | (uint64_t)kind, __ATOMIC_RELAXED);
    return kind;
}

void classify_begun(struct recorder *recorder, MPI_Comm comm, int kind)
{
    const struct comm_map *map = recorder->learned ? NULL : comm_map(recorder, comm);
    if (map == NULL || (map->size < 2 && !map->inter))
        return;
    memmove(&recorder->begun[1], &recorder->begun[0], sizeof recorder->begun - sizeof recorder->begun[0]);
    recorder->begun[0] = (struct begun_slot){.comm = comm_key(comm), .kind = kind};
}

/* One-sided operations and files use messages with tags like a user's; the library they are sent from tells. */
static int kind_of_library(const void *caller)
{
    static const struct {
        const char *part;
        int kind;
    } libraries[] = {
        {"mca_osc_", KIND_RMA_PROTOCOL}, {"mca_io_", KIND_FILE_IO},       {"mca_fcoll_", KIND_FILE_IO},
        {"mca_fbtl_", KIND_FILE_IO},     {"mca_sharedfp_", KIND_FILE_IO}, {"mca_common_ompio", KIND_FILE_IO},
        {"mca_fs_", KIND_FILE_IO},
    };
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL)
        return KIND_P2P;
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
        if (strstr(info.dli_fname, libraries[i].part) != NULL)
            return libraries[i].kind;
    return KIND_P2P;
}

static int kind_of_caller(struct recorder *recorder, const void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    struct caller_slot *slot = &recorder->callers[(address ^ (address >> 6) ^ (address >> 12)) % CALLER_SLOTS];
    if (slot->address != address)
        *slot = (struct caller_slot){.address = address, .kind = kind_of_library(caller)};
    return slot->kind;
}

int classify(struct recorder *recorder, MPI_Comm comm, int tag, const void *caller)
{
    if (tag > CLASSIFY_FIRST_TAG) {
        int kind = kind_of_caller(recorder, caller);
        return kind == KIND_P2P && recorder->hint != 0 ? recorder->hint & 0xff : kind;
    }
    if (tag >= CLASSIFY_LAST_BLOCKING_TAG)
        return recorder->hint != 0 && !(recorder->hint & HINT_LEARN) ? recorder->hint
                                                                      : blocking[CLASSIFY_FIRST_TAG - tag];
    if (tag <= FIRST_SETUP_TAG && tag >= LAST_SETUP_TAG)
        return KIND_SETUP;
    return nonblocking(recorder, comm, tag);
}

void classify_forget(MPI_Comm comm)
{
    uint64_t word = learned_word(comm, 0);
    for (int i = 0; i < LEARNED; i++)
        if ((__atomic_load_n(&learned[i], __ATOMIC_RELAXED) >> 40) == (word >> 40))
            __atomic_store_n(&learned[i], 0, __ATOMIC_RELAXED);
}
