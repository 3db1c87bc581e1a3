// SPDX-License-Identifier: Apache-2.0
/* Loading. Each slice is put together in host memory from the pieces that it overlaps, and goes to the device
 * whole, its padding zero. A piece is read from end to end even where a part would do: only the whole of it
 * has a checksum. */
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_agree.h"
#include "trainer/checkpoint_folder.h"
#include "trainer/checkpoint_manifest.h"
#include "trainer/checksum.h"
#include "trainer/host_floats.h"
#include "trainer/safetensors.h"

#include "kernels/narrow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_ELEMENTS = 1 << 18, OPEN_FILES = 32 };

struct source {
    const char *folder;
    struct manifest manifest;
    struct safetensors **open; // [file_count], NULL: not open
    int open_count;
    float *chunk;     // [CHUNK_ELEMENTS]
    uint16_t *narrow; // [CHUNK_ELEMENTS], of values that are bf16
};

static void close_files(struct source *s)
{
    for (int i = 0; s->open != NULL && i < s->manifest.file_count; i++) {
        safetensors_close(s->open[i]);
        s->open[i] = NULL;
    }
    s->open_count = 0;
}

static void source_close(struct source *s)
{
    close_files(s);
    free(s->open);
    free(s->chunk);
    free(s->narrow);
    manifest_free(&s->manifest);
}

static enum status source_open(const char *folder, struct source *s)
{
    *s = (struct source){.folder = folder};
    TRY(manifest_read(folder, &s->manifest));
    s->open = calloc((size_t)s->manifest.file_count, sizeof *s->open);
    s->chunk = malloc(CHUNK_ELEMENTS * sizeof *s->chunk);
    s->narrow = malloc(CHUNK_ELEMENTS * sizeof *s->narrow);
    return s->open != NULL && s->chunk != NULL && s->narrow != NULL
               ? OK
               : fail(NO_MEMORY, "%s: no memory to read it", folder);
}

/* ---- files ---- */

static enum status check_header(const struct manifest_file *entry, struct safetensors *file, const char *path)
{
    if (safetensors_file_bytes(file) == entry->bytes &&
        safetensors_header_checksum(file) == entry->header_checksum)
        return OK;
    return fail(BAD_CHECKPOINT, "%s: the header's checksum is not the manifest's: corrupt", path);
}

/* A few stay open; a checkpoint of a thousand ranks may not take a thousand descriptors from each rank. */
static enum status file_of(struct source *s, int index, struct safetensors **out)
{
    if (s->open[index] == NULL) {
        if (s->open_count == OPEN_FILES)
            close_files(s);
        struct text path = {0};
        text_add(&path, "%s/%s", s->folder, s->manifest.files[index].name);
        enum status status = safetensors_open(path.chars, &s->open[index]);
        if (status == OK) {
            s->open_count++;
            status = check_header(&s->manifest.files[index], s->open[index], path.chars);
        }
        text_free(&path);
        TRY(status);
    }
    *out = s->open[index];
    return OK;
}

static enum status tensor_of(struct source *s, const struct piece *piece, bool may_be_narrow,
                             struct safetensors **file, const struct safetensors_tensor **out)
{
    TRY(file_of(s, piece->file, file));
    const struct safetensors_tensor *tensor = safetensors_find(*file, piece->name);
    const char *name = s->manifest.files[piece->file].name;
    if (tensor == NULL)
        return fail(BAD_CHECKPOINT, "%s/%s: no tensor %s, which the manifest places there", s->folder, name,
                    piece->name);
    if (tensor->dtype != SAFETENSORS_F32 && !(may_be_narrow && tensor->dtype == SAFETENSORS_BF16))
        return fail(BAD_CHECKPOINT, "%s/%s: %s is %s; F32%s is what is read", s->folder, name, piece->name,
                    safetensors_dtype_name(tensor->dtype), may_be_narrow ? " or BF16" : "");
    bool same = tensor->ndim == piece->ndim;
    for (int d = 0; same && d < piece->ndim; d++)
        same = tensor->dim[d] == piece->count[d];
    if (!same)
        return fail(BAD_CHECKPOINT, "%s/%s: %s has not the shape that the manifest says", s->folder, name,
                    piece->name);
    *out = tensor;
    return OK;
}

/* ---- pieces ---- */

/* may_be_narrow: a value, which may have been saved without masters. */
static enum status read_piece(struct source *s, const struct piece *piece, bool may_be_narrow,
                              const struct slice *want, float *local, int64_t *given)
{
    struct safetensors *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    struct checksum sum;
    int64_t elements = piece_elements(piece);
    TRY(tensor_of(s, piece, may_be_narrow, &file, &tensor));
    bool is_narrow = tensor->dtype == SAFETENSORS_BF16;
    void *read = is_narrow ? (void *)s->narrow : s->chunk;
    size_t each = safetensors_dtype_bytes(tensor->dtype);
    checksum_begin(&sum);
    for (int64_t at = 0; at < elements; at += CHUNK_ELEMENTS) {
        int64_t count = elements - at < CHUNK_ELEMENTS ? elements - at : CHUNK_ELEMENTS;
        size_t bytes = (size_t)count * each;
        who_does("load a checkpoint");
        TRY(safetensors_read(file, tensor, at * (int64_t)each, bytes, read));
        checksum_add(&sum, read, bytes);
        if (is_narrow)
            widen_floats(BF16, s->narrow, s->chunk, count);
        *given += piece_give(piece, at, count, s->chunk, want, local);
    }
    if (checksum_end(&sum) != piece->checksum)
        return fail(BAD_CHECKPOINT, "%s/%s: the checksum of %s is not the manifest's: corrupt", s->folder,
                    s->manifest.files[piece->file].name, piece->name);
    return OK;
}

static enum status shape_differs(const struct source *s, const struct param *row, const struct piece *piece)
{
    return fail(BAD_CHECKPOINT, "%s: %s is %lld x %lld, and the recipe's is %lld x %lld", s->folder,
                piece->name, (long long)piece->dim[0], (long long)piece->dim[1], (long long)row->dim[0],
                (long long)row->dim[1]);
}

/* One slice of one state into `local`, which is zero. */
static enum status assemble(struct source *s, const struct param *row, enum state state,
                            const struct slice *want, float *local)
{
    char name[PIECE_NAME_CHARS];
    int count;
    state_name(state, row->name, name);
    const struct piece *pieces = manifest_find(&s->manifest, name, &count);
    if (pieces == NULL && state != STATE_VALUE)
        return fail(BAD_CHECKPOINT, "%s: holds no %s: training cannot go on from weights alone", s->folder,
                    name);
    if (pieces == NULL)
        return fail(BAD_CHECKPOINT, "%s: holds no %s", s->folder, name);
    if (pieces->ndim != row->ndim || pieces->dim[0] != row->dim[0] || pieces->dim[1] != row->dim[1])
        return shape_differs(s, row, pieces);
    int64_t given = 0;
    for (int i = 0; i < count; i++)
        if (piece_meets(&pieces[i], want))
            TRY(read_piece(s, &pieces[i], state == STATE_VALUE, want, local, &given));
    CHECK(given == slice_count(want)); // the manifest's pieces cover each tensor, every element once
    return OK;
}

/* `slice` of a row's state, with its padding, to where it lies: `target`, or, of a value, wherever the
 * weights have it. */
static enum status load_state(struct worker *w, struct source *s, const struct held *held, enum state state,
                              struct slice slice, struct tensor target)
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

static enum status load_slices(struct worker *w, struct source *s, bool with_optimizer)
{
    bool whole = w->weights.zero_stage < 3; // of values a rank holds more than it owns
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

/* ---- delayed scaling ---- */

/* The history of one row, as many steps as it was written with; the caller frees it. */
static enum status read_amax(struct source *s, const struct piece *pieces, int count, float **out)
{
    int64_t given = 0;
    struct slice whole = {.ndim = 2};
    if (pieces->ndim != 2 || pieces->dim[0] != OPERAND_COUNT)
        return fail(BAD_CHECKPOINT, "%s: %s has %lld lines, not %d", s->folder, pieces->name,
                    (long long)pieces->dim[0], (int)OPERAND_COUNT);
    for (int d = 0; d < 2; d++)
        whole.count[d] = whole.padded[d] = pieces->dim[d];
    *out = calloc((size_t)slice_padded(&whole) + 1, sizeof **out);
    if (*out == NULL)
        return fail(NO_MEMORY, "no memory for %s", pieces->name);
    for (int i = 0; i < count; i++)
        TRY(read_piece(s, &pieces[i], false, &whole, *out, &given));
    return OK;
}

/* Every rank reads all of it. One that another format wrote has none. */
static enum status load_amax(struct worker *w, struct source *s)
{
    int missing = 0;
    for (int row = 0; row < w->params.count && w->amax != NULL; row++) {
        char name[PIECE_NAME_CHARS];
        int count;
        int64_t steps;
        float *values = NULL;
        amax_name(w->params.rows[row].name, name);
        const struct piece *pieces = manifest_find(&s->manifest, name, &count);
        if (amax_history_of(w->amax, row, &steps) == NULL)
            continue;
        enum status status = pieces != NULL ? read_amax(s, pieces, count, &values) : OK;
        if (status == OK && pieces != NULL)
            amax_history_put(w->amax, row, values, pieces->dim[1]);
        missing += pieces == NULL;
        free(values);
        TRY(status);
    }
    if (missing > 0 && w->world->rank == 0)
        fprintf(stderr,
                "warning: %s has no history of magnitudes for %d weights: precision.scaling delayed begins "
                "with scales of 1\n",
                s->folder, missing);
    return amax_history_settle(w->amax);
}

/* ---- all ranks ---- */

/* Going on with another global batch is allowed; that samples come again or are left out should be known. */
static void warn_of_samples(const struct worker *w, const struct source *s)
{
    int64_t batch = w->run->recipe->train.global_batch_size, samples = s->manifest.consumed_samples;
    int64_t step = s->manifest.step;
    if (step > 0 && (samples % batch != 0 || samples / batch != step))
        fprintf(
            stderr,
            "warning: %s was made with train.global_batch_size %lld, and now it is %lld: the data does not "
            "go on after sample %lld, where it stopped\n",
            s->folder, (long long)(samples / step), (long long)batch, (long long)samples);
}

/* The same for everything else that another recipe would compute differently. */
static void warn_of_changes(const struct worker *w, const struct source *s)
{
    struct text path = {0};
    struct problems problems = {0}, changes = {0};
    struct recipe *then = NULL;
    text_add(&path, "%s/recipe.yaml", s->folder);
    if (recipe_load(path.chars, NULL, 0, 0, &then, &problems) == OK)
        recipe_changes(then, w->run->recipe, s->folder, &changes);
    else
        problems_warn(&changes, "%s cannot be read: it is not known whether this recipe continues it",
                      path.chars);
    problems_print(&changes, stderr);
    recipe_destroy(then);
    problems_free(&changes);
    problems_free(&problems);
    text_free(&path);
}

/* What the scale was, where this run looks for one and that run did; else as it begins. */
static struct loss_scale scale_of(const struct worker *w, const struct manifest *manifest)
{
    struct loss_scale scale = loss_scale_of(w->run->recipe);
    loss_scale_resume(&scale, manifest->loss_scale.scale, manifest->loss_scale.good_steps,
                      manifest->loss_scale.hysteresis);
    return scale;
}

/* What one rank comes to. */
struct outcome {
    int64_t step, skipped;
    struct loss_scale loss_scale; // to go on with
    bool fits;                    // it has been opened, and is of this model: what fails after that is damage
};

static enum status load_here(struct worker *w, const char *path, bool with_optimizer, struct outcome *out)
{
    char *folder = NULL;
    struct source source;
    *out = (struct outcome){0};
    TRY(checkpoint_resolve(path, &folder));
    enum status status = source_open(folder, &source);
    if (status == OK)
        status = manifest_check_model(&source.manifest, w->run->recipe, folder);
    out->fits = status == OK;
    if (status == OK)
        status = load_slices(w, &source, with_optimizer);
    if (status == OK)
        status = load_amax(w, &source);
    out->step = source.manifest.step;
    out->skipped = source.manifest.skipped_steps;
    out->loss_scale = scale_of(w, &source.manifest);
    if (status == OK && with_optimizer && w->world->rank == 0) {
        warn_of_samples(w, &source);
        warn_of_changes(w, &source);
    }
    source_close(&source);
    free(folder);
    return status;
}

/* Ranks on machines that do not share the folder could go on from different steps. */
static enum status check_same_step(struct worker *w, int64_t step, const char *path)
{
    double range[2] = {(double)step, -(double)step};
    TRY(worker_agree_max(w, range, 2));
    if (range[0] != -range[1])
        return fail(BAD_CHECKPOINT, "%s: step %.0f on one rank and %.0f on another: is the folder shared?",
                    path, -range[1], range[0]);
    return OK;
}

/* *broken: every rank could open it, and some rank came across damage: an older checkpoint may do better. One
 * that a rank cannot even see says nothing of the others: is the folder shared? */
static enum status load_together(struct worker *w, const char *path, bool with_optimizer, bool *broken)
{
    struct outcome outcome;
    enum status status = load_here(w, path, with_optimizer, &outcome);
    double misfit = outcome.fits ? 0.0 : 1.0;
    *broken = false;
    TRY(worker_agree_max(w, &misfit, 1));
    status = worker_agree(w, status);
    *broken = status == BAD_CHECKPOINT && misfit == 0.0;
    TRY(status);
    TRY(check_same_step(w, outcome.step, path));
    w->step = outcome.step;
    w->skipped = outcome.skipped;
    w->loss_scale = outcome.loss_scale;
    return OK;
}

enum status checkpoint_load(struct worker *w, const char *path, bool with_optimizer)
{
    bool broken;
    return device_computes(w->device) ? load_together(w, path, with_optimizer, &broken) : OK;
}

/* The first rank looks, so that all try the same one, whatever their views of the folder. */
static enum status find_together(struct worker *w, int64_t below, int64_t *step)
{
    struct text skipped = {0};
    enum status status = OK;
    *step = -1;
    if (w->world->rank == 0)
        status = folder_newest(w->run->recipe->checkpoint.save, below, step, &skipped);
    fputs(text_chars(&skipped), stderr);
    text_free(&skipped);
    TRY(worker_agree(w, status));
    double found = (double)*step;
    TRY(worker_agree_max(w, &found, 1));
    *step = (int64_t)found;
    return OK;
}

enum status checkpoint_continue(struct worker *w, char **out)
{
    const char *save = w->run->recipe->checkpoint.save;
    bool first = w->world->rank == 0, broken = device_computes(w->device) && save != NULL;
    int64_t step = -1, below = INT64_MAX;
    enum status status = OK;
    *out = NULL;
    while (broken) {
        TRY(find_together(w, below, &step));
        if (step < 0 && status != OK)
            return fail(BAD_CHECKPOINT,
                        "%s: none of its checkpoints can be loaded; another logging.run_dir begins anew, and "
                        "checkpoint.load takes one from elsewhere",
                        save);
        if (step < 0)
            return OK;
        struct text path = {0};
        folder_of_step(save, step, "", &path);
        status = load_together(w, path.chars, true, &broken);
        if (broken && first)
            fprintf(stderr, "warning: %s\n", fail_text());
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
