/* Built as a library, this sends a message; built as a program, it loads the library, and MPI with it, into a
 * separate scope, as Python does.
 */
#ifdef PROGRAM

#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = argc > 2 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*run)(int, char **) = library != NULL ? (int (*)(int, char **))dlsym(library, "run") : NULL;
    if (run == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return run(argc, argv);
}

#else

#include "expect.h"

int run(int argc, char **argv)
{
    char out[100] = {0}, in[100];
    expect_begin(&argc, &argv);
    int to = (world_rank + 1) % world_size, from = (world_rank + world_size - 1) % world_size;
    MPI_Sendrecv(out, 50, MPI_BYTE, to, 1, in, 100, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect_send(to, 50);
    expect_end(argv);
    return 0;
}

#endif
