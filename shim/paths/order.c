/* See order.h.
 *
 * Arrives: large collectives, on every rank of their communicator; an order from the controller, on its first rank.
 * Leaves: a communicator of the same processes in that order, kept as an attribute and freed with the given one.
 * Must not know: how an order is found, arguments of collectives but their size.
 *
 * Every decision is taken by all ranks of a communicator from what all know: the bytes of a call, the number of large
 * calls, what the first rank says, and whether each of them can follow. Without a controller the first rank says that
 * the order stays. One that is freed before its call number FROM_CALL costs the search of an attribute a call.
 */
#define _GNU_SOURCE
#include "order.h"

#include "calls.h"
#include "symbols.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define FROM_CALL 3         /* the first calls are declared and learned: python/waystage/forecast/asked_orders.py */
#define FROM_BYTES (64 << 10)
#define LIMIT_MS 100        /* for an answer, once a communicator and primitive */
#define BLOCKS 8            /* of an allgather, that are FROM_BYTES together */
#define FEWEST_RANKS 3
#define MOST_MADE 64        /* of this process at a time: MPICH has about 2,000 context ids */

static const char *const names[ORDERED] = {"allreduce", "bcast", "allgather"};

struct orders {
    bool stays;
    int count, mine;
    struct order of[ORDERED];
};

#define SYMBOL(name) static __typeof__(&P##name) name##_
SYMBOL(MPI_Allreduce);
SYMBOL(MPI_Bcast);
SYMBOL(MPI_Comm_call_errhandler);
SYMBOL(MPI_Comm_create_keyval);
SYMBOL(MPI_Comm_free);
SYMBOL(MPI_Comm_get_attr);
SYMBOL(MPI_Comm_rank);
SYMBOL(MPI_Comm_set_attr);
SYMBOL(MPI_Comm_set_errhandler);
SYMBOL(MPI_Comm_size);
SYMBOL(MPI_Comm_split);
SYMBOL(MPI_Comm_test_inter);
#define FIND(name) ((name##_ = (__typeof__(name##_))symbol_next("P" #name)) != NULL)

/* Open MPI's handles are addresses of variables, which this library finds when it needs them: it is loaded into
 * launchers and shells too. With this, MPI_INT and its like in this file are what was found, or NULL. */
#ifdef OPEN_MPI
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) ((type)handle_of(#global))

static void *handle_of(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    return found != NULL ? found : symbol_next(name);
}
#endif

static bool wanted, floats;
static size_t from = FROM_BYTES;
static int limit_ms = LIMIT_MS;
static int keyval, keyval_of_self;
static atomic_bool ending; /* in MPI_Finalize, which frees what is left */
static atomic_int made;
static __thread bool inside;
static MPI_Datatype type_int;
static MPI_Errhandler errors_return;

/* -- what reductions do not depend on the order of ranks ----------------------------------------------------------- */

#define MOST_HANDLES 64

static MPI_Datatype exact_types[MOST_HANDLES], float_types[MOST_HANDLES];
static MPI_Op exact_ops[MOST_HANDLES], float_ops[MOST_HANDLES];

#define KEEP(into, type, ...)                                                                                          \
    do {                                                                                                               \
        const type all[] = {__VA_ARGS__};                                                                              \
        for (size_t i = 0, at = 0; i < sizeof all / sizeof *all; i++)                                                  \
            if (all[i] != (type)0)                                                                                     \
                (into)[at++] = all[i];                                                                                 \
    } while (0)

static void find_handles(void)
{
    KEEP(exact_types, MPI_Datatype, MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_SHORT, MPI_UNSIGNED_SHORT, MPI_INT,
         MPI_UNSIGNED, MPI_LONG, MPI_UNSIGNED_LONG, MPI_LONG_LONG, MPI_UNSIGNED_LONG_LONG, MPI_INT8_T, MPI_INT16_T,
         MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T, MPI_AINT, MPI_OFFSET,
         MPI_COUNT, MPI_BYTE, MPI_INTEGER, MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8);
    KEEP(exact_ops, MPI_Op, MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR,
         MPI_BXOR);
    KEEP(float_types, MPI_Datatype, MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE, MPI_REAL, MPI_DOUBLE_PRECISION, MPI_REAL4,
         MPI_REAL8, MPI_COMPLEX, MPI_DOUBLE_COMPLEX, MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX);
    KEEP(float_ops, MPI_Op, MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX);
}

#define AMONG(all, one)                                                                                                \
    ({                                                                                                                 \
        bool found = false;                                                                                            \
        for (size_t i = 0; i < MOST_HANDLES && (all)[i] != 0 && !found; i++)                                           \
            found = (all)[i] == (one);                                                                                 \
        found;                                                                                                         \
    })

/* Not the minimum of floating-point numbers: which of -0 and 0 it is, and what it is beside a NaN, depends on the
 * order. Not operations of users, nor MPI_MINLOC. */
bool order_free(MPI_Datatype type, MPI_Op op)
{
    return wanted && ((AMONG(exact_ops, op) && AMONG(exact_types, type)) ||
                      (floats && AMONG(float_ops, op) && AMONG(float_types, type)));
}

/* -- a communicator's orders --------------------------------------------------------------------------------------- */

static int orders_gone(MPI_Comm comm, int key, void *value, void *extra)
{
    struct orders *orders = value;
    (void)comm, (void)key, (void)extra;
    for (int i = 0; i < ORDERED; i++) {
        if (!orders->of[i].made)
            continue;
        if (!ending)
            MPI_Comm_free_(&orders->of[i].comm);
        atomic_fetch_sub(&made, 1);
        free(orders->of[i].position);
    }
    free(orders);
    return MPI_SUCCESS;
}

static int self_gone(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    ending = true;
    return MPI_SUCCESS;
}

static int not_copied(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *flag = 0;
    return MPI_SUCCESS;
}

void order_start(void)
{
    const char *which = getenv("WAYSTAGE_RANK_ORDER"), *bytes = getenv("WAYSTAGE_RANK_ORDER_FROM"),
               *limit = getenv("WAYSTAGE_RANK_ORDER_WAIT_MS");
    static int of_self;
    if (wanted || which == NULL || (strcmp(which, "exact") != 0 && strcmp(which, "floats") != 0))
        return;
    if (!(FIND(MPI_Allreduce) && FIND(MPI_Bcast) && FIND(MPI_Comm_call_errhandler) && FIND(MPI_Comm_create_keyval) &&
          FIND(MPI_Comm_free) && FIND(MPI_Comm_get_attr) && FIND(MPI_Comm_rank) && FIND(MPI_Comm_set_attr) &&
          FIND(MPI_Comm_set_errhandler) && FIND(MPI_Comm_size) && FIND(MPI_Comm_split) && FIND(MPI_Comm_test_inter)))
        return;
    floats = strcmp(which, "floats") == 0;
    if (bytes != NULL && atoll(bytes) > 0)
        from = (size_t)atoll(bytes);
    if (limit != NULL && atoi(limit) > 0)
        limit_ms = atoi(limit);
    type_int = MPI_INT;
    errors_return = MPI_ERRORS_RETURN;
    find_handles();
    wanted = MPI_Comm_create_keyval_(not_copied, orders_gone, &keyval, NULL) == MPI_SUCCESS &&
             MPI_Comm_create_keyval_(not_copied, self_gone, &keyval_of_self, NULL) == MPI_SUCCESS &&
             MPI_Comm_set_attr_(MPI_COMM_SELF, keyval_of_self, &of_self) == MPI_SUCCESS;
}

static struct orders *orders_of(MPI_Comm comm)
{
    struct orders *found = NULL;
    int flag = 0, inter = 0;

    if (MPI_Comm_get_attr_(comm, keyval, &found, &flag) == MPI_SUCCESS && flag)
        return found;
    if (MPI_Comm_test_inter_(comm, &inter) != MPI_SUCCESS || inter)
        return NULL;
    found = calloc(1, sizeof *found);
    if (found == NULL)
        return NULL;
    if (MPI_Comm_size_(comm, &found->count) != MPI_SUCCESS || MPI_Comm_rank_(comm, &found->mine) != MPI_SUCCESS ||
        MPI_Comm_set_attr_(comm, keyval, found) != MPI_SUCCESS) {
        free(found);
        return NULL;
    }
    found->stays = found->count < FEWEST_RANKS || found->count > CALLS_MOST_RANKS;
    return found;
}

static bool is_order(const int *ranks, int count)
{
    bool seen[CALLS_MOST_RANKS] = {false};
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= count || seen[ranks[i]])
            return false;
        seen[ranks[i]] = true;
    }
    return true;
}

/* All ranks call it at the same call. */
static void decide(const struct orders *orders, struct order *order, MPI_Comm comm, enum ordered primitive,
                   size_t bytes)
{
    int count = orders->count, ranks[count], can = 0, all = 0;

    ranks[0] = -1;
    if (orders->mine == 0 && !(call_order(comm, names[primitive], bytes, limit_ms, ranks) && is_order(ranks, count)))
        ranks[0] = -1;
    if (MPI_Bcast_(ranks, count, type_int, 0, comm) != MPI_SUCCESS || ranks[0] < 0)
        return;
    int *tables = calloc(4 * (size_t)count, sizeof *tables);
    can = tables != NULL && is_order(ranks, count) && atomic_load(&made) < MOST_MADE;
    if (MPI_Allreduce_(&can, &all, 1, type_int, MPI_MIN, comm) == MPI_SUCCESS && all) {
        order->position = tables;
        order->ranks = tables + count;
        order->counts = tables + 2 * count;
        order->places = tables + 3 * count;
        order->count = count;
        for (int i = 0; i < count; i++)
            order->position[ranks[i]] = i;
        memcpy(order->ranks, ranks, (size_t)count * sizeof *ranks);
        order->made = MPI_Comm_split_(comm, 0, order->position[orders->mine], &order->comm) == MPI_SUCCESS;
    }
    if (!order->made) {
        free(tables);
        return;
    }
    atomic_fetch_add(&made, 1);
    /* An error is the given communicator's: order_leaves. */
    MPI_Comm_set_errhandler_(order->comm, errors_return);
}

struct order *order_enters(MPI_Comm comm, enum ordered primitive, size_t bytes)
{
    if (!wanted || inside || bytes < (primitive == ORDER_ALLGATHER ? from / BLOCKS : from))
        return NULL;
    struct orders *orders = orders_of(comm);
    /* A displacement of MPI_Allgatherv is an int, and no block has more elements than bytes. */
    if (orders == NULL || orders->stays ||
        (primitive == ORDER_ALLGATHER && bytes * (size_t)orders->count > INT_MAX))
        return NULL;
    struct order *order = &orders->of[primitive];
    if (order->calls < FROM_CALL && ++order->calls == FROM_CALL) {
        inside = true;
        call_aside(true);
        decide(orders, order, comm, primitive, bytes);
        call_aside(false);
        inside = false;
    }
    if (!order->made)
        return NULL;
    inside = true;
    return order;
}

int order_leaves(const struct order *order, MPI_Comm comm, int result)
{
    if (order == NULL)
        return result;
    inside = false;
    if (result != MPI_SUCCESS)
        MPI_Comm_call_errhandler_(comm, result);
    return result;
}

void order_blocks(struct order *order, int received)
{
    for (int i = 0; i < order->count && order->counts[i] != received; i++) {
        order->counts[i] = received;
        order->places[i] = order->ranks[i] * received;
    }
}
