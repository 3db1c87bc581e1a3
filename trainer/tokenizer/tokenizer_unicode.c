// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/tokenizer_unicode.h"

#include <utf8proc.h>

/* Table for ASCII, the most frequent case: o other, l letter, n number, s space. */
static const unsigned char ascii[128] = {
#define o CHARACTER_OTHER
#define l CHARACTER_LETTER
#define n CHARACTER_NUMBER
#define s CHARACTER_SPACE
    o, o, o, o, o, o, o, o, o, s, s, s, s, s, o, o, // 00: the spaces are \t \n \v \f \r
    o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, // 10
    s, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, // 20
    n, n, n, n, n, n, n, n, n, n, o, o, o, o, o, o, // 30
    o, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, // 40
    l, l, l, l, l, l, l, l, l, l, l, o, o, o, o, o, // 50
    o, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, // 60
    l, l, l, l, l, l, l, l, l, l, l, o, o, o, o, o, // 70
#undef o
#undef l
#undef n
#undef s
};

static enum character kind_of(utf8proc_int32_t point)
{
    switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return CHARACTER_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return CHARACTER_NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return CHARACTER_SPACE;
    default:
        return point == 0x85 ? CHARACTER_SPACE : CHARACTER_OTHER; // "next line" is a control character and a
                                                                  // space
    }
}

enum character character_at(const char *bytes, int64_t length, int64_t *used)
{
    unsigned char first = (unsigned char)bytes[0];
    *used = 1;
    if (first < 128)
        return (enum character)ascii[first];
    utf8proc_int32_t point = 0;
    utf8proc_ssize_t taken =
        utf8proc_iterate((const utf8proc_uint8_t *)bytes, length < 4 ? length : 4, &point);
    if (taken < 1)
        return CHARACTER_OTHER;
    *used = taken;
    return kind_of(point);
}
