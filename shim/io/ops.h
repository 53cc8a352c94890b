/* MPI-IO's functions for a file that may be attached: native where aggregators serve them, the MPI library's otherwise.
 *
 * | operation | done by |
 * |---|---|
 * | collective reads and writes, also split and ordered ones | aggregators |
 * | independent access | this process where its view has no gaps, else the MPI library |
 * | nonblocking access, collective too | the MPI library, as independent access: both are correct |
 * | atomic mode, other representations | the MPI library |
 * | individual and shared pointers | here |
 *
 * Data of a collective are in the file system when it returns, so nothing is drained before access by other ways.
 */
#ifndef WAYSTAGE_IO_OPS_H
#define WAYSTAGE_IO_OPS_H

#include "real.h"

#define WS_DECLARE(name, arguments) int ws_##name arguments;
WS_FUNCTIONS(WS_DECLARE)
#undef WS_DECLARE

/* Parts of the above: access by this process alone, at an offset in etypes; split collectives; the view's end. */
struct ws_file;
int ws_through(struct ws_file *file, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type,
               MPI_Status *status);
int ws_started(struct ws_file *file, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type,
               MPI_Request *request);
int ws_begin(struct ws_file *file, int write, MPI_Offset offset, const void *buffer, int count, MPI_Datatype type);
int ws_end(struct ws_file *file, MPI_Status *status);
int ws_end_position(struct ws_file *file, MPI_Offset *position);

int ws_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
                void *info);

#endif
