#include "file.h"
#include "node.h"
#include "say.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ws_real ws_real;

static struct ws_file *files;
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;

struct ws_file *ws_file_find(MPI_File handle) {
    pthread_mutex_lock(&files_lock);
    struct ws_file *file = files;
    while (file != NULL && file->handle != handle)
        file = file->next;
    pthread_mutex_unlock(&files_lock);
    return file;
}

void ws_file_enlist(struct ws_file *f) {
    pthread_mutex_lock(&files_lock);
    f->next = files;
    files = f;
    pthread_mutex_unlock(&files_lock);
}

void ws_file_delist(struct ws_file *f) {
    pthread_mutex_lock(&files_lock);
    struct ws_file **link = &files;
    while (*link != f)
        link = &(*link)->next;
    *link = f->next;
    pthread_mutex_unlock(&files_lock);
}

void ws_file_say(struct ws_file *file, enum ws_kind kind, const char *why) {
    unsigned bit = 1u << kind;
    if (file->rank != 0 || (file->said & bit) != 0)
        return;
    file->said |= bit;
    if (kind == WS_SAID_LOST || ws_verbose())
        ws_say("%s: %s; %s does it", file->name, why, ws_real.name);
}

int ws_error_class(int result) {
    switch (result) {
    case WS_IO_OK: return MPI_SUCCESS;
    case WS_IO_NO_SUCH_FILE: return MPI_ERR_NO_SUCH_FILE;
    case WS_IO_FILE_EXISTS: return MPI_ERR_FILE_EXISTS;
    case WS_IO_ACCESS: return MPI_ERR_ACCESS;
    case WS_IO_READ_ONLY: return MPI_ERR_READ_ONLY;
    case WS_IO_NO_SPACE: return MPI_ERR_NO_SPACE;
    case WS_IO_QUOTA: return MPI_ERR_QUOTA;
    case WS_IO_BAD_FILE: return MPI_ERR_BAD_FILE;
    case WS_IO_ARGUMENT: return MPI_ERR_ARG;
    case WS_IO_UNSUPPORTED: return MPI_ERR_UNSUPPORTED_OPERATION;
    case WS_IO_MEMORY: return MPI_ERR_NO_MEM;
    default: return MPI_ERR_IO;
    }
}

/* -- opening and closing ------------------------------------------------------------------------------------------- */

/* ROMIO's names of file systems before a path. Another one, like `waystage:NAME`, is no path. */
static const char *without_file_system(const char *name) {
    static const char *const prefixes[] = {"ufs:", "nfs:", "xfs:", "lustre:", "gpfs:"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

/* Rank 0, whose hints these are: makes and opens the file, so that the library's own open can wait. 0: the library
 * opens it at once. It reports what is wrong with a file, and it knows the modes and hints below. */
static int open_first(struct ws_opening *o) {
    int modes = MPI_MODE_APPEND | MPI_MODE_DELETE_ON_CLOSE, reads = (o->amode & MPI_MODE_RDONLY) != 0;
    int one = reads + ((o->amode & MPI_MODE_WRONLY) != 0) + ((o->amode & MPI_MODE_RDWR) != 0) == 1;
    if (!one || (reads && (o->amode & (MPI_MODE_CREATE | MPI_MODE_EXCL)) != 0))
        return 0; /* an error of the program */
    if (ws_real.open_late == NULL || (o->amode & modes) != 0 || ws_hints_switch(o->hints, "waystage_io", 1) == 0 ||
        !ws_hints_switch(o->hints, "romio_cb_write", 1) || !ws_hints_switch(o->hints, "romio_cb_read", 1) ||
        ws_hints_get(o->hints, "striping_unit") != NULL || ws_hints_get(o->hints, "striping_factor") != NULL)
        return 0;
    if (without_file_system(o->name) != o->name || ws_library_load() != NULL)
        return 0;
    struct stat is;
    int how = reads ? O_RDONLY : (o->amode & MPI_MODE_WRONLY) != 0 ? O_WRONLY : O_RDWR;
    how |= (o->amode & MPI_MODE_CREATE) != 0 ? O_CREAT : 0;
    how |= (o->amode & MPI_MODE_EXCL) != 0 ? O_EXCL : 0;
    /* A FIFO must not block. */
    int opened = open(o->name, how | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (opened < 0)
        return 0;
    int fits = fstat(opened, &is) == 0 && S_ISREG(is.st_mode);
    close(opened);
    o->found.result = WS_IO_OK;
    return fits && realpath(o->name, o->found.path) != NULL && ws_library.file_id(o->found.id) == WS_IO_OK;
}

void ws_file_prepare(MPI_Comm comm, struct ws_opening *o) {
    struct {
        int late;
        struct ws_found found;
    } *first;
    int rank, size, between;
    o->comm = MPI_COMM_NULL;
    o->late = 0;
    const char *behind = getenv("WAYSTAGE_IO_WRITE_BEHIND");
    if (behind != NULL && strcmp(behind, "1") == 0 && ws_hints_get(o->hints, "waystage_write_behind") == NULL)
        ws_hints_add(o->hints, "waystage_write_behind", "true");
    if (comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &between) != MPI_SUCCESS || between)
        return;
    PMPI_Comm_size(comm, &size);
    PMPI_Comm_rank(comm, &rank);
    /* One rank has no one to gather with; a sequential file has shared pointers only. */
    if (size == 1 || (o->amode & MPI_MODE_SEQUENTIAL) != 0 || PMPI_Comm_dup(comm, &o->comm) != MPI_SUCCESS)
        return;
    PMPI_Comm_set_errhandler(o->comm, MPI_ERRORS_RETURN);
    if ((first = calloc(1, sizeof *first)) == NULL)
        PMPI_Abort(comm, 1);
    if (rank == 0) {
        first->late = open_first(o);
        first->found = o->found;
    }
    int same = ws_hints_of_rank_0(o->hints, first, sizeof *first, o->comm);
    if (!same && ws_verbose())
        ws_say("hints differ from those of rank 0, which hold for all");
    o->late = first->late;
    o->found = first->found;
    free(first);
}

/* The lowest rank on which `ok` is 0, or -1. Collective. */
static int first_not(MPI_Comm comm, int rank, int ok) {
    int mine = ok ? INT_MAX : rank, first;
    PMPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm);
    return first == INT_MAX ? -1 : first;
}

static int open_at_aggregators(struct ws_file *f, const struct ws_nodes *nodes, const struct ws_hints *hints,
                               const struct ws_found *chosen) {
    const char *texts[2 * WS_MAX_HINTS];
    for (int i = 0; i < 2 * hints->count; i++)
        texts[i] = hints->text[i];
    const char **addresses = malloc(sizeof *addresses * (size_t)nodes->count);
    if (addresses == NULL)
        return WS_IO_MEMORY;
    for (int i = 0; i < nodes->count; i++)
        addresses[i] = nodes->address[i];
    struct ws_io_open how = {
        .path = chosen->path,
        .flags = (f->amode & MPI_MODE_RDONLY) != 0   ? WS_IO_RDONLY
                 : (f->amode & MPI_MODE_WRONLY) != 0 ? WS_IO_WRONLY
                                                     : WS_IO_RDWR,
        .rank = f->rank,
        .size = f->size,
        .nodes = nodes->count,
        .addresses = addresses,
        .node_of = nodes->of_rank,
        .hints = hints->count,
        .hint = texts,
    };
    memcpy(how.id, chosen->id, sizeof how.id);
    int result = ws_library.open(f->node, &how, &f->file);
    if (result != WS_IO_OK)
        f->file = NULL;
    free(addresses);
    return result;
}

/* DIR/.waystage-shared-ID beside the file: the file is of this open alone. */
static char *beside(const char *path, const unsigned char *id) {
    static const char mark[] = "/.waystage-shared-";
    const char *end = strrchr(path, '/');
    size_t folder = end != NULL ? (size_t)(end - path) : 0;
    char *found = malloc(folder + sizeof mark + 2 * WS_IO_ID_BYTES);
    if (found == NULL)
        return NULL;
    memcpy(found, path, folder);
    strcpy(found + folder, mark);
    for (int i = 0; i < WS_IO_ID_BYTES; i++)
        sprintf(found + folder + sizeof mark - 1 + 2 * i, "%02x", id[i]);
    return found;
}

/* Where rank 0 has not opened the file itself, it goes first: it fails alone where the file cannot be opened at all. */
static const char *open_together(struct ws_file *f, const struct ws_nodes *nodes, const struct ws_opening *o) {
    struct ws_found *chosen = malloc(sizeof *chosen);
    if (chosen == NULL)
        PMPI_Abort(f->comm, 1);
    *chosen = o->found;
    if (!o->late) {
        if (f->rank == 0) {
            memset(chosen, 0, sizeof *chosen);
            if (realpath(without_file_system(f->name), chosen->path) == NULL)
                chosen->result = WS_IO_NO_SUCH_FILE;
            else
                chosen->result = ws_library.file_id(chosen->id);
            if (chosen->result == WS_IO_OK)
                chosen->result = open_at_aggregators(f, nodes, o->hints, chosen);
        }
        PMPI_Bcast(chosen, sizeof *chosen, MPI_BYTE, 0, f->comm);
    }
    if ((f->rank != 0 || o->late) && chosen->result == WS_IO_OK)
        chosen->result = open_at_aggregators(f, nodes, o->hints, chosen);
    if (chosen->result == WS_IO_OK) {
        f->path = strdup(chosen->path);
        f->shared_path = beside(chosen->path, chosen->id);
    }
    free(chosen);
    return f->path != NULL && f->shared_path != NULL ? NULL : ws_library.message();
}

void ws_file_settle(struct ws_file *f) {
    if (f->file != NULL && !f->lost)
        ws_library.settle(f->file); /* the next sync or the close returns its error */
}

static int release_file(struct ws_file *f) {
    int result = f->file != NULL ? ws_library.close(f->file) : WS_IO_OK;
    f->file = NULL;
    return result;
}

static void release(struct ws_file *f) {
    release_file(f);
    ws_node_release(f->node);
    PMPI_Comm_free(&f->comm);
    free(f->name);
    free(f->path);
    free(f->shared_path);
    free(f);
}

static const char *attach(struct ws_file *f, const struct ws_opening *o, int *first) {
    const char *why = NULL;
    if (ws_hints_switch(o->hints, "waystage_io", 1) == 0)
        why = "the hint waystage_io is false";
    else if (!o->failed && (f->node = ws_node_connect()) == NULL)
        why = ws_node_why();
    struct ws_nodes nodes;
    if ((*first = ws_nodes_gather(f->comm, !o->failed && why == NULL ? f->node : NULL, &nodes)) >= 0)
        return why != NULL || o->failed ? why : "the addresses of the nodes do not fit together";
    why = open_together(f, &nodes, o);
    ws_nodes_free(&nodes);
    *first = first_not(f->comm, f->rank, why == NULL);
    return why;
}

int ws_file_attach(const struct ws_opening *opening) {
    struct ws_file *f = calloc(1, sizeof *f);
    /* Without memory for this nothing works: the other ranks learn of it as an error of MPI. */
    if (f == NULL)
        PMPI_Abort(opening->comm, 1);
    f->handle = opening->handle;
    f->comm = opening->comm;
    f->amode = opening->amode;
    f->name = strdup(opening->name);
    f->alone = MPI_FILE_NULL;
    PMPI_Comm_rank(f->comm, &f->rank);
    PMPI_Comm_size(f->comm, &f->size);
    int first;
    const char *why = attach(f, opening, &first);
    if (first >= 0) {
        if (first == f->rank && why != NULL)
            ws_say("%s: not through aggregators, since on rank %d: %s", opening->name, f->rank, why);
        release(f);
        return 0;
    }
    f->no_write = !ws_hints_switch(opening->hints, "romio_cb_write", 1);
    f->no_read = !ws_hints_switch(opening->hints, "romio_cb_read", 1);
    f->etype = f->filetype = MPI_BYTE;
    f->etype_bytes = f->filetype_bytes = 1;
    f->dense = 1;
    f->opened = !opening->late;
    /* MPI_MODE_APPEND moved it. */
    if (f->opened)
        ws_real.get_position(f->handle, &f->position);
    f->shared_from = f->position;
    char unit[32] = "", from[32] = "";
    if (f->rank == 0 && ws_verbose() && ws_library.hint(f->file, "striping_unit", unit, sizeof unit) == WS_IO_OK &&
        ws_library.hint(f->file, "waystage_unit_from", from, sizeof from) == WS_IO_OK)
        ws_say("%s: through aggregators, in units of %s bytes (%s)", f->name, unit, from);
    ws_file_enlist(f);
    return 1;
}

static void close_alone(struct ws_file *f) {
    if (f->alone != MPI_FILE_NULL)
        PMPI_File_close(&f->alone);
    f->alone = MPI_FILE_NULL;
}

/* Of the aggregators' file. One that has been lost does not fail a close: what was acknowledged is in the file, and
 * what was not is an error of its operation. */
static int close_code(struct ws_file *f) {
    int result = f->lost ? WS_IO_OK : release_file(f);
    return result == WS_IO_LOST || result == WS_IO_AGAIN ? 0 : -result;
}

int ws_file_detach(MPI_File handle, int *result) {
    struct ws_file *f = ws_file_find(handle);
    *result = MPI_SUCCESS;
    if (f == NULL)
        return 1;
    ws_file_delist(f);
    close_alone(f);
    ws_forget_view(f);
    /* No rank is past the close before all have ended what they write by themselves. */
    int mine[2] = {f->shared, close_code(f)}, all[2] = {0, 0}, opened = f->opened == 1;
    PMPI_Allreduce(mine, all, 2, MPI_INT, MPI_MAX, f->comm);
    if (all[0] && f->rank == 0)
        unlink(f->shared_path);
    *result = ws_error_class(-all[1]);
    /* Open MPI passes no error of a close on. */
    if (*result != MPI_SUCCESS && f->rank == 0)
        ws_say("%s: bytes that were acknowledged are not in the file: %s", f->name,
               mine[1] != 0 ? ws_library.message() : "see the other ranks");
    release(f);
    return opened;
}
