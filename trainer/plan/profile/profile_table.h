// SPDX-License-Identifier: Apache-2.0
/* The table of profile keys, for the files profile_*.c and the fit only: everyone else reads struct
 * cluster_profile.
 *
 *   key "model.matmul_efficiency", type FIELD_REAL, field offsetof(struct cluster_profile, ...), unit "1",
 *   range above 0 to 1, default "0.8", meaning, source of the default. */
#pragma once

#include "trainer/plan/profile/profile.h"

enum field_type {
    FIELD_TEXT,  // char *, owned
    FIELD_BOOL,  // bool
    FIELD_INT,   // int
    FIELD_COUNT, // int64_t
    FIELD_REAL,  // double
    FIELD_NAMES  // struct profile_names: names of the section `model`
};

/* When a key without a default must be given. */
enum requirement { ALWAYS, IF_SEVERAL_DEVICES, IF_NETWORK };

struct profile_row {
    const char *key;      // "section.name", or "name" at the top
    const char *fallback; // the default as text; NULL: required
    const char *unit;     // "" for texts; "1" for a fraction
    const char *help;
    const char *source; // of the default of an efficiency parameter
    double low, high;   // of numbers, inclusive
    bool above;         // low is excluded
    enum field_type type;
    enum requirement required;
    size_t offset;
};

extern const struct profile_row profile_rows[];
extern const int profile_row_count; // at most PROFILE_MOST_ROWS

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
    bool has_dtype;
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
/* For keys written in this program: there is one. */
int profile_row_of(const char *key);
/* False for a key that is meaningless in this profile, such as a link of a single device. */
bool profile_row_applies(const struct profile_row *row, const struct cluster_profile *profile);

/* The value of a number (FIELD_INT, FIELD_COUNT, FIELD_REAL) as a double. */
double profile_number(const struct cluster_profile *profile, const struct profile_row *row);
void profile_set_number(struct cluster_profile *profile, const struct profile_row *row, double value);
bool profile_is_number(const struct profile_row *row);
void *profile_field(const struct cluster_profile *profile, const struct profile_row *row);
