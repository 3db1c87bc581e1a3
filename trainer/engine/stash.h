// SPDX-License-Identifier: Apache-2.0
/* Where a rank keeps what its microbatches leave behind: the slots that peak.h counted, as memory. Every
 * chunk has its own, since chunks differ in size.
 *
 * Gradients of activations have buffers of their own. One buffer lives from RECV_GRADIENT (or from the I or B
 * of the last stage) through I or B, which turns the gradient of the output into that of the input in place,
 * to SEND_GRADIENT; where the stage before is on the same rank it goes on to its I or B. */
#pragma once

#include "layers/stage.h"
#include "schedules/offload_plan.h"

struct gradient_plan {
    int count; // buffers
    int *of;   // [chunks][m]: the buffer that I or B of this chunk and microbatch works on
};

/* How many one rank needs, and which each action works on. */
MUST_USE enum status gradient_plan_create(const struct schedule *schedule, int pp_rank,
                                          struct gradient_plan *out);
void gradient_plan_destroy(struct gradient_plan *plan);

/* What has slots on the device: the homes that are a microbatch's own, in their order, and the gradients that
 * are on their way between stages. */
enum slot_kind {
    SLOT_INPUT,
    SLOT_UNTIL_INPUT,
    SLOT_UNTIL_WEIGHT,
    SLOT_INPUT_TO_WEIGHT,
    SLOT_GRADIENT,
    SLOT_KINDS
};
const char *slot_kind_name(enum slot_kind kind);

/* How many slots there are, and what each takes. */
struct slot_use {
    int64_t slots, bytes;
};

struct stash {
    struct slot_plan *plan;
    struct offload_plan
        *offloaded; // the slots instead, where things go to the host meanwhile (offload.h); or NULL
    struct gradient_plan gradients;
    bool backward;
    int chunks, m;
    const struct stage *stages;              // [chunks]
    struct buffer *lifetime[LIFETIME_COUNT]; // [chunks]; of a shared home only the first
    struct buffer gradient;                  // gradients.count buffers
    int64_t gradient_rows, gradient_columns; // of each
    enum dtype gradient_dtype;
    struct event *gradient_busy; // [count] the message that still reads it
};

struct stash_config {
    const struct schedule *schedule;
    int pp_rank;
    const struct stage *stages;
    bool backward; // false: for forward passes only, without gradients
    bool offload;  // things go to the host meanwhile, where the schedule leaves time for that
};
MUST_USE enum status stash_create(struct device *device, const struct stash_config *config,
                                  struct stash *out);
void stash_destroy(struct stash *stash);

/* The bases of all homes for a microbatch of a chunk; `back`: for its backward pass. */
void stash_bases(const struct stash *stash, int chunk, int microbatch, bool back, char *base[LIFETIME_COUNT]);
/* A microbatch's slot of a home that is its own; and the one, and how many there are, where nothing goes
 * away.
 */
int stash_slot(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back);
int stash_whole_slot(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch);
int stash_whole_slots(const struct stash *stash, enum lifetime lifetime, int chunk);

/* The slots of a chunk; those of gradients, which are for all chunks, with the first. They are all there is
 * of activations on the device. */
void stash_slots(const struct stash *stash, int chunk, struct slot_use out[SLOT_KINDS]);

/* Which gradient buffer, and its view. */
int stash_gradient(const struct stash *stash, int chunk, int microbatch);
struct tensor stash_gradient_tensor(const struct stash *stash, int index);

/* Says that nobody reads what is in a microbatch's slot of a home any more. */
MUST_USE enum status stash_poison(const struct stash *stash, struct stream *stream, enum lifetime lifetime,
                                  int chunk, int microbatch, bool back);
/* The same of the homes that are the whole rank's. */
MUST_USE enum status stash_release_shared(const struct stash *stash, struct stream *stream);
