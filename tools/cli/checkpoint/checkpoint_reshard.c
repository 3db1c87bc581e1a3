// SPDX-License-Identifier: Apache-2.0
/* Writes the files that a run on another layout would write, with the values of the checkpoint. The layout is
 * that of the checkpoint's recipe with the given keys. */
#include "base/file.h"
#include "base/memory.h"
#include "layers/model.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/checkpoint/cmd_checkpoint.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/distribute/coverage.h"
#include "trainer/checkpoint/distribute/save_plan.h"
#include "trainer/checkpoint/huggingface/model_files.h"
#include "trainer/checkpoint/replicated_state.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/files/inside.h"
#include "trainer/files/output_folder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct reshard {
    struct checkpoint_reader source;
    char *folder;
    const char *out;
    struct output_folder output;
    struct recipe *recipe;
    struct run run;
    struct params params;
    struct tensor_list tensors;
    struct save_identity identity;
    int words; // of a note
    uint32_t *notes;
    char *band; // [CHECKPOINT_BAND_BYTES, or a row]
    struct manifest manifest;
};

/* The file of one rank. */
struct rank_file {
    struct save_plan share;
    struct shard *shards;
    int count;
    uint8_t *has;
    struct note note;
};

/* ---- arguments ---- */

static enum status parse(int argc, char **argv, const char **out, const char **rest, int *count)
{
    const struct option options[] = {{"-o", OPTION_TEXT, out, 0, 0}, {"--output", OPTION_TEXT, out, 0, 0}};
    TRY(options_parse(argc, argv, options, 2, rest, count));
    if (*count < 1 || strchr(rest[0], '=') != NULL)
        return fail(BAD_USAGE,
                    "checkpoint reshard: no checkpoint given; use cuboid checkpoint reshard CKPT -o "
                    "OUT tp=2");
    if (*out == NULL)
        return fail(BAD_USAGE,
                    "checkpoint reshard: no output given; use -o and a directory that does not exist");
    return OK;
}

static enum status load_layout(struct reshard *r, const char *const *keys, int count)
{
    struct text path = {0};
    struct problems problems = {0};
    const char **all = memory_zeroed((size_t)count + 2, sizeof *all, "the arguments");
    for (int i = 0; i < count; i++)
        all[i] = keys[i];
    all[count] = "cluster.device=dry"; // the layout does not depend on it, and no device is needed
    text_add(&path, "%s/recipe.yaml", r->folder);
    enum status status = planned_recipe_load(path.chars, all, (size_t)count + 1, 0, &r->recipe, &problems);
    if (status != OK)
        problems_print(&problems, stderr);
    if (status != OK)
        status = fail(status, "checkpoint reshard: %s with these keys is not valid", path.chars);
    problems_free(&problems);
    text_free(&path);
    free(all);
    TRY(status);
    TRY(manifest_check_model(&r->source.manifest, r->recipe, r->folder, "", false));
    TRY(run_create(r->recipe, false, &r->run));
    return params_declare(&r->recipe->model, &r->run.mesh.degrees, r->recipe->layers.sequence_parallel,
                          &r->params);
}

/* ---- tensors ---- */

static bool has_tensor(const struct reshard *r, enum state state, const struct param *row, struct shard *out)
{
    char name[SHARD_NAME_CHARS];
    state_name(state, row->name, name);
    return checkpoint_reader_tensor(&r->source, name, out);
}

static bool is_parameter(const struct reshard *r, const char *name)
{
    for (int i = 0; i < r->params.count; i++)
        for (enum state state = 0; state < STATE_COUNT; state++) {
            char other[SHARD_NAME_CHARS];
            state_name(state, r->params.list[i].name, other);
            if (r->params.list[i].tie < 0 && strcmp(name, other) == 0)
                return true;
        }
    return false;
}

/* The tensors of the list must be in the checkpoint. */
static enum status check_tensors(const struct reshard *r)
{
    const struct tensor_list *list = &r->tensors;
    for (int i = 0; i < tensor_list_count(list); i++) {
        struct shard whole, theirs;
        if (tensor_list_at(list, i, &whole) &&
            (!checkpoint_reader_tensor(&r->source, whole.name, &theirs) || theirs.dtype != whole.dtype ||
             memcmp(theirs.dim, whole.dim, sizeof whole.dim) != 0))
            return fail(BAD_CHECKPOINT, "%s: %s is missing or differs from the recipe", r->folder,
                        whole.name);
    }
    return OK;
}

/* Lists the states of the parameters in the checkpoint, and all other tensors as replicated state. */
static enum status list_tensors(struct reshard *r)
{
    struct shard whole;
    struct tensor_list *list = &r->tensors;
    const struct manifest *m = &r->source.manifest;
    *list = (struct tensor_list){.params = &r->params};
    list->states = has_tensor(r, STATE_M, &r->params.list[0], &whole) ? STATE_COUNT : STATE_VALUE + 1;
    if (!has_tensor(r, STATE_VALUE, &r->params.list[0], &whole))
        return fail(BAD_CHECKPOINT, "%s: holds no %s", r->folder, r->params.list[0].name);
    list->main = whole.dtype == SAFETENSORS_BF16 ? BF16 : F32;
    list->replicated =
        memory_zeroed((size_t)m->tensor_count + 1, sizeof *list->replicated, "a list of tensors");
    for (int i = 0; i < m->tensor_count; i++)
        if (!is_parameter(r, m->tensors[i].name))
            CHECK(checkpoint_reader_tensor(&r->source, m->tensors[i].name,
                                           &list->replicated[list->replicated_count++].shard));
    return check_tensors(r);
}

/* ---- files ---- */

static void add_shard(struct reshard *r, struct rank_file *file, int index, const struct slice *slice)
{
    struct shard *shard = &file->shards[file->count++];
    CHECK(tensor_list_at(&r->tensors, index, shard));
    if (slice != NULL)
        shard->slice = *slice;
    file->has[index] = 1;
    cover_add(&file->note.cover, shard);
}

struct dry_share {
    struct run run;
    struct save_plan *out;
};

/* With ZeRO the buckets determine what a rank owns: creates the rank on the dry device. */
static enum status share_of_dry_rank(struct world *world, void *argument)
{
    struct dry_share *job = argument;
    struct rank_state state;
    TRY(rank_create(&job->run, world, &(struct rank_options){.training = true}, &state));
    save_plan_of_rank(&job->run, &state.params, &state.weights, world->rank, job->out);
    rank_destroy(&state);
    return OK;
}

static enum status find_share(struct reshard *r, int rank, struct save_plan *out)
{
    struct dry_share job = {.run = r->run, .out = out};
    job.run.is_planning = true;
    if (r->recipe->data_parallel.zero_stage > 0)
        return world_run_dry(r->run.mesh.world, rank, share_of_dry_rank, &job);
    save_plan_of_rank(&r->run, &r->params, NULL, rank, out);
    return OK;
}

static enum status list_shards(struct reshard *r, int rank, struct rank_file *file)
{
    *file = (struct rank_file){.count = 0};
    TRY(find_share(r, rank, &file->share));
    const int tensors = tensor_list_count(&r->tensors);
    file->shards = memory_zeroed((size_t)tensors + 1, sizeof *file->shards, "a list of tensors");
    file->has = memory_zeroed((size_t)tensors + 1, 1, "a list of tensors");
    for (int i = 0; i < file->share.count; i++)
        for (enum state state = 0; state < r->tensors.states; state++)
            add_shard(r, file, tensor_list_index(&r->tensors, file->share.parts[i].param, state),
                      &file->share.parts[i].slice);
    for (int i = 0; i < r->tensors.replicated_count && rank == 0; i++)
        add_shard(r, file, tensor_list_replicated(&r->tensors, i), NULL);
    return OK;
}

static enum status write_shard(struct reshard *r, const struct shard *shard, struct checkpoint_writer *writer)
{
    const size_t each = safetensors_dtype_bytes(shard->dtype);
    const struct slice *all = &shard->slice;
    const int64_t rows = CHECKPOINT_BAND_BYTES / (all->count[1] * (int64_t)each);
    for (int64_t row = 0, count; row < all->count[0]; row += count) {
        struct slice band = *all;
        TRY(stop_signals_check());
        count = rows < 1 ? 1 : all->count[0] - row < rows ? all->count[0] - row : rows;
        band.begin[0] += row;
        band.count[0] = count;
        TRY(checkpoint_reader_read_whole(&r->source, shard->name, &band, r->band));
        TRY(checkpoint_writer_append(writer, r->band, (size_t)slice_count(&band) * each));
    }
    return OK;
}

static enum status write_shards(struct reshard *r, int rank, struct rank_file *file)
{
    struct text path = {0};
    struct checkpoint_writer *writer = NULL;
    char name[MANIFEST_FILE_CHARS];
    manifest_file_name(rank, name);
    text_add(&path, "%s/%s", r->output.partial.chars, name);
    enum status status =
        checkpoint_writer_create(path.chars, &r->identity, file->shards, file->count, &writer);
    for (int i = 0; status == OK && i < file->count; i++)
        status = write_shard(r, &file->shards[i], writer);
    if (status == OK)
        status = checkpoint_writer_finish(writer);
    if (status == OK) {
        file->note.bytes = checkpoint_writer_bytes(writer);
        file->note.checksum = checkpoint_writer_checksum(writer);
    }
    checkpoint_writer_destroy(writer);
    text_free(&path);
    return status;
}

static enum status write_rank(struct reshard *r, int rank)
{
    struct rank_file file;
    enum status status = list_shards(r, rank, &file);
    if (status == OK && file.count > 0)
        status = write_shards(r, rank, &file);
    if (status == OK)
        note_pack(&file.note, file.has, tensor_list_count(&r->tensors),
                  r->notes + (size_t)rank * (size_t)r->words);
    save_plan_free(&file.share);
    free(file.shards);
    free(file.has);
    return status;
}

/* Copies a small file of the checkpoint, which may be another user's, if it exists. */
static enum status copy_file(const struct reshard *r, const char *name)
{
    enum { MAX_BYTES = 1 << 28 };
    struct text bytes = {0};
    mode_t mode;
    bool found;
    enum status status = status_of_input(inside_read(r->folder, name, MAX_BYTES, &bytes, &mode, &found));
    if (status == OK && bytes.length > 0)
        status = inside_write(r->output.partial.chars, name, &bytes, mode);
    text_free(&bytes);
    return status;
}

static enum status write_manifest(struct reshard *r)
{
    struct text text = {0};
    TRY(copy_file(r, "recipe.yaml"));
    TRY(copy_file(r, "data.json"));
    struct model_files files = {0};
    enum status status = model_files_read(r->folder, MODEL_TOKENIZER_JSON, MODEL_CONFIG, NULL, &files);
    if (status == OK)
        status = model_files_write(&files, r->output.partial.chars);
    model_files_free(&files);
    TRY(status);
    manifest_begin_copy(&r->source.manifest, &r->run.mesh, &r->identity, &r->manifest);
    TRY(notes_add(&r->tensors, r->notes, r->run.mesh.world, r->words, r->out, &r->manifest));
    manifest_text(&r->manifest, &text);
    status = output_folder_write(&r->output, "manifest.json", &text);
    text_free(&text);
    return status;
}

static enum status allocate(struct reshard *r)
{
    size_t band = CHECKPOINT_BAND_BYTES;
    for (int i = 0; i < r->source.manifest.tensor_count; i++) {
        const struct manifest_tensor *tensor = &r->source.manifest.tensors[i];
        size_t row = (size_t)tensor->dim[1] * safetensors_dtype_bytes(tensor->dtype);
        band = row > band ? row : band;
    }
    r->words = note_words(tensor_list_count(&r->tensors));
    r->notes =
        memory_zeroed((size_t)r->run.mesh.world * (size_t)r->words, sizeof *r->notes, "a list of tensors");
    r->band = malloc(band); // the size is that of a file
    return r->band != NULL ? OK : fail(NO_MEMORY, "no memory for bands of %zu bytes", band);
}

/* Reads all but the values of the tensors. */
static enum status read_input(struct reshard *r, const char *path, const char *const *keys, int count)
{
    TRY(checkpoint_argument(path, &r->folder, &r->source));
    TRY(load_layout(r, keys, count));
    TRY(list_tensors(r));
    return allocate(r);
}

static enum status reshard(struct reshard *r, const char *path, const char *const *keys, int count)
{
    TRY(status_of_input(read_input(r, path, keys, count)));
    r->identity = r->source.manifest.identity;
    TRY(random_hex(r->identity.save, SAVE_CHARS - 1));
    TRY(output_folder_begin(r->out, &r->output));
    for (int rank = 0; rank < r->run.mesh.world; rank++)
        TRY(write_rank(r, rank));
    TRY(write_manifest(r));
    TRY(output_folder_finish(&r->output));
    print_line(stdout, "%s: step %lld, %d tensors in %d file%s for %d rank%s", r->out,
               (long long)r->identity.step, r->manifest.tensor_count, r->manifest.file_count,
               r->manifest.file_count == 1 ? "" : "s", r->run.mesh.world, r->run.mesh.world == 1 ? "" : "s");
    return OK;
}

/* Bytes of all tensors. */
static int64_t bytes_of_all(const struct manifest *m)
{
    int64_t bytes = 0;
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *tensor = &m->tensors[i];
        bytes += tensor->dim[0] * tensor->dim[1] * (int64_t)safetensors_dtype_bytes(tensor->dtype);
    }
    return bytes;
}

int checkpoint_reshard(int argc, char **argv)
{
    struct reshard r = {.out = NULL};
    int count = 0;
    const char **rest = memory_zeroed((size_t)argc + 1, sizeof *rest, "the arguments");
    enum status status = parse(argc, argv, &r.out, rest, &count);
    if (status == OK)
        status = reshard(&r, rest[0], rest + 1, count - 1);
    output_folder_free(&r.output);
    status = output_folder_explain(status, r.out, bytes_of_all(&r.source.manifest));
    tensor_list_free(&r.tensors);
    params_free(&r.params);
    if (r.run.recipe != NULL)
        run_destroy(&r.run);
    recipe_destroy(r.recipe);
    checkpoint_reader_close(&r.source);
    manifest_free(&r.manifest);
    free(r.notes);
    free(r.band);
    free(r.folder);
    free(rest);
    return exit_status(status);
}
