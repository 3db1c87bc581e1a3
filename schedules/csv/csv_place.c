// SPDX-License-Identifier: Apache-2.0
/* Derives the placement from a schedule file: a stage belongs to the line that runs it. Then runs the
 * checker; its errors about a rank and position are translated to a line and cell.
 *
 * Caution: a stage can have two replicas, each with its own microbatches, so ranks are looked up by stage
 * *and* microbatch until it is known that there are at most two directions. */
#include "schedules/csv/csv_parse.h"
#include "schedules/edges.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = 200 }; // buffer for messages about a placement

/* The rank of each stage and microbatch. */
struct map {
    struct csv *csv;
    int *holder; // [stages][m]
};

static enum status complain_missing(const struct csv *csv, int stage, int microbatch)
{
    for (int rank = 0; rank < csv->p; rank++)
        for (int i = 0; i < csv->ranks[rank].count; i++)
            if (csv->ranks[rank].actions[i].stage == stage)
                return csv_complain(csv, rank, -1, "%dF%d is missing", stage, microbatch);
    return fail(BAD_SCHEDULE, "%s: stage %d is missing, but there is a stage %d", csv->name, stage,
                csv->stages - 1);
}

/* Fewer forwards than stages times microbatches: reports the first missing one, of the first such stage. */
static enum status find_missing(const struct csv *csv)
{
    int *count = calloc((size_t)csv->stages, sizeof *count);
    bool *there = calloc((size_t)csv->m + 1, sizeof *there);
    enum status status = count != NULL && there != NULL ? OK : fail(NO_MEMORY, "reading %s", csv->name);
    int stage = 0, microbatch = 0;
    for (int pass = 0; status == OK && pass < 2; pass++) {
        for (int rank = 0; rank < csv->p; rank++)
            for (int i = 0; i < csv->ranks[rank].count; i++) {
                struct action a = csv->ranks[rank].actions[i];
                if (a.kind == FORWARD && pass == 0)
                    count[a.stage]++;
                else if (a.kind == FORWARD && a.stage == stage)
                    there[a.microbatch] = true;
            }
        while (pass == 0 && count[stage] >= csv->m)
            stage++;
    }
    while (status == OK && there[microbatch])
        microbatch++;
    free(there);
    free(count);
    return status == OK ? complain_missing(csv, stage, microbatch) : status;
}

static int *holder_of(const struct map *map, int stage, int microbatch)
{
    return &map->holder[(size_t)stage * (size_t)map->csv->m + (size_t)microbatch];
}

/* Forwards determine the rank of a stage and microbatch, so they come first; all other actions must be on
 * that rank. */
static enum status find_holders(const struct map *map, bool forwards)
{
    const struct csv *csv = map->csv;
    char text[ACTION_CHARS];
    for (int rank = 0; rank < csv->p; rank++)
        for (int i = 0; i < csv->ranks[rank].count; i++) {
            struct action a = csv->ranks[rank].actions[i];
            int *holder = holder_of(map, a.stage, a.microbatch);
            if (forwards && a.kind == FORWARD && *holder < 0)
                *holder = rank;
            if ((!forwards || a.kind == FORWARD) && *holder != rank)
                return csv_complain(csv, rank, i, "%s: stage %d of microbatch %d is on line %d (rank %d)",
                                    action_text(a, text), a.stage, a.microbatch, *holder + 1, *holder);
        }
    return OK;
}

static enum status map_init(struct map *map)
{
    const struct csv *csv = map->csv;
    if ((int64_t)csv->stages * csv->m > csv->forwards)
        return find_missing(csv);
    size_t cells = (size_t)csv->stages * (size_t)csv->m;
    map->holder = malloc(cells * sizeof *map->holder);
    if (map->holder == NULL)
        return fail(NO_MEMORY, "reading %s", csv->name);
    for (size_t i = 0; i < cells; i++)
        map->holder[i] = -1;
    TRY(find_holders(map, true));
    for (size_t i = 0; i < cells; i++)
        if (map->holder[i] < 0)
            return complain_missing(csv, (int)(i / (size_t)csv->m), (int)(i % (size_t)csv->m));
    return find_holders(map, false);
}

/* Reports an error in the placement of a stage, at its F of this microbatch. */
static enum status complain_place(const struct map *map, int stage, int microbatch, const char *words)
{
    int rank = *holder_of(map, stage, microbatch), position = 0;
    const struct action *actions = map->csv->ranks[rank].actions;
    while (actions[position].kind != FORWARD || actions[position].stage != stage ||
           actions[position].microbatch != microbatch)
        position++;
    return csv_complain(map->csv, rank, position, "%dF%d: %s", stage, microbatch, words);
}

/* Returns the first microbatch of `stage` that is not on the line of its first one; m if there is none. */
static int turn_of(const struct map *map, int stage)
{
    int k = 0;
    while (k < map->csv->m && *holder_of(map, stage, k) == *holder_of(map, stage, 0))
        k++;
    return k;
}

/* All stages change lines at the same microbatch. */
static enum status check_turn(const struct map *map, int stage, int expected)
{
    int m = map->csv->m, turn = turn_of(map, stage);
    char words[WORDS];
    if (turn == expected)
        return OK;
    if (expected == m)
        snprintf(
            words, sizeof words,
            "stage %d is on line %d too, but stage 0 is on one line only: either all stages have replicas, "
            "or none",
            stage, *holder_of(map, stage, 0) + 1);
    else if (turn == m)
        snprintf(
            words, sizeof words,
            "all of stage %d is on this line, but stage 0 is on two: either all stages have replicas, or "
            "none",
            stage);
    else
        snprintf(words, sizeof words, "stage %d changes lines at microbatch %d, but stage 0 at %d", stage,
                 turn, expected);
    return complain_place(map, stage, turn < expected ? turn : expected, words);
}

/* After the change all microbatches are on one line. */
static enum status check_behind(const struct map *map, int stage, int turn)
{
    char words[WORDS];
    for (int k = turn; k < map->csv->m; k++) {
        int holder = *holder_of(map, stage, turn);
        if (*holder_of(map, stage, k) == holder)
            continue;
        snprintf(words, sizeof words,
                 "stage %d of microbatches %d to %d must be on one line; %dF%d is on line %d", stage, turn,
                 map->csv->m - 1, stage, turn, holder + 1);
        return complain_place(map, stage, k, words);
    }
    return OK;
}

/* Every rank holds the same number of stages. */
static enum status check_shares(const struct map *map, int microbatch, int *held)
{
    const struct csv *csv = map->csv;
    for (int rank = 0; rank < csv->p; rank++)
        held[rank] = 0;
    for (int stage = 0; stage < csv->stages; stage++)
        held[*holder_of(map, stage, microbatch)]++;
    if (csv->stages % csv->p != 0)
        return fail(
            BAD_SCHEDULE,
            "%s: %d stages on %d lines; every rank must hold the same number, so the lines must divide the "
            "stages",
            csv->name, csv->stages, csv->p);
    for (int rank = 0; rank < csv->p; rank++)
        if (held[rank] != csv->stages / csv->p)
            return csv_complain(
                csv, rank, -1,
                "holds %d of the %d stages for microbatch %d; each of the %d ranks must hold %d", held[rank],
                csv->stages, microbatch, csv->p, csv->stages / csv->p);
    return OK;
}

/* The replicas of a stage add their gradients: they must be on ranks r and p-1-r, for all of their stages. */
static enum status check_mirror(const struct map *map, int second_from)
{
    int p = map->csv->p;
    char words[WORDS] = "";
    for (int stage = 0; second_from < map->csv->m && stage < map->csv->stages; stage++) {
        int first = *holder_of(map, stage, 0), second = *holder_of(map, stage, second_from);
        if (p % 2 != 0)
            snprintf(words, sizeof words,
                     "a second replica; with two directions the number of lines must be even, not %d", p);
        else if (first + second != p - 1)
            snprintf(words, sizeof words,
                     "the other replica of a stage on line %d must be on line %d, its mirror image",
                     first + 1, p - first);
        if (words[0] != 0)
            return complain_place(map, stage, second_from, words);
    }
    return OK;
}

static enum status find_placement(const struct map *map, struct custom_placement *out, int *held)
{
    const struct csv *csv = map->csv;
    out->second_from = turn_of(map, 0);
    for (int stage = 0; stage < csv->stages; stage++) {
        TRY(check_turn(map, stage, out->second_from));
        TRY(check_behind(map, stage, out->second_from));
    }
    TRY(check_shares(map, 0, held));
    if (out->second_from < csv->m)
        TRY(check_shares(map, out->second_from, held));
    TRY(check_mirror(map, out->second_from));
    for (int stage = 0; stage < csv->stages; stage++) {
        out->rank_of[0][stage] = *holder_of(map, stage, 0);
        out->rank_of[1][stage] = *holder_of(map, stage, csv->m - 1);
    }
    return OK;
}

static enum status create(struct csv *csv, struct schedule **out)
{
    struct map map = {.csv = csv};
    size_t stages = (size_t)csv->stages;
    int *ranks = calloc(2 * stages + (size_t)csv->p, sizeof *ranks);
    if (ranks == NULL)
        return fail(NO_MEMORY, "reading %s", csv->name);
    struct custom_placement given = {.p = csv->p, .m = csv->m, .stages = csv->stages};
    given.rank_of[0] = ranks;
    given.rank_of[1] = ranks + stages;
    enum status status = map_init(&map);
    if (status == OK)
        status = find_placement(&map, &given, ranks + 2 * stages);
    if (status == OK)
        status = schedule_create_custom(&given, out);
    free(map.holder);
    free(ranks);
    return status;
}

/* Sets the peer of every transfer; the checker verifies that there is one. */
static void find_peers(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action *a = &s->ranks[rank].actions[i];
            const struct action_fact *fact = action_fact(a->kind);
            int other = fact->sends ? transfer_receiver(*a) : stage_before(a->stage, fact->gradient);
            if (!fact->computes && other >= 0 && other < s->stages)
                a->peer = schedule_rank(s, other, a->microbatch);
        }
}

static enum status check(const struct csv *csv, const struct schedule *s)
{
    struct schedule_error why;
    enum status status = schedule_check(s, &why);
    if (status != BAD_SCHEDULE)
        return status;
    const char *words = strstr(why.text, ": "); // the text after "rank 3, action 0"
    return csv_complain(csv, why.rank, why.position, "%s", words != NULL ? words + 2 : why.text);
}

enum status csv_schedule(struct csv *csv, struct schedule **out)
{
    struct schedule *s = NULL;
    TRY(create(csv, &s));
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
