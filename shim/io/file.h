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

#include <limits.h>

/* Why aggregators cannot use a view. */
enum ws_unfit { WS_FIT, WS_UNFIT_DATATYPE, WS_UNFIT_ORDER };

struct ws_file {
    struct ws_file *next;
    MPI_File handle;
    MPI_Comm comm; /* a duplicate */
    int rank, size, amode;
    char *name; /* as the program gave it, for messages */
    char *path; /* absolute */
    ws_io_node *node;
    ws_io_file *file;
    struct ws_named *named; /* a coupled name, of which nothing goes to the MPI library; else NULL */
    /* Why collectives go to the MPI library, the same on all ranks. */
    int lost;        /* no aggregator within the lease */
    int atomic;      /* MPI_File_set_atomicity */
    int foreign;     /* the view: another representation, or one that ranks have said is unfit */
    int no_write, no_read; /* romio_cb_write, romio_cb_read */
    /* The view. */
    MPI_Offset position; /* individual pointer, in etypes */
    MPI_Offset displacement;
    MPI_Datatype etype, filetype; /* own duplicates unless predefined */
    int64_t etype_bytes;
    int64_t filetype_bytes;
    enum ws_unfit unfit; /* of this rank's view; the others learn it with the next collective access */
    int dense;      /* of this rank's view: all bytes from `displacement` on */
    int one_tile;   /* of this rank's view: the aggregators have no second repetition of the filetype */
    /* The MPI library's own file: opened, and given the view, by the first operation that needs it. */
    int opened;     /* 1, 0: not yet, -1: it could not be */
    int views;      /* that were set: the number of the view */
    int real_view;  /* the number of the view that `handle` has */
    MPI_File alone; /* of MPI_COMM_SELF, with the view, for independent access where `handle` has it not */
    int alone_view;
    int written;    /* by this rank's independent access, since the last sync */
    /* Shared pointers. */
    char *shared_path;
    int shared;     /* this rank has used one */
    MPI_Offset shared_from; /* where the first view's begins: the file's end in append mode */
    /* A split collective between begin and end. */
    int split;
    MPI_Status split_status;
    unsigned said; /* bits of messages that were said */
};

/* What rank 0 found of a file that it has opened. */
struct ws_found {
    int result;
    unsigned char id[WS_IO_ID_BYTES];
    char path[PATH_MAX];
};

/* What an MPI_File_open has. */
struct ws_opening {
    MPI_File handle;
    MPI_Comm comm; /* a duplicate; MPI_COMM_NULL where the file will not be attached */
    const char *name;
    int amode;
    int late;   /* rank 0 has opened and made the file: the library's own open can wait */
    int failed; /* the library's own open, here */
    struct ws_hints *hints; /* of rank 0 */
    struct ws_found found;  /* where `late` */
};

/* NULL: not attached, all operations are the MPI library's. */
struct ws_file *ws_file_find(MPI_File handle);

/* Collective, before the library's open: `name`, `amode` and `hints` become the rest. */
void ws_file_prepare(MPI_Comm comm, struct ws_opening *opening);

/* Collective, after it, or instead of it where `late`. 1: attached; 0: everything is the MPI library's. */
int ws_file_attach(const struct ws_opening *opening);

/* Collective, before the library's close. Whether the library's own file is open. `result`: an MPI error class, the
 * same on all ranks, of bytes that were acknowledged and could not be written. */
int ws_file_detach(MPI_File handle, int *result);

/* Collective: opens the library's own file, and gives it the view. An MPI error class. */
int ws_file_real(struct ws_file *file);
int ws_file_real_view(struct ws_file *file);

/* Before the file is used by another way than its aggregators: what they have acknowledged is in it. */
void ws_file_settle(struct ws_file *file);

/* Whether the library's own file has this rank's view, for access by this rank alone. */
int ws_has_view(const struct ws_file *file);

/* A file of this process alone, which has the view; MPI_FILE_NULL and an error class where it cannot be opened. */
MPI_File ws_file_alone(struct ws_file *file, int *error_class);

/* Files that ws_file_find() finds. */
void ws_file_enlist(struct ws_file *file);
void ws_file_delist(struct ws_file *file);

/* Takes note of the view, at its beginning. */
void ws_remember_view(struct ws_file *file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype);

/* Frees the duplicates of the view's datatypes. */
void ws_forget_view(struct ws_file *file);

/* The view's datatypes as MPI_File_get_view returns them: derived ones are the caller's to free. */
/* Sets a view whose filetype is used once, by `set`. */
typedef int ws_view_setter(struct ws_file *file, MPI_Offset displacement, int64_t etype_bytes,
                           const ws_io_type *filetype);
int ws_view_once(struct ws_file *file, MPI_Datatype filetype, const struct ws_type *type, ws_view_setter *set,
                 MPI_Offset displacement, int64_t etype_bytes);

void ws_view_types(struct ws_file *file, MPI_Datatype *etype, MPI_Datatype *filetype);

int ws_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
                void *info);

/* Says on rank 0, once a file and kind, why operations are not native; with --verbose, or `always`. */
enum ws_kind { WS_SAID_VIEW, WS_SAID_ATOMIC, WS_SAID_HINT, WS_SAID_NONBLOCKING, WS_SAID_TYPE, WS_SAID_LOST };
void ws_file_say(struct ws_file *file, enum ws_kind kind, const char *why);

/* The MPI error class of a result of libwaystage_io. */
int ws_error_class(int result);

#endif
