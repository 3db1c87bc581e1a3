// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_verify.h"

#include <math.h>
#include <string.h>

enum status tiny_verify(const struct tiny *tiny, const struct comparison *comparison, int steps,
                        struct hooks injected, struct verify_report *report)
{
    struct verify_options options = {.steps = steps, .injected = injected};
    struct recipe *layout = NULL, *one = NULL;
    char one_rank[400];
    snprintf(one_rank, sizeof one_rank,
             "%s %s pp=1 dp=1 parallel.sequence_parallel=false parallel.zero_stage=0 pipeline.schedule=1f1b "
             "pipeline.schedule_file=none pipeline.layout=[]",
             comparison->one, strstr(comparison->one, "tp=") != NULL ? "" : "tp=1");
    const char *common = comparison->common;
    enum status status = tiny_recipe(tiny, comparison->family, common, comparison->layout, 0, &layout);
    if (status == OK)
        status = tiny_recipe(tiny, comparison->family, common, one_rank, 0, &one);
    options.layout = layout;
    options.one_rank = one;
    if (status == OK)
        status = verify(&options, report);
    recipe_destroy(layout);
    recipe_destroy(one);
    return status;
}

static const char *const quantity_names[QUANTITIES] = {
    [VERIFY_INITIAL] = "initial weight",
    [VERIFY_REPLICAS] = "replicas",
    [VERIFY_GRADIENT] = "gradient",
    [VERIFY_WEIGHT] = "weight",
    [VERIFY_M] = "m",
    [VERIFY_V] = "v",
    [QUANTITY_LOSS] = "loss",
    [QUANTITY_NORM] = "gradient norm",
};

const char *quantity_name(int quantity)
{
    return quantity_names[quantity];
}

double largest_ratio(const struct verify_report *report, int quantity, const char *row)
{
    double largest = 0.0;
    for (int s = 0; quantity >= VERIFY_QUANTITIES && s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        const double *pair = quantity == QUANTITY_LOSS ? step->loss : step->norm;
        double bound = quantity == QUANTITY_LOSS ? step->loss_bound : step->norm_bound;
        largest = fmax(largest, fabs(pair[0] - pair[1]) / bound);
    }
    for (int i = 0; quantity < VERIFY_QUANTITIES && i < report->rows; i++)
        if (row == NULL || strcmp(row, report->names[i]) == 0)
            largest = fmax(largest, report->worst[quantity][i].ratio);
    return largest;
}
