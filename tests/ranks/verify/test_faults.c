// SPDX-License-Identifier: Apache-2.0
/* Faults known from real trainers, injected one by one into a layout's run, must be detected by verify, in
 * the quantity they affect first; without the fault the same layout must pass. The trainer has no code for
 * this: a fault modifies the tables and the memory of a rank from the observers of step_observer.h.
 *
 * Pitfall: a fault in memory that ranks share would affect other ranks too. Hooks run on
 * every rank at once and modify their own rank state only. The device is the cpu: its streams are
 * synchronous, and its memory can be written from here once a stream is synchronized. */
#include "tests/ranks/verify/faults.h"
#include "tests/support/tiny_verify.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// A function of a step_observer has that signature, whether or not a fault uses the step.
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- access to a rank's state ---- */

static struct param *row_named(struct rank_state *w, const char *name)
{
    int row = params_find(&w->params, name);
    CHECK(row >= 0);
    return &w->params.list[row];
}

struct held_param *held_named(struct rank_state *w, const char *name)
{
    return weights_held(&w->weights, params_find(&w->params, name));
}

enum status scale(struct rank_state *w, struct tensor t, float factor)
{
    TRY(stream_sync(w->compute));
    float *x = t.data;
    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] *= factor;
    return OK;
}

static enum status scale_gradient(struct rank_state *w, const char *name, float factor)
{
    struct held_param *held = held_named(w, name);
    return held != NULL ? scale(w, held->gradient, factor) : OK;
}

/* ---- parameter descriptors ---- */

static enum status norm_not_reduced(void *context, struct rank_state *w)
{
    row_named(w, "layers.1.norm1.weight")->partial = PARTIAL_NONE;
    return OK;
}

static enum status replicated_gradient_summed(void *context, struct rank_state *w)
{
    row_named(w, "layers.0.norm2.bias")->partial = PARTIAL_TP;
    return OK;
}

static enum status replicated_kv_not_summed(void *context, struct rank_state *w)
{
    row_named(w, "layers.0.attention.k.weight")->partial = PARTIAL_NONE;
    return OK;
}

static enum status embedding_norm_not_reduced(void *context, struct rank_state *w)
{
    row_named(w, "embedding_norm.weight")->partial = PARTIAL_NONE;
    return OK;
}

static enum status weight_decay_on_norm(void *context, struct rank_state *w)
{
    row_named(w, "norm.weight")->decay = true;
    return OK;
}

/* One row of the head more than the vocabulary has: the last rank's padding takes part in the softmax. */
static enum status padding_declared(void *context, struct rank_state *w)
{
    row_named(w, "head.weight")->dim[0]++;
    return OK;
}

/* Only the head uses the modified descriptor, not the code that reads weights. */
static enum status padding_built(void *context, struct rank_state *w)
{
    struct param *row = row_named(w, "head.weight");
    row->dim[0]--;
    struct held_param *held = held_named(w, "head.weight");
    if (held != NULL)
        held->slice = shard_slice(row->ndim, row->dim, row->shardings, row->sharding_count, w->groups->coord);
    return OK;
}

/* ---- initial weights ---- */

static enum status draw_again(struct rank_state *w, const char *held_name, const char *drawn_name,
                              int64_t begin)
{
    struct held_param *held = held_named(w, held_name);
    if (held == NULL)
        return OK;
    return init_normal(w->compute, (struct init_normal){
                                       .out = tensor_rows(held->weight, 0, held->slice.count[0]),
                                       .generator = philox_named(w->run->recipe->seed, drawn_name),
                                       .std = held->param->std,
                                       .row_begin = begin,
                                       .column_begin = held->slice.begin[1],
                                       .columns = held->param->dim[1],
                                   });
}

static enum status local_index(void *context, struct rank_state *w)
{
    return draw_again(w, "layers.3.mlp.fc1.weight", "layers.3.mlp.fc1.weight", 0);
}

/* The copy of a tied weight is initialized under its own name. */
static enum status tied_copy_drawn_separately(void *context, struct rank_state *w)
{
    struct held_param *held = held_named(w, "head.weight");
    return held == NULL ? OK : draw_again(w, "head.weight", "head.weight", held->slice.begin[0]);
}

/* ---- gradients ---- */

static enum status tied_gradient_twice(void *context, struct rank_state *w, int64_t step)
{
    return scale_gradient(w, "head.weight", 2.0F);
}

static enum status tied_gradient_not_added(void *context, struct rank_state *w, int64_t step)
{
    return scale_gradient(w, "head.weight", 0.0F);
}

static const char shared_norm[] = "layers.1.norm1.weight";

static enum status shared_norm_twice(void *context, struct rank_state *w, int64_t step)
{
    return scale_gradient(w, shared_norm, 2.0F);
}

/* By one part in ten thousand. */
static enum status gradient_scaled_up(void *context, struct rank_state *w, int64_t step)
{
    return scale_gradient(w, "layers.3.mlp.fc1.weight", 1.0001F);
}

static enum status scaled_by_tp(void *context, struct rank_state *w, int64_t step)
{
    return scale_gradient(w, "layers.2.attention.proj.bias", (float)w->mesh.degrees.tp);
}

/* The last bit of one gradient, on one of two ranks that hold it, after all reductions. */
static enum status replica_drifts(void *context, struct rank_state *w, int64_t step)
{
    struct held_param *held = held_named(w, "layers.4.mlp.fc2.weight");
    if (held == NULL || groups_is_primary_replica(w->groups))
        return OK;
    TRY(stream_sync(w->compute));
    float *x = held->gradient.data;
    x[3] = nextafterf(x[3], INFINITY);
    return OK;
}

static enum status data_parallel_off(void *context, struct rank_state *w)
{
    w->groups->data->size = 1;
    return OK;
}

static enum status data_parallel_restored(void *context, struct rank_state *w, int64_t step)
{
    w->groups->data->size = w->mesh.degrees.dp;
    return OK;
}

static enum status data_parallel_twice(void *context, struct rank_state *w, int64_t step)
{
    return group_all_reduce(w->groups->data, w->compute, w->weights.flat_gradient, REDUCE_SUM);
}

/* One data rank accumulates one gradient in another buffer, and adds zeros to the data-parallel sum. */
static const char lost_bucket[] = "layers.2.mlp.fc2.weight";

static enum status separate_bucket(void *context, struct rank_state *w)
{
    struct held_param *held = held_named(w, lost_bucket);
    if (held == NULL || w->groups->coord.dp == 0)
        return OK;
    held->gradient.data = calloc((size_t)slice_padded(&held->slice), sizeof(float));
    return held->gradient.data != NULL ? OK : fail(NO_MEMORY, "no memory for a lost gradient");
}

static enum status lose_bucket(void *context, struct rank_state *w, int64_t step)
{
    struct held_param *held = held_named(w, lost_bucket);
    if (held == NULL || w->groups->coord.dp == 0)
        return OK;
    TRY(stream_sync(w->compute));
    free(held->gradient.data);
    held->gradient.data = (float *)w->weights.gradient.data + held->gradient_offset;
    return OK;
}

/* ---- the norm, and AdamW ---- */

static enum status set_primary(struct rank_state *w, const char *name, int tp, bool first)
{
    struct held_param *held = held_named(w, name);
    if (held != NULL && w->groups->coord.tp == tp)
        held->slice.first_replica = first;
    return OK;
}

static enum status replica_twice_in_norm(void *context, struct rank_state *w, int64_t step)
{
    return set_primary(w, "layers.3.norm2.weight", 1, true);
}

static enum status restore_replica_in_norm(void *context, struct rank_state *w, int64_t step)
{
    return set_primary(w, "layers.3.norm2.weight", 1, false);
}

static enum status shard_missing_in_norm(void *context, struct rank_state *w, int64_t step)
{
    return set_primary(w, "layers.0.mlp.fc1.weight", 1, false);
}

static enum status restore_shard_in_norm(void *context, struct rank_state *w, int64_t step)
{
    return set_primary(w, "layers.0.mlp.fc1.weight", 1, true);
}

static enum status v_reset(void *context, struct rank_state *w, int64_t step)
{
    struct owned_param *owned =
        weights_owned(&w->weights, params_find(&w->params, "layers.1.mlp.fc2.weight"));
    return owned != NULL ? scale(w, owned->v, 0.0F) : OK;
}

/* ---- stage replicas: the two ranks that hold a stage in DualPipe ---- */

static enum status replica_sum_off(void *context, struct rank_state *w)
{
    w->groups->stage_replicas->size = 1;
    return OK;
}

static enum status replica_sum_restored(void *context, struct rank_state *w, int64_t step)
{
    w->groups->stage_replicas->size = 2;
    return OK;
}

static enum status replica_sum_twice(void *context, struct rank_state *w, int64_t step)
{
    return group_all_reduce(w->groups->stage_replicas, w->compute, w->weights.flat_gradient, REDUCE_SUM);
}

/* Both replicas add their squares to the global norm. */
static enum status both_replicas_in_norm(void *context, struct rank_state *w, int64_t step)
{
    w->groups->stage_replicas->rank = 0;
    return OK;
}

static enum status restore_replica_norm(void *context, struct rank_state *w, int64_t step)
{
    w->groups->stage_replicas->rank = w->groups->stage_replicas->ranks[0] == w->world->rank ? 0 : 1;
    return OK;
}

/* ---- the list ---- */

struct fault {
    const char *name;
    struct step_observer observer;
    int quantity;    // the quantity that must be out of bounds
    const char *row; // and the parameter; NULL: any
};

/* Faults for one layout, which is also run without any. */
struct fault_layout {
    struct comparison comparison;
    const struct fault *faults;
    int most; // faults to run, from the first; 0: all. Wider bounds do not detect the others
};

#define END                \
    {                      \
        NULL, {0}, 0, NULL \
    }

static const struct fault in_square[] = {
    {"a tied gradient added twice",
     {.on_gradients_reduced = tied_gradient_twice},
     VERIFY_GRADIENT,
     "embedding.weight"},
    {"data-parallel gradients reduced twice",
     {.on_gradients_reduced = data_parallel_twice},
     VERIFY_GRADIENT,
     "layers.0.mlp.fc1.weight"},
    {"a row-parallel layer without its all-reduce",
     {.on_weights_initialized = skip_all_reduce, .on_gradients_reduced = restore_all_reduce},
     QUANTITY_LOSS,
     NULL},
    {"all data ranks read the first one's samples",
     {.on_batches_loaded = data_of_first},
     QUANTITY_LOSS,
     NULL},
    {"a gradient scaled by tp",
     {.on_gradients_reduced = scaled_by_tp},
     VERIFY_GRADIENT,
     "layers.2.attention.proj.bias"},
    {"a replicated gradient added over tp",
     {.on_params_declared = replicated_gradient_summed},
     VERIFY_GRADIENT,
     "layers.0.norm2.bias"},
    {"weight decay on a norm", {.on_params_declared = weight_decay_on_norm}, VERIFY_WEIGHT, "norm.weight"},
    {"two tp ranks with swapped data", {.on_batches_loaded = data_swapped}, QUANTITY_LOSS, NULL},
    {"rank order of the data swapped", {.on_batches_loaded = order_swapped}, QUANTITY_LOSS, NULL},
    {"labels shifted on one tp rank", {.on_batches_loaded = labels_shifted}, QUANTITY_LOSS, NULL},
    {"a microbatch twice, another never", {.on_batches_loaded = microbatch_used_twice}, QUANTITY_LOSS, NULL},
    {"a norm weight twice in the global norm",
     {.on_gradients_reduced = replica_twice_in_norm, .on_gradients_complete = restore_replica_in_norm},
     QUANTITY_NORM,
     NULL},
    {"a shard missing in the global norm",
     {.on_gradients_reduced = shard_missing_in_norm, .on_gradients_complete = restore_shard_in_norm},
     QUANTITY_NORM,
     NULL},
    {"Adam's v reset", {.on_batches_loaded = v_reset}, VERIFY_V, "layers.1.mlp.fc2.weight"},
    {"one replica differs by a bit",
     {.on_gradients_complete = replica_drifts},
     VERIFY_REPLICAS,
     "layers.4.mlp.fc2.weight"},
    {"data-parallel gradients not reduced",
     {.on_weights_initialized = data_parallel_off, .on_gradients_reduced = data_parallel_restored},
     VERIFY_GRADIENT,
     "layers.0.mlp.fc1.weight"},
    {"a gradient of one data rank lost",
     {.on_weights_initialized = separate_bucket, .on_gradients_reduced = lose_bucket},
     VERIFY_GRADIENT,
     lost_bucket},
    {"a bias added before the reduction",
     {.on_batches_loaded = bias_added_before_sum, .on_gradients_reduced = bias_restored},
     QUANTITY_LOSS,
     NULL},
    {"a gradient a little too large",
     {.on_gradients_reduced = gradient_scaled_up},
     VERIFY_GRADIENT,
     "layers.3.mlp.fc1.weight"},
    {"a shard initialized by its local index",
     {.on_weights_initialized = local_index},
     VERIFY_INITIAL,
     "layers.3.mlp.fc1.weight"},
    {"padding inside the softmax",
     {.on_params_declared = padding_declared, .on_weights_initialized = padding_built},
     QUANTITY_LOSS,
     NULL},
    END,
};

static const struct fault in_pipeline[] = {
    {"a norm's gradient not reduced",
     {.on_params_declared = norm_not_reduced},
     VERIFY_GRADIENT,
     "layers.1.norm1.weight"},
    {"positions not offset",
     {.on_weights_initialized = ranks_numbered_from_zero, .on_gradients_reduced = restore_rank_numbers},
     VERIFY_GRADIENT,
     "position.weight"},
    {"a tied gradient not added",
     {.on_gradients_reduced = tied_gradient_not_added},
     VERIFY_GRADIENT,
     "embedding.weight"},
    {"the learning rate of another step on one stage",
     {.on_params_declared = rate_of_another_step, .on_step_end = recipe_restored},
     VERIFY_WEIGHT,
     "layers.4.mlp.fc1.weight"},
    {"an activation slot too short", {.on_weights_initialized = slots_overlap}, VERIFY_GRADIENT, NULL},
    {"a tied copy initialized separately",
     {.on_weights_initialized = tied_copy_drawn_separately},
     VERIFY_REPLICAS,
     "embedding.weight"},
    {"labels of another microbatch", {.on_batches_loaded = labels_of_another}, QUANTITY_LOSS, NULL},
    END,
};

static const struct fault in_replicated[] = {
    {"gradients of replicated heads not added",
     {.on_params_declared = replicated_kv_not_summed},
     VERIFY_GRADIENT,
     "layers.0.attention.k.weight"},
    {"dropout by the microbatch's slot", {.on_batches_loaded = dropout_by_slot}, QUANTITY_LOSS, NULL},
    {"attention dropout by the local head",
     {.on_weights_initialized = ranks_numbered_from_zero, .on_gradients_reduced = restore_rank_numbers},
     QUANTITY_LOSS,
     NULL},
    END,
};

static const struct fault in_dropped[] = {
    {"hidden dropout by the local token",
     {.on_weights_initialized = ranks_numbered_from_zero, .on_gradients_reduced = restore_rank_numbers},
     QUANTITY_LOSS,
     NULL},
    END,
};

static const struct fault in_documents[] = {
    {"a mean of means", {.on_batches_loaded = mean_of_means}, QUANTITY_LOSS, NULL},
    {"attention across documents", {.on_batches_loaded = documents_ignored}, QUANTITY_LOSS, NULL},
    {"positions not reset at document ends", {.on_batches_loaded = positions_not_reset}, QUANTITY_LOSS, NULL},
    {"one data rank without loss mask", {.on_batches_loaded = mask_ignored}, QUANTITY_LOSS, NULL},
    END,
};

static const struct fault in_parallel[] = {
    {"a shared norm's gradient of one branch only",
     {.on_batches_loaded = leave_out_branch, .on_gradients_reduced = restore_branch},
     VERIFY_GRADIENT,
     shared_norm},
    {"a shared norm's gradient twice",
     {.on_gradients_reduced = shared_norm_twice},
     VERIFY_GRADIENT,
     shared_norm},
    {"gate and up swapped on one tp rank",
     {.on_batches_loaded = swap_gate, .on_gradients_reduced = swap_gate},
     QUANTITY_LOSS,
     NULL},
    {"the embedding's norm not reduced",
     {.on_params_declared = embedding_norm_not_reduced},
     VERIFY_GRADIENT,
     "embedding_norm.weight"},
    END,
};

static const struct fault in_conversations[] = {
    {"one data rank's loss mask shifted by a token",
     {.on_batches_loaded = mask_shifted},
     QUANTITY_LOSS,
     NULL},
    {"a mean of means of packed documents", {.on_batches_loaded = mean_of_means}, QUANTITY_LOSS, NULL},
    END,
};

static const struct fault in_windows[] = {
    {"a window of one more token on one rank",
     {.on_params_declared = window_one_longer, .on_step_end = recipe_restored},
     QUANTITY_LOSS,
     NULL},
    {"slopes of ALiBi by the local head",
     {.on_weights_initialized = ranks_numbered_from_zero, .on_gradients_reduced = restore_rank_numbers},
     QUANTITY_LOSS,
     NULL},
    END,
};

static const struct fault in_caps[] = {
    {"a cap of one rank's share of the logits",
     {.on_params_declared = logits_capped_by_share, .on_step_end = recipe_restored},
     QUANTITY_LOSS,
     NULL},
    {"one rank's heads without the cap of their scores",
     {.on_params_declared = scores_not_capped, .on_step_end = recipe_restored},
     QUANTITY_LOSS,
     NULL},
    END,
};

static const struct fault in_two_directions[] = {
    {"gradients of the directions not added",
     {.on_weights_initialized = replica_sum_off, .on_gradients_reduced = replica_sum_restored},
     VERIFY_GRADIENT,
     "layers.0.mlp.fc1.weight"},
    {"gradients of the directions added twice",
     {.on_gradients_reduced = replica_sum_twice},
     VERIFY_GRADIENT,
     "layers.0.mlp.fc1.weight"},
    {"one stage replica differs by a bit",
     {.on_gradients_complete = replica_drifts},
     VERIFY_REPLICAS,
     "layers.4.mlp.fc2.weight"},
    {"both stage replicas in the global norm",
     {.on_gradients_reduced = both_replicas_in_norm, .on_gradients_complete = restore_replica_norm},
     QUANTITY_NORM,
     NULL},
    {"a tied gradient added twice, dualpipe",
     {.on_gradients_reduced = tied_gradient_twice},
     VERIFY_GRADIENT,
     "embedding.weight"},
    END,
};

static const struct fault_layout fault_layouts[] = {
    {{TINY_GPT, "train.micro_batch_size=1", "tp=2 dp=2", ""}, in_square, 0},
    {{TINY_GPT, "train.micro_batch_size=1", "tp=2 pp=2 parallel.sequence_parallel=true", ""}, in_pipeline, 0},
    {{TINY_LLAMA, "train.micro_batch_size=1 model.attention_dropout=0.2", "tp=4", ""}, in_replicated, 0},
    {{TINY_LLAMA, "train.micro_batch_size=1 model.hidden_dropout=0.2", "tp=2 parallel.sequence_parallel=true",
      ""},
     in_dropped,
     0},
    {{TINY_GPT, "train.micro_batch_size=1" TINY_DOCUMENTS, "dp=2 pp=2", ""}, in_documents, 0},
    {{TINY_LLAMA, "train.micro_batch_size=1" TINY_PARALLEL, "tp=2 parallel.sequence_parallel=true", ""},
     in_parallel,
     0},
    {{TINY_GPT, "train.micro_batch_size=1" TINY_CONVERSATIONS, "dp=2 pp=2", ""}, in_conversations, 0},
    {{TINY_GPT, "train.micro_batch_size=1", "pp=4 pipeline.schedule=dualpipe", ""}, in_two_directions, 0},
    {{TINY_GPT, "train.micro_batch_size=1" TINY_WINDOW TINY_ALIBI, "tp=2 pp=2", ""}, in_windows, 0},
    {{TINY_GPT, "train.micro_batch_size=1" TINY_SOFTCAP, "tp=2", ""}, in_caps, 0},
    {{TINY_GPT, "precision.params_dtype=bf16 train.micro_batch_size=1", "tp=2 dp=2", ""}, in_square, 11},
    {{TINY_GPT, "precision.params_dtype=fp16 precision.loss_scale=512", "tp=2 dp=2", ""}, in_square, 8},
};

/* ---- running ---- */

static int check_clean(const struct tiny *tiny, const struct fault_layout *layout)
{
    struct verify_report report = {0};
    enum status status =
        tiny_verify(tiny, &layout->comparison, FAULT_STEPS, (struct step_observer){0}, &report);
    bool good = status == OK && report.outside == 0;
    printf("%-7s %s, without faults: %s\n", good ? "ok" : "FAILED", layout->comparison.layout,
           status == OK ? "clean" : fail_text());
    if (status == OK && !good)
        verify_print(&report, false, stdout);
    verify_report_free(&report);
    return !good;
}

static int check_fault(const struct tiny *tiny, const struct fault_layout *layout, const struct fault *fault)
{
    struct verify_report report = {0};
    enum status status = tiny_verify(tiny, &layout->comparison, FAULT_STEPS, fault->observer, &report);
    double ratio = status == OK ? largest_ratio(&report, fault->quantity, fault->row) : 0.0;
    bool good = status == OK && report.outside > 0 && ratio > 1.0;
    printf("%-7s %-42s %d out of bounds; %s%s%s at %.3g of its bound\n", good ? "ok" : "FAILED", fault->name,
           report.outside, quantity_name(fault->quantity), fault->row != NULL ? " of " : "",
           fault->row != NULL ? fault->row : "", ratio);
    if (status != OK)
        printf("        %s\n", fail_text());
    else if (!good)
        verify_print(&report, false, stdout);
    fflush(stdout);
    verify_report_free(&report);
    return !good;
}

int main(void)
{
    struct tiny tiny;
    int failures = 0, injected = 0;
    MUST(tiny_create(&tiny));
    for (size_t b = 0; b < sizeof fault_layouts / sizeof *fault_layouts; b++) {
        failures += check_clean(&tiny, &fault_layouts[b]);
        for (const struct fault *fault = fault_layouts[b].faults;
             fault->name != NULL &&
             fault - fault_layouts[b].faults < (fault_layouts[b].most > 0 ? fault_layouts[b].most : INT_MAX);
             fault++, injected++)
            failures += check_fault(&tiny, &fault_layouts[b], fault);
    }
    tiny_destroy(&tiny);
    printf("%d faults injected, %d failures\n", injected, failures);
    return failures != 0;
}
