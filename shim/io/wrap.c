/* MPI_File_* and PMPI_File_*, preloaded: for MPICH and every MPI that is not Open MPI with its component headers.
 *
 * Both names are defined: MPICH's mpi_f08 module calls PMPI_File_open, its older Fortran interfaces MPI_File_open (seen
 * in 4.0.2), Open MPI's Fortran PMPI_File_*. The real functions are those of the next library that has them. The file
 * handle is the library's own; what Waystage knows of it is in a side table (file.h).
 */
#include "wrap.h"
#include "named.h"
#include "say.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

static struct {
    int (*open)(MPI_Comm, const char *, int, MPI_Info, MPI_File *);
    int (*close)(MPI_File *);
    int (*set_view)(MPI_File, MPI_Offset, MPI_Datatype, MPI_Datatype, const char *, MPI_Info);
    int (*get_info)(MPI_File, MPI_Info *);
    int (*get_amode)(MPI_File, int *);
} real;

static int real_set_view(MPI_File file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                         const char *datarep, void *info) {
    MPI_Info none = MPI_INFO_NULL;
    return real.set_view(file, displacement, etype, filetype, datarep, info != NULL ? *(MPI_Info *)info : none);
}

static int raise_now(MPI_File file, int error_class) {
    PMPI_File_call_errhandler(file, error_class);
    return error_class;
}

void ws_wrap_find(void) {
    static int found;
    if (found)
        return;
    found = 1;
#define WS_FIND(name, arguments) *(void **)&ws_real.name = dlsym(RTLD_NEXT, "PMPI_File_" #name);
    WS_FUNCTIONS(WS_FIND)
#undef WS_FIND
    *(void **)&real.open = dlsym(RTLD_NEXT, "PMPI_File_open");
    *(void **)&real.close = dlsym(RTLD_NEXT, "PMPI_File_close");
    *(void **)&real.set_view = dlsym(RTLD_NEXT, "PMPI_File_set_view");
    *(void **)&real.get_info = dlsym(RTLD_NEXT, "PMPI_File_get_info");
    *(void **)&real.get_amode = dlsym(RTLD_NEXT, "PMPI_File_get_amode");
    ws_real.set_view = real_set_view;
    ws_real.raise = raise_now;
    ws_real.name = "the MPI library";
}

/* -- opening, closing, views --------------------------------------------------------------------------------------- */

static void read_hints(MPI_Info info, struct ws_hints *hints) {
    int count = 0;
    char key[MPI_MAX_INFO_KEY + 1], value[WS_HINT_BYTES + 1];
    if (info != MPI_INFO_NULL)
        PMPI_Info_get_nkeys(info, &count);
    for (int i = 0; i < count; i++) {
        int found = 0;
        PMPI_Info_get_nthkey(info, i, key);
        PMPI_Info_get(info, key, WS_HINT_BYTES - 1, value, &found);
        if (found)
            ws_hints_add(hints, key, value);
    }
}

static MPI_Info info_of(const struct ws_hints *hints) {
    MPI_Info info = MPI_INFO_NULL;
    if (hints->count > 0 && PMPI_Info_create(&info) == MPI_SUCCESS)
        for (int i = 0; i < hints->count; i++)
            PMPI_Info_set(info, hints->text[2 * i], hints->text[2 * i + 1]);
    return info;
}

static int open_named(MPI_Comm comm, const char *name, int amode, MPI_Info info, MPI_File *file) {
    struct ws_hints *hints = calloc(1, sizeof *hints);
    struct ws_file *named;
    int result = MPI_ERR_NO_MEM;
    *file = MPI_FILE_NULL;
    if (hints != NULL) {
        read_hints(info, hints);
        result = ws_named_open(comm, name, amode, hints, &named);
    }
    free(hints);
    if (result != MPI_SUCCESS)
        return raise_now(MPI_FILE_NULL, result);
    result = real.open(comm, WS_NAMED_STANDS_FOR, amode & ~WS_NAMED_LEFT_OUT, info, file);
    if (result == MPI_SUCCESS)
        ws_named_attach(named, *file);
    else
        ws_named_abandon(named);
    return result;
}

WS_EXPORT int MPI_File_open(MPI_Comm comm, const char *name, int amode, MPI_Info info, MPI_File *file) {
    ws_wrap_find();
    if (ws_named_is(name))
        return open_named(comm, name, amode, info, file);
    struct ws_hints *hints = calloc(1, sizeof *hints);
    if (hints == NULL)
        return real.open(comm, name, amode, info, file);
    read_hints(info, hints);
    struct ws_opening *o = calloc(1, sizeof *o);
    if (o == NULL)
        PMPI_Abort(comm, 1);
    *o = (struct ws_opening){.name = name, .amode = amode, .hints = hints};
    ws_file_prepare(comm, o);
    int prepared = o->comm != MPI_COMM_NULL;
    MPI_Info of_rank_0 = prepared ? info_of(hints) : MPI_INFO_NULL;
    int result = real.open(comm, name, amode, prepared ? of_rank_0 : info, file);
    o->handle = *file;
    o->failed = result != MPI_SUCCESS;
    if (prepared)
        ws_file_attach(o);
    free(o);
    if (of_rank_0 != MPI_INFO_NULL)
        PMPI_Info_free(&of_rank_0);
    free(hints);
    return result;
}
int PMPI_File_open(MPI_Comm, const char *, int, MPI_Info, MPI_File *) WS_SAME_AS("MPI_File_open");

WS_EXPORT int MPI_File_close(MPI_File *file) {
    ws_wrap_find();
    struct ws_file *attached = ws_file_find(*file);
    if (attached != NULL && attached->named != NULL) {
        int result = ws_named_close(attached), closed = real.close(file);
        return result != MPI_SUCCESS ? raise_now(MPI_FILE_NULL, result) : closed;
    }
    int result, closed;
    ws_file_detach(*file, &result);
    closed = real.close(file);
    return closed == MPI_SUCCESS && result != MPI_SUCCESS ? raise_now(MPI_FILE_NULL, result) : closed;
}
int PMPI_File_close(MPI_File *) WS_SAME_AS("MPI_File_close");

WS_EXPORT int MPI_File_set_view(MPI_File file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                                const char *datarep, MPI_Info info) {
    ws_wrap_find();
    return ws_set_view(file, displacement, etype, filetype, datarep, &info);
}
int PMPI_File_set_view(MPI_File, MPI_Offset, MPI_Datatype, MPI_Datatype, const char *, MPI_Info)
    WS_SAME_AS("MPI_File_set_view");

/* What is in force: the aggregators' values over those of the library. */
WS_EXPORT int MPI_File_get_info(MPI_File handle, MPI_Info *info) {
    ws_wrap_find();
    int result = real.get_info(handle, info);
    struct ws_file *file = ws_file_find(handle);
    if (result == MPI_SUCCESS && file != NULL && file->named == NULL && !file->lost)
        for (int i = 0; ws_hints_in_force[i] != NULL; i++) {
            char value[WS_HINT_BYTES];
            if (ws_library.hint(file->file, ws_hints_in_force[i], value, sizeof value) == WS_IO_OK)
                PMPI_Info_set(*info, ws_hints_in_force[i], value);
        }
    return result;
}
int PMPI_File_get_info(MPI_File, MPI_Info *) WS_SAME_AS("MPI_File_get_info");

/* Of the program, not of what stands for a coupled name. */
WS_EXPORT int MPI_File_get_amode(MPI_File handle, int *amode) {
    ws_wrap_find();
    struct ws_file *file = ws_file_find(handle);
    int result = real.get_amode(handle, amode);
    if (result == MPI_SUCCESS && file != NULL && file->named != NULL)
        *amode = file->amode;
    return result;
}
int PMPI_File_get_amode(MPI_File, int *) WS_SAME_AS("MPI_File_get_amode");
