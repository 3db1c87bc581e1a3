// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/byte_alphabet.h"

#include <stdbool.h>

void byte_alphabet_make(int16_t byte_of[BYTE_ALPHABET])
{
    for (int i = 0; i < BYTE_ALPHABET; i++)
        byte_of[i] = -1;
    int next = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
        byte_of[printable ? byte : next++] = (int16_t)byte;
    }
}

int64_t byte_alphabet_decode(const int16_t byte_of[BYTE_ALPHABET], const char *token, char *out)
{
    int64_t count = 0;
    for (const unsigned char *c = (const unsigned char *)token; *c != 0;) {
        int point = c[0];
        if (c[0] >= 0xE0) // no character of the alphabet is longer than two bytes
            return -1;
        if (c[0] >= 0x80)
            point = (c[0] & 0x1F) << 6 | (c[1] & 0x3F);
        c += c[0] >= 0x80 ? 2 : 1;
        if (point >= BYTE_ALPHABET || byte_of[point] < 0)
            return -1;
        out[count++] = (char)byte_of[point];
    }
    return count;
}
