// SPDX-License-Identifier: Apache-2.0
/* Training from a schedule CSV file. A file exported from a family gives results bit-identical to the
 * family's; and since a file may place stages on any rank, so do the family's file with permuted lines, and
 * a file that runs the microbatches one at a time through arbitrarily placed stages. */
#include "schedules/csv/csv.h"
#include "tests/support/tiny.h"
#include "tests/support/trace.h"

#include <stdlib.h>
#include <string.h>

enum { MICROBATCHES = 5, STEPS = 2, MAX_RANKS = 4 };

struct test {
    struct tiny tiny;
    char file[TINY_FOLDER_CHARS + 20];
    int runs, failures;
};

/* Model and data; the layout is separate. */
struct model {
    enum tiny_family family;
    int tp;
};

static enum status train(const struct test *test, struct model model, const char *layout, struct trace *out)
{
    static const struct trace_options local = {.transport = "local"};
    char common[400];
    struct recipe *recipe = NULL;
    snprintf(common, sizeof common,
             "model.num_layers=8 model.seq_length=4 train.micro_batch_size=1 train.global_batch_size=%d "
             "train.train_iters=%d train.eval_iters=1 optimizer.lr_warmup_iters=0 "
             "optimizer.lr_decay_iters=%d tp=%d",
             MICROBATCHES, STEPS, STEPS, model.tp);
    TRY(tiny_recipe(&test->tiny, model.family, common, layout, 0, &recipe));
    enum status status = trace_run(recipe, &local, out);
    recipe_destroy(recipe);
    return status;
}

/* Trains from the file, and compares bitwise. */
static void expect_bits(struct test *test, struct model model, int p, bool strict,
                        const struct trace *reference, const char *what)
{
    char layout[TINY_FOLDER_CHARS + 200];
    struct trace trace = {.steps = 0};
    struct text why = {0};
    snprintf(layout, sizeof layout, "pp=%d pipeline.schedule_file=%s%s", p, test->file,
             strict ? " cluster.device=strict" : "");
    enum status status = train(test, model, layout, &trace);
    test->runs++;
    if (status != OK || trace_differs(reference, &trace, &why)) {
        test->failures++;
        printf("FAILED  %s: %s\n", what, status != OK ? fail_text() : text_chars(&why));
    }
    text_free(&why);
}

/* Writes the lines of a table in the order of[0], of[1] ..., or unchanged. */
static void write_lines(const struct test *test, const struct text *table, const int *of)
{
    const char *lines[MAX_RANKS] = {NULL};
    struct text out = {0};
    int count = 0;
    for (const char *at = text_chars(table); *at != 0; at = strchr(at, '\n') + 1)
        lines[count++] = at;
    for (int i = 0; i < count; i++) {
        const char *line = lines[of != NULL ? of[i] : i];
        text_add_bytes(&out, line, strcspn(line, "\n") + 1);
    }
    MUST(file_write_atomic(test->file, out.chars, out.length));
    text_free(&out);
}

/* A family's file, unchanged and with permuted lines: the order of microbatches is the same, and so is every
 * bit. Where a stage has two replicas, their lines stay mirrored. */
static void check_family(struct test *test, const char *name, int p, struct model model)
{
    static const int orders[2][MAX_RANKS] = {{1, 0}, {2, 0, 3, 1}};
    struct schedule_options options = {.name = name, .p = p, .m = MICROBATCHES};
    struct schedule *s = NULL;
    struct text table = {0};
    struct trace reference = {.steps = 0};
    char layout[100];
    MUST(schedule_build(&options, &s));
    MUST(schedule_write_csv(s, &table));
    snprintf(layout, sizeof layout, "pp=%d pipeline.schedule=%s", p, name);
    enum status status = train(test, model, layout, &reference);
    if (status != OK) {
        test->failures++;
        printf("FAILED  %s: %s\n", name, fail_text());
    } else {
        write_lines(test, &table, NULL);
        expect_bits(test, model, p, false, &reference, name);
        write_lines(test, &table, orders[p == 2 ? 0 : 1]);
        expect_bits(test, model, p, p == 4, &reference, name);
    }
    text_free(&table);
    schedule_destroy(s);
}

/* One microbatch at a time. holder: the rank of each of p stages for the first microbatches; with two
 * directions its mirror image runs the stage for the rest. */
static void write_one_by_one(const struct test *test, int p, const int *holder, bool two_ways)
{
    struct text lines[MAX_RANKS] = {{0}}, table = {0};
    for (int k = 0; k < MICROBATCHES; k++)
        for (int i = 0; i < 2 * p; i++) {
            int stage = i < p ? i : 2 * p - 1 - i, rank = holder[stage];
            if (two_ways && k >= (MICROBATCHES + 1) / 2)
                rank = p - 1 - rank;
            text_add(&lines[rank], "%d%c%d,", stage, i < p ? 'F' : 'B', k);
        }
    for (int rank = 0; rank < p; rank++) {
        text_add(&table, "%s\n", text_chars(&lines[rank]));
        text_free(&lines[rank]);
    }
    write_lines(test, &table, NULL);
    text_free(&table);
}

static void check_placements(struct test *test, struct model model)
{
    static const int orders[][4] = {{3, 1, 2, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}};
    static const int mirrored[][4] = {{0, 3, 1, 2}, {1, 0, 2, 3}, {0, 1, 2, 3}};
    struct trace one = {.steps = 0}, both = {.steps = 0};
    MUST(train(test, model, "", &one));
    MUST(train(test, model, "pp=4 pipeline.schedule=dualpipe", &both));
    for (int i = 0; i < (UNDER_SANITIZER ? 1 : 3); i++) {
        write_one_by_one(test, 4, orders[i], false);
        expect_bits(test, model, 4, i == 0, &one, "one by one");
        write_one_by_one(test, 4, mirrored[i], true);
        expect_bits(test, model, 4, i == 1, &both, "one by one, in two directions");
    }
}

int main(void)
{
    static const struct model models[] = {{TINY_GPT, 1}, {TINY_LLAMA, 2}};
    struct test test = {.runs = 0};
    MUST(tiny_create(&test.tiny));
    snprintf(test.file, sizeof test.file, "%s/actions.csv", test.tiny.folder);
    for (int i = 0; schedule_about(i) != NULL; i++)
        for (int p = 2; p <= 4; p += 2)
            if (!UNDER_SANITIZER ||
                ((p == 2) == (i % 4 < 2) && i % 3 != 2)) // one of the two, each with both models
                check_family(&test, schedule_about(i)->name, p, models[(i + p / 2) % 2]);
    for (int i = 0; i < 2; i++)
        check_placements(&test, models[i]);
    tiny_destroy(&test.tiny);
    printf("%d runs, %d failures\n", test.runs, test.failures);
    return test.failures != 0 || test.runs == 0;
}
