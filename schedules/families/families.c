// SPDX-License-Identifier: Apache-2.0
/* Table of families, their supported sizes, and the creation of a checked schedule from a name. */
#include "schedules/families/family.h"

#include <string.h>

static const struct family *const families[] = {
#define FAMILY_ROW(name) &family_##name,
    FAMILIES(FAMILY_ROW)
#undef FAMILY_ROW
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

const struct schedule_about *schedule_about(int index)
{
    return index >= 0 && index < FAMILY_COUNT ? &families[index]->about : NULL;
}

void schedule_names(struct text *out)
{
    for (int i = 0; i < FAMILY_COUNT; i++)
        text_add(out, "%s%s", i > 0 ? ", " : "", families[i]->about.name);
}

const char *restriction_one_chunk(const struct schedule_options *options)
{
    return options->v == 1 ? NULL : "each rank holds one stage";
}

static const struct family *family_named(const char *name)
{
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (strcmp(name, families[i]->about.name) == 0)
            return families[i];
    return NULL;
}

static enum status find_family(const char *name, const struct family **out)
{
    *out = family_named(name);
    if (*out != NULL)
        return OK;
    const char *names[FAMILY_COUNT];
    for (int i = 0; i < FAMILY_COUNT; i++)
        names[i] = families[i]->about.name;
    const char *near = nearest_name(name, names, FAMILY_COUNT);
    struct text all = {0};
    schedule_names(&all);
    enum status status = fail(BAD_SCHEDULE, "unknown schedule %.80s%s%s%s; available: %s", name,
                              near != NULL ? " (did you mean " : "", near != NULL ? near : "",
                              near != NULL ? "?)" : "", text_chars(&all));
    text_free(&all);
    return status;
}

/* Returns the reason why this family, or any family, does not support the options; NULL if it does. */
static const char *unsupported(const struct family *family, const struct schedule_options *o)
{
    if (o->p < 1 || o->m < 1 || o->v < 1)
        return "p, m and v must be at least 1";
    if (o->microbatch_group_size < 0)
        return "microbatch_group_size must be at least 1";
    if (o->microbatch_group_size > 0 && !family->groups)
        return "it does not support microbatch_group_size";
    if (o->microbatch_group_size > 0 && o->microbatch_group_size < o->p && o->microbatch_group_size < o->m)
        return "a microbatch_group_size below p causes a deadlock";
    if (o->m > schedule_max_microbatches(o->p, o->v))
        return "the actions do not fit in memory";
    return family->restriction(o);
}

int schedule_default_v(const char *name)
{
    const struct family *family = family_named(name);
    return family != NULL ? family->default_v : 0;
}

const char *schedule_supported_sizes(const char *name)
{
    const struct family *family = family_named(name);
    return family != NULL ? family->about.supports : NULL;
}

const char *schedule_unsupported(const struct schedule_options *options)
{
    const struct family *family = family_named(options->name);
    struct schedule_options o = *options;
    if (family == NULL)
        return "unknown schedule";
    if (o.v == 0)
        o.v = family->default_v;
    return unsupported(family, &o);
}

int64_t schedule_max_microbatches(int p, int v)
{
    return p > SCHEDULE_MAX_RANKS ? 0 : SCHEDULE_MAX_CELLS / ((int64_t)p * v);
}

/* Suggests the largest valid m, or p, or v if even one rank would have too many actions. */
static enum status fail_size(const struct family *family, const struct schedule_options *o)
{
    int64_t limit = schedule_max_microbatches(o->p, o->v),
            ranks = o->p < SCHEDULE_MAX_RANKS ? o->p : SCHEDULE_MAX_RANKS;
    const char *what = "m";
    if (limit == 0) {
        what = o->v <= SCHEDULE_MAX_CELLS ? "p" : "v";
        limit = o->v > SCHEDULE_MAX_CELLS                        ? SCHEDULE_MAX_CELLS / ranks
                : SCHEDULE_MAX_CELLS / o->v < SCHEDULE_MAX_RANKS ? SCHEDULE_MAX_CELLS / o->v
                                                                 : SCHEDULE_MAX_RANKS;
    }
    return fail(BAD_SCHEDULE,
                "%s of p %d, m %d, v %d has more actions than fit in memory; use %s %lld or less",
                family->about.name, o->p, o->m, o->v, what, (long long)limit);
}

static enum status check_options(const struct family *family, const struct schedule_options *o)
{
    const char *why = unsupported(family, o);
    if (why == NULL)
        return OK;
    if (o->p >= 1 && o->v >= 1 && o->m > schedule_max_microbatches(o->p, o->v))
        return fail_size(family, o);
    return fail(BAD_SCHEDULE, "%s does not support p %d, m %d, v %d: %s; it supports %s", family->about.name,
                o->p, o->m, o->v, why, family->about.supports);
}

enum status schedule_complete(struct schedule *schedule, const struct schedule_options *options)
{
    bool searched = schedule->has_transfers; // most of the work is then done
    report_progress(options->progress, searched ? SEARCHED_PERCENT : GENERATED_PERCENT);
    enum status status = OK;
    if (!options->without_transfers && !searched) {
        status = schedule_add_transfers(schedule);
        report_progress(options->progress, TRANSFERRED_PERCENT);
    }
    if (status == OK)
        status = schedule_check(schedule, NULL);
    report_progress(options->progress, 100.0);
    if (status != OK)
        schedule_destroy(schedule);
    return status;
}

enum status schedule_build_placement(const struct schedule_options *options, struct schedule **out)
{
    const struct family *family = NULL;
    TRY(find_family(options->name, &family));
    struct schedule_options o = *options;
    if (o.v == 0)
        o.v = family->default_v;
    TRY(check_options(family, &o));
    if (family->search != NULL)
        return fail(NOT_SUPPORTED, "%s has no placement before its search", options->name);
    *out = schedule_create(family, &o);
    return OK;
}

enum status schedule_generate(const struct schedule_options *options, struct schedule **out)
{
    const struct family *family = NULL;
    TRY(find_family(options->name, &family));
    struct schedule_options o = *options;
    if (o.v == 0)
        o.v = family->default_v;
    TRY(check_options(family, &o));

    if (family->search != NULL)
        return family->search(options, out);
    *out = schedule_create(family, &o);
    family->generate(*out);
    return OK;
}

enum status schedule_build(const struct schedule_options *options, struct schedule **out)
{
    struct schedule *s = NULL;
    TRY(schedule_generate(options, &s));
    TRY(schedule_complete(s, options));
    *out = s;
    return OK;
}
