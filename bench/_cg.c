/* The conjugate gradient solver of the NAS Parallel Benchmarks, CG: the smallest eigenvalue of a sparse symmetric
 * matrix by inverse power iteration, whose systems are solved approximately. The matrix is one whose answer is known.
 *
 * It is the Laplacian of a random graph of some 32 weighted edges a node, and the identity: its smallest eigenvalue is
 * 1, with all elements of the eigenvector equal, and the others are near 32. So zeta, the estimate, must come to 1, the
 * eigenvector must be even, and the last system's residual small.
 *
 * Ranks are a grid of rows and columns, powers of two, and each holds a block of the matrix, as in NAS CG. A product
 * with a vector is a sum along the row (MPI_Allreduce; NAS writes it out in sends) and an exchange with the transposed
 * place (MPI_Sendrecv); a scalar product is a sum along the row.
 *
 * Arguments: a power of two of unknowns, outer iterations, inner iterations. See _mpi_job.h for what it prints. */
#define _GNU_SOURCE
#include "_mpi_job.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HALF_DEGREE 16
#define ZETA 1.0
#define ZETA_ERROR 1e-7
#define RESIDUAL 1e-5
#define UNEVEN 1e-4

struct block {
    uint32_t row, rows, column, columns; /* first index and number */
    uint32_t *begins, *at;
    double *value;
};

struct grid {
    int rank, rows, columns, partner;
    MPI_Comm row;
    double *sum;        /* of a block's rows */
    uint32_t piece;     /* elements to and from the transposed place */
    uint32_t offset;    /* of what goes there, in `sum` */
};

static void *zeros(size_t count, size_t size)
{
    void *found = calloc(count + 1, size);
    if (found == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    return found;
}

/* The node to which edge k of node i leads: a permutation of `bits` bits for each k. */
static uint32_t neighbour(uint32_t i, uint32_t k, unsigned bits)
{
    uint32_t mask = (1u << bits) - 1;
    i = ((i ^ (k * 0x9e3779b9u)) * ((2 * k + 1) * 0x9e3779b1u)) & mask;
    i ^= i >> (bits / 2);
    i = (i * 0x85ebca6bu) & mask;
    return i ^ i >> (bits / 2);
}

static double weight(uint32_t i, uint32_t k)
{
    return 0.5 + ((i * 2654435761u ^ k * 40503u) >> 22) / 1024.0;
}

static int inside(uint32_t i, uint32_t first, uint32_t count)
{
    return i - first < count;
}

static void put(struct block *b, uint32_t *next, uint32_t i, uint32_t j, double value)
{
    if (!inside(i, b->row, b->rows) || !inside(j, b->column, b->columns))
        return;
    uint32_t at = next[i - b->row]++;
    if (b->value != NULL) {
        b->at[at] = j - b->column;
        b->value[at] = value;
    }
}

/* All elements of the matrix go by; those of the block are put where `next` says, or counted while it has no values. */
static void entries(struct block *b, uint32_t *next, uint32_t n, unsigned bits)
{
    double *diagonal = zeros(n, sizeof *diagonal);
    for (uint32_t k = 0; k < HALF_DEGREE; k++)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t j = neighbour(i, k, bits);
            double w = weight(i, k);
            if (i == j)
                continue;
            diagonal[i] += w;
            diagonal[j] += w;
            put(b, next, i, j, -w);
            put(b, next, j, i, -w);
        }
    for (uint32_t i = 0; i < n; i++)
        put(b, next, i, i, ZETA + diagonal[i]);
    free(diagonal);
}

static void build(struct block *b, uint32_t n, unsigned bits)
{
    uint32_t *next = zeros(b->rows, sizeof *next);
    entries(b, next, n, bits);
    b->begins = zeros(b->rows, sizeof *b->begins);
    for (uint32_t i = 0; i < b->rows; i++)
        b->begins[i + 1] = b->begins[i] + next[i];
    b->at = zeros(b->begins[b->rows], sizeof *b->at);
    b->value = zeros(b->begins[b->rows], sizeof *b->value);
    memcpy(next, b->begins, b->rows * sizeof *next);
    entries(b, next, n, bits);
    free(next);
}

/* `out` and `in` are the parts of vectors that belong to the block's columns; ranks of a column have the same. */
static void multiply(const struct block *b, const struct grid *g, const double *in, double *out)
{
    for (uint32_t i = 0; i < b->rows; i++) {
        double sum = 0;
        for (uint32_t at = b->begins[i]; at < b->begins[i + 1]; at++)
            sum += b->value[at] * in[b->at[at]];
        g->sum[i] = sum;
    }
    MPI_Allreduce(MPI_IN_PLACE, g->sum, (int)b->rows, MPI_DOUBLE, MPI_SUM, g->row);
    MPI_Sendrecv(g->sum + g->offset, (int)g->piece, MPI_DOUBLE, g->partner, 1, out, (int)g->piece, MPI_DOUBLE,
                 g->partner, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double product(const struct grid *g, uint32_t count, const double *a, const double *b)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, g->row);
    return sum;
}

/* z of A z = x, approximately; returns the norm of the residual. Names as in NAS. */
static double solve(const struct block *b, const struct grid *g, int inner, const double *x, double *z)
{
    uint32_t count = b->columns;
    double *r = zeros(count, sizeof *r), *p = zeros(count, sizeof *p), *q = zeros(count, sizeof *q);

    memset(z, 0, count * sizeof *z);
    memcpy(r, x, count * sizeof *r);
    memcpy(p, x, count * sizeof *p);
    double rho = product(g, count, r, r);
    for (int i = 0; i < inner && rho > 0; i++) {
        multiply(b, g, p, q);
        double alpha = rho / product(g, count, p, q), before = rho;
        for (uint32_t at = 0; at < count; at++) {
            z[at] += alpha * p[at];
            r[at] -= alpha * q[at];
        }
        rho = product(g, count, r, r);
        for (uint32_t at = 0; at < count; at++)
            p[at] = r[at] + rho / before * p[at];
    }
    multiply(b, g, z, q);
    for (uint32_t at = 0; at < count; at++)
        r[at] = x[at] - q[at];
    rho = product(g, count, r, r);
    free(r);
    free(p);
    free(q);
    return sqrt(rho);
}

static struct grid grid_of(int rank, int ranks, uint32_t n)
{
    struct grid g = {.rank = rank, .rows = 1, .columns = 1};
    while (g.rows * g.columns < ranks)
        *(g.columns > g.rows ? &g.rows : &g.columns) *= 2;
    if (g.rows * g.columns != ranks) {
        fprintf(stderr, "cg runs on a power of two of processes, not on %d\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int row = rank / g.columns, column = rank % g.columns, times = g.columns / g.rows;
    MPI_Comm_split(MPI_COMM_WORLD, row, column, &g.row);
    g.partner = column / times * g.columns + times * row + column % times;
    g.piece = n / (uint32_t)g.columns;
    g.offset = g.piece * (uint32_t)(column % times);
    g.sum = zeros(n / (uint32_t)g.rows, sizeof *g.sum);
    return g;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint32_t n = argc > 1 ? (uint32_t)atol(argv[1]) : 1024;
    int outer = argc > 2 ? atoi(argv[2]) : 5, inner = argc > 3 ? atoi(argv[3]) : 10;
    unsigned bits = 0;
    while (n >> bits > 1)
        bits++;
    if (n != 1u << bits || n < 64 || (int)n < ranks || outer < 1 || inner < 1)
        MPI_Abort(MPI_COMM_WORLD, 2);

    struct grid g = grid_of(rank, ranks, n);
    struct block b = {.rows = n / (uint32_t)g.rows, .columns = n / (uint32_t)g.columns};
    b.row = (uint32_t)(rank / g.columns) * b.rows;
    b.column = (uint32_t)(rank % g.columns) * b.columns;
    build(&b, n, bits);
    double *x = zeros(b.columns, sizeof *x), *z = zeros(b.columns, sizeof *z);
    for (uint32_t i = 0; i < b.columns; i++)
        x[i] = weight(b.column + i, HALF_DEGREE);

    double began = job_begins(rank), zeta = 0, residual = 0;
    for (int i = 0; i < outer; i++) {
        double norm = 1 / sqrt(product(&g, b.columns, x, x));
        for (uint32_t at = 0; at < b.columns; at++)
            x[at] *= norm;
        residual = solve(&b, &g, inner, x, z);
        zeta = 1 / product(&g, b.columns, x, z);
        norm = 1 / sqrt(product(&g, b.columns, z, z));
        for (uint32_t at = 0; at < b.columns; at++)
            x[at] = norm * z[at];
    }
    /* Not-a-number is wrong as well. */
    long wrong = !(fabs(zeta - ZETA) < ZETA_ERROR) + !(residual < RESIDUAL);
    for (uint32_t at = 0; at < b.columns; at++)
        wrong += !(fabs(x[at] * sqrt(n) - 1) < UNEVEN);
    if (rank == 0)
        fprintf(stderr, "zeta %.12f, residual %.3g\n", zeta, residual);
    job_ends(rank, began, wrong);
    MPI_Finalize();
    return 0;
}
