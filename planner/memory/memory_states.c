// SPDX-License-Identifier: Apache-2.0
#include "planner/memory/memory_states.h"

#include "base/memory.h"

#include <stdlib.h>

/* The rows of a rank in flat order. */
struct flat {
    const struct run *run;
    const struct params *params;
    struct mesh_coord coord;
    struct bucket_range *ranges;
    const struct param **rows;
    int count;
    int64_t end;
    struct memory_states *sum;
};

static int64_t lines(int64_t elements)
{
    return (elements + 15) / 16 * 16;
}

static bool holds_stage(const struct flat *f, int stage)
{
    return schedule_holds(f->run->schedule, f->coord.pp, stage);
}

/* A second use of the embedding, whose values this rank already holds. */
static bool is_second(const struct flat *f, const struct param *row)
{
    return row->tie >= 0 && holds_stage(f, 0);
}

static bool is_tied(const struct flat *f, int index)
{
    const struct param *head = &f->params->list[f->params->count - 1];
    return head->tie >= 0 && (index == head->tie || &f->params->list[index] == head);
}

/* Rows of one matrix are stored without gaps; the next row begins at a cache line. */
static void add_row(struct flat *f, int index)
{
    const struct param *row = &f->params->list[index];
    struct slice slice = shard_slice(row->ndim, row->dim, row->shardings, row->sharding_count, f->coord);
    int64_t columns = row->ndim == 1 ? 1 : slice.padded[1], elements = slice_padded(&slice);
    int64_t rows = columns < SQUARES_BLOCK ? SQUARES_BLOCK / columns : 1; // of a block
    if (row->fuse == index) {
        f->end = lines(f->end);
        f->sum->values = lines(f->sum->values);
    }
    f->ranges[f->count] = (struct bucket_range){
        .begin = f->end,
        .end = f->end + elements,
        .block = rows * columns,
        .unit = f->run->recipe->data_parallel.zero_stage >= 2 ? row->layer : 0,
        .alone = f->run->recipe->data_parallel.zero_stage > 0 && is_tied(f, index),
    };
    f->rows[f->count++] = row;
    f->end += elements;
    f->sum->values += is_second(f, row) ? 0 : elements;
    f->sum->blocks += row->tie < 0 ? (slice.padded[0] + rows - 1) / rows : 0;
}

static void add_layer(struct flat *f, int layer)
{
    int first, count = params_of_layer(f->params, layer, &first);
    for (int i = first; i < first + count; i++)
        add_row(f, i);
}

/* Last layer first, the order in which gradients become ready. */
static void add_layers(struct flat *f)
{
    const struct run *run = f->run;
    int last = run->schedule->stages - 1;
    for (int stage = last; stage >= 0; stage--) {
        if (!holds_stage(f, stage))
            continue;
        if (stage == last)
            add_layer(f, run->stage_first_layer[last + 1]);
        for (int layer = run->stage_first_layer[stage + 1] - 1; layer >= run->stage_first_layer[stage];
             layer--)
            add_layer(f, layer);
        if (stage == 0)
            add_layer(f, LAYER_EMBEDDING);
    }
}

static int64_t common(int64_t a_begin, int64_t a_end, int64_t b_begin, int64_t b_end)
{
    int64_t begin = a_begin > b_begin ? a_begin : b_begin, end = a_end < b_end ? a_end : b_end;
    return begin < end ? end - begin : 0;
}

/* Adds the slices of this data rank in each bucket. */
static void add_slices(struct flat *f, const struct bucket_plan *plan, int64_t *gradients)
{
    int64_t slices = 0;
    int mine = plan->ranks > 1 ? f->coord.dp : 0;
    for (int b = 0; b < plan->count; b++) {
        const struct bucket *bucket = &plan->buckets[b];
        int64_t begin = bucket_slice_begin(bucket, mine), end = bucket_slice_begin(bucket, mine + 1);
        if (plan->ranks > 1 && !is_second(f, f->rows[bucket->first]))
            f->sum->moments += lines(end - begin);
        slices += lines(end - begin);
        for (int i = bucket->first; i < bucket->first + bucket->count; i++)
            if (f->rows[i]->partial == PARTIAL_TP)
                f->sum->packed += common(f->ranges[i].begin, f->ranges[i].end, begin, end);
    }
    *gradients = slices;
}

/* The largest two consecutive layers, or without overlap the largest layer. A layer extends from its first
 * row to its last. */
static int64_t neighbours(const struct flat *f, bool overlap)
{
    int64_t most = 0, before = 0;
    for (int first = 0, end; first < f->count; first = end) {
        for (end = first; end < f->count && f->rows[end]->layer == f->rows[first]->layer;)
            end++;
        int64_t layer = lines(f->ranges[end - 1].end - f->ranges[first].begin);
        int64_t both = overlap ? before + layer : layer;
        most = both > most ? both : most;
        before = layer;
    }
    return most;
}

/* ---- the file of a checkpoint ---- */

/* Rows of a parameter that a rank may write: without ZeRO those that it holds, else those that it owns. */
static int64_t saved_rows(const struct flat *f, const struct bucket_plan *plan, const struct slice *slice,
                          int index)
{
    if (plan->ranks <= 1)
        return slice->count[0];
    int i = 0;
    while (f->rows[i] != &f->params->list[index])
        i++;
    const struct bucket *bucket = &plan->buckets[plan->bucket_of[i]];
    const int64_t columns = slice->ndim == 1 ? 1 : slice->padded[1], base = f->ranges[i].begin;
    int64_t begin = (bucket_slice_begin(bucket, f->coord.dp) - base) / columns;
    int64_t end = (bucket_slice_begin(bucket, f->coord.dp + 1) - base) / columns;
    begin = begin > 0 ? begin : 0;
    end = end < slice->count[0] ? end : slice->count[0]; // what follows is padding, or another parameter
    return end > begin ? end - begin : 0;
}

/* Rows of `columns` elements from `at` to a cut, rounded down, between 0 and `rows`. */
static int64_t rows_until(int64_t cut, int64_t at, int64_t rows, int64_t columns)
{
    return cut <= at ? 0 : (cut - at) / columns < rows ? (cut - at) / columns : rows;
}

/* Ranks that hold the same elements write equal shares of them, cut between rows, in the order of the
 * model. */
static void add_saved(struct flat *f, const struct bucket_plan *plan)
{
    const struct schedule *schedule = f->run->schedule;
    const struct degrees *d = &f->run->mesh.degrees;
    const int stage = schedule_stage(schedule, f->coord.pp, 0);
    const int first = schedule->rank_of[0][stage], second = schedule->rank_of[1][stage];
    const bool whole = plan->ranks <= 1;
    int64_t index = whole ? f->coord.dp * d->cp + f->coord.cp : 0, count = whole ? d->dp * d->cp : 1;
    if (first != second) { // two replicas of the stages
        index = 2 * index + (f->coord.pp > (first == f->coord.pp ? second : first));
        count *= 2;
    }
    int64_t total = 0;
    for (int turn = 0; turn < 2; turn++) { // the sum, and then the part between two cuts of it
        const int64_t begin = total / count * index + total % count * index / count;
        const int64_t end = total / count * (index + 1) + total % count * (index + 1) / count;
        int64_t at = 0;
        for (int i = 0; i < f->params->count; i++) {
            const struct param *row = &f->params->list[i];
            if (row->tie >= 0 || !holds_stage(f, run_stage_of_layer(f->run, row->layer)))
                continue;
            const struct slice slice =
                shard_slice(row->ndim, row->dim, row->shardings, row->sharding_count, f->coord);
            const int64_t rows = slice.first_replica ? saved_rows(f, plan, &slice, i) : 0,
                          columns = slice.count[1];
            if (turn == 1 && rows > 0)
                f->sum->saved +=
                    (rows_until(end, at, rows, columns) - rows_until(begin, at, rows, columns)) * columns;
            at += rows * columns;
        }
        total = at;
    }
}

enum status memory_states_of(const struct run *run, const struct params *params, struct mesh_coord coord,
                             struct memory_states *out)
{
    const struct data_parallel_options *options = &run->recipe->data_parallel;
    struct flat f = {.run = run, .params = params, .coord = coord, .sum = out};
    struct bucket_plan plan = {0};
    int zero = options->zero_stage, ranks = zero > 0 ? run->recipe->parallel.data_parallel_size : 1;
    double bytes = zero >= 2 ? 0x1p62 : options->bucket_size_mb * 1048576.0;
    *out = (struct memory_states){0};
    f.ranges = memory_zeroed((size_t)params->count, sizeof *f.ranges, "the parameters");
    f.rows = memory_zeroed((size_t)params->count, sizeof *f.rows, "the parameters");
    add_layers(&f);
    enum status status = bucket_plan_create(f.ranges, f.count, (int64_t)bytes, ranks, &plan);
    if (status == OK) {
        int64_t slices;
        add_slices(&f, &plan, &slices);
        if (run->recipe->checkpoint.async_save)
            add_saved(&f, &plan);
        out->moments = ranks > 1 ? out->moments : lines(out->values);
        out->values = zero >= 3 ? out->moments : lines(out->values);
        out->gradients = zero >= 2 ? slices : lines(f.end);
        out->whole = f.end;
        out->messages = plan.count;
        out->opened = zero >= 2 ? neighbours(&f, options->overlap_grad_reduce) : 0;
        out->gathered = zero >= 3 ? neighbours(&f, options->overlap_param_gather) : 0;
    }
    bucket_plan_destroy(&plan);
    free(f.ranges);
    free(f.rows);
    return status;
}

/* Bytes of the replicated state in the file of rank 0. */
static int64_t replicated_bytes(const struct recipe *recipe, const struct params *params)
{
    enum { LOSS_SCALE_BYTES = 3 * sizeof(double) };
    const struct recipe_precision *precision = &recipe->precision;
    const bool has_scale = precision->params_dtype == F16 && !(precision->loss_scale > 0.0);
    int64_t bytes = has_scale ? LOSS_SCALE_BYTES : 0;
    for (int i = 0; i < params->count && precision->scaling == SCALE_DELAYED; i++)
        if (params->list[i].ndim == 2 && params->list[i].layer >= 0 &&
            params->list[i].layer < recipe->model.num_layers)
            bytes += OPERAND_COUNT * precision->amax_history_len * (int64_t)sizeof(float);
    return bytes;
}

int64_t memory_snapshot_bytes(const struct run *run, const struct params *params, int rank,
                              const struct memory_states *states)
{
    const struct recipe *recipe = run->recipe;
    const int64_t moments = recipe->checkpoint.save_optim ? 2 * (int64_t)sizeof(float) : 0;
    const int64_t limit = recipe->checkpoint.staging_mb << 20;
    int64_t bytes = states->saved * ((recipe->precision.main_params_dtype == BF16 ? 2 : 4) + moments);
    if (!recipe->checkpoint.async_save || recipe->checkpoint.save == NULL)
        return 0;
    bytes += rank == 0 ? replicated_bytes(recipe, params) : 0;
    return limit > 0 && limit < bytes ? limit : bytes;
}
