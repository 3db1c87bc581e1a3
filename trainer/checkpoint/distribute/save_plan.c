// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/distribute/save_plan.h"

#include "base/memory.h"
#include "schedules/schedule.h"

#include <stdlib.h>

/* The index of a rank among the ranks that hold the same elements, and their number. */
struct replicas {
    int index, count;
};

/* The data ranks of a mesh as replicas; the index is that in their group. */
static struct replicas data_ranks(const struct mesh *mesh, enum mesh_kind kind, struct mesh_coord coord)
{
    const struct degrees *d = &mesh->degrees;
    if (kind == MESH_EXPERT)
        return (struct replicas){coord.dp, mesh->world / d->pp / d->etp / d->ep};
    return (struct replicas){coord.dp * d->cp + coord.cp, d->dp * d->cp};
}

/* The other pipeline rank with the same stages; `pp` itself if there is none. */
static int mirror_of(const struct schedule *schedule, int pp)
{
    int stage = schedule_stage(schedule, pp, 0);
    return schedule->rank_of[schedule->rank_of[0][stage] == pp ? 1 : 0][stage];
}

static struct replicas replicas_of(const struct run *run, enum mesh_kind kind, int rank)
{
    struct mesh_coord coord = mesh_coord(&run->mesh, kind, rank);
    bool whole = run->recipe->data_parallel.zero_stage == 0;
    struct replicas replicas = whole ? data_ranks(&run->mesh, kind, coord) : (struct replicas){0, 1};
    int mirror = mirror_of(run->schedule, coord.pp);
    if (mirror == coord.pp)
        return replicas;
    return (struct replicas){2 * replicas.index + (coord.pp > mirror), 2 * replicas.count};
}

bool save_plan_same_stages(const struct run *run, int rank, int other)
{
    int pp = mesh_coord(&run->mesh, MESH_DENSE, rank).pp;
    int other_pp = mesh_coord(&run->mesh, MESH_DENSE, other).pp;
    return pp == other_pp || mirror_of(run->schedule, pp) == other_pp;
}

bool save_plan_owned(const struct run *run, const struct weights *weights, int param, int second_use,
                     int rank, struct slice *slice)
{
    int64_t begin, count;
    int data_rank = data_ranks(&run->mesh, MESH_DENSE, mesh_coord(&run->mesh, MESH_DENSE, rank)).index;
    CHECK(weights != NULL);
    if (!weights_owned_rows(weights, param, data_rank, &begin, &count) &&
        (second_use < 0 || !weights_owned_rows(weights, second_use, data_rank, &begin, &count)))
        return false;
    int64_t real = slice->count[0] - begin; // the remaining rows are padding
    slice->begin[0] += begin;
    slice->padded[0] = count;
    slice->count[0] = real < 0 ? 0 : real < count ? real : count;
    return true;
}

/* Index of the second use of a tied parameter; -1: none. */
static int second_use_of(const struct params *params, int param)
{
    for (int i = 0; i < params->count && params->list[param].tied; i++)
        if (params->list[i].tie == param)
            return i;
    return -1;
}

/* Computes the slice that the replica group of `rank` writes; false if it is empty. */
static bool slice_of(const struct run *run, const struct params *params, const struct weights *weights,
                     int index, int rank, struct slice *out)
{
    const struct param *row = &params->list[index];
    struct mesh_coord coord = mesh_coord(&run->mesh, row->mesh, rank);
    if (row->tie >= 0 || !schedule_holds(run->schedule, coord.pp, run_stage_of_layer(run, row->layer)))
        return false;
    *out = shard_slice(row->ndim, row->dim, row->shardings, row->sharding_count, coord);
    if (!out->first_replica ||
        (run->recipe->data_parallel.zero_stage > 0 &&
         !save_plan_owned(run, weights, index, second_use_of(params, index), rank, out)))
        return false;
    out->padded[0] = out->count[0];
    return slice_count(out) > 0;
}

/* The boundary before share `index` of `count` equal shares. */
static int64_t cut_before(int64_t total, int index, int count)
{
    return total / count * index + total % count * index / count;
}

/* The row that contains element `at` of the slice, or the next one past its end. */
static int64_t row_at(const struct slice *slice, int64_t at)
{
    return at <= 0 ? 0 : at >= slice_count(slice) ? slice->count[0] : at / slice->count[1];
}

/* Keeps this rank's share of the parts of one mesh; the others become empty. */
static void keep_share(const struct params *params, enum mesh_kind kind, struct replicas replicas,
                       struct save_plan *share)
{
    int64_t total = 0, at = 0;
    for (int i = 0; i < share->count; i++)
        total += params->list[share->parts[i].param].mesh == kind ? slice_count(&share->parts[i].slice) : 0;
    int64_t begin = cut_before(total, replicas.index, replicas.count);
    int64_t end = cut_before(total, replicas.index + 1, replicas.count);
    for (int i = 0; i < share->count; i++) {
        struct slice *slice = &share->parts[i].slice;
        if (params->list[share->parts[i].param].mesh != kind)
            continue;
        int64_t first = row_at(slice, begin - at), last = row_at(slice, end - at);
        at += slice_count(slice);
        slice->begin[0] += first;
        slice->count[0] = slice->padded[0] = last - first;
    }
}

static void drop_empty(struct save_plan *share)
{
    int kept = 0;
    for (int i = 0; i < share->count; i++)
        if (slice_count(&share->parts[i].slice) > 0)
            share->parts[kept++] = share->parts[i];
    share->count = kept;
}

void save_plan_of_rank(const struct run *run, const struct params *params, const struct weights *weights,
                       int rank, struct save_plan *out)
{
    *out = (struct save_plan){
        .parts = memory_zeroed((size_t)params->count + 1, sizeof *out->parts, "the plan of a save")};
    for (int i = 0; i < params->count; i++) {
        struct save_part *part = &out->parts[out->count];
        part->param = i;
        out->count += slice_of(run, params, weights, i, rank, &part->slice);
    }
    for (int kind = 0; kind < MESH_COUNT; kind++)
        keep_share(params, (enum mesh_kind)kind, replicas_of(run, (enum mesh_kind)kind, rank), out);
    drop_empty(out);
}

/* Moves a cut to the nearest end of a part if that is at most `most` elements away: a part that is read by
 * one rank needs no block of a file twice. */
static int64_t snap(const struct save_plan *share, int64_t cut, int64_t most)
{
    int64_t at = 0, best = cut, distance = most + 1;
    for (int i = 0; i <= share->count; i++) {
        int64_t away = at > cut ? at - cut : cut - at;
        if (away < distance) {
            best = at;
            distance = away;
        }
        at += i < share->count ? slice_count(&share->parts[i].slice) : 0;
    }
    return best;
}

void save_plan_cut(struct save_plan *share, int index, int count)
{
    int64_t total = 0, at = 0;
    for (int i = 0; i < share->count; i++)
        total += slice_count(&share->parts[i].slice);
    int64_t most = total / count / 4;
    int64_t begin = snap(share, cut_before(total, index, count), most);
    int64_t end = snap(share, cut_before(total, index + 1, count), most);
    for (int i = 0; i < share->count; i++) {
        struct slice *slice = &share->parts[i].slice;
        int64_t first = row_at(slice, begin - at), last = row_at(slice, end - at);
        at += slice_count(slice);
        slice->begin[0] += first;
        slice->count[0] = slice->padded[0] = last - first;
    }
    drop_empty(share);
}

void save_plan_free(struct save_plan *share)
{
    free(share->parts);
    *share = (struct save_plan){0};
}
