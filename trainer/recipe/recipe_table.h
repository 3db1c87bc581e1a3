// SPDX-License-Identifier: Apache-2.0
/* The table of recipe keys, for the files recipe*.c only: everyone else reads struct recipe.
 *
 *   key "model.num_layers", type ROW_COUNT, field offsetof(struct recipe, model.num_layers), range 1 to
 *   100000, aliases "num_hidden_layers n_layer", and a sentence.
 *
 * Defaults are kept as text and go through the same parser as a user's text, so a default cannot be
 * a value that a user could not write. */
#pragma once

#include "trainer/recipe/recipe.h"

#include "trainer/files/yaml.h"
#include "trainer/plan/profile/profile.h"
#include <sys/types.h>

enum row_type {
    ROW_BASE,    // the file this one is merged over; no field
    ROW_BOOL,    // bool
    ROW_INT,     // int
    ROW_COUNT,   // int64_t
    ROW_REAL,    // double
    ROW_TEXT,    // char *, owned
    ROW_WORD,    // char *, owned: one of the choices
    ROW_CHOICE,  // an enum or int: the value of one of the choices
    ROW_LAYERS,  // struct recipe_layers
    ROW_NAMES,   // struct recipe_names: any text, or of the choices
    ROW_SOURCES, // struct recipe_sources
    ROW_SPLIT,   // double[3]
    ROW_TYPES
};

/* A name that a key takes. Arrays of them end with {0}. */
struct choice {
    const char *name;
    int value;    // of ROW_CHOICE
    bool unbuilt; // known, and refused until something implements it
    bool alias;   // another program's word for a value listed before: read, never written
};

struct recipe_row {
    const char *key;      // "section.name", or "name" at the top
    const char *fallback; // the default as text; NULL: derived, or must be given
    const char *derived;  // how the default is computed, in words; such a key also takes `auto`
    const char *aliases;  // other names inside the section, separated by spaces
    const char *example;  // for a key that must be given, or whose range has an open end
    const char *one_rank; // its value on one rank; NULL: the default of a layout key, else unchanged
    const char *help;
    const struct choice *choices;
    const char *(*names)(
        size_t index); // of ROW_WORD, instead of choices: those of a registry; NULL past the last
    double low, high;  // of numbers, both included ...
    bool above, below; // ... or excluded
    enum row_type type;
    bool optional; // of ROW_TEXT: `none` is a value
    bool unbuilt;  // nothing implements it: only the default is accepted
    bool chosen;   // takes `auto`: a plan chooses the value
    size_t offset;
};

extern const struct recipe_row recipe_rows[];
extern const int recipe_row_count; // at most RECIPE_MOST_ROWS

/* What the keys of a section decide. */
enum section_kind {
    SECTION_MATHEMATICS, // what is computed
    SECTION_LAYOUT,      // where it is computed, which changes no result: one rank uses row->one_rank
    SECTION_RUN          // everything else
};

struct recipe_section {
    const char *name; // "" for the top
    enum section_kind kind;
    const char *help;
    const char *short_for; // the key that a value instead of a mapping sets: `assume: papers`; or NULL
};

enum { RECIPE_MOST_SECTIONS = 32 };
extern const struct recipe_section recipe_sections[];
extern const int recipe_section_count; // at most RECIPE_MOST_SECTIONS

/* ---- finding rows: recipe_row.c ---- */

/* The rows' names in pieces: the section's length ("model" 5, "" 0) and the name after the dot. */
size_t row_section_length(const struct recipe_row *row);
const char *row_name(const struct recipe_row *row);
bool row_in_section(const struct recipe_row *row, const char *section);
/* The kind of its section. */
enum section_kind row_kind(const struct recipe_row *row);

/* Choice `index`, of either kind; false past the last, and for a row without choices. */
bool row_choice(const struct recipe_row *row, size_t index, struct choice *out);
bool row_has_choices(const struct recipe_row *row);
/* "gpipe, 1f1b or zb-h1": the choices that are built. */
void row_choices_text(const struct recipe_row *row, struct text *out);

/* By name or alias inside a section; -1 when there is none. */
int row_find(const char *section, const char *name);
/* By dotted key; alias inside the section allowed ("model.n_layer"), and tp, pp, dp, cp, ep. */
int row_find_dotted(const char *key);
/* The row of any section that is called `name`; -1 when there is none. */
int row_called(const char *name);
/* The row, of any section, with the nearest name; -1 when there is none. */
int row_near(const char *name);
/* For keys written in this program: there is one. */
int row_of(const char *key);

/* ---- values: recipe_value.c ---- */

/* Sets the row's field from `node`. On false the field is as it was and `why` has the sentence after the key:
 * "\"abc\" is not an integer; ...". *automatic: the value is `auto`, of a row that is derived; nothing was
 * stored, or of one that a plan chooses, which has its default then. */
bool value_set(struct recipe *recipe, const struct recipe_row *row, const struct node *node, bool *automatic,
               struct text *why);
/* The default, for a row that has one. */
void value_set_default(struct recipe *recipe, const struct recipe_row *row);
/* The value as YAML, on one line. */
void value_text(const struct recipe *recipe, const struct recipe_row *row, struct text *out);
void value_free(struct recipe *recipe, const struct recipe_row *row);
bool value_is_default(const struct recipe *recipe, const struct recipe_row *row);
/* "an integer from 1 to 100000", "one of gpipe, 1f1b, zb-h1". */
void value_expected(const struct recipe_row *row, struct text *out);

/* ROW_INT and ROW_COUNT only. */
int64_t value_integer(const struct recipe *recipe, const struct recipe_row *row);
void value_set_integer(struct recipe *recipe, const struct recipe_row *row, int64_t value);

/* A number as a person would write it where digits allow: 10000, not 1e+04. */
void text_add_real(struct text *out, double value);

/* ---- checks across keys: recipe_check.c ---- */

/* Fills every value that is derived from others and was not given. world_size 0: alone. */
void recipe_derive(struct recipe *recipe, int world_size);
/* The fields of recipe->layers that are no rows: recipe_memory.c. */
void recipe_derive_layers(struct recipe *recipe);
/* Notes what pipeline.schedule_file is made for, if there is one, so that rules can hold it against the rest;
 * false with a problem when it cannot be used. */
bool recipe_read_schedule(struct recipe *recipe, struct problems *problems);

/* Checks cluster.profile, and fills logging.peak_flops from it where that was not given; false with a problem
 * when the profile cannot be used. */
bool recipe_read_profile(struct recipe *recipe, struct profile_cache *cache, struct problems *problems);

/* ---- names and folders: recipe_paths.c ---- */

/* What the recipe's files say, before the command line changes it; NULL: not given. */
struct recipe_paths {
    char *name, *run_dir;
};
struct recipe_paths recipe_paths_of(const struct recipe *recipe);
void recipe_paths_free(struct recipe_paths *paths);
/* Fills name, logging.run_dir and checkpoint.save where they were not given. `path`: the recipe's. */
void recipe_derive_paths(struct recipe *recipe, const char *path, const struct recipe_paths *in_files,
                         struct problems *problems);

/* Fills keys[RECIPE_MOST_CHOSEN] with the keys that a plan has to choose, and returns their number. */
int recipe_to_choose(const struct recipe *recipe, const char **keys);

/* `parallel: auto` in a file opens what its bases say of the layout. */
void recipe_open_layout(struct recipe *recipe);

/* The index of the first rule that does not hold; -1: all hold. */
int recipe_first_broken(const struct recipe *recipe, int world_size);
/* Adds a problem for each rule that does not hold; rules that read a row in `bad` are left out. */
void recipe_check(const struct recipe *recipe, int world_size, const bool bad[RECIPE_MOST_ROWS],
                  struct problems *problems);

/* ---- loading: recipe.c ---- */

struct recipe_loader {
    struct recipe *recipe;
    struct problems *problems;
    const char *text; // of the first file; NULL: it is read
    bool quiet;       // no warnings
    bool complete;    // all files were read
    bool bad[RECIPE_MOST_ROWS];
    struct recipe_paths in_files;
    struct profile_cache profile;
};
/* Fills a recipe of zeros with the defaults, the files and the overrides, in this order. */
void recipe_read(struct recipe_loader *loader, const char *path, const char *const *overrides,
                 size_t override_count);
/* Then adds what is derived from that, before the rules are checked. */
void recipe_complete(struct recipe_loader *loader, const char *path, int world_size);
/* For a recipe without errors: warnings about values that are ignored or changed, and the origins of derived
 * values. */
void recipe_settle(struct recipe_loader *loader);
/* Frees all but the recipe. */
void recipe_loader_free(struct recipe_loader *loader);

/* Adds a problem for each missing file that the recipe names and its run reads. schedule: also for the file
 * of the schedule, which otherwise has been read already. */
void recipe_check_files(const struct recipe *recipe, bool schedule, struct problems *problems);
/* The missing feature that an unknown key would set, if it is a known one ("mixture of experts is not
 * implemented"); else NULL. */
const char *recipe_missing_feature(const char *name);

/* The one of names[0..count) that a value means: by what other programs call it, or else the nearest; NULL.
 */
const char *recipe_near_choice(const char *value, const char *const *names, size_t count);

/* Warns about keys that have no effect: recipe_unused.c. */
void recipe_warn_unused(const struct recipe *recipe, struct problems *problems);
/* On a GPU, or a dry device that models one, warns of rows that slow matrix multiplications down:
 * recipe_alignment.c. */
void recipe_warn_alignment(const struct recipe *recipe, struct problems *problems);

/* "recipes/a.yaml:12", "command line" or the recipe's path. */
void origin_text(const struct recipe *recipe, int row, struct text *out);
