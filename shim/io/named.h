/* Files with a name of `waystage:NAME`: versions of a coupled name (waystage_io.h) in place of a file.
 *
 * An open for writing begins a version, the close by all ranks commits it; an open for reading waits for the next
 * version. The MPI library's handle is of WS_NAMED_STANDS_FOR: it has the group, the error handler and the info, and is
 * never read or written. The name stays open between versions, until MPI_Finalize.
 */
#ifndef WAYSTAGE_IO_NAMED_H
#define WAYSTAGE_IO_NAMED_H

#include "file.h"

#define WS_NAMED_STANDS_FOR "/dev/null"

/* Bits of an access mode that the stand-in must not have: MPI_MODE_DELETE_ON_CLOSE deletes. */
#define WS_NAMED_LEFT_OUT (MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_DELETE_ON_CLOSE | MPI_MODE_APPEND)

struct ws_named;

/* Whether a file's name is that of a coupled name. */
int ws_named_is(const char *name);

/* Collective, before the stand-in is opened: an error class, the same on all ranks. */
int ws_named_open(MPI_Comm comm, const char *name, int amode, struct ws_hints *hints, struct ws_file **file);

/* Collective: with the stand-in's handle, or where it could not be opened. */
void ws_named_attach(struct ws_file *file, MPI_File handle);
void ws_named_abandon(struct ws_file *file);

/* Collective: commits or releases the version. An error class, the same on all ranks. */
int ws_named_close(struct ws_file *file);

/* As the functions of MPI, with an explicit offset in etypes. */
int ws_named_access(struct ws_file *file, int write, MPI_Offset offset, const void *buffer, MPI_Count count,
                    MPI_Datatype type, MPI_Status *status);
int ws_named_start(struct ws_file *file, int write, MPI_Offset offset, const void *buffer, MPI_Count count,
                   MPI_Datatype type, MPI_Request *request);
int ws_named_set_view(struct ws_file *file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                      const char *datarep);
int ws_named_sync(struct ws_file *file);
int ws_named_size(struct ws_file *file, MPI_Offset *bytes);
/* With `only_grow`, as MPI_File_preallocate. */
int ws_named_resize(struct ws_file *file, MPI_Offset bytes, int only_grow);
/* Etypes of the view before the end of the file; offset in the file of an etype of the view. */
int ws_named_end(struct ws_file *file, MPI_Offset *etypes);
int ws_named_position(struct ws_file *file, MPI_Offset offset, MPI_Offset *bytes);

/* What a coupled name has no meaning for. */
int ws_named_unsupported(struct ws_file *file, const char *what);

#endif
