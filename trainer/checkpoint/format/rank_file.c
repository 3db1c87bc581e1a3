// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/format/rank_file.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/format/safetensors_writer.h"
#include "trainer/files/checksum.h"

#include <stdlib.h>
#include <string.h>

enum { SUM_CHARS = HEX_CHARS - 1, OWN_KEYS = 5 };

static const char key_version[] = "cuboid.version", key_run[] = "cuboid.run", key_save[] = "cuboid.save",
                  key_step[] = "cuboid.step", key_sums[] = "cuboid.xxh3";

bool identity_equal(const struct save_identity *a, const struct save_identity *b)
{
    return a->step == b->step && strcmp(a->run, b->run) == 0 && strcmp(a->save, b->save) == 0;
}

bool is_hex(const char *text, size_t digits)
{
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

static int64_t blocks_of(int64_t bytes)
{
    return (bytes + CHECKPOINT_BLOCK_BYTES - 1) / CHECKPOINT_BLOCK_BYTES;
}

/* ---- writing ---- */

struct checkpoint_writer {
    struct safetensors_writer *file;
    struct save_identity identity;
    const struct shard *shards;
    int count;
    struct text sums;      // of all complete blocks
    unsigned char *buffer; // [CHECKPOINT_WRITE_BYTES], aligned for O_DIRECT
    size_t filled;         // bytes in `buffer`
};

static enum status create_file(struct checkpoint_writer *w, const char *path)
{
    int64_t data = 0;
    size_t metadata = 256; // for the keys version, run, save and step
    AUTO_FREE struct safetensors_tensor *list =
        memory_zeroed((size_t)w->count + 1, sizeof *list, "the tensors of a file");
    w->buffer = aligned_alloc(FILE_DIRECT_BYTES, CHECKPOINT_WRITE_BYTES);
    if (w->buffer == NULL)
        die_of(NO_MEMORY, "out of memory: %d bytes to write %s", CHECKPOINT_WRITE_BYTES, path);
    for (int i = 0; i < w->count; i++) {
        const struct shard *shard = &w->shards[i];
        char text[SHARD_TEXT_CHARS];
        list[i] = (struct safetensors_tensor){
            .name = shard->name, .dtype = shard->dtype, .ndim = shard->slice.ndim};
        memcpy(list[i].dim, shard->slice.count, sizeof shard->slice.count);
        data += slice_count(&shard->slice) * (int64_t)safetensors_dtype_bytes(shard->dtype);
        metadata += strlen(shard->name) + strlen(shard_text(shard, text)) + 6;
    }
    metadata += (size_t)blocks_of(data) * SUM_CHARS + 6;
    return safetensors_create(path, list, w->count, metadata, &w->file);
}

enum status checkpoint_writer_create(const char *path, const struct save_identity *identity,
                                     const struct shard *shards, int count, struct checkpoint_writer **out)
{
    struct checkpoint_writer *w = memory_zeroed(1, sizeof *w, "a file of a checkpoint");
    w->identity = *identity;
    w->shards = shards;
    w->count = count;
    text_add(&w->sums, "%s", "");
    enum status status = create_file(w, path);
    if (status == OK)
        *out = w;
    else
        checkpoint_writer_destroy(w);
    return status;
}

/* Adds the checksums of consecutive blocks, of which the last may be shorter, and writes them. */
static enum status write_blocks(struct checkpoint_writer *w, const unsigned char *blocks, size_t bytes)
{
    char hex[HEX_CHARS];
    for (size_t at = 0; at < bytes; at += CHECKPOINT_BLOCK_BYTES) {
        const size_t left = bytes - at;
        const size_t block = left < CHECKPOINT_BLOCK_BYTES ? left : CHECKPOINT_BLOCK_BYTES;
        text_add(&w->sums, "%s", hex_text(checksum_of(blocks + at, block), hex));
    }
    return safetensors_append(w->file, blocks, bytes);
}

static enum status flush(struct checkpoint_writer *w)
{
    const size_t filled = w->filled;
    w->filled = 0;
    return filled > 0 ? write_blocks(w, w->buffer, filled) : OK;
}

/* Whether a block of the file begins at `at`, which is aligned for O_DIRECT. */
static bool is_whole_block(const struct checkpoint_writer *w, const unsigned char *at, size_t length)
{
    return length >= CHECKPOINT_BLOCK_BYTES && w->filled % CHECKPOINT_BLOCK_BYTES == 0 &&
           (uintptr_t)at % FILE_DIRECT_BYTES == 0;
}

enum status checkpoint_writer_append(struct checkpoint_writer *writer, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    while (length > 0) {
        const bool whole = is_whole_block(writer, at, length);
        size_t take = CHECKPOINT_BLOCK_BYTES - writer->filled % CHECKPOINT_BLOCK_BYTES;
        if (whole && length >= CHECKPOINT_WRITE_BYTES)
            take = CHECKPOINT_WRITE_BYTES;
        else if (length < take)
            take = length;
        if (whole || writer->filled == CHECKPOINT_WRITE_BYTES)
            TRY(flush(writer));
        if (whole) {
            TRY(write_blocks(writer, at, take));
        } else {
            memcpy(writer->buffer + writer->filled, at, take);
            writer->filled += take;
        }
        at += take;
        length -= take;
    }
    return OK;
}

enum status checkpoint_writer_finish(struct checkpoint_writer *writer)
{
    char step[32], version[8];
    TRY(flush(writer));
    AUTO_FREE struct safetensors_pair *pairs =
        memory_zeroed((size_t)writer->count + OWN_KEYS, sizeof *pairs, "the header of a file");
    AUTO_FREE char(*texts)[SHARD_TEXT_CHARS] =
        memory_zeroed((size_t)writer->count + 1, sizeof *texts, "the header of a file");
    snprintf(step, sizeof step, "%lld", (long long)writer->identity.step);
    snprintf(version, sizeof version, "%d", CHECKPOINT_VERSION);
    pairs[0] = (struct safetensors_pair){key_version, version};
    pairs[1] = (struct safetensors_pair){key_run, writer->identity.run};
    pairs[2] = (struct safetensors_pair){key_save, writer->identity.save};
    pairs[3] = (struct safetensors_pair){key_step, step};
    pairs[4] = (struct safetensors_pair){key_sums, writer->sums.chars};
    for (int i = 0; i < writer->count; i++)
        pairs[OWN_KEYS + i] =
            (struct safetensors_pair){writer->shards[i].name, shard_text(&writer->shards[i], texts[i])};
    return safetensors_finish(writer->file, pairs, OWN_KEYS + writer->count);
}

int64_t checkpoint_writer_bytes(const struct checkpoint_writer *writer)
{
    return safetensors_writer_bytes(writer->file);
}

uint64_t checkpoint_writer_checksum(const struct checkpoint_writer *writer)
{
    return safetensors_writer_checksum(writer->file);
}

void checkpoint_writer_destroy(struct checkpoint_writer *writer)
{
    if (writer == NULL)
        return;
    safetensors_writer_destroy(writer->file);
    text_free(&writer->sums);
    free(writer->buffer);
    free(writer);
}

/* ---- reading ---- */

struct checkpoint_file {
    struct text path;
    struct safetensors *tensors;
    struct save_identity identity;
    const char *sums;     // of the blocks; points into the header
    unsigned char *block; // [CHECKPOINT_BLOCK_BYTES], verified; NULL: not needed so far
    int64_t block_at;     // index of that block; -1: none
};

static enum status lacks(const struct checkpoint_file *f, const char *key)
{
    return fail(BAD_CHECKPOINT, "%s: metadata field %s is missing or invalid: not a checkpoint file",
                f->path.chars, key);
}

static enum status take_hex(const struct checkpoint_file *f, const char *key, size_t size, char *out)
{
    const char *value = safetensors_metadata(f->tensors, key);
    if (value == NULL || !is_hex(value, size - 1))
        return lacks(f, key);
    memcpy(out, value, size);
    return OK;
}

static enum status read_metadata(struct checkpoint_file *f)
{
    const char *version = safetensors_metadata(f->tensors, key_version);
    const char *step = safetensors_metadata(f->tensors, key_step);
    int64_t number = 0, blocks = blocks_of(safetensors_data_bytes(f->tensors));
    if (version == NULL || !integer_parse(version, &number) || number != CHECKPOINT_VERSION)
        return lacks(f, key_version);
    TRY(take_hex(f, key_run, sizeof f->identity.run, f->identity.run));
    TRY(take_hex(f, key_save, sizeof f->identity.save, f->identity.save));
    if (step == NULL || !integer_parse(step, &f->identity.step) || f->identity.step < 0)
        return lacks(f, key_step);
    f->sums = safetensors_metadata(f->tensors, key_sums);
    return f->sums != NULL && is_hex(f->sums, (size_t)blocks * SUM_CHARS) ? OK : lacks(f, key_sums);
}

enum status checkpoint_file_open(const char *path, struct checkpoint_file **out)
{
    struct checkpoint_file *f = memory_zeroed(1, sizeof *f, "a file of a checkpoint");
    f->block_at = -1;
    text_add(&f->path, "%s", path);
    enum status status = safetensors_open(path, &f->tensors);
    if (status == OK)
        status = read_metadata(f);
    if (status == OK)
        *out = f;
    else
        checkpoint_file_close(f);
    return status;
}

void checkpoint_file_close(struct checkpoint_file *file)
{
    if (file == NULL)
        return;
    safetensors_close(file->tensors);
    text_free(&file->path);
    free(file->block);
    free(file);
}

void checkpoint_file_free_block(struct checkpoint_file *file)
{
    free(file->block);
    file->block = NULL;
    file->block_at = -1;
}

const struct safetensors *checkpoint_file_tensors(const struct checkpoint_file *file)
{
    return file->tensors;
}

const struct save_identity *checkpoint_file_identity(const struct checkpoint_file *file)
{
    return &file->identity;
}

enum status checkpoint_file_shard(const struct checkpoint_file *file, const struct safetensors_tensor *tensor,
                                  struct shard *out)
{
    const char *text = safetensors_metadata(file->tensors, tensor->name);
    *out = (struct shard){.dtype = tensor->dtype, .dim = {1, 1}};
    bool fits =
        tensor->ndim >= 1 && tensor->ndim <= SHARD_MAX_DIMS && strlen(tensor->name) < SHARD_NAME_CHARS;
    if (!fits || text == NULL || !shard_parse(text, tensor->ndim, out))
        return fail(BAD_CHECKPOINT, "%s: tensor %s has no valid shard metadata", file->path.chars,
                    tensor->name);
    snprintf(out->name, sizeof out->name, "%s", tensor->name);
    for (int d = 0; d < SHARD_MAX_DIMS; d++)
        out->slice.count[d] = out->slice.padded[d] = d < tensor->ndim ? tensor->dim[d] : 1;
    out->slice.ndim = tensor->ndim;
    return OK;
}

static size_t bytes_of_block(const struct checkpoint_file *f, int64_t index)
{
    const int64_t left = safetensors_data_bytes(f->tensors) - index * CHECKPOINT_BLOCK_BYTES;
    return left < CHECKPOINT_BLOCK_BYTES ? (size_t)left : CHECKPOINT_BLOCK_BYTES;
}

/* Reads a block and compares its checksum with that of the header. */
static enum status read_block(const struct checkpoint_file *f, int64_t index, void *out)
{
    char expected[HEX_CHARS], found[HEX_CHARS];
    TRY(safetensors_read_data(f->tensors, index * CHECKPOINT_BLOCK_BYTES, bytes_of_block(f, index), out));
    memcpy(expected, f->sums + index * SUM_CHARS, SUM_CHARS);
    expected[SUM_CHARS] = 0;
    hex_text(checksum_of(out, bytes_of_block(f, index)), found);
    return strcmp(expected, found) == 0
               ? OK
               : fail(BAD_CHECKPOINT,
                      "%s: the checksum of MiB %lld of its data is %s, but the header has %s: corrupt",
                      f->path.chars, (long long)index, found, expected);
}

/* Reads a block into f->block, unless it is there. */
static enum status load_block(struct checkpoint_file *f, int64_t index)
{
    if (f->block_at == index)
        return OK;
    f->block_at = -1;
    f->block = memory_resized(f->block, CHECKPOINT_BLOCK_BYTES, 1, "a block of a file");
    TRY(read_block(f, index, f->block));
    f->block_at = index;
    return OK;
}

enum status checkpoint_file_read(struct checkpoint_file *file, const struct safetensors_tensor *tensor,
                                 int64_t from, size_t length, void *out)
{
    char *to = out;
    CHECK(from >= 0 && from <= tensor->bytes && length <= (size_t)(tensor->bytes - from));
    for (int64_t at = tensor->offset_bytes + from; length > 0;) {
        const int64_t index = at / CHECKPOINT_BLOCK_BYTES, inside = at % CHECKPOINT_BLOCK_BYTES;
        const size_t available = (size_t)(CHECKPOINT_BLOCK_BYTES - inside),
                     take = length < available ? length : available;
        if (take == CHECKPOINT_BLOCK_BYTES) { // a whole block needs no copy
            TRY(read_block(file, index, to));
        } else {
            TRY(load_block(file, index));
            memcpy(to, file->block + inside, take);
        }
        to += take;
        at += (int64_t)take;
        length -= take;
    }
    return OK;
}
