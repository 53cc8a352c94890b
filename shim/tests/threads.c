/* Several threads in MPI at once, each with messages of a different size to the next rank; threads come and go. */
#define _XOPEN_SOURCE 700
#include "expect.h"

#include <pthread.h>

#define THREADS 4
#define ROUNDS 3
#define EACH 500

static void *talk(void *argument)
{
    int tag = (int)(long)argument, bytes = 10 + tag;
    int to = (world_rank + 1) % world_size, from = (world_rank + world_size - 1) % world_size;
    char out[64] = {0}, in[64];
    for (int i = 0; i < EACH; i++) {
        MPI_Request request;
        MPI_Irecv(in, sizeof in, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
        MPI_Send(out, bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    if (level != MPI_THREAD_MULTIPLE)
        return 77;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        for (long i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, talk, (void *)i);
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            for (int n = 0; n < EACH; n++)
                expect_send((world_rank + 1) % world_size, 10 + i);
        }
    }
    expect_end(argv);
    return 0;
}
