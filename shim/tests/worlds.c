/* The program starts two more worlds of two ranks, which live at the same time, and then a third. In world k rank 0
 * sends 100 k bytes to rank 1; the program itself is world 0 and sends 7. The first argument ends the third world:
 * "end" as is due, or "kill", where its rank 1 is killed once it has received.
 */
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static char data[1000];

static MPI_Comm start(char *program, char *number, char *how)
{
    MPI_Comm between;
    char *arguments[] = {how, number, NULL};
    MPI_Comm_spawn(program, arguments, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &between, MPI_ERRCODES_IGNORE);
    return between;
}

int main(int argc, char **argv)
{
    MPI_Comm parent;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&parent);
    int world = parent == MPI_COMM_NULL ? 0 : atoi(argv[2]), bytes = world == 0 ? 7 : 100 * world;
    if (rank == 0)
        MPI_Send(data, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    if (rank == 1)
        MPI_Recv(data, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (world != 0) {
        /* The second is there before the first ends. */
        MPI_Barrier(parent);
        MPI_Comm_disconnect(&parent);
        if (world == 3 && rank == 1 && strcmp(argv[1], "kill") == 0)
            raise(SIGKILL);
    } else {
        MPI_Comm first = start(argv[0], "1", "end"), second = start(argv[0], "2", "end");
        MPI_Barrier(first);
        MPI_Barrier(second);
        MPI_Comm_disconnect(&first);
        MPI_Comm_disconnect(&second);
        MPI_Comm third = start(argv[0], "3", argv[1]);
        MPI_Barrier(third);
        MPI_Comm_disconnect(&third);
    }
    MPI_Finalize();
    return 0;
}
