// SPDX-License-Identifier: Apache-2.0
/* Layouts that add the same numbers in another order stay within derived bounds of one rank: three steps of
 * each layout below, every loss, gradient norm, gradient, weight and moment. The bounds themselves are
 * watched too: one that is 100 times the largest error of its quantity, over all these layouts, would hide
 * faults. */
#include "tests/support/tiny.h"
#include "trainer/verify.h"

#include <math.h>

#define ONE_RANK                                                                                  \
    " tp=1 pp=1 dp=1 parallel.sequence_parallel=false pipeline.schedule=1f1b pipeline.layout=[] " \
    "cluster.device=cpu "

/* `common` holds for both; `layout` for the layout; `one` for the one rank, beside what makes it one. */
struct comparison {
    enum tiny_family family;
    const char *common, *layout, *one;
};

#define SP " parallel.sequence_parallel=true "

static const struct comparison comparisons[] = {
    // Each axis alone; 12 heads, 48 features and a vocabulary that none of them divides.
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
    {TINY_LLAMA, "", "dp=4", ""},
    // Sequence parallel.
    {TINY_GPT, "", "tp=2" SP, ""},
    {TINY_GPT, "", "tp=3 pp=2" SP, ""},
    {TINY_GPT, "", "tp=4 dp=2" SP "cluster.device=strict", ""},
    {TINY_LLAMA, "", "tp=2 pp=2" SP, ""},
    {TINY_LLAMA, "", "tp=4 pp=2 pipeline.schedule=zb-h1" SP "cluster.device=strict", ""},
    // All axes; tied and untied.
    {TINY_GPT, "", "tp=2 dp=2 pp=2" SP, ""},
    {TINY_GPT, "model.tie_word_embeddings=false", "tp=2 dp=2 pp=2 pipeline.schedule=zb-h1", ""},
    {TINY_LLAMA, "", "tp=2 dp=2 pp=2 pipeline.schedule=gpipe parallel.rank_order=pp-dp-tp-cp-ep", ""},
    {TINY_LLAMA, "model.tie_word_embeddings=true", "tp=2 dp=2 pp=2" SP, ""},
    // Microbatches of other sizes, and fewer of them than stages.
    {TINY_GPT, "", "tp=2 train.micro_batch_size=1", "train.micro_batch_size=4"},
    {TINY_GPT, "", "dp=2 train.micro_batch_size=4", "train.micro_batch_size=1"},
    {TINY_LLAMA, "", "pp=2 train.micro_batch_size=4", "train.micro_batch_size=2"},
    {TINY_LLAMA, "", "pp=4 train.micro_batch_size=8", "train.micro_batch_size=1"},
    {TINY_GPT, "train.micro_batch_size=4", "pp=4 dp=2 pipeline.schedule=zb-h1", ""},
    // Dropout and documents.
    {TINY_GPT, TINY_DROPOUT, "tp=4 dp=2", ""},
    {TINY_GPT, TINY_DROPOUT TINY_DOCUMENTS, "tp=2 dp=2 pp=2 train.micro_batch_size=1" SP, ""},
    {TINY_LLAMA, TINY_DROPOUT, "tp=4 dp=2" SP, "train.micro_batch_size=4"},
    {TINY_LLAMA, TINY_DOCUMENTS TINY_LLAMA_BYTES, "tp=2 dp=4 pp=2" SP, ""},
};

/* ---- what a report says ---- */

enum { LOSS = VERIFY_QUANTITIES, NORM, QUANTITIES };

/* Error over bound; the first two are compared to the bit and have none. */
static const char *const quantity_names[QUANTITIES] = {
    [VERIFY_INITIAL] = "initial",
    [VERIFY_REPLICAS] = "replicas",
    [VERIFY_GRADIENT] = "gradient",
    [VERIFY_WEIGHT] = "weight",
    [VERIFY_M] = "m",
    [VERIFY_V] = "v",
    [LOSS] = "loss",
    [NORM] = "gradient norm",
};

struct test {
    struct tiny tiny;
    const char *seed;
    double largest[QUANTITIES];
    int failures;
};

static void tally(struct test *test, const struct verify_report *report)
{
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        for (int row = 0; row < report->rows; row++)
            test->largest[q] = fmax(test->largest[q], report->worst[q][row].ratio);
    for (int s = 0; s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        test->largest[LOSS] =
            fmax(test->largest[LOSS], fabs(step->loss[0] - step->loss[1]) / step->loss_bound);
        test->largest[NORM] =
            fmax(test->largest[NORM], fabs(step->norm[0] - step->norm[1]) / step->norm_bound);
    }
}

static enum status compare(struct test *test, const struct comparison *c, struct verify_report *report)
{
    struct verify_options options = {.steps = 3};
    struct recipe *layout = NULL, *one = NULL;
    char common[400], one_rank[400];
    snprintf(common, sizeof common, "%s seed=%s", c->common, test->seed);
    snprintf(one_rank, sizeof one_rank, "%s %s", c->one, ONE_RANK);
    enum status status = tiny_recipe(&test->tiny, c->family, common, c->layout, 0, &layout);
    if (status == OK)
        status = tiny_recipe(&test->tiny, c->family, common, one_rank, 0, &one);
    options.layout = layout;
    options.one_rank = one;
    if (status == OK)
        status = verify(&options, report);
    recipe_destroy(layout);
    recipe_destroy(one);
    return status;
}

static void check(struct test *test, const struct comparison *c)
{
    struct verify_report report = {0};
    enum status status = compare(test, c, &report);
    double first = 1.0;
    if (status == OK) {
        tally(test, &report);
        first = fabs(report.step[0].loss[0] - report.step[0].loss[1]) / report.step[0].loss[1];
    }
    bool good = status == OK && report.outside == 0 && first <= 1e-6;
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

/* No bound is more than 100 times the largest error that it allows. */
static void check_bounds(struct test *test)
{
    for (int q = VERIFY_GRADIENT; q < QUANTITIES; q++) {
        bool good = test->largest[q] > 0.01 && test->largest[q] <= 1.0;
        printf("%-7s the largest error of any %s is %.3f of its bound\n", good ? "ok" : "FAILED",
               quantity_names[q], test->largest[q]);
        test->failures += !good;
    }
}

int main(int argc, char **argv)
{
    struct test test = {.seed = argc > 1 ? argv[1] : "11"};
    MUST(tiny_create(&test.tiny));
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        check(&test, &comparisons[i]);
    check_bounds(&test);
    tiny_destroy(&test.tiny);
    return test.failures != 0;
}
