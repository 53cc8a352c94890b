/* Fifty iterations of MPI_Bcast, then fifty of MPI_Reduce, by turns: the program of chapter 4 of the dissertation. */
#include "harness.h"

#include <string.h>

#define TOGETHER 50 /* python/waystage/experiment/programs.py */

static void exchange(struct pattern *p)
{
    static long iteration;
    if (iteration++ / TOGETHER % 2 == 0) {
        memcpy(p->recv, p->send, (size_t)p->message);
        MPI_Bcast(p->recv, p->message, MPI_BYTE, 0, MPI_COMM_WORLD);
    } else {
        MPI_Reduce(p->send, p->recv, p->message, MPI_BYTE, MPI_BOR, 0, MPI_COMM_WORLD);
    }
    check_one_value(p);
}

int main(int argc, char **argv)
{
    return harness_main(argc, argv, exchange, no_sender);
}
