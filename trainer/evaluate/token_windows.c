// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/token_windows.h"

#include "base/memory.h"
#include "trainer/data/dataset.h"

#include <stdlib.h>
#include <string.h>

/* The documents [first, end) of one source. */
struct source_part {
    struct dataset *dataset;
    int64_t first, end;
    int64_t first_window; // its first window among all
    int64_t *windows;     // [end - first + 1] by document: windows before each document; NULL: a stream
};

struct token_windows {
    struct token_windows_config config;
    int64_t length; // S
    int32_t end_of_document, begin_of_document;
    bool each_document; // is a sequence; false: all documents of a source are one
    struct document_marks marks;
    struct source_part *parts;
    int part_count;
    int64_t count; // windows
};

/* ---- opening ---- */

/* Windows of a sequence of `tokens`, the first of which is not predicted. */
static int64_t windows_of(const struct token_windows *w, int64_t tokens)
{
    return tokens > 1 ? (tokens - 1 + w->length - 1) / w->length : 0;
}

/* Tokens of the sequence of a document, the first of which is not predicted. */
static enum status sequence_of(const struct token_windows *w, const struct source_part *part,
                               int64_t document, int64_t *out)
{
    int32_t last = -1;
    const int64_t length = dataset_length(part->dataset, document);
    *out = length;
    if (!w->config.by_document)
        return OK;
    if (length > 0)
        TRY(dataset_read(part->dataset, document, length - 1, 1, w->config.recipe->model.vocab_size, &last));
    *out = 1 + length - (length > 0 && last == w->end_of_document ? 1 : 0);
    return OK;
}

static enum status count_windows(struct token_windows *w, struct source_part *part)
{
    const int64_t documents = part->end - part->first;
    part->first_window = w->count;
    if (!w->each_document) {
        w->count += windows_of(w, dataset_start(part->dataset, part->end) -
                                      dataset_start(part->dataset, part->first));
        return OK;
    }
    part->windows =
        memory_zeroed((size_t)documents + 1, sizeof *part->windows, "the windows of a dataset's documents");
    for (int64_t i = 0; i < documents; i++) {
        int64_t tokens;
        TRY(sequence_of(w, part, part->first + i, &tokens));
        part->windows[i + 1] = part->windows[i] + windows_of(w, tokens);
    }
    w->count += part->windows[documents];
    return OK;
}

static const char *split_name(enum data_split split)
{
    return split == DATA_TEST ? "test" : "valid";
}

/* The sources that the split is taken from. */
static enum status find_sources(const struct token_windows_config *config, const struct recipe_sources **out)
{
    const struct recipe_data *data = &config->recipe->data;
    if (data->mock_data)
        return fail(BAD_RECIPE, "data.mock_data has no documents to evaluate; use --data PREFIX");
    if (data->valid.count > 0 && config->split == DATA_TEST)
        return fail(BAD_RECIPE, "--split test: with data.valid there is no test split; use --split valid, or "
                                "--data PREFIX");
    *out = data->valid.count > 0 ? &data->valid : &data->train;
    if ((*out)->count == 0)
        return fail(BAD_RECIPE, "the recipe has no data; use --data PREFIX");
    return OK;
}

/* Opens a source that `key` names; share NULL: all of its documents. */
static enum status open_part(struct token_windows *w, const char *key, const char *path, const double *share)
{
    struct source_part *part = &w->parts[w->part_count];
    enum status status = dataset_open(path, &part->dataset);
    w->part_count += status == OK;
    if (status == OK && w->config.recipe->data.loss_mask)
        status = dataset_open_mask(part->dataset);
    if (status != OK)
        return status == NO_MEMORY ? status : fail(BAD_DATA, "%s: %s", key, fail_text());
    part->end = dataset_documents(part->dataset);
    if (share != NULL)
        data_split_range(share, w->config.split, part->end, &part->first, &part->end);
    return count_windows(w, part);
}

static enum status open_parts(struct token_windows *w)
{
    const struct token_windows_config *config = &w->config;
    const struct recipe_sources *sources = NULL;
    double share[DATA_SPLITS], sum = 0.0;
    if (config->data == NULL)
        TRY(find_sources(config, &sources));
    w->parts =
        memory_zeroed(sources != NULL ? sources->count : 1, sizeof *w->parts, "the sources of an evaluation");
    if (sources == NULL)
        return open_part(w, "--data", config->data, NULL);
    for (int i = 0; i < DATA_SPLITS; i++)
        sum += config->recipe->data.split[i];
    for (int i = 0; i < DATA_SPLITS; i++)
        share[i] = config->recipe->data.split[i] / sum;
    const bool all = sources == &config->recipe->data.valid;
    for (size_t i = 0; i < sources->count; i++)
        TRY(open_part(w, all ? "data.valid" : "data.train", sources->list[i].path, all ? NULL : share));
    return OK;
}

/* Reports what would have windows. */
static enum status refuse_empty(const struct token_windows *w)
{
    const struct source_part *part = &w->parts[0];
    const char *path = dataset_prefix(part->dataset);
    if (w->config.data != NULL)
        return fail(BAD_DATA, "%s: %lld token%s, nothing to predict; use a dataset of at least two tokens",
                    path, (long long)dataset_tokens(part->dataset),
                    dataset_tokens(part->dataset) == 1 ? "" : "s");
    return fail(BAD_RECIPE,
                "--split %s has %lld of the %lld documents of %s, and no token to predict; use --split %s, "
                "data.split with a larger share, or --data PREFIX",
                split_name(w->config.split), (long long)(part->end - part->first),
                (long long)dataset_documents(part->dataset), path,
                split_name(w->config.split == DATA_TEST ? DATA_VALID : DATA_TEST));
}

static enum status find_tokens(struct token_windows *w)
{
    const struct token_windows_config *config = &w->config;
    const struct recipe_data *data = &config->recipe->data;
    w->end_of_document = w->begin_of_document = -1;
    if (config->tokenizer != NULL) {
        const int32_t begin = tokenizer_begin_of_text(config->tokenizer);
        w->end_of_document = tokenizer_end_of_document(config->tokenizer);
        w->begin_of_document = begin >= 0 ? begin : w->end_of_document;
    }
    w->each_document = config->by_document || data->pack_documents;
    const bool marks =
        !w->each_document && (data->reset_position_ids || data->reset_attention_mask || data->eod_mask_loss);
    if ((marks || config->by_document) && config->tokenizer == NULL)
        return fail(BAD_RECIPE,
                    "%s needs the end-of-document id of a tokenizer; set tokenizer.tokenizer_type",
                    config->by_document ? "--by-document" : "data.reset_attention_mask");
    if (config->by_document && w->begin_of_document >= config->recipe->model.vocab_size)
        return fail(BAD_RECIPE,
                    "--by-document begins documents with token %d of the tokenizer, but model.vocab_size is "
                    "%lld; evaluate without --by-document",
                    w->begin_of_document, (long long)config->recipe->model.vocab_size);
    w->marks = (struct document_marks){.end_of_document = marks ? w->end_of_document : -1};
    if (marks) {
        w->marks.reset_position_ids = data->reset_position_ids;
        w->marks.reset_attention_mask = data->reset_attention_mask;
        w->marks.eod_mask_loss = data->eod_mask_loss;
    }
    return OK;
}

static enum status open_all(struct token_windows *w)
{
    TRY(find_tokens(w));
    TRY(open_parts(w));
    return w->count > 0 ? OK : refuse_empty(w);
}

enum status token_windows_open(const struct token_windows_config *config, struct token_windows **out)
{
    struct token_windows *w = memory_zeroed(1, sizeof *w, "the windows of an evaluation");
    w->config = *config;
    w->length = config->recipe->model.seq_length;
    const enum status status = open_all(w);
    if (status == OK)
        *out = w;
    else
        token_windows_close(w);
    return status;
}

void token_windows_close(struct token_windows *windows)
{
    if (windows == NULL)
        return;
    for (int i = 0; i < windows->part_count; i++) {
        dataset_close(windows->parts[i].dataset);
        free(windows->parts[i].windows);
    }
    free(windows->parts);
    free(windows);
}

int64_t token_windows_documents(const struct token_windows *windows)
{
    int64_t documents = 0;
    for (int i = 0; i < windows->part_count; i++)
        documents += windows->parts[i].end - windows->parts[i].first;
    return documents;
}

/* ---- one window ---- */

/* The document that contains a token of the dataset: the last one that begins at or before it. */
static int64_t document_at(const struct source_part *part, int64_t token)
{
    int64_t low = part->first, high = part->end;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (dataset_start(part->dataset, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Reads tokens [token, token + count) of the dataset, across documents. */
static enum status read_tokens(const struct token_windows *w, const struct source_part *part, int64_t token,
                               int64_t count, int32_t *out, uint8_t *counts)
{
    for (int64_t document = document_at(part, token); count > 0; document++) {
        const int64_t start = dataset_start(part->dataset, document);
        const int64_t left = start + dataset_length(part->dataset, document) - token;
        const int64_t take = left < count ? left : count;
        if (take <= 0)
            continue;
        TRY(dataset_read(part->dataset, document, token - start, take, w->config.recipe->model.vocab_size,
                         out));
        TRY(dataset_read_mask(part->dataset, document, token - start, take, counts));
        out += take;
        counts += take;
        token += take;
        count -= take;
    }
    return OK;
}

/* Tokens without text: those that begin and end documents. */
static bool has_text(const struct token_windows *w, int32_t id)
{
    return id != w->end_of_document && id != w->begin_of_document;
}

/* Sums the sizes of the texts of the targets that count; a text begins after a token without text. */
static enum status measure_text(const struct token_windows *w, struct window *window)
{
    const int64_t count = window->count;
    for (int64_t end, i = count - window->targets; i < count; i = end) {
        for (end = i; end < count && window->counts[end] != 0 && has_text(w, window->ids[end]);)
            end++;
        AUTO(text) text = {0};
        const bool continues = i > 0 && has_text(w, window->ids[i - 1]);
        const enum status status =
            continues ? tokenizer_decode_more(w->config.tokenizer, window->ids + i, end - i, &text)
                      : tokenizer_decode(w->config.tokenizer, window->ids + i, end - i, &text);
        window->text_size += (int64_t)text.length;
        TRY(status);
        while (end < count && !(window->counts[end] != 0 && has_text(w, window->ids[end])))
            end++;
    }
    return OK;
}

/* Window k of a sequence: `prefix` (-1: none), then the tokens of the dataset from `token` on; `tokens` in
 * all. */
static enum status read_window(const struct token_windows *w, const struct source_part *part, int32_t prefix,
                               int64_t token, int64_t tokens, int64_t k, struct window *out)
{
    const int64_t full = (k + 1) * w->length, last = full < tokens - 1 ? full : tokens - 1;
    const int64_t begin = last > w->length ? last - w->length : 0;
    const int64_t before = prefix >= 0 ? 1 : 0; // of the sequence's ids
    const int64_t skipped = begin == 0 ? before : 0;
    out->count = last - begin + 1;
    out->targets = last - k * w->length;
    out->text_size = 0;
    if (skipped > 0) {
        out->ids[0] = prefix;
        out->counts[0] = 0;
    }
    TRY(read_tokens(w, part, token + begin + skipped - before, out->count - skipped, out->ids + skipped,
                    out->counts + skipped));
    return w->config.tokenizer != NULL ? measure_text(w, out) : OK;
}

/* Window i of a part that is divided by document. */
static enum status read_of_document(const struct token_windows *w, const struct source_part *part, int64_t i,
                                    struct window *out)
{
    int64_t low = 0, high = part->end - part->first, tokens;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (part->windows[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    const int64_t document = part->first + low;
    TRY(sequence_of(w, part, document, &tokens));
    return read_window(w, part, w->config.by_document ? w->begin_of_document : -1,
                       dataset_start(part->dataset, document), tokens, i - part->windows[low], out);
}

static enum status read_any(const void *self, int64_t index, struct window *out)
{
    const struct token_windows *w = self;
    const struct source_part *part = &w->parts[w->part_count - 1];
    while (index < part->first_window)
        part--;
    const int64_t i = index - part->first_window;
    if (part->windows != NULL)
        return read_of_document(w, part, i, out);
    const int64_t start = dataset_start(part->dataset, part->first);
    return read_window(w, part, -1, start, dataset_start(part->dataset, part->end) - start, i, out);
}

struct window_source token_windows_source(const struct token_windows *windows)
{
    return (struct window_source){
        .count = windows->count, .self = windows, .read = read_any, .marks = windows->marks};
}
