/* See comms.h. */
#define _GNU_SOURCE
#include "comms.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

uint64_t comm_generation = 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm_map *maps;

/* No communicator's key has these bits. */
#define WINDOW_KEY ((uintptr_t)1 << (8 * sizeof(uintptr_t) - 1))
#define OWN_SIDE_KEY (WINDOW_KEY >> 1)

struct comm_hooks comm_hooks;

/* Local calls only: this runs within the library's own sends. */
static struct comm_map *translate(uintptr_t key, MPI_Group group, int inter)
{
    MPI_Group world = mpi.group_null;
    struct comm_map *map = NULL;
    int *from = NULL, *to = NULL;
    int size = 0;

    if (mpi.Comm_group(mpi.world, &world) == MPI_SUCCESS && mpi.Group_size(group, &size) == MPI_SUCCESS) {
        map = malloc(sizeof *map + (size_t)size * sizeof map->world[0]);
        from = malloc((size_t)size * sizeof *from + 1);
        to = malloc((size_t)size * sizeof *to + 1);
    }
    if (map != NULL && from != NULL && to != NULL) {
        for (int i = 0; i < size; i++)
            from[i] = i;
        if (size > 0 && mpi.Group_translate_ranks(group, size, from, world, to) != MPI_SUCCESS)
            for (int i = 0; i < size; i++)
                to[i] = MPI_UNDEFINED;
        map->comm = key;
        map->size = size;
        map->inter = inter;
        for (int i = 0; i < size; i++)
            map->world[i] = to[i] == MPI_UNDEFINED ? PEER_OUTSIDE : (uint32_t)to[i];
    } else {
        free(map);
        map = NULL;
    }
    free(from);
    free(to);
    mpi.Group_free(&group);
    if (world != mpi.group_null)
        mpi.Group_free(&world);
    return map;
}

static struct comm_map *known(uintptr_t key)
{
    pthread_mutex_lock(&lock);
    struct comm_map *map = maps;
    while (map != NULL && map->comm != key)
        map = map->next;
    pthread_mutex_unlock(&lock);
    return map;
}

/* Two threads may both translate, since MPI takes its own locks and so this one is not held; the later finding wins. */
static const struct comm_map *keep(struct recorder *recorder, uintptr_t key, struct comm_map *map, bool is_new)
{
    if (map == NULL)
        return NULL;
    if (is_new) {
        pthread_mutex_lock(&lock);
        map->next = maps;
        maps = map;
        pthread_mutex_unlock(&lock);
    }
    *comm_slot(recorder, key) = (struct comm_slot){.comm = key, .map = map};
    return map;
}

static void refresh(struct recorder *recorder)
{
    uint64_t generation = __atomic_load_n(&comm_generation, __ATOMIC_ACQUIRE);
    if (recorder->comm_generation == generation)
        return;
    memset(recorder->comms, 0, sizeof recorder->comms);
    recorder->comm_generation = generation;
}

static const struct comm_map *own_side(struct recorder *recorder, MPI_Comm comm)
{
    uintptr_t key = comm_key(comm) | OWN_SIDE_KEY;
    MPI_Group group;
    if (mpi.Comm_group(comm, &group) != MPI_SUCCESS)
        return NULL;
    return keep(recorder, key, translate(key, group, 0), true);
}

const struct comm_map *comm_map_known(struct recorder *recorder, uintptr_t key)
{
    refresh(recorder);
    const struct comm_slot *slot = comm_slot(recorder, key);
    return slot->comm == key ? slot->map : known(key);
}

const struct comm_map *comm_map_find(struct recorder *recorder, MPI_Comm comm)
{
    refresh(recorder);
    struct comm_map *map = known(comm_key(comm));
    if (map != NULL)
        return keep(recorder, comm_key(comm), map, false);
    MPI_Group group;
    int inter = 0;
    if (mpi.Comm_test_inter(comm, &inter) != MPI_SUCCESS ||
        (inter ? mpi.Comm_remote_group(comm, &group) : mpi.Comm_group(comm, &group)) != MPI_SUCCESS)
        return NULL;
    const struct comm_map *made = keep(recorder, comm_key(comm), translate(comm_key(comm), group, inter), true);
    if (made != NULL && comm_hooks.made != NULL)
        comm_hooks.made(made, inter ? own_side(recorder, comm) : NULL);
    return made;
}

const struct comm_map *window_map(struct recorder *recorder, MPI_Win window)
{
    uintptr_t key = (uintptr_t)window | WINDOW_KEY;
    const struct comm_slot *slot = comm_slot(recorder, key);
    refresh(recorder);
    if (slot->comm == key)
        return slot->map;
    struct comm_map *map = known(key);
    if (map != NULL)
        return keep(recorder, key, map, false);
    MPI_Group group;
    if (mpi.Win_get_group(window, &group) != MPI_SUCCESS)
        return NULL;
    return keep(recorder, key, translate(key, group, 0), true);
}

static void forget(uintptr_t key)
{
    struct comm_map *gone = NULL;
    pthread_mutex_lock(&lock);
    for (struct comm_map **at = &maps; *at != NULL;) {
        struct comm_map *map = *at;
        if (map->comm != key) {
            at = &map->next;
            continue;
        }
        *at = map->next;
        map->next = gone;
        gone = map;
    }
    if (gone != NULL)
        __atomic_fetch_add(&comm_generation, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    while (gone != NULL) {
        struct comm_map *next = gone->next;
        if (comm_hooks.gone != NULL)
            comm_hooks.gone(gone);
        free(gone);
        gone = next;
    }
}

void comm_forget(MPI_Comm comm)
{
    forget(comm_key(comm));
    forget(comm_key(comm) | OWN_SIDE_KEY);
}

void window_forget(MPI_Win window)
{
    forget((uintptr_t)window | WINDOW_KEY);
}
