// SPDX-License-Identifier: Apache-2.0
#include "trainer/text/text_check.h"

/* Bytes that are characters of their own: all but the control characters that text does not have. */
static bool is_plain(unsigned char byte)
{
    return (byte >= ' ' && byte < 0x7F) || (byte >= '\b' && byte <= '\r') || byte == 0x1B;
}

/* The length of the sequence that a byte of at least 0x80 begins; 0: none. */
static int sequence_length(unsigned char first)
{
    return first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

/* Whether the second byte may follow the first: no overlong form, no surrogate, nothing above U+10FFFF. */
static bool may_follow(unsigned char first, unsigned char second)
{
    const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high;
}

/* Counts the held bytes as wrong. */
static void refuse_held(struct text_check *c)
{
    if (c->held_count > 0 && c->wrong == 0)
        c->first_wrong = c->bytes - c->held_count;
    c->wrong += c->held_count;
    c->held_count = 0;
}

static void add_byte(struct text_check *c, unsigned char byte)
{
    if (c->held_count > 0) {
        const bool follows = c->held_count == 1 ? may_follow(c->held[0], byte) : (byte & 0xC0) == 0x80;
        if (follows) {
            c->bytes++;
            c->held[c->held_count++] = byte;
            if (c->held_count == sequence_length(c->held[0]))
                c->held_count = 0;
            return;
        }
        refuse_held(c);
    }
    c->bytes++;
    if (is_plain(byte))
        return;
    c->held[c->held_count++] = byte;
    if (sequence_length(byte) == 0)
        refuse_held(c);
}

void text_check_add(struct text_check *check, const char *bytes, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        if (check->held_count == 0) {
            const int64_t begin = i;
            while (i < length && is_plain((unsigned char)bytes[i]))
                i++;
            check->bytes += i - begin;
            if (i == length)
                return;
        }
        add_byte(check, (unsigned char)bytes[i]);
    }
}

void text_check_end(struct text_check *check)
{
    refuse_held(check);
}

bool text_check_is_binary(const struct text_check *check)
{
    return check->wrong > check->bytes / 10;
}
