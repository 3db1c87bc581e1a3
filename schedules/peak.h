// SPDX-License-Identifier: Apache-2.0
/* Where the executor keeps what a microbatch leaves behind. Each thing has a life in a rank's list, from
 * the action that makes (or receives) it to the last that reads it; a slot is the place for one such
 * thing, and the slot plan says which slot each microbatch has and how many there must be. 1F1B, the
 * first of two ranks: two slots, taken in turn.
 *
 *     0F0 0F1 0B0 0F2 0B1 0B2        UNTIL_WEIGHT: microbatches 0 1 2 lie in slots 0 1 0
 *
 * Slots are given in the order of the list, the lowest free one first, so the plan is a pure function of
 * the schedule. It is given twice: numbered within each chunk, whose things have one size, and over all
 * chunks of the rank together, which takes fewer where chunks are alike.
 *
 * The trap is asynchrony. A RECV may start to fill its slot, and a SEND may still read its own, while an
 * action before or after its place in the list computes. So those lives are longer by `slack` computing
 * actions at that end. With slack 0 the executor must wait for each transfer where it stands. */
#pragma once

#include "schedules/schedule.h"

enum slot_class {
    UNTIL_INPUT,       // the stage's input: from RECV_ACTIVATION (F where it is made on this rank: its own in
                       // stage 0, else that of the stage before) to I or B
    UNTIL_WEIGHT,      // the same to W or B
    STASH_UNTIL_INPUT, // what F leaves inside the stage: from F to I or B
    STASH_UNTIL_WEIGHT, // the same to W or B; the families' claims are about this one
    INPUT_TO_WEIGHT,    // what I leaves for W; a B holds one while it runs
    GRADIENT_IN,        // the output's gradient: from RECV_GRADIENT (I or B of the next stage, on the same
                        // rank; I or B itself in the last stage) to I or B
    ACTIVATION_OUT,     // the stage's output, where it is sent: from F to SEND_ACTIVATION
    GRADIENT_OUT,       // the input's gradient, where it is sent: from I or B to SEND_GRADIENT
    SLOT_CLASS_COUNT
};

/* A thing lives from the action `begin` to the action `end` of the list, both included. */
struct slot_life {
    int begin, end; // begin < 0: it never lives on this rank
    int thing;      // chunk·m + microbatch
};
struct slot_lives {
    struct slot_life *of[SLOT_CLASS_COUNT]; // [chunks·m]
};
MUST_USE enum status slot_lives_create(const struct schedule *schedule, int rank, int slack,
                                       struct slot_lives *out);
void slot_lives_destroy(struct slot_lives *lives);

/* Gives `count` lives their slots, slot[life.thing], the lowest free one to each in the order in which they
 * begin, and returns how many slots there must be. Sorts them; `scratch` has room for them once more, `taken`
 * one flag each. */
int slots_give(struct slot_life *lives, int count, struct slot_life *scratch, bool *taken, int *slot);

struct slot_plan {
    int m, chunks;
    int *slot[SLOT_CLASS_COUNT];      // [chunks][m] within the chunk; -1: it never lives on this rank
    int *rank_slot[SLOT_CLASS_COUNT]; // [chunks][m] over all chunks
    int *peak[SLOT_CLASS_COUNT];      // [chunks] slots that the chunk needs
    int rank_peak[SLOT_CLASS_COUNT];  // slots that all chunks together need
};

/* The plan of `rank` for a schedule with transfers. */
MUST_USE enum status slot_plan_create(const struct schedule *schedule, int rank, int slack,
                                      struct slot_plan **out);
void slot_plan_destroy(struct slot_plan *plan);

/* The slot, within its chunk, of a thing that belongs to `chunk` and `microbatch`. */
static inline int slot_of(const struct slot_plan *plan, enum slot_class class, int chunk, int microbatch)
{
    return plan->slot[class][(size_t)chunk * (size_t)plan->m + (size_t)microbatch];
}
