// SPDX-License-Identifier: Apache-2.0
/* Names of other programs: PyTorch, Hugging Face, Megatron-LM, torchtitan, DeepSpeed. An unknown word that is
 * one of these is answered with the key that does the same, or why there is none. Names that mean exactly the
 * same are aliases of the key instead. The test of docs/from-other-trainers.md reads every key of that page.
 */
#include "trainer/recipe/recipe_table.h"

#include <stdio.h>
#include <string.h>

/* Keys of these names, alone or in any section, and what to use instead. A name with a dot: in that section
 * only. */
static const char *const foreign_keys[][2] = {
    {"recompute", "memory.recompute_granularity"},
    {"recompute_activations", "memory.recompute_granularity=selective"},
    {"activation_checkpoint",
     "memory.recompute_granularity: nearest to `selective` of torchtitan is full with "
     "memory.recompute_method=block and memory.recompute_num_layers"},
    {"activation_checkpointing", "memory.recompute_granularity"},
    {"gradient_checkpointing", "memory.recompute_granularity"},
    {"checkpoint_activations", "memory.recompute_granularity"},
    {"dir", "checkpoint.save, or logging.run_dir for the whole run"},
    {"folder", "checkpoint.save, or logging.run_dir for the whole run"},
    {"save_dir", "checkpoint.save"},
    {"output_dir", "logging.run_dir"},
    {"load_dir", "checkpoint.load"},
    {"resume", "checkpoint.load=auto, which is the default"},
    {"resume_from_checkpoint", "checkpoint.load=auto, which is the default"},
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
    {"train_samples", "train.train_iters: samples / train.global_batch_size"},
    {"lr_warmup_samples", "optimizer.lr_warmup_iters: samples / train.global_batch_size"},
    {"lr_decay_samples", "optimizer.lr_decay_iters: samples / train.global_batch_size"},
    {"lr_warmup_fraction", "optimizer.lr_warmup_iters"},
    {"warmup_ratio", "optimizer.lr_warmup_iters"},
    {"distributed_timeout_minutes", "resilience.heartbeat_timeout_seconds"},
    {"ddp_timeout", "resilience.heartbeat_timeout_seconds"},
    {"distributed_backend", "cluster.transport"},
    {"batch_size", "train.global_batch_size, or train.micro_batch_size for one microbatch of one rank"},
    {"train_batch_size", "train.global_batch_size"},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"train_micro_batch_size_per_gpu", "train.micro_batch_size"},
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
    {"use_megatron_fsdp", "parallel.zero_stage=3"},
    {"data_parallel_sharding_strategy", "parallel.zero_stage: no_shard is 0, optim 1, optim_grads 2 and "
                                        "optim_grads_params 3"},
    {"zero_optimization", "parallel.zero_stage"},
    {"zero_optimization.stage", "parallel.zero_stage"},
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
#define NO_EXPERTS   "mixture of experts is not implemented"
#define NO_REDUCTION "gradients are summed in fp32 only"
#define NO_OPTIMIZER "AdamW is the only optimizer"
#define NO_WORKERS   "data needs no worker processes: datasets are mapped into memory"
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
    {"gradient_reduce_dtype", NO_REDUCTION, "fp32"},
    {"grad_reduce_in_bf16", NO_REDUCTION, "false"},
    {"mixed_precision_reduce", NO_REDUCTION, "float32"},
    {"fp8",
     "fp8 on tensor cores is not implemented; precision.matmul_format=hybrid simulates it (slower, to study "
     "accuracy)",
     "false"},
    {"optimizer", NO_OPTIMIZER, "adamw"},
    {"optimizer.name", NO_OPTIMIZER, "adamw"},
    {"optimizer.type", NO_OPTIMIZER, "adamw"},
    {"ckpt_format", "checkpoints have one format, which every layout loads (docs/checkpoints.md)", NULL},
    {"transformer_impl", "a layer has one implementation; model.attention_backend is that of attention",
     NULL},
    {"attention_softmax_in_fp32", "softmax is always computed in fp32", "true"},
    {"compile", "there is nothing to compile: kernels are in the executable", "false"},
    {"manual_gc", "there is no garbage collector", NULL},
    {"num_workers", NO_WORKERS, NULL},
    {"dataloader_num_workers", NO_WORKERS, NULL},
    {"mtp_", "multi-token prediction is not implemented", NULL},
    {"rampup_batch_size", "a ramp-up of the batch size is not implemented", NULL},
    {"multi_latent_attention", "multi-latent attention is not implemented", NULL},
    {"q_lora_rank", "multi-latent attention is not implemented", NULL},
    {"kv_lora_rank", "multi-latent attention is not implemented", NULL},
    {"exit_interval", NO_STOP, NULL},
    {"stop_after", NO_STOP, NULL},
    {"wandb",
     "tools/wandb_sync.py RUN --project NAME sends metrics to Weights & Biases, during the run or later",
     NULL},
};

/* The index of the missing feature of this name, or "section.name", or -1. */
static int missing_named(const char *name)
{
    for (size_t i = 0; i < sizeof missing_features / sizeof *missing_features; i++) {
        const char *key = missing_features[i].name;
        if (missing_features[i].only != NULL ? strcmp(name, key) == 0 : strncmp(name, key, strlen(key)) == 0)
            return (int)i;
    }
    return -1;
}

/* The index of the key of this name, or "section.name", or -1. */
static int foreign_named(const char *name)
{
    for (size_t i = 0; i < sizeof foreign_keys / sizeof *foreign_keys; i++)
        if (strcmp(name, foreign_keys[i][0]) == 0)
            return (int)i;
    return -1;
}

/* Finds the key in a table: with its section, else its last word in any, else by a section of this name that
 * is none of ours ("bf16.enabled"), if the last word is none of our keys. */
static int find_foreign(int (*named)(const char *name), const char *section, const char *name)
{
    char dotted[2 * RECIPE_KEY_CHARS];
    snprintf(dotted, sizeof dotted, "%s%s%s", section, *section != 0 ? "." : "", name);
    const char *last = strrchr(dotted, '.');
    int found = named(dotted);
    if (found < 0 && last != NULL)
        found = named(last + 1);
    if (found < 0 && *section == 0 && last != NULL && recipe_row_find_any_section(NULL, last + 1) < 0) {
        dotted[strcspn(dotted, ".")] = 0;
        found = named(dotted);
    }
    return found;
}

const char *recipe_only_value(const char *section, const char *name)
{
    const int i = find_foreign(missing_named, section, name);
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
    const int missing = find_foreign(missing_named, section, name);
    const int foreign = missing < 0 ? find_foreign(foreign_named, section, name) : -1;
    if (missing >= 0)
        text_add(hint, ": %s", missing_features[missing].why);
    else if (foreign >= 0)
        text_add(hint, "; use %s", foreign_keys[foreign][1]);
    return missing >= 0 || foreign >= 0;
}

const char *recipe_near_choice(const char *value, const char *const *names, size_t count)
{
    for (size_t p = 0; p < sizeof foreign_values / sizeof *foreign_values; p++)
        for (size_t i = 0; i < count && strcmp(value, foreign_values[p][0]) == 0; i++)
            if (strcmp(names[i], foreign_values[p][1]) == 0)
                return names[i];
    return nearest_name(value, names, count);
}
