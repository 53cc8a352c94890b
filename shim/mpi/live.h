/* The counters' memory as a file, so that what a rank has counted outlives it, however it ends.
 *
 * Arrives: the file's name, what is known of the rank, room asked for.
 * Leaves: memory that is pages of the file; the file itself where the rank dies without leaving its part.
 * Must not know: what is counted.
 *
 * Nothing is written by calls: the kernel keeps the pages when a process is killed. All room is reserved beforehand
 * (fallocate), since a page that finds no room later would end the program by SIGBUS; where a file system cannot
 * reserve, or has no room, memory is a process's own as without this. python/waystage/patterns/live.py reads the
 * file.
 */
#ifndef WAYSTAGE_LIVE_H
#define WAYSTAGE_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIVE_MAGIC "WAYLIVE\1"
#define LIVE_SLOTS 1024   /* recorders whose tables are in the file */
#define LIVE_HEAD 7680    /* bytes of an encoded header */
#define LIVE_ELSEWHERE 1  /* no offset: the table is not in the file */

struct live_header {
    char magic[8];
    uint32_t rank, flags;
    uint64_t duration_ns; /* 0 until the rank reaches MPI_Finalize */
    uint32_t head_bytes, slots;
    char node[256];
    char reserved[8192 - 32 - 256 - LIVE_HEAD];
    unsigned char head[LIVE_HEAD];
    uint64_t tables[LIVE_SLOTS][2]; /* where the current table of a recorder is, by direction */
};

enum claim { CLAIM_MADE, CLAIM_TAKEN, CLAIM_FAILED };

/* Make the file `path`. Failing, it leaves no trace but that memory comes from elsewhere; CLAIM_TAKEN: there is one. */
enum claim live_make(const char *path);

/* Say whose it is; `flags` are those of a part, `head` is the encoded head of a pattern file. */
void live_describe(uint32_t rank, unsigned flags, const char *node, const unsigned char *head, size_t head_bytes);

/* The rank reached MPI_Finalize. */
void live_finish(unsigned flags, uint64_t duration_ns);

void live_remove(void);

/* The same before anything was counted: another may be made. */
void live_forget(void);

/* Pages of the file, with their offset in it; NULL where there are none to be had. */
void *live_take(size_t bytes, uint64_t *offset);

/* A place for a recorder's tables. */
uint32_t live_slot(void);

/* From now on the table at `offset` counts, and the one before does not. */
void live_publish(uint32_t slot, int direction, uint64_t offset);

#endif
