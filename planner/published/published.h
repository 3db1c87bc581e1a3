// SPDX-License-Identifier: Apache-2.0
/* Published (or measured) runs as a table in CSV: one run per row, columns found by name, in any order.
 *
 *     model,layers,hidden,heads,seq,vocab,tp,pp,dp,micro_batch,global_batch,schedule,step_time_s,...
 *     GPT 39.1B,48,8192,64,2048,51200,8,2,32,4,1536,interleaved 1F1B,14.45,...
 *
 * An empty cell means that the value was not published, as does a missing column.
 *
 *     struct problems problems = {0};
 *     struct published table;
 *     enum status status = published_read("runs.csv", &table, &problems);
 *     problems_print(&problems, stderr);                      // all of them at once
 *     ...
 *     struct published_recipe made;
 *     published_recipe_make(&table.rows[i], &made);
 *     if (text_chars(&made.reason)[0] == 0) ...               // made.overrides: "model.num_layers=48", ...
 *     published_recipe_free(&made);
 *     published_free(&table);
 *
 * Writers: published_header(), then one csv_add_cell() (csv.h) per column, in the order of this enum. */
#pragma once

#include "planner/published/csv.h"
#include "trainer/recipe/recipe.h"

/* published_columns.c has the name, type, unit and range of each. */
enum published_column {
    PUBLISHED_PAPER, // the publication; rows with the same text are one experiment
    PUBLISHED_MODEL,
    PUBLISHED_PARAMS_B, // parameters, 1e9
    PUBLISHED_LAYERS,
    PUBLISHED_HIDDEN,
    PUBLISHED_HEADS,
    PUBLISHED_FFN,
    PUBLISHED_VOCAB,
    PUBLISHED_SEQ,
    PUBLISHED_GPUS,
    PUBLISHED_GPU_TYPE,
    PUBLISHED_TP,
    PUBLISHED_PP,
    PUBLISHED_DP,
    PUBLISHED_CP,
    PUBLISHED_EP,
    PUBLISHED_VPP,          // virtual stages per rank, or "max": one layer per stage
    PUBLISHED_MICRO_BATCH,  // samples
    PUBLISHED_GLOBAL_BATCH, // samples
    PUBLISHED_SCHEDULE,
    PUBLISHED_RECOMPUTE,
    PUBLISHED_SEQ_PARALLEL,
    PUBLISHED_PRECISION,
    PUBLISHED_STEP_TIME_S,
    PUBLISHED_TFLOPS_PER_GPU,
    PUBLISHED_MFU_PCT,
    PUBLISHED_TOKENS_PER_S_PER_GPU,
    PUBLISHED_MEMORY_GB, // of the device with the most memory in use, 1e9 bytes
    PUBLISHED_STATUS,    // "ok", "oom", or why there is no measurement
    PUBLISHED_SOURCE,
    PUBLISHED_HFU_PCT,
    PUBLISHED_SAMPLES_PER_S_PER_GPU,
    PUBLISHED_ZERO_STAGE,
    PUBLISHED_STEP_TIME_DERIVED_S, // computed from another printed figure
    PUBLISHED_VERIFIED,
    PUBLISHED_DERIVED_FIELDS,
    PUBLISHED_NOTES,
    PUBLISHED_OVERRIDES, // further recipe overrides, separated by spaces: "pipeline.layout=[2,3,3,2]"
    PUBLISHED_FIGURE, // scope of the figures: "": the step; "layer": forward and backward pass of one layer
                      // for one microbatch; "model states": memory of the last
                      // stage between steps; "last stage": its peak
    PUBLISHED_COLUMNS
};

/* Name of a column in the header: "tp". */
const char *published_column_name(enum published_column column);
/* Appends all names as a CSV line, with the line end. */
void published_header(struct text *out);

struct published_row {
    int line;                            // in the file, counted from 1
    const char *cell[PUBLISHED_COLUMNS]; // "" if empty; belongs to the table
    double number[PUBLISHED_COLUMNS];    // of columns with numbers, within their range; NAN if empty
};

struct published {
    char *path;
    struct published_row *rows;
    size_t count;
    struct csv csv; // owns the cells
};

/* Reads a table. Adds a problem for each unknown or repeated column, each row that has more or fewer cells
 * than the header, and each value out of range, with file, line and column; then returns BAD_DATA, and *out
 * is empty. IO_ERROR: it cannot be read. */
MUST_USE enum status published_read(const char *path, struct published *out, struct problems *problems);
/* Same for text in memory; `path` names it. */
MUST_USE enum status published_parse(const char *path, const char *bytes, size_t length,
                                     struct published *out, struct problems *problems);
void published_free(struct published *table);

/* ---- a row as a recipe: published_recipe.c ---- */

/* A key that the row does not give: a base recipe has to set it. */
struct published_assumption {
    const char *key; // "train.micro_batch_size"
    enum published_column column;
};
enum { PUBLISHED_MAX_ASSUMPTIONS = 16 };

struct published_recipe {
    struct recipe_names overrides; // "key=value", each key once; for planned_recipe_load()
    struct published_assumption assumed[PUBLISHED_MAX_ASSUMPTIONS];
    int assumed_count;
    struct text reason; // why the run cannot be expressed as a recipe; empty if it can
};

/* Converts a row to recipe overrides. Model details without a column (activation, norms, ties), the profile
 * and all keys in `assumed` are left to the base recipe. */
void published_recipe_make(const struct published_row *row, struct published_recipe *out);
/* Adds overrides that the words of a row imply, for rows that are not those of a shipped table: a model
 * called Llama, InternLM, Mistral or Qwen has rope, RMSNorm, SwiGLU, no biases and untied embeddings;
 * "kernel=NAME" in `notes` is the attention kernel, with "RMS kernel" a fused norm. An interleaved schedule
 * without their number has the smallest number of virtual stages above 1 that divides the layers of a rank.
 * Keys that the row sets keep their values, except for ZeRO 2 with a pipeline, which becomes ZeRO 1. */
void published_recipe_infer(const struct published_row *row, struct published_recipe *made);
void published_recipe_free(struct published_recipe *made);
/* Call it after loading a recipe with the overrides: adds to `reason` the assumed keys that the base does not
 * set. */
void published_recipe_check(struct published_recipe *made, const struct recipe *recipe);
/* Same before loading, for a base without a model and without batch sizes (recipes/papers/default.yaml): the
 * row's columns and overrides have to give them. */
void published_recipe_check_whole(struct published_recipe *made);

/* True if a cell gives no value: empty, or "not stated", "unknown" and the like. */
bool published_is_missing(const char *cell);

/* GPUs of the run: the cell, or else the product of the degrees; 0: neither is given. */
double published_gpus(const struct published_row *row);

/* True if the figures are those of one layer (PUBLISHED_FIGURE). */
bool published_is_layer(const struct published_row *row);

/* ---- the printed step time: published_step.c ---- */

/* The printed figure from which a step time is computed, in order of precedence. */
enum printed_from {
    PRINTED_NOTHING,
    PRINTED_STEP_TIME,
    PRINTED_DERIVED_STEP_TIME,
    PRINTED_SAMPLES_PER_S,
    PRINTED_TOKENS_PER_S,
    PRINTED_TFLOPS,
    PRINTED_HFU,
    PRINTED_MFU
};
/* "step time", "TFLOP/s", ... */
const char *printed_from_name(enum printed_from from);

struct printed_step {
    double seconds; // 0 with PRINTED_NOTHING
    enum printed_from from;
};

/* The printed time of a step. For a row that prints FLOP/s or utilization, the FLOPs are computed from
 * `model` (NULL: such figures are not used): model_flops_per_token() (Narayanan et al. 2021, eq. 3 without
 * recomputation) for MFU. HFU, and TFLOP/s of a row with full recomputation, also count the recomputed
 * forward passes of the layers, which gives that paper's 96 B s l h^2 (1 + s/6h + V/16lh). peak_flops: of one
 * device; 0: utilization is not used. */
struct printed_step published_step(const struct published_row *row, const struct model_config *model,
                                   double peak_flops);

/* ---- published_columns.c ---- */

/* The table of columns, private to this folder. */

enum column_type {
    COLUMN_TEXT,
    COLUMN_COUNT, // an integer; "250k" is 250000
    COLUMN_REAL
};

struct column_descriptor {
    const char *name;
    const char *unit; // of numbers; "" if it needs none
    enum column_type type;
    double low, high; // of numbers, inclusive
};

extern const struct column_descriptor column_descriptors[PUBLISHED_COLUMNS];

/* Index of a column by name; -1: unknown. */
int column_find(const char *name);
/* Parses a cell that is not empty; false if it is not a number of this column's type and range. */
bool column_parse(const struct column_descriptor *column, const char *cell, double *out);
/* "an integer from 1 to 65536", "a number from 1 to 100 (percent)". */
void column_expected(const struct column_descriptor *column, struct text *out);
