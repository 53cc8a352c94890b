/* The whole ABI between preloaded libraries and the node's agent (crates/agent/src/abi.rs holds the same numbers).
 *
 * One segment of shared memory: a header, then the words of all rings, then their bytes. A ring is a ring of records with one
 * writer at a time, who holds its lock. A record counts only once `head` has passed it, so a writer that is killed leaves
 * nothing half said; the lock it leaves behind is broken by the agent, and others use other rings meanwhile. The agent
 * alone writes `tail`. Neither side believes the other: both keep every access within the ring, whatever the words say. */
#ifndef WAYSTAGE_RING_H
#define WAYSTAGE_RING_H

#include <stdatomic.h>
#include <stdint.h>

#define RING_VARIABLE "WAYSTAGE_RING"
#define RING_MAGIC UINT64_C(0x31474e5259415753) /* "SWAYRNG1" in memory */
#define RING_VERSION 1

/* Flags of the header. */
#define RING_TELL_STAT 1 /* Writers say on closing what fstat(2) says of a file. */

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
    _Atomic uint64_t unplaced;              /* Changes whose path could not be told. */
    _Atomic uint32_t next_ring;             /* Hands out rings to threads. */
    _Alignas(64) _Atomic uint32_t processes[RING_PROCESSES]; /* Their ids, 0 for a free place. */
};

/* Each word has a cache line, so that agent and writer do not take it from each other. */
struct ring_control {
    _Alignas(64) _Atomic uint64_t lock; /* The thread id of the writer, or 0. */
    _Alignas(64) _Atomic uint64_t head; /* Bytes ever written. */
    _Alignas(64) _Atomic uint64_t tail; /* Bytes ever read. */
};

enum ring_kind {
    RING_SKIP = 1,       /* Nothing up to the ring's end. */
    RING_OPENED = 2,     /* Opened so that it can be written, perhaps created. `token` names this opening. */
    RING_CLOSED = 3,     /* The opening `token` ended; a ring_stat instead of a path. */
    RING_MOVED = 4,      /* Renamed: one record for each of both names. */
    RING_REMOVED = 5,
    RING_LINKED = 6,     /* A hard link: one record for each of both names. */
    RING_SYMLINK = 7,    /* A symbolic link made. */
    RING_MADE = 8,       /* A directory, FIFO, device or socket made. */
    RING_TRUNCATED = 9,
    RING_ATTRIBUTES = 10, /* Mode, owner, times, extended attributes. */
    RING_PROGRAM = 11,    /* A ring_program_of, then a name for people. `token` is the time in ns of CLOCK_MONOTONIC. */
};

/* What became of a process. One that begins a program in which no library comes cannot be seen. */
enum ring_program {
    RING_PROGRAM_BEGINS = 1,
    RING_PROGRAM_FAILED = 2,
    RING_PROGRAM_CAME = 3,
    RING_PROGRAM_BLIND = 4, /* It does something that cannot be seen; the name says what. */
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
    /* Of RING_OPENED and RING_CLOSED, the opening's. Of RING_MOVED, RING_SYMLINK and RING_REMOVED, when the call began, in ns
     * of CLOCK_MONOTONIC: a symbolic link may have changed. 0 where there is neither, as of removed directories. */
    uint64_t token;
};

/* Times are nanoseconds since 1970. */
struct ring_stat {
    uint64_t device, inode, size, blocks;
    int64_t mtime, ctime, atime;
    uint32_t mode, uid, gid, links;
};

#define RING_ALIGN 16
/* A working directory, a slash and what was named below it, each at most PATH_MAX with its NUL. */
#define RING_LONGEST_PATH (2 * 4096)
#define RING_LONGEST (sizeof(struct ring_record) + RING_LONGEST_PATH)

#endif
