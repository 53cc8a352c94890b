/* Views: what MPI_File_set_view gave, at the aggregators and, once an operation needs it, at the MPI library. */
#include "file.h"
#include "named.h"
#include "say.h"

#include <stdlib.h>
#include <string.h>

/* Predefined datatypes stay themselves: MPI_File_get_view returns them. */
static MPI_Datatype kept(MPI_Datatype type) {
    int integers, addresses, types, combiner;
    MPI_Datatype copy = type;
    if (PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
        combiner != MPI_COMBINER_NAMED)
        PMPI_Type_dup(type, &copy);
    return copy;
}

static void replace(MPI_Datatype *old, MPI_Datatype new) {
    int integers, addresses, types, combiner;
    if (PMPI_Type_get_envelope(*old, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
        combiner == MPI_COMBINER_DUP)
        PMPI_Type_free(old);
    *old = new;
}

void ws_forget_view(struct ws_file *f) {
    replace(&f->etype, MPI_BYTE);
    replace(&f->filetype, MPI_BYTE);
}

void ws_view_types(struct ws_file *f, MPI_Datatype *etype, MPI_Datatype *filetype) {
    *etype = kept(f->etype);
    *filetype = kept(f->filetype);
}

/* HDF5 makes filetypes of chunks whose data reach beyond their extent, and uses them once: repetitions would
 * interleave. With a larger extent the first is the same, and ws_collective() leaves more to the MPI library. */
int ws_view_once(struct ws_file *f, MPI_Datatype filetype, const struct ws_type *t, ws_view_setter *set,
                 MPI_Offset displacement, int64_t etype_bytes) {
    MPI_Aint lower, extent, true_lower, true_extent;
    PMPI_Type_get_extent(filetype, &lower, &extent);
    PMPI_Type_get_true_extent(filetype, &true_lower, &true_extent);
    ws_io_type *wide = ws_library.type_resized(lower, true_extent, t->type);
    if (wide == NULL)
        return WS_IO_MEMORY;
    int result = set(f, displacement, etype_bytes, wide);
    ws_library.type_free(wide);
    f->one_tile = result == WS_IO_OK;
    return result;
}

static int set_view(struct ws_file *f, MPI_Offset displacement, int64_t etype_bytes, const ws_io_type *filetype) {
    return ws_library.set_view(f->file, displacement, etype_bytes, filetype);
}

/* Gives the view to the aggregators, which hear of it with the next operation: no rank waits here. */
static int tell(struct ws_file *f, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype) {
    const struct ws_type *e = ws_type_of(etype), *t = ws_type_of(filetype);
    f->unfit = WS_FIT;
    f->dense = f->one_tile = 0;
    if (displacement < 0 || (e != NULL && e->size == 0))
        return MPI_ERR_ARG;
    if (e == NULL || t == NULL) {
        f->unfit = WS_UNFIT_DATATYPE;
        return MPI_SUCCESS;
    }
    int result = set_view(f, displacement, e->size, t->dense ? NULL : t->type);
    if ((result == WS_IO_UNSUPPORTED || result == WS_IO_ARGUMENT) && !t->dense)
        result = ws_view_once(f, filetype, t, set_view, displacement, e->size);
    f->dense = result == WS_IO_OK && t->dense;
    if (result != WS_IO_OK)
        f->unfit = result == WS_IO_UNSUPPORTED || result == WS_IO_ARGUMENT ? WS_UNFIT_ORDER : WS_UNFIT_DATATYPE;
    return MPI_SUCCESS;
}

void ws_remember_view(struct ws_file *f, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype) {
    MPI_Count bytes;
    f->displacement = displacement;
    f->position = 0;
    f->views++;
    replace(&f->etype, kept(etype));
    replace(&f->filetype, kept(filetype));
    PMPI_Type_size_x(etype, &bytes);
    f->etype_bytes = bytes > 0 ? bytes : 1;
    PMPI_Type_size_x(filetype, &bytes);
    f->filetype_bytes = bytes;
    f->alone_view = 0;
}

int ws_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
                void *info) {
    struct ws_file *f = ws_file_find(handle);
    if (f != NULL && f->named != NULL)
        return ws_named_set_view(f, displacement, etype, filetype, datarep);
    if (f == NULL)
        return ws_real.set_view(handle, displacement, etype, filetype, datarep, info);
    int native = strcmp(datarep, "native") == 0; /* the same on all ranks, MPI-4.0, section 14.3 */
    if (native && !f->lost) {
        int result = tell(f, displacement, etype, filetype);
        if (result != MPI_SUCCESS)
            return ws_real.raise(handle, result);
        f->foreign = 0;
        ws_remember_view(f, displacement, etype, filetype);
        return MPI_SUCCESS;
    }
    int result = ws_file_real(f);
    if (result == MPI_SUCCESS)
        result = ws_real.set_view(handle, displacement, etype, filetype, datarep, info);
    if (result != MPI_SUCCESS)
        return result;
    f->dense = 0;
    f->foreign = 1;
    if (!native)
        ws_file_say(f, WS_SAID_VIEW, "the representation of the view is not native");
    ws_remember_view(f, displacement, etype, filetype);
    f->real_view = f->views;
    return MPI_SUCCESS;
}

int ws_file_real(struct ws_file *f) {
    if (f->opened == 0) {
        int mine = ws_real.open_late(f->handle), all;
        PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MAX, f->comm);
        f->opened = all == MPI_SUCCESS ? 1 : -1;
        if (all != MPI_SUCCESS)
            return ws_real.raise(f->handle, mine != MPI_SUCCESS ? mine : MPI_ERR_IO);
    }
    return f->opened == 1 ? MPI_SUCCESS : ws_real.raise(f->handle, MPI_ERR_IO);
}

int ws_file_real_view(struct ws_file *f) {
    int result = ws_file_real(f);
    if (result != MPI_SUCCESS || f->real_view == f->views)
        return result;
    result = ws_real.set_view(f->handle, f->displacement, f->etype, f->filetype, "native", NULL);
    if (result == MPI_SUCCESS)
        f->real_view = f->views;
    return result;
}

int ws_has_view(const struct ws_file *f) { return f->opened == 1 && f->real_view == f->views; }

MPI_File ws_file_alone(struct ws_file *f, int *error_class) {
    int amode = f->amode & (MPI_MODE_RDONLY | MPI_MODE_WRONLY | MPI_MODE_RDWR);
    int result = MPI_SUCCESS;
    if (f->alone == MPI_FILE_NULL)
        result = PMPI_File_open(MPI_COMM_SELF, f->path, amode, MPI_INFO_NULL, &f->alone);
    if (result == MPI_SUCCESS && !f->alone_view) {
        PMPI_File_set_errhandler(f->alone, MPI_ERRORS_RETURN);
        PMPI_File_set_atomicity(f->alone, f->atomic);
        result = PMPI_File_set_view(f->alone, f->displacement, f->etype, f->filetype, "native", MPI_INFO_NULL);
        f->alone_view = result == MPI_SUCCESS;
    }
    if (result == MPI_SUCCESS)
        return f->alone;
    PMPI_Error_class(result, error_class);
    return MPI_FILE_NULL;
}
