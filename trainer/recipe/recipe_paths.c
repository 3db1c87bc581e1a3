// SPDX-License-Identifier: Apache-2.0
/* The name of a run and its folders, each derived from the previous one:
 *
 *   recipes/quickstart.yaml -> name quickstart -> logging.run_dir runs/quickstart
 *                           -> checkpoint.save runs/quickstart/checkpoints
 *
 * A saved recipe writes derived folders as `auto`, so that it can be run again in another folder. Recipes
 * that were saved by earlier versions have the paths themselves; with a new run_dir on the command line they
 * would write into the checkpoints of the run that they were saved by. So a folder that a file gives, and
 * that is exactly what would have been derived there, follows what the command line changes. */
#include "trainer/recipe/recipe_rules.h"
#include "trainer/recipe/recipe_table.h"

#include <stdlib.h>
#include <string.h>

struct recipe_paths recipe_paths_of(const struct recipe *recipe)
{
    return (struct recipe_paths){
        .name = recipe->name != NULL ? text_copy(recipe->name) : NULL,
        .run_dir = recipe->logging.run_dir != NULL ? text_copy(recipe->logging.run_dir) : NULL,
    };
}

void recipe_paths_free(struct recipe_paths *paths)
{
    free(paths->name);
    free(paths->run_dir);
    *paths = (struct recipe_paths){0};
}

/* The file's name without directory and extension; "recipe" if that is not a valid name. */
static char *name_of_file(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = text_copy(slash != NULL ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot != NULL && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        *dot = 0;
    if (*name != 0 && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && text_is_printable(name))
        return name;
    free(name);
    return text_copy("recipe");
}

static char *run_dir_of(const char *name)
{
    struct text text = {0};
    text_add(&text, "runs/%s", name);
    return text.chars;
}

static char *save_of(const char *run_dir)
{
    struct text text = {0};
    text_add(&text, "%s/checkpoints", run_dir);
    return text.chars;
}

/* Whether a file sets `key` to `derived`, its derived value anyway, while `source`, from which it is derived,
 * was changed on the command line. Takes ownership of `derived`. */
static bool is_stale(const struct recipe *recipe, const char *key, const char *value, char *derived,
                     const char *source)
{
    bool stale = derived != NULL && value != NULL && strcmp(value, derived) == 0 &&
                 recipe->origin[recipe_row_index(key)].kind == FROM_FILE &&
                 recipe->origin[recipe_row_index(source)].kind != FROM_FILE;
    free(derived);
    return stale;
}

/* Derives a value again that a file gives explicitly. */
static void rederive(struct recipe *recipe, const char *key, char **field, char *derived, const char *source,
                     struct problems *problems)
{
    struct text where = {0};
    if (strcmp(*field, derived) != 0) {
        recipe_origin_text(recipe, recipe_row_index(key), &where);
        problems_warn(problems,
                      "%s: %s %s is derived from the %s of that file, which has changed; using %s (set %s "
                      "on the command line to override)",
                      text_chars(&where), key, *field, source, derived, key);
        text_free(&where);
        recipe->origin[recipe_row_index(key)].kind = FROM_DERIVED;
    }
    free(*field);
    *field = derived;
}

void recipe_derive_paths(struct recipe *recipe, const char *path, const struct recipe_paths *in_files,
                         struct problems *problems)
{
    const char *name = in_files->name, *run_dir = in_files->run_dir;
    char **dir = &recipe->logging.run_dir, **save = &recipe->checkpoint.save;
    if (recipe->origin[recipe_row_index("name")].kind == FROM_DEFAULT)
        recipe->name = name_of_file(path);
    if (recipe->origin[recipe_row_index("logging.run_dir")].kind == FROM_DEFAULT)
        *dir = run_dir_of(recipe->name);
    else if (is_stale(recipe, "logging.run_dir", *dir, name != NULL ? run_dir_of(name) : NULL, "name"))
        rederive(recipe, "logging.run_dir", dir, run_dir_of(recipe->name), "name", problems);
    if (recipe->origin[recipe_row_index("checkpoint.save")].kind == FROM_DEFAULT)
        *save = save_of(*dir);
    else if (is_stale(recipe, "checkpoint.save", *save, run_dir != NULL ? save_of(run_dir) : NULL,
                      "logging.run_dir"))
        rederive(recipe, "checkpoint.save", save, save_of(*dir), "logging.run_dir", problems);
}

/* ---- rules of saving and resuming ---- */

static bool save_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    return r->checkpoint.save_interval == 0 || r->checkpoint.save != NULL ||
           !v->given[GIVEN_SAVE]; // it is derived after the rules
}

static void save_message(const struct view *v, struct text *out)
{
    text_add(out,
             "checkpoint.save_interval %lld needs a folder, but checkpoint.save is none; use "
             "checkpoint.save_interval=0",
             (long long)v->recipe->checkpoint.save_interval);
}

static bool load_holds(const struct view *v)
{
    const struct recipe_checkpoint *c = &v->recipe->checkpoint;
    return (!c->finetune && c->ckpt_step == 0) || (c->load != NULL && strcmp(c->load, "auto") != 0);
}

static void load_message(const struct view *v, struct text *out)
{
    const struct recipe_checkpoint *c = &v->recipe->checkpoint;
    text_add(out, "checkpoint.%s needs a folder to load from, but checkpoint.load is %s; set it to a folder",
             c->finetune ? "finetune" : "ckpt_step", c->load != NULL ? c->load : "none");
}

static bool memory_holds(const struct view *v)
{
    const struct recipe_checkpoint *c = &v->recipe->checkpoint;
    return c->non_persistent_save_interval == 0 ||
           (c->memory_dir != NULL && (c->save != NULL || !v->given[GIVEN_SAVE]));
}

static void memory_message(const struct view *v, struct text *out)
{
    const struct recipe_checkpoint *c = &v->recipe->checkpoint;
    text_add(out, "checkpoint.non_persistent_save_interval %lld needs %s",
             (long long)c->non_persistent_save_interval,
             c->memory_dir == NULL
                 ? "a folder on a tmpfs, but checkpoint.memory_dir is none; use /dev/shm/NAME"
                 : "a run that also saves to a disk, but checkpoint.save is none; use "
                   "checkpoint.non_persistent_save_interval=0");
}

/* A signal in both lists; NULL if there is none. */
static const char *doubled_signal(const struct recipe_resilience *r)
{
    for (size_t i = 0; i < r->save_signal.count * r->exit_signal.count; i++)
        if (strcmp(r->save_signal.list[i % r->save_signal.count],
                   r->exit_signal.list[i / r->save_signal.count]) == 0)
            return r->save_signal.list[i % r->save_signal.count];
    return NULL;
}

static bool signals_hold(const struct view *v)
{
    return doubled_signal(&v->recipe->resilience) == NULL;
}

static void signals_message(const struct view *v, struct text *out)
{
    text_add(out, "%s is in resilience.save_signal and in resilience.exit_signal; remove it from one of them",
             doubled_signal(&v->recipe->resilience));
}

static const struct rule rules[] = {
    {"checkpoint.save_interval checkpoint.save", save_holds, save_message, {{0}}},
    {"checkpoint.finetune checkpoint.ckpt_step checkpoint.load", load_holds, load_message, {{0}}},
    {"checkpoint.non_persistent_save_interval checkpoint.memory_dir checkpoint.save",
     memory_holds,
     memory_message,
     {{0}}},
    {"resilience.save_signal resilience.exit_signal", signals_hold, signals_message, {{0}}},
};
const struct rules recipe_save_rules = RULES_OF(rules);
