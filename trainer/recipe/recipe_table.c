// SPDX-License-Identifier: Apache-2.0
/* One row for each key of a recipe, in the order of the reference page.
 *
 * To add a key: add a field in the struct of the folder that reads it and a row here, and regenerate the page
 * with `cuboid recipe --reference > docs/recipe.md` (docs/internals/extending.md).
 * Key names are Megatron-LM's where it has one. */
#include "trainer/recipe/recipe_table.h"
#include "parallel/comm.h"
#include "schedules/schedule.h"
#include "trainer/recipe/recipe_choices.h"

#include <math.h>

/* The names of registries, for keys of type WORD: choice 0, 1, ...; NULL after the last. */
static const char *schedule_choice(size_t index)
{
    const struct schedule_about *about = schedule_about((int)index);
    if (about != NULL)
        return about->name;
    return schedule_about((int)index - 1) != NULL ? "file" : NULL; // "file" follows the last family
}

static const char *device_choice(size_t index)
{
    return device_at(index) != NULL ? device_at(index)->name : NULL;
}

static const char *planned_device_choice(size_t index)
{
    for (size_t i = 0; device_at(i) != NULL; i++)
        if (device_at(i)->can_be_planned && index-- == 0)
            return device_at(i)->name;
    return NULL;
}

static const char *transport_choice(size_t index)
{
    return index == 0 ? "auto" : transport_name(index - 1);
}

/* Key, type, field, default, help; then the rest of the row. */
#define ROW(key_, type_, field_, fallback_, help_, ...)                                \
    {                                                                                  \
        .key = (key_), .type = ROW_##type_, .offset = offsetof(struct recipe, field_), \
        .fallback = (fallback_), .help = help_, ##__VA_ARGS__                          \
    }
#define BETWEEN(from, to) .low = (from), .high = (to)
#define SHARE             BETWEEN(0, 1), .below = true, .example = "0.1"
#define POSITIVE          BETWEEN(0, INFINITY), .above = true, .below = true
#define NOT_NEGATIVE      BETWEEN(0, INFINITY), .below = true
#define LOSS_SCALES       BETWEEN(0, 1e18)
#define SOME_LOSS_SCALE   BETWEEN(1e-6, 1e18)
#define STEPS             BETWEEN(0, 1e12)
#define UNITS             BETWEEN(0, 1e12)

const struct recipe_row recipe_rows[] = {
    ROW("name", TEXT, name, NULL, "Name of the run; its folder is `runs/NAME`.",
        .derived = "the recipe's file name"),
    ROW("base", BASE, name, "none",
        "Recipe to merge this one over, key by key: keys given here replace those of the base. Relative "
        "to this file.",
        .optional = true),
    ROW("seed", COUNT, seed, "1234", "Seed of weights, dropout and data order.", BETWEEN(0, 9e15)),
    ROW("deterministic", BOOL, deterministic, "true",
        "Bit-identical reruns: no atomics, no choices by timing, sums across ranks in rank order. `false` "
        "lets NCCL reduce in the order of its topology; no effect on a CPU."),

#include "trainer/recipe/model/recipe_rows_model.h" // the section `model`

    ROW("parallel.search", CHOICE, parallel.search, "none",
        "`auto`, also written `parallel: auto`: a plan with `cluster.profile` chooses the layout of the "
        "shortest step that fits: tensor, pipeline and data parallelism, ZeRO, schedule, virtual stages, as "
        "far as these are not given.",
        .choices = searches),
    ROW("parallel.tensor_parallel_size", INT, parallel.tensor_parallel_size, "1",
        "t, the tensor-parallel degree: shards attention heads, MLP columns and vocabulary rows.",
        BETWEEN(1, 65536), .aliases = "tp tensor_model_parallel_size"),
    ROW("parallel.pipeline_parallel_size", INT, parallel.pipeline_parallel_size, "1",
        "p, the pipeline-parallel degree: divides the layers into p x virtual_stages stages.",
        BETWEEN(1, 65536), .aliases = "pp pipeline_model_parallel_size"),
    ROW("parallel.data_parallel_size", INT, parallel.data_parallel_size, NULL,
        "d, the data-parallel degree: divides the global batch.", BETWEEN(1, 65536),
        .derived = "ranks / (tp x pp); without a launcher, ranks of `cluster.nodes`, or 1", .aliases = "dp",
        .one_rank = "1"),
    ROW("parallel.sequence_parallel", BOOL, layers.sequence_parallel, "false",
        "Sequence parallelism: norms, dropout and the residual stream are sharded along the sequence over "
        "the tensor-parallel ranks."),
    ROW("parallel.zero_stage", INT, data_parallel.zero_stage, "0",
        "ZeRO stage, sharding over data-parallel ranks: 1 optimizer state, 2 also gradients, 3 also "
        "weights. With 2 and 3, gradients are reduced after each microbatch, layer by layer.",
        BETWEEN(0, 3), .aliases = "zero"),
    ROW("parallel.rank_order", TEXT, parallel.rank_order, "tp-cp-ep-dp-pp",
        "Order of the mesh axes from fastest to slowest: neighboring ranks differ in the first."),
    ROW("parallel.overlap_grad_reduce", BOOL, data_parallel.overlap_grad_reduce, "true",
        "Start the reduction of a bucket when its last gradient is ready, overlapping the backward pass. "
        "`false`: reduce after the backward pass."),
    ROW("parallel.overlap_param_gather", BOOL, data_parallel.overlap_param_gather, "false",
        "With zero_stage 3: all-gather the next layer's weights while a layer computes. Needs memory for "
        "two layers."),
    ROW("parallel.tp_comm_overlap", BOOL, layers.tp_comm_overlap, "false",
        "With sequence_parallel: overlap all-gather and reduce-scatter with the matrix multiplications "
        "that consume or produce their data, in chunks of one rank's tokens."),
    ROW("parallel.nccl_ub", BOOL, data_parallel.nccl_ub, "false",
        "Register gradient buffers with NCCL (ncclCommRegister), which can then reduce in place. On GPUs, "
        "with zero_stage 0 and deterministic false."),
    ROW("parallel.bucket_size_mb", REAL, data_parallel.bucket_size_mb, NULL,
        "Size of gradient buckets in MiB, with zero_stage 0 and 1. Results are bit-identical for any "
        "value.",
        BETWEEN(1e-4, 1e6),
        .derived = "as in Megatron-core: 160 (40 Mi gradients in fp32), or 4 x data_parallel_size if that "
                   "is more",
        .one_rank = "auto"),

    ROW("pipeline.schedule", WORD, pipeline.schedule, "1f1b", "Pipeline schedule (docs/schedules.md).",
        .names = schedule_choice),
    ROW("pipeline.virtual_stages", INT, pipeline.virtual_stages, NULL,
        "v, the number of virtual stages (model chunks) per rank.", BETWEEN(1, 1024),
        .derived = "from num_layers_per_virtual_pipeline_stage; else the schedule's own: 1, or 2 where it "
                   "needs several",
        .aliases = "vp virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank",
        .one_rank = "1"),
    ROW("pipeline.num_layers_per_virtual_pipeline_stage", INT, pipeline.layers_per_stage, "0",
        "Layers per virtual stage, instead of virtual_stages: v = num_layers / (pipeline_parallel_size x "
        "this). 0: unset.",
        BETWEEN(0, 1e5)),
    ROW("pipeline.microbatch_group_size", INT, pipeline.microbatch_group_size, "0",
        "Microbatches that `interleaved` and `zb-h1` run on one virtual stage before the next; at least "
        "pipeline_parallel_size. 0: chosen by the schedule, about pipeline_parallel_size.",
        BETWEEN(0, 65536), .aliases = "microbatch_group_size_per_vp_stage"),
    ROW("pipeline.schedule_file", TEXT, pipeline.schedule_file, "none",
        "CSV file with a custom schedule in PyTorch's notation, as `cuboid schedule NAME --csv` writes "
        "it: a line of actions per rank, such as `0F0,0F1,,0B0`. Ranks, microbatches and stages must "
        "match the recipe. Sets `schedule` to `file`.",
        .optional = true),
    ROW("pipeline.layout", LAYERS, pipeline.layout, "[]",
        "Number of layers of each stage, in stage order: pipeline_parallel_size x virtual_stages numbers "
        "whose sum is num_layers; 0 is allowed. Empty: as even as possible; the first stages get the "
        "remainder, because the last one has the output head and the loss.",
        BETWEEN(0, 1e5)),
    ROW("pipeline.optimizer_post_validation", BOOL, pipeline.optimizer_post_validation, "false",
        "Overlap steps: each stage updates its weights before it knows the global gradient norm, and "
        "rolls back if the gradients had to be clipped. Results are bit-identical. Needs a copy of "
        "weights and optimizer state on every stage but the last.",
        .aliases = "enable_optimizer_post_validation"),
    ROW("pipeline.auto_times", CHOICE, pipeline.search.times, NULL,
        "With `schedule: auto`: `plan` takes the times of each stage and of a message from a plan with "
        "`cluster.profile`, and what fits into the device as the memory limit, unless "
        "`auto_memory_limit` is set; `given` those of the next keys.",
        .derived = "plan with cluster.profile and none of the next four keys, else given",
        .choices = auto_times, .one_rank = "auto"),
    ROW("pipeline.auto_f", REAL, pipeline.search.f, "1",
        "With `schedule: auto`: time of a microbatch's forward pass through all virtual stages of a rank, "
        "in any unit.",
        UNITS),
    ROW("pipeline.auto_i", REAL, pipeline.search.i, "1",
        "With `schedule: auto`: time of the backward pass for the input, in the same unit.", UNITS),
    ROW("pipeline.auto_w", REAL, pipeline.search.w, "1",
        "With `schedule: auto`: time of the backward pass for the weights, in the same unit.", UNITS),
    ROW("pipeline.auto_comm", REAL, pipeline.search.comm, "0",
        "With `schedule: auto`: time of a message to another rank, in the same unit.", UNITS),
    ROW("pipeline.auto_memory_limit", REAL, pipeline.search.memory_limit, "0",
        "With `schedule: auto`: number of microbatches whose activations (all stages, from F to W) a rank "
        "may hold; `1f1b` holds pipeline_parallel_size. 0: no limit; of the shortest schedules, the one "
        "with the least memory.",
        BETWEEN(0, 1e9)),

    ROW("train.micro_batch_size", COUNT, train.micro_batch_size, "1",
        "B, samples per microbatch. `auto`: that of the shortest step that fits, by a plan with "
        "`cluster.profile`.",
        .chosen = true, BETWEEN(1, 1e6), .aliases = "mbs"),
    ROW("train.global_batch_size", COUNT, train.global_batch_size, NULL, "Samples per step, over all ranks.",
        BETWEEN(1, 1e8), .aliases = "gbs", .example = "32"),
    ROW("train.train_iters", COUNT, train.train_iters, NULL,
        "Number of training steps. 0: save the initial weights and exit.", BETWEEN(0, 1e12),
        .aliases = "max_steps", .example = "1000"),
    ROW("train.eval_interval", COUNT, train.eval_interval, "0",
        "Steps between evaluations on the validation split; 0: never.", STEPS),
    ROW("train.eval_iters", COUNT, train.eval_iters, "10", "Global batches per evaluation.",
        BETWEEN(1, 1e12)),

    ROW("optimizer.lr", REAL, optimizer.lr, NULL, "Learning rate after warm-up.", POSITIVE,
        .example = "3e-4"),
    ROW("optimizer.min_lr", REAL, optimizer.min_lr, "0", "Learning rate at the end of the decay.",
        NOT_NEGATIVE),
    ROW("optimizer.lr_decay_style", CHOICE, optimizer.lr_decay_style, "cosine",
        "Shape of the decay from lr to min_lr. `WSD`: warm-up, stable, decay.", .choices = decays),
    ROW("optimizer.lr_warmup_iters", COUNT, optimizer.lr_warmup_iters, "0", "Steps of linear warm-up from 0.",
        STEPS),
    ROW("optimizer.lr_decay_iters", COUNT, optimizer.lr_decay_iters, NULL,
        "Step at which the learning rate reaches min_lr; with min_lr 0 that step, by default the last "
        "one, changes nothing. At least lr_warmup_iters; may be smaller or larger than train_iters. Step "
        "s of Megatron-LM uses the learning rate of step s - 1 here, so its warm-up begins with it.",
        BETWEEN(1, 1e12), .derived = "train_iters"),
    ROW("optimizer.lr_wsd_decay_style", CHOICE, optimizer.lr_wsd_decay_style, "exponential",
        "With `WSD`: shape of the decay phase.", .choices = wsd_decays),
    ROW("optimizer.lr_wsd_decay_iters", COUNT, optimizer.lr_wsd_decay_iters, "0",
        "With `WSD`: length of the decay phase, the last steps before lr_decay_iters.", STEPS),
    ROW("optimizer.weight_decay", REAL, optimizer.weight_decay, "0.01",
        "Decoupled weight decay of AdamW, multiplied by the learning rate: of matrices and embeddings, not "
        "of biases and norms.",
        NOT_NEGATIVE),
    ROW("optimizer.adam_beta1", REAL, optimizer.adam_beta1, "0.9", "Decay rate of the first moment.",
        BETWEEN(0, 1), .example = "0.9", .below = true),
    ROW("optimizer.adam_beta2", REAL, optimizer.adam_beta2, "0.999", "Decay rate of the second moment.",
        BETWEEN(0, 1), .example = "0.999", .below = true),
    ROW("optimizer.adam_eps", REAL, optimizer.adam_eps, "1e-8",
        "Epsilon added to the square root of the second moment.", POSITIVE, .example = "1e-8"),
    ROW("optimizer.clip_grad", REAL, optimizer.clip_grad, "1",
        "Maximum global norm of the gradients; larger ones are clipped. 0: no clipping.", NOT_NEGATIVE),

    ROW("precision.params_dtype", CHOICE, precision.params_dtype, "fp32",
        "Data type of weights and activations in memory and in messages. With bf16 and fp16, sums, norms, "
        "softmax, loss, weight gradients and the optimizer's main weights stay fp32. fp16 uses loss "
        "scaling (docs/precision.md).",
        .choices = working_dtypes),
    ROW("precision.main_params_dtype", CHOICE, precision.main_params_dtype, "fp32",
        "Data type of the main weights that the optimizer updates. `bf16`, with params_dtype bf16: no "
        "fp32 main weights; each update is computed in fp32 and rounded stochastically "
        "(docs/precision.md).",
        .choices = main_dtypes),
    ROW("precision.allow_tf32", BOOL, kernels.tf32, "false",
        "With fp32 on a GPU: round the operands of matrix multiplications to TF32 (fp32's range, 10 bits "
        "of fraction), with fp32 accumulation."),
    ROW("precision.loss_scale", REAL, precision.loss_scale, "0",
        "With fp16: static loss scale; powers of two are exact. 0: dynamic loss scaling.", LOSS_SCALES),
    ROW("precision.initial_loss_scale", REAL, precision.initial_loss_scale, "4294967296",
        "Initial value of the dynamic loss scale.", SOME_LOSS_SCALE),
    ROW("precision.min_loss_scale", REAL, precision.min_loss_scale, "1", "Minimum of the dynamic loss scale.",
        SOME_LOSS_SCALE),
    ROW("precision.loss_scale_window", COUNT, precision.loss_scale_window, "1000",
        "Steps without an overflow before the dynamic loss scale is doubled.", BETWEEN(1, 1e12)),
    ROW("precision.hysteresis", COUNT, precision.hysteresis, "2",
        "Overflows tolerated before the dynamic loss scale is halved: the scale is "
        "halved at the N-th overflow since the last increase and at each later one.",
        BETWEEN(1, 1e12)),
    ROW("precision.matmul_format", CHOICE, precision.matmul_format, "none",
        "Low-precision format of the three matrix multiplications of each linear layer, simulated "
        "bit-exactly (docs/precision.md). Embedding, output head and attention core are not affected.",
        .choices = matmul_formats, .aliases = "fp8_format"),
    ROW("precision.forward_format", CHOICE, precision.forward_format, "same",
        "The same for the forward matrix multiplication only.", .choices = matmul_formats_or_same),
    ROW("precision.grad_input_format", CHOICE, precision.grad_input_format, "same",
        "The same for the gradient of the input (dgrad).", .choices = matmul_formats_or_same),
    ROW("precision.grad_weight_format", CHOICE, precision.grad_weight_format, "same",
        "The same for the gradient of the weights (wgrad).", .choices = matmul_formats_or_same),
    ROW("precision.scaling", CHOICE, precision.scaling, "auto",
        "Scaling of e4m3, e5m2 and hybrid: `tensorwise` by the current tensor, `delayed` by the amax "
        "history, `blockwise` per 128 elements. `auto`: tensorwise. mxfp8, nvfp4 and ternary have their "
        "own scales.",
        .choices = scalings, .aliases = "fp8_recipe"),
    ROW("precision.mxfp8_scale_rounding", CHOICE, layers.precision.mxfp8_scale_rounding, "up",
        "Rounding of mxfp8's scales to powers of two: `up`, so that no element saturates (2506.08027), or "
        "`down`, as in the OCP Microscaling specification, with which training can diverge.",
        .choices = scale_roundings),
    ROW("precision.amax_history_len", COUNT, precision.amax_history_len, "1024",
        "With delayed scaling: length of the amax history in steps.", BETWEEN(1, 65536),
        .aliases = "fp8_amax_history_len"),
    ROW("precision.amax_compute_algo", CHOICE, precision.amax_compute_algo, "max",
        "With delayed scaling: compute the scale from the maximum of the history, or from the most recent "
        "step.",
        .choices = amax_algorithms, .aliases = "fp8_amax_compute_algo"),
    ROW("precision.margin", COUNT, precision.margin, "0",
        "With delayed scaling: headroom of the scales, a factor of 2^margin.", BETWEEN(0, 32),
        .aliases = "fp8_margin"),
    ROW("precision.high_precision_layers", NAMES, precision.high_precision_layers, "[]",
        "Linear layers that matmul_format does not affect: `layers.3`, `layers.-1` (the last), "
        "`layers.0.mlp.fc2`, or in every layer `attention`, `attention.qkv`, `attention.proj`, `mlp`, "
        "`mlp.fc1` (gate and up), `mlp.fc2`."),
    ROW("precision.high_precision_first_layers", COUNT, layers.precision.high_first, "0",
        "Number of layers at the beginning that matmul_format does not affect.", BETWEEN(0, 1e5),
        .aliases = "num_layers_at_start_in_bf16"),
    ROW("precision.high_precision_last_layers", COUNT, layers.precision.high_last, "0",
        "Number of layers at the end that matmul_format does not affect.", BETWEEN(0, 1e5),
        .aliases = "num_layers_at_end_in_bf16"),

    ROW("memory.recompute_granularity", CHOICE, layers.recompute.granularity, "none",
        "Activation recomputation: `full` recomputes whole layers in the backward pass, `selective` parts "
        "of every layer. Results are bit-identical (docs/memory.md). `auto`: that of the shortest step that "
        "fits, by a plan with `cluster.profile`.",
        .chosen = true, .choices = granularities),
    ROW("memory.recompute_method", CHOICE, layers.recompute.method, "uniform",
        "With full: `uniform` divides all layers of a stage into groups of recompute_num_layers and keeps "
        "only each group's input; `block` recomputes the first recompute_num_layers layers of each "
        "(virtual) stage one by one and keeps the activations of the others.",
        .choices = methods),
    ROW("memory.recompute_num_layers", COUNT, layers.recompute.num_layers, "1",
        "With full: layers per group (uniform), or number of layers (block).", BETWEEN(1, 1e5)),
    ROW("memory.recompute_modules", NAMES, memory.recompute_modules, "[core_attn]",
        "With selective: modules to recompute. `core_attn`: attention from q, k and v; `norm`: the output "
        "of both norms; `activation`: the output of the MLP's activation function.",
        .choices = modules),
    ROW("memory.offload_activations", BOOL, memory.offload_activations, "false",
        "Offload activations to host memory between the forward and the backward pass; on a CPU, to a "
        "file in $TMPDIR (or /tmp). Results are bit-identical (docs/memory.md)."),
    ROW("memory.offload_optimizer", BOOL, memory.offload_optimizer, "false",
        "Offload Adam's moments to host memory and stream them through the device during the update. "
        "Results are bit-identical."),

    ROW("data.train", SOURCES, data.train, NULL,
        "Prefix of the training dataset (PREFIX.bin and PREFIX.idx), or a list of `{path, weight}` whose "
        "weights are the sources' shares of the samples.",
        .example = "data/quickstart"),
    ROW("data.mock_data", BOOL, data.mock_data, "false",
        "Train and validate on random tokens, without any dataset: `train` is then not required. A token is "
        "a function of the seed, the sample and its position, so it is the same for every layout."),
    ROW("data.valid", SOURCES, data.valid, "[]",
        "The same for validation. Empty: the second part of `split`."),
    ROW("data.split", SPLIT, data.split, NULL,
        "Proportions of documents for training, validation and test; missing ones are 0.", NOT_NEGATIVE,
        .derived = "969, 30, 1; with data.valid 1, 0, 0"),
    ROW("data.reset_attention_mask", BOOL, data.reset_attention_mask, "false",
        "Restrict attention to the token's own document."),
    ROW("data.reset_position_ids", BOOL, data.reset_position_ids, "false",
        "Restart positions at each document."),
    ROW("data.eod_mask_loss", BOOL, data.eod_mask_loss, "false",
        "Mask the loss of the token after each end of document."),
    ROW("data.loss_mask", BOOL, data.loss_mask, "false",
        "Count only the tokens in the loss that the mask of each source (PREFIX.mask) selects, such as the "
        "answers of conversations. The loss is the mean over the counted tokens of the global batch "
        "(docs/finetuning.md)."),
    ROW("data.pack_documents", BOOL, data.pack_documents, "false",
        "Fill each sample with whole documents, then padding, instead of cutting a stream of documents every "
        "seq_length tokens. The first token of a document never counts in the loss."),
    ROW("data.truncate_documents", BOOL, data.truncate_documents, "false",
        "With pack_documents, use only the first seq_length tokens of a longer document. `false`: refuse "
        "it."),
    ROW("data.strict", BOOL, data.strict, "false",
        "Refuse to resume from a checkpoint whose datasets differ from this run's in size, index or "
        "a sample of 64 blocks of each, or if samples would be skipped or repeated because their "
        "borders change, such as with another seq_length. `false`: warn. Another blend is no such "
        "change: each source continues after the samples that it gave."),

    ROW("tokenizer.tokenizer_type", CHOICE, tokenizer.tokenizer_type, "byte",
        "`byte`: 257 ids, the bytes and 256 for the end of a document. `GPT2BPE`: 50257 ids, or those "
        "of its files. Others: those of their file. `none`: the data is already tokenized, and vocab_size "
        "is required (docs/tokenizers.md).",
        .choices = tokenizers),
    ROW("tokenizer.vocab_file", TEXT, tokenizer.vocab_file, "none",
        "`vocab.json` of GPT2BPE. Required to tokenize or detokenize text.", .optional = true),
    ROW("tokenizer.merge_file", TEXT, tokenizer.merge_file, "none", "`merges.txt` of GPT2BPE.",
        .aliases = "merges_file", .optional = true),
    ROW("tokenizer.tokenizer_model", TEXT, tokenizer.tokenizer_model, "none",
        "`tokenizer.json` or its folder; `tokenizer.model`.", .optional = true),

    ROW("checkpoint.save", TEXT, checkpoint.save, NULL, "Folder for checkpoints; `none`: do not save.",
        .derived = "RUN_DIR/checkpoints", .optional = true),
    ROW("checkpoint.load", TEXT, checkpoint.load, "auto",
        "`auto`: resume from the newest valid checkpoint in `save`, if there is one. `none`: start from "
        "scratch. A folder: start from its newest checkpoint, which must exist; later resume from newer "
        "ones in `save`.",
        .optional = true),
    ROW("checkpoint.save_interval", COUNT, checkpoint.save_interval, "0",
        "Steps between checkpoints; 0: save by `save_minutes` only, and at the end of the run.", STEPS),
    ROW("checkpoint.save_minutes", REAL, checkpoint.save_minutes, "30",
        "Minutes between checkpoints, since the last one or the start, by rank 0's clock; 0: never.",
        NOT_NEGATIVE),
    ROW("checkpoint.keep_last", COUNT, checkpoint.keep_last, "2",
        "Number of complete checkpoints to keep; older ones are removed. 0: keep all.", BETWEEN(0, 1e6)),
    ROW("checkpoint.save_retain_interval", COUNT, checkpoint.save_retain_interval, "0",
        "`keep_last` removes no checkpoint whose step is a multiple of this; 0: off.", STEPS),
    ROW("checkpoint.keep_best", BOOL, checkpoint.keep_best, "false",
        "Save after each evaluation with a new lowest validation loss, and keep this checkpoint besides "
        "those of `keep_last`; the link `best` in `save` leads to it."),
    ROW("checkpoint.save_optim", BOOL, checkpoint.save_optim, "true",
        "Save the optimizer's moments; `false`: half or a third of the size, but training cannot resume "
        "exactly."),
    ROW("checkpoint.load_optim", BOOL, checkpoint.load_optim, "true",
        "Load the optimizer's moments; `false`: they start at zero, at the step of the checkpoint."),
    ROW("checkpoint.ckpt_step", COUNT, checkpoint.ckpt_step, "0",
        "Step of the checkpoint to start from, where `load` is a folder of several; 0: the newest.", STEPS),
    ROW("checkpoint.finetune", BOOL, checkpoint.finetune, "false",
        "Use only the weights of the checkpoint in `load`: start at step 0 and at the first sample, with "
        "moments of zero. Checkpoints of the run itself are resumed as usual."),
    ROW("checkpoint.async_save", BOOL, checkpoint.async_save, "false",
        "Copy the state to host memory (`staging_mb`) and write it in the background, while training "
        "continues. The last checkpoint of a run is not in the background."),
    ROW("checkpoint.staging_mb", COUNT, checkpoint.staging_mb, "0",
        "MiB of host memory of each rank for the copy of `async_save`; what does not fit is written before "
        "training continues. 0: as much as its file needs.",
        BETWEEN(0, 1e9)),
    ROW("checkpoint.non_persistent_save_interval", COUNT, checkpoint.non_persistent_save_interval, "0",
        "Steps between checkpoints in the memory of the nodes (`memory_dir`), which survive processes that "
        "fail and, through copies, lost nodes; 0: none.",
        STEPS),
    ROW("checkpoint.memory_dir", TEXT, checkpoint.memory_dir, "none",
        "Folder on a tmpfs of each node, such as /dev/shm/NAME, for checkpoints in memory; `none`: none. "
        "`load: auto` resumes from there if they are newer than those in `save`.",
        .optional = true),
    ROW("checkpoint.memory_copies", COUNT, checkpoint.memory_copies, "2",
        "Number of nodes that hold each shard in memory, including its owner.", BETWEEN(1, 16)),

    ROW("logging.run_dir", TEXT, logging.run_dir, NULL,
        "Folder of the run: resolved recipe, metrics.jsonl, checkpoints.", .derived = "runs/NAME"),
    ROW("logging.log_interval", COUNT, logging.log_interval, "10",
        "Steps between log lines on the terminal. metrics.jsonl has every step.", BETWEEN(1, 1e12)),
    ROW("logging.peak_flops", REAL, logging.peak_flops, NULL,
        "Peak FLOP/s of one rank's device, for mfu (full attention) and mfu_causal (causal half) in "
        "metrics.jsonl and the summary; 0: unknown.",
        NOT_NEGATIVE, .derived = "the peak of `cluster.profile` for `precision.params_dtype`; 0 without one"),

    ROW("profile.timeline", BOOL, profile.timeline, "false",
        "Write each rank's timeline next to the simulated one into the run's folder: timeline-step-N.json "
        "for ui.perfetto.dev and timeline-step-N.svg, with messages, copies and the optimizer."),
    ROW("profile.profile_step_start", COUNT, profile.profile_step_start, "2", "First step to profile.",
        BETWEEN(1, 1e12)),
    ROW("profile.profile_step_end", COUNT, profile.profile_step_end, "0",
        "Last step to profile; 0: only the first.", STEPS),

    ROW("resilience.check_for_nan_in_loss_and_grad", BOOL, resilience.check_for_nan_in_loss_and_grad, "true",
        "Stop at the first NaN or infinity in a loss or gradient, and report the step, rank and "
        "parameter."),
    ROW("resilience.heartbeat_timeout_seconds", REAL, resilience.heartbeat_timeout_seconds, NULL,
        "If a rank that the others wait for makes no progress for this long, report it and end the job "
        "(docs/hangs.md). Must exceed the longest single action. 0: off.",
        NOT_NEGATIVE,
        .derived = "under a launcher 60, or ten times the longest step, save or evaluation so far; else 0"),
    ROW("resilience.exit_duration_in_mins", REAL, resilience.exit_duration_in_mins, "0",
        "Minutes after which the run finishes its step, saves a checkpoint and exits with status 75, by rank "
        "0's clock; 0: never.",
        NOT_NEGATIVE),
    ROW("resilience.save_signal", NAMES, resilience.save_signal, "[]",
        "Signals on which the run saves a checkpoint after its step, and resumes.", .choices = signals),
    ROW("resilience.elastic", BOOL, resilience.elastic, "false",
        "With `train --restarts` and `--launch`: if nodes are missing, train on the others, with the largest "
        "`parallel.data_parallel_size` that keeps `train.global_batch_size` (docs/slurm.md)."),
    ROW("resilience.exit_signal", NAMES, resilience.exit_signal, "[SIGTERM, SIGINT]",
        "Signals on which the run finishes its step, saves a checkpoint and exits with status 75; before "
        "the first step it exits at once. A second SIGINT exits at once. mpirun forwards SIGUSR1, but "
        "follows SIGTERM with SIGKILL.",
        .choices = signals),

    ROW("cluster.device", WORD, cluster.device, "cpu",
        "`cpu`; `cuda`: one NVIDIA GPU per rank (docs/cuda.md); `strict`: a CPU with adversarial "
        "asynchrony that exposes missing waits; `dry`: computes nothing and reports memory.",
        .names = device_choice),
    ROW("cluster.dry_device", WORD, cluster.dry_device, "cpu",
        "Device whose kernels' memory `cluster.device: dry` reports; `cuda` if the command line overrides "
        "a file's `cluster.device: cuda` with dry.",
        .names = planned_device_choice),
    ROW("cluster.transport", WORD, cluster.transport, "auto",
        "`local`: ranks are threads of one process. `mpi`: processes. `nccl`: either, with one GPU each. "
        "`auto`: nccl between GPUs, else mpi under a launcher, else local.",
        .names = transport_choice),
    ROW("cluster.ranks_per_gpu", INT, cluster.ranks_per_gpu, "1",
        "Number of ranks that share a GPU, to test a large layout on a small machine; they must be "
        "processes (mpirun). Slow: NCCL communicates over loopback.",
        BETWEEN(1, 64)),
    ROW("cluster.matmul_algorithms", TEXT, kernels.matmul_algorithms, "none",
        "On a GPU: file of the fastest cuBLASLt algorithm per shape, timed at the first use; entries "
        "never change. Its folder must exist; `auto` creates cuboid/matmul-algorithms in $XDG_CACHE_HOME "
        "or ~/.cache. `none`: cuBLASLt's heuristic.",
        .optional = true),
    ROW("cluster.matmul_epilogues", CHOICE, kernels.epilogues, "apart",
        "On a GPU: fuse `gelu_tanh`, its gradient and bias gradients into the preceding matrix "
        "multiplication (cuBLASLt epilogues). `apart`: never. `fused`: where possible. `auto`: where "
        "faster, timed once per shape, with `matmul_algorithms` or `deterministic: false`; otherwise "
        "`apart`.",
        .choices = epilogues),
    ROW("cluster.cuda_graphs", BOOL, cluster.cuda_graphs, "false",
        "On a GPU: from the third step on, replay passes without communication as CUDA graphs."),
    ROW("cluster.profile", TEXT, cluster.profile, "none",
        "Cluster profile for predictions: the name of a shipped one (`cuboid profile --list`), or the path "
        "of a file, with a slash or ending in .yaml (docs/planning.md).",
        .optional = true),
    ROW("cluster.memory_headroom", REAL, cluster.memory_headroom, "0.05",
        "Fraction of a device's memory that a layout chosen by a plan (auto, --best, sweeps, suggested "
        "changes) leaves free. A layout that is given may use all.",
        BETWEEN(0, 0.99)),
    ROW("cluster.nodes", INT, cluster.nodes, "0",
        "Number of nodes; 0: unset. If nodes and gpus_per_node are set, nodes x gpus_per_node x "
        "ranks_per_gpu must be the number of ranks.",
        BETWEEN(0, 1e6), .one_rank = "0"),
    ROW("cluster.gpus_per_node", INT, cluster.gpus_per_node, "0",
        "Devices per node; 0: unset. At most node.devices of the profile.", BETWEEN(0, 1024),
        .one_rank = "0"),
    ROW("cluster.threads_per_rank", INT, cluster.threads_per_rank, "0",
        "CPU threads per rank. 0: the CPUs available to the job on this machine (affinity mask, cgroup "
        "CPU quota) divided by its ranks there. Results are bit-identical.",
        BETWEEN(0, 4096)),
    ROW("cluster.time", TEXT, cluster.time, "none",
        "Time limit of a job of `cuboid submit` in Slurm's notation: minutes, H:MM:SS or D-HH:MM:SS. `none`: "
        "that of the partition.",
        .optional = true),
    ROW("cluster.partition", TEXT, cluster.partition, "none",
        "Partition of a job of `cuboid submit`. `none`: Slurm's default.", .optional = true),
    ROW("cluster.account", TEXT, cluster.account, "none",
        "Account of a job of `cuboid submit`. `none`: Slurm's default.", .optional = true),
    ROW("cluster.sbatch", NAMES, cluster.sbatch, "[]",
        "Further lines of the batch script of `cuboid submit`: options of sbatch (`--exclusive`), and "
        "commands to run before the training (`module load cuda`)."),
};

const int recipe_row_count = sizeof recipe_rows / sizeof *recipe_rows;
_Static_assert(sizeof recipe_rows / sizeof *recipe_rows + RECIPE_ADDED_ROWS <= RECIPE_MAX_ROWS,
               "raise RECIPE_MAX_ROWS");
