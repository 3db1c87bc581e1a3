// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "planner/schedule/choose_schedule.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/recipe/recipe_table.h"
#include "trainer/verify/verify.h"

#include <stdlib.h>
#include <string.h>

const char help_verify[] =
    "cuboid verify RECIPE [key=value ...] [--steps N] [--all]\n"
    "\n"
    "Runs the recipe's layout and one rank on the same data, as threads of this process, and compares\n"
    "every loss, gradient norm, gradient, weight and moment with a derived bound (docs/verify.md).\n"
    "Each step begins from one rank's weights, so errors do not accumulate. One rank computes each step\n"
    "twice more in perturbed arithmetic, to measure how far rounding errors are magnified.\n"
    "\n"
    "  --steps N   number of steps (default 3)\n"
    "  --all       print a line for every parameter\n"
    "\n"
    "The table is in the order of a forward pass; hints name what this layout cannot expose. The verdict\n"
    "gives the largest differences, how large rounding may make them, and the smallest fault it would find.\n"
    "\n"
    "With a low-precision format (precision.matmul_format) and tp > 1, the layout is compared with the\n"
    "same tp, dp=1 and pp=1, since last-bit differences between tp degrees change quantized values.\n"
    "\n"
    "Exit status: 0 if all are within bounds, 1 if one is not, 2 for a recipe that cannot be verified.\n";

struct arguments {
    int64_t steps;
    bool all;
    const char **recipe; // "verify", recipe, overrides: arguments of recipe_argument()
    int recipe_count;
};

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){
        .steps = 3, .recipe = memory_zeroed((size_t)argc + 1, sizeof *out->recipe, "the arguments")};
    const struct option options[] = {
        {"--steps", OPTION_INTEGER, &out->steps, 1, 1000},
        {"--all", OPTION_FLAG, &out->all, 0, 0},
    };
    out->recipe[0] = argv[0];
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->recipe + 1,
                      &out->recipe_count));
    out->recipe_count++;
    return OK;
}

/* Plans both runs, and verifies. */
static enum status plan_and_verify(struct verify_options *options, struct verify_report *report)
{
    struct verify_side *const sides[] = {&options->layout, &options->one_rank};
    struct planned_run planned[2] = {{.needs = NULL}};
    enum status status = OK;
    for (int i = 0; i < 2 && status == OK; i++) {
        status = planned_run_make(sides[i]->recipe, -1, &planned[i]);
        sides[i]->schedule = planned[i].run.schedule;
        sides[i]->needs = planned[i].needs;
    }
    if (status == OK)
        status = verify(options, report);
    planned_run_free(&planned[0]);
    planned_run_free(&planned[1]);
    return status;
}

static int run(struct arguments *arguments, const struct recipe *layout, const struct recipe *one_rank)
{
    struct verify_options options = {.layout = {.recipe = layout},
                                     .one_rank = {.recipe = one_rank},
                                     .steps = (int)arguments->steps,
                                     .progress = stdout};
    struct verify_report report = {0};
    if (!device_traits(layout->cluster.device)->computes)
        return exit_status(fail(BAD_RECIPE,
                                "cluster.device %s computes nothing to compare; use cluster.device=cpu",
                                layout->cluster.device));
    int tp = one_rank->parallel.tensor_parallel_size;
    const char *key = NULL, *format = recipe_quantized_format(layout, &key);
    if (tp > 1 && recipe_world_size(layout) == tp)
        return exit_status(
            fail(BAD_RECIPE,
                 "cannot verify tp=%d with %s: last-bit differences change quantized values; add pp or "
                 "dp, or set %s=none",
                 tp, format, key));
    if (tp > 1)
        printf("compared with tp=%d, not with one rank: last-bit differences change the quantized values of "
               "%s; set "
               "%s=none to compare with one rank\n",
               tp, format, key);
    if (layout->origin[recipe_row_index("train.train_iters")].kind == FROM_COMMAND_LINE)
        print_line(stderr, "warning: command line: train.train_iters has no effect on verify; set --steps N");
    printf("%s: %d ranks against %d, %d steps\n", layout->name, recipe_world_size(layout), tp, options.steps);
    int status = exit_status(plan_and_verify(&options, &report));
    if (status == 0) {
        verify_print(&report, arguments->all, stdout);
        verify_print_hints(layout, one_rank, options.steps, stdout);
        verify_print_verdict(&report, stdout);
        status = report.outside == 0 ? 0 : 1;
    }
    verify_report_free(&report);
    return status;
}

/* Sets the recipe that the layout is compared with: one rank, or as many tensor-parallel ranks as compute
 * the same sums. */
static int load_reference(const struct arguments *a, char **words, const struct recipe *layout,
                          struct recipe **out)
{
    const struct linear_precision *precision = &layout->layers.precision;
    char degree[32];
    const char *sequence = layout->layers.sequence_parallel ? "parallel.sequence_parallel=true" : NULL;
    const char *const kept[] = {degree, sequence, NULL};
    bool keeps = linear_precision_quantizes(precision) && layout->parallel.tensor_parallel_size > 1;
    snprintf(degree, sizeof degree, "tp=%d", layout->parallel.tensor_parallel_size);
    return recipe_argument_one_rank(a->recipe_count, words, keeps ? kept : NULL, out);
}

int cmd_verify(int argc, char **argv)
{
    struct arguments arguments;
    struct recipe *layout = NULL, *one_rank = NULL;
    int size, status = exit_status(parse(argc, argv, &arguments));
    char **words = (char **)(uintptr_t)arguments.recipe;
    if (status == 0)
        status = recipe_argument(arguments.recipe_count, words, true, &layout, &size);
    if (status == 0)
        status = load_reference(&arguments, words, layout, &one_rank);
    if (status == 0)
        status = run(&arguments, layout, one_rank);
    recipe_destroy(layout);
    recipe_destroy(one_rank);
    free(arguments.recipe);
    return status;
}
