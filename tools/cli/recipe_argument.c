// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/recipe_argument.h"

#include "base/memory.h"
#include "parallel/comm.h"
#include "planner/profile/profile.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/progress_line.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static enum status fail_in_world(struct world *world, void *argument)
{
    (void)world;
    return fail(BAD_RECIPE, "%s", (const char *)argument);
}

/* Under a launcher, a process whose recipe is invalid joins the world before it exits. If all have the
 * same recipe, they agree, and rank 0 reports the reason. If a node has another file, the others would
 * wait for this rank: it then aborts with its reason, and the launcher ends the job. */
static void fail_together(const struct launcher *launcher, const struct problems *problems)
{
    size_t first = 0;
    while (problems->list[first].warning)
        first++;
    if (launcher->size > 1)
        CHECK(world_run("auto", 0, fail_in_world, problems->list[first].text) != OK);
}

static void show_progress(void *context, const char *what, int64_t done, int64_t count)
{
    progress_line_show(context, "choosing a layout: %s %lld of %lld", what, (long long)done,
                       (long long)count);
}

/* Prints the chosen keys, the number of layouts considered, and what the prediction rests on. */
static void print_chosen(const struct recipe *recipe, const struct chosen *chosen)
{
    struct text basis = {0};
    if (chosen->keys.length == 0)
        return;
    fprintf(stderr, "chosen: %s (%spredicted step %.4g s; of %lld layouts %lld are valid, %lld fit)\n",
            chosen->keys.chars, chosen->own ? "the recipe's own layout, the fastest found; " : "",
            chosen->step_s, (long long)chosen->layouts, (long long)chosen->valid, (long long)chosen->fits);
    profile_named_basis_text(recipe->cluster.profile, &basis);
    if (basis.length > 0)
        print_line(stderr, "%s", basis.chars);
    text_free(&basis);
}

/* Loads the recipe; rank 0 prints problems and choices. */
static enum status load_and_print(int argc, char **argv, const struct recipe_request *request,
                                  const struct launcher *launcher, struct recipe **recipe,
                                  struct chosen *chosen)
{
    const bool first = launcher->rank <= 0;
    struct problems problems = {0};
    struct progress_line progress = progress_line_begin();
    const struct choose_options options = {
        .path = argv[1],
        .overrides = (const char *const *)(argv + 2),
        .override_count = (size_t)(argc - 2),
        .world_size = launcher->size,
        .files = !request->quiet && !request->preview &&
                 (strcmp(argv[0], "train") == 0 || strcmp(argv[0], "submit") == 0),
        .best = request->best,
        .progress = first && !request->quiet ? show_progress : NULL,
        .context = &progress,
    };
    enum status status = choose_load(&options, recipe, chosen, &problems);
    progress_line_clear(&progress);
    if (status == OK && request->preview)
        recipe_warn_of_files(*recipe, &problems);
    if (first && (status != OK || !request->quiet))
        problems_print(&problems, stderr);
    if (status == OK && first && !request->quiet)
        print_chosen(*recipe, chosen);
    if (status != OK && problems.errors > 0)
        fail_together(launcher, &problems);
    problems_free(&problems);
    return status;
}

int recipe_argument_choose(int argc, char **argv, const struct recipe_request *request,
                           struct recipe **recipe, struct chosen *chosen, int *size)
{
    if (argc < 2 || argv[1][0] == '-' || argv[1][0] == 0) {
        if (argc >= 2 && argv[1][0] != 0) {
            char key[RECIPE_KEY_CHARS];
            bool is_key = recipe_key_of_option(&planner_keys, argv[1], key);
            (void)fail(BAD_USAGE, "unknown option %s%s%s%s", argv[1],
                       is_key ? "; recipe keys follow the recipe, without dashes: use " : "",
                       is_key ? key : "", is_key ? "=VALUE" : "");
            fprintf(stderr, "cuboid %s: %s\n", argv[0], fail_text());
        }
        fprintf(stderr, "cuboid %s: no recipe given; use cuboid %s recipes/quickstart.yaml\n", argv[0],
                argv[0]);
        return 2;
    }
    struct launcher launcher = {.name = "none", .rank = -1};
    if (!request->alone && launcher_find(&launcher) != OK) {
        fprintf(stderr, "cuboid: %s\n", fail_text());
        return 2;
    }
    if (load_and_print(argc, argv, request, &launcher, recipe, chosen) != OK)
        return 2;
    *size = launcher.size > 0 ? launcher.size : recipe_world_size(*recipe);
    return 0;
}

static int load_argument(int argc, char **argv, const struct recipe_request *request, struct recipe **recipe,
                         int *size)
{
    struct chosen chosen;
    const int status = recipe_argument_choose(argc, argv, request, recipe, &chosen, size);
    if (status == 0)
        chosen_free(&chosen);
    return status;
}

int recipe_argument(int argc, char **argv, bool alone, struct recipe **recipe, int *size)
{
    return load_argument(argc, argv, &(struct recipe_request){.alone = alone}, recipe, size);
}

enum { MAX_OVERRIDES = 128 }; // layout keys

struct overrides {
    char *list[MAX_OVERRIDES];
    int count;
};

/* Overrides that reduce a layout to one rank. */
static void overrides_of_one_rank(struct overrides *out)
{
    struct text override = {0};
    *out = (struct overrides){0};
    while (recipe_one_rank_override(out->count, &override)) {
        CHECK(out->count < MAX_OVERRIDES);
        out->list[out->count++] = override.chars;
        override = (struct text){0};
    }
}

static void overrides_free(struct overrides *overrides)
{
    for (int i = 0; i < overrides->count; i++)
        free(overrides->list[i]);
}

/* Both name the same key: "pp=4" and "parallel.pipeline_parallel_size=1". */
static bool same_key(const char *override, const char *other)
{
    const char *list[] = {override, other}, *key[2];
    for (int i = 0; i < 2; i++) {
        char name[80];
        size_t length = strcspn(list[i], "=");
        if (length >= sizeof name)
            return false;
        memcpy(name, list[i], length);
        name[length] = 0;
        key[i] = recipe_key(&planner_keys, name);
    }
    return key[0] != NULL && key[0] == key[1];
}

bool recipe_argument_sets(const char *override, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (same_key(override, words[i]))
            return true;
    return false;
}

int recipe_argument_one_rank(int argc, char **argv, const char *const *more, struct recipe **recipe)
{
    int extra = 0, size;
    struct overrides layout;
    while (more != NULL && more[extra] != NULL)
        extra++;
    char **all = memory_zeroed((size_t)argc + MAX_OVERRIDES + (size_t)extra, sizeof *all, "the arguments");
    // The command, the recipe, our overrides, and those of the caller that ours do not replace.
    int first = argc < 2 ? argc : 2, ours = 0, count;
    overrides_of_one_rank(&layout);
    memcpy(all, argv, (size_t)first * sizeof *all);
    for (int i = 0; i < extra; i++)
        all[first + ours++] = (char *)(uintptr_t)more[i];
    for (int i = 0; i < layout.count; i++)
        if (!recipe_argument_sets(layout.list[i], (const char *const *)(all + first), extra))
            all[first + ours++] = layout.list[i];
    count = first + ours;
    for (int i = first; i < argc; i++)
        if (!recipe_argument_sets(argv[i], (const char *const *)(all + first), ours))
            all[count++] = argv[i];
    // No warnings here: the user did not choose these values.
    int status = load_argument(argc < 2 ? argc : count, all,
                               &(struct recipe_request){.alone = true, .quiet = true}, recipe, &size);
    free(all);
    overrides_free(&layout);
    return status;
}

int exit_status(enum status status)
{
    if (status != OK)
        print_marked(&(struct failure_mark){.rank = -1, .node = ""}, "cuboid: %s", fail_text());
    return status_exit(status);
}

int exit_status_of_input(enum status status)
{
    return exit_status(status_of_input(status));
}

int exit_status_of_world(enum status status)
{
    struct launcher launcher = {.rank = -1};
    if (status == OK || launcher_find(&launcher) != OK || launcher.rank <= 0)
        return exit_status(status);
    // A launcher ends the job when the first process exits: give rank 0 time to print its line.
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    return status_exit(status);
}
