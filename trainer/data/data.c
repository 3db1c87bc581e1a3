// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data.h"

#include "base/memory.h"
#include "trainer/data/data_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SOURCES    "the sources of data.train or data.valid"
#define MICROBATCH "the tokens of a microbatch (train.micro_batch_size, model.seq_length)"

enum { SOURCES_MAX = 4096 };

static const char *const split_names[DATA_SPLITS] = {"train", "valid", "test"};

enum status data_split_parse(const char *split, double share[DATA_SPLITS])
{
    double parts[DATA_SPLITS] = {0}, sum = 0.0;
    char number[NUMBER_CHARS];
    const char *at = split;
    for (int i = 0; i < DATA_SPLITS; i++) {
        char *end = NULL;
        parts[i] = strtod(at, &end);
        if (end == at || !isfinite(parts[i]) || parts[i] < 0.0)
            return fail(BAD_RECIPE,
                        "data.split: \"%s\": weight %d is not a number of 0 or more; use, for example, "
                        "\"%s\"",
                        split, i + 1, DATA_SPLIT_DEFAULT);
        sum += parts[i];
        at = end + strspn(end, " ");
        if (*at != ',')
            break;
        at++;
    }
    if (*at != 0 || (at > split && at[-1] == ','))
        return fail(BAD_RECIPE,
                    "data.split: \"%s\" is not one to three comma-separated numbers; use, for "
                    "example, \"%s\"",
                    split, DATA_SPLIT_DEFAULT);
    if (!(sum > 0.0) || !isfinite(sum))
        return fail(BAD_RECIPE, "data.split: \"%s\": the weights sum to %s; use, for example, \"%s\"", split,
                    number_text(sum, number), DATA_SPLIT_DEFAULT);
    for (int i = 0; i < DATA_SPLITS; i++)
        share[i] = parts[i] / sum;
    return OK;
}

static enum status check_config(const struct data_config *c)
{
    if (c->train_count < 1 && !c->mock)
        return fail(BAD_RECIPE, "data.train: no sources; use a list of {path, weight}");
    if (c->train_count > SOURCES_MAX || c->valid_count > SOURCES_MAX)
        return fail(BAD_RECIPE, "data.%s: %d sources; use at most %d",
                    c->train_count > SOURCES_MAX ? "train" : "valid",
                    c->train_count > SOURCES_MAX ? c->train_count : c->valid_count, SOURCES_MAX);
    if (c->valid_count > 0 && c->split != NULL)
        return fail(BAD_RECIPE,
                    "data.split and data.valid are mutually exclusive: with a validation list, all "
                    "of data.train is for training");
    if (c->seq_length < 1 || c->seq_length > INT32_MAX - 1)
        return fail(BAD_RECIPE, "model.seq_length %" PRId64 ": use 1 to %d", c->seq_length, INT32_MAX - 1);
    if (c->vocab_size < 1)
        return fail(BAD_RECIPE, "model.vocab_size %" PRId64 ": use 1 or more", c->vocab_size);
    // Packed documents begin where the dataset says.
    const bool by_tokens = !c->pack_documents || c->mock;
    const char *key = by_tokens && c->reset_position_ids     ? "reset_position_ids"
                      : by_tokens && c->reset_attention_mask ? "reset_attention_mask"
                      : c->eod_mask_loss                     ? "eod_mask_loss"
                                                             : NULL;
    if (key != NULL && (c->end_of_document < 0 || c->end_of_document >= c->vocab_size))
        return fail(BAD_RECIPE,
                    "data.%s needs an end-of-document id below model.vocab_size %" PRId64 "; the "
                    "tokenizer has %d",
                    key, c->vocab_size, c->end_of_document);
    return OK;
}

/* Errors of a source are appended to `wrong`, and opening continues with the next one. */
static enum status open_list(const struct data_source_config *sources, int count, const char *key,
                             bool loss_mask, struct data_list *out, struct text *wrong)
{
    out->datasets = memory_zeroed((size_t)count + 1, sizeof *out->datasets, SOURCES);
    out->weights = memory_zeroed((size_t)count + 1, sizeof *out->weights, SOURCES);
    out->count = count;
    for (int i = 0; i < count; i++) {
        double weight = sources[i].weight;
        char number[NUMBER_CHARS];
        const char *between = wrong->length > 0 ? "; " : "";
        out->weights[i] = weight;
        if (!isfinite(weight) || weight <= 0.0) {
            text_add(wrong,
                     "%sdata.%s source %d (%s): weight %s must be greater than 0; to use no samples "
                     "of it, remove the source",
                     between, key, i + 1, sources[i].path, number_text(weight, number));
            continue;
        }
        enum status status = dataset_open(sources[i].path, &out->datasets[i]);
        if (status == OK && loss_mask)
            status = dataset_open_mask(out->datasets[i]);
        if (status == NO_MEMORY)
            return status;
        if (status != OK)
            text_add(wrong, "%sdata.%s: %s", between, key, fail_text());
    }
    return OK;
}

static enum status open_lists(struct data *d, const struct data_config *c)
{
    AUTO(text) wrong = {0};
    TRY(open_list(c->train, c->train_count, "train", c->loss_mask, &d->train, &wrong));
    if (c->valid_count > 0)
        TRY(open_list(c->valid, c->valid_count, "valid", c->loss_mask, &d->valid, &wrong));
    return wrong.length > 0 ? fail(BAD_RECIPE, "%s", wrong.chars) : OK;
}

static void close_list(struct data_list *list)
{
    for (int i = 0; i < list->count; i++)
        dataset_close(list->datasets[i]);
    free(list->datasets);
    free(list->weights);
}

void data_split_range(const double share[DATA_SPLITS], enum data_split split, int64_t documents,
                      int64_t *first, int64_t *end)
{
    double before = 0.0;
    for (int i = 0; i < (int)split; i++)
        before += share[i];
    double after = split == DATA_SPLITS - 1 ? 1.0 : before + share[split];
    *first = llrint(fmin(before, 1.0) * (double)documents);
    *end = llrint(fmin(after, 1.0) * (double)documents);
}

/* Packs the documents of source `i`; a document longer than a sample is an error unless it may be cut. */
static enum status pack_source(struct data_mix *mix, int i, enum data_split split,
                               const struct data_config *config)
{
    struct data_part *part = &mix->parts[i];
    TRY(data_part_pack(part));
    if (part->truncated == 0 || config->truncate_documents)
        return OK;
    int64_t longest = dataset_length(part->dataset, part->longest);
    return fail(BAD_RECIPE,
                "data.%s source %d (%s): %" PRId64 " of %" PRId64
                " documents are longer than model.seq_length "
                "%" PRId64 ", the longest, document %" PRId64 ", has %" PRId64
                " tokens; use model.seq_length=%" PRId64
                ", or data.truncate_documents=true, which drops %" PRId64 " tokens at their ends",
                split == DATA_VALID && config->valid_count > 0 ? "valid" : "train", i + 1,
                dataset_prefix(part->dataset), part->truncated, part->documents, part->seq_length,
                part->longest, longest, longest, part->cut_tokens);
}

/* Selects the documents of each source that belong to the split; share NULL: all. Sources are keyed by their
 * position in the list, so the same file listed twice is shuffled differently, and a file may be moved to
 * another folder. */
static enum status make_mix(struct data_mix *mix, const struct data_list *list, enum data_split split,
                            const double share[DATA_SPLITS], const struct data_config *config)
{
    mix->parts = memory_zeroed((size_t)list->count, sizeof *mix->parts, SOURCES);
    mix->offsets = memory_zeroed((size_t)list->count, sizeof *mix->offsets, SOURCES);
    for (int i = 0; i < list->count; i++) {
        int64_t first = 0, end = dataset_documents(list->datasets[i]);
        if (share != NULL)
            data_split_range(share, split, end, &first, &end);
        AUTO(text) name = {0};
        text_add(&name, "data.%s[%d]", split_names[split], i);
        // Only training depends on the seed: validation losses of different runs are comparable.
        uint64_t seed = split == DATA_TRAIN ? config->seed : 0;
        data_part_init(&mix->parts[i], list->datasets[i], first, end - first, config->seq_length, seed,
                       name.chars);
        mix->count = i + 1;
        if (config->pack_documents)
            TRY(pack_source(mix, i, split, config));
        else if (dataset_has_mask(list->datasets[i]))
            TRY(data_part_find_counted(&mix->parts[i]));
    }
    mix->blend = blend_create(list->weights, list->count);
    return OK;
}

static void free_mix(struct data_mix *mix)
{
    for (int i = 0; i < mix->count; i++)
        data_part_fini(&mix->parts[i]);
    free(mix->parts);
    free(mix->offsets);
    blend_destroy(mix->blend);
}

/* As for sources, only training depends on the seed. */
static void make_mock(struct data *d, uint64_t seed)
{
    for (int split = 0; split < DATA_SPLITS; split++) {
        AUTO(text) name = {0};
        text_add(&name, "data.mock.%s", split_names[split]);
        d->random[split] = philox_named(split == DATA_TRAIN ? seed : 0, name.chars);
    }
}

static enum status open_all(struct data *d, const struct data_config *c)
{
    *d = (struct data){
        .seq_length = c->seq_length,
        .vocab_size = c->vocab_size,
        .marks = {.end_of_document = c->end_of_document,
                  .reset_position_ids = c->reset_position_ids,
                  .reset_attention_mask = c->reset_attention_mask,
                  .eod_mask_loss = c->eod_mask_loss,
                  .pack_documents = c->pack_documents && !c->mock},
        .mock = c->mock,
        .seed = c->seed,
        .truncate_documents = c->truncate_documents,
    };
    CHECK(pthread_mutex_init(&d->lock, NULL) == 0);
    TRY(check_config(c));
    if (c->mock) {
        make_mock(d, c->seed);
        return OK;
    }
    TRY(open_lists(d, c));
    if (c->valid_count > 0) {
        TRY(make_mix(&d->mixes[DATA_TRAIN], &d->train, DATA_TRAIN, NULL, c));
        TRY(make_mix(&d->mixes[DATA_VALID], &d->valid, DATA_VALID, NULL, c));
        return data_require(d, DATA_TRAIN);
    }
    const char *split = c->split != NULL ? c->split : DATA_SPLIT_DEFAULT;
    double share[DATA_SPLITS];
    TRY(data_split_parse(split, share));
    snprintf(d->split, sizeof d->split, "%s", split);
    for (int i = 0; i < DATA_SPLITS; i++)
        TRY(make_mix(&d->mixes[i], &d->train, (enum data_split)i, share, c));
    return data_require(d, DATA_TRAIN);
}

enum status data_open(const struct data_config *config, struct data **out)
{
    struct data *d = memory_zeroed(1, sizeof *d, "the data");
    enum status status = open_all(d, config);
    if (status == OK)
        *out = d;
    else
        data_close(d);
    return status;
}

void data_close(struct data *data)
{
    if (data == NULL)
        return;
    for (int i = 0; i < DATA_SPLITS; i++)
        free_mix(&data->mixes[i]);
    close_list(&data->train);
    close_list(&data->valid);
    text_free(&data->fingerprint);
    text_free(&data->order);
    pthread_mutex_destroy(&data->lock);
    free(data);
}

/* Reports valid values for a part without samples. */
static enum status refuse_part(const struct data *d, enum data_split split, int source)
{
    const struct data_part *part = &d->mixes[split].parts[source];
    const char *path = dataset_prefix(part->dataset);
    int64_t documents = dataset_documents(part->dataset);
    AUTO(text) what = {0};
    text_add(&what, "data.%s source %d (%s)", split == DATA_VALID && d->split[0] == 0 ? "valid" : "train",
             source + 1, path);
    if (d->split[0] != 0)
        text_add(&what, ": data.split \"%s\" gives %s %" PRId64 " of its %" PRId64 " documents,", d->split,
                 split_names[split], part->documents, documents);
    else
        text_add(&what, ": %" PRId64 " documents,", documents);
    text_add(&what,
             " %" PRId64 " tokens; a sample of model.seq_length %" PRId64 " needs %" PRId64 "; "
             "use ",
             part->tokens, d->seq_length, d->marks.pack_documents ? 1 : d->seq_length + 1);
    if (part->tokens >= 2 && !d->marks.pack_documents)
        text_add(&what, "a seq_length of %" PRId64 " or less, or ", part->tokens - 1);
    text_add(&what, "%s",
             d->split[0] == 0 || part->documents == documents ? "more text"
             : documents < 3 ? "text split into more documents (cuboid data prepare --documents), or a list "
                               "for data.valid"
                             : "a larger share, or more text");
    return fail(BAD_RECIPE, "%s", what.chars);
}

/* Returns true if no token counts in the loss. */
static bool counts_nothing(const struct data_part *part)
{
    return dataset_has_mask(part->dataset) && part->counted == 0;
}

static enum status refuse_uncounted(const struct data *d, enum data_split split, int source)
{
    const struct data_part *part = &d->mixes[split].parts[source];
    const char *list = split == DATA_VALID && d->split[0] == 0 ? "valid" : "train";
    const char *path = dataset_prefix(part->dataset);
    if (part->truncated == 0)
        return fail(BAD_RECIPE,
                    "data.%s source %d (%s): the loss mask selects none of the tokens for %s; use "
                    "conversations with answers, or data.loss_mask=false",
                    list, source + 1, path, split_names[split]);
    const int64_t longest = dataset_length(part->dataset, part->longest);
    return fail(BAD_RECIPE,
                "data.%s source %d (%s): no token for %s counts in the loss, because "
                "data.truncate_documents cuts every answer at model.seq_length %" PRId64
                "; use a larger model.seq_length; %" PRId64 " cuts none",
                list, source + 1, path, split_names[split], part->seq_length, longest);
}

enum status data_require(const struct data *data, enum data_split split)
{
    const struct data_mix *mix = &data->mixes[split];
    if (data->mock)
        return OK;
    if (mix->count == 0)
        return fail(BAD_RECIPE, "data.%s: has no documents if data.valid is a list", split_names[split]);
    for (int i = 0; i < mix->count; i++) {
        if (mix->parts[i].samples == 0)
            return refuse_part(data, split, i);
        if (counts_nothing(&mix->parts[i]))
            return refuse_uncounted(data, split, i);
    }
    return OK;
}

int64_t data_epoch_samples(const struct data *data, enum data_split split)
{
    int64_t samples = 0;
    for (int i = 0; i < data->mixes[split].count; i++)
        samples += data->mixes[split].parts[i].samples;
    return samples;
}

const struct dataset *data_source(const struct data *data, enum data_split list, int i)
{
    const struct data_list *sources = list == DATA_TRAIN ? &data->train : &data->valid;
    return i < sources->count ? sources->datasets[i] : NULL;
}

const char *data_chat_template(const struct data *data)
{
    const char *name = data->train.count > 0 ? dataset_chat_template(data->train.datasets[0]) : "";
    for (int i = 1; i < data->train.count; i++)
        if (strcmp(name, dataset_chat_template(data->train.datasets[i])) != 0)
            return "";
    return name;
}

struct text *data_fingerprint_cache(struct data *data)
{
    return &data->fingerprint;
}

/* Ids are uniform in [0, vocab_size). */
static void mock_sample(const struct data *data, enum data_split split, uint64_t sample, int32_t *tokens)
{
    uint32_t words[4];
    for (int64_t i = 0; i <= data->seq_length; i++) {
        if (i % 4 == 0)
            philox_words(data->random[split], sample, (uint64_t)i / 4, words);
        tokens[i] = (int32_t)(((uint64_t)words[i % 4] * (uint64_t)data->vocab_size) >> 32);
    }
}

enum status data_sample(struct data *data, enum data_split split, uint64_t sample, int32_t *tokens,
                        uint8_t *marks)
{
    struct data_mix *mix = &data->mixes[split];
    if (data->mock) {
        mock_sample(data, split, sample, tokens);
        memset(marks, MARK_COUNTS, (size_t)data->seq_length + 1);
        return OK;
    }
    if (mix->count == 0)
        return data_require(data, split);
    int source = 0;
    uint64_t ordinal = 0;
    CHECK(sample >= (uint64_t)mix->from);
    blend_at(mix->blend, sample - (uint64_t)mix->from, &source, &ordinal);
    ordinal += (uint64_t)mix->offsets[source];
    if (mix->parts[source].samples == 0)
        return refuse_part(data, split, source);
    return data_part_sample(&mix->parts[source], ordinal, data->vocab_size, tokens, marks);
}

struct batch_tokens batch_create(int64_t rows, int64_t seq_length)
{
    CHECK(rows >= 1 && seq_length >= 1);
    size_t count = (size_t)rows * (size_t)seq_length;
    return (struct batch_tokens){
        .rows = rows,
        .seq_length = seq_length,
        // With space for the last label of the sample.
        .tokens = memory_zeroed(count + 1, sizeof(int32_t), MICROBATCH),
        .labels = memory_zeroed(count, sizeof(int32_t), MICROBATCH),
        .positions = memory_zeroed(count, sizeof(int32_t), MICROBATCH),
        .documents = memory_zeroed(count, sizeof(int32_t), MICROBATCH),
        .loss_mask = memory_zeroed(count, sizeof(float), MICROBATCH),
        .marks = memory_zeroed((size_t)seq_length + 1, sizeof(uint8_t), MICROBATCH),
        .samples = memory_zeroed((size_t)rows, sizeof(uint64_t), MICROBATCH),
    };
}

void batch_free(struct batch_tokens *batch)
{
    free(batch->tokens);
    free(batch->labels);
    free(batch->positions);
    free(batch->documents);
    free(batch->loss_mask);
    free(batch->marks);
    free(batch->samples);
    *batch = (struct batch_tokens){0};
}

uint64_t batch_first_sample(const struct batch_coord *coord)
{
    uint64_t slot = (uint64_t)(coord->microbatch * coord->dp_size + coord->dp_rank);
    return coord->step * (uint64_t)coord->global_batch_size + (uint64_t)coord->offset +
           slot * (uint64_t)coord->micro_batch_size;
}

void batch_mark_row(const struct document_marks *rules, struct batch_tokens *batch, int64_t row)
{
    const int64_t at = row * batch->seq_length;
    const int32_t *tokens = batch->tokens + at;
    const uint8_t *marks = batch->marks;
    int32_t document = 0, begin = 0;
    for (int32_t s = 0; s < batch->seq_length; s++) {
        bool after_end = s > 0 && tokens[s - 1] == rules->end_of_document;
        if (s > 0 && (rules->pack_documents ? marks[s] & MARK_BEGINS : after_end)) {
            document++;
            begin = s;
        }
        bool masked = rules->eod_mask_loss && tokens[s] == rules->end_of_document;
        batch->positions[at + s] = rules->reset_position_ids ? s - begin : s;
        batch->documents[at + s] = rules->reset_attention_mask ? document : 0;
        batch->loss_mask[at + s] = !masked && (marks[s + 1] & MARK_COUNTS) ? 1.0F : 0.0F;
    }
}

enum status data_batch(struct data *data, enum data_split split, const struct batch_coord *coord,
                       struct batch_tokens *batch)
{
    CHECK(batch->rows == coord->micro_batch_size && batch->seq_length == data->seq_length);
    const size_t row_bytes = (size_t)batch->seq_length * sizeof(int32_t);
    uint64_t first = batch_first_sample(coord);
    for (int64_t row = 0; row < batch->rows; row++) {
        // Rows in order, so that the extra token of one row is overwritten by the next.
        int32_t *tokens = batch->tokens + row * batch->seq_length;
        batch->samples[row] = first + (uint64_t)row;
        TRY(data_sample(data, split, batch->samples[row], tokens, batch->marks));
        memcpy(batch->labels + row * batch->seq_length, tokens + 1, row_bytes);
        batch_mark_row(&data->marks, batch, row);
    }
    return OK;
}
