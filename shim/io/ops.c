#include "ops.h"
#include "collective.h"
#include "named.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- collective ---------------------------------------------------------------------------------------------------- */

static int at(MPI_File handle, struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count,
              MPI_Datatype type, MPI_Status *status) {
    (void)handle;
    if (f->named != NULL)
        return ws_named_access(f, write, offset, buffer, count, type, status);
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
int ws_begin(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type) {
    if (f->split)
        return ws_real.raise(f->handle, MPI_ERR_OTHER);
    int result = at(f->handle, f, write, offset, buffer, count, type, &f->split_status);
    f->split = result == MPI_SUCCESS;
    return result;
}

int ws_end(struct ws_file *f, MPI_Status *status) {
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
                         : ws_begin(f, write, offset, buffer, count, type);                                               \
    }                                                                                                                  \
    int ws_##name##_all_begin(MPI_File h, pointer buffer, int count, MPI_Datatype type) {                              \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_all_begin(h, buffer, count, type)                                            \
                         : ws_begin(f, write, advance(f, count, type), buffer, count, type);                              \
    }                                                                                                                  \
    int ws_##name##_at_all_end(MPI_File h, pointer buffer, MPI_Status *status) {                                       \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_at_all_end(h, buffer, status) : ws_end(f, status);                              \
    }                                                                                                                  \
    int ws_##name##_all_end(MPI_File h, pointer buffer, MPI_Status *status) {                                          \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_all_end(h, buffer, status) : ws_end(f, status);                                 \
    }

SPLIT(read, 0, void *)
SPLIT(write, 1, const void *)

/* -- independent --------------------------------------------------------------------------------------------------- */

/* The file to use with an explicit offset by one process alone; an error class where there is none. */
static int independent(struct ws_file *f, MPI_File *which) {
    int error = MPI_SUCCESS;
    *which = ws_has_view(f) ? f->handle : ws_file_alone(f, &error);
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

/* Without gaps in the view it is a system call: no other file of the library has to be opened for it. */
static int is_direct(const struct ws_file *f, const struct ws_type *memory) {
    return f->dense && memory != NULL && !f->atomic && !f->foreign && f->unfit == WS_FIT && !ws_has_view(f);
}

static int directly(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count,
                    const struct ws_type *memory, MPI_Status *status) {
    int64_t moved = 0, elements = memory->dense ? count * memory->size : count;
    const ws_io_type *type = memory->dense ? NULL : memory->type;
    int64_t at = offset * f->etype_bytes;
    int result = write ? ws_library.write(f->file, at, buffer, elements, type, &moved)
                       : ws_library.read(f->file, at, (void *)(uintptr_t)buffer, elements, type, &moved);
    ws_set_status(status, moved);
    if (result == WS_IO_OK)
        return MPI_SUCCESS;
    if (ws_verbose())
        ws_say("%s: %s", f->name, ws_library.message());
    return ws_real.raise(f->handle, ws_error_class(result));
}

int ws_through(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type,
               MPI_Status *status) {
    MPI_File which;
    if (f->named != NULL)
        return ws_named_access(f, write, offset, buffer, count, type, status);
    f->written |= write;
    ws_file_settle(f);
    const struct ws_type *memory = f->dense && count >= 0 ? ws_type_of(type) : NULL;
    if (is_direct(f, memory))
        return directly(f, write, offset, buffer, count, memory, status);
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

int ws_started(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type,
               MPI_Request *request) {
    MPI_File which;
    if (f->named != NULL)
        return ws_named_start(f, write, offset, buffer, count, type, request);
    f->written |= write;
    ws_file_settle(f);
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
    if (f->named != NULL)
        return ws_named_start(f, write, offset, buffer, count, type, request);
    ws_file_say(f, WS_SAID_NONBLOCKING, "nonblocking collectives are not native");
    ws_file_settle(f);
    if (!ws_has_view(f))
        return ws_started(f, write, offset, buffer, count, type, request);
    return write ? ws_real.iwrite_at_all(f->handle, offset, buffer, count, type, request)
                 : ws_real.iread_at_all(f->handle, offset, (void *)(uintptr_t)buffer, count, type, request);
}

#define INDEPENDENT(name, write, pointer)                                                                              \
    int ws_##name##_at(MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type,                    \
                       MPI_Status *status) {                                                                           \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name##_at(h, offset, buffer, count, type, status)                                   \
                         : ws_through(f, write, offset, buffer, count, type, status);                                     \
    }                                                                                                                  \
    int ws_##name(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Status *status) {                      \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.name(h, buffer, count, type, status)                                                \
                         : ws_through(f, write, advance(f, count, type), buffer, count, type, status);                    \
    }                                                                                                                  \
    int ws_i##name##_at(MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type,                   \
                        MPI_Request *request) {                                                                        \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.i##name##_at(h, offset, buffer, count, type, request)                               \
                         : ws_started(f, write, offset, buffer, count, type, request);                                    \
    }                                                                                                                  \
    int ws_i##name(MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Request *request) {                   \
        struct ws_file *f = ws_file_find(h);                                                                           \
        return f == NULL ? ws_real.i##name(h, buffer, count, type, request)                                            \
                         : ws_started(f, write, advance(f, count, type), buffer, count, type, request);                   \
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

/* -- pointers and the rest ----------------------------------------------------------------------------------------- */

/* The offset of the first byte after the view's etype `offset`, in whole etypes of the view before the file's end. */
int ws_end_position(struct ws_file *f, MPI_Offset *position) {
    if (f->named != NULL)
        return ws_named_end(f, position);
    ws_file_settle(f);
    if (f->dense && !ws_has_view(f)) {
        int result = ws_get_size(f->handle, position);
        *position = *position > f->displacement ? *position - f->displacement : 0;
        *position = (*position + f->etype_bytes - 1) / f->etype_bytes;
        return result;
    }
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
        int result = ws_end_position(f, &from);
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
    if (f != NULL && f->named != NULL)
        return ws_named_position(f, offset, displacement);
    if (f == NULL || ws_has_view(f))
        return ws_real.get_byte_offset(h, offset, displacement);
    if (f->dense) {
        *displacement = f->displacement + offset * f->etype_bytes;
        return MPI_SUCCESS;
    }
    MPI_File which;
    int result = independent(f, &which);
    if (result != MPI_SUCCESS)
        return result;
    return reported(f, which, PMPI_File_get_byte_offset(which, offset, displacement));
}

int ws_get_view(MPI_File h, MPI_Offset *displacement, MPI_Datatype *etype, MPI_Datatype *filetype, char *datarep) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL || ws_has_view(f))
        return ws_real.get_view(h, displacement, etype, filetype, datarep);
    *displacement = f->displacement;
    ws_view_types(f, etype, filetype);
    strcpy(datarep, "native");
    return MPI_SUCCESS;
}

/* The MPI error class of `errno`. */
static int class_of_errno(void) {
    switch (errno) {
    case ENOENT: return MPI_ERR_NO_SUCH_FILE;
    case EACCES:
    case EPERM: return MPI_ERR_ACCESS;
    case EROFS: return MPI_ERR_READ_ONLY;
    case ENOSPC:
    case EFBIG: return MPI_ERR_NO_SPACE;
    case EDQUOT: return MPI_ERR_QUOTA;
    case EINVAL: return MPI_ERR_ARG;
    default: return MPI_ERR_IO;
    }
}

int ws_get_size(MPI_File h, MPI_Offset *size) {
    struct ws_file *f = ws_file_find(h);
    if (f != NULL && f->named != NULL)
        return ws_named_size(f, size);
    if (f != NULL)
        ws_file_settle(f);
    if (f == NULL || f->opened == 1)
        return ws_real.get_size(h, size);
    struct stat is;
    *size = 0;
    if (stat(f->path, &is) != 0)
        return ws_real.raise(h, class_of_errno());
    *size = is.st_size;
    return MPI_SUCCESS;
}

int ws_set_size(MPI_File h, MPI_Offset bytes) {
    struct ws_file *f = ws_file_find(h);
    if (f != NULL && f->named != NULL)
        return ws_named_resize(f, bytes, 0);
    if (f != NULL)
        ws_file_settle(f);
    if (f == NULL || f->opened == 1)
        return ws_real.set_size(h, bytes);
    int result = MPI_SUCCESS, any = 0;
    /* Of what a rank has written, all is in the file before it is cut. */
    int failed = PMPI_Reduce(&result, &any, 1, MPI_INT, MPI_MAX, 0, f->comm);
    if ((f->amode & MPI_MODE_RDONLY) != 0)
        result = MPI_ERR_READ_ONLY;
    else if (f->rank == 0 && truncate(f->path, bytes) != 0)
        result = class_of_errno();
    if (failed == MPI_SUCCESS)
        failed = PMPI_Bcast(&result, 1, MPI_INT, 0, f->comm);
    if (failed != MPI_SUCCESS)
        PMPI_Error_class(failed, &result);
    return result == MPI_SUCCESS ? MPI_SUCCESS : ws_real.raise(h, result);
}

int ws_preallocate(MPI_File h, MPI_Offset bytes) {
    struct ws_file *f = ws_file_find(h);
    if (f != NULL && f->named != NULL)
        return ws_named_resize(f, bytes, 1);
    if (f != NULL)
        ws_file_settle(f);
    int result = f != NULL ? ws_file_real(f) : MPI_SUCCESS;
    return result == MPI_SUCCESS ? ws_real.preallocate(h, bytes) : result;
}

int ws_set_atomicity(MPI_File h, int flag) {
    struct ws_file *f = ws_file_find(h);
    if (f != NULL && f->named != NULL)
        return flag ? ws_named_unsupported(f, "atomic mode") : MPI_SUCCESS;
    int result = MPI_SUCCESS;
    if (f != NULL && flag) {
        ws_file_settle(f);
        result = ws_file_real(f);
    }
    if (result == MPI_SUCCESS && (f == NULL || f->opened == 1))
        result = ws_real.set_atomicity(h, flag);
    if (f != NULL && result == MPI_SUCCESS) {
        f->alone_view &= f->atomic == (flag != 0);
        f->atomic = flag != 0;
    }
    return result;
}

int ws_get_atomicity(MPI_File h, int *flag) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL)
        return ws_real.get_atomicity(h, flag);
    *flag = f->atomic;
    return MPI_SUCCESS;
}

/* Brings the page cache of this node to the storage: what this rank has written by itself is there. */
static int sync_here(struct ws_file *f) {
    int file = open(f->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    int result = file >= 0 && fsync(file) == 0 ? MPI_SUCCESS : class_of_errno();
    if (file >= 0)
        close(file);
    return result;
}

int ws_sync(MPI_File h) {
    struct ws_file *f = ws_file_find(h);
    if (f == NULL)
        return ws_real.sync(h);
    if (f->named != NULL)
        return ws_named_sync(f);
    int mine = WS_IO_OK, all = WS_IO_OK, result = MPI_SUCCESS;
    if (!f->lost) {
        mine = ws_library.sync(f->file);
        int code = mine == WS_IO_OK || mine == WS_IO_AGAIN || mine == WS_IO_LOST ? 0 : -mine;
        PMPI_Allreduce(&code, &all, 1, MPI_INT, MPI_MAX, f->comm);
    }
    if (f->opened == 1)
        result = ws_real.sync(h);
    else if (f->written && (result = sync_here(f)) != MPI_SUCCESS)
        return ws_real.raise(h, result);
    f->written &= result != MPI_SUCCESS;
    return result == MPI_SUCCESS && all != 0 ? ws_real.raise(h, ws_error_class(-all)) : result;
}
