// SPDX-License-Identifier: Apache-2.0
/* What loading reads. All ranks together read at most 1.1 times the bytes of a checkpoint, whatever the two
 * layouts, and on the same layout each data file is opened once, and tensors are read to where they are used.
 * After a change of the batch size no sample is repeated or skipped. Ranks agree on whether they have memory
 * for messages. */
#include "base/file.h"
#include "planner/recipe/planned_recipe.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/shard.h"
#include "trainer/data/dataset_writer.h"
#include "trainer/engine/step.h"

#include <dirent.h>
#include <linux/magic.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char recipe_text[] =
    "model: {num_layers: 4, hidden_size: 432, num_attention_heads: 6, seq_length: 8, vocab_size: 8200}\n"
    "train: {global_batch_size: 8, micro_batch_size: 1, train_iters: 1000}\n"
    "optimizer: {lr: 1e-2, lr_decay_style: constant}\n"
    "tokenizer: {tokenizer_type: none}\n"
    "data: {train: data}\n"
    "cluster: {device: cpu, threads_per_rank: 1}\n"
    "checkpoint: {save: saves, load: none}\n";

enum { MAX_KEYS = 8, MAX_SAMPLES = 200 };

static const char *const layouts[][MAX_KEYS] = {
    {"tp=1"},
    {"tp=2"},
    {"dp=4"},
    {"dp=4", "parallel.zero_stage=1"},
    {"tp=2", "dp=2", "parallel.zero_stage=3", "parallel.sequence_parallel=true"},
    {"pp=2", "pipeline.layout=[3,1]", "dp=2"},
    {"tp=2", "pp=2", "pipeline.schedule=dualpipe", "pipeline.layout=[1,3]"},
    {"tp=6", "precision.params_dtype=bf16", "precision.main_params_dtype=bf16"},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };
static const char *const small[MAX_KEYS] = {"tp=1", "model.hidden_size=48"};

struct episode {
    struct run run;
    struct recipe *recipe;
    bool loads;
    int steps;
    int seen[MAX_SAMPLES]; // how often each sample was loaded
};

static enum status episode_open(const char *const *keys, const char *more, struct episode *out)
{
    const char *overrides[MAX_KEYS + 1];
    size_t count = 0;
    for (; keys[count] != NULL; count++)
        overrides[count] = keys[count];
    if (more != NULL)
        overrides[count++] = more;
    struct problems problems = {0};
    *out = (struct episode){.loads = true};
    enum status status = planned_recipe_load("recipe.yaml", overrides, count, 0, &out->recipe, &problems);
    problems_print(&problems, stderr);
    problems_free(&problems);
    TRY(status);
    return run_create(out->recipe, true, &out->run);
}

static void episode_close(struct episode *episode)
{
    run_destroy(&episode->run);
    recipe_destroy(episode->recipe);
}

static enum status episode_rank(struct world *world, void *argument)
{
    struct episode *episode = argument;
    struct rank_state state;
    struct step_result result;
    TRY(rank_create(&episode->run, world, &(struct rank_options){.training = true}, &state));
    enum status status = episode->loads ? checkpoint_load(&state, "saves", CHECKPOINT_RESUME) : OK;
    for (int i = 0; status == OK && i < episode->steps; i++)
        status = rank_step(&state, &result);
    if (status == OK && (!episode->loads || episode->steps > 0))
        status = checkpoint_save(&state);
    rank_destroy(&state);
    return status;
}

static enum status run_ranks(struct episode *episode)
{
    return world_run("local", recipe_world_size(episode->recipe), episode_rank, episode);
}

/* ---- files ---- */

static int64_t bytes_read(void)
{
    char line[100];
    long long bytes = -1;
    FILE *file = fopen("/proc/self/io", "r");
    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL && sscanf(line, "rchar: %lld", &bytes) == 1);
    fclose(file);
    return bytes;
}

/* Files there are mapped, and no bytes are counted. */
static bool on_tmpfs(void)
{
    struct statfs about;
    return statfs(".", &about) == 0 && about.f_type == TMPFS_MAGIC;
}

static bool is_data(const char *name)
{
    return strncmp(name, "rank-", 5) == 0;
}

/* *bytes: of the whole checkpoint; returns the number of its data files. */
static int measure(const char *folder, int64_t *bytes)
{
    int count = 0;
    struct dirent *found;
    DIR *list = opendir(folder);
    CHECK(list != NULL);
    *bytes = 0;
    while ((found = readdir(list)) != NULL) {
        struct stat info;
        struct text path = {0};
        text_add(&path, "%s/%s", folder, found->d_name);
        if (stat(path.chars, &info) == 0 && S_ISREG(info.st_mode))
            *bytes += info.st_size;
        count += is_data(found->d_name);
        text_free(&path);
    }
    closedir(list);
    return count;
}

/* The number of times that a data file was opened since `watch` was created. */
static int opened(int watch)
{
    _Alignas(struct inotify_event) char events[1 << 16];
    int count = 0;
    for (ssize_t got; (got = read(watch, events, sizeof events)) > 0;)
        for (char *at = events; at < events + got;) {
            const struct inotify_event *event = (const struct inotify_event *)(void *)at;
            count += event->len > 0 && is_data(event->name);
            at += sizeof *event + event->len;
        }
    return count;
}

static bool is_temporary(const char *name)
{
    (void)name;
    return true;
}

static enum status save_on(int layout)
{
    struct episode episode;
    TRY(folder_remove("saves/step-00000000", is_temporary));
    TRY(episode_open(layouts[layout], NULL, &episode));
    episode.loads = false;
    enum status status = run_ranks(&episode);
    episode_close(&episode);
    return status;
}

static enum status load_on(int from, int to)
{
    static const char folder[] = "saves/step-00000000";
    struct episode episode;
    int64_t whole;
    int files = measure(folder, &whole);
    TRY(episode_open(layouts[to], NULL, &episode));
    int watch = inotify_init1(IN_NONBLOCK);
    CHECK(watch >= 0 && inotify_add_watch(watch, folder, IN_OPEN) >= 0);
    int64_t before = bytes_read(), ranks = recipe_world_size(episode.recipe);
    enum status status = run_ranks(&episode);
    // Every rank reads the manifest and the recipe.
    struct stat manifest, recipe;
    CHECK(stat("saves/step-00000000/manifest.json", &manifest) == 0 &&
          stat("saves/step-00000000/recipe.yaml", &recipe) == 0);
    int64_t read = bytes_read() - before - ranks * 2 * (manifest.st_size + recipe.st_size);
    int count = opened(watch);
    close(watch);
    episode_close(&episode);
    TRY(status);
    printf("layout %d on %d: %.3f of %.1f MB, %d files opened %d times\n", from, to,
           (double)read / (double)whole, (double)whole / 1e6, files, count);
    if (read > whole + whole / 10)
        return fail(OUT_OF_BOUND, "layout %d on %d: read %lld bytes of %lld", from, to, (long long)read,
                    (long long)whole);
    if (read < whole - whole / 10 && !on_tmpfs())
        return fail(OUT_OF_BOUND, "layout %d on %d: only %lld bytes of %lld were counted", from, to,
                    (long long)read, (long long)whole);
    if (from == to && count != files)
        return fail(OUT_OF_BOUND, "layout %d: %d files were opened %d times", from, files, count);
    return OK;
}

static enum status reads_once(void)
{
    for (int from = UNDER_SANITIZER ? 4 : 0; from < LAYOUTS; from += long_tests() ? 1 : 4) {
        TRY(save_on(from));
        TRY(load_on(from, from));
        TRY(load_on(from, (from + 1) % LAYOUTS));
    }
    return OK;
}

/* ---- in place ---- */

/* Peak resident memory in bytes, since it was last reset. */
static int64_t peak_memory(bool reset)
{
    char line[200];
    long long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (kib < 0 && fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "VmHWM: %lld kB", &kib);
    fclose(file);
    file = reset ? fopen("/proc/self/clear_refs", "w") : NULL;
    CHECK(kib >= 0 && (!reset || file != NULL));
    if (file != NULL)
        CHECK(fputs("5", file) >= 0 && fclose(file) == 0);
    return reset ? peak_memory(false) : kib << 10;
}

static void set_all(struct tensor t, float value)
{
    for (int64_t i = 0; i < tensor_count(t); i++)
        ((float *)t.data)[i] = value;
}

/* The embedding of a rank has 4100 rows and 124 of padding. What was in its memory is replaced by what was
 * saved and, in the padding, by zeros; it is not read to memory of its
 * own first. */
static enum status in_place_rank(struct world *world, void *argument)
{
    const struct episode *episode = argument;
    struct rank_state w;
    TRY(rank_create(&episode->run, world, &(struct rank_options){.training = true}, &w));
    const struct owned_param *owned = weights_owned(&w.weights, 0);
    CHECK(owned != NULL && strcmp(w.params.list[0].name, "embedding.weight") == 0);
    const struct slice *slice = &owned->held->slice;
    const int64_t saved = slice_count(slice), all = slice_padded(slice);
    CHECK(saved < all && tensor_count(owned->m) == all);
    TRY(checkpoint_load(&w, "saves", CHECKPOINT_RESUME)); // from now on all memory of the states is resident
    set_all(owned->value, 1.0f);
    set_all(owned->m, 1.0f);
    set_all(owned->v, 1.0f);
    TRY(group_barrier(w.groups->world, w.compute));
    const int64_t before = world->rank == 0 ? peak_memory(true) : 0;
    TRY(group_barrier(w.groups->world, w.compute));
    TRY(checkpoint_load(&w, "saves", CHECKPOINT_RESUME));
    TRY(group_barrier(w.groups->world, w.compute));
    const int64_t more = world->rank == 0 ? peak_memory(false) - before : 0;
    int64_t wrong = 0;
    for (enum state state = 0; state < STATE_COUNT; state++)
        for (int64_t i = 0; i < all; i++) {
            const float value = ((const float *)state_tensor(owned, state).data)[i];
            wrong += i >= saved || state != STATE_VALUE ? value != 0.0f : value == 1.0f;
        }
    rank_destroy(&w);
    if (wrong > 0)
        return fail(OUT_OF_BOUND, "rank %d: %lld of %lld elements are wrong", world->rank, (long long)wrong,
                    (long long)all);
    return more < 2 * saved * (int64_t)sizeof(float) || UNDER_SANITIZER
               ? OK
               : fail(OUT_OF_BOUND, "loading takes %lld bytes of memory", (long long)more);
}

static enum status reads_in_place(void)
{
    enum { TP2 = 1 };
    struct episode episode;
    TRY(save_on(TP2));
    TRY(episode_open(layouts[TP2], NULL, &episode));
    enum status status = world_run("local", 2, in_place_rank, &episode);
    episode_close(&episode);
    return status;
}

/* ---- samples ---- */

static enum status count_samples(void *context, struct rank_state *w, int64_t step)
{
    struct episode *episode = context;
    (void)step;
    for (int j = 0; j < w->batches.count; j++)
        for (int64_t row = 0; row < w->batches.rows; row++) {
            int64_t sample = w->batches.list[j].sample[row * w->batches.seq_length];
            if (sample < 0 || sample >= MAX_SAMPLES)
                return fail(OUT_OF_BOUND, "sample %lld", (long long)sample);
            episode->seen[sample]++;
        }
    return OK;
}

static enum status continues_the_samples(void)
{
    static const char *const sizes[] = {"train.global_batch_size=8", "train.global_batch_size=12",
                                        "train.global_batch_size=4", "train.global_batch_size=20"};
    int seen[MAX_SAMPLES] = {0}, samples = 0;
    TRY(folder_remove("saves/step-00000000", is_temporary));
    for (int i = 0; i < 4; i++) {
        struct episode episode;
        TRY(episode_open(small, sizes[i], &episode));
        episode.loads = i > 0;
        episode.steps = 2 + i % 2;
        episode.run.observer =
            (struct step_observer){.context = &episode, .on_batches_loaded = count_samples};
        samples += episode.steps * (int)episode.recipe->train.global_batch_size;
        enum status status = run_ranks(&episode);
        for (int s = 0; s < MAX_SAMPLES; s++)
            seen[s] += episode.seen[s];
        episode_close(&episode);
        TRY(status);
    }
    for (int s = 0; s < MAX_SAMPLES; s++)
        if (seen[s] != (s < samples))
            return fail(OUT_OF_BOUND, "sample %d of %d was used %d times", s, samples, seen[s]);
    return OK;
}

/* ---- main ---- */

static enum status prepare(char *folder)
{
    struct dataset_writer *writer = NULL;
    int32_t ids[3000];
    CHECK(mkdtemp(folder) != NULL && chdir(folder) == 0);
    TRY(file_write_atomic("recipe.yaml", recipe_text, sizeof recipe_text - 1));
    TRY(dataset_writer_create("data", 8200, &writer));
    for (int i = 0; i < 3000; i++)
        ids[i] = (i * i + 7 * i) % 8200;
    TRY(dataset_writer_add(writer, ids, 3000));
    TRY(dataset_writer_end_document(writer));
    TRY(dataset_writer_finish(writer));
    dataset_writer_destroy(writer);
    return OK;
}

/* ---- memory for messages ---- */

/* Memory that one rank cannot allocate: all ranks fail, and none waits for it. */
static enum status staging_rank(struct world *world, void *argument)
{
    const struct episode *episode = argument;
    struct rank_state w;
    struct staging staging;
    TRY(rank_create(&episode->run, world, &(struct rank_options){.training = true}, &w));
    const enum status status = staging_open(&w, world->rank == 1 ? PTRDIFF_MAX : 64, &staging);
    rank_destroy(&w);
    return status == NO_MEMORY ? OK : fail(OUT_OF_BOUND, "staging_open on rank %d: %d", world->rank, status);
}

static enum status agrees_on_memory(void)
{
    struct episode episode;
    TRY(episode_open(layouts[1], NULL, &episode));
    enum status status = world_run("local", 2, staging_rank, &episode);
    episode_close(&episode);
    return status;
}

int main(void)
{
    char folder[] = "/tmp/cuboid-load-XXXXXX";
    mallopt(M_PERTURB, 0); // MALLOC_PERTURB_ makes all memory resident that is allocated
    MUST(prepare(folder));
    enum status status = reads_once();
    if (status == OK)
        status = reads_in_place();
    if (status == OK)
        status = continues_the_samples();
    if (status == OK)
        status = agrees_on_memory();
    printf("%s\n", status == OK ? "ok" : fail_text());
    remove_tree(folder);
    return status != OK;
}
