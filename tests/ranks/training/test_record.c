// SPDX-License-Identifier: Apache-2.0
/* The tape of a plan, for which equal actions are run once and repeated, equals the one for which every
 * action is run: every lane, item, op, group, message and action, and the memory. On random recipes of all
 * schedules and layouts, with up to 64 microbatches; and on a table, which counts the actions run.
 *     test_record                       both
 *     test_record random FIRST COUNT    random recipes by number */
#include "planner/plan/memory_plan.h"
#include "tests/ranks/verify/random_recipe.h"
#include "tests/support/sanitized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANDOM_RECIPES = 240 };

/* ---- comparison ---- */

static enum status differ(int rank, const char *what, int64_t at)
{
    return fail(OUT_OF_BOUND, "rank %d: %s %lld differs", rank, what, (long long)at);
}

static bool same_item(const struct tape_item *a, const struct tape_item *b)
{
    return a->kind == b->kind && a->lane == b->lane && a->index == b->index && a->action == b->action &&
           a->layer == b->layer;
}

static enum status same_lanes(const struct tape *a, const struct tape *b)
{
    if (a->lane_count != b->lane_count)
        return differ(a->rank, "number of lanes", b->lane_count);
    for (int lane = 0; lane < a->lane_count; lane++) {
        const struct tape_lane *x = &a->lanes[lane], *y = &b->lanes[lane];
        if (strcmp(x->name, y->name) != 0 || x->count != y->count)
            return differ(a->rank, "length of lane", lane);
        for (int i = 0; i < x->count; i++)
            if (!same_item(&x->items[i], &y->items[i]))
                return differ(a->rank, x->name, i);
    }
    return OK;
}

static bool same_message(const struct tape_message *a, const struct tape_message *b)
{
    return a->call == b->call && a->dtype == b->dtype && a->group == b->group && a->bytes == b->bytes &&
           a->peer == b->peer && a->number == b->number && a->with_previous == b->with_previous;
}

static bool same_group(const struct tape_group *a, const struct tape_group *b)
{
    return strcmp(a->name, b->name) == 0 && a->size == b->size &&
           memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0;
}

static enum status same_tape(const struct tape *a, const struct tape *b)
{
    if (a->op_count != b->op_count || a->group_count != b->group_count ||
        a->message_count != b->message_count || a->action_count != b->action_count)
        return differ(a->rank, "number of ops, groups, messages or actions; messages", b->message_count);
    TRY(same_lanes(a, b));
    for (int i = 0; i < a->op_count; i++)
        if (!op_record_equals(&a->ops[i], &b->ops[i]))
            return differ(a->rank, "op", i);
    for (int i = 0; i < a->group_count; i++)
        if (!same_group(&a->groups[i], &b->groups[i]))
            return differ(a->rank, "group", i);
    for (int i = 0; i < a->message_count; i++)
        if (!same_message(&a->messages[i], &b->messages[i]))
            return differ(a->rank, "message", i);
    for (int i = 0; i < a->action_count; i++)
        if (strcmp(a->actions[i].name, b->actions[i].name) != 0)
            return differ(a->rank, "action", i);
    return OK;
}

static enum status same_memory(int rank, const struct memory_plan *a, const struct memory_plan *b)
{
    if (a->pool_bytes != b->pool_bytes || a->use.peak_total_bytes != b->use.peak_total_bytes)
        return differ(rank, "memory: total", b->use.peak_total_bytes);
    for (int part = 0; part < PART_COUNT; part++)
        if (a->use.peak_bytes[part] != b->use.peak_bytes[part] ||
            a->use.now_bytes[part] != b->use.now_bytes[part])
            return differ(rank, part_name((enum part)part), b->use.peak_bytes[part]);
    return OK;
}

/* ---- one recipe ---- */

static enum status check_rank(const struct run *run, int rank, struct step_recorder_counts *counts)
{
    struct memory_plan all, repeated;
    struct tape *whole = NULL, *tape = NULL;
    enum status status = memory_plan_record_all(run, rank, NULL, &all, &whole);
    if (status == OK)
        status = memory_plan_record(run, rank, NULL, &repeated, &tape);
    if (status == OK)
        status = same_tape(whole, tape);
    if (status == OK)
        status = same_memory(rank, &all, &repeated);
    if (status == OK) {
        counts->run += repeated.actions.run;
        counts->repeated += repeated.actions.repeated;
    }
    tape_destroy(whole);
    tape_destroy(tape);
    return status;
}

static enum status check_recipe(const struct recipe *recipe, struct step_recorder_counts *counts)
{
    struct run run;
    enum status status = run_create(recipe, false, &run);
    for (int rank = 0; status == OK && rank < run.mesh.world; rank++)
        status = check_rank(&run, rank, counts);
    run_destroy(&run);
    return status;
}

/* ---- many recipes ---- */

/* Every third recipe as it is, the others with four and eight times as many microbatches; every second one
 * with the memory of a GPU. */
static bool check_random(const struct tiny *tiny, uint64_t first, uint64_t count)
{
    static const int more[] = {1, 4, 8};
    static const char gpu[] = "cluster.device=dry cluster.dry_device=cuda";
    struct step_recorder_counts counts = {.run = 0};
    int64_t with_repeats = 0, recipes = 0;
    bool good = true;
    for (uint64_t n = first; n < first + count; n += UNDER_SANITIZER ? 15 : long_tests() ? 1 : 2) {
        const int64_t before = counts.repeated;
        struct random_recipe draw;
        struct recipe *recipe = NULL;
        char words[2 * RANDOM_RECIPE_CHARS] = "";
        enum status status = random_recipe(tiny, n, 2, &draw);
        if (status == OK) {
            random_recipe_options(tiny, n, &draw);
            snprintf(words, sizeof words, "%s%s", draw.layout,
                     n % 2 == 1 && strstr(draw.layout, "cluster.device") == NULL ? gpu : "");
            status = tiny_recipe(tiny, draw.family, draw.common, words, 0, &recipe);
        }
        if (status == OK) {
            recipe->train.global_batch_size *= more[n % 3];
            status = check_recipe(recipe, &counts);
        }
        recipe_destroy(recipe);
        recipes++;
        with_repeats += counts.repeated > before;
        good = good && status == OK;
        if (status != OK)
            printf("random %llu \"%s%s\": %s\n", (unsigned long long)n, draw.common, words, fail_text());
    }
    printf("%lld recipes, %lld with repeated actions; %lld actions run, %lld repeated\n", (long long)recipes,
           (long long)with_repeats, (long long)counts.run, (long long)counts.repeated);
    return good;
}

/* Compute actions of all ranks. */
static const struct {
    const char *layout;
    int64_t run, repeated; // of all ranks
} cases[] = {
    // F and B run twice: in the first ones scratch memory grows. The last B ends the sums of its gradients.
    {"", 5, 59},
    {"tp=2 pp=2 parallel.sequence_parallel=true parallel.tp_comm_overlap=true", 22, 234},
    {"pp=2 pipeline.schedule=zb-h1 memory.offload_activations=true", 13, 179},
    {"pp=2 pipeline.schedule=interleaved", 20, 236},
    {"pp=2 pipeline.schedule=dualpipe", 22, 108},
    {"dp=2 pp=2 parallel.zero_stage=1", 22, 106},
    {"dp=2 pp=2 parallel.zero_stage=2", 26, 102},
    {"dp=2 parallel.zero_stage=3", 14, 50},
};

static bool check_table(const struct tiny *tiny)
{
    bool good = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct step_recorder_counts counts = {.run = 0};
        struct recipe *recipe = NULL;
        enum status status =
            tiny_recipe(tiny, TINY_GPT, "train.micro_batch_size=1 train.global_batch_size=32",
                        cases[i].layout, 0, &recipe);
        if (status == OK)
            status = check_recipe(recipe, &counts);
        if (status == OK && (counts.run != cases[i].run || counts.repeated != cases[i].repeated))
            status = fail(OUT_OF_BOUND, "%lld actions run and %lld repeated; expected %lld and %lld",
                          (long long)counts.run, (long long)counts.repeated, (long long)cases[i].run,
                          (long long)cases[i].repeated);
        recipe_destroy(recipe);
        good = good && status == OK;
        if (status != OK)
            printf("\"%s\": %s\n", cases[i].layout, fail_text());
    }
    return good;
}

int main(int argc, char **argv)
{
    struct tiny tiny;
    bool good;
    MUST(tiny_create(&tiny));
    if (argc > 3 && strcmp(argv[1], "random") == 0)
        good = check_random(&tiny, strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    else {
        good = check_table(&tiny);
        good = check_random(&tiny, 0, RANDOM_RECIPES) && good;
    }
    tiny_destroy(&tiny);
    return good ? 0 : 1;
}
