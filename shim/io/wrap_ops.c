/* MPI_File_* functions that differ from those of ops.h by their name alone; and MPI 4's with large counts. */
#include "wrap.h"

#include <limits.h>

/* Definitions of both names from a list of parameters and their names. */
#define WRAP(name, parameters, arguments)                                                                              \
    WS_EXPORT int MPI_File_##name parameters {                                                                         \
        ws_wrap_find();                                                                                                \
        return ws_##name arguments;                                                                                    \
    }                                                                                                                  \
    int PMPI_File_##name parameters WS_SAME_AS("MPI_File_" #name);

#define P_AT(pointer) (MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type, MPI_Status * status)
#define A_AT (h, offset, buffer, count, type, status)
#define P_ATI(pointer)                                                                                                 \
    (MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type, MPI_Request * request)
#define A_ATI (h, offset, buffer, count, type, request)
#define P_ONE(pointer) (MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Status * status)
#define A_ONE (h, buffer, count, type, status)
#define P_ONEI(pointer) (MPI_File h, pointer buffer, int count, MPI_Datatype type, MPI_Request * request)
#define A_ONEI (h, buffer, count, type, request)
#define P_ATB(pointer) (MPI_File h, MPI_Offset offset, pointer buffer, int count, MPI_Datatype type)
#define A_ATB (h, offset, buffer, count, type)
#define P_ONEB(pointer) (MPI_File h, pointer buffer, int count, MPI_Datatype type)
#define A_ONEB (h, buffer, count, type)
#define P_END(pointer) (MPI_File h, pointer buffer, MPI_Status * status)
#define A_END (h, buffer, status)

#define WRAP_BOTH(name, pointer)                                                                                       \
    WRAP(name##_at, P_AT(pointer), A_AT)                                                                               \
    WRAP(name##_at_all, P_AT(pointer), A_AT)                                                                           \
    WRAP(i##name##_at, P_ATI(pointer), A_ATI)                                                                          \
    WRAP(i##name##_at_all, P_ATI(pointer), A_ATI)                                                                      \
    WRAP(name, P_ONE(pointer), A_ONE)                                                                                  \
    WRAP(name##_all, P_ONE(pointer), A_ONE)                                                                            \
    WRAP(i##name, P_ONEI(pointer), A_ONEI)                                                                             \
    WRAP(i##name##_all, P_ONEI(pointer), A_ONEI)                                                                       \
    WRAP(name##_at_all_begin, P_ATB(pointer), A_ATB)                                                                   \
    WRAP(name##_at_all_end, P_END(pointer), A_END)                                                                     \
    WRAP(name##_all_begin, P_ONEB(pointer), A_ONEB)                                                                    \
    WRAP(name##_all_end, P_END(pointer), A_END)                                                                        \
    WRAP(name##_shared, P_ONE(pointer), A_ONE)                                                                         \
    WRAP(i##name##_shared, P_ONEI(pointer), A_ONEI)                                                                    \
    WRAP(name##_ordered, P_ONE(pointer), A_ONE)                                                                        \
    WRAP(name##_ordered_begin, P_ONEB(pointer), A_ONEB)                                                                \
    WRAP(name##_ordered_end, P_END(pointer), A_END)

WRAP_BOTH(read, void *)
WRAP_BOTH(write, const void *)

WRAP(seek, (MPI_File h, MPI_Offset offset, int whence), (h, offset, whence))
WRAP(get_position, (MPI_File h, MPI_Offset * offset), (h, offset))
WRAP(get_byte_offset, (MPI_File h, MPI_Offset offset, MPI_Offset * displacement), (h, offset, displacement))
WRAP(get_view, (MPI_File h, MPI_Offset * displacement, MPI_Datatype * etype, MPI_Datatype * filetype, char *datarep),
     (h, displacement, etype, filetype, datarep))
WRAP(set_size, (MPI_File h, MPI_Offset bytes), (h, bytes))
WRAP(preallocate, (MPI_File h, MPI_Offset bytes), (h, bytes))
WRAP(set_atomicity, (MPI_File h, int flag), (h, flag))
WRAP(get_atomicity, (MPI_File h, int *flag), (h, flag))
WRAP(seek_shared, (MPI_File h, MPI_Offset offset, int whence), (h, offset, whence))
WRAP(get_position_shared, (MPI_File h, MPI_Offset * offset), (h, offset))
WRAP(sync, (MPI_File h), (h))
WRAP(get_size, (MPI_File h, MPI_Offset * size), (h, size))

#if MPI_VERSION >= 4

/* A large count as one element of a datatype. */
static int pack_count(MPI_Count *count, MPI_Datatype *type) {
    if (*count <= INT_MAX)
        return 0;
    if (PMPI_Type_contiguous_c(*count, *type, type) != MPI_SUCCESS)
        return 0;
    PMPI_Type_commit(type);
    *count = 1;
    return 1;
}

#define WRAP_LARGE(name, parameters, arguments)                                                                        \
    WS_EXPORT int MPI_File_##name##_c parameters {                                                                     \
        ws_wrap_find();                                                                                                \
        int packed = pack_count(&large, &type), count = (int)large;                                                    \
        int result = ws_##name arguments;                                                                              \
        if (packed)                                                                                                    \
            PMPI_Type_free(&type);                                                                                     \
        return result;                                                                                                 \
    }                                                                                                                  \
    int PMPI_File_##name##_c parameters WS_SAME_AS("MPI_File_" #name "_c");

#define L_AT(pointer)                                                                                                  \
    (MPI_File h, MPI_Offset offset, pointer buffer, MPI_Count large, MPI_Datatype type, MPI_Status * status)
#define L_ATI(pointer)                                                                                                 \
    (MPI_File h, MPI_Offset offset, pointer buffer, MPI_Count large, MPI_Datatype type, MPI_Request * request)
#define L_ONE(pointer) (MPI_File h, pointer buffer, MPI_Count large, MPI_Datatype type, MPI_Status * status)
#define L_ONEI(pointer) (MPI_File h, pointer buffer, MPI_Count large, MPI_Datatype type, MPI_Request * request)
#define L_ATB(pointer) (MPI_File h, MPI_Offset offset, pointer buffer, MPI_Count large, MPI_Datatype type)
#define L_ONEB(pointer) (MPI_File h, pointer buffer, MPI_Count large, MPI_Datatype type)

#define WRAP_BOTH_LARGE(name, pointer)                                                                                 \
    WRAP_LARGE(name##_at, L_AT(pointer), A_AT)                                                                         \
    WRAP_LARGE(name##_at_all, L_AT(pointer), A_AT)                                                                     \
    WRAP_LARGE(i##name##_at, L_ATI(pointer), A_ATI)                                                                    \
    WRAP_LARGE(i##name##_at_all, L_ATI(pointer), A_ATI)                                                                \
    WRAP_LARGE(name, L_ONE(pointer), A_ONE)                                                                            \
    WRAP_LARGE(name##_all, L_ONE(pointer), A_ONE)                                                                      \
    WRAP_LARGE(i##name, L_ONEI(pointer), A_ONEI)                                                                       \
    WRAP_LARGE(i##name##_all, L_ONEI(pointer), A_ONEI)                                                                 \
    WRAP_LARGE(name##_at_all_begin, L_ATB(pointer), A_ATB)                                                             \
    WRAP_LARGE(name##_all_begin, L_ONEB(pointer), A_ONEB)                                                              \
    WRAP_LARGE(name##_shared, L_ONE(pointer), A_ONE)                                                                   \
    WRAP_LARGE(i##name##_shared, L_ONEI(pointer), A_ONEI)                                                              \
    WRAP_LARGE(name##_ordered, L_ONE(pointer), A_ONE)                                                                  \
    WRAP_LARGE(name##_ordered_begin, L_ONEB(pointer), A_ONEB)

WRAP_BOTH_LARGE(read, void *)
WRAP_BOTH_LARGE(write, const void *)

#endif
