/* What a conjugate gradient solver sends in one iteration, as the NAS benchmark CG arranges it: ranks in a grid of
 * rows and columns, powers of two; sums of vector parts along the rows by recursive halving, an exchange with the
 * transposed place, and two scalar products along the rows. `message` is the size of a vector part.
 */
#include "harness.h"

#include <stdio.h>

struct grid {
    int rows;
    int columns;
};

static struct grid grid_of(int size)
{
    struct grid g = {1, 1};

    while (g.rows * g.columns < size) {
        if (g.columns > g.rows)
            g.rows *= 2;
        else
            g.columns *= 2;
    }
    if (g.rows * g.columns != size) {
        fprintf(stderr, "waystage program: cg runs on a power of two of processes, not on %d\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return g;
}

/* Row and column exchanged; where there are twice as many columns as rows, of pairs of columns. */
static int transposed(struct grid g, int rank)
{
    if (g.columns == g.rows)
        return rank % g.rows * g.rows + rank / g.rows;
    return 2 * (rank / 2 % g.rows * g.rows + rank / 2 / g.rows) + rank % 2;
}

static void vector_part(struct pattern *p, int partner)
{
    MPI_Sendrecv(p->send + (size_t)partner * p->message, p->message, MPI_BYTE, partner, 0,
                 p->recv + (size_t)partner * p->message, p->message, MPI_BYTE, partner, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

static void exchange(struct pattern *p)
{
    struct grid g = grid_of(p->size);
    int other = transposed(g, p->rank);

    for (int distance = g.columns / 2; distance > 0; distance /= 2)
        vector_part(p, p->rank ^ distance);
    if (other != p->rank)
        vector_part(p, other);
    for (int product = 0; product < 2; product++) {
        double mine = 1.0, theirs = 0.0;
        for (int distance = g.columns / 2; distance > 0; distance /= 2) {
            MPI_Sendrecv(&mine, 1, MPI_DOUBLE, p->rank ^ distance, 1, &theirs, 1, MPI_DOUBLE, p->rank ^ distance, 1,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            mine += theirs;
        }
        if (mine != (double)g.columns) {
            fprintf(stderr, "waystage program: rank %d has a wrong sum\n", p->rank);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static int sender(const struct pattern *p, int block)
{
    struct grid g = grid_of(p->size);
    int apart = p->rank ^ block;
    int in_row = apart > 0 && apart < g.columns && (apart & (apart - 1)) == 0;

    return in_row || (block != p->rank && block == transposed(g, p->rank)) ? block : -1;
}

int main(int argc, char **argv)
{
    return harness_main(argc, argv, exchange, sender);
}
