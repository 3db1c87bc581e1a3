// SPDX-License-Identifier: Apache-2.0
#include "planner/sweep/sweep_file.h"
#include "planner/recipe/planned_recipe.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 60 };

struct reader {
    struct sweep_file *file;
    struct problems *problems;
};

/* ---- sections ---- */

/* Resolves a path relative to the folder of `file`. */
static char *resolve_path(const char *file, const char *name)
{
    const char *slash = strrchr(file, '/');
    struct text path = {0};
    if (slash != NULL && *name != '/')
        text_add_bytes(&path, file, (size_t)(slash - file) + 1);
    text_add(&path, "%s", name);
    return path.chars;
}

static void read_base(struct reader *reader, const struct node *value)
{
    if (value->kind != NODE_SCALAR || *value->text == 0 || !text_is_printable(value->text))
        problems_add(reader->problems, "%s:%d: base expects the path of a recipe", reader->file->path,
                     value->line);
    else
        reader->file->base = resolve_path(reader->file->path, value->text);
}

/* Appends a value as in an override: lists and mappings in flow style. */
static void add_value(const struct node *node, struct text *out)
{
    if (node->kind == NODE_SCALAR) {
        text_add(out, "%s", node->text);
        return;
    }
    text_add(out, node->kind == NODE_LIST ? "[" : "{");
    for (size_t i = 0; i < node->count; i++) {
        text_add(out, "%s", i == 0 ? "" : node->kind == NODE_MAP && i % 2 == 1 ? ":" : ",");
        add_value(node->child[i], out);
    }
    text_add(out, node->kind == NODE_LIST ? "]" : "}");
}

/* The key of an axis; NULL with a problem. */
static const char *axis_key(struct reader *reader, const struct node *name)
{
    const struct sweep_file *file = reader->file;
    const char *key = recipe_key(&planner_keys, name->text);
    if (key == NULL || strcmp(key, "base") == 0) {
        char meant[RECIPE_KEY_CHARS];
        struct text option = {0};
        text_add(&option, "--%s", name->text);
        const bool known = recipe_key_of_option(&planner_keys, option.chars, meant);
        const char *near = known ? meant : recipe_key_near(&planner_keys, name->text);
        problems_add(reader->problems, "%s:%d: axes: unknown key %.*s; %s%s%s", file->path, name->line, SHOWN,
                     name->text, near != NULL ? "did you mean " : "the keys are those of docs/recipe.md",
                     near != NULL ? near : "", near != NULL ? "?" : "");
        text_free(&option);
        return NULL;
    }
    for (int i = 0; key != NULL && i < file->axis_count; i++)
        if (file->axes[i].key == key) {
            problems_add(reader->problems, "%s:%d: axes: %s is given twice, first in line %d; remove one",
                         file->path, name->line, key, file->axes[i].line);
            return NULL;
        }
    return key;
}

static void add_axis_value(struct reader *reader, struct sweep_axis *axis, const struct node *value)
{
    const struct recipe_change change = {axis->key, value};
    struct text why = {0}, text = {0};
    add_value(value, &text);
    if (!recipe_change_is_valid(&planner_keys, &change, &why))
        problems_add(reader->problems, "%s:%d: axes: %s %s", reader->file->path, value->line, axis->key,
                     why.chars);
    for (int i = 0; i < axis->count; i++)
        if (strcmp(axis->texts[i], text_chars(&text)) == 0)
            problems_add(reader->problems, "%s:%d: axes: %s has the value %.*s twice; remove one",
                         reader->file->path, value->line, axis->key, SHOWN, text_chars(&text));
    text_free(&why);
    axis->values[axis->count] = value;
    axis->texts[axis->count++] = text.chars != NULL ? text.chars : text_copy("");
}

static void read_axis(struct reader *reader, const struct node *name, const struct node *list)
{
    struct sweep_file *file = reader->file;
    const char *key = axis_key(reader, name);
    if (key == NULL)
        return;
    if (list->kind != NODE_LIST || list->count == 0) {
        problems_add(reader->problems, "%s:%d: axes: %s expects a list of values, like [1, 2]", file->path,
                     name->line, key);
        return;
    }
    if (file->axis_count == SWEEP_MAX_AXES) {
        problems_add(reader->problems, "%s:%d: axes: more than %d axes; remove some", file->path, name->line,
                     (int)SWEEP_MAX_AXES);
        return;
    }
    struct sweep_axis *axis = &file->axes[file->axis_count++];
    *axis = (struct sweep_axis){.key = key,
                                .label = text_copy(name->text),
                                .line = name->line,
                                .values = calloc(list->count, sizeof *axis->values),
                                .texts = calloc(list->count, sizeof *axis->texts)};
    if (axis->values == NULL || axis->texts == NULL)
        die(__FILE__, __LINE__, "sweep", "out of memory for %zu values", list->count);
    for (size_t i = 0; i < list->count; i++)
        add_axis_value(reader, axis, list->child[i]);
}

static void read_axes(struct reader *reader, const struct node *map, int line)
{
    if (map->kind != NODE_MAP || map->count == 0) {
        problems_add(reader->problems,
                     "%s:%d: axes expects recipe keys with lists of values, like tp: [1, 2]",
                     reader->file->path, line);
        return;
    }
    for (size_t i = 0; i < map->count; i += 2)
        read_axis(reader, map->child[i], map->child[i + 1]);
}

static void read_constraints(struct reader *reader, const struct node *list, int line)
{
    struct sweep_file *file = reader->file;
    if (list->kind != NODE_LIST || list->count > SWEEP_MAX_CONSTRAINTS) {
        problems_add(reader->problems, "%s:%d: constraints expects a list of at most %d comparisons",
                     file->path, line, (int)SWEEP_MAX_CONSTRAINTS);
        return;
    }
    for (size_t i = 0; i < list->count; i++) {
        const struct node *node = list->child[i];
        struct sweep_constraint *constraint = &file->constraints[file->constraint_count];
        struct text why = {0};
        if (node->kind != NODE_SCALAR)
            text_add(&why, "is not text");
        else if (sweep_constraint_parse(node->text, constraint, &why)) {
            constraint->line = node->line;
            file->constraint_count++;
        }
        if (why.length > 0)
            problems_add(reader->problems, "%s:%d: constraints: \"%.*s\" %s", file->path, node->line, SHOWN,
                         node->kind == NODE_SCALAR ? node->text : "", why.chars);
        text_free(&why);
    }
}

static void read_key(struct reader *reader, const struct node *name, const struct node *value)
{
    if (strcmp(name->text, "base") == 0)
        read_base(reader, value);
    else if (strcmp(name->text, "axes") == 0)
        read_axes(reader, value, name->line);
    else if (strcmp(name->text, "constraints") == 0)
        read_constraints(reader, value, name->line);
    else
        problems_add(reader->problems, "%s:%d: unknown key %.*s; a sweep has base, axes and constraints%s",
                     reader->file->path, name->line, SHOWN, name->text,
                     recipe_key(&planner_keys, name->text) != NULL
                         ? " (recipe keys belong into axes, or into the base)"
                         : "");
}

/* Computes the number of layouts; more than SWEEP_MAX_LAYOUTS are a problem. */
static void count_layouts(struct reader *reader)
{
    struct sweep_file *file = reader->file;
    double layouts = 1.0;
    for (int i = 0; i < file->axis_count; i++)
        layouts *= file->axes[i].count;
    if (layouts > (double)SWEEP_MAX_LAYOUTS)
        problems_add(reader->problems, "%s: axes: %.4g layouts are more than 10^9; remove values or axes",
                     file->path, layouts);
    else
        file->layouts = (int64_t)layouts;
}

static void read_root(struct reader *reader)
{
    const struct sweep_file *file = reader->file;
    if (file->root->kind != NODE_MAP) {
        problems_add(reader->problems, "%s:%d: expected base, axes and constraints", file->path,
                     file->root->line);
        return;
    }
    for (size_t i = 0; i < file->root->count; i += 2) {
        const struct node *name = file->root->child[i];
        bool repeated = false;
        for (size_t k = 0; k < i; k += 2)
            repeated = repeated || strcmp(file->root->child[k]->text, name->text) == 0;
        if (repeated)
            problems_add(reader->problems, "%s:%d: %.*s is given twice; remove one of them", file->path,
                         name->line, SHOWN, name->text);
        else
            read_key(reader, name, file->root->child[i + 1]);
    }
    if (reader->problems->errors > 0)
        return;
    if (file->base == NULL)
        problems_add(reader->problems, "%s: base is required: the path of a recipe", file->path);
    if (file->axis_count == 0)
        problems_add(reader->problems, "%s: axes is required, like axes: {tp: [1, 2]}", file->path);
    count_layouts(reader);
}

enum status sweep_file_parse(const char *path, const char *bytes, size_t length, struct sweep_file *out,
                             struct problems *problems)
{
    struct reader reader = {out, problems};
    const size_t before = problems->errors;
    *out = (struct sweep_file){.path = text_copy(path)};
    out->root = yaml_parse(path, bytes, length, problems);
    if (out->root != NULL)
        read_root(&reader);
    if (problems->errors == before)
        return OK;
    sweep_file_free(out);
    return problems_fail(problems, before, BAD_RECIPE, path);
}

enum status sweep_file_read(const char *path, struct sweep_file *out, struct problems *problems)
{
    struct text bytes = {0};
    dev_t device;
    ino_t inode;
    const char *fault = yaml_file_read(path, &bytes, &device, &inode);
    enum status status = OK;
    if (fault != NULL) {
        problems_add(problems, "%s: %s", path, fault);
        status = fail(BAD_RECIPE, "%s: 1 problem", path);
    } else
        status = sweep_file_parse(path, text_chars(&bytes), bytes.length, out, problems);
    text_free(&bytes);
    return status;
}

void sweep_file_free(struct sweep_file *file)
{
    for (int i = 0; i < file->axis_count; i++) {
        for (int k = 0; k < file->axes[i].count; k++)
            free(file->axes[i].texts[k]);
        free(file->axes[i].texts);
        free(file->axes[i].values);
        free(file->axes[i].label);
    }
    for (int i = 0; i < file->constraint_count; i++)
        sweep_constraint_free(&file->constraints[i]);
    node_free(file->root);
    free(file->path);
    free(file->base);
    *file = (struct sweep_file){.path = NULL};
}

/* ---- layouts ---- */

int sweep_value(const struct sweep_file *file, int64_t number, int axis)
{
    for (int i = file->axis_count - 1; i > axis; i--)
        number /= file->axes[i].count;
    return (int)(number % file->axes[axis].count);
}

void sweep_changes(const struct sweep_file *file, int64_t number,
                   struct recipe_change changes[SWEEP_MAX_AXES])
{
    for (int i = file->axis_count - 1; i >= 0; i--) {
        const struct sweep_axis *axis = &file->axes[i];
        changes[i] = (struct recipe_change){axis->key, axis->values[number % axis->count]};
        number /= axis->count;
    }
}

void sweep_layout_text(const struct sweep_file *file, int64_t number, struct text *out)
{
    for (int i = 0; i < file->axis_count; i++)
        text_add(out, "%s%s=%s", i > 0 ? " " : "", file->axes[i].label,
                 file->axes[i].texts[sweep_value(file, number, i)]);
}
