// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/optimizer.h"

#include "base/memory.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/optimizer/moment_window.h"

#include <math.h>
#include <stdlib.h>

enum { RESULTS = 4 }; // results of the clip op

struct optimizer {
    struct optimizer_config config;
    int tp;               // number of entries per row
    int64_t loss_count;   // G
    int64_t squares;      // rows * tp
    struct buffer report; // f64: loss[G] tokens[G] squares[rows * tp] scratch[2 G] result[RESULTS]
    struct buffer hyper;
    struct buffer packed; // f32: rows that are partial over tp, packed
    int64_t packed_count;
    struct buffer blocks; // f64: squares of the blocks of each held row, packed
    int64_t block_count;
    struct moment_window window;   // if moments are in host memory
    struct squares *owned_squares; // [owned rows] op arguments
    struct sum *held_sums;
    struct adamw *owned_steps;
    struct adamw_hyper host_hyper;
    double *host_report;
};

/* ---- creation ---- */

static int64_t report_count(const struct optimizer *o)
{
    return 4 * o->loss_count + o->squares + RESULTS;
}

static struct tensor report_part(const struct optimizer *o, int64_t begin, int64_t count)
{
    return tensor_1d((double *)o->report.data + begin, F64, count);
}

static bool is_partial(const struct owned_param *owned, enum partial kind)
{
    return owned->held->param->partial == kind;
}

/* True if this rank counts its share of the row in the norm: the first of its holders on the tp axis, and not
 * for the second use of a tied weight. */
static bool is_counted(const struct held_param *held)
{
    return held->param->tie < 0 && held->slice.first_replica;
}

static int64_t blocks_of(const struct held_param *held)
{
    return held->param->tie < 0 ? squares_blocks(held->weight) : 0;
}

/* Allocates the lists of owned and held rows. */
static enum status make_lists(struct optimizer *o)
{
    const struct weights *weights = o->config.weights;
    o->owned_squares = memory_zeroed((size_t)weights->owned_count, sizeof *o->owned_squares,
                                     "the optimizer's lists of weights and the report of a step");
    o->owned_steps = memory_zeroed((size_t)weights->owned_count, sizeof *o->owned_steps,
                                   "the optimizer's lists of weights and the report of a step");
    o->held_sums = memory_zeroed((size_t)weights->count, sizeof *o->held_sums,
                                 "the optimizer's lists of weights and the report of a step");
    o->host_report = memory_zeroed((size_t)report_count(o), sizeof *o->host_report,
                                   "the optimizer's lists of weights and the report of a step");
    return OK;
}

static enum status fill_optimizer(struct optimizer *o)
{
    struct weights *weights = o->config.weights;
    o->tp = o->config.groups->tp->size;
    o->loss_count = o->config.global_batch_size;
    o->squares = (int64_t)weights->params->count * o->tp;
    for (int i = 0; i < weights->owned_count; i++)
        if (is_partial(&weights->owned[i], PARTIAL_TP))
            o->packed_count += tensor_count(weights->owned[i].gradient);
    for (int i = 0; i < weights->count; i++)
        o->block_count += blocks_of(&weights->list[i]);
    TRY(make_lists(o));
    struct device *device = weights->device;
    TRY(buffer_alloc(device, PART_DATA, (size_t)report_count(o) * sizeof(double), &o->report));
    TRY(buffer_alloc(device, PART_DATA, sizeof(struct adamw_hyper), &o->hyper));
    TRY(buffer_alloc(device, PART_WORKSPACE, (size_t)o->block_count * sizeof(double), &o->blocks));
    if (o->config.offload)
        TRY(moment_window_create(o->config.compute, &o->window));
    if (o->packed_count == 0)
        return OK;
    return buffer_alloc(device, PART_COMMUNICATION, (size_t)o->packed_count * sizeof(float), &o->packed);
}

enum status optimizer_create(const struct optimizer_config *config, struct optimizer **out)
{
    struct optimizer *o = memory_zeroed(1, sizeof *o, "the optimizer");
    o->config = *config;
    enum status status = fill_optimizer(o);
    if (status == OK)
        *out = o;
    else
        optimizer_destroy(o);
    return status;
}

void optimizer_destroy(struct optimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    buffer_free(&optimizer->report);
    buffer_free(&optimizer->hyper);
    buffer_free(&optimizer->packed);
    buffer_free(&optimizer->blocks);
    moment_window_destroy(&optimizer->window);
    free(optimizer->owned_squares);
    free(optimizer->held_sums);
    free(optimizer->owned_steps);
    free(optimizer->host_report);
    free(optimizer);
}

/* ---- the step ---- */

enum status optimizer_begin(struct optimizer *optimizer)
{
    return fill(optimizer->config.compute,
                (struct fill){.out = report_part(optimizer, 0, report_count(optimizer)), .value = 0.0F});
}

void optimizer_loss_slots(struct optimizer *optimizer, int64_t index, int64_t count, struct tensor *loss,
                          struct tensor *tokens)
{
    bool reports_loss = optimizer->config.groups->coord.tp == 0;
    int64_t unread = 2 * optimizer->loss_count + optimizer->squares;
    *loss = report_part(optimizer, reports_loss ? index : unread + index, count);
    *tokens = report_part(optimizer, (reports_loss ? index : unread + index) + optimizer->loss_count, count);
}

static struct tensor flat(struct tensor t)
{
    return tensor_1d(t.data, t.dtype, tensor_count(t));
}

static struct tensor flat_or_none(struct tensor t)
{
    return t.data != NULL ? flat(t) : t;
}

/* Packs the gradients of the partial rows into one buffer, or unpacks them. */
static enum status pack(struct optimizer *o, bool back)
{
    int64_t at = 0;
    for (int i = 0; i < o->config.weights->owned_count; i++) {
        const struct owned_param *owned = &o->config.weights->owned[i];
        if (!is_partial(owned, PARTIAL_TP))
            continue;
        struct tensor gradient = flat(owned->gradient);
        struct tensor packed = tensor_1d((float *)o->packed.data + at, F32, gradient.dim[0]);
        TRY(copy(o->config.compute,
                 (struct copy){.in = back ? packed : gradient, .out = back ? gradient : packed}));
        at += gradient.dim[0];
    }
    return OK;
}

/* Sums the packed gradients over tp: one all-reduce for consecutive rows of one mesh. */
static enum status reduce_packed(struct optimizer *o)
{
    int64_t begin = 0, end = 0;
    enum mesh_kind mesh = MESH_DENSE;
    for (int i = 0; i <= o->config.weights->owned_count; i++) {
        const struct owned_param *owned =
            i < o->config.weights->owned_count ? &o->config.weights->owned[i] : NULL;
        if (owned != NULL && !is_partial(owned, PARTIAL_TP))
            continue;
        if (end > begin && (owned == NULL || owned->held->param->mesh != mesh)) {
            TRY(group_all_reduce(groups_of(o->config.groups, mesh).tp, o->config.compute,
                                 tensor_1d((float *)o->packed.data + begin, F32, end - begin), REDUCE_SUM));
            begin = end;
        }
        if (owned != NULL) {
            mesh = owned->held->param->mesh;
            end += tensor_count(owned->gradient);
        }
    }
    return OK;
}

static enum status add_partials(struct optimizer *o)
{
    const struct groups *groups = o->config.groups;
    struct stream *compute = o->config.compute;
    if (o->packed_count > 0) {
        TRY(pack(o, false));
        TRY(reduce_packed(o));
        TRY(pack(o, true));
    }
    for (int i = 0; i < o->config.weights->owned_count; i++) {
        const struct owned_param *owned = &o->config.weights->owned[i];
        if (is_partial(owned, PARTIAL_KV))
            TRY(group_all_reduce(groups->kv, compute, flat(owned->gradient), REDUCE_SUM));
    }
    return OK;
}

/* embedding + head, each complete: an addition on one rank, an exchange between two. Both have the same
 * partition. */
static enum status add_ties(struct optimizer *o)
{
    struct weights *weights = o->config.weights;
    for (int i = 0; i < weights->params->count; i++) {
        int original = weights->params->list[i].tie;
        if (original < 0)
            continue;
        struct owned_param *second = weights_owned(weights, i), *first = weights_owned(weights, original);
        if (first != NULL && second != NULL)
            TRY(add(o->config.compute,
                    (struct add){.in = flat(second->gradient), .out = flat(first->gradient)}));
        else if (first != NULL || second != NULL)
            TRY(group_all_reduce(o->config.groups->ties, o->config.compute,
                                 flat(first != NULL ? first->gradient : second->gradient), REDUCE_SUM));
    }
    return OK;
}

static struct tensor blocks_view(const struct optimizer *o, int64_t begin, int64_t count)
{
    return tensor_1d((double *)o->blocks.data + begin, F64, count);
}

/* One all-reduce over data ranks for the blocks of consecutive weights of one mesh. */
static enum status sum_blocks(struct optimizer *o)
{
    const struct weights *weights = o->config.weights;
    int64_t begin = 0, end = 0;
    for (int i = 0; i < weights->count; i++) {
        enum mesh_kind mesh = weights->list[i].param->mesh;
        end += blocks_of(&weights->list[i]);
        if (i + 1 < weights->count && weights->list[i + 1].param->mesh == mesh)
            continue;
        TRY(group_all_reduce(groups_of(o->config.groups, mesh).data, o->config.compute,
                             blocks_view(o, begin, end - begin), REDUCE_SUM));
        begin = end;
    }
    return OK;
}

/* Computes the squares of every block on its owner, then all-reduces over the data ranks: adding zeros to a
 * value is exact. */
static enum status find_blocks(struct optimizer *o)
{
    const struct weights *weights = o->config.weights;
    struct tensor all = blocks_view(o, 0, o->block_count);
    struct squares_list list = {.at = o->owned_squares};
    int64_t first = 0;
    TRY(fill(o->config.compute, (struct fill){.out = all, .value = 0.0F}));
    for (int i = 0, h = 0; i < weights->owned_count; i++) {
        const struct owned_param *owned = &weights->owned[i];
        struct tensor gradient = owned->gradient;
        for (; &weights->list[h] != owned->held; h++)
            first += blocks_of(&weights->list[h]);
        int64_t rows = squares_block_rows(gradient.ndim == 1 ? 1 : gradient.dim[1]);
        struct tensor out = blocks_view(o, first + owned->begin / rows, squares_blocks(gradient));
        if (is_counted(owned->held))
            o->owned_squares[list.count++] = (struct squares){.x = gradient, .out = out};
    }
    TRY(squares_each(o->config.compute, list));
    return weights->zero_stage == 0 ? OK : sum_blocks(o);
}

/* Writes one entry per row and share, on the rank that reports it. */
enum status optimizer_report_squares(struct optimizer *optimizer)
{
    const struct groups *groups = optimizer->config.groups;
    const struct weights *weights = optimizer->config.weights;
    bool sharded =
        weights->zero_stage > 0 && (groups->stage_replicas == NULL || groups->stage_replicas->rank == 0);
    struct sum_list list = {.at = optimizer->held_sums};
    int64_t first = 0;
    if (!sharded && !groups_is_primary_replica(groups))
        return OK;
    TRY(find_blocks(optimizer));
    for (int i = 0; i < weights->count && groups_is_primary_replica(groups); i++) {
        const struct held_param *held = &weights->list[i];
        int64_t count = blocks_of(held);
        int64_t at = 2 * optimizer->loss_count + (int64_t)held->index * optimizer->tp + groups->coord.tp;
        if (is_counted(held))
            optimizer->held_sums[list.count++] =
                (struct sum){.x = blocks_view(optimizer, first, count), .out = report_part(optimizer, at, 1)};
        first += count;
    }
    return sum_each(optimizer->config.compute, list);
}

struct tensor optimizer_report(const struct optimizer *optimizer)
{
    return report_part(optimizer, 0, 2 * optimizer->loss_count + optimizer->squares);
}

enum status optimizer_compute_result(struct optimizer *optimizer, struct tensor report, struct tensor tokens)
{
    double *at = report.data;
    return clip(optimizer->config.compute,
                (struct clip){
                    .loss = tensor_1d(at, F64, optimizer->loss_count),
                    .tokens = tokens,
                    .squares = tensor_1d(at + 2 * optimizer->loss_count, F64, optimizer->squares),
                    .limit = optimizer->config.recipe->clip_grad,
                    .loss_scale = optimizer->config.loss_scale,
                    .hyper = optimizer->hyper.data,
                    .result = report_part(optimizer, report_count(optimizer) - RESULTS, RESULTS),
                });
}

enum status optimizer_reduce_report(struct optimizer *optimizer)
{
    struct tensor everyones = optimizer_report(optimizer);
    TRY(group_all_reduce(optimizer->config.groups->world, optimizer->config.compute, everyones, REDUCE_SUM));
    return optimizer_compute_result(optimizer, everyones,
                                    report_part(optimizer, optimizer->loss_count, optimizer->loss_count));
}

enum status optimizer_complete_gradients(struct optimizer *optimizer)
{
    TRY(add_partials(optimizer));
    return add_ties(optimizer);
}

struct adamw_hyper optimizer_hyper(const struct recipe_optimizer *recipe, int64_t step)
{
    return (struct adamw_hyper){
        .lr = (float)learning_rate(recipe, step),
        .one_minus_beta1 = (float)(1.0 - recipe->adam_beta1),
        .one_minus_beta2 = (float)(1.0 - recipe->adam_beta2),
        .epsilon = (float)recipe->adam_eps,
        .correction1 = (float)(1.0 - pow(recipe->adam_beta1, (double)step)),
        .correction2 = (float)(1.0 - pow(recipe->adam_beta2, (double)step)),
        .weight_decay = (float)recipe->weight_decay,
        .step = (uint64_t)step,
    };
}

enum status optimizer_set_hyper(struct optimizer *optimizer, int64_t step)
{
    optimizer->host_hyper = optimizer_hyper(optimizer->config.recipe, step);
    return copy_to_device(optimizer->config.compute, optimizer->hyper.data, &optimizer->host_hyper,
                          sizeof optimizer->host_hyper);
}

static struct adamw step_of(const struct optimizer *o, const struct owned_param *owned)
{
    return (struct adamw){
        .weight = flat(owned->value),
        .gradient = flat(owned->gradient),
        .m = flat(owned->m),
        .v = flat(owned->v),
        .hyper = o->hyper.data,
        .decay = owned->held->param->decay,
        .working = flat_or_none(owned->working),
        .stochastic = owned_stochastic(o->config.weights, owned, o->config.seed),
    };
}

/* Everything that this rank owns. */
static struct adamw_list steps_of(struct optimizer *o)
{
    const struct weights *weights = o->config.weights;
    struct adamw_list list = {.at = o->owned_steps};
    for (int i = 0; i < weights->owned_count; i++)
        if (!weights->owned[i].held->second_use)
            o->owned_steps[list.count++] = step_of(o, &weights->owned[i]);
    return list;
}

static enum status step_through_window(struct optimizer *o, struct adamw_list all)
{
    TRY(moment_window_begin(&o->window));
    for (int64_t i = 0; i < all.count; i++)
        TRY(moment_window_step(&o->window, all.at[i]));
    return moment_window_end(&o->window, o->config.weights);
}

enum status optimizer_apply(struct optimizer *optimizer)
{
    struct adamw_list all = steps_of(optimizer);
    TRY(optimizer->config.offload ? step_through_window(optimizer, all)
                                  : adamw_each(optimizer->config.compute, all));
    return weights_gather(optimizer->config.weights, optimizer->config.compute);
}

enum status optimizer_update(struct optimizer *optimizer, int64_t step)
{
    TRY(optimizer_set_hyper(optimizer, step));
    TRY(optimizer_reduce_report(optimizer));
    return optimizer_apply(optimizer);
}

enum status optimizer_read(struct optimizer *optimizer, struct tensor report, struct step_result *out)
{
    struct adamw_hyper hyper = {0};
    double result[RESULTS] = {0.0};
    TRY(copy_to_host(optimizer->config.compute, optimizer->host_report, report.data, tensor_bytes(report)));
    TRY(copy_to_host(optimizer->config.compute, result,
                     report_part(optimizer, report_count(optimizer) - RESULTS, RESULTS).data, sizeof result));
    TRY(copy_to_host(optimizer->config.compute, &hyper, optimizer->hyper.data, sizeof hyper));
    TRY(stream_sync(optimizer->config.compute));
    const double *squares = optimizer->host_report + 2 * optimizer->loss_count;
    *out = (struct step_result){.loss = result[0],
                                .grad_norm = result[1],
                                .tokens = result[2],
                                .gradient_scale = hyper.gradient_scale,
                                .loss_scale = result[3],
                                .skipped = hyper.skip != 0.0F,
                                .not_finite_param = -1};
    for (int64_t i = 0; i < optimizer->squares && out->not_finite_param < 0; i++)
        if (!isfinite(squares[i])) {
            out->not_finite_param = (int)(i / optimizer->tp);
            out->not_finite_share = (int)(i % optimizer->tp);
        }
    return OK;
}

enum status optimizer_finish(struct optimizer *optimizer, struct step_result *out)
{
    return optimizer_read(optimizer, optimizer_report(optimizer), out);
}
