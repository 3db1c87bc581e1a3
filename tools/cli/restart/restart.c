// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/restart/restart.h"

#include "base/clock.h"
#include "base/process.h"
#include "parallel/comm.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/submit/launch.h"
#include "tools/cli/submit/submit.h"

#include <stdlib.h>
#include <string.h>

struct supervisor {
    const struct recipe *recipe;
    struct text command;
    int64_t most, restarts, lost; // restarts allowed and made; steps that were repeated
    struct failure failure;       // of the last attempt
};

/* Makes the command of an attempt: the launcher, this executable, and its arguments. */
static enum status make_command(struct supervisor *s, const char *launch, const char *path,
                                const struct recipe_names *overrides)
{
    struct text program = {0};
    int nodes = 1, per_node = 1;
    if (launch != NULL && strstr(launch, "{nodes}") != NULL)
        TRY(submit_nodes(s->recipe, &nodes, &per_node));
    TRY(process_program(&program));
    if (launch != NULL) {
        launch_text(launch, nodes, recipe_world_size(s->recipe), &s->command);
        text_add(&s->command, " ");
    }
    text_add_shell_word(&s->command, program.chars);
    text_add(&s->command, " train ");
    text_add_shell_word(&s->command, path);
    for (size_t i = 0; i < overrides->count; i++) {
        text_add(&s->command, " ");
        text_add_shell_word(&s->command, overrides->list[i]);
    }
    text_free(&program);
    return OK;
}

/* Records a failure. *again: the run may be restarted. */
static enum status note_failure(struct supervisor *s, const struct attempt *attempt, bool *again)
{
    struct failure failure;
    failure_find(s->recipe, attempt, &failure);
    const bool same = s->restarts > 0 && failure_equal(&failure, &s->failure);
    failure_free(&s->failure);
    s->failure = failure;
    *again = !same && s->restarts < s->most;
    TRY(failure_log(s->recipe, &failure, s->restarts + 1, attempt->exit));
    s->lost += failure.step - failure.saved;
    if (same)
        return fail(IO_ERROR, "step %lld failed twice in a row, with the same message: not restarted: %s",
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

static int supervise(struct supervisor *s)
{
    struct failure before;
    struct attempt attempt = {0};
    const double begun = clock_s();
    failure_find(s->recipe, &attempt, &before); // where the run begins
    for (bool again = true; again;) {
        enum status status = attempt_run(s->command.chars, &attempt);
        if (status == OK && is_final(&attempt))
            again = false;
        else if (status == OK)
            status = note_failure(s, &attempt, &again);
        text_free(&attempt.why);
        if (status != OK) {
            attempt.exit = exit_status(status);
            break;
        }
    }
    print_summary(s, before.saved, clock_s() - begun);
    failure_free(&before);
    return attempt.exit;
}

static enum status check(const struct recipe *recipe)
{
    struct launcher launcher = {.rank = -1};
    TRY(launcher_find(&launcher));
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
    return OK;
}

static int load_and_supervise(const char *launch, int64_t restarts, int argc, char **argv)
{
    struct recipe *recipe = NULL;
    struct chosen chosen;
    int size = 0;
    const int bad =
        recipe_argument_choose(argc, argv, &(struct recipe_request){.alone = true}, &recipe, &chosen, &size);
    if (bad != 0)
        return bad;
    struct supervisor supervisor = {.recipe = recipe, .most = restarts};
    enum status status = check(recipe);
    if (status == OK)
        status = make_command(&supervisor, launch, argv[1], &chosen.overrides);
    const int result = status == OK ? supervise(&supervisor) : exit_status(status);
    failure_free(&supervisor.failure);
    text_free(&supervisor.command);
    recipe_destroy(recipe);
    chosen_free(&chosen);
    return result;
}

int restart_command(int argc, char **argv)
{
    const char *launch = NULL;
    int64_t restarts = 0;
    const struct option options[] = {{"--restarts", OPTION_INTEGER, &restarts, 0, 1e6},
                                     {"--launch", OPTION_TEXT, &launch, 0, 0}};
    int count = 0;
    const char **words = calloc((size_t)argc + 2, sizeof *words);
    CHECK(words != NULL);
    words[0] = argv[0];
    enum status status = options_parse(argc, argv, options, 2, words + 1, &count);
    const int result =
        status == OK ? load_and_supervise(launch, restarts, count + 1, (char **)words) : exit_status(status);
    free(words);
    return result;
}
