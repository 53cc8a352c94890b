/* The aggregator process of this node: who starts it, and until when it lives.
 *
 * Ranks of a node share a folder, WAYSTAGE_IO_BASE and a hash of the node. The process that makes the folder is
 * the one that starts the aggregator; no launcher needs to say which rank is the node's first. Each rank holds a
 * shared lock on a file of the folder, also after it executes another program, and the kernel drops it with the
 * process. Once the supervisor gets the lock for itself, the node's ranks are gone, however they ended.
 * A supervisor holds a lock, too: of several at most one stays, and ranks see whether there is one.
 */
#ifndef WAYSTAGE_IO_START_H
#define WAYSTAGE_IO_START_H

#define WS_FOLDER_BYTES 90 /* with "/socket" it must fit sun_path, 108 bytes */

/* In a separate process that never returns: starts the aggregator, starts it again when it is killed, and ends it
 * and removes `folder` when no rank holds the lock. */
void ws_supervise(const char *folder) __attribute__((noreturn));

/* Starts another supervisor where the node's has ended. */
void ws_node_revive(void);

#endif
