// SPDX-License-Identifier: Apache-2.0
/* A table of published runs (published/published.h) predicted row by row:
 *
 *   base recipe + row's overrides + command line ── recipe ── step plan (step_plan.h) ──> predicted
 *   row's figures ──────────────────────────────────────────────────────────────────────> printed
 *
 * Two baselines show what the tape and the schedule contribute. The first is fitted to the experiment;
 * compare it with predictions that are fitted in the same way, by one factor (`scaled`):
 *
 *   constant utilization   model FLOPs / (peak · u), one u per experiment: the median of the printed ones
 *   FLOPs plus bytes       FLOPs of matmuls and attention / (peak · matmul_efficiency) + bytes of the
 *                          other ops / (memory bandwidth · memory_efficiency), mean over the pipeline
 *                          ranks, without messages and schedule */
#pragma once

#include "planner/plan/step_plan.h"
#include "planner/published/published.h"
#include "trainer/recipe/recipe.h"

/* A recipe that rows are based on. */
struct table_base {
    const char *name;  // a path
    const char *yaml;  // its text; NULL: `name` is a file
    bool infers;       // with published_recipe_infer()
    bool has_no_model; // rows have to give model and batch sizes (published_recipe_check_whole())
};

struct table_row;
struct table_options {
    struct table_base base;
    const char *profile; // NULL: that of the row or the base, or else the shipped one for the row's gpu_type
    const char *const *overrides; // for all rows, applied after those of the row
    size_t override_count;
    void (*progress)(void *context, size_t done, size_t count); // NULL: none
    int ranks; // scale recipes down to this number (table_scale.c); 0: do not scale
    /* Replaces the printed values of a planned row by measured ones; appends a reason if that fails. NULL:
     * nothing is measured. */
    enum status (*measure)(void *context, struct recipe *recipe, struct table_row *row, struct text *reason);
    void *context;
};

enum table_fit { FIT_UNKNOWN, FIT_OK, FIT_OOM };
enum { TABLE_NEAR_GB = 5 }; // 1e9 bytes

struct table_row {
    const struct published_row *row;
    char *reason; // why there is no prediction; NULL: there is one. Without one, all members below are 0
    char *layout; // "tp8 pp2 dp32 v3 b4 interleaved full"
    int dp;
    char *profile;
    char *basis;                 // what predictions with the profile rest on (profile_basis_text())
    char *warning;               // the published figures cannot be right, or are easily misread; NULL: none
    struct printed_step printed; // seconds; 0: none
    double step_s;               // predicted, with the scope of `printed` (PUBLISHED_FIGURE)
    double scaled_s;             // step_s times the factor of its experiment
    double utilization_s, roofline_s; // the baselines; 0: none
    double ideal_s;                   // time of the model FLOPs at the peak
    /* Parts of step_s, means over ranks. */
    double run_s[COST_CLASSES], exposed_s[PREDICT_GROUPS], bubble_s, overhead_s;
    /* Of the rank with the most memory, 0: not printed; with assume.printed_memory `device` also reserved. */
    double printed_bytes, bytes;
    enum table_fit printed_fit, fit;
    bool may_shard, may_recompute; // predicted without, and the row does not say
    bool near_limit;               // what it needs is within TABLE_NEAR_GB of the memory of its device
};

/* Relative errors, predicted / printed - 1. */
struct table_errors {
    size_t count;       // pairs; if 0, all other members are 0
    double median, p90; // of absolute values
    double bias;        // median with sign
    double worst;       // the largest absolute value, with sign
    const struct table_row *of_worst;
};

/* Rows with the same `paper`. */
struct table_group {
    const char *paper;
    size_t rows, predicted; // predicted + those with a reason = rows
    double utilization;     // of the constant-utilization baseline
    double factor;          // median of printed / predicted
    struct table_errors step, scaled, by_utilization, by_roofline, memory; // scaled: of factor * step_s
    /* Spearman's, with the printed ones; NAN below three pairs. */
    double step_correlation, utilization_correlation;
    size_t fit_checked, fit_right;   // rows with status ok or oom; of these, predicted right
    size_t near_checked, near_right; // of these, rows near the limit
};

struct table {
    struct table_row *rows;
    size_t count;
    struct table_group *groups; // in the order of the table
    size_t group_count;
};

/* Predicts all rows. Rows that cannot be expressed or planned have a reason; NO_MEMORY and errors of the base
 * recipe as a whole are returned. `published` must outlive the table. */
MUST_USE enum status table_predict(const struct published *published, const struct table_options *options,
                                   struct table *out);
void table_free(struct table *table);

/* The recipe of a row, with `layers` additional layers. NULL after adding the reason why there is none. */
struct recipe *table_row_recipe(const struct table_options *options, const struct published_row *row,
                                int layers, struct text *reason);

/* False if the row names another GPU than the name of a device does: "H100 (DGX)", A100-SXM4-80GB. */
bool table_row_has_gpu(const struct published_row *row, const char *device);

/* predicted / printed - 1; NAN if one of them is 0. */
double table_error(double predicted, double printed);

/* ---- statistics: table_statistics.c ---- */

/* The next row with a prediction, from `begin` on, whose profile no row before it has; NULL: none. group
 * NULL: of all groups. */
const struct table_row *table_next_profile(const struct table *table, const struct table_group *group,
                                           const struct table_row *begin);
/* Computes the baselines of the rows, and the groups. */
void table_summarize(struct table *table);
/* Spearman's rank correlation; equal values share the mean of their ranks. NAN for fewer than three values,
 * or if all values of one side are equal. */
double spearman_correlation(const double *a, const double *b, size_t count);

/* ---- shipped tables: embedded by tools/dev/embed_files.py ---- */

struct shipped_table {
    const char *name, *description;
    const char *yaml; // the base recipe
    const char *csv;  // "": only a base recipe for other tables
};
extern const struct shipped_table shipped_tables[]; // ends with {0}
/* Finds a shipped table by name; NULL: unknown. */
const struct shipped_table *table_shipped(const char *name);
/* The shipped table with whose name a text begins, letters and digits only: "Hagemann2023 main sweep" begins
 * with hagemann2023. NULL: none. */
const struct shipped_table *table_of_paper(const char *paper);

/* ---- table_scale.c ---- */

/* Scales a published run down so that it fits on a small machine: the same schedule, recomputation, ZeRO
 * stage and kinds of parallelism, with fewer ranks and a smaller model.
 *
 *   GPT 145.6B, tp 8 pp 8 dp 24, 80 layers of 12288  ──>  tp 2 pp 2 dp 2, 4 layers of 192 */

/* Appends overrides that scale the recipe to at most `ranks` ranks (a power of two): degrees, model, batch,
 * fp32, and no assumptions about another program. Degrees above 1 stay above 1 if there are enough ranks. */
void table_scale(const struct recipe *recipe, int ranks, struct recipe_names *overrides);
