// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/stream_copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

void stream_copy(void *to, const void *from, size_t bytes)
{
    enum { EACH = sizeof(__m128i), LINE = 4 * EACH };
    char *out = to;
    const char *in = from;
    const size_t before = (LINE - (uintptr_t)out % LINE) % LINE;
    if (bytes < before + LINE) {
        memcpy(out, in, bytes);
        return;
    }
    memcpy(out, in, before);
    size_t at = before;
    for (; at + LINE <= bytes; at += LINE)
        for (size_t i = 0; i < LINE; i += EACH)
            _mm_stream_si128((__m128i *)(void *)(out + at + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(in + at + i)));
    _mm_sfence(); // before other threads are told
    memcpy(out + at, in + at, bytes - at);
}
#else
void stream_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
