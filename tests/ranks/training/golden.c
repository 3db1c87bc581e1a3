// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/training/golden.h"

#include <stdlib.h>
#include <string.h>

/* Reads a file word by word. */
struct reader {
    FILE *file;
    const char *path;
    char word[128];
};

static enum status next_word(struct reader *reader)
{
    if (fscanf(reader->file, "%127s", reader->word) == 1)
        return OK;
    return fail(BAD_DATA, "%s ends in the middle of a line", reader->path);
}

static enum status next_number(struct reader *reader, double *out)
{
    TRY(next_word(reader));
    char *end = NULL;
    *out = strtod(reader->word, &end); // accepts hexadecimal too
    return *end == '\0' ? OK : fail(BAD_DATA, "%s: '%s' is not a number", reader->path, reader->word);
}

static enum status next_count(struct reader *reader, int64_t most, int64_t *out)
{
    double value;
    TRY(next_number(reader, &value));
    if (!(value >= 0.0 && value <= (double)most))
        return fail(BAD_DATA, "%s: '%s' is not between 0 and %lld", reader->path, reader->word,
                    (long long)most);
    *out = (int64_t)value;
    return OK;
}

static enum status next_name(struct reader *reader, char out[PARAM_NAME_CHARS])
{
    TRY(next_word(reader));
    snprintf(out, PARAM_NAME_CHARS, "%.*s", PARAM_NAME_CHARS - 1, reader->word);
    return OK;
}

/* "optimizer lr 0.01" becomes a line of the recipe's current section. */
static enum status read_key(struct reader *reader, struct text *recipe, const char *section)
{
    char heading[32];
    snprintf(heading, sizeof heading, "%s:\n", section);
    if (strstr(text_chars(recipe), heading) == NULL)
        text_add(recipe, "%s", heading);
    TRY(next_word(reader));
    text_add(recipe, "  %s: ", reader->word);
    TRY(next_word(reader));
    text_add(recipe, "%s\n", reader->word);
    return OK;
}

static enum status read_data(struct reader *reader, struct golden *out)
{
    char key[PARAM_NAME_CHARS];
    TRY(next_name(reader, key));
    if (strcmp(key, "rows") == 0)
        return next_count(reader, 1024, &out->rows);
    if (strcmp(key, "seed") == 0)
        return next_count(reader, 1 << 30, &out->seed);
    if (strcmp(key, "steps") == 0)
        return next_count(reader, GOLDEN_STEPS_MAX, &out->steps);
    TRY(next_word(reader));
    if (strcmp(key, "documents") == 0)
        out->documents = strcmp(reader->word, "true") == 0;
    else if (strcmp(key, "mask") == 0)
        out->mask = strcmp(reader->word, "true") == 0;
    else
        return fail(BAD_DATA, "%s: unknown data key %s %s", reader->path, key, reader->word);
    return OK;
}

static enum status read_init(struct reader *reader, struct golden *out)
{
    struct golden_init *grown = realloc(out->init, (size_t)(out->init_count + 1) * sizeof *grown);
    if (grown == NULL)
        return fail(NO_MEMORY, "no memory for %s", reader->path);
    out->init = grown;
    struct golden_init *init = &out->init[out->init_count++];
    TRY(next_name(reader, init->name));
    TRY(next_count(reader, 1 << 20, &init->element));
    return next_number(reader, &init->value);
}

static enum status read_step(struct reader *reader, double of_step[GOLDEN_STEPS_MAX])
{
    int64_t step = 0;
    TRY(next_count(reader, GOLDEN_STEPS_MAX, &step));
    if (step < 1)
        return fail(BAD_DATA, "%s: steps are numbered from 1, not 0", reader->path);
    return next_number(reader, &of_step[step - 1]);
}

static enum status read_tensor(struct reader *reader, struct golden *out, bool gradient)
{
    struct golden_tensor *grown = realloc(out->tensor, (size_t)(out->tensor_count + 1) * sizeof *grown);
    if (grown == NULL)
        return fail(NO_MEMORY, "no memory for %s", reader->path);
    out->tensor = grown;
    struct golden_tensor *tensor = &out->tensor[out->tensor_count++];
    *tensor = (struct golden_tensor){.gradient = gradient};
    out->gradient_count += gradient;
    int64_t rows = 0, columns = 0;
    TRY(next_name(reader, tensor->name));
    TRY(next_count(reader, 1 << 12, &rows));
    TRY(next_count(reader, 1 << 12, &columns));
    tensor->count = rows * columns;
    tensor->value = calloc((size_t)tensor->count + 1, sizeof *tensor->value);
    if (tensor->value == NULL)
        return fail(NO_MEMORY, "no memory for %s of %s", tensor->name, reader->path);
    for (int64_t i = 0; i < tensor->count; i++)
        TRY(next_number(reader, &tensor->value[i]));
    return OK;
}

static enum status read_line(struct reader *reader, struct golden *out)
{
    const char *kind = reader->word;
    if (strcmp(kind, "model") == 0)
        return read_key(reader, &out->recipe, "model");
    if (strcmp(kind, "optimizer") == 0)
        return read_key(reader, &out->recipe, "optimizer");
    if (strcmp(kind, "data") == 0)
        return read_data(reader, out);
    if (strcmp(kind, "init") == 0)
        return read_init(reader, out);
    if (strcmp(kind, "loss") == 0)
        return read_step(reader, out->loss);
    if (strcmp(kind, "norm") == 0)
        return read_step(reader, out->norm);
    if (strcmp(kind, "grad") == 0 || strcmp(kind, "weight") == 0)
        return read_tensor(reader, out, kind[0] == 'g');
    return fail(BAD_DATA, "%s: '%s' is not a known line type", reader->path, kind);
}

enum status golden_read(const char *path, struct golden *out)
{
    *out = (struct golden){0};
    struct reader reader = {.file = fopen(path, "r"), .path = path};
    if (reader.file == NULL)
        return fail(IO_ERROR, "cannot open %s", path);
    enum status status = OK;
    while (status == OK && fscanf(reader.file, "%127s", reader.word) == 1)
        status = read_line(&reader, out);
    fclose(reader.file);
    if (status == OK && (out->init_count == 0 || out->tensor_count == 0 || out->rows == 0 || out->steps == 0))
        status = fail(BAD_DATA, "%s has no expected values", path);
    return status;
}

void golden_free(struct golden *golden)
{
    for (int i = 0; i < golden->tensor_count; i++)
        free(golden->tensor[i].value);
    free(golden->tensor);
    free(golden->init);
    text_free(&golden->recipe);
    *golden = (struct golden){0};
}

const struct golden_tensor *golden_find(const struct golden *golden, const char *name, bool gradient)
{
    for (int i = 0; i < golden->tensor_count; i++)
        if (golden->tensor[i].gradient == gradient && strcmp(golden->tensor[i].name, name) == 0)
            return &golden->tensor[i];
    return NULL;
}
