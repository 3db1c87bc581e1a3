// SPDX-License-Identifier: Apache-2.0
/* Loading. Each slice is assembled in host memory from the overlapping shards and copied to the device whole,
 * with zero padding. */
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/checkpoint_state.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/engine/agree.h"
#include "trainer/engine/host_floats.h"
#include "trainer/optimizer/learning_rate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status shape_differs(const struct source *s, const struct param *row, const struct shard *shard)
{
    return fail(BAD_CHECKPOINT, "%s: %s has shape %lld x %lld, but the recipe needs %lld x %lld", s->folder,
                shard->name, (long long)shard->dim[0], (long long)shard->dim[1], (long long)row->dim[0],
                (long long)row->dim[1]);
}

/* Assembles one slice of one state in `local`, which must be zero. */
static enum status assemble(struct source *s, const struct param *row, enum state state,
                            const struct slice *want, float *local)
{
    char name[SHARD_NAME_CHARS];
    struct shard whole;
    const struct shard *shards;
    int count;
    state_name(state, row->name, name);
    bool there = source_tensor(s, name, &whole);
    if (!there && state != STATE_VALUE)
        return fail(BAD_CHECKPOINT, "%s: contains no %s: cannot resume training from weights alone",
                    s->folder, name);
    if (!there)
        return fail(BAD_CHECKPOINT, "%s: holds no %s", s->folder, name);
    if (whole.ndim != row->ndim || whole.dim[0] != row->dim[0] || whole.dim[1] != row->dim[1])
        return shape_differs(s, row, &whole);
    TRY(source_find(s, name, want, &shards, &count));
    for (int i = 0; i < count; i++)
        TRY(source_read(s, &shards[i], state == STATE_VALUE, want, local));
    return OK;
}

/* Loads `slice` of a state of a row, with padding, to `target`, or for a value, to its location in the
 * weights. */
static enum status load_state(struct rank_state *w, struct source *s, const struct held *held,
                              enum state state, struct slice slice, struct tensor target)
{
    const struct param *row = held->row->tie >= 0 ? &w->params.rows[held->row->tie] : held->row;
    float *local = calloc((size_t)slice_padded(&slice) + 1, sizeof *local);
    if (local == NULL)
        return fail(NO_MEMORY, "no memory for this rank's part of %s", row->name);
    enum status status = assemble(s, row, state, &slice, local);
    if (status == OK && target.data == NULL)
        status = weights_put(&w->weights, w->compute, held, local);
    else if (status == OK)
        status = floats_to_device(w->compute, target, local);
    free(local);
    return status;
}

static enum status load_slices(struct rank_state *w, struct source *s, bool with_optimizer)
{
    bool whole = w->weights.zero_stage < 3; // a rank holds more values than it owns
    for (int h = 0; h < w->weights.count; h++) {
        const struct held *held = &w->weights.list[h];
        if (!held->second_use && whole)
            TRY(load_state(w, s, held, STATE_VALUE, held->slice, (struct tensor){0}));
    }
    enum state states = with_optimizer ? STATE_COUNT : STATE_VALUE + 1;
    for (int i = 0; i < w->weights.owned_count; i++) {
        const struct owned *owned = &w->weights.owned[i];
        for (enum state state = whole ? STATE_VALUE + 1 : STATE_VALUE; state < states; state++)
            if (state_tensor(owned, state).data != NULL)
                TRY(load_state(w, s, owned->held, state, owned_slice(owned), state_tensor(owned, state)));
    }
    return OK;
}

/* ---- all ranks ---- */

/* Resuming with another global batch size is allowed; warns that samples are repeated or skipped. */
static void warn_of_samples(const struct rank_state *w, const struct source *s)
{
    int64_t batch = w->run->recipe->train.global_batch_size, samples = s->manifest.consumed_samples;
    int64_t step = s->manifest.identity.step;
    if (step > 0 && (samples % batch != 0 || samples / batch != step))
        print_line(stderr,
                   "warning: %s: train.global_batch_size changed from %lld to %lld; samples do "
                   "not continue after sample %lld",
                   s->folder, (long long)(samples / step), (long long)batch, (long long)samples);
}

/* Another recipe may change the learning rate schedule, even if only train.train_iters changed, since
 * optimizer.lr_decay_iters is derived from it. Compares the rates of the next step. */
static void warn_of_learning_rate(const struct recipe_optimizer *then, const struct recipe_optimizer *now,
                                  const struct source *s, struct problems *changes)
{
    int64_t step = s->manifest.identity.step + 1;
    double before = learning_rate(then, step), after = learning_rate(now, step);
    struct recipe_optimizer same_decay = *now;
    struct text fix = {0};
    same_decay.lr_decay_iters = then->lr_decay_iters;
    if (before != after && learning_rate(&same_decay, step) == before)
        text_add(&fix, "; set optimizer.lr_decay_iters=%lld to keep it", (long long)then->lr_decay_iters);
    if (before != after)
        problems_warn(changes, "%s: the learning rate of step %lld changes from %.3g to %.3g%s", s->folder,
                      (long long)step, before, after, text_chars(&fix));
    text_free(&fix);
}

/* Warns of all other keys that change the mathematics. */
static void warn_of_changes(const struct rank_state *w, const struct source *s)
{
    struct text path = {0};
    struct problems problems = {0}, changes = {0};
    struct recipe *then = NULL;
    text_add(&path, "%s/recipe.yaml", s->folder);
    if (recipe_load(path.chars, NULL, 0, 0, &then, &problems) == OK) {
        recipe_changes(then, w->run->recipe, s->folder, &changes);
        warn_of_learning_rate(&then->optimizer, &w->run->recipe->optimizer, s, &changes);
    } else
        problems_warn(&changes, "%s cannot be read: changes of the recipe are not reported", path.chars);
    problems_print(&changes, stderr);
    recipe_destroy(then);
    problems_free(&changes);
    problems_free(&problems);
    text_free(&path);
}

/* The result of loading on one rank. */
struct outcome {
    int64_t step, skipped;
    struct loss_scale loss_scale; // to resume with
    bool fits;                    // the checkpoint was opened and matches the model: later failures are
                                  // damage
};

static enum status load_here(struct rank_state *w, const char *path, bool with_optimizer, struct outcome *out)
{
    char *folder = NULL;
    struct source source;
    *out = (struct outcome){0};
    TRY(checkpoint_resolve(path, &folder));
    enum status status = source_open(folder, w->world->rank, &source);
    if (status == OK)
        status = manifest_check_model(&source.manifest, w->run->recipe, folder);
    if (status == OK && with_optimizer && w->world->rank == 0 && w->run->data != NULL)
        status = data_fingerprint_check(w->run->data, folder, w->run->recipe->data.strict);
    out->fits = status == OK;
    if (status == OK)
        status = load_slices(w, &source, with_optimizer);
    if (status == OK)
        status = state_load_amax(w, &source);
    if (status == OK)
        status = state_load_loss_scale(w, &source, &out->loss_scale);
    out->step = source.manifest.identity.step;
    out->skipped = source.manifest.skipped_steps;
    if (status == OK && with_optimizer && w->world->rank == 0) {
        warn_of_samples(w, &source);
        warn_of_changes(w, &source);
    }
    source_close(&source);
    free(folder);
    return status;
}

/* On machines that do not share the folder, ranks could resume from different steps. */
static enum status check_same_step(struct rank_state *w, int64_t step, const char *path)
{
    double range[2] = {(double)step, -(double)step};
    TRY(rank_agree_max(w, range, 2));
    if (range[0] != -range[1])
        return fail(BAD_CHECKPOINT, "%s: step %.0f on one rank and %.0f on another: is the folder shared?",
                    path, -range[1], range[0]);
    return OK;
}

/* *broken: every rank could open it, and some rank found damage, so an older checkpoint may load. A
 * checkpoint that a rank cannot see is not broken: the folder may not be shared. */
static enum status load_together(struct rank_state *w, const char *path, bool with_optimizer, bool *broken)
{
    struct outcome outcome;
    enum status status = load_here(w, path, with_optimizer, &outcome);
    double misfit = outcome.fits ? 0.0 : 1.0;
    *broken = false;
    TRY(rank_agree_max(w, &misfit, 1));
    status = rank_agree(w, status);
    *broken = status == BAD_CHECKPOINT && misfit == 0.0;
    TRY(status);
    TRY(check_same_step(w, outcome.step, path));
    w->step = outcome.step;
    w->skipped = outcome.skipped;
    w->loss_scale = outcome.loss_scale;
    return OK;
}

enum status checkpoint_load(struct rank_state *w, const char *path, bool with_optimizer)
{
    bool broken;
    return device_computes(w->device) ? load_together(w, path, with_optimizer, &broken) : OK;
}

/* Rank 0 searches, so that all ranks try the same checkpoint even if their views of the folder differ. */
static enum status find_together(struct rank_state *w, int64_t below, int64_t *step)
{
    struct text skipped = {0};
    enum status status = OK;
    *step = -1;
    if (w->world->rank == 0)
        status = folder_newest(w->run->recipe->checkpoint.save, below, step, &skipped);
    fputs(text_chars(&skipped), stderr);
    text_free(&skipped);
    TRY(rank_agree(w, status));
    double found = (double)*step;
    TRY(rank_agree_max(w, &found, 1));
    *step = (int64_t)found;
    return OK;
}

enum status checkpoint_continue(struct rank_state *w, char **out)
{
    const char *save = w->run->recipe->checkpoint.save;
    bool first = w->world->rank == 0, broken = device_computes(w->device) && save != NULL;
    int64_t step = -1, below = INT64_MAX;
    enum status status = OK;
    *out = NULL;
    // Fingerprint the data at the start, for the checkpoints of this run.
    if (first && broken && w->run->data != NULL) {
        const struct text *fingerprint;
        status = data_fingerprint(w->run->data, &fingerprint);
    }
    TRY(rank_agree(w, status));
    while (broken) {
        TRY(find_together(w, below, &step));
        if (step < 0 && status != OK)
            return fail(BAD_CHECKPOINT,
                        "%s: none of its checkpoints can be loaded; start a new run with another "
                        "logging.run_dir, or set checkpoint.load to a checkpoint in another folder",
                        save);
        if (step < 0)
            return OK;
        struct text path = {0};
        folder_of_step(save, step, "", &path);
        status = load_together(w, path.chars, true, &broken);
        if (broken && first)
            print_line(stderr, "warning: %s", fail_text());
        if (status == OK)
            *out = path.chars;
        else
            text_free(&path);
        below = step;
    }
    if (status == OK && first && *out != NULL)
        folder_set_aside(save, step);
    return status;
}
