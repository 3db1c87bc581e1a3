// SPDX-License-Identifier: Apache-2.0
/* Reading a profile: bases first, then the profile itself, key by key; then what is missing or inconsistent.
 * Every step adds its problems to one list and continues, so that all are reported at once. A row with an
 * invalid value is `bad`, and not also reported as missing. */
#include "planner/profile/profile_table.h"

#include "base/memory.h"
#include "trainer/files/problems.h"
#include "trainer/files/yaml.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 60, MAX_NAMES = PROFILE_MAX_ROWS + 16 };

struct reader {
    struct cluster_profile *profile;
    struct problems *problems;
    bool bad[PROFILE_MAX_ROWS];
};

/* ---- a profile ---- */

struct cluster_profile *profile_create(void)
{
    struct cluster_profile *profile = memory_zeroed(1, sizeof *profile, "a cluster profile");
    for (int i = 0; i < profile_row_count; i++)
        if (profile_rows[i].fallback != NULL)
            profile_value_set_default(profile, &profile_rows[i]);
    return profile;
}

void profile_destroy(struct cluster_profile *profile)
{
    if (profile == NULL)
        return;
    for (int i = 0; i < profile_row_count; i++)
        profile_value_free(profile, &profile_rows[i]);
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++)
        profile_measured_free(&profile->measured[kind]);
    for (size_t i = 0; i < profile->files.count; i++)
        free(profile->files.list[i]);
    free(profile->files.list);
    free(profile);
}

/* ---- unknown keys ---- */

/* The keys of a section; at the top also the sections. */
static size_t names_of(const char *section, const char *names[MAX_NAMES])
{
    size_t count = 0;
    for (int i = 0; i < profile_row_count; i++)
        if (profile_row_in(&profile_rows[i], section))
            names[count++] = profile_row_name(&profile_rows[i]);
    if (*section != '\0')
        return count;
    names[count++] = "base";
    for (int s = 1; s < profile_section_count; s++)
        names[count++] = profile_sections[s].name;
    names[count++] = "measured";
    return count;
}

/* "FILE:LINE: unknown key device.memory_bandwith; did you mean device.memory_bandwidth?" */
static void refuse_key(struct reader *reader, const char *where, const char *section, const char *name)
{
    const char *names[MAX_NAMES];
    char prefix[32];
    struct text hint = {0};
    snprintf(prefix, sizeof prefix, "%s%s", section, *section != '\0' ? "." : "");
    for (int i = 0; i < profile_row_count && hint.length == 0; i++)
        if (strcmp(profile_row_name(&profile_rows[i]), name) == 0 || strcmp(profile_rows[i].key, name) == 0)
            text_add(&hint, "; did you mean %s?", profile_rows[i].key);
    if (hint.length == 0)
        profile_add_hint(name, prefix, names, names_of(section, names), &hint);
    problems_add(reader->problems, "%s: unknown key %s%.*s%s", where, prefix, SHOWN, name, text_chars(&hint));
    text_free(&hint);
}

/* ---- sections ---- */

/* Whether key `i` of a mapping is its first of this name; else adds a problem. */
static bool is_first(struct reader *reader, const struct node *map, size_t i, const char *where,
                     const char *prefix)
{
    for (size_t j = 0; j < i; j += 2)
        if (strcmp(map->child[j]->text, map->child[i]->text) == 0) {
            problems_add(reader->problems, "%s: %s%.*s is given twice, first in line %d; remove one of them",
                         where, prefix, SHOWN, map->child[i]->text, map->child[j]->line);
            return false;
        }
    return true;
}

static void apply_row(struct reader *reader, int row, const struct node *value, const char *file, int line)
{
    struct text why = {0};
    reader->bad[row] = !profile_value_set(reader->profile, &profile_rows[row], value, &why);
    if (reader->bad[row])
        problems_add(reader->problems, "%s:%d: %s %s", file, line, profile_rows[row].key, text_chars(&why));
    reader->profile->origin[row] = (struct profile_origin){file, line};
    text_free(&why);
}

static void apply_measured(struct reader *reader, const struct node *map, const char *file)
{
    const char *names[MEASURED_KINDS];
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++)
        names[kind] = measured_kinds[kind].name;
    for (size_t i = 0; i < map->count; i += 2) {
        const struct node *key = map->child[i];
        char where[300];
        snprintf(where, sizeof where, "%.260s:%d", file, key->line);
        enum profile_kind kind = 0;
        while (kind < MEASURED_KINDS && strcmp(names[kind], key->text) != 0)
            kind++;
        if (kind == MEASURED_KINDS) {
            struct text hint = {0};
            profile_add_hint(key->text, "measured.", names, MEASURED_KINDS, &hint);
            problems_add(reader->problems, "%s: unknown table measured.%.*s%s", where, SHOWN, key->text,
                         hint.chars);
            text_free(&hint);
        } else if (is_first(reader, map, i, where, "measured.")) {
            profile_measured_set(reader->profile, kind, map->child[i + 1], file, reader->problems);
            reader->profile->measured_origin[kind] = (struct profile_origin){file, key->line};
        }
    }
}

static bool is_section(const char *name)
{
    bool found = strcmp(name, "measured") == 0;
    for (int s = 1; s < profile_section_count; s++)
        found = found || strcmp(profile_sections[s].name, name) == 0;
    return found;
}

static void apply_map(struct reader *reader, const struct node *map, const char *section, const char *file)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s%s", section, *section != '\0' ? "." : "");
    for (size_t i = 0; i < map->count; i += 2) {
        const struct node *key = map->child[i], *value = map->child[i + 1];
        char where[300];
        snprintf(where, sizeof where, "%.260s:%d", file, key->line);
        int row = profile_row_find(section, key->text);
        bool top = *section == '\0', is_sub = top && is_section(key->text);
        if (row < 0 && !is_sub && !(top && strcmp(key->text, "base") == 0))
            refuse_key(reader, where, section, key->text);
        else if (!is_first(reader, map, i, where, prefix))
            continue;
        else if (row >= 0)
            apply_row(reader, row, value, file, key->line);
        else if (is_sub && value->kind == NODE_MAP && strcmp(key->text, "measured") == 0)
            apply_measured(reader, value, file);
        else if (is_sub && value->kind == NODE_MAP)
            apply_map(reader, value, key->text, file); // one level: a section has no sections
        else if (is_sub)
            problems_add(reader->problems, "%s: %s is a section; expected keys and values below it", where,
                         key->text);
    }
}

/* ---- checks ---- */

static void add_missing(const struct profile_row *row, const char *where, struct problems *problems)
{
    struct text line = {0};
    text_add(&line, "%s: %s is missing; expected ", where, row->key);
    profile_value_expected(row, &line);
    if (*row->unit != '\0')
        text_add(&line, " in %s", row->unit);
    if (row->required == IF_SEVERAL_DEVICES)
        text_add(&line, ", since node.devices is above 1");
    if (row->required == IF_NETWORK)
        text_add(&line, ", since network.nics is above 0");
    problems_add(problems, "%s", line.chars);
    text_free(&line);
}

static int peak_row(enum profile_dtype dtype)
{
    char key[64];
    snprintf(key, sizeof key, "device.peak_flops_%s", profile_dtype_name(dtype));
    return profile_row_index(key);
}

static void check_rows(const struct cluster_profile *profile, const bool *bad, const char *where,
                       struct problems *problems)
{
    for (int i = 0; i < profile_row_count; i++) {
        const struct profile_row *row = &profile_rows[i];
        if (bad[i] || row->fallback != NULL || !profile_row_applies(row, profile))
            continue;
        if (row->type == ROW_TEXT ? *(char **)profile_field(profile, row) == NULL
                                  : profile_number(profile, row) == 0.0)
            add_missing(row, where, problems);
    }
    if (profile->device.memory_bytes > 0 && profile->device.reserved_bytes >= profile->device.memory_bytes)
        problems_add(problems,
                     "%s: device.reserved_bytes %lld is not below device.memory_bytes %lld; reduce it", where,
                     (long long)profile->device.reserved_bytes, (long long)profile->device.memory_bytes);
    bool has_peaks = true;
    for (enum profile_dtype d = 0; d < PROFILE_DTYPES; d++)
        has_peaks = has_peaks && !bad[peak_row(d)];
    if (has_peaks && profile->device.peak_flops[PROFILE_FP32] > 0.0)
        profile_measured_check(profile, where, problems);
}

void profile_check(const struct cluster_profile *profile, const char *where, struct problems *problems)
{
    bool bad[PROFILE_MAX_ROWS] = {false};
    for (int i = 0; i < profile_row_count; i++) {
        const struct profile_row *row = &profile_rows[i];
        double value = profile_is_number(row) ? profile_number(profile, row) : 0.0;
        if (!profile_is_number(row) || profile_in_range(row, value) ||
            (row->fallback == NULL && value == 0.0))
            continue;
        struct text line = {0};
        text_add(&line, "%s: %s ", where, row->key);
        profile_value_text(profile, row, &line);
        text_add(&line, " is out of range; expected ");
        profile_value_expected(row, &line);
        problems_add(problems, "%s", line.chars);
        text_free(&line);
        bad[i] = true;
    }
    check_rows(profile, bad, where, problems);
}

/* An empty name becomes that of the file, without folder and .yaml. */
static void derive_name(struct cluster_profile *profile)
{
    const char *path = profile->files.list[0], *slash = strrchr(path, '/');
    const char *begin = slash != NULL ? slash + 1 : path, *dot = strrchr(begin, '.');
    struct text name = {0};
    if (*profile->name != '\0')
        return;
    text_add_bytes(&name, begin, dot != NULL && dot > begin ? (size_t)(dot - begin) : strlen(begin));
    profile_set_text(&profile->name, text_chars(&name));
    text_free(&name);
}

/* Name and description are not inherited from a base. */
static void drop_inherited_texts(struct cluster_profile *profile)
{
    profile_set_text(&profile->name, "");
    profile_set_text(&profile->description, "");
    profile->origin[profile_row_index("name")] = (struct profile_origin){0};
    profile->origin[profile_row_index("description")] = (struct profile_origin){0};
}

enum status profile_load(const char *name_or_path, struct cluster_profile **out, struct problems *problems)
{
    struct profile_source sources[PROFILE_MAX_SOURCES] = {0};
    struct reader reader = {.profile = profile_create(), .problems = problems};
    size_t count = 0, before = problems->errors;
    bool complete = profile_sources_read(reader.profile, name_or_path, sources, &count, problems);
    for (size_t i = count; i-- > 0;) {
        const struct node *root = sources[i].root;
        drop_inherited_texts(reader.profile);
        if (root->kind == NODE_MAP)
            apply_map(&reader, root, "", sources[i].path);
        else
            problems_add(problems, "%s:%d: expected keys and values, such as `node: {devices: 8}`",
                         sources[i].path, root->line);
        node_free(sources[i].root);
    }
    if (complete) // otherwise the keys of a file that cannot be read would be reported as missing
        check_rows(reader.profile, reader.bad, reader.profile->files.list[0], problems);
    if (problems->errors > before) {
        profile_destroy(reader.profile);
        return fail(BAD_RECIPE, "cluster profile %s: %zu problem%s", name_or_path, problems->errors - before,
                    problems->errors - before == 1 ? "" : "s");
    }
    derive_name(reader.profile);
    *out = reader.profile;
    return OK;
}
