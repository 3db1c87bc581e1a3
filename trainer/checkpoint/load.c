// SPDX-License-Identifier: Apache-2.0
/* Loading: what to load, and what to warn of. */
#include "trainer/checkpoint/load.h"

#include "base/memory.h"
#include "trainer/checkpoint/distribute/redistribute.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/in_memory/memory_checkpoint.h"
#include "trainer/checkpoint/in_memory/memory_load.h"
#include "trainer/checkpoint/replicated_state.h"
#include "trainer/checkpoint/store.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/data/order/data_resume.h"
#include "trainer/engine/agree.h"
#include "trainer/files/inside.h"
#include "trainer/optimizer/learning_rate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static enum status shape_differs(const struct checkpoint_reader *s, const struct param *row,
                                 const struct shard *shard)
{
    return fail(BAD_CHECKPOINT, "%s: %s has shape %lld x %lld, but the recipe needs %lld x %lld", s->folder,
                shard->name, (long long)shard->dim[0], (long long)shard->dim[1], (long long)row->dim[0],
                (long long)row->dim[1]);
}

/* Whether a parameter has a row for each token. */
static bool is_of_vocabulary(const struct param *row)
{
    return row->role == ROLE_TOKEN_EMBEDDING || row->role == ROLE_HEAD;
}

static enum status check_tensor(const struct checkpoint_reader *s, const struct param *row, enum state state,
                                bool may_grow)
{
    char name[SHARD_NAME_CHARS];
    struct shard whole;
    state_name(state, row->name, name);
    bool there = checkpoint_reader_tensor(s, name, &whole);
    if (!there && state != STATE_VALUE)
        return fail(
            WRONG_CHECKPOINT,
            "%s: contains no %s: cannot resume training from weights alone; set "
            "checkpoint.load_optim=false to begin with moments of zero, or checkpoint.finetune=true to "
            "begin at step 0",
            s->folder, name);
    if (!there)
        return fail(BAD_CHECKPOINT, "%s: holds no %s", s->folder, name);
    const bool grows = may_grow && is_of_vocabulary(row) &&
                       whole.dim[0] == manifest_vocab_size(&s->manifest) && whole.dim[0] < row->dim[0];
    if (whole.slice.ndim != row->ndim || (whole.dim[0] != row->dim[0] && !grows) ||
        whole.dim[1] != row->dim[1])
        return shape_differs(s, row, &whole);
    return OK;
}

/* Checks that the checkpoint has all tensors of the recipe, with their shapes. */
static enum status check_tensors(const struct rank_state *w, const struct checkpoint_reader *s,
                                 bool with_moments, bool may_grow)
{
    enum state states = with_moments ? STATE_COUNT : STATE_VALUE + 1;
    for (int param = 0; param < w->params.count; param++)
        for (enum state state = 0; state < states && w->params.list[param].tie < 0; state++)
            TRY(check_tensor(s, &w->params.list[param], state, may_grow));
    return OK;
}

/* ---- the data ---- */

/* The order of a checkpoint that does not record it: its recipe has read the same blend from the first sample
 * on. */
static void order_of_recipe(const struct recipe *recipe, struct data_order *out)
{
    const struct recipe_sources *list = &recipe->data.train;
    const int count = recipe->data.mock_data ? 0 : (int)list->count;
    struct data_segment *segment = data_order_add_segment(out, count);
    segment->seq_length = recipe->model.seq_length;
    segment->seed = recipe->seed;
    segment->pack_documents = recipe->data.pack_documents && !recipe->data.mock_data;
    segment->truncate_documents = recipe->data.truncate_documents;
    for (int i = 0; i < count; i++) {
        segment->parts[i].source = data_order_add_source(out, list->list[i].path, 0);
        segment->parts[i].weight = list->list[i].weight;
    }
}

/* Without a readable recipe, which a warning reports, the blend is assumed to be that of now. */
static enum status find_order(const struct rank_state *w, const struct checkpoint_reader *source,
                              struct data_order *out)
{
    const struct text *record = &source->manifest.data_order;
    AUTO(text) path = {0};
    struct problems problems = {0};
    struct recipe *then = NULL;
    *out = (struct data_order){0};
    if (record->length > 0) {
        const enum status status = data_order_parse(record->chars, record->length, out);
        return status == OK ? OK : fail(BAD_CHECKPOINT, "%s: manifest.json: %s", source->folder, fail_text());
    }
    text_add(&path, "%s/recipe.yaml", source->folder);
    const struct recipe_input input = {.path = path.chars, .addition = w->run->recipe->addition};
    const bool is_read = recipe_load(&input, &then, &problems) == OK;
    order_of_recipe(is_read ? then : w->run->recipe, out);
    recipe_destroy(then);
    problems_free(&problems);
    return OK;
}

/* Reports what has changed in the data, on rank 0, and appends the text of their order to `order`. BAD_DATA
 * with data.strict. */
static enum status check_data(const struct rank_state *w, const struct checkpoint_reader *source,
                              struct text *order)
{
    struct data *data = w->run->data;
    const bool strict = w->run->recipe->data.strict;
    struct data_order then;
    if (data == NULL)
        return OK;
    TRY(find_order(w, source, &then));
    AUTO_FREE int *positions =
        memory_zeroed(w->run->recipe->data.train.count + 1, sizeof *positions, "the order of the data");
    enum status status =
        data_resume(data, &then, source->manifest.consumed_samples, strict, positions, order);
    if (status == BAD_CHECKPOINT)
        status = fail(BAD_CHECKPOINT, "%s: manifest.json: %s", source->folder, fail_text());
    return status != OK ? status : data_fingerprint_check(data, source->folder, positions, strict);
}

/* Replaces the text by that of rank 0. */
static enum status share_order(struct rank_state *w, struct text *order)
{
    size_t length = order->length;
    TRY(rank_broadcast(w, 0, &length, sizeof length));
    AUTO_FREE char *bytes = memory_zeroed(length + 1, 1, "the order of the data");
    if (w->world->rank == 0)
        memcpy(bytes, text_chars(order), length);
    const enum status status = rank_broadcast(w, 0, bytes, length);
    if (w->world->rank != 0) {
        text_free(order);
        text_add_bytes(order, bytes, length);
    }
    return status;
}

/* All ranks continue with the order of rank 0. */
static enum status continue_data(struct rank_state *w, struct text *order)
{
    if (w->run->data == NULL)
        return OK;
    TRY(share_order(w, order));
    return rank_agree(w, data_set_order(w->run->data, order));
}

/* ---- all ranks ---- */

/* Another recipe may change the learning rate schedule, even if only train.train_iters changed, since
 * optimizer.lr_decay_iters is derived from it. Compares the rates of the next step. */
static void warn_of_learning_rate(const struct recipe_optimizer *then, const struct recipe_optimizer *now,
                                  const struct checkpoint_reader *s, struct problems *changes)
{
    int64_t step = s->manifest.identity.step + 1;
    double before = learning_rate(then, step), after = learning_rate(now, step);
    struct recipe_optimizer same_decay = *now;
    AUTO(text) fix = {0};
    same_decay.lr_decay_iters = then->lr_decay_iters;
    if (before != after && learning_rate(&same_decay, step) == before)
        text_add(&fix, "; set optimizer.lr_decay_iters=%lld to keep it", (long long)then->lr_decay_iters);
    if (before != after)
        problems_warn(changes, "%s: the learning rate of step %lld changes from %.3g to %.3g%s", s->folder,
                      (long long)step, before, after, text_chars(&fix));
}

/* Warns of all other keys that change the mathematics. */
static void warn_of_changes(const struct rank_state *w, const struct checkpoint_reader *s)
{
    AUTO(text) path = {0};
    struct problems problems = {0}, changes = {0};
    struct recipe *then = NULL;
    text_add(&path, "%s/recipe.yaml", s->folder);
    const struct recipe_input input = {.path = path.chars, .addition = w->run->recipe->addition};
    if (recipe_load(&input, &then, &problems) == OK) {
        recipe_changes(then, w->run->recipe, s->folder, &changes);
        warn_of_learning_rate(&then->optimizer, &w->run->recipe->optimizer, s, &changes);
    } else
        problems_warn(&changes, "%s cannot be read: changes of the recipe are not reported", path.chars);
    problems_print(&changes, stderr);
    recipe_destroy(then);
    problems_free(&changes);
    problems_free(&problems);
}

static bool loads_moments(const struct rank_state *w, enum checkpoint_use use)
{
    return use == CHECKPOINT_RESUME && w->run->recipe->checkpoint.load_optim;
}

/* Tells how much of the vocabulary is not in the checkpoint. */
static void report_new_rows(const struct rank_state *w, const struct checkpoint_reader *s)
{
    const struct model_config *model = &w->run->recipe->model;
    const int64_t loaded = manifest_vocab_size(&s->manifest);
    if (loaded < model->vocab_size)
        print_line(stdout,
                   "model.vocab_size %lld, but %lld in %s: the last %lld rows of the embedding%s are "
                   "initialized with model.init_method_std %g",
                   (long long)model->vocab_size, (long long)loaded, s->folder,
                   (long long)(model->vocab_size - loaded),
                   model->tie_word_embeddings ? ", which is also the head," : " and of the head",
                   model->init_method_std);
}

/* Compares the checkpoint with the recipe. On rank 0, appends the order of the data to `order`. */
static enum status check_here(struct rank_state *w, const struct checkpoint_reader *source,
                              enum checkpoint_use use, struct text *order)
{
    const struct manifest *m = &source->manifest;
    const bool may_grow = use == CHECKPOINT_FINETUNE;
    TRY(manifest_check_model(m, w->run->recipe, source->folder,
                             use != CHECKPOINT_RESUME ||
                                     w->run->recipe->model.vocab_size <= manifest_vocab_size(m)
                                 ? ", or another logging.run_dir or checkpoint.load"
                                 : ", or another logging.run_dir or checkpoint.load; with "
                                   "checkpoint.finetune=true the new rows of a larger vocabulary are "
                                   "initialized",
                             may_grow));
    TRY(check_tensors(w, source, loads_moments(w, use), may_grow));
    return use == CHECKPOINT_RESUME && w->world->rank == 0 ? check_data(w, source, order) : OK;
}

/* Opens the checkpoint and compares it with the recipe. *folder: freed by the caller. */
static enum status open_here(struct rank_state *w, const char *path, enum checkpoint_use use, char **folder,
                             struct checkpoint_reader *source, struct text *order)
{
    TRY(checkpoint_resolve(path, folder));
    TRY(checkpoint_reader_open(*folder, w->world->rank, source));
    return check_here(w, source, use, order);
}

/* On machines that do not share the folder, ranks could resume from different checkpoints. */
static enum status check_same(struct rank_state *w, const struct checkpoint_reader *s)
{
    enum { DIGITS = 12 }; // 48 bits, exact in a double
    char save[DIGITS + 1] = {0};
    memcpy(save, s->manifest.identity.save, DIGITS);
    double step = (double)s->manifest.identity.step, number = (double)strtoull(save, NULL, 16);
    double range[4] = {step, -step, number, -number};
    TRY(rank_agree_max(w, range, 4));
    if (range[0] != -range[1])
        return fail(BAD_CHECKPOINT, "%s: step %.0f on one rank and %.0f on another: is the folder shared?",
                    s->folder, -range[1], range[0]);
    if (range[2] != -range[3])
        return fail(BAD_CHECKPOINT, "%s: another save of step %.0f on another rank: is the folder shared?",
                    s->folder, range[0]);
    return OK;
}

/* order: of the data, on rank 0. */
static enum status load_opened(struct rank_state *w, struct checkpoint_reader *source,
                               enum checkpoint_use use, struct text *order)
{
    struct loss_scale loss_scale;
    const struct manifest *m = &source->manifest;
    TRY(rank_agree(w, redistribute_load(w, source, loads_moments(w, use))));
    TRY(state_load_amax(w, source));
    TRY(state_load_loss_scale(w, source, &loss_scale));
    if (use == CHECKPOINT_RESUME)
        TRY(continue_data(w, order));
    if (use == CHECKPOINT_RESUME && w->world->rank == 0)
        warn_of_changes(w, source);
    if (use == CHECKPOINT_FINETUNE && w->world->rank == 0)
        report_new_rows(w, source);
    w->step = m->identity.step;
    w->skipped = m->skipped_steps;
    w->sample_offset = m->consumed_samples - m->identity.step * w->run->recipe->train.global_batch_size;
    w->has_valid_loss = use == CHECKPOINT_RESUME && m->has_valid_loss;
    w->valid_loss = m->valid_loss;
    w->scale.value = loss_scale;
    return OK;
}

/* *broken: every rank could open it, and some rank found damage, so an older checkpoint may load. A
 * checkpoint that a rank cannot see, or that does not fit the recipe, is not broken. */
static enum status load_on_all(struct rank_state *w, const char *path, enum checkpoint_use use, bool *broken)
{
    char *folder = NULL;
    AUTO(text) order = {0};
    struct checkpoint_reader source = {.folder = NULL};
    enum status status = rank_agree(w, open_here(w, path, use, &folder, &source, &order));
    *broken = false;
    if (status == OK)
        status = check_same(w, &source);
    if (status == OK) {
        status = load_opened(w, &source, use, &order);
        *broken = status == BAD_CHECKPOINT;
    }
    checkpoint_reader_close(&source);
    free(folder);
    return status;
}

enum status checkpoint_load(struct rank_state *state, const char *path, enum checkpoint_use use)
{
    bool broken;
    return device_computes(state->device) ? load_on_all(state, path, use, &broken) : OK;
}

/* Same for a checkpoint in memory. */
static enum status load_from_memory(struct rank_state *w, struct memory_checkpoints *memory, const char *path,
                                    bool *broken)
{
    AUTO(text) order = {0};
    struct checkpoint_reader source = {.folder = NULL};
    enum status status = memory_checkpoints_source(memory, path, &source);
    *broken = status == BAD_CHECKPOINT;
    if (status == OK)
        status = rank_agree(w, check_here(w, &source, CHECKPOINT_RESUME, &order));
    if (status == OK) {
        status = load_opened(w, &source, CHECKPOINT_RESUME, &order);
        *broken = status == BAD_CHECKPOINT;
    }
    checkpoint_reader_close(&source);
    return status;
}

/* ---- the newest ---- */

/* Rank 0 searches, so that all ranks try the same checkpoint even if their views of the folder differ.
 * *damaged: there are checkpoints, but none of them is complete. */
static enum status find_newest(struct rank_state *w, int64_t after, int64_t below, int64_t *step,
                               bool *damaged)
{
    const char *save = w->run->recipe->checkpoint.save;
    struct text skipped = {0};
    enum status status = OK;
    *step = -1;
    if (w->world->rank == 0)
        status = store_newest(save, below, step, &skipped);
    fputs(text_chars(&skipped), stderr);
    text_free(&skipped);
    TRY(rank_agree(w, status));
    double found[] = {*step > after ? (double)*step : -1.0,
                      w->world->rank == 0 && *step < 0 && store_has_manifest(save) ? 1.0 : 0.0};
    TRY(rank_agree_max(w, found, sizeof found / sizeof *found));
    *step = (int64_t)found[0];
    *damaged = found[1] > 0.0;
    return OK;
}

/* The checkpoints in memory that were not tried yet. */
struct memory_search {
    struct memory_checkpoints *memory;
    int64_t below; // their steps
    bool damaged;  // one could not be loaded; from then on all copies are verified before they are used
};

/* Tries checkpoints in memory of steps from `from` on, until one can be loaded. One that is damaged is tried
 * again with its intact copies. *out: its path, or NULL. */
static enum status try_memory(struct rank_state *w, struct memory_search *search, int64_t from, char **out)
{
    bool broken = true;
    enum status status = OK;
    while (broken) {
        const bool verified = search->damaged;
        int64_t step;
        char *path;
        TRY(memory_checkpoints_find(search->memory, from, search->below, verified, &step, &path));
        if (path == NULL)
            return OK;
        status = load_from_memory(w, search->memory, path, &broken);
        if (broken && verified && w->world->rank == 0)
            print_line(stderr, "warning: %s", fail_text());
        search->damaged = search->damaged || broken;
        search->below = broken && !verified ? step + 1 : step;
        if (status == OK) {
            memory_checkpoints_resumed(search->memory, step);
            *out = path;
        } else
            free(path);
    }
    return status;
}

/* Loads one of the run's own checkpoints. */
static enum status load_own(struct rank_state *w, struct memory_checkpoints *memory, int64_t after,
                            char **out)
{
    const char *save = w->run->recipe->checkpoint.save;
    struct memory_search search = {.memory = memory, .below = INT64_MAX};
    int64_t step = -1, below = INT64_MAX;
    enum status status = OK;
    bool broken = true, damaged;
    while (broken) {
        TRY(find_newest(w, after, below, &step, &damaged));
        TRY(try_memory(w, &search, step > after ? step : after + 1, out));
        if (*out != NULL)
            return OK;
        // Do not start from scratch: it may be possible to repair or to read them later.
        if (step < 0 && (status != OK || (damaged && after < 0)))
            return fail(BAD_CHECKPOINT,
                        "checkpoint.save: %s: none of its checkpoints can be loaded; start a new run with "
                        "another logging.run_dir, or set checkpoint.load to a checkpoint in another folder",
                        save);
        if (step < 0 && search.damaged && after < 0) // parts of it may have been loaded
            return fail(
                BAD_CHECKPOINT,
                "checkpoint.memory_dir: %s: its checkpoints cannot be loaded, and %s has none; remove it "
                "to start from scratch",
                w->run->recipe->checkpoint.memory_dir, save);
        if (step < 0)
            return OK;
        struct text path = {0};
        store_of_step(save, step, "", &path);
        status = load_on_all(w, path.chars, CHECKPOINT_RESUME, &broken);
        if (broken && w->world->rank == 0)
            print_line(stderr, "warning: %s", fail_text());
        if (status == OK)
            *out = path.chars;
        else
            text_free(&path);
        if (status == IO_ERROR)
            return fail(status,
                        "checkpoint.save: %s; make it readable, or start a new run with another "
                        "logging.run_dir",
                        fail_text());
        below = step;
    }
    return status;
}

enum status checkpoint_load_newest(struct rank_state *state, struct memory_checkpoints *memory, int64_t after,
                                   char **out)
{
    const char *save = state->run->recipe->checkpoint.save;
    const bool first = state->world->rank == 0;
    enum status status = OK;
    *out = NULL;
    if (!device_computes(state->device) || save == NULL)
        return OK;
    // Fingerprint the data at the start, for the checkpoints of this run.
    if (first && state->run->data != NULL) {
        const struct text *text;
        status = data_fingerprint(state->run->data, &text);
        if (status == OK)
            status = data_order_record(state->run->data, &text);
    }
    TRY(rank_agree(state, status));
    TRY(load_own(state, memory, after, out));
    if (first && *out != NULL)
        store_set_aside(save, state->step);
    return OK;
}

/* ---- paths ---- */

static const char fix_path[] = "use a checkpoint, a directory of checkpoints or a run directory";

/* A name of a directory in which a save was interrupted, or whose manifest was removed. */
static bool is_step(const char *path)
{
    const char *last = strrchr(path, '/');
    return strncmp(last != NULL ? last + 1 : path, "step-", 5) == 0;
}

/* A run directory without checkpoints, and a model of Hugging Face, are named instead of a checkpoint. */
static enum status refuse_folder(const char *path)
{
    AUTO(text) fix = {0};
    if (is_step(path))
        return fail(BAD_CHECKPOINT,
                    "%s/manifest.json: missing: not a complete checkpoint; use the directory that contains "
                    "%s to find the newest complete one",
                    path, path);
    if (inside_exists(path, "recipe.yaml"))
        text_add(&fix, "; use the directory of checkpoint.save in %s/recipe.yaml", path);
    else if (inside_exists(path, "config.json"))
        text_add(&fix, "; use cuboid checkpoint import %s -o CKPT first", path);
    else
        text_add(&fix, "; %s", fix_path);
    return fail(BAD_CHECKPOINT,
                "%s: not a checkpoint: contains neither manifest.json nor a complete step-... "
                "directory%s",
                path, text_chars(&fix));
}

enum status checkpoint_resolve(const char *path, char **out)
{
    struct stat info;
    struct text folder = {0};
    char *found = NULL;
    if (path[0] == 0)
        return fail(BAD_CHECKPOINT, "\"\" is no checkpoint; %s", fix_path);
    if (stat(path, &info) != 0)
        return fail(BAD_CHECKPOINT, "%s: %s; %s", path, strerror(errno), fix_path);
    if (!S_ISDIR(info.st_mode))
        return fail(BAD_CHECKPOINT, "%s: not a directory; %s", path, fix_path);
    const bool itself = inside_exists(path, "manifest.json");
    text_add(&folder, "%s%s", path, !itself && inside_exists(path, "checkpoints") ? "/checkpoints" : "");
    enum status status = OK;
    if (itself)
        found = text_copy(path);
    else
        status = store_find(folder.chars, &found);
    if (status == OK && found == NULL)
        status = refuse_folder(folder.chars);
    else if (status == IO_ERROR)
        status = fail(status, "%s; %s", fail_text(), fix_path);
    text_free(&folder);
    if (status == OK)
        *out = found;
    return status;
}

enum status checkpoint_recipe_path(const char *path, char **out)
{
    char *folder = NULL;
    struct text recipe = {0};
    TRY(checkpoint_resolve(path, &folder));
    text_add(&recipe, "%s/recipe.yaml", folder);
    free(folder);
    *out = recipe.chars;
    return OK;
}

void checkpoint_add_resharded(const struct rank_state *state, const char *path, struct text *out)
{
    static const char *const folders[] = {"", "/step-%08lld", "/checkpoints/step-%08lld"};
    static const char *const axes[] = {"tp", "pp", "dp"};
    const struct recipe_parallel *p = &state->run->recipe->parallel;
    const int now[] = {p->tensor_parallel_size, p->pipeline_parallel_size, p->data_parallel_size};
    struct manifest manifest = {0};
    bool found = false, same = true;
    for (int i = 0; i < 3 && !found; i++) {
        AUTO(text) folder = {0};
        text_add(&folder, "%s", path);
        text_add(&folder, folders[i], (long long)state->step);
        found = inside_exists(folder.chars, "manifest.json") && manifest_read(folder.chars, &manifest) == OK;
    }
    for (int i = 0; i < 3 && found; i++)
        same = same && manifest_degree(&manifest, axes[i]) == now[i];
    for (int i = 0; i < 3 && !same; i++)
        text_add(out, "%s%s %d", i == 0 ? ", resharded from " : ", ", axes[i],
                 manifest_degree(&manifest, axes[i]));
    manifest_free(&manifest);
}
