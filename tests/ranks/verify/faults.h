// SPDX-License-Identifier: Apache-2.0
/* Faults that test_faults.c injects into a layout's run: functions of a step observer, called on every rank,
 * each modifying its own rank's state only. Those of tables, gradients and the optimizer are in
 * test_faults.c itself. */
#pragma once

#include "trainer/engine/rank.h"

enum { FAULT_STEPS = 2 }; // of each run: some faults need moments, or a bias that is not zero

/* NULL if this rank does not hold it. */
struct held_param *held_named(struct rank_state *w, const char *name);
enum status scale(struct rank_state *w, struct tensor t, float factor);

/* faults_batches.c */
enum status dropout_by_slot(void *context, struct rank_state *w, int64_t step);
enum status mean_of_means(void *context, struct rank_state *w, int64_t step);
enum status data_swapped(void *context, struct rank_state *w, int64_t step);
enum status order_swapped(void *context, struct rank_state *w, int64_t step);
enum status microbatch_used_twice(void *context, struct rank_state *w, int64_t step);
enum status labels_of_another(void *context, struct rank_state *w, int64_t step);
enum status labels_shifted(void *context, struct rank_state *w, int64_t step);
enum status documents_ignored(void *context, struct rank_state *w, int64_t step);
enum status positions_not_reset(void *context, struct rank_state *w, int64_t step);
enum status mask_ignored(void *context, struct rank_state *w, int64_t step);
enum status mask_shifted(void *context, struct rank_state *w, int64_t step);
enum status data_of_first(void *context, struct rank_state *w, int64_t step);

/* faults_layers.c */
enum status ranks_numbered_from_zero(void *context, struct rank_state *w);
enum status restore_rank_numbers(void *context, struct rank_state *w, int64_t step);
enum status bias_added_before_sum(void *context, struct rank_state *w, int64_t step);
enum status bias_restored(void *context, struct rank_state *w, int64_t step);
enum status skip_all_reduce(void *context, struct rank_state *w);
enum status restore_all_reduce(void *context, struct rank_state *w, int64_t step);
enum status swap_gate(void *context, struct rank_state *w, int64_t step);
enum status leave_out_branch(void *context, struct rank_state *w, int64_t step);
enum status restore_branch(void *context, struct rank_state *w, int64_t step);
enum status slots_overlap(void *context, struct rank_state *w);
enum status rate_of_another_step(void *context, struct rank_state *w);
enum status window_one_longer(void *context, struct rank_state *w);
enum status logits_capped_by_share(void *context, struct rank_state *w);
enum status scores_not_capped(void *context, struct rank_state *w);
enum status recipe_restored(void *context, struct rank_state *w, int64_t step,
                            const struct step_result *result);
