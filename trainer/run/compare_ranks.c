// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/compare_ranks.h"

#include "kernels/device_info.h"
#include "parallel/comm.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/engine/agree.h"
#include "trainer/files/checksum.h"

#include <string.h>
#include <unistd.h>

enum { MAX_FACTS = 40, FACT_CHARS = 128, FACT_WORDS = FACT_CHARS / 4 };

struct fact {
    char name[64];
    char text[FACT_CHARS];
};

struct facts {
    struct fact list[MAX_FACTS];
    int count;
};

static void add_fact(struct facts *facts, const char *name, const char *text)
{
    CHECK(facts->count < MAX_FACTS);
    struct fact *fact = &facts->list[facts->count++];
    snprintf(fact->name, sizeof fact->name, "%s", name);
    text_printable(text, fact->text, sizeof fact->text);
}

static void add_checksum(struct facts *facts, const char *name, const char *bytes, size_t length)
{
    char text[32];
    snprintf(text, sizeof text, "checksum %016llx", (unsigned long long)checksum_of(bytes, length));
    add_fact(facts, name, text);
}

/* ---- facts that must be equal ---- */

static enum status add_program(struct facts *facts)
{
    struct text bytes = {0};
    enum status status = file_read("/proc/self/exe", &bytes);
    if (status == OK)
        add_checksum(facts, "executable", bytes.chars, bytes.length);
    text_free(&bytes);
    return status;
}

/* Adds a checksum of the values of each section; their origins, which are comments, may differ. */
static void add_recipe(struct facts *facts, const struct recipe *recipe)
{
    struct text all = {0}, values = {0};
    char name[64] = "recipe: keys without a section";
    recipe_resolved_text(recipe, &all);
    for (char *rest = all.chars, *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        char *comment = strstr(line, " # ");
        const size_t length = strlen(line);
        if (*line != ' ' && length > 1 && line[length - 1] == ':') {
            add_checksum(facts, name, text_chars(&values), values.length);
            text_free(&values);
            snprintf(name, sizeof name, "recipe: section %.*s", (int)length - 1, line);
        }
        if (*line != '#')
            text_add_bytes(&values, line, comment != NULL ? (size_t)(comment - line) : length);
    }
    add_checksum(facts, name, text_chars(&values), values.length);
    text_free(&values);
    text_free(&all);
}

static enum status add_data(struct facts *facts, struct data *data)
{
    const struct text *text;
    if (data == NULL)
        return OK;
    TRY(data_fingerprint(data, &text));
    add_checksum(facts, "dataset", text_chars(text), text->length);
    return OK;
}

/* ---- facts that may change the last bits ---- */

static void add_machine(struct facts *facts, const struct rank_state *state)
{
    const char *vectors = "unknown";
#if defined(__x86_64__)
    vectors = __builtin_cpu_supports("avx512f") ? "AVX-512" : __builtin_cpu_supports("avx2") ? "AVX2" : "SSE";
#endif
    add_fact(facts, "vector width", vectors);
    char version[64] = "unknown";
    (void)confstr(_CS_GNU_LIBC_VERSION, version, sizeof version);
    add_fact(facts, "C library", version);
    struct text libraries = {0};
    struct device_info info;
    // On a GPU this would open a second context.
    if (!device_traits(device_name(state->device))->is_gpu &&
        device_query_info(device_name(state->device), 0, &info) == OK)
        add_fact(facts, "device", info.name);
    device_describe_libraries(device_name(state->device), &libraries);
    add_fact(facts, "driver and libraries", text_chars(&libraries));
    text_free(&libraries);
}

/* ---- the comparison ---- */

/* Collective: *index is that of the first fact that is not equal on all ranks, -1 if there is none; *differs:
 * it differs on this rank. */
static enum status first_difference(struct rank_state *state, const struct facts *facts, int *index,
                                    bool *differs)
{
    double first = 0.0;
    for (int at = 0; at < facts->count; at += AGREE_MAX_VALUES) {
        uint32_t words[AGREE_MAX_VALUES] = {0}, mine[AGREE_MAX_VALUES] = {0};
        const int count = facts->count - at < AGREE_MAX_VALUES ? facts->count - at : AGREE_MAX_VALUES;
        for (int i = 0; i < count; i++)
            words[i] = mine[i] =
                (uint32_t)checksum_of(facts->list[at + i].text, strlen(facts->list[at + i].text));
        TRY(rank_broadcast_small(state, words, count));
        for (int i = 0; i < count; i++)
            if (words[i] != mine[i] && first == 0.0)
                first = (double)(facts->count - at - i);
    }
    const double own = first;
    TRY(rank_agree_max(state, &first, 1));
    *index = facts->count - (int)first;
    *differs = first > 0.0 && own == first;
    if (first == 0.0)
        *index = -1;
    return OK;
}

/* Collective: broadcasts the text of rank 0. */
static enum status broadcast_text(struct rank_state *state, char text[FACT_CHARS])
{
    uint32_t words[FACT_WORDS];
    memcpy(words, text, sizeof words);
    for (int at = 0; at < FACT_WORDS; at += AGREE_MAX_VALUES)
        TRY(rank_broadcast_small(state, words + at, AGREE_MAX_VALUES));
    memcpy(text, words, sizeof words);
    text[FACT_CHARS - 1] = 0;
    return OK;
}

/* Collective: an error that names the odd rank; OK if all are equal. */
static enum status compare(struct rank_state *state, const struct facts *facts)
{
    struct launcher launcher;
    struct fact first = {.text = ""};
    const int rank = state->world->rank, size = state->world->size;
    int index;
    bool differs;
    TRY(launcher_find(&launcher));
    TRY(first_difference(state, facts, &index, &differs));
    if (index < 0)
        return OK;
    double like_first = rank > 0 && !differs ? 1.0 : 0.0;
    TRY(rank_agree_max(state, &like_first, 1));
    const struct fact *fact = &facts->list[index];
    snprintf(first.text, sizeof first.text, "%.90s, node %.30s", fact->text, launcher.node);
    TRY(broadcast_text(state, first.text));
    enum status mine = OK;
    if (differs && size > 2 && like_first == 0.0)
        mine = fail(BAD_RECIPE, "%s: rank 0 (%s) differs from the other ranks (rank %d: %s, node %s)",
                    fact->name, first.text, rank, fact->text, launcher.node);
    else if (differs)
        mine = fail(BAD_RECIPE, "%s: rank %d (%s, node %s) differs from rank 0 (%s)", fact->name, rank,
                    fact->text, launcher.node, first.text);
    return rank_agree(state, mine);
}

enum status compare_ranks(struct rank_state *state)
{
    struct facts same = {.count = 0}, alike = {.count = 0};
    struct launcher launcher;
    TRY(launcher_find(&launcher));
    if (launcher.size <= 1) // threads of one process
        return OK;
    enum status status = add_program(&same);
    add_recipe(&same, state->run->recipe);
    if (status == OK)
        status = add_data(&same, state->run->data);
    TRY(rank_agree(state, status));
    status = compare(state, &same);
    if (status != OK)
        return fail(status, "%s; start all ranks with the same one", fail_text());
    add_machine(&alike, state);
    status = compare(state, &alike);
    if (status == BAD_RECIPE) {
        if (state->world->rank == 0)
            print_line(stderr, "warning: %s; results may differ in their last bits between layouts",
                       fail_text());
        return OK;
    }
    return status;
}
