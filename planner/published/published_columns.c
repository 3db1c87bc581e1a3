// SPDX-License-Identifier: Apache-2.0
#include "planner/published/published.h"

#include <math.h>
#include <string.h>

#define TEXT(column, title)            [PUBLISHED_##column] = {.name = title, .unit = ""}
#define COUNT(column, title, most)     [PUBLISHED_##column] = {title, "", COLUMN_COUNT, 1, most}
#define REAL(column, title, u, lo, hi) [PUBLISHED_##column] = {title, u, COLUMN_REAL, lo, hi}

const struct column_descriptor column_descriptors[PUBLISHED_COLUMNS] = {
    TEXT(PAPER, "paper"),
    TEXT(MODEL, "model"),
    REAL(PARAMS_B, "params_b", "1e9 parameters", 1e-6, 1e5),
    COUNT(LAYERS, "layers", 1e5),
    COUNT(HIDDEN, "hidden", 1e7),
    COUNT(HEADS, "heads", 1e5),
    COUNT(FFN, "ffn", 1e8),
    COUNT(VOCAB, "vocab", 1e9),
    COUNT(SEQ, "seq", 1e8),
    COUNT(GPUS, "gpus", 1e7),
    TEXT(GPU_TYPE, "gpu_type"),
    COUNT(TP, "tp", 65536),
    COUNT(PP, "pp", 65536),
    COUNT(DP, "dp", 65536),
    COUNT(CP, "cp", 65536),
    COUNT(EP, "ep", 65536),
    TEXT(VPP, "vpp"),
    COUNT(MICRO_BATCH, "micro_batch", 1e6),
    COUNT(GLOBAL_BATCH, "global_batch", 1e8),
    TEXT(SCHEDULE, "schedule"),
    TEXT(RECOMPUTE, "recompute"),
    TEXT(SEQ_PARALLEL, "seq_parallel"),
    TEXT(PRECISION, "precision"),
    REAL(STEP_TIME_S, "step_time_s", "seconds", 1e-6, 1e5),
    REAL(TFLOPS_PER_GPU, "tflops_per_gpu", "TFLOP/s", 1e-6, 1e5),
    REAL(MFU_PCT, "mfu_pct", "percent", 1, 100),
    REAL(TOKENS_PER_S_PER_GPU, "tokens_per_s_per_gpu", "tokens/s", 1e-3, 1e8),
    REAL(MEMORY_GB, "memory_gb", "1e9 bytes", 1e-6, 1e5),
    TEXT(STATUS, "status"),
    TEXT(SOURCE, "source"),
    REAL(HFU_PCT, "hfu_pct", "percent", 1, 100),
    REAL(SAMPLES_PER_S_PER_GPU, "samples_per_s_per_gpu", "samples/s", 1e-6, 1e7),
    TEXT(ZERO_STAGE, "zero_stage"),
    REAL(STEP_TIME_DERIVED_S, "step_time_derived_s", "seconds", 1e-6, 1e5),
    TEXT(VERIFIED, "verified"),
    TEXT(DERIVED_FIELDS, "derived_fields"),
    TEXT(NOTES, "notes"),
    TEXT(OVERRIDES, "overrides"),
    TEXT(FIGURE, "figure"),
};

const char *published_column_name(enum published_column column)
{
    return column_descriptors[column].name;
}

void published_header(struct text *out)
{
    for (int i = 0; i < PUBLISHED_COLUMNS; i++)
        text_add(out, "%s%s", i > 0 ? "," : "", column_descriptors[i].name);
    text_add(out, "\n");
}

int column_find(const char *name)
{
    for (int i = 0; i < PUBLISHED_COLUMNS; i++)
        if (strcmp(column_descriptors[i].name, name) == 0)
            return i;
    return -1;
}

bool column_parse(const struct column_descriptor *column, const char *cell, double *out)
{
    char digits[40];
    const size_t length = strlen(cell);
    if (length >= sizeof digits)
        return false;
    memcpy(digits, cell, length + 1);
    const bool thousands = column->type == COLUMN_COUNT && length > 1 && digits[length - 1] == 'k';
    if (thousands)
        digits[length - 1] = 0;
    if (!number_parse(digits, out) || !isfinite(*out))
        return false;
    *out *= thousands ? 1000.0 : 1.0;
    return *out >= column->low && *out <= column->high &&
           (column->type != COLUMN_COUNT || *out == floor(*out));
}

void column_expected(const struct column_descriptor *column, struct text *out)
{
    char low[NUMBER_CHARS], high[NUMBER_CHARS];
    text_add(out, "%s from %s to %s", column->type == COLUMN_COUNT ? "an integer" : "a number",
             number_text(column->low, low), number_text(column->high, high));
    if (*column->unit != 0)
        text_add(out, " (%s)", column->unit);
}
