// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/dashboard/run_curves.h"

#include "base/memory.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const fields[] = {"step",
                                     "consumed_tokens",
                                     "time",
                                     "loss",
                                     "valid_loss",
                                     "grad_norm",
                                     "lr",
                                     "step_time_s",
                                     "tokens_per_s",
                                     "model_tflops_per_rank",
                                     "mfu",
                                     "bubble_fraction",
                                     "memory_peak_bytes",
                                     "predicted_step_time_s"};
enum { FIELDS = sizeof fields / sizeof *fields, TIME = 2, PEAK = 12 };

struct curves {
    const char *path;
    int64_t lines, every;
    double (*rows)[FIELDS]; // those that are kept
    size_t count;
    double memory_peak_bytes; // of all lines
    struct text memory;       // JSON
};

/* Seconds since 1970 of "2026-11-28T14:31:02Z"; NAN: another text. */
static double seconds_of(const json_t *value)
{
    struct tm utc = {0};
    const char *text = json_string_value(value);
    const char *end = text != NULL ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &utc) : NULL;
    return end != NULL && *end == 0 ? (double)timegm(&utc) : NAN;
}

static double field_of(const json_t *object, int field)
{
    const json_t *value = json_object_get(object, fields[field]);
    if (field == TIME)
        return seconds_of(value);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* line: its number, from 1. */
static enum status read_line(struct curves *c, const char *chars, size_t length, int64_t line)
{
    json_t *object = json_read(chars, length, 0, NULL);
    double *row = c->rows[c->count];
    for (int i = 0; i < FIELDS; i++)
        row[i] = field_of(object, i);
    c->memory_peak_bytes = fmax(c->memory_peak_bytes, row[PEAK]); // also of a line that is left out
    const bool is_last = line == c->lines, is_line = row[0] >= 1.0;
    c->count += is_last || line % c->every == 0 || json_object_get(object, "valid_loss") != NULL;
    char *parts = is_last ? json_dumps(json_object_get(object, "memory_bytes"), JSON_COMPACT) : NULL;
    text_add(&c->memory, "%s", parts != NULL ? parts : "");
    free(parts);
    json_decref(object);
    return is_line ? OK : fail(BAD_DATA, "%s:%lld: not a line of metrics.jsonl", c->path, (long long)line);
}

static void add_curves(const struct curves *c, struct text *out)
{
    text_add(out, "{\"peak_bytes\": %.0f, \"steps\": %lld, \"every\": %lld, \"memory_bytes\": %s",
             c->memory_peak_bytes, (long long)c->lines, (long long)c->every,
             c->memory.length > 0 ? c->memory.chars : "{}");
    for (int i = 0; i < FIELDS; i++) {
        text_add(out, ",\n\"%s\": [", fields[i]);
        for (size_t row = 0; row < c->count; row++)
            if (isfinite(c->rows[row][i]))
                text_add(out, i == TIME ? "%s%.0f" : "%s%.7g", row > 0 ? "," : "", c->rows[row][i]);
            else
                text_add(out, "%snull", row > 0 ? "," : "");
        text_add(out, "]");
    }
    text_add(out, "}");
}

static enum status read_lines(struct curves *c, const char *text, int64_t most)
{
    for (const char *end = text; (end = strchr(end, '\n')) != NULL; end++)
        c->lines++;
    if (c->lines == 0)
        return fail(BAD_DATA, "%s has no complete line", c->path);
    c->every = (c->lines + most - 1) / most;
    c->rows = memory_zeroed((size_t)c->lines + 1, sizeof *c->rows, "the metrics of steps");
    int64_t line = 0;
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        TRY(read_line(c, text, (size_t)(end - text), ++line));
    return OK;
}

enum status run_curves_json(const char *run_dir, int64_t most, struct text *out)
{
    AUTO(text) path = {0};
    AUTO(text) bytes = {0};
    text_add(&path, "%s/metrics.jsonl", run_dir);
    TRY(file_read(path.chars, &bytes));
    if (strlen(text_chars(&bytes)) != bytes.length)
        return fail(BAD_DATA, "%s has a zero byte: it is damaged", path.chars);
    struct curves curves = {.path = path.chars};
    const enum status status = read_lines(&curves, text_chars(&bytes), most);
    if (status == OK)
        add_curves(&curves, out);
    free(curves.rows);
    text_free(&curves.memory);
    return status;
}
