// SPDX-License-Identifier: Apache-2.0
/* What each rank reports about the file that it wrote. Rank 0 makes the manifest from these notes, without
 * opening any file again.
 *
 *     bytes, header checksum       of the file; 0 bytes: the rank wrote none
 *     cover                        of its pieces (tiling.h): the sum over all ranks must equal
 *                                  that of the whole tensors, so each element was written exactly once
 *     one bit for each tensor      that has a piece in the file, in the order of struct tensor_list
 */
#pragma once

#include "trainer/checkpoint/format/tiling.h"
#include "trainer/checkpoint/replicated_state.h"

struct note {
    int64_t bytes;
    uint64_t checksum;
    struct cover cover;
};

/* The tensors of a checkpoint: the states of each parameter, then the replicated state. */
struct tensor_list {
    const struct params *params;
    enum state states; // those that are saved: STATE_VALUE alone, or all
    enum dtype main;   // of the values
    struct state_tensor *replicated;
    int replicated_count;
};

void tensor_list_create(const struct rank_state *state, struct tensor_list *out);
void tensor_list_free(struct tensor_list *list); // accepts {0}
/* The number of indices; some of them have no tensor. */
int tensor_list_count(const struct tensor_list *list);
int tensor_list_index(const struct tensor_list *list, int param, enum state state); // of a parameter
int tensor_list_replicated(const struct tensor_list *list, int index);              // of replicated state
/* Sets *out to the whole tensor; false if the checkpoint has none with this index. */
bool tensor_list_at(const struct tensor_list *list, int index, struct shard *out);

/* A note with its bits, as 32-bit words. */
int note_words(int tensors);
void note_pack(const struct note *note, const uint8_t *has, int tensors, uint32_t *out);

/* Collective: sends `words` 32-bit words of every rank to rank 0, which stores them in all[world][words];
 * `all` is not used on other ranks. Uses the memory of the gradients, which are not needed between
 * steps. */
MUST_USE enum status notes_gather(struct rank_state *state, const uint32_t *mine, int words, uint32_t *all);

/* Adds the files and tensors of all ranks to the manifest. BAD_CHECKPOINT if no rank wrote a tensor, or if
 * the pieces do not hold each element exactly once. `path` is for error messages. */
MUST_USE enum status notes_add(const struct tensor_list *list, const uint32_t *all, int ranks, int words,
                               const char *path, struct manifest *manifest);
