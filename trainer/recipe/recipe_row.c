// SPDX-License-Identifier: Apache-2.0
/* Finds rows of the recipe's table by key, alias, last word, or by the name of another program. */
#include "trainer/recipe/recipe_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t recipe_row_section_length(const struct recipe_row *row)
{
    const char *dot = strchr(row->key, '.');
    return dot != NULL ? (size_t)(dot - row->key) : 0;
}

const char *recipe_row_name(const struct recipe_row *row)
{
    const char *dot = strchr(row->key, '.');
    return dot != NULL ? dot + 1 : row->key;
}

bool recipe_row_in_section(const struct recipe_row *row, const char *section)
{
    size_t length = recipe_row_section_length(row);
    return strlen(section) == length && strncmp(row->key, section, length) == 0;
}

enum section_kind recipe_row_section_kind(const struct recipe_row *row)
{
    int section = 0;
    while (section < recipe_section_count && !recipe_row_in_section(row, recipe_sections[section].name))
        section++;
    CHECK(section < recipe_section_count);
    return recipe_sections[section].kind;
}

int recipe_row_total(const struct recipe_addition *more)
{
    return recipe_row_count + (more != NULL ? more->row_count : 0);
}

const struct recipe_row *recipe_row_at(const struct recipe_addition *more, int row)
{
    return row < recipe_row_count ? &recipe_rows[row] : &more->rows[row - recipe_row_count];
}

int recipe_section_total(const struct recipe_addition *more)
{
    return recipe_section_count + (more != NULL ? 1 : 0);
}

const struct recipe_section *recipe_section_at(const struct recipe_addition *more, int section)
{
    return section < recipe_section_count ? &recipe_sections[section] : &more->section;
}

bool recipe_row_choice(const struct recipe_row *row, size_t index, struct choice *out)
{
    if (row->names != NULL)
        *out = (struct choice){.name = row->names(index)};
    else
        *out = row->choices != NULL ? row->choices[index] : (struct choice){0};
    return out->name != NULL;
}

bool recipe_row_has_choices(const struct recipe_row *row)
{
    return row->choices != NULL || row->names != NULL;
}

void recipe_row_choices_text(const struct recipe_row *row, struct text *out)
{
    const char *last = NULL;
    size_t shown = 0;
    struct choice c;
    for (size_t i = 0; recipe_row_choice(row, i, &c); i++)
        if (!c.alias) {
            if (last != NULL)
                text_add(out, "%s%s", shown++ > 0 ? ", " : "", last);
            last = c.name;
        }
    if (last != NULL)
        text_add(out, "%s%s", shown > 0 ? " or " : "", last);
}

/* Whether `word` is one of those in `list`, which are separated by spaces. */
static bool list_has(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at != NULL && *at != 0; at += strspn(at, " ")) {
        size_t here = strcspn(at, " ");
        if (here == length && strncmp(at, word, length) == 0)
            return true;
        at += here;
    }
    return false;
}

int recipe_row_find(const struct recipe_addition *more, const char *section, const char *name)
{
    for (int i = 0; i < recipe_row_total(more); i++)
        if (recipe_row_in_section(recipe_row_at(more, i), section) &&
            (strcmp(recipe_row_name(recipe_row_at(more, i)), name) == 0 ||
             list_has(recipe_row_at(more, i)->aliases, name)))
            return i;
    return -1;
}

/* The row of this name or alias, if it is in one section only; -1. Not of another program's keys. */
static int find_unique(const struct recipe_addition *more, const char *name)
{
    int found = -1;
    for (int s = 0; s < recipe_section_total(more); s++) {
        const bool assumed = recipe_section_at(more, s)->kind == SECTION_ADDED;
        const int row = assumed ? -1 : recipe_row_find(more, recipe_section_at(more, s)->name, name);
        if (strcmp(recipe_section_at(more, s)->name, name) == 0 || (row >= 0 && found >= 0))
            return -1;
        found = row >= 0 ? row : found;
    }
    return found;
}

int recipe_row_find_dotted(const struct recipe_addition *more, const char *key)
{
    const char *dot = strchr(key, '.');
    for (int s = 1; s < recipe_section_total(more) && dot == NULL; s++)
        if (recipe_section_at(more, s)->short_for != NULL &&
            strcmp(recipe_section_at(more, s)->name, key) == 0)
            return recipe_row_find(more, key, recipe_section_at(more, s)->short_for);
    if (dot == NULL) {
        const int row = recipe_row_find(more, "", key);
        return row >= 0 ? row : find_unique(more, key);
    }
    char section[32] = "";
    size_t length = (size_t)(dot - key);
    if (length == 0 || length >= sizeof section)
        return -1;
    memcpy(section, key, length);
    return recipe_row_find(more, section, dot + 1);
}

const char *recipe_key(const struct recipe_addition *more, const char *name)
{
    int row = recipe_row_find_dotted(more, name);
    return row >= 0 ? recipe_row_at(more, row)->key : NULL;
}

int recipe_row_find_any_section(const struct recipe_addition *more, const char *name)
{
    for (int s = 0; s < recipe_section_total(more); s++) {
        int row = recipe_row_find(more, recipe_section_at(more, s)->name, name);
        if (row >= 0)
            return row;
    }
    return -1;
}

int recipe_row_nearest(const struct recipe_addition *more, const char *name)
{
    const char *names[RECIPE_MAX_ROWS] = {NULL};
    for (int i = 0; i < recipe_row_total(more); i++)
        names[i] = recipe_row_name(recipe_row_at(more, i));
    const char *near = nearest_name(name, names, (size_t)recipe_row_total(more));
    for (int i = 0; i < recipe_row_total(more) && near != NULL; i++)
        if (names[i] == near)
            return i;
    return -1;
}

const char *recipe_key_near(const struct recipe_addition *more, const char *name)
{
    const char *dot = strrchr(name, '.');
    int row = recipe_row_find_any_section(more, dot != NULL ? dot + 1 : name);
    row = row < 0 ? recipe_row_nearest(more, dot != NULL ? dot + 1 : name) : row;
    return row >= 0 ? recipe_row_at(more, row)->key : NULL;
}

bool recipe_key_of_option(const struct recipe_addition *more, const char *argument,
                          char key[RECIPE_KEY_CHARS])
{
    const char *name = argument + strspn(argument, "-");
    snprintf(key, RECIPE_KEY_CHARS, "%.*s", (int)strcspn(name, "="), name);
    for (char *c = key; name != argument && *c != 0; c++)
        *c = *c == '-' ? '_' : *c;
    int row = recipe_row_find_dotted(more, key);
    if (row >= 0 && strcmp(key, recipe_row_name(recipe_row_at(more, row))) != 0)
        return true; // with its section, or short
    row = row < 0 ? recipe_row_find_any_section(more, key) : row;
    if (row >= 0)
        snprintf(key, RECIPE_KEY_CHARS, "%s", recipe_row_at(more, row)->key);
    return row >= 0;
}

const char *override_key(const struct recipe_addition *more, const char *override)
{
    char name[RECIPE_KEY_CHARS];
    const size_t length = strcspn(override, "=");
    if (length >= sizeof name)
        return NULL;
    memcpy(name, override, length);
    name[length] = 0;
    return recipe_key(more, name);
}

void overrides_set(const struct recipe_addition *more, struct recipe_names *overrides, const char *override)
{
    const char *key = override_key(more, override);
    for (size_t i = 0; i < overrides->count; i++)
        if (key != NULL && override_key(more, overrides->list[i]) == key) {
            free(overrides->list[i]);
            overrides->list[i] = text_copy(override);
            return;
        }
    char **grown = realloc(overrides->list, (overrides->count + 1) * sizeof *grown);
    if (grown == NULL)
        die(__FILE__, __LINE__, "recipe", "out of memory for an override");
    overrides->list = grown;
    overrides->list[overrides->count++] = text_copy(override);
}

const char *recipe_model_key(int index)
{
    for (int i = 0; i < recipe_row_count; i++)
        if (recipe_row_in_section(&recipe_rows[i], "model") && index-- == 0)
            return recipe_rows[i].key;
    return NULL;
}

int recipe_row_index(const char *key)
{
    for (int i = 0; i < recipe_row_count; i++)
        if (recipe_rows[i].key[0] == key[0] && strcmp(recipe_rows[i].key, key) == 0) // most begin otherwise
            return i;
    int row = recipe_row_find_dotted(NULL, key);
    CHECK(row >= 0);
    return row;
}

/* ---- names of other programs ---- */

/* PyTorch, Hugging Face, Megatron-LM, torchtitan, DeepSpeed. An unknown word that is one of these is answered
 * with the key that does the same. Names that mean exactly the same are aliases of the key instead. */

/* Keys of these names, in any section, and what to use instead. */
static const char *const foreign_keys[][2] = {
    {"recompute", "memory.recompute_granularity"},
    {"recompute_activations", "memory.recompute_granularity=selective"},
    {"activation_checkpoint", "memory.recompute_granularity"},
    {"activation_checkpointing", "memory.recompute_granularity"},
    {"gradient_checkpointing", "memory.recompute_granularity"},
    {"checkpoint_activations", "memory.recompute_granularity"},
    {"dir", "checkpoint.save, or logging.run_dir for the whole run"},
    {"folder", "checkpoint.save, or logging.run_dir for the whole run"},
    {"save_dir", "checkpoint.save"},
    {"output_dir", "logging.run_dir"},
    {"load_dir", "checkpoint.load"},
    {"resume", "checkpoint.load=auto, which is the default"},
    {"save_steps", "checkpoint.save_interval"},
    {"load_best_model_at_end", "checkpoint.keep_best"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"warmup", "optimizer.lr_warmup_iters"},
    {"warmup_iters", "optimizer.lr_warmup_iters"},
    {"warmup_steps", "optimizer.lr_warmup_iters"},
    {"num_warmup_steps", "optimizer.lr_warmup_iters"},
    {"type", "tokenizer.tokenizer_type"},
    {"betas", "optimizer.adam_beta1 and optimizer.adam_beta2"},
    {"eps", "optimizer.adam_eps"},
    {"adam_epsilon", "optimizer.adam_eps"},
    {"decay_type", "optimizer.lr_decay_style"},
    {"decay_ratio", "optimizer.lr_wsd_decay_iters, with optimizer.lr_decay_style=WSD"},
    {"log_freq", "logging.log_interval"},
    {"logging_steps", "logging.log_interval"},
    {"eval_steps", "train.eval_interval"},
    {"learning_rate", "optimizer.lr"},
    {"lr_scheduler", "optimizer.lr_decay_style"},
    {"lr_scheduler_type", "optimizer.lr_decay_style"},
    {"max_grad_norm", "optimizer.clip_grad"},
    {"max_norm", "optimizer.clip_grad"},
    {"gradient_clipping", "optimizer.clip_grad"},
    {"grad_clip", "optimizer.clip_grad"},
    {"steps", "train.train_iters"},
    {"num_steps", "train.train_iters"},
    {"epochs", "train.train_iters: a run prints how many epochs these steps read"},
    {"num_train_epochs", "train.train_iters: a run prints how many epochs these steps read"},
    {"data_path", "data.train"},
    {"tokenizer_path", "tokenizer.tokenizer_model"},
    {"iterations", "train.train_iters"},
    {"batch_size", "train.global_batch_size, or train.micro_batch_size for one microbatch of one rank"},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"gradient_accumulation_steps", "train.global_batch_size: it gives the number of microbatches"},
    {"local_batch_size", "train.micro_batch_size, or train.global_batch_size for a step of all ranks"},
    {"num_microbatches", "train.global_batch_size: it gives the number of microbatches"},
    {"dtype", "precision.params_dtype"},
    {"mixed_precision_param", "precision.params_dtype"},
    {"torch_dtype", "precision.params_dtype"},
    {"bf16", "precision.params_dtype=bf16"},
    {"fp16", "precision.params_dtype=fp16"},
    {"device", "cluster.device"},
    {"use_distributed_optimizer", "parallel.zero_stage=1"},
    {"fsdp", "parallel.zero_stage=3"},
    {"dp_shard", "parallel.data_parallel_size with parallel.zero_stage=3"},
    {"data_parallel_shard_degree", "parallel.data_parallel_size with parallel.zero_stage=3"},
    {"data_parallel_replicate_degree", "parallel.data_parallel_size"},
    {"tensor_parallel_degree", "parallel.tensor_parallel_size"},
    {"pipeline_parallel_degree", "parallel.pipeline_parallel_size"},
    {"pipeline_parallel_schedule", "pipeline.schedule"},
    {"pipeline_parallel_schedule_csv", "pipeline.schedule_file"},
    {"pipeline_parallel_layers_per_stage", "pipeline.num_layers_per_virtual_pipeline_stage"},
    {"pipeline_parallel_microbatch_size", "train.micro_batch_size"},
    {"enable_async_tensor_parallel", "parallel.tp_comm_overlap=true"},
    {"use_torch_fsdp2", "parallel.zero_stage=3"},
    {"fsdp_reshard_after_forward", "parallel.zero_stage, 3 with and 2 without it"},
    {"reduce_bucket_size", "parallel.bucket_size_mb"},
    {"overlap_comm", "parallel.overlap_grad_reduce"},
    {"num_heads", "model.num_attention_heads"},
    {"dim", "model.hidden_size"},
    {"d_model", "model.hidden_size"},
    {"flash_attention", "model.attention_backend"},
    {"flash_attn", "model.attention_backend"},
    {"use_flash_attn", "model.attention_backend"},
    {"attn_implementation", "model.attention_backend"},
    {"swiglu", "model.activation"},
    {"squared_relu", "model.activation"},
    {"disable_bias_linear", "model.add_bias_linear=false"},
    {"untie_embeddings_and_output_weights", "model.tie_word_embeddings=false"},
    {"group_query_attention", "model.num_query_groups"},
    {"dropout", "model.hidden_dropout and model.attention_dropout"},
};

#define NO_CONTEXT                                                                                       \
    "context parallelism is not implemented; for long sequences use parallel.tensor_parallel_size with " \
    "parallel.sequence_parallel=true"
#define NO_EXPERTS "mixture of experts is not implemented"
#define NO_STOP                                                                                              \
    "stopping after a number of steps is not implemented; use resilience.exit_duration_in_mins, or end the " \
    "run with SIGTERM: it saves first"

/* Keys for features that do not exist: those of this name where `only` is given, else all that begin with it.
 * only: the value that asks for no such feature, which is accepted: resolved recipes of older versions have
 * it. */
static const struct {
    const char *name, *why, *only;
} missing_features[] = {
    {"context_parallel_size", NO_CONTEXT, "1"},
    {"cp", NO_CONTEXT, "1"},
    {"context_parallel_method", NO_CONTEXT, "ring"},
    {"cp_comm_type", NO_CONTEXT, NULL},
    {"context_parallel", NO_CONTEXT, NULL},
    {"expert_parallel_size", NO_EXPERTS, "1"},
    {"expert_model_parallel_size", NO_EXPERTS, "1"},
    {"ep", NO_EXPERTS, "1"},
    {"expert_parallel", NO_EXPERTS, NULL},
    {"num_experts", NO_EXPERTS, NULL},
    {"num_moe_experts", NO_EXPERTS, NULL},
    {"moe_", NO_EXPERTS, NULL},
    {"num_local_experts", NO_EXPERTS, NULL},
    {"gradient_reduce_dtype", "gradients are summed in fp32 only", "fp32"},
    {"fp8",
     "fp8 on tensor cores is not implemented; precision.matmul_format=hybrid simulates it (slower, to study "
     "accuracy)",
     "false"},
    {"optimizer.name", "AdamW is the only optimizer", "adamw"},
    {"optimizer.type", "AdamW is the only optimizer", "adamw"},
    {"mtp_", "multi-token prediction is not implemented", NULL},
    {"rampup_batch_size", "a ramp-up of the batch size is not implemented", NULL},
    {"multi_latent_attention", "multi-latent attention is not implemented", NULL},
    {"q_lora_rank", "multi-latent attention is not implemented", NULL},
    {"kv_lora_rank", "multi-latent attention is not implemented", NULL},
    {"exit_interval", NO_STOP, NULL},
    {"stop_after", NO_STOP, NULL},
    {"wandb", "Weights & Biases is not supported; metrics.jsonl in the run directory has every step", NULL},
};

/* The index of the missing feature that a key of this section asks for, or -1. */
static int missing_feature(const char *section, const char *name)
{
    char dotted[2 * RECIPE_KEY_CHARS];
    snprintf(dotted, sizeof dotted, "%s.%s", section, name);
    for (size_t i = 0; i < sizeof missing_features / sizeof *missing_features; i++) {
        const char *key = missing_features[i].name, *asked = strchr(key, '.') != NULL ? dotted : name;
        if (missing_features[i].only != NULL ? strcmp(asked, key) == 0
                                             : strncmp(asked, key, strlen(key)) == 0)
            return (int)i;
    }
    return -1;
}

const char *recipe_only_value(const char *section, const char *name)
{
    const int i = missing_feature(section, name);
    return i >= 0 ? missing_features[i].only : NULL;
}

static const char *const foreign_values[][2] = {
    {"gpu", "cuda"},
    {"GPU", "cuda"},
    {"nvidia", "cuda"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"bfloat16", "bf16"},
    {"float32", "fp32"},
    {"rotary", "rope"},
    {"fp8", "hybrid"},
    {"float8", "hybrid"},
    {"learned", "learned_absolute"},
    {"layernorm", "LayerNorm"},
    {"rmsnorm", "RMSNorm"},
};

bool recipe_foreign_key(const char *section, const char *name, struct text *hint)
{
    const int missing = missing_feature(section, name);
    if (missing >= 0) {
        text_add(hint, ": %s", missing_features[missing].why);
        return true;
    }
    for (size_t i = 0; i < sizeof foreign_keys / sizeof *foreign_keys; i++)
        if (strcmp(name, foreign_keys[i][0]) == 0) {
            text_add(hint, "; use %s", foreign_keys[i][1]);
            return true;
        }
    return false;
}

const char *recipe_near_choice(const char *value, const char *const *names, size_t count)
{
    for (size_t p = 0; p < sizeof foreign_values / sizeof *foreign_values; p++)
        for (size_t i = 0; i < count && strcmp(value, foreign_values[p][0]) == 0; i++)
            if (strcmp(names[i], foreign_values[p][1]) == 0)
                return names[i];
    return nearest_name(value, names, count);
}
