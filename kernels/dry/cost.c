// SPDX-License-Identifier: Apache-2.0
/* Arithmetic and memory traffic of each op, from its shapes alone. Matrix multiplications and attention are
 * exact counts; the others do a few operations per element and are memory-bound, so an approximate factor
 * suffices. */
#include "kernels/device_plan.h"
#include "kernels/ops.h"

static const double ACTIVATION_FLOPS = 10.0, ACTIVATION_BACKWARD_FLOPS = 16.0; // per element

static double count(struct tensor t)
{
    return (double)tensor_count(t);
}

static double bytes(struct tensor t)
{
    return (double)tensor_bytes(t);
}

static struct op_cost gemm_cost(const struct gemm *g)
{
    double k = (double)(g->transpose_a ? g->a.dim[0] : g->a.dim[1]);
    struct op_cost cost = {.flops = (2.0 * k + (g->bias.data != NULL ? 1.0 : 0.0)) * count(g->c),
                           .bytes = bytes(g->a) + bytes(g->b) + bytes(g->bias) +
                                    (g->accumulate ? 2.0 : 1.0) * bytes(g->c)};
    // A fused epilogue does not load what the GEMM has loaded or computed.
    const struct epilogue *e = &g->epilogue;
    cost.flops += ACTIVATION_FLOPS * count(e->after) + ACTIVATION_BACKWARD_FLOPS * count(e->before);
    cost.bytes += bytes(e->after) + bytes(e->before);
    if (e->bias_gradient.data != NULL) {
        cost.flops += count(g->a);
        cost.bytes += 2.0 * bytes(e->bias_gradient);
    }
    return cost;
}

/* Pairs of the first `queries` queries of a sequence with the keys up to their own; window 0: none. */
static double causal_pairs(double queries, double window)
{
    double growing = window > 0.0 && window < queries ? window : queries; // queries that see all keys so far
    return growing * (growing + 1.0) / 2.0 + (queries - growing) * window;
}

/* Unmasked pairs of query and key, over all heads; documents are not known here. */
static double attention_pairs(const struct attention_forward *a)
{
    double heads = (double)(a->q.dim[1] / a->head_dim), rows = (double)a->sequence;
    double keys = (double)attention_keys(a), before = (double)a->query_begin, window = (double)a->window;
    double inside = keys - before < rows ? keys - before : rows; // queries that do not see all keys
    inside = inside > 0.0 ? inside : 0.0;
    double pairs = inside > 0.0 ? causal_pairs(before + inside, window) - causal_pairs(before, window) : 0.0;
    return (double)a->batch * heads * (pairs + (rows - inside) * keys);
}

/* Operations of a pair's softmax, bias and cap, except for the multiply-adds. */
static double pair_flops(const struct attention_forward *a, double softmax)
{
    return softmax + (a->alibi.heads > 0 ? 2.0 : 0.0) + (a->softcap > 0.0F ? ACTIVATION_FLOPS : 0.0);
}

static double attention_bytes(const struct attention_forward *a)
{
    return bytes(a->q) + bytes(a->k) + bytes(a->v) + bytes(a->out) + bytes(a->lse);
}

/* `flops_each` per element of `t`. */
static struct op_cost elementwise(struct tensor t, double flops_each, double all_bytes)
{
    return (struct op_cost){.flops = flops_each * count(t), .bytes = all_bytes};
}

static struct op_cost residual_forward_cost(const struct residual_forward *r)
{
    double flops = (r->bias.data != NULL ? 1.0 : 0.0) + (r->residual.data != NULL ? 1.0 : 0.0) +
                   (r->dropout.probability > 0.0F ? 2.0 : 0.0);
    return elementwise(r->x, flops, bytes(r->x) + bytes(r->bias) + bytes(r->residual) + bytes(r->out));
}

static struct op_cost residual_backward_cost(const struct residual_backward *r)
{
    if (r->dropout.probability == 0.0F && r->dx.data == r->dout.data)
        return (struct op_cost){0};
    return elementwise(r->dx, r->dropout.probability > 0.0F ? 2.0 : 0.0, 2.0 * bytes(r->dx));
}

static struct op_cost norm_forward_cost(const struct norm_forward *n)
{
    return elementwise(n->x, 8.0, 2.0 * bytes(n->x));
}

static struct op_cost norm_backward_cost(const struct norm_backward *n)
{
    return elementwise(n->x, 14.0, 3.0 * bytes(n->x) + bytes(n->dresidual));
}

/* Two fused ops: the second does not reload the output of the first. */
static struct op_cost both(struct op_cost a, struct op_cost b, struct tensor between)
{
    return (struct op_cost){.flops = a.flops + b.flops,
                            .bytes = a.bytes + b.bytes - (b.bytes > 0.0 ? bytes(between) : 0.0)};
}

/* Sum over a list. */
static struct op_cost squares_cost(const struct squares_list *all)
{
    struct op_cost cost = {0};
    for (const struct squares *one = all->at; one < all->at + all->count; one++) {
        cost.flops += 2.0 * count(one->x);
        cost.bytes += bytes(one->x);
    }
    return cost;
}

static struct op_cost sum_cost(const struct sum_list *all)
{
    struct op_cost cost = {0};
    for (const struct sum *one = all->at; one < all->at + all->count; one++) {
        cost.flops += count(one->x);
        cost.bytes += bytes(one->x);
    }
    return cost;
}

static struct op_cost adamw_cost(const struct adamw_list *all)
{
    struct op_cost cost = {0};
    for (const struct adamw *one = all->at; one < all->at + all->count; one++) {
        cost.flops += 14.0 * count(one->weight);
        cost.bytes += 2.0 * bytes(one->weight) + 5.0 * bytes(one->m) + bytes(one->working);
    }
    return cost;
}

struct op_cost op_cost(const struct op *op)
{
    switch (op->kind) {
    case OP_GEMM:
        return gemm_cost(&op->gemm);
    case OP_FILL:
        return elementwise(op->fill.out, 0.0, bytes(op->fill.out));
    case OP_COPY:
        return elementwise(op->copy.out, 0.0, 2.0 * bytes(op->copy.out));
    case OP_CAST:
        return elementwise(op->cast.out, 1.0, bytes(op->cast.in) + bytes(op->cast.out));
    case OP_TO_DEVICE:
    case OP_TO_HOST:
        return (struct op_cost){.bytes = (double)op->transfer.bytes};
    case OP_ADD:
        return elementwise(op->add.out, 1.0, 3.0 * bytes(op->add.out));
    case OP_ADD_PARTS:
        return elementwise(op->add_parts.parts, 1.0, bytes(op->add_parts.parts) + bytes(op->add_parts.out));
    case OP_POISON:
        return (struct op_cost){0};
    case OP_INIT_NORMAL:
        return elementwise(op->init_normal.out, 50.0, bytes(op->init_normal.out));
    case OP_COLUMN_SUM:
        return elementwise(op->column_sum.in, 1.0,
                           bytes(op->column_sum.in) + 2.0 * bytes(op->column_sum.out));
    case OP_NORM_FORWARD:
        return norm_forward_cost(&op->norm_forward);
    case OP_NORM_BACKWARD:
        return norm_backward_cost(&op->norm_backward);
    case OP_ACTIVATION_FORWARD:
        return elementwise(op->activation_forward.y, ACTIVATION_FLOPS,
                           bytes(op->activation_forward.x) + bytes(op->activation_forward.y));
    case OP_ACTIVATION_BACKWARD:
        return elementwise(op->activation_backward.dy, ACTIVATION_BACKWARD_FLOPS,
                           2.0 * bytes(op->activation_backward.x) + bytes(op->activation_backward.dy));
    case OP_ROPE:
        return elementwise(op->rope.x, 3.0, 2.0 * bytes(op->rope.x));
    case OP_ATTENTION_FORWARD: // q k^T and p v
        return (struct op_cost){.flops = attention_pairs(&op->attention_forward) *
                                         (2.0 * (double)op->attention_forward.head_dim +
                                          2.0 * (double)attention_value_dim(&op->attention_forward) +
                                          pair_flops(&op->attention_forward, 4.0)),
                                .bytes = attention_bytes(&op->attention_forward)};
    case OP_ATTENTION_BACKWARD: // q k^T recomputed, dout v^T, and dq, dk, dv
        return (struct op_cost){.flops = attention_pairs(&op->attention_backward.forward) *
                                         (6.0 * (double)op->attention_backward.forward.head_dim +
                                          4.0 * (double)attention_value_dim(&op->attention_backward.forward) +
                                          pair_flops(&op->attention_backward.forward, 8.0)),
                                .bytes = 2.0 * attention_bytes(&op->attention_backward.forward)};
    case OP_EMBEDDING_FORWARD:
        return elementwise(op->embedding_forward.out, op->embedding_forward.accumulate ? 1.0 : 0.0,
                           (op->embedding_forward.accumulate ? 3.0 : 2.0) * bytes(op->embedding_forward.out));
    case OP_EMBEDDING_BACKWARD:
        return elementwise(op->embedding_backward.dout, 1.0, 3.0 * bytes(op->embedding_backward.dout));
    case OP_RESIDUAL_FORWARD:
        return residual_forward_cost(&op->residual_forward);
    case OP_RESIDUAL_BACKWARD:
        return residual_backward_cost(&op->residual_backward);
    case OP_RESIDUAL_NORM_FORWARD:
        return both(residual_forward_cost(&op->residual_norm_forward.residual),
                    norm_forward_cost(&op->residual_norm_forward.norm), op->residual_norm_forward.norm.x);
    case OP_RESIDUAL_NORM_BACKWARD:
        return both(norm_backward_cost(&op->residual_norm_backward.norm),
                    residual_backward_cost(&op->residual_norm_backward.residual),
                    op->residual_norm_backward.norm.dx);
    case OP_SOFTCAP:
        return elementwise(op->softcap.x, ACTIVATION_FLOPS, 2.0 * bytes(op->softcap.x));
    case OP_LOSS_MAX:
        return elementwise(op->loss_max.logits, 1.0, bytes(op->loss_max.logits));
    case OP_LOSS_SUM:
        return elementwise(op->loss_sum.logits, 3.0, bytes(op->loss_sum.logits));
    case OP_LOSS_FINISH:
        return elementwise(op->loss_finish.sum, 4.0, 3.0 * bytes(op->loss_finish.sum));
    case OP_LOSS_BACKWARD:
        return elementwise(op->loss_backward.logits, 4.0, 2.0 * bytes(op->loss_backward.logits));
    case OP_SQUARES:
        return squares_cost(&op->squares);
    case OP_SUM:
        return sum_cost(&op->sum);
    case OP_CLIP:
        return elementwise(op->clip.squares, 1.0, bytes(op->clip.squares) + 2.0 * bytes(op->clip.loss));
    case OP_ADAMW:
        return adamw_cost(&op->adamw);
    case OP_MAGNITUDE:
        return elementwise(op->magnitude.in, 1.0, bytes(op->magnitude.in));
    case OP_QUANTIZE: // read again if scales are computed here
        return elementwise(op->quantize.in, 6.0,
                           (op->quantize.block_rows > 0 ? 2.0 : 1.0) * bytes(op->quantize.in) +
                               bytes(op->quantize.out));
    case OP_HADAMARD:
        return elementwise(op->hadamard.in, 5.0, bytes(op->hadamard.in) + bytes(op->hadamard.out));
    case OP_KIND_COUNT:
        break;
    }
    die(__FILE__, __LINE__, "op kind", "unknown op kind %d", (int)op->kind);
}
