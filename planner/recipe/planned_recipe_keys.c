// SPDX-License-Identifier: Apache-2.0
/* One row for each key of the section `assume`, in the order of the reference page; recipe_table.c has those
 * of the trainer. */
#include "planner/recipe/planned_recipe.h"

#include "trainer/recipe/recipe_rules.h"

#define NAMED(name_, value_)                    \
    {                                           \
        .name = (name_), .value = (int)(value_) \
    }
#define ALIAS(name_, value_)                                   \
    {                                                          \
        .name = (name_), .value = (int)(value_), .alias = true \
    }
static const struct choice assumed_programs[] = {
    NAMED("program", ASSUME_PROGRAM), NAMED("papers", ASSUME_PAPERS), {0}};
static const struct choice assumed_attentions[] = {
    NAMED("own", ASSUME_ATTENTION_OWN),
    NAMED("own_deterministic", ASSUME_ATTENTION_OWN_DETERMINISTIC),
    NAMED("eager", ASSUME_ATTENTION_EAGER),
    NAMED("unfused", ASSUME_ATTENTION_UNFUSED),
    NAMED("flash", ASSUME_ATTENTION_FLASH),
    NAMED("flash2", ASSUME_ATTENTION_FLASH2),
    NAMED("flash2_deterministic", ASSUME_ATTENTION_FLASH2_DETERMINISTIC),
    NAMED("flash3", ASSUME_ATTENTION_FLASH3),
    {0}};
static const struct choice assumed_norms[] = {
    NAMED("fused", ASSUME_FUSED), NAMED("separate", ASSUME_SEPARATE), NAMED("unfused", ASSUME_UNFUSED), {0}};
static const struct choice assumed_fusions[] = {
    NAMED("fused", ASSUME_FUSED), NAMED("unfused", ASSUME_UNFUSED), {0}};
static const struct choice assumed_separations[] = {
    NAMED("fused", ASSUME_FUSED), NAMED("separate", ASSUME_SEPARATE), {0}};
static const struct choice assumed_recomputes[] = {NAMED("needed", RECOMPUTE_NEEDED),
                                                   NAMED("whole", RECOMPUTE_WHOLE),
                                                   NAMED("modules", RECOMPUTE_MODULES),
                                                   {0}};
static const struct choice assumed_dtypes[] = {
    NAMED("own", ASSUME_DTYPE_OWN), NAMED("fp32", ASSUME_DTYPE_FP32), NAMED("bf16", ASSUME_DTYPE_BF16), {0}};
static const struct choice assumed_logits[] = {
    NAMED("split", ASSUME_LOGITS_SPLIT), NAMED("whole", ASSUME_LOGITS_WHOLE), {0}};
static const struct choice assumed_memories[] = {
    NAMED("allocated", ASSUME_MEMORY_ALLOCATED), NAMED("device", ASSUME_MEMORY_DEVICE), {0}};
static const struct choice assumed_activations[] = {
    NAMED("slots", ASSUME_ACTIVATIONS_SLOTS), NAMED("shared", ASSUME_ACTIVATIONS_SHARED), {0}};
static const struct choice assumed_reductions[] = {
    NAMED("own", ASSUME_REDUCTION_OWN), NAMED("all_reduce", ASSUME_REDUCTION_ALL_REDUCE), {0}};
static const struct choice assumed_rollbacks[] = {
    NAMED("copy", ASSUME_ROLLBACK_COPY), NAMED("inverse", ASSUME_ROLLBACK_INVERSE), {0}};
static const struct choice assumed_masks[] = {
    NAMED("own", ASSUME_MASKS_OWN), NAMED("stored", ASSUME_MASKS_STORED), {0}};
static const struct choice assumed_partitions[] = {NAMED("own", PARTITION_EVEN),
                                                   ALIAS("even", PARTITION_EVEN),
                                                   NAMED("parameters", PARTITION_PARAMETERS),
                                                   NAMED("embedding_as_layer", PARTITION_EMBEDDING_AS_LAYER),
                                                   NAMED("modules", PARTITION_MODULES),
                                                   {0}};
static const struct choice assumed_overlaps[] = {NAMED("own", ASSUME_OVERLAP_OWN),
                                                 NAMED("none", ASSUME_OVERLAP_NONE),
                                                 NAMED("grad", ASSUME_OVERLAP_GRAD),
                                                 NAMED("grad_and_param", ASSUME_OVERLAP_BOTH),
                                                 {0}};

/* A key of struct assumptions, and one that sets a field of the recipe. */
#define KEY(key_, type_, struct_, field_, fallback_, help_, ...)                                          \
    {                                                                                                     \
        .key = (key_), .type = ROW_##type_, .offset = offsetof(struct_, field_), .fallback = (fallback_), \
        .help = help_, ##__VA_ARGS__                                                                      \
    }
#define ADDED(key_, type_, field_, ...) \
    KEY(key_, type_, struct assumptions, field_, __VA_ARGS__, .added = true)
#define ROW(key_, type_, field_, ...) KEY(key_, type_, struct recipe, field_, __VA_ARGS__)
#define BETWEEN(from, to)             .low = (from), .high = (to)

static const struct recipe_row rows[] = {
    ADDED("assume.programs", CHOICE, programs, "program",
          "Whose tensors a plan counts; also written `assume: papers`. `program`: this program's. `papers`: "
          "those that ZeRO and Korthikanti et al. store: two-byte weights, gradients and activations, "
          "attention scores, masks (docs/memory.md).",
          .choices = assumed_programs),
    ADDED(
        "assume.attention", CHOICE, attention, "own",
        "Attention kernels. `own`: that of the profile's efficiencies, which is the fastest FlashAttention "
        "of the GPU. `unfused` stores scores and softmax, like Megatron-LM with its fused softmax; `eager` "
        "scales, masks and casts them in kernels of their own; `flash`, `flash2` and `flash3` (Hopper only) "
        "are versions of FlashAttention. `_deterministic`: with a deterministic backward pass.",
        .choices = assumed_attentions),
    ADDED(
        "assume.norm", CHOICE, norm, "fused",
        "Norms: `fused` with the residual before; `separate`: one kernel each for the norm, dropout with the "
        "residual, and the sum of their gradients; `unfused`: one for each operation of the formula.",
        .choices = assumed_norms),
    ADDED("assume.activation", CHOICE, activation, "fused",
          "Activation functions: one kernel, or one for each operation of the formula.",
          .choices = assumed_fusions),
    ADDED("assume.rope", CHOICE, rope, "fused",
          "Rotary positions: one kernel, or one for each operation of the formula.",
          .choices = assumed_fusions),
    ADDED("assume.gate", CHOICE, gate, "fused",
          "Gate and up projection of a gated MLP: one linear layer, or `separate`: two, each with an "
          "all-reduce of the gradient of its input.",
          .choices = assumed_separations),
    ADDED("assume.accumulation", CHOICE, accumulation, "fused",
          "Sums of weight gradients over microbatches: in the matmul, or `separate`: a matmul in the working "
          "type, then an addition to fp32, or to `gradient_dtype`.",
          .choices = assumed_separations),
    ROW("assume.recompute", CHOICE, layers.recompute.extent, "needed",
        "With full recomputation: `needed` leaves out the last matmul and its reduction, which no backward "
        "pass reads; `whole` repeats the forward pass as it is, as PyTorch's checkpoint() does; `modules`: "
        "also recompute the head.",
        .choices = assumed_recomputes),
    ADDED("assume.gradient_dtype", CHOICE, gradient_dtype, "own", "Data type in which gradients are stored.",
          .choices = assumed_dtypes),
    ADDED("assume.optimizer_bytes_per_parameter", INT, optimizer_bytes_per_parameter, "0",
          "Master weights and moments; 0: this program's.", BETWEEN(0, 64)),
    ADDED("assume.logits_bytes_per_element", INT, logits_bytes_per_element, "0",
          "Logits and their gradient; 0: this program's.", BETWEEN(0, 64)),
    ADDED("assume.logits", CHOICE, logits, "split",
          "Logits: `split` over tensor-parallel ranks, or gathered, `whole`, on each, with PyTorch's loss in "
          "fp32.",
          .choices = assumed_logits),
    ROW("assume.partition", CHOICE, pipeline.partition, "own",
        "Layers of the stages, if pipeline.layout does not give them. `own`: as even as possible. "
        "`parameters`: about equal numbers of parameters. `embedding_as_layer`: embedding and head count as "
        "a layer each. `modules`: embedding, final norm and head count as one layer each; earlier stages get "
        "the remainder.",
        .choices = assumed_partitions),
    ADDED("assume.overlap", CHOICE, overlap, "own",
          "Data-parallel communication during the passes: `none`, `grad` (reductions of gradients) or "
          "`grad_and_param` (also gathers of weights); `own`: the keys of parallel.",
          .choices = assumed_overlaps),
    ADDED("assume.tp_overlap", REAL, tp_overlap, "0",
          "Fraction of each tensor-parallel message that matrix multiplications hide.", BETWEEN(0, 1)),
    ADDED("assume.reserved_bytes", COUNT, reserved_bytes, "-1",
          "Bytes of a device for CUDA, libraries and buffers; -1: the profile's.", BETWEEN(-1, 1e15)),
    ADDED("assume.kept_bytes", COUNT, kept_bytes, "0",
          "Bytes that libraries and the program keep allocated from one step to the next, besides weights, "
          "gradients and optimizer state: workspaces, buffers. Counted as workspace.",
          BETWEEN(0, 1e15)),
    ADDED("assume.fragmentation", REAL, fragmentation, "-1",
          "Memory lost to fragmentation, as a fraction of what is allocated; -1: the profile's.",
          BETWEEN(-1, 1)),
    ADDED("assume.activations", CHOICE, activations, "slots",
          "Memory of activations: `slots` of each chunk of a rank, or `shared` by its chunks: a tensor is "
          "allocated when it is written and freed after its last use, as with PyTorch's allocator, and the "
          "output of a stage after its send.",
          .choices = assumed_activations),
    ADDED("assume.gradient_reduction", CHOICE, gradient_reduction, "own",
          "Data-parallel reduction of gradients with sharded optimizer state: a reduce-scatter, or "
          "`all_reduce`, whose result each rank reads in part.",
          .choices = assumed_reductions),
    ADDED("assume.rollback", CHOICE, rollback, "copy",
          "With pipeline.optimizer_post_validation, a rank that guessed wrong continues from a `copy` of its "
          "weights and moments, or `inverse`: computes them from the updated ones, which takes no memory.",
          .choices = assumed_rollbacks),
    ADDED(
        "assume.dropout_masks", CHOICE, dropout_masks, "own",
        "Masks of model.hidden_dropout: recomputed in the backward pass, or `stored`, one byte per element, "
        "as with PyTorch.",
        .choices = assumed_masks),
    ADDED("assume.printed_memory", CHOICE, printed_memory, "allocated",
          "What published memory counts, for `cuboid table`: `allocated`: tensors; `device`: all that is in "
          "use on the device, as nvidia-smi prints it, also fragmentation, CUDA and libraries.",
          .choices = assumed_memories),
};

/* ---- the rule between them ---- */

static bool is_assumed(const struct recipe *recipe, int row)
{
    return row >= recipe_row_count && !recipe_value_is_default(recipe, recipe_row_at(recipe->addition, row));
}

/* The first key of the section that is not the default; -1: none. */
static int first_assumption(const struct recipe *recipe)
{
    for (int i = 0; i < recipe_row_total(recipe->addition); i++)
        if (is_assumed(recipe, i))
            return i;
    return -1;
}

static bool assumption_holds(const struct view *v)
{
    return !device_traits(v->recipe->cluster.device)->computes || first_assumption(v->recipe) < 0;
}

static void assumption_message(const struct view *v, struct text *out)
{
    const struct recipe_row *row = recipe_row_at(v->recipe->addition, first_assumption(v->recipe));
    text_add(out, "%s ", row->key);
    recipe_value_text(v->recipe, row, out);
    text_add(out,
             " is for plans only, but cluster.device is %s; use cuboid plan or cluster.device=dry, or remove "
             "it",
             v->recipe->cluster.device);
}

static const struct rule rule_list[] = {
    {"assume.programs assume.attention assume.norm assume.activation assume.rope assume.gate "
     "assume.accumulation assume.recompute assume.gradient_dtype assume.optimizer_bytes_per_parameter "
     "assume.logits_bytes_per_element assume.partition assume.overlap assume.tp_overlap "
     "assume.reserved_bytes assume.kept_bytes assume.fragmentation assume.logits assume.printed_memory "
     "assume.activations assume.gradient_reduction assume.rollback assume.dropout_masks cluster.device",
     assumption_holds,
     assumption_message,
     {{0}}},
};
static const struct rules rules = RULES_OF(rule_list);

void planned_assumed_text(const struct recipe *recipe, struct text *out)
{
    for (int i = recipe_row_count; i < recipe_row_total(recipe->addition); i++)
        if (is_assumed(recipe, i)) {
            text_add(out, "%s%s=", out->length > 0 ? " " : "", recipe_row_at(recipe->addition, i)->key);
            recipe_value_text(recipe, recipe_row_at(recipe->addition, i), out);
        }
}

/* ---- what follows from them ---- */

const struct assumptions *assumptions_of(const struct recipe *recipe)
{
    static const struct assumptions none = {.reserved_bytes = -1, .fragmentation = -1};
    return recipe->addition == &planner_keys ? recipe->added : &none;
}

static void derive(struct recipe *recipe)
{
    const enum assumed_overlap overlap = assumptions_of(recipe)->overlap;
    if (overlap == ASSUME_OVERLAP_OWN)
        return;
    recipe->data_parallel.overlap_grad_reduce = overlap != ASSUME_OVERLAP_NONE;
    recipe->data_parallel.overlap_param_gather = overlap == ASSUME_OVERLAP_BOTH;
}

const struct recipe_addition planner_keys = {
    .section = {"assume", SECTION_ADDED,
                "What another program does differently, to plan published results. For `cuboid plan` only.",
                .short_for = "programs"},
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .size = sizeof(struct assumptions),
    .rules = &rules,
    .complete = planned_recipe_profile,
    .release = planned_recipe_release,
    .derive = derive,
};
_Static_assert(sizeof rows / sizeof *rows < RECIPE_ADDED_ROWS, "raise RECIPE_ADDED_ROWS");
