// SPDX-License-Identifier: Apache-2.0
#include "tools/cmd_verify.h"

#include "tools/recipe_argument.h"
#include "trainer/verify.h"

#include <stdlib.h>
#include <string.h>

static const char help[] =
    "cuboid verify RECIPE [key=value ...] [--steps N] [--all]\n"
    "\n"
    "Runs the recipe's layout and one rank on the same data, as threads of this process, and compares every "
    "loss,\n"
    "gradient norm, gradient, weight and moment: how far apart, which bound applies (docs/verify.md says "
    "where it\n"
    "comes from), and error / bound. Each step begins from one rank's weights, so errors do not pile up.\n"
    "\n"
    "  --steps N   how many steps (default 3)\n"
    "  --all       a line for every parameter, not only the worst\n"
    "\n"
    "Exit status: 0 when all lie within their bounds, 1 when one does not.\n";

/* What a layout is: with these every degree is one. */
static const char *const one_rank_overrides[] = {
    "tp=1",
    "pp=1",
    "dp=1",
    "cp=1",
    "ep=1",
    "parallel.sequence_parallel=false",
    "pipeline.schedule=1f1b",
    "pipeline.virtual_stages=1",
    "pipeline.layout=[]",
};
enum { ONE_RANK_OVERRIDES = sizeof one_rank_overrides / sizeof *one_rank_overrides };

struct arguments {
    int steps;
    bool all;
    char **recipe; // "verify", the recipe, overrides: what recipe_argument() takes
    int recipe_count;
};

static bool parse(int argc, char **argv, struct arguments *out)
{
    *out =
        (struct arguments){.steps = 3, .recipe = calloc((size_t)argc + ONE_RANK_OVERRIDES + 1, sizeof *argv)};
    for (int i = 0; out->recipe != NULL && i < argc; i++) {
        int64_t steps;
        if (strcmp(argv[i], "--all") == 0) {
            out->all = true;
        } else if (strcmp(argv[i], "--steps") == 0) {
            if (i + 1 == argc || !integer_parse(argv[i + 1], &steps) || steps < 1 || steps > 1000) {
                fprintf(stderr, "cuboid verify: --steps wants a number from 1 to 1000\n");
                return false;
            }
            out->steps = (int)steps;
            i++;
        } else if (strncmp(argv[i], "--", 2) == 0) {
            fprintf(stderr, "cuboid verify: unknown option %s; --steps N and --all are known\n", argv[i]);
            return false;
        } else {
            out->recipe[out->recipe_count++] = argv[i];
        }
    }
    return out->recipe != NULL;
}

/* True where an override says the same key as one of ours, by any of its names. */
static bool says_layout(const char *override)
{
    static const char *const keys[] = {
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "parallel.tp",
        "parallel.pp",
        "parallel.dp",
        "parallel.cp",
        "parallel.ep",
        "parallel.tensor_parallel_size",
        "parallel.pipeline_parallel_size",
        "parallel.data_parallel_size",
        "parallel.context_parallel_size",
        "parallel.expert_parallel_size",
        "parallel.sequence_parallel",
        "pipeline.schedule",
        "pipeline.virtual_stages",
        "pipeline.layout",
    };
    const char *equals = strchr(override, '=');
    for (size_t i = 0; equals != NULL && i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i]) == (size_t)(equals - override) &&
            strncmp(keys[i], override, strlen(keys[i])) == 0)
            return true;
    return false;
}

/* The same recipe with every degree one. */
static int load_one_rank(struct arguments *arguments, struct recipe **out)
{
    int count = 2, size;
    for (int i = 2; i < arguments->recipe_count; i++)
        if (!says_layout(arguments->recipe[i]))
            arguments->recipe[count++] = arguments->recipe[i];
    for (int i = 0; i < ONE_RANK_OVERRIDES; i++)
        arguments->recipe[count++] = (char *)one_rank_overrides[i];
    return recipe_argument(count, arguments->recipe, true, out, &size);
}

static int run(struct arguments *arguments, const struct recipe *layout, const struct recipe *one_rank)
{
    struct verify_options options = {
        .layout = layout, .one_rank = one_rank, .steps = arguments->steps, .progress = stdout};
    struct verify_report report = {0};
    printf("%s: %d ranks against one, %d steps\n", layout->name, recipe_world_size(layout), options.steps);
    int status = exit_status(verify(&options, &report));
    if (status == 0) {
        verify_print(&report, arguments->all, stdout);
        printf("%s: the largest error is %.3f of its bound; %d outside\n",
               report.outside == 0 ? "equal" : "DIFFERENT", report.largest, report.outside);
        status = report.outside == 0 ? 0 : 1;
    }
    verify_report_free(&report);
    return status;
}

int cmd_verify(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return 0;
    }
    struct arguments arguments;
    struct recipe *layout = NULL, *one_rank = NULL;
    int size, status = parse(argc, argv, &arguments) ? 0 : 2;
    if (status == 0)
        status = recipe_argument(arguments.recipe_count, arguments.recipe, true, &layout, &size);
    if (status == 0)
        status = load_one_rank(&arguments, &one_rank);
    if (status == 0)
        status = run(&arguments, layout, one_rank);
    recipe_destroy(layout);
    recipe_destroy(one_rank);
    free(arguments.recipe);
    return status;
}
