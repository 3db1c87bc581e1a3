// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/score.h"

#include "base/memory.h"
#include "trainer/engine/agree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The report: losses, tokens and text sizes of all windows; then unread slots, for ranks that compute the
 * same losses as another one. */
enum { REPORTED = 3, UNREAD = 2 };

static struct tensor report_part(const struct scorer *scorer, int64_t at, int64_t count)
{
    return tensor_1d((double *)scorer->report.data + at, F64, count);
}

static enum status create(struct scorer *s)
{
    const struct recipe *recipe = s->state->run->recipe;
    const int64_t rows = recipe->train.micro_batch_size, length = recipe->model.seq_length;
    const int count = (int)recipe_microbatches(recipe);
    s->capacity = rows * count * s->state->mesh.degrees.dp;
    TRY(batches_create(s->state->device, count, rows, length, &s->batches));
    TRY(buffer_alloc(s->state->device, PART_DATA,
                     (size_t)((REPORTED + UNREAD) * s->capacity) * sizeof(double), &s->report));
    s->host = memory_zeroed((size_t)(REPORTED * s->capacity), sizeof *s->host, "the losses of windows");
    s->scores = memory_zeroed((size_t)s->capacity, sizeof *s->scores, "the losses of windows");
    s->ids = memory_zeroed((size_t)length + 1, sizeof *s->ids, "the tokens of a window");
    s->counts = memory_zeroed((size_t)length + 1, sizeof *s->counts, "the tokens of a window");
    return OK;
}

enum status scorer_create(struct rank_state *state, struct scorer *out)
{
    *out = (struct scorer){.state = state};
    const enum status status = create(out);
    if (status != OK)
        scorer_destroy(out);
    return status;
}

void scorer_destroy(struct scorer *scorer)
{
    batches_destroy(&scorer->batches);
    buffer_free(&scorer->report);
    free(scorer->host);
    free(scorer->scores);
    free(scorer->ids);
    free(scorer->counts);
    *scorer = (struct scorer){0};
}

/* ---- the rows of this rank ---- */

static bool has_documents(const struct document_marks *marks)
{
    return marks->reset_attention_mask;
}

/* Fills row `row` of the microbatch in batches.scratch; NULL: a row without targets. */
static void fill_row(struct scorer *s, const struct document_marks *marks, const struct window *window,
                     int64_t row)
{
    struct batch_tokens *batch = &s->batches.scratch;
    const int64_t length = batch->seq_length, at = row * length;
    const int64_t inputs = window != NULL ? window->count - 1 : 0;
    memset(batch->tokens + at, 0, (size_t)length * sizeof *batch->tokens);
    memset(batch->labels + at, 0, (size_t)length * sizeof *batch->labels);
    for (int64_t i = 0; i < inputs; i++) {
        batch->tokens[at + i] = window->ids[i];
        batch->labels[at + i] = window->ids[i + 1];
    }
    memset(batch->marks, 0, (size_t)length + 1);
    for (int64_t i = 0; i <= inputs && window != NULL; i++)
        batch->marks[i] = window->counts[i] != 0 ? MARK_COUNTS : 0;
    batch_mark_row(marks, batch, row);
    for (int64_t i = 0; i < length; i++)
        if (window == NULL || i < inputs - window->targets || i >= inputs)
            batch->loss_mask[at + i] = 0.0F;
    batch->samples[row] = 0;
}

/* The number of a row among the windows of a call. */
static int64_t number_of(const struct scorer *s, int microbatch, int64_t row)
{
    const struct rank_state *state = s->state;
    return ((int64_t)microbatch * state->mesh.degrees.dp + state->groups->coord.dp) * s->batches.rows + row;
}

/* Text sizes have one contributor, too: the first rank that holds the window. */
static bool reports_text(const struct scorer *s)
{
    return s->state->groups->coord.tp == 0 && s->state->groups->coord.pp == 0;
}

/* Reads this rank's windows into the host copies of the microbatches, and their text sizes into s->host. */
static enum status read_windows(struct scorer *s, const struct window_source *source, int64_t begin,
                                int64_t count, int microbatches)
{
    double *text_size = s->host + 2 * s->capacity;
    memset(s->host, 0, (size_t)(REPORTED * s->capacity) * sizeof *s->host);
    for (int j = 0; j < microbatches; j++) {
        for (int64_t row = 0; row < s->batches.rows; row++) {
            const int64_t number = number_of(s, j, row);
            struct window window = {.ids = s->ids, .counts = s->counts};
            if (number < count)
                TRY(source->read(source->self, begin + number, &window));
            fill_row(s, &source->marks, number < count ? &window : NULL, row);
            if (number < count && reports_text(s))
                text_size[number] = (double)window.text_size;
        }
        batches_pack(&s->batches, j, has_documents(&source->marks));
    }
    return OK;
}

/* Only tensor rank 0 reports losses: all of them compute the same. */
static void point_to_slots(struct scorer *s, int microbatches)
{
    const bool reports = s->state->groups->coord.tp == 0;
    for (int j = 0; j < microbatches; j++) {
        const int64_t at = number_of(s, j, 0) + (reports ? 0 : REPORTED * s->capacity);
        struct batch *batch = &s->batches.list[j];
        batch->sample_loss = report_part(s, at, s->batches.rows);
        batch->sample_tokens = report_part(s, at + s->capacity, s->batches.rows);
    }
}

/* ---- all ranks ---- */

static enum status exchange(struct scorer *s)
{
    struct rank_state *state = s->state;
    struct tensor all = report_part(s, 0, REPORTED * s->capacity);
    TRY(group_all_reduce(state->groups->world, state->compute, all, REDUCE_SUM));
    TRY(copy_to_host(state->compute, s->host, all.data, tensor_bytes(all)));
    return stream_sync(state->compute);
}

static enum status collect(struct scorer *s, int64_t begin, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        s->scores[i] = (struct window_score){.loss = s->host[i],
                                             .tokens = s->host[s->capacity + i],
                                             .text_size = s->host[2 * s->capacity + i]};
        if (!isfinite(s->scores[i].loss))
            return fail(NOT_FINITE, "window %lld: the loss is %g: the weights are not usable",
                        (long long)(begin + i), s->scores[i].loss);
    }
    return OK;
}

enum status scorer_run(struct scorer *scorer, const struct window_source *source, int64_t begin,
                       int64_t count)
{
    struct rank_state *state = scorer->state;
    const int64_t per_microbatch = scorer->batches.rows * state->mesh.degrees.dp;
    const int microbatches = (int)((count + per_microbatch - 1) / per_microbatch);
    CHECK(count >= 1 && count <= scorer->capacity);
    TRY(rank_agree(state, read_windows(scorer, source, begin, count, microbatches)));
    TRY(batches_send(&scorer->batches, state->compute, microbatches));
    TRY(copy_to_device(state->compute, scorer->report.data, scorer->host,
                       (size_t)(REPORTED * scorer->capacity) * sizeof *scorer->host));
    point_to_slots(scorer, microbatches);
    TRY(executor_evaluate(state->executor, scorer->batches.list, microbatches));
    TRY(exchange(scorer));
    return collect(scorer, begin, count);
}
