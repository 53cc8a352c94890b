/* See pml.h. */
#define _GNU_SOURCE
#include "pml.h"

#include <mpi.h>

#ifdef OPEN_MPI

#include <dlfcn.h>

#include "api.h"
#include "classify.h"
#include "comms.h"
#include "completion.h"
#include "kinds.h"
#include "record.h"
#include "requests.h"
#include "watch.h"

#define CALLER __builtin_return_address(0)
#define TEST_TAG 0x5753
#define TEST_BYTES 3

/* mca_pml_base_module_t, ompi/mca/pml/pml.h of Open MPI 4.0 to 5.0: first this, then, where it was built to outlive
 * the failure of processes, as 5.0 is, a function to revoke communicators.
 */
struct pml_of_comms {
    void *add_procs, *del_procs, *enable, *progress;
    int (*add_comm)(MPI_Comm);
    int (*del_comm)(MPI_Comm);
};

/* Then this, and more. */
struct pml {
    int (*irecv_init)(void *, size_t, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    int (*irecv)(void *, size_t, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    int (*recv)(void *, size_t, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
    int (*isend_init)(const void *, size_t, MPI_Datatype, int, int, int, MPI_Comm, MPI_Request *);
    int (*isend)(const void *, size_t, MPI_Datatype, int, int, int, MPI_Comm, MPI_Request *);
    int (*send)(const void *, size_t, MPI_Datatype, int, int, int, MPI_Comm);
    int (*iprobe)(int, int, MPI_Comm, int *, MPI_Status *);
    void *probe;
    int (*start)(size_t, MPI_Request *);
    int (*improbe)(int, int, MPI_Comm, int *, MPI_Message *, MPI_Status *);
    int (*mprobe)(int, int, MPI_Comm, MPI_Message *, MPI_Status *);
    int (*imrecv)(void *, size_t, MPI_Datatype, MPI_Message *, MPI_Request *);
    int (*mrecv)(void *, size_t, MPI_Datatype, MPI_Message *, MPI_Status *);
};

static struct pml_of_comms *of_comms; /* Open MPI's */
static struct pml *table;             /* likewise */
static struct pml own, real;
static int (*real_add_comm)(MPI_Comm), (*real_del_comm)(MPI_Comm);
static bool active, receives;

/* What the message to itself showed. */
static struct {
    bool running, probe, send, receive;
} test;

static bool is_test(size_t count, MPI_Datatype type, int rank, int tag, MPI_Comm comm)
{
    return count == TEST_BYTES && type == mpi.byte && rank == 0 && tag == TEST_TAG && comm == mpi.self;
}

static uint64_t bytes_of(size_t count, MPI_Datatype type)
{
    MPI_Count size = 1;
    if (type != mpi.byte && mpi.Type_size_x(type, &size) != MPI_SUCCESS)
        return 0;
    return (uint64_t)size * count;
}

/* -- sends ------------------------------------------------------------------------------------------ */

/* Components carry out parts of a collective as non-blocking ones, on communicators of their making. */
static __attribute__((noinline)) void watch_send(struct recorder *recorder, uint64_t bytes, int rank, int tag,
                                                 MPI_Comm comm)
{
    bool blocking = tag <= CLASSIFY_FIRST_TAG && tag >= CLASSIFY_LAST_BLOCKING_TAG;
    if (blocking || (tag < CLASSIFY_LAST_BLOCKING_TAG && watch_is_internal(comm)))
        watch_note(comm_peer(recorder, comm, rank), bytes);
}

static inline __attribute__((always_inline)) void count_send(size_t count, MPI_Datatype type, int rank, int tag,
                                                             MPI_Comm comm, const void *caller)
{
    if (__builtin_expect(test.running, 0)) {
        test.send |= is_test(count, type, rank, tag, comm);
        return;
    }
    struct recorder *recorder = recorder_get();
    if (recorder == NULL)
        return;
    recorder->activity++;
    if (watch_on())
        watch_send(recorder, bytes_of(count, type), rank, tag, comm);
    if (watch_only)
        return;
    uint64_t bytes = bytes_of(count, type);
    uint32_t peer = comm_peer(recorder, comm, rank);
    if (__builtin_expect(peer == PEER_OUTSIDE, 0)) {
        recorder->outside_messages++;
        recorder->outside_bytes += bytes;
        return;
    }
    record(recorder, SENT, peer, classify(recorder, comm, tag, caller), bytes);
}

static int own_send(const void *buffer, size_t count, MPI_Datatype type, int rank, int tag, int mode, MPI_Comm comm)
{
    count_send(count, type, rank, tag, comm, CALLER);
    return real.send(buffer, count, type, rank, tag, mode, comm);
}

static int own_isend(const void *buffer, size_t count, MPI_Datatype type, int rank, int tag, int mode, MPI_Comm comm,
                     MPI_Request *request)
{
    count_send(count, type, rank, tag, comm, CALLER);
    return real.isend(buffer, count, type, rank, tag, mode, comm, request);
}

static int own_isend_init(const void *buffer, size_t count, MPI_Datatype type, int rank, int tag, int mode,
                          MPI_Comm comm, MPI_Request *request)
{
    const void *caller = CALLER;
    int result = real.isend_init(buffer, count, type, rank, tag, mode, comm, request);
    struct recorder *recorder = recorder_get();
    if (result != MPI_SUCCESS || recorder == NULL || watch_only)
        return result;
    struct request known = {
        .key = (uintptr_t)*request,
        .type = REQUEST_PERSISTENT_SEND,
        .bytes = bytes_of(count, type),
        .peer = comm_peer(recorder, comm, rank),
        .kind = (uint8_t)classify(recorder, comm, tag, caller),
    };
    if (!request_put(&known))
        recorder->lost_messages++;
    return result;
}

/* The library's own persistent requests; the program's are seen where it calls MPI_Start, which does not come here in
 * Open MPI 4.
 */
static int own_start(size_t count, MPI_Request *requests)
{
    struct recorder *recorder = recorder_get();
    if (recorder != NULL && recorder->calls == 0) {
        for (size_t i = 0; i < count; i++) {
            struct request known;
            if (request_activate((uintptr_t)requests[i]) || !request_get((uintptr_t)requests[i], &known) ||
                known.type != REQUEST_PERSISTENT_SEND)
                continue;
            recorder->activity++;
            if (known.peer != PEER_OUTSIDE)
                record(recorder, SENT, known.peer, known.kind, known.bytes);
        }
    }
    return real.start(count, requests);
}

/* -- receives --------------------------------------------------------------------------------------- */

static struct recorder *note_receive(void)
{
    struct recorder *recorder = recorder_get();
    if (recorder == NULL)
        return NULL;
    recorder->activity++;
    return recorder;
}

static void remember(struct recorder *recorder, MPI_Request request, enum request_type type, uintptr_t comm, int kind)
{
    struct request known = {.key = (uintptr_t)request, .type = (uint8_t)type, .comm = comm, .kind = (uint8_t)kind};
    if (!request_put(&known))
        recorder->lost_messages++;
}

static int own_recv(void *buffer, size_t count, MPI_Datatype type, int rank, int tag, MPI_Comm comm, MPI_Status *status)
{
    const void *caller = CALLER;
    struct recorder *recorder = receives ? note_receive() : NULL;
    MPI_Status local, *seen = status == MPI_STATUS_IGNORE ? &local : status;
    if (recorder == NULL)
        return real.recv(buffer, count, type, rank, tag, comm, status);
    int result = real.recv(buffer, count, type, rank, tag, comm, seen);
    if (result == MPI_SUCCESS)
        completion_count(recorder, comm_key(comm), classify(recorder, comm, tag, caller), seen);
    return result;
}

static int own_irecv(void *buffer, size_t count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
                     MPI_Request *request)
{
    const void *caller = CALLER;
    if (__builtin_expect(test.running, 0))
        test.receive |= is_test(count, type, rank, tag, comm);
    int result = real.irecv(buffer, count, type, rank, tag, comm, request);
    struct recorder *recorder = result == MPI_SUCCESS ? note_receive() : NULL;
    if (recorder == NULL || !receives)
        return result;
    int kind = classify(recorder, comm, tag, caller);
    if (kind == KIND_RMA_PROTOCOL)
        return result;
    if ((tag < CLASSIFY_LAST_BLOCKING_TAG || kind == KIND_SETUP) && rank >= 0) {
        /* Non-blocking collectives, and what makes communicators, look into their requests themselves, so their
         * completion is not seen. They know what will come: what is asked for is what is received.
         */
        uint32_t peer = comm_peer(recorder, comm, rank);
        if (peer != PEER_OUTSIDE)
            record(recorder, RECEIVED, peer, kind, bytes_of(count, type));
    } else {
        remember(recorder, *request, REQUEST_RECEIVE, comm_key(comm), kind);
    }
    return result;
}

static int own_irecv_init(void *buffer, size_t count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
                          MPI_Request *request)
{
    const void *caller = CALLER;
    int result = real.irecv_init(buffer, count, type, rank, tag, comm, request);
    struct recorder *recorder = result == MPI_SUCCESS ? note_receive() : NULL;
    if (recorder != NULL && receives)
        remember(recorder, *request, REQUEST_PERSISTENT_RECEIVE, comm_key(comm),
                 classify(recorder, comm, tag, caller));
    return result;
}

/* A matched message does not tell its communicator, so it is remembered from the probe. */
static void matched(MPI_Message message, MPI_Comm comm, int tag, const void *caller)
{
    struct recorder *recorder = recorder_get();
    if (recorder == NULL || !receives || message == NULL)
        return;
    struct request known = {
        .key = (uintptr_t)message,
        .type = REQUEST_RECEIVE,
        .comm = comm_key(comm),
        .kind = (uint8_t)classify(recorder, comm, tag, caller),
    };
    request_put(&known);
}

static int own_improbe(int rank, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status)
{
    int result = real.improbe(rank, tag, comm, flag, message, status);
    if (result == MPI_SUCCESS && *flag)
        matched(*message, comm, tag, CALLER);
    return result;
}

static int own_mprobe(int rank, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status)
{
    int result = real.mprobe(rank, tag, comm, message, status);
    if (result == MPI_SUCCESS)
        matched(*message, comm, tag, CALLER);
    return result;
}

static int own_mrecv(void *buffer, size_t count, MPI_Datatype type, MPI_Message *message, MPI_Status *status)
{
    struct request known = {0};
    bool found = request_complete((uintptr_t)*message, &known);
    struct recorder *recorder = found ? note_receive() : NULL;
    MPI_Status local, *seen = status == MPI_STATUS_IGNORE ? &local : status;
    if (recorder == NULL)
        return real.mrecv(buffer, count, type, message, status);
    int result = real.mrecv(buffer, count, type, message, seen);
    if (result == MPI_SUCCESS)
        completion_count(recorder, known.comm, known.kind, seen);
    return result;
}

static int own_imrecv(void *buffer, size_t count, MPI_Datatype type, MPI_Message *message, MPI_Request *request)
{
    struct request known = {0};
    bool found = request_complete((uintptr_t)*message, &known);
    int result = real.imrecv(buffer, count, type, message, request);
    struct recorder *recorder = found && result == MPI_SUCCESS ? note_receive() : NULL;
    if (recorder != NULL)
        remember(recorder, *request, REQUEST_RECEIVE, known.comm, known.kind);
    return result;
}

/* -- the rest --------------------------------------------------------------------------------------- */

static int own_add_comm(MPI_Comm comm)
{
    struct recorder *recorder = recorder_get();
    if (recorder != NULL && recorder->scope != 0 && recorder->hint == 0)
        watch_made(comm);
    return real_add_comm(comm);
}

static int own_del_comm(MPI_Comm comm)
{
    watch_gone(comm);
    comm_forget(comm);
    classify_forget(comm);
    return real_del_comm(comm);
}

static int own_iprobe(int rank, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    test.probe |= rank == 0 && tag == TEST_TAG && comm == mpi.self && flag != NULL;
    return real.iprobe(rank, tag, comm, flag, status);
}

static void install(void)
{
    *table = own;
    of_comms->add_comm = own_add_comm;
    of_comms->del_comm = own_del_comm;
}

static void remove_again(void)
{
    *table = real;
    of_comms->add_comm = real_add_comm;
    of_comms->del_comm = real_del_comm;
}

/* First a call of probe, which sends nothing: the table has this form. Then a message from this rank to itself. */
static bool form_is_known(void)
{
    int flag;
    char out[TEST_BYTES] = "ws", in[TEST_BYTES];
    MPI_Status status;

    test.running = true;
    table->iprobe = own_iprobe;
    mpi.Iprobe(0, TEST_TAG, mpi.self, &flag, &status);
    table->iprobe = real.iprobe;
    if (test.probe) {
        install();
        mpi.Sendrecv(out, TEST_BYTES, mpi.byte, 0, TEST_TAG, in, TEST_BYTES, mpi.byte, 0, TEST_TAG, mpi.self, &status);
    }
    test.running = false;
    return test.probe && test.send && test.receive;
}

static bool try_form(void *at)
{
    table = at;
    real = own = *table;
    own.irecv_init = own_irecv_init;
    own.irecv = own_irecv;
    own.recv = own_recv;
    own.isend_init = own_isend_init;
    own.isend = own_isend;
    own.send = own_send;
    own.start = own_start;
    own.improbe = own_improbe;
    own.mprobe = own_mprobe;
    own.imrecv = own_imrecv;
    own.mrecv = own_mrecv;
    if (form_is_known())
        return true;
    if (test.probe)
        remove_again();
    return false;
}

bool pml_start(void)
{
    of_comms = dlsym(mpi.handle, "mca_pml");
    if (of_comms == NULL)
        return false;
    real_add_comm = of_comms->add_comm;
    real_del_comm = of_comms->del_comm;
    active = try_form(of_comms + 1) || try_form((void **)(of_comms + 1) + 1);
    if (active && !watch_only)
        receives = completion_start();
    return active;
}

bool pml_sees_receives(void)
{
    return receives;
}

void pml_stop(void)
{
    if (!active)
        return;
    remove_again();
    completion_stop();
    active = receives = false;
}

#else

bool pml_start(void)
{
    return false;
}

bool pml_sees_receives(void)
{
    return false;
}

void pml_stop(void)
{
}

#endif
