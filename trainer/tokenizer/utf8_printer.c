// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/utf8_printer.h"

#include "base/memory.h"

#include <errno.h>
#include <string.h>

/* Length of a character in bytes, from its first byte; 1 if the byte is invalid. */
static size_t announced(unsigned char lead)
{
    if (lead < 0xC2 || lead > 0xF4)
        return 1;
    return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}

/* True if bytes[0..length) are the beginning of an incomplete character. */
static bool unfinished(const char *bytes, size_t length)
{
    if (length >= announced((unsigned char)bytes[0]))
        return false;
    for (size_t i = 1; i < length; i++)
        if (((unsigned char)bytes[i] & 0xC0) != 0x80)
            return false;
    return true;
}

/* C0, DEL and C1 (C2 80 to C2 9F). */
static bool is_control(const char *at)
{
    unsigned char first = (unsigned char)at[0];
    if (first == '\t' || first == '\n')
        return false;
    return first < 0x20 || first == 0x7F || (first == 0xC2 && (unsigned char)at[1] < 0xA0);
}

/* Converts the characters of bytes[0..length) to `out`; returns the number of bytes consumed. `bytes` is
 * null-terminated. */
static size_t convert(const char *bytes, size_t length, bool all, struct text *out)
{
    size_t at = 0;
    while (at < length && (all || !unfinished(bytes + at, length - at))) {
        int size = utf8_length(bytes + at);
        if (size == 0 || is_control(bytes + at))
            text_add(out, "\xEF\xBF\xBD");
        else
            text_add_bytes(out, bytes + at, (size_t)size);
        at += size == 0 ? 1 : (size_t)size;
    }
    return at;
}

static enum status print(struct utf8_printer *p, bool all)
{
    AUTO(text) out = {0};
    size_t used = p->pending.length;
    if (p->raw)
        text_add_bytes(&out, text_chars(&p->pending), used);
    else
        used = convert(text_chars(&p->pending), p->pending.length, all, &out);
    if (used > 0) {
        p->pending.length -= used;
        memmove(p->pending.chars, p->pending.chars + used, p->pending.length + 1);
    }
    errno = 0;
    bool written = fwrite(text_chars(&out), 1, out.length, p->to) == out.length && fflush(p->to) == 0;
    return written ? OK : fail(IO_ERROR, "cannot write the text: %s", strerror(errno));
}

enum status utf8_print(struct utf8_printer *printer, const char *bytes, size_t length)
{
    text_add_bytes(&printer->pending, bytes, length);
    return print(printer, false);
}

enum status utf8_print_end(struct utf8_printer *printer)
{
    enum status status = print(printer, true);
    text_free(&printer->pending);
    return status;
}
