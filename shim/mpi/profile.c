/* See profile.h. */
#define _GNU_SOURCE
#include "profile.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "offload.h"
#include "encode.h"
#include "fatal.h"
#include "live.h"
#include "output.h"
#include "pml.h"
#include "record.h"
#include "requests.h"
#include "ucx.h"
#include "watch.h"

#define DEFAULT_OUTPUT "waystage.pattern"
#define DEFAULT_INTERVAL_S 1.0
#define LONGEST_INTERVAL_S 1e9
#define DEFAULT_MEMORY_MIB 64
#define MOST_WARNINGS 10

enum route profile_route;

static struct bytes head;
static char node[MPI_MAX_PROCESSOR_NAME];
static int own_rank, all_ranks;
static pid_t own_process;
static atomic_flag abandoned = ATOMIC_FLAG_INIT;
static bool sees_receives;

/* Several programs make up this job, and some may lack the profiler: every rank leaves a part, since what is
 * collective over all ranks would wait for ever.
 */
static bool alone;

bool profile_receives_own(uint32_t peer)
{
    return sees_receives && peer == (uint32_t)own_rank;
}

static double number_from(const char *name, double otherwise, double most)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL || *text == '\0')
        return otherwise;
    double value = strtod(text, &end);
    if (*end == '\0' && value >= 0 && value <= most)
        return value;
    if (own_rank == 0)
        fprintf(stderr, "waystage: profile: %s: '%s' is no number from 0 to %g; taking %g\n", name, text, most,
                otherwise);
    return otherwise;
}

static int programs(void)
{
    const char *count = getenv("OMPI_NUM_APP_CTX");
    return count != NULL ? atoi(count) : 1;
}

static bool keeps(void)
{
    const char *wanted = getenv("WAYSTAGE_PROFILE_LIVE");
    return wanted == NULL || strcmp(wanted, "off") != 0;
}

/* Names the files. Worlds that a program spawns one after the other have different names, which rank 0 chooses. */
static bool name_output(const char *path, bool spawned)
{
    if (!spawned)
        return output_name(path, own_rank, 0, NULL);
    if (alone) {
        /* Nothing collective: what the launcher calls this world. */
        const char *name = getenv("PMIX_NAMESPACE");
        return output_name(path, own_rank, 1, name != NULL ? name : getenv("PMI_JOBID"));
    }
    uint64_t mine = own_rank == 0 ? output_claim(path) : 0, world = 0;
    if (mpi.Allreduce(&mine, &world, 1, mpi.uint64, mpi.max, mpi.world) != MPI_SUCCESS)
        world = 1;
    return output_name(path, own_rank, (unsigned)world, NULL);
}

static bool start_recording(uint64_t interval_ns)
{
    int level = MPI_THREAD_SINGLE;
    double memory = number_from("WAYSTAGE_PROFILE_MEMORY", DEFAULT_MEMORY_MIB, 1 << 20);
    /* Phases of all ranks begin together, up to the time in which a barrier ends. */
    if (!alone) {
        ucx_meet(own_rank, all_ranks);
        if (!watch_only)
            mpi.Barrier(mpi.world);
    }
    record_start(interval_ns, (uint64_t)(memory * (1 << 20)));
    mpi.Query_thread(&level);
    requests_start(level == MPI_THREAD_MULTIPLE);
    if (recorder_get() == NULL)
        return false;
    profile_route = pml_start() ? ROUTE_PML : ucx_start() ? ROUTE_UCX : ROUTE_PMPI;
    sees_receives = pml_sees_receives() || ucx_sees_receives();
    return true;
}

static unsigned own_flags(bool finished)
{
    return (finished ? FLAG_FINISHED : 0) | (sees_receives ? FLAG_RECEIVES : 0);
}

static void encode_own_head(uint64_t interval_ns)
{
    static const char *const routes[] = {[ROUTE_PML] = "pml", [ROUTE_UCX] = "ucx", [ROUTE_PMPI] = "pmpi"};
    static char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (mpi.Get_library_version(version, &length) != MPI_SUCCESS)
        version[0] = '\0';
    /* "Open MPI v4.1.4, package: ..., ident: ...": what it is, not who built it where. */
    version[strcspn(version, ",\n")] = '\0';
    struct file_head content = {
        .ranks = (uint32_t)all_ranks,
        .start_unix_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec,
        .interval_ns = interval_ns,
        .mpi = version,
        .route = routes[profile_route],
        .program = program_invocation_short_name,
    };
    encode_head(&head, &content);
}

void profile_begin(void)
{
    const char *wanted = getenv("WAYSTAGE_PROFILE"), *path = getenv("WAYSTAGE_PROFILE_OUTPUT");
    MPI_Comm parent;
    int length = 0;

    if (own_process != 0 || (wanted != NULL && strcmp(wanted, "off") == 0) || !api_load())
        return;
    watch_only = wanted != NULL && strcmp(wanted, "watch") == 0;
    own_process = getpid();
    alone = programs() > 1;
    parent = mpi.comm_null;
    if (mpi.Comm_rank(mpi.world, &own_rank) != MPI_SUCCESS || mpi.Comm_size(mpi.world, &all_ranks) != MPI_SUCCESS ||
        mpi.Comm_get_parent(&parent) != MPI_SUCCESS)
        return;
    if (mpi.Get_processor_name(node, &length) != MPI_SUCCESS)
        node[0] = '\0';
    if (watch_only) {
        start_recording(0);
        return;
    }
    if ((uint64_t)all_ranks >> KEY_PEER_BITS != 0 ||
        !name_output(path != NULL && *path != '\0' ? path : DEFAULT_OUTPUT, parent != mpi.comm_null)) {
        if (own_rank == 0)
            fprintf(stderr, "waystage: profile: the name of the output is too long, or there are too many ranks: "
                            "nothing is recorded\n");
        return;
    }
    double seconds = number_from("WAYSTAGE_PROFILE_INTERVAL", DEFAULT_INTERVAL_S, LONGEST_INTERVAL_S);
    uint64_t interval_ns = (uint64_t)(seconds * 1e9 + 0.5);
    output_begin(keeps());
    if (!start_recording(interval_ns)) {
        fprintf(stderr, "waystage: profile: rank %d has no memory to record: the program is not affected\n", own_rank);
        return;
    }
    encode_own_head(interval_ns);
    if (!head.failed)
        live_describe((uint32_t)own_rank, own_flags(false), node, head.at, head.length);
    fatal_watch();
}

/* Sentences about what the numbers do not hold. */
static void find_warnings(const char **warnings)
{
    static char lost[160], outside[160], bypassed[200];
    uint64_t lost_messages = 0, lost_bytes = 0, outside_messages = 0, outside_bytes = 0;
    int count = 0, ucx = 0;

    for (struct recorder *r = record_first(); r != NULL; r = r->next) {
        lost_messages += r->lost_messages;
        lost_bytes += r->lost_bytes;
        outside_messages += r->outside_messages;
        outside_bytes += r->outside_bytes;
    }
    if (profile_route == ROUTE_PMPI)
        warnings[count++] = "only calls of the program were seen: messages beneath collectives are missing";
    for (const char *said; (said = ucx_describe(&ucx)) != NULL;)
        warnings[count++] = said;
    if (!sees_receives)
        warnings[count++] = "what was received was not counted";
    if (lost_messages > 0) {
        snprintf(lost, sizeof lost, "for want of memory %llu messages of %llu bytes were not counted",
                 (unsigned long long)lost_messages, (unsigned long long)lost_bytes);
        warnings[count++] = lost;
    }
    if (outside_messages > 0) {
        snprintf(outside, sizeof outside, "%llu messages of %llu bytes went to processes outside MPI_COMM_WORLD",
                 (unsigned long long)outside_messages, (unsigned long long)outside_bytes);
        warnings[count++] = outside;
    }
    if (profile_route == ROUTE_PML && offload_describe(bypassed, sizeof bypassed))
        warnings[count++] = bypassed;
    warnings[count] = NULL;
}

static void encode_own_part(struct bytes *part, bool finished)
{
    const char *warnings[MOST_WARNINGS + 1];
    find_warnings(warnings);
    struct rank_part content = {
        .rank = (uint32_t)own_rank,
        .node = node,
        .flags = own_flags(finished),
        .duration_ns = record_elapsed_ns(),
        .warnings = warnings,
    };
    encode_rank(part, &content);
}

void profile_end(void)
{
    struct bytes part = {0};
    if (own_process == 0 || getpid() != own_process || all_ranks == 0)
        return;
    /* A rank without a recorder takes part too: to gather is collective. */
    atomic_flag_test_and_set(&abandoned);
    watch_stop();
    pml_stop();
    ucx_stop();
    if (watch_only) {
        profile_route = ROUTE_NONE;
        return;
    }
    if (profile_route != ROUTE_NONE) {
        encode_own_part(&part, true);
        live_finish(own_flags(true), record_elapsed_ns());
    }
    if (alone && profile_route != ROUTE_NONE) {
        if (output_part(&head, &part))
            live_remove();
    } else if (!alone) {
        output_gather(&head, &part, own_rank, all_ranks);
        output_remove_part();
    }
    profile_route = ROUTE_NONE;
    bytes_free(&part);
    all_ranks = 0;
}

void profile_abandon(void)
{
    struct bytes part = {0};
    if (profile_route == ROUTE_NONE || watch_only || getpid() != own_process || atomic_flag_test_and_set(&abandoned))
        return;
    encode_own_part(&part, false);
    output_part(&head, &part);
    bytes_free(&part);
}
