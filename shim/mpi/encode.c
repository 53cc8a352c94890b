/* See encode.h. */
#define _GNU_SOURCE
#include "encode.h"

#include <string.h>

#include "kinds.h"

static const unsigned char magic[8] = {0x89, 'W', 'S', 'P', '\r', '\n', 0x1a, '\n'};

#define MAJOR 1
#define MINOR 0
#define COLUMNS 6

static bool reserve(struct bytes *out, size_t more)
{
    if (out->failed)
        return false;
    if (out->length + more <= out->room)
        return true;
    size_t room = out->room ? out->room : 4096;
    while (room < out->length + more)
        room *= 2;
    unsigned char *at = pages_take(room);
    if (at == NULL) {
        out->failed = true;
        return false;
    }
    if (out->length > 0)
        memcpy(at, out->at, out->length);
    pages_give(out->at, out->room);
    out->at = at;
    out->room = room;
    return true;
}

void bytes_free(struct bytes *bytes)
{
    pages_give(bytes->at, bytes->room);
    memset(bytes, 0, sizeof *bytes);
}

static void put(struct bytes *out, const void *data, size_t length)
{
    if (length > 0 && reserve(out, length)) {
        memcpy(out->at + out->length, data, length);
        out->length += length;
    }
}

/* Fixed-width numbers, lowest byte first whatever the machine. */
static void set_fixed(unsigned char *at, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static void put_fixed(struct bytes *out, uint64_t value, int width)
{
    unsigned char raw[8];
    set_fixed(raw, value, width);
    put(out, raw, (size_t)width);
}

/* LEB128: seven bits a byte, lowest first, the top bit says that more follow. */
static void put_number(struct bytes *out, uint64_t value)
{
    unsigned char raw[10];
    size_t length = 0;
    do {
        raw[length] = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
        length++;
    } while (value != 0);
    put(out, raw, length);
}

static void put_text(struct bytes *out, const char *text)
{
    size_t length = text != NULL ? strlen(text) : 0;
    put_number(out, length);
    put(out, text, length);
}

/* CRC-32 as in zlib (IEEE 802.3, reflected), of what gave `crc` and then `data`. Four bits at a time: the table is
 * small, and a file is short. */
static uint32_t crc32(uint32_t crc, const unsigned char *data, size_t length)
{
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
                                       0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                       0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc = table[(crc ^ data[i]) & 15] ^ (crc >> 4);
        crc = table[(crc ^ (uint32_t)(data[i] >> 4)) & 15] ^ (crc >> 4);
    }
    return ~crc;
}

/* A section's head has the length and checksum of what follows, so it is filled in at the end. */
static size_t begin(struct bytes *out, const char *tag)
{
    put(out, tag, 4);
    put_fixed(out, 0, 4);
    put_fixed(out, 0, 8);
    return out->length;
}

static void finish(struct bytes *out, size_t start)
{
    if (out->failed)
        return;
    uint32_t crc = crc32(crc32(0, out->at + start - SECTION_BYTES, 4), out->at + start, out->length - start);
    set_fixed(out->at + start - 12, crc, 4);
    set_fixed(out->at + start - 8, out->length - start, 8);
}

void encode_head(struct bytes *out, const struct file_head *head)
{
    put(out, magic, sizeof magic);
    put_fixed(out, MAJOR, 2);
    put_fixed(out, MINOR, 2);
    put_fixed(out, head->ranks, 4);
    put_fixed(out, head->start_unix_ns, 8);
    put_fixed(out, head->interval_ns, 8);
    put_fixed(out, 0, 4);
    if (out->failed)
        return;
    put_fixed(out, crc32(0, out->at + out->length - (HEADER_BYTES - 4), HEADER_BYTES - 4), 4);

    size_t start = begin(out, "RUN ");
    put_number(out, 3);
    put_text(out, "mpi");
    put_text(out, head->mpi);
    put_text(out, "program");
    put_text(out, head->program);
    put_text(out, "route");
    put_text(out, head->route);
    finish(out, start);

    start = begin(out, "KIND");
    unsigned kinds = 0;
#define X(number, identifier, name, group, flags) kinds++;
    WAYSTAGE_KINDS(X)
#undef X
    put_number(out, kinds);
#define X(number, identifier, name, group, flags)                                                                      \
    put_number(out, number);                                                                                           \
    put_text(out, name);                                                                                               \
    put_text(out, group);                                                                                              \
    put_number(out, flags);
    WAYSTAGE_KINDS(X)
#undef X
    finish(out, start);
}

static uint64_t field(uint64_t key, int shift, int bits)
{
    return (key >> shift) & ((UINT64_C(1) << bits) - 1);
}

static uint64_t zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

/* Column `which` of row i; phases and peers as differences to the row before. */
static uint64_t cell(const struct row *rows, size_t i, int which)
{
    uint64_t key = rows[i].key, before = i > 0 ? rows[i - 1].key : KEY_USED;
    switch (which) {
    case 0:
        return field(key, KEY_PHASE_SHIFT, KEY_PHASE_BITS) - field(before, KEY_PHASE_SHIFT, KEY_PHASE_BITS);
    case 1:
        return zigzag((int64_t)field(key, KEY_PEER_SHIFT, KEY_PEER_BITS) -
                      (int64_t)field(before, KEY_PEER_SHIFT, KEY_PEER_BITS));
    case 2:
        return field(key, KEY_KIND_SHIFT, KEY_KIND_BITS);
    case 3:
        return field(key, 0, KEY_SIZE_BITS);
    case 4:
        return rows[i].messages;
    default:
        return rows[i].bytes;
    }
}

static void put_table(struct bytes *out, enum direction direction, unsigned doublings)
{
    size_t count, room;
    struct row *rows = record_rows(direction, doublings, &count, &room);
    if (rows == NULL) {
        out->failed = true;
        return;
    }
    put_number(out, count);
    for (int column = 0; column < COLUMNS; column++) {
        struct bytes cells = {0};
        for (size_t i = 0; i < count; i++)
            put_number(&cells, cell(rows, i, column));
        put_number(out, cells.length);
        put(out, cells.at, cells.length);
        out->failed |= cells.failed;
        bytes_free(&cells);
    }
    rows_free(rows, room);
}

void encode_rank(struct bytes *out, const struct rank_part *part)
{
    unsigned doublings = record_doublings(), warnings = 0;
    size_t start = begin(out, "RANK");
    put_number(out, part->rank);
    put_text(out, part->node);
    put_number(out, part->flags);
    put_number(out, doublings);
    put_number(out, part->duration_ns);
    while (part->warnings[warnings] != NULL)
        warnings++;
    put_number(out, warnings);
    for (unsigned i = 0; i < warnings; i++)
        put_text(out, part->warnings[i]);
    put_table(out, SENT, doublings);
    put_table(out, RECEIVED, doublings);
    finish(out, start);
}

void encode_end(struct bytes *out)
{
    finish(out, begin(out, "END "));
}
