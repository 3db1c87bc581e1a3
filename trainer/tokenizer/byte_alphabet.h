// SPDX-License-Identifier: Apache-2.0
/* The alphabet of byte-level BPE files, which write each byte as one character: the printable bytes of
 * Latin-1 as themselves, the others as U+0100 and up, in order; so "Ġ" is a space. */
#pragma once

#include <stdint.h>

enum { BYTE_ALPHABET = 512 }; // code points that may represent a byte: below U+0144

/* Fills byte_of[c] with the byte that code point c represents, or -1. */
void byte_alphabet_make(int16_t byte_of[BYTE_ALPHABET]);

/* Decodes the bytes that the characters of `token`, valid UTF-8, represent into out[0..strlen(token)].
 * Returns their number, or -1 if a character represents no byte. */
int64_t byte_alphabet_decode(const int16_t byte_of[BYTE_ALPHABET], const char *token, char *out);
