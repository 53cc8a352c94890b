/* Every way to send, on MPI_COMM_WORLD and on one that numbers its ranks backwards; and every way to receive. */
#include "expect.h"

#define MOST 4000

static char out[MOST], in[MOST], attached[1 << 20];
static MPI_Comm comm;
static int rank, size, to, from, partner;

/* To the next rank, `bytes` of them, received by a call that says so itself. */
static int sent(int bytes)
{
    expect_send(partner, bytes);
    return bytes;
}

static MPI_Request receive(void)
{
    MPI_Request request;
    MPI_Irecv(in, MOST, MPI_BYTE, from, MPI_ANY_TAG, comm, &request);
    return request;
}

static void blocking(void)
{
    MPI_Request request = receive();
    MPI_Send(out, sent(10), MPI_BYTE, to, 1, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    request = receive();
    MPI_Bsend(out, sent(21), MPI_BYTE, to, 1, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    request = receive();
    MPI_Ssend(out, sent(32), MPI_BYTE, to, 1, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    request = receive();
    MPI_Barrier(comm);
    MPI_Rsend(out, sent(43), MPI_BYTE, to, 1, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Sendrecv(out, sent(54), MPI_BYTE, to, 1, in, MOST, MPI_BYTE, from, 1, comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv_replace(out, sent(65), MPI_BYTE, to, 1, from, 1, comm, MPI_STATUS_IGNORE);
    expect_send(world_rank, 71);
    MPI_Sendrecv(out, 71, MPI_BYTE, rank, 1, in, MOST, MPI_BYTE, rank, 1, comm, MPI_STATUS_IGNORE);
    /* Nothing goes to MPI_PROC_NULL. */
    MPI_Send(out, 76, MPI_BYTE, MPI_PROC_NULL, 1, comm);
    MPI_Sendrecv(out, sent(0), MPI_BYTE, to, 1, in, MOST, MPI_BYTE, from, 1, comm, MPI_STATUS_IGNORE);
}

typedef int isend_fn(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);

static void immediate(void)
{
    isend_fn *kinds[] = {MPI_Isend, MPI_Ibsend, MPI_Issend, MPI_Irsend};
    for (int i = 0; i < 4; i++) {
        MPI_Request requests[2];
        requests[0] = receive();
        MPI_Barrier(comm);
        kinds[i](out, sent(100 + i), MPI_BYTE, to, 2, comm, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
}

static void persistent(void)
{
    isend_fn *kinds[] = {MPI_Send_init, MPI_Bsend_init, MPI_Ssend_init, MPI_Rsend_init};
    MPI_Request requests[2], one, unused;
    MPI_Recv_init(in, MOST, MPI_BYTE, from, 3, comm, &requests[0]);
    for (int i = 0; i < 4; i++) {
        kinds[i](out, 200 + i, MPI_BYTE, to, 3, comm, &one);
        for (int round = 0; round < 3; round++) {
            MPI_Start(&requests[0]);
            MPI_Barrier(comm);
            sent(200 + i);
            MPI_Start(&one);
            MPI_Wait(&one, MPI_STATUS_IGNORE);
            MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        }
        MPI_Request_free(&one);
    }
    MPI_Send_init(out, 300, MPI_BYTE, to, 3, comm, &requests[1]);
    MPI_Send_init(out, 301, MPI_BYTE, to, 3, comm, &unused);
    for (int round = 0; round < 3; round++) {
        sent(300);
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    MPI_Request_free(&unused);
}

static void datatypes(void)
{
    MPI_Datatype vector;
    double values[40] = {0};
    MPI_Type_vector(5, 2, 4, MPI_DOUBLE, &vector);
    MPI_Type_commit(&vector);
    MPI_Request request;
    MPI_Irecv(in, MOST, MPI_BYTE, from, 4, comm, &request);
    sent(2 * 5 * 2 * 8);
    MPI_Send(values, 2, vector, to, 4, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Type_free(&vector);
    /* A rendezvous, in several fragments. */
    int large = 300000;
    char *more = calloc(2, (size_t)large);
    MPI_Irecv(more + large, large, MPI_BYTE, from, 4, comm, &request);
    MPI_Send(more, sent(large), MPI_BYTE, to, 4, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(more);
}

/* -- receives: each message has a different size and a larger buffer ---------------------------------- */

#define MANY 70 /* more than a profiler might keep on its stack */

static void completions(void)
{
    MPI_Request requests[MANY + 1];
    MPI_Status statuses[MANY];
    int index, flag = 0, done = 0, indices[MANY];
    for (int way = 0; way < 8; way++) {
        int count = way % 4 == 0 ? 1 : MANY;
        for (int i = 0; i < count; i++)
            requests[i] = receive();
        for (int i = 0; i < count; i++) {
            MPI_Request one;
            MPI_Isend(out, sent(400 + way), MPI_BYTE, to, 6, comm, &one);
            MPI_Wait(&one, MPI_STATUS_IGNORE);
        }
        flag = done = 0;
        switch (way) {
        case 0:
            MPI_Wait(requests, statuses);
            break;
        case 1:
            for (int i = 0; i < count; i++)
                MPI_Waitany(count, requests, &index, MPI_STATUS_IGNORE);
            break;
        case 2:
            MPI_Waitall(count, requests, statuses);
            break;
        case 3:
            for (int all = 0; all < count; all += done)
                MPI_Waitsome(count, requests, &done, indices, MPI_STATUSES_IGNORE);
            break;
        case 4:
            while (!flag)
                MPI_Test(requests, &flag, MPI_STATUS_IGNORE);
            break;
        case 5:
            for (int all = 0; all < count; all += flag)
                MPI_Testany(count, requests, &index, &flag, statuses);
            break;
        case 6:
            while (!flag)
                MPI_Testall(count, requests, &flag, MPI_STATUSES_IGNORE);
            break;
        default:
            for (int all = 0; all < count; all += done)
                MPI_Testsome(count, requests, &done, indices, statuses);
        }
    }
}

static void matched(void)
{
    MPI_Message message;
    MPI_Status status;
    MPI_Request request, one;
    int flag = 0, count;
    MPI_Isend(out, sent(500), MPI_BYTE, to, 7, comm, &one);
    MPI_Mprobe(MPI_ANY_SOURCE, 7, comm, &message, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    MPI_Mrecv(in, count, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    MPI_Wait(&one, MPI_STATUS_IGNORE);
    MPI_Isend(out, sent(510), MPI_BYTE, to, 8, comm, &one);
    while (!flag)
        MPI_Improbe(from, 8, comm, &flag, &message, &status);
    MPI_Imrecv(in, MOST, MPI_BYTE, &message, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Wait(&one, MPI_STATUS_IGNORE);
    MPI_Isend(out, sent(520), MPI_BYTE, to, 9, comm, &one);
    MPI_Recv(in, MOST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, MPI_STATUS_IGNORE);
    MPI_Wait(&one, MPI_STATUS_IGNORE);
    /* A receive that is cancelled brings nothing. */
    MPI_Irecv(in, MOST, MPI_BYTE, from, 999, comm, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
}

int main(int argc, char **argv)
{
    MPI_Comm backwards;
    expect_begin(&argc, &argv);
    MPI_Buffer_attach(attached, sizeof attached);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &backwards);
    for (int round = 0; round < 2; round++) {
        comm = round == 0 ? MPI_COMM_WORLD : backwards;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        to = (rank + 1) % size;
        from = (rank + size - 1) % size;
        partner = world_of(comm, to);
        blocking();
        immediate();
        persistent();
        datatypes();
        completions();
        matched();
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Comm_free(&backwards);
    void *address;
    int length;
    MPI_Buffer_detach(&address, &length);
    expect_end(argv);
    return 0;
}
