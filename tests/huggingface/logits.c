// SPDX-License-Identifier: Apache-2.0
/* Prints the logits of a prompt and greedy tokens, computed by the forward pass of training on one rank:
 *
 *     huggingface_logits CHECKPOINT ROWS GREEDY ID...
 *
 * One line "logits" for each of the last ROWS positions, then one line "greedy" with GREEDY ids. Past the
 * context, each id follows the last seq_length ids. */
#include "base/text.h"
#include "kernels/host_floats.h"
#include "planner/recipe/planned_recipe.h"
#include "trainer/checkpoint/load.h"

#include <stdlib.h>
#include <string.h>

struct logits_run {
    struct run run;
    const char *checkpoint;
    int64_t rows, greedy, count; // count: of the ids so far
    int32_t *ids;                // [count + greedy]
};

struct window {
    struct buffer memory;
    struct batch batch;
    int64_t length;
};

/* All arrays of a batch at the same distance, with room for the widest elements. */
static enum status window_create(struct rank_state *w, struct window *out)
{
    const size_t s = (size_t)w->run->recipe->model.seq_length, each = s * sizeof(int64_t);
    char *host = calloc(7, each);
    for (size_t i = 0; host != NULL && i < s; i++)
        ((int32_t *)(void *)(host + each))[i] = ((int32_t *)(void *)(host + 2 * each))[i] = (int32_t)i;
    *out = (struct window){.length = (int64_t)s};
    enum status status = host != NULL ? buffer_alloc(w->device, PART_DATA, 7 * each, &out->memory)
                                      : fail(NO_MEMORY, "no memory for a window");
    if (status == OK)
        status = copy_to_device(w->compute, out->memory.data, host, 7 * each);
    free(host);
    TRY(status);
    char *base = out->memory.data;
    out->batch = (struct batch){
        .sample = (const int64_t *)(void *)base,
        .position = (const int32_t *)(void *)(base + each),
        .sample_offset = (const int32_t *)(void *)(base + 2 * each),
        .token = (const int32_t *)(void *)(base + 3 * each),
        .label = (const int32_t *)(void *)(base + 4 * each),
        .loss_mask = (const float *)(void *)(base + 5 * each),
        .sample_loss = tensor_1d(base + 6 * each, F64, 1),
        .sample_tokens = tensor_1d(base + 6 * each + sizeof(double), F64, 1),
    };
    return stream_sync(w->compute);
}

/* The logits at `position`, after a forward pass. */
static enum status logits_at(struct rank_state *w, int64_t position, float *out)
{
    const struct tensor row = tensor_rows(executor_logits(w->executor), position, position + 1);
    return floats_from_device(w->compute, tensor_1d(row.data, row.dtype, w->run->recipe->model.vocab_size),
                              out);
}

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Of the last ids, if not all fit. */
static enum status forward(struct rank_state *w, struct window *window, const struct logits_run *job)
{
    const int64_t held = minimum(job->count, window->length);
    TRY(copy_to_device(w->compute, (void *)(uintptr_t)window->batch.token, job->ids + job->count - held,
                       (size_t)held * sizeof *job->ids));
    return executor_evaluate(w->executor, &window->batch, 1);
}

static enum status print_all(struct rank_state *w, struct window *window, struct logits_run *job,
                             float *logits)
{
    const int64_t vocab = w->run->recipe->model.vocab_size;
    struct text greedy = {0};
    if (job->count > window->length || job->rows > job->count)
        return fail(BAD_USAGE, "%lld ids do not fit", (long long)job->count);
    TRY(forward(w, window, job));
    for (int64_t row = job->count - job->rows; row < job->count; row++) {
        TRY(logits_at(w, row, logits));
        printf("logits");
        for (int64_t i = 0; i < vocab; i++)
            printf(" %.9g", (double)logits[i]);
        printf("\n");
    }
    for (int64_t i = 0; i < job->greedy; i++) {
        int32_t best = 0;
        TRY(forward(w, window, job));
        TRY(logits_at(w, minimum(job->count, window->length) - 1, logits));
        for (int32_t id = 1; id < vocab; id++)
            best = logits[id] > logits[best] ? id : best;
        job->ids[job->count++] = best;
        text_add(&greedy, " %d", best);
    }
    printf("greedy%s\n", text_chars(&greedy));
    text_free(&greedy);
    return OK;
}

static enum status rank_main(struct world *world, void *argument)
{
    struct logits_run *job = argument;
    struct rank_state state;
    struct window window = {.length = 0};
    float *logits = calloc((size_t)job->run.recipe->model.vocab_size, sizeof *logits);
    enum status status = rank_create(&job->run, world, &(struct rank_options){.training = false}, &state);
    if (status == OK)
        status = checkpoint_load(&state, job->checkpoint, CHECKPOINT_WEIGHTS);
    if (status == OK)
        status = window_create(&state, &window);
    if (status == OK)
        status = print_all(&state, &window, job, logits);
    buffer_free(&window.memory);
    rank_destroy(&state);
    free(logits);
    return status;
}

static enum status run_job(struct logits_run *job, struct recipe **recipe)
{
    static const char *const one_rank[] = {"tp=1", "pp=1", "dp=1", "train.micro_batch_size=1",
                                           "train.global_batch_size=1"};
    struct problems problems = {0};
    struct text path = {0};
    text_add(&path, "%s/recipe.yaml", job->checkpoint);
    enum status status =
        planned_recipe_load(path.chars, one_rank, sizeof one_rank / sizeof *one_rank, 0, recipe, &problems);
    problems_print(&problems, stderr);
    problems_free(&problems);
    text_free(&path);
    TRY(status);
    TRY(run_create(*recipe, false, &job->run));
    status = world_run("local", 1, rank_main, job);
    run_destroy(&job->run);
    return status;
}

int main(int argc, char **argv)
{
    struct logits_run job = {.checkpoint = argc > 4 ? argv[1] : ""};
    struct recipe *recipe = NULL;
    int64_t id = 0;
    if (argc < 5 || !integer_parse(argv[2], &job.rows) || !integer_parse(argv[3], &job.greedy)) {
        fprintf(stderr, "huggingface_logits CHECKPOINT ROWS GREEDY ID...\n");
        return 2;
    }
    job.ids = calloc((size_t)(argc - 4 + job.greedy), sizeof *job.ids);
    for (int i = 4; job.ids != NULL && i < argc && integer_parse(argv[i], &id); i++)
        job.ids[job.count++] = (int32_t)id;
    enum status status = job.ids != NULL ? run_job(&job, &recipe) : fail(NO_MEMORY, "no memory for ids");
    if (status != OK)
        fprintf(stderr, "%s\n", fail_text());
    recipe_destroy(recipe);
    free(job.ids);
    return status != OK;
}
