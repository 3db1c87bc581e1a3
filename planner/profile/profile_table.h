// SPDX-License-Identifier: Apache-2.0
/* The table of profile keys, private to profile_*.c and the fit: other code reads struct cluster_profile.
 *
 *   key "model.matmul_efficiency", type ROW_REAL, field offsetof(struct cluster_profile, ...), unit "1",
 *   range above 0 to 1, default "0.8", meaning, source of the default. */
#pragma once

#include "planner/profile/profile.h"
#include "trainer/recipe/recipe_table.h"

/* When a key without a default is required. */
enum requirement { ALWAYS, IF_SEVERAL_DEVICES, IF_NETWORK };

struct profile_row {
    const char *key;      // "section.name", or "name" at the top
    const char *fallback; // the default as text; NULL: required
    const char *unit;     // "" for texts; "1" for a fraction
    const char *help;
    const char *source; // of the default of an efficiency parameter
    double spread;      // of an efficiency parameter: e^spread is a standard deviation; 0: not fitted
    bool of_device;     // an efficiency parameter of the device, not of the network or the program
    double low, high;   // of numbers, inclusive
    bool above;         // low is excluded
    bool or_zero;       // 0 is valid, too: "none"
    enum row_type type; // ROW_TEXT, _BOOL, _INT, _COUNT, _REAL; ROW_NAMES: keys of the section `model`
    enum requirement required;
    size_t offset;
};

extern const struct profile_row profile_rows[];
extern const int profile_row_count; // at most PROFILE_MAX_ROWS

struct profile_section {
    const char *name; // "" for the top
    const char *help;
};
extern const struct profile_section profile_sections[];
extern const int profile_section_count;

/* A kind of measured table. */
struct measured_kind {
    const char *name;                      // "all_reduce"
    const char *columns[MEASURED_COLUMNS]; // names of the shape; NULL past the last
    bool has_op, has_dtype;
    bool has_threads;         // optional
    bool has_transposed;      // optional
    bool is_transfer;         // node_ranks, processes: optional
    const char *value, *unit; // "seconds", "s"
    double low, high;         // of the value
    const char *help;
};
extern const struct measured_kind measured_kinds[MEASURED_KINDS];

/* ---- rows: profile_table.c ---- */

/* The name after the dot, and whether the row belongs to `section`. */
const char *profile_row_name(const struct profile_row *row);
bool profile_row_in(const struct profile_row *row, const char *section);
/* By name inside a section; -1: unknown. */
int profile_row_find(const char *section, const char *name);
/* The same for a full key that exists: a literal in this program. */
int profile_row_index(const char *key);
/* False for a key that is meaningless in this profile, such as a link of a single device. */
bool profile_row_applies(const struct profile_row *row, const struct cluster_profile *profile);

/* The value of a number (ROW_INT, ROW_COUNT, ROW_REAL) as a double. */
double profile_number(const struct cluster_profile *profile, const struct profile_row *row);
void profile_set_number(struct cluster_profile *profile, const struct profile_row *row, double value);
bool profile_is_number(const struct profile_row *row);
void *profile_field(const struct cluster_profile *profile, const struct profile_row *row);

/* ---- one value: profile_value.c ---- */

struct node;

/* Sets the row's field from `node`. On false the field is unchanged, and `why` has the rest of the sentence
 * after the key: "1.2 is out of range; expected a number above 0 up to 1". */
bool profile_value_set(struct cluster_profile *profile, const struct profile_row *row,
                       const struct node *node, struct text *why);
/* The default, of a row that has one. */
void profile_value_set_default(struct cluster_profile *profile, const struct profile_row *row);
/* The value as YAML, on one line. */
void profile_value_text(const struct cluster_profile *profile, const struct profile_row *row,
                        struct text *out);
void profile_value_free(struct cluster_profile *profile, const struct profile_row *row);
/* "a number above 0 up to 1", "true or false". */
void profile_value_expected(const struct profile_row *row, struct text *out);
/* Whether a number is within the row's range; false for NaN. */
bool profile_in_range(const struct profile_row *row, double value);

/* Parses an unquoted number. Returns NULL, or the fault as the rest of a sentence: "is not a number". */
const char *profile_number_fault(const struct node *node, double *out);

/* ---- measured tables: profile_measured.c ---- */

/* Replaces the table `kind` by the list `node`. On an invalid entry, adds a problem and leaves the table
 * unchanged. */
void profile_measured_set(struct cluster_profile *profile, enum profile_kind kind, const struct node *node,
                          const char *file, struct problems *problems);
/* Adds a problem for each rate that exceeds the peak of its dtype by more than a tenth: probably a wrong
 * unit. */
void profile_measured_check(const struct cluster_profile *profile, const char *where,
                            struct problems *problems);
/* Appends the section `measured` as YAML; nothing without tables. */
void profile_measured_text(const struct cluster_profile *profile, struct text *out);
void profile_measured_free(struct profile_measured *measured);
/* Appends "nearest? the names are ..." for an unknown name. */
void profile_add_hint(const char *name, const char *prefix, const char *const *names, size_t count,
                      struct text *out);

/* ---- files: profile_source.c ---- */

/* A profile and its bases, each followed by its own base. */
enum { PROFILE_MAX_SOURCES = 8 };
struct profile_source {
    const char *path; // path of a file or name of a shipped profile; owned by the cluster profile
    struct node *root;
};

/* Reads the chain that begins with `name_or_path`. False after adding a problem; sources[0..*count) are
 * read. */
bool profile_sources_read(struct cluster_profile *profile, const char *name_or_path,
                          struct profile_source sources[PROFILE_MAX_SOURCES], size_t *count,
                          struct problems *problems);

/* Shipped profiles, embedded by tools/dev/embed_files.py; ends with {0}. */
struct shipped_profile {
    const char *name, *description;
    const char *yaml;
};
extern const struct shipped_profile shipped_profiles[];
