/* Functions and objects of the MPI library of this process, which may be loaded late and into its own scope. */
#ifndef WAYSTAGE_PATHS_SYMBOLS_H
#define WAYSTAGE_PATHS_SYMBOLS_H

/* What `name` meant before this library came, or in the MPI library; NULL without one. */
void *symbol_next(const char *name);

#endif
