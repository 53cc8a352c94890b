/* The C interface of libwaystage_io, which the ways into collective I/O (shim/io) and programs link to.
 *
 * Every function returns WS_IO_OK or a negative error of enum ws_io_error; ws_io_message() has its sentence. No
 * function calls MPI, starts a thread, installs a signal handler, writes to stdout or stderr, or ends the process.
 * Offsets and sizes are in bytes. One thread at a time uses a node or what belongs to it.
 *
 * What must be collective (opening, the control point, the status of an operation) the caller does with its own MPI:
 * the functions below say what to broadcast or to combine.
 */
#ifndef WAYSTAGE_IO_H
#define WAYSTAGE_IO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WS_IO_ABI 1

enum ws_io_error {
    WS_IO_OK = 0,
    WS_IO_AGAIN = -1,     /* the epoch ended in the operation: pass a control point together, then repeat the operation */
    WS_IO_NO_SUCH_FILE = -2,
    WS_IO_FILE_EXISTS = -3,
    WS_IO_ACCESS = -4,
    WS_IO_READ_ONLY = -5,
    WS_IO_NO_SPACE = -6,
    WS_IO_QUOTA = -7,
    WS_IO_BAD_FILE = -8,  /* the path is no file that can be opened so */
    WS_IO_ARGUMENT = -9,
    WS_IO_UNSUPPORTED = -10,
    WS_IO_LOST = -11,     /* no answer within the lease */
    WS_IO_IO = -12,       /* any other error of the storage */
    WS_IO_VERSION = -13,  /* the aggregator is of another version */
    WS_IO_REFUSED = -14,  /* wrong user or token */
    WS_IO_MEMORY = -15,
    WS_IO_TIMEOUT = -16,  /* the caller's time is over */
    WS_IO_ENDED = -17     /* the writers of a coupled name have closed: no further version comes */
};

typedef struct ws_io_node ws_io_node; /* a rank's connection to the aggregator process of its node */
typedef struct ws_io_file ws_io_file; /* a rank's open file */
typedef struct ws_io_type ws_io_type; /* a datatype: nested loops over bytes */

/* The version of the library, to compare with WS_IO_ABI. */
int ws_io_abi(void);

/* The sentence of the last error of this thread; never NULL. */
const char *ws_io_message(void);

/* -- the node ------------------------------------------------------------------------------------------------------ */

/* Connects to the aggregator process of this node. NULL for `socket` and `token`: WAYSTAGE_IO_SOCKET,
 * WAYSTAGE_IO_TOKEN. Waits at most `timeout_ms` for a process that is still starting. */
int ws_io_connect(const char *socket, const char *token, int timeout_ms, ws_io_node **node);
void ws_io_disconnect(ws_io_node *node);

/* `revive` is called, by any thread that waits, while no process answers: the caller may start one. NULL: none. */
int ws_io_on_absence(void (*revive)(void));

/* The address at which aggregators of other nodes reach this node's: text, to be gathered by the caller. */
int ws_io_address(ws_io_node *node, char *text, size_t capacity);

/* -- datatypes ----------------------------------------------------------------------------------------------------- */

/* Constructors as MPI's of the same names, displacements and strides in bytes. They copy `of`;
 * NULL on bad arguments. */
ws_io_type *ws_io_type_bytes(int64_t bytes);
ws_io_type *ws_io_type_contiguous(int64_t count, const ws_io_type *of);
ws_io_type *ws_io_type_hvector(int64_t count, int64_t block, int64_t stride, const ws_io_type *of);
ws_io_type *ws_io_type_hindexed(int64_t count, const int64_t *blocks, const int64_t *displacements, const ws_io_type *of);
ws_io_type *ws_io_type_hindexed_block(int64_t count, int64_t block, const int64_t *displacements, const ws_io_type *of);
ws_io_type *ws_io_type_struct(int64_t count, const int64_t *blocks, const int64_t *displacements,
                              const ws_io_type *const *of);
ws_io_type *ws_io_type_resized(int64_t lower, int64_t extent, const ws_io_type *of);
/* `order`: 'C' or 'F'. */
ws_io_type *ws_io_type_subarray(int dimensions, const int64_t *sizes, const int64_t *subsizes, const int64_t *starts,
                                char order, const ws_io_type *of);
/* `distributions`: 'b'lock, 'c'yclic or 'n'one of each dimension; an argument of -1 is MPI_DISTRIBUTE_DFLT_DARG. */
ws_io_type *ws_io_type_darray(int size, int rank, int dimensions, const int64_t *sizes, const char *distributions,
                              const int64_t *arguments, const int64_t *processes, char order, const ws_io_type *of);
void ws_io_type_free(ws_io_type *type);

/* -- files --------------------------------------------------------------------------------------------------------- */

enum ws_io_flags {
    WS_IO_RDONLY = 1,
    WS_IO_WRONLY = 2,
    WS_IO_RDWR = 4,
    WS_IO_CREATE = 8,
    WS_IO_EXCL = 16,
    WS_IO_DELETE_ON_CLOSE = 32
};

#define WS_IO_ID_BYTES 16

/* Chooses a random identity for a file that is about to be opened. Rank 0 calls it and broadcasts `id`. */
int ws_io_file_id(unsigned char id[WS_IO_ID_BYTES]);

struct ws_io_open {
    const char *path;
    int flags;                   /* of enum ws_io_flags */
    unsigned char id[WS_IO_ID_BYTES];
    int rank, size;              /* in the file's communicator */
    int nodes;                   /* number of distinct nodes */
    const char *const *addresses; /* of each node, as ws_io_address() gave them, in the same order on all ranks */
    const int *node_of;          /* node of each rank, `size` values */
    int hints;
    const char *const *hint;     /* 2 x `hints` texts: key, value */
};

/* Each rank calls it, rank 0 first: the others once the caller has broadcast that rank 0 succeeded. */
int ws_io_open(ws_io_node *node, const struct ws_io_open *how, ws_io_file **file);

/* Each rank calls it. Data were acknowledged before; this releases memory, and with DELETE_ON_CLOSE rank 0's
 * deletes. With the hint waystage_write_behind it waits until all bytes are in the file, and returns the error of those
 * that could not be written. */
int ws_io_close(ws_io_file *file);

/* The value of a hint in force; WS_IO_ARGUMENT where it is unknown. */
int ws_io_hint(ws_io_file *file, const char *key, char *value, size_t capacity);

/* `filetype` holds a whole number of `etype` bytes; NULL: a stream of bytes from `displacement`. */
int ws_io_set_view(ws_io_file *file, int64_t displacement, int64_t etype, const ws_io_type *filetype);

/* -- operations ---------------------------------------------------------------------------------------------------- */

/* A control point (CLARISSE, section III.C). Rank 0 asks; the caller broadcasts `blob`; every rank adopts it. `write`
 * and `bytes` (an estimate, 0: unknown) describe the operation that follows; where applications are scheduled, it
 * returns once this one may go on, at the latest when its lease ends. */
#define WS_IO_CONTROL_BYTES 65536
int ws_io_control_point(ws_io_file *file, int write, int64_t bytes, unsigned char *blob, size_t capacity, size_t *length);
int ws_io_adopt(ws_io_file *file, const unsigned char *blob, size_t length);
/* Rank 0, once all ranks have ended the operation. */
int ws_io_finished(ws_io_file *file, int write, int64_t bytes);

/* Collective: every rank of the file calls it, with the same control point adopted. `offset` counts bytes of the view.
 * `memory` describes one element at `buffer`; NULL: bytes. `moved`: bytes of this rank. Returns once all ranks' data
 * are in the file system, or with the hint waystage_write_behind in the memory of two aggregators. WS_IO_AGAIN from any
 * rank: all repeat. */
int ws_io_write_all(ws_io_file *file, int64_t offset, const void *buffer, int64_t count, const ws_io_type *memory,
                    int64_t *moved);
int ws_io_read_all(ws_io_file *file, int64_t offset, void *buffer, int64_t count, const ws_io_type *memory,
                   int64_t *moved);

/* fsync at every aggregator; each rank calls it. Returns also the error of bytes that were acknowledged before. */
int ws_io_sync(ws_io_file *file);

/* A rank alone, before it uses the file by another way than the functions here: all that was acknowledged is in the
 * file when it returns. At once without the hint waystage_write_behind. */
int ws_io_settle(ws_io_file *file);

/* Independent: a rank alone, directly on the file, which is opened at the first call. `offset` counts bytes of the
 * view; `moved` is less where a read meets the end of the file. */
int ws_io_write(ws_io_file *file, int64_t offset, const void *buffer, int64_t count, const ws_io_type *memory,
                int64_t *moved);
int ws_io_read(ws_io_file *file, int64_t offset, void *buffer, int64_t count, const ws_io_type *memory, int64_t *moved);

/* The same on `extents` pairs of file offset and length, in the order of the data, without the view. The lengths add
 * up to the bytes of `count` elements. */
int ws_io_write_list(ws_io_file *file, int64_t extents, const int64_t *offsets, const int64_t *lengths,
                     const void *buffer, int64_t count, const ws_io_type *memory, int64_t *moved);
int ws_io_read_list(ws_io_file *file, int64_t extents, const int64_t *offsets, const int64_t *lengths, void *buffer,
                    int64_t count, const ws_io_type *memory, int64_t *moved);

/* -- coupling by name ---------------------------------------------------------------------------------------------- */

/* Two applications exchange arrays by (name, version, box), without a file. Each rank opens the name; writers put boxes
 * and commit versions; readers get any boxes of a version once all writers have committed it, and commit (release) it.
 * At most `depth` versions are held: then writers wait. Versions grow. Nothing here needs MPI. */
typedef struct ws_io_coupling ws_io_coupling;

enum ws_io_role { WS_IO_WRITER = 0, WS_IO_READER = 1 };

struct ws_io_couple {
    const char *name;            /* letters, digits, '.', '_', '-' */
    int role;                    /* of enum ws_io_role */
    int rank, size;              /* in this application */
    int depth;                   /* writers: versions that may be held; 0: 2 */
    int timeout_ms;              /* how long a call waits for other ranks: then WS_IO_TIMEOUT */
    int lease_ms;                /* silence after which a host is dead: then WS_IO_LOST; 0: 30 s */
    const char *directory;       /* where names are published; NULL: WAYSTAGE_COUPLING, ~/.waystage/coupling */
    const char *store;           /* writers: folder for NAME.VARIABLE.VERSION.npy of each version; NULL: not stored */
    const char *socket, *token;  /* of the node's process; NULL: from the launcher. Readers need none */
};

/* A box of an array: `counts[d]` cells from `starts[d]` on in each dimension, in C order. `element`: type of an element
 * as NumPy's dtype.str, e.g. "<f8"; `shape`: of the whole array; ws_io_get ignores it. */
struct ws_io_box {
    const char *variable, *element;
    int64_t element_bytes;
    int dimensions;
    const int64_t *shape, *starts, *counts;
};

int ws_io_couple(const struct ws_io_couple *how, ws_io_coupling **coupling);

/* `memory` describes the cells at `buffer`, e.g. a subarray; NULL: no gaps. The buffer may be used again at once. */
int ws_io_put(ws_io_coupling *coupling, int64_t version, const struct ws_io_box *box, const void *buffer,
              const ws_io_type *memory);
int ws_io_get(ws_io_coupling *coupling, int64_t version, const struct ws_io_box *box, void *buffer,
              const ws_io_type *memory);
int ws_io_commit(ws_io_coupling *coupling, int64_t version);

/* The first version above `after`, for -1 the oldest that is held. WS_IO_ENDED: the writers have closed. */
int ws_io_next(ws_io_coupling *coupling, int64_t after, int64_t *version);

/* Type and shape of a variable. `dimensions`: room in `shape`, then those of the variable. */
int ws_io_inquire(ws_io_coupling *coupling, int64_t version, const char *variable, char *element, size_t capacity,
                  int64_t *element_bytes, int *dimensions, int64_t *shape);

/* A version as a file: what an MPI-IO program sees under the name `waystage:NAME`. A writer's begins empty, or with the
 * bytes of the version before where that was committed with `keep`; a reader's, which ws_io_next() gave, does not
 * change. Bytes that were never written are 0. A write has happened when it returns: of two that come one after the
 * other, on any ranks, the later one holds. ws_io_commit() releases a reader's. Readers of boxes get the same bytes as
 * variable "bytes". */
int ws_io_version_open(ws_io_coupling *coupling, int64_t version);
/* As ws_io_set_view(). */
int ws_io_version_view(ws_io_coupling *coupling, int64_t displacement, int64_t etype, const ws_io_type *filetype);
/* `offset` counts bytes of the view; `moved` is less where a read meets the end of the file. */
int ws_io_version_write(ws_io_coupling *coupling, int64_t offset, const void *buffer, int64_t count,
                        const ws_io_type *memory, int64_t *moved);
int ws_io_version_read(ws_io_coupling *coupling, int64_t offset, void *buffer, int64_t count, const ws_io_type *memory,
                       int64_t *moved);
int ws_io_version_size(ws_io_coupling *coupling, int64_t *bytes);
/* One writer, while no other writes; afterwards the others call ws_io_version_size(). */
int ws_io_version_resize(ws_io_coupling *coupling, int64_t bytes);
/* Offset in the file of the view's byte at `offset`; bytes of the view before the end of the file. */
int ws_io_version_position(ws_io_coupling *coupling, int64_t offset, int64_t *position);
int ws_io_version_end(ws_io_coupling *coupling, int64_t *offset);
/* A writer has ended its writes, and all others have, where versions are stored: as NAME.VERSION. */
int ws_io_version_commit(ws_io_coupling *coupling, int keep);

/* Closes it; a writer waits until its versions are read, at most `timeout_ms`, and then has WS_IO_TIMEOUT.
 * With a negative `timeout_ms` the other ranks see this one die: it leaves after an error. */
int ws_io_uncouple(ws_io_coupling *coupling, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
