// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/compare_ranks.h"

#include "base/clock.h"
#include "base/memory.h"
#include "parallel/comm.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/engine/agree.h"
#include "trainer/files/checksum.h"
#include "trainer/recipe/recipe_table.h"

#include <dirent.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FACT_CHARS = 128, RETRY_MS = 500 };
static const double SHARED_S = 40.0; // NFS may hide a new folder from other nodes for 30 s

struct fact {
    char name[80];
    char text[FACT_CHARS];
    uint32_t checksum; // of the whole text
    bool is_section;   // of the recipe: its keys can be compared
};

/* The same number on all ranks. */
struct facts {
    struct fact *list;
    int count, capacity;
};

static struct fact *add_fact(struct facts *facts, const char *name, const char *text)
{
    if (facts->count == facts->capacity) {
        facts->capacity = facts->capacity > 0 ? 2 * facts->capacity : 32;
        facts->list =
            memory_resized(facts->list, (size_t)facts->capacity, sizeof *facts->list, "facts of a rank");
    }
    struct fact *fact = &facts->list[facts->count++];
    *fact = (struct fact){.checksum = (uint32_t)checksum_of(text, strlen(text))};
    snprintf(fact->name, sizeof fact->name, "%s", name);
    text_printable(text, fact->text, sizeof fact->text);
    return fact;
}

static struct fact *add_checksum(struct facts *facts, const char *name, const char *bytes, size_t length)
{
    char text[32];
    snprintf(text, sizeof text, "checksum %016llx", (unsigned long long)checksum_of(bytes, length));
    return add_fact(facts, name, text);
}

/* ---- facts that must be equal ---- */

static enum status add_program(struct facts *facts)
{
    AUTO(text) bytes = {0};
    TRY(file_read("/proc/self/exe", &bytes));
    add_checksum(facts, "executable", bytes.chars, bytes.length);
    return OK;
}

/* Adds a checksum of the values of each section. */
static void add_sections(struct facts *facts, const struct recipe *recipe)
{
    for (int s = 0; s < recipe_section_total(recipe->addition); s++) {
        AUTO(text) values = {0};
        for (int i = 0; i < recipe_row_total(recipe->addition); i++)
            if (recipe_row_in_section(recipe_row_at(recipe->addition, i),
                                      recipe_section_at(recipe->addition, s)->name)) {
                recipe_value_text(recipe, recipe_row_at(recipe->addition, i), &values);
                text_add(&values, "\n");
            }
        add_checksum(facts, recipe_section_at(recipe->addition, s)->name, text_chars(&values), values.length)
            ->is_section = true;
    }
}

static void add_keys(struct facts *facts, const struct recipe *recipe, const char *section)
{
    for (int i = 0; i < recipe_row_total(recipe->addition); i++)
        if (recipe_row_in_section(recipe_row_at(recipe->addition, i), section)) {
            AUTO(text) value = {0};
            recipe_value_text(recipe, recipe_row_at(recipe->addition, i), &value);
            add_fact(facts, recipe_row_at(recipe->addition, i)->key, text_chars(&value));
        }
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

/* ---- the comparison ---- */

struct difference {
    int index;    // of the first fact that is not equal on all ranks; -1: none
    bool is_mine; // it differs on this rank
};

/* Collective. */
static enum status find_difference(struct rank_state *state, const struct facts *facts,
                                   struct difference *out)
{
    double first = 0.0;
    for (int at = 0; at < facts->count; at += AGREE_MAX_VALUES) {
        uint32_t words[AGREE_MAX_VALUES] = {0};
        const int count = facts->count - at < AGREE_MAX_VALUES ? facts->count - at : AGREE_MAX_VALUES;
        for (int i = 0; i < count; i++)
            words[i] = facts->list[at + i].checksum;
        TRY(rank_broadcast(state, 0, words, sizeof words));
        for (int i = 0; i < count; i++)
            if (words[i] != facts->list[at + i].checksum && first == 0.0)
                first = (double)(facts->count - at - i);
    }
    const double own = first;
    TRY(rank_agree_max(state, &first, 1));
    *out = (struct difference){.index = first > 0.0 ? facts->count - (int)first : -1,
                               .is_mine = first > 0.0 && own == first};
    return OK;
}

/* Collective: an error that names the odd rank. what: the fact; its name follows. */
static enum status name_odd_rank(struct rank_state *state, const struct fact *fact, bool differs,
                                 const char *what)
{
    struct launcher launcher;
    char first[FACT_CHARS] = "";
    const int rank = state->world->rank, size = state->world->size;
    double like_first = rank > 0 && !differs ? 1.0 : 0.0;
    TRY(launcher_find(&launcher));
    TRY(rank_agree_max(state, &like_first, 1));
    snprintf(first, sizeof first, "%.90s, node %.30s", fact->text, launcher.node);
    TRY(rank_broadcast(state, 0, first, sizeof first));
    enum status mine = OK;
    if (differs && size > 2 && like_first == 0.0)
        mine = fail(BAD_RECIPE, "%s%s: rank 0 (%s) differs from the other ranks (rank %d: %s, node %s)", what,
                    fact->name, first, rank, fact->text, launcher.node);
    else if (differs)
        mine = fail(BAD_RECIPE, "%s%s: rank %d (%s, node %s) differs from rank 0 (%s)", what, fact->name,
                    rank, fact->text, launcher.node, first);
    return rank_agree(state, mine);
}

/* Collective: names the key of a section that differs. */
static enum status compare_keys(struct rank_state *state, const struct fact *section, bool differs)
{
    struct facts keys = {.count = 0};
    struct difference found = {.index = -1};
    add_keys(&keys, state->run->recipe, section->name);
    enum status status = find_difference(state, &keys, &found);
    if (status == OK && found.index >= 0)
        status = name_odd_rank(state, &keys.list[found.index], found.is_mine, "recipe: ");
    else if (status == OK)
        status = name_odd_rank(state, section, differs, "recipe: section ");
    free(keys.list);
    return status;
}

/* Collective: an error that names the odd rank; OK if all are equal. */
static enum status compare_same(struct rank_state *state, const struct facts *facts)
{
    struct difference found;
    TRY(find_difference(state, facts, &found));
    if (found.index < 0)
        return OK;
    const struct fact *fact = &facts->list[found.index];
    enum status status = fact->is_section ? compare_keys(state, fact, found.is_mine)
                                          : name_odd_rank(state, fact, found.is_mine, "");
    return fail(status, "%s; start all ranks with the same one", fail_text());
}

/* ---- the folder of the checkpoints ---- */

static void refresh(const char *folder)
{
    DIR *opened = opendir(folder); // a network file system asks its server
    if (opened != NULL)
        closedir(opened);
}

/* Reads the record of the folder until it has the run of rank 0, for some time. */
static enum status wait_for_run(const struct recipe *recipe, const char *run, struct run_record *out)
{
    const double heartbeat_s = recipe->resilience.heartbeat_timeout_seconds;
    const double until = clock_s() + (heartbeat_s > 0.0 ? fmin(SHARED_S, heartbeat_s / 2.0) : SHARED_S);
    while (strcmp(out->run, run) != 0 && clock_s() < until) {
        poll(NULL, 0, RETRY_MS);
        refresh(recipe->logging.run_dir);
        refresh(recipe->checkpoint.save);
        TRY(run_record_read(recipe->checkpoint.save, out));
    }
    return OK;
}

/* Collective: an error that names the odd rank if not all see the same folder. All write in it, but only at
 * the first checkpoint. */
static enum status compare_folders(struct rank_state *state)
{
    const struct recipe *recipe = state->run->recipe;
    struct run_record record;
    struct fact fact = {.name = "checkpoint.save"};
    char run[RUN_CHARS];
    if (recipe->checkpoint.save == NULL)
        return OK;
    TRY(rank_agree(state, run_record_read(recipe->checkpoint.save, &record)));
    memcpy(run, record.run, sizeof run);
    TRY(rank_broadcast(state, 0, run, sizeof run));
    TRY(rank_agree(state, wait_for_run(recipe, run, &record)));
    const bool differs = strcmp(record.run, run) != 0;
    double found = differs ? 1.0 : 0.0;
    TRY(rank_agree_max(state, &found, 1));
    if (found == 0.0)
        return OK;
    snprintf(fact.text, sizeof fact.text, record.run[0] != 0 ? "run %.8s" : "no run.json%s", record.run);
    const enum status status = name_odd_rank(state, &fact, differs, "");
    return fail(status, "%s in %s; use a directory that all nodes share", fail_text(),
                recipe->checkpoint.save);
}

enum status compare_ranks(struct rank_state *state)
{
    struct facts same = {.count = 0};
    struct launcher launcher;
    TRY(launcher_find(&launcher));
    if (launcher.size <= 1) // threads of one process
        return OK;
    enum status status = add_program(&same);
    add_sections(&same, state->run->recipe);
    if (status == OK)
        status = add_data(&same, state->run->data);
    status = rank_agree(state, status);
    if (status == OK)
        status = compare_same(state, &same);
    if (status == OK)
        status = compare_folders(state);
    free(same.list);
    return status;
}
