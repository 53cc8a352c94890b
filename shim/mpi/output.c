/* See output.h. */
#define _GNU_SOURCE
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "live.h"

#define MOST_WORLDS 9999
#define TAG 1
#define CHUNK (1 << 28) /* a count of MPI's is an int */

static char path[PATH_MAX], draft[PATH_MAX], part_path[PATH_MAX], live_path[PATH_MAX];
static bool left_part, claimed;

bool output_name(const char *given, int rank, unsigned world, const char *label)
{
    char folder[PATH_MAX] = "", spawned[128] = "";
    /* The program may change its directory before it ends. */
    if (given[0] != '/' && getcwd(folder, sizeof folder - 1) != NULL)
        strcat(folder, "/");
    if (label != NULL)
        snprintf(spawned, sizeof spawned, ".spawned-%.100s", label);
    else if (world != 0)
        snprintf(spawned, sizeof spawned, world == 1 ? ".spawned" : ".spawned-%u", world);
    /* What follows in a name begins with a dot. */
    for (char *at = spawned; *at != '\0'; at++)
        if (*at == '/' || (*at == '.' && at != spawned))
            *at = '-';
    int most = snprintf(path, sizeof path, "%s%s%s", folder, given, spawned);
    if (most < 0 || (size_t)most >= sizeof path)
        return false;
    most = snprintf(part_path, sizeof part_path, "%s.part-%06d", path, rank);
    if (most < 0 || (size_t)most >= sizeof part_path)
        return false;
    most = snprintf(live_path, sizeof live_path, "%s.live-%06d", path, rank);
    if (most < 0 || (size_t)most >= sizeof live_path)
        return false;
    most = snprintf(draft, sizeof draft, "%s.draft-%06d-%ld", path, rank, (long)getpid());
    return most > 0 && (size_t)most < sizeof draft;
}

unsigned output_claim(const char *given)
{
    for (unsigned world = 1; world <= MOST_WORLDS; world++) {
        if (!output_name(given, 0, world, NULL))
            return world;
        /* First the claim, then the test: a world that has just ended publishes before it gives up its claim. */
        enum claim claim = live_make(live_path);
        if (claim == CLAIM_TAKEN)
            continue;
        if (claim == CLAIM_MADE && access(path, F_OK) == 0) {
            live_forget();
            continue;
        }
        claimed = claim == CLAIM_MADE;
        return world;
    }
    return MOST_WORLDS;
}

void output_begin(bool keep)
{
    if (claimed || !keep)
        return;
    /* Of an earlier run: its processes may have it mapped, so it is not made shorter. */
    unlink(live_path);
    live_make(live_path);
}

static bool write_all(int file, const void *data, size_t length)
{
    const char *at = data;
    while (length > 0) {
        ssize_t written = write(file, at, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += written;
        length -= (size_t)written;
    }
    return true;
}

/* A file has its name only when it is whole. */
static bool publish(int file, bool written, const char *name)
{
    written &= close(file) == 0;
    if (written && rename(draft, name) == 0)
        return true;
    int cause = errno;
    unlink(draft);
    errno = cause;
    return false;
}

static bool write_end(int file)
{
    struct bytes end = {0};
    encode_end(&end);
    bool written = !end.failed && write_all(file, end.at, end.length);
    bytes_free(&end);
    return written;
}

static int open_draft(void)
{
    return open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

bool output_part(const struct bytes *head, const struct bytes *part)
{
    int file = open_draft();
    if (file < 0)
        return false;
    bool written = !head->failed && !part->failed && write_all(file, head->at, head->length) &&
                   write_all(file, part->at, part->length) && write_end(file);
    left_part = publish(file, written, part_path);
    return left_part;
}

void output_remove_part(void)
{
    if (left_part)
        unlink(part_path);
    left_part = false;
}

/* -- all ranks ---------------------------------------------------------------------------------------- */

static void hand_in(MPI_Comm comm, const struct bytes *part, uint64_t length)
{
    for (uint64_t at = 0; at < length; at += CHUNK) {
        uint64_t more = length - at < CHUNK ? length - at : CHUNK;
        mpi.Send(part->at + at, (int)more, mpi.byte, 0, TAG, comm);
    }
}

/* Takes everything that was sent even where the file has failed, so that no rank waits for ever. */
static bool take_in(MPI_Comm comm, int file, int rank, uint64_t length, bool good, int *cause)
{
    size_t room = length < CHUNK ? (size_t)length : CHUNK;
    void *chunk = length > 0 ? pages_take(room) : NULL;
    for (uint64_t at = 0; at < length; at += CHUNK) {
        uint64_t more = length - at < CHUNK ? length - at : CHUNK;
        MPI_Status status;
        char nothing;
        if (chunk == NULL) {
            /* Truncation is an error that the duplicate communicator only reports. */
            mpi.Recv(&nothing, 1, mpi.byte, rank, TAG, comm, &status);
            good = false;
            *cause = ENOMEM;
        } else if (mpi.Recv(chunk, (int)more, mpi.byte, rank, TAG, comm, &status) != MPI_SUCCESS) {
            good = false;
            *cause = EIO;
        } else if (good && !write_all(file, chunk, (size_t)more)) {
            good = false;
            *cause = errno;
        }
    }
    pages_give(chunk, room);
    return good;
}

static void collect(MPI_Comm comm, const struct bytes *head, const struct bytes *part, const uint64_t *lengths,
                    int ranks)
{
    int file = open_draft(), cause = errno;
    bool good = file >= 0;
    if (good && !(write_all(file, head->at, head->length) && write_all(file, part->at, lengths[0]))) {
        good = false;
        cause = errno;
    }
    for (int rank = 1; rank < ranks; rank++)
        good = take_in(comm, file, rank, lengths[rank], good, &cause);
    if (good && !write_end(file)) {
        good = false;
        cause = errno;
    }
    if (file >= 0 && !publish(file, good, path) && good) {
        good = false;
        cause = errno;
    }
    if (!good)
        fprintf(stderr, "waystage: profile: %s could not be written: %s; the program is not affected\n", path,
                strerror(cause));
}

void output_gather(const struct bytes *head, const struct bytes *part, int rank, int ranks)
{
    uint64_t length = head->failed || part->failed ? 0 : part->length;
    uint64_t *lengths = NULL;
    MPI_Comm comm = mpi.comm_null;

    if (mpi.Comm_dup(mpi.world, &comm) != MPI_SUCCESS)
        return;
    mpi.Comm_set_errhandler(comm, mpi.errors_return);
    if (rank == 0)
        lengths = pages_take((size_t)ranks * sizeof *lengths);
    /* Without memory for the lengths nothing can be gathered, and all ranks must know. */
    uint64_t able = lengths != NULL, said = 0;
    MPI_Status status;
    if (rank == 0)
        for (int other = 1; other < ranks; other++)
            mpi.Send(&able, 1, mpi.uint64, other, TAG, comm);
    else
        mpi.Recv(&said, 1, mpi.uint64, 0, TAG, comm, &status);
    if (rank == 0 ? able : said) {
        mpi.Gather(&length, 1, mpi.uint64, lengths, 1, mpi.uint64, 0, comm);
        if (rank == 0)
            collect(comm, head, part, lengths, ranks);
        else
            hand_in(comm, part, length);
    } else if (rank == 0) {
        fprintf(stderr, "waystage: profile: no memory to gather the ranks' parts; the program is not affected\n");
    }
    pages_give(lengths, (size_t)ranks * sizeof *lengths);
    /* Until the file has its name, what each rank counted is kept: rank 0 may yet be killed. */
    mpi.Barrier(comm);
    mpi.Comm_free(&comm);
    live_remove();
}
