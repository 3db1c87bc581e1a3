// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/dataset_index.h"

#include "base/memory.h"
#include "trainer/files/checksum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little endian and read as they are");

enum { VERSION_AT = 9, TYPE_AT = 17, SEQUENCES_AT = 18, BOUNDARIES_AT = 26, HEADER_BYTES = 34 };
enum { CHUNK_BYTES = 1 << 18 };

/* One row per type code of the format. */
static const struct {
    const char *name;
    int64_t bytes; // 0: not an integer type
} types[] = {
    [1] = {"uint8", 1}, [2] = {"int8", 1},    [3] = {"int16", 2},   [4] = {"int32", 4},
    [5] = {"int64", 8}, [6] = {"float64", 0}, [7] = {"float32", 0}, [8] = {"uint16", 2},
};

/* Reads the file once, from beginning to end. */
struct reader {
    int fd;
    const char *path, *bin_path;
    int64_t bytes, at; // file size; bytes read so far
    int64_t bin_bytes;
    struct checksum *sum;
    unsigned char *chunk;
};

/* Reads the next `count` bytes. */
static enum status take(struct reader *r, void *out, size_t count)
{
    for (size_t have = 0; have < count;) {
        ssize_t got = pread(r->fd, (char *)out + have, count - have, r->at + (int64_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(IO_ERROR, "%s, byte %" PRId64 ": %s", r->path, r->at + (int64_t)have,
                        strerror(errno));
        if (got == 0)
            return fail(BAD_DATA, "%s: ends at byte %" PRId64 " of %" PRId64 ": the file is being truncated",
                        r->path, r->at + (int64_t)have, r->bytes);
        have += (size_t)got;
    }
    checksum_add(r->sum, out, count);
    r->at += (int64_t)count;
    return OK;
}

/* Number of elements to read at once. */
static int64_t chunk_elements(int64_t left, int64_t element_bytes)
{
    int64_t most = CHUNK_BYTES / element_bytes;
    return left < most ? left : most;
}

/* Neither the arrays of the file nor their elements in the chunk are aligned. */
static int64_t load_i64(const unsigned char *array, int64_t i)
{
    int64_t value;
    memcpy(&value, array + i * 8, sizeof value);
    return value;
}

/* Reads the fixed part; checks every count against the file size. */
static enum status read_header(struct reader *r, struct dataset_index *d)
{
    unsigned char header[HEADER_BYTES];
    if (r->bytes < HEADER_BYTES)
        return fail(BAD_DATA, "%s: %" PRId64 " bytes; the header has %d: truncated, or not an index", r->path,
                    r->bytes, HEADER_BYTES);
    TRY(take(r, header, sizeof header));
    if (memcmp(header, "MMIDIDX\0\0", VERSION_AT) != 0)
        return fail(BAD_DATA, "%s: does not begin with MMIDIDX: not the index of a Megatron dataset",
                    r->path);
    uint64_t version = (uint64_t)load_i64(header + VERSION_AT, 0);
    if (version != 1)
        return fail(BAD_DATA, "%s, byte %d: version %" PRIu64 "; only version 1 is supported", r->path,
                    VERSION_AT, version);
    int code = header[TYPE_AT];
    if (code >= (int)(sizeof types / sizeof *types) || types[code].bytes == 0)
        return fail(BAD_DATA,
                    "%s, byte %d: type code %d%s%s is not an integer type; expected 8 (uint16) or "
                    "4 (int32)",
                    r->path, TYPE_AT, code, code == 6 || code == 7 ? ", " : "",
                    code == 6 || code == 7 ? types[code].name : "");
    uint64_t sequences = (uint64_t)load_i64(header + SEQUENCES_AT, 0);
    uint64_t boundaries = (uint64_t)load_i64(header + BOUNDARIES_AT, 0);
    uint64_t available = (uint64_t)(r->bytes - HEADER_BYTES);
    if (sequences > available / 12)
        return fail(BAD_DATA,
                    "%s, byte %d: %" PRIu64 " sequences; a file of %" PRId64 " bytes can contain at "
                    "most %" PRIu64 ": truncated or corrupt",
                    r->path, SEQUENCES_AT, sequences, r->bytes, available / 12);
    available -= sequences * 12;
    if (boundaries > available / 8 ||
        (boundaries * 8 != available && boundaries * 8 + sequences != available))
        return fail(BAD_DATA,
                    "%s, byte %d: %" PRIu64 " document boundaries after %" PRIu64
                    " sequences do not fill the file's %" PRId64 " bytes: truncated or corrupt",
                    r->path, BOUNDARIES_AT, boundaries, sequences, r->bytes);
    if (sequences == 0 || boundaries < 2)
        return fail(BAD_DATA,
                    "%s: the dataset holds no documents (%" PRIu64 " sequences, %" PRIu64 " boundaries)",
                    r->path, sequences, boundaries);
    d->type = code;
    d->type_name = types[code].name;
    d->id_bytes = types[code].bytes;
    d->sequences = (int64_t)sequences;
    d->documents = (int64_t)boundaries - 1;
    return OK;
}

/* Checks that sequence `i`, of `length` ids from byte `begin` of the .bin file on, follows the one that ended
 * at `*end`. */
static enum status check_sequence(const struct reader *r, const struct dataset_index *d, int64_t i,
                                  int64_t length, int64_t begin, int64_t *end)
{
    const int64_t pointers_at = HEADER_BYTES + d->sequences * 4;
    if (length < 0)
        return fail(BAD_DATA, "%s, byte %" PRId64 ": sequence %" PRId64 " has length %" PRId64 ": corrupt",
                    r->path, HEADER_BYTES + i * 4, i, length);
    if (begin != *end)
        return fail(BAD_DATA,
                    "%s, byte %" PRId64 ": sequence %" PRId64 " begins at byte %" PRId64
                    " of the .bin file; the one before it ended at %" PRId64 ": corrupt",
                    r->path, pointers_at + i * 8, i, begin, *end);
    *end += length * d->id_bytes; // cannot overflow: *end was at most the file size, and the sum is below
                                  // 2^34
    if (*end > r->bin_bytes)
        return fail(BAD_DATA,
                    "%s: %" PRId64 " bytes, but sequence %" PRId64 " of %s ends at byte %" PRId64
                    ": one of the two is truncated or corrupt",
                    r->bin_path, r->bin_bytes, i, r->path, *end);
    return OK;
}

/* Checks that every sequence begins at the end of the previous one, and that the last one ends with the .bin
 * file. */
static enum status read_pointers(struct reader *r, struct dataset_index *d, const int32_t *lengths)
{
    int64_t end = 0;
    for (int64_t first = 0, count; first < d->sequences; first += count) {
        count = chunk_elements(d->sequences - first, 8);
        TRY(take(r, r->chunk, (size_t)count * 8));
        for (int64_t i = 0; i < count; i++)
            TRY(check_sequence(r, d, first + i, lengths[first + i], load_i64(r->chunk, i), &end));
    }
    if (end != r->bin_bytes)
        return fail(BAD_DATA,
                    "%s: %" PRId64 " bytes, but the sequences of %s end at byte %" PRId64
                    ": the two files do not belong together",
                    r->bin_path, r->bin_bytes, r->path, end);
    d->tokens = end / d->id_bytes;
    return OK;
}

/* Adds document `i`, which ends before sequence `next`: its length is that of the sequences from `*before`
 * on. */
static enum status add_document(const struct reader *r, struct dataset_index *d, int64_t i,
                                const int32_t *lengths, int64_t before, int64_t next)
{
    int64_t length = 0;
    for (int64_t s = before; s < next; s++)
        length += lengths[s];
    if (length > UINT32_MAX)
        return fail(BAD_DATA,
                    "%s: document %" PRId64 " has %" PRId64 " tokens; at most %" PRIu32 " are supported",
                    r->path, i, length, UINT32_MAX);
    d->lengths[i] = (uint32_t)length;
    return OK;
}

/* Checks that boundaries ascend from 0 to the number of sequences. */
static enum status read_boundaries(struct reader *r, struct dataset_index *d, const int32_t *lengths)
{
    const int64_t boundaries_at = HEADER_BYTES + d->sequences * 12;
    int64_t before = 0;
    for (int64_t first = 0, count; first <= d->documents; first += count) {
        count = chunk_elements(d->documents + 1 - first, 8);
        TRY(take(r, r->chunk, (size_t)count * 8));
        for (int64_t i = first; i < first + count; i++) {
            int64_t at = load_i64(r->chunk, i - first);
            bool wrong = (i == 0 && at != 0) || (i == d->documents && at != d->sequences);
            if (at < before || at > d->sequences || wrong)
                return fail(BAD_DATA,
                            "%s, byte %" PRId64 ": document boundary %" PRId64 " of %" PRId64 " is %" PRId64
                            "; "
                            "boundaries must ascend from 0 to %" PRId64 ": corrupt",
                            r->path, boundaries_at + i * 8, i, d->documents + 1, at, d->sequences);
            if (i > 0)
                TRY(add_document(r, d, i - 1, lengths, before, at));
            before = at;
        }
    }
    return OK;
}

/* Reads the modes of a multimodal set, for the checksum only. */
static enum status read_rest(struct reader *r)
{
    while (r->at < r->bytes)
        TRY(take(r, r->chunk, (size_t)chunk_elements(r->bytes - r->at, 1)));
    return OK;
}

static void add_starts(struct dataset_index *d)
{
    int64_t start = 0;
    for (int64_t i = 0; i < d->documents; i++) {
        if (i % INDEX_BLOCK == 0)
            d->starts[i / INDEX_BLOCK] = start;
        start += d->lengths[i];
    }
    if (d->documents % INDEX_BLOCK == 0)
        d->starts[d->documents / INDEX_BLOCK] = start;
}

static enum status read_arrays(struct reader *r, struct dataset_index *d, int32_t *lengths)
{
    TRY(take(r, lengths, (size_t)d->sequences * sizeof *lengths));
    TRY(read_pointers(r, d, lengths));
    TRY(read_boundaries(r, d, lengths));
    TRY(read_rest(r));
    add_starts(d);
    d->file_bytes = r->bytes;
    d->checksum = checksum_now(r->sum);
    return OK;
}

static enum status read_all(struct reader *r, struct dataset_index *d)
{
    TRY(read_header(r, d));
    AUTO_FREE int32_t *lengths = malloc((size_t)d->sequences * sizeof *lengths);
    d->lengths = malloc((size_t)d->documents * sizeof *d->lengths);
    d->starts = malloc((size_t)(d->documents / INDEX_BLOCK + 1) * sizeof *d->starts);
    if (lengths == NULL || d->lengths == NULL || d->starts == NULL) // the file dictates their sizes
        return fail(NO_MEMORY, "%s: no memory for the lengths of %" PRId64 " documents", r->path,
                    d->documents);
    return read_arrays(r, d, lengths);
}

enum status index_read(int fd, const char *path, int64_t bytes, const char *bin_path, int64_t bin_bytes,
                       struct dataset_index *out)
{
    struct reader r = {.fd = fd,
                       .path = path,
                       .bin_path = bin_path,
                       .bytes = bytes,
                       .bin_bytes = bin_bytes,
                       .chunk = memory_zeroed(CHUNK_BYTES, 1, "a part of the index of a dataset"),
                       .sum = checksum_begin()};
    struct dataset_index index = {0};
    enum status status = read_all(&r, &index);
    checksum_free(r.sum);
    free(r.chunk);
    if (status == OK)
        *out = index;
    else
        index_free(&index);
    return status;
}

void index_free(struct dataset_index *index)
{
    free(index->lengths);
    free(index->starts);
    *index = (struct dataset_index){0};
}
