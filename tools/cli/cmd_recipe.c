// SPDX-License-Identifier: Apache-2.0
/* cuboid recipe: validates a recipe and prints its values, without running it. */
#include "tools/cli/commands.h"

#include "base/machine.h"
#include "planner/choose/choose.h"
#include "planner/recipe/planned_recipe.h"

#include <string.h>

enum { DONE, BAD_INPUT = 2 };

static int print_and_free(struct text *text)
{
    fputs(text_chars(text), stdout);
    text_free(text);
    return DONE;
}

/* threads_per_rank 0 depends on the machine, so its value is printed as a comment, not as part of the
 * recipe. */
static void add_threads(const struct recipe *recipe, struct text *out)
{
    struct machine machine;
    int ranks = recipe_world_size(recipe);
    if (recipe->cluster.threads_per_rank > 0)
        return;
    machine_query(&machine);
    double cpus = machine.quota < machine.cpus ? machine.quota : machine.cpus;
    int threads = machine_threads(&machine, ranks, ranks);
    text_add(out,
             "\n# cluster.threads_per_rank 0: %d thread%s per rank if all ranks run here "
             "(CPUs: %.3g, ranks: %d)\n",
             threads, threads == 1 ? "" : "s", cpus, ranks);
}

/* Removes --changed from the arguments after the recipe; false if it is not there. */
static bool take_changed(int *argc, char **argv)
{
    int kept = 2;
    for (int i = 2; i < *argc; i++)
        if (strcmp(argv[i], "--changed") != 0)
            argv[kept++] = argv[i];
    const bool found = kept < *argc;
    *argc = kept;
    return found;
}

const char help_recipe[] =
    "cuboid recipe RECIPE [key=value ...] [--changed]\n"
    "                           validate a recipe; print every key, its value and origin;\n"
    "                           --changed: only the keys that are not left at their defaults\n"
    "cuboid recipe --reference  print every key with its values, default and meaning\n"
    "cuboid help KEY            the same of one key\n";

int cmd_recipe(int argc, char **argv)
{
    struct text text = {0};
    if (argc == 2 && strcmp(argv[1], "--reference") == 0) {
        recipe_reference(&planner_keys, &text);
        return print_and_free(&text);
    }
    if (argc < 2 || argv[1][0] == '-') {
        fputs(help_recipe, stderr);
        return BAD_INPUT;
    }
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    struct chosen chosen;
    const bool changed = take_changed(&argc, argv);
    const struct choose_options options = {
        .path = argv[1], .overrides = (const char *const *)argv + 2, .override_count = (size_t)argc - 2};
    enum status status = choose_load(&options, &recipe, &chosen, &problems);
    if (status == OK)
        recipe_warn_of_files(recipe, &problems);
    problems_print(&problems, stderr);
    problems_free(&problems);
    if (status != OK)
        return BAD_INPUT;
    chosen_free(&chosen);
    if (changed)
        recipe_given_text(recipe, &text);
    else {
        recipe_resolved_text(recipe, &text);
        add_threads(recipe, &text);
    }
    recipe_destroy(recipe);
    return print_and_free(&text);
}
