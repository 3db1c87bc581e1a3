// SPDX-License-Identifier: Apache-2.0
/* Writes a dataset without holding it in memory (4 bytes per document). Ids are uint16 if vocab_size is below
 * 65500, else int32: Megatron's rule. Both files have temporary names until dataset_writer_finish(), which
 * renames the .idx last, so a dataset that can be opened is complete. Creates the folder of `prefix`. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct dataset_writer;
MUST_USE enum status dataset_writer_create(const char *prefix, int64_t vocab_size,
                                           struct dataset_writer **out);

/* Writes a loss mask, too: call it first, then dataset_writer_add_masked() for all ids. Without this call, a
 * mask of an older dataset of this prefix is removed. chat_template: the name of the one that writes them. */
MUST_USE enum status dataset_writer_with_mask(struct dataset_writer *writer, const char *chat_template);
/* counts[i] != 0: ids[i] counts in the loss. */
MUST_USE enum status dataset_writer_add_masked(struct dataset_writer *writer, const int32_t *ids,
                                               const uint8_t *counts, int64_t count);

/* Adds ids to the current document; a document is any number of adds, then an end, and may be empty. */
MUST_USE enum status dataset_writer_add(struct dataset_writer *writer, const int32_t *ids, int64_t count);
MUST_USE enum status dataset_writer_end_document(struct dataset_writer *writer);

/* Syncs, then renames. A dataset without ids is BAD_DATA, as in dataset_open(). */
MUST_USE enum status dataset_writer_finish(struct dataset_writer *writer);

/* Accepts NULL. Removes the temporary files of an unfinished writer. */
void dataset_writer_destroy(struct dataset_writer *writer);
