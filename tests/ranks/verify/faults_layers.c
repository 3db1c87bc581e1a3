// SPDX-License-Identifier: Apache-2.0
/* Injected faults in a rank's computation: indices, reductions inside layers, memory of activations, the
 * recipe of a rank. */
#include "tests/ranks/verify/faults.h"

#include "trainer/engine/activations/stash.h"

#include <stdlib.h>

// A function of a step observer has its signature, whether or not a fault uses the step.
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Every tp rank uses tp rank 0: tokens and heads are numbered from zero on each. */
enum status ranks_numbered_from_zero(void *context, struct rank_state *w)
{
    w->groups->tp->rank = 0;
    return OK;
}

enum status restore_rank_numbers(void *context, struct rank_state *w, int64_t step)
{
    w->groups->tp->rank = w->groups->coord.tp;
    return OK;
}

/* The bias of a row-parallel layer, added before the reduction: tp times. */
static const char row_bias[] = "layers.1.mlp.fc2.bias";

enum status bias_added_before_sum(void *context, struct rank_state *w, int64_t step)
{
    struct held_param *held = held_named(w, row_bias);
    return held != NULL ? scale(w, held->weight, 2.0F) : OK;
}

enum status bias_restored(void *context, struct rank_state *w, int64_t step)
{
    struct held_param *held = held_named(w, row_bias);
    return held != NULL ? scale(w, held->weight, 0.5F) : OK;
}

/* ---- a row-parallel layer without its all-reduce ---- */

/* An ops table of the transport that skips one call of a step; installed in place of the comm's own. */
struct skipping_ops {
    struct transport_ops ops; // first: the ops table that the comm points to
    const struct transport_ops *inner;
    int calls;
};

/* The first all-reduce is the embedding's, the second the first attention's. */
enum { SKIPPED_CALL = 2 };

static enum status all_reduce_skipping_one(struct comm *comm, struct stream *stream, struct tensor data,
                                           enum reduction how)
{
    struct skipping_ops *skipping = (struct skipping_ops *)(uintptr_t)comm->ops;
    return ++skipping->calls == SKIPPED_CALL ? OK : skipping->inner->all_reduce(comm, stream, data, how);
}

enum status skip_all_reduce(void *context, struct rank_state *w)
{
    struct skipping_ops *skipping = malloc(sizeof *skipping);
    CHECK(skipping != NULL);
    struct comm *comm = w->groups->tp->comm;
    *skipping = (struct skipping_ops){.ops = *comm->ops, .inner = comm->ops};
    skipping->ops.all_reduce = all_reduce_skipping_one;
    comm->ops = &skipping->ops;
    return OK;
}

enum status restore_all_reduce(void *context, struct rank_state *w, int64_t step)
{
    struct comm *comm = w->groups->tp->comm;
    struct skipping_ops *skipping = (struct skipping_ops *)(uintptr_t)comm->ops;
    comm->ops = skipping->inner;
    free(skipping);
    return OK;
}

/* ---- parallel branches ---- */

/* Gate and up of a layer change places on tp rank 1; again: they change back. */
enum status swap_gate(void *context, struct rank_state *w, int64_t step)
{
    const struct held_param *gate = held_named(w, "layers.1.mlp.gate.weight"),
                            *up = held_named(w, "layers.1.mlp.up.weight");
    if (gate == NULL || w->groups->coord.tp != 1)
        return OK;
    TRY(stream_sync(w->compute));
    float *a = gate->weight.data, *b = up->weight.data;
    for (int64_t i = 0; i < tensor_count(gate->weight); i++) {
        const float kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
    return OK;
}

/* An ops table of the device that skips an op. */
struct skipping_device {
    struct device_ops ops; // first: the ops table that the device points to
    const struct device_ops *inner;
    bool in_backward;
};

/* In a backward pass, only the sum of the gradients of two branches is added in place. */
static enum status submit_without_sum(struct stream *stream, const struct op *op)
{
    struct skipping_device *skipping = (struct skipping_device *)(uintptr_t)stream->device->ops;
    const struct residual_forward *sum = &op->residual_forward;
    if (op->kind == OP_LOSS_BACKWARD || op->kind == OP_EMBEDDING_FORWARD)
        skipping->in_backward = op->kind == OP_LOSS_BACKWARD;
    if (skipping->in_backward && op->kind == OP_RESIDUAL_FORWARD && sum->out.data == sum->x.data)
        return OK;
    return skipping->inner->submit(stream, op);
}

/* A norm that two branches share has the gradient of one of them only. */
enum status leave_out_branch(void *context, struct rank_state *w, int64_t step)
{
    struct skipping_device *skipping = malloc(sizeof *skipping);
    CHECK(skipping != NULL);
    *skipping = (struct skipping_device){.ops = *w->device->ops, .inner = w->device->ops};
    skipping->ops.submit = submit_without_sum;
    w->device->ops = &skipping->ops;
    return OK;
}

enum status restore_branch(void *context, struct rank_state *w, int64_t step)
{
    struct skipping_device *skipping = (struct skipping_device *)(uintptr_t)w->device->ops;
    w->device->ops = skipping->inner;
    free(skipping);
    return OK;
}

/* ---- memory ---- */

/* A slot of activations begins before the end of the previous one. */
enum status slots_overlap(void *context, struct rank_state *w)
{
    const struct stash *stash = &executor_store(w->executor)->stash;
    for (int chunk = 0; chunk < stash->chunks; chunk++) {
        struct stage *stage = (struct stage *)(uintptr_t)&stash->stages[chunk];
        CHECK(stage->layout.bytes[KEEP_UNTIL_BACKWARD_WEIGHT] > 256);
        stage->layout.bytes[KEEP_UNTIL_BACKWARD_WEIGHT] -= 256;
    }
    return OK;
}

/* ---- another recipe on one rank ---- */

struct other_run {
    struct run run; // first: the run that the rank points to
    struct recipe recipe;
    const struct run *original;
};

/* Gives this rank its own copy of the recipe until the end of the last step. */
static struct recipe *own_recipe(struct rank_state *w)
{
    struct other_run *other = malloc(sizeof *other);
    CHECK(other != NULL);
    *other = (struct other_run){.run = *w->run, .recipe = *w->run->recipe, .original = w->run};
    other->run.recipe = &other->recipe;
    w->run = &other->run;
    return &other->recipe;
}

/* The warm-up of the second stage is one step longer than that of the recipe. */
enum status rate_of_another_step(void *context, struct rank_state *w)
{
    if (mesh_coord(&w->mesh, MESH_DENSE, w->world->rank).pp == 1)
        own_recipe(w)->optimizer.lr_warmup_iters++;
    return OK;
}

enum status window_one_longer(void *context, struct rank_state *w)
{
    if (w->world->rank == 0)
        own_recipe(w)->model.window_size++;
    return OK;
}

/* The cap of the logits is divided by the tensor-parallel size, on one rank. */
enum status logits_capped_by_share(void *context, struct rank_state *w)
{
    if (w->world->rank == 1)
        own_recipe(w)->model.final_logit_softcapping /= w->mesh.degrees.tp;
    return OK;
}

enum status scores_not_capped(void *context, struct rank_state *w)
{
    if (w->world->rank == 1)
        own_recipe(w)->model.attn_logit_softcapping = 0.0;
    return OK;
}

enum status recipe_restored(void *context, struct rank_state *w, int64_t step,
                            const struct step_result *result)
{
    struct other_run *other = (struct other_run *)(uintptr_t)w->run;
    if (step < FAULT_STEPS || w->run->recipe != &other->recipe) // other ranks have the run's
        return OK;
    w->run = other->original;
    free(other);
    return OK;
}
