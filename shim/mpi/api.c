/* See api.h. */
#define _GNU_SOURCE
#include "api.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

struct api mpi;

#ifdef OPEN_MPI
#define LIBRARY "libmpi.so"
#define OTHER_SYMBOL "MPIR_Dup_fn" /* only MPICH and its kin have it */
#else
#define LIBRARY "libmpi" /* libmpich.so.12 of Debian, libmpi.so.12 elsewhere */
#define OTHER_SYMBOL "ompi_mpi_comm_world"
#endif

static int find_library(struct dl_phdr_info *info, size_t size, void *path)
{
    (void)size;
    const char *name = strrchr(info->dlpi_name, '/');
    name = name != NULL ? name + 1 : info->dlpi_name;
    if (strncmp(name, LIBRARY, strlen(LIBRARY)) != 0)
        return 0;
    void *handle = dlopen(info->dlpi_name, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == NULL)
        return 0;
    if (dlsym(handle, "PMPI_Init") == NULL) {
        dlclose(handle);
        return 0;
    }
    *(void **)path = handle;
    return 1;
}

static void *library(void)
{
    static void *handle;
    if (handle == NULL)
        dl_iterate_phdr(find_library, &handle);
    return handle;
}

#ifdef OPEN_MPI
/* A program may hold the object itself (a copy relocation), and then the library uses that one. */
static void *data(const char *name)
{
    void *object = dlsym(RTLD_DEFAULT, name);
    return object != NULL ? object : dlsym(mpi.handle, name);
}
#endif

bool api_load(void)
{
    void *handle = library();
    if (handle == NULL || dlsym(handle, OTHER_SYMBOL) != NULL)
        return false;
    mpi.handle = handle;
#define X(name)                                                                                                        \
    if ((mpi.name = (__typeof__(mpi.name))dlsym(handle, "PMPI_" #name)) == NULL)                                       \
        return false;
    WAYSTAGE_API(X)
#undef X
#ifdef OPEN_MPI
    mpi.world = data("ompi_mpi_comm_world");
    mpi.self = data("ompi_mpi_comm_self");
    mpi.comm_null = data("ompi_mpi_comm_null");
    mpi.byte = data("ompi_mpi_byte");
    mpi.uint64 = data("ompi_mpi_uint64_t");
    mpi.errors_return = data("ompi_mpi_errors_return");
    mpi.group_null = data("ompi_mpi_group_null");
    mpi.max = data("ompi_mpi_op_max");
    mpi.no_op = data("ompi_mpi_op_no_op");
    return mpi.world && mpi.self && mpi.comm_null && mpi.byte && mpi.uint64 && mpi.errors_return && mpi.group_null &&
           mpi.max && mpi.no_op;
#else
    mpi.world = MPI_COMM_WORLD;
    mpi.self = MPI_COMM_SELF;
    mpi.comm_null = MPI_COMM_NULL;
    mpi.byte = MPI_BYTE;
    mpi.uint64 = MPI_UINT64_T;
    mpi.errors_return = MPI_ERRORS_RETURN;
    mpi.group_null = MPI_GROUP_NULL;
    mpi.max = MPI_MAX;
    mpi.no_op = MPI_NO_OP;
    return true;
#endif
}

void *api_next(const char *name)
{
    void *next = dlsym(RTLD_NEXT, name);
    void *handle = next == NULL ? library() : NULL;
    return next != NULL || handle == NULL ? next : dlsym(handle, name);
}
