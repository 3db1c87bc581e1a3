// SPDX-License-Identifier: Apache-2.0
/* Sources of profiles: shipped ones by name, others by path; and the chain of their bases.
 *
 *   mine.yaml -> base: dgx-a100-80 (shipped)
 *   selene (shipped) -> base: dgx-a100-80 (shipped) */
#include "planner/profile/profile_table.h"

#include "base/memory.h"
#include "trainer/files/problems.h"
#include "trainer/files/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHOWN = 200 };

const char *profile_shipped_name(size_t index)
{
    return shipped_profiles[index].name;
}

const char *profile_shipped_description(size_t index)
{
    return shipped_profiles[index].description;
}

static const struct shipped_profile *find_shipped(const char *name)
{
    for (const struct shipped_profile *shipped = shipped_profiles; shipped->name != NULL; shipped++)
        if (strcmp(shipped->name, name) == 0)
            return shipped;
    return NULL;
}

static bool is_path(const char *text)
{
    const char *dot = strrchr(text, '.');
    return strchr(text, '/') != NULL ||
           (dot != NULL && (strcasecmp(dot, ".yaml") == 0 || strcasecmp(dot, ".yml") == 0));
}

/* Stores a path in the profile, which takes ownership. */
static const char *keep(struct cluster_profile *profile, char *path)
{
    struct recipe_names *files = &profile->files;
    files->list = memory_resized(files->list, files->count + 1, sizeof *files->list, "the path of a profile");
    return files->list[files->count++] = path;
}

static void refuse_name(const char *name, const char *from, struct problems *problems)
{
    const char *names[64];
    size_t count = 0;
    struct text line = {0};
    while (shipped_profiles[count].name != NULL && count < sizeof names / sizeof *names) {
        names[count] = shipped_profiles[count].name;
        count++;
    }
    const char *near = nearest_name(name, names, count);
    text_add(&line, "%sunknown cluster profile %.*s", from, SHOWN, name);
    if (near != NULL)
        text_add(&line, "; did you mean %s?", near);
    text_add(&line, " (cuboid profile --list; a file is given by its path, with a slash or .yaml)");
    problems_add(problems, "%s", line.chars);
    text_free(&line);
}

/* ---- reading one source ---- */

/* Identifies a source, to detect cycles. */
struct identity {
    const struct shipped_profile *shipped; // NULL: a file
    dev_t device;
    ino_t inode;
};

static bool is_same(const struct identity *a, const struct identity *b)
{
    if (a->shipped != NULL || b->shipped != NULL)
        return a->shipped == b->shipped;
    return a->device == b->device && a->inode == b->inode;
}

/* Reads the bytes of a source; false after adding a problem, whose prefix is `from`: "a.yaml:2: base: ". */
static bool read_bytes(const char *path, const char *from, struct text *bytes, struct identity *identity,
                       struct problems *problems)
{
    if (!is_path(path)) {
        identity->shipped = find_shipped(path);
        if (identity->shipped != NULL)
            text_add(bytes, "%s", identity->shipped->yaml);
        else
            refuse_name(path, from, problems);
        return identity->shipped != NULL;
    }
    const char *fault = yaml_file_read(path, bytes, &identity->device, &identity->inode);
    if (fault != NULL)
        problems_add(problems, "%s%s: %s", from, path, fault);
    return fault == NULL;
}

/* The base of a profile, as a name or a path relative to the working directory; NULL: none, or invalid. */
static char *base_of(const struct profile_source *source, struct text *from, struct problems *problems)
{
    for (size_t i = 0; source->root->kind == NODE_MAP && i < source->root->count; i += 2) {
        const struct node *key = source->root->child[i], *value = source->root->child[i + 1];
        if (strcmp(key->text, "base") != 0)
            continue;
        text_free(from);
        text_add(from, "%s:%d: base: ", source->path, value->line);
        if (value->kind != NODE_SCALAR || *value->text == '\0' || !text_is_printable(value->text)) {
            problems_add(problems, "%sexpected the name or the path of one profile", from->chars);
            return NULL;
        }
        const char *slash = is_path(source->path) ? strrchr(source->path, '/') : NULL;
        struct text path = {0};
        if (slash != NULL && is_path(value->text) && *value->text != '/')
            text_add_bytes(&path, source->path, (size_t)(slash - source->path) + 1);
        text_add(&path, "%s", value->text);
        return path.chars;
    }
    return NULL;
}

bool profile_sources_read(struct cluster_profile *profile, const char *name_or_path,
                          struct profile_source sources[PROFILE_MAX_SOURCES], size_t *count,
                          struct problems *problems)
{
    struct identity identities[PROFILE_MAX_SOURCES] = {0};
    struct text from = {0};
    size_t before = problems->errors;
    *count = 0;
    for (char *next = text_copy(name_or_path); next != NULL && problems->errors == before;) {
        struct profile_source *source = &sources[*count];
        struct text bytes = {0};
        bool repeated = false;
        source->path = keep(profile, next);
        next = NULL;
        if (!read_bytes(source->path, text_chars(&from), &bytes, &identities[*count], problems)) {
            text_free(&bytes);
            break;
        }
        for (size_t i = 0; i < *count; i++)
            repeated = repeated || is_same(&identities[i], &identities[*count]);
        if (repeated)
            problems_add(problems, "%s%s is already a base of this profile; remove one of them",
                         text_chars(&from), source->path);
        source->root = repeated ? NULL : yaml_parse(source->path, text_chars(&bytes), bytes.length, problems);
        text_free(&bytes);
        if (source->root == NULL)
            break;
        (*count)++;
        next = base_of(source, &from, problems);
        if (next != NULL && *count == PROFILE_MAX_SOURCES) {
            problems_add(problems, "%smore than %d profiles, each the base of the previous one", from.chars,
                         PROFILE_MAX_SOURCES);
            free(next);
            next = NULL;
        }
    }
    text_free(&from);
    return problems->errors == before;
}

enum status profile_cache_load(struct profile_cache *cache, const char *name_or_path,
                               struct problems *problems)
{
    if (cache->name != NULL && strcmp(cache->name, name_or_path) == 0)
        return OK;
    profile_cache_free(cache);
    TRY(profile_load(name_or_path, &cache->profile, problems));
    cache->name = text_copy(name_or_path);
    return OK;
}

void profile_cache_free(struct profile_cache *cache)
{
    free(cache->name);
    profile_destroy(cache->profile);
    *cache = (struct profile_cache){.name = NULL};
}
