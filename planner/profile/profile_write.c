// SPDX-License-Identifier: Apache-2.0
/* Writes a profile as YAML and as a table with the origin of each value; writes the reference of all keys. */
#include "planner/profile/profile_table.h"

#include "trainer/files/problems.h"
#include "trainer/files/yaml.h"

#include <string.h>

enum { COMMENT_COLUMN = 44, KEY_COLUMNS = 38, VALUE_COLUMNS = 26, UNIT_COLUMNS = 9 };

/* Whether a row has a value in this profile: the link of a single device does not. */
static bool has_value(const struct cluster_profile *profile, const struct profile_row *row)
{
    return row->fallback != NULL || !profile_is_number(row) || profile_number(profile, row) != 0.0;
}

/* ---- YAML ---- */

static void add_yaml_row(const struct cluster_profile *profile, const struct profile_row *row,
                         struct text *out)
{
    struct text line = {0};
    text_add(&line, "%s%s: ", strchr(row->key, '.') != NULL ? "  " : "", profile_row_name(row));
    profile_value_text(profile, row, &line);
    if (*row->unit != '\0')
        text_add(out, "%-*s # %s\n", COMMENT_COLUMN, line.chars, row->unit);
    else
        text_add(out, "%s\n", line.chars);
    text_free(&line);
}

void profile_text(const struct cluster_profile *profile, struct text *out)
{
    for (int s = 0; s < profile_section_count; s++) {
        const struct profile_section *section = &profile_sections[s];
        if (strcmp(section->name, "fit") == 0)
            profile_measured_text(profile, out); // before the last section
        if (*section->name != '\0')
            text_add(out, "\n%s: # %s\n", section->name, section->help);
        for (int i = 0; i < profile_row_count; i++)
            if (profile_row_in(&profile_rows[i], section->name) && has_value(profile, &profile_rows[i]))
                add_yaml_row(profile, &profile_rows[i], out);
    }
}

/* ---- the table of a profile ---- */

/* "default", "mine.yaml:3", or "base dgx-a100-80:12". */
static void add_origin(const struct cluster_profile *profile, const struct profile_origin *origin,
                       struct text *out)
{
    bool own = profile->files.count > 0 && origin->file == profile->files.list[0];
    if (origin->file == NULL)
        text_add(out, "default");
    else
        text_add(out, "%s%s:%d", own ? "" : "base ", origin->file, origin->line);
}

static void add_table_line(const char *key, const char *value, const char *unit, const char *origin,
                           struct text *out)
{
    text_add(out, "%-*s %-*s %-*s %s\n", KEY_COLUMNS, key, VALUE_COLUMNS, value, UNIT_COLUMNS, unit, origin);
}

void profile_table_text(const struct cluster_profile *profile, struct text *out)
{
    add_table_line("key", "value", "unit", "origin", out);
    for (int i = 0; i < profile_row_count; i++) {
        const struct profile_row *row = &profile_rows[i];
        struct text value = {0}, origin = {0};
        profile_value_text(profile, row, &value);
        add_origin(profile, &profile->origin[i], &origin);
        if (has_value(profile, row))
            add_table_line(row->key, value.chars, row->unit, origin.chars, out);
        text_free(&value);
        text_free(&origin);
    }
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++) {
        const size_t count = profile->measured[kind].count;
        char key[64], value[64];
        struct text origin = {0};
        snprintf(key, sizeof key, "measured.%s", measured_kinds[kind].name);
        snprintf(value, sizeof value, "%zu shape%s", count, count == 1 ? "" : "s");
        add_origin(profile, &profile->measured_origin[kind], &origin);
        if (count > 0)
            add_table_line(key, value, measured_kinds[kind].unit, origin.chars, out);
        text_free(&origin);
    }
}

/* ---- what it rests on ---- */

static bool is_measured(const struct cluster_profile *profile)
{
    bool measured = false;
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++)
        measured = measured || profile->measured[kind].count > 0;
    return measured;
}

void profile_basis_word(const struct cluster_profile *profile, struct text *out)
{
    if (profile->fit.rows > 0)
        text_add(out, "%lld step times", (long long)profile->fit.rows);
    else
        text_add(out, is_measured(profile) ? "measured" : "data sheet");
}

void profile_basis_text(const struct cluster_profile *profile, struct text *out)
{
    if (profile->fit.rows > 0) {
        text_add(out, "fitted to %lld step times; median error %.1f %%, ", (long long)profile->fit.rows,
                 100.0 * profile->fit.error_fraction);
        if (profile->fit.held_out_fraction > 0.0)
            text_add(out, "%.1f %% for step times left out of the fit",
                     100.0 * profile->fit.held_out_fraction);
        else
            text_add(out, "unknown for step times left out of the fit");
    } else if (is_measured(profile))
        text_add(out, "measured rates, not fitted to step times");
    else
        text_add(out, "data sheet and estimates, not fitted%s",
                 profile->device.is_cpu
                     ? ""
                     : "; published steps of PyTorch programs are predicted 17 % too fast in the median "
                       "(cuboid table other-programs)");
}

void profile_named_basis_text(const char *name_or_path, struct text *out)
{
    struct cluster_profile *profile = NULL;
    struct problems problems = {0};
    if (profile_load(name_or_path, &profile, &problems) == OK) {
        text_add(out, "profile %s: ", profile->name);
        profile_basis_text(profile, out);
    }
    problems_free(&problems);
    profile_destroy(profile);
}

/* ---- the reference ---- */

static void add_reference_row(const struct profile_row *row, struct text *out)
{
    struct text expected = {0};
    profile_value_expected(row, &expected);
    const char *range = expected.chars;
    range += strncmp(range, "an ", 3) == 0 ? 3 : strncmp(range, "a ", 2) == 0 ? 2 : 0;
    text_add(out, "| `%s` | %s | %s | ", profile_row_name(row), *row->unit != '\0' ? row->unit : "-", range);
    if (row->fallback == NULL)
        text_add(out, "required%s",
                 row->required == IF_SEVERAL_DEVICES ? " with several devices"
                 : row->required == IF_NETWORK       ? " with a network"
                                                     : "");
    else if (*row->fallback != '\0')
        text_add(out, "`%s`", row->fallback);
    text_add(out, " | %s", row->help);
    if (row->source != NULL)
        text_add(out, " Source of the default: %s.", row->source);
    text_add(out, " |\n");
    text_free(&expected);
}

static void add_reference_kind(const struct measured_kind *kind, struct text *out)
{
    text_add(out, "| `%s` | ", kind->name);
    for (int c = 0; c < MEASURED_COLUMNS && kind->columns[c] != NULL; c++)
        text_add(out, "%s`%s`", c > 0 ? ", " : "", kind->columns[c]);
    text_add(out, "%s%s%s%s%s | `%s` | %s | %s |\n", kind->has_op ? ", `op`" : "",
             kind->has_dtype ? ", `dtype`" : "", kind->has_threads ? ", `threads`" : "",
             kind->has_transposed ? ", `transposed`" : "",
             kind->is_transfer ? ", `node_ranks`, `processes`" : "", kind->value, kind->unit, kind->help);
}

void profile_reference(struct text *out)
{
    for (int s = 0; s < profile_section_count; s++) {
        const struct profile_section *section = &profile_sections[s];
        if (*section->name != '\0')
            text_add(out, "\n### %s\n\n%s\n", section->name, section->help);
        text_add(out, "\n| key | unit | values | default | meaning |\n|---|---|---|---|---|\n");
        for (int i = 0; i < profile_row_count; i++)
            if (profile_row_in(&profile_rows[i], section->name))
                add_reference_row(&profile_rows[i], out);
    }
    text_add(out,
             "\n### measured\n\nLists of measured shapes, which take precedence over `model`.\n"
             "A table given here replaces the whole table of the base.\n"
             "Optional keys, all but the first on a CPU:\n"
             "`transposed: true`: the first operand is, as for weight gradients; without such samples, all "
             "are used.\n`threads` per rank, with all cores busy; default: as many as there are cores.\n"
             "`node_ranks`: the number of ranks of a node that communicate at the same time, in groups of "
             "`ranks`.\n`processes: true`: ranks are processes, not threads.\n\n"
             "| table | shape | value | unit | meaning |\n|---|---|---|---|---|\n");
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++)
        add_reference_kind(&measured_kinds[kind], out);
}
