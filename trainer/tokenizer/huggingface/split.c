// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/huggingface/split.h"

#include "trainer/tokenizer/bpe.h"
#include "trainer/tokenizer/huggingface/llama_word.h"
#include "trainer/tokenizer/huggingface/regex.h"
#include "trainer/tokenizer/tokenizer_unicode.h"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define LLAMA(number)                                                                                \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *text;
    enum split_pattern pattern;
    int digits;
} known[] = {
    {GPT2, SPLIT_GPT2_WORDS, 0},
    {LLAMA("\\p{N}{1,3}"), SPLIT_LLAMA_WORDS, 3},
    {LLAMA("\\p{N}"), SPLIT_LLAMA_WORDS, 1},
};

enum status split_compile(const char *pattern, size_t length, bool literal, struct split *out)
{
    for (size_t i = 0; i < sizeof known / sizeof *known && !literal; i++)
        if (strlen(known[i].text) == length && memcmp(known[i].text, pattern, length) == 0) {
            out->pattern = known[i].pattern;
            out->digits = known[i].digits;
            return OK;
        }
    out->pattern = SPLIT_REGEX;
    return regex_compile(pattern, length, literal, &out->regex);
}

void split_free(struct split *split)
{
    regex_free(split->regex);
    split->regex = NULL;
}

bool split_is_words(const struct split *split)
{
    // These patterns match all text, so nothing is between their matches.
    bool built_in = split->pattern == SPLIT_GPT2_WORDS || split->pattern == SPLIT_LLAMA_WORDS;
    return built_in && (split->invert ? split->behavior == SPLIT_REMOVED : split->behavior == SPLIT_ISOLATED);
}

int64_t split_word(const struct split *split, const char *text, int64_t length)
{
    return split->pattern == SPLIT_GPT2_WORDS ? bpe_word(text, length)
                                              : llama_word(text, length, split->digits);
}

/* The next run of numbers, or single number. */
static void find_digits(const struct split_search *s, struct split_span *out)
{
    int64_t used = 0, at = s->at;
    while (at < s->length && character_at(s->text + at, s->length - at, &used) != CHARACTER_NUMBER)
        at += used;
    out->begin = out->end = at;
    while (out->end < s->length && (out->end == at || s->split->digits != 1) &&
           character_at(s->text + out->end, s->length - out->end, &used) == CHARACTER_NUMBER)
        out->end += used;
}

static enum status find_match(struct split_search *s)
{
    struct split_span *match = &s->match;
    switch (s->split->pattern) {
    case SPLIT_GPT2_WORDS:
    case SPLIT_LLAMA_WORDS:
        match->begin = match->end = s->at;
        if (s->at < s->length)
            match->end += split_word(s->split, s->text + s->at, s->length - s->at);
        return OK;
    case SPLIT_DIGITS:
        find_digits(s, match);
        return OK;
    case SPLIT_REGEX:
        if (regex_find(s->split->regex, s->scratch, s->text, s->length, s->at, &match->begin, &match->end) ==
            OK)
            return OK;
        return fail(BAD_DATA, "%s: %s", s->split->place, fail_text());
    }
    return OK;
}

void split_begin(const struct split *split, struct split_scratch *scratch, const char *text, int64_t length,
                 struct split_search *out)
{
    *out = (struct split_search){.split = split, .scratch = scratch, .text = text, .length = length};
}

/* The next match, or the text before it; an empty span at the end. */
static enum status next_span(struct split_search *s, struct split_span *out)
{
    *out = (struct split_span){s->length, s->length, false};
    if (s->at == s->length)
        return OK;
    if (s->match.end <= s->at)
        TRY(find_match(s));
    bool matches = s->match.begin == s->at;
    *out = (struct split_span){s->at, matches ? s->match.end : s->match.begin, matches != s->split->invert};
    s->at = out->end;
    return OK;
}

/* Whether the held span grows by the next one. */
static bool grows(enum split_behavior behavior, const struct split_span *held, const struct split_span *next)
{
    switch (behavior) {
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED:
        return false;
    case SPLIT_CONTIGUOUS:
        return held->matches == next->matches;
    case SPLIT_MERGED_WITH_PREVIOUS:
        return !held->matches && next->matches;
    case SPLIT_MERGED_WITH_NEXT:
        return held->matches && !next->matches;
    }
    return false;
}

enum status split_next(struct split_search *search, int64_t *begin, int64_t *end)
{
    for (;;) {
        struct split_span next, held = search->held;
        TRY(next_span(search, &next));
        bool at_end = next.begin == next.end, grown = held.begin < held.end && !at_end;
        grown = grown && grows(search->split->behavior, &held, &next);
        search->held = next;
        if (grown)
            search->held.begin = held.begin;
        else if (held.begin < held.end && !(search->split->behavior == SPLIT_REMOVED && held.matches)) {
            *begin = held.begin;
            *end = held.end;
            return OK;
        }
        if (at_end) {
            *begin = *end = search->length;
            return OK;
        }
    }
}
