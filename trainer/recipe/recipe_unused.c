// SPDX-License-Identifier: Apache-2.0
/* Warns about keys that have no effect given the other keys, each once, with the reason.
 *
 *     warning: R:9: optimizer.lr_wsd_decay_iters has no effect: optimizer.lr_decay_style is cosine, and only
 *     WSD uses it
 *
 * A row has the keys, a predicate that is true if they are unused, the key that decides it, and the reason.
 * Caution: defaults, and values equal to the default, cause no warning. */
#include "trainer/recipe/recipe_table.h"

#include <string.h>

static bool keeps_no_graphs(const struct recipe *r)
{
    return device_traits(r->cluster.device)->computes && !device_traits(r->cluster.device)->supports_graphs;
}

static bool computes_on_another_device(const struct recipe *r)
{
    return device_traits(r->cluster.device)->computes &&
           strcmp(r->cluster.device, r->cluster.dry_device) != 0;
}

static bool not_searched(const struct recipe *r)
{
    return strcmp(r->pipeline.schedule, "auto") != 0;
}

static bool not_quantized(const struct recipe *r)
{
    const struct linear_precision *precision = &r->layers.precision;
    return !linear_precision_quantizes(precision);
}

static bool not_mxfp8(const struct recipe *r)
{
    const struct linear_precision *precision = &r->layers.precision;
    for (int i = 0; i < MATMUL_COUNT; i++)
        if (precision->format[i] == MATMUL_MXFP8)
            return false;
    return true;
}

static bool not_delayed(const struct recipe *r)
{
    return r->precision.scaling != SCALE_DELAYED;
}

static bool not_scaled(const struct recipe *r)
{
    return r->precision.params_dtype != RECIPE_FP16;
}

static bool scale_is_fixed(const struct recipe *r)
{
    return !not_scaled(r) && r->precision.loss_scale > 0.0;
}

static bool not_wsd(const struct recipe *r)
{
    return r->optimizer.lr_decay_style != LR_WSD;
}

static bool constant_rate(const struct recipe *r)
{
    return r->optimizer.lr_decay_style == LR_CONSTANT;
}

static bool not_rotary(const struct recipe *r)
{
    return r->model.position_embedding != ROPE;
}

static bool not_scaled_rope(const struct recipe *r)
{
    return r->model.position_embedding != ROPE || !r->model.use_rope_scaling;
}

static bool not_llama3(const struct recipe *r)
{
    return !not_scaled_rope(r) && r->model.rope_scaling_type != ROPE_LLAMA3;
}

static bool not_yarn(const struct recipe *r)
{
    return !not_scaled_rope(r) && r->model.rope_scaling_type != ROPE_YARN;
}

static bool no_window(const struct recipe *r)
{
    return r->model.window_size == 0;
}

static bool all_biases(const struct recipe *r)
{
    return r->model.add_bias_linear;
}

static bool not_timed(const struct recipe *r)
{
    return !r->profile.timeline;
}

static bool no_messages_to_hide(const struct recipe *r)
{
    return !r->layers.sequence_parallel;
}

static bool not_on_gpus(const struct recipe *r)
{
    return !device_traits(r->cluster.device)->is_gpu;
}

static bool layers_are_buckets(const struct recipe *r)
{
    return r->data_parallel.zero_stage >= 2;
}

static bool slices_are_kept(const struct recipe *r)
{
    return r->data_parallel.zero_stage >= 1;
}

static bool adds_in_order(const struct recipe *r)
{
    return r->deterministic && !not_on_gpus(r);
}

static bool never_timed(const struct recipe *r)
{
    return r->kernels.epilogues == EPILOGUES_AUTO && r->deterministic && r->kernels.matmul_algorithms == NULL;
}

static bool weights_are_whole(const struct recipe *r)
{
    return r->data_parallel.zero_stage < 3;
}

static bool never_saved(const struct recipe *r)
{
    return r->checkpoint.save == NULL;
}

static bool never_evaluated(const struct recipe *r)
{
    return r->train.eval_interval == 0;
}

static bool all_are_kept(const struct recipe *r)
{
    return r->checkpoint.save == NULL || r->checkpoint.keep_last == 0;
}

static bool never_in_background(const struct recipe *r)
{
    return !r->checkpoint.async_save;
}

static bool never_in_memory(const struct recipe *r)
{
    return r->checkpoint.non_persistent_save_interval == 0;
}

static bool never_loaded(const struct recipe *r)
{
    return r->checkpoint.load == NULL;
}

static bool is_mock(const struct recipe *r)
{
    return r->data.mock_data;
}

static bool not_packed(const struct recipe *r)
{
    return !r->data.mock_data && !r->data.pack_documents;
}

static bool not_full(const struct recipe *r)
{
    return r->layers.recompute.granularity != RECOMPUTE_FULL;
}

static bool not_selective(const struct recipe *r)
{
    return r->layers.recompute.granularity != RECOMPUTE_SELECTIVE;
}

#define DYNAMIC_SCALE                                                                    \
    "precision.initial_loss_scale precision.min_loss_scale precision.loss_scale_window " \
    "precision.hysteresis"

static const struct unused_key {
    const char *keys; // separated by spaces
    bool (*applies)(const struct recipe *recipe);
    const char *because; // the key that decides it
    const char *wanted;  // the end of the message, after "and"
} rows[] = {
    {"parallel.overlap_param_gather", weights_are_whole, "parallel.zero_stage",
     "only 3 gathers weights per layer"},
    {"parallel.tp_comm_overlap", no_messages_to_hide, "parallel.sequence_parallel",
     "it overlaps the communication of sequence parallelism"},
    {"cluster.cuda_graphs", keeps_no_graphs, "cluster.device", "CUDA graphs need a GPU"},
    {"cluster.dry_device", computes_on_another_device, "cluster.device", "only dry simulates another device"},
    {"parallel.nccl_ub", not_on_gpus, "cluster.device", "NCCL needs GPUs"},
    {"parallel.nccl_ub", slices_are_kept, "parallel.zero_stage",
     "from 1 on gradients are reduced through unregistered memory"},
    {"parallel.nccl_ub", adds_in_order, "deterministic", "NCCL then performs no reductions"},
    {"cluster.matmul_epilogues", never_timed, "deterministic",
     "auto then equals apart; set it to false, or set cluster.matmul_algorithms, to time both"},
    {"parallel.bucket_size_mb", layers_are_buckets, "parallel.zero_stage",
     "with 2 and 3 each layer is a bucket"},
    {"pipeline.auto_f pipeline.auto_i pipeline.auto_w pipeline.auto_comm pipeline.auto_memory_limit",
     not_searched, "pipeline.schedule", "only auto uses it"},
    {"model.rotary_base model.rotary_percent model.rotary_interleaved model.use_rope_scaling", not_rotary,
     "model.position_embedding_type", "only rope uses it"},
    {"model.rope_scaling_type model.rope_scaling_factor model.rope_low_freq_factor "
     "model.rope_high_freq_factor model.rope_beta_fast model.rope_beta_slow "
     "model.rope_original_max_position_embeddings",
     not_scaled_rope, "model.use_rope_scaling", "set it to true"},
    {"model.rope_low_freq_factor model.rope_high_freq_factor", not_llama3, "model.rope_scaling_type",
     "only llama3 uses it"},
    {"model.rope_beta_fast model.rope_beta_slow", not_yarn, "model.rope_scaling_type", "only yarn uses it"},
    {"model.window_attn_skip_freq", no_window, "model.window_size", "no layer has a window"},
    {"model.add_qkv_bias", all_biases, "model.add_bias_linear", "true adds all biases"},
    {"optimizer.lr_wsd_decay_iters optimizer.lr_wsd_decay_style", not_wsd, "optimizer.lr_decay_style",
     "only WSD uses it"},
    {"optimizer.min_lr", constant_rate, "optimizer.lr_decay_style", "the learning rate never decays"},
    {"precision.scaling precision.high_precision_layers precision.high_precision_first_layers "
     "precision.high_precision_last_layers",
     not_quantized, "precision.matmul_format", "no matrix multiplication is quantized"},
    {"precision.mxfp8_scale_rounding", not_mxfp8, "precision.matmul_format", "only mxfp8 uses it"},
    {"precision.amax_history_len precision.amax_compute_algo precision.margin", not_delayed,
     "precision.scaling", "only delayed uses it"},
    {"precision.loss_scale " DYNAMIC_SCALE, not_scaled, "precision.params_dtype",
     "only fp16 scales the loss"},
    {DYNAMIC_SCALE, scale_is_fixed, "precision.loss_scale", "only 0 (dynamic loss scaling) uses it"},
    {"data.train data.valid data.loss_mask data.pack_documents data.truncate_documents", is_mock,
     "data.mock_data", "all tokens are random"},
    {"data.truncate_documents", not_packed, "data.pack_documents", "a stream of documents is cut anywhere"},
    {"memory.recompute_method memory.recompute_num_layers", not_full, "memory.recompute_granularity",
     "only full uses it"},
    {"memory.recompute_modules", not_selective, "memory.recompute_granularity", "only selective uses it"},
    {"checkpoint.keep_last", never_saved, "checkpoint.save", "there is nothing to remove"},
    {"checkpoint.save_retain_interval", all_are_kept, "checkpoint.keep_last", "nothing is removed"},
    {"checkpoint.keep_best", never_saved, "checkpoint.save", "nothing is saved"},
    {"checkpoint.keep_best", never_evaluated, "train.eval_interval", "there is no validation loss"},
    {"checkpoint.save_minutes checkpoint.save_optim checkpoint.async_save resilience.save_signal",
     never_saved, "checkpoint.save", "nothing is saved"},
    {"checkpoint.staging_mb", never_in_background, "checkpoint.async_save", "nothing is copied"},
    {"checkpoint.memory_copies", never_in_memory, "checkpoint.non_persistent_save_interval",
     "nothing is saved in memory"},
    {"checkpoint.load_optim", never_loaded, "checkpoint.load", "nothing is loaded"},
    {"profile.profile_step_start profile.profile_step_end", not_timed, "profile.timeline",
     "no timeline is written"},
};

/* Whether `keys`, separated by spaces, contains `key`. */
static bool lists(const char *keys, const char *key)
{
    const size_t length = strlen(key);
    for (const char *at = keys; at != NULL; at = strchr(at, ' ') != NULL ? strchr(at, ' ') + 1 : NULL)
        if (strncmp(at, key, length) == 0 && (at[length] == 0 || at[length] == ' '))
            return true;
    return false;
}

bool recipe_key_is_unused(const struct recipe *recipe, const char *key)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (lists(rows[i].keys, key) && rows[i].applies(recipe))
            return true;
    return (strcmp(key, "parallel.zero_stage") == 0 && recipe->parallel.data_parallel_size == 1) ||
           (strcmp(key, "parallel.sequence_parallel") == 0 && recipe->parallel.tensor_parallel_size == 1);
}

/* True if the key was given, with a value other than the default; one without a default is not empty. */
static bool is_given(const struct recipe *recipe, int row)
{
    enum origin_kind kind = recipe->origin[row].kind;
    struct text value = {0};
    recipe_value_text(recipe, &recipe_rows[row], &value);
    const char *fallback = recipe_rows[row].fallback != NULL ? recipe_rows[row].fallback : "[]";
    bool given =
        (kind == FROM_FILE || kind == FROM_COMMAND_LINE) && strcmp(text_chars(&value), fallback) != 0;
    text_free(&value);
    return given;
}

static void warn_unused(const struct recipe *recipe, const char *key, const struct unused_key *unused,
                        struct problems *problems)
{
    int row = recipe_row_index(key);
    if (!is_given(recipe, row))
        return;
    struct text where = {0}, value = {0};
    recipe_origin_text(recipe, row, &where);
    recipe_key_text(recipe, unused->because, &value);
    problems_warn(problems, "%s: %s has no effect: %s is %s, and %s", text_chars(&where), key,
                  unused->because, text_chars(&value), unused->wanted);
    text_free(&where);
    text_free(&value);
}

/* ---- values without effect ---- */

static void warn_at(const struct recipe *recipe, const char *key, const char *what, struct problems *problems)
{
    struct text where = {0};
    recipe_origin_text(recipe, recipe_row_index(key), &where);
    problems_warn(problems, "%s: %s %s", text_chars(&where), key, what);
    text_free(&where);
}

static void warn_too_many(const struct recipe *recipe, struct problems *problems)
{
    const struct recompute *recompute = &recipe->layers.recompute;
    int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    int64_t most = 0;
    for (int stage = 0; stage < stages; stage++) {
        int64_t layers = recipe_stage_layers(recipe, stage);
        most = layers > most ? layers : most;
    }
    if (recompute->granularity != RECOMPUTE_FULL || recompute->num_layers <= most)
        return;
    struct text what = {0};
    text_add(&what, "%lld is more than the %lld layers of any stage", (long long)recompute->num_layers,
             (long long)most);
    warn_at(recipe, "memory.recompute_num_layers", text_chars(&what), problems);
    text_free(&what);
}

static void warn_of_modules(const struct recipe *recipe, struct problems *problems)
{
    const struct recipe_names *names = &recipe->memory.recompute_modules;
    if (not_selective(recipe))
        return;
    if (names->count == 0)
        warn_at(recipe, "memory.recompute_modules", "is empty: nothing is recomputed; use [core_attn]",
                problems);
    for (size_t i = 0; i < names->count; i++)
        for (size_t k = i + 1; k < names->count; k++)
            if (strcmp(names->list[i], names->list[k]) == 0) {
                struct text what = {0};
                text_add(&what, "names %s twice; remove one", names->list[i]);
                warn_at(recipe, "memory.recompute_modules", text_chars(&what), problems);
                text_free(&what);
                return;
            }
}

void recipe_warn_unused(const struct recipe *recipe, struct problems *problems)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct text keys = {0};
        text_add(&keys, "%s", rows[i].keys);
        char *rest = keys.chars;
        bool unused = rows[i].applies(recipe);
        for (char *key = strsep(&rest, " "); unused && key != NULL; key = strsep(&rest, " "))
            warn_unused(recipe, key, &rows[i], problems);
        text_free(&keys);
    }
    warn_too_many(recipe, problems);
    warn_of_modules(recipe, problems);
}
