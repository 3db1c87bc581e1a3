// SPDX-License-Identifier: Apache-2.0
#include "planner/advice/advice.h"

#include "base/clock.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/schedule/choose_schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Processor time for all plans; but a minimum number of plans is always made, unless a single one takes
 * seconds. Only large plans reach it. */
static const double BUDGET_S = 5.0;
enum { MIN_PLANS = 3, TOO_MANY_ITEMS = 12000000 };
/* Of a step. On a CPU the prediction of a step is off by 2.5 % in the median of 60 layouts and by 7 % in the
 * 90th percentile (docs/planning.md), and its measurement differs by up to 2 % from run to run. */
static const double MIN_GAIN = 0.005, MIN_GAIN_OF_CPU = 0.05;

struct search {
    const struct advice_source *source;
    const struct step_plan *base;
    struct advice_list list;
    int threads;      // per rank, determined once: the number of ranks is that of the base recipe
    int64_t begun_ns; // processor time
    struct advice *out;
};

static void free_names(struct recipe_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
}

/* Loads the recipe with a change; NULL: it is not valid. */
static struct recipe *load_changed(const struct search *s, const char *change)
{
    struct recipe_names overrides = {0};
    struct problems problems = {0};
    struct recipe *recipe = NULL;
    char words[ADVICE_CHARS], *rest = words;
    for (size_t i = 0; i < s->source->override_count; i++)
        overrides_set(&planner_keys, &overrides, s->source->overrides[i]);
    snprintf(words, sizeof words, "cluster.threads_per_rank=%d", s->threads);
    overrides_set(&planner_keys, &overrides, words);
    snprintf(words, sizeof words, "%s", change);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        overrides_set(&planner_keys, &overrides, word);
    enum status status = planned_recipe_load(s->source->path, (const char *const *)overrides.list,
                                             overrides.count, s->source->world_size, &recipe, &problems);
    problems_free(&problems);
    free_names(&overrides);
    return status == OK ? recipe : NULL;
}

/* ---- one change ---- */

static void insert(struct advice *out, const struct advice_item *item)
{
    int at = out->count;
    while (at > 0 && item->step_s < out->items[at - 1].step_s)
        at--;
    if (at == ADVICE_MAX)
        return;
    const int last = out->count < ADVICE_MAX ? out->count : ADVICE_MAX - 1;
    memmove(&out->items[at + 1], &out->items[at], (size_t)(last - at) * sizeof *item);
    out->items[at] = *item;
    out->count = last + 1;
}

static bool has_time(const struct search *s)
{
    if (s->base->items > TOO_MANY_ITEMS)
        return false;
    return s->out->planned < MIN_PLANS || (double)(clock_thread_ns() - s->begun_ns) < 1e9 * BUDGET_S;
}

static void plan_change(struct search *s, const struct run *run, const char *change)
{
    struct step_plan plan;
    const double gain = s->base->profile->device.is_cpu ? MIN_GAIN_OF_CPU : MIN_GAIN;
    const double limit_s = s->base->fits ? (1.0 - gain) * s->base->step_s : INFINITY;
    s->out->planned++;
    if (step_plan_make_within(run, s->base->profile, limit_s, &plan) != OK)
        return;
    struct advice_item item = {
        .step_s = plan.step_s, .needed_bytes = plan.needed_bytes, .bubble_fraction = plan.bubble_fraction};
    snprintf(item.change, sizeof item.change, "%s", change);
    if (plan.fits && !plan.tight && !plan.exceeds && plan.step_s < limit_s)
        insert(s->out, &item);
    step_plan_free(&plan);
}

/* Returns false for a recipe that is not valid. */
static bool consider(struct search *s, const char *change)
{
    struct recipe *recipe = load_changed(s, change);
    struct run run;
    int64_t bytes;
    if (recipe == NULL)
        return false;
    if (planned_run_create(recipe, &run) != OK) {
        recipe_destroy(recipe);
        return false;
    }
    s->out->considered++;
    if (!has_time(s))
        s->out->left++;
    else if (step_plan_formula_bytes(&run, &bytes) == OK &&
             step_plan_needed(s->base->profile, &run, bytes) <= step_plan_limit(s->base->profile, recipe))
        plan_change(s, &run, change);
    run_destroy(&run);
    recipe_destroy(recipe);
    return true;
}

/* ---- all changes ---- */

static bool share_a_key(const char *a, const char *b)
{
    const char *equals = strchr(a, '=');
    const size_t length = (size_t)(equals - a) + 1; // with the equals sign
    return strncmp(a, b, length) == 0;
}

static void consider_pairs(struct search *s)
{
    const struct advice_list *list = &s->list;
    char pair[2 * ADVICE_CHARS];
    for (int i = 0; i < list->count; i++)
        for (int k = i + 1; k < list->count; k++) {
            // A change of two degrees already is a pair.
            const bool two = strchr(list->changes[i], ' ') != NULL || strchr(list->changes[k], ' ') != NULL;
            if (two || ((list->targets[i] & list->targets[k]) & AT_MEMORY) == 0 ||
                share_a_key(list->changes[i], list->changes[k]))
                continue;
            snprintf(pair, sizeof pair, "%s %s", list->changes[i], list->changes[k]);
            if (strlen(pair) < ADVICE_CHARS)
                consider(s, pair);
        }
}

/* Adds the fastest layouts that fit, whatever they change. */
static enum status add_layouts(struct search *s)
{
    struct advice_items found;
    if (s->base->items > TOO_MANY_ITEMS)
        return OK;
    TRY(advice_fit(s->source, s->base->run->recipe, &found));
    for (int i = 0; i < found.count; i++) {
        bool known = false;
        for (int k = 0; k < s->out->count; k++)
            known = known || strcmp(s->out->items[k].change, found.items[i].change) == 0;
        if (!known)
            insert(s->out, &found.items[i]);
    }
    return OK;
}

/* The step if sums over ranks may be in any order. */
static void plan_nondeterministic(struct search *s)
{
    const struct recipe *base = s->base->run->recipe;
    struct recipe *recipe = NULL;
    struct step_plan plan;
    struct run run;
    if (!base->deterministic || !s->base->cost.in_order || base->cluster.profile == NULL || !has_time(s) ||
        (recipe = load_changed(s, "deterministic=false")) == NULL)
        return;
    if (planned_run_create(recipe, &run) == OK) {
        if (step_plan_make(&run, s->base->profile, &plan) == OK) {
            s->out->nondeterministic_s = plan.step_s;
            step_plan_free(&plan);
        }
        run_destroy(&run);
    }
    recipe_destroy(recipe);
}

enum status advice_make(const struct advice_source *source, const struct step_plan *plan, struct advice *out)
{
    CHECK(plan->profile != NULL);
    struct search s = {.source = source, .base = plan, .out = out, .begun_ns = clock_thread_ns()};
    *out = (struct advice){.count = 0};
    s.threads = run_threads(plan->run, plan->run->mesh.world);
    advice_list_make(plan, &s.list);
    for (int i = 0; i < s.list.count; i++)
        consider(&s, s.list.changes[i]);
    if (!plan->fits)
        TRY(add_layouts(&s));
    if (!plan->fits && out->count == 0)
        consider_pairs(&s);
    plan_nondeterministic(&s);
    return OK;
}

/* ---- output ---- */

static void print_head(const struct advice *advice, const struct step_plan *plan, FILE *to)
{
    const char *what = plan->fits ? "make it faster" : "make it fit";
    const int tried = advice->considered - advice->left;
    if (advice->count > 0)
        fprintf(to, "changes that would %s (%d of %d tried):\n", what, tried, advice->considered);
    else if (advice->left > 0)
        fprintf(to, "no change that would %s was found; %d of %d were tried\n", what, tried,
                advice->considered);
    else
        fprintf(to, "no change of %s would %s (%d tried)\n",
                plan->fits ? "one layout key, or of two degrees," : "one or two layout keys", what, tried);
}

static void print_item(const struct advice_item *item, const struct step_plan *plan, FILE *to)
{
    const int64_t more = item->needed_bytes - plan->needed_bytes;
    char step[NUMBER_CHARS], needed[NUMBER_CHARS], difference[NUMBER_CHARS];
    snprintf(step, sizeof step, "%.4g s", item->step_s);
    fprintf(to, "  %-60s step %s (%+.1f %%), memory %s (%s%s)\n", item->change, step,
            100.0 * (item->step_s / plan->step_s - 1.0), bytes_text(item->needed_bytes, needed),
            more < 0 ? "-" : "+", bytes_text(more < 0 ? -more : more, difference));
}

void advice_print(const struct advice *advice, const struct step_plan *plan, FILE *to)
{
    const double any_s = advice->nondeterministic_s;
    print_head(advice, plan, to);
    for (int i = 0; i < advice->count; i++)
        print_item(&advice->items[i], plan, to);
    if (any_s > 0.0 && any_s < plan->step_s)
        fprintf(
            to,
            "deterministic=false would take %.4g s (%+.1f %%); results then depend on the layout in their "
            "last bits\n",
            any_s, 100.0 * (any_s / plan->step_s - 1.0));
    fprintf(to, "cuboid plan --best searches all layout keys together\n");
}

void advice_json(const struct advice *advice, struct text *out)
{
    text_add(out, "\"advice\": [");
    for (int i = 0; i < advice->count; i++) {
        char number[NUMBER_CHARS];
        text_add(out, "%s{\"change\": ", i > 0 ? ", " : "");
        text_add_json(out, advice->items[i].change);
        text_add(out, ", \"step_time_s\": %s", number_text(advice->items[i].step_s, number));
        text_add(out, ", \"needed_bytes\": %lld}", (long long)advice->items[i].needed_bytes);
    }
    text_add(out, "], \"advice_tried\": %d, \"advice_candidates\": %d", advice->considered - advice->left,
             advice->considered);
    if (advice->nondeterministic_s > 0.0) {
        char number[NUMBER_CHARS];
        text_add(out, ", \"nondeterministic_step_time_s\": %s",
                 number_text(advice->nondeterministic_s, number));
    }
}
