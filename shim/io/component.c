/* The io component of Open MPI. It asks ompio for its functions and replaces those of ops.h, in C and in Fortran alike.
 *
 * It is built outside of Open MPI's tree, against its component headers, and found by `mca_base_component_path`.
 */
#include "file.h"
#include "named.h"
#include "ops.h"

#include "ompi_config.h"

#include "ompi/file/file.h"
#include "ompi/mca/io/base/base.h"
#include "ompi/mca/io/io.h"
#include "ompi/mca/mca.h"
#include "opal/mca/base/base.h"
#include "opal/util/info.h"

#include <stdlib.h>
#include <string.h>

/* Above ompio's 30 and romio321's 40 (on Lustre ompio asks for less). */
#define PRIORITY 1000

extern mca_base_framework_t ompi_io_base_framework, ompi_fs_base_framework, ompi_fbtl_base_framework,
    ompi_fcoll_base_framework, ompi_sharedfp_base_framework;
int mca_fs_base_find_available(bool progress_threads, bool mpi_threads);
int mca_fbtl_base_find_available(bool progress_threads, bool mpi_threads);
int mca_fcoll_base_find_available(bool progress_threads, bool mpi_threads);
int mca_sharedfp_base_find_available(bool progress_threads, bool mpi_threads);

static mca_io_base_module_2_0_0_t module;
static const mca_io_base_module_2_0_0_t *ompio;
static mca_io_base_component_2_0_0_t *ompio_component;

/* The io framework opens these for ompio only when ompio wins; without them its functions find no file system. */
static void open_frameworks(void) {
    static int opened;
    if (opened++)
        return;
    mca_base_framework_open(&ompi_fs_base_framework, MCA_BASE_OPEN_DEFAULT);
    mca_base_framework_open(&ompi_fcoll_base_framework, MCA_BASE_OPEN_DEFAULT);
    mca_base_framework_open(&ompi_fbtl_base_framework, MCA_BASE_OPEN_DEFAULT);
    mca_base_framework_open(&ompi_sharedfp_base_framework, MCA_BASE_OPEN_DEFAULT);
    mca_fs_base_find_available(false, false);
    mca_fcoll_base_find_available(false, false);
    mca_fbtl_base_find_available(false, false);
    mca_sharedfp_base_find_available(false, false);
}

static void find_ompio(void) {
    mca_base_component_list_item_t *item;
    OPAL_LIST_FOREACH(item, &ompi_io_base_framework.framework_components, mca_base_component_list_item_t) {
        if (strcmp(item->cli_component->mca_component_name, "ompio") == 0)
            ompio_component = (mca_io_base_component_2_0_0_t *)(uintptr_t)item->cli_component;
    }
}

/* -- opening, closing, views: where the module's arguments are not MPI's ------------------------------------------- */

static void read_hints(opal_info_t *info, struct ws_hints *hints) {
    int count = 0;
    char key[OPAL_MAX_INFO_KEY + 1], value[WS_HINT_BYTES + 1];
    if (info != NULL)
        opal_info_get_nkeys(info, &count);
    for (int i = 0; i < count; i++) {
        int found = 0;
        if (opal_info_get_nthkey(info, i, key) == OPAL_SUCCESS &&
            opal_info_get(info, key, WS_HINT_BYTES - 1, value, &found) == OPAL_SUCCESS && found)
            ws_hints_add(hints, key, value);
    }
}

/* MPI_File_get_info returns what is in the file's info: the aggregators' values over the program's. */
static void report_hints(struct ompi_file_t *file, opal_info_t *info) {
    struct ws_file *attached = ws_file_find(file);
    for (int i = 0; attached != NULL && info != NULL && ws_hints_in_force[i] != NULL; i++) {
        char value[WS_HINT_BYTES];
        if (ws_library.hint(attached->file, ws_hints_in_force[i], value, sizeof value) == WS_IO_OK)
            opal_info_set(info, ws_hints_in_force[i], value);
    }
}

/* ompio's open of a file that exists by now. */
static int open_late(struct ompi_file_t *file) {
    int amode = file->f_amode & ~(MPI_MODE_CREATE | MPI_MODE_EXCL);
    return ompio->io_module_file_open(file->f_comm, file->f_filename, amode, file->super.s_info, file);
}

static int open_named(struct ompi_communicator_t *comm, const char *name, int amode, struct opal_info_t *info,
                      struct ompi_file_t *file) {
    struct ws_hints *hints = calloc(1, sizeof *hints);
    struct ws_file *named;
    if (hints == NULL)
        return MPI_ERR_NO_MEM;
    read_hints(info, hints);
    int result = ws_named_open(comm, name, amode, hints, &named);
    free(hints);
    if (result != MPI_SUCCESS)
        return result;
    result = ompio->io_module_file_open(comm, WS_NAMED_STANDS_FOR, amode & ~WS_NAMED_LEFT_OUT, info, file);
    if (result == OMPI_SUCCESS)
        ws_named_attach(named, file);
    else
        ws_named_abandon(named);
    return result;
}

static int file_open(struct ompi_communicator_t *comm, const char *name, int amode, struct opal_info_t *info,
                     struct ompi_file_t *file) {
    if (ws_named_is(name))
        return open_named(comm, name, amode, info, file);
    struct ws_opening *o = calloc(1, sizeof *o);
    struct ws_hints *hints = calloc(1, sizeof *hints);
    int result = o != NULL && hints != NULL ? OMPI_SUCCESS : MPI_ERR_NO_MEM;
    if (result == OMPI_SUCCESS) {
        read_hints(info, hints);
        *o = (struct ws_opening){.handle = file, .name = name, .amode = amode, .hints = hints};
        ws_file_prepare(comm, o);
        int prepared = o->comm != MPI_COMM_NULL;
        for (int i = 0; prepared && info != NULL && i < hints->count; i++)
            opal_info_set(info, hints->text[2 * i], hints->text[2 * i + 1]);
        if (!o->late)
            result = ompio->io_module_file_open(comm, name, amode, info, file);
        o->failed = result != OMPI_SUCCESS;
        int attached = prepared && ws_file_attach(o);
        if (o->late && !attached)
            result = open_late(file);
        if (attached)
            report_hints(file, info);
    }
    free(hints);
    free(o);
    return result;
}

static int file_close(struct ompi_file_t *file) {
    struct ws_file *attached = ws_file_find(file);
    if (attached != NULL && attached->named != NULL) {
        int result = ws_named_close(attached), closed = ompio->io_module_file_close(file);
        return result != MPI_SUCCESS ? result : closed;
    }
    int result, closed;
    if (ws_file_detach(file, &result))
        closed = ompio->io_module_file_close(file);
    else
        closed = ompio_component->io_file_unquery(file, file->f_io_selected_data);
    return closed != OMPI_SUCCESS ? closed : result;
}

/* ompio's answer is of a file that it has opened. */
static int get_amode(struct ompi_file_t *file, int *amode) {
    *amode = file->f_amode;
    return OMPI_SUCCESS;
}

static int real_set_view(MPI_File file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                         const char *datarep, void *info) {
    opal_info_t *none = NULL;
    if (info == NULL)
        none = OBJ_NEW(opal_info_t);
    int result = ompio->io_module_file_set_view(file, displacement, etype, filetype, datarep, info != NULL ? info : none);
    if (none != NULL)
        OBJ_RELEASE(none);
    return result;
}

static int set_view(struct ompi_file_t *file, MPI_Offset displacement, struct ompi_datatype_t *etype,
                    struct ompi_datatype_t *filetype, const char *datarep, struct opal_info_t *info) {
    return ws_set_view(file, displacement, etype, filetype, datarep, info);
}

/* What a function of a module returns reaches the file's error handler in MPI's function. */
static int raise_by_return(MPI_File file, int error_class) {
    (void)file;
    return error_class;
}

static void replace_functions(void) {
    module = *ompio;
#define WS_REPLACE(name, arguments)                                                                                    \
    ws_real.name = ompio->io_module_file_##name;                                                                       \
    module.io_module_file_##name = ws_##name;
    WS_FUNCTIONS(WS_REPLACE)
#undef WS_REPLACE
    ws_real.set_view = real_set_view;
    ws_real.open_late = open_late;
    ws_real.raise = raise_by_return;
    ws_real.name = "ompio";
    module.io_module_file_open = file_open;
    module.io_module_file_close = file_close;
    module.io_module_file_set_view = set_view;
    module.io_module_file_get_amode = get_amode;
}

/* -- the component ------------------------------------------------------------------------------------------------- */

static int init_query(bool progress_threads, bool mpi_threads) {
    (void)progress_threads, (void)mpi_threads;
    return OMPI_SUCCESS;
}

static const mca_io_base_module_2_0_0_t *file_query(struct ompi_file_t *file, struct mca_io_base_file_t **data,
                                                    int *priority) {
    *priority = -1;
    if (ompio_component == NULL)
        find_ompio();
    if (ompio_component == NULL)
        return NULL;
    open_frameworks();
    int its_priority;
    const mca_io_base_module_2_0_0_t *found = ompio_component->io_file_query(file, data, &its_priority);
    if (found == NULL)
        return NULL;
    if (ompio == NULL) {
        ompio = found;
        replace_functions();
    }
    *priority = PRIORITY;
    return &module;
}

static int file_unquery(struct ompi_file_t *file, struct mca_io_base_file_t *data) {
    return ompio_component->io_file_unquery(file, data);
}

static int delete_query(const char *name, struct opal_info_t *info, struct mca_io_base_delete_t **data, bool *usable,
                        int *priority) {
    (void)name, (void)info, (void)data;
    *usable = false;
    *priority = 0;
    return OMPI_SUCCESS;
}

static int delete_nothing(const char *name, struct opal_info_t *info, struct mca_io_base_delete_t *data) {
    (void)name, (void)info, (void)data;
    return OMPI_SUCCESS;
}

__attribute__((visibility("default"))) mca_io_base_component_2_0_0_t mca_io_waystage_component = {
    .io_version = {MCA_IO_BASE_VERSION_2_0_0, .mca_component_name = "waystage",
                   MCA_BASE_MAKE_VERSION(component, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION)},
    .io_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .io_init_query = init_query,
    .io_file_query = file_query,
    .io_file_unquery = file_unquery,
    .io_delete_query = delete_query,
    .io_delete_unquery = delete_nothing,
    .io_delete_select = delete_nothing,
};
