// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/training/tape_compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LANES = 16 };

/* ---- comparison ---- */

/* The events that a lane records within the step, in order. Corresponding events of two tapes have equal
 * indices here; their numbers depend on the device. */
struct events {
    int *number, count;
};

static struct events events_of(const struct tape_lane *lane)
{
    struct events events = {.number = calloc((size_t)lane->count + 1, sizeof(int))};
    CHECK(events.number != NULL);
    for (int i = 0; i < lane->count; i++)
        if (lane->items[i].kind == TAPE_RECORD)
            events.number[events.count++] = lane->items[i].index;
    return events;
}

/* An event of the plan was either recorded within the step, and then corresponds to the real event with the
 * same index, or before it. */
static bool same_event(const struct events *real, int number, const struct events *plan, int planned)
{
    CHECK(real->count == plan->count);
    if (plan->count == 0 || planned < plan->number[0])
        return real->count == 0 || number <= real->number[0];
    const int at = planned - plan->number[0]; // they are consecutive
    return at < plan->count && plan->number[at] == planned && real->number[at] == number;
}

static bool same_group(const struct tape_group *a, const struct tape_group *b)
{
    return strcmp(a->name, b->name) == 0 && a->size == b->size &&
           memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0;
}

static bool same_message(const struct tape *real, int a, const struct tape *plan, int b)
{
    const struct tape_message *x = &real->messages[a], *y = &plan->messages[b];
    return x->call == y->call && x->dtype == y->dtype && x->bytes == y->bytes && x->peer == y->peer &&
           x->number == y->number && x->with_previous == y->with_previous &&
           same_group(&real->groups[x->group], &plan->groups[y->group]);
}

static void item_text(const struct tape *tape, const struct tape_item *item, char out[OP_RECORD_CHARS + 80])
{
    const struct tape_message *m = item->kind == TAPE_MESSAGE ? &tape->messages[item->index] : NULL;
    char op[OP_RECORD_CHARS];
    const char *action = tape->actions[item->action].name;
    const size_t size = OP_RECORD_CHARS + 80;
    switch (item->kind) {
    case TAPE_OP:
        snprintf(out, size, "%s: %s", action, op_record_text(&tape->ops[item->index], op));
        break;
    case TAPE_MESSAGE:
        snprintf(out, size, "%s: %s %s number %lld, %lld bytes, peer %d%s", action, call_name(m->call),
                 tape->groups[m->group].name, (long long)m->number, (long long)m->bytes, m->peer,
                 m->with_previous ? ", with the previous one" : "");
        break;
    case TAPE_RECORD:
        snprintf(out, size, "%s: record %d", action, item->index);
        break;
    case TAPE_WAIT:
        snprintf(out, size, "%s: wait for event %d of %s", action, item->index, tape->lanes[item->lane].name);
        break;
    }
}

/* Numbers of events are compared later, in compare_waits(), when all records are known. */
static bool same_item(const struct tape *real, const struct tape_item *a, const struct tape *plan,
                      const struct tape_item *b)
{
    if (a->kind != b->kind || a->layer != b->layer ||
        strcmp(real->actions[a->action].name, plan->actions[b->action].name) != 0)
        return false;
    switch (a->kind) {
    case TAPE_OP:
        return op_record_equals(&real->ops[a->index], &plan->ops[b->index]);
    case TAPE_MESSAGE:
        return same_message(real, a->index, plan, b->index);
    case TAPE_WAIT:
        return a->lane == b->lane;
    case TAPE_RECORD:
        break;
    }
    return true;
}

static enum status differ(const struct tape *real, const struct tape *plan, int lane, int i)
{
    const struct tape_lane *a = &real->lanes[lane], *b = &plan->lanes[lane];
    char is[OP_RECORD_CHARS + 80] = "nothing", planned[OP_RECORD_CHARS + 80] = "nothing";
    if (i < a->count)
        item_text(real, &a->items[i], is);
    if (i < b->count)
        item_text(plan, &b->items[i], planned);
    return fail(OUT_OF_BOUND, "rank %d, stream %s, item %d of %d: %s; the tape has %s", real->rank, a->name,
                i, a->count, is, planned);
}

static enum status compare_waits(const struct tape *real, const struct tape *plan, const struct events *a,
                                 const struct events *b)
{
    for (int lane = 0; lane < real->lane_count; lane++)
        for (int i = 0; i < real->lanes[lane].count; i++) {
            const struct tape_item *x = &real->lanes[lane].items[i], *y = &plan->lanes[lane].items[i];
            if (x->kind == TAPE_WAIT && !same_event(&a[x->lane], x->index, &b[x->lane], y->index))
                return differ(real, plan, lane, i);
        }
    return OK;
}

enum status tape_compare(const struct tape *real, const struct tape *plan)
{
    struct events a[MAX_LANES], b[MAX_LANES];
    CHECK(real->lane_count <= MAX_LANES);
    if (real->rank != plan->rank || real->lane_count != plan->lane_count)
        return fail(OUT_OF_BOUND, "rank %d: %d streams; the tape of rank %d has %d", real->rank,
                    real->lane_count, plan->rank, plan->lane_count);
    for (int lane = 0; lane < real->lane_count; lane++) {
        const struct tape_lane *x = &real->lanes[lane], *y = &plan->lanes[lane];
        if (strcmp(x->name, y->name) != 0)
            return fail(OUT_OF_BOUND, "rank %d, stream %d: %s; the tape has %s", real->rank, lane, x->name,
                        y->name);
        for (int i = 0; i < x->count || i < y->count; i++)
            if (i >= x->count || i >= y->count || !same_item(real, &x->items[i], plan, &y->items[i]))
                return differ(real, plan, lane, i);
    }
    for (int lane = 0; lane < real->lane_count; lane++) {
        a[lane] = events_of(&real->lanes[lane]);
        b[lane] = events_of(&plan->lanes[lane]);
    }
    enum status status = compare_waits(real, plan, a, b);
    for (int lane = 0; lane < real->lane_count; lane++) {
        free(a[lane].number);
        free(b[lane].number);
    }
    return status;
}

/* ---- messages between ranks ---- */

/* The other end of a message on the tape of another rank, or NULL. */
static const struct tape_message *other_end(const struct tape *tape, const struct tape_message *m,
                                            const struct tape *other)
{
    const bool between_two = m->call == CALL_SEND || m->call == CALL_RECEIVE;
    const enum call call = m->call == CALL_SEND      ? CALL_RECEIVE
                           : m->call == CALL_RECEIVE ? CALL_SEND
                                                     : m->call;
    for (int i = 0; i < other->message_count; i++) {
        const struct tape_message *o = &other->messages[i];
        if (o->call == call && o->number == m->number && (!between_two || o->peer == tape->rank) &&
            same_group(&tape->groups[m->group], &other->groups[o->group]))
            return o;
    }
    return NULL;
}

static bool is_member(const struct tape_group *group, int rank)
{
    for (int i = 0; i < group->size; i++)
        if (group->ranks[i] == rank)
            return true;
    return false;
}

enum status tapes_match(struct tape *const *tapes, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        for (int i = 0; i < tapes[rank]->message_count; i++) {
            const struct tape_message *m = &tapes[rank]->messages[i];
            const struct tape_group *group = &tapes[rank]->groups[m->group];
            const bool between_two = m->call == CALL_SEND || m->call == CALL_RECEIVE;
            bool good = is_member(group, rank) && (!between_two || is_member(group, m->peer));
            for (int peer = 0; good && peer < ranks; peer++) {
                if (peer == rank || (between_two ? peer != m->peer : !is_member(group, peer)))
                    continue;
                const struct tape_message *o = other_end(tapes[rank], m, tapes[peer]);
                good = o != NULL && o->bytes == m->bytes && o->dtype == m->dtype;
            }
            if (!good)
                return fail(OUT_OF_BOUND, "rank %d: %s %s number %lld of %lld bytes has no other end", rank,
                            call_name(m->call), group->name, (long long)m->number, (long long)m->bytes);
        }
    return OK;
}

/* ---- what the tape adds up to ---- */

enum status tape_compare_traffic(const struct tape *tape, const struct traffic *counted)
{
    struct traffic_row total[TRAFFIC_ROWS];
    for (int row = 0; row < counted->count; row++) {
        total[row] = (struct traffic_row){.name = ""};
        for (int i = 0; i < tape->message_count; i++) {
            const struct tape_message *m = &tape->messages[i];
            if (strcmp(tape->groups[m->group].name, counted->rows[row].name) == 0) {
                total[row].calls[m->call]++;
                total[row].bytes[m->call] += m->bytes;
            }
        }
    }
    int64_t calls = 0;
    for (int row = 0; row < counted->count; row++)
        for (int call = 0; call < CALL_COUNT; call++) {
            const struct traffic_row *is = &counted->rows[row];
            calls += is->calls[call];
            if (is->calls[call] != total[row].calls[call] || is->bytes[call] != total[row].bytes[call])
                return fail(OUT_OF_BOUND, "rank %d: %lld %s in %s of %lld bytes; the tape has %lld of %lld",
                            tape->rank, (long long)is->calls[call], call_name((enum call)call), is->name,
                            (long long)is->bytes[call], (long long)total[row].calls[call],
                            (long long)total[row].bytes[call]);
        }
    return calls == tape->message_count ? OK
                                        : fail(OUT_OF_BOUND, "rank %d: %lld messages; the tape has %d",
                                               tape->rank, (long long)calls, tape->message_count);
}

/* Elements of the weight matrices of a block, over all tensor-parallel ranks, and of the last one of its
 * branches. */
static double block_elements(const struct recipe *recipe, double *last)
{
    const struct model_config *m = &recipe->model;
    const int64_t tp = recipe->parallel.tensor_parallel_size, groups = m->num_query_groups;
    const int64_t replicas = tp > groups ? tp / groups : 1; // of each group of keys and values
    const int64_t qkv = (m->num_attention_heads + 2 * groups * replicas) * m->kv_channels;
    const double fc2 = (double)(m->ffn_hidden_size * m->hidden_size);
    const double proj = (double)(m->hidden_size * m->num_attention_heads * m->kv_channels);
    *last = fc2 + (m->block_type == BLOCK_SEQUENTIAL ? 0.0 : proj);
    return (double)(m->hidden_size * qkv) + proj + (model_is_gated(m) ? 3.0 : 2.0) * fc2;
}

static double head_elements(const struct recipe *recipe)
{
    const struct model_config *m = &recipe->model;
    const int64_t tp = recipe->parallel.tensor_parallel_size, multiple = m->make_vocab_size_divisible_by;
    const int64_t share = (m->vocab_size + tp - 1) / tp;
    return (double)(m->hidden_size * tp * ((share + multiple - 1) / multiple * multiple));
}

/* Blocks whose forward pass is repeated, and those of them that are the last of a run: these skip the last
 * matmul of each branch. */
static void count_recomputed(const struct run *run, double *blocks, double *skips)
{
    const struct recompute *r = &run->recipe->layers.recompute;
    *blocks = *skips = 0.0;
    if (r->granularity != RECOMPUTE_FULL)
        return;
    for (int stage = 0; stage < run->schedule->stages; stage++) {
        const int64_t layers = recipe_stage_layers(run->recipe, stage), n = r->num_layers;
        const bool whole = r->method == RECOMPUTE_UNIFORM;
        *blocks += (double)(whole || layers < n ? layers : n);
        *skips += (double)(whole ? (layers + n - 1) / n : layers < n ? layers : n);
    }
}

double expected_matmul_flops(const struct run *run)
{
    const struct recipe *recipe = run->recipe;
    double last, blocks, skips, block = block_elements(recipe, &last);
    count_recomputed(run, &blocks, &skips);
    const double elements = (double)recipe->model.num_layers * block + head_elements(recipe);
    return (double)(recipe->train.global_batch_size * recipe->model.seq_length) *
           (6.0 * elements + 2.0 * (blocks * block - skips * last));
}
