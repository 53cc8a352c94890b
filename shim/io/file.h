/* An open file whose collective operations go through aggregators.
 *
 * The MPI library's own file stays open beside it: with what is not native (see ops.c), with its handle, error handler,
 * group and info. Functions marked collective return the same on all ranks.
 */
#ifndef WAYSTAGE_IO_FILE_H
#define WAYSTAGE_IO_FILE_H

#include "hints.h"
#include "library.h"
#include "real.h"
#include "types.h"

struct ws_file {
    struct ws_file *next;
    MPI_File handle;
    MPI_Comm comm; /* a duplicate */
    int rank, size, amode;
    char *name; /* as the program gave it, for messages */
    char *path; /* absolute */
    ws_io_node *node;
    ws_io_file *file;
    /* Why collectives go to the MPI library, the same on all ranks. */
    int lost;        /* no aggregator within the lease */
    int atomic;      /* MPI_File_set_atomicity */
    int foreign;     /* the view: another representation, or no monotone one */
    int no_write, no_read; /* romio_cb_write, romio_cb_read */
    /* The view. */
    MPI_Offset position; /* individual pointer, in etypes */
    MPI_Offset displacement;
    MPI_Datatype etype, filetype; /* own duplicates unless predefined */
    int64_t etype_bytes;
    int64_t filetype_bytes;
    int one_tile;   /* of this rank's view: the aggregators have no second repetition of the filetype */
    MPI_Offset library_displacement; /* of the view that `handle` has; its datatypes where they are predefined */
    MPI_Datatype library_etype, library_filetype;
    int views;      /* that were set, up to WS_REAL_VIEWS */
    int shared;     /* this rank has used a shared pointer */
    int real_view;  /* whether `handle` has the view; see WS_REAL_VIEW_RUNS */
    MPI_File alone; /* of MPI_COMM_SELF, with the view, for independent access where `handle` has it not */
    int alone_view;
    /* A split collective between begin and end. */
    int split;
    MPI_Status split_status;
    unsigned said; /* bits of messages that were said */
};

/* The MPI library gets a view of at most this number of runs at once, in 34 us, and a larger one when it needs it. */
#define WS_REAL_VIEW_RUNS 4096

/* The first views of a file are given to the library at once, so that shared pointers may be used. A program that sets
 * more sets one for each operation, like HDF5, and each costs ompio a lock and a barrier. */
#define WS_REAL_VIEWS 1

/* What an MPI_File_open had. */
struct ws_opening {
    MPI_File handle;
    MPI_Comm comm; /* taken over */
    const char *name;
    int amode;
    int failed; /* the library's own open, here */
    struct ws_hints *hints; /* of rank 0 */
};

/* NULL: not attached, all operations are the MPI library's. */
struct ws_file *ws_file_find(MPI_File handle);

/* Collective, before the library's open: a duplicate of `comm`, and `hints` of rank 0 on all. MPI_COMM_NULL where the
 * file will not be attached. */
MPI_Comm ws_file_prepare(MPI_Comm comm, int amode, struct ws_hints *hints);

/* Collective, after it. */
void ws_file_attach(const struct ws_opening *opening);

/* Collective, before the library's close. */
void ws_file_detach(MPI_File handle);

/* Collective: 1 where the library's own file has the view. */
int ws_file_real_view(struct ws_file *file);

/* A file of this process alone, which has the view; MPI_FILE_NULL and an error class where it cannot be opened. */
MPI_File ws_file_alone(struct ws_file *file, int *error_class);

/* Frees the duplicates of the view's datatypes. */
void ws_forget_view(struct ws_file *file);

/* The view's datatypes as MPI_File_get_view returns them: derived ones are the caller's to free. */
void ws_view_types(struct ws_file *file, MPI_Datatype *etype, MPI_Datatype *filetype);

int ws_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
                void *info);

/* Says on rank 0, once a file and kind, why operations are not native; with --verbose, or `always`. */
enum ws_kind { WS_SAID_VIEW, WS_SAID_ATOMIC, WS_SAID_HINT, WS_SAID_NONBLOCKING, WS_SAID_TYPE, WS_SAID_LOST };
void ws_file_say(struct ws_file *file, enum ws_kind kind, const char *why);

/* The MPI error class of a result of libwaystage_io. */
int ws_error_class(int result);

#endif
