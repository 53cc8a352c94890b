/* A ring of messages on a communicator of every constructor, each of a different size. */
#include "expect.h"

static char out[4096], in[4096];
static int next_size = 100;

/* `comm` is freed. On an inter-communicator the partner is in the other group. */
static void use(MPI_Comm comm)
{
    int rank, size, inter, bytes = next_size;
    next_size += 17;
    if (comm == MPI_COMM_NULL)
        return;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Comm_test_inter(comm, &inter);
    if (inter) {
        int remote, all[MOST_RANKS];
        MPI_Comm_remote_size(comm, &remote);
        MPI_Allgather(&world_rank, 1, MPI_INT, all, 1, MPI_INT, comm);
        if (rank < remote) {
            MPI_Sendrecv(out, bytes, MPI_BYTE, rank, 5, in, bytes, MPI_BYTE, rank, 5, comm, MPI_STATUS_IGNORE);
            expect_send(all[rank], bytes);
        }
    } else {
        int to = (rank + 1) % size, from = (rank + size - 1) % size;
        int partner = world_of(comm, to);
        MPI_Sendrecv(out, bytes, MPI_BYTE, to, 5, in, bytes, MPI_BYTE, from, 5, comm, MPI_STATUS_IGNORE);
        expect_send(partner, bytes);
    }
    MPI_Comm_free(&comm);
}

static void duplicates(void)
{
    MPI_Comm made;
    MPI_Request request;
    MPI_Comm_dup(MPI_COMM_WORLD, &made);
    use(made);
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, MPI_INFO_NULL, &made);
    use(made);
    MPI_Comm_idup(MPI_COMM_WORLD, &made, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    use(made);
}

static void parts(void)
{
    MPI_Comm made, of_part;
    MPI_Group world, group;
    int odd[MOST_RANKS], count = 0;

    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &made);
    MPI_Comm_dup(made, &of_part);
    use(made);
    use(of_part);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, -world_rank, MPI_INFO_NULL, &made);
    use(made);

    for (int i = world_size - 1; i >= 0; i--)
        if (i % 2 == 1)
            odd[count++] = i;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, count, odd, &group);
    MPI_Comm_create(MPI_COMM_WORLD, group, &made);
    use(made);
    made = MPI_COMM_NULL;
    if (world_rank % 2 == 1)
        MPI_Comm_create_group(MPI_COMM_WORLD, group, 3, &made);
    use(made);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
}

static void bridges(void)
{
    MPI_Comm half, bridge, merged, copy;
    int side = world_rank < world_size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, side, world_rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side ? world_size / 2 : 0, 11, &bridge);
    MPI_Intercomm_merge(bridge, side, &merged);
    MPI_Comm_dup(bridge, &copy);
    use(copy);
    use(bridge);
    use(merged);
    use(half);
}

static void topologies(void)
{
    MPI_Comm made, row;
    int dims[2] = {0, 0}, periods[2] = {1, 0}, remain[2] = {0, 1};
    MPI_Dims_create(world_size, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &made);
    MPI_Cart_sub(made, remain, &row);
    use(row);
    use(made);

    int index[MOST_RANKS], edges[2 * MOST_RANKS];
    for (int i = 0; i < world_size; i++) {
        index[i] = 2 * (i + 1);
        edges[2 * i] = (i + 1) % world_size;
        edges[2 * i + 1] = (i + world_size - 1) % world_size;
    }
    MPI_Graph_create(MPI_COMM_WORLD, world_size, index, edges, 1, &made);
    use(made);

    int degree = 1, target = (world_rank + 1) % world_size, source = (world_rank + world_size - 1) % world_size;
    MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &world_rank, &degree, &target, MPI_UNWEIGHTED, MPI_INFO_NULL, 1, &made);
    use(made);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &source, MPI_UNWEIGHTED, 1, &target, MPI_UNWEIGHTED,
                                   MPI_INFO_NULL, 0, &made);
    use(made);
}

int main(int argc, char **argv)
{
    expect_begin(&argc, &argv);
    /* Twice: handles of freed communicators come back as others. */
    for (int round = 0; round < 2; round++) {
        duplicates();
        parts();
        bridges();
        topologies();
    }
    expect_end(argv);
    return 0;
}
