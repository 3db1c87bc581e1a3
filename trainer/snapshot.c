// SPDX-License-Identifier: Apache-2.0
#include "trainer/snapshot.h"

#include <stdlib.h>
#include <string.h>

enum status snapshot_create(const struct params *params, struct snapshot *out)
{
    size_t rows = (size_t)params->count;
    *out = (struct snapshot){.rows = params->count, .count = calloc(rows, sizeof *out->count)};
    bool good = out->count != NULL;
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++) {
        out->tensor[kind] = calloc(rows, sizeof *out->tensor[kind]);
        out->differs[kind] = calloc(rows, sizeof *out->differs[kind]);
        good = good && out->tensor[kind] != NULL && out->differs[kind] != NULL;
    }
    for (size_t i = 0; good && i < rows; i++) {
        const struct param *row = &params->rows[i];
        if (row->tie >= 0)
            continue;
        out->count[i] = row->dim[0] * row->dim[1];
        for (int kind = 0; kind < SNAPSHOT_KINDS; kind++) {
            out->tensor[kind][i] = calloc((size_t)out->count[i], sizeof(float));
            good = good && out->tensor[kind][i] != NULL;
        }
    }
    return good ? OK : fail(NO_MEMORY, "no memory for a copy of the model");
}

void snapshot_destroy(struct snapshot *snapshot)
{
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++) {
        for (int i = 0; snapshot->tensor[kind] != NULL && i < snapshot->rows; i++)
            free(snapshot->tensor[kind][i]);
        free(snapshot->tensor[kind]);
        free(snapshot->differs[kind]);
    }
    free(snapshot->count);
    *snapshot = (struct snapshot){0};
}

static struct tensor tensor_of(const struct held *held, enum snapshot_kind kind)
{
    switch (kind) {
    case SNAPSHOT_WEIGHT:
        return held->weight;
    case SNAPSHOT_GRADIENT:
        return held->gradient;
    case SNAPSHOT_M:
        return held->m;
    case SNAPSHOT_V:
        return held->v;
    case SNAPSHOT_KINDS:
        break;
    }
    return (struct tensor){0};
}

/* The row whose values a held row has: a tied one's original. */
static int original_of(const struct held *held)
{
    return held->row->tie >= 0 ? held->row->tie : held->index;
}

/* The tied copy's gradient is complete only where embedding and head were added: on both of their ranks, but
 * not for a second use on one rank, whose own gradient went into the first. */
static bool takes_part(const struct held *held, enum snapshot_kind kind)
{
    return !(held->second_use && kind != SNAPSHOT_WEIGHT);
}

static bool speaks_for(const struct worker *worker, const struct held *held)
{
    return groups_speaks(worker->groups) && held->slice.first && held->row->tie < 0;
}

/* Where row i of the slice begins in the whole tensor. */
static float *whole_row(const struct snapshot *snapshot, enum snapshot_kind kind, const struct held *held,
                        int64_t i)
{
    const struct slice *slice = &held->slice;
    int64_t columns = held->row->dim[1];
    return snapshot->tensor[kind][original_of(held)] + (slice->begin[0] + i) * columns + slice->begin[1];
}

static enum status read_local(struct worker *worker, struct tensor tensor, float **out)
{
    size_t bytes = tensor_bytes(tensor);
    *out = malloc(bytes + 1);
    if (*out == NULL)
        return fail(NO_MEMORY, "no memory to read %zu bytes", bytes);
    TRY(copy_to_host(worker->compute, *out, tensor.data, bytes));
    return stream_sync(worker->compute);
}

/* Writes where this rank speaks (`speaking`), compares where it does not. */
static enum status visit(struct snapshot *snapshot, struct worker *worker, enum snapshot_kind kind,
                         bool speaking)
{
    for (int h = 0; h < worker->weights.count; h++) {
        const struct held *held = &worker->weights.list[h];
        if (!takes_part(held, kind) || speaks_for(worker, held) != speaking)
            continue;
        float *local = NULL;
        enum status status = read_local(worker, tensor_of(held, kind), &local);
        long long differs = 0;
        for (int64_t i = 0; status == OK && i < held->slice.count[0]; i++) {
            float *whole = whole_row(snapshot, kind, held, i), *mine = local + i * held->slice.padded[1];
            if (speaking)
                memcpy(whole, mine, (size_t)held->slice.count[1] * sizeof *whole);
            for (int64_t j = 0; !speaking && j < held->slice.count[1]; j++)
                differs += memcmp(&whole[j], &mine[j], sizeof *whole) != 0;
        }
        free(local);
        TRY(status);
        if (differs > 0)
            atomic_fetch_add(&snapshot->differs[kind][original_of(held)], differs);
    }
    return OK;
}

enum status snapshot_take(struct snapshot *snapshot, struct worker *worker, enum snapshot_kind kind)
{
    TRY(visit(snapshot, worker, kind, true));
    TRY(group_barrier(worker->groups->world, worker->compute));
    TRY(visit(snapshot, worker, kind, false));
    return group_barrier(worker->groups->world, worker->compute);
}

enum status snapshot_give(const struct snapshot *snapshot, struct worker *worker, enum snapshot_kind kind)
{
    for (int h = 0; h < worker->weights.count; h++) {
        const struct held *held = &worker->weights.list[h];
        if (held->second_use || tensor_of(held, kind).data == NULL)
            continue;
        struct tensor tensor = tensor_of(held, kind);
        float *local = calloc((size_t)slice_padded(&held->slice) + 1, sizeof *local);
        if (local == NULL)
            return fail(NO_MEMORY, "no memory for the slice of %s", held->row->name);
        for (int64_t i = 0; i < held->slice.count[0]; i++)
            memcpy(local + i * held->slice.padded[1], whole_row(snapshot, kind, held, i),
                   (size_t)held->slice.count[1] * sizeof *local);
        enum status status = copy_to_device(worker->compute, tensor.data, local, tensor_bytes(tensor));
        if (status == OK)
            status = stream_sync(worker->compute);
        free(local);
        TRY(status);
    }
    return OK;
}
