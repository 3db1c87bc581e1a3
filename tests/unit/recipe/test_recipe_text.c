// SPDX-License-Identifier: Apache-2.0
/* Recipes as text: the resolved recipe, the reference page, the recipes of the repository; and random
 * bytes, which must be handled safely. */
#include "tests/unit/recipe/recipe_case.h"

#include "base/philox.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/commands.h"
#include "trainer/recipe/recipe_table.h"

#include <glob.h>

static struct text resolved(const struct recipe *recipe)
{
    struct text text = {0};
    recipe_resolved_text(recipe, &text);
    return text;
}

/* The text without its comments, which contain the origin of a value and so differ. */
static struct text without_comments(const struct text *text)
{
    struct text out = {0};
    for (const char *line = text_chars(text); *line != 0;) {
        size_t length = strcspn(line, "\n");
        const char *comment = NULL;
        for (const char *at = line; (at = strstr(at, " # ")) != NULL && at < line + length; at++)
            comment = at; // the last, because a value may hold one
        text_add(&out, "%.*s\n", (int)(comment != NULL ? comment - line : (long)length), line);
        line += length + (line[length] == '\n' ? 1 : 0);
    }
    return out;
}

static void expect_round_trip(const struct recipe *recipe)
{
    struct text first = resolved(recipe);
    struct loaded again = load(first.chars, NULL, recipe_world_size(recipe));
    cr_assert_str_eq(text_chars(&again.messages), "", "%s\ngives %s", first.chars,
                     text_chars(&again.messages));
    struct text second = resolved(again.recipe);
    struct text a = without_comments(&first), b = without_comments(&second);
    cr_assert_str_eq(a.chars, b.chars);
    text_free(&a);
    text_free(&b);
    text_free(&first);
    text_free(&second);
    loaded_free(&again);
}

/* Expects these messages when `now` resumes a run of `then`, both the smallest recipe with overrides. */
static void expect_changes(const char *const *then, const char *const *now, const char *expected)
{
    struct loaded a = load(SMALL, then, 0), b = load(SMALL, now, 0);
    struct problems problems = {0};
    struct text messages = {0};
    recipe_changes(a.recipe, b.recipe, "it", &problems);
    for (size_t i = 0; i < problems.count; i++)
        text_add(&messages, "%s\n", problems.list[i].text);
    cr_expect_eq(problems.errors, 0);
    cr_expect_str_eq(text_chars(&messages), expected);
    text_free(&messages);
    problems_free(&problems);
    loaded_free(&a);
    loaded_free(&b);
}

Test(recipe_text, reports_changes_of_the_mathematics)
{
    const char *const nothing[] = {NULL};
    const char *const elsewhere[] = {"tp=2",
                                     "pp=2",
                                     "train.train_iters=20",
                                     "name=other",
                                     "checkpoint.keep_last=2",
                                     "optimizer.lr_decay_style=constant",
                                     NULL};
    const char *const constant[] = {"optimizer.lr_decay_style=constant", NULL};
    const char *const weights[] = {"optimizer.weight_decay=0.5",
                                   "data.train=[{path: d, weight: 1}, {path: e, weight: 2}]",
                                   "model.make_vocab_size_divisible_by=128", NULL};
    const char *const base[] = {"model.rotary_base=500", NULL};
    const char *const rope[] = {"model.rotary_base=500", "model.position_embedding_type=rope", NULL};
    expect_changes(nothing, nothing, "");
    expect_changes(nothing, base, ""); // of no use before or after
    expect_changes(nothing, rope,
                   "it: model.position_embedding_type changed from learned_absolute to rope\n"
                   "it: model.rotary_base changed from 10000 to 500\n");
    expect_changes(constant, elsewhere, ""); // and a constant schedule does not read the end of the decay
    expect_changes(nothing, weights,
                   "it: optimizer.weight_decay changed from 0.01 to 0.5\n"
                   "it: data.train changed from [{path: d, weight: 1}] to [{path: d, weight: 1}, "
                   "{path: e, weight: 2}]\n");
}

Test(recipe_text, written_recipes_round_trip)
{
    static const char *const cases[][8] = {
        {NULL},
        {"tp=2", "pp=2", "dp=2", "parallel.sequence_parallel=true", "pipeline.layout=[3, 1]", NULL},
        {"optimizer.lr=0.1234567890123456789", "optimizer.adam_eps=1e-30", "seed=9000000000000000", NULL},
        {"name=\"auto\"", "logging.run_dir=\"none\"", "checkpoint.save=\"auto\"", "checkpoint.load=\"none\"",
         NULL},
        {"name=a b: #c", "logging.run_dir=-x\\\"y'", "data.train=[{path: 'a, ]b}', weight: 0.25}, ~/d]",
         NULL},
        {"name=\xc3\xa9t\xc3\xa9", "checkpoint.save=none", "checkpoint.load=none", "data.valid=[]", NULL},
        {"data.valid=[v, w]", "train.eval_interval=3", "resilience.exit_signal=none", NULL},
        {"resilience.exit_signal=[SIGUSR2, SIGINT]", "checkpoint.save_minutes=0.5", NULL},
        {"tokenizer.tokenizer_type=GPT2BPE", "tokenizer.vocab_file=true", "tokenizer.merge_file=1.5", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loaded l = load(SMALL, cases[i], 0);
        cr_assert_str_eq(text_chars(&l.messages), "", "case %zu: %s", i, text_chars(&l.messages));
        expect_round_trip(l.recipe);
        loaded_free(&l);
    }
}

/* Expects these folders for a run that is started from a saved recipe with overrides. */
static void expect_folders(const char *saved, const char *const *overrides, const char *run_dir,
                           const char *save, const char *warning)
{
    struct loaded l = load(saved, overrides, 0);
    cr_expect_str_eq(l.recipe->logging.run_dir, run_dir);
    cr_expect_str_eq(l.recipe->checkpoint.save, save);
    cr_expect(strstr(text_chars(&l.messages), warning) != NULL && (*warning != 0 || l.messages.length == 0),
              "not \"%s\" but \"%s\"", warning, text_chars(&l.messages));
    loaded_free(&l);
}

Test(recipe_text, a_saved_recipe_does_not_reuse_the_run_directory)
{
    const char *const again[] = {"logging.run_dir=runs/again", NULL}, *const renamed[] = {"name=again", NULL},
                      *const nothing[] = {NULL},
                      *const kept[] = {"logging.run_dir=runs/again", "checkpoint.save=runs/base/checkpoints",
                                       NULL};
    struct loaded base = load("name: base\n" SMALL, nothing, 0);
    struct text saved = resolved(base.recipe);
    cr_expect_not_null(strstr(saved.chars, "  save: auto                                   # derived: "
                                           "runs/base/checkpoints\n"));
    cr_expect_not_null(
        strstr(saved.chars, "  run_dir: auto                                # derived: runs/base\n"));
    expect_folders(saved.chars, nothing, "runs/base", "runs/base/checkpoints", "");
    expect_folders(saved.chars, again, "runs/again", "runs/again/checkpoints", "");
    expect_folders(saved.chars, renamed, "runs/again", "runs/again/checkpoints", "");
    expect_folders(saved.chars, kept, "runs/again", "runs/base/checkpoints", "");
    // Earlier versions wrote the paths themselves.
    static const char old[] = "name: base\n" SMALL "logging: {run_dir: runs/base}\n"
                              "checkpoint: {save: runs/base/checkpoints}\n";
    expect_folders(old, nothing, "runs/base", "runs/base/checkpoints", "");
    expect_folders(old, again, "runs/again", "runs/again/checkpoints",
                   "checkpoint.save runs/base/checkpoints is derived from the logging.run_dir of that file");
    expect_folders(old, renamed, "runs/again", "runs/again/checkpoints",
                   "logging.run_dir runs/base is derived from the name of that file");
    expect_folders(old, kept, "runs/again", "runs/base/checkpoints", "");
    // An explicit folder is kept.
    static const char own[] = "name: base\n" SMALL "logging: {run_dir: runs/base}\n"
                              "checkpoint: {save: elsewhere}\n";
    expect_folders(own, again, "runs/again", "elsewhere", "");
    text_free(&saved);
    loaded_free(&base);
}

Test(recipe_text, strings_that_look_like_keywords_stay_strings)
{
    struct loaded l =
        load(SMALL, (const char *const[]){"logging.run_dir=\"auto\"", "checkpoint.load=\"none\"", NULL}, 0);
    cr_assert_str_eq(l.recipe->logging.run_dir, "auto");
    cr_assert_str_eq(l.recipe->checkpoint.load, "none");
    struct text text = resolved(l.recipe);
    struct loaded again = load(text.chars, NULL, 0);
    cr_assert_str_eq(again.recipe->logging.run_dir, "auto");
    cr_assert_str_eq(again.recipe->checkpoint.load, "none");
    text_free(&text);
    loaded_free(&l);
    loaded_free(&again);
}

Test(recipe_text, every_key_has_its_origin)
{
    struct loaded l = load("name: x\n" SMALL "parallel: {sequence_parallel: true}\n",
                           (const char *const[]){"train.train_iters=20", NULL}, 0);
    struct text text = resolved(l.recipe);
    cr_assert_not_null(strstr(text.chars, "seed: 1234                                     # default\n"));
    cr_assert_not_null(strstr(text.chars, "  train_iters: 20                              # command line\n"));
    cr_assert_not_null(strstr(text.chars, "  lr_decay_iters: 20                           # derived\n"));
    cr_assert_not_null(strstr(text.chars, "  sequence_parallel: false                     # derived\n"));
    const char *layers = strstr(text.chars, "  num_layers: 4 ");
    cr_assert_not_null(layers);
    cr_assert_not_null(strstr(layers, "# /tmp/cuboid-recipe-"));
    cr_assert_eq(strstr(strstr(layers, "# /tmp/cuboid-recipe-"), ":2\n") - strstr(layers, "# /tmp"),
                 (long)strlen("# /tmp/cuboid-recipe-XXXXXX"));
    // As many lines as the sections of the page have rows, except for `base`.
    size_t keys = 0, rows = 0;
    for (const char *at = text.chars; (at = strstr(at, " # ")) != NULL; at++)
        keys++;
    struct text page = {0};
    recipe_reference(&planner_keys, &page);
    for (const char *at = strstr(page.chars, "\n## Top level\n"); (at = strstr(at, "\n| `")) != NULL; at++)
        rows++;
    cr_assert(rows == (size_t)recipe_row_total(&planner_keys) && keys == rows - 1, "%zu rows, %zu keys", rows,
              keys);
    text_free(&page);
    text_free(&text);
    loaded_free(&l);
}

Test(recipe_text, the_reference_page_is_current)
{
    struct text page = {0}, file = {0};
    recipe_reference(&planner_keys, &page);
    cr_assert_eq(file_read(SOURCE_ROOT "/docs/recipe.md", &file), OK, "%s", fail_text());
    cr_assert(strcmp(page.chars, text_chars(&file)) == 0,
              "docs/recipe.md is not current; run: cuboid recipe --reference > docs/recipe.md");
    text_free(&page);
    text_free(&file);
}

/* A key that accepts one value has no place in it. */
Test(recipe_text, the_reference_page_has_common_keys_first)
{
    struct text page = {0};
    recipe_reference(&planner_keys, &page);
    const char *common = strstr(page.chars, "\n## Common keys\n"),
               *top = strstr(page.chars, "\n## Top level\n");
    cr_assert(common != NULL && common < top && top < strstr(page.chars, "\n## cluster\n"));
    cr_assert(strstr(page.chars, "\n| `optimizer.lr` |") < top && strstr(top, "\n| `lr` |") != NULL);
    for (int row = 0; row < recipe_row_count; row++) {
        struct choice first, second;
        if (recipe_row_has_choices(&recipe_rows[row]) && recipe_row_choice(&recipe_rows[row], 0, &first))
            cr_assert(recipe_row_choice(&recipe_rows[row], 1, &second), "%s accepts only %s",
                      recipe_rows[row].key, first.name);
    }
    text_free(&page);
}

Test(recipe_text, every_recipe_of_the_repository_loads)
{
    glob_t found = {0};
    const char *const dry[] = {"cluster.device=dry"}; // a build without CUDA has no device for some of them
    cr_assert_eq(glob(SOURCE_ROOT "/recipes/*.yaml", 0, NULL, &found), 0);
    cr_assert_eq(glob(SOURCE_ROOT "/recipes/base/*.yaml", GLOB_APPEND, NULL, &found), 0);
    cr_assert_geq(found.gl_pathc, 8);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct recipe *recipe = NULL;
        struct problems problems = {0};
        enum status status = planned_recipe_load(found.gl_pathv[i], dry, 1, 0, &recipe, &problems);
        problems_print(&problems, stderr);
        cr_assert(status == OK && problems.count == 0, "%s", found.gl_pathv[i]);
        expect_round_trip(recipe);
        problems_free(&problems);
        recipe_destroy(recipe);
    }
    globfree(&found);
}

Test(recipe_text, the_table_is_consistent)
{
    size_t in_sections = 0;
    for (int s = 0; s < recipe_section_total(&planner_keys); s++)
        for (int i = 0; i < recipe_row_total(&planner_keys); i++)
            in_sections += recipe_row_in_section(recipe_row_at(&planner_keys, i),
                                                 recipe_section_at(&planner_keys, s)->name)
                               ? 1
                               : 0;
    cr_assert_eq((int)in_sections, recipe_row_total(&planner_keys), "every row is in one section");
    for (int i = 0; i < recipe_row_total(&planner_keys); i++) {
        const struct recipe_row *row = recipe_row_at(&planner_keys, i);
        cr_assert_eq(recipe_row_find_dotted(&planner_keys, row->key), i, "%s is listed twice", row->key);
        cr_assert(strlen(row->help) > 0 && row->help[strlen(row->help) - 1] == '.', "%s", row->key);
        cr_assert_eq(strchr(row->help, '|'), NULL, "%s would break the page's table", row->key);
        // A key is given, derived or has a default.
        cr_assert(row->fallback != NULL || row->derived != NULL || row->example != NULL, "%s", row->key);
        // An alias maps to this key only.
        for (const char *at = row->aliases; at != NULL && *at != 0; at += strspn(at, " ")) {
            char alias[64], section[32];
            size_t length = strcspn(at, " ");
            snprintf(alias, sizeof alias, "%.*s", (int)length, at);
            snprintf(section, sizeof section, "%.*s", (int)recipe_row_section_length(row), row->key);
            cr_assert_eq(recipe_row_find(&planner_keys, section, alias), i,
                         "%s is also an alias of another key", alias);
            at += length;
        }
    }
}

/* verify compares a layout with one rank, so every layout key needs a value on one rank. */
Test(recipe_text, every_layout_key_has_a_value_on_one_rank)
{
    static const char *const sections[] = {"parallel", "pipeline", "memory"};
    int layout_keys = 0;
    for (int i = 0; i < recipe_row_count; i++) {
        const struct recipe_row *row = &recipe_rows[i];
        bool layout = false;
        for (size_t s = 0; s < sizeof sections / sizeof *sections; s++)
            layout = layout || recipe_row_in_section(row, sections[s]);
        cr_assert_eq(recipe_row_section_kind(row) == SECTION_LAYOUT, layout, "%s", row->key);
        bool counts_nodes =
            strcmp(row->key, "cluster.nodes") == 0 || strcmp(row->key, "cluster.gpus_per_node") == 0;
        cr_assert(layout ? row->one_rank != NULL || row->fallback != NULL
                         : (row->one_rank != NULL) == counts_nodes,
                  "%s", row->key);
        struct text override = {0}, key = {0};
        if (layout || counts_nodes) {
            cr_assert(recipe_one_rank_override(layout_keys++, &override));
            text_add(&key, "%s=", row->key);
            cr_assert_eq(strncmp(override.chars, key.chars, key.length), 0, "%s", override.chars);
        }
        text_free(&override);
        text_free(&key);
    }
    struct text none = {0};
    cr_assert(!recipe_one_rank_override(layout_keys, &none));
}

/* The names that a user may select, including those that this build does not contain. */
Test(recipe_text, names_come_from_the_registries)
{
    static const char *const keys[] = {"pipeline.schedule", "cluster.device", "cluster.dry_device",
                                       "cluster.transport"};
    static const char *const names[] = {
        ("gpipe, looped-bfs, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe, dualpipev, auto "
         "or file"),
        "cpu, strict, dry or cuda", "cpu or cuda", "auto, local, mpi or nccl"};
    for (int i = 0; i < 4; i++) {
        struct text choices = {0};
        recipe_row_choices_text(&recipe_rows[recipe_row_index(keys[i])], &choices);
        cr_assert_str_eq(choices.chars, names[i]);
        text_free(&choices);
    }
}

/* ---- any byte may be wrong ---- */

static void load_any_bytes(const char *bytes, size_t length)
{
    struct loaded l = load_bytes(bytes, length, NULL, 0);
    for (const char *c = text_chars(&l.messages); *c != 0; c++)
        cr_assert((unsigned char)*c >= 0x20 || *c == '\n', "a control character in %s",
                  text_chars(&l.messages));
    cr_assert(l.errors == 0 || l.messages.length > 0);
    if (l.recipe != NULL)
        expect_round_trip(l.recipe);
    loaded_free(&l);
}

Test(recipe_text, random_changes_of_a_recipe_never_crash)
{
    struct philox random = philox_named(11, "mutations");
    struct text original = {0};
    cr_assert_eq(file_read(SOURCE_ROOT "/recipes/quickstart.yaml", &original), OK);
    // Bytes with a meaning in YAML are more frequent than in random text.
    static const char special[] = "\0\t\n\r :#-?[]{},&*!|>'\"%@`<~0\x7f\x80\xc2\xe2\xff\xfe.e+_";
    for (uint64_t n = 0; n < 2000; n++) {
        char *bytes = malloc(original.length * 2 + 1);
        memcpy(bytes, original.chars, original.length);
        size_t length = original.length;
        uint32_t changes = 1 + philox_word(random, n, 0) % 4;
        for (uint32_t c = 0; c < changes; c++) {
            uint32_t kind = philox_word(random, n, 8 * c + 1) % 4, value = philox_word(random, n, 8 * c + 2);
            size_t at = philox_word(random, n, 8 * c + 3) % length, size = 1 + value % 40;
            if (kind == 0)
                bytes[at] = (char)(value >> 8);
            else if (kind == 1)
                bytes[at] = special[value % (sizeof special - 1)];
            else if (kind == 2 && at + size < length) { // a part is removed
                memmove(bytes + at, bytes + at + size, length - at - size);
                length -= size;
            } else if (kind == 3 && at + size < length &&
                       length + size < original.length * 2) { // or repeated
                memmove(bytes + at + size, bytes + at, length - at);
                length += size;
            }
        }
        if (philox_word(random, n, 100) % 8 == 0)
            length = philox_word(random, n, 101) % length; // truncated
        load_any_bytes(bytes, length);
        free(bytes);
    }
    text_free(&original);
}

Test(recipe_text, random_overrides_never_crash)
{
    struct philox random = philox_named(12, "overrides");
    static const char alphabet[] = "=.[]{},:'\"0123456789abcdeltpn_-+~#& \t\n\xc3\xff";
    static const char *const starts[] = {
        "tp=", "pipeline.layout=", "data.train=",  "data.split=", "name=", "seed=", "optimizer.lr=",
        "",    "model.",           "data.train=[{"};
    for (uint64_t n = 0; n < 2000; n++) {
        char override[64] = "";
        uint32_t start = philox_word(random, n, 0) % (sizeof starts / sizeof *starts);
        size_t length = strlen(starts[start]), end = length + philox_word(random, n, 1) % 24;
        memcpy(override, starts[start], length);
        for (; length < end; length++)
            override[length] = alphabet[philox_word(random, n, 2 + length) % (sizeof alphabet - 1)];
        struct loaded l = load(SMALL, (const char *const[]){override, NULL}, 0);
        if (l.recipe != NULL)
            expect_round_trip(l.recipe);
        loaded_free(&l);
    }
}

/* ---- the command ---- */

Test(recipe_text, invalid_usage_exits_with_2)
{
    char *none[] = {"recipe", NULL}, *option[] = {"recipe", "--verbose", NULL},
         *missing[] = {"recipe", "/nonexistent.yaml", NULL},
         *bad[] = {"recipe", SOURCE_ROOT "/recipes/quickstart.yaml", "tp=7", NULL},
         *good[] = {"recipe", SOURCE_ROOT "/recipes/quickstart.yaml", "tp=1", NULL};
    cr_assert_eq(cmd_recipe(1, none), 2);
    cr_assert_eq(cmd_recipe(2, option), 2);
    cr_assert_eq(cmd_recipe(2, missing), 2);
    cr_assert_eq(cmd_recipe(3, bad), 2);
    cr_assert_eq(cmd_recipe(3, good), 0);
}
