// SPDX-License-Identifier: Apache-2.0
/* The keys of a step: how it is divided over ranks, and what it computes; for keys.h only. */

#define NOT_SEARCHED strcmp(r->pipeline.schedule, "auto") != 0, "pipeline.schedule", "only auto uses it"
#define NO_DECAY \
    r->optimizer.lr_decay_style == LR_CONSTANT, "optimizer.lr_decay_style", "the learning rate never decays"
#define NOT_WSD r->optimizer.lr_decay_style != LR_WSD, "optimizer.lr_decay_style", "only WSD uses it"
#define NOT_QUANTIZED                                                             \
    !linear_precision_quantizes(&r->layers.precision), "precision.matmul_format", \
        "no matrix multiplication is quantized"
#define NOT_DELAYED r->precision.scaling != SCALE_DELAYED, "precision.scaling", "only delayed uses it"
#define NOT_FP16    r->precision.params_dtype != F16, "precision.params_dtype", "only fp16 scales the loss"
#define FIXED_SCALE                                                                          \
    r->precision.params_dtype == F16 && r->precision.loss_scale > 0, "precision.loss_scale", \
        "only 0 (dynamic loss scaling) uses it"
#define MATMUL_FORMATS                                                                              \
    NAMED("none", MATMUL_FORMAT_NONE), NAMED("e4m3", MATMUL_E4M3), NAMED("e5m2", MATMUL_E5M2),      \
        NAMED("hybrid", MATMUL_HYBRID), NAMED("mxfp8", MATMUL_MXFP8), NAMED("nvfp4", MATMUL_NVFP4), \
        NAMED("ternary", MATMUL_TERNARY)

SECTION(parallel, SECTION_LAYOUT, "Parallel layout. No key of this section changes what is computed.",
        .short_for = "search")
BEGIN_FIELDS(recipe_parallel)
CHOICE_KEY(
    enum layout_search, parallel, search, "none",
    "`auto`, also written `parallel: auto`: a plan with `cluster.profile` chooses the layout of the "
    "shortest step that fits: tensor, pipeline and data parallelism, ZeRO, schedule, virtual stages, as "
    "far as these are not given.",
    .choices = CHOICES(NAMED("none", SEARCH_NONE), NAMED("auto", SEARCH_AUTO)))
KEY(parallel, tensor_parallel_size, INT, "1",
    "t, the tensor-parallel degree: shards attention heads, MLP columns and vocabulary rows.",
    BETWEEN(1, 65536), .aliases = "tp tensor_model_parallel_size")
KEY(parallel, pipeline_parallel_size, INT, "1",
    "p, the pipeline-parallel degree: divides the layers into p x virtual_stages stages.", BETWEEN(1, 65536),
    .aliases = "pp pipeline_model_parallel_size")
KEY(parallel, data_parallel_size, INT, NULL, "d, the data-parallel degree: divides the global batch.",
    BETWEEN(1, 65536), .derived = "ranks / (tp x pp); without a launcher, ranks of `cluster.nodes`, or 1",
    .aliases = "dp", .one_rank = "1")
ROW("parallel.sequence_parallel", BOOL, layers.sequence_parallel, "false",
    "Sequence parallelism: norms, dropout and the residual stream are sharded along the sequence over "
    "the tensor-parallel ranks.")
ROW("parallel.zero_stage", INT, data_parallel.zero_stage, "0",
    "ZeRO stage, sharding over data-parallel ranks: 1 optimizer state, 2 also gradients, 3 also "
    "weights. With 2 and 3, gradients are reduced after each microbatch, layer by layer.",
    BETWEEN(0, 3), .aliases = "zero")
KEY(parallel, rank_order, TEXT, "tp-cp-ep-dp-pp",
    "Order of the mesh axes from fastest to slowest: neighboring ranks differ in the first.")
ROW("parallel.overlap_grad_reduce", BOOL, data_parallel.overlap_grad_reduce, "true",
    "Start the reduction of a bucket when its last gradient is ready, overlapping the backward pass. "
    "`false`: reduce after the backward pass.")
ROW("parallel.overlap_param_gather", BOOL, data_parallel.overlap_param_gather, "false",
    "With zero_stage 3: all-gather the next layer's weights while a layer computes. Needs memory for "
    "two layers.")
UNUSED_IF(r->data_parallel.zero_stage < 3, "parallel.zero_stage", "only 3 gathers weights per layer")
ROW("parallel.tp_comm_overlap", BOOL, layers.tp_comm_overlap, "false",
    "With sequence_parallel: overlap all-gather and reduce-scatter with the matrix multiplications "
    "that consume or produce their data, in chunks of one rank's tokens.")
UNUSED_IF(!r->layers.sequence_parallel, "parallel.sequence_parallel",
          "it overlaps the communication of sequence parallelism")
ROW("parallel.nccl_ub", BOOL, data_parallel.nccl_ub, "false",
    "Register gradient buffers with NCCL (ncclCommRegister), which can then reduce in place. On GPUs, "
    "with zero_stage 0 and deterministic false.")
UNUSED_IF(!device->is_gpu, "cluster.device", "NCCL needs GPUs")
UNUSED_IF(r->data_parallel.zero_stage >= 1, "parallel.zero_stage",
          "from 1 on gradients are reduced through unregistered memory")
UNUSED_IF(r->deterministic && device->is_gpu, "deterministic", "NCCL then performs no reductions")
ROW("parallel.bucket_size_mb", REAL, data_parallel.bucket_size_mb, NULL,
    "Size of gradient buckets in MiB, with zero_stage 0 and 1. Results are bit-identical for any "
    "value.",
    BETWEEN(1e-4, 1e6),
    .derived = "as in Megatron-core: 160 (40 Mi gradients in fp32), or 4 x data_parallel_size if that "
               "is more",
    .one_rank = "auto")
UNUSED_IF(r->data_parallel.zero_stage >= 2, "parallel.zero_stage", "with 2 and 3 each layer is a bucket")
END_FIELDS

SECTION(pipeline, SECTION_LAYOUT, "Pipeline schedule and assignment of layers to stages.")
BEGIN_FIELDS(recipe_pipeline)
KEY(pipeline, schedule, WORD, "1f1b", "Pipeline schedule (docs/schedules.md).", .names = schedule_choice)
KEY(pipeline, virtual_stages, INT, NULL, "v, the number of virtual stages (model chunks) per rank.",
    BETWEEN(1, 1024),
    .derived = "from num_layers_per_virtual_pipeline_stage; else the schedule's own: 1, or 2 where it "
               "needs several",
    .aliases = "vp virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank",
    .one_rank = "1")
ROW("pipeline.num_layers_per_virtual_pipeline_stage", INT, pipeline.layers_per_stage, "0",
    "Layers per virtual stage, instead of virtual_stages: v = num_layers / (pipeline_parallel_size x "
    "this). 0: unset.",
    BETWEEN(0, 1e5))
KEY(pipeline, microbatch_group_size, INT, "0",
    "Microbatches that `interleaved` and `zb-h1` run on one virtual stage before the next; at least "
    "pipeline_parallel_size. 0: chosen by the schedule, about pipeline_parallel_size.",
    BETWEEN(0, 65536), .aliases = "microbatch_group_size_per_vp_stage")
KEY(pipeline, schedule_file, TEXT, "none",
    "CSV file with a custom schedule in PyTorch's notation, as `cuboid schedule NAME --csv` writes "
    "it: a line of actions per rank, such as `0F0,0F1,,0B0`. Ranks, microbatches and stages must "
    "match the recipe. Sets `schedule` to `file`.",
    .optional = true)
KEY(pipeline, layout, LAYERS, "[]",
    "Number of layers of each stage, in stage order: pipeline_parallel_size x virtual_stages numbers "
    "whose sum is num_layers; 0 is allowed. Empty: as even as possible; the first stages get the "
    "remainder, because the last one has the output head and the loss.",
    BETWEEN(0, 1e5))
KEY(pipeline, optimizer_post_validation, BOOL, "false",
    "Overlap steps: each stage updates its weights before it knows the global gradient norm, and "
    "rolls back if the gradients had to be clipped. Results are bit-identical. Needs a copy of "
    "weights and optimizer state on every stage but the last.",
    .aliases = "enable_optimizer_post_validation")
ROW("pipeline.auto_times", CHOICE, pipeline.search.times, NULL,
    "With `schedule: auto`: `plan` takes the times of each stage and of a message from a plan with "
    "`cluster.profile`, and what fits into the device as the memory limit, unless "
    "`auto_memory_limit` is set; `given` those of the next keys.",
    .derived = "plan with cluster.profile and none of the next four keys, else given",
    .choices = CHOICES(NAMED("given", TIMES_GIVEN), NAMED("plan", TIMES_PLAN)), .one_rank = "auto")
ROW("pipeline.auto_f", REAL, pipeline.search.f, "1",
    "With `schedule: auto`: time of a microbatch's forward pass through all virtual stages of a rank, "
    "in any unit.",
    UNITS)
UNUSED_IF(NOT_SEARCHED)
ROW("pipeline.auto_i", REAL, pipeline.search.i, "1",
    "With `schedule: auto`: time of the backward pass for the input, in the same unit.", UNITS)
UNUSED_IF(NOT_SEARCHED)
ROW("pipeline.auto_w", REAL, pipeline.search.w, "1",
    "With `schedule: auto`: time of the backward pass for the weights, in the same unit.", UNITS)
UNUSED_IF(NOT_SEARCHED)
ROW("pipeline.auto_comm", REAL, pipeline.search.comm, "0",
    "With `schedule: auto`: time of a message to another rank, in the same unit.", UNITS)
UNUSED_IF(NOT_SEARCHED)
ROW("pipeline.auto_memory_limit", REAL, pipeline.search.memory_limit, "0",
    "With `schedule: auto`: number of microbatches whose activations (all stages, from F to W) a rank "
    "may hold; `1f1b` holds pipeline_parallel_size. 0: no limit; of the shortest schedules, the one "
    "with the least memory.",
    BETWEEN(0, 1e9))
UNUSED_IF(NOT_SEARCHED)
FIELD(int layers_per_stage) // Megatron's way to set virtual_stages; 0: not set. Read virtual_stages instead.
FIELD(struct schedule_file_sizes file) // of schedule_file; zeros without one
FIELD(struct recipe_auto search)
FIELD(enum stage_partition partition)
END_FIELDS

SECTION(train, SECTION_RUN, "Batch sizes and steps.")
BEGIN_FIELDS(recipe_train)
KEY(train, micro_batch_size, COUNT, "1",
    "B, samples per microbatch. `auto`: that of the shortest step that fits, by a plan with "
    "`cluster.profile`.",
    .chosen = true, BETWEEN(1, 1e6), .aliases = "mbs")
KEY(train, global_batch_size, COUNT, NULL, "Samples per step, over all ranks.", BETWEEN(1, 1e8),
    .aliases = "gbs", .example = "32")
KEY(train, train_iters, COUNT, NULL, "Number of training steps. 0: save the initial weights and exit.",
    BETWEEN(0, 1e12), .aliases = "max_steps", .example = "1000")
KEY(train, eval_interval, COUNT, "0", "Steps between evaluations on the validation split; 0: never.", STEPS)
KEY(train, eval_iters, COUNT, "10", "Global batches per evaluation.", BETWEEN(1, 1e12))
END_FIELDS

SECTION(optimizer, SECTION_MATHEMATICS, "AdamW and the learning rate schedule.")
BEGIN_FIELDS(recipe_optimizer)
KEY(optimizer, lr, REAL, NULL, "Learning rate after warm-up.", POSITIVE, .example = "3e-4")
KEY(optimizer, min_lr, REAL, "0", "Learning rate at the end of the decay.", NOT_NEGATIVE)
UNUSED_IF(NO_DECAY)
CHOICE_KEY(enum lr_decay, optimizer, lr_decay_style, "cosine",
           "Shape of the decay from lr to min_lr. `WSD`: warm-up, stable, decay.",
           .choices = CHOICES(NAMED("constant", LR_CONSTANT), NAMED("linear", LR_LINEAR),
                              NAMED("cosine", LR_COSINE),
                              NAMED("inverse-square-root", LR_INVERSE_SQUARE_ROOT), NAMED("WSD", LR_WSD)))
KEY(optimizer, lr_warmup_iters, COUNT, "0", "Steps of linear warm-up from 0.", STEPS)
KEY(optimizer, lr_decay_iters, COUNT, NULL,
    "Step at which the learning rate reaches min_lr; with min_lr 0 that step, by default the last "
    "one, changes nothing. At least lr_warmup_iters; may be smaller or larger than train_iters. Step "
    "s of Megatron-LM uses the learning rate of step s - 1 here, so its warm-up begins with it.",
    BETWEEN(1, 1e12), .derived = "train_iters")
UNUSED_IF(NO_DECAY)
CHOICE_KEY(enum wsd_decay, optimizer, lr_wsd_decay_style, "exponential",
           "With `WSD`: shape of the decay phase.",
           .choices = CHOICES(NAMED("exponential", WSD_EXPONENTIAL), NAMED("linear", WSD_LINEAR),
                              NAMED("cosine", WSD_COSINE), NAMED("minus_sqrt", WSD_MINUS_SQUARE_ROOT)))
UNUSED_IF(NOT_WSD)
KEY(optimizer, lr_wsd_decay_iters, COUNT, "0",
    "With `WSD`: length of the decay phase, the last steps before lr_decay_iters.", STEPS)
UNUSED_IF(NOT_WSD)
KEY(optimizer, weight_decay, REAL, "0.01",
    "Decoupled weight decay of AdamW, multiplied by the learning rate: of matrices and embeddings, not "
    "of biases and norms.",
    NOT_NEGATIVE)
KEY(optimizer, adam_beta1, REAL, "0.9", "Decay rate of the first moment.", BETWEEN(0, 1), .example = "0.9",
    .below = true)
KEY(optimizer, adam_beta2, REAL, "0.999", "Decay rate of the second moment.", BETWEEN(0, 1),
    .example = "0.999", .below = true)
KEY(optimizer, adam_eps, REAL, "1e-8", "Epsilon added to the square root of the second moment.", POSITIVE,
    .example = "1e-8")
KEY(optimizer, clip_grad, REAL, "1",
    "Maximum global norm of the gradients; larger ones are clipped. 0: no clipping.", NOT_NEGATIVE)
END_FIELDS

SECTION(precision, SECTION_MATHEMATICS, "Data types and low-precision formats.")
BEGIN_FIELDS(recipe_precision)
CHOICE_KEY(enum dtype, precision, params_dtype, "fp32",
           "Data type of weights and activations in memory and in messages. With bf16 and fp16, sums, norms, "
           "softmax, loss, weight gradients and the optimizer's main weights stay fp32. fp16 uses loss "
           "scaling (docs/precision.md).",
           .choices = CHOICES(NAMED("fp32", F32), NAMED("bf16", BF16), NAMED("fp16", F16)))
CHOICE_KEY(enum dtype, precision, main_params_dtype, "fp32",
           "Data type of the main weights that the optimizer updates. `bf16`, with params_dtype bf16: no "
           "fp32 main weights; each update is computed in fp32 and rounded stochastically "
           "(docs/precision.md).",
           .choices = CHOICES(NAMED("fp32", F32), NAMED("bf16", BF16)))
ROW("precision.allow_tf32", BOOL, kernels.tf32, "false",
    "With fp32 on a GPU: round the operands of matrix multiplications to TF32 (fp32's range, 10 bits "
    "of fraction), with fp32 accumulation.")
KEY(precision, loss_scale, REAL, "0",
    "With fp16: static loss scale; powers of two are exact. 0: dynamic loss scaling.", LOSS_SCALES)
UNUSED_IF(NOT_FP16)
KEY(precision, initial_loss_scale, REAL, "4294967296", "Initial value of the dynamic loss scale.",
    SOME_LOSS_SCALE)
UNUSED_IF(NOT_FP16)
UNUSED_IF(FIXED_SCALE)
KEY(precision, min_loss_scale, REAL, "1", "Minimum of the dynamic loss scale.", SOME_LOSS_SCALE)
UNUSED_IF(NOT_FP16)
UNUSED_IF(FIXED_SCALE)
KEY(precision, loss_scale_window, COUNT, "1000",
    "Steps without an overflow before the dynamic loss scale is doubled.", BETWEEN(1, 1e12))
UNUSED_IF(NOT_FP16)
UNUSED_IF(FIXED_SCALE)
KEY(precision, hysteresis, COUNT, "2",
    "Overflows tolerated before the dynamic loss scale is halved: the scale is "
    "halved at the N-th overflow since the last increase and at each later one.",
    BETWEEN(1, 1e12))
UNUSED_IF(NOT_FP16)
UNUSED_IF(FIXED_SCALE)
CHOICE_KEY(enum matmul_format, precision, matmul_format, "none",
           "Low-precision format of the three matrix multiplications of each linear layer, simulated "
           "bit-exactly (docs/precision.md). Embedding, output head and attention core are not affected.",
           .choices = CHOICES(MATMUL_FORMATS), .aliases = "fp8_format")
CHOICE_KEY(int, precision, forward_format, "same", "The same for the forward matrix multiplication only.",
           .choices = CHOICES(NAMED("same", MATMUL_FORMAT_SAME), MATMUL_FORMATS))
CHOICE_KEY(int, precision, grad_input_format, "same", "The same for the gradient of the input (dgrad).",
           .choices = CHOICES(NAMED("same", MATMUL_FORMAT_SAME), MATMUL_FORMATS))
CHOICE_KEY(int, precision, grad_weight_format, "same", "The same for the gradient of the weights (wgrad).",
           .choices = CHOICES(NAMED("same", MATMUL_FORMAT_SAME), MATMUL_FORMATS))
CHOICE_KEY(enum recipe_scaling, precision, scaling, "auto",
           "Scaling of e4m3, e5m2 and hybrid: `tensorwise` by the current tensor, `delayed` by the amax "
           "history, `blockwise` per 128 elements. `auto`: tensorwise. mxfp8, nvfp4 and ternary have their "
           "own scales.",
           .choices = CHOICES(NAMED("auto", SCALE_AUTO), NAMED("tensorwise", SCALE_TENSORWISE),
                              NAMED("delayed", SCALE_DELAYED), NAMED("blockwise", SCALE_BLOCKWISE)),
           .aliases = "fp8_recipe")
UNUSED_IF(NOT_QUANTIZED)
ROW("precision.mxfp8_scale_rounding", CHOICE, layers.precision.mxfp8_scale_rounding, "up",
    "Rounding of mxfp8's scales to powers of two: `up`, so that no element saturates (2506.08027), or "
    "`down`, as in the OCP Microscaling specification, with which training can diverge.",
    .choices = CHOICES(NAMED("up", SCALE_ROUNDS_UP), NAMED("down", SCALE_ROUNDS_DOWN)))
UNUSED_IF(!quantizes_to(r, MATMUL_MXFP8), "precision.matmul_format", "only mxfp8 uses it")
KEY(precision, amax_history_len, COUNT, "1024", "With delayed scaling: length of the amax history in steps.",
    BETWEEN(1, 65536), .aliases = "fp8_amax_history_len")
UNUSED_IF(NOT_DELAYED)
CHOICE_KEY(enum amax_algorithm, precision, amax_compute_algo, "max",
           "With delayed scaling: compute the scale from the maximum of the history, or from the most recent "
           "step.",
           .choices = CHOICES(NAMED("max", AMAX_MAX), NAMED("most_recent", AMAX_MOST_RECENT)),
           .aliases = "fp8_amax_compute_algo")
UNUSED_IF(NOT_DELAYED)
KEY(precision, margin, COUNT, "0", "With delayed scaling: headroom of the scales, a factor of 2^margin.",
    BETWEEN(0, 32), .aliases = "fp8_margin")
UNUSED_IF(NOT_DELAYED)
KEY(precision, high_precision_layers, NAMES, "[]",
    "Linear layers that matmul_format does not affect: `layers.3`, `layers.-1` (the last), "
    "`layers.0.mlp.fc2`, or in every layer `attention`, `attention.qkv`, `attention.proj`, `mlp`, "
    "`mlp.fc1` (gate and up), `mlp.fc2`.")
UNUSED_IF(NOT_QUANTIZED)
ROW("precision.high_precision_first_layers", COUNT, layers.precision.high_first, "0",
    "Number of layers at the beginning that matmul_format does not affect.", BETWEEN(0, 1e5),
    .aliases = "num_layers_at_start_in_bf16")
UNUSED_IF(NOT_QUANTIZED)
ROW("precision.high_precision_last_layers", COUNT, layers.precision.high_last, "0",
    "Number of layers at the end that matmul_format does not affect.", BETWEEN(0, 1e5),
    .aliases = "num_layers_at_end_in_bf16")
UNUSED_IF(NOT_QUANTIZED)
END_FIELDS

SECTION(memory, SECTION_LAYOUT, "Activation recomputation and offloading.")
BEGIN_FIELDS(recipe_memory)
ROW("memory.recompute_granularity", CHOICE, layers.recompute.granularity, "none",
    "Activation recomputation: `full` recomputes whole layers in the backward pass, `selective` parts "
    "of every layer. Results are bit-identical (docs/memory.md). `auto`: that of the shortest step that "
    "fits, by a plan with `cluster.profile`.",
    .chosen = true,
    .choices = CHOICES(NAMED("none", RECOMPUTE_NONE), NAMED("selective", RECOMPUTE_SELECTIVE),
                       NAMED("full", RECOMPUTE_FULL)))
ROW("memory.recompute_method", CHOICE, layers.recompute.method, "uniform",
    "With full: `uniform` divides all layers of a stage into groups of recompute_num_layers and keeps "
    "only each group's input; `block` recomputes the first recompute_num_layers layers of each "
    "(virtual) stage one by one and keeps the activations of the others.",
    .choices = CHOICES(NAMED("uniform", RECOMPUTE_UNIFORM), NAMED("block", RECOMPUTE_BLOCK)))
UNUSED_IF(r->layers.recompute.granularity != RECOMPUTE_FULL, "memory.recompute_granularity",
          "only full uses it")
ROW("memory.recompute_num_layers", COUNT, layers.recompute.num_layers, "1",
    "With full: layers per group (uniform), or number of layers (block).", BETWEEN(1, 1e5))
UNUSED_IF(r->layers.recompute.granularity != RECOMPUTE_FULL, "memory.recompute_granularity",
          "only full uses it")
KEY(memory, recompute_modules, NAMES, "[core_attn]",
    "With selective: modules to recompute. `core_attn`: attention from q, k and v; `norm`: the output "
    "of both norms; `activation`: the output of the MLP's activation function.",
    .choices = CHOICES(NAMED("core_attn", RECOMPUTE_CORE_ATTENTION), NAMED("norm", RECOMPUTE_NORM),
                       NAMED("activation", RECOMPUTE_ACTIVATION), ALIAS("layernorm", RECOMPUTE_NORM)))
UNUSED_IF(r->layers.recompute.granularity != RECOMPUTE_SELECTIVE, "memory.recompute_granularity",
          "only selective uses it")
KEY(memory, offload_activations, BOOL, "false",
    "Offload activations to host memory between the forward and the backward pass; on a CPU, to a "
    "file in $TMPDIR (or /tmp). Results are bit-identical (docs/memory.md).")
KEY(memory, offload_optimizer, BOOL, "false",
    "Offload Adam's moments to host memory and stream them through the device during the update. "
    "Results are bit-identical.")
END_FIELDS

#undef NOT_SEARCHED
#undef NO_DECAY
#undef NOT_WSD
#undef NOT_QUANTIZED
#undef NOT_DELAYED
#undef NOT_FP16
#undef FIXED_SCALE
#undef MATMUL_FORMATS
