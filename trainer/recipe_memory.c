// SPDX-License-Identifier: Apache-2.0
/* Sections `memory` and `precision` of a recipe: what it asks for, and what of it has no effect. */
#include "trainer/recipe_table.h"

#include <stdio.h>
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

enum dtype recipe_working_dtype(const struct recipe *recipe)
{
    switch (recipe->precision.params_dtype) {
    case RECIPE_FP32:
        return F32;
    case RECIPE_BF16:
        return BF16;
    case RECIPE_FP16:
        return F16;
    }
    die(__FILE__, __LINE__, "params_dtype", "%d is none", (int)recipe->precision.params_dtype);
}

/* Said, and not what it would be anyway. */
static bool is_said(const struct recipe *recipe, int row)
{
    enum origin_kind kind = recipe->origin[row].kind;
    struct text value = {0};
    value_text(recipe, &recipe_rows[row], &value);
    bool said = (kind == FROM_FILE || kind == FROM_COMMAND_LINE) &&
                strcmp(text_chars(&value), recipe_rows[row].fallback) != 0;
    text_free(&value);
    return said;
}

static const char *const granularity_names[] = {
    [RECOMPUTE_NONE] = "none", [RECOMPUTE_SELECTIVE] = "selective", [RECOMPUTE_FULL] = "full"};

/* A key that only one granularity reads. */
static void warn_unread(const struct recipe *recipe, const char *key, enum recompute_granularity reader,
                        struct problems *problems)
{
    int row = row_of(key);
    enum recompute_granularity granularity = recipe->memory.recompute_granularity;
    if (granularity == reader || !is_said(recipe, row))
        return;
    struct text where = {0};
    origin_text(recipe, row, &where);
    problems_warn(problems,
                  "%s: %s has no effect: memory.recompute_granularity is %s, and only %s looks at it",
                  text_chars(&where), key, granularity_names[granularity], granularity_names[reader]);
    text_free(&where);
}

static void warn_too_many(const struct recipe *recipe, struct problems *problems)
{
    const struct recipe_memory *memory = &recipe->memory;
    int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    int64_t most = 0;
    for (int stage = 0; stage < stages; stage++) {
        int64_t layers = recipe_stage_layers(recipe, stage);
        most = layers > most ? layers : most;
    }
    if (memory->recompute_granularity != RECOMPUTE_FULL || memory->recompute_num_layers <= most)
        return;
    struct text where = {0};
    origin_text(recipe, row_of("memory.recompute_num_layers"), &where);
    problems_warn(problems, "%s: memory.recompute_num_layers %lld is more than the %lld layers of any stage",
                  text_chars(&where), (long long)memory->recompute_num_layers, (long long)most);
    text_free(&where);
}

static void warn_of(const struct recipe *recipe, const char *key, struct problems *problems, const char *why)
{
    struct text where = {0};
    origin_text(recipe, row_of(key), &where);
    problems_warn(problems, "%s: %s has no effect: %s", text_chars(&where), key, why);
    text_free(&where);
}

/* Messages that a recipe wants otherwise, and that it does not have. */
static void warn_of_messages(const struct recipe *recipe, struct problems *problems)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    char why[120];
    snprintf(why, sizeof why, "parallel.zero_stage is %d, and only 3 gathers weights for each layer",
             parallel->zero_stage);
    if (parallel->overlap_param_gather && parallel->zero_stage != 3)
        warn_of(recipe, "parallel.overlap_param_gather", problems, why);
    if (parallel->tp_comm_overlap && !parallel->sequence_parallel)
        warn_of(recipe, "parallel.tp_comm_overlap", problems,
                "it is about the messages of parallel.sequence_parallel, which is false");
}

void recipe_warn_memory(const struct recipe *recipe, struct problems *problems)
{
    warn_of_messages(recipe, problems);
    warn_unread(recipe, "memory.recompute_method", RECOMPUTE_FULL, problems);
    warn_unread(recipe, "memory.recompute_num_layers", RECOMPUTE_FULL, problems);
    warn_unread(recipe, "memory.recompute_modules", RECOMPUTE_SELECTIVE, problems);
    warn_too_many(recipe, problems);
    if (recipe->memory.recompute_granularity != RECOMPUTE_SELECTIVE ||
        recipe->memory.recompute_modules.count > 0)
        return;
    struct text where = {0};
    origin_text(recipe, row_of("memory.recompute_modules"), &where);
    problems_warn(problems,
                  "%s: memory.recompute_modules is empty: nothing is computed again; [core_attn] works",
                  text_chars(&where));
    text_free(&where);
}
