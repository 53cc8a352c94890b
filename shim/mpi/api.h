/* The MPI library of this process, found when MPI_Init is called.
 *
 * Nothing here is linked to MPI: the library is preloaded into every process of a job, shells among them, and an MPI
 * library may also come later, by dlopen into its own scope, as under Python. So every function of
 * MPI that the profiler itself calls, and every handle, goes through this table.
 */
#ifndef WAYSTAGE_API_H
#define WAYSTAGE_API_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#define WAYSTAGE_API(X)                                                                                                \
    X(Allgather)                                                                                                       \
    X(Allreduce)                                                                                                       \
    X(Barrier)                                                                                                         \
    X(Comm_compare)                                                                                                    \
    X(Comm_dup)                                                                                                        \
    X(Comm_free)                                                                                                       \
    X(Comm_get_parent)                                                                                                 \
    X(Comm_group)                                                                                                      \
    X(Comm_rank)                                                                                                       \
    X(Comm_remote_group)                                                                                               \
    X(Comm_set_errhandler)                                                                                             \
    X(Comm_size)                                                                                                       \
    X(Comm_split_type)                                                                                                 \
    X(Comm_test_inter)                                                                                                 \
    X(Gather)                                                                                                          \
    X(Get_library_version)                                                                                             \
    X(Get_processor_name)                                                                                              \
    X(Group_free)                                                                                                      \
    X(Group_size)                                                                                                      \
    X(Group_translate_ranks)                                                                                           \
    X(Iprobe)                                                                                                          \
    X(Query_thread)                                                                                                    \
    X(Recv)                                                                                                            \
    X(Send)                                                                                                            \
    X(Sendrecv)                                                                                                        \
    X(Type_size_x)                                                                                                     \
    X(Win_get_group)

struct api {
    void *handle;
#define X(name) __typeof__(&MPI_##name) name;
    WAYSTAGE_API(X)
#undef X
    /* Handles are addresses within the library in one MPI, and numbers in another. */
    MPI_Comm world, self, comm_null;
    MPI_Datatype byte, uint64;
    MPI_Errhandler errors_return;
    MPI_Group group_null;
    MPI_Op max, no_op;
};

extern struct api mpi;

/* Fill the table. False where no MPI library is loaded, or another one than this was compiled for. */
bool api_load(void);

/* The function that `name` meant before this library came: of the next preloaded one, or of MPI. */
void *api_next(const char *name);

#endif
