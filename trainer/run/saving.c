// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/saving.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/progress.h"
#include "trainer/checkpoint/best.h"
#include "trainer/checkpoint/in_memory/memory_save.h"
#include "trainer/engine/agree.h"

#include <math.h>
#include <time.h>

static const struct recipe_checkpoint *recipe_of(const struct saver *s)
{
    return &s->rank_state->run->recipe->checkpoint;
}

static bool is_multiple(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

/* ---- in a step ---- */

static enum status before_update(void *context, struct rank_state *state, int64_t step)
{
    struct saver *s = context;
    (void)step;
    state->stats.is_writing = !checkpoint_is_written(s->saving);
    return s->saving != NULL ? checkpoint_hold_update(s->saving) : OK;
}

static enum status after_update(void *context, struct rank_state *state, int64_t step)
{
    struct saver *s = context;
    (void)state, (void)step;
    return s->saving != NULL ? checkpoint_end_copy(s->saving) : OK;
}

void saver_attach(struct saver *saver, struct rank_state *state)
{
    saver->rank_state = state;
    saver->observer = (struct step_observer){
        .context = saver, .before_update = before_update, .after_update = after_update};
    rank_observe(state, &saver->observer);
}

/* ---- between steps ---- */

void saver_plan(struct saver *saver)
{
    struct rank_state *state = saver->rank_state;
    if (state->world->rank == 0 && recipe_of(saver)->save != NULL && recipe_of(saver)->save_minutes > 0.0)
        state->requests.save_at_s = clock_s() + 60.0 * recipe_of(saver)->save_minutes;
    state->requests.saves_completed = state->requests.saves;
    saver->due = false;
}

void saver_read_requests(struct saver *saver)
{
    const struct rank_state *state = saver->rank_state;
    saver->written =
        saver->saving != NULL && state->stats.all.request == REQUEST_NOTHING && !state->stats.all.writes;
    saver->due = saver->due || state->stats.all.request >= REQUEST_SAVE;
}

static bool is_memory_due(const struct saver *s, int64_t step)
{
    return s->memory != NULL && is_multiple(recipe_of(s)->non_persistent_save_interval, step);
}

bool saver_acts_after(const struct saver *saver, int64_t step)
{
    return (recipe_of(saver)->save != NULL && is_multiple(recipe_of(saver)->save_interval, step)) ||
           saver->due || saver->written || is_memory_due(saver, step);
}

/* Called after a save of `step` in the background has failed: saves the current state at once, since the
 * disk may have room without the files of that save. */
static enum status save_at_once(struct saver *s, int64_t step)
{
    const struct rank_state *state = s->rank_state;
    if (state->world->rank == 0)
        print_line(stderr, "warning: the checkpoint of step %lld could not be written: %s; saving step %lld",
                   (long long)step, fail_text(), (long long)state->step);
    s->saved = state->step;
    return checkpoint_save(s->rank_state);
}

enum status saver_finish(struct saver *saver, bool *saved)
{
    struct checkpoint_saving *saving = saver->saving;
    saver->saving = NULL;
    saver->written = *saved = false;
    if (checkpoint_finish(saving) == OK)
        return OK;
    *saved = true;
    return save_at_once(saver, saver->saved);
}

static enum status begin_in_background(struct saver *s)
{
    s->saving_loss = s->rank_state->has_valid_loss ? s->rank_state->valid_loss : INFINITY;
    if (checkpoint_begin(s->rank_state, true, &s->saving) == OK)
        return OK;
    return save_at_once(s, s->rank_state->step);
}

enum status saver_is_best(const struct saver *saver, bool *best)
{
    struct rank_state *state = saver->rank_state;
    const struct recipe_checkpoint *recipe = recipe_of(saver);
    double is_best = 0.0;
    *best = false;
    if (!recipe->keep_best || recipe->save == NULL || !state->has_valid_loss)
        return OK;
    if (state->world->rank == 0) {
        const struct best_checkpoint known = best_read(recipe->save);
        const bool beats_saving = saver->saving == NULL || state->valid_loss < saver->saving_loss;
        is_best = beats_saving && (known.step < 0 || state->valid_loss < known.loss) ? 1.0 : 0.0;
    }
    TRY(rank_agree_max(state, &is_best, 1));
    *best = is_best > 0.0;
    return OK;
}

enum status saver_save(struct saver *saver, bool last)
{
    struct rank_state *state = saver->rank_state;
    bool saved;
    TRY(saver_finish(saver, &saved));
    if (!saved && recipe_of(saver)->async_save && !last)
        TRY(begin_in_background(saver));
    else if (!saved)
        TRY(checkpoint_save(state));
    saver->saved = state->step;
    saver_plan(saver);
    return OK;
}

enum status saver_save_in_memory(struct saver *saver)
{
    const struct rank_state *state = saver->rank_state;
    const bool is_on_disk = saver->saved == state->step && saver->saving == NULL;
    if (!is_memory_due(saver, state->step) || is_on_disk)
        return OK;
    const int64_t begin_ns = clock_ns();
    const enum status status = memory_checkpoints_save(saver->memory);
    progress_took(clock_ns() - begin_ns);
    return status;
}

/* Waits until this rank's file is written. The wait is progress: a slow disk is not a hang. */
static enum status wait_until_written(const struct checkpoint_saving *saving)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    const double begin_s = clock_s();
    double seen_s = begin_s;
    while (!checkpoint_is_written(saving)) {
        const double now_s = clock_s();
        if (now_s - begin_s > (double)SAVING_RESCUE_S)
            return fail(IO_ERROR, "it is not written after %d s", SAVING_RESCUE_S);
        if (now_s - seen_s > 1.0) {
            rank_context_set_action("save");
            seen_s = now_s;
        }
        nanosleep(&pause, NULL);
    }
    return OK;
}

static enum status publish_late(struct saver *s)
{
    struct checkpoint_saving *saving = s->saving;
    s->saving = NULL;
    rank_context_set_action("save");
    enum status status = checkpoint_end_copy(saving);
    if (status == OK)
        status = wait_until_written(saving);
    TRY(rank_agree(s->rank_state, status));
    return checkpoint_finish(saving);
}

enum status saver_rescue(struct saver *saver, enum status failure)
{
    const struct rank_state *state = saver->rank_state;
    // During a look-ahead, messages of the next step are in flight.
    const bool together = (state->world->size == 1 || failure == NOT_FINITE) && !state->ahead;
    if (failure == OK || failure == STOPPED || saver->saving == NULL || !together)
        return failure;
    AUTO(text) why = {0};
    text_add(&why, "%s", fail_text());
    if (publish_late(saver) == OK)
        failure = fail(failure, "%s; saved step %lld in %s", text_chars(&why), (long long)saver->saved,
                       recipe_of(saver)->save);
    else
        failure = fail(failure, "%s; the checkpoint of step %lld is lost: %s", text_chars(&why),
                       (long long)saver->saved, fail_text());
    return failure;
}
