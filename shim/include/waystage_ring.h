/* The ABI between preloaded libraries and the node's agent (crates/agent/src/abi.rs holds the same numbers).
 *
 * One segment of shared memory: a header, the control words of all rings, and their bytes. A ring holds records and
 * has one writer at a time, which holds its lock. A record counts only once `head` has passed it, so a killed writer
 * leaves no partial record; the agent breaks its lock, and other writers use other rings meanwhile. The agent alone
 * writes `tail`. Neither side trusts the other: both keep every access within the ring, whatever the words contain. */
#ifndef WAYSTAGE_RING_H
#define WAYSTAGE_RING_H

#include <stdatomic.h>
#include <stdint.h>

#define RING_VARIABLE "WAYSTAGE_RING"
#define RING_MAGIC UINT64_C(0x31474e5259415753) /* "SWAYRNG1" in memory */
#define RING_VERSION 1

/* Flags of the header. */
#define RING_TELL_STAT 1 /* Writers record the result of fstat(2) when they close a file. */

#define RING_PROCESSES 1024

struct ring_header {
    uint64_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t rings;
    uint32_t reserved;
    uint64_t ring_bytes; /* A power of two. */
    _Alignas(64) _Atomic uint64_t consumed; /* Bytes the agent has read of all rings: whether it is alive. */
    _Alignas(64) _Atomic uint64_t lost;     /* Records that did not fit in time. */
    _Atomic uint64_t unplaced;              /* Changes whose path could not be determined. */
    _Atomic uint32_t next_ring;             /* Hands out rings to threads. */
    _Alignas(64) _Atomic uint32_t processes[RING_PROCESSES]; /* Their ids, 0 for a free slot. */
};

/* Each word has its own cache line: no false sharing between agent and writer. */
struct ring_control {
    _Alignas(64) _Atomic uint64_t lock; /* The thread id of the writer, or 0. */
    _Alignas(64) _Atomic uint64_t head; /* Bytes ever written. */
    _Alignas(64) _Atomic uint64_t tail; /* Bytes ever read. */
};

enum ring_kind {
    RING_SKIP = 1,       /* Nothing up to the ring's end. */
    RING_OPENED = 2,     /* Opened for writing, perhaps created. `token` identifies this open. */
    RING_CLOSED = 3,     /* The open `token` ended; a ring_stat instead of a path. */
    RING_MOVED = 4,      /* Renamed: one record for each of both names. */
    RING_REMOVED = 5,
    RING_LINKED = 6,     /* A hard link: one record for each of both names. */
    RING_SYMLINK = 7,    /* A symbolic link made. */
    RING_MADE = 8,       /* A directory, FIFO, device or socket made. */
    RING_TRUNCATED = 9,
    RING_ATTRIBUTES = 10, /* Mode, owner, times, extended attributes. */
    RING_PROGRAM = 11,    /* A ring_program_of, then a name for people. `token` is the time in ns of CLOCK_MONOTONIC. */
};

/* The state of a process. A start without RING_PROGRAM_LOADED means that the program cannot be observed. */
enum ring_program {
    RING_PROGRAM_STARTS = 1,
    RING_PROGRAM_FAILED = 2,
    RING_PROGRAM_LOADED = 3,
    RING_PROGRAM_UNOBSERVABLE = 4, /* It uses an interface that cannot be observed, which the name says. */
};

struct ring_program_of {
    uint32_t process;
    uint32_t state;
};

/* A multiple of 16 bytes, followed by the path: absolute, as the program named it, not resolved. */
struct ring_record {
    uint32_t bytes; /* With this header. */
    uint16_t path_bytes;
    uint8_t kind;
    uint8_t reserved;
    /* Of RING_OPENED and RING_CLOSED, the open's. Of RING_MOVED, RING_SYMLINK and RING_REMOVED, when the call began,
     * in ns of CLOCK_MONOTONIC: a symbolic link may have changed. 0 where there is neither, as of removed
     * directories. */
    uint64_t token;
};

/* Times are nanoseconds since 1970. */
struct ring_stat {
    uint64_t device, inode, size, blocks;
    int64_t mtime, ctime, atime;
    uint32_t mode, uid, gid, links;
};

#define RING_ALIGN 16
/* A working directory, a slash and a relative path, each at most PATH_MAX with its NUL. */
#define RING_LONGEST_PATH (2 * 4096)
#define RING_LONGEST (sizeof(struct ring_record) + RING_LONGEST_PATH)

#endif
