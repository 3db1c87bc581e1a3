// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_summary.h"

#include "base/memory.h"
#include "base/quantile.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum column { STEP_S, TOKENS_PER_S, TFLOPS, BUBBLE, COLUMNS };
static const char *const names[COLUMNS] = {"step_time_s", "tokens_per_s", "model_tflops_per_rank",
                                           "bubble_fraction"};

struct reader {
    const char *path;
    double *values[COLUMNS]; // [steps]
    size_t capacity;
    struct run_summary *out;
};

/* A number of the object; NAN: null, or none. */
static double number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void grow(struct reader *reader)
{
    if ((size_t)reader->out->steps < reader->capacity)
        return;
    reader->capacity = 2 * reader->capacity + 64;
    for (int i = 0; i < COLUMNS; i++)
        reader->values[i] =
            memory_resized(reader->values[i], reader->capacity, sizeof(double), "the metrics of steps");
}

static enum status read_line(struct reader *reader, const char *line, size_t length)
{
    struct run_summary *out = reader->out;
    json_error_t error;
    json_t *object = json_read(line, length, 0, &error);
    const double memory = number(object, "memory_peak_bytes");
    grow(reader);
    for (int i = 0; i < COLUMNS; i++)
        reader->values[i][out->steps] = number(object, names[i]);
    out->steps++;
    out->loss = number(object, "loss");
    out->predicted_step_s = fmax(number(object, "predicted_step_time_s"), 0.0); // 0 for NAN
    if (memory > (double)out->memory_peak_bytes && memory < 1e18)
        out->memory_peak_bytes = (int64_t)memory;
    const bool good = number(object, "step") >= 1.0 && reader->values[STEP_S][out->steps - 1] >= 0.0;
    json_decref(object);
    if (good)
        return OK;
    return fail(BAD_DATA, "%s:%lld: not a line of metrics.jsonl", reader->path, (long long)out->steps);
}

static double median(double *values, int64_t count)
{
    size_t known = 0;
    for (int64_t i = count > 1 ? 1 : 0; i < count; i++)
        if (!isnan(values[i]))
            values[known++] = values[i];
    return known > 0 ? quantile(values, known, 0.5) : 0.0;
}

static enum status read_text(struct reader *reader, const char *text)
{
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        TRY(read_line(reader, text, (size_t)(end - text)));
    if (reader->out->steps == 0)
        return fail(BAD_DATA, "%s has no complete line", reader->path);
    reader->out->step_s = median(reader->values[STEP_S], reader->out->steps);
    reader->out->tokens_per_s = median(reader->values[TOKENS_PER_S], reader->out->steps);
    reader->out->tflops_per_rank = median(reader->values[TFLOPS], reader->out->steps);
    reader->out->bubble_fraction = median(reader->values[BUBBLE], reader->out->steps);
    return OK;
}

enum status run_summary_read(const char *run_dir, struct run_summary *out)
{
    AUTO(text) path = {0}, bytes = {0};
    struct reader reader = {.out = out};
    *out = (struct run_summary){.loss = NAN};
    text_add(&path, "%s/metrics.jsonl", run_dir);
    reader.path = path.chars;
    enum status status = file_read(path.chars, &bytes);
    if (status == OK)
        status = read_text(&reader, text_chars(&bytes));
    for (int i = 0; i < COLUMNS; i++)
        free(reader.values[i]);
    return status;
}
