/* Every rank sends `message` bytes to its right neighbour (MPI_Sendrecv). */
#include "harness.h"

static int left_of(const struct pattern *p)
{
    return (p->rank + p->size - 1) % p->size;
}

static void exchange(struct pattern *p)
{
    int right = (p->rank + 1) % p->size;

    MPI_Sendrecv(p->send + (size_t)right * p->message, p->message, MPI_BYTE, right, 0, p->recv, p->message, MPI_BYTE,
                 left_of(p), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int sender(const struct pattern *p, int block)
{
    return block == 0 ? left_of(p) : -1;
}

int main(int argc, char **argv)
{
    return harness_main(argc, argv, exchange, sender);
}
