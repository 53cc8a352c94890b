/* Every one-sided operation, in windows of every constructor, in epochs of every kind. */
#include "expect.h"

#define CELLS 64

static int to;
static double values[CELLS], fetched[CELLS];

static void all_operations(MPI_Win win, MPI_Aint base)
{
    MPI_Put(values, 3, MPI_DOUBLE, to, base, 3, MPI_DOUBLE, win);
    expect("put", world_rank, to, 24);
    MPI_Get(fetched, 4, MPI_DOUBLE, to, base + 8, 4, MPI_DOUBLE, win);
    expect("get", to, world_rank, 32);
    MPI_Accumulate(values, 5, MPI_DOUBLE, to, base + 16, 5, MPI_DOUBLE, MPI_SUM, win);
    expect("accumulate", world_rank, to, 40);
}

static void with_request(MPI_Win win)
{
    MPI_Request requests[4];
    MPI_Rput(values, 1, MPI_DOUBLE, to, 0, 1, MPI_DOUBLE, win, &requests[0]);
    expect("put", world_rank, to, 8);
    MPI_Rget(fetched, 2, MPI_DOUBLE, to, 8, 2, MPI_DOUBLE, win, &requests[1]);
    expect("get", to, world_rank, 16);
    MPI_Raccumulate(values, 1, MPI_DOUBLE, to, 16, 1, MPI_DOUBLE, MPI_SUM, win, &requests[2]);
    expect("accumulate", world_rank, to, 8);
    MPI_Rget_accumulate(values, 1, MPI_DOUBLE, fetched + 8, 1, MPI_DOUBLE, to, 24, 1, MPI_DOUBLE, MPI_SUM, win,
                        &requests[3]);
    expect("accumulate", world_rank, to, 8);
    expect("get", to, world_rank, 8);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static void atomics(MPI_Win win)
{
    double one = 1, result;
    long compare = 0, value = 1, old;
    MPI_Get_accumulate(values, 2, MPI_DOUBLE, fetched, 2, MPI_DOUBLE, to, 0, 2, MPI_DOUBLE, MPI_SUM, win);
    expect("accumulate", world_rank, to, 16);
    expect("get", to, world_rank, 16);
    MPI_Get_accumulate(NULL, 0, MPI_DOUBLE, fetched, 2, MPI_DOUBLE, to, 0, 2, MPI_DOUBLE, MPI_NO_OP, win);
    expect("get", to, world_rank, 16);
    MPI_Fetch_and_op(&one, &result, MPI_DOUBLE, to, 32, MPI_SUM, win);
    expect("accumulate", world_rank, to, 8);
    expect("get", to, world_rank, 8);
    MPI_Compare_and_swap(&value, &compare, &old, MPI_LONG, to, 40, win);
    expect("accumulate", world_rank, to, 16);
    expect("get", to, world_rank, 8);
}

static void epochs(MPI_Win win, MPI_Aint base)
{
    MPI_Win_fence(0, win);
    all_operations(win, base);
    MPI_Win_fence(0, win);
    MPI_Win_lock(MPI_LOCK_SHARED, to, 0, win);
    all_operations(win, base);
    MPI_Win_unlock(to, win);
}

int main(int argc, char **argv)
{
    MPI_Win win;
    void *memory;
    expect_begin(&argc, &argv);
    to = (world_rank + 1) % world_size;
    int from = (world_rank + world_size - 1) % world_size;

    double *own = calloc(CELLS, sizeof *own);
    MPI_Win_create(own, CELLS * sizeof *own, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    epochs(win, 0);
    MPI_Group world, origin, target;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &from, &origin);
    MPI_Group_incl(world, 1, &to, &target);
    MPI_Win_post(origin, 0, win);
    MPI_Win_start(target, 0, win);
    all_operations(win, 0);
    MPI_Win_complete(win);
    MPI_Win_wait(win);
    MPI_Group_free(&world);
    MPI_Group_free(&origin);
    MPI_Group_free(&target);
    MPI_Win_free(&win);

    MPI_Win_allocate(CELLS * sizeof *own, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
    MPI_Win_lock_all(0, win);
    with_request(win);
    /* Not everywhere: Open MPI 4.1.4 emulates these over shared memory, and crashes, with and without a profiler. */
    if (argc > 2)
        atomics(win);
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);

    /* Ranks are numbered backwards here. */
    MPI_Comm backwards;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &backwards);
    MPI_Win_allocate(CELLS * sizeof *own, 1, MPI_INFO_NULL, backwards, &memory, &win);
    MPI_Win_fence(0, win);
    MPI_Put(values, 7, MPI_DOUBLE, world_size - 1 - to, 0, 7, MPI_DOUBLE, win);
    expect("put", world_rank, to, 56);
    MPI_Win_fence(0, win);
    MPI_Win_free(&win);
    MPI_Comm_free(&backwards);

    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Aint address, remote;
    MPI_Win_attach(win, own, CELLS * sizeof *own);
    MPI_Get_address(own, &address);
    MPI_Sendrecv(&address, 1, MPI_AINT, from, 0, &remote, 1, MPI_AINT, to, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect_send(from, sizeof address);
    epochs(win, remote);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_detach(win, own);
    MPI_Win_free(&win);
    free(own);
    expect_end(argv);
    return 0;
}
