#include "types.h"

#include <stdlib.h>
#include <string.h>

/* Deeper nesting than this is refused: decoding is recursive. */
#define MAX_DEPTH 64

struct contents {
    int integers, addresses, types, combiner;
    int *integer;
    MPI_Aint *address;
    MPI_Datatype *type;
};

static int decode(MPI_Datatype type, int depth, struct ws_type *out);

/* A datatype with large counts (MPI 4) makes the older query fail, through the error handler of MPI_COMM_WORLD. */
static int envelope(MPI_Datatype type, struct contents *c) {
#if MPI_VERSION >= 4
    MPI_Count integers, addresses, large, types;
    if (PMPI_Type_get_envelope_c(type, &integers, &addresses, &large, &types, &c->combiner) != MPI_SUCCESS || large > 0)
        return 0;
    c->integers = (int)integers;
    c->addresses = (int)addresses;
    c->types = (int)types;
    return 1;
#else
    return PMPI_Type_get_envelope(type, &c->integers, &c->addresses, &c->types, &c->combiner) == MPI_SUCCESS;
#endif
}

static int is_predefined(const struct contents *c) {
    return c->combiner == MPI_COMBINER_NAMED || c->combiner == MPI_COMBINER_F90_REAL ||
           c->combiner == MPI_COMBINER_F90_COMPLEX || c->combiner == MPI_COMBINER_F90_INTEGER;
}

static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static int64_t plus(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* What a parent needs: a dense child has no ws_io_type until a parent asks for it. */
static ws_io_type *loops(struct ws_type *of) {
    if (of->type == NULL)
        of->type = ws_library.type_bytes(of->size);
    return of->type;
}

static int64_t extent_of(MPI_Datatype type) {
    MPI_Aint lower, extent;
    return PMPI_Type_get_extent(type, &lower, &extent) == MPI_SUCCESS ? (int64_t)extent : 0;
}

static int64_t size_of(MPI_Datatype type) {
    MPI_Count size;
    return PMPI_Type_size_x(type, &size) == MPI_SUCCESS ? (int64_t)size : -1;
}

/* Bounds are MPI's: an alignment at the end of a struct, and the markers MPI_LB and MPI_UB of old programs. */
static int with_bounds(MPI_Datatype type, struct ws_type *out) {
    MPI_Aint lower, extent;
    if (PMPI_Type_get_extent(type, &lower, &extent) != MPI_SUCCESS)
        return 0;
    ws_io_type *bounded = ws_library.type_resized(lower, extent, out->type);
    if (bounded == NULL)
        return 0;
    ws_library.type_free(out->type);
    out->type = bounded;
    return 1;
}

/* The pairs of MINLOC and MAXLOC are the only predefined datatypes with gaps: a value, then an int at its alignment. */
static int decode_pair(MPI_Datatype type, struct ws_type *out) {
    int64_t size = size_of(type), extent = extent_of(type);
    int64_t value = size - (int64_t)sizeof(int);
    if (type == MPI_LONG_DOUBLE_INT)
        value = sizeof(long double);
    else if (type != MPI_DOUBLE_INT && type != MPI_FLOAT_INT && type != MPI_LONG_INT && type != MPI_SHORT_INT)
        return 0;
    int64_t second = (value + (int64_t)sizeof(int) - 1) / (int64_t)sizeof(int) * (int64_t)sizeof(int);
    ws_io_type *parts[2] = {ws_library.type_bytes(value), ws_library.type_bytes(sizeof(int))};
    int64_t blocks[2] = {1, 1}, places[2] = {0, second};
    ws_io_type *pair = NULL;
    if (parts[0] != NULL && parts[1] != NULL)
        pair = ws_library.type_struct(2, blocks, places, (const ws_io_type *const *)parts);
    for (int i = 0; i < 2; i++)
        if (parts[i] != NULL)
            ws_library.type_free(parts[i]);
    if (pair == NULL)
        return 0;
    out->type = ws_library.type_resized(0, extent, pair);
    ws_library.type_free(pair);
    out->size = size;
    out->runs = 2;
    out->dense = 0;
    return out->type != NULL;
}

static int decode_named(MPI_Datatype type, struct ws_type *out) {
    int64_t size = size_of(type);
    if (size < 0)
        return 0;
    if (size != 0 && extent_of(type) != size)
        return decode_pair(type, out);
    *out = (struct ws_type){.size = size, .runs = size > 0, .dense = 1};
    return 1;
}

static int64_t *widened(int count, const int *values) {
    int64_t *wide = malloc(sizeof *wide * (size_t)(count > 0 ? count : 1));
    for (int i = 0; wide != NULL && i < count; i++)
        wide[i] = values[i];
    return wide;
}

/* INDEXED and its relatives: `blocks` NULL means blocks of `block`; displacements in `unit` bytes, or as addresses. */
static int indexed(int count, const int *blocks, int block, const int *places, const MPI_Aint *addresses, int64_t unit,
                   struct ws_type *of, struct ws_type *out) {
    int64_t *displacements = malloc(sizeof *displacements * (size_t)(count > 0 ? count : 1));
    int64_t *lengths = blocks != NULL ? widened(count, blocks) : NULL;
    int64_t children = 0;
    ws_io_type *child = loops(of);
    if (displacements == NULL || (blocks != NULL && lengths == NULL) || child == NULL)
        goto failed;
    for (int i = 0; i < count; i++) {
        displacements[i] = addresses != NULL ? (int64_t)addresses[i] : times(places[i], unit);
        int64_t length = blocks != NULL ? blocks[i] : block;
        children = plus(children, of->dense ? (length > 0) : times(length, of->runs));
    }
    out->type = blocks != NULL ? ws_library.type_hindexed(count, lengths, displacements, child)
                               : ws_library.type_hindexed_block(count, block, displacements, child);
    out->runs = children;
failed:
    free(displacements);
    free(lengths);
    return out->type != NULL;
}

static int vector(int count, int block, int64_t stride, int64_t unit, struct ws_type *of, struct ws_type *out) {
    if (of->dense && (count == 1 || stride == times(block, unit))) {
        *out = (struct ws_type){.size = times(times(count, block), of->size), .dense = 1};
        out->runs = out->size > 0;
        return 1;
    }
    ws_io_type *child = loops(of);
    if (child == NULL)
        return 0;
    out->type = ws_library.type_hvector(count, block, stride, child);
    out->runs = times(count, of->dense ? (block > 0) : times(block, of->runs));
    return out->type != NULL;
}

static int structure(const struct contents *c, MPI_Datatype type, int depth, struct ws_type *out) {
    int count = c->integer[0], done = 0;
    struct ws_type *fields = calloc((size_t)(count > 0 ? count : 1), sizeof *fields);
    const ws_io_type **members = calloc((size_t)(count > 0 ? count : 1), sizeof *members);
    int64_t *blocks = widened(count, c->integer + 1);
    int64_t *places = malloc(sizeof *places * (size_t)(count > 0 ? count : 1));
    if (fields == NULL || members == NULL || blocks == NULL || places == NULL)
        goto failed;
    for (int i = 0; i < count; i++) {
        places[i] = c->address[i];
        if (!decode(c->type[i], depth, &fields[i]) || (members[i] = loops(&fields[i])) == NULL)
            goto failed;
        out->runs = plus(out->runs, times(blocks[i], fields[i].runs));
    }
    out->type = ws_library.type_struct(count, blocks, places, members);
    done = out->type != NULL && with_bounds(type, out);
failed:
    for (int i = 0; fields != NULL && i < count; i++)
        if (fields[i].type != NULL)
            ws_library.type_free(fields[i].type);
    free(fields);
    free(members);
    free(blocks);
    free(places);
    return done;
}

static int subarray(const struct contents *c, struct ws_type *of, struct ws_type *out) {
    int dimensions = c->integer[0];
    int64_t *shape = widened(3 * dimensions, c->integer + 1);
    ws_io_type *child = loops(of);
    if (shape != NULL && child != NULL) {
        char order = c->integer[1 + 3 * dimensions] == MPI_ORDER_FORTRAN ? 'F' : 'C';
        out->type = ws_library.type_subarray(dimensions, shape, shape + dimensions, shape + 2 * dimensions, order, child);
        int fastest = order == 'C' ? dimensions - 1 : 0;
        out->runs = of->dense ? 1 : of->runs;
        for (int i = 0; i < dimensions; i++)
            if (i != fastest || !of->dense)
                out->runs = times(out->runs, shape[dimensions + i]);
    }
    free(shape);
    return out->type != NULL;
}

static char distribution(int value) {
    return value == MPI_DISTRIBUTE_BLOCK ? 'b' : value == MPI_DISTRIBUTE_CYCLIC ? 'c' : 'n';
}

static int darray(const struct contents *c, struct ws_type *of, struct ws_type *out) {
    const int *v = c->integer;
    int dimensions = v[2];
    const int *sizes = v + 3, *distributions = sizes + dimensions, *arguments = distributions + dimensions,
              *processes = arguments + dimensions;
    int64_t *sizes64 = widened(dimensions, sizes), *arguments64 = widened(dimensions, arguments),
            *processes64 = widened(dimensions, processes);
    char *letters = malloc((size_t)dimensions + 1);
    ws_io_type *child = loops(of);
    if (sizes64 != NULL && arguments64 != NULL && processes64 != NULL && letters != NULL && child != NULL) {
        for (int i = 0; i < dimensions; i++) {
            letters[i] = distribution(distributions[i]);
            if (arguments[i] == MPI_DISTRIBUTE_DFLT_DARG)
                arguments64[i] = -1;
        }
        char order = processes[dimensions] == MPI_ORDER_FORTRAN ? 'F' : 'C';
        out->type = ws_library.type_darray(v[0], v[1], dimensions, sizes64, letters, arguments64, processes64, order, child);
        out->runs = 1;
        for (int i = 0; i < dimensions; i++)
            out->runs = times(out->runs, sizes[i] / processes[i] + 1);
    }
    free(sizes64);
    free(arguments64);
    free(processes64);
    free(letters);
    return out->type != NULL;
}

/* Combiners with one child, `of`. */
static int derived(const struct contents *c, MPI_Datatype type, struct ws_type *of, struct ws_type *out) {
    const int *v = c->integer;
    int64_t unit = extent_of(c->type[0]);
    switch (c->combiner) {
    case MPI_COMBINER_DUP:
        *out = *of;
        of->type = NULL;
        return 1;
    case MPI_COMBINER_CONTIGUOUS:
        return vector(v[0], 1, unit, unit, of, out);
    case MPI_COMBINER_VECTOR:
        return vector(v[0], v[1], times(v[2], unit), unit, of, out);
    case MPI_COMBINER_HVECTOR:
        return vector(v[0], v[1], c->address[0], unit, of, out);
    case MPI_COMBINER_INDEXED:
        return indexed(v[0], v + 1, 0, v + 1 + v[0], NULL, unit, of, out);
    case MPI_COMBINER_HINDEXED:
        return indexed(v[0], v + 1, 0, NULL, c->address, unit, of, out);
    case MPI_COMBINER_INDEXED_BLOCK:
        return indexed(v[0], NULL, v[1], v + 2, NULL, unit, of, out);
    case MPI_COMBINER_HINDEXED_BLOCK:
        return indexed(v[0], NULL, v[1], NULL, c->address, unit, of, out);
    case MPI_COMBINER_SUBARRAY:
        return subarray(c, of, out);
    case MPI_COMBINER_DARRAY:
        return darray(c, of, out);
    case MPI_COMBINER_RESIZED: {
        ws_io_type *child = loops(of);
        out->type = child != NULL ? ws_library.type_resized(c->address[0], c->address[1], child) : NULL;
        out->runs = of->runs;
        return out->type != NULL;
    }
    default:
        (void)type;
        return 0;
    }
}

static int one_child(const struct contents *c, MPI_Datatype type, int depth, struct ws_type *out) {
    struct ws_type of = {0};
    int done = c->types == 1 && decode(c->type[0], depth, &of) && derived(c, type, &of, out);
    if (of.type != NULL)
        ws_library.type_free(of.type);
    return done;
}

/* Children that are derived were made by MPI_Type_get_contents for its caller. */
static void free_child(MPI_Datatype child) {
    struct contents c;
    /* A child with large counts is derived too. */
    if (!envelope(child, &c) || !is_predefined(&c))
        PMPI_Type_free(&child);
}

static int decode(MPI_Datatype type, int depth, struct ws_type *out) {
    struct contents c = {0};
    memset(out, 0, sizeof *out);
    if (depth > MAX_DEPTH || !envelope(type, &c))
        return 0;
    if (is_predefined(&c))
        return decode_named(type, out);
    int done = 0, told = 0;
    c.integer = malloc(sizeof(int) * (size_t)(c.integers + 1));
    c.address = malloc(sizeof(MPI_Aint) * (size_t)(c.addresses + 1));
    c.type = malloc(sizeof(MPI_Datatype) * (size_t)(c.types + 1));
    if (c.integer != NULL && c.address != NULL && c.type != NULL)
        told = PMPI_Type_get_contents(type, c.integers, c.addresses, c.types, c.integer, c.address, c.type) ==
               MPI_SUCCESS;
    if (told) {
        done = c.combiner == MPI_COMBINER_STRUCT ? structure(&c, type, depth + 1, out)
                                                 : one_child(&c, type, depth + 1, out);
        for (int i = 0; i < c.types; i++)
            free_child(c.type[i]);
    }
    free(c.integer);
    free(c.address);
    free(c.type);
    out->size = size_of(type);
    if (!done && out->type != NULL) {
        ws_library.type_free(out->type);
        out->type = NULL;
    }
    return done;
}

/* -- the cache ----------------------------------------------------------------------------------------------------- */

static int forget(MPI_Datatype type, int key, void *value, void *extra) {
    (void)type, (void)key, (void)extra;
    struct ws_type *kept = value;
    if (kept->type != NULL)
        ws_library.type_free(kept->type);
    free(kept);
    return MPI_SUCCESS;
}

static int key_of_cache(void) {
    static int key = MPI_KEYVAL_INVALID;
    if (key == MPI_KEYVAL_INVALID)
        PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget, &key, NULL);
    return key;
}

const struct ws_type *ws_type_of(MPI_Datatype type) {
    struct ws_type *kept;
    int found, key = key_of_cache();
    if (key == MPI_KEYVAL_INVALID)
        return NULL;
    if (PMPI_Type_get_attr(type, key, &kept, &found) == MPI_SUCCESS && found)
        return kept;
    kept = malloc(sizeof *kept);
    if (kept == NULL)
        return NULL;
    if (decode(type, 0, kept) && (kept->dense || kept->type != NULL)) {
        if (PMPI_Type_set_attr(type, key, kept) == MPI_SUCCESS)
            return kept;
        if (kept->type != NULL)
            ws_library.type_free(kept->type);
    }
    free(kept);
    return NULL;
}
