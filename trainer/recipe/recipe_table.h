// SPDX-License-Identifier: Apache-2.0
/* The table of recipe keys (keys/), private to recipe*.c and planner: other code reads struct recipe.
 *
 *   key "model.num_layers", type ROW_COUNT, field offsetof(struct recipe, model.num_layers), range 1 to
 *   100000, aliases "num_hidden_layers n_layer", and a help text.
 *
 * Defaults are kept as text and go through the same parser as a user's text, so a default cannot be
 * a value that a user could not write. */
#pragma once

#include "trainer/recipe/recipe.h"

#include "trainer/files/yaml.h"
#include <sys/types.h>

enum row_type {
    ROW_BASE,    // `base`: the file over which this one is merged; no field
    ROW_BOOL,    // bool
    ROW_INT,     // int
    ROW_COUNT,   // int64_t
    ROW_REAL,    // double
    ROW_TEXT,    // char *, owned
    ROW_WORD,    // char *, owned: one of the choices
    ROW_CHOICE,  // an enum or int: the value of one of the choices
    ROW_LAYERS,  // struct layer_list
    ROW_NAMES,   // struct recipe_names: any text, or of the choices
    ROW_SOURCES, // struct recipe_sources
    ROW_SPLIT,   // double[3]
    ROW_TYPES
};

/* A named value of a key. Arrays end with {0}. */
struct choice {
    const char *name;
    int value;  // of ROW_CHOICE
    bool alias; // name used by another program for a previous value: read, never written
};

struct recipe_row {
    const char *key;      // "section.name", or "name" at the top
    const char *fallback; // the default as text; NULL: derived, or must be given
    const char *derived;  // description of how the default is computed; such a key also takes `auto`
    const char *aliases;  // other names inside the section, separated by spaces
    const char *example;  // for a required key, or one whose range has an open end
    const char *one_rank; // value on one rank; NULL: the default for a layout key, else unchanged
    const char *help;
    const struct choice *choices;
    /* For ROW_WORD, instead of choices: the names of a registry; NULL past the last. */
    const char *(*names)(size_t index);
    double low, high;  // range of numbers, both ends included; `high` of a text: its characters, 0: 4096 ...
    bool above, below; // ... or excluded
    bool or_zero;      // 0 is valid, too
    bool short_form;   // of quantities: integers, too, may have an exponent, as all are written: 3.12e14
    enum row_type type;
    bool optional;    // ROW_TEXT: `none` is a value
    bool chosen;      // takes `auto`: a plan chooses the value
    bool single;      // ROW_LAYERS: takes an integer in place of a list
    bool mathematics; // its change is reported, as of a key of SECTION_MATHEMATICS ...
    bool neutral;     // ... or not, although it is one: padding, a kernel, what only a new run reads
    bool added;       // the field is in recipe->added (struct recipe_addition)
    size_t offset;
};

extern const struct recipe_row recipe_rows[];
extern const int recipe_row_count; // at most RECIPE_MAX_ROWS, with those of an addition

/* What the keys of a section determine. */
enum section_kind {
    SECTION_MATHEMATICS, // what is computed
    SECTION_LAYOUT,      // where it is computed, which changes no result: one rank uses row->one_rank
    SECTION_RUN,         // everything else
    SECTION_ADDED        // of a program above the trainer
};

struct recipe_section {
    const char *name; // "" for the top
    enum section_kind kind;
    const char *help;
    const char *short_for; // the key set by a value in place of the mapping: `assume: papers`; or NULL
};

enum { RECIPE_MAX_SECTIONS = 32 };
extern const struct recipe_section recipe_sections[];
extern const int recipe_section_count; // below RECIPE_MAX_SECTIONS

/* A section that a program above the trainer adds to its recipes, and what it derives. A row sets a field of
 * the program's own struct, recipe->added, or one of the recipe that no other key sets. */
struct recipe_addition {
    struct recipe_section section;
    const struct recipe_row *rows;
    int row_count;
    size_t size;               // of recipe->added, which holds no pointers
    const struct rules *rules; // across keys
    /* Fills values before those of the recipe are derived. False with a problem if cluster.profile cannot be
     * used. *kept is NULL at first, and kept from one variant of a recipe to the next. */
    bool (*complete)(struct recipe *recipe, void **kept, struct problems *problems);
    void (*release)(void *kept);
    /* Fills values once those of the recipe are derived. */
    void (*derive)(struct recipe *recipe);
};

/* The rows and sections of the recipe, then those of an addition; NULL: none. */
int recipe_row_total(const struct recipe_addition *more);
const struct recipe_row *recipe_row_at(const struct recipe_addition *more, int row);
int recipe_section_total(const struct recipe_addition *more);
const struct recipe_section *recipe_section_at(const struct recipe_addition *more, int section);

/* ---- finding rows: recipe_row.c ---- */

/* The parts of a row's key: the length of the section ("model" 5, "" 0), and the name after the dot. */
size_t recipe_row_section_length(const struct recipe_row *row);
const char *recipe_row_name(const struct recipe_row *row);
bool recipe_row_in_section(const struct recipe_row *row, const char *section);
/* The kind of the row's section. */
enum section_kind recipe_row_section_kind(const struct recipe_row *row); // of the recipe's own rows

/* Choice `index`, of either kind; false past the last, and for a row without choices. */
bool recipe_row_choice(const struct recipe_row *row, size_t index, struct choice *out);
bool recipe_row_has_choices(const struct recipe_row *row);
/* Appends the implemented choices: "gpipe, 1f1b or zb-h1". */
void recipe_row_choices_text(const struct recipe_row *row, struct text *out);

/* Finds a row by name or alias inside a section; -1: none. */
int recipe_row_find(const struct recipe_addition *more, const char *section, const char *name);
/* Finds a row by dotted key, also with an alias ("model.n_layer"), or by a name or alias without section that
 * only one row has ("tp", "lr"; those of an addition do not count); -1: none. */
int recipe_row_find_dotted(const struct recipe_addition *more, const char *key);
/* Finds a row by name in any section; -1: none. */
int recipe_row_find_any_section(const struct recipe_addition *more, const char *name);
/* Finds the row with the nearest name in any section; -1: none is near. */
int recipe_row_nearest(const struct recipe_addition *more, const char *name);
/* Index of the recipe's own row of a full key that exists: a literal in this program. */
int recipe_row_index(const char *key);

/* ---- a field of a row, in a struct of any kind: recipe_value.c, recipe_field.c ---- */

/* Parses into a field that is empty. On failure returns false, and appends the rest of a sentence that begins
 * with the key: "\"abc\" is not an integer; ...". */
bool row_parse(const struct recipe_row *row, const struct node *node, void *field, struct text *why);
/* The same, but leaves the field unchanged on failure. *automatic: the value is `auto`: nothing is stored for
 * a derived row, and the default for a row that a plan chooses. */
bool row_set(const struct recipe_row *row, const struct node *node, void *field, bool *automatic,
             struct text *why);
void row_set_default(const struct recipe_row *row, void *field);
/* Appends the value as YAML, on one line. */
void row_text(const struct recipe_row *row, const void *field, struct text *out);
void row_free(const struct recipe_row *row, void *field);

/* ---- of a recipe: recipe_field.c ---- */

bool recipe_value_set(struct recipe *recipe, const struct recipe_row *row, const struct node *node,
                      bool *automatic, struct text *why);
/* Sets the default of a row that has one. */
void recipe_value_set_default(struct recipe *recipe, const struct recipe_row *row);
/* Appends the value as YAML, on one line. */
void recipe_value_text(const struct recipe *recipe, const struct recipe_row *row, struct text *out);
void recipe_value_free(struct recipe *recipe, const struct recipe_row *row);
/* The field of a row. */
void *recipe_field(const struct recipe *recipe, const struct recipe_row *row);
bool recipe_value_is_default(const struct recipe *recipe, const struct recipe_row *row);
/* Whether a number is within the range; false for NaN. */
bool row_in_range(const struct recipe_row *row, double value);
/* Appends the expected values: "an integer from 1 to 100000", "one of gpipe, 1f1b, zb-h1". */
void recipe_value_expected(const struct recipe_row *row, struct text *out);

/* ROW_INT and ROW_COUNT only. */
int64_t recipe_value_integer(const struct recipe *recipe, const struct recipe_row *row);
void recipe_value_set_integer(struct recipe *recipe, const struct recipe_row *row, int64_t value);

/* Appends a number without an exponent where possible: 10000, not 1e+04. */
void text_add_real(struct text *out, double value);

/* ---- checks across keys: recipe_check.c ---- */

/* Fills every value that is derived from others and was not given. world_size 0: no launcher. */
void recipe_derive(struct recipe *recipe, int world_size);
/* Fills the fields of recipe->layers that are not rows of the table: recipe_precision.c. */
void recipe_derive_layers(struct recipe *recipe);
/* Reads the sizes of pipeline.schedule_file, if given, so that rules can compare them with other keys; false
 * with a problem if it cannot be used. */
bool recipe_read_schedule(struct recipe *recipe, struct problems *problems);

/* ---- names and folders: recipe_paths.c ---- */

/* Values given in the recipe's files, before the command line changes them; NULL: not given. */
struct recipe_paths {
    char *name, *run_dir;
};
struct recipe_paths recipe_paths_of(const struct recipe *recipe);
void recipe_paths_free(struct recipe_paths *paths);
/* Fills name, logging.run_dir and checkpoint.save unless given. path: of the recipe. */
void recipe_derive_paths(struct recipe *recipe, const char *path, const struct recipe_paths *in_files,
                         struct problems *problems);

/* Fills keys[RECIPE_MAX_CHOSEN] with the open keys, whose values a plan has to choose; returns their
 * number. */
int recipe_open_keys(const struct recipe *recipe, const char **keys);

/* With `parallel: auto` in a file, the layout keys set in its bases become open. */
void recipe_open_layout(struct recipe *recipe);

/* The index of the first rule that does not hold; -1: all hold. */
int recipe_first_violation(const struct recipe *recipe, int world_size);
/* Adds a problem for each rule that does not hold; rules that read a row in `bad` are left out. */
void recipe_check(const struct recipe *recipe, int world_size, const bool bad[RECIPE_MAX_ROWS],
                  struct problems *problems);

/* ---- loading: recipe.c ---- */

/* The size of the vocabulary that was read last; {0}: none yet. */
struct vocabulary_cache {
    char *files; // its type and paths
    int64_t size;
};
void vocabulary_cache_free(struct vocabulary_cache *cache);
/* Sets recipe->tokenizer.vocab_size if model.vocab_size is not given and the tokenizer's files exist. Returns
 * false and adds a problem if they are invalid. */
bool recipe_read_vocabulary(struct recipe *recipe, struct vocabulary_cache *cache, struct problems *problems);

/* An empty recipe with the fields of an addition. */
struct recipe *recipe_create(const struct recipe_addition *more);

struct recipe_loader {
    struct recipe *recipe;
    struct problems *problems;
    const char *text; // of the first file; NULL: read it
    bool quiet;       // no warnings
    bool complete;    // all files were read
    bool bad[RECIPE_MAX_ROWS];
    struct recipe_paths in_files;
    void *kept; // of the addition
    struct vocabulary_cache vocabulary;
};
/* Fills a recipe of zeros with the defaults, the files and the overrides, in this order. */
void recipe_read(struct recipe_loader *loader, const char *path, const char *const *overrides,
                 size_t override_count);
/* Then fills the derived values. Call it before the rules are checked. */
void recipe_complete(struct recipe_loader *loader, const char *path, int world_size);
/* For a recipe without errors: adds warnings about values that are ignored or changed, and sets the origins
 * of derived values. */
void recipe_finalize(struct recipe_loader *loader);
/* Frees all but the recipe. */
void recipe_loader_free(struct recipe_loader *loader, const struct recipe_addition *more);

/* Names datasets by their prefix where one of their two files was named. */
void recipe_strip_sources(struct recipe *recipe);
/* Adds a problem for each missing file that the recipe names and a run reads. schedule: also checks the
 * schedule file, unless it has been read already. */
void recipe_check_files(const struct recipe *recipe, bool schedule, struct problems *problems);
/* Appends "; did you mean quickstart.yaml?" if `path` does not exist, and its folder has one of a similar
 * name. */
void recipe_near_file(const char *path, struct text *hint);
/* Whether the name of an unknown key in a section ("": none) is one of another program. Appends what to use
 * instead, "; use optimizer.lr", or that the feature is missing. */
bool recipe_foreign_key(const char *section, const char *name, struct text *hint);
/* The value of an unknown key that asks for nothing, so that it is accepted: "1" for a context-parallel
 * degree. NULL: none. */
const char *recipe_only_value(const char *section, const char *name);

/* The one of names[0..count) that a value probably means: by its name in other programs, or else the nearest;
 * or NULL. */
const char *recipe_near_choice(const char *value, const char *const *names, size_t count);

/* Warns about keys that have no effect, by the conditions in their rows: recipe_unused.c. */
void recipe_warn_unused(const struct recipe *recipe, struct problems *problems);
/* Whether this key has no effect in the recipe. */
bool recipe_key_is_unused(const struct recipe *recipe, const char *key);
/* On a GPU, or a dry device that simulates one, warns about matrix rows whose length slows down matrix
 * multiplications: recipe_alignment.c. */
void recipe_warn_alignment(const struct recipe *recipe, struct problems *problems);
/* There, warns that low-precision formats are simulated, and slow: recipe_precision.c. */
void recipe_warn_simulated(const struct recipe *recipe, struct problems *problems);

/* "recipes/a.yaml:12", "command line" or the recipe's path. */
void recipe_origin_text(const struct recipe *recipe, int row, struct text *out);
