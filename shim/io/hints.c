#include "hints.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const ws_hints_in_force[] = {"cb_nodes",        "cb_buffer_size",   "striping_unit", "striping_factor",
                                         "waystage_exchange", "waystage_servers", "waystage_write_behind", NULL};

void ws_hints_add(struct ws_hints *hints, const char *key, const char *value) {
    if (hints->count == WS_MAX_HINTS || strlen(key) >= WS_HINT_BYTES || strlen(value) >= WS_HINT_BYTES)
        return;
    strcpy(hints->text[2 * hints->count], key);
    strcpy(hints->text[2 * hints->count + 1], value);
    hints->count++;
}

const char *ws_hints_get(const struct ws_hints *hints, const char *key) {
    for (int i = 0; i < hints->count; i++)
        if (strcmp(hints->text[2 * i], key) == 0)
            return hints->text[2 * i + 1];
    return NULL;
}

int ws_hints_switch(const struct ws_hints *hints, const char *key, int otherwise) {
    const char *value = ws_hints_get(hints, key);
    if (value == NULL)
        return otherwise;
    if (strcasecmp(value, "true") == 0 || strcasecmp(value, "enable") == 0 || strcmp(value, "1") == 0)
        return 1;
    if (strcasecmp(value, "false") == 0 || strcasecmp(value, "disable") == 0 || strcmp(value, "0") == 0)
        return 0;
    return otherwise;
}

/* One message with `more`, where there is no hint. */
static int first_of_rank_0(int count, void *more, int bytes, MPI_Comm comm) {
    unsigned char *both = malloc(sizeof count + (size_t)bytes);
    if (both == NULL)
        PMPI_Abort(comm, 1);
    memcpy(both, &count, sizeof count);
    memcpy(both + sizeof count, more, (size_t)bytes);
    PMPI_Bcast(both, (int)sizeof count + bytes, MPI_BYTE, 0, comm);
    memcpy(&count, both, sizeof count);
    memcpy(more, both + sizeof count, (size_t)bytes);
    free(both);
    return count;
}

int ws_hints_of_rank_0(struct ws_hints *hints, void *more, int bytes, MPI_Comm comm) {
    static const struct ws_hints none;
    int rank, same;
    PMPI_Comm_rank(comm, &rank);
    int count = first_of_rank_0(hints->count, more, bytes, comm);
    if (count == 0) {
        same = hints->count == 0;
        *hints = none;
        return same;
    }
    struct ws_hints *of_0 = calloc(1, sizeof *of_0);
    if (rank == 0 && of_0 != NULL)
        *of_0 = *hints;
    char(*text)[WS_HINT_BYTES] = of_0 != NULL ? of_0->text : hints->text;
    PMPI_Bcast(text, 2 * count * WS_HINT_BYTES, MPI_CHAR, 0, comm);
    if (of_0 == NULL) {
        hints->count = count;
        return 1;
    }
    of_0->count = count;
    same = hints->count == count;
    for (int i = 0; same && i < 2 * count; i++)
        same = strcmp(hints->text[i], of_0->text[i]) == 0;
    *hints = *of_0;
    free(of_0);
    return same;
}
