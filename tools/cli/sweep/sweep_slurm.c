// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/sweep/sweep_slurm.h"

#include "base/clock.h"
#include "base/process.h"
#include "tools/cli/submit/launch.h"
#include "tools/cli/submit/submit.h"
#include "trainer/files/checksum.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ARRAY = 1000, MAX_SUBMITTED = 3, MAX_MISSED = 3, POLL_MS = 200 };
static const double LOOK_S = 2.0; // between two looks at the queue

/* ---- files ---- */

static void add_path(const struct slurm_runs *runs, int64_t number, const char *ending, struct text *out)
{
    text_add(out, "%s/jobs/%lld%s", runs->dir, (long long)number, ending);
}

/* The result of a run that has ended. */
static bool read_status(const struct slurm_runs *runs, struct slurm_run *run)
{
    struct text path = {0}, text = {0};
    int64_t value = -1;
    add_path(runs, run->number, ".status", &path);
    if (access(path.chars, F_OK) == 0 && file_read_small(path.chars, 64, &text) == OK && text.length > 0) {
        text.chars[strcspn(text.chars, "\n")] = 0;
        run->done = integer_parse(text.chars, &value);
        run->exit = (int)value;
    }
    text_free(&path);
    text_free(&text);
    return run->done;
}

static void add_launch(const struct slurm_runs *runs, const struct slurm_run *run, struct text *out)
{
    launch_text(launch_of_slurm(), run->nodes, run->nodes * run->ranks_per_node, out);
    if (runs->recipe->cluster.threads_per_rank > 0)
        text_add(out, " --cpus-per-task=%d", runs->recipe->cluster.threads_per_rank);
}

/* Writes the script of a run. The exit status is its last output, so that a run whose node fails has none. */
static enum status write_run(const struct slurm_runs *runs, const struct slurm_run *run)
{
    struct text path = {0}, script = {0}, status_file = {0}, log = {0};
    const long long limit = (long long)ceil(runs->timeout_s);
    add_path(runs, run->number, ".sh", &path);
    add_path(runs, run->number, ".status", &status_file);
    text_add(&log, "%s/logs/%lld", runs->dir, (long long)run->number);
    text_add(&script, "rm -f ");
    text_add_shell_word(&script, status_file.chars);
    text_add(&script, "\nSECONDS=0\ntimeout -k 10 %lld ", limit);
    add_launch(runs, run, &script);
    text_add(&script, " \\\n    %s >", run->command.chars);
    text_add_shell_word(&script, log.chars);
    text_add(&script, " 2>&1 </dev/null\nstatus=$?\n[ $SECONDS -lt %lld ] || status=124\necho $status >",
             limit);
    text_add(&status_file, ".new");
    text_add_shell_word(&script, status_file.chars);
    text_add(&script, " && mv ");
    text_add_shell_word(&script, status_file.chars);
    text_add(&script, " ");
    status_file.chars[status_file.length - strlen(".new")] = 0;
    text_add_shell_word(&script, status_file.chars);
    text_add(&script, "\n");
    const enum status status = file_write_atomic(path.chars, script.chars, script.length);
    text_free(&path);
    text_free(&script);
    text_free(&status_file);
    text_free(&log);
    return status;
}

/* ---- the queue ---- */

/* Marks the run of element `index` of an array with this comment: "12 5 7". */
static void mark(struct slurm_runs *runs, int64_t index, const char *comment)
{
    for (; index > 0; index--) {
        comment += strcspn(comment, " ");
        comment += strspn(comment, " ");
    }
    const int64_t number = strtoll(comment, NULL, 10);
    for (size_t i = 0; i < runs->count && *comment != 0; i++)
        if (runs->list[i].number == number)
            runs->list[i].queued = true;
}

/* Reads which runs are in the queue. IO_ERROR if Slurm does not answer: nothing is known then. */
static enum status look(struct slurm_runs *runs)
{
    char squeue[] = "squeue", no_header[] = "--noheader", array[] = "--array", format[] = "--format=%K|%k";
    struct text name = {0}, out = {0}, errors = {0};
    int exit = 0;
    text_add(&name, "--name=%s", runs->name);
    enum status status = process_capture((char *[]){squeue, no_header, array, name.chars, format, NULL}, NULL,
                                         &out, &errors, &exit);
    if (status == OK && exit != 0)
        status = fail(IO_ERROR, "squeue failed with status %d: %.*s", exit,
                      (int)strcspn(text_chars(&errors), "\n"), text_chars(&errors));
    for (size_t i = 0; i < runs->count && status == OK; i++)
        runs->list[i].queued = false;
    char *rest = status == OK ? out.chars : NULL;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *end;
        const long long index = strtoll(line, &end, 10);
        if (end != line && *end == '|' && index >= 0 && index < MAX_ARRAY)
            mark(runs, index, end + 1);
    }
    text_free(&name);
    text_free(&out);
    text_free(&errors);
    runs->looked_s = clock_s();
    return status;
}

/* ---- submitting ---- */

static bool needs_submission(const struct slurm_run *run)
{
    return !run->done && !run->queued;
}

/* Submits the runs of the group as one array. */
static enum status submit_array(struct slurm_runs *runs, const struct slurm_run *like, int count)
{
    struct text script = {0}, numbers = {0}, job = {0};
    char time[32], folder[PATH_MAX];
    snprintf(time, sizeof time, "%lld", (long long)ceil(runs->timeout_s / 60.0) + 2);
    for (size_t i = 0; i < runs->count; i++)
        if (runs->list[i].is_in_group)
            text_add(&numbers, "%s%lld", numbers.length > 0 ? " " : "", (long long)runs->list[i].number);
    const struct submission submission = {.recipe = runs->recipe,
                                          .name = runs->name,
                                          .time = time,
                                          .nodes = like->nodes,
                                          .ranks_per_node = like->ranks_per_node};
    if (getcwd(folder, sizeof folder) == NULL)
        return fail(IO_ERROR, "the working directory has no path: %s", strerror(errno));
    text_add(&script, "#!/bin/bash\n");
    submit_options(&submission, &script);
    text_add(
        &script,
        "#SBATCH --array=0-%d\n#SBATCH --comment=\"%s\"\n#SBATCH --requeue\n#SBATCH --output=/dev/null\n",
        count - 1, numbers.chars);
    text_add(&script, "cd ");
    text_add_shell_word(&script, folder);
    text_add(&script, " || exit 1\n");
    submit_commands(&submission, &script);
    text_add(&script, "numbers=(%s)\n. ", numbers.chars);
    text_add_shell_word(&script, runs->dir);
    text_add(&script, "/jobs/${numbers[$SLURM_ARRAY_TASK_ID]}.sh\n");
    enum status status = submit_sbatch(script.chars, &job);
    for (size_t i = 0; i < runs->count && status == OK; i++)
        if (runs->list[i].is_in_group) {
            runs->list[i].queued = true;
            runs->list[i].submitted++;
            runs->list[i].missed = 0;
        }
    if (status == OK)
        print_line(stderr, "submitted array %s: %d run%s on %d node%s each", text_chars(&job), count,
                   count == 1 ? "" : "s", like->nodes, like->nodes == 1 ? "" : "s");
    text_free(&script);
    text_free(&numbers);
    text_free(&job);
    return status;
}

/* Groups the runs that need it by nodes and ranks, and submits each group. */
static enum status submit_missing(struct slurm_runs *runs)
{
    for (size_t i = 0; i < runs->count; i++) {
        const struct slurm_run *first = &runs->list[i];
        int count = 0;
        if (!needs_submission(first))
            continue;
        for (size_t j = 0; j < runs->count; j++) {
            struct slurm_run *run = &runs->list[j];
            run->is_in_group = needs_submission(run) && run->nodes == first->nodes &&
                               run->ranks_per_node == first->ranks_per_node && count < MAX_ARRAY;
            count += run->is_in_group;
            if (run->is_in_group)
                TRY(write_run(runs, run));
        }
        TRY(submit_array(runs, first, count));
    }
    return OK;
}

enum status slurm_runs_start(struct slurm_runs *runs)
{
    struct text path = {0};
    char real[PATH_MAX];
    text_add(&path, "%s/jobs", runs->dir);
    enum status status = folder_make(path.chars);
    text_free(&path);
    TRY(status);
    const char *dir = realpath(runs->dir, real) != NULL ? real : runs->dir;
    snprintf(runs->name, sizeof runs->name, "cuboid-sweep-%016llx",
             (unsigned long long)checksum_of(dir, strlen(dir)));
    TRY(look(runs));
    for (size_t i = 0; i < runs->count; i++)
        (void)read_status(runs, &runs->list[i]);
    for (size_t i = 0; i < runs->count; i++)
        runs->list[i].submitted = runs->list[i].queued;
    if (runs->count > 0)
        submit_warn_cpus(&(struct submission){.recipe = runs->recipe,
                                              .launch = launch_of_slurm(),
                                              .nodes = runs->list[0].nodes,
                                              .ranks_per_node = runs->list[0].ranks_per_node});
    TRY(submit_missing(runs));
    for (size_t i = 0; i < runs->count; i++)
        runs->list[i].done = false; // slurm_runs_wait() returns it
    return OK;
}

/* ---- waiting ---- */

/* Submits runs again that are gone without a result. */
static enum status submit_gone(struct slurm_runs *runs)
{
    bool again = false;
    if (look(runs) != OK) { // slurmctld does not answer; the runs continue
        if (!runs->warned)
            print_line(stderr, "warning: %s; waiting for the runs and for Slurm", fail_text());
        runs->warned = true;
        return OK;
    }
    runs->warned = false;
    for (size_t i = 0; i < runs->count; i++) {
        struct slurm_run *run = &runs->list[i];
        run->missed = run->queued || run->done ? 0 : run->missed + 1;
        if (run->missed < MAX_MISSED)
            run->queued = true; // its result may be on its way
        else if (run->submitted >= MAX_SUBMITTED)
            run->exit = -1;
        else
            again = true;
        run->queued = run->queued || run->exit < 0;
    }
    return again ? submit_missing(runs) : OK;
}

/* Whether a run was killed: perhaps with its node, so it is tried again. */
static bool try_again(struct slurm_runs *runs, struct slurm_run *run)
{
    struct text path = {0};
    if (!run->done || run->exit <= 128 || run->submitted >= MAX_SUBMITTED)
        return false;
    add_path(runs, run->number, ".status", &path);
    run->done = run->queued = unlink(path.chars) != 0;
    text_free(&path);
    return !run->done;
}

enum status slurm_runs_wait(struct slurm_runs *runs, size_t *index)
{
    for (;;) {
        for (size_t i = 0; i < runs->count; i++) {
            struct slurm_run *run = &runs->list[i];
            if (run->done)
                continue;
            if (read_status(runs, run) && try_again(runs, run))
                TRY(submit_missing(runs));
            if (run->done || run->exit < 0) {
                run->done = true;
                *index = i;
                return OK;
            }
        }
        if (clock_s() - runs->looked_s > LOOK_S)
            TRY(submit_gone(runs));
        poll(NULL, 0, POLL_MS);
    }
}

void slurm_runs_end(struct slurm_runs *runs)
{
    char scancel[] = "scancel";
    struct text name = {0}, out = {0}, errors = {0};
    int exit;
    text_add(&name, "--name=%s", runs->name);
    // Elements that Slurm starts again, although they are done.
    if (runs->name[0] != 0)
        (void)!process_capture((char *[]){scancel, name.chars, NULL}, NULL, &out, &errors, &exit);
    for (size_t i = 0; i < runs->count; i++)
        text_free(&runs->list[i].command);
    free(runs->list);
    text_free(&name);
    text_free(&out);
    text_free(&errors);
    *runs = (struct slurm_runs){.count = 0};
}
