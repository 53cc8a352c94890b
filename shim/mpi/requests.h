/* Requests that the profiler must recognise later: receives in flight, and persistent requests.
 * Keyed by the request's address. Knows nothing of how a message is sent.
 *
 * An MPI library uses the same few addresses again and again. So what is no longer wanted keeps its place, and the
 * table grows to as many places as there were requests at once.
 */
#ifndef WAYSTAGE_REQUESTS_H
#define WAYSTAGE_REQUESTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum request_type { REQUEST_NONE, REQUEST_RECEIVE, REQUEST_PERSISTENT_RECEIVE, REQUEST_PERSISTENT_SEND };

struct request {
    uintptr_t key;
    uintptr_t comm; /* of a receive: whose ranks its source counts in */
    uint64_t bytes; /* of a persistent send */
    uint32_t peer;  /* likewise */
    uint8_t kind;
    uint8_t type;
    bool active; /* of a persistent receive: started and not yet completed */
};

struct requests {
    struct request *slots;
    uint64_t mask, used;
    bool locked; /* several threads may be in MPI at once */
    atomic_flag spin;
};

extern struct requests requests;

void requests_start(bool threaded);

/* What is known by the address, or NULL. The table must be locked. */
static inline struct request *requests_find(uintptr_t key)
{
    if (__builtin_expect(requests.slots == NULL, 0))
        return NULL;
    uint64_t at = ((uint64_t)key * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
    for (;; at++) {
        struct request *slot = &requests.slots[at & requests.mask];
        if (slot->key == key)
            return slot;
        if (slot->key == 0)
            return NULL;
    }
}

static inline void requests_lock(void)
{
    if (__builtin_expect(requests.locked, 0))
        while (atomic_flag_test_and_set_explicit(&requests.spin, memory_order_acquire))
            ;
}

static inline void requests_unlock(void)
{
    if (__builtin_expect(requests.locked, 0))
        atomic_flag_clear_explicit(&requests.spin, memory_order_release);
}

/* A place for an address that has none; false where there is no memory. The table must be locked. */
bool requests_add(const struct request *request);

/* Remember; what was known by this address is forgotten. False where there is no memory. */
static inline bool request_put(const struct request *request)
{
    requests_lock();
    struct request *slot = requests_find(request->key);
    bool room = true;
    if (__builtin_expect(slot != NULL, 1))
        *slot = *request;
    else
        room = requests_add(request);
    requests_unlock();
    return room;
}

/* The receive at this address has completed: copy what is known, and forget it unless it is persistent. */
static inline bool request_complete(uintptr_t key, struct request *request)
{
    requests_lock();
    struct request *slot = requests_find(key);
    bool receive = slot != NULL &&
                   (slot->type == REQUEST_RECEIVE || (slot->type == REQUEST_PERSISTENT_RECEIVE && slot->active));
    if (receive) {
        *request = *slot;
        if (slot->type == REQUEST_RECEIVE)
            slot->type = REQUEST_NONE;
        else
            slot->active = false;
    }
    requests_unlock();
    return receive;
}

/* Copy what is known; false where nothing is. */
bool request_get(uintptr_t key, struct request *request);

/* In a process with several threads in MPI: a receive's address may come back, in another thread, before the call that
 * completes it has returned. So it is taken before that call, and put back where it has not completed.
 */
static inline bool requests_threaded(void)
{
    return requests.locked;
}

/* A persistent receive begins; false where none is known. */
bool request_activate(uintptr_t key);

void request_forget(uintptr_t key);

#endif
