/* Ranks send messages of many sizes in many phases, from two threads; then rank 1 ends itself by SIGTERM, once the
 * others have nothing more to send.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#define TIMES 1500

static char out[4096], in[2][4096];
static int rank, ranks;

static void *work(void *tag)
{
    int number = tag == NULL ? 0 : 1;
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    for (int i = 0; i < TIMES; i++) {
        MPI_Sendrecv(out, 1 << i % 13, MPI_BYTE, to, number, in[number], sizeof in[0], MPI_BYTE, from, number,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        usleep(100);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int level;
    pthread_t other;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (level == MPI_THREAD_MULTIPLE && pthread_create(&other, NULL, work, &level) == 0)
        pthread_join(other, NULL);
    work(NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        raise(SIGTERM);
    sleep(30);
    MPI_Finalize();
    return 0;
}
