/* Every rank sends `message` bytes to every other (MPI_Alltoall): what the paper's jobs do. */
#include "harness.h"

static void exchange(struct pattern *p)
{
    MPI_Alltoall(p->send, p->message, MPI_BYTE, p->recv, p->message, MPI_BYTE, MPI_COMM_WORLD);
}

static int sender(const struct pattern *p, int block)
{
    (void)p;
    return block;
}

int main(int argc, char **argv)
{
    return harness_main(argc, argv, exchange, sender);
}
