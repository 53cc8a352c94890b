/* Messages of Open MPI, those beneath collectives too, where they enter its point-to-point layer.
 *
 * Open MPI 4 and 5 call their point-to-point layer through a table of functions, `mca_pml`, and complete requests
 * through another, `ompi_request_functions`. The profiler replaces them by its own functions, as Open MPI's own
 * monitoring does, after it has seen by a message to itself that the tables have the form it expects.
 */
#ifndef WAYSTAGE_PML_H
#define WAYSTAGE_PML_H

#include <stdbool.h>

/* After MPI_Init. False, with everything as it was, where the tables are absent or of another form. */
bool pml_start(void);

/* Whether what was received is counted too. */
bool pml_sees_receives(void);

/* Before MPI_Finalize. */
void pml_stop(void);

#endif
