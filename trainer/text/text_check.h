// SPDX-License-Identifier: Apache-2.0
/* Whether bytes are text: the share of bytes that are not UTF-8, or are control characters that no text has.
 *
 *     "caf\xE9 a"    1 of 6 bytes is wrong: Latin-1, or another encoding
 *     an ELF file    most bytes are wrong: zeros, and sequences that are not UTF-8
 *
 * A file is refused if more than a tenth of its first 64 KiB, or of all its bytes, is wrong. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TEXT_CHECKED_BYTES = 64 << 10 };

/* {0} before the first byte. */
struct text_check {
    int64_t bytes, wrong, first_wrong; // first_wrong: the offset of the first wrong byte
    unsigned char held[4];             // the beginning of a sequence
    int held_count;
};

/* Adds the next bytes. */
void text_check_add(struct text_check *check, const char *bytes, int64_t length);
/* At the end: a sequence that is not complete is wrong. */
void text_check_end(struct text_check *check);
bool text_check_is_binary(const struct text_check *check);
