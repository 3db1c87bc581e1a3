// SPDX-License-Identifier: Apache-2.0
#include "planner/profile/gpu_type.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of two boards of one kind, that for a text without memory is the first. */
static const struct gpu_type types[] = {
    {"V100", "dgx-v100-32", 32, 70},  {"A100", "dgx-a100-80", 80, 80}, {"A100", "dgx-a100-40", 40, 80},
    {"H100", "dgx-h100", 80, 90},     {"H200", "dgx-h200", 141, 90},   {"B200", "dgx-b200", 0, 100},
    {"GB200", "gb200-nvl72", 0, 100},
};
enum { TYPES = sizeof types / sizeof *types };

/* Whether a word, after a count such as "8x", is the name, its plural, or the name with SXM: "H100SXM5". */
static bool word_is(const char *word, size_t length, const char *name)
{
    const size_t digits = strspn(word, "0123456789"), named = strlen(name);
    if (digits > 0 && digits + 1 < length && tolower((unsigned char)word[digits]) == 'x') {
        word += digits + 1;
        length -= digits + 1;
    }
    if (length < named || strncasecmp(word, name, named) != 0)
        return false;
    return length == named || (length == named + 1 && tolower((unsigned char)word[named]) == 's') ||
           (length >= named + 3 && strncasecmp(word + named, "SXM", 3) == 0);
}

static bool has_word(const char *text, const char *name)
{
    while (*text != 0) {
        size_t length = 0;
        while (isalnum((unsigned char)text[length]))
            length++;
        if (length > 0 && word_is(text, length, name))
            return true;
        text += length > 0 ? length : 1;
    }
    return false;
}

/* "80GB", "80 GiB", but neither "400Gb/s" nor "450GB/s"; 0: none. */
static long memory_of(const char *text)
{
    while (*(text += strcspn(text, "0123456789")) != 0) {
        char *end;
        const long value = strtol(text, &end, 10);
        const char *unit = end + strspn(end, " -");
        const size_t length = strncmp(unit, "GB", 2) == 0 || strncmp(unit, "gb", 2) == 0 ? 2
                              : strncasecmp(unit, "GiB", 3) == 0                         ? 3
                                                                                         : 0;
        if (length > 0 && unit[length] != '/')
            return value;
        text = end;
    }
    return 0;
}

const struct gpu_type *gpu_type_find(const char *text)
{
    for (int i = 0; i < TYPES; i++)
        if (has_word(text, types[i].name))
            return &types[i];
    return NULL;
}

const char *gpu_type_profile(const char *text)
{
    const long memory = memory_of(text);
    if (has_word(text, "PCIe") || has_word(text, "NVL"))
        return NULL;
    for (int i = 0; i < TYPES; i++)
        if (has_word(text, types[i].name) &&
            (memory == 0 || types[i].memory_gb == 0 || memory == types[i].memory_gb))
            return types[i].profile;
    return NULL;
}

bool gpu_type_matches(const char *text, const char *device)
{
    const struct gpu_type *type = gpu_type_find(text), *of_device = gpu_type_find(device);
    const long memory = memory_of(text), there = memory_of(device);
    if (of_device == NULL)
        return true;
    return type != NULL && strcmp(type->name, of_device->name) == 0 &&
           (type->memory_gb == 0 || memory == 0 || there == 0 || memory == there);
}

void gpu_type_names(struct text *out)
{
    for (int i = 0; i < TYPES; i++)
        if (i == 0 || strcmp(types[i].name, types[i - 1].name) != 0)
            text_add(out, "%s%s", i > 0 ? ", " : "", types[i].name);
}
