/* All ranks get the bitwise or of every byte (MPI_Allreduce). */
#include "harness.h"

static void exchange(struct pattern *p)
{
    MPI_Allreduce(p->send, p->recv, p->message, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
    check_one_value(p);
}

int main(int argc, char **argv)
{
    return harness_main(argc, argv, exchange, no_sender);
}
