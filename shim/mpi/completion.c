/* See completion.h. */
#define _GNU_SOURCE
#include "completion.h"

#ifdef OPEN_MPI

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "comms.h"
#include "kinds.h"
#include "requests.h"

/* Requests of a call whose addresses and statuses fit on the stack. */
#define ON_STACK 64

/* ompi_request_fns_t, ompi/request/request.h of Open MPI 4.0 to 5.0. */
struct functions {
    int (*test)(MPI_Request *, int *, MPI_Status *);
    int (*test_any)(size_t, MPI_Request *, int *, int *, MPI_Status *);
    int (*test_all)(size_t, MPI_Request *, int *, MPI_Status *);
    int (*test_some)(size_t, MPI_Request *, int *, int *, MPI_Status *);
    int (*wait)(MPI_Request *, MPI_Status *);
    int (*wait_any)(size_t, MPI_Request *, int *, MPI_Status *);
    int (*wait_all)(size_t, MPI_Request *, MPI_Status *);
    int (*wait_some)(size_t, MPI_Request *, int *, int *, MPI_Status *);
};

static struct functions *table, real;

static inline void count_at(struct recorder *recorder, uint64_t now, uintptr_t comm, int kind, const MPI_Status *status)
{
    /* What carries one-sided operations is not received by calls that could be seen, so not all of it could be
     * counted. */
    if (status->_cancelled || kind == KIND_RMA_PROTOCOL)
        return;
    uint32_t peer = comm_peer(recorder, (MPI_Comm)comm, status->MPI_SOURCE);
    if (peer != PEER_OUTSIDE)
        record_at(recorder, now, RECEIVED, peer, kind, status->_ucount);
}

void completion_count(struct recorder *recorder, uintptr_t comm, int kind, const MPI_Status *status)
{
    count_at(recorder, record_now(), comm, kind, status);
}

/* One request of a call that may complete it, before and after. */
struct watched {
    uintptr_t key;
    struct request known; /* where `known.key` is not 0 */
};

static inline void watch(struct watched *watched, MPI_Request request)
{
    watched->key = (uintptr_t)request;
    watched->known.key = 0;
    if (requests_threaded() && !request_complete(watched->key, &watched->known))
        watched->known.key = 0;
}

/* `now` is read for the first receive of a call, and 0 before. */
static inline void completed(struct watched *watched, const MPI_Status *status, uint64_t *now)
{
    if (watched->known.key == 0 && (requests_threaded() || !request_complete(watched->key, &watched->known)))
        return;
    struct recorder *recorder = recorder_get();
    if (*now == 0)
        *now = record_now();
    if (recorder != NULL)
        count_at(recorder, *now, watched->known.comm, watched->known.kind, status);
    watched->known.key = 0;
}

/* What has not completed goes back. */
static inline void unwatch(const struct watched *watched)
{
    if (watched->known.key != 0)
        request_put(&watched->known);
}

/* What a call is asked to complete: it clears the requests, and may have been given no room for statuses. */
struct asked {
    struct watched few[ON_STACK];
    MPI_Status few_statuses[ON_STACK];
    struct watched *watched; /* NULL where there is no memory */
    MPI_Status *statuses;
    void *many;
};

static MPI_Status *watch_all(struct asked *asked, size_t count, const MPI_Request *requests, MPI_Status *statuses)
{
    asked->watched = asked->few;
    asked->statuses = asked->few_statuses;
    asked->many = NULL;
    if (count > ON_STACK) {
        asked->many = malloc(count * (sizeof *asked->statuses + sizeof *asked->watched));
        asked->watched = asked->many;
        if (asked->many == NULL) {
            struct recorder *recorder = recorder_get();
            if (recorder != NULL)
                recorder->lost_messages++;
            return statuses;
        }
        asked->statuses = (MPI_Status *)(asked->watched + count);
    }
    for (size_t i = 0; i < count; i++)
        watch(&asked->watched[i], requests[i]);
    if (statuses != MPI_STATUSES_IGNORE)
        asked->statuses = statuses;
    return asked->statuses;
}

static void unwatch_all(struct asked *asked, size_t count)
{
    if (asked->watched != NULL && requests_threaded())
        for (size_t i = 0; i < count; i++)
            unwatch(&asked->watched[i]);
    free(asked->many);
}

static void all_completed(struct asked *asked, size_t count, int result)
{
    uint64_t now = 0;
    if (asked->watched == NULL)
        return;
    for (size_t i = 0; i < count; i++)
        /* Only where one failed are the others' errors set. */
        if (result == MPI_SUCCESS || asked->statuses[i].MPI_ERROR == MPI_SUCCESS)
            completed(&asked->watched[i], &asked->statuses[i], &now);
}

static void some_completed(struct asked *asked, int count, const int *indices, int result)
{
    uint64_t now = 0;
    if (asked->watched == NULL || count == MPI_UNDEFINED)
        return;
    for (int i = 0; i < count; i++)
        if (result == MPI_SUCCESS || asked->statuses[i].MPI_ERROR == MPI_SUCCESS)
            completed(&asked->watched[indices[i]], &asked->statuses[i], &now);
}

static int own_test(MPI_Request *request, int *flag, MPI_Status *status)
{
    struct watched watched;
    MPI_Status local, *seen = status == MPI_STATUS_IGNORE ? &local : status;
    watch(&watched, *request);
    int result = real.test(request, flag, seen);
    if (result == MPI_SUCCESS && *flag)
        completed(&watched, seen, &(uint64_t){0});
    unwatch(&watched);
    return result;
}

static int own_wait(MPI_Request *request, MPI_Status *status)
{
    struct watched watched;
    MPI_Status local, *seen = status == MPI_STATUS_IGNORE ? &local : status;
    watch(&watched, *request);
    int result = real.wait(request, seen);
    if (result == MPI_SUCCESS)
        completed(&watched, seen, &(uint64_t){0});
    return result;
}

static int own_test_any(size_t count, MPI_Request *requests, int *index, int *flag, MPI_Status *status)
{
    struct asked asked;
    MPI_Status local, *seen = status == MPI_STATUS_IGNORE ? &local : status;
    watch_all(&asked, count, requests, MPI_STATUSES_IGNORE);
    int result = real.test_any(count, requests, index, flag, seen);
    if (asked.watched != NULL && result == MPI_SUCCESS && *flag && *index != MPI_UNDEFINED)
        completed(&asked.watched[*index], seen, &(uint64_t){0});
    unwatch_all(&asked, count);
    return result;
}

static int own_wait_any(size_t count, MPI_Request *requests, int *index, MPI_Status *status)
{
    struct asked asked;
    MPI_Status local, *seen = status == MPI_STATUS_IGNORE ? &local : status;
    watch_all(&asked, count, requests, MPI_STATUSES_IGNORE);
    int result = real.wait_any(count, requests, index, seen);
    if (asked.watched != NULL && result == MPI_SUCCESS && *index != MPI_UNDEFINED)
        completed(&asked.watched[*index], seen, &(uint64_t){0});
    unwatch_all(&asked, count);
    return result;
}

static int own_test_all(size_t count, MPI_Request *requests, int *flag, MPI_Status *statuses)
{
    struct asked asked;
    MPI_Status *seen = watch_all(&asked, count, requests, statuses);
    int result = real.test_all(count, requests, flag, seen);
    if (*flag)
        all_completed(&asked, count, result);
    unwatch_all(&asked, count);
    return result;
}

static int own_wait_all(size_t count, MPI_Request *requests, MPI_Status *statuses)
{
    struct asked asked;
    MPI_Status *seen = watch_all(&asked, count, requests, statuses);
    int result = real.wait_all(count, requests, seen);
    all_completed(&asked, count, result);
    unwatch_all(&asked, count);
    return result;
}

static int own_test_some(size_t count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses)
{
    struct asked asked;
    MPI_Status *seen = watch_all(&asked, count, requests, statuses);
    int result = real.test_some(count, requests, done, indices, seen);
    some_completed(&asked, *done, indices, result);
    unwatch_all(&asked, count);
    return result;
}

static int own_wait_some(size_t count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses)
{
    struct asked asked;
    MPI_Status *seen = watch_all(&asked, count, requests, statuses);
    int result = real.wait_some(count, requests, done, indices, seen);
    some_completed(&asked, *done, indices, result);
    unwatch_all(&asked, count);
    return result;
}

static const struct functions own = {own_test, own_test_any, own_test_all, own_test_some,
                                     own_wait, own_wait_any, own_wait_all, own_wait_some};

bool completion_start(void)
{
    /* The table holds the default functions, in this order, unless a component has replaced them. */
    static const char *const names[] = {
        "ompi_request_default_test", "ompi_request_default_test_any", "ompi_request_default_test_all",
        "ompi_request_default_test_some", "ompi_request_default_wait", "ompi_request_default_wait_any",
        "ompi_request_default_wait_all", "ompi_request_default_wait_some",
    };
    table = dlsym(mpi.handle, "ompi_request_functions");
    if (table == NULL)
        return false;
    void *entries[sizeof names / sizeof names[0]];
    _Static_assert(sizeof entries == sizeof *table, "a name for each function");
    memcpy(entries, table, sizeof entries);
    int checked = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *expected = dlsym(mpi.handle, names[i]);
        if (expected != NULL && expected != entries[i]) {
            table = NULL;
            return false;
        }
        checked += expected != NULL;
    }
    if (checked < 4) {
        table = NULL;
        return false;
    }
    real = *table;
    *table = own;
    return true;
}

void completion_stop(void)
{
    if (table != NULL)
        *table = real;
    table = NULL;
}

#endif
