// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/huggingface/regex.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "trainer/tokenizer/huggingface/split.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { JIT_STACK_MIN = 32 << 10, JIT_STACK_MAX = 64 << 20 };

/* PCRE2's limits hold for each position at which a match may begin, and not every loop counts as steps, so a
 * text of n bytes can take n^2 steps. So it is searched in windows of positions, and the time of its matches
 * is limited: to many times that of any pattern whose cost is linear. */
enum { WINDOW_BYTES = 256, CALLS_PER_CHECK = 64 };
static const double SECONDS_PER_TEXT = 1.0, SECONDS_PER_BYTE = 5e-6;

struct split_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    double allowed_s, began_s, began_cpu_s; // of the text
    unsigned calls;
};

#define SPACES \
    "\\t-\\r\\x20\\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

/* Writes \s and \S as lists of characters; a \S inside a class stays PCRE2's. Oniguruma's operators in a
 * class are BAD_DATA: PCRE2 reads them as characters. */
static enum status spell_spaces(const char *pattern, size_t length, struct text *out)
{
    bool in_class = false;
    for (size_t i = 0; i < length; i++) {
        char c = pattern[i], next = i + 1 < length ? pattern[i + 1] : 0;
        if (c == '\\' && (next == 's' || (next == 'S' && !in_class))) {
            text_add(out, "%s" SPACES "%s", in_class ? "" : next == 's' ? "[" : "[^", in_class ? "" : "]");
            i++;
            continue;
        }
        if (c == '\\' && next != 0) {
            text_add_bytes(out, pattern + i++, 2);
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && next == '&')))
            return fail(BAD_DATA,
                        "the regular expression has %s inside a character class, at offset %zu of %zu, which "
                        "is not supported; use a pattern without it",
                        c == '[' ? "a [" : "&&", i, length);
        if (c == '[' && !in_class) {
            in_class = true;
            // A ] at the beginning of a class is one of its characters.
            size_t first = i + 1 < length && pattern[i + 1] == '^' ? i + 2 : i + 1;
            if (first < length && pattern[first] == ']') {
                text_add_bytes(out, pattern + i, first - i + 1);
                i = first;
                continue;
            }
        } else if (c == ']') {
            in_class = false;
        }
        text_add_bytes(out, &c, 1);
    }
    return OK;
}

static enum status describe(int code, size_t offset, size_t length)
{
    PCRE2_UCHAR why[128] = "";
    pcre2_get_error_message(code, why, sizeof why);
    return fail(BAD_DATA, "the regular expression is invalid: %s, at offset %zu of %zu", (const char *)why,
                offset, length);
}

static enum status compile(const struct text *pattern, bool literal, pcre2_code **out)
{
    int code = 0;
    PCRE2_SIZE offset = 0;
    uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    options |= PCRE2_USE_OFFSET_LIMIT;
    pcre2_code *regex =
        pcre2_compile((PCRE2_SPTR)text_chars(pattern), pattern->length, options, &code, &offset, NULL);
    if (regex == NULL)
        return describe(code, offset, pattern->length);
    uint32_t empty = 0;
    pcre2_pattern_info(regex, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty != 0) {
        pcre2_code_free(regex);
        return fail(BAD_DATA, "the regular expression matches the empty string, which splits no text");
    }
    // Without JIT compilation, pcre2_match() interprets.
    pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE);
    *out = regex;
    return OK;
}

enum status regex_compile(const char *pattern, size_t length, bool literal, pcre2_code **out)
{
    AUTO(text) spelled = {0};
    enum status status = OK;
    if (literal)
        text_add_bytes(&spelled, pattern, length);
    else
        status = spell_spaces(pattern, length, &spelled);
    if (status == OK)
        status = compile(&spelled, literal, out);
    return status;
}

void regex_free(pcre2_code *regex)
{
    pcre2_code_free(regex);
}

struct split_scratch *split_scratch_create(void)
{
    struct split_scratch *s = memory_zeroed(1, sizeof *s, "an encoder");
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL); // NULL without JIT
    if (s->match == NULL || s->context == NULL)
        die_of(NO_MEMORY, "out of memory for an encoder");
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void split_scratch_destroy(struct split_scratch *scratch)
{
    if (scratch == NULL)
        return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

void split_scratch_begin(struct split_scratch *scratch, int64_t length)
{
    scratch->allowed_s = SECONDS_PER_TEXT + SECONDS_PER_BYTE * (double)length;
    scratch->began_s = clock_s();
    scratch->began_cpu_s = (double)clock_thread_ns() * 1e-9;
}

/* The time of a thread is a system call, so the clock is read first. */
static bool is_too_slow(const struct split_scratch *s)
{
    return clock_s() - s->began_s > s->allowed_s &&
           (double)clock_thread_ns() * 1e-9 - s->began_cpu_s > s->allowed_s;
}

/* Searches for a match that begins at or after `first`, window by window; a PCRE2 code. */
static int search(const pcre2_code *regex, struct split_scratch *scratch, const char *text, int64_t length,
                  int64_t first)
{
    for (int64_t from = first; from < length; from++) {
        const int64_t last = from + WINDOW_BYTES;
        // Usually there is a match in the first window.
        if ((from > first || ++scratch->calls % CALLS_PER_CHECK == 0) && is_too_slow(scratch))
            return PCRE2_ERROR_MATCHLIMIT;
        pcre2_set_offset_limit(scratch->context, last < length ? (PCRE2_SIZE)last : PCRE2_UNSET);
        const int code = pcre2_match(regex, (PCRE2_SPTR)text, (PCRE2_SIZE)length, (PCRE2_SIZE)from,
                                     PCRE2_NO_UTF_CHECK, scratch->match, scratch->context);
        if (code != PCRE2_ERROR_NOMATCH || last >= length)
            return code;
        for (from = last; from + 1 < length && ((unsigned char)text[from + 1] & 0xC0) == 0x80;)
            from++; // the next window begins with a character
    }
    return PCRE2_ERROR_NOMATCH;
}

enum status regex_find(const pcre2_code *regex, struct split_scratch *scratch, const char *text,
                       int64_t length, int64_t from, int64_t *begin, int64_t *end)
{
    const int code = search(regex, scratch, text, length, from);
    *begin = *end = length;
    if (code == PCRE2_ERROR_NOMATCH)
        return OK;
    if (code < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return fail(BAD_DATA,
                    "the regular expression is too expensive for a text of %lld bytes, at byte %lld (PCRE2: "
                    "%s); use a pattern without nested repeats, or split the text into smaller documents",
                    (long long)length, (long long)from, (const char *)why);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(scratch->match);
    if (span[1] <= span[0]) // \K may end a match before its beginning
        return fail(BAD_DATA, "the regular expression matches the empty string, which splits no text");
    *begin = (int64_t)span[0];
    *end = (int64_t)span[1];
    return *begin >= from ? OK : fail(BAD_DATA, "the regular expression matches text before its beginning");
}

#else

enum status regex_compile(const char *pattern, size_t length, bool literal, struct pcre2_real_code_8 **out)
{
    (void)pattern, (void)length, (void)literal, (void)out;
    return fail(NOT_SUPPORTED, "this pattern needs PCRE2, which this build lacks; install libpcre2-dev and "
                               "build again with -Dpcre2=enabled");
}

void regex_free(struct pcre2_real_code_8 *regex)
{
    (void)regex;
}

struct split_scratch *split_scratch_create(void)
{
    return NULL; // built-in patterns need none
}

void split_scratch_destroy(struct split_scratch *scratch)
{
    (void)scratch;
}

void split_scratch_begin(struct split_scratch *scratch, int64_t length)
{
    (void)scratch, (void)length;
}

enum status regex_find(const struct pcre2_real_code_8 *regex, struct split_scratch *scratch, const char *text,
                       int64_t length, int64_t from, int64_t *begin, int64_t *end)
{
    (void)regex, (void)scratch, (void)text, (void)from;
    *begin = *end = length;
    return fail(NOT_SUPPORTED, "built without PCRE2");
}
#endif
