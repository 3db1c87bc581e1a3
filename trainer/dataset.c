// SPDX-License-Identifier: Apache-2.0
#include "trainer/dataset.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the files are little endian and mapped as they are");

enum { VERSION_AT = 9, TYPE_AT = 17, SEQUENCES_AT = 18, BOUNDARIES_AT = 26, HEADER_BYTES = 34 };

/* One row for each type code of the format. */
static const struct {
    const char *name;
    int64_t bytes; // 0: not a type of ids
} types[] = {
    [1] = {"uint8", 1}, [2] = {"int8", 1},    [3] = {"int16", 2},   [4] = {"int32", 4},
    [5] = {"int64", 8}, [6] = {"float64", 0}, [7] = {"float32", 0}, [8] = {"uint16", 2},
};

struct mapping {
    const unsigned char *bytes; // NULL for an empty file
    int64_t size;
};

struct dataset {
    char *prefix;
    struct mapping bin, idx;
    int type; // a code of `types`
    int64_t sequences, documents, tokens;
    bool one_each; // every document is one sequence, as most programs write it
    const unsigned char *lengths, *pointers, *boundaries; // inside idx, not aligned
};

/* The arrays of the index begin at odd addresses: never through a pointer to the type. */
static int64_t load_i64(const unsigned char *array, int64_t i)
{
    int64_t value;
    memcpy(&value, array + i * 8, sizeof value);
    return value;
}

static int64_t load_i32(const unsigned char *array, int64_t i)
{
    int32_t value;
    memcpy(&value, array + i * 4, sizeof value);
    return value;
}

static enum status map_file(const char *path, struct mapping *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe of that name must not hold us up
    if (fd < 0)
        return fail(IO_ERROR, "%s: %s (a dataset is two files, PREFIX.bin and PREFIX.idx)", path,
                    strerror(errno));
    struct stat info;
    enum status status = OK;
    if (fstat(fd, &info) != 0)
        status = fail(IO_ERROR, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = fail(IO_ERROR, "%s: not a regular file", path);
    else if (info.st_size == 0)
        status = fail(BAD_DATA, "%s: the file is empty", path);
    if (status == OK) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (bytes == MAP_FAILED)
            status = fail(IO_ERROR, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size,
                          strerror(errno));
        else
            *out = (struct mapping){.bytes = bytes, .size = info.st_size};
    }
    close(fd);
    return status;
}

static void unmap_file(struct mapping *mapping)
{
    if (mapping->bytes != NULL)
        munmap((void *)(uintptr_t)mapping->bytes, (size_t)mapping->size);
    *mapping = (struct mapping){0};
}

/* The fixed part, and where the three arrays lie; no count is believed before the file's size agrees. */
static enum status read_header(struct dataset *d, const char *path)
{
    const unsigned char *bytes = d->idx.bytes;
    int64_t size = d->idx.size;
    if (size < HEADER_BYTES)
        return fail(BAD_DATA,
                    "%s: %" PRId64
                    " bytes; the header alone has %d, so the file is cut short or not an index",
                    path, size, HEADER_BYTES);
    if (memcmp(bytes, "MMIDIDX\0\0", VERSION_AT) != 0)
        return fail(BAD_DATA, "%s: does not begin with MMIDIDX: not the index of a Megatron dataset", path);
    uint64_t version = (uint64_t)load_i64(bytes + VERSION_AT, 0);
    if (version != 1)
        return fail(BAD_DATA, "%s, byte %d: version %" PRIu64 "; only version 1 is known", path, VERSION_AT,
                    version);
    int code = bytes[TYPE_AT];
    if (code >= (int)(sizeof types / sizeof *types) || types[code].bytes == 0)
        return fail(BAD_DATA,
                    "%s, byte %d: type code %d%s%s is not a type of ids; 8 (uint16) and 4 (int32) are usual",
                    path, TYPE_AT, code, code == 6 || code == 7 ? ", " : "",
                    code == 6 || code == 7 ? types[code].name : "");
    uint64_t sequences = (uint64_t)load_i64(bytes + SEQUENCES_AT, 0);
    uint64_t boundaries = (uint64_t)load_i64(bytes + BOUNDARIES_AT, 0);
    uint64_t room = (uint64_t)(size - HEADER_BYTES);
    if (sequences > room / 12)
        return fail(BAD_DATA,
                    "%s, byte %d: %" PRIu64 " sequences; a file of %" PRId64 " bytes has room for %" PRIu64
                    ": cut short or corrupt",
                    path, SEQUENCES_AT, sequences, size, room / 12);
    room -= sequences * 12;
    if (boundaries > room / 8 || (boundaries * 8 != room && boundaries * 8 + sequences != room))
        return fail(BAD_DATA,
                    "%s, byte %d: %" PRIu64 " document boundaries after %" PRIu64
                    " sequences do not fill the file's %" PRId64 " bytes: cut short or corrupt",
                    path, BOUNDARIES_AT, boundaries, sequences, size);
    if (sequences == 0 || boundaries < 2)
        return fail(BAD_DATA,
                    "%s: the dataset holds no documents (%" PRIu64 " sequences, %" PRIu64 " boundaries)",
                    path, sequences, boundaries);
    d->type = code;
    d->sequences = (int64_t)sequences;
    d->documents = (int64_t)boundaries - 1;
    d->lengths = bytes + HEADER_BYTES;
    d->pointers = d->lengths + sequences * 4;
    d->boundaries = d->pointers + sequences * 8;
    return OK;
}

/* Every sequence begins where the one before it ended, and the last one ends with the .bin file. */
static enum status check_sequences(struct dataset *d, const char *path, const char *bin_path)
{
    const int64_t id_bytes = types[d->type].bytes;
    int64_t end = 0;
    for (int64_t i = 0; i < d->sequences; i++) {
        int64_t length = load_i32(d->lengths, i), begin = load_i64(d->pointers, i);
        if (length < 0)
            return fail(BAD_DATA,
                        "%s, byte %" PRId64 ": sequence %" PRId64 " has length %" PRId64 ": corrupt", path,
                        d->lengths - d->idx.bytes + i * 4, i, length);
        if (begin != end)
            return fail(BAD_DATA,
                        "%s, byte %" PRId64 ": sequence %" PRId64 " begins at byte %" PRId64
                        " of the .bin file; the one before it ended at %" PRId64 ": corrupt",
                        path, d->pointers - d->idx.bytes + i * 8, i, begin, end);
        end += length * id_bytes; // no overflow: end was at most the file's size, and this is below 2^34
        if (end > d->bin.size)
            return fail(BAD_DATA,
                        "%s: %" PRId64 " bytes, but sequence %" PRId64 " of %s ends at byte %" PRId64
                        ": one of the two is cut short or corrupt",
                        bin_path, d->bin.size, i, path, end);
    }
    if (end != d->bin.size)
        return fail(BAD_DATA,
                    "%s: %" PRId64 " bytes, but the sequences of %s end at byte %" PRId64
                    ": the two files do not belong together",
                    bin_path, d->bin.size, path, end);
    d->tokens = end / id_bytes;
    return OK;
}

/* Boundaries go from 0 to the number of sequences and never back. */
static enum status check_documents(struct dataset *d, const char *path)
{
    int64_t before = 0;
    d->one_each = true;
    for (int64_t i = 0; i <= d->documents; i++) {
        int64_t at = load_i64(d->boundaries, i);
        bool first_wrong = i == 0 && at != 0, last_wrong = i == d->documents && at != d->sequences;
        if (at < before || at > d->sequences || first_wrong || last_wrong)
            return fail(BAD_DATA,
                        "%s, byte %" PRId64 ": document boundary %" PRId64 " of %" PRId64 " is %" PRId64
                        "; they go from 0 up to %" PRId64 ": corrupt",
                        path, d->boundaries - d->idx.bytes + i * 8, i, d->documents + 1, at, d->sequences);
        d->one_each = d->one_each && at == i;
        before = at;
    }
    return OK;
}

static enum status open_both(struct dataset *d, const char *bin_path, const char *idx_path)
{
    TRY(map_file(idx_path, &d->idx));
    TRY(read_header(d, idx_path));
    TRY(map_file(bin_path, &d->bin));
    TRY(check_sequences(d, idx_path, bin_path));
    return check_documents(d, idx_path);
}

enum status dataset_open(const char *prefix, struct dataset **out)
{
    size_t length = strlen(prefix);
    if (length > 4 && (strcmp(prefix + length - 4, ".bin") == 0 || strcmp(prefix + length - 4, ".idx") == 0))
        length -= 4;
    struct dataset *d = calloc(1, sizeof *d);
    if (d == NULL)
        return fail(NO_MEMORY, "%s: no memory to open it", prefix);
    d->prefix = strndup(prefix, length);
    struct text bin_path = {0}, idx_path = {0};
    text_add(&bin_path, "%.*s.bin", (int)length, prefix);
    text_add(&idx_path, "%.*s.idx", (int)length, prefix);
    enum status status = d->prefix == NULL ? fail(NO_MEMORY, "%s: no memory to open it", prefix)
                                           : open_both(d, bin_path.chars, idx_path.chars);
    text_free(&bin_path);
    text_free(&idx_path);
    if (status == OK)
        *out = d;
    else
        dataset_close(d);
    return status;
}

void dataset_close(struct dataset *dataset)
{
    if (dataset == NULL)
        return;
    unmap_file(&dataset->bin);
    unmap_file(&dataset->idx);
    free(dataset->prefix);
    free(dataset);
}

const char *dataset_prefix(const struct dataset *dataset)
{
    return dataset->prefix;
}

const char *dataset_type_name(const struct dataset *dataset)
{
    return types[dataset->type].name;
}

int64_t dataset_documents(const struct dataset *dataset)
{
    return dataset->documents;
}

int64_t dataset_sequences(const struct dataset *dataset)
{
    return dataset->sequences;
}

int64_t dataset_tokens(const struct dataset *dataset)
{
    return dataset->tokens;
}

int64_t dataset_start(const struct dataset *dataset, int64_t document)
{
    CHECK(document >= 0 && document <= dataset->documents);
    int64_t sequence = load_i64(dataset->boundaries, document);
    if (sequence == dataset->sequences)
        return dataset->tokens;
    return load_i64(dataset->pointers, sequence) / types[dataset->type].bytes;
}

int64_t dataset_length(const struct dataset *dataset, int64_t document)
{
    // In a shuffled order each load is a cache miss, and a run on many documents begins with one for each.
    if (dataset->one_each && document >= 0 && document < dataset->documents)
        return load_i32(dataset->lengths, document);
    return dataset_start(dataset, document + 1) - dataset_start(dataset, document);
}

/* The id at place `i` of the whole .bin file, as it stands there. */
static int64_t load_id(const struct dataset *d, int64_t i)
{
    int64_t value = 0;
    memcpy(&value, d->bin.bytes + i * types[d->type].bytes, (size_t)types[d->type].bytes);
    switch (d->type) {
    case 2:
        return (int8_t)value;
    case 3:
        return (int16_t)value;
    case 4:
        return (int32_t)value;
    default:
        return value;
    }
}

enum status dataset_read(const struct dataset *dataset, int64_t document, int64_t begin, int64_t count,
                         int64_t vocab_size, int32_t *out)
{
    int64_t first = dataset_start(dataset, document) + begin;
    CHECK(begin >= 0 && count >= 0 && first + count <= dataset_start(dataset, document + 1));
    if (vocab_size > INT32_MAX)
        vocab_size = INT32_MAX;

    // One comparison an id, and no branch: a wrong id is found again only when there is one.
    bool wrong = false;
    if (dataset->type == 8) { // nearly every dataset: a loop that the compiler can unroll
        const uint16_t *ids = (const uint16_t *)(const void *)dataset->bin.bytes + first;
        for (int64_t i = 0; i < count; i++) {
            out[i] = ids[i];
            wrong |= ids[i] >= vocab_size;
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            int64_t id = load_id(dataset, first + i);
            out[i] = (int32_t)id;
            wrong |= (uint64_t)id >= (uint64_t)vocab_size;
        }
    }
    for (int64_t i = 0; wrong && i < count; i++) {
        int64_t id = load_id(dataset, first + i);
        if (id < 0 || id >= vocab_size)
            return fail(BAD_DATA,
                        "%s.bin: document %" PRId64 ", position %" PRId64 ": token id %" PRId64
                        " is outside the vocabulary of %" PRId64
                        "; another tokenizer made this dataset, or model.vocab_size is too small",
                        dataset->prefix, document, begin + i, id, vocab_size);
    }
    return OK;
}
