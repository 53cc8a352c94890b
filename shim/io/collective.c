#include "collective.h"
#include "say.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A control point in one message where it is short, as it nearly always is. */
#define FIRST_BYTES 1024

/* How long operations are repeated that lose their aggregators, in seconds: by then a killed one runs again. */
#define LEASE_S 60

/* FAILED: an error of MPI between the ranks, as where a rank has died; `result` has its class. */
enum outcome { DONE, LOST, UNSUPPORTED, VIEW_OF_DATATYPE, VIEW_NOT_MONOTONE, FAILED };

/* What ranks add up before an operation: bytes; ranks whose datatype is not supported; ranks whose view is unfit, by
 * reason. */
#define TOTALS 4

struct control {
    int32_t result, give_up; /* of enum outcome */
    int64_t length;
    unsigned char blob[WS_IO_CONTROL_BYTES];
};

MPI_Offset ws_etypes(const struct ws_file *f, MPI_Count count, MPI_Datatype type) {
    MPI_Count bytes;
    PMPI_Type_size_x(type, &bytes);
    return (MPI_Offset)(bytes * count / f->etype_bytes);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double lease_s(void) {
    const char *text = getenv("WAYSTAGE_IO_LEASE_S");
    double value = text != NULL ? atof(text) : 0;
    return value > 0 ? value : LEASE_S;
}

/* -- what the MPI library does itself ------------------------------------------------------------------------------ */

static int delegated(struct ws_file *f, const struct ws_access *a, MPI_Status *status) {
    ws_file_settle(f);
    int result = ws_file_real_view(f);
    if (result != MPI_SUCCESS)
        return result;
    MPI_Datatype type = a->type;
    int count = (int)a->count;
    return a->write ? ws_real.write_at_all(f->handle, a->offset, a->buffer, count, type, status)
                    : ws_real.read_at_all(f->handle, a->offset, a->buffer, count, type, status);
}

/* The same on all ranks: each condition is. */
static int is_native(struct ws_file *f, int write) {
    if (f->lost)
        return 0;
    if (f->foreign)
        return 0; /* that was said */
    if (f->atomic) {
        ws_file_say(f, WS_SAID_ATOMIC, "the file is in atomic mode");
        return 0;
    }
    if (write ? f->no_write : f->no_read) {
        ws_file_say(f, WS_SAID_HINT, write ? "romio_cb_write is disable" : "romio_cb_read is disable");
        return 0;
    }
    return 1;
}

/* -- through aggregators ------------------------------------------------------------------------------------------- */

/* A larger one wins where ranks differ. A lost aggregator is worth another try, an error of the storage is not. */
static int severity(int result) {
    switch (result) {
    case WS_IO_OK: return 0;
    case WS_IO_LOST: return 1;
    case WS_IO_AGAIN: return 2;
    default: return 100 - result;
    }
}

static int of_severity(int severity) {
    return severity == 0 ? WS_IO_OK : severity == 1 ? WS_IO_LOST : severity == 2 ? WS_IO_AGAIN : 100 - severity;
}

/* A barrier too: no rank waits for an aggregator, where MPI makes no progress, before all ranks are in this call. A
 * rank could otherwise wait for a message that this one has still to deliver. */
static int announce(struct ws_file *f, int64_t bytes, int unsupported, int64_t total[TOTALS]) {
    int64_t mine[TOTALS] = {bytes, unsupported, f->unfit == WS_UNFIT_DATATYPE, f->unfit == WS_UNFIT_ORDER};
    return PMPI_Reduce(mine, total, TOTALS, MPI_INT64_T, MPI_SUM, 0, f->comm);
}

/* Why the MPI library does an operation, or nothing. */
static int32_t refusal(const int64_t total[TOTALS], double began) {
    if (total[2] != 0)
        return VIEW_OF_DATATYPE;
    if (total[3] != 0)
        return VIEW_NOT_MONOTONE;
    if (total[1] != 0)
        return UNSUPPORTED;
    return now_s() - began > lease_s() ? LOST : DONE;
}

/* Rank 0's answer on all ranks. `give_up` is decided in one place, as clocks differ. */
static int control_point(struct ws_file *f, int write, const int64_t total[TOTALS], double began, struct control *c) {
    if (f->rank == 0) {
        size_t length = 0;
        c->give_up = (int32_t)refusal(total, began);
        c->result = WS_IO_OK;
        if (!c->give_up)
            c->result = ws_library.control_point(f->file, write, total[0], c->blob, sizeof c->blob, &length);
        c->length = c->result == WS_IO_OK ? (int64_t)length : 0;
    }
    int failed = PMPI_Bcast(c, (int)(offsetof(struct control, blob) + FIRST_BYTES), MPI_BYTE, 0, f->comm);
    if (failed == MPI_SUCCESS && c->length > FIRST_BYTES)
        failed = PMPI_Bcast(c->blob + FIRST_BYTES, (int)c->length - FIRST_BYTES, MPI_BYTE, 0, f->comm);
    return failed;
}

static int once(struct ws_file *f, const struct ws_access *a, const struct ws_type *memory, const struct control *c,
                int64_t *moved) {
    int result = c->result;
    if (result != WS_IO_OK)
        return result; /* the same on all ranks */
    /* A rank that cannot adopt takes part all the same: operations are numbered by the calls of each rank. */
    int adopted = ws_library.adopt(f->file, c->blob, (size_t)c->length);
    int64_t offset = a->offset * f->etype_bytes;
    int64_t count = memory->dense ? a->count * memory->size : a->count;
    const ws_io_type *type = memory->dense ? NULL : memory->type;
    result = a->write ? ws_library.write_all(f->file, offset, a->buffer, count, type, moved)
                      : ws_library.read_all(f->file, offset, a->buffer, count, type, moved);
    return result == WS_IO_OK ? adopted : result;
}

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static enum outcome native(struct ws_file *f, const struct ws_access *a, int *result, int64_t *moved) {
    static const struct ws_type nothing = {.dense = 1};
    struct control *c = malloc(sizeof *c);
    if (c == NULL)
        PMPI_Abort(f->comm, 1);
    const struct ws_type *memory = a->count == 0 ? &nothing : ws_type_of(a->type);
    int unsupported = memory == NULL;
    if (unsupported)
        memory = &nothing;
    if (f->one_tile && a->offset * f->etype_bytes + memory->size * a->count > f->filetype_bytes)
        unsupported = 1;
    /* Data outside of a view that has no bytes. */
    int outside = f->filetype_bytes == 0 && memory->size * a->count != 0;
    struct ws_access taken = *a;
    if (outside)
        taken.count = 0;
    double began = now_s();
    int failed;
    enum outcome outcome = DONE;
    for (long wait = 1;; wait = wait < 256 ? 2 * wait : wait) {
        int64_t total[TOTALS] = {0};
        int mine, all;
        failed = announce(f, memory->size * taken.count, unsupported, total);
        if (failed == MPI_SUCCESS)
            failed = control_point(f, a->write, total, began, c);
        if (failed != MPI_SUCCESS)
            break;
        if (c->give_up) {
            outcome = (enum outcome)c->give_up;
            break;
        }
        *moved = 0;
        mine = severity(once(f, &taken, memory, c, moved));
        failed = PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MAX, f->comm);
        if (failed != MPI_SUCCESS)
            break;
        *result = of_severity(all);
        if (f->rank == 0 && *result != WS_IO_AGAIN && *result != WS_IO_LOST)
            ws_library.finished(f->file, a->write, total[0]);
        if (*result != WS_IO_AGAIN && *result != WS_IO_LOST)
            break;
        pause_ms(wait);
    }
    free(c);
    if (failed != MPI_SUCCESS) {
        PMPI_Error_class(failed, result);
        return FAILED;
    }
    if (outcome == DONE && *result == WS_IO_OK && outside)
        *result = WS_IO_ARGUMENT;
    return outcome;
}

void ws_set_status(MPI_Status *status, int64_t moved) {
    if (status == MPI_STATUS_IGNORE)
        return;
    PMPI_Status_set_cancelled(status, 0);
    PMPI_Status_set_elements_x(status, MPI_BYTE, moved);
}

int ws_collective(struct ws_file *f, const struct ws_access *a, MPI_Status *status) {
    /* ompio of Open MPI 4.1.4 reports no error here. */
    if ((f->amode & (a->write ? MPI_MODE_RDONLY : MPI_MODE_WRONLY)) != 0)
        return ws_real.raise(f->handle, a->write ? MPI_ERR_READ_ONLY : MPI_ERR_ACCESS);
    if (!is_native(f, a->write))
        return delegated(f, a, status);
    int result = WS_IO_OK;
    int64_t moved = 0;
    switch (native(f, a, &result, &moved)) {
    case UNSUPPORTED:
        ws_file_say(f, WS_SAID_TYPE, "a datatype is not supported");
        return delegated(f, a, status);
    case VIEW_OF_DATATYPE:
        f->foreign = 1;
        ws_file_say(f, WS_SAID_VIEW, "the datatype of the view is not supported");
        return delegated(f, a, status);
    case VIEW_NOT_MONOTONE:
        f->foreign = 1;
        ws_file_say(f, WS_SAID_VIEW, "the view is not monotone");
        return delegated(f, a, status);
    case LOST:
        f->lost = 1;
        ws_file_say(f, WS_SAID_LOST, "the aggregators did not answer within the lease");
        return delegated(f, a, status);
    case FAILED:
        return ws_real.raise(f->handle, result);
    default:
        break;
    }
    ws_set_status(status, result == WS_IO_OK ? moved : 0);
    if (result == WS_IO_OK)
        return MPI_SUCCESS;
    if (ws_verbose() && f->rank == 0)
        ws_say("%s: %s", f->name, ws_library.message());
    return ws_real.raise(f->handle, ws_error_class(result));
}
