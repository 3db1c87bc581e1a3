// SPDX-License-Identifier: Apache-2.0
/* The ops of a step by layer: the sum over one rank of each pipeline coordinate. Consecutive layers with the
 * same ops form one group:
 *
 *     embedding | layers 0-95 | head | outside of layers (loading, optimizer) */
#include "planner/plan/step_plan.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct layer_group {
    int first, last; // layers of the model; NO_LAYER: ops outside of layers
    int64_t *counts; // [ops] number of times that each op runs in these layers
};

struct ops_by_layer {
    const struct step_plan *plan;
    struct op_record *ops; // the distinct ops of all tapes
    int count;
    int **number;         // [pipeline ranks][ops of the tape]: index in ops
    uint64_t *signatures; // [layers]: equal for layers with the same ops
    int layers;           // number of: NO_LAYER, embedding, blocks, head
    struct layer_group *groups;
    int *group_of; // [layers]
    int group_count;
};

static int index_of(int layer)
{
    return layer - NO_LAYER;
}

/* ---- distinct ops ---- */

static int number_of(struct ops_by_layer *by, const struct op_record *op)
{
    int i = 0;
    while (i < by->count && !op_record_equals(&by->ops[i], op))
        i++;
    if (i == by->count)
        by->ops[by->count++] = *op;
    return i;
}

static void number_ops(struct ops_by_layer *by)
{
    const struct step_plan *plan = by->plan;
    int most = 0;
    CHECK(plan->count > 0);
    for (int r = 0; r < plan->count; r++)
        most += plan->tapes[r]->op_count;
    by->ops = memory_zeroed((size_t)most + 1, sizeof *by->ops, "the ops of ranks");
    by->number = memory_zeroed((size_t)plan->count, sizeof(int *), "the ops of ranks");
    for (int r = 0; r < plan->count; r++) {
        by->number[r] = memory_zeroed((size_t)plan->tapes[r]->op_count + 1, sizeof(int), "the ops of ranks");
        for (int i = 0; i < plan->tapes[r]->op_count; i++)
            by->number[r][i] = number_of(by, &plan->tapes[r]->ops[i]);
    }
}

/* ---- groups of equal layers ---- */

static uint64_t hash_of(int number)
{
    uint64_t z = (uint64_t)number * 0x9e3779b97f4a7c15U + 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

typedef void visit(struct ops_by_layer *by, int layer, int number);

static void visit_ops(struct ops_by_layer *by, visit *call)
{
    for (int r = 0; r < by->plan->count; r++) {
        const struct tape *tape = by->plan->tapes[r];
        for (int lane = 0; lane < tape->lane_count; lane++)
            for (int i = 0; i < tape->lanes[lane].count; i++) {
                const struct tape_item *item = &tape->lanes[lane].items[i];
                if (item->kind == TAPE_OP)
                    call(by, index_of(item->layer), by->number[r][item->index]);
            }
    }
}

static void sign(struct ops_by_layer *by, int layer, int number)
{
    by->signatures[layer] += hash_of(number);
}

static void count(struct ops_by_layer *by, int layer, int number)
{
    by->groups[by->group_of[layer]].counts[number]++;
}

/* Makes a group of each run of blocks with the same signature; the embedding, the head and the other ops have
 * a group each. */
static void group_layers(struct ops_by_layer *by)
{
    const int blocks = (int)by->plan->run->recipe->model.num_layers;
    by->layers = index_of(blocks) + 1;
    by->signatures = memory_zeroed((size_t)by->layers, sizeof *by->signatures, "the layers of ranks");
    by->groups = memory_zeroed((size_t)by->layers, sizeof *by->groups, "the layers of ranks");
    by->group_of = memory_zeroed((size_t)by->layers, sizeof *by->group_of, "the layers of ranks");
    visit_ops(by, sign);
    for (int layer = NO_LAYER; layer <= blocks; layer++) {
        const bool extends = layer > 0 && layer < blocks &&
                             by->signatures[index_of(layer)] == by->signatures[index_of(layer - 1)];
        if (!extends)
            by->groups[by->group_count++] = (struct layer_group){.first = layer};
        by->groups[by->group_count - 1].last = layer;
        by->group_of[index_of(layer)] = by->group_count - 1;
    }
    for (int i = 0; i < by->group_count; i++)
        by->groups[i].counts =
            memory_zeroed((size_t)by->count + 1, sizeof *by->groups[i].counts, "the ops of layers");
    visit_ops(by, count);
}

/* ---- output ---- */

struct op_line {
    struct op_record op;
    int64_t count;
    double seconds;
};

static int more_expensive(const void *a, const void *b)
{
    const struct op_line *x = a, *y = b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

/* Ops of equal shape differ only in a bias or an accumulated output: their mean is shown. */
static void merge(struct op_line *lines, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = i + 1; k < count; k++) {
            struct op_line *a = &lines[i], *b = &lines[k];
            const bool same = a->count > 0 && b->count > 0 && a->op.kind == b->op.kind &&
                              a->op.dtype == b->op.dtype &&
                              memcmp(a->op.shape, b->op.shape, sizeof a->op.shape) == 0;
            if (!same)
                continue;
            const double all = (double)(a->count + b->count);
            a->op.cost.flops =
                ((double)a->count * a->op.cost.flops + (double)b->count * b->op.cost.flops) / all;
            a->op.cost.bytes =
                ((double)a->count * a->op.cost.bytes + (double)b->count * b->op.cost.bytes) / all;
            a->seconds += b->seconds;
            a->count += b->count;
            *b = (struct op_line){.count = 0};
        }
}

/* Seconds of the ops of a group. */
static double group_s(const struct ops_by_layer *by, const struct layer_group *group)
{
    double seconds = 0.0;
    for (int i = 0; i < by->count; i++) {
        const struct op_time time = cost_of_op(&by->plan->cost, &by->ops[i]);
        seconds += (double)group->counts[i] * (time.run_s + time.launch_s);
    }
    return seconds;
}

static void print_name(const struct ops_by_layer *by, const struct layer_group *group, double seconds,
                       double all_s, FILE *to)
{
    const int blocks = (int)by->plan->run->recipe->model.num_layers;
    char name[64];
    if (group->first == NO_LAYER)
        snprintf(name, sizeof name, "outside of layers");
    else if (group->first == LAYER_EMBEDDING || group->first == blocks)
        snprintf(name, sizeof name, "%s", group->first == blocks ? "head" : "embedding");
    else if (group->first == group->last)
        snprintf(name, sizeof name, "layer %d", group->first);
    else
        snprintf(name, sizeof name, "layers %d-%d", group->first, group->last);
    fprintf(to, "%-58s %8s %12s %12s %12.3f %6.1f%%\n", name, "", "", "", 1e3 * seconds,
            100.0 * seconds / all_s);
}

static void print_group(const struct ops_by_layer *by, const struct layer_group *group, double all_s,
                        struct op_line *lines, FILE *to)
{
    const double seconds = group_s(by, group);
    if (seconds <= 0.0)
        return;
    print_name(by, group, seconds, all_s, to);
    for (int i = 0; i < by->count; i++) {
        const struct op_time time = cost_of_op(&by->plan->cost, &by->ops[i]);
        lines[i] = (struct op_line){.op = by->ops[i],
                                    .count = group->counts[i],
                                    .seconds = (double)group->counts[i] * (time.run_s + time.launch_s)};
    }
    merge(lines, by->count);
    qsort(lines, (size_t)by->count, sizeof *lines, more_expensive);
    for (int i = 0; i < by->count && lines[i].seconds > 0.0; i++) {
        char name[OP_RECORD_CHARS];
        fprintf(to, "  %-56s %8lld %12.4g %12.4g %12.3f %6.1f%%\n", op_record_text(&lines[i].op, name),
                (long long)lines[i].count, lines[i].op.cost.flops, lines[i].op.cost.bytes,
                1e3 * lines[i].seconds, 100.0 * lines[i].seconds / all_s);
    }
}

static void print_all(struct ops_by_layer *by, FILE *to)
{
    double all_s = 0.0;
    number_ops(by);
    group_layers(by);
    AUTO_FREE struct op_line *lines = memory_zeroed((size_t)by->count + 1, sizeof *lines, "the ops of ranks");
    for (int i = 0; i < by->group_count; i++)
        all_s += group_s(by, &by->groups[i]);
    fprintf(to, "ops of a step by layer, of one rank of each stage:\n%-58s %8s %12s %12s %12s %7s\n", "  op",
            "count", "FLOPs each", "bytes each", "total ms", "share");
    for (int i = 1; i < by->group_count; i++)
        print_group(by, &by->groups[i], all_s, lines, to);
    print_group(by, &by->groups[0], all_s, lines, to); // outside of layers
}

void step_plan_print_ops(const struct step_plan *plan, FILE *to)
{
    CHECK(plan->profile != NULL);
    struct ops_by_layer by = {.plan = plan};
    print_all(&by, to);
    for (int r = 0; by.number != NULL && r < plan->count; r++)
        free(by.number[r]);
    for (int i = 0; i < by.group_count; i++)
        free(by.groups[i].counts);
    free(by.number);
    free(by.groups);
    free(by.group_of);
    free(by.signatures);
    free(by.ops);
}
