// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/report.h"

#include "base/memory.h"
#include "layers/model.h"
#include "planner/memory/memory_formula.h"
#include "planner/memory/memory_states.h"
#include "planner/plan/memory_plan.h"
#include "schedules/offload_plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Consecutive stages. */
struct stages {
    int first, last;
};

/* Whether the pipeline coordinate has one of the stages, or its replica. */
static bool has_stage(const struct run *run, int pp, const struct stages *stages, int replica)
{
    for (int stage = stages->first; stage <= stages->last; stage++)
        if (run->schedule->rank_of[replica][stage] == pp)
            return true;
    return false;
}

/* Appends the ranks of the stages: "r0 r1 r2 r3" or "r0-r3". */
static void add_ranks(const struct run *run, const struct stages *stages, int replica, struct text *out)
{
    int first = -1, previous = -1;
    for (int rank = 0; rank <= run->mesh.world; rank++) {
        bool here = rank < run->mesh.world &&
                    has_stage(run, mesh_coord(&run->mesh, MESH_DENSE, rank).pp, stages, replica);
        if (here && (first < 0 || rank != previous + 1)) {
            if (first >= 0)
                text_add(out, previous > first ? "-%d " : " ", previous);
            text_add(out, "%d", rank);
            first = rank;
        }
        if (here)
            previous = rank;
    }
    if (previous > first)
        text_add(out, "-%d", previous);
}

static int layers_of(const struct run *run, int stage)
{
    return run->stage_first_layer[stage + 1] - run->stage_first_layer[stage];
}

/* The stages from `first` on that have the same number of layers, and neither embedding nor head; at least
 * three, else `first` alone. */
static struct stages equal_stages(const struct run *run, int first)
{
    int last = first;
    while (first > 0 && last + 1 < run->schedule->stages - 1 &&
           layers_of(run, last + 1) == layers_of(run, first))
        last++;
    return (struct stages){first, last - first >= 2 ? last : first};
}

static void print_stages(const struct run *run, const struct stages *stages, FILE *to)
{
    const struct schedule *schedule = run->schedule;
    int first = run->stage_first_layer[stages->first], last = run->stage_first_layer[stages->last + 1] - 1;
    struct text name = {0}, layers = {0}, ranks = {0};
    text_add(&name, stages->last > stages->first ? "%d-%d" : "%d", stages->first, stages->last);
    text_add(&layers, "%s", stages->first == 0 ? "embedding, " : "");
    if (last > first)
        text_add(&layers, "layers %d-%d", first, last);
    else
        text_add(&layers, last == first ? "layer %d" : "no layer", first);
    if (stages->last > stages->first)
        text_add(&layers, ", %d each", layers_of(run, stages->first));
    text_add(&layers, "%s", stages->last == schedule->stages - 1 ? ", norm, head" : "");
    add_ranks(run, stages, 0, &ranks);
    if (schedule_has_replicas(schedule)) {
        text_add(&ranks, " and ");
        add_ranks(run, stages, 1, &ranks);
    }
    fprintf(to, "  stage %-4s %-34s rank %s\n", name.chars, layers.chars, ranks.chars);
    text_free(&name);
    text_free(&layers);
    text_free(&ranks);
}

/* Prints the traffic of ZeRO 2 and 3, which communicate more than once per step. */
static void print_zero(const struct run *run, FILE *to)
{
    const struct recipe *recipe = run->recipe;
    int stage = recipe->data_parallel.zero_stage, m = run->schedule->m;
    struct params params = {0};
    struct memory_states states = {.messages = 0};
    char bytes[NUMBER_CHARS];
    enum status status =
        params_declare(&recipe->model, &run->mesh.degrees, recipe->layers.sequence_parallel, &params);
    if (status == OK)
        status = memory_states_of(run, &params, (struct mesh_coord){0}, &states);
    params_free(&params);
    if (status != OK)
        return; // the run reports the error
    bytes_text(states.whole * (int64_t)sizeof(float), bytes);
    fprintf(to,
            "ZeRO %d: for each of %d microbatch%s rank 0 reduce-scatters %s of gradients "
            "in %d messages; ZeRO 0 and 1 do this once per step",
            stage, m, m == 1 ? "" : "es", bytes, states.messages);
    bytes_text(states.whole * (int64_t)dtype_bytes(recipe->precision.params_dtype), bytes);
    if (stage == 3)
        fprintf(to, "; and gathers %s of weights for F, and again for B or I", bytes);
    fprintf(to, "\n");
}

void report_layout(const struct run *run, FILE *to)
{
    const struct recipe *recipe = run->recipe;
    const struct degrees *d = &run->mesh.degrees;
    char parameters[NUMBER_CHARS], tokens[NUMBER_CHARS], chunks[48] = "", zero[32] = "";
    if (recipe->data_parallel.zero_stage > 0)
        snprintf(zero, sizeof zero, ", ZeRO %d", recipe->data_parallel.zero_stage);
    if (run->schedule->v > 1)
        snprintf(chunks, sizeof chunks, " with %d model chunks per rank", run->schedule->v);
    int64_t elements = 0;
    MUST(model_parameter_count(&recipe->model, &elements));
    count_text((double)elements, parameters);
    count_text((double)(recipe->train.global_batch_size * recipe->model.seq_length), tokens);
    fprintf(to, "%s: %s parameters, %lld steps of %s tokens (%lld sequences of %lld)\n", recipe->name,
            parameters, (long long)recipe->train.train_iters, tokens,
            (long long)recipe->train.global_batch_size, (long long)recipe->model.seq_length);
    fprintf(to, "%d rank%s: dp %d x tp %d x pp %d%s%s, ", run->mesh.world, run->mesh.world == 1 ? "" : "s",
            d->dp, d->tp, d->pp, recipe->layers.sequence_parallel ? ", sequence parallel" : "", zero);
    fprintf(to, "%s%s, %d microbatch%s of %lld per step and data-parallel rank, device %s\n",
            recipe->pipeline.schedule_file != NULL ? recipe->pipeline.schedule_file
                                                   : recipe->pipeline.schedule,
            chunks, run->schedule->m, run->schedule->m == 1 ? "" : "es",
            (long long)recipe->train.micro_batch_size, recipe->cluster.device);
    fflush(to);
}

void report_stages(const struct run *run, bool detail, FILE *to)
{
    for (int stage = 0; stage < run->schedule->stages;) {
        const struct stages stages = detail ? (struct stages){stage, stage} : equal_stages(run, stage);
        print_stages(run, &stages, to);
        stage = stages.last + 1;
    }
    if (run->recipe->data_parallel.zero_stage >= 2)
        print_zero(run, to);
    fflush(to);
}

/* Width of a column: that of its name, at least 10; 0 for a part that no rank has. */
static int part_width(const struct rank_memory *ranks, int count, int part)
{
    bool any = false;
    for (int i = 0; i < count; i++)
        any = any || ranks[i].part_bytes[part] > 0;
    int name = (int)strlen(part_name((enum part)part));
    return !any ? 0 : name > 10 ? name : 10;
}

static bool same_memory(const struct rank_memory *a, const struct rank_memory *b)
{
    return a->bytes == b->bytes && memcmp(a->part_bytes, b->part_bytes, sizeof a->part_bytes) == 0;
}

void report_range(int first, int last, char out[REPORT_RANGE_CHARS])
{
    snprintf(out, REPORT_RANGE_CHARS, last > first ? "%d-%d" : "%d", first, last);
}

/* detail: ranks with equal memory have rows of their own. */
static void print_parts(const struct rank_memory *ranks, int count, bool detail, FILE *to)
{
    char number[NUMBER_CHARS], range[REPORT_RANGE_CHARS];
    fprintf(to, "memory by part:\n");
    fprintf(to, "%5s %6s", "rank", "pp");
    for (int part = 0; part < PART_COUNT; part++)
        if (part_width(ranks, count, part) > 0)
            fprintf(to, "  %*s", part_width(ranks, count, part), part_name((enum part)part));
    fprintf(to, "  %10s\n", "total");
    for (int i = 0, next; i < count; i = next) {
        for (next = i + 1; !detail && next < count && same_memory(&ranks[i], &ranks[next]);)
            next++;
        report_range(ranks[i].pp, ranks[next - 1].pp, range);
        fprintf(to, "%5d %6s", ranks[i].rank, range);
        for (int part = 0; part < PART_COUNT; part++)
            if (part_width(ranks, count, part) > 0)
                fprintf(to, "  %*s", part_width(ranks, count, part),
                        bytes_text(ranks[i].part_bytes[part], number));
        fprintf(to, "  %10s\n", bytes_text(ranks[i].bytes, number));
    }
}

/* "4 x 24.00 KiB": number of slots, and bytes of one microbatch. */
static void print_slots(const struct run *run, const struct rank_memory *ranks, int count, FILE *to)
{
    fprintf(to, "activations, slots x bytes of a microbatch:\n%5s %6s %6s", "rank", "pp", "stage");
    for (int kind = 0; kind < SLOT_LIFETIMES; kind++)
        fprintf(to, "  %15s", lifetime_name((enum lifetime)kind));
    for (int i = 0; i < count * run->schedule->chunks; i++) {
        const struct rank_memory *memory = &ranks[i / run->schedule->chunks];
        int chunk = i % run->schedule->chunks;
        fprintf(to, "\n%5d %6d %6d", memory->rank, memory->pp,
                schedule_stage(run->schedule, memory->pp, chunk));
        for (int kind = 0; kind < SLOT_LIFETIMES; kind++) {
            const struct slot_use *use = &memory->slots[chunk * SLOT_LIFETIMES + kind];
            char bytes[NUMBER_CHARS], cell[2 * NUMBER_CHARS + 4] = "-";
            if (use->slots > 0)
                snprintf(cell, sizeof cell, "%lld x %s", (long long)use->slots,
                         bytes_text(use->bytes, bytes));
            fprintf(to, "  %15s", cell);
        }
    }
    fprintf(to, "\n");
}

void report_parts(const struct run *run, const struct rank_memory *ranks, int count, bool detail, FILE *to)
{
    print_parts(ranks, count, detail, to);
    if (detail)
        print_slots(run, ranks, count, to);
}

void report_most(const struct rank_memory *ranks, int count, FILE *to)
{
    struct text largest = {0};
    char number[NUMBER_CHARS];
    int most = 0;
    for (int i = 1; i < count; i++)
        most = ranks[i].bytes > ranks[most].bytes ? i : most;
    memory_need_largest(ranks[most].part_bytes, &largest);
    fprintf(to, "memory of a rank: at most %s (rank %d): %s\n", bytes_text(ranks[most].bytes, number),
            ranks[most].rank, largest.chars);
    text_free(&largest);
}

/* True if the schedule leaves time for an offload on some rank. */
static enum status offloads_anything(const struct run *run, bool *out)
{
    *out = false;
    for (int pp = 0; pp < run->schedule->p && !*out; pp++) {
        struct offload_plan *offloaded = NULL;
        TRY(offload_plan_create(run->schedule, pp, &offloaded));
        *out = offloaded->any;
        offload_plan_destroy(offloaded);
    }
    return OK;
}

enum status report_offload(const struct run *run, FILE *to)
{
    bool any = true;
    if (run->recipe->memory.offload_activations)
        TRY(offloads_anything(run, &any));
    if (!any)
        print_line(to, "warning: memory.offload_activations has no effect: in this schedule backward "
                       "passes follow their forward (almost) immediately; use three or more pipeline "
                       "ranks, or more microbatches in flight");
    return OK;
}

static enum status evaluate_ranks(const struct run *run, struct memory_table *tables,
                                  struct rank_memory *ranks)
{
    int threads = run_threads(run, run->mesh.world);
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        int rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp});
        TRY(memory_formula(run, rank, threads, &tables[pp]));
        ranks[pp] = (struct rank_memory){
            .rank = rank, .pp = pp, .bytes = tables[pp].bytes, .slots = tables[pp].slots};
        memcpy(ranks[pp].part_bytes, tables[pp].part_bytes, sizeof ranks[pp].part_bytes);
    }
    return OK;
}

enum status report_formula(const struct run *run, FILE *to)
{
    int count = run->mesh.degrees.pp;
    AUTO_FREE struct memory_table *tables =
        memory_zeroed((size_t)count, sizeof *tables, "the memory of ranks");
    AUTO_FREE struct rank_memory *ranks = memory_zeroed((size_t)count, sizeof *ranks, "the memory of ranks");
    const enum status status = evaluate_ranks(run, tables, ranks);
    if (status == OK)
        report_most(ranks, count, to);
    for (int pp = 0; pp < count; pp++)
        memory_table_free(&tables[pp]);
    fflush(to);
    return status;
}

/* Sum of the terms from the i-th on with the same name; 0 if an earlier term has it. */
static int64_t bytes_of_name(const struct memory_table *table, int i)
{
    int64_t bytes = 0;
    for (int k = 0; k < table->count; k++) {
        const struct memory_term *term = &table->list[k];
        if (term->part != table->list[i].part || strcmp(term->what, table->list[i].what) != 0)
            continue;
        if (k < i)
            return 0;
        bytes += term->bytes * term->count * term->slots;
    }
    return bytes;
}

enum status report_terms(const struct run *run, int rank, FILE *to)
{
    struct memory_table table;
    TRY(memory_formula(run, rank, run_threads(run, run->mesh.world), &table));
    fprintf(to, "rank %d, term by term:\n", rank);
    for (int part = 0; part < PART_COUNT; part++)
        for (int i = 0; i < table.count; i++) {
            char number[NUMBER_CHARS];
            int64_t bytes = (int)table.list[i].part == part ? bytes_of_name(&table, i) : 0;
            if (bytes > 0)
                fprintf(to, "  %-13s %11s  %s\n", part_name((enum part)part), bytes_text(bytes, number),
                        table.list[i].what);
        }
    memory_table_free(&table);
    return OK;
}

/* ---- of a dry run ---- */

/* Ranks of one pipeline coordinate have equal sizes: only the first of each is planned. */
static enum status plan_ranks(const struct run *run, struct rank_memory *ranks, struct slot_use *slots)
{
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        ranks[pp] =
            (struct rank_memory){.rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp}),
                                 .pp = pp,
                                 .slots = slots + pp * run->schedule->chunks * SLOT_LIFETIMES};
        struct memory_plan memory_plan;
        TRY(memory_plan_make(run, ranks[pp].rank, slots + pp * run->schedule->chunks * SLOT_LIFETIMES,
                             &memory_plan));
        memcpy(ranks[pp].part_bytes, memory_plan.use.peak_bytes, sizeof ranks[pp].part_bytes);
        ranks[pp].bytes = memory_plan.use.peak_total_bytes;
    }
    return OK;
}

enum status report_dry_run(const struct run *run, FILE *to)
{
    const int count = run->mesh.degrees.pp;
    AUTO_FREE struct rank_memory *ranks = memory_zeroed((size_t)count, sizeof *ranks, "the memory of ranks");
    AUTO_FREE struct slot_use *slots = memory_zeroed(
        (size_t)count * (size_t)run->schedule->chunks * SLOT_LIFETIMES, sizeof *slots, "the slots of ranks");
    TRY(plan_ranks(run, ranks, slots));
    report_most(ranks, count, to);
    fflush(to);
    return OK;
}
