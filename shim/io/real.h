/* The functions of the MPI library's own implementation of MPI-IO, whichever way they were found: ompio's module, or
 * the library's PMPI_File_* functions. The functions of ops.h have the same names and arguments.
 */
#ifndef WAYSTAGE_IO_REAL_H
#define WAYSTAGE_IO_REAL_H

#include <mpi.h>

#define WS_READ_AT (MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *)
#define WS_WRITE_AT (MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Status *)
#define WS_READ (MPI_File, void *, int, MPI_Datatype, MPI_Status *)
#define WS_WRITE (MPI_File, const void *, int, MPI_Datatype, MPI_Status *)
#define WS_IREAD_AT (MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Request *)
#define WS_IWRITE_AT (MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Request *)
#define WS_IREAD (MPI_File, void *, int, MPI_Datatype, MPI_Request *)
#define WS_IWRITE (MPI_File, const void *, int, MPI_Datatype, MPI_Request *)
#define WS_READ_AT_BEGIN (MPI_File, MPI_Offset, void *, int, MPI_Datatype)
#define WS_WRITE_AT_BEGIN (MPI_File, MPI_Offset, const void *, int, MPI_Datatype)
#define WS_READ_BEGIN (MPI_File, void *, int, MPI_Datatype)
#define WS_WRITE_BEGIN (MPI_File, const void *, int, MPI_Datatype)
#define WS_READ_END (MPI_File, void *, MPI_Status *)
#define WS_WRITE_END (MPI_File, const void *, MPI_Status *)

/* Data access, seven groups of a read and a write each. */
#define WS_DATA_ACCESS(F)                                                                                              \
    F(read_at, WS_READ_AT)                                                                                             \
    F(write_at, WS_WRITE_AT)                                                                                           \
    F(read_at_all, WS_READ_AT)                                                                                         \
    F(write_at_all, WS_WRITE_AT)                                                                                       \
    F(iread_at, WS_IREAD_AT)                                                                                           \
    F(iwrite_at, WS_IWRITE_AT)                                                                                         \
    F(iread_at_all, WS_IREAD_AT)                                                                                       \
    F(iwrite_at_all, WS_IWRITE_AT)                                                                                     \
    F(read, WS_READ)                                                                                                   \
    F(write, WS_WRITE)                                                                                                 \
    F(read_all, WS_READ)                                                                                               \
    F(write_all, WS_WRITE)                                                                                             \
    F(iread, WS_IREAD)                                                                                                 \
    F(iwrite, WS_IWRITE)                                                                                               \
    F(iread_all, WS_IREAD)                                                                                             \
    F(iwrite_all, WS_IWRITE)                                                                                           \
    F(read_at_all_begin, WS_READ_AT_BEGIN)                                                                             \
    F(write_at_all_begin, WS_WRITE_AT_BEGIN)                                                                           \
    F(read_at_all_end, WS_READ_END)                                                                                    \
    F(write_at_all_end, WS_WRITE_END)                                                                                  \
    F(read_all_begin, WS_READ_BEGIN)                                                                                   \
    F(write_all_begin, WS_WRITE_BEGIN)                                                                                 \
    F(read_all_end, WS_READ_END)                                                                                       \
    F(write_all_end, WS_WRITE_END)

/* Shared file pointers. */
#define WS_SHARED_ACCESS(F)                                                                                            \
    F(read_shared, WS_READ)                                                                                            \
    F(write_shared, WS_WRITE)                                                                                          \
    F(iread_shared, WS_IREAD)                                                                                          \
    F(iwrite_shared, WS_IWRITE)                                                                                        \
    F(read_ordered, WS_READ)                                                                                           \
    F(write_ordered, WS_WRITE)                                                                                         \
    F(read_ordered_begin, WS_READ_BEGIN)                                                                               \
    F(write_ordered_begin, WS_WRITE_BEGIN)                                                                             \
    F(read_ordered_end, WS_READ_END)                                                                                   \
    F(write_ordered_end, WS_WRITE_END)                                                                                 \
    F(seek_shared, (MPI_File, MPI_Offset, int))                                                                        \
    F(get_position_shared, (MPI_File, MPI_Offset *))

#define WS_POSITIONING(F)                                                                                              \
    F(seek, (MPI_File, MPI_Offset, int))                                                                               \
    F(get_position, (MPI_File, MPI_Offset *))                                                                          \
    F(get_byte_offset, (MPI_File, MPI_Offset, MPI_Offset *))                                                           \
    F(get_view, (MPI_File, MPI_Offset *, MPI_Datatype *, MPI_Datatype *, char *))                                      \
    F(get_size, (MPI_File, MPI_Offset *))                                                                              \
    F(set_size, (MPI_File, MPI_Offset))                                                                                \
    F(preallocate, (MPI_File, MPI_Offset))                                                                             \
    F(set_atomicity, (MPI_File, int))                                                                                  \
    F(get_atomicity, (MPI_File, int *))                                                                                \
    F(sync, (MPI_File))

#define WS_FUNCTIONS(F) WS_DATA_ACCESS(F) WS_SHARED_ACCESS(F) WS_POSITIONING(F)

struct ws_real {
#define WS_MEMBER(name, arguments) int(*name) arguments;
    WS_FUNCTIONS(WS_MEMBER)
#undef WS_MEMBER
    /* `info` is of the type that the way in has: MPI_Info, or Open MPI's opal_info_t. */
    int (*set_view)(MPI_File, MPI_Offset, MPI_Datatype, MPI_Datatype, const char *, void *info);
    /* Opens the library's own file of a handle that has none yet; collective. NULL: every handle has one. */
    int (*open_late)(MPI_File);
    /* Gives an error that the library did not find itself to the file's error handler; returns what the caller of the
     * MPI function gets. */
    int (*raise)(MPI_File, int error_class);
    const char *name; /* of the implementation, for messages */
};

/* Filled by the way in before the first file is attached. */
extern struct ws_real ws_real;

#endif
