// SPDX-License-Identifier: Apache-2.0
/* Rules of a run: learning rate, data, tokenizer, names, folders, device and nodes. */
#include "trainer/recipe/recipe_rules.h"

#include "base/memory.h"
#include "kernels/device.h"
#include "parallel/comm.h"

#include <string.h>
#include <strings.h>

/* ---- the learning rate ---- */

static int64_t decay_of(const struct recipe *r)
{
    return r->optimizer.lr_decay_iters;
}

/* The run makes no step, so it needs no learning rate. */
static bool never_steps(const struct recipe *r)
{
    return r->train.train_iters == 0;
}

/* Megatron-LM's rule, not applied to a run without steps. A run may end before its warm-up. */
static bool warmup_holds(const struct view *v)
{
    return never_steps(v->recipe) || v->recipe->optimizer.lr_warmup_iters <= decay_of(v->recipe);
}

static void warmup_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    text_add(out, "optimizer.lr_warmup_iters %lld is more than optimizer.lr_decay_iters %lld%s",
             (long long)r->optimizer.lr_warmup_iters, (long long)decay_of(r),
             decay_of(r) == r->train.train_iters ? ", by default train.train_iters" : "");
}

static int64_t warmup_of(const struct recipe *r)
{
    return r->optimizer.lr_warmup_iters;
}

static int64_t room_for_wsd(const struct recipe *r)
{
    return r->optimizer.lr_decay_iters - r->optimizer.lr_warmup_iters;
}

static bool wsd_holds(const struct view *v)
{
    const struct recipe_optimizer *o = &v->recipe->optimizer;
    return o->lr_decay_style != LR_WSD || never_steps(v->recipe) ||
           (o->lr_wsd_decay_iters >= 1 && o->lr_wsd_decay_iters <= room_for_wsd(v->recipe));
}

static void wsd_message(const struct view *v, struct text *out)
{
    const struct recipe_optimizer *o = &v->recipe->optimizer;
    text_add(
        out,
        "optimizer.lr_wsd_decay_iters %lld: WSD needs at least 1 and at most optimizer.lr_decay_iters %lld - "
        "optimizer.lr_warmup_iters %lld",
        (long long)o->lr_wsd_decay_iters, (long long)o->lr_decay_iters, (long long)o->lr_warmup_iters);
}

static int64_t wsd_guess(const struct recipe *r)
{
    return r->optimizer.lr_wsd_decay_iters < 1 ? (room_for_wsd(r) + 9) / 10 : room_for_wsd(r);
}

static int64_t warmup_before_wsd(const struct recipe *r)
{
    return r->optimizer.lr_decay_iters - r->optimizer.lr_wsd_decay_iters;
}

static bool min_lr_holds(const struct view *v)
{
    return v->recipe->optimizer.min_lr <= v->recipe->optimizer.lr;
}

static void min_lr_message(const struct view *v, struct text *out)
{
    char low[NUMBER_CHARS], high[NUMBER_CHARS];
    number_text(v->recipe->optimizer.min_lr, low);
    number_text(v->recipe->optimizer.lr, high);
    text_add(out, "optimizer.min_lr %s is more than optimizer.lr %s; use optimizer.min_lr=%s", low, high,
             high);
}

/* ---- data, tokenizer, names ---- */

/* The types whose file is tokenizer.tokenizer_model. */
static bool reads_model(const struct recipe *r)
{
    enum tokenizer_type type = r->tokenizer.tokenizer_type;
    return type == TOKENIZER_HUGGING_FACE || type == TOKENIZER_SENTENCEPIECE || type == TOKENIZER_LLAMA2;
}

static bool vocab_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    // The size of a vocabulary file is compared when the tokenizer has read it.
    if ((r->tokenizer.tokenizer_type == TOKENIZER_GPT2_BPE && r->tokenizer.vocab_file != NULL) ||
        reads_model(r))
        return true;
    return r->model.vocab_size >= 1 && r->model.vocab_size >= rule_tokenizer_vocab(r);
}

static void vocab_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    if (rule_tokenizer_vocab(r) == 0)
        text_add(out, "model.vocab_size is required with tokenizer.tokenizer_type none");
    else
        text_add(out, "model.vocab_size %lld is smaller than the tokenizer's %lld",
                 (long long)r->model.vocab_size, (long long)rule_tokenizer_vocab(r));
}

/* No value can be suggested without reading the tokenizer. */
static bool vocab_given_holds(const struct view *v)
{
    return v->recipe->model.vocab_size >= 1 || !reads_model(v->recipe);
}

static void vocab_given_message(const struct view *v, struct text *out)
{
    const char *model = v->recipe->tokenizer.tokenizer_model;
    text_add(out,
             "model.vocab_size is required with tokenizer.tokenizer_type %s if %s%s; use vocab_size of the "
             "model's config.json, or another number that is not less than the tokenizer's",
             recipe_tokenizer_name(v->recipe),
             model != NULL ? "its file cannot be read: tokenizer.tokenizer_model " : "it has no file",
             model != NULL ? model : "");
}

static int64_t vocab_guess(const struct recipe *r)
{
    return rule_tokenizer_vocab(r) > 0 ? rule_tokenizer_vocab(r) : 50257;
}

static bool model_holds(const struct view *v)
{
    return reads_model(v->recipe) || v->recipe->tokenizer.tokenizer_model == NULL;
}

static void model_message(const struct view *v, struct text *out)
{
    text_add(out,
             "tokenizer.tokenizer_model is given, but tokenizer.tokenizer_type %s does not read it; use "
             "tokenizer.tokenizer_model=none",
             recipe_tokenizer_name(v->recipe));
}

static bool files_hold(const struct view *v)
{
    const struct recipe_tokenizer *t = &v->recipe->tokenizer;
    bool vocab = t->vocab_file != NULL, merge = t->merge_file != NULL;
    return t->tokenizer_type == TOKENIZER_GPT2_BPE ? vocab == merge : !vocab && !merge;
}

static void files_message(const struct view *v, struct text *out)
{
    const struct recipe_tokenizer *t = &v->recipe->tokenizer;
    if (t->tokenizer_type == TOKENIZER_GPT2_BPE)
        text_add(out, "tokenizer.%s is given without tokenizer.%s; GPT2BPE needs both",
                 t->vocab_file != NULL ? "vocab_file" : "merge_file",
                 t->vocab_file != NULL ? "merge_file" : "vocab_file");
    else
        text_add(out, "tokenizer.%s is given, but tokenizer.tokenizer_type %s does not read it; use %s=none",
                 t->vocab_file != NULL ? "vocab_file" : "merge_file", recipe_tokenizer_name(v->recipe),
                 t->vocab_file != NULL ? "tokenizer.vocab_file" : "tokenizer.merge_file");
}

static const char *document_key(const struct recipe *r)
{
    // Packed documents begin where the dataset says.
    bool by_tokens = !r->data.pack_documents || r->data.mock_data;
    return by_tokens && r->data.reset_attention_mask ? "data.reset_attention_mask"
           : by_tokens && r->data.reset_position_ids ? "data.reset_position_ids"
           : r->data.eod_mask_loss                   ? "data.eod_mask_loss"
                                                     : NULL;
}

static bool documents_hold(const struct view *v)
{
    return v->recipe->tokenizer.tokenizer_type != TOKENIZER_NONE || document_key(v->recipe) == NULL;
}

static void documents_message(const struct view *v, struct text *out)
{
    text_add(out,
             "%s needs the end-of-document id, which tokenizer.tokenizer_type none does not define; use "
             "%s=false",
             document_key(v->recipe), document_key(v->recipe));
}

static bool eval_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    return r->train.eval_interval == 0 || r->data.mock_data || r->data.valid.count > 0 ||
           r->data.split[1] > 0;
}

static void eval_message(const struct view *v, struct text *out)
{
    text_add(out,
             "train.eval_interval %lld needs validation data, but data.split has no validation part and "
             "data.valid is not set; use data.split=969,30,1",
             (long long)v->recipe->train.eval_interval);
}

static bool split_holds(const struct view *v)
{
    return v->recipe->data.valid.count == 0 || v->recipe->data.split[1] == 0;
}

static void split_message(const struct view *v, struct text *out)
{
    (void)v;
    text_add(out, "data.split has a validation part, but data.valid is set; use data.split=1,0,0");
}

static bool name_holds(const struct view *v)
{
    const char *name = v->recipe->name; // NULL: derived later
    return name == NULL || (strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
}

static void name_message(const struct view *v, struct text *out)
{
    const char *base = strrchr(v->recipe->name, '/');
    base = base != NULL ? base + 1 : v->recipe->name;
    bool dots = *base == 0 || strcmp(base, ".") == 0 || strcmp(base, "..") == 0;
    text_add(out, "name %s is not a valid folder name; use name=%s", v->recipe->name, dots ? "run" : base);
}

static bool profile_holds(const struct view *v)
{
    const struct recipe_profile *p = &v->recipe->profile;
    return !p->timeline || never_steps(v->recipe) ||
           (p->profile_step_start <= v->recipe->train.train_iters &&
            (p->profile_step_end == 0 || p->profile_step_end >= p->profile_step_start));
}

static void profile_message(const struct view *v, struct text *out)
{
    const struct recipe_profile *p = &v->recipe->profile;
    if (p->profile_step_start > v->recipe->train.train_iters)
        text_add(out, "profile.profile_step_start %lld is after train.train_iters %lld",
                 (long long)p->profile_step_start, (long long)v->recipe->train.train_iters);
    else
        text_add(out, "profile.profile_step_end %lld is before profile.profile_step_start %lld",
                 (long long)p->profile_step_end, (long long)p->profile_step_start);
}

static int64_t profile_start_of(const struct recipe *r)
{
    return r->profile.profile_step_start;
}

static int64_t iters_of(const struct recipe *r)
{
    return r->train.train_iters;
}

/* Guesses the intended order: the axes in the order of their first occurrence, whatever their case and
 * separators, then the missing ones. */
static void order_meant(const char *order, struct text *out)
{
    static const char *const axes[] = {"tp", "cp", "ep", "dp", "pp"};
    enum { AXES = sizeof axes / sizeof *axes };
    bool has[AXES] = {false};
    for (const char *at = order; *at != 0; at++)
        for (int a = 0; a < AXES; a++)
            if (!has[a] && strncasecmp(at, axes[a], 2) == 0) {
                text_add(out, "%s%s", out->length > 0 ? "-" : "", axes[a]);
                has[a] = true;
            }
    for (int a = 0; a < AXES; a++)
        if (!has[a])
            text_add(out, "%s%s", out->length > 0 ? "-" : "", axes[a]);
}

static bool order_holds(const struct view *v)
{
    AUTO(text) meant = {0};
    order_meant(v->recipe->parallel.rank_order, &meant);
    bool holds = strcmp(v->recipe->parallel.rank_order, meant.chars) == 0;
    return holds;
}

static void order_message(const struct view *v, struct text *out)
{
    AUTO(text) meant = {0};
    order_meant(v->recipe->parallel.rank_order, &meant);
    text_add(out,
             "parallel.rank_order %.60s is not tp, cp, ep, dp and pp, each once; use parallel.rank_order=%s",
             v->recipe->parallel.rank_order, meant.chars);
}

/* ---- the device ---- */

static bool built_holds(const struct view *v)
{
    return device_is_built(v->recipe->cluster.device);
}

static void built_message(const struct view *v, struct text *out)
{
    text_add(out, "cluster.device %s is not in this build, which has", v->recipe->cluster.device);
    for (size_t i = 0, shown = 0; device_at(i) != NULL; i++)
        if (device_at(i)->ops != NULL)
            text_add(out, "%s %s", shown++ > 0 ? "," : "", device_at(i)->name);
    text_add(out, "; build cuda with meson setup -Dcuda=enabled (needs nvcc), or use cluster.device=%s",
             device_at(0)->name);
}

/* Whether the transport is in this build and supports the memory of the device; any does if it computes
 * nothing. */
static bool supports_device(const char *transport, const char *device)
{
    return transport_is_built(transport) && transport_supports_device(transport, device);
}

static bool transport_holds(const struct view *v)
{
    const char *device = v->recipe->cluster.device, *transport = recipe_transport(v->recipe);
    if (!device_is_built(device) || !device_traits(device)->computes)
        return true;
    bool alone = recipe_ranks(v->recipe) <= 1 && strcmp(v->recipe->cluster.transport, "nccl") != 0;
    return alone || strcmp(transport, "auto") == 0 || supports_device(transport, device);
}

static void transport_message(const struct view *v, struct text *out)
{
    const char *device = v->recipe->cluster.device, *transport = recipe_transport(v->recipe);
    long long ranks = (long long)recipe_ranks(v->recipe);
    int others = 0;
    if (transport_is_built(transport))
        text_add(out, "cluster.transport %s does not support cluster.device %s; use", transport, device);
    else
        text_add(out,
                 "%s %s: %lld rank%s, but cluster.transport %s is not in this build (meson setup "
                 "-Dcuda=enabled; needs nvcc and nccl.h); use",
                 "cluster.device", device, ranks, ranks == 1 ? "" : "s", transport);
    for (size_t i = 0; transport_name(i) != NULL; i++)
        if (supports_device(transport_name(i), device))
            text_add(out, "%s%s",
                     others++ > 0 ? " or cluster.transport=" : " cluster.transport=", transport_name(i));
    if (others == 0)
        text_add(out, " one rank, or cluster.device=%s", device_at(0)->name);
}

static bool sharing_holds(const struct view *v)
{
    return v->recipe->cluster.ranks_per_gpu == 1 || strcmp(recipe_transport(v->recipe), "nccl") == 0;
}

static void sharing_message(const struct view *v, struct text *out)
{
    text_add(out,
             "cluster.ranks_per_gpu %d needs cluster.transport nccl, not %s with cluster.device %s; use "
             "cluster.ranks_per_gpu=1",
             v->recipe->cluster.ranks_per_gpu, recipe_transport(v->recipe), v->recipe->cluster.device);
}

static bool rollback_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    return !r->memory.offload_optimizer || !r->pipeline.optimizer_post_validation;
}

static void rollback_message(const struct view *v, struct text *out)
{
    (void)v;
    text_add(out, "memory.offload_optimizer and pipeline.optimizer_post_validation are mutually "
                  "exclusive: the latter keeps a copy of the moments on the device; set one of them to "
                  "false");
}

static bool tf32_holds(const struct view *v)
{
    const struct recipe_precision *p = &v->recipe->precision;
    return !v->recipe->kernels.tf32 ||
           (p->params_dtype == F32 && device_traits(v->recipe->cluster.device)->has_matmul_options);
}

static void tf32_message(const struct view *v, struct text *out)
{
    text_add(out, "precision.allow_tf32 true needs fp32 on a GPU:");
    if (!device_traits(v->recipe->cluster.device)->has_matmul_options)
        text_add(out, " cluster.device %s has no TF32;", v->recipe->cluster.device);
    if (v->recipe->precision.params_dtype != F32)
        text_add(out, " precision.params_dtype is %s;", recipe_dtype_name(v->recipe));
    text_add(out, " use precision.allow_tf32=false");
}

static bool algorithms_hold(const struct view *v)
{
    const struct recipe_cluster *cluster = &v->recipe->cluster;
    return v->recipe->kernels.matmul_algorithms == NULL || device_traits(cluster->device)->has_matmul_options;
}

static void algorithms_message(const struct view *v, struct text *out)
{
    text_add(out,
             "cluster.matmul_algorithms needs a GPU, but cluster.device is %s; use "
             "cluster.matmul_algorithms=none",
             v->recipe->cluster.device);
}

static bool kept_holds(const struct view *v)
{
    const struct recipe_cluster *cluster = &v->recipe->cluster;
    return v->recipe->kernels.matmul_algorithms == NULL ||
           device_check_algorithms(cluster->device, v->recipe->kernels.matmul_algorithms) == OK;
}

static void kept_message(const struct view *v, struct text *out)
{
    if (!kept_holds(v))
        text_add(out, "%s", fail_text());
}

static bool epilogues_hold(const struct view *v)
{
    const struct recipe_cluster *cluster = &v->recipe->cluster;
    return v->recipe->kernels.epilogues == EPILOGUES_APART ||
           device_traits(cluster->device)->has_matmul_options;
}

static void epilogues_message(const struct view *v, struct text *out)
{
    text_add(out,
             "cluster.matmul_epilogues needs a GPU, but cluster.device is %s; use "
             "cluster.matmul_epilogues=apart",
             v->recipe->cluster.device);
}

/* Adds why cuDNN's attention is unavailable, each reason with its fix; false: it is available. */
static bool cudnn_obstacles(const struct recipe *r, struct text *out)
{
    bool takes = device_traits(r->cluster.device)->supports_cudnn;
    bool fits = r->model.kv_channels % 8 == 0 && r->model.kv_channels <= 128;
    const struct {
        bool there;
        const char *why;
    } obstacles[] = {
        {!takes, "cuDNN needs a GPU: use cluster.device=cuda"},
        {r->model.attention_dropout > 0.0,
         "its dropout mask depends on the layout: use model.attention_dropout=0"},
        {r->data.reset_attention_mask, "it does not support documents: use data.reset_attention_mask=false"},
        {r->model.window_size > 0, "it runs without the mask of a sliding window: use model.window_size=0"},
        {r->model.position_embedding == ALIBI,
         "it runs without ALiBi: use model.position_embedding_type=rope"},
        {r->model.attn_logit_softcapping > 0.0,
         "it runs without soft-capping: use model.attn_logit_softcapping=0"},
        {r->precision.params_dtype == F32,
         "it needs a two-byte type: use precision.params_dtype=bf16 or fp16"},
        {!fits, "it supports head sizes up to 128 in multiples of 8: use model.kv_channels=64 or 128"},
    };
    size_t length = out->length;
    for (size_t i = 0; i < sizeof obstacles / sizeof *obstacles; i++)
        if (obstacles[i].there)
            text_add(out, "%s%s", out->length > length ? "; " : "", obstacles[i].why);
    return out->length > length;
}

static bool backend_holds(const struct view *v)
{
    AUTO(text) why = {0};
    bool good = v->recipe->kernels.attention != ATTENTION_CUDNN || !cudnn_obstacles(v->recipe, &why);
    return good;
}

static void backend_message(const struct view *v, struct text *out)
{
    text_add(out, "model.attention_backend cudnn: ");
    cudnn_obstacles(v->recipe, out);
    text_add(out, "; or use model.attention_backend=own");
}

/* ---- nodes ---- */

static bool nodes_hold(const struct view *v)
{
    int64_t ranks = recipe_cluster_ranks(v->recipe);
    return ranks == 0 || ranks == recipe_ranks(v->recipe) || !rule_replicas_hold(v);
}

static void nodes_message(const struct view *v, struct text *out)
{
    const struct recipe_cluster *c = &v->recipe->cluster;
    const struct recipe_parallel *p = &v->recipe->parallel;
    text_add(out, "cluster.nodes %d x cluster.gpus_per_node %d", c->nodes, c->gpus_per_node);
    if (c->ranks_per_gpu > 1)
        text_add(out, " x cluster.ranks_per_gpu %d", c->ranks_per_gpu);
    text_add(out, " are %lld ranks", (long long)recipe_cluster_ranks(v->recipe));
    if (v->world == recipe_ranks(v->recipe)) // `data_parallel_size: auto` has followed the launcher
        text_add(out, " (srun -N %d --ntasks-per-node=%d), but %d were started", c->nodes,
                 c->gpus_per_node * c->ranks_per_gpu, v->world);
    else
        text_add(out, ", but the layout has %lld", (long long)recipe_ranks(v->recipe));
    text_add(out, " (tp %d x pp %d x dp %d)", p->tensor_parallel_size, p->pipeline_parallel_size,
             p->data_parallel_size);
}

/* The data-parallel degree that uses all ranks of the nodes. */
static int64_t degree_of_nodes(const struct recipe *r)
{
    int64_t replica = recipe_ranks(r) / r->parallel.data_parallel_size;
    int64_t degree = recipe_cluster_ranks(r) / replica;
    return degree > 0 ? degree : 1;
}

/* The number of nodes that the layout needs. */
static int64_t nodes_of_layout(const struct recipe *r)
{
    int64_t per_node = (int64_t)r->cluster.gpus_per_node * r->cluster.ranks_per_gpu;
    int64_t nodes = recipe_ranks(r) / per_node;
    return nodes > 0 ? nodes : 1;
}

/* ---- the rules ---- */

#define WARMUP    "optimizer.lr_warmup_iters"
#define DECAY     "optimizer.lr_decay_iters"
#define WSD       "optimizer.lr_wsd_decay_iters"
#define TOKENIZER "tokenizer.tokenizer_type"
#define DEGREES   "parallel.tensor_parallel_size parallel.pipeline_parallel_size parallel.data_parallel_size"

static const struct rule rules[] = {
    {WARMUP " " DECAY " train.train_iters",
     warmup_holds,
     warmup_message,
     {{.key = WARMUP, .guess = decay_of},
      {.key = "train.train_iters", .guess = warmup_of},
      {.key = DECAY, .guess = warmup_of}}},
    {WSD " " WARMUP " " DECAY " train.train_iters optimizer.lr_decay_style",
     wsd_holds,
     wsd_message,
     {{.key = WSD, .guess = wsd_guess}, {.key = WARMUP, .guess = warmup_before_wsd}}},
    {"optimizer.min_lr optimizer.lr", min_lr_holds, min_lr_message, {{0}}},
    {"model.vocab_size " TOKENIZER " tokenizer.vocab_file",
     vocab_holds,
     vocab_message,
     {{.key = "model.vocab_size", .guess = vocab_guess}}},
    {"model.vocab_size tokenizer.tokenizer_model " TOKENIZER, vocab_given_holds, vocab_given_message, {{0}}},
    {"tokenizer.vocab_file tokenizer.merge_file " TOKENIZER, files_hold, files_message, {{0}}},
    {"tokenizer.tokenizer_model " TOKENIZER, model_holds, model_message, {{0}}},
    {"data.reset_attention_mask data.reset_position_ids data.eod_mask_loss data.pack_documents " TOKENIZER,
     documents_hold,
     documents_message,
     {{0}}},
    {"train.eval_interval data.split data.valid", eval_holds, eval_message, {{0}}},
    {"data.split data.valid", split_holds, split_message, {{0}}},
    {"name", name_holds, name_message, {{0}}},
    {"parallel.rank_order", order_holds, order_message, {{0}}},
    {"cluster.device", built_holds, built_message, {{0}}},
    {"model.attention_backend model.attention_dropout model.kv_channels data.reset_attention_mask "
     "model.window_size model.position_embedding_type model.attn_logit_softcapping precision.params_dtype "
     "cluster.device",
     backend_holds,
     backend_message,
     {{0}}},
    {"precision.allow_tf32 precision.params_dtype cluster.device", tf32_holds, tf32_message, {{0}}},
    {"cluster.matmul_algorithms cluster.device", algorithms_hold, algorithms_message, {{0}}},
    {"cluster.matmul_algorithms", kept_holds, kept_message, {{0}}},
    {"cluster.matmul_epilogues cluster.device", epilogues_hold, epilogues_message, {{0}}},
    {"memory.offload_optimizer pipeline.optimizer_post_validation", rollback_holds, rollback_message, {{0}}},
    {"cluster.transport cluster.device " DEGREES, transport_holds, transport_message, {{0}}},
    {"cluster.ranks_per_gpu cluster.transport cluster.device " DEGREES,
     sharing_holds,
     sharing_message,
     {{0}}},
    {"cluster.nodes cluster.gpus_per_node cluster.ranks_per_gpu " DEGREES,
     rule_replicas_hold,
     rule_replicas_message,
     {{.key = "cluster.nodes", .min = 1},
      {.key = "parallel.tensor_parallel_size"},
      {.key = "parallel.pipeline_parallel_size"}}},
    {"cluster.nodes cluster.gpus_per_node cluster.ranks_per_gpu " DEGREES,
     nodes_hold,
     nodes_message,
     {{.key = "parallel.data_parallel_size", .guess = degree_of_nodes},
      {.key = "parallel.tensor_parallel_size"},
      {.key = "parallel.pipeline_parallel_size"},
      {.key = "cluster.nodes", .guess = nodes_of_layout, .min = 1},
      {.key = "cluster.gpus_per_node", .min = 1}}},
    {"cluster.time", rule_time_holds, rule_time_message, {{0}}},
    {"profile.profile_step_start profile.profile_step_end profile.timeline train.train_iters",
     profile_holds,
     profile_message,
     {{.key = "profile.profile_step_end", .guess = profile_start_of},
      {.key = "profile.profile_step_start", .guess = iters_of}}},
};
const struct rules recipe_run_rules = RULES_OF(rules);
