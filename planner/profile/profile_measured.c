// SPDX-License-Identifier: Apache-2.0
/* Measured tables: lists of {shape, value}, one line each.
 *
 *   measured:
 *     matmul:
 *       - {m: 4096, n: 4096, k: 4096, dtype: bf16, flops: 2.4e14}
 *     op:
 *       - {rows: 1024, columns: 512, op: norm_forward, dtype: fp32, threads: 1, bytes_per_s: 1.2e10}
 *     p2p:
 *       - {ranks: 2, nodes: 1, bytes: 1048576, seconds: 1.1e-05} */
#include "planner/profile/profile_table.h"

#include "base/memory.h"
#include "kernels/ops.h"
#include "trainer/files/problems.h"
#include "trainer/files/yaml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 60, MAX_NAMES = MEASURED_COLUMNS + 5, MAX_THREADS = 1 << 16 };
#define LARGEST_SIZE 1e15

void profile_measured_free(struct profile_measured *measured)
{
    free(measured->list);
    *measured = (struct profile_measured){0};
}

static void append(struct profile_measured *measured, const struct profile_sample *sample)
{
    measured->list =
        memory_resized(measured->list, measured->count + 1, sizeof *measured->list, "the samples of a table");
    measured->list[measured->count++] = *sample;
}

void profile_add_sample(struct cluster_profile *profile, enum profile_kind kind,
                        const struct profile_sample *sample)
{
    append(&profile->measured[kind], sample);
}

void profile_add_hint(const char *name, const char *prefix, const char *const *names, size_t count,
                      struct text *out)
{
    const char *near = nearest_name(name, names, count);
    if (near != NULL) {
        text_add(out, "; did you mean %s%s?", prefix, near);
        return;
    }
    text_add(out, "; expected one of");
    for (size_t i = 0; i < count; i++)
        text_add(out, "%s %s", i > 0 ? "," : "", names[i]);
}

/* ---- reading ---- */

/* The meaning of a key of an entry. */
enum entry_key {
    KEY_OP,
    KEY_COLUMN,
    KEY_DTYPE,
    KEY_THREADS,
    KEY_TRANSPOSED,
    KEY_NODE_RANKS,
    KEY_PROCESSES,
    KEY_VALUE
};

/* One entry of a table, while it is read. */
struct entry {
    const struct measured_kind *kind;
    const char *names[MAX_NAMES]; // its keys
    enum entry_key keys[MAX_NAMES];
    size_t count;
    bool seen[MAX_NAMES];
    struct profile_sample sample;
};

static void add_key(struct entry *entry, enum entry_key key, const char *name)
{
    entry->names[entry->count] = name;
    entry->keys[entry->count++] = key;
}

static void entry_begin(struct entry *entry, const struct measured_kind *kind)
{
    *entry = (struct entry){.kind = kind};
    for (int c = 0; c < MEASURED_COLUMNS && kind->columns[c] != NULL; c++)
        add_key(entry, KEY_COLUMN, kind->columns[c]);
    if (kind->has_op)
        add_key(entry, KEY_OP, "op");
    if (kind->has_dtype)
        add_key(entry, KEY_DTYPE, "dtype");
    if (kind->has_threads)
        add_key(entry, KEY_THREADS, "threads");
    if (kind->has_transposed)
        add_key(entry, KEY_TRANSPOSED, "transposed");
    if (kind->is_transfer) {
        add_key(entry, KEY_NODE_RANKS, "node_ranks");
        add_key(entry, KEY_PROCESSES, "processes");
    }
    add_key(entry, KEY_VALUE, kind->value);
}

/* Reads a number; appends the fault to `why` if it is not from `low` to `high`. */
static double read_number(const struct node *node, const char *name, double low, double high, bool integer,
                          struct text *why)
{
    double value = 0.0;
    char low_text[NUMBER_CHARS], high_text[NUMBER_CHARS];
    const char *fault = profile_number_fault(node, &value);
    if (fault == NULL && !(value >= low && value <= high))
        fault = "is out of range";
    if (fault == NULL && integer && value != floor(value))
        fault = "is not an integer";
    if (fault != NULL)
        text_add(why, "%s %.*s %s; expected %s from %s to %s", name, SHOWN, node->text, fault,
                 integer ? "an integer" : "a number", number_text_short(low, low_text),
                 number_text_short(high, high_text));
    return value;
}

static void read_dtype(const struct node *node, enum profile_dtype *out, struct text *why)
{
    const char *names[PROFILE_DTYPES];
    for (enum profile_dtype d = 0; d < PROFILE_DTYPES; d++) {
        names[d] = profile_dtype_name(d);
        if (node->kind == NODE_SCALAR && strcmp(node->text, names[d]) == 0) {
            *out = d;
            return;
        }
    }
    text_add(why, "dtype %.*s is unknown", SHOWN, node->text);
    profile_add_hint(node->text, "", names, PROFILE_DTYPES, why);
}

static void read_op(const struct node *node, int *out, struct text *why)
{
    const char *names[OP_KIND_COUNT];
    for (int op = 0; op < OP_KIND_COUNT; op++) {
        names[op] = op_name((enum op_kind)op);
        if (node->kind == NODE_SCALAR && strcmp(node->text, names[op]) == 0) {
            *out = op;
            return;
        }
    }
    text_add(why, "op %.*s is unknown", SHOWN, node->text);
    profile_add_hint(node->text, "", names, OP_KIND_COUNT, why);
}

static void read_bool(const struct node *node, const char *name, bool *out, struct text *why)
{
    *out = node->kind == NODE_SCALAR && strcmp(node->text, "true") == 0;
    if (!*out && (node->kind != NODE_SCALAR || strcmp(node->text, "false") != 0))
        text_add(why, "%s %.*s is not true or false", name, SHOWN, node->text);
}

static bool is_optional(enum entry_key key)
{
    return key == KEY_THREADS || key == KEY_TRANSPOSED || key == KEY_NODE_RANKS || key == KEY_PROCESSES;
}

/* One key of an entry. */
static void read_key(struct entry *entry, const char *key, const struct node *value, struct text *why)
{
    const struct measured_kind *kind = entry->kind;
    size_t at = 0;
    while (at < entry->count && strcmp(entry->names[at], key) != 0)
        at++;
    if (at == entry->count) {
        text_add(why, "unknown key %.*s", SHOWN, key);
        profile_add_hint(key, "", entry->names, entry->count, why);
        return;
    }
    if (entry->seen[at])
        text_add(why, "%s is given twice; remove one of them", key);
    entry->seen[at] = true;
    double size = 1.0;
    switch (entry->keys[at]) {
    case KEY_OP:
        read_op(value, &entry->sample.op, why);
        break;
    case KEY_COLUMN:
        size = read_number(value, key, 1.0, LARGEST_SIZE, true, why);
        entry->sample.shape[at] = why->length == 0 ? (int64_t)size : 1;
        break;
    case KEY_DTYPE:
        read_dtype(value, &entry->sample.dtype, why);
        break;
    case KEY_THREADS:
        size = read_number(value, key, 1.0, MAX_THREADS, true, why);
        entry->sample.threads = why->length == 0 ? (int)size : 1;
        break;
    case KEY_TRANSPOSED:
        read_bool(value, key, &entry->sample.transposed, why);
        break;
    case KEY_NODE_RANKS:
        size = read_number(value, key, 2.0, MAX_THREADS, true, why);
        entry->sample.node_ranks = why->length == 0 ? (int)size : 2;
        break;
    case KEY_PROCESSES:
        read_bool(value, key, &entry->sample.processes, why);
        break;
    case KEY_VALUE:
        entry->sample.value = read_number(value, key, kind->low, kind->high, false, why);
        break;
    }
}

/* Whether ranks are spread evenly over nodes; true for kinds without these columns. */
static bool ranks_are_even(const struct entry *entry)
{
    const int64_t *shape = entry->sample.shape;
    return strcmp(entry->names[0], "ranks") != 0 || shape[0] % shape[1] == 0;
}

/* `why` is empty if the entry is valid. */
static void read_entry(struct entry *entry, const struct node *node, struct text *why)
{
    if (node->kind != NODE_MAP) {
        text_add(why, "is not a mapping; expected {%s: ..., %s: ...}", entry->names[0], entry->kind->value);
        return;
    }
    for (size_t i = 0; i < node->count && why->length == 0; i += 2)
        read_key(entry, node->child[i]->text, node->child[i + 1], why);
    for (size_t i = 0; i < entry->count && why->length == 0; i++)
        if (!entry->seen[i] && !is_optional(entry->keys[i]))
            text_add(why, "%s is missing", entry->names[i]);
    if (why->length == 0 && !ranks_are_even(entry))
        text_add(why, "ranks %lld is not a multiple of nodes %lld", (long long)entry->sample.shape[0],
                 (long long)entry->sample.shape[1]);
}

static int compare_shapes(const struct profile_sample *a, const struct profile_sample *b)
{
    for (int c = 0; c < MEASURED_COLUMNS; c++)
        if (a->shape[c] != b->shape[c])
            return a->shape[c] < b->shape[c] ? -1 : 1;
    if (a->op != b->op)
        return a->op - b->op;
    if (a->dtype != b->dtype)
        return (int)a->dtype - (int)b->dtype;
    if (a->transposed != b->transposed)
        return a->transposed - b->transposed;
    if (a->node_ranks != b->node_ranks)
        return a->node_ranks - b->node_ranks;
    return a->processes != b->processes ? a->processes - b->processes : a->threads - b->threads;
}

/* A sample and its entry, for sorting by shape. */
struct position {
    struct profile_sample sample;
    size_t entry;
};

static int compare_positions(const void *a, const void *b)
{
    const struct position *p = a, *q = b;
    int order = compare_shapes(&p->sample, &q->sample);
    return order != 0 ? order : (p->entry > q->entry) - (p->entry < q->entry);
}

/* Adds a problem for each shape that occurs twice: one of its rates must be wrong. */
static void refuse_repeated(const struct profile_measured *table, const struct node *node, const char *name,
                            const char *file, struct problems *problems)
{
    AUTO_FREE struct position *sorted =
        memory_zeroed(table->count + 1, sizeof *sorted, "the samples of a table");
    for (size_t i = 0; i < table->count; i++)
        sorted[i] = (struct position){table->list[i], i};
    qsort(sorted, table->count, sizeof *sorted, compare_positions);
    for (size_t i = 1; i < table->count; i++)
        if (compare_shapes(&sorted[i - 1].sample, &sorted[i].sample) == 0)
            problems_add(
                problems, "%s:%d: measured.%s entry %zu: the same shape as entry %zu; remove one of them",
                file, node->child[sorted[i].entry]->line, name, sorted[i].entry + 1, sorted[i - 1].entry + 1);
}

void profile_measured_set(struct cluster_profile *profile, enum profile_kind kind, const struct node *node,
                          const char *file, struct problems *problems)
{
    const char *name = measured_kinds[kind].name;
    struct profile_measured table = {0};
    size_t before = problems->errors;
    if (node->kind != NODE_LIST) {
        problems_add(problems, "%s:%d: measured.%s is not a list; expected one entry for each shape", file,
                     node->line, name);
        return;
    }
    for (size_t i = 0; i < node->count; i++) {
        struct text why = {0};
        struct entry entry;
        entry_begin(&entry, &measured_kinds[kind]);
        read_entry(&entry, node->child[i], &why);
        if (why.length > 0)
            problems_add(problems, "%s:%d: measured.%s entry %zu: %s", file, node->child[i]->line, name,
                         i + 1, why.chars);
        append(&table, &entry.sample);
        text_free(&why);
    }
    if (problems->errors == before)
        refuse_repeated(&table, node, name, file, problems);
    if (problems->errors > before) {
        profile_measured_free(&table);
        return;
    }
    profile_measured_free(&profile->measured[kind]);
    profile->measured[kind] = table;
}

void profile_measured_check(const struct cluster_profile *profile, const char *where,
                            struct problems *problems)
{
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++) {
        const struct profile_measured *table = &profile->measured[kind];
        const bool of_peak = measured_kinds[kind].has_dtype && !measured_kinds[kind].has_op;
        for (size_t i = 0; of_peak && i < table->count; i++) {
            const struct profile_sample *sample = &table->list[i];
            const double peak = profile->device.peak_flops[sample->dtype];
            char rate[NUMBER_CHARS], limit[NUMBER_CHARS];
            if (sample->value > 1.1 * peak)
                problems_add(problems,
                             "%s: measured.%s entry %zu: flops %s exceeds device.peak_flops_%s %s; correct "
                             "one of them",
                             where, measured_kinds[kind].name, i + 1, number_text_short(sample->value, rate),
                             profile_dtype_name(sample->dtype), number_text_short(peak, limit));
        }
    }
}

/* ---- writing ---- */

static void add_entry(const struct measured_kind *kind, const struct profile_sample *sample, struct text *out)
{
    char number[NUMBER_CHARS];
    text_add(out, "    - {");
    for (int c = 0; c < MEASURED_COLUMNS && kind->columns[c] != NULL; c++)
        text_add(out, "%s: %lld, ", kind->columns[c], (long long)sample->shape[c]);
    if (kind->has_op)
        text_add(out, "op: %s, ", op_name((enum op_kind)sample->op));
    if (kind->has_dtype)
        text_add(out, "dtype: %s, ", profile_dtype_name(sample->dtype));
    if (sample->threads > 0)
        text_add(out, "threads: %d, ", sample->threads);
    if (sample->transposed)
        text_add(out, "transposed: true, ");
    if (sample->node_ranks > 0)
        text_add(out, "node_ranks: %d, ", sample->node_ranks);
    if (sample->processes)
        text_add(out, "processes: true, ");
    text_add(out, "%s: %s}\n", kind->value, number_text_short(sample->value, number));
}

void profile_measured_text(const struct cluster_profile *profile, struct text *out)
{
    bool any = false;
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++) {
        const struct profile_measured *table = &profile->measured[kind];
        if (table->count == 0)
            continue;
        text_add(out, "%s  %s: # %s\n", any ? "" : "\nmeasured:\n", measured_kinds[kind].name,
                 measured_kinds[kind].help);
        any = true;
        for (size_t i = 0; i < table->count; i++)
            add_entry(&measured_kinds[kind], &table->list[i], out);
    }
}
