#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct ws_library ws_library;

static const char *load(void) {
    static char why[512];
    const char *path = getenv("WAYSTAGE_IO_LIBRARY");
    if (path == NULL || *path == '\0')
        return "WAYSTAGE_IO_LIBRARY is not set: start the program with `waystage mpi --io`";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, sizeof why, "%s", dlerror());
        return why;
    }
#define WS_FIND(name)                                                                                                  \
    *(void **)&ws_library.name = dlsym(library, "ws_io_" #name);                                                       \
    if (ws_library.name == NULL) {                                                                                     \
        snprintf(why, sizeof why, "%s has no ws_io_" #name ": install one version of Waystage on all nodes", path);    \
        return why;                                                                                                    \
    }
    WS_LIBRARY_FUNCTIONS(WS_FIND)
#undef WS_FIND
    if (ws_library.abi() != WS_IO_ABI) {
        snprintf(why, sizeof why, "%s has version %d of the interface, not %d: install one version of Waystage", path,
                 ws_library.abi(), WS_IO_ABI);
        return why;
    }
    /* Of the preloaded library (start.c), where this is a component. */
    void (*revive)(void);
    *(void **)&revive = dlsym(RTLD_DEFAULT, "ws_node_revive");
    ws_library.on_absence(revive);
    return NULL;
}

const char *ws_library_load(void) {
    static int tried;
    static const char *why;
    if (!tried) {
        tried = 1;
        why = load();
    }
    return why;
}
