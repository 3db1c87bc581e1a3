// SPDX-License-Identifier: Apache-2.0
/* Derives the placement from a schedule file: a stage belongs to the line that runs it. Then runs the
 * checker; its errors about a rank and position are translated to a line and cell.
 *
 * Caution: a stage can have two replicas, each with its own microbatches, so ranks are looked up by stage
 * *and* microbatch until it is known that there are at most two directions. */
#include "schedules/csv/csv_parse.h"

#include "base/memory.h"
#include "schedules/edges.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGE_CHARS = 200 };

/* The rank of each stage and microbatch. */
struct map {
    struct csv *csv;
    int *owner; // [stages][m]
};

static enum status fail_missing(const struct csv *csv, int stage, int microbatch)
{
    for (int rank = 0; rank < csv->p; rank++)
        for (int i = 0; i < csv->ranks[rank].count; i++)
            if (csv->ranks[rank].actions[i].stage == stage)
                return csv_fail(csv, rank, -1, "%dF%d is missing", stage, microbatch);
    return fail(BAD_SCHEDULE, "%s: stage %d is missing, but there is a stage %d", csv->name, stage,
                csv->stages - 1);
}

/* Fewer forwards than stages times microbatches: reports the first missing one, of the first such stage. */
static enum status find_missing(const struct csv *csv)
{
    AUTO_FREE int *count = memory_zeroed((size_t)csv->stages, sizeof *count, "the stages of a schedule file");
    AUTO_FREE bool *seen = memory_zeroed((size_t)csv->m + 1, sizeof *seen, "the stages of a schedule file");
    int stage = 0, microbatch = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int rank = 0; rank < csv->p; rank++)
            for (int i = 0; i < csv->ranks[rank].count; i++) {
                struct action a = csv->ranks[rank].actions[i];
                if (a.kind == FORWARD && pass == 0)
                    count[a.stage]++;
                else if (a.kind == FORWARD && a.stage == stage)
                    seen[a.microbatch] = true;
            }
        while (pass == 0 && count[stage] >= csv->m)
            stage++;
    }
    while (seen[microbatch])
        microbatch++;
    return fail_missing(csv, stage, microbatch);
}

static int *owner_of(const struct map *map, int stage, int microbatch)
{
    return &map->owner[(size_t)stage * (size_t)map->csv->m + (size_t)microbatch];
}

/* Forwards determine the rank of a stage and microbatch, so they come first; all other actions must be on
 * that rank. */
static enum status find_owners(const struct map *map, bool forwards)
{
    const struct csv *csv = map->csv;
    char text[ACTION_CHARS];
    for (int rank = 0; rank < csv->p; rank++)
        for (int i = 0; i < csv->ranks[rank].count; i++) {
            struct action a = csv->ranks[rank].actions[i];
            int *owner = owner_of(map, a.stage, a.microbatch);
            if (forwards && a.kind == FORWARD && *owner < 0)
                *owner = rank;
            if ((!forwards || a.kind == FORWARD) && *owner != rank)
                return csv_fail(csv, rank, i, "%s: stage %d of microbatch %d is on line %d (rank %d)",
                                action_text(a, text), a.stage, a.microbatch, *owner + 1, *owner);
        }
    return OK;
}

static enum status map_init(struct map *map)
{
    const struct csv *csv = map->csv;
    if ((int64_t)csv->stages * csv->m > csv->forwards)
        return find_missing(csv);
    size_t cells = (size_t)csv->stages * (size_t)csv->m;
    map->owner = memory_zeroed(cells, sizeof *map->owner, "the stages of a schedule file");
    for (size_t i = 0; i < cells; i++)
        map->owner[i] = -1;
    TRY(find_owners(map, true));
    for (size_t i = 0; i < cells; i++)
        if (map->owner[i] < 0)
            return fail_missing(csv, (int)(i / (size_t)csv->m), (int)(i % (size_t)csv->m));
    return find_owners(map, false);
}

/* Reports an error in the placement of a stage, at its F of this microbatch. */
static enum status fail_placement(const struct map *map, int stage, int microbatch, const char *message)
{
    int rank = *owner_of(map, stage, microbatch), position = 0;
    const struct action *actions = map->csv->ranks[rank].actions;
    while (actions[position].kind != FORWARD || actions[position].stage != stage ||
           actions[position].microbatch != microbatch)
        position++;
    return csv_fail(map->csv, rank, position, "%dF%d: %s", stage, microbatch, message);
}

/* Returns the first microbatch of `stage` that is not on the line of its first one; m if there is none. */
static int switch_microbatch(const struct map *map, int stage)
{
    int k = 0;
    while (k < map->csv->m && *owner_of(map, stage, k) == *owner_of(map, stage, 0))
        k++;
    return k;
}

/* All stages change lines at the same microbatch. */
static enum status check_switch(const struct map *map, int stage, int expected)
{
    int m = map->csv->m, switch_at = switch_microbatch(map, stage);
    char message[MESSAGE_CHARS];
    if (switch_at == expected)
        return OK;
    if (expected == m)
        snprintf(
            message, sizeof message,
            "stage %d is on line %d too, but stage 0 is on one line only: either all stages have replicas, "
            "or none",
            stage, *owner_of(map, stage, 0) + 1);
    else if (switch_at == m)
        snprintf(
            message, sizeof message,
            "all of stage %d is on this line, but stage 0 is on two: either all stages have replicas, or "
            "none",
            stage);
    else
        snprintf(message, sizeof message, "stage %d changes lines at microbatch %d, but stage 0 at %d", stage,
                 switch_at, expected);
    return fail_placement(map, stage, switch_at < expected ? switch_at : expected, message);
}

/* After the change all microbatches are on one line. */
static enum status check_after_switch(const struct map *map, int stage, int switch_at)
{
    char message[MESSAGE_CHARS];
    for (int k = switch_at; k < map->csv->m; k++) {
        int owner = *owner_of(map, stage, switch_at);
        if (*owner_of(map, stage, k) == owner)
            continue;
        snprintf(message, sizeof message,
                 "stage %d of microbatches %d to %d must be on one line; %dF%d is on line %d", stage,
                 switch_at, map->csv->m - 1, stage, switch_at, owner + 1);
        return fail_placement(map, stage, k, message);
    }
    return OK;
}

/* Every rank holds the same number of stages. */
static enum status check_balance(const struct map *map, int microbatch, int *held)
{
    const struct csv *csv = map->csv;
    for (int rank = 0; rank < csv->p; rank++)
        held[rank] = 0;
    for (int stage = 0; stage < csv->stages; stage++)
        held[*owner_of(map, stage, microbatch)]++;
    if (csv->stages % csv->p != 0)
        return fail(
            BAD_SCHEDULE,
            "%s: %d stages on %d lines; every rank must hold the same number, so the lines must divide the "
            "stages",
            csv->name, csv->stages, csv->p);
    for (int rank = 0; rank < csv->p; rank++)
        if (held[rank] != csv->stages / csv->p)
            return csv_fail(csv, rank, -1,
                            "holds %d of the %d stages for microbatch %d; each of the %d ranks must hold %d",
                            held[rank], csv->stages, microbatch, csv->p, csv->stages / csv->p);
    return OK;
}

/* The replicas of a stage add their gradients: they must be on ranks r and p-1-r, for all of their stages. */
static enum status check_mirror(const struct map *map, int second_from)
{
    int p = map->csv->p;
    char message[MESSAGE_CHARS] = "";
    for (int stage = 0; second_from < map->csv->m && stage < map->csv->stages; stage++) {
        int first = *owner_of(map, stage, 0), second = *owner_of(map, stage, second_from);
        if (p % 2 != 0)
            snprintf(message, sizeof message,
                     "a second replica; with two directions the number of lines must be even, not %d", p);
        else if (first + second != p - 1)
            snprintf(message, sizeof message,
                     "the other replica of a stage on line %d must be on line %d, its mirror image",
                     first + 1, p - first);
        if (message[0] != 0)
            return fail_placement(map, stage, second_from, message);
    }
    return OK;
}

static enum status find_placement(const struct map *map, struct custom_placement *out, int *held)
{
    const struct csv *csv = map->csv;
    out->second_from = switch_microbatch(map, 0);
    for (int stage = 0; stage < csv->stages; stage++) {
        TRY(check_switch(map, stage, out->second_from));
        TRY(check_after_switch(map, stage, out->second_from));
    }
    TRY(check_balance(map, 0, held));
    if (out->second_from < csv->m)
        TRY(check_balance(map, out->second_from, held));
    TRY(check_mirror(map, out->second_from));
    for (int stage = 0; stage < csv->stages; stage++) {
        out->rank_of[0][stage] = *owner_of(map, stage, 0);
        out->rank_of[1][stage] = *owner_of(map, stage, csv->m - 1);
    }
    return OK;
}

static enum status create_schedule(struct csv *csv, struct schedule **out)
{
    struct map map = {.csv = csv};
    size_t stages = (size_t)csv->stages;
    AUTO_FREE int *ranks =
        memory_zeroed(2 * stages + (size_t)csv->p, sizeof *ranks, "the stages of a schedule file");
    struct custom_placement given = {.p = csv->p, .m = csv->m, .stages = csv->stages};
    given.rank_of[0] = ranks;
    given.rank_of[1] = ranks + stages;
    enum status status = map_init(&map);
    if (status == OK)
        status = find_placement(&map, &given, ranks + 2 * stages);
    if (status == OK)
        *out = schedule_create_custom(&given);
    free(map.owner);
    return status;
}

/* Sets the peer of every transfer; the checker verifies that there is one. */
static void find_peers(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action *a = &s->ranks[rank].actions[i];
            const struct action_traits *traits = action_traits(a->kind);
            int other = traits->sends ? transfer_receiver(*a) : stage_before(a->stage, traits->gradient);
            if (!traits->computes && other >= 0 && other < s->stages)
                a->peer = schedule_rank(s, other, a->microbatch);
        }
}

static enum status check(const struct csv *csv, const struct schedule *s)
{
    struct schedule_error why;
    enum status status = schedule_check(s, &why);
    if (status != BAD_SCHEDULE)
        return status;
    const char *message = strstr(why.text, ": "); // the text after "rank 3, action 0"
    return csv_fail(csv, why.rank, why.position, "%s", message != NULL ? message + 2 : why.text);
}

enum status csv_schedule(struct csv *csv, struct schedule **out)
{
    struct schedule *s = NULL;
    TRY(create_schedule(csv, &s));
    for (int rank = 0; rank < csv->p; rank++) {
        s->ranks[rank] = csv->ranks[rank];
        csv->ranks[rank] = (struct action_list){0};
    }
    s->has_transfers = csv->has_transfers;
    find_peers(s);
    enum status status = check(csv, s);
    if (status != OK) {
        schedule_destroy(s);
        return status;
    }
    if (!s->has_transfers)
        TRY(schedule_complete(s, &(struct schedule_options){.name = csv->name}));
    *out = s;
    return OK;
}
