// SPDX-License-Identifier: Apache-2.0
/* Clean runs of random small models, optimizers, precisions and layouts through verify: no comparison may be
 * out of bounds. Run N is a function of N alone, so that a failed run can be repeated by its number.
 *    soak_verify FIRST COUNT [STEPS]     a line for each run; exit status 1 if any was out of bounds or
 * failed
 *
 * CI runs a few of them; tools/soak runs thousands, and reads these lines. */
#include "base/philox.h"
#include "tests/support/tiny_verify.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICES_CHARS = 1000, MOST_TRIES = 60, MOST_RANKS = 8 };

/* Random choices of one run, and the overrides made from them. */
struct draw {
    struct philox generator;
    uint64_t count;
    char common[CHOICES_CHARS], layout[CHOICES_CHARS], one[CHOICES_CHARS];
};

/* 0 .. below - 1 */
static int choice(struct draw *draw, int below)
{
    return (int)(philox_word(draw->generator, 0, draw->count++) % (uint32_t)below);
}

static double uniform(struct draw *draw)
{
    return (double)philox_uniform(philox_word(draw->generator, 0, draw->count++));
}

__attribute__((format(printf, 2, 3))) static void add_to(char *text, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(text + length, CHOICES_CHARS - length, format, arguments);
    va_end(arguments);
    CHECK(added >= 0 && length + (size_t)added < CHOICES_CHARS);
}

static void draw_model(struct draw *d, bool llama)
{
    static const int heads[] = {1, 2, 3, 4, 6, 8, 12};
    int head_count = heads[choice(d, 7)], divisor = 1 + choice(d, head_count);
    while (head_count % divisor != 0)
        divisor = 1 + choice(d, head_count);
    add_to(d->common,
           "model.num_layers=%d model.hidden_size=%d model.num_attention_heads=%d model.num_query_groups=%d "
           "model.kv_channels=%d model.ffn_hidden_size=%d model.seq_length=%d ",
           1 + choice(d, 4), 8 + 4 * choice(d, 6), head_count,
           choice(d, 2) ? head_count : head_count / divisor, 2 + 2 * choice(d, 4), 12 + 4 * choice(d, 12),
           4 + choice(d, 21));
    add_to(d->common, "model.init_method_std=%.3g ", 0.02 * pow(10.0, uniform(d)));
    if (choice(d, 3) == 0)
        add_to(d->common, "model.tie_word_embeddings=%s ", choice(d, 2) ? "true" : "false");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.normalization=%s ", choice(d, 2) ? "RMSNorm" : "LayerNorm");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.position_embedding_type=%s ", choice(d, 2) ? "rope" : "learned_absolute");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.add_bias_linear=%s ", choice(d, 2) ? "true" : "false");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.make_vocab_size_divisible_by=%d ", 1 << choice(d, 6));
    if (choice(d, 4) == 0)
        add_to(d->common, "%s", TINY_DROPOUT);
    if (llama && choice(d, 3) == 0)
        add_to(d->common, "%s", TINY_LLAMA_BYTES);
    if ((!llama || strstr(d->common, "bytes") != NULL) && choice(d, 4) == 0)
        add_to(d->common, "%s", TINY_DOCUMENTS);
}

static void draw_optimizer(struct draw *d, int steps)
{
    static const char *const styles[] = {"constant", "linear", "cosine", "inverse-square-root"};
    static const double beta2[] = {0.95, 0.97, 0.98, 0.99, 0.999};
    // One run in three uses the largest rate.
    double lr = choice(d, 3) == 0 ? 1e-2 : 1e-4 * pow(100.0, uniform(d));
    add_to(d->common,
           "optimizer.lr=%.3g optimizer.min_lr=%.3g optimizer.lr_warmup_iters=%d optimizer.lr_decay_style=%s "
           "train.train_iters=%d train.eval_interval=0 optimizer.weight_decay=%.2g optimizer.adam_beta2=%.4g "
           "optimizer.clip_grad=%g ",
           lr, 0.1 * lr, choice(d, 6), styles[choice(d, 4)], steps + 4, 0.1 * choice(d, 3),
           beta2[choice(d, 5)], choice(d, 4) == 0 ? 0.0 : 1.0);
    if (choice(d, 4) == 0)
        add_to(d->common, "optimizer.adam_eps=%.1g ", pow(10.0, -4.0 - 2.0 * choice(d, 4)));
}

static void draw_precision(struct draw *d)
{
    switch (choice(d, 3)) {
    case 1:
        add_to(d->common, "precision.params_dtype=bf16 ");
        if (choice(d, 4) == 0)
            add_to(d->common, "precision.main_params_dtype=bf16 ");
        break;
    case 2:
        add_to(d->common, "precision.params_dtype=fp16 ");
        if (choice(d, 3) == 0)
            add_to(d->common, "precision.loss_scale=%d ", 1 << choice(d, 8));
        break;
    }
}

static void draw_layout(struct draw *d)
{
    static const char *const schedules[] = {"gpipe",    "1f1b",      "zb-h1", "zb-h2",
                                            "dualpipe", "dualpipev", "zb-v"};
    int tp = 1 + choice(d, 4), pp = 1 + choice(d, 3), dp = 1 << choice(d, 3);
    add_to(d->common, "train.global_batch_size=%d cluster.threads_per_rank=1 ", 4 << choice(d, 2));
    add_to(d->layout, "tp=%d pp=%d dp=%d ", tp, pp, dp);
    if (tp > 1 && choice(d, 2))
        add_to(d->layout, "parallel.sequence_parallel=true ");
    if (strstr(d->layout, "sequence_parallel") != NULL && choice(d, 3) == 0)
        add_to(d->layout, "parallel.tp_comm_overlap=true ");
    if (dp > 1)
        add_to(d->layout, "parallel.zero_stage=%d ", choice(d, 4));
    if (pp > 1)
        add_to(d->layout, "pipeline.schedule=%s ", schedules[choice(d, 7)]);
    add_to(d->layout, "train.micro_batch_size=%d ", 1 << choice(d, 3));
    add_to(d->one, "train.micro_batch_size=%d ", 1 << choice(d, 3));
    if (choice(d, 10) == 0)
        add_to(d->layout, "cluster.device=strict ");
}

/* Number of retries after invalid choices; the last attempt's family. */
static enum status draw_run(const struct tiny *tiny, uint64_t number, int steps, struct draw *d,
                            enum tiny_family *family)
{
    enum status status = OK;
    *d = (struct draw){.generator = philox_named(number, "soak.verify")};
    for (int i = 0; i < MOST_TRIES; i++) {
        struct recipe *recipe = NULL;
        d->common[0] = d->layout[0] = d->one[0] = 0;
        *family = choice(d, 2) ? TINY_LLAMA : TINY_GPT;
        add_to(d->common, "seed=%llu ", (unsigned long long)number);
        draw_model(d, *family == TINY_LLAMA);
        draw_optimizer(d, steps);
        draw_precision(d);
        draw_layout(d);
        status = tiny_recipe(tiny, *family, d->common, d->layout, 0, &recipe);
        bool fits = status == OK && recipe_world_size(recipe) > 1 && recipe_world_size(recipe) <= MOST_RANKS;
        recipe_destroy(recipe);
        if (fits)
            return OK;
    }
    return status != OK ? status
                        : fail(BAD_RECIPE, "run %llu: no valid layout found", (unsigned long long)number);
}

/* The quantity and the row of the largest ratio. */
static void print_worst(const struct verify_report *report)
{
    for (int q = VERIFY_GRADIENT; q < QUANTITIES; q++) {
        double largest = largest_ratio(report, q, NULL);
        const char *name = "-";
        for (int row = 0; q < VERIFY_QUANTITIES && row < report->rows; row++)
            if (report->worst[q][row].ratio == largest)
                name = report->names[row];
        printf(" %s=%.3f:%s", q == QUANTITY_NORM ? "norm" : quantity_name(q), largest, name);
    }
}

static bool run_one(const struct tiny *tiny, uint64_t number, int steps, bool all)
{
    struct draw draw;
    enum tiny_family family;
    struct verify_report report = {0};
    enum status status = draw_run(tiny, number, steps, &draw, &family);
    if (status == OK) {
        const struct comparison comparison = {family, draw.common, draw.layout, draw.one};
        status = tiny_verify(tiny, &comparison, steps, (struct hooks){0}, &report);
    }
    bool good = status == OK && report.outside == 0;
    printf("run %llu %s", (unsigned long long)number, status != OK ? "FAILED" : good ? "ok" : "ALARM");
    if (status == OK)
        print_worst(&report);
    printf(" | %s %s| %s| %s\n", family == TINY_GPT ? "gpt" : "llama", draw.common, draw.layout, draw.one);
    if (status != OK)
        printf("  %s\n", fail_text());
    else if (!good || all)
        verify_print(&report, all, stdout);
    fflush(stdout);
    verify_report_free(&report);
    return good;
}

int main(int argc, char **argv)
{
    struct tiny tiny;
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int steps = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 20, bad = 0;
    MUST(tiny_create(&tiny));
    for (uint64_t i = first; i < first + count; i++)
        bad += !run_one(&tiny, i, steps, argc > 4);
    tiny_destroy(&tiny);
    return bad != 0;
}
