#include "ops.h"
#include "collective.h"
#include "say.h"

#include <string.h>

/* -- collective ---------------------------------------------------------------------------------------------------- */

static int at(MPI_File handle, struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count,
              MPI_Datatype type, MPI_Status *status) {
    (void)handle;
    struct ws_access a = {write, offset, (void *)(uintptr_t)buffer, count, type};
    return ws_collective(f, &a, status);
}

/* The pointer moves by what was asked for, before the operation: MPI-4.0, section 14.4.3. */
static MPI_Offset advance(struct ws_file *f, int count, MPI_Datatype type) {
    MPI_Offset before = f->position;
    f->position += ws_etypes(f, count, type);
    return before;
}

int ws_read_at_all(MPI_File h, MPI_Offset offset, void *buffer, int count, MPI_Datatype type, MPI_Status *status) {
    struct ws_file *f = ws_file_find(h);
    return f == NULL ? ws_real.read_at_all(h, offset, buffer, count, type, status)
                     : at(h, f, 0, offset, buffer, count, type, status);
}

int ws_write_at_all(MPI_File h, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type,
                    MPI_Status *status) {
    struct ws_file *f = ws_file_find(h);
    return f == NULL ? ws_real.write_at_all(h, offset, buffer, count, type, status)
                     : at(h, f, 1, offset, buffer, count, type, status);
}

int ws_read_all(MPI_File h, void *buffer, int count, MPI_Datatype type, MPI_Status *status) {
    struct ws_file *f = ws_file_find(h);
    return f == NULL ? ws_real.read_all(h, buffer, count, type, status)
                     : at(h, f, 0, advance(f, count, type), buffer, count, type, status);
}

int ws_write_all(MPI_File h, const void *buffer, int count, MPI_Datatype type, MPI_Status *status) {
    struct ws_file *f = ws_file_find(h);
    return f == NULL ? ws_real.write_all(h, buffer, count, type, status)
                     : at(h, f, 1, advance(f, count, type), buffer, count, type, status);
}

/* Split collectives: `begin` does the whole operation, which MPI allows, `end` returns its status. */
static int begin(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type) {
    if (f->split)
        return ws_real.raise(f->handle, MPI_ERR_OTHER);
    int result = at(f->handle, f, write, offset, buffer, count, type, &f->split_status);
    f->split = result == MPI_SUCCESS;
    return result;
}

static int end(struct ws_file *f, MPI_Status *status) {
    if (!f->split)
        return ws_real.raise(f->handle, MPI_ERR_OTHER);
    f->split = 0;
    if (status != MPI_STATUS_IGNORE)
        *status = f->split_status;
    return MPI_SUCCESS;
}

#define SPLIT(name, write, pointer)                                                                                    \
    int ws_##name##_at_all_begin(MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type) {        \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_at_all_begin(h, offset, buffer, count, type)                                 \
                         : begin(f, write, offset, buffer, count, type);                                               \
    }                                                                                                                  \
    int ws_##name##_all_begin(MPI_File h, pointer buffer, int count, MPI_Datatype type) {                              \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_all_begin(h, buffer, count, type)                                            \
                         : begin(f, write, advance(f, count, type), buffer, count, type);                              \
    }                                                                                                                  \
    int ws_##name##_at_all_end(MPI_File h, pointer buffer, MPI_Status *status) {                                       \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_at_all_end(h, buffer, status) : end(f, status);                              \
    }                                                                                                                  \
    int ws_##name##_all_end(MPI_File h, pointer buffer, MPI_Status *status) {                                          \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_all_end(h, buffer, status) : end(f, status);                                 \
    }

SPLIT(read, 0, void *)
SPLIT(write, 1, const void *)

/* -- independent --------------------------------------------------------------------------------------------------- */

/* The file to use with an explicit offset by one process alone; an error class where there is none. */
static int independent(struct ws_file *f, MPI_File *which) {
    int error = MPI_SUCCESS;
    *which = f->real_view ? f->handle : ws_file_alone(f, &error);
    return error == MPI_SUCCESS ? MPI_SUCCESS : ws_real.raise(f->handle, error);
}

/* Errors of the process's own file go to the error handler of the program's. */
static int reported(struct ws_file *f, MPI_File which, int result) {
    if (result == MPI_SUCCESS || which == f->handle)
        return result;
    int class;
    PMPI_Error_class(result, &class);
    return ws_real.raise(f->handle, class);
}

static int through(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type,
                   MPI_Status *status) {
    MPI_File which;
    int result = independent(f, &which);
    if (result != MPI_SUCCESS)
        return result;
    if (which != f->handle) /* not attached: goes to the MPI library, whichever way in this is */
        result = write ? PMPI_File_write_at(which, offset, buffer, count, type, status)
                       : PMPI_File_read_at(which, offset, (void *)(uintptr_t)buffer, count, type, status);
    else
        result = write ? ws_real.write_at(which, offset, buffer, count, type, status)
                       : ws_real.read_at(which, offset, (void *)(uintptr_t)buffer, count, type, status);
    return reported(f, which, result);
}

static int started(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type,
                   MPI_Request *request) {
    MPI_File which;
    int result = independent(f, &which);
    if (result != MPI_SUCCESS)
        return result;
    if (which != f->handle)
        result = write ? PMPI_File_iwrite_at(which, offset, buffer, count, type, request)
                       : PMPI_File_iread_at(which, offset, (void *)(uintptr_t)buffer, count, type, request);
    else
        result = write ? ws_real.iwrite_at(which, offset, buffer, count, type, request)
                       : ws_real.iread_at(which, offset, (void *)(uintptr_t)buffer, count, type, request);
    return reported(f, which, result);
}

/* The library's collective where it has the view. It may not be given it now: that would block, and a program may
 * start this operation on one rank before it sends what another rank waits for. */
static int started_all(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count,
                       MPI_Datatype type, MPI_Request *request) {
    ws_file_say(f, WS_SAID_NONBLOCKING, "nonblocking collectives are not native");
    if (!f->real_view)
        return started(f, write, offset, buffer, count, type, request);
    return write ? ws_real.iwrite_at_all(f->handle, offset, buffer, count, type, request)
                 : ws_real.iread_at_all(f->handle, offset, (void *)(uintptr_t)buffer, count, type, request);
}

#define INDEPENDENT(name, write, pointer)                                                                              \
    int ws_##name##_at(MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type,                    \
                       MPI_Status *status) {                                                                           \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_at(h, offset, buffer, count, type, status)                                   \
                         : through(f, write, offset, buffer, count, type, status);                                     \
    }                                                                                                                  \
    int ws_##name(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Status *status) {                      \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name(h, buffer, count, type, status)                                                \
                         : through(f, write, advance(f, count, type), buffer, count, type, status);                    \
    }                                                                                                                  \
    int ws_i##name##_at(MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type,                   \
                        MPI_Request *request) {                                                                        \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.i##name##_at(h, offset, buffer, count, type, request)                               \
                         : started(f, write, offset, buffer, count, type, request);                                    \
    }                                                                                                                  \
    int ws_i##name(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Request *request) {                   \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.i##name(h, buffer, count, type, request)                                            \
                         : started(f, write, advance(f, count, type), buffer, count, type, request);                   \
    }                                                                                                                  \
    int ws_i##name##_at_all(MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type,               \
                            MPI_Request *request) {                                                                    \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.i##name##_at_all(h, offset, buffer, count, type, request)                           \
                         : started_all(f, write, offset, buffer, count, type, request);                                \
    }                                                                                                                  \
    int ws_i##name##_all(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Request *request) {             \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.i##name##_all(h, buffer, count, type, request)                                      \
                         : started_all(f, write, advance(f, count, type), buffer, count, type, request);               \
    }

INDEPENDENT(read, 0, void *)
INDEPENDENT(write, 1, const void *)

/* -- shared pointers ----------------------------------------------------------------------------------------------- */

/* Not collective: a view that the library has not got cannot be given to it now. */
static int alone_shared(struct ws_file *f) {
    if (f != NULL)
        f->shared = 1;
    if (f == NULL || f->real_view)
        return MPI_SUCCESS;
    ws_say("%s: a shared file pointer with a view of more than %d pieces, or after several views: set the hint "
           "waystage_io to false",
           f->name, WS_REAL_VIEW_RUNS);
    return ws_real.raise(f->handle, MPI_ERR_UNSUPPORTED_OPERATION);
}

static void together_shared(struct ws_file *f) {
    if (f != NULL) {
        f->shared = 1;
        ws_file_real_view(f);
    }
}

#define SHARED(name, pointer)                                                                                          \
    int ws_##name##_shared(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Status *status) {             \
        int error = alone_shared(ws_file_find(h));                                                                     \
        return error != MPI_SUCCESS ? error : ws_real.name##_shared(h, buffer, count, type, status);                   \
    }                                                                                                                  \
    int ws_i##name##_shared(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Request *request) {          \
        int error = alone_shared(ws_file_find(h));                                                                     \
        return error != MPI_SUCCESS ? error : ws_real.i##name##_shared(h, buffer, count, type, request);               \
    }                                                                                                                  \
    int ws_##name##_ordered(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Status *status) {            \
        together_shared(ws_file_find(h));                                                                              \
        return ws_real.name##_ordered(h, buffer, count, type, status);                                                 \
    }                                                                                                                  \
    int ws_##name##_ordered_begin(MPI_File h, pointer buffer, int count, MPI_Datatype type) {                          \
        together_shared(ws_file_find(h));                                                                              \
        return ws_real.name##_ordered_begin(h, buffer, count, type);                                                   \
    }

SHARED(read, void *)
SHARED(write, const void *)

/* -- pointers and the rest ----------------------------------------------------------------------------------------- */

/* The offset of the first byte after the view's etype `offset`, in whole etypes of the view before the file's end. */
static int end_position(struct ws_file *f, MPI_Offset *position) {
    /* The library's own pointer: seeking to the end of a view needs the view. */
    MPI_File which;
    int result = independent(f, &which);
    if (result != MPI_SUCCESS)
        return result;
    if (which == f->handle) {
        result = ws_real.seek(which, 0, MPI_SEEK_END);
        return result != MPI_SUCCESS ? result : ws_real.get_position(which, position);
    }
    result = PMPI_File_seek(which, 0, MPI_SEEK_END);
    if (result == MPI_SUCCESS)
        result = PMPI_File_get_position(which, position);
    return reported(f, which, result);
}

int ws_seek(MPI_File h, MPI_Offset offset, int whence) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL)
        return ws_real.seek(h, offset, whence);
    MPI_Offset from = whence == MPI_SEEK_CUR ? f->position : 0;
    if (whence == MPI_SEEK_END) {
        int result = end_position(f, &from);
        if (result != MPI_SUCCESS)
            return result;
    } else if (whence != MPI_SEEK_SET && whence != MPI_SEEK_CUR)
        return ws_real.raise(h, MPI_ERR_ARG);
    if (from + offset < 0)
        return ws_real.raise(h, MPI_ERR_ARG);
    f->position = from + offset;
    return MPI_SUCCESS;
}

int ws_get_position(MPI_File h, MPI_Offset *offset) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL)
        return ws_real.get_position(h, offset);
    *offset = f->position;
    return MPI_SUCCESS;
}

int ws_get_byte_offset(MPI_File h, MPI_Offset offset, MPI_Offset *displacement) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL || f->real_view)
        return ws_real.get_byte_offset(h, offset, displacement);
    MPI_File which;
    int result = independent(f, &which);
    if (result != MPI_SUCCESS)
        return result;
    return reported(f, which, PMPI_File_get_byte_offset(which, offset, displacement));
}

int ws_get_view(MPI_File h, MPI_Offset *displacement, MPI_Datatype *etype, MPI_Datatype *filetype, char *datarep) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL || f->real_view)
        return ws_real.get_view(h, displacement, etype, filetype, datarep);
    *displacement = f->displacement;
    ws_view_types(f, etype, filetype);
    strcpy(datarep, "native");
    return MPI_SUCCESS;
}

int ws_get_size(MPI_File h, MPI_Offset *size) { return ws_real.get_size(h, size); }

int ws_set_atomicity(MPI_File h, int flag) {
    struct ws_file *f = ws_file_find(h);
    int result = ws_real.set_atomicity(h, flag);
    if (f != NULL && result == MPI_SUCCESS)
        f->atomic = flag != 0;
    return result;
}

int ws_sync(MPI_File h) {
    struct ws_file *f = ws_file_find(h);
    int mine = WS_IO_OK, all = WS_IO_OK;
    if (f != NULL && !f->lost) {
        mine = ws_library.sync(f->file);
        /* Of the library's own fsync it is the page cache of this node that counts. */
        int code = mine == WS_IO_OK || mine == WS_IO_AGAIN || mine == WS_IO_LOST ? 0 : -mine;
        PMPI_Allreduce(&code, &all, 1, MPI_INT, MPI_MAX, f->comm);
    }
    int result = ws_real.sync(h);
    return result == MPI_SUCCESS && all != 0 ? ws_real.raise(h, ws_error_class(-all)) : result;
}
