// SPDX-License-Identifier: Apache-2.0
/* Converts a row to recipe overrides. Text in the papers' own terms is matched by prefixes or substrings. */
#include "planner/published/published.h"
#include "planner/recipe/planned_recipe.h"
#include "trainer/recipe/recipe_table.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHOWN = 60, OVERRIDE_CHARS = 1 << 12 };

static void set(struct published_recipe *made, const char *key, const char *value)
{
    char override[OVERRIDE_CHARS];
    snprintf(override, sizeof override, "%s=%s", key, value);
    overrides_set(&planner_keys, &made->overrides, override);
}

static void set_number(struct published_recipe *made, const char *key, double value)
{
    char number[NUMBER_CHARS];
    set(made, key, number_text(value, number));
}

static void PRINTF_LIKE(2, 3) refuse(struct published_recipe *made, const char *format, ...)
{
    char reason[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    text_add(&made->reason, "%s%s", made->reason.length > 0 ? "; " : "", reason);
}

static void assume(struct published_recipe *made, const char *key, enum published_column column)
{
    CHECK(made->assumed_count < PUBLISHED_MAX_ASSUMPTIONS);
    made->assumed[made->assumed_count++] = (struct published_assumption){key, column};
}

/* ---- text ---- */

static bool begins_with(const char *text, const char *word)
{
    return strncasecmp(text, word, strlen(word)) == 0;
}

static bool contains(const char *text, const char *word)
{
    for (; *text != 0; text++)
        if (begins_with(text, word))
            return true;
    return false;
}

bool published_is_missing(const char *cell)
{
    return *cell == 0 || begins_with(cell, "not stated") || begins_with(cell, "not printed") ||
           begins_with(cell, "unknown");
}

static bool given(const struct published_row *row, enum published_column column)
{
    return !isnan(row->number[column]);
}

/* ---- sections ---- */

static void make_model(const struct published_row *row, struct published_recipe *made)
{
    static const struct {
        const char *key;
        enum published_column column;
        bool optional; // derived from the others
    } keys[] = {
        {"model.num_layers", PUBLISHED_LAYERS, false},
        {"model.hidden_size", PUBLISHED_HIDDEN, false},
        {"model.num_attention_heads", PUBLISHED_HEADS, false},
        {"model.ffn_hidden_size", PUBLISHED_FFN, true},
        {"model.vocab_size", PUBLISHED_VOCAB, false},
        {"model.seq_length", PUBLISHED_SEQ, false},
        {"train.micro_batch_size", PUBLISHED_MICRO_BATCH, false},
        {"train.global_batch_size", PUBLISHED_GLOBAL_BATCH, false},
        {"parallel.tensor_parallel_size", PUBLISHED_TP, false},
        {"parallel.pipeline_parallel_size", PUBLISHED_PP, false},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (given(row, keys[i].column))
            set_number(made, keys[i].key, row->number[keys[i].column]);
        else if (!keys[i].optional)
            assume(made, keys[i].key, keys[i].column);
}

/* A degree; 1 if it is not printed. */
static double degree(const struct published_row *row, enum published_column column)
{
    return given(row, column) ? row->number[column] : 1.0;
}

double published_gpus(const struct published_row *row)
{
    const double ranks = degree(row, PUBLISHED_TP) * degree(row, PUBLISHED_PP) * degree(row, PUBLISHED_CP);
    if (given(row, PUBLISHED_GPUS))
        return row->number[PUBLISHED_GPUS];
    return given(row, PUBLISHED_DP) ? ranks * row->number[PUBLISHED_DP] : 0.0;
}

bool published_is_layer(const struct published_row *row)
{
    return strcmp(row->cell[PUBLISHED_FIGURE], "layer") == 0;
}

static void make_degrees(const struct published_row *row, struct published_recipe *made)
{
    const double tp = degree(row, PUBLISHED_TP), pp = degree(row, PUBLISHED_PP),
                 cp = degree(row, PUBLISHED_CP);
    const double gpus = row->number[PUBLISHED_GPUS], dp = row->number[PUBLISHED_DP];
    if (cp > 1.0)
        refuse(made, "context parallelism (cp %g) is not implemented", cp);
    if (degree(row, PUBLISHED_EP) > 1.0)
        refuse(made, "expert parallelism (ep %g) is not implemented", row->number[PUBLISHED_EP]);
    if (!isnan(dp) && !isnan(gpus) && gpus != tp * pp * cp * dp)
        refuse(made, "%g GPUs are not tp %g x pp %g x cp %g x dp %g = %g", gpus, tp, pp, cp, dp,
               tp * pp * cp * dp);
    else if (!isnan(dp))
        set_number(made, "parallel.data_parallel_size", dp);
    else if (!isnan(gpus) && fmod(gpus, tp * pp * cp) == 0.0)
        set_number(made, "parallel.data_parallel_size", gpus / (tp * pp * cp));
    else if (!isnan(gpus))
        refuse(made, "%g GPUs are not a multiple of tp %g x pp %g x cp %g", gpus, tp, pp, cp);
    else
        assume(made, "parallel.data_parallel_size", PUBLISHED_DP);
}

/* Sharding: sequence parallelism, ZeRO. Keys without effect are not set. */
static void make_sharding(const struct published_row *row, struct published_recipe *made)
{
    const char *sequence = row->cell[PUBLISHED_SEQ_PARALLEL], *zero = row->cell[PUBLISHED_ZERO_STAGE];
    if (begins_with(sequence, "yes") || begins_with(sequence, "true") || begins_with(sequence, "1"))
        set(made, "parallel.sequence_parallel", "true");
    else if (begins_with(sequence, "no") || begins_with(sequence, "false") || begins_with(sequence, "0"))
        set(made, "parallel.sequence_parallel", "false");
    else if (!published_is_missing(sequence))
        refuse(made, "seq_parallel \"%.*s\" is neither yes nor no", SHOWN, sequence);
    if (*zero >= '0' && *zero <= '3' && !isdigit((unsigned char)zero[1]))
        set(made, "parallel.zero_stage", (char[]){*zero, 0});
    else if (!published_is_missing(zero))
        assume(made, "parallel.zero_stage", PUBLISHED_ZERO_STAGE);
}

/* The number of virtual stages of an interleaved schedule. */
static void make_virtual_stages(const struct published_row *row, struct published_recipe *made)
{
    const char *vpp = row->cell[PUBLISHED_VPP];
    const double layers = row->number[PUBLISHED_LAYERS], pp = degree(row, PUBLISHED_PP);
    int64_t stages;
    if (integer_parse(vpp, &stages) && stages >= 1)
        set_number(made, "pipeline.virtual_stages", (double)stages);
    else if (begins_with(vpp, "max") && !isnan(layers))
        set_number(made, "pipeline.virtual_stages", ceil(layers / pp));
    else if (published_is_missing(vpp))
        assume(made, "pipeline.virtual_stages", PUBLISHED_VPP);
    else
        refuse(made, "vpp \"%.*s\" is not a number", SHOWN, vpp);
}

/* Sets a schedule that has a name in Cuboid: "ZB-H1" is zb-h1. False if there is none. */
static bool make_named_schedule(const char *cell, struct published_recipe *made)
{
    static const char *const names[] = {"gpipe",  "looped-bfs", "zb-h1",     "zb-h2",    "zb-v",
                                        "v-half", "v-min",      "dualpipev", "dualpipe", "auto"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (begins_with(cell, names[i])) {
            set(made, "pipeline.schedule", names[i]);
            return true;
        }
    return false;
}

static void make_schedule(const struct published_row *row, struct published_recipe *made)
{
    const char *schedule = row->cell[PUBLISHED_SCHEDULE];
    const double pp = degree(row, PUBLISHED_PP);
    int64_t stages = 1;
    const bool several = integer_parse(row->cell[PUBLISHED_VPP], &stages) && stages > 1;
    if (pp == 1.0) {
        set(made, "pipeline.schedule", "1f1b");
        set(made, "pipeline.virtual_stages", "1");
    } else if (contains(schedule, "non-interleaved")) {
        set(made, "pipeline.schedule", "1f1b");
        set(made, "pipeline.virtual_stages", "1");
    } else if (contains(schedule, "interleaved") || begins_with(schedule, "1f1b-i") ||
               (begins_with(schedule, "1f1b") && several)) {
        set(made, "pipeline.schedule", "interleaved");
        make_virtual_stages(row, made);
    } else if (begins_with(schedule, "1f1b")) {
        set(made, "pipeline.schedule", "1f1b");
        set(made, "pipeline.virtual_stages", "1");
    } else if (begins_with(schedule, "zb-1p") || begins_with(schedule, "zb-2p")) {
        // Found by an automatic search within one or two times the activation memory of 1F1B.
        set(made, "pipeline.schedule", "auto");
        set_number(made, "pipeline.auto_memory_limit", (schedule[3] == '2' ? 2.0 : 1.0) * pp);
    } else if (published_is_missing(schedule))
        assume(made, "pipeline.schedule", PUBLISHED_SCHEDULE);
    else if (!make_named_schedule(schedule, made))
        refuse(made, "schedule \"%.*s\" is not implemented", SHOWN, schedule);
}

static void make_memory(const struct published_row *row, struct published_recipe *made)
{
    static const char *const values[] = {"none", "full", "selective"};
    const char *recompute = row->cell[PUBLISHED_RECOMPUTE];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (begins_with(recompute, values[i])) {
            set(made, "memory.recompute_granularity", values[i]);
            return;
        }
    if (published_is_missing(recompute))
        assume(made, "memory.recompute_granularity", PUBLISHED_RECOMPUTE);
    else
        refuse(made, "recompute \"%.*s\" is neither none, selective nor full", SHOWN, recompute);
}

static void make_precision(const struct published_row *row, struct published_recipe *made)
{
    const char *precision = row->cell[PUBLISHED_PRECISION];
    if (contains(precision, "fp8") || contains(precision, "fp4"))
        refuse(made, "precision \"%.*s\": matmuls below 16 bits are simulated, not predicted", SHOWN,
               precision);
    else if (contains(precision, "bf16") || contains(precision, "16-bit") || contains(precision, "bfloat16"))
        set(made, "precision.params_dtype", "bf16");
    else if (contains(precision, "fp16"))
        set(made, "precision.params_dtype", "fp16");
    else if (contains(precision, "fp32") || contains(precision, "tf32")) {
        set(made, "precision.params_dtype", "fp32");
        set(made, "precision.allow_tf32", contains(precision, "tf32") ? "true" : "false");
    } else if (published_is_missing(precision))
        assume(made, "precision.params_dtype", PUBLISHED_PRECISION);
    else
        refuse(made, "precision \"%.*s\" is not known", SHOWN, precision);
}

/* The column overrides: words separated by spaces. */
static void make_overrides(const struct published_row *row, struct published_recipe *made)
{
    char word[OVERRIDE_CHARS];
    for (const char *at = row->cell[PUBLISHED_OVERRIDES]; at[strspn(at, " ")] != 0;) {
        at += strspn(at, " ");
        const size_t length = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (length >= sizeof word || strchr(word, '=') == NULL || override_key(&planner_keys, word) == NULL)
            refuse(made, "overrides: \"%.*s\" is not key=value of a recipe", SHOWN, word);
        else
            overrides_set(&planner_keys, &made->overrides, word);
        at += length;
    }
}

void published_recipe_make(const struct published_row *row, struct published_recipe *out)
{
    const char *status = row->cell[PUBLISHED_STATUS];
    *out = (struct published_recipe){.assumed_count = 0};
    if (*status != 0 && strcmp(status, "ok") != 0 && strcmp(status, "oom") != 0)
        refuse(out, "status is %.*s", SHOWN, status);
    make_model(row, out);
    make_degrees(row, out);
    make_sharding(row, out);
    make_schedule(row, out);
    make_memory(row, out);
    make_precision(row, out);
    make_overrides(row, out);
}

/* Sets a key that has no value yet. */
static void infer(struct published_recipe *made, const char *override)
{
    for (size_t i = 0; i < made->overrides.count; i++)
        if (override_key(&planner_keys, made->overrides.list[i]) == override_key(&planner_keys, override))
            return;
    overrides_set(&planner_keys, &made->overrides, override);
}

/* The smallest number of virtual stages above 1 that divides the layers of a rank, as in the recipes of
 * papers that do not print it. */
static void infer_virtual_stages(const struct published_row *row, struct published_recipe *made)
{
    const double layers = row->number[PUBLISHED_LAYERS], pp = degree(row, PUBLISHED_PP);
    if (!contains(row->cell[PUBLISHED_SCHEDULE], "interleaved") ||
        !published_is_missing(row->cell[PUBLISHED_VPP]) || !(pp > 1.0) || !(fmod(layers, pp) == 0.0))
        return;
    for (double v = 2.0; v <= layers / pp; v += 1.0)
        if (fmod(layers / pp, v) == 0.0) {
            char override[64];
            snprintf(override, sizeof override, "pipeline.virtual_stages=%.0f", v);
            infer(made, override);
            return;
        }
}

/* Without a pipeline, the few samples of a replica are one microbatch. */
static void infer_micro_batch(const struct published_row *row, struct published_recipe *made)
{
    enum { FEW = 4 };
    const double ranks = degree(row, PUBLISHED_TP) * degree(row, PUBLISHED_CP);
    const double samples = row->number[PUBLISHED_GLOBAL_BATCH] * ranks / published_gpus(row);
    char override[64];
    if (given(row, PUBLISHED_MICRO_BATCH) || degree(row, PUBLISHED_PP) > 1.0 || !(samples >= 1.0) ||
        samples > FEW || samples != floor(samples))
        return;
    snprintf(override, sizeof override, "train.micro_batch_size=%.0f", samples);
    infer(made, override);
}

/* What the programs compared by MegaScale (arXiv 2402.15627) do, named after the schedule: "interleaved 1F1B,
 * MegaScale". */
static void infer_program(const struct published_row *row, struct published_recipe *made)
{
    static const char *const megascale[] = {"assume.attention=flash2", "assume.tp_overlap=0.9",
                                            "assume.overlap=grad_and_param", "model.block_type=parallel"};
    static const char *const megatron[] = {"assume.attention=unfused", "assume.norm=separate",
                                           "assume.overlap=none"};
    const char *schedule = row->cell[PUBLISHED_SCHEDULE];
    for (size_t i = 0; i < sizeof megascale / sizeof *megascale && contains(schedule, ", MegaScale"); i++)
        infer(made, megascale[i]);
    for (size_t i = 0; i < sizeof megatron / sizeof *megatron && contains(schedule, ", Megatron-LM"); i++)
        infer(made, megatron[i]);
}

void published_recipe_infer(const struct published_row *row, struct published_recipe *made)
{
    static const char *const llama[] = {"model.position_embedding_type=rope", "model.normalization=RMSNorm",
                                        "model.activation=swiglu", "model.add_bias_linear=false",
                                        "model.tie_word_embeddings=false"};
    static const char *const like_llama[] = {"llama", "internlm", "mistral", "qwen"};
    const char *notes = row->cell[PUBLISHED_NOTES];
    bool is_llama = false;
    for (size_t i = 0; i < sizeof like_llama / sizeof *like_llama; i++)
        is_llama = is_llama || contains(row->cell[PUBLISHED_MODEL], like_llama[i]);
    for (size_t i = 0; i < sizeof llama / sizeof *llama && is_llama; i++)
        infer(made, llama[i]);
    infer_virtual_stages(row, made);
    infer_micro_batch(row, made);
    infer_program(row, made);
    if (contains(notes, "deterministic-mode")) // Megatron-LM's option: its kernel of attention
        infer(made, "assume.attention=own_deterministic");
    if (contains(notes, "no grad-accumulation fusion"))
        infer(made, "assume.accumulation=separate");
    // ZB-1p and ZB-2p are defined with it: their bubbles vanish since a stage starts the next step early.
    if (degree(row, PUBLISHED_PP) > 1.0 && (begins_with(row->cell[PUBLISHED_SCHEDULE], "zb-1p") ||
                                            begins_with(row->cell[PUBLISHED_SCHEDULE], "zb-2p")))
        infer(made, "pipeline.optimizer_post_validation=true");
    // Other programs with a pipeline reduce gradients once for a step, as this one with stage 1.
    if (*row->cell[PUBLISHED_ZERO_STAGE] == '2' && degree(row, PUBLISHED_PP) > 1.0)
        overrides_set(&planner_keys, &made->overrides, "parallel.zero_stage=1");
    if (!contains(notes, "kernel="))
        return;
    infer(made, contains(notes, "flash_attention3")   ? "assume.attention=flash3"
                : contains(notes, "flash_attention2") ? "assume.attention=flash2"
                : contains(notes, "flash")            ? "assume.attention=flash"
                : contains(notes, "torch")            ? "assume.attention=eager"
                                                      : "assume.attention=unfused");
    infer(made, contains(notes, "RMS kernel") ? "assume.norm=fused" : "assume.norm=unfused");
    if (contains(row->cell[PUBLISHED_MODEL], "llama"))
        infer(made, "assume.activation=unfused"); // such programs use two kernels for SwiGLU
}

void published_recipe_free(struct published_recipe *made)
{
    for (size_t i = 0; i < made->overrides.count; i++)
        free(made->overrides.list[i]);
    free(made->overrides.list);
    text_free(&made->reason);
    *made = (struct published_recipe){.assumed_count = 0};
}

/* ---- what neither the row nor the base gives ---- */

/* Lists a missing key and its column in the two halves of a sentence. */
static void add_missing(const struct published_assumption *assumed, struct text *columns, struct text *keys)
{
    text_add(columns, "%s%s", columns->length > 0 ? ", " : "", published_column_name(assumed->column));
    text_add(keys, " %s=VALUE", assumed->key);
}

/* Refuses the row for them. */
static void refuse_missing(struct published_recipe *made, struct text *columns, struct text *keys)
{
    if (columns->length > 0)
        refuse(made, "no %s; fill in the column%s, or add for all rows%s", columns->chars,
               strchr(columns->chars, ',') != NULL ? "s" : "", keys->chars);
    text_free(columns);
    text_free(keys);
}

void published_recipe_check(struct published_recipe *made, const struct recipe *recipe)
{
    struct text columns = {0}, keys = {0};
    for (int i = 0; i < made->assumed_count; i++) {
        const enum origin_kind kind =
            recipe->origin[recipe_row_find_dotted(&planner_keys, made->assumed[i].key)].kind;
        if (kind == FROM_DEFAULT || kind == FROM_DERIVED)
            add_missing(&made->assumed[i], &columns, &keys);
    }
    refuse_missing(made, &columns, &keys);
}

void published_recipe_check_whole(struct published_recipe *made)
{
    struct text columns = {0}, keys = {0};
    for (int i = 0; i < made->assumed_count; i++) {
        const char *key = recipe_key(&planner_keys, made->assumed[i].key);
        bool known = made->assumed[i].column == PUBLISHED_PRECISION; // that base has one
        for (size_t k = 0; k < made->overrides.count; k++)
            known = known || override_key(&planner_keys, made->overrides.list[k]) == key;
        if (!known)
            add_missing(&made->assumed[i], &columns, &keys);
    }
    refuse_missing(made, &columns, &keys);
}
