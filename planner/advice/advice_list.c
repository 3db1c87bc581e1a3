// SPDX-License-Identifier: Apache-2.0
#include "planner/advice/advice.h"

#include "planner/plan/limits.h"

#include <stdarg.h>
#include <string.h>

static void PRINTF_LIKE(3, 4) propose(struct advice_list *list, unsigned targets, const char *format, ...)
{
    va_list arguments;
    CHECK(list->count < ADVICE_CANDIDATES);
    va_start(arguments, format);
    vsnprintf(list->changes[list->count], ADVICE_CHARS, format, arguments);
    va_end(arguments);
    list->targets[list->count++] = targets;
}

/* on, off: the targets of switching the key on, and off. */
static void add_switch(struct advice_list *list, const char *key, bool now, unsigned on, unsigned off)
{
    propose(list, now ? off : on, "%s=%s", key, now ? "false" : "true");
}

static void add_memory_keys(const struct recipe *r, struct advice_list *list)
{
    static const char *const granularities[] = {"none", "selective", "full"};
    const int now = (int)r->layers.recompute.granularity;
    const long long batch = (long long)r->train.micro_batch_size;
    for (int i = 0; i < 3; i++)
        if (i != now)
            propose(list, i > now ? AT_MEMORY : AT_COMPUTE | AT_SMALL, "memory.recompute_granularity=%s",
                    granularities[i]);
    propose(list, AT_SMALL | AT_TP | AT_PP, "train.micro_batch_size=%lld", 2 * batch);
    if (batch % 2 == 0)
        propose(list, AT_BUBBLE | AT_MEMORY, "train.micro_batch_size=%lld", batch / 2);
    if (batch % 4 == 0)
        propose(list, AT_BUBBLE | AT_MEMORY, "train.micro_batch_size=%lld", batch / 4);
    add_switch(list, "memory.offload_optimizer", r->memory.offload_optimizer, AT_MEMORY, AT_HOST);
    add_switch(list, "memory.offload_activations", r->memory.offload_activations, AT_MEMORY, AT_HOST);
}

static void add_data_keys(const struct recipe *r, struct advice_list *list)
{
    const int stage_now = r->data_parallel.zero_stage;
    const double bucket = r->data_parallel.bucket_size_mb;
    if (r->parallel.data_parallel_size == 1)
        return;
    for (int stage = 0; stage <= 3; stage++)
        if (stage != stage_now)
            propose(list, stage > stage_now ? AT_MEMORY | AT_SMALL : AT_DATA, "parallel.zero_stage=%d",
                    stage);
    if (stage_now <= 1) {
        propose(list, AT_DATA, "parallel.bucket_size_mb=%.6g", 4.0 * bucket);
        propose(list, AT_DATA, "parallel.bucket_size_mb=%.6g", bucket / 4.0);
    }
    add_switch(list, "parallel.overlap_grad_reduce", r->data_parallel.overlap_grad_reduce, AT_DATA, AT_SMALL);
    if (stage_now == 3)
        add_switch(list, "parallel.overlap_param_gather", r->data_parallel.overlap_param_gather, AT_DATA,
                   AT_MEMORY);
}

static void add_schedules(const struct recipe *r, struct advice_list *list)
{
    static const char *const names[] = {"1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"};
    if (r->parallel.pipeline_parallel_size == 1)
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], r->pipeline.schedule) != 0) // the first and the last two hold fewer microbatches
            propose(list, i == 0 || i >= 5 ? AT_BUBBLE | AT_MEMORY : AT_BUBBLE, "pipeline.schedule=%s",
                    names[i]);
    for (int v = 2; v <= 4; v *= 2)
        if (v != r->pipeline.virtual_stages && strcmp(r->pipeline.schedule, "interleaved") == 0)
            propose(list, AT_BUBBLE | AT_PP, "pipeline.virtual_stages=%d", v);
}

static void add_tensor_keys(const struct recipe *r, struct advice_list *list)
{
    if (r->parallel.tensor_parallel_size == 1)
        return;
    add_switch(list, "parallel.tp_comm_overlap", r->layers.tp_comm_overlap, AT_TP, AT_SMALL);
    add_switch(list, "parallel.sequence_parallel", r->layers.sequence_parallel, AT_MEMORY | AT_SMALL, AT_TP);
}

/* Multiplies one degree by 2 or 4, and divides another. */
static void add_degrees(const struct recipe *r, struct advice_list *list)
{
    static const unsigned targets[] = {AT_TP | AT_SMALL, AT_BUBBLE | AT_PP, AT_DATA | AT_MEMORY};
    const char *const names[] = {"tp", "pp", "dp"};
    const int degrees[] = {r->parallel.tensor_parallel_size, r->parallel.pipeline_parallel_size,
                           r->parallel.data_parallel_size};
    for (int factor = 2; factor <= 4; factor *= 2)
        for (int more = 2; more >= 0; more--)
            for (int less = 0; less < 3; less++)
                if (more != less && degrees[less] % factor == 0)
                    propose(list, targets[less], "%s=%d %s=%d", names[more], factor * degrees[more],
                            names[less], degrees[less] / factor);
}

/* ---- order ---- */

static unsigned target_of(const char *limit)
{
    static const struct {
        const char *limit;
        unsigned target;
    } targets[] = {
        {"tp", AT_TP},       {"pp", AT_PP},         {"dp", AT_DATA},         {"zero", AT_DATA},
        {"host", AT_HOST},   {"bubble", AT_BUBBLE}, {"compute", AT_COMPUTE}, {"memory_bound", AT_SMALL},
        {"launch", AT_SMALL}};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (strcmp(targets[i].limit, limit) == 0)
            return targets[i].target;
    return 0;
}

/* How much of the step the change may save: the limits that it targets. Only recomputation can be saved of
 * compute, about a quarter. A plan that does not fit needs memory first. */
static double promise(const struct step_plan *plan, unsigned targets)
{
    struct plan_limit limits[MAX_LIMITS];
    const int count = plan_limits(plan, limits);
    double sum = !plan->fits && (targets & AT_MEMORY) != 0 ? 10.0 : 0.0;
    for (int i = 0; i < count; i++)
        if ((targets & target_of(limits[i].name)) != 0)
            sum += limits[i].fraction * (target_of(limits[i].name) == AT_COMPUTE ? 0.25 : 1.0);
    return sum;
}

/* Sorts by promise; equal ones keep their order. */
static void sort(const struct step_plan *plan, struct advice_list *list)
{
    struct advice_list unsorted = *list;
    double promises[ADVICE_CANDIDATES];
    for (int i = 0; i < unsorted.count; i++) {
        promises[i] = promise(plan, unsorted.targets[i]);
        int at = i;
        for (; at > 0 && promises[at - 1] < promises[at]; at--) {
            const double larger = promises[at];
            promises[at] = promises[at - 1];
            promises[at - 1] = larger;
            memcpy(list->changes[at], list->changes[at - 1], ADVICE_CHARS);
            list->targets[at] = list->targets[at - 1];
        }
        memcpy(list->changes[at], unsorted.changes[i], ADVICE_CHARS);
        list->targets[at] = unsorted.targets[i];
    }
}

void advice_list_make(const struct step_plan *plan, struct advice_list *out)
{
    const struct recipe *recipe = plan->run->recipe;
    *out = (struct advice_list){.count = 0};
    add_tensor_keys(recipe, out);
    add_degrees(recipe, out);
    add_memory_keys(recipe, out);
    add_data_keys(recipe, out);
    add_schedules(recipe, out);
    sort(plan, out);
}
