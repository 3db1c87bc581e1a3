// SPDX-License-Identifier: Apache-2.0
/* Loads files and command line, key by key, into one struct.
 *
 * quickstart.yaml -> base: common.yaml -> base: ...   read first to last, applied last to first; then the
 * command line; then defaults, derived values, and the checks. Every step adds its problems to one list and
 * continues, so that all are reported at once. A row with an invalid value is `bad`: nothing that depends on
 * it is checked, so that one mistake is reported once. */
#include "trainer/recipe/recipe.h"

#include "base/memory.h"
#include "trainer/recipe/recipe_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 16, SHOWN = 60 };

/* One file of the chain of bases. */
struct recipe_file {
    struct node *root;
    const char *path; // belongs to the recipe
    dev_t device;
    ino_t inode;
};

/* ---- unknown keys ---- */

/* The names of a section's keys; at the top level, with `sections`, also those of the sections. */
static size_t names_of(const struct recipe_addition *more, const char *section, bool sections,
                       const char *names[RECIPE_MAX_ROWS + RECIPE_MAX_SECTIONS])
{
    size_t count = 0;
    for (int i = 0; i < recipe_row_total(more); i++)
        if (recipe_row_in_section(recipe_row_at(more, i), section))
            names[count++] = recipe_row_name(recipe_row_at(more, i));
    for (int i = 1; i < recipe_section_total(more) && *section == 0 && sections; i++)
        names[count++] = recipe_section_at(more, i)->name;
    return count;
}

/* "; the keys of tokenizer are tokenizer_type, vocab_file, merge_file" */
static void add_keys_of(const struct recipe_addition *more, const char *section, struct text *out)
{
    const char *names[RECIPE_MAX_ROWS + RECIPE_MAX_SECTIONS] = {NULL};
    size_t count = names_of(more, section, false, names);
    text_add(out, "; the keys of %s are", section);
    for (size_t i = 0; i < count; i++)
        text_add(out, "%s %s", i > 0 ? "," : "", names[i]);
}

/* "WHERE: unknown key train.lr; did you mean optimizer.lr?" has_keys: it may be meant as a section. */
static void refuse_key(struct recipe_loader *loader, const char *where, const char *section, const char *name,
                       bool has_keys)
{
    const struct recipe_addition *more = loader->recipe->addition;
    const char *names[RECIPE_MAX_ROWS + RECIPE_MAX_SECTIONS] = {NULL};
    const char *dot = *section != 0 ? "." : "";
    if (strcmp(section, name) == 0) { // `model: {model: ...}`
        problems_add(loader->problems, "%s: unknown key %s.%s; the keys of %s are not nested", where, section,
                     name, name);
        return;
    }
    // One of another program; else the right name in the wrong section; else a typo here; else one elsewhere.
    AUTO(text) hint = {0};
    const bool foreign = recipe_foreign_key(section, name, &hint);
    const char *word = strrchr(name, '.') != NULL ? strrchr(name, '.') + 1 : name, *near = NULL;
    int row = foreign ? -1 : recipe_row_find_any_section(more, word);
    if (row < 0 && !foreign)
        near = nearest_name(name, names, names_of(more, section, has_keys, names));
    if (row < 0 && near == NULL && !foreign)
        row = recipe_row_nearest(more, word);
    if (near != NULL)
        text_add(&hint, "; did you mean %s%s%s?", section, dot, near);
    else if (row >= 0)
        text_add(&hint, "; did you mean %s?", recipe_row_at(more, row)->key);
    else if (*section != 0 && !foreign)
        add_keys_of(more, section, &hint);
    problems_add(loader->problems, "%s: unknown key %s%s%.*s%s", where, section, dot, SHOWN, name,
                 text_chars(&hint));
}

/* "WHERE: optimizer is a section: AdamW is the only optimizer; write optimizer.KEY=value" */
static void refuse_value(struct recipe_loader *loader, const char *where, const char *name, bool in_file)
{
    AUTO(text) why = {0};
    (void)recipe_foreign_key("", name, &why);
    problems_add(loader->problems, "%s: %s is a section%s; %s%s%s", where, name, text_chars(&why),
                 in_file ? "expected keys and values below it" : "write ", in_file ? "" : name,
                 in_file ? "" : ".KEY=value");
}

/* Whether a key for a missing feature has the value that does not ask for it. */
static bool has_only_value(const char *section, const char *name, const struct node *value)
{
    const char *only = recipe_only_value(section, name);
    return only != NULL && value->kind == NODE_SCALAR && strcmp(value->text, only) == 0;
}

/* ---- values from a file ---- */

static void set_row(struct recipe_loader *loader, int row, const struct node *value,
                    struct recipe_origin origin, const char *where)
{
    const struct recipe_row *const setting = recipe_row_at(loader->recipe->addition, row);
    bool automatic = false;
    AUTO(text) why = {0};
    if (!recipe_value_set(loader->recipe, setting, value, &automatic, &why)) {
        problems_add(loader->problems, "%s: %s %s", where, setting->key, text_chars(&why));
        loader->bad[row] = true;
    } else
        loader->bad[row] = false;
    if (automatic && setting->chosen)
        origin.kind = TO_BE_CHOSEN;
    else if (automatic) {
        // Treats the key as unset, and drops a value inherited from a base.
        recipe_value_free(loader->recipe, setting);
        origin.kind = FROM_DEFAULT;
    }
    loader->recipe->origin[row] = origin;
    if (row == recipe_row_index("parallel.search") && loader->recipe->parallel.search == SEARCH_AUTO)
        recipe_open_layout(loader->recipe);
}

static bool is_section_name(const struct recipe_addition *more, const char *name)
{
    for (int s = 1; s < recipe_section_total(more); s++)
        if (strcmp(recipe_section_at(more, s)->name, name) == 0)
            return true;
    return false;
}

/* The keys of one section, or of the top level: each once, under any of its names. */
static void apply_keys(struct recipe_loader *loader, const char *file, const char *section,
                       const struct node *map)
{
    const struct recipe_addition *more = loader->recipe->addition;
    int first_line[RECIPE_MAX_ROWS] = {0};
    for (size_t i = 0; i < map->count; i += 2) {
        const struct node *key = map->child[i], *value = map->child[i + 1];
        char where[300];
        snprintf(where, sizeof where, "%.260s:%d", file, key->line);
        int row = recipe_row_find(more, section, key->text);
        bool is_section = is_section_name(more, key->text);
        if (row >= 0 && first_line[row] > 0) {
            problems_add(loader->problems, "%s: %s is given twice, first in line %d; remove one of them",
                         where, recipe_row_at(more, row)->key, first_line[row]);
            loader->bad[row] = true;
        } else if (row >= 0) {
            first_line[row] = key->line;
            set_row(loader, row, value, (struct recipe_origin){FROM_FILE, key->line, file}, where);
        } else if (*section == 0 && !is_section && recipe_row_find_dotted(more, key->text) >= 0) {
            const struct recipe_row *meant = recipe_row_at(more, recipe_row_find_dotted(more, key->text));
            problems_add(loader->problems, "%s: unknown key %s; in a file, write %.*s: {%s: ...}", where,
                         key->text, (int)recipe_row_section_length(meant), meant->key,
                         recipe_row_name(meant));
        } else if (is_section && *section != 0 && value->kind == NODE_MAP &&
                   strcmp(section, key->text) != 0) {
            problems_add(loader->problems, "%s: %s is inside %s, but it is a top-level section; unindent it",
                         where, key->text, section);
        } else if ((!is_section || *section != 0) && !has_only_value(section, key->text, value))
            refuse_key(loader, where, section, key->text, value->kind == NODE_MAP);
    }
}

static bool is_empty(const struct node *node)
{
    return node->kind == NODE_SCALAR && node->plain && *node->text == 0;
}

/* `assume: papers`: a value instead of a mapping. */
static void apply_short_form(struct recipe_loader *loader, const char *file, int section,
                             const struct node *key, const struct node *value)
{
    const struct recipe_addition *more = loader->recipe->addition;
    const char *name = recipe_section_at(more, section)->name,
               *short_for = recipe_section_at(more, section)->short_for;
    char where[300];
    snprintf(where, sizeof where, "%.260s:%d", file, key->line);
    if (short_for != NULL && value->kind == NODE_SCALAR)
        set_row(loader, recipe_row_find(more, name, short_for), value,
                (struct recipe_origin){FROM_FILE, key->line, file}, where);
    else
        refuse_value(loader, where, name, true);
}

static void apply_section(struct recipe_loader *loader, const char *file, const struct node *root,
                          int section)
{
    const char *name = recipe_section_at(loader->recipe->addition, section)->name;
    int first_line = 0;
    for (size_t i = 0; i < root->count; i += 2) {
        const struct node *key = root->child[i], *value = root->child[i + 1];
        if (strcmp(key->text, name) != 0)
            continue;
        if (first_line > 0)
            problems_add(loader->problems, "%s:%d: %s is given twice, first in line %d; remove one of them",
                         file, key->line, name, first_line);
        else if (value->kind == NODE_MAP)
            apply_keys(loader, file, name, value);
        else if (!is_empty(value))
            apply_short_form(loader, file, section, key, value);
        if (first_line == 0)
            first_line = key->line;
    }
}

/* Applies the keys of a file; false if it has none. */
static bool apply_file(struct recipe_loader *loader, const struct recipe_file *file)
{
    if (file->root->kind != NODE_MAP) {
        problems_add(loader->problems, "%s:%d: expected keys and values, such as `seed: 1`", file->path,
                     file->root->line);
        return false;
    }
    apply_keys(loader, file->path, "", file->root);
    for (int s = 1; s < recipe_section_total(loader->recipe->addition); s++)
        apply_section(loader, file->path, file->root, s);
    return true;
}

/* ---- files ---- */

static const char *keep_path(struct recipe *recipe, char *path)
{
    struct recipe_names *files = &recipe->files;
    files->list = memory_resized(files->list, files->count + 1, sizeof *files->list, "a recipe");
    files->list[files->count++] = path;
    return path;
}

/* The path given by `base:`, relative to the working directory; NULL: none, or invalid. */
static char *base_path(struct recipe_loader *loader, const struct recipe_file *file, int *line)
{
    for (size_t i = 0; file->root->kind == NODE_MAP && i < file->root->count; i += 2) {
        const struct node *key = file->root->child[i], *value = file->root->child[i + 1];
        if (strcmp(key->text, "base") != 0)
            continue;
        *line = value->line;
        if (value->kind == NODE_SCALAR && value->plain &&
            (*value->text == 0 || strcmp(value->text, "none") == 0 || strcmp(value->text, "null") == 0 ||
             strcmp(value->text, "~") == 0))
            return NULL;
        if (value->kind != NODE_SCALAR || *value->text == 0 || !text_is_printable(value->text)) {
            problems_add(loader->problems, "%s:%d: base expects the path of one recipe", file->path, *line);
            return NULL;
        }
        const char *slash = strrchr(file->path, '/'), *base = value->text;
        struct text path = {0};
        while (slash != NULL && strncmp(base, "./", 2) == 0)
            base += 1 + strspn(base + 1, "/"); // relative to the folder of this recipe in any case
        if (slash != NULL && *base != '/')
            text_add_bytes(&path, file->path, (size_t)(slash - file->path) + 1);
        text_add(&path, "%s", base);
        return path.chars;
    }
    return NULL;
}

/* Reads `path` into files[count]. from: prefix for messages, where the path was given: "a.yaml:2: base ", or
 * "". */
static bool read_recipe_file(struct recipe_loader *loader, char *path, const char *from,
                             struct recipe_file *files, size_t count)
{
    struct recipe_file *file = &files[count];
    struct text bytes = {0};
    file->path = keep_path(loader->recipe, path);
    const char *fault = NULL;
    if (count == 0 && loader->text != NULL)
        text_add(&bytes, "%s", loader->text);
    else
        fault = yaml_file_read(path, &bytes, &file->device, &file->inode);
    if (fault != NULL) {
        AUTO(text) near = {0};
        recipe_near_file(path, &near);
        problems_add(loader->problems, "%s%s: %s%s", from, path, fault, text_chars(&near));
        text_free(&bytes);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        if (files[i].device == file->device && files[i].inode == file->inode) {
            problems_add(loader->problems, "%s%s: is already being read; a recipe cannot be its own base",
                         from, path);
            text_free(&bytes);
            return false;
        }
    file->root = yaml_parse(path, text_chars(&bytes), bytes.length, loader->problems);
    text_free(&bytes);
    return file->root != NULL;
}

/* Reads a recipe and its bases; false if a file could not be read, so that some keys are unknown. */
static bool load_files(struct recipe_loader *loader, const char *path)
{
    struct recipe_file files[MAX_FILES] = {0};
    size_t count = 0, before = loader->problems->errors;
    char *next = text_copy(path);
    struct text from = {0};
    while (next != NULL && read_recipe_file(loader, next, text_chars(&from), files, count)) {
        int line = 0;
        next = base_path(loader, &files[count], &line);
        text_free(&from);
        text_add(&from, "%s:%d: base ", files[count].path, line);
        count++;
        if (next != NULL && count == MAX_FILES) {
            problems_add(loader->problems, "%s%s: more than %d recipes, each based on the next",
                         text_chars(&from), next, MAX_FILES);
            free(next);
            next = NULL;
        }
    }
    bool complete = loader->problems->errors == before;
    for (size_t i = count; i-- > 0;) {
        complete = apply_file(loader, &files[i]) && complete;
        node_free(files[i].root);
    }
    text_free(&from);
    return complete;
}

/* ---- the command line ---- */

/* The value of an override: YAML if it looks like a list, a mapping or a quoted text, else verbatim. */
static struct node *override_value(struct recipe_loader *loader, const char *key, const char *value)
{
    if (*value == 0 || strchr("[{\"'", *value) == NULL)
        return node_scalar(value);
    AUTO(problems) problems = {0};
    struct node *node = yaml_parse(key, value, strlen(value), &problems);
    if (node == NULL)
        problems_add(loader->problems, "command line: %s %.*s is not YAML; is a bracket or a quote missing?",
                     key, SHOWN, value);
    return node;
}

/* Reports options in the style of other programs: "--tp=2", or "--tp" or "tp" followed by `next`, "2"; also
 * "--lr" for optimizer.lr, and "--train-iters". True if it is one of these; *takes_next: `next` is its
 * value. */
static bool refuse_option(struct recipe_loader *loader, const char *override, const char *next,
                          bool *takes_next)
{
    const char *equals = strchr(override, '=');
    bool dashes = *override == '-';
    char key[RECIPE_KEY_CHARS];
    *takes_next = false;
    if ((!dashes && equals != NULL) || !recipe_key_of_option(loader->recipe->addition, override, key))
        return false;
    *takes_next = equals == NULL && next != NULL && *next != '-' && strchr(next, '=') == NULL;
    problems_add(loader->problems, "command line: %.*s%s; use %s=%.*s", SHOWN, override,
                 dashes ? ": keys have no dashes" : " is not key=value", key, SHOWN,
                 equals != NULL ? equals + 1
                 : *takes_next  ? next
                                : "VALUE");
    return true;
}

static void apply_override(struct recipe_loader *loader, const char *override, int first[RECIPE_MAX_ROWS],
                           int index)
{
    const struct recipe_addition *more = loader->recipe->addition;
    const char *equals = strchr(override, '=');
    if (equals == NULL || equals == override) {
        char name[RECIPE_KEY_CHARS];
        AUTO(text) hint = {0};
        (void)recipe_key_of_option(more, override, name);
        (void)recipe_foreign_key("", name, &hint);
        problems_add(loader->problems, "command line: %.*s is not key=value%s", SHOWN,
                     *override != 0 ? override : "an empty argument", text_chars(&hint));
        return;
    }
    char key[128];
    snprintf(key, sizeof key, "%.*s", (int)(equals - override), override);
    int row = recipe_row_find_dotted(more, key);
    if (row < 0 && is_section_name(more, key)) {
        refuse_value(loader, "command line", key, false);
    } else if (row < 0) {
        // "model.num_layer": the section is separated, so that its own keys are nearest.
        char *dot = strchr(key, '.');
        if (dot != NULL)
            *dot = 0;
        const bool known = dot != NULL && is_section_name(more, key);
        if (dot != NULL && !known)
            *dot = '.';
        const char *section = known ? key : "", *name = known ? dot + 1 : key;
        const char *only = recipe_only_value(section, name);
        if (only == NULL || strcmp(only, equals + 1) != 0)
            refuse_key(loader, "command line", section, name, false);
    } else if (recipe_row_at(more, row)->type == ROW_BASE) {
        problems_add(loader->problems, "command line: base can only be given in a file");
    } else if (first[row] > 0) {
        problems_add(loader->problems, "command line: %s is given twice; remove one of them",
                     recipe_row_at(more, row)->key);
    } else {
        first[row] = index + 1;
        struct node *value = override_value(loader, recipe_row_at(more, row)->key, equals + 1);
        if (value != NULL)
            set_row(loader, row, value, (struct recipe_origin){.kind = FROM_COMMAND_LINE}, "command line");
        else
            loader->bad[row] = true;
        node_free(value);
    }
}

/* ---- defaults ---- */

static void set_defaults(struct recipe *recipe)
{
    for (int i = 0; i < recipe_row_total(recipe->addition); i++)
        if (recipe_row_at(recipe->addition, i)->fallback != NULL &&
            recipe_row_at(recipe->addition, i)->type != ROW_BASE)
            recipe_value_set_default(recipe, recipe_row_at(recipe->addition, i));
}

static void find_missing(struct recipe_loader *loader, const char *path)
{
    for (int i = 0; i < recipe_row_total(loader->recipe->addition); i++) {
        const struct recipe_row *row = recipe_row_at(loader->recipe->addition, i);
        bool given = loader->recipe->origin[i].kind != FROM_DEFAULT;
        bool empty = row->type == ROW_SOURCES && loader->recipe->data.train.count == 0;
        if (row->type == ROW_SOURCES && loader->recipe->data.mock_data)
            continue;
        if (row->fallback == NULL && row->derived == NULL && !loader->bad[i] && (!given || empty)) {
            bool here = loader->recipe->origin[i].kind == FROM_COMMAND_LINE; // emptied
            problems_add(loader->problems, "%s: %s is required, such as %s", here ? "command line" : path,
                         row->key, row->example);
            loader->bad[i] = true;
        }
    }
}

/* Warns that a key is overridden, and why; the caller changes the field. */
static void turn_off(struct recipe_loader *loader, const char *key, const char *reason)
{
    int row = recipe_row_index(key);
    AUTO(text) where = {0};
    recipe_origin_text(loader->recipe, row, &where);
    if (!loader->quiet)
        problems_warn(loader->problems, "%s: %s is disabled: %s", text_chars(&where), key, reason);
    loader->recipe->origin[row].kind = FROM_DERIVED;
}

/* `auto` depends on the launcher, which only the run knows. */
static void derive_heartbeat(struct recipe *recipe)
{
    const double min_s = 60.0;
    recipe->resilience.heartbeat_is_automatic =
        recipe->origin[recipe_row_index("resilience.heartbeat_timeout_seconds")].kind == FROM_DERIVED;
    if (recipe->resilience.heartbeat_is_automatic)
        recipe->resilience.heartbeat_timeout_seconds = min_s;
}

void recipe_finalize(struct recipe_loader *loader)
{
    struct recipe *recipe = loader->recipe;
    struct recipe_parallel *parallel = &recipe->parallel;
    for (int i = 0; i < recipe_row_total(recipe->addition); i++)
        if (recipe_row_at(recipe->addition, i)->derived != NULL && recipe->origin[i].kind == FROM_DEFAULT)
            recipe->origin[i].kind = FROM_DERIVED;
    derive_heartbeat(recipe);
    if (!loader->quiet) {
        recipe_warn_unused(recipe, loader->problems);
        recipe_warn_alignment(recipe, loader->problems);
        recipe_warn_simulated(recipe, loader->problems);
    }
    if (recipe->layers.sequence_parallel && parallel->tensor_parallel_size == 1) {
        turn_off(loader, "parallel.sequence_parallel", "it needs parallel.tensor_parallel_size 2 or more");
        recipe->layers.sequence_parallel = false;
    }
    if (recipe->data_parallel.zero_stage > 0 && parallel->data_parallel_size == 1) {
        turn_off(loader, "parallel.zero_stage",
                 "parallel.data_parallel_size is 1, so there is nothing to shard");
        recipe->data_parallel.zero_stage = 0;
    }
}

/* A memory plan for a GPU counts the memory of that GPU, also one of the resolved recipe of a run.
 * `described`: the device of the files. */
static void derive_dry_device(struct recipe *recipe, const struct device_traits *described)
{
    const int row = recipe_row_index("cluster.dry_device");
    const struct device_traits *device = device_traits(recipe->cluster.device);
    if (!device->computes)
        device = described;
    if (!device->is_gpu || recipe->origin[row].kind != FROM_DEFAULT)
        return;
    free(recipe->cluster.dry_device);
    recipe->cluster.dry_device = text_copy(device->name);
    recipe->origin[row].kind = FROM_DERIVED;
}

void recipe_read(struct recipe_loader *loader, const char *path, const char *const *overrides,
                 size_t override_count)
{
    int first[RECIPE_MAX_ROWS] = {0};
    set_defaults(loader->recipe);
    loader->complete = load_files(loader, path);
    const struct device_traits *described = device_traits(loader->recipe->cluster.device);
    loader->in_files = recipe_paths_of(loader->recipe);
    bool takes_next = false;
    for (size_t i = 0; i < override_count; i++)
        if (refuse_option(loader, overrides[i], i + 1 < override_count ? overrides[i + 1] : NULL,
                          &takes_next))
            i += takes_next ? 1 : 0;
        else
            apply_override(loader, overrides[i], first, (int)i);
    recipe_strip_sources(loader->recipe);
    derive_dry_device(loader->recipe, described);
}

void recipe_complete(struct recipe_loader *loader, const char *path, int world_size)
{
    find_missing(loader, path);
    loader->bad[recipe_row_index("pipeline.schedule_file")] |=
        !recipe_read_schedule(loader->recipe, loader->problems);
    const struct recipe_addition *more = loader->recipe->addition;
    loader->bad[recipe_row_index("cluster.profile")] |=
        more != NULL && !more->complete(loader->recipe, &loader->kept, loader->problems);
    loader->bad[recipe_row_index("model.vocab_size")] |=
        !recipe_read_vocabulary(loader->recipe, &loader->vocabulary, loader->problems);
    recipe_derive(loader->recipe, world_size);
}

void recipe_loader_free(struct recipe_loader *loader, const struct recipe_addition *more)
{
    recipe_paths_free(&loader->in_files);
    if (more != NULL)
        more->release(loader->kept);
    vocabulary_cache_free(&loader->vocabulary);
    *loader = (struct recipe_loader){.recipe = NULL};
}

/* Adds a problem if keys are open: commands that plan choose their values before loading. False if any is. */
static bool reject_open_keys(struct recipe_loader *loader, size_t before)
{
    const char *keys[RECIPE_MAX_CHOSEN];
    const int count = recipe_open_keys(loader->recipe, keys);
    const bool by_layout = loader->recipe->parallel.search == SEARCH_AUTO;
    for (int i = 0; i < (by_layout ? 1 : count) && loader->problems->errors == before; i++)
        problems_add(
            loader->problems,
            "%s: auto is chosen by cuboid plan, recipe and train, and by no other command; give a value",
            by_layout ? "parallel" : keys[i]);
    return count == 0 && !by_layout;
}

struct recipe *recipe_create(const struct recipe_addition *more)
{
    struct recipe *recipe = memory_zeroed(1, sizeof *recipe, "a recipe");
    recipe->addition = more;
    recipe->added = more != NULL ? memory_zeroed(1, more->size, "a recipe") : NULL;
    return recipe;
}

enum status recipe_load(const struct recipe_input *input, struct recipe **out, struct problems *problems)
{
    const size_t before = problems->errors;
    struct recipe_loader loader = {
        .recipe = recipe_create(input->addition), .problems = problems, .text = input->text};
    recipe_read(&loader, input->path, input->overrides, input->override_count);
    const bool chosen = reject_open_keys(&loader, before);

    // If a file could not be read, the keys missing from it would cause spurious errors; so do open choices.
    if (loader.complete && chosen) {
        recipe_complete(&loader, input->path, input->world_size);
        recipe_check(loader.recipe, input->world_size, loader.bad, problems);
    }
    recipe_derive_paths(loader.recipe, input->path, &loader.in_files, problems);
    if (input->runs)
        recipe_check_files(loader.recipe, !loader.complete, problems);
    const bool good = problems->errors == before;
    if (good) {
        recipe_finalize(&loader);
        *out = loader.recipe;
    } else
        recipe_destroy(loader.recipe);
    recipe_loader_free(&loader, input->addition);
    return good ? OK : problems_fail(problems, before, BAD_RECIPE, input->path);
}

void recipe_destroy(struct recipe *recipe)
{
    if (recipe == NULL)
        return;
    for (int i = 0; i < recipe_row_total(recipe->addition); i++)
        recipe_value_free(recipe, recipe_row_at(recipe->addition, i));
    for (size_t i = 0; i < recipe->files.count; i++)
        free(recipe->files.list[i]);
    free(recipe->files.list);
    free(recipe->added);
    free(recipe);
}
