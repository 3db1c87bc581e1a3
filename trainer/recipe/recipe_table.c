// SPDX-License-Identifier: Apache-2.0
/* What a recipe can say: one row for each key, in the order of the reference page.
 *
 * To add a key: a field in recipe.h, a row here, RECIPE_ROWS one up, and the page again with
 * `cuboid recipe --reference > docs/recipe.md`. To build a key that was refused: take `.unbuilt` away,
 * from the row or from the choice. Key names are Megatron-LM's where it has one. */
#include "trainer/recipe/recipe_table.h"

#include <math.h>
#include <signal.h>

/* A name and its value; LATER: refused for now; ALSO: another program's word. */
#define IS(name_, value_)                  \
    {                                      \
        .name = (name_), .value = (value_) \
    }
#define LATER(name_, value_)                                \
    {                                                       \
        .name = (name_), .value = (value_), .unbuilt = true \
    }
#define ALSO(name_, value_)                               \
    {                                                     \
        .name = (name_), .value = (value_), .alias = true \
    }

static const struct choice schedules[] = {IS("gpipe", 0),     IS("looped-bfs", 0),
                                          IS("1f1b", 0),      IS("interleaved", 0),
                                          IS("zb-h1", 0),     IS("zb-h2", 0),
                                          IS("zb-v", 0),      IS("v-half", 0),
                                          IS("v-min", 0),     IS("dualpipe", 0),
                                          IS("dualpipev", 0), IS("file", 0),
                                          IS("auto", 0),      {0}};
static const struct choice assumptions[] = {IS("program", ASSUME_PROGRAM), IS("papers", ASSUME_PAPERS), {0}};
static const struct choice dry_devices[] = {IS("cpu", 0), IS("cuda", 0), {0}};
static const struct choice devices[] = {IS("cpu", 0), IS("strict", 0), IS("dry", 0), IS("cuda", 0), {0}};
static const struct choice transports[] = {IS("auto", 0), IS("local", 0), IS("mpi", 0), IS("nccl", 0), {0}};
static const struct choice positions[] = {IS("learned_absolute", LEARNED_ABSOLUTE), IS("rope", ROPE), {0}};
static const struct choice normalizations[] = {IS("LayerNorm", LAYER_NORM), IS("RMSNorm", RMS_NORM), {0}};
static const struct choice activations[] = {IS("gelu", GELU),
                                            IS("gelu_tanh", GELU_TANH),
                                            IS("swiglu", SWIGLU),
                                            ALSO("gelu_new", GELU_TANH),
                                            ALSO("gelu_pytorch_tanh", GELU_TANH),
                                            ALSO("silu", SWIGLU),
                                            {0}};
static const struct choice epilogues[] = {
    IS("apart", EPILOGUES_APART), IS("fused", EPILOGUES_FUSED), IS("auto", EPILOGUES_AUTO), {0}};
static const struct choice backends[] = {IS("auto", ATTENTION_AUTO),     IS("own", ATTENTION_OWN),
                                         IS("cudnn", ATTENTION_CUDNN),   ALSO("flash", ATTENTION_OWN),
                                         ALSO("fused", ATTENTION_CUDNN), {0}};
static const struct choice context_methods[] = {IS("ring", CONTEXT_RING),
                                                IS("all_gather", CONTEXT_ALL_GATHER),
                                                IS("all_to_all", CONTEXT_ALL_TO_ALL),
                                                {0}};
static const struct choice dtypes[] = {
    IS("fp32", RECIPE_FP32), LATER("bf16", RECIPE_BF16), LATER("fp16", RECIPE_FP16), {0}};
static const struct choice main_dtypes[] = {
    IS("fp32", RECIPE_FP32), IS("bf16", RECIPE_BF16), LATER("fp16", RECIPE_FP16), {0}};
static const struct choice working_dtypes[] = {
    IS("fp32", RECIPE_FP32), IS("bf16", RECIPE_BF16), IS("fp16", RECIPE_FP16), {0}};
static const struct choice optimizers[] = {IS("adamw", OPTIMIZER_ADAMW), {0}};
static const struct choice decays[] = {
    IS("constant", LR_CONSTANT), IS("linear", LR_LINEAR),
    IS("cosine", LR_COSINE),     IS("inverse-square-root", LR_INVERSE_SQUARE_ROOT),
    IS("WSD", LR_WSD),           {0}};
static const struct choice wsd_decays[] = {IS("exponential", WSD_EXPONENTIAL),
                                           IS("linear", WSD_LINEAR),
                                           IS("cosine", WSD_COSINE),
                                           IS("minus_sqrt", WSD_MINUS_SQUARE_ROOT),
                                           {0}};
static const struct choice granularities[] = {
    IS("none", RECOMPUTE_NONE), IS("selective", RECOMPUTE_SELECTIVE), IS("full", RECOMPUTE_FULL), {0}};
static const struct choice methods[] = {IS("uniform", RECOMPUTE_UNIFORM), IS("block", RECOMPUTE_BLOCK), {0}};
static const struct choice modules[] = {IS("core_attn", RECOMPUTE_CORE_ATTENTION),
                                        IS("norm", RECOMPUTE_NORM),
                                        IS("activation", RECOMPUTE_ACTIVATION),
                                        ALSO("layernorm", RECOMPUTE_NORM),
                                        {0}};
#define PRODUCT_FORMATS                                                                       \
    IS("none", PRODUCT_AS_IT_IS), IS("e4m3", PRODUCT_E4M3), IS("e5m2", PRODUCT_E5M2),         \
        IS("hybrid", PRODUCT_HYBRID), IS("mxfp8", PRODUCT_MXFP8), IS("nvfp4", PRODUCT_NVFP4), \
        IS("ternary", PRODUCT_TERNARY)
static const struct choice matmul_formats[] = {PRODUCT_FORMATS, {0}};
static const struct choice product_formats[] = {IS("same", PRODUCT_SAME), PRODUCT_FORMATS, {0}};
static const struct choice scalings[] = {IS("auto", SCALE_AUTO),
                                         IS("tensorwise", SCALE_TENSORWISE),
                                         IS("delayed", SCALE_DELAYED),
                                         IS("blockwise", SCALE_BLOCKWISE),
                                         {0}};
static const struct choice scale_roundings[] = {
    IS("up", SCALE_ROUNDS_UP), IS("down", SCALE_ROUNDS_DOWN), {0}};
static const struct choice amax_algorithms[] = {
    IS("max", AMAX_MAX), IS("most_recent", AMAX_MOST_RECENT), {0}};
static const struct choice tokenizers[] = {
    IS("byte", TOKENIZER_BYTE), IS("GPT2BPE", TOKENIZER_GPT2_BPE), IS("none", TOKENIZER_NONE), {0}};
static const struct choice signals[] = {
    IS("SIGTERM", SIGTERM), IS("SIGINT", SIGINT), IS("SIGUSR1", SIGUSR1), IS("SIGUSR2", SIGUSR2), {0}};

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

// Without its size, so that one row more or less than recipe.h says does not compile.
const struct recipe_row recipe_rows[] = {
    ROW("name", TEXT, name, NULL, "Names the run: its folder is `runs/NAME`.",
        .derived = "the recipe's file name"),
    ROW("base", BASE, name, "none",
        "Another recipe, merged first: what is said here replaces what is said there, key by key. Relative "
        "to this file.",
        .optional = true),
    ROW("seed", COUNT, seed, "1234",
        "Weights, dropout and the order of the data are functions of this number.", BETWEEN(0, 9e15)),
    ROW("deterministic", BOOL, deterministic, "true",
        "No atomics and no choice by timing: the same recipe gives the same bits. `false` lets NCCL add in "
        "the order that is fastest, which depends on the wiring; on a CPU it changes nothing."),
    ROW("assume", CHOICE, assume, "program",
        "Whose memory `cluster.device: dry` counts. `program`: this one's. `papers`: by the same formula, "
        "what those of ZeRO and of Korthikanti et al. stored: two bytes for weights, gradients and "
        "activations, attention scores, masks (docs/memory.md).",
        .choices = assumptions),

    ROW("model.num_layers", COUNT, model.num_layers, NULL, "Transformer blocks.", BETWEEN(1, 1e5),
        .aliases = "num_hidden_layers n_layer n_layers", .example = "12"),
    ROW("model.hidden_size", COUNT, model.hidden_size, NULL, "H, the width of the residual stream.",
        BETWEEN(1, 1e7), .aliases = "n_embd", .example = "768"),
    ROW("model.num_attention_heads", COUNT, model.num_attention_heads, NULL, "A, the query heads.",
        BETWEEN(1, 1e5), .aliases = "n_head n_heads", .example = "12"),
    ROW("model.num_query_groups", COUNT, model.num_query_groups, NULL,
        "Key and value heads, each shared by a group of query heads. Fewer than tensor_parallel_size are "
        "replicated.",
        BETWEEN(1, 1e5), .derived = "num_attention_heads", .aliases = "num_key_value_heads"),
    ROW("model.ffn_hidden_size", COUNT, model.ffn_hidden_size, NULL, "F, the width inside the MLP.",
        BETWEEN(1, 1e8),
        .derived = "4 hidden_size; with swiglu 8/3 hidden_size, rounded down to a multiple of 64",
        .aliases = "intermediate_size n_inner"),
    ROW("model.kv_channels", COUNT, model.kv_channels, NULL, "D, the width of one head. Even with rope.",
        BETWEEN(1, 1e5), .derived = "hidden_size / num_attention_heads", .aliases = "head_dim"),
    ROW("model.seq_length", COUNT, model.seq_length, NULL, "S, the tokens of one sample.", BETWEEN(1, 1e8),
        .aliases = "max_position_embeddings n_positions n_ctx", .example = "1024"),
    ROW("model.vocab_size", COUNT, model.vocab_size, NULL,
        "V. More than the tokenizer has is allowed: the rest is never a target.", BETWEEN(1, 1e9),
        .derived = "the tokenizer's"),
    ROW("model.make_vocab_size_divisible_by", COUNT, model.make_vocab_size_divisible_by, "128",
        "Rounds the embedding's rows in memory up to a multiple of this (times tensor_parallel_size), so "
        "that "
        "rows of logits are aligned for tensor cores: 8 is enough, 1 saves memory on a CPU. "
        "Padding never reaches the softmax, a norm or a checkpoint.",
        BETWEEN(1, 1e6)),
    ROW("model.position_embedding_type", CHOICE, model.position_embedding, "learned_absolute",
        "How a token knows its place.", .choices = positions),
    ROW("model.rotary_base", REAL, model.rotary_base, "10000",
        "The base of the rotary frequencies, with rope.", BETWEEN(1, INFINITY), .below = true,
        .aliases = "rope_theta", .example = "10000"),
    ROW("model.normalization", CHOICE, model.normalization, "LayerNorm",
        "Before attention, before the MLP, and at the end.", .choices = normalizations),
    ROW("model.norm_epsilon", REAL, model.norm_epsilon, "1e-5",
        "Added to the variance (LayerNorm) or the mean square (RMSNorm).", POSITIVE,
        .aliases = "layernorm_epsilon layer_norm_epsilon rms_norm_eps", .example = "1e-5"),
    ROW("model.activation", CHOICE, model.activation, "gelu",
        "`gelu` is the exact one, with erf; `gelu_tanh` the approximation of GPT-2 (Hugging Face: gelu_new); "
        "`swiglu` is silu(gate) x up (Hugging Face: silu).",
        .choices = activations, .aliases = "activation_function hidden_act"),
    ROW("model.add_bias_linear", BOOL, model.add_bias_linear, "true",
        "Biases on the linear layers. The head never has one."),
    ROW("model.tie_word_embeddings", BOOL, model.tie_word_embeddings, "true", "The head is the embedding."),
    ROW("model.hidden_dropout", REAL, model.hidden_dropout, "0", "After the embedding, attention and MLP.",
        SHARE, .aliases = "resid_pdrop"),
    ROW("model.attention_dropout", REAL, model.attention_dropout, "0", "On the attention probabilities.",
        SHARE, .aliases = "attn_pdrop"),
    ROW("model.attention_backend", CHOICE, attention_backend, "auto",
        "Whose attention kernels: our own, or cuDNN's (`cluster.device: cuda`, bf16, heads of at most 128 by "
        "eights, no dropout, one document to a sequence). `auto`: with `deterministic: false` the faster of "
        "the two, timed once for each shape; else our own.",
        .choices = backends),
    ROW("model.init_method_std", REAL, model.init_method_std, "0.02",
        "Standard deviation of the weights at the start; of the last matrix in each branch, divided by "
        "sqrt(2 num_layers).",
        POSITIVE, .aliases = "initializer_range", .example = "0.02"),

    ROW("parallel.tensor_parallel_size", INT, parallel.tensor_parallel_size, "1",
        "t: heads, MLP columns and vocabulary rows are cut this many times.", BETWEEN(1, 65536),
        .aliases = "tp tensor_model_parallel_size"),
    ROW("parallel.pipeline_parallel_size", INT, parallel.pipeline_parallel_size, "1",
        "p: the layers are cut into this many stages (times virtual_stages).", BETWEEN(1, 65536),
        .aliases = "pp pipeline_model_parallel_size"),
    ROW("parallel.data_parallel_size", INT, parallel.data_parallel_size, NULL,
        "d: the batch is cut this many times.", BETWEEN(1, 65536),
        .derived = "ranks / (tp x pp x cp); 1 without a launcher", .aliases = "dp"),
    ROW("parallel.context_parallel_size", INT, parallel.context_parallel_size, "1",
        "c: each sample is cut this many times.", BETWEEN(1, 65536), .aliases = "cp", .unbuilt = true),
    ROW("parallel.context_parallel_method", CHOICE, parallel.context_parallel_method, "ring",
        "How keys and values travel along the sample.", .choices = context_methods, .aliases = "cp_comm_type",
        .unbuilt = true),
    ROW("parallel.expert_parallel_size", INT, parallel.expert_parallel_size, "1",
        "e: experts are spread over this many ranks.", BETWEEN(1, 65536),
        .aliases = "ep expert_model_parallel_size", .unbuilt = true),
    ROW("parallel.sequence_parallel", BOOL, parallel.sequence_parallel, "false",
        "Norms, dropout and the residual stream are cut along the tokens over the tensor-parallel ranks."),
    ROW("parallel.zero_stage", INT, parallel.zero_stage, "0",
        "What the data-parallel ranks share out: 1 optimizer state, 2 gradients too, 3 weights too. From 2 "
        "on gradients are reduced behind each microbatch, layer by layer.",
        BETWEEN(0, 3)),
    ROW("parallel.rank_order", TEXT, parallel.rank_order, "tp-cp-ep-dp-pp",
        "The axes from fastest to slowest: neighbouring ranks differ in the first."),
    ROW("parallel.overlap_grad_reduce", BOOL, parallel.overlap_grad_reduce, "true",
        "A bucket's reduction starts when its last gradient is ready, not when all are."),
    ROW("parallel.overlap_param_gather", BOOL, parallel.overlap_param_gather, "false",
        "With zero_stage 3: the next layer's weights are gathered while a layer computes, in memory for "
        "two."),
    ROW("parallel.tp_comm_overlap", BOOL, parallel.tp_comm_overlap, "false",
        "With sequence_parallel: tokens are gathered and sums scattered beside the multiplications that "
        "need or make them, in pieces of one rank's tokens."),
    ROW("parallel.nccl_ub", BOOL, parallel.nccl_ub, "false",
        "With zero_stage 0 and deterministic false on GPUs: the gradients' memory is registered with NCCL "
        "(ncclCommRegister), which can then add them up where they lie."),
    ROW("parallel.bucket_size_mb", REAL, parallel.bucket_size_mb, "25",
        "MiB of gradients that are reduced together, with zero_stage 0 and 1. Never changes a bit of the "
        "result.",
        BETWEEN(1e-4, 1e6)),
    ROW("parallel.gradient_reduce_dtype", CHOICE, parallel.gradient_reduce_dtype, "fp32",
        "The type of gradients while they are added over ranks.", .choices = dtypes),

    ROW("pipeline.schedule", WORD, pipeline.schedule, "1f1b", "In which order a stage runs its microbatches.",
        .choices = schedules),
    ROW("pipeline.virtual_stages", INT, pipeline.virtual_stages, NULL, "v: stages on each rank.",
        BETWEEN(1, 1024),
        .derived = "from num_layers_per_virtual_pipeline_stage; else the schedule's own: 1, or 2 where it "
                   "needs several",
        .aliases = "virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank"),
    ROW("pipeline.num_layers_per_virtual_pipeline_stage", INT, pipeline.layers_per_stage, "0",
        "Another way to say virtual_stages: num_layers / (pipeline_parallel_size x this). 0: not said.",
        BETWEEN(0, 1e5)),
    ROW("pipeline.microbatch_group_size", INT, pipeline.microbatch_group_size, "0",
        "Microbatches that `interleaved` and `zb-h1` run on one virtual stage before the next; at least "
        "pipeline_parallel_size. 0: the schedule's own, about that many.",
        BETWEEN(0, 65536), .aliases = "microbatch_group_size_per_vp_stage"),
    ROW("pipeline.schedule_file", TEXT, pipeline.schedule_file, "none",
        "A schedule in PyTorch's notation instead of a named one: a CSV with a line of actions for each "
        "rank, `0F0,0F1,,0B0`, as `cuboid schedule NAME --csv` writes it. Its ranks, microbatches and "
        "stages are the recipe's. `schedule` is then `file`.",
        .optional = true),
    ROW("pipeline.layout", LAYERS, pipeline.layout, "[]",
        "Layers of each stage, in stage order: pipeline_parallel_size x virtual_stages numbers that add up "
        "to num_layers; 0 is allowed. Empty: as even as possible, and the first stages take what is left "
        "over, because the last one has the head and the loss.",
        BETWEEN(0, 1e5)),
    ROW("pipeline.optimizer_post_validation", BOOL, pipeline.optimizer_post_validation, "false",
        "Stages do not wait for each other between steps: each updates its weights before it knows the "
        "norm of the others' gradients, and takes that back where the norm had to be clipped. The same "
        "bits. Costs a copy of weights and moments on every stage but the last.",
        .aliases = "enable_optimizer_post_validation"),
    ROW("pipeline.auto_f", REAL, pipeline.search.f, "1",
        "With `auto`, which searches for a schedule: the time of a microbatch's forward on a rank, all its "
        "virtual stages together, in any unit.",
        UNITS),
    ROW("pipeline.auto_i", REAL, pipeline.search.i, "1", "The same of a backward for the input.", UNITS),
    ROW("pipeline.auto_w", REAL, pipeline.search.w, "1", "The same of a backward for the weights.", UNITS),
    ROW("pipeline.auto_comm", REAL, pipeline.search.comm, "0", "The same of a message to another rank.",
        UNITS),
    ROW("pipeline.auto_memory_limit", REAL, pipeline.search.memory_limit, "0",
        "With `auto`: for how many microbatches a rank may hold the activations of all its stages at once, "
        "from F to W; `1f1b` holds pipeline_parallel_size. 0: no limit, and of the shortest schedules that "
        "which holds least.",
        BETWEEN(0, 1e9)),

    ROW("train.micro_batch_size", COUNT, train.micro_batch_size, "1",
        "B, samples that pass a stage together.", BETWEEN(1, 1e6)),
    ROW("train.global_batch_size", COUNT, train.global_batch_size, NULL,
        "Samples in one step, over all ranks.", BETWEEN(1, 1e8), .example = "32"),
    ROW("train.train_iters", COUNT, train.train_iters, NULL,
        "Steps; 0: saves the weights before the first step, and ends.", BETWEEN(0, 1e12),
        .aliases = "max_steps", .example = "1000"),
    ROW("train.eval_interval", COUNT, train.eval_interval, "0",
        "Evaluates on the validation part every this many steps; 0: never.", STEPS),
    ROW("train.eval_iters", COUNT, train.eval_iters, "10", "Global batches in one evaluation.",
        BETWEEN(1, 1e12)),

    ROW("optimizer.name", CHOICE, optimizer.name, "adamw",
        "Adam with decoupled weight decay, on matrices and embeddings; biases and norms do not decay.",
        .choices = optimizers),
    ROW("optimizer.lr", REAL, optimizer.lr, NULL, "The learning rate after warm-up.", POSITIVE,
        .example = "3e-4"),
    ROW("optimizer.min_lr", REAL, optimizer.min_lr, "0", "Where the decay ends.", NOT_NEGATIVE),
    ROW("optimizer.lr_decay_style", CHOICE, optimizer.lr_decay_style, "cosine",
        "From lr to min_lr. WSD keeps lr and decays at the end.", .choices = decays),
    ROW("optimizer.lr_warmup_iters", COUNT, optimizer.lr_warmup_iters, "0",
        "Steps over which the rate rises from 0.", STEPS),
    ROW("optimizer.lr_decay_iters", COUNT, optimizer.lr_decay_iters, NULL,
        "The step at which the rate reaches min_lr: with min_lr 0 that step, by default the last one, "
        "changes nothing. At least lr_warmup_iters, and more or fewer than train_iters as you like. "
        "Step s of Megatron-LM has what is here the rate of step s - 1, so there it is the first of a "
        "warm-up.",
        BETWEEN(1, 1e12), .derived = "train_iters"),
    ROW("optimizer.lr_wsd_decay_style", CHOICE, optimizer.lr_wsd_decay_style, "exponential",
        "With WSD: the shape of its decay.", .choices = wsd_decays),
    ROW("optimizer.lr_wsd_decay_iters", COUNT, optimizer.lr_wsd_decay_iters, "0",
        "With WSD: the length of its decay, the last steps before lr_decay_iters.", STEPS),
    ROW("optimizer.weight_decay", REAL, optimizer.weight_decay, "0.01",
        "Times the learning rate, taken off the weight at each step.", NOT_NEGATIVE),
    ROW("optimizer.adam_beta1", REAL, optimizer.adam_beta1, "0.9", "Memory of the mean of gradients.",
        BETWEEN(0, 1), .example = "0.9", .below = true),
    ROW("optimizer.adam_beta2", REAL, optimizer.adam_beta2, "0.999",
        "Memory of the mean of squared gradients.", BETWEEN(0, 1), .example = "0.999", .below = true),
    ROW("optimizer.adam_eps", REAL, optimizer.adam_eps, "1e-8", "Added to the root of the second.", POSITIVE,
        .example = "1e-8"),
    ROW("optimizer.clip_grad", REAL, optimizer.clip_grad, "1",
        "Gradients are scaled down to this global norm; 0: never.", NOT_NEGATIVE),

    ROW("precision.params_dtype", CHOICE, precision.params_dtype, "fp32",
        "The type of weights and activations in memory and between ranks. bf16 and fp16: sums, norms, "
        "softmax, loss and the gradients of weights stay fp32, and so do the weights that the optimizer "
        "changes. fp16 comes with loss scaling (docs/precision.md).",
        .choices = working_dtypes),
    ROW("precision.main_params_dtype", CHOICE, precision.main_params_dtype, "fp32",
        "The type of the weights that the optimizer changes. bf16, with params_dtype bf16: the layers' own, "
        "without an fp32 copy; each step is computed in fp32 and rounded stochastically (docs/precision.md).",
        .choices = main_dtypes),
    ROW("precision.allow_tf32", BOOL, precision.allow_tf32, "false",
        "With fp32 on a GPU: matrix multiplications may round what they multiply to TF32, which has fp32's "
        "range and 10 bits of fraction; they still add in fp32."),
    ROW("precision.loss_scale", REAL, precision.loss_scale, "0",
        "With fp16: what the loss is multiplied by for the backward pass; a power of two rounds nothing. 0: "
        "found while training.",
        LOSS_SCALES),
    ROW("precision.initial_loss_scale", REAL, precision.initial_loss_scale, "4294967296",
        "With loss_scale 0: where the search begins.", SOME_LOSS_SCALE),
    ROW("precision.min_loss_scale", REAL, precision.min_loss_scale, "1",
        "Where it ends: it falls no further.", SOME_LOSS_SCALE),
    ROW("precision.loss_scale_window", COUNT, precision.loss_scale_window, "1000",
        "It doubles after so many steps without an overflow.", BETWEEN(1, 1e12)),
    ROW("precision.hysteresis", COUNT, precision.hysteresis, "2",
        "It is halved by the so many-th overflow since it last rose, and by each that follows.",
        BETWEEN(1, 1e12)),
    ROW("precision.matmul_format", CHOICE, precision.matmul_format, "none",
        "The numbers inside the three matrix multiplications of each linear layer in a block, simulated to "
        "the bit: docs/precision.md says what each is. Embedding, head and attention core stay as they are.",
        .choices = matmul_formats, .aliases = "fp8_format"),
    ROW("precision.forward_format", CHOICE, precision.forward_format, "same",
        "The same for the forward multiplication alone.", .choices = product_formats),
    ROW("precision.grad_input_format", CHOICE, precision.grad_input_format, "same",
        "For the gradient of the input.", .choices = product_formats),
    ROW("precision.grad_weight_format", CHOICE, precision.grad_weight_format, "same",
        "For the gradient of the weights.", .choices = product_formats),
    ROW("precision.scaling", CHOICE, precision.scaling, "auto",
        "What shares a scale in e4m3, e5m2 and hybrid: a tensor as it is now, as it was, or 128 elements. "
        "`auto`: tensorwise for these; mxfp8, nvfp4 and ternary have their own.",
        .choices = scalings, .aliases = "fp8_recipe"),
    ROW("precision.mxfp8_scale_rounding", CHOICE, precision.mxfp8_scale_rounding, "up",
        "How the scales of mxfp8 become powers of two: `up`, so that no element saturates (2506.08027), or "
        "`down`, as in the OCP Microscaling specification, with which training can diverge.",
        .choices = scale_roundings),
    ROW("precision.amax_history_len", COUNT, precision.amax_history_len, "1024",
        "With scaling delayed: of so many steps the largest magnitudes are remembered.", BETWEEN(1, 65536),
        .aliases = "fp8_amax_history_len"),
    ROW("precision.amax_compute_algo", CHOICE, precision.amax_compute_algo, "max",
        "With scaling delayed: a scale follows from the largest of them, or from that of the last step.",
        .choices = amax_algorithms, .aliases = "fp8_amax_compute_algo"),
    ROW("precision.margin", COUNT, precision.margin, "0",
        "With scaling delayed: scales leave room for numbers 2^margin times as large.", BETWEEN(0, 32),
        .aliases = "fp8_margin"),
    ROW("precision.high_precision_layers", NAMES, precision.high_precision_layers, "[]",
        "Linear layers that matmul_format leaves alone: `layers.3`, `layers.-1` (the last), "
        "`layers.0.mlp.fc2`, or in "
        "every layer `attention`, `attention.qkv`, `attention.proj`, `mlp`, `mlp.fc1` (gate and up), "
        "`mlp.fc2`."),
    ROW("precision.high_precision_first_layers", COUNT, precision.high_precision_first_layers, "0",
        "So many layers at the beginning, likewise.", BETWEEN(0, 1e5),
        .aliases = "num_layers_at_start_in_bf16"),
    ROW("precision.high_precision_last_layers", COUNT, precision.high_precision_last_layers, "0",
        "And at the end.", BETWEEN(0, 1e5), .aliases = "num_layers_at_end_in_bf16"),

    ROW("memory.recompute_granularity", CHOICE, memory.recompute_granularity, "none",
        "What the backward pass computes again instead of keeping it: `full` whole layers, `selective` "
        "parts of every layer. Never changes a bit of the result (docs/memory.md).",
        .choices = granularities),
    ROW("memory.recompute_method", CHOICE, memory.recompute_method, "uniform",
        "With full: `uniform` recomputes all layers of a stage in runs of recompute_num_layers, of which "
        "only the first one's input is kept; `block` the first recompute_num_layers layers of each "
        "(virtual) stage, one by one, and keeps the others whole.",
        .choices = methods),
    ROW("memory.recompute_num_layers", COUNT, memory.recompute_num_layers, "1",
        "With full: the length of a run (uniform), or how many layers (block).", BETWEEN(1, 1e5)),
    ROW("memory.recompute_modules", NAMES, memory.recompute_modules, "[core_attn]",
        "With selective: which parts of a layer. `core_attn`: the attention, from q, k and v; `norm`: what "
        "both norms make; `activation`: what the MLP's activation makes.",
        .choices = modules),
    ROW("memory.offload_activations", BOOL, memory.offload_activations, "false",
        "What a forward pass leaves behind waits for its backward pass in the host's memory; on a CPU, in a "
        "file in $TMPDIR (or /tmp). Never changes a bit of the result (docs/memory.md)."),
    ROW("memory.offload_optimizer", BOOL, memory.offload_optimizer, "false",
        "Adam's moments stay in the host's memory, and pass through the device in pieces while weights are "
        "updated. Never changes a bit of the result."),

    ROW("data.train", SOURCES, data.train, NULL,
        "A dataset's prefix (PREFIX.bin and PREFIX.idx), or a list of `{path, weight}`: each source gives "
        "its weight's share of the samples.",
        .example = "data/quickstart"),
    ROW("data.valid", SOURCES, data.valid, "[]",
        "The same for validation. Empty: the second part of `split`."),
    ROW("data.split", SPLIT, data.split, NULL,
        "Shares of the documents for training, validation and test; what is left out is 0.", NOT_NEGATIVE,
        .derived = "969, 30, 1; with data.valid 1, 0, 0"),
    ROW("data.reset_attention_mask", BOOL, data.reset_attention_mask, "false",
        "A token sees its own document only."),
    ROW("data.reset_position_ids", BOOL, data.reset_position_ids, "false",
        "Positions begin again with each document."),
    ROW("data.eod_mask_loss", BOOL, data.eod_mask_loss, "false",
        "What follows the end of a document is no target."),
    ROW("data.strict", BOOL, data.strict, "false",
        "Refuse to resume from a checkpoint whose datasets differ from those of this run, as far as sizes, "
        "the "
        "index and a sample of 64 blocks of each tell. `false` warns."),

    ROW("tokenizer.tokenizer_type", CHOICE, tokenizer.tokenizer_type, "byte",
        "`byte`: 257 ids, the bytes and 256 for the end of a document. `GPT2BPE`: 50257. `none`: the ids "
        "were made elsewhere; vocab_size must be given.",
        .choices = tokenizers),
    ROW("tokenizer.vocab_file", TEXT, tokenizer.vocab_file, "none",
        "GPT2BPE's `vocab.json`. Needed where text goes in or out.", .optional = true),
    ROW("tokenizer.merge_file", TEXT, tokenizer.merge_file, "none", "GPT2BPE's `merges.txt`.",
        .aliases = "merges_file", .optional = true),

    ROW("checkpoint.save", TEXT, checkpoint.save, NULL, "The folder of checkpoints; `none`: none is written.",
        .derived = "RUN_DIR/checkpoints", .optional = true),
    ROW("checkpoint.load", TEXT, checkpoint.load, "auto",
        "`auto`: continues from the newest checkpoint in `save` that can be loaded, if there is one. `none`: "
        "starts afresh. Or a folder, which must hold one: the run begins with it, and once it has newer ones "
        "of its own in `save`, it continues from those.",
        .optional = true),
    ROW("checkpoint.save_interval", COUNT, checkpoint.save_interval, "0",
        "Steps between checkpoints; 0: by `save_minutes` only, and when the run ends.", STEPS),
    ROW("checkpoint.save_minutes", REAL, checkpoint.save_minutes, "30",
        "Saves after the first step that ends this many minutes after the last checkpoint, or after the "
        "start; "
        "0: never. Rank 0's clock decides for all.",
        NOT_NEGATIVE),
    ROW("checkpoint.keep_last", COUNT, checkpoint.keep_last, "2",
        "Older ones are removed when a newer is complete; 0: all are kept.", BETWEEN(0, 1e6)),
    ROW("checkpoint.async_save", BOOL, checkpoint.async_save, "false", "Writes while training goes on.",
        .unbuilt = true),

    ROW("logging.run_dir", TEXT, logging.run_dir, NULL,
        "The folder of the run: resolved recipe, metrics.jsonl, checkpoints.", .derived = "runs/NAME"),
    ROW("logging.log_interval", COUNT, logging.log_interval, "10",
        "Steps between lines on the terminal. metrics.jsonl has every step.", BETWEEN(1, 1e12)),
    ROW("logging.tensorboard_dir", TEXT, logging.tensorboard_dir, "none",
        "A folder of TensorBoard event files.", .optional = true, .unbuilt = true),
    ROW("logging.peak_flops", REAL, logging.peak_flops, "0",
        "What one rank could compute in a second, for mfu (attention counted in full) and mfu_causal (its "
        "causal half) in metrics.jsonl and the closing lines; 0: not known.",
        NOT_NEGATIVE),

    ROW("profile.timeline", BOOL, profile.timeline, "false",
        "Writes when each rank did what, beside what the simulator says of it, into the run's folder: "
        "timeline-step-N.json for ui.perfetto.dev, and timeline-step-N.svg. On the CPU: not with `strict` or "
        "`cuda`."),
    ROW("profile.profile_step_start", COUNT, profile.profile_step_start, "2",
        "The first step of which a timeline is written.", BETWEEN(1, 1e12)),
    ROW("profile.profile_step_end", COUNT, profile.profile_step_end, "0",
        "The last one; 0: the first is the only one.", STEPS),

    ROW("resilience.check_for_nan_in_loss_and_grad", BOOL, resilience.check_for_nan_in_loss_and_grad, "true",
        "Stops at the first loss or gradient that is not a number, naming step, rank and parameter."),
    ROW("resilience.heartbeat_timeout_seconds", REAL, resilience.heartbeat_timeout_seconds, "0",
        "When no rank of a process has made progress for this long, it says who waits for what, and ends. "
        "Longer than a rank ever waits for others, such as for one that writes a checkpoint. 0: never.",
        NOT_NEGATIVE),
    ROW("resilience.exit_signal", NAMES, resilience.exit_signal, "[SIGTERM, SIGINT]",
        "On one of these signals the run saves after the running step and exits with status 75; before the "
        "first step it ends at once. A second SIGINT ends it at once. mpirun forwards SIGUSR1, and follows a "
        "SIGTERM with SIGKILL.",
        .choices = signals),

    ROW("cluster.device", WORD, cluster.device, "cpu",
        "`strict` is the CPU made cruel, to find forgotten waits; `dry` computes nothing and counts "
        "everything; `cuda` is an NVIDIA GPU for each rank (docs/cuda.md).",
        .choices = devices),
    ROW("cluster.dry_device", WORD, cluster.dry_device, "cpu",
        "Whose kernels' memory `cluster.device: dry` counts; `cuda` where it overrides `cuda` of a file.",
        .choices = dry_devices),
    ROW("cluster.transport", WORD, cluster.transport, "auto",
        "`local`: ranks are threads of one process. `mpi`: processes. `nccl`: either, with a GPU each. "
        "`auto`: nccl between GPUs; else mpi under a launcher, local alone.",
        .choices = transports),
    ROW("cluster.ranks_per_gpu", INT, cluster.ranks_per_gpu, "1",
        "So many ranks share a GPU, for tests of a large layout on a small machine: processes (mpirun), "
        "and slow. NCCL talks over loopback.",
        BETWEEN(1, 64)),
    ROW("cluster.matmul_algorithms", TEXT, cluster.matmul_algorithms, "none",
        "On a GPU: the file that keeps which of cuBLASLt's algorithms is the fastest for each shape, timed "
        "when it first comes; what is there is never changed. Its folder must be there; `auto`, "
        "cuboid/matmul-algorithms in $XDG_CACHE_HOME or ~/.cache, makes it. none: what cuBLASLt estimates "
        "to be the fastest.",
        .optional = true),
    ROW("cluster.matmul_epilogues", CHOICE, cluster.matmul_epilogues, "apart",
        "On a GPU: whether `gelu_tanh`, its gradient and a bias's are made by the matrix multiplication "
        "before them, in cuBLASLt. `fused`: wherever it can. `auto`: where that is faster, timed once for "
        "each shape, with `matmul_algorithms` or `deterministic: false`; without, `apart`.",
        .choices = epilogues),
    ROW("cluster.cuda_graphs", BOOL, cluster.cuda_graphs, "false",
        "On a GPU: from the third step on, passes without messages are one launch each."),
    ROW("cluster.profile", TEXT, cluster.profile, "none", "Measured figures of a machine, for predictions.",
        .optional = true, .unbuilt = true),
    ROW("cluster.nodes", INT, cluster.nodes, "0", "Machines; 0: not said.", BETWEEN(0, 1e6), .unbuilt = true),
    ROW("cluster.gpus_per_node", INT, cluster.gpus_per_node, "0", "Ranks on each machine; 0: not said.",
        BETWEEN(0, 1024), .unbuilt = true),
    ROW("cluster.threads_per_rank", INT, cluster.threads_per_rank, "0",
        "CPU threads of one rank; 0: the CPUs that the job may use on this machine (affinity mask, CPU quota "
        "of the cgroup), divided by its ranks there. Never changes a bit of the result.",
        BETWEEN(0, 4096)),
    ROW("cluster.time", TEXT, cluster.time, "none", "The time limit of a batch job.", .optional = true,
        .unbuilt = true),
    ROW("cluster.partition", TEXT, cluster.partition, "none", "The queue of a batch job.", .optional = true,
        .unbuilt = true),
};

const struct recipe_section recipe_sections[] = {
    {"", "The run."},
    {"model", "The mathematics. Names of Hugging Face configurations are understood too."},
    {"parallel", "Where it runs. Nothing in this section changes what is computed."},
    {"pipeline", "How the stages take turns, and which layers they hold."},
    {"train", "Batches and steps."},
    {"optimizer", "AdamW and its learning rate."},
    {"precision", "Types of numbers."},
    {"memory", "What is kept and what is computed again."},
    {"data", "What is read."},
    {"tokenizer", "Text to ids and back."},
    {"checkpoint", "What is written so that a run can continue."},
    {"logging", "What a run says about itself."},
    {"profile", "What a run measures about itself."},
    {"resilience", "What happens when something goes wrong."},
    {"cluster", "The machine."},
};
