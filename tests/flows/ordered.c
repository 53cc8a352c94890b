/* Collectives of all kinds that an order of ranks may change, each checked against what it must give.
 *
 * Arguments: the elements of a call; a primitive, or one of `errors`, `floats`, `kept`, `many`.
 * A rank prints what is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS 6 /* an order is in use from the third large call on */

static int rank, size, wrong;

static void expect(int holds, const char *what, int call)
{
    if (!holds) {
        printf("rank %d of %d: %s, call %d\n", rank, size, what, call);
        wrong = 1;
    }
}

static void ranks_of(MPI_Comm comm)
{
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
}

#define ALLREDUCE(ctype, type, op, expression, start)                                                                  \
    for (int call = 0; call < CALLS; call++) {                                                                         \
        ctype *in = malloc((size_t)count * sizeof *in), *out = malloc((size_t)count * sizeof *out);                    \
        for (int i = 0; i < count; i++)                                                                                \
            in[i] = (ctype)(3 * rank + i % 5 + call + 1);                                                              \
        if (call % 2)                                                                                                  \
            memcpy(out, in, (size_t)count * sizeof *in);                                                               \
        MPI_Allreduce(call % 2 ? MPI_IN_PLACE : in, out, count, type, op, comm);                                       \
        int right = 1;                                                                                                 \
        for (int i = 0; i < count; i++) {                                                                              \
            ctype a = start;                                                                                           \
            for (int r = 0; r < size; r++) {                                                                           \
                ctype b = (ctype)(3 * r + i % 5 + call + 1);                                                           \
                a = (ctype)(expression);                                                                               \
            }                                                                                                          \
            right &= out[i] == a;                                                                                      \
        }                                                                                                              \
        expect(right, "MPI_Allreduce of " #type " by " #op, call);                                                     \
        free(in);                                                                                                      \
        free(out);                                                                                                     \
    }

static void first_of(void *in, void *inout, int *length, MPI_Datatype *type)
{
    (void)type;
    memcpy(inout, in, (size_t)*length * sizeof(int)); /* not commutative: the lowest rank's is left */
}

static void reduce_all(MPI_Comm comm, int count)
{
    MPI_Op first;
    ALLREDUCE(int, MPI_INT, MPI_SUM, a + b, 0)
    ALLREDUCE(unsigned char, MPI_UNSIGNED_CHAR, MPI_PROD, a *b, 1)
    ALLREDUCE(long, MPI_LONG, MPI_MAX, a > b ? a : b, 0)
    ALLREDUCE(short, MPI_SHORT, MPI_MIN, a < b ? a : b, 30000)
    ALLREDUCE(unsigned, MPI_UNSIGNED, MPI_BXOR, a ^ b, 0)
    ALLREDUCE(long long, MPI_INT64_T, MPI_BOR, a | b, 0)
    ALLREDUCE(int, MPI_INT, MPI_LAND, a && b, 1)
    ALLREDUCE(double, MPI_DOUBLE, MPI_SUM, a + b, 0)
    ALLREDUCE(float, MPI_FLOAT, MPI_MAX, a > b ? a : b, 0)
    MPI_Op_create(first_of, 0, &first);
    for (int call = 0; call < CALLS; call++) {
        int *in = malloc((size_t)count * sizeof *in), *out = malloc((size_t)count * sizeof *out), right = 1;
        for (int i = 0; i < count; i++)
            in[i] = rank + i;
        MPI_Allreduce(in, out, count, MPI_INT, first, comm);
        for (int i = 0; i < count; i++)
            right &= out[i] == i;
        expect(right, "MPI_Allreduce by an operation that is not commutative", call);
        free(in);
        free(out);
    }
    MPI_Op_free(&first);
}

static void broadcast(MPI_Comm comm, int count)
{
    MPI_Datatype spaced;
    MPI_Type_vector(count, 1, 2, MPI_INT, &spaced);
    MPI_Type_commit(&spaced);
    for (int call = 0; call < 2 * CALLS; call++) {
        int root = call % 3 == 2 ? size - 1 : call % 3, right = 1, *data = malloc(2 * (size_t)count * sizeof *data);
        for (int i = 0; i < 2 * count; i++)
            data[i] = rank == root ? root * 1000 + i : -1;
        if (call % 2)
            MPI_Bcast(data, count, MPI_INT, root, comm);
        else
            MPI_Bcast(data, 1, spaced, root, comm);
        for (int i = 0; i < 2 * count; i++) {
            int had = call % 2 ? i < count : i % 2 == 0;
            right &= rank == root || data[i] == (had ? root * 1000 + i : -1);
        }
        expect(right, "MPI_Bcast", call);
        free(data);
    }
    MPI_Type_free(&spaced);
}

/* Blocks of several lengths, contiguous or with gaps, in place or not. */
static void gather(MPI_Comm comm, int count)
{
    MPI_Datatype spaced, wide;
    MPI_Type_vector(count, 1, 2, MPI_INT, &spaced);
    MPI_Type_create_resized(spaced, 0, (MPI_Aint)(2 * (size_t)count * sizeof(int)), &wide);
    MPI_Type_commit(&wide);
    for (int call = 0; call < 4 * CALLS; call++) {
        int block = count + (call % 3) * 8, gaps = call % 4 == 2, in_place = call % 4 == 3, right = 1;
        if (gaps)
            block = count;
        size_t room = (size_t)block * (size_t)(gaps ? 2 : 1);
        int *in = malloc((size_t)block * sizeof *in), *out = malloc(room * (size_t)size * sizeof *out);
        for (size_t i = 0; i < room * (size_t)size; i++)
            out[i] = -1;
        for (int i = 0; i < block; i++) {
            in[i] = rank * 100000 + i + call;
            if (in_place)
                out[(size_t)rank * room + (size_t)i] = in[i];
        }
        if (in_place)
            MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, block, MPI_INT, comm);
        else if (gaps)
            MPI_Allgather(in, block, MPI_INT, out, 1, wide, comm);
        else
            MPI_Allgather(in, block, MPI_INT, out, block, MPI_INT, comm);
        for (int r = 0; r < size; r++)
            for (size_t i = 0; i < room; i++) {
                int had = gaps ? i % 2 == 0 : 1, at = gaps ? (int)i / 2 : (int)i;
                right &= out[(size_t)r * room + i] == (had ? r * 100000 + at + call : -1);
            }
        expect(right, "MPI_Allgather", call);
        free(in);
        free(out);
    }
    MPI_Type_free(&wide);
    MPI_Type_free(&spaced);
}

static void all(MPI_Comm comm, const char *what, int count)
{
    ranks_of(comm);
    if (size == 1)
        return; /* MPI_LAND of one value is that value, not 0 or 1 */
    if (strcmp(what, "allreduce") == 0)
        reduce_all(comm, count);
    else if (strcmp(what, "bcast") == 0)
        broadcast(comm, count);
    else
        gather(comm, count);
}

/* Two groups: the other's data arrives. */
static void between(int count)
{
    MPI_Comm half, inter;
    int world, worlds, *in = calloc((size_t)count, sizeof *in), *out = calloc((size_t)count, sizeof *out);
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    MPI_Comm_size(MPI_COMM_WORLD, &worlds);
    MPI_Comm_split(MPI_COMM_WORLD, world % 2, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - world % 2, 7, &inter);
    ranks_of(half);
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < count; i++)
            in[i] = world % 2 + 1;
        MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, inter);
        int others = world % 2 ? (worlds + 1) / 2 : worlds / 2;
        expect(out[0] == others * (world % 2 ? 1 : 2), "MPI_Allreduce between groups", call);
    }
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
    free(in);
    free(out);
}

static MPI_Comm failed;
static int failures;

static void note(MPI_Comm *comm, int *code, ...)
{
    (void)code;
    failed = *comm;
    failures++;
}

/* An error that all ranks make reaches the handler of the communicator that they called on. */
static void errors(int count)
{
    MPI_Comm comm;
    MPI_Errhandler handler;
    int *data = calloc((size_t)count, sizeof *data);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    ranks_of(comm);
    for (int call = 0; call < CALLS; call++)
        MPI_Bcast(data, count, MPI_INT, 0, comm);
    MPI_Comm_create_errhandler(note, &handler);
    MPI_Comm_set_errhandler(comm, handler);
    expect(MPI_Bcast(data, count, MPI_INT, size + 3, comm) != MPI_SUCCESS, "no error of a root", 0);
    expect(failures == 1 && failed == comm, "an error's communicator", failures);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    expect(MPI_Bcast(data, count, MPI_INT, size + 3, comm) != MPI_SUCCESS, "no error returned", 0);
    expect(failures == 1, "a handler that was replaced", failures);
    MPI_Bcast(data, count, MPI_INT, size - 1, comm);
    MPI_Errhandler_free(&handler);
    MPI_Comm_free(&comm);
    free(data);
}

/* Many communicators, most of which end before they have an order. */
static void many(int count)
{
    int *in = calloc((size_t)count, sizeof *in), *out = calloc((size_t)count, sizeof *out);
    ranks_of(MPI_COMM_WORLD);
    in[0] = 1;
    for (int i = 0; i < 300; i++) {
        MPI_Comm comm;
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        for (int call = 0; call < (i % 100 ? 1 : 4); call++) {
            MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, comm);
            expect(out[0] == size, "a short communicator", i);
        }
        MPI_Comm_free(&comm);
    }
    free(in);
    free(out);
}

/* Communicators that are kept, each with an order if there is room for one. */
static void kept(int count)
{
    MPI_Comm comms[70];
    int *in = calloc((size_t)count, sizeof *in), *out = calloc((size_t)count, sizeof *out);
    ranks_of(MPI_COMM_WORLD);
    in[0] = 1;
    for (int i = 0; i < 70; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        for (int call = 0; call < 4; call++) {
            MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, comms[i]);
            expect(out[0] == size, "a communicator of many", i);
        }
    }
    for (int i = 0; i < 70; i += 2)
        MPI_Comm_free(&comms[i]);
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    MPI_Comm comm;
    int count = atoi(argv[1]), threads;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    if (strcmp(argv[2], "many") == 0) {
        many(count);
    } else if (strcmp(argv[2], "kept") == 0) {
        kept(count);
    } else if (strcmp(argv[2], "floats") == 0) {
        ranks_of(comm = MPI_COMM_WORLD);
        ALLREDUCE(double, MPI_DOUBLE, MPI_SUM, a + b, 0)
    } else if (strcmp(argv[2], "errors") == 0) {
        errors(count);
    } else {
        all(MPI_COMM_WORLD, argv[2], count);
        MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm);
        all(comm, argv[2], count);
        MPI_Comm_free(&comm);
        MPI_Comm_split(MPI_COMM_WORLD, rank > 0, 0, &comm);
        all(comm, argv[2], count);
        MPI_Comm_free(&comm);
        between(count);
    }
    MPI_Finalize();
    return wrong;
}
