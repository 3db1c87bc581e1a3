// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/dataset.h"

#include "base/memory.h"
#include "base/text.h"
#include "trainer/data/dataset_index.h"
#include "trainer/data/dataset_mask.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TYPE_UINT16 = 8, READ_BYTES = 1 << 15 }; // per read, on the stack

struct dataset {
    char *prefix;
    int bin; // file descriptor
    int64_t bin_bytes;
    struct dataset_index index;
    struct dataset_mask mask;
};

/* There may be more datasets than the soft limit on open files allows: raises it to the hard limit. */
static bool raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
        return false;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/* A dataset that is not there: perhaps its text is. */
static enum status refuse_missing(const char *prefix, const char *path, int why)
{
    struct stat info;
    if (why == ENOENT && stat(prefix, &info) == 0 && S_ISREG(info.st_mode))
        return fail(
            IO_ERROR,
            "%s is a file, not the PREFIX of a dataset, PREFIX.bin and PREFIX.idx; make one of its text: "
            "cuboid data prepare %s -o PREFIX",
            prefix, prefix);
    return fail(IO_ERROR,
                "%s: %s (a dataset is two files, PREFIX.bin and PREFIX.idx, made by "
                "cuboid data prepare TEXT -o PREFIX)",
                path, strerror(why));
}

static enum status open_file(const char *prefix, const char *path, int *fd, int64_t *bytes)
{
    struct stat info;
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK; // O_NONBLOCK: opening a pipe must not block
    *fd = open(path, flags);
    if (*fd < 0 && errno == EMFILE && raise_file_limit())
        *fd = open(path, flags);
    if (*fd < 0)
        return refuse_missing(prefix, path, errno);
    if (fstat(*fd, &info) != 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return fail(IO_ERROR, "%s: not a regular file", path);
    if (info.st_size == 0)
        return fail(BAD_DATA, "%s: the file is empty", path);
    *bytes = info.st_size;
    return OK;
}

static enum status open_both(struct dataset *d, const char *bin_path, const char *idx_path)
{
    int idx = -1;
    int64_t bytes = 0;
    enum status status = open_file(d->prefix, idx_path, &idx, &bytes);
    if (status == OK)
        status = open_file(d->prefix, bin_path, &d->bin, &d->bin_bytes);
    if (status == OK)
        status = index_read(idx, idx_path, bytes, bin_path, d->bin_bytes, &d->index);
    if (idx >= 0)
        close(idx);
    return status;
}

enum status dataset_open(const char *prefix, struct dataset **out)
{
    size_t length = strlen(prefix);
    if (length > 4 && (strcmp(prefix + length - 4, ".bin") == 0 || strcmp(prefix + length - 4, ".idx") == 0))
        length -= 4;
    struct dataset *d = memory_zeroed(1, sizeof *d, "a dataset");
    d->bin = d->mask.fd = -1;
    d->prefix = text_copy(prefix);
    d->prefix[length] = 0;
    AUTO(text) bin_path = {0}, idx_path = {0};
    text_add(&bin_path, "%s.bin", d->prefix);
    text_add(&idx_path, "%s.idx", d->prefix);
    enum status status = open_both(d, bin_path.chars, idx_path.chars);
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
    if (dataset->bin >= 0)
        close(dataset->bin);
    mask_close(&dataset->mask);
    index_free(&dataset->index);
    free(dataset->prefix);
    free(dataset);
}

const char *dataset_prefix(const struct dataset *dataset)
{
    return dataset->prefix;
}

const char *dataset_type_name(const struct dataset *dataset)
{
    return dataset->index.type_name;
}

int64_t dataset_documents(const struct dataset *dataset)
{
    return dataset->index.documents;
}

int64_t dataset_sequences(const struct dataset *dataset)
{
    return dataset->index.sequences;
}

int64_t dataset_tokens(const struct dataset *dataset)
{
    return dataset->index.tokens;
}

int64_t dataset_start(const struct dataset *dataset, int64_t document)
{
    CHECK(document >= 0 && document <= dataset->index.documents);
    int64_t start = dataset->index.starts[document / INDEX_BLOCK];
    for (int64_t i = document / INDEX_BLOCK * INDEX_BLOCK; i < document; i++)
        start += dataset->index.lengths[i];
    return start;
}

int64_t dataset_length(const struct dataset *dataset, int64_t document)
{
    CHECK(document >= 0 && document < dataset->index.documents);
    return dataset->index.lengths[document];
}

int64_t dataset_index_bytes(const struct dataset *dataset)
{
    return dataset->index.file_bytes;
}

uint64_t dataset_index_checksum(const struct dataset *dataset)
{
    return dataset->index.checksum;
}

int64_t dataset_bin_bytes(const struct dataset *dataset)
{
    return dataset->bin_bytes;
}

enum status dataset_open_mask(struct dataset *dataset)
{
    struct dataset_mask_of of = {.tokens = dataset->index.tokens, .index_checksum = dataset->index.checksum};
    AUTO(text) bin = {0};
    CHECK(dataset->mask.fd < 0);
    text_add(&bin, "%s.bin", dataset->prefix);
    enum status status = dataset_ids_checksum(dataset->bin, bin.chars, dataset->bin_bytes, &of.ids_checksum);
    return status == OK ? mask_open(dataset->prefix, &of, &dataset->mask) : status;
}

bool dataset_has_mask(const struct dataset *dataset)
{
    return dataset->mask.fd >= 0;
}

int64_t dataset_counted_tokens(const struct dataset *dataset)
{
    return dataset->mask.counted;
}

const char *dataset_chat_template(const struct dataset *dataset)
{
    return dataset->mask.chat_template;
}

uint64_t dataset_mask_checksum(const struct dataset *dataset)
{
    return dataset->mask.checksum;
}

enum status dataset_read_mask(const struct dataset *dataset, int64_t document, int64_t begin, int64_t count,
                              uint8_t *out)
{
    if (dataset_has_mask(dataset))
        return mask_read(&dataset->mask, dataset_start(dataset, document) + begin, count, out);
    memset(out, 1, (size_t)count);
    return OK;
}

enum status dataset_read_bytes(const struct dataset *dataset, int64_t at, size_t count, void *out)
{
    for (size_t have = 0; have < count;) {
        ssize_t got = pread(dataset->bin, (char *)out + have, count - have, at + (int64_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(IO_ERROR, "%s.bin, byte %" PRId64 ": %s", dataset->prefix, at + (int64_t)have,
                        strerror(errno));
        if (got == 0)
            return fail(IO_ERROR,
                        "%s.bin: ends at or before byte %" PRId64 ", and had %" PRId64 " bytes when it was "
                        "opened: the file was truncated while in use; restore it and restart",
                        dataset->prefix, at + (int64_t)have, dataset->bin_bytes);
        have += (size_t)got;
    }
    return OK;
}

/* Id `i` of an array in file format. */
static int64_t load_id(const struct dataset_index *index, const void *ids, int64_t i)
{
    int64_t value = 0;
    memcpy(&value, (const char *)ids + i * index->id_bytes, (size_t)index->id_bytes);
    switch (index->type) {
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

/* Converts ids[0..count) from file format; returns false if one of them is outside the vocabulary. One
 * comparison per id and no branch; the invalid id is searched again only in case of an error. */
static bool widen(const struct dataset_index *index, const void *ids, int64_t count, int64_t vocab_size,
                  int32_t *out)
{
    bool wrong = false;
    if (index->type == TYPE_UINT16) { // the usual type: a loop that the compiler can unroll
        const uint16_t *narrow = ids;
        for (int64_t i = 0; i < count; i++) {
            out[i] = narrow[i];
            wrong |= narrow[i] >= vocab_size;
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            int64_t id = load_id(index, ids, i);
            out[i] = (int32_t)id;
            wrong |= (uint64_t)id >= (uint64_t)vocab_size;
        }
    }
    return !wrong;
}

enum status dataset_read(const struct dataset *dataset, int64_t document, int64_t begin, int64_t count,
                         int64_t vocab_size, int32_t *out)
{
    const struct dataset_index *index = &dataset->index;
    _Alignas(8) char ids[READ_BYTES];
    const int64_t most = READ_BYTES / index->id_bytes;
    int64_t first = dataset_start(dataset, document) + begin;
    CHECK(begin >= 0 && count >= 0 && begin + count <= dataset_length(dataset, document));
    if (vocab_size > INT32_MAX)
        vocab_size = INT32_MAX;
    for (int64_t done = 0, part; done < count; done += part) {
        part = count - done < most ? count - done : most;
        TRY(dataset_read_bytes(dataset, (first + done) * index->id_bytes, (size_t)(part * index->id_bytes),
                               ids));
        bool good = widen(index, ids, part, vocab_size, out + done);
        for (int64_t i = 0; !good && i < part; i++) {
            int64_t id = load_id(index, ids, i);
            if (id < 0 || id >= vocab_size)
                return fail(BAD_DATA,
                            "%s.bin: document %" PRId64 ", position %" PRId64 ": token id %" PRId64
                            " is outside the vocabulary of %" PRId64
                            "; another tokenizer made this dataset, or model.vocab_size is too small",
                            dataset->prefix, document, begin + done + i, id, vocab_size);
        }
    }
    return OK;
}
