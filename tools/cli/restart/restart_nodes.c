// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"
#include "base/process.h"
#include "tools/cli/restart/restart.h"
#include "tools/cli/submit/launch.h"
#include "tools/cli/submit/submit.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const double CHECK_LIMIT_S = 180.0;
enum { MAX_CHECKS = 3 }; // of other nodes, until enough have passed
static const char check_words[] = " --check --report --seconds 1 1>&2";

/* ---- names ---- */

static void add_name(struct recipe_names *names, const char *name, size_t length)
{
    names->list = memory_resized(names->list, names->count + 1, sizeof *names->list, "the names of nodes");
    struct text copy = {0};
    text_add(&copy, "%.*s", (int)length, name);
    names->list[names->count++] = copy.chars != NULL ? copy.chars : text_copy("");
}

static bool has_name(const struct recipe_names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->list[i], name) == 0)
            return true;
    return false;
}

static void free_names(struct recipe_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
    *names = (struct recipe_names){0};
}

void nodes_free(struct nodes *nodes)
{
    free_names(&nodes->present);
    free_names(&nodes->failed);
    text_free(&nodes->why);
}

/* ---- Slurm ---- */

/* The output of a program; nothing if it cannot be run. */
static void output_of(char *const *argv, struct text *out)
{
    struct text errors = {0};
    int exit = 1;
    if (process_capture(argv, NULL, out, &errors, &exit) != OK || exit != 0)
        text_free(out);
    text_free(&errors);
}

/* Lists the nodes of the job: nodes that Slurm has removed from it are missing. */
static void list_nodes(const char *job, struct recipe_names *out)
{
    char squeue[] = "squeue", no_header[] = "--noheader", format[] = "--format=%N", scontrol[] = "scontrol",
         show[] = "show", hostnames[] = "hostnames";
    struct text jobs = {0}, list = {0}, names = {0};
    text_add(&jobs, "--jobs=%s", job);
    output_of((char *[]){squeue, no_header, format, jobs.chars, NULL}, &list);
    if (list.length > 1) {
        list.chars[strcspn(list.chars, "\n")] = 0;
        output_of((char *[]){scontrol, show, hostnames, list.chars, NULL}, &names);
    }
    for (const char *at = text_chars(&names); *at != 0; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL))
        if (*at != '\n')
            add_name(out, at, strcspn(at, "\n"));
    text_free(&jobs);
    text_free(&list);
    text_free(&names);
}

static bool is_srun(const char *launch)
{
    return strncmp(launch, "srun ", strlen("srun ")) == 0;
}

void nodes_launch(const char *launch, int nodes, int ranks, const struct recipe_names *without,
                  struct text *out)
{
    if (without->count > 0 && is_srun(launch)) {
        text_add(out, "srun --exclude=");
        for (size_t i = 0; i < without->count; i++) {
            text_add(out, "%s", i > 0 ? "," : "");
            text_add_shell_word(out, without->list[i]);
        }
        launch += strlen("srun");
    }
    launch_text(launch, nodes, ranks, out);
}

/* ---- the check ---- */

struct answers {
    struct recipe_names passed;
    struct nodes *nodes;
};

/* Reads the report of a node (doctor_check.h); other lines are those of the launcher. */
static void take_line(void *context, const char *line)
{
    struct answers *answers = context;
    json_t *report = json_read(line, strlen(line), 0, NULL), *failed = json_object_get(report, "failed"),
           *why;
    const char *name = json_string_value(json_object_get(report, "node"));
    size_t i;
    if (name != NULL && failed != NULL) {
        struct recipe_names *list = json_array_size(failed) > 0 ? &answers->nodes->failed : &answers->passed;
        json_array_foreach(failed, i, why)
            text_add(&answers->nodes->why, "%s%s: %s", answers->nodes->why.length > 0 ? "; " : "", name,
                     json_string_value(why));
        if (!has_name(list, name))
            add_name(list, name, strlen(name));
    }
    json_decref(report);
}

/* Nodes of the job that have not finished their check have failed, too. */
static void add_silent(const struct answers *answers, struct nodes *nodes)
{
    for (size_t i = 0; i < nodes->present.count; i++) {
        const char *name = nodes->present.list[i];
        if (has_name(&answers->passed, name) || has_name(&nodes->failed, name))
            continue;
        add_name(&nodes->failed, name, strlen(name));
        text_add(&nodes->why, "%s%s: no answer", nodes->why.length > 0 ? "; " : "", name);
    }
}

static void add_check_command(const struct start *start, int nodes, int ranks,
                              const struct recipe_names *without, struct text *out)
{
    nodes_launch(start->launch, nodes, ranks, without, out);
    text_add(out, " ");
    text_add_shell_word(out, start->program);
    text_add(out, " doctor ");
    text_add_shell_word(out, start->path);
    for (size_t i = 0; i < start->overrides->count; i++) {
        text_add(out, " ");
        text_add_shell_word(out, start->overrides->list[i]);
    }
    text_add(out, "%s", check_words);
}

/* If no node of the job has answered, it is not the nodes. An error of srun is that of the attempt. */
static enum status explain_silence(const struct attempt *attempt)
{
    if (attempt->stopped || (attempt->exit != 0 && !attempt->late))
        return OK;
    return fail(
        STOPPED,
        "no node of the job has answered the check within %.0f s, so none is left out: srun starts no "
        "processes there; exit status 75, with which cuboid submit requeues the job",
        attempt->seconds);
}

static enum status check_nodes(const struct start *start, struct nodes *nodes, struct attempt *attempt)
{
    struct answers answers = {.nodes = nodes};
    struct text command = {0};
    const int present = nodes->present.count > 0 ? (int)nodes->present.count : nodes->needed;
    const int ranks = present * nodes->per_node;
    const size_t failed = nodes->failed.count;
    add_check_command(start, present, ranks, &nodes->failed, &command);
    const struct attempt_options options = {.command = command.chars,
                                            .quiet = true,
                                            .limit_s = CHECK_LIMIT_S,
                                            .on_line = take_line,
                                            .context = &answers};
    enum status status = attempt_run(&options, attempt);
    const int passed = (int)answers.passed.count;
    const bool is_silent = passed == 0 && nodes->failed.count == failed && nodes->present.count > 0;
    // srun fails if a node does not answer: the names of the job tell which.
    if (passed > 0 && nodes->present.count > 0)
        attempt->exit = 0;
    if (attempt->exit == 0)
        text_free(&attempt->why);
    if (!is_silent)
        add_silent(&answers, nodes);
    else if (status == OK)
        status = explain_silence(attempt);
    // Without names, a launcher that has started all its processes has started them on all nodes.
    const bool complete = nodes->present.count == 0 && nodes->failed.count == failed && attempt->exit == 0;
    nodes->count = complete ? nodes->needed : passed;
    free_names(&answers.passed);
    text_free(&command);
    return status;
}

enum status nodes_find(const struct start *start, struct nodes *out, struct attempt *attempt)
{
    *out = (struct nodes){.needed = 1, .per_node = recipe_world_size(start->recipe)};
    *attempt = (struct attempt){0};
    if (start->launch != NULL && strstr(start->launch, "{nodes}") != NULL)
        TRY(submit_nodes(start->recipe, &out->needed, &out->per_node));
    if (start->slurm_job != NULL && strstr(start->launch, "{nodes}") != NULL)
        list_nodes(start->slurm_job, &out->present);
    out->count = out->present.count > 0 ? (int)out->present.count : out->needed;
    if (start->launch == NULL || !start->check)
        return OK;
    TRY(check_nodes(start, out, attempt));
    // Outside of a job, srun takes other nodes of the cluster instead: these are checked, too.
    for (int i = 0; i < MAX_CHECKS && is_srun(start->launch) && start->slurm_job == NULL; i++)
        if (out->count < out->needed && out->failed.count > 0 && attempt->exit == 0 && !attempt->stopped)
            TRY(check_nodes(start, out, attempt));
    if (out->failed.count == 0)
        return OK;
    print_line(stderr, "check: %zu node%s left out: %s", out->failed.count,
               out->failed.count == 1 ? " is" : "s are", text_chars(&out->why));
    if (!is_srun(start->launch) && !attempt->stopped)
        return fail(IO_ERROR, "%s; only srun can leave a node out: remove it from the hosts of --launch",
                    text_chars(&out->why));
    return OK;
}
