// SPDX-License-Identifier: Apache-2.0
/* The trainer against an independent implementation: tests/oracle/golden_*.txt, generated in NumPy in double
 * precision. The same tiny models run the full path, from a recipe through ranks that are threads to AdamW,
 * on one rank and on meshes; only the tokens come from the golden files' formula instead of a dataset.
 * Initial weights are compared bitwise; losses, norms, gradients and weights within the bounds of
 * golden_compare.c.
 *
 * Fault injection: a run with an injected fault must be detected, or the bounds prove nothing.
 *
 *     test_golden FOLDER DEVICE [LAYOUT [CASES]]
 *
 * FOLDER holds the golden files; LAYOUT is the number of the only layout to run; CASES are hexadecimal digits:
 * run only those files. */
#include "layers/model.h"
#include "planner/plan/memory_plan.h"
#include "planner/recipe/planned_recipe.h"
#include "tests/ranks/training/golden.h"
#include "trainer/engine/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"gpt2",       "llama", "gpt2_documents", "gpt2_mask", "llama_documents",
                                    "gpt2_betas", "qwen",  "yarn",           "parallel",  "neox",
                                    "window",     "alibi", "softcap"};
enum { CASES = sizeof names / sizeof *names, OVERRIDES = 12 };

struct mesh_case {
    const char *what;
    const char *overrides[OVERRIDES];
};
static const struct mesh_case mesh_cases[] = {
    {"one rank, one microbatch", {"train.micro_batch_size=4"}},
    {"one rank, four microbatches", {"train.micro_batch_size=1"}},
    {"dp 2 x tp 2 x pp 2, sequence parallel",
     {"dp=2", "tp=2", "pp=2", "parallel.sequence_parallel=true", "train.micro_batch_size=1"}},
    {"tp 4, replicated key/value heads in the Llama",
     {"tp=4", "parallel.sequence_parallel=true", "train.micro_batch_size=2"}},
    {"dp 2 x tp 2 x pp 2 zb-h1, another rank order",
     {"dp=2", "tp=2", "pp=2", "pipeline.schedule=zb-h1", "train.micro_batch_size=1",
      "parallel.rank_order=pp-dp-tp-cp-ep", "parallel.bucket_size_mb=0.001"}},
};
enum { MESH_CASES = sizeof mesh_cases / sizeof *mesh_cases };

/* Faults to inject. */
enum fault_kind {
    NOTHING,
    SCALED_GRADIENT,   // of one matrix, by 1 + 1/256
    SWAPPED_POSITIONS, // of the second and third token
    DECAYED_BIASES,
    NO_DOCUMENTS,
    NO_MASK,
    SHIFTED_LABEL, // one label of one sequence
    NOISE,         // on all gradients, as large as their bound; only on one rank
};
struct fault {
    const char *what;
    int of; // index of the golden file
    enum fault_kind kind;
    const char *override; // or a modified recipe
};
static const struct fault faults[] = {
    {"a gradient scaled by 1 + 1/256", 0, SCALED_GRADIENT, NULL},
    {"GELU in its tanh form", 0, NOTHING, "model.activation=gelu_tanh"},
    {"two positions swapped, learned", 0, SWAPPED_POSITIONS, NULL},
    {"two positions swapped, rotary", 1, SWAPPED_POSITIONS, NULL},
    {"no clipping", 0, NOTHING, "optimizer.clip_grad=0"},
    {"biases and norms that decay", 0, DECAYED_BIASES, NULL},
    {"documents that see each other", 2, NO_DOCUMENTS, NULL},
    {"a mask that is ignored", 3, NO_MASK, NULL},
    {"one label of 48 shifted", 4, SHIFTED_LABEL, NULL},
    {"another epsilon in the norms", 1, NOTHING, "model.norm_epsilon=1.1e-5"},
    {"another base of the rotary angles", 1, NOTHING, "model.rotary_base=10010"},
    {"another beta2", 1, NOTHING, "optimizer.adam_beta2=0.951"},
    {"another factor of the rotary angles", 6, NOTHING, "model.rope_scaling_factor=8.01"},
    {"pairs of halves for neighbouring pairs", 7, NOTHING, "model.rotary_interleaved=false"},
    {"GELU of the gate in its tanh form", 8, NOTHING, "model.activation=geglu_tanh"},
    {"branches in sequence", 9, NOTHING, "model.block_type=sequential"},
    {"a window of one more token", 10, NOTHING, "model.window_size=5"},
    {"a window of one token less", 10, NOTHING, "model.window_size=3"},
    {"the window in all layers", 10, NOTHING, "model.window_attn_skip_freq=[]"},
    {"rope for ALiBi", 11, NOTHING, "model.position_embedding_type=rope"},
    {"another cap of the scores", 12, NOTHING, "model.attn_logit_softcapping=0.1001"},
    {"another cap of the logits", 12, NOTHING, "model.final_logit_softcapping=0.5005"},
    {"another seed", 0, NOTHING, "seed=1235"},
    {"1 - beta2 formed in fp32", 5, NOTHING, "optimizer.adam_beta2=0.99900001287460327"}, // 0.999 in fp32
};
enum { FAULTS = sizeof faults / sizeof *faults };

/* A run: state shared by its ranks. Each rank writes its own slices into the record. */
struct golden_run {
    const struct golden *golden;
    const struct params *params; // of the whole model
    enum fault_kind fault;
    int noise; // noise seed
    struct run config;
    struct run_record record;
};

/* ---- on a rank ---- */

/* One sequence of a batch, by the formulas of make_golden.py; step counts from 0, `row` is the row in the
 * global batch. */
struct sequence {
    int32_t *token, *label, *position, *document;
    float *mask;
};

static int32_t formula(int64_t step, int64_t row, int64_t s, int64_t vocab)
{
    return (int32_t)((step * 7919 + row * 104729 + s * 1299709 + ((s * s) % 31) * 17) % vocab);
}

static void write_sequence(const struct golden_run *run, int64_t step, int64_t row, struct sequence to)
{
    const struct model_config *model = &run->config.recipe->model;
    enum { SECOND_DOCUMENT = 5 };
    for (int64_t s = 0; s < model->seq_length; s++) {
        bool second = run->golden->documents && s >= SECOND_DOCUMENT;
        to.token[s] = formula(step, row, s, model->vocab_size);
        to.label[s] = formula(step, row, s + 1, model->vocab_size);
        to.position[s] = (int32_t)(second ? s - SECOND_DOCUMENT : s);
        to.document[s] = second ? 1 : 0;
        bool counts = !run->golden->mask || (s + step) % (row + 2) != 0;
        to.mask[s] = counts || run->fault == NO_MASK ? 1.0F : 0.0F;
    }
    if (run->fault == SWAPPED_POSITIONS) {
        to.position[1] = 2;
        to.position[2] = 1;
    }
    if (run->fault == SHIFTED_LABEL && row == 2)
        to.label[7] = (to.label[7] + 1) % (int32_t)model->vocab_size;
}

static enum status send(struct rank_state *w, const void *device, const void *host, size_t bytes)
{
    // The batch has read-only views; the rank state owns the memory.
    return copy_to_device(w->compute, (void *)(uintptr_t)device, host, bytes);
}

static enum status fill_microbatch(const struct golden_run *run, struct rank_state *w, int64_t step, int j,
                                   int32_t *host)
{
    int64_t rows = w->batches.rows, length = w->batches.seq_length, tokens = rows * length;
    struct batch_coord place = {.global_batch_size = run->golden->rows,
                                .micro_batch_size = rows,
                                .dp_size = w->mesh.degrees.dp,
                                .dp_rank = w->groups->coord.dp,
                                .microbatch = j};
    float *mask = (float *)host + 4 * tokens;
    for (int64_t b = 0; b < rows; b++) {
        int32_t *at = host + b * length;
        write_sequence(
            run, step - 1, (int64_t)batch_first_sample(&place) + b,
            (struct sequence){at, at + tokens, at + 2 * tokens, at + 3 * tokens, mask + b * length});
    }
    struct batch *batch = &w->batches.list[j];
    size_t bytes = (size_t)tokens * sizeof(int32_t);
    TRY(send(w, batch->token, host, bytes));
    TRY(send(w, batch->label, host + tokens, bytes));
    TRY(send(w, batch->position, host + 2 * tokens, bytes));
    TRY(send(w, batch->loss_mask, mask, bytes));
    if (!run->golden->documents || run->fault == NO_DOCUMENTS) {
        batch->document = NULL;
        return stream_sync(w->compute);
    }
    TRY(send(w, batch->document, host + 3 * tokens, bytes));
    return stream_sync(w->compute);
}

static enum status loaded(void *context, struct rank_state *w, int64_t step)
{
    const struct golden_run *run = context;
    int32_t *host = calloc((size_t)(w->batches.rows * w->batches.seq_length) * 5, sizeof *host);
    enum status status = host != NULL ? OK : fail(NO_MEMORY, "no memory for a microbatch");
    for (int j = 0; status == OK && j < w->batches.count; j++)
        status = fill_microbatch(run, w, step, j, host);
    free(host);
    return status;
}

static enum status declared(void *context, struct rank_state *w)
{
    const struct golden_run *run = context;
    for (int i = 0; run->fault == DECAYED_BIASES && i < w->params.count; i++)
        w->params.list[i].decay = true;
    return OK;
}

/* Noise for a row of `all`, which has the gradients of the whole model: its bound is eight standard
 * deviations, the noise has one. */
static enum status add_noise(const struct golden_run *run, int64_t step, int row, struct snapshot *all)
{
    const struct model_config *model = &run->config.recipe->model;
    float *bound = NULL, *normal = calloc((size_t)all->count[row] + 1, sizeof *normal);
    double tokens = (double)(run->golden->rows * model->seq_length);
    enum status status = normal != NULL ? OK : fail(NO_MEMORY, "no memory for noise");
    if (status == OK)
        status = golden_gradient_bound(model, run->params, all, tokens, row, &bound);
    if (status == OK) {
        struct philox generator = philox_named((uint64_t)run->noise, run->params->list[row].name);
        philox_normal(generator, (uint64_t)step, 0, all->count[row], normal);
        // Written to the buffer of another kind: later bounds depend on the unmodified gradients.
        for (int64_t i = 0; i < all->count[row]; i++)
            all->tensor[SNAPSHOT_M][row][i] = all->tensor[SNAPSHOT_GRADIENT][row][i] + bound[i] * normal[i];
    }
    free(bound);
    free(normal);
    return status;
}

static enum status make_noise(const struct golden_run *run, struct rank_state *w, int64_t step)
{
    struct snapshot all;
    all = snapshot_create(run->params);
    enum status status = snapshot_gather(&all, w, SNAPSHOT_GRADIENT);
    for (int row = 0; status == OK && row < all.rows; row++)
        if (all.count[row] > 0)
            status = add_noise(run, step, row, &all);
    float **gradients = all.tensor[SNAPSHOT_GRADIENT];
    all.tensor[SNAPSHOT_GRADIENT] = all.tensor[SNAPSHOT_M];
    all.tensor[SNAPSHOT_M] = gradients;
    if (status == OK)
        status = snapshot_scatter(&all, w, SNAPSHOT_GRADIENT);
    snapshot_destroy(&all);
    return status;
}

static enum status scale_gradient(struct rank_state *w)
{
    struct held_param *held = weights_held(&w->weights, params_find(&w->params, "layers.1.mlp.fc2.weight"));
    if (held == NULL)
        return OK;
    int64_t count = tensor_count(held->gradient);
    float *host = calloc((size_t)count, sizeof *host);
    if (host == NULL)
        return fail(NO_MEMORY, "no memory for a gradient");
    enum status status = copy_to_host(w->compute, host, held->gradient.data, tensor_bytes(held->gradient));
    if (status == OK)
        status = stream_sync(w->compute);
    for (int64_t i = 0; i < count; i++)
        host[i] *= 1.0F + 1.0F / 256.0F;
    if (status == OK)
        status = copy_to_device(w->compute, held->gradient.data, host, tensor_bytes(held->gradient));
    if (status == OK)
        status = stream_sync(w->compute);
    free(host);
    return status;
}

static enum status reduced(void *context, struct rank_state *w, int64_t step)
{
    const struct golden_run *run = context;
    if (run->fault == SCALED_GRADIENT)
        return scale_gradient(w);
    return run->fault == NOISE ? make_noise(run, w, step) : OK;
}

static enum status built(void *context, struct rank_state *w)
{
    struct golden_run *run = context;
    return snapshot_gather(&run->record.initial, w, SNAPSHOT_WEIGHT);
}

static enum status stepped(void *context, struct rank_state *w, int64_t step,
                           const struct step_result *result)
{
    struct golden_run *run = context;
    struct snapshot *to = &run->record.step[step - 1];
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++)
        TRY(snapshot_gather(to, w, (enum snapshot_kind)kind));
    if (w->world->rank == 0) {
        to->loss = result->loss;
        to->grad_norm = result->grad_norm;
        to->tokens = result->tokens;
    }
    return OK;
}

static enum status rank_body(struct world *world, void *argument)
{
    struct golden_run *run = argument;
    struct rank_state state;
    TRY(memory_plan_create_rank(&run->config, world, &state));
    enum status status = OK;
    for (int step = 0; status == OK && step < run->golden->steps; step++) {
        struct step_result result;
        status = rank_step(&state, &result);
    }
    rank_destroy(&state);
    return status;
}

/* ---- a run ---- */

/* The golden recipe on a layout, as a file that is parsed like any other. */
static enum status load_recipe(const struct golden *golden, const struct mesh_case *layout,
                               const char *device, const char *override, struct recipe **out)
{
    struct text yaml = {0};
    text_add(&yaml,
             "name: golden\n%s  lr_decay_style: constant\nseed: %lld\n"
             "train: {global_batch_size: %lld, train_iters: %lld}\n"
             "data: {train: unread}\ntokenizer: {tokenizer_type: none}\n"
             "cluster: {device: %s, threads_per_rank: 1}\n",
             text_chars(&golden->recipe), (long long)golden->seed, (long long)golden->rows,
             (long long)golden->steps, device);
    char path[] = "/tmp/cuboid-golden-XXXXXX";
    int file = mkstemp(path);
    enum status status = file >= 0 && write(file, yaml.chars, yaml.length) == (ssize_t)yaml.length
                             ? OK
                             : fail(IO_ERROR, "cannot write a recipe to %s", path);
    const char *overrides[OVERRIDES + 1];
    size_t count = 0;
    while (count < OVERRIDES && layout->overrides[count] != NULL) {
        overrides[count] = layout->overrides[count];
        count++;
    }
    if (override != NULL)
        overrides[count++] = override;
    struct problems problems = {0};
    if (status == OK)
        status = planned_recipe_load(path, overrides, count, 0, out, &problems);
    problems_print(&problems, stderr);
    problems_free(&problems);
    if (file >= 0)
        close(file);
    unlink(path);
    text_free(&yaml);
    return status;
}

static enum status run_world(const struct golden *golden, const struct params *params,
                             const struct recipe *recipe, enum fault_kind fault, int noise,
                             struct golden_run *run)
{
    *run = (struct golden_run){.golden = golden, .params = params, .fault = fault, .noise = noise};
    run->record.initial = snapshot_create(params);
    for (int s = 0; s < golden->steps; s++)
        run->record.step[s] = snapshot_create(params);
    TRY(run_create(recipe, false, &run->config));
    run->config.observer = (struct step_observer){.context = run,
                                                  .on_params_declared = declared,
                                                  .on_weights_initialized = built,
                                                  .on_batches_loaded = loaded,
                                                  .on_gradients_complete = reduced,
                                                  .on_step_end = stepped};
    return world_run("local", recipe_world_size(recipe), rank_body, run);
}

static void run_free(struct golden_run *run)
{
    run_destroy(&run->config);
    snapshot_destroy(&run->record.initial);
    for (int s = 0; s < GOLDEN_STEPS_MAX; s++)
        snapshot_destroy(&run->record.step[s]);
}

/* A golden file with everything needed for the comparison. */
struct fixture {
    const char *name;
    struct golden golden;
    struct params params;
    struct golden_spread spread;
};

static enum status measure_spread(struct fixture *fixture, const struct recipe *recipe)
{
    struct golden_run quiet, noisy;
    enum status status = run_world(&fixture->golden, &fixture->params, recipe, NOTHING, 0, &quiet);
    if (status == OK)
        status = golden_spread_create(&quiet.record.initial, fixture->golden.steps, &fixture->spread);
    for (int n = 0; status == OK && n < GOLDEN_NOISY_RUNS; n++) {
        status = run_world(&fixture->golden, &fixture->params, recipe, NOISE, n, &noisy);
        if (status == OK)
            golden_spread_add(&fixture->spread, &quiet.record, &noisy.record);
        run_free(&noisy);
    }
    run_free(&quiet);
    return status;
}

static enum status fixture_create(const char *folder, const char *name, const char *device,
                                  struct fixture *out)
{
    *out = (struct fixture){.name = name};
    char path[1024];
    snprintf(path, sizeof path, "%s/golden_%s.txt", folder, name);
    TRY(golden_read(path, &out->golden));
    struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    struct recipe *recipe = NULL;
    TRY(load_recipe(&out->golden, &mesh_cases[0], device, NULL, &recipe));
    enum status status = params_declare(&recipe->model, &one_each, false, &out->params);
    if (status == OK)
        status = measure_spread(out, recipe);
    recipe_destroy(recipe);
    return status;
}

static void fixture_destroy(struct fixture *fixture)
{
    golden_spread_free(&fixture->spread);
    params_free(&fixture->params);
    golden_free(&fixture->golden);
}

static void print_verdict(const char *title, const struct golden_verdict *verdict, bool only_outside)
{
    printf("%s:", title);
    for (int q = 0; q < GOLDEN_QUANTITIES; q++)
        if (!only_outside || verdict->ratio[q] > 1.0)
            printf("  %s %.2g (%.1e, %s)", golden_quantity_name[q], verdict->ratio[q], verdict->error[q],
                   verdict->where[q]);
    printf("\n");
}

/* fault NULL: an unmodified run, which must be in bounds; otherwise the fault must be detected. */
static bool check(const struct fixture *fixture, const struct mesh_case *mesh_case, const char *device,
                  const struct fault *fault)
{
    const char *title = fault != NULL ? fault->what : fixture->name;
    struct recipe *right = NULL, *recipe = NULL;
    struct golden_run run = {0};
    struct golden_verdict verdict = {0};
    enum status status = load_recipe(&fixture->golden, mesh_case, device, NULL, &right);
    if (status == OK)
        status =
            load_recipe(&fixture->golden, mesh_case, device, fault != NULL ? fault->override : NULL, &recipe);
    if (status == OK)
        status = run_world(&fixture->golden, &fixture->params, recipe, fault != NULL ? fault->kind : NOTHING,
                           0, &run);
    if (status == OK)
        status = golden_compare(&fixture->golden, right, &fixture->params, &fixture->spread, &run.record,
                                &verdict);
    run_free(&run);
    recipe_destroy(right);
    recipe_destroy(recipe);
    if (status != OK) {
        printf("%s: FAILED: %s\n", title, fail_text());
        return false;
    }
    print_verdict(title, &verdict, fault != NULL);
    bool good = fault != NULL ? verdict.outside > 0 : verdict.outside == 0;
    if (!good)
        printf("  WRONG: %d out of bounds\n", verdict.outside);
    return good;
}

/* Of the golden files, in the order of their names. */
static const char digits[] = "0123456789abcdef";
_Static_assert(CASES < sizeof digits, "a digit for each golden file");

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: test_golden FOLDER DEVICE [LAYOUT [CASES]]\n");
        return 2;
    }
    struct fixture fixtures[CASES] = {0};
    const char *files = argc > 4 ? argv[4] : digits;
    for (int i = 0; i < CASES; i++)
        if (strchr(files, digits[i]) != NULL)
            MUST(fixture_create(argv[1], names[i], argv[2], &fixtures[i]));
    int bad = 0, only = argc > 3 ? argv[3][0] - '0' : -1;
    printf("largest error / bound (error, where)\n");
    for (int l = 0; l < MESH_CASES; l++) {
        if (only >= 0 && l != only)
            continue;
        printf("%s\n", mesh_cases[l].what);
        for (int i = 0; i < CASES; i++)
            if (strchr(files, digits[i]) != NULL)
                bad += !check(&fixtures[i], &mesh_cases[l], argv[2], NULL);
    }
    printf("injected faults, detected by\n");
    for (int f = 0; f < FAULTS && only <= 0 && argc < 5; f++)
        bad += !check(&fixtures[faults[f].of], &mesh_cases[0], argv[2], &faults[f]);
    for (int i = 0; i < CASES; i++)
        fixture_destroy(&fixtures[i]);
    printf("%s\n", bad == 0 ? "all passed" : "FAILED");
    return bad == 0 ? 0 : 1;
}
