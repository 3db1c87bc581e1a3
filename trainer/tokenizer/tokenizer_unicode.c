// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/tokenizer_unicode.h"

#include <string.h>
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

bool character_is_word(const char *bytes, int64_t length)
{
    utf8proc_int32_t point = 0;
    if (utf8proc_iterate((const utf8proc_uint8_t *)bytes, length < 4 ? length : 4, &point) < 1)
        return false;
    switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: // the joiners, and letters in circles
        return point == 0x200C || point == 0x200D || (point >= 0x24B6 && point <= 0x24E9) ||
               (point >= 0x1F130 && point <= 0x1F149) || (point >= 0x1F150 && point <= 0x1F169) ||
               (point >= 0x1F170 && point <= 0x1F189);
    }
}

int64_t utf8_prefix(const char *bytes, int64_t length)
{
    int64_t at = 0;
    while (at < length) {
        uint64_t eight;
        for (; at + 8 <= length; at += 8) {
            memcpy(&eight, bytes + at, 8);
            if ((eight & 0x8080808080808080U) != 0)
                break;
        }
        if (at < length && (unsigned char)bytes[at] >= 128) {
            utf8proc_int32_t point = 0;
            utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)bytes + at,
                                                     length - at < 4 ? length - at : 4, &point);
            if (used < 1)
                return at;
            at += used;
        } else if (at < length) {
            at++;
        }
    }
    return at;
}
