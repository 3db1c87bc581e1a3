// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_state.h"

#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { LINES = 16 }; // of sources

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* "1 document, 151 K tokens, 590 samples". */
static void add_sizes(int64_t documents, int64_t tokens, int64_t samples, struct text *out)
{
    char number[NUMBER_CHARS];
    text_add(out, "%" PRId64 " document%s, %s token%s, %" PRId64 " sample%s", documents, plural(documents),
             count_text((double)tokens, number), plural(tokens), samples, plural(samples));
}

static void add_epochs(double epochs, struct text *out)
{
    text_add(out, epochs < 1000.0 ? "%.3g epoch%s" : "%.0f epoch%s", epochs, epochs == 1.0 ? "" : "s");
}

/* What becomes of the documents: loss mask, packing, truncation. */
static void add_documents(const struct data_part *part, struct text *out)
{
    const struct dataset *dataset = part->dataset;
    if (dataset_has_mask(dataset) && part->is_packed && part->pack.filled > 0)
        text_add(out, "; %.3g %% of the packed tokens count in the loss",
                 100.0 * (double)part->counted / (double)part->pack.filled);
    else if (dataset_has_mask(dataset))
        text_add(out, "; %.3g %% of the dataset's tokens count in the loss",
                 100.0 * (double)dataset_counted_tokens(dataset) / (double)dataset_tokens(dataset));
    if (part->is_packed && part->samples > 0)
        text_add(out, "; samples are %.3g %% full",
                 100.0 * (double)part->pack.filled / ((double)part->samples * (double)part->seq_length));
    if (part->truncated > 0)
        text_add(out, "; %" PRId64 " document%s truncated by %" PRId64 " token%s", part->truncated,
                 plural(part->truncated), part->cut_tokens, plural(part->cut_tokens));
}

static double share_of(const struct data_mix *mix, int i)
{
    int64_t period;
    const int64_t share = blend_share(mix->blend, i, &period);
    return (double)share / (double)period;
}

/* The sources of a blend, a line each. */
static void add_sources(const struct data_mix *mix, const double *epochs, struct text *out)
{
    for (int i = 0; i < mix->count && i < LINES; i++) {
        const struct data_part *part = &mix->parts[i];
        text_add(out, "\n  %.4g %% %s: ", 100.0 * share_of(mix, i), dataset_prefix(part->dataset));
        add_sizes(part->documents, part->tokens, part->samples, out);
        if (epochs != NULL) {
            text_add(out, "; ");
            add_epochs(epochs[i], out);
        }
        add_documents(part, out);
    }
    if (mix->count > LINES)
        text_add(out, "\n  and %d more", mix->count - LINES);
}

static void add_mix(const struct data_mix *mix, struct text *out)
{
    int64_t documents = 0, tokens = 0, samples = 0;
    for (int i = 0; i < mix->count; i++) {
        documents += mix->parts[i].documents;
        tokens += mix->parts[i].tokens;
        samples += mix->parts[i].samples;
    }
    if (mix->count == 1)
        text_add(out, "%s: ", dataset_prefix(mix->parts[0].dataset));
    else
        text_add(out, "%d sources: ", mix->count);
    add_sizes(documents, tokens, samples, out);
}

/* Epochs of each source that a run has read after `samples`; free() the result. */
static double *epochs_after(const struct data_mix *mix, int64_t samples)
{
    AUTO_FREE int64_t *counts = memory_zeroed((size_t)mix->count + 1, sizeof *counts, "samples of sources");
    double *epochs = memory_zeroed((size_t)mix->count + 1, sizeof *epochs, "epochs of sources");
    blend_counts(mix->blend, samples > mix->from ? samples - mix->from : 0, counts);
    for (int i = 0; i < mix->count; i++)
        epochs[i] = (double)(mix->offsets[i] + counts[i]) / fmax(1.0, (double)mix->parts[i].samples);
    return epochs;
}

/* Warns of the source that is repeated most. */
static void warn_of_epochs(const struct data_mix *mix, const double *epochs, const struct data_use *use,
                           struct text *warning)
{
    int worst = 0;
    for (int i = 1; i < mix->count; i++)
        worst = epochs[i] > epochs[worst] ? i : worst;
    if (epochs[worst] <= (double)DATA_EPOCHS_MAX)
        return;
    text_add(warning, "train.train_iters %" PRId64 " makes ", use->steps);
    add_epochs(epochs[worst], warning);
    text_add(warning,
             " of %s; the same text teaches little after about %d: use more text, or train.train_iters=%.0f",
             dataset_prefix(mix->parts[worst].dataset), DATA_EPOCHS_MAX,
             fmax(1.0, floor((double)use->steps * DATA_EPOCHS_MAX / epochs[worst])));
}

static void describe_training(const struct data *data, const struct data_use *use, struct text *out,
                              struct text *warning)
{
    const struct data_mix *mix = &data->mixes[DATA_TRAIN];
    AUTO_FREE double *epochs = epochs_after(mix, use->samples);
    text_add(out, "training data: ");
    add_mix(mix, out);
    text_add(out, "; %" PRId64 " step%s of %" PRId64 " read ", use->steps, plural(use->steps), use->batch);
    if (mix->count == 1) {
        add_epochs(epochs[0], out);
        add_documents(&mix->parts[0], out);
    } else {
        text_add(out, "%" PRId64, use->samples);
        add_sources(mix, epochs, out);
    }
    text_add(out, "\n");
    warn_of_epochs(mix, epochs, use, warning);
}

static void describe_validation(const struct data *data, const struct data_use *use, struct text *out)
{
    const struct data_mix *mix = &data->mixes[DATA_VALID];
    text_add(out, "validation data: ");
    add_mix(mix, out);
    text_add(out, "; an evaluation reads %" PRId64, use->eval_samples);
    if (mix->count == 1)
        add_documents(&mix->parts[0], out);
    else
        add_sources(mix, NULL, out);
    text_add(out, "\n");
}

void data_describe(const struct data *data, const struct data_use *use, struct text *out,
                   struct text *warning)
{
    if (data->mock) {
        text_add(out, "training data: random tokens (data.mock_data)\n");
        return;
    }
    describe_training(data, use, out, warning);
    if (use->eval_samples > 0 && data->mixes[DATA_VALID].count > 0)
        describe_validation(data, use, out);
}
