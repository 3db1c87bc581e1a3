// SPDX-License-Identifier: Apache-2.0
/* Writes a recipe, each value with its origin, and the reference page.
 *
 *   model:
 *     num_layers: 6                # recipes/quickstart.yaml:14
 *     kv_channels: 32              # derived
 *
 * Invariant: the text loads back to the same recipe. Values that could be read as reserved words (none, auto)
 * or as YAML syntax are therefore quoted. */
#include "trainer/recipe/recipe_table.h"

#include "base/memory.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

enum { COMMENT_COLUMN = 46 };

/* ---- the resolved recipe ---- */

void recipe_origin_text(const struct recipe *recipe, int row, struct text *out)
{
    const struct recipe_origin *origin = &recipe->origin[row];
    if (origin->kind == FROM_COMMAND_LINE)
        text_add(out, "command line");
    else if (origin->kind == FROM_FILE)
        text_add(out, "%s:%d", origin->file, origin->line);
    else
        text_add(out, "%s", recipe->files.count > 0 ? recipe->files.list[0] : "recipe");
}

/* Some derived values are written as `auto`: a folder then follows the name when the saved recipe is run
 * under another name, instead of pointing to the folders of the original run; so does a timeout that depends
 * on the run. */
static bool stays_derived(const struct recipe *recipe, int row)
{
    return recipe->origin[row].kind == FROM_DERIVED &&
           (row == recipe_row_index("logging.run_dir") || row == recipe_row_index("checkpoint.save") ||
            row == recipe_row_index("resilience.heartbeat_timeout_seconds"));
}

/* Appends the origin of a row's value, for a comment. */
static void add_from(const struct recipe *recipe, int row, struct text *out)
{
    enum origin_kind kind = recipe->origin[row].kind;
    if (kind == FROM_DEFAULT)
        text_add(out, "default");
    else if (kind != FROM_DERIVED)
        recipe_origin_text(recipe, row, out);
    else
        text_add(out, "derived");
    if (kind == FROM_DERIVED && row == recipe_row_index("logging.peak_flops") &&
        recipe->cluster.profile != NULL)
        text_add(out, " from cluster.profile %s", recipe->cluster.profile);
    if (!stays_derived(recipe, row))
        return;
    text_add(out, ": ");
    recipe_value_text(recipe, recipe_row_at(recipe->addition, row), out);
}

static void add_resolved_row(const struct recipe *recipe, int row, struct text *out)
{
    AUTO(text) line = {0}, from = {0};
    text_add(&line, "%s%s: ", recipe_row_section_length(recipe_row_at(recipe->addition, row)) > 0 ? "  " : "",
             recipe_row_name(recipe_row_at(recipe->addition, row)));
    if (stays_derived(recipe, row))
        text_add(&line, "auto");
    else
        recipe_value_text(recipe, recipe_row_at(recipe->addition, row), &line);
    add_from(recipe, row, &from);
    text_add(out, "%-*s # ", COMMENT_COLUMN, line.chars);
    text_add_clean(out, from.chars);
    text_add(out, "\n");
}

/* Which keys are written. */
struct selection {
    bool all, files;  // all keys; those of files
    const char *keys; // "key=value key=value": these
};

static bool is_selected(const struct recipe *recipe, int row, const struct selection *selection)
{
    const enum origin_kind kind = recipe->origin[row].kind;
    const char *key = recipe_row_at(recipe->addition, row)->key;
    const size_t length = strlen(key);
    if (selection->all || kind == FROM_COMMAND_LINE || (selection->files && kind == FROM_FILE))
        return true;
    for (const char *at = selection->keys; at != NULL;
         at = strchr(at, ' ') != NULL ? strchr(at, ' ') + 1 : NULL)
        if (strncmp(at, key, length) == 0 && at[length] == '=')
            return true;
    return false;
}

static void add_resolved(const struct recipe *recipe, const struct selection *selection, struct text *out)
{
    for (int s = 0; s < recipe_section_total(recipe->addition); s++) {
        const char *section = recipe_section_at(recipe->addition, s)->name;
        bool begun = *section == 0;
        for (int row = 0; row < recipe_row_total(recipe->addition); row++) {
            if (!recipe_row_in_section(recipe_row_at(recipe->addition, row), section) ||
                recipe_row_at(recipe->addition, row)->type == ROW_BASE ||
                !is_selected(recipe, row, selection))
                continue;
            if (!begun)
                text_add(out, "\n%s:\n", section);
            begun = true;
            add_resolved_row(recipe, row, out);
        }
    }
}

void recipe_resolved_text(const struct recipe *recipe, struct text *out)
{
    text_add(out, "# The resolved recipe: every key, its value and its origin.\n");
    add_resolved(recipe, &(struct selection){.all = true}, out);
}

void recipe_based_text(const struct recipe *recipe, const char *base, const char *chosen, struct text *out)
{
    AUTO(text) keys = {0};
    text_add(&keys, "cluster.device= %s", chosen);
    text_add(out, "# The base with the keys that the command line set and a plan chose.\nbase: ");
    yaml_add_string(out, base, NULL);
    text_add(out, "\n");
    add_resolved(recipe, &(struct selection){.keys = keys.chars}, out);
}

void recipe_given_text(const struct recipe *recipe, struct text *out)
{
    text_add(out, "# The keys that files and the command line set; all others have their defaults.\n");
    add_resolved(recipe, &(struct selection){.files = true}, out);
}

void recipe_key_text(const struct recipe *recipe, const char *key, struct text *out)
{
    const int row = recipe_row_find_dotted(recipe->addition, key);
    CHECK(row >= 0);
    recipe_value_text(recipe, recipe_row_at(recipe->addition, row), out);
}

/* ---- overrides ---- */

/* Keys with a column (planner/published/). */
static bool has_column(const char *key)
{
    static const char *const keys[] = {"model.num_layers",
                                       "model.hidden_size",
                                       "model.num_attention_heads",
                                       "model.ffn_hidden_size",
                                       "model.vocab_size",
                                       "model.seq_length",
                                       "parallel.tensor_parallel_size",
                                       "parallel.pipeline_parallel_size",
                                       "parallel.data_parallel_size",
                                       "parallel.sequence_parallel",
                                       "parallel.zero_stage",
                                       "memory.recompute_granularity",
                                       "precision.params_dtype"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

static bool is_planned(const struct recipe *recipe, const struct recipe_row *row)
{
    static const char *const sections[] = {"parallel", "pipeline", "precision", "memory"};
    static const char *const others[] = {"cluster.nodes", "cluster.gpus_per_node", "cluster.ranks_per_gpu"};
    if (row->type == ROW_BASE || has_column(row->key))
        return false;
    if (recipe_row_in_section(row, "model") || strcmp(row->key, "deterministic") == 0)
        return true;
    bool here = row->added;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        here = here || recipe_row_in_section(row, sections[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        here = here || strcmp(row->key, others[i]) == 0;
    return here && !recipe_value_is_default(recipe, row);
}

void recipe_planned_text(const struct recipe *recipe, struct text *out)
{
    for (int row = 0; row < recipe_row_total(recipe->addition); row++) {
        AUTO(text) value = {0};
        if (!is_planned(recipe, recipe_row_at(recipe->addition, row)))
            continue;
        recipe_value_text(recipe, recipe_row_at(recipe->addition, row), &value);
        text_add(out, "%s%s=", out->length > 0 ? " " : "", recipe_row_at(recipe->addition, row)->key);
        for (const char *at = text_chars(&value); *at != 0; at++)
            if (*at != ' ') // of a list: words are separated by spaces
                text_add_bytes(out, at, 1);
    }
}

/* ---- the reference page ---- */

static const char intro[] =
    "<!-- Generated by `cuboid recipe --reference > docs/recipe.md`; edit recipe_table.c instead. -->\n"
    "# Recipe keys\n\n"
    "A recipe is a YAML file that describes a run.\n"
    "`cuboid recipe RECIPE [key=value ...]` prints it resolved: every key, its value, and where the value\n"
    "comes from.\n\n"
    "- Command line: a key is written with its section, such as `train.train_iters=20` or\n"
    "  `pipeline.layout=[3,2]`.\n"
    "  A name or alias that only one section has needs none: `lr=3e-4`, `schedule=zb-v`, `tp=2`, `zero=1`,\n"
    "  `mbs=4`, `gbs=256`, `vp=2`.\n"
    "- `cuboid help KEY` prints the line of a key.\n"
    "- `auto` derives the value from other keys, where the table says how.\n"
    "- `none` is the absence of text, or an empty list.\n"
    "- `base: other.yaml` merges this recipe over another one; lists are replaced as a whole.\n"
    "  YAML anchors, aliases and merge keys are not supported.\n"
    "- Paths are relative to the working directory; only that of `base` is relative to its file.\n"
    "- A key that is unknown or duplicate is an error.\n"
    "  All errors are reported together, with exit status 2.\n"
    "- Names are Megatron-LM's where it has one.\n"
    "  Defaults differ: no dropout, `cosine` decay, no padding of the vocabulary in\n"
    "  checkpoints, no evaluation; `global_batch_size` is required, because a default that depends on the\n"
    "  layout would change what is computed.\n";

static const char table_head[] = "| key | values | default | meaning |\n|---|---|---|---|\n";

/* The keys that most recipes set, in the usual order. */
static const char *const common_keys[] = {
    "name",
    "seed",
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.seq_length",
    "model.vocab_size",
    "parallel.tensor_parallel_size",
    "parallel.pipeline_parallel_size",
    "parallel.data_parallel_size",
    "parallel.sequence_parallel",
    "parallel.zero_stage",
    "pipeline.schedule",
    "train.micro_batch_size",
    "train.global_batch_size",
    "train.train_iters",
    "optimizer.lr",
    "optimizer.min_lr",
    "optimizer.lr_warmup_iters",
    "precision.params_dtype",
    "memory.recompute_granularity",
    "data.train",
    "tokenizer.tokenizer_type",
    "checkpoint.load",
    "checkpoint.save_interval",
    "logging.run_dir",
    "cluster.device",
};

static void add_default_cell(const struct recipe_row *row, struct text *out)
{
    if (row->fallback != NULL)
        text_add(out, "`%s`", row->fallback);
    else if (row->derived != NULL)
        text_add(out, "%s", row->derived);
    else
        text_add(out, "required, such as `%s`", row->example);
}

/* "`gpipe`, `1f1b`" or "integer from 1 to 65536", without the article. */
static void add_value_cell(const struct recipe_row *row, struct text *out)
{
    if (recipe_row_has_choices(row)) {
        size_t shown = 0;
        struct choice c;
        text_add(out, "%s", row->type == ROW_NAMES ? "list of " : "");
        for (size_t i = 0; recipe_row_choice(row, i, &c); i++)
            if (!c.alias)
                text_add(out, "%s`%s`", shown++ > 0 ? ", " : "", c.name);
        return;
    }
    AUTO(text) expected = {0};
    recipe_value_expected(row, &expected);
    const char *start = text_chars(&expected);
    size_t article = strncmp(start, "a ", 2) == 0 ? 2 : strncmp(start, "an ", 3) == 0 ? 3 : 0;
    text_add(out, "%s", start + article);
}

static void add_reference_row(const struct recipe_row *row, const char *shown, struct text *out)
{
    text_add(out, "| `%s` | ", shown);
    add_value_cell(row, out);
    text_add(out, " | ");
    add_default_cell(row, out);
    text_add(out, " | %s", row->help);
    for (const char *at = row->aliases; at != NULL && *at != 0; at += strspn(at, " ")) {
        int length = (int)strcspn(at, " ");
        text_add(out, "%s`%.*s`",
                 at != row->aliases        ? ", "
                 : strchr(at, ' ') != NULL ? " Aliases: "
                                           : " Alias: ",
                 length, at);
        at += length;
    }
    if (row->aliases != NULL)
        text_add(out, ".");
    text_add(out, " |\n");
}

/* ---- the help of a key ---- */

/* Appends Markdown as plain text, in lines of at most 100 columns after `indent` spaces. */
static void add_wrapped(const char *markdown, int indent, struct text *out)
{
    enum { WIDTH = 100 };
    int column = 0;
    for (const char *at = markdown; *at != 0; at += strspn(at, " ")) {
        const int length = (int)strcspn(at, " ");
        const bool first = column == 0;
        if (first || column + 1 + length > WIDTH) {
            text_add(out, "%s%*s", first ? "" : "\n", indent, "");
            column = indent;
        } else
            text_add(out, " "), column++;
        for (int i = 0; i < length; i++)
            if (at[i] != '`')
                text_add_bytes(out, at + i, 1), column++;
        at += length;
    }
    text_add(out, "\n");
}

static void add_help(const struct recipe_row *row, struct text *out)
{
    struct text line = {0};
    text_add(&line, "%s: ", row->key);
    add_value_cell(row, &line);
    text_add(&line, row->fallback != NULL || row->derived != NULL ? "; default " : "; ");
    add_default_cell(row, &line);
    add_wrapped(line.chars, 0, out);
    text_free(&line);
    text_add(&line, "%s", row->help);
    if (row->aliases != NULL)
        text_add(&line, " Also: %s.", row->aliases);
    add_wrapped(line.chars, 4, out);
    text_free(&line);
}

bool recipe_help(const struct recipe_addition *more, const char *name, struct text *out)
{
    const size_t before = out->length;
    for (int s = 1; s < recipe_section_total(more); s++)
        if (strcmp(recipe_section_at(more, s)->name, name) == 0)
            text_add(out, "%s: %s\n\n", name, recipe_section_at(more, s)->help);
    const int row = out->length > before ? -1 : recipe_row_find_dotted(more, name);
    AUTO(text) hint = {0};
    if (out->length == before && row < 0 && recipe_foreign_key("", name, &hint))
        text_add(out, "%s is not a key%s\n", name, hint.chars);
    for (int i = 0; i < recipe_row_total(more); i++) {
        char section[RECIPE_KEY_CHARS];
        snprintf(section, sizeof section, "%.*s", (int)recipe_row_section_length(recipe_row_at(more, i)),
                 recipe_row_at(more, i)->key);
        if (i == row ||
            (row < 0 && (strcmp(section, name) == 0 || recipe_row_find(more, section, name) == i)))
            add_help(recipe_row_at(more, i), out);
    }
    return out->length > before;
}

/* ---- the reference page, continued ---- */

static void add_common(struct text *out)
{
    text_add(out,
             "\n## Common keys\n\nThe keys that most recipes set; the sections below list them again.\n\n%s",
             table_head);
    for (size_t i = 0; i < sizeof common_keys / sizeof *common_keys; i++)
        add_reference_row(&recipe_rows[recipe_row_index(common_keys[i])], common_keys[i], out);
}

/* The common keys first, then every key by section. */
void recipe_reference(const struct recipe_addition *more, struct text *out)
{
    text_add(out, "%s", intro);
    add_common(out);
    for (int s = 0; s < recipe_section_total(more); s++) {
        const struct recipe_section *section = recipe_section_at(more, s);
        text_add(out, "\n## %s%s\n\n%s\n\n%s", section->name, *section->name == 0 ? "Top level" : "",
                 section->help, table_head);
        for (int row = 0; row < recipe_row_total(more); row++)
            if (recipe_row_in_section(recipe_row_at(more, row), section->name))
                add_reference_row(recipe_row_at(more, row), recipe_row_name(recipe_row_at(more, row)), out);
    }
}
