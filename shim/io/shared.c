/* Shared file pointers, by no message: a rank may move one while the others compute.
 *
 * A hidden file beside the data has eight bytes for each view that was set, 0 where nothing was written, since a view
 * sets the pointer to 0. A lock on it lets one process at a time move the pointer. It is made by the first use, and
 * removed when the file is closed. ROMIO and ompio keep such files too.
 */
#include "collective.h"
#include "ops.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* Locks of the kernel are a process's: they do not keep its threads apart. */
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

static int locked(int file) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int result;
    while ((result = fcntl(file, F_SETLKW, &all)) != 0 && errno == EINTR) {
    }
    return result == 0;
}

/* `*before` is the pointer, which then moves by `by`, or to `*to` where that is given. 0 and errno on errors. */
static int moved(struct ws_file *f, MPI_Offset by, const MPI_Offset *to, MPI_Offset *before) {
    int64_t value = 0;
    off_t place = (off_t)sizeof value * f->views;
    int file = open(f->shared_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int ok = file >= 0 && locked(file);
    ssize_t got = ok ? pread(file, &value, sizeof value, place) : -1;
    ok = got == 0 || got == (ssize_t)sizeof value;
    if (ok) {
        MPI_Offset from = f->views == 0 ? f->shared_from : 0;
        *before = from + value;
        value = to != NULL ? *to - from : value + by;
        if (to != NULL || by != 0)
            ok = pwrite(file, &value, sizeof value, place) == (ssize_t)sizeof value;
    }
    int why = errno;
    if (file >= 0)
        close(file);
    errno = why;
    return ok;
}

static int shared(struct ws_file *f, MPI_Offset by, const MPI_Offset *to, MPI_Offset *before) {
    if (f->named != NULL) {
        ws_say("%s: a shared file pointer is not supported for a coupled name", f->name);
        return MPI_ERR_UNSUPPORTED_OPERATION;
    }
    f->shared = 1;
    pthread_mutex_lock(&threads);
    int ok = moved(f, by, to, before), why = errno;
    pthread_mutex_unlock(&threads);
    if (ok)
        return MPI_SUCCESS;
    ws_say("%s: the shared file pointer, in %s: %s", f->name, f->shared_path, strerror(why));
    switch (why) {
    case EACCES:
    case EPERM: return MPI_ERR_ACCESS;
    case EROFS: return MPI_ERR_READ_ONLY;
    case ENOSPC: return MPI_ERR_NO_SPACE;
    case EDQUOT: return MPI_ERR_QUOTA;
    default: return MPI_ERR_IO;
    }
}

/* The place of this rank's access: those of the ranks before it come first. Collective. */
static int in_order(struct ws_file *f, int count, MPI_Datatype type, MPI_Offset *offset) {
    int64_t mine = ws_etypes(f, count, type), before = 0, last[2] = {0, 0};
    int result = PMPI_Exscan(&mine, &before, 1, MPI_INT64_T, MPI_SUM, f->comm);
    before = f->rank == 0 ? 0 : before;
    /* The last rank knows the sum, and that all have come. */
    if (result == MPI_SUCCESS && f->rank == f->size - 1) {
        MPI_Offset from = 0;
        last[1] = shared(f, before + mine, NULL, &from);
        last[0] = from;
    }
    if (result == MPI_SUCCESS)
        result = PMPI_Bcast(last, 2, MPI_INT64_T, f->size - 1, f->comm);
    if (result != MPI_SUCCESS)
        PMPI_Error_class(result, &result);
    else
        result = (int)last[1];
    *offset = last[0] + before;
    return result;
}

static int ordered(struct ws_file *f, int write, const void *buffer, int count, MPI_Datatype type, MPI_Status *status) {
    struct ws_access a = {write, 0, (void *)(uintptr_t)buffer, count, type};
    int result = in_order(f, count, type, &a.offset);
    return result == MPI_SUCCESS ? ws_collective(f, &a, status) : ws_real.raise(f->handle, result);
}

static int ordered_begin(struct ws_file *f, int write, const void *buffer, int count, MPI_Datatype type) {
    MPI_Offset offset;
    int result = in_order(f, count, type, &offset);
    return result == MPI_SUCCESS ? ws_begin(f, write, offset, buffer, count, type)
                                 : ws_real.raise(f->handle, result);
}

static int alone(struct ws_file *f, int count, MPI_Datatype type, MPI_Offset *offset) {
    int result = shared(f, ws_etypes(f, count, type), NULL, offset);
    return result == MPI_SUCCESS ? result : ws_real.raise(f->handle, result);
}

#define SHARED(name, write, pointer)                                                                                   \
    int ws_##name##_shared(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Status *status) {             \
        struct ws_file *f = ws_file_find(h);                                                                           \
        MPI_Offset at;                                                                                                 \
        if (f == NULL)                                                                                                 \
            return ws_real.name##_shared(h, buffer, count, type, status);                                              \
        int error = alone(f, count, type, &at);                                                                        \
        return error != MPI_SUCCESS ? error : ws_through(f, write, at, buffer, count, type, status);                   \
    }                                                                                                                  \
    int ws_i##name##_shared(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Request *request) {          \
        struct ws_file *f = ws_file_find(h);                                                                           \
        MPI_Offset at;                                                                                                 \
        if (f == NULL)                                                                                                 \
            return ws_real.i##name##_shared(h, buffer, count, type, request);                                          \
        int error = alone(f, count, type, &at);                                                                        \
        return error != MPI_SUCCESS ? error : ws_started(f, write, at, buffer, count, type, request);                  \
    }                                                                                                                  \
    int ws_##name##_ordered(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Status *status) {            \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_ordered(h, buffer, count, type, status)                                      \
                         : ordered(f, write, buffer, count, type, status);                                             \
    }                                                                                                                  \
    int ws_##name##_ordered_begin(MPI_File h, pointer buffer, int count, MPI_Datatype type) {                          \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_ordered_begin(h, buffer, count, type)                                        \
                         : ordered_begin(f, write, buffer, count, type);                                               \
    }                                                                                                                  \
    int ws_##name##_ordered_end(MPI_File h, pointer buffer, MPI_Status *status) {                                      \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_ordered_end(h, buffer, status) : ws_end(f, status);                          \
    }

SHARED(read, 0, void *)
SHARED(write, 1, const void *)

int ws_seek_shared(MPI_File h, MPI_Offset offset, int whence) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL)
        return ws_real.seek_shared(h, offset, whence);
    int result = whence == MPI_SEEK_SET || whence == MPI_SEEK_CUR || whence == MPI_SEEK_END ? MPI_SUCCESS : MPI_ERR_ARG;
    int mine = result, failed = PMPI_Reduce(&mine, &result, 1, MPI_INT, MPI_MAX, 0, f->comm);
    if (failed == MPI_SUCCESS && f->rank == 0 && result == MPI_SUCCESS) {
        MPI_Offset from = 0;
        if (whence == MPI_SEEK_CUR)
            result = shared(f, 0, NULL, &from);
        else if (whence == MPI_SEEK_END)
            result = ws_end_position(f, &from);
        offset += from;
        if (result == MPI_SUCCESS)
            result = offset < 0 ? MPI_ERR_ARG : shared(f, 0, &offset, &from);
    }
    if (failed == MPI_SUCCESS)
        failed = PMPI_Bcast(&result, 1, MPI_INT, 0, f->comm);
    if (failed != MPI_SUCCESS)
        PMPI_Error_class(failed, &result);
    return result == MPI_SUCCESS ? MPI_SUCCESS : ws_real.raise(h, result);
}

int ws_get_position_shared(MPI_File h, MPI_Offset *offset) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL)
        return ws_real.get_position_shared(h, offset);
    int result = shared(f, 0, NULL, offset);
    return result == MPI_SUCCESS ? MPI_SUCCESS : ws_real.raise(h, result);
}
