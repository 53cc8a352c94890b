/* The connection to the node's flow agent. */
#ifndef WAYSTAGE_PATHS_AGENT_H
#define WAYSTAGE_PATHS_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Report this rank, of a world of `size`. Later calls report again after the agent was restarted. */
void agent_report(int rank, int size);

/* Whether there is a connection; tries to make one, at most once a second. */
bool agent_reached(void);

/* Send one line, without its newline; the connection is closed where it cannot be sent. */
void agent_send(const char *line, int length);

/* Wait until the agent says that `key` is placed, or for `limit_ms`. */
bool agent_placed(uint64_t key, int limit_ms);

/* The same for a multicast tree: the address of its group. False also where the controller has none. */
bool agent_group(uint64_t key, int limit_ms, char *group, size_t room);

/* The same for an order of `count` ranks: whether the agent answered, and in `found`, whether with an order. */
bool agent_order(uint64_t key, int limit_ms, int *ranks, int count, bool *found);

#endif
