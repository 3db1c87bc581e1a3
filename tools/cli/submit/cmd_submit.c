// SPDX-License-Identifier: Apache-2.0
/* cuboid submit: writes a batch script, and passes it to sbatch. */
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "base/process.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/submit/launch.h"
#include "tools/cli/submit/submit.h"
#include "trainer/checkpoint/lock_owner.h"
#include "trainer/checkpoint/store_lock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char help_submit[] =
    "cuboid submit RECIPE [key=value ...] [--print] [--after JOB] [--requeues N] [--restarts N]\n"
    "              [--launch COMMAND]\n"
    "\n"
    "Submits the recipe to Slurm as a batch job that trains it: cluster.nodes, gpus_per_node, time,\n"
    "partition, account and sbatch (further lines). Before its time limit, or when it is preempted, the job\n"
    "saves a checkpoint, exits with 75 and is requeued by its script; then it resumes.\n"
    "\n"
    "  --print           print the script, and submit nothing; files may be missing on this machine\n"
    "  --after JOB       start when that job has ended; afterok:JOB: only if it succeeded. Default: the\n"
    "                    job that is writing in logging.run_dir, if any\n"
    "  --requeues N      maximum number of requeues (default 100)\n"
    "  --restarts N      start the ranks again after a failure, inside the job, at most N times\n"
    "  --launch COMMAND  starts the ranks; {nodes} and {ranks} are replaced by their numbers\n"
    "\n"
    "  cuboid submit recipes/quickstart.yaml cluster.nodes=2 cluster.time=12:00:00 --print\n"
    "\n"
    "Prints the number of the job, and on standard error how to follow it. Exit status: 0 submitted; 1\n"
    "sbatch failed; 2 invalid usage or recipe.\n";

struct arguments {
    bool print;
    const char *after, *launch;
    int64_t requeues, restarts;
};

/* Accepts "123", or a dependency of sbatch such as "afterok:123". */
static enum status check_after(const char *after)
{
    static const char *const types[] = {"after:", "afterany:", "afternotok:", "afterok:"};
    const char *job = after;
    for (size_t i = 0; after != NULL && i < sizeof types / sizeof *types; i++)
        if (strncmp(after, types[i], strlen(types[i])) == 0)
            job = after + strlen(types[i]);
    if (job == NULL ||
        (strchr("0123456789", *job) != NULL && *job != 0 && strspn(job, "0123456789_") == strlen(job)))
        return OK;
    return fail(BAD_USAGE, "--after %s is not a job; use --after 123 or --after afterok:123", after);
}

/* ---- a run that has not ended ---- */

/* Two jobs cannot write in one folder: if a job is writing there, the new one is to start when that has
 * ended. `after`: its number, or nothing. */
static enum status find_running(const struct recipe *recipe, struct text *after)
{
    static const char slurm[] = "SLURM_JOB_ID ";
    struct lock_owner owner;
    TRY(store_lock_holder(recipe->checkpoint.save, &owner));
    if (owner.token[0] == 0)
        return OK;
    struct text who = {0};
    lock_owner_describe(&owner, &who);
    const char *job = owner.job + strlen(slurm);
    if (strncmp(owner.job, slurm, strlen(slurm)) == 0 && check_after(job) == OK)
        text_add(after, "%s", job);
    print_line(stderr,
               after->length > 0 ? "%s is in use by %s: the new job starts when that one has ended"
                                 : "warning: %s is in use by %s: the job fails if that run has not ended "
                                   "when it starts; --after JOB makes it wait",
               recipe->logging.run_dir, who.chars);
    text_free(&who);
    return OK;
}

/* ---- the command ---- */

/* For Slurm's log. */
static enum status make_run_dir(const char *folder)
{
    if (folder_make(folder) == OK)
        return OK;
    return fail(IO_ERROR, "logging.run_dir: %s; set logging.run_dir to a directory that can be written",
                fail_text());
}

static enum status submit_recipe(const struct arguments *arguments, struct submission *s)
{
    struct text why = {0}, script = {0}, job = {0}, after = {0};
    enum status status = submit_nodes(s->recipe, &s->nodes, &s->ranks_per_node);
    if (status == OK)
        s->lead_s = submit_lead(s->recipe, s->nodes, &why);
    if (status == OK)
        status = submit_check(s);
    if (status == OK && !arguments->print)
        status = make_run_dir(s->recipe->logging.run_dir);
    if (status == OK && !arguments->print && arguments->after == NULL) {
        status = find_running(s->recipe, &after);
        s->after = after.chars;
    }
    if (status == OK) {
        submit_warn_cpus(s);
        submit_script(s, why.chars, &script);
    }
    if (status == OK && arguments->print)
        fputs(script.chars, stdout);
    else if (status == OK)
        status = submit_sbatch(script.chars, &job);
    if (job.length > 0) {
        print_line(stdout, "%s", job.chars);
        print_line(stderr, "job %s: follow it with tail -F %s/slurm-%s.log; scancel %s saves, and stops it",
                   job.chars, s->recipe->logging.run_dir, job.chars, job.chars);
    }
    text_free(&why);
    text_free(&script);
    text_free(&job);
    text_free(&after);
    s->after = arguments->after;
    return status;
}

static int load_and_submit(const struct arguments *arguments, int argc, char **argv)
{
    struct recipe *recipe = NULL;
    struct chosen chosen;
    struct text program = {0};
    int size = 0;
    const struct recipe_request request = {.alone = true, .preview = arguments->print};
    const int bad = recipe_argument_choose(argc, argv, &request, &recipe, &chosen, &size);
    if (bad != 0)
        return bad;
    char *folder = getcwd(NULL, 0);
    enum status status =
        folder != NULL ? process_program(&program) : fail(IO_ERROR, "the working directory has no path");
    struct submission submission = {.recipe = recipe,
                                    .path = argv[1],
                                    .overrides = &chosen.overrides,
                                    .program = text_chars(&program),
                                    .folder = folder,
                                    .launch = arguments->launch,
                                    .after = arguments->after,
                                    .requeues = arguments->requeues,
                                    .restarts = arguments->restarts};
    if (status == OK)
        status = submit_recipe(arguments, &submission);
    free(folder);
    text_free(&program);
    recipe_destroy(recipe);
    chosen_free(&chosen);
    return exit_status(status);
}

int cmd_submit(int argc, char **argv)
{
    struct arguments arguments = {.launch = launch_of_slurm(), .requeues = 100};
    const struct option options[] = {{"--print", OPTION_FLAG, &arguments.print, 0, 0},
                                     {"--after", OPTION_TEXT, &arguments.after, 0, 0},
                                     {"--requeues", OPTION_INTEGER, &arguments.requeues, 0, 1e9},
                                     {"--restarts", OPTION_INTEGER, &arguments.restarts, 0, 1e6},
                                     {"--launch", OPTION_TEXT, &arguments.launch, 0, 0}};
    int count = 0;
    const char **words = memory_zeroed((size_t)argc + 2, sizeof *words, "the arguments");
    words[0] = argv[0];
    enum status status =
        options_parse(argc, argv, options, sizeof options / sizeof *options, words + 1, &count);
    if (status == OK)
        status = check_after(arguments.after);
    if (status == OK && arguments.launch[strspn(arguments.launch, " ")] == 0)
        status = fail(BAD_USAGE, "--launch is empty; use --launch '%s', or omit it", launch_of_slurm());
    const int result =
        status == OK ? load_and_submit(&arguments, count + 1, (char **)words) : exit_status(status);
    free(words);
    return result;
}
