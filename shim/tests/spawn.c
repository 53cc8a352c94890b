/* The ranks start one more process, in a separate world, and rank 0 sends it 123 bytes; within their own world each
 * sends to the next. The arguments are the files of both worlds.
 */
#include "expect.h"

int main(int argc, char **argv)
{
    MPI_Comm parent, between;
    char data[200] = {0};
    expect_begin(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL) {
        char *arguments[] = {argv[2], NULL};
        MPI_Comm_spawn(argv[0], arguments, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &between, MPI_ERRCODES_IGNORE);
        if (world_rank == 0)
            MPI_Send(data, 123, MPI_BYTE, 0, 1, between);
        int to = (world_rank + 1) % world_size, from = (world_rank + world_size - 1) % world_size;
        MPI_Sendrecv(data, 10, MPI_BYTE, to, 1, data + 100, 10, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect_send(to, 10);
    } else {
        between = parent;
        MPI_Recv(data, 200, MPI_BYTE, 0, 1, between, MPI_STATUS_IGNORE);
    }
    MPI_Comm_disconnect(&between);
    expect_end(argv);
    return 0;
}
