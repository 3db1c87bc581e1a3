// SPDX-License-Identifier: Apache-2.0
#include "planner/sweep/sweep.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Without the members that only a search reads. */
static struct schedule_options options_of(const struct recipe *recipe)
{
    return (struct schedule_options){.name = recipe->pipeline.schedule,
                                     .p = recipe->parallel.pipeline_parallel_size,
                                     .m = (int)recipe_microbatches(recipe),
                                     .v = recipe->pipeline.virtual_stages,
                                     .microbatch_group_size = recipe->pipeline.microbatch_group_size};
}

static bool is_same(const struct schedule_options *a, const struct schedule_options *b)
{
    return a->p == b->p && a->m == b->m && a->v == b->v &&
           a->microbatch_group_size == b->microbatch_group_size && strcmp(a->name, b->name) == 0;
}

static void move_to_front(struct sweep_schedules *s, int at)
{
    const struct sweep_schedule first = s->list[at];
    memmove(&s->list[1], &s->list[0], (size_t)at * sizeof first);
    s->list[0] = first;
}

static void drop_last(struct sweep_schedules *s)
{
    struct sweep_schedule *last = &s->list[--s->count];
    schedule_destroy(last->schedule);
    free(last->name);
}

static enum status build(struct sweep_schedules *s, const struct schedule_options *options)
{
    struct sweep_schedule new = {.options = *options};
    if (s->count == SWEEP_SCHEDULES)
        drop_last(s);
    TRY(schedule_build(options, &new.schedule));
    new.name = text_copy(options->name);
    new.options.name = new.name;
    s->list[s->count++] = new;
    move_to_front(s, s->count - 1);
    return OK;
}

enum status sweep_schedule_of(struct sweep_schedules *schedules, const struct recipe *recipe,
                              struct schedule **out)
{
    const struct schedule_options options = options_of(recipe);
    *out = NULL;
    if (recipe->pipeline.schedule_file != NULL || strcmp(options.name, "auto") == 0)
        return OK;
    int at = 0;
    while (at < schedules->count && !is_same(&schedules->list[at].options, &options))
        at++;
    if (at < schedules->count)
        move_to_front(schedules, at);
    else
        TRY(build(schedules, &options));
    *out = schedules->list[0].schedule;
    return OK;
}

void sweep_schedules_free(struct sweep_schedules *schedules)
{
    while (schedules->count > 0)
        drop_last(schedules);
}
