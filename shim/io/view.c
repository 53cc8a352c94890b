/* Views: what MPI_File_set_view gave, at the aggregators and, where it is small or needed, at the MPI library. */
#include "file.h"
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

struct agreed {
    int foreign; /* 0, or why: enum below */
    int deferred;
    int failed;
    int other;  /* not the view that the library has */
    int divided; /* not all bytes of the file */
    int shared; /* a shared pointer was used, which a view sets to 0 */
};

static int predefined(MPI_Datatype type) {
    int integers, addresses, types, combiner;
    return PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
           combiner == MPI_COMBINER_NAMED;
}

/* HDF5 sets the view of bytes after each transfer. */
static int is_of_library(const struct ws_file *f, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype) {
    return displacement == f->library_displacement && etype == f->library_etype && filetype == f->library_filetype;
}

/* The library has this view now. Derived datatypes may be freed, and their handles used again. */
static void library_has(struct ws_file *f, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype) {
    f->library_displacement = displacement;
    f->library_etype = predefined(etype) ? etype : MPI_DATATYPE_NULL;
    f->library_filetype = predefined(filetype) ? filetype : MPI_DATATYPE_NULL;
}

enum { REPRESENTATION = 1, DATATYPE, NOT_MONOTONE };

static const char *const reasons[] = {
    NULL,
    "the representation of the view is not native",
    "the datatype of the view is not supported",
    "the view is not monotone",
};

/* HDF5 makes filetypes of chunks whose data reach beyond their extent, and uses them once: repetitions would
 * interleave. With a larger extent the first is the same, and ws_collective() leaves more to the MPI library. */
static int set_view_once(struct ws_file *f, MPI_Offset displacement, int64_t etype_bytes, MPI_Datatype filetype,
                         const struct ws_type *t) {
    MPI_Aint lower, extent, true_lower, true_extent;
    PMPI_Type_get_extent(filetype, &lower, &extent);
    PMPI_Type_get_true_extent(filetype, &true_lower, &true_extent);
    ws_io_type *wide = ws_library.type_resized(lower, true_extent, t->type);
    if (wide == NULL)
        return WS_IO_MEMORY;
    int result = ws_library.set_view(f->file, displacement, etype_bytes, wide);
    ws_library.type_free(wide);
    f->one_tile = result == WS_IO_OK;
    return result;
}

/* What this rank says about a view; the aggregators have it afterwards unless `foreign`. */
static struct agreed tell(struct ws_file *f, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                          const char *datarep) {
    struct agreed a = {.other = !is_of_library(f, displacement, etype, filetype), .shared = f->shared,
                       .divided = displacement != 0 || !predefined(etype) || !predefined(filetype)};
    const struct ws_type *e, *t;
    f->one_tile = 0;
    if (strcmp(datarep, "native") != 0)
        a.foreign = REPRESENTATION;
    else if (displacement < 0 || (e = ws_type_of(etype)) == NULL || (t = ws_type_of(filetype)) == NULL || e->size == 0)
        a.foreign = DATATYPE;
    else {
        a.deferred = t->runs > WS_REAL_VIEW_RUNS;
        int result = ws_library.set_view(f->file, displacement, e->size, t->dense ? NULL : t->type);
        if ((result == WS_IO_UNSUPPORTED || result == WS_IO_ARGUMENT) && !t->dense)
            result = set_view_once(f, displacement, e->size, filetype, t);
        if (result == WS_IO_UNSUPPORTED || result == WS_IO_ARGUMENT)
            a.foreign = NOT_MONOTONE;
        else if (result != WS_IO_OK)
            a.failed = -result;
    }
    return a;
}

static void remember(struct ws_file *f, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype) {
    MPI_Count bytes;
    f->displacement = displacement;
    f->position = 0;
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
    if (f == NULL || f->lost) {
        int result = ws_real.set_view(handle, displacement, etype, filetype, datarep, info);
        if (f != NULL && result == MPI_SUCCESS)
            remember(f, displacement, etype, filetype);
        return result;
    }
    int mine[6], all[6];
    struct agreed a = tell(f, displacement, etype, filetype, datarep);
    memcpy(mine, &a, sizeof mine);
    PMPI_Allreduce(mine, all, 6, MPI_INT, MPI_MAX, f->comm);
    memcpy(&a, all, sizeof all);
    if (a.failed != 0) {
        f->lost = 1;
        ws_file_say(f, WS_SAID_LOST, "the aggregators did not take the view");
    }
    if (a.foreign != 0)
        ws_file_say(f, WS_SAID_VIEW, reasons[a.foreign]);
    int many = f->views >= WS_REAL_VIEWS && a.divided && !a.shared;
    f->views += f->views < WS_REAL_VIEWS;
    if (a.foreign == 0 && a.failed == 0 && !a.other && !a.shared) {
        f->foreign = 0;
        f->real_view = 1;
    } else if (a.foreign != 0 || a.failed != 0 || (!a.deferred && !many)) {
        int result = ws_real.set_view(handle, displacement, etype, filetype, datarep, info);
        /* The aggregators have the new view, or part of them; the library has the old one. */
        f->foreign = a.foreign != 0 || result != MPI_SUCCESS;
        f->real_view = 1;
        if (result != MPI_SUCCESS)
            return result;
        library_has(f, displacement, etype, filetype);
    } else {
        f->foreign = 0;
        f->real_view = 0;
    }
    remember(f, displacement, etype, filetype);
    return MPI_SUCCESS;
}

int ws_file_real_view(struct ws_file *f) {
    if (!f->real_view) {
        f->real_view = ws_real.set_view(f->handle, f->displacement, f->etype, f->filetype, "native", NULL) == MPI_SUCCESS;
        library_has(f, f->displacement, f->etype, f->filetype);
    }
    return f->real_view;
}

MPI_File ws_file_alone(struct ws_file *f, int *error_class) {
    int amode = f->amode & (MPI_MODE_RDONLY | MPI_MODE_WRONLY | MPI_MODE_RDWR);
    int result = MPI_SUCCESS;
    if (f->alone == MPI_FILE_NULL)
        result = PMPI_File_open(MPI_COMM_SELF, f->path, amode, MPI_INFO_NULL, &f->alone);
    if (result == MPI_SUCCESS && !f->alone_view) {
        PMPI_File_set_errhandler(f->alone, MPI_ERRORS_RETURN);
        result = PMPI_File_set_view(f->alone, f->displacement, f->etype, f->filetype, "native", MPI_INFO_NULL);
        f->alone_view = result == MPI_SUCCESS;
    }
    if (result == MPI_SUCCESS)
        return f->alone;
    PMPI_Error_class(result, error_class);
    return MPI_FILE_NULL;
}
