/* Every collective operation, blocking and not; those of a process topology send what they say to whom they say. */
#include "expect.h"

#define EACH 12

static int send[MOST_RANKS * EACH], recv[MOST_RANKS * EACH], counts[MOST_RANKS], places[MOST_RANKS];
static MPI_Datatype types[MOST_RANKS];
static int byte_places[MOST_RANKS];

static void blocking(MPI_Comm c)
{
    MPI_Barrier(c);
    MPI_Bcast(send, EACH, MPI_INT, 0, c);
    MPI_Gather(send, EACH, MPI_INT, recv, EACH, MPI_INT, 0, c);
    MPI_Gatherv(send, EACH, MPI_INT, recv, counts, places, MPI_INT, 0, c);
    MPI_Scatter(send, EACH, MPI_INT, recv, EACH, MPI_INT, 0, c);
    MPI_Scatterv(send, counts, places, MPI_INT, recv, EACH, MPI_INT, 0, c);
    MPI_Allgather(send, EACH, MPI_INT, recv, EACH, MPI_INT, c);
    MPI_Allgatherv(send, EACH, MPI_INT, recv, counts, places, MPI_INT, c);
    MPI_Alltoall(send, EACH, MPI_INT, recv, EACH, MPI_INT, c);
    MPI_Alltoallv(send, counts, places, MPI_INT, recv, counts, places, MPI_INT, c);
    MPI_Alltoallw(send, counts, byte_places, types, recv, counts, byte_places, types, c);
    MPI_Reduce(send, recv, EACH, MPI_INT, MPI_SUM, 0, c);
    MPI_Allreduce(send, recv, EACH, MPI_INT, MPI_SUM, c);
    MPI_Reduce_scatter(send, recv, counts, MPI_INT, MPI_SUM, c);
    MPI_Reduce_scatter_block(send, recv, EACH, MPI_INT, MPI_SUM, c);
    MPI_Scan(send, recv, EACH, MPI_INT, MPI_SUM, c);
    MPI_Exscan(send, recv, EACH, MPI_INT, MPI_SUM, c);
}

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        MPI_Request q;                                                                                                 \
        call;                                                                                                          \
        MPI_Wait(&q, MPI_STATUS_IGNORE);                                                                               \
    } while (0)

static void nonblocking(MPI_Comm c)
{
    DO(MPI_Ibarrier(c, &q));
    DO(MPI_Ibcast(send, EACH, MPI_INT, 0, c, &q));
    DO(MPI_Igather(send, EACH, MPI_INT, recv, EACH, MPI_INT, 0, c, &q));
    DO(MPI_Igatherv(send, EACH, MPI_INT, recv, counts, places, MPI_INT, 0, c, &q));
    DO(MPI_Iscatter(send, EACH, MPI_INT, recv, EACH, MPI_INT, 0, c, &q));
    DO(MPI_Iscatterv(send, counts, places, MPI_INT, recv, EACH, MPI_INT, 0, c, &q));
    DO(MPI_Iallgather(send, EACH, MPI_INT, recv, EACH, MPI_INT, c, &q));
    DO(MPI_Iallgatherv(send, EACH, MPI_INT, recv, counts, places, MPI_INT, c, &q));
    DO(MPI_Ialltoall(send, EACH, MPI_INT, recv, EACH, MPI_INT, c, &q));
    DO(MPI_Ialltoallv(send, counts, places, MPI_INT, recv, counts, places, MPI_INT, c, &q));
    DO(MPI_Ialltoallw(send, counts, byte_places, types, recv, counts, byte_places, types, c, &q));
    DO(MPI_Ireduce(send, recv, EACH, MPI_INT, MPI_SUM, 0, c, &q));
    DO(MPI_Iallreduce(send, recv, EACH, MPI_INT, MPI_SUM, c, &q));
    DO(MPI_Ireduce_scatter(send, recv, counts, MPI_INT, MPI_SUM, c, &q));
    DO(MPI_Ireduce_scatter_block(send, recv, EACH, MPI_INT, MPI_SUM, c, &q));
    DO(MPI_Iscan(send, recv, EACH, MPI_INT, MPI_SUM, c, &q));
    DO(MPI_Iexscan(send, recv, EACH, MPI_INT, MPI_SUM, c, &q));
}

static void expect_neighbours(const int *neighbours, int rounds)
{
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 2; i++)
            expect("neighbour", world_rank, neighbours[i], EACH * 4);
}

static void neighbours(void)
{
    MPI_Comm ring;
    int around[2] = {(world_rank + 1) % world_size, (world_rank + 2) % world_size};
    int before[2] = {(world_rank + world_size - 1) % world_size, (world_rank + world_size - 2) % world_size};
    int two[2] = {EACH, EACH}, at[2] = {0, EACH};
    MPI_Aint bytes_at[2] = {0, EACH * 4};
    MPI_Datatype kinds[2] = {MPI_INT, MPI_INT};
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, before, MPI_UNWEIGHTED, 2, around, MPI_UNWEIGHTED, MPI_INFO_NULL,
                                   0, &ring);
    MPI_Neighbor_allgather(send, EACH, MPI_INT, recv, EACH, MPI_INT, ring);
    MPI_Neighbor_allgatherv(send, EACH, MPI_INT, recv, two, at, MPI_INT, ring);
    MPI_Neighbor_alltoall(send, EACH, MPI_INT, recv, EACH, MPI_INT, ring);
    MPI_Neighbor_alltoallv(send, two, at, MPI_INT, recv, two, at, MPI_INT, ring);
    MPI_Neighbor_alltoallw(send, two, bytes_at, kinds, recv, two, bytes_at, kinds, ring);
    DO(MPI_Ineighbor_allgather(send, EACH, MPI_INT, recv, EACH, MPI_INT, ring, &q));
    DO(MPI_Ineighbor_allgatherv(send, EACH, MPI_INT, recv, two, at, MPI_INT, ring, &q));
    DO(MPI_Ineighbor_alltoall(send, EACH, MPI_INT, recv, EACH, MPI_INT, ring, &q));
    DO(MPI_Ineighbor_alltoallv(send, two, at, MPI_INT, recv, two, at, MPI_INT, ring, &q));
    DO(MPI_Ineighbor_alltoallw(send, two, bytes_at, kinds, recv, two, bytes_at, kinds, ring, &q));
    expect_neighbours(around, 10);
    MPI_Comm_free(&ring);
}

int main(int argc, char **argv)
{
    MPI_Comm backwards;
    expect_begin(&argc, &argv);
    for (int i = 0; i < world_size; i++) {
        counts[i] = EACH;
        places[i] = i * EACH;
        byte_places[i] = i * EACH * 4;
        types[i] = MPI_INT;
    }
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &backwards);
    blocking(MPI_COMM_WORLD);
    nonblocking(backwards);
    blocking(backwards);
    if (world_size > 4)
        neighbours();
    MPI_Comm_free(&backwards);
    expect_end(argv);
    return 0;
}
