// SPDX-License-Identifier: Apache-2.0
/* The slots of a rank's activations (schedules/peak.h) and the buffers of its stage gradients
 * (schedules/gradient_plan.h), in device memory. Every chunk has its own slots, since chunks differ in
 * size. Part of the activation store: actions use activation_store.h. */
#pragma once

#include "layers/stage.h"
#include "schedules/gradient_plan.h"
#include "schedules/offload_plan.h"

/* Number of slots, and bytes of each. */
struct slot_use {
    int64_t slots, bytes;
};

struct stash {
    struct slot_plan *plan;
    struct offload_plan *offloaded; // replaces `plan` if activations are offloaded (offload.h); else NULL
    struct gradient_plan gradients;
    bool backward;
    int chunks, m;
    const struct stage *stages;              // [chunks]
    struct buffer *lifetime[LIFETIME_COUNT]; // [chunks]; only the first for a shared buffer
    struct buffer gradient;                  // gradients.count buffers
    int64_t gradient_rows, gradient_columns; // of each
    enum dtype gradient_dtype;
    struct event *gradient_busy; // [count] completion of the message that still reads the buffer
    int *owner
        [PLANNED_LIFETIMES]; // [chunks][2m] of each slot: the microbatch it was last acquired for; -1: none
};

struct stash_config {
    const struct schedule *schedule;
    int pp_rank;
    const struct stage *stages;
    bool backward; // false: forward passes only, no gradients
    bool offload;  // offload activations if the schedule leaves time for it
};
MUST_USE enum status stash_create(struct device *device, const struct stash_config *config,
                                  struct stash *out);
void stash_destroy(struct stash *stash);

/* Base addresses of all lifetimes for a microbatch of a chunk. back=true: for its backward pass. */
void stash_bases(const struct stash *stash, int chunk, int microbatch, bool back, char *base[LIFETIME_COUNT]);
/* Slot of a microbatch for a per-microbatch lifetime. The `whole` variants return the slot, and the number of
 * slots, without offload. */
int stash_slot(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back);
int stash_whole_slot(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch);
int stash_whole_slots(const struct stash *stash, enum lifetime lifetime, int chunk);

/* The microbatch for which the slot of `microbatch` was last acquired. */
void stash_set_owner(struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back);
int stash_owner(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back);

/* Slots of a chunk: all activation memory on the device. Gradient buffers serve all chunks and are counted
 * with the first. */
void stash_slots(const struct stash *stash, int chunk, struct slot_use out[SLOT_LIFETIMES]);

/* Index of the gradient buffer of a microbatch, and its view as a tensor. */
int stash_gradient(const struct stash *stash, int chunk, int microbatch);
struct tensor stash_gradient_tensor(const struct stash *stash, int index);

/* Marks a slot as dead after its last reader; the strict device fills it with NaN. */
MUST_USE enum status stash_poison(const struct stash *stash, struct stream *stream, enum lifetime lifetime,
                                  int chunk, int microbatch, bool back);
/* The same for the shared per-rank buffers. */
MUST_USE enum status stash_release_shared(const struct stash *stash, struct stream *stream);
