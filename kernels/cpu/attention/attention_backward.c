// SPDX-License-Identifier: Apache-2.0
/* Attention, backward pass (2307.08691): the probabilities are recomputed from q, k and lse.
 *
 *     s = scale q k^T, capped, with ALiBi's bias;   p = e^(s - lse)
 *     dp = dropout(dout v^T);   ds = p (dp - delta) scale, times the cap's derivative 1 - tanh^2
 *     delta = sum of dout * out over the head;   dq = ds k;   dk = ds^T q;   dv = dropout(p)^T dout
 *
 * A task is one group of one sequence: the group's query heads share k and v, whose gradients accumulate a
 * term per head and query, in that order, so a single thread must add them. */
#include "kernels/cpu/attention/attention_block.h"

struct backward {
    const struct attention_backward *op;
    struct slots slots;
    int64_t heads, groups, width, value_width; // D and E rounded up to full vectors
};

/* One task's scratch memory. Rows of `width` floats, or value_width, except for the transposed blocks. */
struct task_scratch {
    float *key, *dkey, *dvalue;                // [K][width], and value_width: this group's
    float *query_transposed, *dout_transposed; // [width][64], and value_width; queries scaled
    float *query, *dout, *dquery;              // [64][width], and value_width of dout
    float *p, *ds, *factor;                    // [64 keys][64 queries]
    float *buffer; // [64][D or E] for operands other than fp32: one of them, converted to fp32
    float lse[ATTENTION_BLOCK], delta[ATTENTION_BLOCK];
};

static int64_t task_scratch_floats(const struct attention_forward *op)
{
    int64_t width = attention_width(op), value_width = attention_value_width(op);
    int64_t widest = width > value_width ? width : value_width;
    return attention_keys(op) * (2 * width + value_width) + ATTENTION_BLOCK * (3 * width + 2 * value_width) +
           3 * ATTENTION_BLOCK * ATTENTION_BLOCK + block_buffer_floats(op->q, ATTENTION_BLOCK * widest);
}

static void task_scratch_init(struct task_scratch *scratch, float *memory, const struct attention_forward *op)
{
    const int64_t keys = attention_keys(op), width = attention_width(op), value = attention_value_width(op);
    const int64_t square = ATTENTION_BLOCK * ATTENTION_BLOCK;
    scratch->key = memory;
    scratch->dkey = scratch->key + keys * width;
    scratch->dvalue = scratch->dkey + keys * width;
    scratch->query_transposed = scratch->dvalue + keys * value;
    scratch->dout_transposed = scratch->query_transposed + ATTENTION_BLOCK * width;
    scratch->query = scratch->dout_transposed + ATTENTION_BLOCK * value;
    scratch->dout = scratch->query + ATTENTION_BLOCK * width;
    scratch->dquery = scratch->dout + ATTENTION_BLOCK * value;
    scratch->p = scratch->dquery + ATTENTION_BLOCK * width;
    scratch->ds = scratch->p + square;
    scratch->factor = scratch->ds + square;
    scratch->buffer = scratch->factor + square;
    memset(scratch->dkey, 0, (size_t)(keys * (width + value)) * sizeof(float));
}

/* Converts p and dp of the queries of vector v to dropout(p) and ds. */
static void softmax_lanes(const struct attention_tile *t, struct task_scratch *scratch, int64_t v)
{
    const bool drops = t->op->dropout.probability > 0.0F, plain = attention_tile_is_plain(t),
               masked = t->masked;
    veci document = attention_tile_documents(t, v);
    vec lse = vec_load(scratch->lse + v * LANES), delta = vec_load(scratch->delta + v * LANES);
    const vec scale = vec_all(t->op->scale);
    for (int64_t k = 0; k < attention_tile_keys(t, v); k++) {
        int64_t at = k * ATTENTION_BLOCK + v * LANES;
        vec s = vec_load(scratch->p + at), slope = scale, derivative;
        if (!plain) {
            s = attention_tile_score(t, v, k, s, &derivative);
            slope = scale * derivative;
        }
        vec p = vec_exp(s - lse), dp = vec_load(scratch->ds + at);
        if (masked)
            p = vec_select(attention_tile_attends(t, v, k, document), p, vec_all(0.0F));
        vec kept = p;
        if (drops) {
            vec factor = vec_load(scratch->factor + at);
            dp *= factor;
            kept *= factor;
        }
        vec_store(scratch->p + at, kept);
        vec_store(scratch->ds + at, p * (dp - delta) * slope);
    }
}

/* scores[keys][queries] = rows of k or v times the transposed queries or dout. */
static void score_matmul(const struct attention_tile *t, struct tensor rows, int64_t group, int64_t head_dim,
                         const float *turned, float *buffer, float *score)
{
    struct block_rows keys = block_rows(rows, t->key_row, group * head_dim, t->keys, head_dim, buffer);
    block_matmul(&(struct block_matmul){.rows = t->keys,
                                        .columns = blocks_of(t->queries, LANES) * LANES,
                                        .terms = head_dim,
                                        .a = keys.data,
                                        .a_row = keys.stride,
                                        .a_term = 1,
                                        .b = turned,
                                        .b_row = ATTENTION_BLOCK,
                                        .c = score,
                                        .c_row = ATTENTION_BLOCK,
                                        .triangle = t->diagonal ? COLUMNS_FROM_ROW : WHOLE});
}

/* Accumulates this query block's contribution to the gradients of k or v. */
static void key_matmul(const struct attention_tile *t, const float *score, const float *rows, int64_t width,
                       float *gradient)
{
    block_matmul(&(struct block_matmul){.rows = t->keys,
                                        .columns = width,
                                        .terms = t->queries,
                                        .a = score,
                                        .a_row = ATTENTION_BLOCK,
                                        .a_term = 1,
                                        .b = rows,
                                        .b_row = width,
                                        .c = gradient + t->key * width,
                                        .c_row = width,
                                        .accumulate = true,
                                        .triangle = t->diagonal ? TERMS_FROM_ROW : WHOLE});
}

static void backward_tile(const struct backward *job, const struct attention_tile *t,
                          struct task_scratch *scratch)
{
    int64_t group = t->head / (job->heads / job->groups), width = job->width;
    score_matmul(t, t->op->k, group, t->op->head_dim, scratch->query_transposed, scratch->buffer, scratch->p);
    score_matmul(t, t->op->v, group, attention_value_dim(t->op), scratch->dout_transposed, scratch->buffer,
                 scratch->ds);
    if (t->op->dropout.probability > 0.0F)
        attention_tile_dropout(t, scratch->factor);
    for (int64_t v = 0; v < blocks_of(t->queries, LANES); v++)
        softmax_lanes(t, scratch, v);

    key_matmul(t, scratch->p, scratch->dout, job->value_width, scratch->dvalue);
    key_matmul(t, scratch->ds, scratch->query, width, scratch->dkey);
    block_matmul(&(struct block_matmul){.rows = t->queries,
                                        .columns = width,
                                        .terms = t->keys,
                                        .a = scratch->ds,
                                        .a_row = 1,
                                        .a_term = ATTENTION_BLOCK,
                                        .b = scratch->key + t->key * width,
                                        .b_row = width,
                                        .c = scratch->dquery,
                                        .c_row = width,
                                        .accumulate = true,
                                        .triangle = t->diagonal ? TERMS_TO_ROW : WHOLE});
}

/* Loads a block of queries, its dout, lse and delta. */
static void load_queries(const struct backward *job, const struct attention_tile *t,
                         struct task_scratch *scratch)
{
    const struct attention_forward *op = t->op;
    int64_t first = t->sequence * op->sequence + t->query, d = op->head_dim, e = attention_value_dim(op);
    struct block_rows q = block_rows(op->q, first, t->head * d, t->queries, d, scratch->buffer);
    block_transpose(q, t->queries, d, op->scale, scratch->query_transposed);
    block_pad(q, t->queries, d, scratch->query, job->width);
    struct block_rows dout = block_rows(job->op->dout, first, t->head * e, t->queries, e, scratch->buffer);
    block_transpose(dout, t->queries, e, 1.0F, scratch->dout_transposed);
    block_pad(dout, t->queries, e, scratch->dout, job->value_width);
    struct block_rows outs = block_rows(op->out, first, t->head * e, t->queries, e, scratch->buffer);
    memset(scratch->dquery, 0, (size_t)(t->queries * job->width) * sizeof(float));

    for (int64_t q_index = 0; q_index < ATTENTION_BLOCK; q_index++) {
        scratch->lse[q_index] = scratch->delta[q_index] = 0.0F;
        if (q_index >= t->queries)
            continue;
        const float *out = outs.data + q_index * outs.stride,
                    *line = scratch->dout + q_index * job->value_width;
        vec sum = {0};
        for (int64_t i = 0; i < e; i += LANES)
            sum = vec_fma(vec_load_part(out + i, min_i64(LANES, e - i)), vec_load(line + i), sum);
        scratch->delta[q_index] = vec_sum(sum);
        scratch->lse[q_index] = f32_row(op->lse, t->head)[first + q_index];
    }
}

static void backward_head(const struct backward *job, int64_t sequence, int64_t head,
                          struct task_scratch *scratch)
{
    const struct attention_forward *op = &job->op->forward;
    for (int64_t query = 0; query < op->sequence; query += ATTENTION_BLOCK) {
        struct attention_tile t = attention_tile(op, sequence, head, query, query);
        load_queries(job, &t, scratch);
        const int64_t end = attention_tile_end(&t);
        for (int64_t key = attention_tile_begin(&t); key < end; key += ATTENTION_BLOCK) {
            t = attention_tile(op, sequence, head, query, key);
            if (!attention_tile_is_empty(&t))
                backward_tile(job, &t, scratch);
        }
        block_store(job->op->dq, sequence * op->sequence + query, head * op->head_dim, scratch->dquery,
                    job->width, t.queries, op->head_dim);
    }
}

static void group_task(void *context, int64_t task)
{
    const struct backward *job = context;
    const struct attention_forward *op = &job->op->forward;
    int64_t sequence = task / job->groups, group = task % job->groups, each = job->heads / job->groups;
    const int64_t keys = attention_keys(op), row = sequence * keys, d = op->head_dim;
    const int64_t e = attention_value_dim(op);
    int which;
    struct task_scratch scratch;
    task_scratch_init(&scratch, slot_acquire(&job->slots, &which), op);
    for (int64_t key = 0; key < keys; key += ATTENTION_BLOCK) {
        int64_t count = min_i64(ATTENTION_BLOCK, keys - key);
        block_pad(block_rows(op->k, row + key, group * d, count, d, scratch.buffer), count, d,
                  scratch.key + key * job->width, job->width);
    }
    for (int64_t head = group * each; head < (group + 1) * each; head++)
        backward_head(job, sequence, head, &scratch);
    block_store(job->op->dk, row, group * d, scratch.dkey, job->width, keys, d);
    block_store(job->op->dv, row, group * e, scratch.dvalue, job->value_width, keys, e);
    slot_release(&job->slots, which);
}

size_t cpu_attention_backward_scratch(const struct attention_backward *op, int threads)
{
    return slots_bytes(threads, task_scratch_floats(&op->forward));
}

void cpu_attention_backward(struct device *device, const struct attention_backward *op)
{
    struct backward job = {.op = op,
                           .heads = op->forward.q.dim[1] / op->forward.head_dim,
                           .groups = op->forward.k.dim[1] / op->forward.head_dim,
                           .width = attention_width(&op->forward),
                           .value_width = attention_value_width(&op->forward)};
    job.slots = slots_create(device, task_scratch_floats(&op->forward));
    cpu_parallel(device, op->forward.batch * job.groups, group_task, &job);
}
