// SPDX-License-Identifier: Apache-2.0
/* A sweep that plans few layouts finds the same best ones as a sweep that plans all, since no bound exceeds
 * the step of its layout. */
#include "planner/sweep/sweep.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#define BASE SOURCE_ROOT "/recipes/base/gpt3-1.3b.yaml"

enum { BEST = 10, MAX_OVERRIDES = 12 };

static void read_axes(const char *axes, struct sweep_file *file)
{
    char path[] = "/tmp/sweep-XXXXXX.yaml";
    struct text text = {0};
    struct problems problems = {0};
    const int descriptor = mkstemps(path, 5);
    cr_assert(descriptor >= 0);
    text_add(&text, "base: " BASE "\naxes:\n%s", axes);
    cr_assert_eq(write(descriptor, text.chars, text.length), (ssize_t)text.length);
    close(descriptor);
    cr_assert_eq(sweep_file_read(path, file, &problems), OK);
    unlink(path);
    text_free(&text);
}

static void make(const struct sweep_file *file, const char *const *overrides, int64_t best, struct sweep *out)
{
    struct problems problems = {0};
    struct sweep_options options = {.overrides = overrides, .best = best};
    while (overrides[options.override_count] != NULL)
        options.override_count++;
    cr_assert_eq(sweep_make(file, &options, out, &problems), OK, "%s",
                 problems.count > 0 ? problems.list[0].text : fail_text());
    problems_free(&problems);
}

static void expect_bounds(const struct sweep *all, double least_mean)
{
    double ratios = 0.0;
    for (size_t i = 0; i < all->best_count; i++) {
        const struct sweep_layout *layout = &all->layouts[all->best[i]];
        struct text text = {0};
        sweep_layout_text(all->file, layout->number, &text);
        cr_expect(layout->bound_s > 0.0 && layout->bound_s <= layout->step_s, "%s: bound %.9g, step %.9g",
                  text.chars, layout->bound_s, layout->step_s);
        cr_expect(layout->bound_bytes > 0 && layout->bound_bytes <= layout->bytes,
                  "%s: bound %lld, %lld bytes", text.chars, (long long)layout->bound_bytes,
                  (long long)layout->bytes);
        ratios += layout->bound_s / layout->step_s / (double)all->best_count;
        text_free(&text);
    }
    cr_expect(ratios > least_mean, "mean of bound / step: %g", ratios);
}

/* fewest: minimum number of valid layouts; least_mean: minimum of the mean of bound / step; share: maximum
 * fraction of the layouts that are planned to find the best. */
static void compare(const char *axes, const char *const *overrides, size_t fewest, double least_mean,
                    double share)
{
    struct sweep_file file;
    struct sweep all, few;
    read_axes(axes, &file);
    make(&file, overrides, 0, &all);
    make(&file, overrides, BEST, &few);
    cr_expect(all.best_count >= fewest, "%zu layouts", all.best_count);
    expect_bounds(&all, least_mean);
    cr_assert(few.best_count >= BEST && (double)few.best_count < share * (double)all.best_count,
              "%zu of %zu planned", few.best_count, all.best_count);
    for (size_t i = 0; i < BEST; i++) {
        const struct sweep_layout *one = &all.layouts[all.best[i]], *other = &few.layouts[few.best[i]];
        cr_expect_eq(one->number, other->number);
        cr_expect_eq(one->step_s, other->step_s);
        cr_expect_eq(one->needed_bytes, other->needed_bytes);
    }
    sweep_free(&all);
    sweep_free(&few);
    sweep_file_free(&file);
}

static const char *const common[] = {"model.num_layers=8",
                                     "cluster.device=dry",
                                     "cluster.nodes=2",
                                     "cluster.gpus_per_node=8",
                                     "parallel.data_parallel_size=auto",
                                     "train.global_batch_size=64",
                                     "cluster.profile=dgx-a100-80",
                                     "precision.params_dtype=bf16",
                                     NULL};

Test(sweep_search, the_best_of_all)
{
    compare("  tp: [1, 2, 4]\n"
            "  pp: [1, 2, 4]\n"
            "  pipeline.schedule: [1f1b, interleaved, zb-h1, zb-v]\n"
            "  train.micro_batch_size: [1, 2]\n"
            "  memory.recompute_granularity: [none, full]\n"
            "  parallel.zero_stage: [0, 1, 2, 3]\n",
            common, 200, 0.7, 0.25);
}

Test(sweep_search, the_best_of_other_keys)
{
    compare("  tp: [1, 4]\n"
            "  pp: [1, 2, 4]\n"
            "  pipeline.schedule: [gpipe, v-min, dualpipe, dualpipev]\n"
            "  parallel.zero_stage: [0, 1]\n"
            "  parallel.overlap_grad_reduce: [true, false]\n"
            "  parallel.tp_comm_overlap: [true, false]\n"
            "  parallel.rank_order: [tp-cp-ep-dp-pp, dp-tp-cp-ep-pp]\n",
            common, 100, 0.6, 0.75);
}

Test(sweep_search, the_best_of_another_program)
{
    const char *overlapped[MAX_OVERRIDES] = {"assume.overlap=grad_and_param"};
    for (int i = 0; common[i] != NULL; i++)
        overlapped[i + 1] = common[i];
    compare("  tp: [1, 2, 4]\n"
            "  pp: [1, 2, 4]\n"
            "  pipeline.schedule: [1f1b, interleaved]\n"
            "  train.micro_batch_size: [1, 2]\n"
            "  parallel.zero_stage: [1, 2]\n",
            overlapped, 20, 0.6, 0.75);
}

Test(sweep_search, layouts_are_counted)
{
    struct sweep_file file;
    struct sweep sweep;
    int64_t counted = 0;
    read_axes("  tp: [1, 2, 3]\n  pp: [1, 2, 3]\n  train.micro_batch_size: [1, 2, 4]\n", &file);
    make(&file, common, 1, &sweep);
    for (int state = 0; state < SWEEP_STATES; state++)
        counted += sweep.counts[state];
    cr_expect_eq(counted, file.layouts);
    cr_expect(sweep.counts[SWEEP_SLOWER] > 0 && sweep.counts[SWEEP_INVALID] > 0);
    counted = sweep.counts[SWEEP_PLANNED] + sweep.counts[SWEEP_SLOWER];
    for (int i = 0; i < sweep.reason_count; i++)
        counted += sweep.reasons[i].count;
    cr_expect_eq(counted, file.layouts);
    sweep_free(&sweep);
    sweep_file_free(&file);
}

/* Makes a sweep of two layouts of different memory; a limit between them is the headroom that one leaves. */
static void expect_headroom(const struct sweep_file *file, double headroom, int64_t planned, int64_t tight)
{
    const char *overrides[MAX_OVERRIDES];
    struct sweep sweep;
    char key[64];
    int count = 0;
    for (; common[count] != NULL; count++)
        overrides[count] = common[count];
    snprintf(key, sizeof key, "cluster.memory_headroom=%.6f", headroom);
    overrides[count++] = key;
    overrides[count] = NULL;
    make(file, overrides, 0, &sweep);
    cr_expect_eq(sweep.counts[SWEEP_PLANNED], planned, "headroom %g", headroom);
    cr_expect_eq(sweep.counts[SWEEP_TIGHT], tight, "headroom %g", headroom);
    cr_expect_eq(sweep.counts[SWEEP_TOO_LARGE], 0);
    for (size_t i = 0; i < sweep.best_count; i++)
        cr_expect((double)sweep.layouts[sweep.best[i]].needed_bytes <=
                  (1.0 - headroom) * (double)sweep.device_bytes);
    sweep_free(&sweep);
}

Test(sweep_search, chosen_layouts_leave_headroom)
{
    struct sweep_file file;
    struct sweep all;
    read_axes("  train.micro_batch_size: [1, 4]\n", &file);
    make(&file, common, 0, &all);
    cr_assert_eq(all.best_count, 2);
    double mean = 0.0;
    for (size_t i = 0; i < 2; i++)
        mean += 0.5 * (double)all.layouts[i].needed_bytes / (double)all.device_bytes;
    cr_assert_neq(all.layouts[0].needed_bytes, all.layouts[1].needed_bytes);
    sweep_free(&all);
    expect_headroom(&file, 0.0, 2, 0);
    expect_headroom(&file, 1.0 - mean, 1, 1);
    sweep_file_free(&file);
}

static const struct schedule *schedule_of(struct sweep_schedules *schedules, const struct recipe *recipe)
{
    struct schedule *found = NULL;
    cr_assert_eq(sweep_schedule_of(schedules, recipe, &found), OK, "%s", fail_text());
    return found;
}

/* Layouts with the same schedule share one, which is never that of other sizes. */
Test(sweep_search, schedules_are_shared)
{
    char name[] = "1f1b", other[] = "gpipe", search[] = "auto";
    struct sweep_schedules schedules = {.count = 0};
    struct recipe recipe = {.pipeline = {.schedule = name, .virtual_stages = 1}};
    recipe.parallel.pipeline_parallel_size = 2;
    recipe.parallel.data_parallel_size = 1;
    recipe.train.micro_batch_size = 1;
    recipe.train.global_batch_size = 4;
    const struct schedule *first = schedule_of(&schedules, &recipe);
    cr_expect_eq(schedule_of(&schedules, &recipe), first);
    recipe.pipeline.schedule = other;
    cr_expect_neq(schedule_of(&schedules, &recipe), first);
    for (int p = 3; p < 3 + 2 * SWEEP_SCHEDULES; p++) {
        recipe.parallel.pipeline_parallel_size = p;
        cr_expect_eq(schedule_of(&schedules, &recipe)->p, p);
        cr_expect_eq(schedule_of(&schedules, &recipe)->m, 4);
    }
    cr_expect_eq(schedules.count, SWEEP_SCHEDULES);
    recipe.pipeline.schedule = search;
    cr_expect_null(schedule_of(&schedules, &recipe));
    sweep_schedules_free(&schedules);
}
