// SPDX-License-Identifier: Apache-2.0
/* Packing of whole documents into samples of S positions by best-fit decreasing: the longest document first,
 * each into the fullest sample that has space for it, or else into a new one.
 *
 *     lengths 3 9 4 2 5, S 10      packs [9] [5 4] [3 2]      23 of 30 positions are filled
 *
 * Packs are a pure function of the lengths and S: they are the same in every epoch, and a run shuffles only
 * their order. Documents without tokens are in no pack. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct data_pack {
    int64_t count;      // of packs
    int64_t *starts;    // [count + 1] where the documents of a pack begin in `documents`
    int32_t *documents; // indices into lengths, pack by pack
    int64_t filled;     // positions of all packs with a token
};

/* Packs documents of lengths[0..documents), each 0 to seq_length. */
struct data_pack data_pack_create(const int32_t *lengths, int32_t documents, int32_t seq_length);
void data_pack_free(struct data_pack *pack); // accepts {0}
