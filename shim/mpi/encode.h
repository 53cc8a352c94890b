/* The bytes of a pattern file (docs/reference/pattern-file.md). Knows nothing of MPI; safe within a signal handler. */
#ifndef WAYSTAGE_ENCODE_H
#define WAYSTAGE_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

struct bytes {
    unsigned char *at;
    size_t length, room;
    bool failed; /* there was no memory; the bytes are incomplete */
};

#define HEADER_BYTES 40
#define SECTION_BYTES 16
#define FLAG_FINISHED 1
#define FLAG_RECEIVES 2

struct file_head {
    uint32_t ranks;
    uint64_t start_unix_ns;
    uint64_t interval_ns;
    const char *mpi;     /* version of the MPI library */
    const char *route;   /* how messages were seen */
    const char *program; /* its name */
};

struct rank_part {
    uint32_t rank;
    const char *node;
    unsigned flags;
    uint64_t duration_ns;
    const char *const *warnings; /* ends with NULL */
};

/* Header, RUN and KIND. */
void encode_head(struct bytes *out, const struct file_head *head);

/* A whole section RANK, with the rows of all recorders. */
void encode_rank(struct bytes *out, const struct rank_part *part);

void encode_end(struct bytes *out);

void bytes_free(struct bytes *bytes);

#endif
