// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/tokenizer_print.h"

#include <utf8proc.h>

void tokenizer_print(FILE *to, const struct text *bytes)
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text_chars(bytes);
    for (const utf8proc_uint8_t *end = at + bytes->length; at < end;) {
        utf8proc_int32_t point = 0;
        utf8proc_ssize_t length = utf8proc_iterate(at, end - at, &point);
        utf8proc_category_t category = length > 0 ? utf8proc_category(point) : UTF8PROC_CATEGORY_CC;
        bool plain = category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF && *at != '\\';
        if (plain)
            fwrite(at, 1, (size_t)length, to);
        else if (*at == '\n')
            fputs("\\n", to);
        else if (*at == '\\')
            fputs("\\\\", to);
        else
            fprintf(to, "\\x%02x", *at);
        at += plain ? length : 1;
    }
}
