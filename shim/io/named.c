#include "named.h"
#include "collective.h"
#include "say.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "waystage:"
#define DEPTH 2
#define TIMEOUT_S 3600 /* the other application may wait in a queue */
#define LEASE_S 30

/* Of rank 0, for all ranks. */
struct settings {
    int depth, timeout_ms, lease_ms;
    int by_sync; /* MPI_File_sync commits a writer's version, and takes a reader to the next one */
    char store[PATH_MAX];
};

struct ws_named {
    struct ws_named *next;
    char *name; /* without the prefix */
    int role, rank, size;
    struct settings settings;
    ws_io_coupling *coupling;
    int64_t version; /* the last that was opened; -1: none */
    int is_open;
    int written; /* since the version was opened, by this rank */
};

static struct ws_named *all;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static int opened, ending; /* files that are open; MPI_Finalize has begun */

int ws_named_is(const char *name) { return strncmp(name, PREFIX, strlen(PREFIX)) == 0; }

/* -- results that all ranks agree on ------------------------------------------------------------------------------- */

static int class_of(int result, int opening) {
    int missing = result == WS_IO_ENDED || (opening && result == WS_IO_TIMEOUT);
    return missing ? MPI_ERR_NO_SUCH_FILE : ws_error_class(result);
}

/* Collective: the worst result as an error class. The first rank that has it says why. */
static int agreed(struct ws_file *f, int result, const char *why, int opening) {
    struct {
        int code, rank;
    } mine = {-result, f->rank}, worst;
    if (PMPI_Allreduce(&mine, &worst, 1, MPI_2INT, MPI_MAXLOC, f->comm) != MPI_SUCCESS)
        return MPI_ERR_IO;
    if (worst.code == 0)
        return MPI_SUCCESS;
    /* The end of the writers is how a reader's loop ends. */
    if (worst.rank == f->rank && (worst.code != -WS_IO_ENDED || ws_verbose()))
        ws_say("%s: %s", f->name, why != NULL ? why : ws_library.message());
    return class_of(-worst.code, opening);
}

/* Of one rank: an error that reaches the file's error handler. */
static int raised(struct ws_file *f, int result) {
    if (result == WS_IO_OK)
        return MPI_SUCCESS;
    ws_say("%s: rank %d: %s", f->name, f->rank, ws_library.message());
    return ws_real.raise(f->handle, class_of(result, 0));
}

int ws_named_unsupported(struct ws_file *f, const char *what) {
    ws_say("%s: %s: not supported for a coupled name", f->name, what);
    return ws_real.raise(f->handle, MPI_ERR_UNSUPPORTED_OPERATION);
}

/* -- opening the name ---------------------------------------------------------------------------------------------- */

static const char *setting(const struct ws_hints *hints, const char *hint, const char *variable) {
    const char *value = ws_hints_get(hints, hint);
    return value != NULL ? value : getenv(variable);
}

static int positive(const char *text, int otherwise) {
    double value = text != NULL ? atof(text) : 0;
    return value >= 1 && value <= INT_MAX / 1000 ? (int)value : otherwise;
}

static void settle_settings(struct settings *s, const struct ws_hints *hints) {
    memset(s, 0, sizeof *s);
    s->depth = positive(setting(hints, "waystage_depth", "WAYSTAGE_COUPLING_DEPTH"), DEPTH);
    s->timeout_ms = 1000 * positive(setting(hints, "waystage_timeout_s", "WAYSTAGE_COUPLING_TIMEOUT_S"), TIMEOUT_S);
    s->lease_ms = 1000 * positive(setting(hints, "waystage_lease_s", "WAYSTAGE_COUPLING_LEASE_S"), LEASE_S);
    const char *commit = setting(hints, "waystage_commit", "WAYSTAGE_COUPLING_COMMIT");
    s->by_sync = commit != NULL && strcmp(commit, "sync") == 0;
    const char *store = setting(hints, "waystage_store", "WAYSTAGE_COUPLING_STORE");
    if (store != NULL && strlen(store) < sizeof s->store)
        strcpy(s->store, store);
}

static void uncouple_all(void) {
    for (struct ws_named *n = all; n != NULL; n = n->next) {
        if (n->coupling == NULL)
            continue;
        int result = ws_library.uncouple(n->coupling, n->settings.timeout_ms);
        n->coupling = NULL;
        /* To readers it is all the same whether the writers have gone first. */
        if (result != WS_IO_OK && n->rank == 0 && n->role == WS_IO_WRITER)
            ws_say("%s%s: %s", PREFIX, n->name, ws_library.message());
    }
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF first, while MPI still works. HDF5 closes its files there. */
static int at_finalize(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    ending = 1;
    if (opened == 0)
        uncouple_all();
    return MPI_SUCCESS;
}

static void end_with_mpi(void) {
    static int key = MPI_KEYVAL_INVALID;
    if (key == MPI_KEYVAL_INVALID &&
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, NULL) == MPI_SUCCESS)
        PMPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
}

/* The name as this rank of this communicator has it; `others`: as another rank, or of another communicator. */
static struct ws_named *find(const char *name, int role, int rank, int size, int *others) {
    struct ws_named *found = NULL;
    *others = 0;
    pthread_mutex_lock(&all_lock);
    for (struct ws_named *n = all; n != NULL; n = n->next) {
        if (strcmp(n->name, name) != 0 || n->role != role || n->coupling == NULL)
            continue;
        if (n->rank == rank && n->size == size)
            found = n;
        else
            *others = 1;
    }
    pthread_mutex_unlock(&all_lock);
    return found;
}

static int couple(struct ws_named *n) {
    struct ws_io_couple how = {
        .name = n->name,
        .role = n->role,
        .rank = n->rank,
        .size = n->size,
        .depth = n->settings.depth,
        .timeout_ms = n->settings.timeout_ms,
        .lease_ms = n->settings.lease_ms,
        .store = n->role == WS_IO_WRITER && n->settings.store[0] != '\0' ? n->settings.store : NULL,
    };
    return ws_library.couple(&how, &n->coupling);
}

/* Collective: the name, which stays open between versions. */
static int find_or_couple(struct ws_file *f, int role, const struct ws_hints *hints, struct ws_named **named) {
    const char *name = f->name + strlen(PREFIX), *why = NULL;
    int others, mine[2], everywhere[2];
    struct ws_named *n = find(name, role, f->rank, f->size, &others);
    mine[0] = n == NULL;
    mine[1] = n != NULL || others;
    PMPI_Allreduce(mine, everywhere, 2, MPI_INT, MPI_MAX, f->comm);
    *named = n;
    if (!everywhere[0])
        return agreed(f, n->is_open ? WS_IO_ARGUMENT : WS_IO_OK, "it is open already: close it first", 0);
    if (everywhere[1])
        return agreed(f, WS_IO_ARGUMENT, "it was opened by another communicator of this program", 0);
    n = calloc(1, sizeof *n);
    if (n == NULL || (n->name = strdup(name)) == NULL)
        PMPI_Abort(f->comm, 1);
    n->role = role;
    n->rank = f->rank;
    n->size = f->size;
    n->version = -1;
    settle_settings(&n->settings, hints);
    PMPI_Bcast(&n->settings, sizeof n->settings, MPI_BYTE, 0, f->comm);
    why = ws_library_load();
    int result = why == NULL ? couple(n) : WS_IO_UNSUPPORTED;
    int class = agreed(f, result, why, role == WS_IO_READER);
    if (class != MPI_SUCCESS) {
        if (n->coupling != NULL)
            ws_library.uncouple(n->coupling, -1);
        free(n->name);
        free(n);
        return class;
    }
    pthread_mutex_lock(&all_lock);
    n->next = all;
    all = n;
    pthread_mutex_unlock(&all_lock);
    end_with_mpi();
    *named = n;
    return MPI_SUCCESS;
}

/* -- versions ------------------------------------------------------------------------------------------------------ */

/* Collective: opens the version after the last one. */
static int open_next(struct ws_file *f, int release) {
    struct ws_named *n = f->named;
    struct {
        int64_t result, version;
    } next = {WS_IO_OK, n->version + 1};
    if (n->role == WS_IO_READER) {
        if (f->rank == 0)
            next.result = ws_library.next(n->coupling, n->version, &next.version);
        int failed = PMPI_Bcast(&next, sizeof next, MPI_BYTE, 0, f->comm);
        if (failed != MPI_SUCCESS)
            return MPI_ERR_IO;
        if (next.result != WS_IO_OK) /* rank 0 says why */
            return agreed(f, f->rank == 0 ? (int)next.result : WS_IO_OK, NULL, 0);
    }
    int result = release ? ws_library.commit(n->coupling, n->version) : WS_IO_OK;
    if (result == WS_IO_OK)
        result = ws_library.version_open(n->coupling, next.version);
    int class = agreed(f, result, NULL, 0);
    if (class == MPI_SUCCESS)
        n->version = next.version;
    n->written = 0;
    return class;
}

static int mode_fits(struct ws_file *f, int amode) {
    const char *why = NULL;
    if ((amode & MPI_MODE_SEQUENTIAL) != 0)
        why = "MPI_MODE_SEQUENTIAL is not supported for a coupled name";
    else if ((amode & MPI_MODE_DELETE_ON_CLOSE) != 0)
        why = "MPI_MODE_DELETE_ON_CLOSE is not supported for a coupled name: a version leaves once it was read";
    else if ((amode & (MPI_MODE_RDONLY | MPI_MODE_CREATE)) == 0)
        why = "a version cannot be changed: open it with MPI_MODE_CREATE to write the next, or with MPI_MODE_RDONLY";
    if (why == NULL)
        return MPI_SUCCESS;
    if (f->rank == 0)
        ws_say("%s: %s", f->name, why);
    /* As of a file that is not there: h5py then creates it. */
    return (amode & (MPI_MODE_RDONLY | MPI_MODE_CREATE)) == 0 ? MPI_ERR_NO_SUCH_FILE : MPI_ERR_UNSUPPORTED_OPERATION;
}

static void forget(struct ws_file *f) {
    PMPI_Comm_free(&f->comm);
    free(f->name);
    free(f);
}

int ws_named_open(MPI_Comm comm, const char *name, int amode, struct ws_hints *hints, struct ws_file **file) {
    struct ws_file *f = calloc(1, sizeof *f);
    *file = NULL;
    if (f == NULL || (f->name = strdup(name)) == NULL)
        PMPI_Abort(comm, 1);
    if (PMPI_Comm_dup(comm, &f->comm) != MPI_SUCCESS) {
        free(f->name);
        free(f);
        return MPI_ERR_COMM;
    }
    PMPI_Comm_set_errhandler(f->comm, MPI_ERRORS_RETURN);
    PMPI_Comm_rank(f->comm, &f->rank);
    PMPI_Comm_size(f->comm, &f->size);
    ws_hints_of_rank_0(hints, &amode, 0, f->comm);
    f->amode = amode;
    f->alone = MPI_FILE_NULL;
    f->etype = f->filetype = MPI_BYTE;
    f->etype_bytes = f->filetype_bytes = 1;
    int role = (amode & MPI_MODE_RDONLY) != 0 ? WS_IO_READER : WS_IO_WRITER;
    int class = mode_fits(f, amode);
    if (class == MPI_SUCCESS)
        class = find_or_couple(f, role, hints, &f->named);
    if (class == MPI_SUCCESS)
        class = open_next(f, 0);
    if (class == MPI_SUCCESS)
        class = agreed(f, ws_library.version_view(f->named->coupling, 0, 1, NULL), NULL, 0);
    if (class != MPI_SUCCESS) {
        forget(f);
        return class;
    }
    f->named->is_open = 1;
    opened++;
    if (ws_verbose() && f->rank == 0)
        ws_say("%s: version %lld, %s", f->name, (long long)f->named->version,
               role == WS_IO_READER ? "to be read" : "begins");
    *file = f;
    return MPI_SUCCESS;
}

void ws_named_attach(struct ws_file *f, MPI_File handle) {
    f->handle = handle;
    ws_file_enlist(f);
}

void ws_named_abandon(struct ws_file *f) {
    f->named->is_open = 0;
    opened--;
    forget(f);
}

/* Collective. */
static int commit(struct ws_file *f, int keep) {
    struct ws_named *n = f->named;
    /* What is stored must have been written by all. */
    if (n->settings.store[0] != '\0')
        PMPI_Barrier(f->comm);
    return agreed(f, ws_library.version_commit(n->coupling, keep), NULL, 0);
}

/* Collective: after a sync, where nothing was written since, there is no further version. */
static int commit_at_close(struct ws_file *f) {
    struct ws_named *n = f->named;
    int written = n->written, any = 1;
    if (!n->settings.by_sync || n->version == 0)
        return commit(f, 0);
    PMPI_Allreduce(&written, &any, 1, MPI_INT, MPI_MAX, f->comm);
    if (any)
        return commit(f, 0);
    int class = ws_named_resize(f, 0, 0);
    n->version--;
    return class;
}

int ws_named_close(struct ws_file *f) {
    struct ws_named *n = f->named;
    int class = n->role == WS_IO_WRITER ? commit_at_close(f)
                                        : agreed(f, ws_library.commit(n->coupling, n->version), NULL, 0);
    n->is_open = 0;
    opened--;
    ws_file_delist(f);
    ws_forget_view(f);
    forget(f);
    if (ending && opened == 0)
        uncouple_all();
    return class;
}

int ws_named_sync(struct ws_file *f) {
    struct ws_named *n = f->named;
    if (!n->settings.by_sync)
        return MPI_SUCCESS; /* what was written is seen by all writers */
    int class = n->role == WS_IO_WRITER ? commit(f, 1) : MPI_SUCCESS;
    if (class == MPI_SUCCESS)
        class = open_next(f, n->role == WS_IO_READER);
    return class == MPI_SUCCESS ? class : ws_real.raise(f->handle, class);
}

/* -- data ---------------------------------------------------------------------------------------------------------- */

static int access_now(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, MPI_Count count,
                      MPI_Datatype type, int64_t *moved) {
    *moved = 0;
    if ((f->amode & (write ? MPI_MODE_RDONLY : MPI_MODE_WRONLY)) != 0)
        return ws_real.raise(f->handle, write ? MPI_ERR_READ_ONLY : MPI_ERR_ACCESS);
    if (count == 0)
        return MPI_SUCCESS;
    const struct ws_type *memory = ws_type_of(type);
    if (memory == NULL)
        return ws_named_unsupported(f, "a datatype with large counts, or of another library");
    int64_t at = offset * f->etype_bytes, elements = memory->dense ? count * memory->size : count;
    const ws_io_type *layout = memory->dense ? NULL : memory->type;
    ws_io_coupling *coupling = f->named->coupling;
    f->named->written |= write;
    if (f->one_tile && at + memory->size * count > f->filetype_bytes)
        return ws_named_unsupported(f, "a second repetition of a view whose repetitions interleave");
    int result = write ? ws_library.version_write(coupling, at, buffer, elements, layout, moved)
                       : ws_library.version_read(coupling, at, (void *)(uintptr_t)buffer, elements, layout, moved);
    return raised(f, result);
}

int ws_named_access(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, MPI_Count count,
                    MPI_Datatype type, MPI_Status *status) {
    int64_t moved;
    int class = access_now(f, write, offset, buffer, count, type, &moved);
    ws_set_status(status, moved);
    return class;
}

static int query(void *state, MPI_Status *status) {
    PMPI_Status_set_cancelled(status, 0);
    PMPI_Status_set_elements_x(status, MPI_BYTE, *(int64_t *)state);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int free_state(void *state) {
    free(state);
    return MPI_SUCCESS;
}

static int cancel(void *state, int complete) {
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

/* Done at once, since it is a copy in memory. */
int ws_named_start(struct ws_file *f, int write, MPI_Offset offset, const void *buffer, MPI_Count count,
                   MPI_Datatype type, MPI_Request *request) {
    int64_t *moved = malloc(sizeof *moved);
    if (moved == NULL)
        return ws_real.raise(f->handle, MPI_ERR_NO_MEM);
    int class = access_now(f, write, offset, buffer, count, type, moved);
    if (class == MPI_SUCCESS)
        class = PMPI_Grequest_start(query, free_state, cancel, moved, request);
    if (class != MPI_SUCCESS) {
        free(moved);
        return class;
    }
    return PMPI_Grequest_complete(*request);
}

/* -- views and sizes ----------------------------------------------------------------------------------------------- */

static int version_view(struct ws_file *f, MPI_Offset displacement, int64_t etype_bytes, const ws_io_type *filetype) {
    return ws_library.version_view(f->named->coupling, displacement, etype_bytes, filetype);
}

int ws_named_set_view(struct ws_file *f, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                      const char *datarep) {
    const struct ws_type *e, *t;
    if (strcmp(datarep, "native") != 0)
        return ws_named_unsupported(f, "a view of another representation than native");
    if (displacement < 0 || (e = ws_type_of(etype)) == NULL || (t = ws_type_of(filetype)) == NULL || e->size == 0)
        return ws_named_unsupported(f, "a view with this displacement or these datatypes");
    f->one_tile = 0;
    int result = version_view(f, displacement, e->size, t->dense ? NULL : t->type);
    if (result == WS_IO_ARGUMENT && !t->dense)
        result = ws_view_once(f, filetype, t, version_view, displacement, e->size);
    if (result == WS_IO_OK)
        ws_remember_view(f, displacement, etype, filetype);
    return raised(f, result);
}

int ws_named_size(struct ws_file *f, MPI_Offset *bytes) {
    int64_t found = 0;
    int result = ws_library.version_size(f->named->coupling, &found);
    *bytes = found;
    return raised(f, result);
}

int ws_named_resize(struct ws_file *f, MPI_Offset bytes, int only_grow) {
    if (f->named->role == WS_IO_READER)
        return ws_real.raise(f->handle, MPI_ERR_READ_ONLY);
    ws_io_coupling *coupling = f->named->coupling;
    int64_t size = 0;
    int result = WS_IO_OK;
    PMPI_Barrier(f->comm); /* writes of all ranks come before it */
    if (f->rank == 0) {
        result = ws_library.version_size(coupling, &size);
        if (result == WS_IO_OK && (!only_grow || bytes > size))
            result = ws_library.version_resize(coupling, bytes);
    }
    int class = agreed(f, result, NULL, 0);
    if (class == MPI_SUCCESS && f->rank != 0)
        return raised(f, ws_library.version_size(coupling, &size));
    return class == MPI_SUCCESS ? class : ws_real.raise(f->handle, class);
}

int ws_named_end(struct ws_file *f, MPI_Offset *etypes) {
    int64_t bytes = 0;
    int result = ws_library.version_end(f->named->coupling, &bytes);
    *etypes = bytes / f->etype_bytes;
    return raised(f, result);
}

int ws_named_position(struct ws_file *f, MPI_Offset offset, MPI_Offset *bytes) {
    int64_t found = 0;
    int result = ws_library.version_position(f->named->coupling, offset * f->etype_bytes, &found);
    *bytes = found;
    return raised(f, result);
}
