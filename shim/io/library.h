/* libwaystage_io, loaded when the first file is opened: programs that open none do not load it. */
#ifndef WAYSTAGE_IO_LIBRARY_H
#define WAYSTAGE_IO_LIBRARY_H

#include "waystage_io.h"

#define WS_LIBRARY_FUNCTIONS(F)                                                                                        \
    F(abi) F(message) F(connect) F(disconnect) F(on_absence) F(address)                                                              \
    F(type_bytes) F(type_contiguous) F(type_hvector) F(type_hindexed) F(type_hindexed_block) F(type_struct)            \
    F(type_resized) F(type_subarray) F(type_darray) F(type_free)                                                       \
    F(file_id) F(open) F(close) F(hint) F(set_view) F(control_point) F(adopt) F(finished) F(write_all) F(read_all)     \
    F(write) F(read) F(sync) F(settle)                                                                                           \
    F(couple) F(commit) F(next) F(uncouple)                                                                            \
    F(version_open) F(version_view) F(version_write) F(version_read) F(version_size) F(version_resize)                 \
    F(version_position) F(version_end) F(version_commit)

struct ws_library {
#define WS_MEMBER(name) __typeof__(&ws_io_##name) name;
    WS_LIBRARY_FUNCTIONS(WS_MEMBER)
#undef WS_MEMBER
};

extern struct ws_library ws_library;

/* Loads WAYSTAGE_IO_LIBRARY. NULL, or one sentence why it could not. */
const char *ws_library_load(void);

#endif
