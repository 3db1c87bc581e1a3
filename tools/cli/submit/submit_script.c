// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/submit/submit.h"

#include "base/process.h"
#include "parallel/comm.h"
#include "planner/profile/profile.h"
#include "tools/cli/submit/launch.h"
#include "trainer/checkpoint/store.h"

#include <string.h>

/* ---- nodes ---- */

/* The divisors of `ranks` nearest to `value`. */
static int64_t divisor_below(int64_t ranks, int64_t value)
{
    while (value > 1 && ranks % value != 0)
        value--;
    return value;
}

static int64_t divisor_above(int64_t ranks, int64_t value)
{
    while (value < ranks && ranks % value != 0)
        value++;
    return value < ranks ? value : ranks;
}

static enum status not_divisible(const char *key, int64_t value, int64_t ranks, int64_t each)
{
    const int64_t below = divisor_below(ranks / each, value), above = divisor_above(ranks / each, value);
    struct text way = {0};
    text_add(&way, "use %s=%lld", key, (long long)below);
    if (above > below)
        text_add(&way, " or %s=%lld", key, (long long)above);
    enum status status = fail(BAD_RECIPE, "%s %lld does not divide the layout's %lld ranks; %s", key,
                              (long long)value, (long long)ranks, way.chars);
    text_free(&way);
    return status;
}

enum status submit_nodes(const struct recipe *recipe, int *nodes, int *ranks_per_node)
{
    const struct recipe_cluster *cluster = &recipe->cluster;
    const int ranks = recipe_world_size(recipe), shared = cluster->ranks_per_gpu;
    *nodes = cluster->nodes;
    if (cluster->gpus_per_node > 0) {
        *ranks_per_node = cluster->gpus_per_node * shared < ranks ? cluster->gpus_per_node * shared : ranks;
        if (ranks % shared != 0 || ranks % *ranks_per_node != 0)
            return not_divisible("cluster.gpus_per_node", cluster->gpus_per_node, ranks,
                                 ranks % shared == 0 ? shared : 1);
        *nodes = ranks / *ranks_per_node;
        return OK;
    }
    if (*nodes == 0 && ranks > 1)
        return fail(BAD_RECIPE,
                    "cluster.nodes is not set, and the layout has %d ranks; use cluster.nodes=1, or set "
                    "cluster.gpus_per_node",
                    ranks);
    if (*nodes == 0)
        *nodes = 1;
    if (ranks % *nodes != 0)
        return not_divisible("cluster.nodes", *nodes, ranks, 1);
    *ranks_per_node = ranks / *nodes;
    return OK;
}

/* ---- what can be requeued ---- */

const char *submit_stop_signal(const struct recipe *recipe)
{
    const struct recipe_names *signals = &recipe->resilience.exit_signal;
    for (size_t i = 0; i < signals->count; i++)
        if (strcmp(signals->list[i], "SIGTERM") == 0)
            return signals->list[i];
    return signals->count > 0 ? signals->list[0] : NULL;
}

/* What asks for GPUs: a key, a line of cluster.sbatch, or the profile; NULL: nothing. */
static const char *gpu_request(const struct recipe *recipe)
{
    static const char *const options[] = {"--gpus", "--gres=gpu", "-G"};
    const struct recipe_cluster *cluster = &recipe->cluster;
    struct cluster_profile *profile = NULL;
    struct problems problems = {0};
    if (cluster->profile != NULL && profile_load(cluster->profile, &profile, &problems) != OK)
        problems_free(&problems); // (reported when the recipe was loaded)
    const bool has_profile = profile != NULL, is_cpu = has_profile && profile->device.is_cpu;
    profile_destroy(profile);
    for (size_t i = 0; i < cluster->sbatch.count; i++)
        for (size_t o = 0; o < sizeof options / sizeof *options; o++)
            if (strncmp(cluster->sbatch.list[i], options[o], strlen(options[o])) == 0)
                return "cluster.sbatch";
    if (is_cpu)
        return NULL;
    return has_profile ? "cluster.profile" : cluster->gpus_per_node > 0 ? "cluster.gpus_per_node" : NULL;
}

static enum status check_device(const struct recipe *recipe)
{
    const struct device_traits *device = device_traits(recipe->cluster.device);
    const char *key = gpu_request(recipe);
    struct text value = {0};
    if (!device->computes)
        return fail(BAD_RECIPE, "cluster.device %s does not train; use cluster.device=%s", device->name,
                    recipe->cluster.dry_device);
    if (key == NULL || device->is_gpu)
        return OK;
    recipe_key_text(recipe, key, &value);
    const enum status status = fail(
        BAD_RECIPE, "%s %s: a job for GPUs, but cluster.device is %s; use cluster.device=cuda, or remove %s",
        key, text_chars(&value), device->name, key);
    text_free(&value);
    return status;
}

enum status submit_check(const struct submission *submission)
{
    const struct recipe *recipe = submission->recipe;
    const char *time = recipe->cluster.time;
    TRY(check_device(recipe));
    if (recipe->checkpoint.save == NULL)
        return fail(
            BAD_RECIPE,
            "checkpoint.save is none: a requeued job would start from step 1; use checkpoint.save=auto");
    if (submit_stop_signal(recipe) == NULL)
        return fail(BAD_RECIPE,
                    "resilience.exit_signal is empty: the job cannot save before its time limit; use "
                    "resilience.exit_signal=[SIGTERM]");
    if (time != NULL && slurm_seconds(time) <= submission->lead_s)
        return fail(BAD_RECIPE,
                    "cluster.time %s is not longer than the %lld s that saving takes; use "
                    "cluster.time=%lld or more (minutes)",
                    time, (long long)submission->lead_s, (long long)((2 * submission->lead_s + 59) / 60));
    if (recipe->resilience.elastic && submission->restarts == 0)
        return fail(BAD_RECIPE,
                    "resilience.elastic: after a failure Slurm starts the job again on the same number of "
                    "nodes; use submit --restarts 100, or resilience.elastic=false");
    for (size_t i = 0; i < recipe->cluster.sbatch.count; i++)
        if (strpbrk(recipe->cluster.sbatch.list[i], "\r\n") != NULL)
            return fail(BAD_RECIPE, "cluster.sbatch: entry %zu has several lines; use one entry for each",
                        i + 1);
    return OK;
}

/* ---- the script ---- */

/* Appends a value as sbatch reads it: unlike a shell's, its quotes do not protect a backslash. */
static void add_value(struct text *out, const char *value)
{
    text_add(out, "\"");
    for (; *value != 0; value++)
        text_add(out, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    text_add(out, "\"");
}

/* Appends the path of the log, in which sbatch replaces %j. */
static void add_log_path(const char *run_dir, struct text *out)
{
    struct text path = {0};
    for (; *run_dir != 0; run_dir++)
        text_add(&path, "%.*s", *run_dir == '%' ? 2 : 1, *run_dir == '%' ? "%%" : run_dir);
    text_add(&path, "/slurm-%%j.log");
    text_add(out, "#SBATCH --output=");
    add_value(out, path.chars);
    text_add(out, "\n");
    text_free(&path);
}

static void add_option(struct text *out, const char *option, const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@";
    if (value == NULL)
        return;
    text_add(out, "#SBATCH --%s=", option);
    if (*value != 0 && strspn(value, plain) == strlen(value))
        text_add(out, "%s", value);
    else
        add_value(out, value);
    text_add(out, "\n");
}

static void add_resources(const struct submission *s, struct text *out)
{
    const struct recipe_cluster *cluster = &s->recipe->cluster;
    add_option(out, "job-name", s->name != NULL ? s->name : s->recipe->name);
    text_add(out, "#SBATCH --nodes=%d\n#SBATCH --ntasks-per-node=%d\n", s->nodes, s->ranks_per_node);
    if (recipe_gpu(s->recipe) != NULL)
        text_add(out, "#SBATCH --gpus-per-node=%d\n",
                 (s->ranks_per_node + cluster->ranks_per_gpu - 1) / cluster->ranks_per_gpu);
    if (cluster->threads_per_rank > 0)
        text_add(out, "#SBATCH --cpus-per-task=%d\n", cluster->threads_per_rank);
    add_option(out, "time", s->time != NULL ? s->time : cluster->time);
    add_option(out, "partition", cluster->partition);
    add_option(out, "account", cluster->account);
    if (s->after != NULL)
        text_add(out, "#SBATCH --dependency=%s%s\n",
                 strchr(s->after, ':') != NULL ? "" : "afterany:", s->after);
}

static bool is_option(const char *line)
{
    return *line == '-' || strncmp(line, "#SBATCH", strlen("#SBATCH")) == 0;
}

static void add_lines(const struct submission *s, bool options, struct text *out)
{
    const struct recipe_names *lines = &s->recipe->cluster.sbatch;
    for (size_t i = 0; i < lines->count; i++)
        if (is_option(lines->list[i]) == options)
            text_add(out, "%s%s\n", *lines->list[i] == '-' ? "#SBATCH " : "", lines->list[i]);
}

/* Appends the launcher; srun takes the CPUs of a rank from its own options only. */
static void add_launch(const struct submission *s, struct text *out)
{
    text_add(out, "%s", s->launch);
    if (s->recipe->cluster.threads_per_rank > 0 && strncmp(s->launch, "srun", strlen("srun")) == 0)
        text_add(out, " --cpus-per-task=%d", s->recipe->cluster.threads_per_rank);
}

void submit_options(const struct submission *submission, struct text *out)
{
    add_resources(submission, out);
    add_lines(submission, true, out);
}

void submit_commands(const struct submission *submission, struct text *out)
{
    add_lines(submission, false, out);
}

static void add_command(const struct submission *s, struct text *out)
{
    struct text launch = {0};
    add_launch(s, &launch);
    if (s->restarts == 0) {
        launch_text(launch.chars, s->nodes, s->nodes * s->ranks_per_node, out);
        text_add(out, " \\\n    ");
    }
    text_add_shell_word(out, s->program);
    text_add(out, " train ");
    text_add_shell_word(out, s->path);
    for (size_t i = 0; i < s->overrides->count; i++) {
        text_add(out, " ");
        text_add_shell_word(out, s->overrides->list[i]);
    }
    if (s->restarts > 0) {
        text_add(out, " --restarts %lld \\\n    --launch ", (long long)s->restarts);
        text_add_shell_word(out, launch.chars);
    }
    text_add(out, " || status=$?\n");
    text_free(&launch);
}

/* A run that exits with 0 has saved its last step. */
static void add_started(const struct submission *s, struct text *out)
{
    struct text last = {0};
    store_of_step(s->recipe->checkpoint.save, s->recipe->train.train_iters, "", &last);
    text_add(&last, "/manifest.json");
    text_add(out, "\n# srun may return 0 if a node was not ready to start a task.\n"
                  "if [ \"$status\" -eq 0 ] && [ ! -e ");
    text_add_shell_word(out, last.chars);
    text_add(out, " ]; then\n"
                  "    echo \"cuboid: job $SLURM_JOB_ID was not started: the last step is not saved\" >&2\n"
                  "    status=75\n"
                  "fi\n");
    text_free(&last);
}

static void add_requeue(const struct submission *s, struct text *out)
{
    text_add(out,
             "\n"
             "# 75: stopped on request, with a complete checkpoint. A canceled job is not running.\n"
             "if [ \"$status\" -eq 75 ]; then\n"
             "    case $(scontrol show job -o \"$SLURM_JOB_ID\") in\n"
             "    *JobState=RUNNING*) ;;\n"
             "    *) exit 75 ;;\n"
             "    esac\n"
             "    if [ \"${SLURM_RESTART_COUNT:-0}\" -lt %lld ]; then\n"
             "        scontrol requeue \"$SLURM_JOB_ID\" && exit 75\n"
             "        echo \"cuboid: job $SLURM_JOB_ID is not requeued: scontrol requeue failed\" >&2\n"
             "    else\n"
             "        echo \"cuboid: job $SLURM_JOB_ID is not requeued: ${SLURM_RESTART_COUNT:-0} of %lld "
             "requeues (submit --requeues)\" >&2\n"
             "    fi\n"
             "fi\n"
             "exit \"$status\"\n",
             (long long)s->requeues, (long long)s->requeues);
}

void submit_script(const struct submission *submission, const char *why, struct text *out)
{
    text_add(out, "#!/bin/bash\n");
    add_resources(submission, out);
    add_log_path(submission->recipe->logging.run_dir, out);
    text_add(out, "#SBATCH --requeue\n#SBATCH --open-mode=append\n");
    if (submission->recipe->resilience.elastic) // the job outlives its nodes
        text_add(out, "#SBATCH --no-kill\n");
    // Without B: the signal goes to the ranks, and not to this script.
    text_add(out, "# %s\n#SBATCH --signal=%s@%lld\n", why,
             submit_stop_signal(submission->recipe) + strlen("SIG"), (long long)submission->lead_s);
    add_lines(submission, true, out);
    text_add(out,
             "\n# Slurm runs this script again, from its first line, whenever the job is requeued.\n"
             "# The script outlives the signals that make the ranks save: a trap waits for the command.\n"
             "trap : TERM INT USR1 USR2\ncd ");
    text_add_shell_word(out, submission->folder);
    text_add(out, " || exit 1\n");
    add_lines(submission, false, out);
    text_add(out, "status=0\n");
    add_command(submission, out);
    add_started(submission, out);
    add_requeue(submission, out);
}
