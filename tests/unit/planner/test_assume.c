// SPDX-License-Identifier: Apache-2.0
/* The section `assume`: ops of other programs, layers of stages, and that training refuses it. */
#include "tests/unit/planner/ideal_profile.h"

#include "planner/assume/assume.h"
#include "planner/cost/cost.h"
#include "trainer/recipe/recipe.h"

#include <criterion/criterion.h>
#include <math.h>

static const struct assumed_model plain = {.tensor_parallel = 1},
                                  with_dropout = {.attention_dropout = true, .tensor_parallel = 1};

enum { HEADS = 6, SEQUENCE = 64, HEAD = 16 };

static struct op_record attention(enum op_kind kind, double flops)
{
    return (struct op_record){
        .kind = kind, .dtype = BF16, .shape = {HEADS, SEQUENCE, HEAD}, .launches = 1, .cost = {flops, 8.0}};
}

static double sum_flops(const struct op_record *ops, int count, enum op_kind kind)
{
    double flops = 0.0;
    for (int i = 0; i < count; i++)
        flops += ops[i].kind == kind ? ops[i].cost.flops : 0.0;
    return flops;
}

static double sum_bytes(const struct op_record *ops, int count, enum op_kind kind)
{
    double bytes = 0.0;
    for (int i = 0; i < count; i++)
        bytes += ops[i].kind == kind ? ops[i].cost.bytes : 0.0;
    return bytes;
}

/* Korthikanti et al. 2022, section 4: 2 matmuls forward and 4 backward of 2 S^2 D FLOPs per head. */
Test(assume, unfused_attention_stores_its_scores)
{
    const struct assumptions assume = {.attention = ASSUME_ATTENTION_UNFUSED};
    const double matmul = 2.0 * HEADS * SEQUENCE * SEQUENCE * HEAD, scores = HEADS * SEQUENCE * SEQUENCE;
    const struct op_record forward = attention(OP_ATTENTION_FORWARD, 1.0),
                           backward = attention(OP_ATTENTION_BACKWARD, 1.0);
    struct op_record out[ASSUME_MAX_OPS];
    int count = assume_ops(&assume, &plain, &forward, out);
    cr_expect_eq(sum_flops(out, count, OP_GEMM), 2.0 * matmul);
    cr_expect_eq(sum_bytes(out, count, OP_NORM_FORWARD), 4.0 * scores); // softmax: read, write
    cr_expect_eq(sum_bytes(out, count, OP_GEMM), 2.0 * (2.0 * scores + 4.0 * HEADS * SEQUENCE * HEAD));
    count = assume_ops(&assume, &with_dropout, &forward, out);
    cr_expect_eq(sum_bytes(out, count, OP_NORM_FORWARD), 9.0 * scores); // and dropout with its mask
    count = assume_ops(&assume, &plain, &backward, out);
    cr_expect_eq(sum_flops(out, count, OP_GEMM), 4.0 * matmul);
    cr_expect_eq(sum_bytes(out, count, OP_NORM_FORWARD), 6.0 * scores);
    count = assume_ops(&assume, &with_dropout, &backward, out);
    cr_expect_eq(sum_bytes(out, count, OP_NORM_FORWARD), 11.0 * scores);
}

/* Without fused kernels: a mask, and a softmax in fp32 with a cast to it and back. */
Test(assume, eager_attention_makes_more_passes)
{
    const struct assumptions assume = {.attention = ASSUME_ATTENTION_EAGER};
    const double scores = HEADS * SEQUENCE * SEQUENCE;
    const struct op_record forward = attention(OP_ATTENTION_FORWARD, 1.0),
                           backward = attention(OP_ATTENTION_BACKWARD, 1.0);
    struct op_record out[ASSUME_MAX_OPS];
    int count = assume_ops(&assume, &with_dropout, &forward, out);
    cr_expect_eq(sum_bytes(out, count, OP_NORM_FORWARD), (5.0 + 20.0 + 5.0) * scores);
    count = assume_ops(&assume, &with_dropout, &backward, out);
    cr_expect_eq(sum_bytes(out, count, OP_NORM_FORWARD), (5.0 + 5.0 + 24.0) * scores);
}

Test(assume, separate_norms_read_their_tensors_again)
{
    const struct assumptions assume = {.norm = ASSUME_SEPARATE};
    const enum op_kind kinds[] = {OP_NORM_FORWARD, OP_RESIDUAL_NORM_FORWARD, OP_NORM_BACKWARD,
                                  OP_RESIDUAL_NORM_BACKWARD};
    const double own[] = {4, 8, 8, 10}, separate[] = {4, 11, 16, 21}; // bytes per element
    for (int i = 0; i < 4; i++) {
        const struct op_record op = {
            .kind = kinds[i], .dtype = BF16, .shape = {8, 16}, .launches = 1, .cost = {1.0, own[i] * 128}};
        struct op_record out[ASSUME_MAX_OPS];
        cr_assert_eq(assume_ops(&assume, &plain, &op, out), 1);
        cr_expect_float_eq(out[0].cost.bytes, separate[i] * 128, 1e-9, "%s", op_name(kinds[i]));
    }
}

/* A matmul that adds to fp32 becomes one that writes bf16, and an addition; others stay. */
Test(assume, separate_accumulation)
{
    const struct assumptions assume = {.accumulation = ASSUME_SEPARATE};
    struct op_record gemm = {.kind = OP_GEMM, .dtype = BF16, .shape = {64, 32, 128}, .launches = 1};
    struct op_record out[ASSUME_MAX_OPS];
    const double inputs = 2.0 * (64 * 128 + 32 * 128), elements = 64 * 32;
    gemm.cost.bytes = inputs + 8.0 * elements;
    cr_assert_eq(assume_ops(&assume, &plain, &gemm, out), 2);
    cr_expect_eq(out[0].cost.bytes, inputs + 2.0 * elements);
    cr_expect_eq(out[1].kind, OP_ADD);
    cr_expect_eq(out[1].cost.bytes, 10.0 * elements);
    gemm.cost.bytes = inputs + 2.0 * elements;
    cr_expect_eq(assume_ops(&assume, &plain, &gemm, out), 1);
}

/* With gradients in bf16 the addition reads and writes these. */
Test(assume, separate_accumulation_in_bf16)
{
    const struct assumptions assume = {.accumulation = ASSUME_SEPARATE, .gradient_dtype = ASSUME_DTYPE_BF16};
    const struct op_record gemm = {.kind = OP_GEMM,
                                   .dtype = BF16,
                                   .shape = {64, 32, 128},
                                   .launches = 1,
                                   .cost.bytes = 2.0 * (64 * 128 + 32 * 128) + 8.0 * 64 * 32};
    struct op_record out[ASSUME_MAX_OPS];
    cr_assert_eq(assume_ops(&assume, &plain, &gemm, out), 2);
    cr_expect_eq(out[1].cost.bytes, 6.0 * 64 * 32);
}

/* A norm with the residual before it also adds that, once in each direction. */
Test(assume, unfused_norms_read_the_residual_once)
{
    const struct assumptions assume = {.norm = ASSUME_UNFUSED};
    const enum op_kind kinds[] = {OP_NORM_FORWARD, OP_RESIDUAL_NORM_FORWARD, OP_NORM_BACKWARD,
                                  OP_NORM_BACKWARD, OP_RESIDUAL_NORM_BACKWARD};
    const double own[] = {4, 8, 6, 8, 8}, unfused[] = {36, 42, 72, 78, 78}; // bytes per element
    for (int i = 0; i < 5; i++) {
        const struct op_record op = {
            .kind = kinds[i], .dtype = BF16, .shape = {8, 16}, .launches = 1, .cost = {1.0, own[i] * 128}};
        struct op_record out[ASSUME_MAX_OPS];
        cr_assert_eq(assume_ops(&assume, &plain, &op, out), 1);
        cr_expect_float_eq(out[0].cost.bytes, unfused[i] * 128, 1e-9, "%d", i);
    }
}

/* One matmul of the projection to gate and up, with operands and result read or written once. */
static struct op_record projection(int64_t m, int64_t n, int64_t k, bool transposed)
{
    return (struct op_record){.kind = OP_GEMM,
                              .dtype = BF16,
                              .shape = {m, n, k},
                              .launches = 1,
                              .transposed = transposed,
                              .cost = {2.0 * (double)(m * n * k), 2.0 * (double)(m * n + m * k + n * k)}};
}

/* Two matmuls of half the FLOPs, that each read what they share; only the gradient of the input is added, and
 * has a second all-reduce. */
Test(assume, separate_gates)
{
    enum { TOKENS = 64, HIDDEN = 32, GATE = 48 };
    const struct assumptions assume = {.gate = ASSUME_SEPARATE};
    const struct assumed_model model = {.hidden = HIDDEN, .gate_columns = GATE, .tensor_parallel = 2};
    const struct op_record whole[] = {projection(TOKENS, GATE, HIDDEN, false),
                                      projection(GATE, HIDDEN, TOKENS, true),
                                      projection(TOKENS, HIDDEN, GATE, false)},
                           half[] = {projection(TOKENS, GATE / 2, HIDDEN, false),
                                     projection(GATE / 2, HIDDEN, TOKENS, true),
                                     projection(TOKENS, HIDDEN, GATE / 2, false)},
                           other = projection(TOKENS, HIDDEN, HIDDEN, false);
    struct op_record out[ASSUME_MAX_OPS];
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(assume_ops(&assume, &model, &whole[i], out), i == 2 ? 3 : 2);
        cr_expect(op_record_equals(&out[0], &half[i]), "%d: %.0f bytes", i, out[0].cost.bytes);
        cr_expect(op_record_equals(&out[1], &half[i]), "%d", i);
        cr_expect_eq(assume_message(&assume, &model, &whole[i]).bytes, i == 2 ? 2 * TOKENS * HIDDEN : 0);
    }
    cr_expect_eq(out[2].cost.bytes, 3.0 * 2.0 * TOKENS * HIDDEN);
    cr_expect_eq(assume_ops(&assume, &model, &other, out), 1);
    cr_expect_eq(assume_message(&assume, &model, &other).bytes, 0);
}

/* Each rank has the loss of all columns; a checkpointed head is computed and gathered twice. */
Test(assume, loss_on_whole_logits)
{
    enum { TOKENS = 64, COLUMNS = 100, HIDDEN = 32, TP = 4 };
    const struct assumptions assume = {.logits = ASSUME_LOGITS_WHOLE};
    struct assumed_model model = {.hidden = HIDDEN, .tensor_parallel = TP};
    struct op_record op = {
        .kind = OP_LOSS_MAX, .dtype = BF16, .shape = {TOKENS, COLUMNS}, .launches = 1, .cost = {1.0, 1.0}};
    const double logits = TOKENS * COLUMNS * TP;
    struct op_record out[ASSUME_MAX_OPS];
    cr_expect_eq(assume_ops(&assume, &model, &op, out), 1);
    cr_expect_eq(out[0].cost.bytes, (18.0 + 8.0) * logits);
    cr_expect_eq(assume_message(&assume, &model, &op).bytes, 2 * TOKENS * COLUMNS * TP);
    op.kind = OP_LOSS_BACKWARD;
    cr_expect_eq(assume_ops(&assume, &model, &op, out), 1);
    cr_expect_eq(out[0].cost.bytes, 22.0 * logits);
    cr_expect_eq(assume_message(&assume, &model, &op).bytes, 0);
    model.recomputes_modules = true;
    cr_expect_eq(assume_ops(&assume, &model, &op, out), 2);
    cr_expect_eq(out[0].cost.bytes, (22.0 + 8.0) * logits);
    cr_expect_eq(out[1].cost.flops, 2.0 * TOKENS * COLUMNS * HIDDEN);
    cr_expect_eq(assume_message(&assume, &model, &op).bytes, 2 * TOKENS * COLUMNS * TP);
    op.kind = OP_LOSS_SUM;
    cr_expect_eq(assume_ops(&assume, &model, &op, out), 1);
    cr_expect_eq(out[0].cost.bytes, 0.0);
}

/* Pauses of the host add up over the ranks of a replica, once for each checkpointed layer. */
Test(assume, checkpointed_modules_pause_the_host)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    const struct assumptions assume = {.attention = ASSUME_ATTENTION_OWN};
    struct cost_options options = {
        .profile = p, .assume = &assume, .model = {.tensor_parallel = 4, .replica_ranks = 32}};
    const struct op_record forward = attention(OP_ATTENTION_FORWARD, 1e9),
                           backward = attention(OP_ATTENTION_BACKWARD, 1e9);
    const double run_s = cost_of_op(&options, &backward).run_s;
    cr_expect_eq(cost_of_op(&options, &backward).launch_s, 0.0);
    options.model.recomputes_modules = true;
    cr_expect_eq(cost_of_op(&options, &forward).launch_s, 0.0);
    cr_expect_eq(cost_of_op(&options, &backward).run_s, run_s);
    cr_expect_float_eq(cost_of_op(&options, &backward).launch_s, 32 * 75e-6, 1e-12);
    options.model.replica_ranks = 1;
    cr_expect_float_eq(cost_of_op(&options, &backward).launch_s, 75e-6, 1e-12);
    profile_destroy(p);
}

Test(assume, nothing_changes_by_default)
{
    const struct assumptions assume = {.attention = ASSUME_ATTENTION_OWN};
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const struct op_record op = attention((enum op_kind)kind, 3.0);
        struct op_record out[ASSUME_MAX_OPS];
        cr_expect_eq(assume_ops(&assume, &with_dropout, &op, out), 1);
        cr_expect(op_record_equals(&op, &out[0]));
    }
}

Test(assume, costs_follow)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct assumptions assume = {.attention = ASSUME_ATTENTION_FLASH};
    struct cost_options options = {.profile = p, .ranks_per_node = 8}, assumed = options;
    assumed.assume = &assume;
    const struct op_record forward = attention(OP_ATTENTION_FORWARD, 1e9), norm = {.kind = OP_NORM_FORWARD,
                                                                                   .dtype = BF16,
                                                                                   .shape = {512, 512, 0},
                                                                                   .launches = 1,
                                                                                   .cost = {1e6, 1e6}};
    const double own_s = cost_of_op(&options, &forward).run_s, fused_s = cost_of_op(&options, &norm).run_s;
    cr_expect_float_eq(cost_of_op(&assumed, &forward).run_s, 2.0 * own_s, 1e-12 * own_s);
    cr_expect_eq(cost_of_op(&assumed, &norm).run_s, fused_s);
    assume.attention = ASSUME_ATTENTION_FLASH2_DETERMINISTIC;
    cr_expect_eq(cost_of_op(&assumed, &forward).run_s, own_s);
    const struct op_record backward = attention(OP_ATTENTION_BACKWARD, 1e9);
    cr_expect_float_eq(cost_of_op(&assumed, &backward).run_s,
                       cost_of_op(&options, &backward).run_s / (1.0 - 0.379), 1e-12);
    assumed.model.compute_capability = 100;
    cr_expect_float_eq(cost_of_op(&assumed, &forward).run_s, 1418.0 / 361.0 * own_s, 1e-12);
    cr_expect_float_eq(cost_of_op(&assumed, &backward).run_s,
                       1209.0 / 330.0 / (1.0 - 0.379) * cost_of_op(&options, &backward).run_s, 1e-12);
    assume.attention = ASSUME_ATTENTION_OWN_DETERMINISTIC;
    cr_expect_float_eq(cost_of_op(&assumed, &backward).run_s,
                       cost_of_op(&options, &backward).run_s / (1.0 - 0.379), 1e-12);
    assume = (struct assumptions){.attention = ASSUME_ATTENTION_FLASH3, .norm = ASSUME_UNFUSED};
    assumed.model.compute_capability = 90;
    cr_expect_eq(cost_of_op(&assumed, &forward).run_s, own_s, "the efficiencies of Hopper are its own");
    cr_expect_float_eq(cost_of_op(&assumed, &norm).run_s, 9.0 * fused_s, 1e-12 * fused_s);
    profile_destroy(p);
}

/* FlashAttention runs where it has kernels, never above the peak, and no older version is faster. */
Test(assume, attention_of_each_gpu)
{
    static const int capabilities[] = {0, 70, 75, 80, 89, 90, 100};
    struct cluster_profile *p = ideal_profile(1e14, 1e15); // attention at the peak
    for (size_t c = 0; c < sizeof capabilities / sizeof *capabilities; c++) {
        const int have = capabilities[c];
        double seconds[ASSUME_ATTENTION_FLASH3 + 1];
        for (int kind = ASSUME_ATTENTION_OWN; kind <= ASSUME_ATTENTION_FLASH3; kind++) {
            const struct assumptions assume = {.attention = (enum assumed_attention)kind};
            if (assume_stores_scores(&assume))
                continue; // matmuls instead
            const struct cost_options options = {
                .profile = p, .assume = &assume, .model = {.compute_capability = have}};
            const struct op_record forward = attention(OP_ATTENTION_FORWARD, 1e9),
                                   backward = attention(OP_ATTENTION_BACKWARD, 1e9);
            seconds[kind] = cost_of_op(&options, &forward).run_s;
            cr_expect_geq(seconds[kind], 1e9 / 1e14, "%d on %d", kind, have);
            cr_expect_geq(cost_of_op(&options, &backward).run_s, 1e9 / 1e14, "%d on %d", kind, have);
            const bool runs = kind == ASSUME_ATTENTION_FLASH3   ? have == 90
                              : kind == ASSUME_ATTENTION_FLASH  ? have == 0 || have >= 75
                              : kind >= ASSUME_ATTENTION_FLASH2 ? have == 0 || have >= 80
                                                                : true;
            cr_expect_eq(assume_attention_fault(&assume, have) == NULL, runs, "%d on %d", kind, have);
        }
        cr_expect_eq(seconds[ASSUME_ATTENTION_OWN] < seconds[ASSUME_ATTENTION_FLASH2], have >= 90, "%d",
                     have);
        cr_expect_lt(seconds[ASSUME_ATTENTION_FLASH2], seconds[ASSUME_ATTENTION_FLASH], "%d", have);
    }
    profile_destroy(p);
}

static void expect_layers(const struct model_config *model, enum stage_partition partition,
                          const int64_t *expected, int64_t stages)
{
    int64_t sum = 0;
    for (int64_t s = 0; s < stages; s++) {
        const int64_t here = partition_stage_layers(model, partition, stages, s);
        cr_expect(expected == NULL || here == expected[s], "stage %lld of %lld: %lld layers", (long long)s,
                  (long long)stages, (long long)here);
        cr_expect_geq(here, 0);
        sum += here;
    }
    cr_expect_eq(sum, model->num_layers, "%lld layers in %lld stages", (long long)sum, (long long)stages);
}

Test(assume, partitions)
{
    struct model_config model = {.num_layers = 22,
                                 .hidden_size = 2304,
                                 .num_attention_heads = 24,
                                 .num_query_groups = 24,
                                 .kv_channels = 96,
                                 .ffn_hidden_size = 9216,
                                 .vocab_size = 51200};
    // Zero Bubble (ICLR 2024), table 3: 22 layers on 8 stages, the first and the last with one less.
    expect_layers(&model, PARTITION_EMBEDDING_AS_LAYER, (const int64_t[]){2, 3, 3, 3, 3, 3, 3, 2}, 8);
    // A vocabulary of 51200 is nearly two of these layers.
    expect_layers(&model, PARTITION_PARAMETERS, (const int64_t[]){5, 6, 6, 5}, 4);
    // 25 modules on 8 stages: four on the first, of which one is the embedding; the last has norm and head.
    expect_layers(&model, PARTITION_MODULES, (const int64_t[]){3, 3, 3, 3, 3, 3, 3, 1}, 8);
    for (int64_t layers = 1; layers <= 40; layers++)
        for (int64_t stages = 1; stages <= layers; stages++) {
            model.num_layers = layers;
            expect_layers(&model, PARTITION_EMBEDDING_AS_LAYER, NULL, stages);
            expect_layers(&model, PARTITION_PARAMETERS, NULL, stages);
            expect_layers(&model, PARTITION_MODULES, NULL, stages);
        }
}
