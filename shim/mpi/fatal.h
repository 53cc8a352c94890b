/* A process that dies before MPI_Finalize: by a signal, by MPI_Abort, or by exit. */
#ifndef WAYSTAGE_FATAL_H
#define WAYSTAGE_FATAL_H

/* From now on leave this rank's part when the process dies, and then let it die as it would have. */
void fatal_watch(void);

#endif
