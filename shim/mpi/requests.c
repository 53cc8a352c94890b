/* See requests.h. */
#define _GNU_SOURCE
#include "requests.h"

#include <stdlib.h>

#define FIRST_SLOTS 256

struct requests requests = {.spin = ATOMIC_FLAG_INIT};

void requests_start(bool threaded)
{
    requests.locked = threaded;
}

static void insert(const struct request *request)
{
    uint64_t at = ((uint64_t)request->key * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
    while (requests.slots[at & requests.mask].key != 0)
        at++;
    requests.slots[at & requests.mask] = *request;
    requests.used++;
}

/* Those that are no longer wanted lose their place here. */
static bool grow(void)
{
    uint64_t count = requests.slots == NULL ? 0 : requests.mask + 1, wanted = count ? 2 * count : FIRST_SLOTS;
    struct request *old = requests.slots, *more = calloc(wanted, sizeof *more);
    if (more == NULL)
        return false;
    requests.slots = more;
    requests.mask = wanted - 1;
    requests.used = 0;
    for (uint64_t i = 0; i < count; i++)
        if (old[i].type != REQUEST_NONE)
            insert(&old[i]);
    free(old);
    return true;
}

bool requests_add(const struct request *request)
{
    /* A quarter full at most: most searches are for sends, which are not there. */
    bool room = requests.slots != NULL && 4 * (requests.used + 1) <= requests.mask;
    if (!room && !grow() && (requests.slots == NULL || requests.used + 2 > requests.mask))
        return false;
    insert(request);
    return true;
}

bool request_get(uintptr_t key, struct request *request)
{
    requests_lock();
    const struct request *slot = requests_find(key);
    bool known = slot != NULL && slot->type != REQUEST_NONE;
    if (known)
        *request = *slot;
    requests_unlock();
    return known;
}

bool request_activate(uintptr_t key)
{
    requests_lock();
    struct request *slot = requests_find(key);
    bool receive = slot != NULL && slot->type == REQUEST_PERSISTENT_RECEIVE;
    if (receive)
        slot->active = true;
    requests_unlock();
    return receive;
}

void request_forget(uintptr_t key)
{
    requests_lock();
    struct request *slot = requests_find(key);
    if (slot != NULL)
        slot->type = REQUEST_NONE;
    requests_unlock();
}
