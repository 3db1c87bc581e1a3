// SPDX-License-Identifier: Apache-2.0
/* cuboid plan: memory and step time of a recipe on a cluster, without data, GPU or training. */
#include "tools/cli/cmd_plan.h"
#include "base/memory.h"
#include "tools/cli/commands.h"

#include "parallel/comm.h"
#include "planner/draw/plan_draw.h"
#include "planner/plan/memory_plan.h"
#include "planner/schedule/choose_schedule.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"

#include <stdlib.h>
#include <string.h>

const char help_plan[] =
    "cuboid plan RECIPE [key=value ...] [--best] [-o FILE] [--json] [--ops] [--terms]\n"
    "                   [--no-advice] [--svg FILE] [--trace FILE]\n"
    "\n"
    "Predicts memory and step time of a recipe: layers by rank, memory by part, messages, and, with\n"
    "cluster.profile, the time of a step, its breakdown, and changes that would reduce it. The training\n"
    "program runs on a device that computes nothing: neither data nor a GPU is needed\n"
    "(docs/planning.md).\n"
    "\n"
    "  cuboid plan recipes/gpt3-1.3b.yaml tp=2 pp=4 dp=4 cluster.profile=dgx-a100-80\n"
    "\n"
    "  --best        choose the keys that are not given (parallel layout, schedule, micro-batch size,\n"
    "                recomputation) for the shortest step that fits\n"
    "  -o FILE       also write a recipe with this one as its base and what was given and chosen, for\n"
    "                cuboid train\n"
    "  --json        print one JSON object, with the names of metrics.jsonl\n"
    "  --ops         also print the ops of a step by layer, with shapes, FLOPs, bytes and predicted times\n"
    "  --terms       also print a row for each of equal ranks and stages, the slots of activations, and\n"
    "                the memory terms of the rank that needs the most memory\n"
    "  --no-advice   do not plan changes of the recipe: the plan is made several times faster\n"
    "  --svg FILE    also draw the step: the streams of every pipeline rank, with their actions and\n"
    "                messages, and the critical path; -: to standard output, instead of the plan\n"
    "  --trace FILE  also write the step as a trace for Perfetto or chrome://tracing; -: as for --svg\n"
    "\n"
    "With the profile of a GPU, the plan is for cluster.device=cuda, unless cluster.dry_device is given.\n"
    "Exit status: 0 if it fits, or without a profile; 1 if it does not; 2 for a recipe that cannot run.\n";

struct arguments {
    struct plan_options options;
    bool best;
    struct output write; // the recipe
    bool sets_device;    // cluster.device=dry was added
    char **recipe;       // "plan", recipe, overrides: arguments of recipe_argument()
    int count;
};

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){
        .recipe = memory_zeroed((size_t)argc + 2, sizeof(char *), "the arguments"), // one override is added
        .write = {"plan", "-o", NULL}};
    const struct option options[] = {{"--best", OPTION_FLAG, &out->best, 0, 0},
                                     {"-o", OPTION_TEXT, &out->write.path, 0, 0},
                                     {"--json", OPTION_FLAG, &out->options.json, 0, 0},
                                     {"--ops", OPTION_FLAG, &out->options.ops, 0, 0},
                                     {"--terms", OPTION_FLAG, &out->options.terms, 0, 0},
                                     {"--no-advice", OPTION_FLAG, &out->options.no_advice, 0, 0},
                                     {"--svg", OPTION_TEXT, &out->options.outputs[PLAN_SVG].path, 0, 0},
                                     {"--trace", OPTION_TEXT, &out->options.outputs[PLAN_TRACE].path, 0, 0}};
    out->options.outputs[PLAN_SVG] = (struct output){"plan", "--svg", NULL};
    out->options.outputs[PLAN_TRACE] = (struct output){"plan", "--trace", NULL};
    out->recipe[0] = argv[0];
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options,
                      (const char **)(uintptr_t)(out->recipe + 1), &out->count));
    out->count++;
    return OK;
}

/* The value of the first override of cluster.device; NULL: none. */
static const char *device_given(const struct arguments *arguments)
{
    static const char key[] = "cluster.device=";
    for (int i = 2; i < arguments->count; i++)
        if (strncmp(arguments->recipe[i], key, sizeof key - 1) == 0)
            return arguments->recipe[i] + sizeof key - 1;
    return NULL;
}

/* Checks for errors that do not depend on the recipe. */
static enum status check_arguments(const struct arguments *arguments)
{
    const char *device = device_given(arguments);
    if (arguments->count < 2)
        return fail(BAD_USAGE, "no recipe given; use cuboid plan recipes/quickstart.yaml");
    if (arguments->options.json && (arguments->options.ops || arguments->options.terms))
        return fail(BAD_USAGE, "--json cannot be combined with --ops or --terms; remove one of them");
    if (device != NULL && strcmp(device, "dry") != 0)
        return fail(BAD_USAGE,
                    "a plan uses cluster.device=dry, not %s; set cluster.dry_device=%s to plan for it",
                    device, device);
    const struct input inputs[] = {{"recipe", arguments->recipe[1]}};
    const struct plan_options *o = &arguments->options;
    const char *printing = o->json ? "--json" : o->ops ? "--ops" : o->terms ? "--terms" : NULL;
    struct output all[PLAN_OUTPUTS + 1] = {arguments->write};
    memcpy(all + 1, o->outputs, sizeof o->outputs);
    TRY(outputs_check(&arguments->write, 1, inputs, 1, "the plan"));
    return outputs_check(all, PLAN_OUTPUTS + 1, inputs, 1, printing);
}

/* ---- one plan ---- */

static void print_json(const struct step_plan *plan, const struct advice *advice)
{
    struct text json = {0};
    text_add(&json, "{");
    step_plan_json(plan, &json);
    text_add(&json, ", ");
    advice_json(advice, &json);
    text_add(&json, "}\n");
    fputs(text_chars(&json), stdout);
    text_free(&json);
}

/* Writes the files of the timeline, and reports them on standard output unless it has JSON or a file. */
static enum status write_outputs(const struct step_plan *plan, const struct plan_options *options)
{
    typedef void draw(const struct step_plan *plan, const char *name, struct text *out);
    static draw *const draws[PLAN_OUTPUTS] = {[PLAN_SVG] = plan_draw_svg, [PLAN_TRACE] = plan_draw_trace};
    const bool report = !options->json && !outputs_print(options->outputs, PLAN_OUTPUTS);
    enum status status = OK;
    for (int i = 0; i < PLAN_OUTPUTS && status == OK; i++) {
        struct text content = {0};
        if (options->outputs[i].path == NULL)
            continue;
        draws[i](plan, plan->run->recipe->files.list[0], &content);
        status = output_write(&options->outputs[i], &content, report);
        text_free(&content);
    }
    return status;
}

static bool has_outputs(const struct plan_options *options)
{
    for (int i = 0; i < PLAN_OUTPUTS; i++)
        if (options->outputs[i].path != NULL)
            return true;
    return false;
}

static enum status print(const struct step_plan *plan, const struct advice_source *source,
                         const struct plan_options *options)
{
    struct advice advice = {.count = 0};
    if (outputs_print(options->outputs, PLAN_OUTPUTS))
        return write_outputs(plan, options);
    if (plan->profile != NULL && !options->no_advice)
        TRY(advice_make(source, plan, &advice));
    if (options->json) {
        print_json(plan, &advice);
        return write_outputs(plan, options);
    }
    TRY(step_plan_print(plan, options->terms, stdout));
    if (plan->profile != NULL && !options->no_advice)
        advice_print(&advice, plan, stdout);
    if (options->ops)
        step_plan_print_ops(plan, stdout);
    return write_outputs(plan, options);
}

static enum status make_and_print(const struct run *run, const struct cluster_profile *profile,
                                  const struct advice_source *source, const struct plan_options *options,
                                  bool *fits)
{
    struct step_plan plan;
    if ((options->ops || has_outputs(options)) && profile == NULL)
        return fail(BAD_RECIPE, "cluster.profile is none; %s needs one (cuboid profile --list)",
                    options->ops                              ? "--ops"
                    : options->outputs[PLAN_SVG].path != NULL ? "--svg"
                                                              : "--trace");
    TRY(report_offload(run, stderr));
    TRY(step_plan_make_timeline(run, profile, &plan));
    *fits = plan.fits;
    enum status status = print(&plan, source, options);
    step_plan_free(&plan);
    return status;
}

int plan_recipe(const struct recipe *recipe, const struct advice_source *source,
                const struct plan_options *options)
{
    struct cluster_profile *profile = NULL;
    struct run run = {.recipe = NULL};
    bool fits = true;
    enum status status = step_plan_profile(recipe, &profile);
    if (status == OK)
        status = memory_plan_check_length(recipe); // a schedule of this length takes time and memory, too
    if (status == OK)
        status = planned_run_create(recipe, &run);
    if (status == OK) {
        status = make_and_print(&run, profile, source, options, &fits);
        run_destroy(&run);
    }
    profile_destroy(profile);
    return status != OK ? exit_status_of_input(status) : fits ? 0 : 1;
}

/* ---- the command ---- */

/* Writes what was given and chosen over the recipe, with the device that it was planned for. */
static enum status write_recipe(struct recipe *recipe, const char *chosen, const struct arguments *arguments)
{
    const struct plan_options *options = &arguments->options;
    struct text text = {0};
    if (arguments->sets_device)
        recipe_use_dry_device(recipe);
    char *base = realpath(arguments->recipe[1], NULL);
    recipe_based_text(recipe, base != NULL ? base : arguments->recipe[1], chosen, &text);
    free(base);
    enum status status = output_write(&arguments->write, &text,
                                      !options->json && !outputs_print(options->outputs, PLAN_OUTPUTS));
    text_free(&text);
    return status;
}

static int load_and_plan(struct arguments *arguments)
{
    struct recipe *recipe = NULL;
    struct chosen chosen;
    const struct recipe_request request = {.alone = true, .best = arguments->best};
    int size = 0;
    int status = exit_status_of_input(check_arguments(arguments));
    arguments->sets_device = device_given(arguments) == NULL;
    if (status == 0 && arguments->sets_device)
        arguments->recipe[arguments->count++] = (char *)(uintptr_t) "cluster.device=dry";
    if (status == 0)
        status =
            recipe_argument_choose(arguments->count, arguments->recipe, &request, &recipe, &chosen, &size);
    if (status != 0)
        return status;
    const struct advice_source source = {.path = arguments->recipe[1],
                                         .overrides = (const char *const *)chosen.overrides.list,
                                         .override_count = chosen.overrides.count};
    status = plan_recipe(recipe, &source, &arguments->options);
    if (status < 2 && arguments->write.path != NULL) {
        const int written = exit_status(write_recipe(recipe, text_chars(&chosen.keys), arguments));
        status = written != 0 ? written : status;
    }
    recipe_destroy(recipe);
    chosen_free(&chosen);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    struct arguments arguments;
    struct launcher launcher;
    if (launcher_find(&launcher) == OK && launcher.rank > 0)
        return 0; // one plan is enough
    int status = exit_status_of_input(parse(argc, argv, &arguments));
    if (status == 0)
        status = load_and_plan(&arguments);
    free(arguments.recipe);
    return status;
}
