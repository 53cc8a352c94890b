/* What is remembered of long messages: the numbers by which later frames refer to them.
 *
 * Arrives: numbers, with what they belong to. Leaves: the same, of the KEPT that were last kept or looked up. Numbers
 * with equal hashes are chained, so that no message takes the place of another.
 * Must not know: frames. */
#ifndef WAYSTAGE_TAGS_ANNOUNCED_H
#define WAYSTAGE_TAGS_ANNOUNCED_H

#include "stream.h"

#define KEPT 16384 /* numbers of a process at a time; a power of two */

/* Whose a number is. Numbers of one kind and peer are apart from all others. */
enum whose { OUR_REQUEST = 1, THEIR_REQUEST, THEIR_MEMORY, THEIR_DESCRIPTOR };

/* What a number belongs to from now on. */
void announced_keep(uint64_t number, uint32_t peer, enum whose whose, struct meaning meaning);

/* What it belongs to; not `known` where it is not remembered. */
struct meaning announced_recall(uint64_t number, uint32_t peer, enum whose whose);

#endif
