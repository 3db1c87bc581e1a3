// SPDX-License-Identifier: Apache-2.0
/* Files that people write: recipes, profiles, sweeps, tables of runs, schedules and their costs. */
#include "planner/profile/profile.h"
#include "planner/published/published.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/sweep/sweep_file.h"
#include "schedules/csv/csv.h"
#include "tests/fuzz/fuzz.h"
#include "tools/cli/schedule/cmd_schedule_costs.h"

#include <stdlib.h>
#include <string.h>

static struct recipe *load_recipe(const char *path)
{
    struct problems problems = {0};
    struct recipe *recipe = NULL;
    const enum status status = planned_recipe_load(path, NULL, 0, 0, &recipe, &problems);
    fuzz_require((status == OK) == (problems.errors == 0), "a refused recipe has a problem");
    problems_free(&problems);
    return recipe;
}

/* A recipe is read; its resolved text is read back, with the same values. */
static void read_recipe(const struct fuzz_input *input)
{
    struct text path = {0}, first = {0}, again = {0}, second = {0};
    fuzz_write(input, "a.yaml", input->bytes, input->size, &path);
    struct recipe *recipe = load_recipe(path.chars), *copy = NULL;
    if (recipe != NULL) {
        recipe_resolved_text(recipe, &first);
        fuzz_write(input, "b.yaml", first.chars, first.length, &again);
        copy = load_recipe(again.chars);
        fuzz_require(copy != NULL, "a resolved recipe is valid");
        for (int i = 0; recipe_model_key(i) != NULL; i++) {
            recipe_key_text(recipe, recipe_model_key(i), &second);
            recipe_key_text(copy, recipe_model_key(i), &path);
        }
        fuzz_require(strstr(path.chars, text_chars(&second)) != NULL, "a resolved recipe has the same model");
    }
    recipe_destroy(recipe);
    recipe_destroy(copy);
    text_free(&path);
    text_free(&first);
    text_free(&again);
    text_free(&second);
}

static void prepare_recipe(const char *folder)
{
    static const char base[] =
        "model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 64}\n"
        "train: {global_batch_size: 8, micro_batch_size: 1}\ndata: {mock_data: true}\n";
    fuzz_write(&(struct fuzz_input){.folder = folder}, "base.yaml", base, sizeof base - 1, NULL);
}

static struct cluster_profile *load_profile(const char *path)
{
    struct problems problems = {0};
    struct cluster_profile *profile = NULL;
    const enum status status = profile_load(path, &profile, &problems);
    fuzz_require((status == OK) == (problems.errors == 0), "a refused profile has a problem");
    problems_free(&problems);
    return profile;
}

static void read_profile(const struct fuzz_input *input)
{
    struct text path = {0}, text = {0}, again = {0};
    fuzz_write(input, "a.yaml", input->bytes, input->size, &path);
    struct cluster_profile *profile = load_profile(path.chars);
    if (profile != NULL) {
        profile_text(profile, &text);
        fuzz_write(input, "b.yaml", text.chars, text.length, &again);
        struct cluster_profile *copy = load_profile(again.chars);
        fuzz_require(copy != NULL, "a printed profile is valid");
        profile_destroy(copy);
    }
    profile_destroy(profile);
    text_free(&path);
    text_free(&text);
    text_free(&again);
}

static void read_sweep(const struct fuzz_input *input)
{
    struct problems problems = {0};
    struct sweep_file sweep;
    struct text bytes = {0}, layout = {0}, name = {0};
    text_add_bytes(&bytes, (const char *)input->bytes, input->size);
    text_add(&name, "%s/a.yaml", input->folder);
    if (sweep_file_parse(name.chars, text_chars(&bytes), bytes.length, &sweep, &problems) == OK) {
        fuzz_require(sweep.layouts >= 1 && sweep.layouts <= SWEEP_MAX_LAYOUTS, "a sweep has layouts");
        sweep_layout_text(&sweep, 0, &layout);
        sweep_layout_text(&sweep, sweep.layouts - 1, &layout);
        sweep_file_free(&sweep);
    }
    problems_free(&problems);
    text_free(&bytes);
    text_free(&layout);
    text_free(&name);
}

static void read_row(const struct published_row *row)
{
    struct published_recipe made;
    published_recipe_make(row, &made);
    published_recipe_infer(row, &made);
    (void)published_step(row, NULL, 0.0);
    (void)published_gpus(row);
    published_recipe_free(&made);
}

static void read_published(const struct fuzz_input *input)
{
    struct problems problems = {0};
    struct published table;
    if (published_parse("a.csv", (const char *)input->bytes, input->size, &table, &problems) == OK) {
        for (size_t i = 0; i < table.count; i++)
            read_row(&table.rows[i]);
        published_free(&table);
    }
    problems_free(&problems);
}

/* A schedule is read; the one that is written is read back. */
static void read_schedule(const struct fuzz_input *input)
{
    struct schedule *schedule = NULL, *copy = NULL;
    struct text text = {0};
    if (schedule_parse_csv("a.csv", (const char *)input->bytes, input->size, &schedule) == OK) {
        if (schedule_write_csv(schedule, &text) == OK)
            fuzz_require(schedule_parse_csv("b.csv", text_chars(&text), text.length, &copy) == OK,
                         "a written schedule is valid");
        schedule_destroy(schedule);
        schedule_destroy(copy);
    }
    text_free(&text);
}

static void read_costs(const struct fuzz_input *input)
{
    struct stage_costs costs;
    struct text path = {0};
    fuzz_write(input, "a.csv", input->bytes, input->size, &path);
    if (read_stage_costs(path.chars, &costs) == OK)
        stage_costs_free(&costs);
    text_free(&path);
}

const struct fuzz_reader fuzz_recipe_readers[] = {{"recipe", read_recipe, prepare_recipe},
                                                  {"profile", read_profile, NULL},
                                                  {"sweep", read_sweep, prepare_recipe},
                                                  {"published", read_published, NULL},
                                                  {"schedule", read_schedule, NULL},
                                                  {"costs", read_costs, NULL},
                                                  {NULL, NULL, NULL}};
