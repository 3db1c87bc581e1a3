// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/stream_copy.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LINE = 64 };

#ifdef __x86_64__
#include <immintrin.h>

/* `lines` whole lines; `out` is the beginning of one. */
static void copy_lines(char *out, const char *in, size_t lines)
{
    enum { EACH = sizeof(__m128i) };
    for (size_t at = 0; at < lines * LINE; at += LINE)
        for (size_t i = 0; i < LINE; i += EACH)
            _mm_stream_si128((__m128i *)(void *)(out + at + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(in + at + i)));
}

/* A line in two stores instead of four is faster by a fifth. */
__attribute__((target("avx2"))) static void copy_lines_avx2(char *out, const char *in, size_t lines)
{
    enum { EACH = sizeof(__m256i) };
    for (size_t at = 0; at < lines * LINE; at += LINE)
        for (size_t i = 0; i < LINE; i += EACH)
            _mm256_stream_si256((__m256i *)(void *)(out + at + i),
                                _mm256_loadu_si256((const __m256i *)(const void *)(in + at + i)));
}

/* stream_copy() that other threads do not see yet. */
static void copy(char *out, const char *in, size_t bytes)
{
    const size_t before = (LINE - (uintptr_t)out % LINE) % LINE;
    if (bytes < before + LINE) {
        memcpy(out, in, bytes);
        return;
    }
    memcpy(out, in, before);
    const size_t lines = (bytes - before) / LINE, end = before + lines * LINE;
    if (__builtin_cpu_supports("avx2"))
        copy_lines_avx2(out + before, in + before, lines);
    else
        copy_lines(out + before, in + before, lines);
    memcpy(out + end, in + end, bytes - end);
}

static void fence(void)
{
    _mm_sfence();
}
#else
static void copy(char *out, const char *in, size_t bytes)
{
    memcpy(out, in, bytes);
}

static void fence(void)
{
}
#endif

void stream_copy(void *to, const void *from, size_t bytes)
{
    copy(to, from, bytes);
    fence();
}

/* Adds to a checksum, and loads what follows. Past the end of the memory a load ahead does nothing. */
static void add(struct checksum *sum, const char *from, size_t bytes)
{
    enum { AHEAD = 8192 };
    for (size_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch((const void *)((uintptr_t)from + AHEAD + at));
    checksum_add(sum, from, bytes);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

uint64_t stream_copy_checksum(struct checksum *sum, const void *from, size_t bytes, size_t begin,
                              size_t length, void *to)
{
    enum { PIECE = 2048 };
    const size_t end = begin + length;
    const char *in = from;
    char *out = to;
    checksum_restart(sum);
    for (size_t at = 0, next; at < bytes; at = next) {
        const bool wanted = at >= begin && at < end;
        char *target = wanted ? out + (at - begin) : NULL;
        // A piece ends with a line of its target.
        next = smaller(at + PIECE - (uintptr_t)target % LINE, wanted ? end : at < begin ? begin : bytes);
        if (wanted)
            copy(target, in + at, next - at);
        add(sum, in + at, next - at);
    }
    fence();
    return checksum_now(sum);
}
