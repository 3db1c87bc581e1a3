// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/snapshot.h"

#include "base/memory.h"
#include "kernels/host_floats.h"

#include <stdlib.h>
#include <string.h>

#define COPY "a copy of the model"

struct snapshot snapshot_create(const struct params *params)
{
    const size_t rows = (size_t)params->count;
    struct snapshot out = {.rows = params->count};
    out.count = memory_zeroed(rows, sizeof *out.count, COPY);
    out.amax = memory_zeroed(rows, sizeof *out.amax, COPY);
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++) {
        out.tensor[kind] = memory_zeroed(rows, sizeof *out.tensor[kind], COPY);
        out.differs[kind] = memory_zeroed(rows, sizeof *out.differs[kind], COPY);
    }
    for (size_t i = 0; i < rows; i++) {
        const struct param *row = &params->list[i];
        if (row->tie >= 0)
            continue;
        out.count[i] = row->dim[0] * row->dim[1];
        for (int kind = 0; kind < SNAPSHOT_KINDS; kind++)
            out.tensor[kind][i] = memory_zeroed((size_t)out.count[i], sizeof(float), COPY);
    }
    return out;
}

void snapshot_destroy(struct snapshot *snapshot)
{
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++) {
        for (int i = 0; snapshot->tensor[kind] != NULL && i < snapshot->rows; i++)
            free(snapshot->tensor[kind][i]);
        free(snapshot->tensor[kind]);
        free(snapshot->differs[kind]);
    }
    for (int i = 0; snapshot->amax != NULL && i < snapshot->rows; i++)
        free(snapshot->amax[i]);
    free(snapshot->amax);
    free(snapshot->count);
    *snapshot = (struct snapshot){0};
}

/* This rank's part of one quantity of one row. */
struct portion {
    const struct held_param *held;
    struct slice slice;
    struct tensor tensor;
};

/* True if the stored values are the layers' own values, without separate fp32 master weights. */
static bool is_shared(const struct rank_state *state)
{
    return state->weights.working == state->weights.main;
}

/* True if a rank holds more than it owns. With master weights that is true of the rounded values only, which
 * a snapshot does not read. */
static bool is_whole(const struct rank_state *state, enum snapshot_kind kind)
{
    return kind == SNAPSHOT_WEIGHT && state->weights.zero_stage < 3 && is_shared(state);
}

static int portions_of(const struct rank_state *state, enum snapshot_kind kind)
{
    return is_whole(state, kind) ? state->weights.count : state->weights.owned_count;
}

static struct portion portion_at(const struct rank_state *state, enum snapshot_kind kind, int i)
{
    const struct owned_param *owned = &state->weights.owned[i];
    const struct held_param *held = &state->weights.list[i];
    switch (kind) {
    case SNAPSHOT_WEIGHT:
        if (is_whole(state, kind))
            return (struct portion){held, held->slice, held->weight};
        return (struct portion){owned->held, owned_slice(owned), owned->value};
    case SNAPSHOT_GRADIENT:
        return (struct portion){owned->held, owned_slice(owned), owned->gradient};
    case SNAPSHOT_M:
        return (struct portion){owned->held, owned_slice(owned), owned->m};
    case SNAPSHOT_V:
        return (struct portion){owned->held, owned_slice(owned), owned->v};
    case SNAPSHOT_KINDS:
        break;
    }
    return (struct portion){0};
}

/* The row that holds the values of a row: for a tied weight, its original. */
static int original_of(const struct held_param *held)
{
    return held->param->tie >= 0 ? held->param->tie : held->index;
}

/* The gradient of a tied weight is complete only after embedding and head were added: on both of their ranks,
 * but not for a second use on the same rank, whose gradient was added to the first. */
static bool takes_part(const struct rank_state *state, const struct portion *portion, enum snapshot_kind kind)
{
    bool values = kind == SNAPSHOT_WEIGHT && is_shared(state);
    return portion->tensor.data != NULL && !(portion->held->second_use && !values);
}

/* Whether this rank writes the slice to the snapshot: its only holder, or the primary replica. */
static bool is_written_by(const struct rank_state *state, const struct held_param *held,
                          enum snapshot_kind kind)
{
    const struct groups *groups = state->groups;
    bool cut = state->weights.zero_stage > 0 && !is_whole(state, kind);
    bool first = cut ? groups->stage_replicas == NULL || groups->stage_replicas->rank == 0
                     : groups_is_primary_replica(groups);
    return first && held->slice.first_replica && held->param->tie < 0;
}

/* Address of row i of the part in the whole tensor. */
static float *whole_row(const struct snapshot *snapshot, enum snapshot_kind kind, const struct portion *part,
                        int64_t i)
{
    const struct slice *slice = &part->slice;
    int64_t columns = part->held->param->dim[1];
    return snapshot->tensor[kind][original_of(part->held)] + (slice->begin[0] + i) * columns +
           slice->begin[1];
}

/* as_writer: writes the slices of this rank for which is_written_by() is true. Otherwise compares the
 * others. */
static enum status visit(struct snapshot *snapshot, struct rank_state *state, enum snapshot_kind kind,
                         bool as_writer)
{
    for (int p = 0; p < portions_of(state, kind); p++) {
        struct portion part = portion_at(state, kind, p);
        if (!takes_part(state, &part, kind) || is_written_by(state, part.held, kind) != as_writer)
            continue;
        AUTO_FREE float *local = memory_zeroed((size_t)tensor_count(part.tensor), sizeof *local, COPY);
        long long differs = 0;
        TRY(floats_from_device(state->compute, part.tensor, local));
        for (int64_t i = 0; i < part.slice.count[0]; i++) {
            float *whole = whole_row(snapshot, kind, &part, i), *mine = local + i * part.slice.padded[1];
            if (as_writer)
                memcpy(whole, mine, (size_t)part.slice.count[1] * sizeof *whole);
            for (int64_t j = 0; !as_writer && j < part.slice.count[1]; j++)
                differs += memcmp(&whole[j], &mine[j], sizeof *whole) != 0;
        }
        if (differs > 0)
            atomic_fetch_add(&snapshot->differs[kind][original_of(part.held)], differs);
    }
    return OK;
}

enum status snapshot_gather(struct snapshot *snapshot, struct rank_state *state, enum snapshot_kind kind)
{
    TRY(visit(snapshot, state, kind, true));
    TRY(group_barrier(state->groups->world, state->compute));
    TRY(visit(snapshot, state, kind, false));
    return group_barrier(state->groups->world, state->compute);
}

/* Copies the rows of a part out of the whole, with zero padding. */
static enum status give_part(const struct snapshot *snapshot, struct rank_state *state,
                             enum snapshot_kind kind, const struct portion *part)
{
    AUTO_FREE float *local = memory_zeroed((size_t)slice_padded(&part->slice) + 1, sizeof *local, COPY);
    for (int64_t i = 0; i < part->slice.count[0]; i++)
        memcpy(local + i * part->slice.padded[1], whole_row(snapshot, kind, part, i),
               (size_t)part->slice.count[1] * sizeof *local);
    if (kind == SNAPSHOT_WEIGHT && state->weights.zero_stage < 3)
        return weights_set(&state->weights, state->compute, part->held, local);
    return floats_to_device(state->compute, part->tensor, local);
}

enum status snapshot_scatter(const struct snapshot *snapshot, struct rank_state *state,
                             enum snapshot_kind kind)
{
    // Complete on every rank, regardless of ownership.
    bool values = kind == SNAPSHOT_WEIGHT && state->weights.zero_stage < 3;
    for (int p = 0; p < (values ? state->weights.count : state->weights.owned_count); p++) {
        const struct held_param *held = &state->weights.list[p];
        struct portion part =
            values ? (struct portion){held, held->slice, held->weight} : portion_at(state, kind, p);
        if (!part.held->second_use && part.tensor.data != NULL)
            TRY(give_part(snapshot, state, kind, &part));
    }
    return OK;
}

void snapshot_read_amax(struct snapshot *snapshot, const struct rank_state *state)
{
    for (int row = 0; row < snapshot->rows && state->world->rank == 0; row++) {
        int64_t steps;
        const float *history = amax_history_get(state->amax, row, &steps);
        if (history == NULL)
            continue;
        const size_t count = (size_t)(OPERAND_COUNT * steps);
        if (snapshot->amax[row] == NULL)
            snapshot->amax[row] = memory_zeroed(count, sizeof *history, COPY);
        memcpy(snapshot->amax[row], history, count * sizeof *history);
        snapshot->amax_steps = steps;
    }
}

enum status snapshot_write_amax(const struct snapshot *snapshot, struct rank_state *state)
{
    for (int row = 0; row < snapshot->rows && state->amax != NULL; row++)
        if (snapshot->amax[row] != NULL)
            amax_history_set(state->amax, row, snapshot->amax[row], snapshot->amax_steps);
    return amax_history_upload(state->amax);
}
