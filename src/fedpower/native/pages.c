/* Pages of Parquet: see data/parquet_pages.py. */

#include "loops.h"

#ifndef _WIN32
#include <unistd.h>
#endif

/* What is left of some bytes; at is NULL once they ended before what they began with. */
struct bytes {
    const uint8_t *at, *end;
};

static uint8_t next_byte(struct bytes *raw)
{
    if (raw->at == NULL || raw->at == raw->end)
        return raw->at = NULL, 0;
    return *raw->at++;
}

static void pass_over(struct bytes *raw, uint64_t count)
{
    if (raw->at == NULL || count > (uint64_t)(raw->end - raw->at))
        raw->at = NULL;
    else
        raw->at += count;
}

static uint64_t next_number(struct bytes *raw) /* seven bits a byte, the lowest first */
{
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        uint8_t byte = next_byte(raw);
        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return found;
    }
    return raw->at = NULL, 0;
}

static int64_t next_signed(struct bytes *raw)
{
    uint64_t found = next_number(raw);
    return (int64_t)(found >> 1) ^ -(int64_t)(found & 1);
}

/* Thrift's compact protocol: a structure is its fields and a zero. */
enum { TRUE = 1, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, TEXT, LIST, STRUCTURE = 12 };

/* Go to the next field of a structure; return its type, and 0 after the last one. */
static int next_field(struct bytes *raw, int64_t *number)
{
    uint8_t head = next_byte(raw);
    if (head == 0)
        return 0;
    *number = head >> 4 ? *number + (head >> 4) : (int32_t)next_signed(raw);
    if ((head & 15) == 0)
        raw->at = NULL;
    return head & 15;
}

/* Return how many values a list has, all of this type; none where they have another. */
static int64_t next_list(struct bytes *raw, int type)
{
    uint8_t head = next_byte(raw);
    uint64_t count = head >> 4 == 15 ? next_number(raw) : head >> 4;
    return (head & 15) == type && count < INT32_MAX ? (int64_t)count : -1;
}

static void pass_over_field(struct bytes *raw, int type, int depth)
{
    int64_t number = 0;
    if (depth > 16)
        raw->at = NULL;
    if (type == BYTE)
        pass_over(raw, 1);
    else if (type == INT16 || type == INT32 || type == INT64)
        next_number(raw);
    else if (type == DOUBLE)
        pass_over(raw, 8);
    else if (type == TEXT)
        pass_over(raw, next_number(raw));
    else if (type == STRUCTURE)
        while (raw->at != NULL && (type = next_field(raw, &number)) != 0)
            pass_over_field(raw, type, depth + 1);
    else if (type == LIST) {
        uint8_t head = next_byte(raw);
        uint64_t count = head >> 4 == 15 ? next_number(raw) : head >> 4;
        for (type = (head & 15) == FALSE || (head & 15) == TRUE ? BYTE : head & 15;
             raw->at != NULL && count > 0; count--)
            pass_over_field(raw, type, depth + 1);
    } else if (type != TRUE && type != FALSE)
        raw->at = NULL;
}

#define FIELDS 8      /* of a structure that are kept, the first among them being number 1 */
#define STRUCTURES 9  /* the header itself, and those in it by their place */

static void keep_fields(struct bytes *raw, int structure, int64_t fields[STRUCTURES][FIELDS])
{
    int64_t number = 0;
    int type;
    while (raw->at != NULL && (type = next_field(raw, &number)) != 0) {
        int within = number > 0 && number < FIELDS;
        if (type == INT32 && within)
            fields[structure][number] = next_signed(raw);
        else if ((type == TRUE || type == FALSE) && within)
            fields[structure][number] = type == TRUE;
        else if (type == STRUCTURE && structure == 0 && number > 0 && number < STRUCTURES)
            keep_fields(raw, (int)number, fields);
        else
            pass_over_field(raw, type, 0);
    }
}

/* Put the numbers of a page's header into fields, -1 for those that are not there, and return its length;
   -1 where it is longer than size or no such header. */
EXPORT int64_t fedpower_page_header(const uint8_t *header, int64_t size,
                                    int64_t fields[STRUCTURES][FIELDS])
{
    struct bytes raw = {header, header + size};
    memset(fields, 0xff, STRUCTURES * sizeof *fields); /* -1 everywhere */
    keep_fields(&raw, 0, fields);
    return raw.at == NULL ? -1 : raw.at - header;
}

/* What the end of a file says of a chunk: of one column in one row group. */
struct chunk {
    int64_t type, compression, n_values, size, start, dictionary; /* -1 where it does not say so */
};

static void read_chunk(struct bytes *raw, struct chunk *chunk)
{
    int64_t number = 0;
    int type;
    while (raw->at != NULL && (type = next_field(raw, &number)) != 0) {
        int64_t *into = type == INT32 && number == 1    ? &chunk->type
                        : type == INT32 && number == 4  ? &chunk->compression
                        : type == INT64 && number == 5  ? &chunk->n_values
                        : type == INT64 && number == 7  ? &chunk->size
                        : type == INT64 && number == 9  ? &chunk->start
                        : type == INT64 && number == 11 ? &chunk->dictionary
                                                        : NULL;
        if (into != NULL)
            *into = next_signed(raw);
        else
            pass_over_field(raw, type, 0);
    }
}

/* Read a row group, all of whose chunks must lie in the file, as they are, and have as many values. */
static void read_group(struct bytes *raw, int64_t n_columns, struct chunk *chunks)
{
    int64_t number = 0, n_rows = -1, n_chunks = 0;
    int type;
    while (raw->at != NULL && (type = next_field(raw, &number)) != 0) {
        if (number == 3 && type == INT64) {
            n_rows = next_signed(raw);
        } else if (number == 1 && type == LIST) {
            n_chunks = next_list(raw, STRUCTURE);
            if (n_chunks != n_columns)
                raw->at = NULL;
            for (int64_t i = 0; raw->at != NULL && i < n_chunks; i++) {
                int64_t inner = 0;
                while (raw->at != NULL && (type = next_field(raw, &inner)) != 0) {
                    if (inner == 1 || inner == 8 || inner == 9) /* in another file, or encrypted */
                        raw->at = NULL;
                    else if (inner == 3 && type == STRUCTURE)
                        read_chunk(raw, chunks + i);
                    else
                        pass_over_field(raw, type, 0);
                }
            }
        } else {
            pass_over_field(raw, type, 0);
        }
    }
    for (int64_t i = 0; i < n_columns; i++)
        if (n_chunks != n_columns || chunks[i].n_values != n_rows)
            raw->at = NULL;
}

/* Put what the end of a file says of its chunks into chunks, group by group; return whether it is of so many. */
EXPORT int32_t fedpower_chunks(const uint8_t *footer, int64_t size, int64_t n_groups, int64_t n_columns,
                               struct chunk *chunks)
{
    struct bytes raw = {footer, footer + size};
    int64_t number = 0, found = 0;
    int type;
    for (int64_t i = 0; i < n_groups * n_columns; i++)
        chunks[i] = (struct chunk){-1, -1, -1, -1, -1, -1};
    while (raw.at != NULL && (type = next_field(&raw, &number)) != 0) {
        if (number != 4 || type != LIST) {
            pass_over_field(&raw, type, 0);
            continue;
        }
        found = next_list(&raw, STRUCTURE);
        if (found != n_groups)
            return 0;
        for (int64_t i = 0; raw.at != NULL && i < found; i++)
            read_group(&raw, n_columns, chunks + i * n_columns);
    }
    return raw.at != NULL && found == n_groups;
}

/* Return value i of those that are packed in at most 32 bits each, from the lowest bit on. */
static inline uint32_t packed(const uint8_t *raw, int64_t i, int bits)
{
    uint64_t word;
    memcpy(&word, raw + (i * bits >> 3), sizeof word);
    return (uint32_t)(word >> (i * bits & 7) & ((UINT64_C(1) << bits) - 1));
}

/* A run of Parquet's hybrid of repeated and packed values. */
struct run {
    int64_t count;        /* of values; 0 where the bytes hold no whole run */
    const uint8_t *begin; /* of packed ones; NULL where one value is repeated */
    uint32_t value;
};

static struct run next_run(struct bytes *raw, int bits)
{
    const struct run none = {0, NULL, 0};
    uint64_t head = next_number(raw), many = head >> 1;
    if (raw->at == NULL || many > INT32_MAX)
        return none;
    int64_t size = head & 1 ? (int64_t)many * bits : (bits + 7) / 8;
    if (size > raw->end - raw->at)
        return none;
    struct run run = {(int64_t)many, NULL, 0};
    if (head & 1)
        run.count *= 8, run.begin = raw->at;
    else
        for (int i = 0; i < size; i++)
            run.value |= (uint32_t)raw->at[i] << 8 * i;
    raw->at += size;
    return run;
}

/* Return whether the levels of a page, of one bit each, say of each of count cells that it is there. */
EXPORT int32_t fedpower_all_there(const uint8_t *levels, int64_t size, int64_t count)
{
    struct bytes raw = {levels, levels + size};
    while (count > 0) {
        struct run run = next_run(&raw, 1);
        int64_t here = run.count < count ? run.count : count;
        if (here == 0 || (run.begin == NULL && run.value != 1))
            return 0;
        if (run.begin != NULL)
            for (int64_t i = 0; i < here; i++)
                if (!(run.begin[i >> 3] >> (i & 7) & 1))
                    return 0;
        count -= here;
    }
    return 1;
}

/* Return where the values of a page begin, after levels that say of each of count cells that it is there;
   -1 where they do not. */
EXPORT int64_t fedpower_after_levels(const uint8_t *page, int64_t size, int64_t count)
{
    if (size < 4)
        return -1;
    int64_t length = page[0] | page[1] << 8 | page[2] << 16 | (int64_t)page[3] << 24;
    return length <= size - 4 && fedpower_all_there(page + 4, length, count) ? length + 4 : -1;
}

#ifndef _WIN32 /* where pages are left to Arrow */
/* Undo Snappy's compression: return whether raw is that of exactly size bytes, which are then in out. */
static int snappy(struct bytes raw, uint8_t *out, int64_t size)
{
    int64_t done = 0;
    if (next_number(&raw) != (uint64_t)size)
        return 0;
    while (raw.at != NULL && raw.at < raw.end) {
        uint8_t tag = *raw.at++;
        int64_t length = tag >> 2, back = 0;
        int more = (tag & 3) == 0 ? (length < 60 ? 0 : (int)length - 59) : (tag & 3) == 3 ? 4 : tag & 3;
        if (more > raw.end - raw.at)
            return 0;
        for (int i = 0; i < more; i++)
            back |= (int64_t)raw.at[i] << 8 * i;
        raw.at += more;
        if ((tag & 3) == 0) { /* bytes as they are */
            length = 1 + (more ? back : length);
            if (length > raw.end - raw.at || length > size - done)
                return 0;
            memcpy(out + done, raw.at, (size_t)length);
            raw.at += length;
        } else { /* bytes that were there before, perhaps themselves among them */
            if ((tag & 3) == 1)
                back |= (int64_t)(tag >> 5) << 8, length = 4 + (length & 7);
            else
                length += 1;
            if (back == 0 || back > done || length > size - done)
                return 0;
            for (int64_t i = 0; i < length; i++)
                out[done + i] = out[done + i - back];
        }
        done += length;
    }
    return done == size;
}

/* Read a data page of the first version, plain and not or by Snappy compressed, at a place of a file.

   optional: whether levels come before its values.
   room, page: memory for it as it is stored, and without compression.
   found: its end in the file, where the values begin in page, how many they are, and its size.
   Returns 0 where it is another kind of page, or too large: then the caller decides. */
EXPORT int32_t fedpower_plain_page(int32_t file, int64_t place, int32_t compression, int32_t optional,
                                   uint8_t *room, int64_t room_size, uint8_t *page, int64_t page_size,
                                   int64_t found[4])
{
    int64_t fields[STRUCTURES][FIELDS];
    int64_t size = pread(file, room, (size_t)room_size, place);
    int64_t length = size > 0 ? fedpower_page_header(room, size, fields) : -1;
    if (length < 0)
        return 0;
    int64_t whole = fields[0][2], stored = fields[0][3], n_values = fields[5][1];
    if (fields[0][1] != 0 || fields[5][2] != 0 || fields[5][3] != 3 || fields[5][4] < 3 || fields[5][4] > 4)
        return 0;
    if (whole < 0 || whole > page_size || stored < 0 || stored > size - length || n_values <= 0)
        return 0;
    struct bytes body = {room + length, room + length + stored};
    if (compression == 0 && whole == stored)
        memcpy(page, body.at, (size_t)whole);
    else if (compression != 1 || !snappy(body, page, whole))
        return 0;
    int64_t start = optional ? fedpower_after_levels(page, whole, n_values) : 0;
    if (start < 0 || n_values > (whole - start) / (int64_t)sizeof(double))
        return 0;
    found[0] = place + length + stored, found[1] = start, found[2] = n_values, found[3] = stored;
    return 1;
}
#endif

/* Put the numbers of a dictionary that packed places stand for into out; return whether all do. */
static int look_up(const uint8_t *raw, int bits, const one_in_page *dictionary, int64_t n_known, int64_t count,
                   double *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t place = packed(raw, i, bits);
        if (place >= n_known)
            return 0;
        out[i] = dictionary[place];
    }
    return 1;
}

/* Put the numbers of a dictionary that a page stands for into out; return whether it stands for count. */
EXPORT int32_t fedpower_looked_up(const uint8_t *page, int64_t size, const one_in_page *dictionary,
                                  int64_t n_known, int64_t count, double *out)
{
    struct bytes raw = {page, page + size};
    int bits = next_byte(&raw);
    if (raw.at == NULL || bits > 32)
        return 0;
    while (count > 0) {
        struct run run = next_run(&raw, bits);
        int64_t here = run.count < count ? run.count : count;
        if (here == 0 || (run.begin == NULL && run.value >= n_known))
            return 0;
        if (run.begin == NULL) {
            for (int64_t i = 0; i < here; i++)
                out[i] = dictionary[run.value];
        } else {
            /* The last ones, in groups of eight, are read from a copy: words reach beyond a value. */
            int64_t whole = 8 * ((raw.end - run.begin - 8) / (bits ? bits : 1));
            whole = whole < 0 ? 0 : whole < here ? whole : here;
            if (!look_up(run.begin, bits, dictionary, n_known, whole, out))
                return 0;
            for (int64_t i = whole; i < here; i += 8) {
                uint8_t last[40] = {0};
                memcpy(last, run.begin + i / 8 * bits, (size_t)bits);
                if (!look_up(last, bits, dictionary, n_known, here - i < 8 ? here - i : 8, out + i))
                    return 0;
            }
        }
        out += here;
        count -= here;
    }
    return 1;
}
