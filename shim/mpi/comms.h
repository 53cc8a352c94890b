/* From a communicator's ranks to those of MPI_COMM_WORLD. */
#ifndef WAYSTAGE_COMMS_H
#define WAYSTAGE_COMMS_H

#include <mpi.h>
#include <stdint.h>

#include "record.h"

#define PEER_OUTSIDE UINT32_MAX /* a process that is not in MPI_COMM_WORLD */

struct comm_map {
    uintptr_t comm;
    int size;
    int inter;
    struct comm_map *next;
    uint32_t world[]; /* of the remote group where there is one: that is whom messages go to */
};

static inline uintptr_t comm_key(MPI_Comm comm)
{
#ifdef OPEN_MPI
    return (uintptr_t)comm;
#else
    return (unsigned)comm; /* a number, perhaps negative */
#endif
}

/* The ranks of `comm`, or NULL where there is no memory. Valid until the communicator is freed. */
const struct comm_map *comm_map_find(struct recorder *recorder, MPI_Comm comm);

/* The same of a window: whom its ranks are. */
const struct comm_map *window_map(struct recorder *recorder, MPI_Win window);
void window_forget(MPI_Win window);

/* What to do when the ranks of a communicator become known, and before they are forgotten; `own_side` is the other
 * half of an inter-communicator, or NULL. Each may be NULL.
 */
extern struct comm_hooks {
    void (*made)(const struct comm_map *map, const struct comm_map *own_side);
    void (*gone)(const struct comm_map *map);
    void (*left)(struct recorder *recorder); /* at the end of a call that has a communicator */
} comm_hooks;

/* What is known already, without a call of MPI; NULL where nothing is. */
const struct comm_map *comm_map_known(struct recorder *recorder, uintptr_t key);

/* `comm` is gone; its handle may come back as another communicator. */
void comm_forget(MPI_Comm comm);

/* Read by every thread before it trusts what it remembers. */
extern uint64_t comm_generation;

static inline struct comm_slot *comm_slot(struct recorder *recorder, uintptr_t key)
{
    return &recorder->comms[(key ^ (key >> 4) ^ (key >> 9)) % COMM_SLOTS];
}

static inline const struct comm_map *comm_map(struct recorder *recorder, MPI_Comm comm)
{
    uintptr_t key = comm_key(comm);
    const struct comm_slot *slot = comm_slot(recorder, key);
    if (__builtin_expect(slot->comm == key &&
                             recorder->comm_generation == __atomic_load_n(&comm_generation, __ATOMIC_ACQUIRE),
                         1))
        return slot->map;
    return comm_map_find(recorder, comm);
}

static inline uint32_t comm_peer(struct recorder *recorder, MPI_Comm comm, int rank)
{
    const struct comm_map *map = comm_map(recorder, comm);
    return map != NULL && rank >= 0 && rank < map->size ? map->world[rank] : PEER_OUTSIDE;
}

#endif
