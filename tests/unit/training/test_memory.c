// SPDX-License-Identifier: Apache-2.0
/* The memory formula against published tables: what other programs store, by the same formula. */
#include "layers/model.h"
#include "planner/memory/memory_formula.h"
#include "tests/unit/recipe/recipe_case.h"
#include "trainer/run/metrics.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Table 1 of ZeRO (1910.02054), GB of 10^9 bytes ---- */

enum { DEGREES = 6, MODELS = 3, STAGES = 3 };
static const int degrees[DEGREES] = {1, 4, 16, 64, 256, 1024};
static const double table1_parameters[MODELS] = {7.5e9, 128e9, 1e12};
static const char *const table1[DEGREES][MODELS][STAGES] = {
    {{"120", "120", "120"}, {"2048", "2048", "2048"}, {"16000", "16000", "16000"}},
    {{"52.5", "41.3", "30"}, {"896", "704", "512"}, {"7000", "5500", "4000"}},
    {{"35.6", "21.6", "7.5"}, {"608", "368", "128"}, {"4750", "2875", "1000"}},
    {{"31.4", "16.6", "1.88"}, {"536", "284", "32"}, {"4187", "2218", "250"}},
    {{"30.4", "15.4", "0.47"}, {"518", "263", "8"}, {"4046", "2054", "62.5"}},
    {{"30.1", "15.1", "0.12"}, {"513", "257", "2"}, {"4011", "2013", "15.6"}},
};

/* The paper rounds the values that it prints with a fraction, and truncates those without. */
static bool prints_as(double value, const char *printed)
{
    const char *point = strchr(printed, '.');
    double unit = pow(10.0, point != NULL ? -(double)strlen(point + 1) : 0.0), number = strtod(printed, NULL);
    return point != NULL ? fabs(value - number) <= 0.5 * unit + 1e-9 : floor(value + 1e-9) == number;
}

Test(memory, table_1_of_zero)
{
    for (int d = 0; d < DEGREES; d++)
        for (int m = 0; m < MODELS; m++)
            for (int stage = 1; stage <= STAGES; stage++) {
                double bytes = memory_of_states(&memory_of_papers, table1_parameters[m], stage, degrees[d]);
                cr_assert(prints_as(bytes / 1e9, table1[d][m][stage - 1]),
                          "%g parameters, stage %d, dp %d: %.17g GB, but the table has %s",
                          table1_parameters[m], stage, degrees[d], bytes / 1e9, table1[d][m][stage - 1]);
            }
    cr_assert(!prints_as(52.56, "52.5") && !prints_as(2049.0, "2048") && !prints_as(513.5, "514"));
    // Without ZeRO, 16 bytes per parameter; so are this program's weight, gradient and moments in fp32.
    cr_assert_eq(memory_of_states(&memory_of_papers, 1.0, 0, 64), 16.0);
    cr_assert_eq(memory_of_states(&memory_of_program, 1.0, 0, 64), 16.0);
}

/* ---- Table 2 of Korthikanti et al. (2205.05198): bytes of a layer, over sbh ---- */

static const struct {
    int64_t heads, hidden;
} table3[] = {{64, 6144}, {96, 12288}, {128, 20480}, {160, 25600}}; // 22B, 175B, 530B, 1T; s 2048, t 8

static int64_t kept(int64_t heads, int64_t hidden, int64_t b, int tp, bool sequence_parallel,
                    unsigned modules)
{
    struct model_config model = {
        .num_attention_heads = heads,
        .num_query_groups = heads,
        .kv_channels = hidden / heads,
        .hidden_size = hidden,
        .ffn_hidden_size = 4 * hidden,
        .activation = ACTIVATION_GELU,
    };
    struct memory_shape shape = {
        .model = &model,
        .tp = tp,
        .sequence_parallel = sequence_parallel,
        .batch = b,
        .sequence = 2048,
        .assume = memory_of_papers,
    };
    return memory_kept_of_block(&shape, modules);
}

Test(memory, table_2_of_korthikanti)
{
    for (size_t i = 0; i < sizeof table3 / sizeof *table3; i++)
        for (int64_t b = 1; b <= 4; b *= 4) {
            int64_t a = table3[i].heads, h = table3[i].hidden, s = 2048, sbh = s * b * h,
                    core = a * s * s * b;
            enum { t = 8, NONE = 0, CORE = RECOMPUTE_CORE_ATTENTION, ALL = RECOMPUTE_LAYER };
            cr_assert_eq(kept(a, h, b, 1, false, NONE), 34 * sbh + 5 * core);
            cr_assert_eq(kept(a, h, b, t, false, NONE), 10 * sbh + 24 * sbh / t + 5 * core / t);
            cr_assert_eq(kept(a, h, b, t, true, NONE), 34 * sbh / t + 5 * core / t);
            cr_assert_eq(kept(a, h, b, t, false, CORE), 10 * sbh + 24 * sbh / t);
            cr_assert_eq(kept(a, h, b, t, true, CORE), 34 * sbh / t);
            cr_assert_eq(kept(a, h, b, t, false, ALL), 2 * sbh);
        }
}

/* ---- chunks that share memory ---- */

/* The largest sum of what F of a chunk keeps until its B, by walking the list of the rank. */
static int64_t most_kept(const struct schedule *schedule, int rank, const struct slot_use *slots)
{
    int64_t now = 0, most = 0;
    for (int i = 0; i < schedule->ranks[rank].count; i++) {
        const struct action action = schedule->ranks[rank].actions[i];
        const int chunk = schedule_chunk(schedule, action.stage, action.microbatch);
        const int64_t bytes = slots[chunk * SLOT_LIFETIMES + KEEP_UNTIL_BACKWARD_WEIGHT].bytes;
        now += action.kind == FORWARD ? bytes : 0;
        most = now > most ? now : most;
        now -= action.kind == BACKWARD ? bytes : 0;
    }
    return most;
}

/* Interleaved 1F1B: both chunks have most microbatches at different times. */
Test(memory, chunks_share_activations)
{
    struct slot_use slots[2 * SLOT_LIFETIMES] = {{0}};
    struct schedule *schedule = NULL;
    struct slot_plan *plan = NULL;
    int64_t saving, all = 0;
    cr_assert_eq(
        schedule_build(&(struct schedule_options){.name = "interleaved", .p = 4, .m = 8, .v = 2}, &schedule),
        OK);
    for (int rank = 0; rank < 4; rank++) {
        plan = slot_plan_create(schedule, rank);
        all = 0;
        for (int chunk = 0; chunk < 2; chunk++) {
            struct slot_use *use = &slots[chunk * SLOT_LIFETIMES + KEEP_UNTIL_BACKWARD_WEIGHT];
            *use = (struct slot_use){plan->peak[KEEP_UNTIL_BACKWARD_WEIGHT][chunk], chunk == 0 ? 300 : 500};
            all += use->slots * use->bytes;
        }
        saving = memory_shared_saving(schedule, rank, slots);
        cr_expect_eq(all - saving, most_kept(schedule, rank, slots), "rank %d", rank);
        cr_expect(rank == 3 || saving > 0, "rank %d", rank);
        slot_plan_destroy(plan);
    }
    schedule_destroy(schedule);
}

/* ---- the same from a recipe, `assume: papers` ---- */

#define BIG                                                                                                  \
    "model: {num_layers: 4, hidden_size: 6144, num_attention_heads: 64, seq_length: 2048, vocab_size: 512, " \
    "tie_word_embeddings: false}\n"                                                                          \
    "train: {global_batch_size: 4, micro_batch_size: 4, train_iters: 10}\n" OPTIMIZER DATA                   \
    "cluster: {device: dry}\nassume: papers\n"

static struct memory_table table_of(const char *layers, const char *layout, int64_t *parameters)
{
    const char *overrides[8] = {layers};
    char copy[200];
    snprintf(copy, sizeof copy, "%s", layout);
    char *rest = copy;
    for (int i = 1; rest != NULL; i++)
        overrides[i] = strsep(&rest, " ");
    struct loaded l = load(BIG, overrides, 0);
    struct run run;
    struct memory_table table;
    cr_assert(l.recipe != NULL, "%s", text_chars(&l.messages));
    cr_assert_eq(run_create(l.recipe, false, &run), OK, "%s", fail_text());
    cr_assert_eq(memory_formula(&run, 0, 1, &table), OK, "%s", fail_text());
    cr_assert_eq(model_parameter_count(&l.recipe->model, parameters), OK);
    run_destroy(&run);
    loaded_free(&l);
    return table;
}

/* The activations of one layer: the difference between models with four and three layers. */
static int64_t activations_of_a_layer(const char *layout)
{
    int64_t ignored;
    struct memory_table three = table_of("model.num_layers=3", layout, &ignored),
                        four = table_of("model.num_layers=4", layout, &ignored);
    int64_t bytes = four.part_bytes[PART_ACTIVATIONS] - three.part_bytes[PART_ACTIVATIONS];
    memory_table_free(&three);
    memory_table_free(&four);
    return bytes;
}

Test(memory, recipe_with_assume_papers)
{
    const int64_t sbh = 2048LL * 4 * 6144, core = 64LL * 2048 * 2048 * 4;
    cr_expect_eq(activations_of_a_layer("tp=1"), 34 * sbh + 5 * core);
    cr_expect_eq(activations_of_a_layer("tp=8"), 10 * sbh + 24 * sbh / 8 + 5 * core / 8);
    cr_expect_eq(activations_of_a_layer("tp=8 parallel.sequence_parallel=true"), 34 * sbh / 8 + 5 * core / 8);
    cr_expect_eq(activations_of_a_layer("tp=8 memory.recompute_granularity=selective"),
                 10 * sbh + 24 * sbh / 8);
    cr_expect_eq(activations_of_a_layer("tp=1 memory.recompute_granularity=full"), 2 * sbh);
    int64_t parameters;
    struct memory_table table = table_of("model.num_layers=4", "tp=1", &parameters);
    static const struct {
        enum part part;
        int64_t each;
    } states[] = {{PART_WEIGHTS, 2}, {PART_MASTERS, 4}, {PART_GRADIENTS, 2}, {PART_MOMENTS, 8}};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        cr_expect_eq(table.part_bytes[states[i].part], states[i].each * parameters, "%s",
                     part_name(states[i].part));
    cr_expect_eq(table.bytes, 16 * parameters + table.part_bytes[PART_ACTIVATIONS],
                 "nothing else is counted");
    memory_table_free(&table);
    EXPECT_MESSAGES(SMALL "assume: papers\n",
                    "R:5: assume.programs papers is for plans only, but cluster.device is cpu; "
                    "use cuboid plan or cluster.device=dry, or remove it\n");
    EXPECT_MESSAGES(SMALL "assume: {attention: flash, norm: unfused}\n",
                    "R:5: assume.attention flash is for plans only, but cluster.device is cpu; "
                    "use cuboid plan or cluster.device=dry, or remove it\n");
    EXPECT_MESSAGES(SMALL "assume: [papers]\n",
                    "R:5: assume is a section; expected keys and values below it\n");
}

/* A byte per element of the residual stream after attention and MLP, on each tensor-parallel rank. */
Test(memory, dropout_masks)
{
#define STORED "assume.programs=program assume.dropout_masks=stored "
    const int64_t sbh = 2048LL * 4 * 6144;
    const int64_t own = activations_of_a_layer("assume.programs=program model.hidden_dropout=0.1 tp=2");
    cr_expect_eq(activations_of_a_layer(STORED "model.hidden_dropout=0.1 tp=2"), own + 2 * sbh);
    cr_expect_eq(activations_of_a_layer(STORED "tp=2"), own);
#undef STORED
}

/* Activations of this program in fp32: no masks, no scores, but the small tensors (docs/memory.md). */
Test(memory, program)
{
    struct model_config model = {
        .num_attention_heads = 12,
        .num_query_groups = 12,
        .kv_channels = 64,
        .hidden_size = 768,
        .ffn_hidden_size = 3072,
        .activation = ACTIVATION_GELU,
    };
    struct memory_shape shape = {
        .model = &model, .tp = 1, .batch = 1, .sequence = 1024, .assume = memory_of_program};
    int64_t stream = 4 * 1024 * 768, small = 4 * 1024;
    cr_assert_eq(memory_kept_of_block(&shape, 0), 16 * stream + (4 + 12) * small);
    cr_assert_eq(memory_kept_of_block(&shape, RECOMPUTE_CORE_ATTENTION), 15 * stream + 4 * small);
    cr_assert_eq(memory_kept_of_block(&shape, RECOMPUTE_NORM), 14 * stream + 16 * small);
    cr_assert_eq(memory_kept_of_block(&shape, RECOMPUTE_ACTIVATION), 12 * stream + 16 * small);
    cr_assert_eq(memory_kept_of_block(&shape, RECOMPUTE_LAYER), stream);
}

/* ---- which layers are recomputed together ---- */

static void check_runs(struct recompute recompute, int layers, const char *expected)
{
    struct text runs = {0};
    for (int i = 0; i < layers;) {
        struct recompute_run run = recompute_run_of(&recompute, layers, i);
        cr_assert(run.first == i && run.count >= 1);
        for (int k = 0; k < run.count; k++) {
            struct recompute_run same = recompute_run_of(&recompute, layers, i + k);
            cr_assert(same.first == i && same.count == run.count && same.modules == run.modules);
            text_add(&runs, run.modules == RECOMPUTE_LAYER ? k == 0 ? "x" : "." : "-");
        }
        i += run.count;
    }
    cr_assert_str_eq(text_chars(&runs), expected);
    text_free(&runs);
}

Test(memory, runs)
{
    struct recompute uniform = {.granularity = RECOMPUTE_FULL, .method = RECOMPUTE_UNIFORM, .num_layers = 1};
    struct recompute block = {.granularity = RECOMPUTE_FULL, .method = RECOMPUTE_BLOCK, .num_layers = 2};
    check_runs(uniform, 3, "xxx");
    uniform.num_layers = 2;
    check_runs(uniform, 5, "x.x.x");
    uniform.num_layers = 100000;
    check_runs(uniform, 3, "x..");
    check_runs(block, 5, "xx---");
    check_runs(block, 1, "x");
    check_runs((struct recompute){.granularity = RECOMPUTE_NONE, .modules = RECOMPUTE_NORM}, 3, "---");
    check_runs((struct recompute){.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_NORM}, 3, "---");
}
