// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/saving.h"

#include "base/clock.h"
#include "base/progress.h"
#include "trainer/checkpoint/in_memory/memory_checkpoint.h"

static const struct recipe_checkpoint *recipe_of(const struct saver *s)
{
    return &s->rank_state->run->recipe->checkpoint;
}

static bool is_multiple(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

void saver_plan(struct saver *s)
{
    struct rank_state *w = s->rank_state;
    if (w->world->rank == 0 && recipe_of(s)->save != NULL && recipe_of(s)->save_minutes > 0.0)
        w->save_at_s = clock_s() + 60.0 * recipe_of(s)->save_minutes;
    w->saves_done = w->saves_asked;
    s->due = false;
}

void saver_read_requests(struct saver *s)
{
    const struct rank_state *w = s->rank_state;
    s->written = w->background.saving != NULL && w->stats[STAT_REQUEST] == 0.0;
    s->due = s->due || w->stats[STAT_REQUEST] >= (double)REQUEST_SAVE;
}

static bool is_memory_due(const struct saver *s, int64_t step)
{
    return s->memory != NULL && is_multiple(recipe_of(s)->non_persistent_save_interval, step);
}

bool saver_acts_after(const struct saver *s, int64_t step)
{
    return (recipe_of(s)->save != NULL && is_multiple(recipe_of(s)->save_interval, step)) || s->due ||
           s->written || is_memory_due(s, step);
}

enum status saver_finish(struct saver *s, bool *saved)
{
    struct rank_state *w = s->rank_state;
    struct checkpoint_saving *saving = w->background.saving;
    w->background.saving = NULL;
    s->written = *saved = false;
    enum status status = checkpoint_finish(saving);
    if (status == OK)
        return OK;
    if (w->world->rank == 0)
        print_line(stderr, "warning: the checkpoint of step %lld could not be written: %s; saving step %lld",
                   (long long)s->saved, fail_text(), (long long)w->step);
    *saved = true;
    s->saved = w->step;
    return checkpoint_save(w);
}

enum status saver_save(struct saver *s, bool last)
{
    struct rank_state *w = s->rank_state;
    bool saved;
    TRY(saver_finish(s, &saved));
    if (!saved && recipe_of(s)->async_save && !last) {
        w->background.is_written = checkpoint_is_written;
        w->background.wait_for_copy = checkpoint_wait_for_copy;
        TRY(checkpoint_begin(w, true, &w->background.saving));
    } else if (!saved)
        TRY(checkpoint_save(w));
    s->saved = w->step;
    saver_plan(s);
    return OK;
}

enum status saver_save_in_memory(struct saver *s)
{
    const struct rank_state *w = s->rank_state;
    const bool is_on_disk = s->saved == w->step && w->background.saving == NULL;
    if (!is_memory_due(s, w->step) || is_on_disk)
        return OK;
    const int64_t begin_ns = clock_ns();
    const enum status status = memory_checkpoints_save(s->memory);
    progress_took(clock_ns() - begin_ns);
    return status;
}
