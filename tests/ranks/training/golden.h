// SPDX-License-Identifier: Apache-2.0
/* A golden file in memory: the results of a tiny model over 5 or 20 steps in double precision, written by
 * tests/oracle/make_golden.py (its docstring has the format and the formulas of the batches), and the error
 * bounds for a correct fp32 run. */
#pragma once

#include "base/text.h"
#include "trainer/engine/snapshot.h"

enum { GOLDEN_STEPS_MAX = 20 };

struct golden_init {
    char name[PARAM_NAME_CHARS];
    int64_t element;
    double value; // an fp32 value
};

struct golden_tensor {
    char name[PARAM_NAME_CHARS];
    bool gradient; // after step 1; otherwise the weight after the last step
    int64_t count;
    double *value;
};

struct golden {
    struct text recipe; // model section and, last, optimizer section, as YAML
    int64_t seed, rows; // rows: sequences of a global batch
    int64_t steps;      // 1 .. GOLDEN_STEPS_MAX
    bool documents, mask;
    double loss[GOLDEN_STEPS_MAX], norm[GOLDEN_STEPS_MAX];
    struct golden_init *init;
    struct golden_tensor *tensor;
    int init_count, tensor_count, gradient_count; // gradient_count: of the tensors; 0 in some files
};

/* Returns BAD_DATA with the file and the word that could not be parsed. */
MUST_USE enum status golden_read(const char *path, struct golden *out);
void golden_free(struct golden *golden); // accepts {0}

/* NULL if the file has none. */
const struct golden_tensor *golden_find(const struct golden *golden, const char *name, bool gradient);

/* The results of a run: the initial values of the whole model, and after each step that step's gradients. */
struct run_record {
    struct snapshot initial, step[GOLDEN_STEPS_MAX];
};

enum golden_quantity {
    GOLDEN_INITIAL,  // bitwise
    GOLDEN_REPLICAS, // values held by several ranks: bitwise
    GOLDEN_LOSS,
    GOLDEN_NORM,
    GOLDEN_GRADIENT, // of step 1
    GOLDEN_UPDATE,   // AdamW over all steps, from the run's own gradients: weights, m and v
    GOLDEN_WEIGHT,   // after the last step
    GOLDEN_QUANTITIES
};
extern const char *const golden_quantity_name[GOLDEN_QUANTITIES];

/* The largest error / bound of each quantity, and its location; a ratio above 1 is out of bounds. */
struct golden_verdict {
    double ratio[GOLDEN_QUANTITIES], error[GOLDEN_QUANTITIES];
    char where[GOLDEN_QUANTITIES][PARAM_NAME_CHARS];
    int outside;
};

/* The spread of one-rank runs with noise as large as the bound added to their gradients: the root mean square
 * over GOLDEN_NOISY_RUNS runs. */
enum { GOLDEN_NOISY_RUNS = 8 };
struct golden_spread {
    int rows;
    double **weight; // [rows][elements], after the last step
    int64_t steps;
    double loss[GOLDEN_STEPS_MAX], norm[GOLDEN_STEPS_MAX];
};
MUST_USE enum status golden_spread_create(const struct snapshot *model, int64_t steps,
                                          struct golden_spread *out);
void golden_spread_free(struct golden_spread *spread);
/* Called once for each noisy run. */
void golden_spread_add(struct golden_spread *spread, const struct run_record *quiet,
                       const struct run_record *noisy);

/* Bounds of the gradients in `now`, sums over `tokens`: (*out)[i] for each element of the row; the caller
 * frees it. */
MUST_USE enum status golden_gradient_bound(const struct model_config *model, const struct params *params,
                                           const struct snapshot *now, double tokens, int row, float **out);

/* recipe: the golden file's recipe, on any layout. */
MUST_USE enum status golden_compare(const struct golden *golden, const struct recipe *recipe,
                                    const struct params *params, const struct golden_spread *spread,
                                    const struct run_record *record, struct golden_verdict *out);
