// SPDX-License-Identifier: Apache-2.0
/* Sections `memory` and `precision` of a recipe, as layers and kernels want them. */
#include "trainer/recipe/recipe_table.h"

#include <string.h>

static unsigned modules_of(const struct recipe_names *names)
{
    unsigned modules = 0;
    const struct recipe_row *row = &recipe_rows[row_of("memory.recompute_modules")];
    for (size_t i = 0; i < names->count; i++)
        for (const struct choice *c = row->choices; c->name != NULL; c++)
            if (strcmp(names->list[i], c->name) == 0)
                modules |= (unsigned)c->value;
    return modules;
}

struct recompute recipe_recompute(const struct recipe *recipe)
{
    const struct recipe_memory *memory = &recipe->memory;
    return (struct recompute){
        .granularity = memory->recompute_granularity,
        .method = memory->recompute_method,
        .num_layers = memory->recompute_num_layers,
        .modules = modules_of(&memory->recompute_modules),
    };
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
