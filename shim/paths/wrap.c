/* Functions in the program's way: MPI_Init, collectives, and those by which Open MPI's coll/tuned carries out its
 * decision.
 *
 * Arrives: calls; the arguments of Open MPI 4.1 (ompi/mca/coll/tuned/coll_tuned.h).
 * Leaves: the same calls, between `call_enters` and `call_leaves`, or `call_begins` and `call_ends`.
 * Must not know: communicators, the agent.
 *
 * coll/tuned calls its own `..._intra_do_this` through the symbol table, so that a preloaded definition comes first. It
 * is where a fixed decision, a rule file and a user's --mca option meet. Other components do not come here.
 */
#define _GNU_SOURCE
#include "calls.h"
#include "order.h"
#include "symbols.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define INIT(symbol, params, args)                                                                                     \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        int(*next) params = (int(*) params)symbol_next(#symbol);                                                        \
        if (next == NULL)                                                                                              \
            return MPI_ERR_OTHER;                                                                                      \
        int result = next args;                                                                                        \
        if (result == MPI_SUCCESS) {                                                                                   \
            calls_start();                                                                                             \
            order_start();                                                                                             \
        }                                                                                                              \
        return result;                                                                                                 \
    }

INIT(MPI_Init, (int *argc, char ***argv), (argc, argv))
INIT(PMPI_Init, (int *argc, char ***argv), (argc, argv))
INIT(MPI_Init_thread, (int *argc, char ***argv, int wanted, int *given), (argc, argv, wanted, given))
INIT(PMPI_Init_thread, (int *argc, char ***argv, int wanted, int *given), (argc, argv, wanted, given))

static size_t of(int count, MPI_Datatype type)
{
    static int (*type_size)(MPI_Datatype, int *);
    int size = 0;
    if (type_size == NULL)
        type_size = (int (*)(MPI_Datatype, int *))symbol_next("PMPI_Type_size");
    if (type_size == NULL || count < 0 || type_size(type, &size) != MPI_SUCCESS || size < 0)
        return 0;
    return (size_t)count * (size_t)size;
}

/* -- collectives as the program calls them ------------------------------------------------------------- */

/* `found` is the order to carry the call out in, `ordered` the call in it; see order.h. */
#define ORDERED_SYMBOL(symbol, name, size, at_root, found, ordered, params, args)                                      \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        static int(*next) params;                                                                                      \
        if (__builtin_expect(next == NULL, 0) && (next = (int(*) params)symbol_next(#symbol)) == NULL)                 \
            return MPI_ERR_OTHER;                                                                                      \
        struct call call = {name, call_observed, size, at_root};                                                       \
        struct order *order = found;                                                                                   \
        struct noting noting;                                                                                          \
        if (order != NULL && call.root >= 0)                                                                           \
            call.root = order_rank(order, call.root);                                                                  \
        call_enters(order != NULL ? order->comm : comm, &call, &noting);                                               \
        int result = order != NULL ? ordered : next args;                                                              \
        call_leaves(&noting);                                                                                          \
        return order_leaves(order, comm, result);                                                                      \
    }
#define ORDERED(symbol, name, size, at_root, found, ordered, params, args)                                             \
    ORDERED_SYMBOL(MPI_##symbol, name, size, at_root, found, ordered, params, args)                                    \
    ORDERED_SYMBOL(PMPI_##symbol, name, size, at_root, found, ordered, params, args)
#define CALLED(symbol, name, size, at_root, params, args)                                                              \
    ORDERED(symbol, name, size, at_root, NULL, MPI_ERR_OTHER, params, args)

static int gathered(const void *send, int sent, MPI_Datatype send_type, void *receive, int received,
                    MPI_Datatype receive_type, struct order *order)
{
    static __typeof__(&PMPI_Allgatherv) next;
    if (next == NULL && (next = (__typeof__(next))symbol_next("PMPI_Allgatherv")) == NULL)
        return MPI_ERR_OTHER;
    order_blocks(order, received);
    return next(send, sent, send_type, receive, order->counts, order->places, receive_type, order->comm);
}

/* The size is one on which all ranks agree; collectives whose counts differ between ranks have none, and are not here.
 * A root below 0 is an inter-communicator's, whose other arguments may mean nothing.
 */
ORDERED(Allreduce, "allreduce", of(count, type), -1,
        order_free(type, op) ? order_enters(comm, ORDER_ALLREDUCE, call.bytes) : NULL,
        next(send, receive, count, type, op, order->comm),
       (const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
       (send, receive, count, type, op, comm))
ORDERED(Bcast, "bcast", root < 0 ? 0 : of(count, type), root, order_enters(comm, ORDER_BCAST, call.bytes),
        next(buffer, count, type, call.root, order->comm),
        (void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm), (buffer, count, type, root, comm))
CALLED(Reduce, "reduce", root < 0 ? 0 : of(count, type), root,
       (const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
       (send, receive, count, type, op, root, comm))
CALLED(Scan, "scan", of(count, type), -1,
       (const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
       (send, receive, count, type, op, comm))
CALLED(Exscan, "exscan", of(count, type), -1,
       (const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
       (send, receive, count, type, op, comm))
CALLED(Reduce_scatter_block, "reduce_scatter_block", of(count, type), -1,
       (const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
       (send, receive, count, type, op, comm))

/* A rank may give MPI_IN_PLACE and then no send count: the receive count is everyone's. */
ORDERED(Allgather, "allgather", of(received, receive_type), -1, order_enters(comm, ORDER_ALLGATHER, call.bytes),
        gathered(send, sent, send_type, receive, received, receive_type, order),
       (const void *send, int sent, MPI_Datatype send_type, void *receive, int received, MPI_Datatype receive_type,
        MPI_Comm comm),
       (send, sent, send_type, receive, received, receive_type, comm))
CALLED(Alltoall, "alltoall", of(received, receive_type), -1,
       (const void *send, int sent, MPI_Datatype send_type, void *receive, int received, MPI_Datatype receive_type,
        MPI_Comm comm),
       (send, sent, send_type, receive, received, receive_type, comm))

/* Only the root may give MPI_IN_PLACE, and the other side's arguments mean something at the root alone. */
CALLED(Gather, "gather", root < 0 ? 0 : send == MPI_IN_PLACE ? of(received, receive_type) : of(sent, send_type), root,
       (const void *send, int sent, MPI_Datatype send_type, void *receive, int received, MPI_Datatype receive_type,
        int root, MPI_Comm comm),
       (send, sent, send_type, receive, received, receive_type, root, comm))
CALLED(Scatter, "scatter", root < 0 ? 0 : receive == MPI_IN_PLACE ? of(sent, send_type) : of(received, receive_type), root,
       (const void *send, int sent, MPI_Datatype send_type, void *receive, int received, MPI_Datatype receive_type,
        int root, MPI_Comm comm),
       (send, sent, send_type, receive, received, receive_type, root, comm))

#ifdef OPEN_MPI

#define NAMES(...) ((const char *const[]){NULL, __VA_ARGS__})
/* coll_tuned_*_decision.c: the numbers that --mca coll_tuned_*_algorithm takes. NULL: made of others, or not known. */
#define NAMED(algorithm, ...) named(algorithm, NAMES(__VA_ARGS__), (int)(sizeof(NAMES(__VA_ARGS__)) / sizeof(char *)))

static const char *named(int algorithm, const char *const *names, int count)
{
    return algorithm > 0 && algorithm < count ? names[algorithm] : NULL;
}

static int found_tuned(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    if (info->dlpi_name == NULL || strstr(info->dlpi_name, "mca_coll_tuned.so") == NULL)
        return 0;
    *(void **)found = dlopen(info->dlpi_name, RTLD_NOLOAD | RTLD_LAZY);
    return 1;
}

static void *tuned(const char *symbol)
{
    static void *library;
    if (library == NULL)
        dl_iterate_phdr(found_tuned, &library);
    return library != NULL ? dlsym(library, symbol) : dlsym(RTLD_NEXT, symbol);
}

#define TUNED(name, size, at_root, names, params, args)                                                                \
    EXPORT int ompi_coll_tuned_##name##_intra_do_this params;                                                          \
    EXPORT int ompi_coll_tuned_##name##_intra_do_this params                                                           \
    {                                                                                                                  \
        static int(*next) params;                                                                                      \
        if (next == NULL)                                                                                              \
            next = (int(*) params)tuned(__func__);                                                                     \
        if (next == NULL)                                                                                              \
            return MPI_ERR_OTHER;                                                                                      \
        struct call call = {#name, names, size, at_root};                                                              \
        struct noting noting;                                                                                          \
        call_begins(comm, &call, &noting);                                                                             \
        int result = next args;                                                                                        \
        call_ends(&noting);                                                                                            \
        return result;                                                                                                 \
    }

TUNED(allreduce, of(count, type), -1,
      NAMED(algorithm, "basic_linear", NULL, "recursive_doubling", "ring", "segmented_ring", "rabenseifner"),
      (const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, void *module,
       int algorithm, int fan, int segment),
      (send, receive, count, type, op, comm, module, algorithm, fan, segment))

TUNED(bcast, of(count, type), root,
      NAMED(algorithm, "basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial",
            "scatter_allgather", "scatter_allgather_ring"),
      (void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm, void *module, int algorithm, int fan,
       int segment),
      (buffer, count, type, root, comm, module, algorithm, fan, segment))

TUNED(reduce, of(count, type), root,
      NAMED(algorithm, "linear", "chain", "pipeline", "binary", "binomial", "in-order_binary", "rabenseifner"),
      (const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm, void *module,
       int algorithm, int fan, int segment, int most),
      (send, receive, count, type, op, root, comm, module, algorithm, fan, segment, most))

/* A rank may give MPI_IN_PLACE and then no send count: the receive count is everyone's. */
TUNED(allgather, of(received, receive_type), -1,
      NAMED(algorithm, "linear", "bruck", "recursive_doubling", "ring", "neighbor", NULL),
      (const void *send, int sent, MPI_Datatype send_type, void *receive, int received, MPI_Datatype receive_type,
       MPI_Comm comm, void *module, int algorithm, int fan, int segment),
      (send, sent, send_type, receive, received, receive_type, comm, module, algorithm, fan, segment))

TUNED(alltoall, of(received, receive_type), -1,
      NAMED(algorithm, "linear", "pairwise", "modified_bruck", "linear_sync", NULL),
      (const void *send, int sent, MPI_Datatype send_type, void *receive, int received, MPI_Datatype receive_type,
       MPI_Comm comm, void *module, int algorithm, int fan, int segment, int most),
      (send, sent, send_type, receive, received, receive_type, comm, module, algorithm, fan, segment, most))

#endif
