// SPDX-License-Identifier: Apache-2.0
/* Layouts that add the same terms in another order stay within derived bounds of one rank: three steps of
 * each layout below, every loss, gradient norm, gradient, weight and moment. The bounds themselves are
 * checked too: a bound 100 times the largest error of its quantity, over all these layouts, would hide
 * faults. */
#include "tests/support/sanitized.h"
#include "tests/support/tiny_verify.h"

#include <math.h>
#include <string.h>

#define SP      " parallel.sequence_parallel=true "
#define OVERLAP SP "parallel.tp_comm_overlap=true "

static const struct comparison comparisons[] = {
    // Each parallel dimension alone; 12 heads, 48 features and a vocabulary not divisible by any of them.
    {TINY_GPT, "", "tp=2", ""},
    {TINY_GPT, "", "tp=3", ""},
    {TINY_GPT, "", "tp=4", ""},
    {TINY_GPT, "", "dp=2", ""},
    {TINY_GPT, "", "dp=4", ""},
    {TINY_GPT, "", "pp=4 pipeline.layout=[2,0,1,2]", ""},
    {TINY_LLAMA, "", "tp=2", ""},
    {TINY_LLAMA, "model.num_query_groups=3", "tp=3", ""},
    {TINY_LLAMA, "", "tp=4", ""}, // two ranks for each key/value head
    {TINY_LLAMA, "model.num_query_groups=1 model.make_vocab_size_divisible_by=16", "tp=4 dp=2", ""},
    {TINY_LLAMA, "", "tp=12", ""}, // two ranks hold none of the 37 rows of the vocabulary
    {TINY_LLAMA, "", "dp=4 parallel.zero_stage=3", ""},
    // Sequence parallel.
    {TINY_GPT, "", "tp=2" SP, ""},
    {TINY_GPT, "", "tp=3 pp=2" OVERLAP, ""},
    {TINY_GPT, "", "tp=4 dp=2" OVERLAP "cluster.device=strict", ""},
    {TINY_LLAMA, "", "tp=2 pp=2" SP, ""},
    {TINY_LLAMA, "", "tp=4 pp=2 pipeline.schedule=zb-h1" SP "cluster.device=strict", ""},
    // All dimensions; tied and untied.
    {TINY_GPT, "", "tp=2 dp=2 pp=2" SP, ""},
    {TINY_GPT, "model.tie_word_embeddings=false",
     "tp=2 dp=2 pp=2 pipeline.schedule=zb-h1 parallel.zero_stage=2", ""},
    {TINY_LLAMA, "", "tp=2 dp=2 pp=2 pipeline.schedule=gpipe parallel.rank_order=pp-dp-tp-cp-ep", ""},
    {TINY_LLAMA, "model.tie_word_embeddings=true", "tp=2 dp=2 pp=2 parallel.zero_stage=1" SP, ""},
    // Parallel branches, a norm of the embedding, other activation functions.
    {TINY_GPT, TINY_TWO_NORMS, "tp=2 dp=2 pp=2" SP, ""},
    {TINY_LLAMA, TINY_PARALLEL, "tp=4 dp=2" OVERLAP, ""},
    // Two directions, whose gradients are added at the end; with one microbatch the second is empty.
    {TINY_GPT, "", "pp=2 pipeline.schedule=dualpipe", ""},
    {TINY_LLAMA, "", "pp=4 pipeline.schedule=dualpipe cluster.device=strict", ""},
    {TINY_GPT, "train.micro_batch_size=1",
     "tp=2 dp=2 pp=2 parallel.zero_stage=3 pipeline.schedule=dualpipe" SP, ""},
    {TINY_LLAMA, "model.tie_word_embeddings=true", "pp=2 pipeline.schedule=dualpipe train.micro_batch_size=8",
     ""},
    // A rank holds the first and the last stage.
    {TINY_GPT, "", "pp=2 dp=2 pipeline.schedule=zb-v", ""},
    {TINY_LLAMA, "model.tie_word_embeddings=true", "tp=2 pp=2 pipeline.schedule=dualpipev" SP, ""},
    // Other microbatch sizes, and fewer microbatches than stages.
    {TINY_GPT, "", "tp=2 train.micro_batch_size=1", "train.micro_batch_size=4"},
    {TINY_GPT, "", "dp=2 train.micro_batch_size=4", "train.micro_batch_size=1"},
    {TINY_LLAMA, "", "pp=2 train.micro_batch_size=4", "train.micro_batch_size=2"},
    {TINY_LLAMA, "", "pp=4 train.micro_batch_size=8", "train.micro_batch_size=1"},
    {TINY_GPT, "train.micro_batch_size=4", "pp=4 dp=2 pipeline.schedule=zb-h1", ""},
    // The smallest sizes: one layer, one token, a head for each rank, a rank without layers.
    {TINY_LLAMA, "model.num_layers=1 model.seq_length=1", "tp=12 pp=2 pipeline.layout=[0,1]", ""},
    // Dropout, documents and conversations.
    {TINY_GPT, TINY_DROPOUT, "tp=4 dp=2", ""},
    {TINY_GPT, TINY_DROPOUT TINY_DOCUMENTS, "tp=2 dp=2 pp=2 train.micro_batch_size=1" SP, ""},
    {TINY_LLAMA, TINY_DROPOUT, "tp=4 dp=2" SP, "train.micro_batch_size=4"},
    {TINY_LLAMA, TINY_CONVERSATIONS TINY_LLAMA_BYTES, "tp=2 dp=4 pp=2" SP, "train.micro_batch_size=1"},
};

/* bf16, whose bounds have an additional term. */
#define BF16_ALL   "precision.params_dtype=bf16 "
#define NO_MASTERS "precision.main_params_dtype=bf16 "
static const struct comparison narrow_comparisons[] = {
    {TINY_GPT, BF16_ALL, "tp=2", ""},
    {TINY_GPT, BF16_ALL, "tp=3 pp=2" OVERLAP, ""},
    {TINY_GPT, BF16_ALL TINY_DROPOUT, "tp=2 dp=2 pp=2 parallel.zero_stage=1" SP, ""},
    {TINY_LLAMA, BF16_ALL, "tp=4 dp=2", ""},
    {TINY_LLAMA, BF16_ALL TINY_PARALLEL, "tp=2 pp=2 pipeline.schedule=zb-h1" SP, ""},
    {TINY_LLAMA, BF16_ALL "model.tie_word_embeddings=true", "tp=2 pp=2 pipeline.schedule=dualpipev" SP, ""},
    {TINY_LLAMA, BF16_ALL, "pp=4 train.micro_batch_size=8", "train.micro_batch_size=1"},
    // Without master weights: a weight may be one unit in the last place off where its rounding is close.
    {TINY_GPT, BF16_ALL NO_MASTERS, "tp=2 dp=2 pp=2 parallel.zero_stage=2" SP, ""},
    {TINY_LLAMA, BF16_ALL NO_MASTERS, "tp=4 dp=2 parallel.zero_stage=3", ""},
};

/* fp16, with a dynamic or a fixed loss scale; without a loss scale gradients are small. */
#define FP16_ALL "precision.params_dtype=fp16 "
static const struct comparison half_comparisons[] = {
    {TINY_GPT, FP16_ALL, "tp=3 pp=2" SP, ""},
    {TINY_LLAMA, FP16_ALL "precision.loss_scale=1000", "tp=4 dp=2", ""},
    {TINY_GPT, FP16_ALL "precision.loss_scale=1", "tp=2 dp=2 parallel.zero_stage=1" SP, ""},
    {TINY_LLAMA, FP16_ALL "precision.loss_scale=1024", "pp=4 train.micro_batch_size=8",
     "train.micro_batch_size=1"},
};

struct test {
    struct tiny tiny;
    const char *seed;
    double loss_apart; // largest relative difference of the first loss
    double largest[QUANTITIES];
    int failures;
};

static void check(struct test *test, const struct comparison *c)
{
    struct verify_report report = {0};
    char common[400];
    snprintf(common, sizeof common, "%s seed=%s", c->common, test->seed);
    struct comparison seeded = {c->family, common, c->layout, c->one};
    enum status status = tiny_verify(&test->tiny, &seeded, 3, (struct step_observer){0}, &report);
    double first = 1.0;
    if (status == OK) {
        for (int q = 0; q < QUANTITIES; q++)
            test->largest[q] = fmax(test->largest[q], largest_ratio(&report, q, NULL));
        first = fabs(report.step[0].loss[0] - report.step[0].loss[1]) / report.step[0].loss[1];
    }
    bool good = status == OK && report.outside == 0 && first <= test->loss_apart;
    printf("%-7s %s: %s | %s: largest ratio %.3f, loss of step 1 %.1e apart\n", good ? "ok" : "FAILED",
           c->family == TINY_GPT ? "gpt" : "llama", c->common, c->layout, report.largest, first);
    if (status != OK)
        printf("        %s\n", fail_text());
    else if (!good)
        verify_print(&report, false, stdout);
    fflush(stdout);
    test->failures += !good;
    verify_report_free(&report);
}

/* No bound is more than 100 times the largest observed error. */
static void check_bounds(struct test *test)
{
    for (int q = VERIFY_GRADIENT; q < QUANTITIES; q++) {
        bool good = test->largest[q] > 0.01 && test->largest[q] <= 1.0;
        printf("%-7s the largest error of any %s is %.3f of its bound\n", good ? "ok" : "FAILED",
               quantity_name(q), test->largest[q]);
        test->failures += !good;
    }
}

/* ---- a weight rounded with other random bits ---- */

static const char rounded_locally[] = "layers.3.mlp.fc1.weight";

/* Injected fault: stochastic rounding counts elements from the start of the slice, not of the tensor. */
static enum status round_by_local_index(void *context, struct rank_state *w, int64_t step)
{
    (void)context;
    (void)step;
    struct held_param *held = weights_held(&w->weights, params_find(&w->params, rounded_locally));
    if (held != NULL)
        held->slice.begin[0] = 0;
    return OK;
}

static enum status restore_global_index(void *context, struct rank_state *w, int64_t step,
                                        const struct step_result *result)
{
    (void)context;
    (void)step;
    (void)result;
    struct held_param *held = weights_held(&w->weights, params_find(&w->params, rounded_locally));
    if (held != NULL)
        held->slice = shard_slice(held->param->ndim, held->param->dim, held->param->shardings,
                                  held->param->sharding_count, w->groups->coord);
    return OK;
}

/* Half of the weights are then one unit in the last place off, which a bound allows only where a rounding
 * decision is close; it must not be close everywhere. */
static void check_local_rounding(struct test *test)
{
    const struct comparison c = {TINY_GPT, BF16_ALL NO_MASTERS "train.micro_batch_size=1",
                                 "tp=2 dp=2 parallel.zero_stage=1", ""};
    const struct step_observer injected = {.on_gradients_complete = round_by_local_index,
                                           .on_step_end = restore_global_index};
    struct verify_report report = {0};
    enum status status = tiny_verify(&test->tiny, &c, 2, injected, &report);
    double ratio = status == OK ? largest_ratio(&report, VERIFY_WEIGHT, rounded_locally) : 0.0;
    bool good = status == OK && report.outside == 1 && ratio > 1.0;
    printf("%-7s rounded by the local index: %d out of bounds, %s at %g of its bound\n",
           good ? "ok" : "FAILED", report.outside, rounded_locally, ratio);
    test->failures += !good;
    verify_report_free(&report);
}

static void check_type(struct test *test, double loss_apart, const struct comparison *list, size_t count)
{
    // Under a sanitizer a few are enough: its findings do not depend on the values.
    const size_t every = UNDER_TSAN ? 12 : UNDER_ASAN ? 6 : long_tests() ? 1 : 2;
    test->loss_apart = loss_apart;
    memset(test->largest, 0, sizeof test->largest);
    for (size_t i = 0; i < count; i += every)
        check(test, &list[i]);
    check_bounds(test);
}

#define CHECK_TYPE(test, apart, list) check_type(test, apart, list, sizeof(list) / sizeof *(list))

int main(int argc, char **argv)
{
    struct test test = {.seed = argc > 1 ? argv[1] : "11"};
    MUST(tiny_create(&test.tiny));
    CHECK_TYPE(&test, 1e-6, comparisons);
    CHECK_TYPE(&test, 1e-3, narrow_comparisons);
    CHECK_TYPE(&test, 1e-4, half_comparisons);
    check_local_rounding(&test);
    tiny_destroy(&test.tiny);
    return test.failures != 0;
}
