// SPDX-License-Identifier: Apache-2.0
/* Continuing the order of the training samples (data_order.h) in a resumed run, and the record of it for
 * checkpoints. Without a change of the data, samples are those of a run that was not interrupted. After a
 * change of the blend - weights, sources added, removed or reordered - each source continues after what it
 * gave, so that no sample is skipped or repeated.
 *
 * Another model.seq_length, seed, split or packing moves the borders or the order of the samples of an epoch.
 * A source then continues at the same fraction of its epoch. In the rest of this epoch, samples are another
 * random selection, so that a part of them is read twice and as much of the text is not read: with the
 * fraction f of the epoch's samples read before, on average f * (1 - f) of them. This is reported, and with
 * data.strict refused. Later epochs are complete. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/order/data_order.h"

/* Returns the text of the order; computed by the first call, and constant until data_set_order(). */
MUST_USE enum status data_order_record(struct data *data, const struct text **out);

/* Compares the data with the order `then` of a checkpoint that has read `samples` of the run, reports all
 * changes, and appends the text of the order that continues it to `out`. positions[i]: of source i of
 * data.train in the last segment of `then`; -1: not in it. BAD_DATA: with `strict`, if samples would be
 * skipped or repeated. Consumes `then`. */
MUST_USE enum status data_resume(struct data *data, struct data_order *then, int64_t samples, bool strict,
                                 int *positions, struct text *out);

/* Continues with the last segment of the text that data_resume() has made. Called by all ranks before they
 * read samples; those of one process share the data. */
MUST_USE enum status data_set_order(struct data *data, const struct text *text);
