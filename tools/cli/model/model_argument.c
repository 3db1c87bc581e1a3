// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/model/model_argument.h"

#include "base/memory.h"
#include "base/text.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/store.h"

#include <stdlib.h>
#include <sys/stat.h>

/* Of processes that share a failure, rank 0 prints it. */
static int input_status(enum status status)
{
    const int code = exit_status_of_world(status);
    return code == 1 && status != NO_MEMORY ? 2 : code;
}

static bool exists(const char *folder, const char *name)
{
    struct stat info;
    struct text path = {0};
    text_add(&path, "%s%s", folder, name);
    bool found = stat(path.chars, &info) == 0;
    text_free(&path);
    return found;
}

/* Resolves the argument: returns true if *out is a recipe, false if it is a directory that is a checkpoint or
 * contains some. In a run directory they are in checkpoints/, even if the directory was moved, which its
 * recipe does not record; checkpoint_resolve() looks there. Without checkpoints, the run directory's recipe
 * is used for the error message. */
static bool resolve_to_recipe(const char *model, struct text *out)
{
    bool folder = exists(model, "/."), checkpoint = exists(model, "/manifest.json");
    bool holds = !checkpoint && exists(model, "/checkpoints");
    bool recipe = folder && !checkpoint && !holds && exists(model, "/recipe.yaml");
    text_add(out, "%s%s", model, recipe ? "/recipe.yaml" : "");
    return recipe || !folder;
}

/* Finds the newest checkpoint of the recipe's run. */
static enum status find_of_recipe(const struct model_request *request, const struct recipe *recipe,
                                  const char *path, char **checkpoint)
{
    const char *save = recipe->checkpoint.save;
    if (save == NULL)
        return fail(BAD_RECIPE,
                    "checkpoint.save is none, so there is no checkpoint of this recipe; use cuboid %s "
                    "CHECKPOINT%s%s",
                    request->command, request->example[0] != '\0' ? " " : "", request->example);
    TRY(store_find(save, checkpoint));
    if (*checkpoint == NULL)
        return fail(BAD_CHECKPOINT, "%s: no complete checkpoint; run cuboid train %s first", save, path);
    return OK;
}

/* `overrides` precede those of the request. */
static int load_recipe(const struct model_request *request, const char *path, const struct text *overrides,
                       int override_count, struct recipe **out, int *size)
{
    int defaults = 0;
    while (request->defaults != NULL && request->defaults[defaults] != NULL)
        defaults++;
    char **argv = memory_zeroed((size_t)(request->count + defaults + override_count) + 2, sizeof *argv,
                                "the arguments");
    int argc = 0;
    argv[argc++] = (char *)(uintptr_t)request->command;
    argv[argc++] = (char *)(uintptr_t)path;
    for (int i = 0; i < override_count; i++)
        if (!recipe_argument_sets(overrides[i].chars, request->words + 1, request->count - 1))
            argv[argc++] = overrides[i].chars;
    for (int i = 0; i < defaults; i++)
        if (!recipe_argument_sets(request->defaults[i], request->words + 1, request->count - 1))
            argv[argc++] = (char *)(uintptr_t)request->defaults[i];
    for (int i = 1; i < request->count; i++)
        argv[argc++] = (char *)(uintptr_t)request->words[i];
    *size = 1;
    int status = request->one_rank != NULL ? recipe_argument_one_rank(argc, argv, request->one_rank, out)
                                           : recipe_argument(argc, argv, false, out, size);
    free(argv);
    return status;
}

/* Appends overrides with the paths of the tokenizer's files in the checkpoint's folder, if it has them;
 * returns their number. Errors of the recipe are reported when it is loaded for the command. */
static int list_tokenizer_overrides(const char *folder, const char *path,
                                    struct text out[PRETRAINED_TOKENIZER_FILES])
{
    static const char *const no_device[] = {"cluster.device=dry"};
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    int count = 0;
    if (planned_recipe_load(path, no_device, 1, 0, &recipe, &problems) == OK)
        count = pretrained_tokenizer_in(folder, recipe, out);
    problems_free(&problems);
    recipe_destroy(recipe);
    return count;
}

static int load_of_recipe(const struct model_request *request, const char *path, char **checkpoint,
                          struct recipe **recipe, int *size)
{
    int status = load_recipe(request, path, NULL, 0, recipe, size);
    return status != 0 ? status : input_status(find_of_recipe(request, *recipe, path, checkpoint));
}

static int load_of_checkpoint(const struct model_request *request, const char *path, char **checkpoint,
                              struct recipe **recipe, int *size)
{
    char *copy = NULL;
    struct text overrides[PRETRAINED_TOKENIZER_FILES] = {0};
    int status = input_status(checkpoint_resolve(path, checkpoint));
    if (status == 0)
        status = input_status(checkpoint_recipe_path(*checkpoint, &copy));
    if (status == 0) {
        const int count = list_tokenizer_overrides(*checkpoint, copy, overrides);
        status = load_recipe(request, copy, overrides, count, recipe, size);
    }
    for (int i = 0; i < PRETRAINED_TOKENIZER_FILES; i++)
        text_free(&overrides[i]);
    free(copy);
    return status;
}

int model_argument(const struct model_request *request, char **checkpoint, struct recipe **recipe, int *size)
{
    struct text path = {0};
    int status = resolve_to_recipe(request->words[0], &path)
                     ? load_of_recipe(request, path.chars, checkpoint, recipe, size)
                     : load_of_checkpoint(request, path.chars, checkpoint, recipe, size);
    text_free(&path);
    return status;
}
