// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/table/table_argument.h"
#include "planner/recipe/planned_recipe.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool is_file(const char *name)
{
    const char *dot = strrchr(name, '.');
    return strchr(name, '/') != NULL || (dot != NULL && strcasecmp(dot, ".csv") == 0);
}

static enum status refuse_name(const char *name)
{
    const char *names[64];
    size_t count = 0;
    for (; shipped_tables[count].name != NULL && count < sizeof names / sizeof *names; count++)
        names[count] = shipped_tables[count].name;
    const char *near = nearest_name(name, names, count);
    return fail(BAD_USAGE, "unknown table %s%s%s%s; run cuboid table --list, or give the path of a .csv",
                name, near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                near != NULL ? "?" : "");
}

/* The shipped table of the paper that all rows of a file are of; NULL: of none, or of several. */
static const struct shipped_table *table_of_rows(const struct published *published)
{
    const struct shipped_table *found = NULL;
    for (size_t i = 0; i < published->count; i++) {
        const struct shipped_table *table = table_of_paper(published->rows[i].cell[PUBLISHED_PAPER]);
        if (table == NULL || (found != NULL && table != found))
            return NULL;
        found = table;
    }
    return found;
}

/* The base recipe: --recipe (the name of a shipped table, or a path), or else that of the table. The
 * rows of a file may have words for what a shipped table has as overrides. */
static struct table_base choose_base(const char *recipe, const struct shipped_table *shipped, bool is_of_file)
{
    const struct shipped_table *other = recipe != NULL ? table_shipped(recipe) : NULL;
    if (recipe != NULL && other == NULL)
        return (struct table_base){.name = recipe};
    shipped = other != NULL ? other : shipped;
    return (struct table_base){shipped->name, shipped->yaml, is_of_file, *shipped->csv == 0};
}

enum status table_check_shared(const char *recipe, const char *const *overrides, size_t count)
{
    if (recipe != NULL && table_shipped(recipe) == NULL && access(recipe, R_OK) != 0)
        return fail(BAD_USAGE, "--recipe %s: %s", recipe, strerror(errno));
    for (size_t i = 0; i < count; i++) {
        char name[RECIPE_KEY_CHARS];
        const size_t length = strcspn(overrides[i], "=");
        snprintf(name, sizeof name, "%.*s", (int)length, overrides[i]);
        const char *near = recipe_key_near(&planner_keys, name);
        if (length >= sizeof name || recipe_key(&planner_keys, name) == NULL)
            return fail(BAD_USAGE, "unknown key %s%s%s%s", name, near != NULL ? "; did you mean " : "",
                        near != NULL ? near : "", near != NULL ? "?" : "");
    }
    return OK;
}

enum status table_open(const char *name, const char *recipe, struct published *published,
                       struct table_base *base, struct table_title *title)
{
    const struct shipped_table *shipped = is_file(name) ? table_shipped("default") : table_shipped(name);
    struct problems problems = {0};
    if (shipped == NULL || (!is_file(name) && *shipped->csv == 0))
        return refuse_name(name);
    *title = (struct table_title){name, is_file(name) ? "rows of this file" : shipped->description, false};
    enum status status =
        is_file(name) ? published_read(name, published, &problems)
                      : published_parse(name, shipped->csv, strlen(shipped->csv), published, &problems);
    status = problems_report(&problems, status);
    if (status == OK && is_file(name) && table_of_rows(published) != NULL)
        shipped = table_of_rows(published);
    *base = choose_base(recipe, shipped, is_file(name));
    if (status == OK && published->csv.record_count <= 1) {
        published_free(published);
        status = fail(BAD_DATA, "%s: no rows after the names of the columns", name);
    }
    return status;
}
