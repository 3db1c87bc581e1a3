// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/verify/random_recipe.h"

#include "base/philox.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHOICES_CHARS = RANDOM_RECIPE_CHARS, MAX_TRIES = 60 };

/* Random choices of one recipe, and the overrides made from them. */
struct draw {
    struct philox generator;
    uint64_t count;
    char *common, *layout, *one;
};

/* 0 .. below - 1 */
static int choice(struct draw *draw, int below)
{
    return (int)(philox_word(draw->generator, 0, draw->count++) % (uint32_t)below);
}

static double uniform(struct draw *draw)
{
    return (double)philox_uniform(philox_word(draw->generator, 0, draw->count++));
}

__attribute__((format(printf, 2, 3))) static void add_to(char *text, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(text + length, CHOICES_CHARS - length, format, arguments);
    va_end(arguments);
    CHECK(added >= 0 && length + (size_t)added < CHOICES_CHARS);
}

static void draw_model(struct draw *d, bool llama)
{
    static const char *const types[] = {"rope", "learned_absolute", "alibi"};
    static const int heads[] = {1, 2, 3, 4, 6, 8, 12};
    int head_count = heads[choice(d, 7)], divisor = 1 + choice(d, head_count);
    while (head_count % divisor != 0)
        divisor = 1 + choice(d, head_count);
    add_to(d->common,
           "model.num_layers=%d model.hidden_size=%d model.num_attention_heads=%d model.num_query_groups=%d "
           "model.kv_channels=%d model.ffn_hidden_size=%d model.seq_length=%d ",
           1 + choice(d, 4), 8 + 4 * choice(d, 6), head_count,
           choice(d, 2) ? head_count : head_count / divisor, 2 + 2 * choice(d, 4), 12 + 4 * choice(d, 12),
           4 + choice(d, 21));
    add_to(d->common, "model.init_method_std=%.3g ", 0.02 * pow(10.0, uniform(d)));
    if (choice(d, 3) == 0)
        add_to(d->common, "model.tie_word_embeddings=%s ", choice(d, 2) ? "true" : "false");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.normalization=%s ", choice(d, 2) ? "RMSNorm" : "LayerNorm");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.position_embedding_type=%s ", types[choice(d, 3)]);
    if (choice(d, 4) == 0)
        add_to(d->common, "model.add_bias_linear=%s ", choice(d, 2) ? "true" : "false");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.make_vocab_size_divisible_by=%d ", 1 << choice(d, 6));
    if (choice(d, 4) == 0)
        add_to(d->common, "%s", TINY_DROPOUT);
    if (llama && choice(d, 3) == 0)
        add_to(d->common, "%s", TINY_LLAMA_BYTES);
    if ((!llama || strstr(d->common, "bytes") != NULL) && choice(d, 4) == 0)
        add_to(d->common, "%s", choice(d, 2) ? TINY_DOCUMENTS : TINY_CONVERSATIONS);
}

/* Keys of newer models. */
static void draw_attention(struct draw *d)
{
    static const char *const scalings[] = {"llama3", "linear", "ntk", "yarn"};
    if (choice(d, 4) == 0)
        add_to(d->common, "model.add_qkv_bias=true ");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.qk_layernorm=true ");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.rotary_interleaved=true ");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.window_size=%d ", 1 + choice(d, 12));
    if (strstr(d->common, "window_size") != NULL && choice(d, 2))
        add_to(d->common, "model.window_attn_skip_freq=2 ");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.attn_logit_softcapping=%.3g ", 0.1 * pow(10.0, 3.0 * uniform(d)));
    if (choice(d, 4) == 0)
        add_to(d->common, "model.final_logit_softcapping=%.3g ", 0.1 * pow(10.0, 3.0 * uniform(d)));
    if (choice(d, 4) == 0)
        add_to(d->common,
               "model.use_rope_scaling=true model.rope_scaling_type=%s model.rope_scaling_factor=%d "
               "model.rope_original_max_position_embeddings=64 ",
               scalings[choice(d, 4)], 2 + choice(d, 8));
}

/* Keys of the MLP, the block and the embedding. */
static void draw_block(struct draw *d)
{
    static const char *const activations[] = {"geglu", "geglu_tanh", "squared_relu", "gelu_tanh"};
    if (choice(d, 4) == 0)
        add_to(d->common, "model.block_type=%s ", choice(d, 2) ? "parallel" : "parallel_two_norms");
    if (choice(d, 4) == 0)
        add_to(d->common, "model.activation=%s ", activations[choice(d, 4)]);
    if (choice(d, 4) == 0)
        add_to(d->common, "model.embed_layernorm=true ");
}

static void draw_optimizer(struct draw *d, int steps)
{
    static const char *const styles[] = {"constant", "linear", "cosine", "inverse-square-root"};
    static const double beta2[] = {0.95, 0.97, 0.98, 0.99, 0.999};
    // One run in three uses the largest rate.
    double lr = choice(d, 3) == 0 ? 1e-2 : 1e-4 * pow(100.0, uniform(d));
    add_to(d->common,
           "optimizer.lr=%.3g optimizer.min_lr=%.3g optimizer.lr_warmup_iters=%d optimizer.lr_decay_style=%s "
           "train.train_iters=%d train.eval_interval=0 optimizer.weight_decay=%.2g optimizer.adam_beta2=%.4g "
           "optimizer.clip_grad=%g ",
           lr, 0.1 * lr, choice(d, 6), styles[choice(d, 4)], steps + 4, 0.1 * choice(d, 3),
           beta2[choice(d, 5)], choice(d, 4) == 0 ? 0.0 : 1.0);
    if (choice(d, 4) == 0)
        add_to(d->common, "optimizer.adam_eps=%.1g ", pow(10.0, -4.0 - 2.0 * choice(d, 4)));
}

static void draw_precision(struct draw *d)
{
    switch (choice(d, 3)) {
    case 1:
        add_to(d->common, "precision.params_dtype=bf16 ");
        if (choice(d, 4) == 0)
            add_to(d->common, "precision.main_params_dtype=bf16 ");
        break;
    case 2:
        add_to(d->common, "precision.params_dtype=fp16 ");
        if (choice(d, 3) == 0)
            add_to(d->common, "precision.loss_scale=%d ", 1 << choice(d, 8));
        break;
    }
}

static void draw_layout(struct draw *d)
{
    static const char *const schedules[] = {"gpipe",    "1f1b",      "zb-h1", "zb-h2",
                                            "dualpipe", "dualpipev", "zb-v"};
    int tp = 1 + choice(d, 4), pp = 1 + choice(d, 3), dp = 1 << choice(d, 3);
    add_to(d->common, "train.global_batch_size=%d cluster.threads_per_rank=1 ", 4 << choice(d, 2));
    add_to(d->layout, "tp=%d pp=%d dp=%d ", tp, pp, dp);
    if (tp > 1 && choice(d, 2))
        add_to(d->layout, "parallel.sequence_parallel=true ");
    if (strstr(d->layout, "sequence_parallel") != NULL && choice(d, 3) == 0)
        add_to(d->layout, "parallel.tp_comm_overlap=true ");
    if (dp > 1)
        add_to(d->layout, "parallel.zero_stage=%d ", choice(d, 4));
    if (pp > 1)
        add_to(d->layout, "pipeline.schedule=%s ", schedules[choice(d, 7)]);
    add_to(d->layout, "train.micro_batch_size=%d ", 1 << choice(d, 3));
    add_to(d->one, "train.micro_batch_size=%d ", 1 << choice(d, 3));
    if (choice(d, 10) == 0)
        add_to(d->layout, "cluster.device=strict ");
}

/* Loads it, to find out whether it is valid. */
static enum status check(const struct tiny *tiny, const struct random_recipe *r)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(tiny, r->family, r->common, r->layout, 0, &recipe));
    const int size = recipe_world_size(recipe);
    recipe_destroy(recipe);
    return size > 1 && size <= RANDOM_RECIPE_RANKS ? OK : fail(BAD_RECIPE, "%d ranks", size);
}

enum status random_recipe(const struct tiny *tiny, uint64_t number, int steps, struct random_recipe *out)
{
    enum status status = OK;
    struct draw d = {.generator = philox_named(number, "soak.verify"),
                     .common = out->common,
                     .layout = out->layout,
                     .one = out->one};
    for (int i = 0; i < MAX_TRIES; i++) {
        out->common[0] = out->layout[0] = out->one[0] = 0;
        out->family = choice(&d, 2) ? TINY_LLAMA : TINY_GPT;
        add_to(d.common, "seed=%llu ", (unsigned long long)number);
        draw_model(&d, out->family == TINY_LLAMA);
        draw_optimizer(&d, steps);
        draw_precision(&d);
        draw_layout(&d);
        draw_attention(&d);
        draw_block(&d);
        status = check(tiny, out);
        if (status == OK)
            return OK;
    }
    return status;
}

enum status random_recipe_layout(const struct tiny *tiny, uint64_t number, struct random_recipe *recipe)
{
    enum status status = OK;
    char unused[2][CHOICES_CHARS];
    struct draw d = {.generator = philox_named(number, "random.layout"),
                     .common = unused[0],
                     .layout = recipe->layout,
                     .one = unused[1]};
    for (int i = 0; i < MAX_TRIES; i++) {
        recipe->layout[0] = unused[0][0] = unused[1][0] = 0;
        draw_layout(&d);
        status = check(tiny, recipe);
        if (status == OK)
            return OK;
    }
    return status;
}

/* ---- options of memory and of the pipeline ---- */

static void draw_recompute(struct draw *d)
{
    static const char *const modules[] = {"core_attn", "norm", "activation", "norm,core_attn",
                                          "activation,norm,core_attn"};
    if (choice(d, 2))
        add_to(d->layout, "memory.recompute_granularity=selective memory.recompute_modules=[%s] ",
               modules[choice(d, 5)]);
    else
        add_to(d->layout,
               "memory.recompute_granularity=full memory.recompute_method=%s memory.recompute_num_layers=%d ",
               choice(d, 2) ? "uniform" : "block", 1 + choice(d, 3));
}

/* The layers of the layout so far, in any distribution over its stages. */
static void draw_stages(struct draw *d, const struct tiny *tiny, const struct random_recipe *r)
{
    enum { MAX_STAGES = 16 };
    int layers[MAX_STAGES] = {0};
    struct recipe *recipe = NULL;
    MUST(tiny_recipe(tiny, r->family, r->common, r->layout, 0, &recipe));
    const int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    CHECK(stages <= MAX_STAGES);
    for (int64_t i = 0; i < recipe->model.num_layers; i++)
        layers[choice(d, stages)]++;
    recipe_destroy(recipe);
    for (int i = 0; i < stages; i++)
        add_to(d->layout, "%s%d%s", i == 0 ? "pipeline.layout=[" : ",", layers[i],
               i == stages - 1 ? "] " : "");
}

/* Replaces the schedule. */
static void draw_schedule(struct draw *d)
{
    static const char *const schedules[] = {"interleaved", "looped-bfs", "v-half", "v-min"};
    char *word = strstr(d->layout, "pipeline.schedule="), *end = word != NULL ? strchr(word, ' ') : NULL;
    if (end != NULL)
        memmove(word, end + 1, strlen(end + 1) + 1);
    add_to(d->layout, "pipeline.schedule=%s ", schedules[choice(d, 4)]);
}

static void draw_format(struct draw *d)
{
    static const char *const formats[] = {"e4m3", "hybrid", "mxfp8", "nvfp4"};
    add_to(d->layout, "precision.matmul_format=%s ", formats[choice(d, 4)]);
}

void random_recipe_options(const struct tiny *tiny, uint64_t number, struct random_recipe *recipe)
{
    static const char *const switches[] = {
        "memory.offload_activations=true ",         "memory.offload_optimizer=true ",
        "parallel.overlap_param_gather=true ",      "parallel.overlap_grad_reduce=false ",
        "pipeline.optimizer_post_validation=true ",
    };
    enum { SCHEDULE, STAGES, RECOMPUTE_SOME, FORMAT, SWITCHES, OPTIONS = SWITCHES + 5 };
    struct draw d = {.generator = philox_named(number, "random.options"),
                     .common = recipe->common,
                     .layout = recipe->layout,
                     .one = recipe->one};
    for (int option = 0; option < OPTIONS; option++) {
        char before[RANDOM_RECIPE_CHARS];
        if (choice(&d, 3) != 0)
            continue;
        snprintf(before, sizeof before, "%s", recipe->layout);
        if (option == SCHEDULE)
            draw_schedule(&d);
        else if (option == STAGES)
            draw_stages(&d, tiny, recipe);
        else if (option == RECOMPUTE_SOME)
            draw_recompute(&d);
        else if (option == FORMAT)
            draw_format(&d);
        else
            add_to(d.layout, "%s", switches[option - SWITCHES]);
        if (check(tiny, recipe) != OK)
            memcpy(recipe->layout, before, sizeof before);
    }
}
