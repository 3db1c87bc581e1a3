// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_fingerprint.h"

#include "base/memory.h"
#include "trainer/data/dataset.h"
#include "trainer/data/dataset_blocks.h"
#include "trainer/files/checksum.h"
#include "trainer/files/json_read.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS = 16 * DATASET_BLOCKS, MIN_BLOCKS = 4, MAX_FILE_BYTES = 1 << 28 };

static const char *const lists[] = {[DATA_TRAIN] = "train", [DATA_VALID] = "valid"};
enum { LISTS = sizeof lists / sizeof *lists };

static int source_count(const struct data *data, enum data_split list)
{
    int count = 0;
    while (data_source(data, list, count) != NULL)
        count++;
    return count;
}

/* Checksum of one block of the ids; `buffer` has DATASET_BLOCK_BYTES bytes. */
static enum status sum_block(const struct dataset *source, int64_t at, int64_t bytes, void *buffer,
                             uint64_t *out)
{
    TRY(dataset_read_bytes(source, at, (size_t)bytes, buffer));
    *out = checksum_of(buffer, (size_t)bytes);
    return OK;
}

static enum status add_blocks(const struct dataset *source, int64_t most, void *buffer, struct text *out)
{
    const int64_t size = dataset_bin_bytes(source), count = dataset_block_count(size, most);
    text_add(out, "\"blocks\": [");
    for (int64_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        struct dataset_block block = dataset_block(size, most, i);
        TRY(sum_block(source, block.at, block.bytes, buffer, &sum));
        text_add(out, "%s{\"at\": %" PRId64 ", \"bytes\": %" PRId64 ", \"xxh3\": \"%016" PRIx64 "\"}",
                 i > 0 ? ", " : "", block.at, block.bytes, sum);
    }
    text_add(out, "]");
    return OK;
}

/* Everything but the path, the mask and the blocks. */
static void add_facts(const struct dataset *source, struct text *out)
{
    text_add(out,
             ", \"dtype\": \"%s\", \"sequences\": %" PRId64 ", \"documents\": %" PRId64
             ", \"tokens\": %" PRId64 ",\n  \"index_bytes\": %" PRId64 ", \"index_xxh3\": \"%016" PRIx64
             "\", \"bytes\": %" PRId64 ",\n  ",
             dataset_type_name(source), dataset_sequences(source), dataset_documents(source),
             dataset_tokens(source), dataset_index_bytes(source), dataset_index_checksum(source),
             dataset_bin_bytes(source));
}

static enum status add_source(const struct dataset *source, int64_t most, void *buffer, struct text *out)
{
    text_add(out, "{\"path\": ");
    text_add_json(out, dataset_prefix(source));
    add_facts(source, out);
    if (dataset_has_mask(source))
        text_add(out, "\"loss_mask_xxh3\": \"%016" PRIx64 "\",\n  ", dataset_mask_checksum(source));
    TRY(add_blocks(source, most, buffer, out));
    text_add(out, "}");
    return OK;
}

enum status data_content(const struct dataset *source, uint64_t *out)
{
    AUTO(text) facts = {0};
    AUTO_FREE void *buffer = memory_zeroed(DATASET_BLOCK_BYTES, 1, "a block of a dataset");
    add_facts(source, &facts);
    TRY(add_blocks(source, MIN_BLOCKS, buffer, &facts));
    *out = checksum_of(text_chars(&facts), facts.length);
    *out += *out == 0; // 0: unknown
    return OK;
}

static enum status add_lists(const struct data *data, void *buffer, struct text *out)
{
    int64_t sources = source_count(data, DATA_TRAIN) + source_count(data, DATA_VALID);
    int64_t most = MAX_BLOCKS / (sources > 0 ? sources : 1);
    most = most > DATASET_BLOCKS ? DATASET_BLOCKS : most < MIN_BLOCKS ? MIN_BLOCKS : most;
    text_add(out, "{\"format\": \"cuboid data\", \"version\": 1");
    for (int list = 0; list < LISTS; list++) {
        text_add(out, ",\n \"%s\": [", lists[list]);
        const struct dataset *source;
        for (int i = 0; (source = data_source(data, (enum data_split)list, i)) != NULL; i++) {
            text_add(out, "%s", i > 0 ? ",\n  " : "");
            TRY(add_source(source, most, buffer, out));
        }
        text_add(out, "]");
    }
    text_add(out, "}\n");
    return OK;
}

enum status data_fingerprint(struct data *data, const struct text **out)
{
    struct text *kept = data_fingerprint_cache(data), made = {0};
    *out = kept;
    if (kept->length > 0)
        return OK;
    AUTO_FREE void *buffer = memory_zeroed(DATASET_BLOCK_BYTES, 1, "a block of a dataset");
    enum status status = add_lists(data, buffer, &made);
    if (status == OK)
        *kept = made;
    else
        text_free(&made);
    return status;
}

/* ---- comparison ---- */

static int64_t integer_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static const char *string_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) ? json_string_value(value) : "";
}

static bool is_sum(const json_t *object, const char *key, uint64_t sum)
{
    char digits[20];
    snprintf(digits, sizeof digits, "%016" PRIx64, sum);
    return strcmp(string_of(object, key), digits) == 0;
}

static void add_number(const char *what, int64_t then, int64_t now, struct text *out)
{
    if (then != now)
        text_add(out, "%s%s changed from %" PRId64 " to %" PRId64, out->length > 0 ? ", " : "", what, then,
                 now);
}

/* Compares the blocks that exist in both files; sizes are compared elsewhere. */
static enum status compare_blocks(const struct dataset *source, const json_t *then, void *buffer,
                                  struct text *out)
{
    const json_t *blocks = json_object_get(then, "blocks");
    int64_t first = -1, different = 0, compared = 0;
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const json_t *block = json_array_get(blocks, i);
        int64_t at = integer_of(block, "at"), bytes = integer_of(block, "bytes");
        uint64_t sum = 0;
        if (at < 0 || bytes < 1 || bytes > DATASET_BLOCK_BYTES || at > dataset_bin_bytes(source) - bytes)
            continue;
        TRY(sum_block(source, at, bytes, buffer, &sum));
        compared++;
        if (is_sum(block, "xxh3", sum))
            continue;
        first = first < 0 ? at : first;
        different++;
    }
    if (different > 0)
        text_add(out,
                 "%stoken ids differ in %" PRId64 " of %" PRId64
                 " sampled blocks, first in the one at byte %" PRId64,
                 out->length > 0 ? ", " : "", different, compared, first);
    return OK;
}

/* A mask may be added to a run or removed from it by its key, which the resolved recipe records. */
static void compare_mask(const struct dataset *source, const json_t *then, struct text *out)
{
    const bool had_mask = json_object_get(then, "loss_mask_xxh3") != NULL;
    if (had_mask && dataset_has_mask(source) &&
        !is_sum(then, "loss_mask_xxh3", dataset_mask_checksum(source)))
        text_add(out, "%sthe loss mask differs", out->length > 0 ? ", " : "");
}

static enum status compare_source(const struct dataset *source, const json_t *then, void *buffer,
                                  struct text *out)
{
    const char *type = string_of(then, "dtype");
    if (strcmp(type, dataset_type_name(source)) != 0)
        text_add(out, "type changed from %s to %s", type, dataset_type_name(source));
    add_number("documents", integer_of(then, "documents"), dataset_documents(source), out);
    add_number("sequences", integer_of(then, "sequences"), dataset_sequences(source), out);
    add_number("tokens", integer_of(then, "tokens"), dataset_tokens(source), out);
    add_number("bytes of .bin", integer_of(then, "bytes"), dataset_bin_bytes(source), out);
    if (!is_sum(then, "index_xxh3", dataset_index_checksum(source)) && out->length == 0)
        text_add(out, "the document lengths in .idx differ");
    compare_mask(source, then, out);
    return compare_blocks(source, then, buffer, out);
}

/* positions: of each source in `then`, -1: none; NULL: that in its own list. */
static enum status compare_list(const struct data *data, enum data_split list, const json_t *then,
                                const int *positions, void *buffer, struct text *changes)
{
    int count = source_count(data, list), before = (int)json_array_size(then);
    // Only mock data has no source to train on.
    const char *mock = list == DATA_TRAIN ? " (data.mock_data)" : "";
    if (positions == NULL ? count != before : (count == 0) != (before == 0))
        text_add(changes, "%sdata.%s: number of sources changed from %d%s to %d%s",
                 changes->length > 0 ? "\n" : "", lists[list], before, before == 0 ? mock : "", count,
                 count == 0 ? mock : "");
    for (int i = 0; i < count; i++) {
        AUTO(text) why = {0};
        const int at = positions != NULL ? positions[i] : i;
        const struct dataset *source = data_source(data, list, i);
        if (at < 0 || at >= before)
            continue;
        enum status status = compare_source(source, json_array_get(then, (size_t)at), buffer, &why);
        if (status == OK && why.length > 0)
            text_add(changes, "%sdata.%s source %d (%s): %s", changes->length > 0 ? "\n" : "", lists[list],
                     i + 1, dataset_prefix(source), why.chars);
        TRY(status);
    }
    return OK;
}

/* BAD_DATA: not a record of the datasets. */
static enum status compare(const struct data *data, const char *path, const struct text *file,
                           const int *positions, struct text *changes)
{
    json_error_t why;
    json_t *root = json_read(text_chars(file), file->length, 0, &why);
    enum status status = OK;
    if (strcmp(string_of(root, "format"), "cuboid data") != 0 || integer_of(root, "version") != 1) {
        status = fail(BAD_DATA, "%s: not a dataset record of version 1", path);
    } else {
        AUTO_FREE void *buffer = memory_zeroed(DATASET_BLOCK_BYTES, 1, "a block of a dataset");
        for (int list = 0; list < LISTS && status == OK; list++)
            status = compare_list(data, (enum data_split)list, json_object_get(root, lists[list]),
                                  list == DATA_TRAIN ? positions : NULL, buffer, changes);
    }
    json_decref(root);
    return status;
}

enum status data_fingerprint_compare(const struct data *data, const char *folder, const int *positions,
                                     bool *is_recorded, struct text *changes)
{
    AUTO(text) path = {0}, file = {0};
    text_add(&path, "%s/data.json", folder);
    enum status status = file_read_small(path.chars, MAX_FILE_BYTES, &file);
    if (status == OK)
        status = compare(data, path.chars, &file, positions, changes);
    *is_recorded = status == OK;
    if (status != OK && status != NO_MEMORY) {
        text_add(changes, "%s", fail_text());
        status = OK;
    }
    return status;
}

static void warn_of_changes(const char *folder, bool is_recorded, const struct text *changes)
{
    if (!is_recorded) {
        print_line(stderr,
                   "warning: %s; changes of the data since this checkpoint cannot be detected "
                   "(data.strict=true makes this an error)",
                   changes->chars);
        return;
    }
    const char *end = changes->chars;
    for (const char *line = changes->chars; line != NULL; line = *end != 0 ? end + 1 : NULL) {
        end = line + strcspn(line, "\n");
        print_line(stderr,
                   "warning: the data changed since %s: %.*s; restore it to resume with the same "
                   "samples (data.strict=true makes this an error)",
                   folder, (int)(end - line), line);
    }
}

static enum status refuse_changes(const char *folder, bool is_recorded, struct text *changes)
{
    for (char *c = changes->chars; *c != 0; c++)
        *c = *c == '\n' ? ';' : *c;
    if (!is_recorded)
        return fail(BAD_DATA,
                    "data.strict: %s; changes of the data since this checkpoint cannot be detected; "
                    "resume from another checkpoint, or set data.strict=false",
                    changes->chars);
    return fail(BAD_DATA, "data.strict: the data changed since %s: %s; restore it, or set data.strict=false",
                folder, changes->chars);
}

enum status data_fingerprint_check(const struct data *data, const char *folder, const int *positions,
                                   bool strict)
{
    AUTO(text) changes = {0};
    bool is_recorded;
    enum status status = data_fingerprint_compare(data, folder, positions, &is_recorded, &changes);
    if (status == OK && changes.length > 0 && strict)
        status = refuse_changes(folder, is_recorded, &changes);
    else if (status == OK && changes.length > 0)
        warn_of_changes(folder, is_recorded, &changes);
    return status;
}
