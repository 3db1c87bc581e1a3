// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "parallel/comm.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/cmd_plan.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/restart/restart.h"
#include "tools/cli/train_plan.h"
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"
#include "trainer/checkpoint/store.h"
#include "trainer/engine/stop.h"
#include "trainer/recipe/recipe_table.h"
#include "trainer/run/run_dir.h"
#include "trainer/run/train.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char help_train[] =
    "cuboid train RECIPE [key=value ...] [--restarts N] [--launch COMMAND] [--no-check]\n"
    "\n"
    "Trains the recipe's model. Without a launcher all ranks are threads of this process; under mpirun or\n"
    "srun each process is one rank. Losses are bit-identical.\n"
    "\n"
    "  cuboid train recipes/quickstart.yaml\n"
    "  cuboid train recipes/quickstart.yaml tp=1 pp=4 dp=2 pipeline.schedule=zb-h1\n"
    "  mpirun -n 8 cuboid train recipes/quickstart.yaml\n"
    "\n"
    "The run's folder (logging.run_dir, by default runs/NAME) gets recipe.yaml with every key and its\n"
    "origin, metrics.jsonl with a line per step, and checkpoints, every 30 minutes and at the end.\n"
    "The same command resumes from the newest complete checkpoint, or starts at step 1 if there is none.\n"
    "SIGTERM or Ctrl-C saves a checkpoint and exits with status 75; a second Ctrl-C exits at once.\n"
    "\n"
    "  --restarts N      start the run again after a failure, at most N times, from the newest checkpoint\n"
    "  --launch COMMAND  starts the ranks, such as 'srun -N {nodes} -n {ranks}'; default: threads\n"
    "  --no-check        do not check the nodes first (cuboid doctor --check)\n"
    "  --supervised      internal: marks the commands that --restarts starts\n";

/* Only a supervisor looks for missing nodes. */
static void warn_of_elastic(const struct recipe *recipe)
{
    struct text where = {0};
    if (!recipe->resilience.elastic)
        return;
    recipe_origin_text(recipe, recipe_row_index("resilience.elastic"), &where);
    print_line(
        stderr,
        "warning: %s: resilience.elastic has no effect without a supervisor; add --restarts N --launch "
        "'srun -N {nodes} -n {ranks}', or set resilience.elastic=false",
        text_chars(&where));
    text_free(&where);
}

/* ---- the tokenizer of a run ---- */

/* Loads the recipe without looking for the files that it names. Errors are reported when it is loaded to
 * train. */
static struct recipe *preview(int argc, char **argv)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    AUTO_FREE const char **words = memory_zeroed((size_t)argc + 1, sizeof *words, "the arguments");
    int count = 0;
    for (int i = 2; i < argc; i++)
        if (!recipe_argument_sets("cluster.device=dry", (const char *const *)&argv[i], 1))
            words[count++] = argv[i];
    words[count++] = "cluster.device=dry";
    if (argc > 1 && planned_recipe_load(argv[1], words, count, 0, &recipe, &problems) != OK)
        recipe = NULL;
    problems_free(&problems);
    return recipe;
}

static bool is_missing(const struct recipe *recipe)
{
    struct pretrained_tokenizer_file files[PRETRAINED_TOKENIZER_FILES];
    const int count = pretrained_tokenizer_files(recipe, files);
    bool missing = false;
    for (int i = 0; i < count; i++)
        missing = missing || access(files[i].path, F_OK) != 0;
    return missing;
}

/* If the recipe's tokenizer is missing, the run's newest checkpoint has a copy: appends overrides with its
 * paths, and returns their number. */
static int find_copy(int argc, char **argv, struct text out[PRETRAINED_TOKENIZER_FILES])
{
    struct recipe *recipe = preview(argc, argv);
    struct text skipped = {0}, folder = {0};
    int64_t step = -1;
    int count = 0;
    const bool looks = recipe != NULL && recipe->checkpoint.save != NULL && is_missing(recipe);
    if (looks && store_newest(recipe->checkpoint.save, INT64_MAX, &step, &skipped) == OK && step >= 0) {
        store_of_step(recipe->checkpoint.save, step, "", &folder);
        count = pretrained_tokenizer_in(folder.chars, recipe, out);
    }
    text_free(&skipped);
    text_free(&folder);
    recipe_destroy(recipe);
    return count;
}

/* Plans a run that trains; a signal meanwhile reports the checkpoint to resume from. Ignores SIGPIPE: a
 * closed stdout (train | head) must not abort training. Writes then fail as on a full disk, which the exit
 * status reports. */
static void make_plan(const struct recipe *recipe, const struct advice_source *source,
                      const struct launcher *launcher, struct stop *stop, struct train_plan *plan)
{
    struct run_dir folder = {.newest = -1};
    signal(SIGPIPE, SIG_IGN);
    if (run_dir_check(recipe, &folder) == OK) // else train() reports it
        stop_set_checkpoint(stop, text_chars(&folder.from));
    train_plan_make(recipe, source, launcher, plan);
    run_dir_free(&folder);
}

static int train_with(int argc, char **argv, bool supervised)
{
    struct recipe *recipe = NULL;
    struct chosen chosen = {.overrides = {.count = 0}};
    struct stop *stop = NULL;
    struct launcher launcher = {.rank = -1};
    struct train_plan plan = {.plan = {.status = OK}};
    const bool found = launcher_find(&launcher) == OK, is_rank_zero = !found || launcher.rank <= 0;
    if (stop_create(NULL, NULL, is_rank_zero, &stop) != OK)
        return exit_status(NO_MEMORY);
    const struct recipe_request request = {.alone = false};
    int size = 0, status = recipe_argument_choose(argc, argv, &request, &recipe, &chosen, &size);
    const bool trains = status == 0 && device_traits(recipe->cluster.device)->computes;
    const struct advice_source source = {.path = argv[1],
                                         .overrides = (const char *const *)chosen.overrides.list,
                                         .override_count = chosen.overrides.count,
                                         .world_size = launcher.size};
    if (status == 0 && is_rank_zero && !supervised)
        warn_of_elastic(recipe);
    if (trains)
        make_plan(recipe, &source, &launcher, stop, &plan);
    stop_destroy(stop);
    if (status != 0)
        return status;
    if (trains)
        status = exit_status_of_world(train(recipe, &plan.plan, size));
    else if (is_rank_zero) // a device that does not compute plans
        status = plan_recipe(recipe, &source, &(struct plan_options){.terms = true});
    train_plan_free(&plan);
    recipe_destroy(recipe);
    chosen_free(&chosen);
    return status;
}

int cmd_train(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--restart", strlen("--restart")) == 0 ||
            strncmp(argv[i], "--launch", strlen("--launch")) == 0 || strcmp(argv[i], "--no-check") == 0)
            return restart_command(argc, argv);
    const bool supervised = argc > 2 && strcmp(argv[argc - 1], SUPERVISED) == 0;
    argc -= supervised;
    if (supervised)
        setenv(SUPERVISED_VARIABLE, "1", 1);
    struct text copies[PRETRAINED_TOKENIZER_FILES] = {0};
    char **words =
        memory_zeroed((size_t)argc + PRETRAINED_TOKENIZER_FILES + 1, sizeof *words, "the arguments");
    const int count = find_copy(argc, argv, copies);
    for (int i = 0; i < argc; i++)
        words[i] = argv[i];
    for (int i = 0; i < count; i++)
        words[argc + i] = copies[i].chars;
    const int status = train_with(argc + count, words, supervised);
    for (int i = 0; i < PRETRAINED_TOKENIZER_FILES; i++)
        text_free(&copies[i]);
    free(words);
    return status;
}
