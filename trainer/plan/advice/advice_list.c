// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/advice/advice_list.h"

#include <stdarg.h>
#include <string.h>

static void PRINTF_LIKE(3, 4) propose(struct advice_list *list, bool saves_memory, const char *format, ...)
{
    va_list arguments;
    CHECK(list->count < ADVICE_CANDIDATES);
    va_start(arguments, format);
    vsnprintf(list->changes[list->count], ADVICE_CHARS, format, arguments);
    va_end(arguments);
    list->saves_memory[list->count++] = saves_memory;
}

static void add_switch(struct advice_list *list, const char *key, bool now, bool saves_memory)
{
    propose(list, saves_memory && !now, "%s=%s", key, now ? "false" : "true");
}

static void add_memory_keys(const struct recipe *r, struct advice_list *list)
{
    static const char *const granularities[] = {"none", "selective", "full"};
    const int now = (int)r->layers.recompute.granularity;
    const long long batch = (long long)r->train.micro_batch_size;
    for (int i = 0; i < 3; i++)
        if (i != now)
            propose(list, i > now, "memory.recompute_granularity=%s", granularities[i]);
    propose(list, false, "train.micro_batch_size=%lld", 2 * batch);
    if (batch % 2 == 0)
        propose(list, true, "train.micro_batch_size=%lld", batch / 2);
    if (batch % 4 == 0)
        propose(list, true, "train.micro_batch_size=%lld", batch / 4);
    for (int stage = 0; stage <= 3 && r->parallel.data_parallel_size > 1; stage++)
        if (stage != r->data_parallel.zero_stage)
            propose(list, stage > r->data_parallel.zero_stage, "parallel.zero_stage=%d", stage);
    add_switch(list, "memory.offload_optimizer", r->memory.offload_optimizer, true);
    add_switch(list, "memory.offload_activations", r->memory.offload_activations, true);
}

static void add_schedules(const struct recipe *r, struct advice_list *list)
{
    static const char *const names[] = {"1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"};
    if (r->parallel.pipeline_parallel_size == 1)
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], r->pipeline.schedule) != 0)
            propose(list, i == 0 || i >= 5, "pipeline.schedule=%s",
                    names[i]); // these hold fewer microbatches
    for (int v = 2; v <= 4; v *= 2)
        if (v != r->pipeline.virtual_stages && strcmp(r->pipeline.schedule, "interleaved") == 0)
            propose(list, false, "pipeline.virtual_stages=%d", v);
}

static void add_overlaps(const struct recipe *r, struct advice_list *list)
{
    if (r->parallel.data_parallel_size > 1) {
        add_switch(list, "parallel.overlap_grad_reduce", r->data_parallel.overlap_grad_reduce, false);
        add_switch(list, "parallel.overlap_param_gather", r->data_parallel.overlap_param_gather, false);
    }
    if (r->parallel.tensor_parallel_size > 1) {
        add_switch(list, "parallel.sequence_parallel", r->layers.sequence_parallel, true);
        add_switch(list, "parallel.tp_comm_overlap", r->layers.tp_comm_overlap, false);
    }
}

/* Multiplies one degree by 2 or 4, and divides another. */
static void add_degrees(const struct recipe *r, struct advice_list *list)
{
    const char *const names[] = {"tp", "pp", "dp"};
    const int degrees[] = {r->parallel.tensor_parallel_size, r->parallel.pipeline_parallel_size,
                           r->parallel.data_parallel_size};
    for (int factor = 2; factor <= 4; factor *= 2)
        for (int more = 0; more < 3; more++)
            for (int less = 0; less < 3; less++)
                if (more != less && degrees[less] % factor == 0)
                    propose(list, less == 2, "%s=%d %s=%d", names[more], factor * degrees[more], names[less],
                            degrees[less] / factor);
}

void advice_list_make(const struct recipe *recipe, struct advice_list *out)
{
    *out = (struct advice_list){.count = 0};
    add_memory_keys(recipe, out);
    add_degrees(recipe, out);
    add_schedules(recipe, out);
    add_overlaps(recipe, out);
}
