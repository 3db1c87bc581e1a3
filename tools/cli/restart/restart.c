// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/restart/restart.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/process.h"
#include "parallel/comm.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/submit/submit.h"

#include <stdlib.h>
#include <string.h>

struct supervisor {
    const struct recipe *recipe;
    struct start start;
    int64_t most, restarts, lost; // restarts allowed and made; steps that were repeated
    struct failure failure;       // of the last attempt
};

/* Makes the command of an attempt: the launcher, this executable, and its arguments. */
static void make_command(const struct start *start, const struct nodes *nodes, const struct layout *layout,
                         struct text *out)
{
    const struct recipe_names *overrides =
        layout->chosen.overrides.count > 0 ? &layout->chosen.overrides : start->overrides;
    if (start->launch != NULL) {
        nodes_launch(start->launch, layout->nodes, layout->ranks, &nodes->failed, out);
        text_add(out, " ");
    }
    text_add_shell_word(out, start->program);
    text_add(out, " train ");
    text_add_shell_word(out, start->path);
    for (size_t i = 0; i < overrides->count; i++) {
        text_add(out, " ");
        text_add_shell_word(out, overrides->list[i]);
    }
    text_add(out, " %s", SUPERVISED);
}

/* Checks the nodes, fits the layout to them, and runs the recipe once. */
static enum status attempt(const struct supervisor *s, struct attempt *out)
{
    const struct start *start = &s->start;
    struct nodes nodes;
    struct layout layout = {0};
    struct text command = {0};
    const char *signal = submit_stop_signal(s->recipe);
    enum status status = nodes_find(start, &nodes, out);
    if (status == OK && !out->stopped && out->exit == 0)
        status = layout_make(start, &nodes, &layout);
    if (status == OK && !out->stopped && out->exit == 0) {
        make_command(start, &nodes, &layout, &command);
        status = attempt_run(&(struct attempt_options){.command = command.chars,
                                                       .slurm_job = signal != NULL ? start->slurm_job : NULL,
                                                       .stop_signal = signal != NULL ? signal + 3 : NULL},
                             out);
    } else if (out->stopped) // while the nodes were checked
        out->exit = status_exit(STOPPED);
    text_free(&command);
    layout_free(&layout);
    nodes_free(&nodes);
    return status;
}

/* Records a failure. *again: the run may be restarted. */
static enum status note_failure(struct supervisor *s, const struct attempt *attempt,
                                const struct metrics_state *before, bool *again)
{
    struct failure failure;
    failure_find(s->recipe, attempt, before, &failure);
    const bool same = s->restarts > 0 && failure_equal(&failure, &s->failure);
    failure_free(&s->failure);
    s->failure = failure;
    *again = !same && s->restarts < s->most;
    if (failure_log(s->recipe, &failure, s->restarts + 1, attempt->exit) != OK)
        print_line(stderr, "warning: %s", fail_text());
    s->lost += failure.step - failure.saved;
    if (same)
        return fail(IO_ERROR,
                    "failed twice in a row, with the same message, after step %lld: not restarted: %s",
                    (long long)failure.step, text_chars(&failure.why));
    if (!*again)
        return fail(IO_ERROR, "not restarted after --restarts %lld: %s", (long long)s->most,
                    text_chars(&failure.why));
    s->restarts++;
    print_line(stderr, "restart %lld of %lld: failed after step %lld, resuming from step %lld: %s",
               (long long)s->restarts, (long long)s->most, (long long)failure.step, (long long)failure.saved,
               text_chars(&failure.why));
    return OK;
}

/* ETTR (effective training time ratio) of Kokolis et al. (arXiv:2410.21680): the share of the time that made
 * progress. */
static void print_summary(const struct supervisor *s, int64_t first, double seconds)
{
    int64_t last;
    const double productive = productive_s(s->recipe->logging.run_dir, first, &last);
    char text[NUMBER_CHARS];
    print_line(stdout, "restarts: %lld, %lld steps lost; %s in all, ETTR %.3f%s%s%s", (long long)s->restarts,
               (long long)s->lost, seconds_text(seconds, text), seconds > 0.0 ? productive / seconds : 0.0,
               s->restarts > 0 ? "; " : "", s->restarts > 0 ? s->recipe->logging.run_dir : "",
               s->restarts > 0 ? "/restarts.jsonl" : "");
}

/* Whether the run is not restarted: it is complete, invalid, or was stopped. */
static bool is_final(const struct attempt *attempt)
{
    return attempt->stopped || attempt->exit == 0 || attempt->exit == status_exit(BAD_RECIPE) ||
           attempt->exit == status_exit(STOPPED);
}

/* A launcher may return a status of its own. The run was stopped with a complete checkpoint if its last step
 * is saved, and is complete if all are: srun may return 0 if a node was not ready. */
static void check_status(const struct supervisor *s, const struct metrics_state *before,
                         struct attempt *attempt)
{
    const int64_t steps = s->recipe->train.train_iters;
    struct failure last;
    if (s->start.launch == NULL || attempt->exit == status_exit(BAD_RECIPE))
        return;
    failure_find(s->recipe, attempt, before, &last);
    if (attempt->stopped && attempt->exit != 0 && last.saved > 0 && last.step == last.saved)
        attempt->exit = status_exit(STOPPED);
    if (!attempt->stopped && attempt->exit == 0 && last.saved < steps) {
        attempt->exit = status_exit(IO_ERROR);
        text_free(&attempt->why);
        text_add(&attempt->why, "--launch returned 0, but step %lld is not saved", (long long)steps);
    }
    failure_free(&last);
}

static int supervise(struct supervisor *s)
{
    struct failure start;
    struct attempt last = {0};
    struct metrics_state before = metrics_state_of(s->recipe);
    const double begun = clock_s();
    failure_find(s->recipe, &last, &before, &start); // where the run begins
    for (bool again = true; again;) {
        before = metrics_state_of(s->recipe);
        enum status status = attempt(s, &last);
        if (status == OK)
            check_status(s, &before, &last);
        if (status == OK && is_final(&last))
            again = false;
        else if (status == OK)
            status = note_failure(s, &last, &before, &again);
        attempt_free(&last);
        if (status != OK) {
            last.exit = exit_status(status);
            break;
        }
    }
    if (s->restarts > 0 || last.exit != status_exit(BAD_RECIPE)) // otherwise nothing was trained
        print_summary(s, start.saved, clock_s() - begun);
    failure_free(&start);
    return last.exit;
}

struct arguments {
    const char *launch;
    int64_t restarts;
    bool no_check;
};

static enum status check(const struct recipe *recipe, const char *launch)
{
    struct launcher launcher;
    int nodes, per_node;
    // A shell in an allocation of several nodes is the place for --launch.
    if (launcher_find(&launcher) != OK && launch == NULL)
        return BAD_USAGE;
    if (launch != NULL && launch[strspn(launch, " ")] == 0)
        return fail(BAD_USAGE, "--launch is empty; use --launch 'srun -N {nodes} -n {ranks}', or omit it");
    if (launcher.size > 0)
        return fail(BAD_USAGE,
                    "train --restarts starts the launcher itself; use cuboid train RECIPE --restarts N "
                    "--launch 'srun -n {ranks}'");
    if (recipe->checkpoint.save == NULL)
        return fail(BAD_RECIPE, "checkpoint.save is none: --restarts has nothing to resume from; use "
                                "checkpoint.save=auto");
    if (!device_traits(recipe->cluster.device)->computes)
        return fail(BAD_RECIPE, "cluster.device %s does not train; use cluster.device=%s",
                    recipe->cluster.device, recipe->cluster.dry_device);
    if (launch != NULL && strstr(launch, "{nodes}") != NULL)
        return submit_nodes(recipe, &nodes, &per_node);
    if (recipe->resilience.elastic && launch == NULL)
        return fail(BAD_RECIPE,
                    "resilience.elastic: there are no nodes without --launch; use --launch 'srun -N "
                    "{nodes} -n {ranks}', or resilience.elastic=false");
    return OK;
}

static bool is_before_end(const struct recipe *recipe, int64_t interval)
{
    return interval > 0 && interval < recipe->train.train_iters;
}

/* Warns if there will be nothing to resume from until the run is complete. */
static void warn_of_late_save(const struct recipe *recipe)
{
    const struct recipe_checkpoint *checkpoint = &recipe->checkpoint;
    const bool in_memory =
        checkpoint->memory_dir != NULL && is_before_end(recipe, checkpoint->non_persistent_save_interval);
    if (is_before_end(recipe, checkpoint->save_interval) || checkpoint->save_minutes > 0.0 || in_memory)
        return;
    print_line(
        stderr,
        "warning: checkpoint.save_interval %lld, checkpoint.save_minutes 0: nothing is saved before the "
        "end of the run, so a failure loses all of its steps; set checkpoint.save_minutes=30, or a "
        "checkpoint.save_interval below train.train_iters %lld",
        (long long)checkpoint->save_interval, (long long)recipe->train.train_iters);
}

static int load_and_supervise(const struct arguments *arguments, int argc, char **argv)
{
    struct recipe *recipe = NULL;
    struct chosen chosen;
    int size = 0;
    const int bad =
        recipe_argument_choose(argc, argv, &(struct recipe_request){.alone = true}, &recipe, &chosen, &size);
    if (bad != 0)
        return bad;
    struct text program = {0};
    const bool is_srun = arguments->launch != NULL && strncmp(arguments->launch, "srun", strlen("srun")) == 0;
    struct supervisor supervisor = {.recipe = recipe,
                                    .most = arguments->restarts,
                                    .start = {.recipe = recipe,
                                              .path = argv[1],
                                              .overrides = &chosen.overrides,
                                              .launch = arguments->launch,
                                              .slurm_job = is_srun ? getenv("SLURM_JOB_ID") : NULL,
                                              .check = !arguments->no_check}};
    enum status status = check(recipe, arguments->launch);
    if (status == OK)
        status = process_program(&program);
    supervisor.start.program = text_chars(&program);
    if (status == OK && arguments->restarts > 0)
        warn_of_late_save(recipe);
    const int result = status == OK ? supervise(&supervisor) : exit_status(status);
    failure_free(&supervisor.failure);
    text_free(&program);
    recipe_destroy(recipe);
    chosen_free(&chosen);
    return result;
}

int restart_command(int argc, char **argv)
{
    struct arguments arguments = {.launch = NULL};
    const struct option options[] = {{"--restarts", OPTION_INTEGER, &arguments.restarts, 0, 1e6},
                                     {"--launch", OPTION_TEXT, &arguments.launch, 0, 0},
                                     {"--no-check", OPTION_FLAG, &arguments.no_check, 0, 0}};
    int count = 0;
    const char **words = memory_zeroed((size_t)argc + 2, sizeof *words, "the arguments");
    words[0] = argv[0];
    enum status status =
        options_parse(argc, argv, options, sizeof options / sizeof *options, words + 1, &count);
    const int result =
        status == OK ? load_and_supervise(&arguments, count + 1, (char **)words) : exit_status(status);
    free(words);
    return result;
}
