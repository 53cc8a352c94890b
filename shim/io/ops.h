/* MPI-IO's functions for a file that may be attached: native where aggregators serve them, the MPI library's otherwise.
 *
 * | operation | done by |
 * |---|---|
 * | collective reads and writes, also split ones | aggregators |
 * | independent access | the MPI library, on this process's own view |
 * | nonblocking collectives | the MPI library, as independent access where it has no view: both are correct |
 * | shared pointers, atomic mode, other representations | the MPI library |
 * | individual pointers | here |
 *
 * Data of a collective are in the file system when it returns, so nothing is drained before access by other ways.
 */
#ifndef WAYSTAGE_IO_OPS_H
#define WAYSTAGE_IO_OPS_H

#include "real.h"

#define WS_DECLARE(name, arguments) int ws_##name arguments;
WS_FUNCTIONS(WS_DECLARE)
#undef WS_DECLARE

int ws_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
                void *info);

#endif
