// SPDX-License-Identifier: Apache-2.0
/* Converts the sections `memory` and `precision` to options of layers and kernels. */
#include "trainer/recipe/recipe_table.h"

#include <string.h>

static unsigned modules_of(const struct recipe_names *names)
{
    unsigned modules = 0;
    const struct recipe_row *row = &recipe_rows[recipe_row_index("memory.recompute_modules")];
    for (size_t i = 0; i < names->count; i++)
        for (const struct choice *c = row->choices; c->name != NULL; c++)
            if (strcmp(names->list[i], c->name) == 0)
                modules |= (unsigned)c->value;
    return modules;
}

/* Fills format, scaling, num_layers and high; the other fields are rows of the table. */
static void derive_precision(struct recipe *recipe)
{
    const struct recipe_precision *p = &recipe->precision;
    struct linear_precision *precision = &recipe->layers.precision;
    const int per_matmul[MATMUL_COUNT] = {p->forward_format, p->grad_input_format, p->grad_weight_format};
    static const enum scaling scalings[] = {
        [SCALE_AUTO] = SCALING_TENSORWISE,
        [SCALE_TENSORWISE] = SCALING_TENSORWISE,
        [SCALE_DELAYED] = SCALING_DELAYED,
        [SCALE_BLOCKWISE] = SCALING_BLOCKWISE,
    };
    precision->scaling = scalings[p->scaling];
    precision->num_layers = recipe->model.num_layers;
    precision->high = p->high_precision_layers.list;
    precision->high_count = p->high_precision_layers.count;
    for (int i = 0; i < MATMUL_COUNT; i++)
        precision->format[i] =
            per_matmul[i] == MATMUL_FORMAT_SAME ? p->matmul_format : (enum matmul_format)per_matmul[i];
}

void recipe_derive_layers(struct recipe *recipe)
{
    recipe->layers.recompute.modules = modules_of(&recipe->memory.recompute_modules);
    derive_precision(recipe);
}

static enum dtype dtype_of(enum recipe_dtype dtype)
{
    switch (dtype) {
    case RECIPE_FP32:
        return F32;
    case RECIPE_BF16:
        return BF16;
    case RECIPE_FP16:
        return F16;
    }
    die(__FILE__, __LINE__, "dtype", "%d is none", (int)dtype);
}

enum dtype recipe_working_dtype(const struct recipe *recipe)
{
    return dtype_of(recipe->precision.params_dtype);
}

enum dtype recipe_main_dtype(const struct recipe *recipe)
{
    return dtype_of(recipe->precision.main_params_dtype);
}

const char *recipe_dtype_name(const struct recipe *recipe)
{
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    return names[recipe->precision.params_dtype];
}
