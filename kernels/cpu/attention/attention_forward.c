// SPDX-License-Identifier: Apache-2.0
/* Attention, forward pass (2205.14135; 2307.08691 for the loop order). A task is one block of queries of one
 * head of one sequence, and loops over its blocks of keys from left to right, from the block in which its
 * window begins:
 *
 *     s = scale q k^T, capped, with ALiBi's bias;   m' = max(m, max s);   p = e^(s - m')
 *     l = l e^(m - m') + sum p;   out = out e^(m - m') + dropout(p) v
 *     at the end  out / l,  and  lse = m + log l  for the backward pass
 *
 * A task's result depends on its own sequence and head only: the batch and the other heads do not change a
 * bit. */
#include "kernels/cpu/attention/attention_block.h"

#include <math.h>

struct forward {
    const struct attention_forward *op;
    struct slots slots;
    int64_t heads, query_blocks, width, value_width; // D and E rounded up to full vectors
};

/* One task's scratch memory. */
struct task_scratch {
    float *query; // [width][64], transposed and scaled
    float *score; // [64 keys][64 queries]: s, then p
    float *value, *out, *factor;
    float *buffer; // [64][D or E] for operands other than fp32: one of them, converted to fp32
    float max[ATTENTION_BLOCK], sum[ATTENTION_BLOCK], rescale[ATTENTION_BLOCK]; // m, l, e^(m - m')
};

static int64_t task_scratch_floats(const struct attention_forward *op)
{
    int64_t width = attention_width(op), value_width = attention_value_width(op);
    int64_t widest = width > value_width ? width : value_width;
    return (width + 2 * value_width) * ATTENTION_BLOCK + 2 * ATTENTION_BLOCK * ATTENTION_BLOCK +
           block_buffer_floats(op->q, widest * ATTENTION_BLOCK);
}

static void task_scratch_init(struct task_scratch *scratch, float *memory, int64_t width, int64_t value_width)
{
    scratch->query = memory;
    scratch->value = scratch->query + width * ATTENTION_BLOCK;
    scratch->out = scratch->value + value_width * ATTENTION_BLOCK;
    scratch->score = scratch->out + value_width * ATTENTION_BLOCK;
    scratch->factor = scratch->score + ATTENTION_BLOCK * ATTENTION_BLOCK;
    scratch->buffer = scratch->factor + ATTENTION_BLOCK * ATTENTION_BLOCK;
    memset(scratch->out, 0, (size_t)(value_width * ATTENTION_BLOCK) * sizeof(float));
    for (int q = 0; q < ATTENTION_BLOCK; q++) {
        scratch->max[q] = -INFINITY;
        scratch->sum[q] = 0.0F;
    }
}

/* Converts the scores of the queries of vector v to probabilities, relative to the new maximum. */
static void softmax_lanes(const struct attention_tile *t, struct task_scratch *scratch, int64_t v)
{
    float *score = scratch->score + v * LANES;
    const int64_t keys = attention_tile_keys(t, v);
    const bool plain = attention_tile_is_plain(t), masked = t->masked;
    veci document = attention_tile_documents(t, v);
    vec old = vec_load(scratch->max + v * LANES), max = old, unused;
    for (int64_t k = 0; k < keys; k++) {
        vec s = vec_load(score + k * ATTENTION_BLOCK);
        if (!plain)
            s = attention_tile_score(t, v, k, s, &unused);
        if (masked)
            s = vec_select(attention_tile_attends(t, v, k, document), s, vec_all(-INFINITY));
        if (masked || !plain)
            vec_store(score + k * ATTENTION_BLOCK, s);
        max = vec_max(max, s);
    }

    // A fully masked query has no maximum yet: 0 in its place avoids inf - inf.
    vec base = vec_select_less(vec_all(-INFINITY), max, max, vec_all(0.0F));
    vec rescale = vec_exp(old - base), sum = vec_load(scratch->sum + v * LANES) * rescale;
    for (int64_t k = 0; k < keys; k++) {
        vec p = vec_exp(vec_load(score + k * ATTENTION_BLOCK) - base);
        sum += p;
        vec_store(score + k * ATTENTION_BLOCK, p);
    }
    vec_store(scratch->max + v * LANES, max);
    vec_store(scratch->sum + v * LANES, sum);
    vec_store(scratch->rescale + v * LANES, rescale);
}

static void drop_scores(const struct attention_tile *t, struct task_scratch *scratch)
{
    attention_tile_dropout(t, scratch->factor);
    for (int64_t v = 0; v < blocks_of(t->queries, LANES); v++) {
        for (int64_t k = 0; k < attention_tile_keys(t, v); k++) {
            float *at = scratch->score + k * ATTENTION_BLOCK + v * LANES;
            vec_store(at, vec_load(at) * vec_load(scratch->factor + k * ATTENTION_BLOCK + v * LANES));
        }
    }
}

static void forward_tile(const struct forward *job, const struct attention_tile *t,
                         struct task_scratch *scratch)
{
    const struct attention_forward *op = job->op;
    int64_t group = t->head / (job->heads / (op->k.dim[1] / op->head_dim)), row = t->key_row;
    int64_t vectors = blocks_of(t->queries, LANES), d = op->head_dim, e = attention_value_dim(op);
    struct block_rows keys = block_rows(op->k, row, group * d, t->keys, d, scratch->buffer);
    block_matmul(&(struct block_matmul){.rows = t->keys,
                                        .columns = vectors * LANES,
                                        .terms = d,
                                        .a = keys.data,
                                        .a_row = keys.stride,
                                        .a_term = 1,
                                        .b = scratch->query,
                                        .b_row = ATTENTION_BLOCK,
                                        .c = scratch->score,
                                        .c_row = ATTENTION_BLOCK,
                                        .triangle = t->diagonal ? COLUMNS_FROM_ROW : WHOLE});
    for (int64_t v = 0; v < vectors; v++)
        softmax_lanes(t, scratch, v);
    if (op->dropout.probability > 0.0F)
        drop_scores(t, scratch);

    block_pad(block_rows(op->v, row, group * e, t->keys, e, scratch->buffer), t->keys, e, scratch->value,
              job->value_width);
    for (int64_t q = 0; q < t->queries; q++)
        for (int64_t i = 0; i < job->value_width; i++)
            scratch->out[q * job->value_width + i] *= scratch->rescale[q];
    block_matmul(&(struct block_matmul){.rows = t->queries,
                                        .columns = job->value_width,
                                        .terms = t->keys,
                                        .a = scratch->score,
                                        .a_row = 1,
                                        .a_term = ATTENTION_BLOCK,
                                        .b = scratch->value,
                                        .b_row = job->value_width,
                                        .c = scratch->out,
                                        .c_row = job->value_width,
                                        .accumulate = true,
                                        .triangle = t->diagonal ? TERMS_TO_ROW : WHOLE});
}

static void write_results(const struct forward *job, const struct attention_tile *t,
                          struct task_scratch *scratch)
{
    const struct attention_forward *op = job->op;
    const int64_t e = attention_value_dim(op);
    int64_t first = t->sequence * op->sequence + t->query;
    for (int64_t q = 0; q < t->queries; q++) {
        float *out = scratch->out + q * job->value_width, share = 1.0F / scratch->sum[q];
        for (int64_t i = 0; i < e; i++)
            out[i] *= share;
        f32_row(op->lse, t->head)[first + q] = scratch->max[q] + logf(scratch->sum[q]);
    }
    block_store(op->out, first, t->head * e, scratch->out, job->value_width, t->queries, e);
}

static void forward_task(void *context, int64_t task)
{
    const struct forward *job = context;
    const struct attention_forward *op = job->op;
    int which;
    struct task_scratch scratch;
    task_scratch_init(&scratch, slot_acquire(&job->slots, &which), job->width, job->value_width);

    // Later queries attend to more keys: long tasks are scheduled first, for load balance at the end.
    int64_t pairs = op->batch * job->heads, query_block = job->query_blocks - 1 - task / pairs;
    int64_t sequence = task % pairs / job->heads, head = task % job->heads;
    int64_t query = query_block * ATTENTION_BLOCK;
    struct attention_tile t = attention_tile(op, sequence, head, query, query);
    struct block_rows queries = block_rows(op->q, sequence * op->sequence + query, head * op->head_dim,
                                           t.queries, op->head_dim, scratch.buffer);
    block_transpose(queries, t.queries, op->head_dim, op->scale, scratch.query);
    const int64_t end = attention_tile_end(&t);
    for (int64_t key = attention_tile_begin(&t); key < end; key += ATTENTION_BLOCK) {
        t = attention_tile(op, sequence, head, query, key);
        if (!attention_tile_is_empty(&t))
            forward_tile(job, &t, &scratch);
    }
    write_results(job, &t, &scratch);
    slot_release(&job->slots, which);
}

size_t cpu_attention_forward_scratch(const struct attention_forward *op, int threads)
{
    return slots_bytes(threads, task_scratch_floats(op));
}

void cpu_attention_forward(struct device *device, const struct attention_forward *op)
{
    struct forward job = {.op = op,
                          .heads = op->q.dim[1] / op->head_dim,
                          .query_blocks = blocks_of(op->sequence, ATTENTION_BLOCK),
                          .width = attention_width(op),
                          .value_width = attention_value_width(op)};
    job.slots = slots_create(device, task_scratch_floats(op));
    cpu_parallel(device, job.query_blocks * op->batch * job.heads, forward_task, &job);
}
