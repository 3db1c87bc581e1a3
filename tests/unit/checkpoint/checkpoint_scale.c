// SPDX-License-Identifier: Apache-2.0
/* A checkpoint of Llama 3 405B on 16,384 ranks (tp 8, dp 128, pp 16), with headers only: files are sparse,
 * and their shards follow from the layout. Checks the size of the manifest and the processor time to make
 * it, and the time and memory in which a rank finds its pieces, on the same layout and on another one.
 *
 *     checkpoint_scale               runs all of it in a temporary folder
 *     checkpoint_scale find LAYOUT   one rank of a layout, in the current folder */
#include "base/text.h"
#include "layers/model.h"
#include "schedules/schedule.h"
#include "tests/fixtures/model_family.h"
#include "tests/support/tiny.h"
#include "trainer/checkpoint/distribute/coverage.h"
#include "trainer/checkpoint/distribute/save_plan.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/store.h"
#include "trainer/files/checksum.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHECKPOINTS = 100, MAX_MANIFEST_BYTES = 10000000, MAX_MEMORY_KB = 100000 };
static const char NEWEST[] = "s/step-00000100";
static const double MAX_MAKE_S = 10.0, MAX_FIND_S = 0.5, MAX_NEWEST_S = 1.0;

static const struct degrees layouts[] = {
    {.tp = 8, .cp = 1, .ep = 1, .dp = 128, .pp = 16},
    {.tp = 4, .cp = 1, .ep = 1, .dp = 256, .pp = 16},
};

struct plan {
    struct run run;
    struct params params;
    struct tensor_list tensors;
};

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static enum status plan_open(int layout, struct plan *out)
{
    static const struct recipe no_zero;
    const struct model_config model = llama_model((struct model_config){.num_layers = 126,
                                                                        .hidden_size = 16384,
                                                                        .num_attention_heads = 128,
                                                                        .num_query_groups = 8,
                                                                        .ffn_hidden_size = 53248,
                                                                        .kv_channels = 128,
                                                                        .seq_length = 8192,
                                                                        .vocab_size = 128256});
    const struct degrees *degrees = &layouts[layout];
    struct schedule_options options = {.name = "1f1b", .p = degrees->pp, .m = degrees->pp};
    *out = (struct plan){.run = {.recipe = &no_zero}};
    TRY(mesh_create(*degrees, NULL, &out->run.mesh));
    TRY(schedule_build(&options, &out->run.schedule));
    TRY(params_declare(&model, degrees, true, &out->params));
    out->run.stage_first_layer = calloc((size_t)degrees->pp + 1, sizeof *out->run.stage_first_layer);
    for (int s = 0; s <= degrees->pp; s++)
        out->run.stage_first_layer[s] = (int)model.num_layers * s / degrees->pp;
    out->tensors = (struct tensor_list){.params = &out->params, .states = STATE_COUNT, .main = F32};
    return OK;
}

static void plan_close(struct plan *plan)
{
    schedule_destroy(plan->run.schedule);
    free(plan->run.stage_first_layer);
    params_free(&plan->params);
}

/* ---- making it ---- */

static void add_numbers(struct text *out, const int64_t *list, int ndim)
{
    text_add(out, ndim == 2 ? "%lld,%lld" : "%lld", (long long)list[0], (long long)list[1]);
}

/* The header of a file with these shards, as a save writes it; the checksums of the data are zeros. */
static int64_t header_of(const struct save_identity *identity, const struct shard *shards, int count,
                         struct text *out)
{
    int64_t data = 0;
    text_add(
        out,
        "12345678{\"__metadata__\":{\"cuboid.version\":\"3\",\"cuboid.run\":\"%s\",\"cuboid.save\":\"%s\","
        "\"cuboid.step\":\"%lld\"",
        identity->run, identity->save, (long long)identity->step);
    for (int i = 0; i < count; i++) {
        text_add(out, ",\"%s\":\"", shards[i].name);
        add_numbers(out, shards[i].slice.begin, shards[i].slice.ndim);
        text_add(out, " ");
        add_numbers(out, shards[i].dim, shards[i].slice.ndim);
        text_add(out, "\"");
        data += slice_count(&shards[i].slice) * 4;
    }
    text_add(out, ",\"cuboid.xxh3\":\"%0*d\"}", (int)((data + (1 << 20) - 1) >> 20) * 16, 0);
    data = 0;
    for (int i = 0; i < count; i++) {
        int64_t bytes = slice_count(&shards[i].slice) * 4;
        text_add(out, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[", shards[i].name);
        add_numbers(out, shards[i].slice.count, shards[i].slice.ndim);
        text_add(out, "],\"data_offsets\":[%lld,%lld]}", (long long)data, (long long)(data + bytes));
        data += bytes;
    }
    text_add(out, "}");
    uint64_t length = out->length - sizeof length;
    memcpy(out->chars, &length, sizeof length);
    return (int64_t)out->length + data;
}

/* Lists the shards of a rank; writes its file if `folder` is not NULL, and its note. */
static enum status make_rank(const struct plan *plan, int rank, const struct save_identity *identity,
                             const char *folder, uint32_t *note_words_out)
{
    struct save_plan share;
    struct note note = {.bytes = 0};
    struct text header = {0}, path = {0};
    char name[MANIFEST_FILE_CHARS];
    const int tensors = tensor_list_count(&plan->tensors);
    struct shard *shards = calloc((size_t)tensors, sizeof *shards);
    uint8_t *has = calloc((size_t)tensors, 1);
    int count = 0;
    save_plan_of_rank(&plan->run, &plan->params, NULL, rank, &share);
    for (int i = 0; i < share.count; i++)
        for (enum state state = 0; state < STATE_COUNT; state++) {
            int index = tensor_list_index(&plan->tensors, share.parts[i].param, state);
            struct shard *shard = &shards[count++];
            CHECK(tensor_list_at(&plan->tensors, index, shard));
            shard->slice = share.parts[i].slice;
            has[index] = 1;
            cover_add(&note.cover, shard);
        }
    note.bytes = header_of(identity, shards, count, &header);
    note.checksum = checksum_of(header.chars, header.length);
    note_pack(&note, has, tensors, note_words_out);
    manifest_file_name(rank, name);
    text_add(&path, "%s/%s", folder, name);
    int fd = open(path.chars, O_WRONLY | O_CREAT | O_EXCL, 0666);
    CHECK(fd >= 0 && write(fd, header.chars, header.length) == (ssize_t)header.length);
    CHECK(ftruncate(fd, note.bytes) == 0);
    close(fd);
    save_plan_free(&share);
    text_free(&header);
    text_free(&path);
    free(shards);
    free(has);
    return OK;
}

static enum status write_manifest(const struct plan *plan, const struct save_identity *identity,
                                  const uint32_t *notes, int words, const char *folder)
{
    struct manifest_key key = {"num_layers", "126"};
    struct manifest from = {.consumed_samples = 1, .model = &key, .model_count = 1}, manifest;
    struct text recipe = {0}, text = {0}, path = {0};
    text_add(&recipe, "name: by arithmetic\n");
    double begin = cpu_s();
    manifest_begin_copy(&from, &plan->run.mesh, identity, &manifest);
    manifest_set_recipe(&manifest, "recipe.yaml", &recipe);
    TRY(notes_add(&plan->tensors, notes, plan->run.mesh.world, words, folder, &manifest));
    manifest_text(&manifest, &text);
    double took = cpu_s() - begin;
    printf("manifest: %zu bytes in %.2f s, %d tensors, %d files\n", text.length, took, manifest.tensor_count,
           manifest.file_count);
    if (text.length > MAX_MANIFEST_BYTES || took > MAX_MAKE_S)
        return fail(OUT_OF_BOUND, "the manifest has %zu bytes and took %.2f s", text.length, took);
    text_add(&path, "%s/recipe.yaml", folder);
    TRY(file_write_atomic(path.chars, recipe.chars, recipe.length));
    text_free(&path);
    text_add(&path, "%s/manifest.json", folder);
    TRY(file_write_atomic(path.chars, text.chars, text.length));
    text_free(&path);
    text_free(&text);
    text_free(&recipe);
    manifest_free(&manifest);
    return OK;
}

static enum status make(const char *folder)
{
    struct plan plan;
    struct save_identity identity = {.step = CHECKPOINTS};
    snprintf(identity.run, sizeof identity.run, "%032d", 7);
    snprintf(identity.save, sizeof identity.save, "%016d", 7);
    TRY(plan_open(0, &plan));
    TRY(folder_make(folder));
    const int words = note_words(tensor_list_count(&plan.tensors));
    uint32_t *notes = calloc((size_t)plan.run.mesh.world * (size_t)words, sizeof *notes);
    for (int rank = 0; rank < plan.run.mesh.world; rank++)
        TRY(make_rank(&plan, rank, &identity, folder, notes + (size_t)rank * (size_t)words));
    TRY(write_manifest(&plan, &identity, notes, words, folder));
    free(notes);
    plan_close(&plan);
    return OK;
}

/* ---- finding pieces ---- */

/* The pieces that a rank in the middle of the pipeline needs: what it would write on its layout. */
static enum status find(int layout, const char *folder)
{
    struct plan plan;
    struct checkpoint_reader source;
    struct save_plan share;
    struct rusage use;
    int pieces = 0;
    TRY(plan_open(layout, &plan));
    const int rank = plan.run.mesh.world / 2 + 77;
    save_plan_of_rank(&plan.run, &plan.params, NULL, rank, &share);
    double begin = cpu_s();
    TRY(checkpoint_reader_open(folder, rank, &source));
    for (int i = 0; i < share.count; i++)
        for (enum state state = 0; state < STATE_COUNT; state++) {
            char name[SHARD_NAME_CHARS];
            const struct shard *shards;
            int count;
            state_name(state, plan.params.list[share.parts[i].param].name, name);
            TRY(checkpoint_reader_find(&source, name, &share.parts[i].slice, &shards, &count));
            pieces += count;
        }
    double took = cpu_s() - begin;
    getrusage(RUSAGE_SELF, &use);
    printf("layout %d: %d pieces in %d files found in %.3f s, %ld kB\n", layout, pieces, source.opened, took,
           use.ru_maxrss);
    if (took > MAX_FIND_S || use.ru_maxrss > MAX_MEMORY_KB || (layout == 0 && source.opened != 1))
        return fail(OUT_OF_BOUND, "layout %d: %.3f s, %ld kB, %d files", layout, took, use.ru_maxrss,
                    source.opened);
    checkpoint_reader_close(&source);
    save_plan_free(&share);
    plan_close(&plan);
    return OK;
}

static enum status find_in_child(const char *program, const char *layout)
{
    int how = 0;
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "find", layout, (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0 && waitpid(child, &how, 0) == child);
    return WIFEXITED(how) && WEXITSTATUS(how) == 0 ? OK : fail(OUT_OF_BOUND, "layout %s: see above", layout);
}

/* ---- main ---- */

static enum status run(const char *program)
{
    struct text skipped = {0};
    int64_t step = -1;
    TRY(make(NEWEST));
    TRY(find_in_child(program, "0"));
    TRY(find_in_child(program, "1"));
    for (int i = 1; i < CHECKPOINTS; i++) { // older ones, which are not read if the newest is complete
        struct text path = {0};
        text_add(&path, "s/step-%08d", i);
        CHECK(mkdir(path.chars, 0777) == 0);
        text_free(&path);
    }
    double begin = cpu_s();
    TRY(store_newest("s", INT64_MAX, &step, &skipped));
    double took = cpu_s() - begin;
    text_free(&skipped);
    printf("newest: step %lld in %.3f s\n", (long long)step, took);
    return step == CHECKPOINTS && took < MAX_NEWEST_S
               ? OK
               : fail(OUT_OF_BOUND, "step %lld in %.3f s", (long long)step, took);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/cuboid-scale-XXXXXX", *program = realpath(argv[0], NULL);
    if (argc == 3) {
        enum status status = find(argv[2][0] - '0', NEWEST);
        if (status != OK)
            printf("%s\n", fail_text());
        return status != OK;
    }
    CHECK(program != NULL && mkdtemp(folder) != NULL && chdir(folder) == 0);
    enum status status = run(program);
    printf("%s\n", status == OK ? "ok" : fail_text());
    CHECK(chdir("/") == 0);
    remove_tree(folder);
    free(program);
    return status != OK;
}
