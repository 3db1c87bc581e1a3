// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/choice_task.h"

#include "base/memory.h"
#include "trainer/evaluate/choice_text.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 30, MAX_CHOICES = 64 };

/* One item as texts. */
struct texts {
    struct text context;
    struct text choices[MAX_CHOICES];
    int count, correct;
};

struct reader {
    struct choice_task *task;
    const struct recipe *recipe;
    const struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct tokens context, whole; // of the current choice
    int64_t line;
};

static void texts_free(struct texts *texts)
{
    text_free(&texts->context);
    for (int i = 0; i < MAX_CHOICES; i++)
        text_free(&texts->choices[i]);
}

/* ---- fields ---- */

static enum status refuse(const struct reader *reader, const char *what)
{
    return fail(BAD_DATA, "%s:%lld: %s", reader->task->path, (long long)reader->line, what);
}

/* A value that is missing or of another kind; `use` says what works. */
static enum status refuse_value(const struct reader *reader, const char *key, const json_t *value,
                                const char *use)
{
    char shown[JSON_SHOWN_CHARS];
    if (value == NULL)
        return fail(BAD_DATA, "%s:%lld: \"%s\" is missing; use %s", reader->task->path,
                    (long long)reader->line, key, use);
    return fail(BAD_DATA, "%s:%lld: \"%s\" is %s; use %s", reader->task->path, (long long)reader->line, key,
                json_shown(value, shown), use);
}

static enum status string_of(const struct reader *reader, const json_t *object, const char *key,
                             const char **out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_string_value(value);
    return *out != NULL ? OK : refuse_value(reader, key, value, "a string");
}

static enum status check_count(const struct reader *reader, const char *key, size_t count)
{
    if (count >= 2 && count <= MAX_CHOICES)
        return OK;
    return fail(BAD_DATA, "%s:%lld: \"%s\" has %zu choice%s; use a list of 2 to %d", reader->task->path,
                (long long)reader->line, key, count, count == 1 ? "" : "s", MAX_CHOICES);
}

static bool is_blank(const char *bytes, size_t length)
{
    return length == 0 || strspn(bytes, " \t\r\n\v\f") >= length;
}

/* Element `i` of the list of choices; `what` of it: "the text of ", or "". An empty choice is damaged data:
 * the harness would score it by the space before it, and divide by its length, 0. */
static enum status string_in(const struct reader *reader, const char *key, const char *what, size_t i,
                             const json_t *value, const char **out)
{
    char shown[JSON_SHOWN_CHARS];
    *out = json_string_value(value);
    if (*out != NULL && !is_blank(*out, strlen(*out)))
        return OK;
    return fail(BAD_DATA, "%s:%lld: \"%s\": %selement %zu is %s; use a string that is not empty",
                reader->task->path, (long long)reader->line, key, what, i,
                value != NULL ? json_shown(value, shown) : "missing");
}

/* The index of the answer: an integer, or one in a string. */
static enum status label_of(const struct reader *reader, const json_t *object, int count, int *out)
{
    const json_t *label = json_object_get(object, "label");
    int64_t value = -1;
    if (json_is_integer(label))
        value = json_integer_value(label);
    else if (!json_is_string(label) || !integer_parse(json_string_value(label), &value))
        return refuse_value(reader, "label", label,
                            "the index of the right ending, from 0, in a split that has answers");
    if (value < 0 || value >= count)
        return fail(BAD_DATA, "%s:%lld: \"label\" %lld is not one of the %d endings; use 0 to %d",
                    reader->task->path, (long long)reader->line, (long long)value, count, count - 1);
    *out = (int)value;
    return OK;
}

static enum status read_hellaswag(const struct reader *reader, const json_t *object, struct texts *out)
{
    const char *activity, *first, *second;
    const json_t *endings = json_object_get(object, "endings");
    AUTO(text) query = {0};
    TRY(string_of(reader, object, "activity_label", &activity));
    TRY(string_of(reader, object, "ctx_a", &first));
    TRY(string_of(reader, object, "ctx_b", &second));
    if (!json_is_array(endings))
        return refuse_value(reader, "endings", endings, "a list of strings");
    TRY(check_count(reader, "endings", json_array_size(endings)));
    out->count = (int)json_array_size(endings);
    TRY(label_of(reader, object, out->count, &out->correct));
    text_add(&query, "%s: %s ", activity, first);
    choice_text_capitalize(second, &query);
    choice_text_clean(query.chars, &out->context);
    for (int i = 0; i < out->count; i++) {
        const char *ending;
        TRY(string_in(reader, "endings", "", (size_t)i, json_array_get(endings, (size_t)i), &ending));
        choice_text_clean(ending, &out->choices[i]);
    }
    return OK;
}

/* The text (key "text") or the label (key "label") of a choice of ARC, in either form. */
static const json_t *arc_value(const json_t *choices, const char *key, int i)
{
    return json_is_array(choices) ? json_object_get(json_array_get(choices, (size_t)i), key)
                                  : json_array_get(json_object_get(choices, key), (size_t)i);
}

/* Either form of the choices: the number of them. */
static enum status arc_count(const struct reader *reader, const json_t *choices, bool nested, size_t *out)
{
    const json_t *texts = json_object_get(choices, "text"), *labels = json_object_get(choices, "label");
    *out = json_array_size(json_is_array(choices) ? choices : texts);
    if (nested && !json_is_array(choices))
        return refuse_value(reader, "choices", choices, "a list of {\"text\": ..., \"label\": ...}");
    if (!nested && !json_is_array(choices) && (!json_is_array(texts) || !json_is_array(labels)))
        return refuse_value(reader, "choices", choices, "{\"text\": [...], \"label\": [...]}");
    if (!json_is_array(choices) && json_array_size(labels) != *out)
        return fail(BAD_DATA, "%s:%lld: \"choices\" has %zu texts and %zu labels; use a label for each text",
                    reader->task->path, (long long)reader->line, *out, json_array_size(labels));
    return check_count(reader, "choices", *out);
}

static enum status arc_choice(const struct reader *reader, const json_t *choices, int i, struct texts *out,
                              const char *labels[MAX_CHOICES])
{
    const char *text;
    TRY(string_in(reader, "choices", "the text of ", (size_t)i, arc_value(choices, "text", i), &text));
    TRY(string_in(reader, "choices", "the label of ", (size_t)i, arc_value(choices, "label", i), &labels[i]));
    text_add(&out->choices[i], "%s", text);
    for (int k = 0; k < i; k++)
        if (strcmp(labels[k], labels[i]) == 0)
            return fail(BAD_DATA, "%s:%lld: choices %d and %d both have the label %s; use a label for each",
                        reader->task->path, (long long)reader->line, k, i, labels[i]);
    return OK;
}

static enum status read_arc(const struct reader *reader, const json_t *object, struct texts *out)
{
    const json_t *question = json_object_get(object, "question"), *key = json_object_get(object, "answerKey");
    const bool nested = json_is_object(question);
    const json_t *choices = json_object_get(nested ? question : object, "choices");
    const char *stem, *labels[MAX_CHOICES];
    size_t count;
    TRY(string_of(reader, nested ? question : object, nested ? "stem" : "question", &stem));
    TRY(arc_count(reader, choices, nested, &count));
    if (!json_is_string(key))
        return refuse_value(reader, "answerKey", key, "the label of the right choice");
    text_add(&out->context, "Question: %s\nAnswer:", stem);
    out->count = (int)count;
    out->correct = -1;
    for (int i = 0; i < out->count; i++) {
        TRY(arc_choice(reader, choices, i, out, labels));
        if (strcmp(labels[i], json_string_value(key)) == 0)
            out->correct = i;
    }
    return out->correct >= 0
               ? OK
               : fail(BAD_DATA, "%s:%lld: \"answerKey\" %s is not the label of a choice; use one of them",
                      reader->task->path, (long long)reader->line, json_string_value(key));
}

static enum status read_texts(const struct reader *reader, const json_t *object, struct texts *out)
{
    if (json_object_get(object, "endings") != NULL)
        return read_hellaswag(reader, object, out);
    if (json_object_get(object, "question") != NULL)
        return read_arc(reader, object, out);
    return refuse(reader,
                  "neither \"endings\" (HellaSwag) nor \"question\" (ARC); use an object with one of them");
}

/* ---- tokens ---- */

static enum status encode(struct reader *reader, const char *text, int64_t length, struct tokens *out)
{
    const struct tokens *prefix = tokenizer_prefix(reader->tokenizer);
    out->count = 0;
    tokens_append(out, prefix->ids, prefix->count);
    return encoder_encode(reader->encoder, text, length, out);
}

static enum status check_tokens(const struct reader *reader, int choice)
{
    const struct model_config *model = &reader->recipe->model;
    const struct tokens *ids = &reader->whole;
    if (ids->count > model->seq_length + 1)
        return fail(BAD_DATA,
                    "%s:%lld: choice %d with its context has %lld tokens, but the model has model.seq_length "
                    "%lld; use at most %lld tokens",
                    reader->task->path, (long long)reader->line, choice, (long long)ids->count,
                    (long long)model->seq_length, (long long)model->seq_length + 1);
    for (int64_t i = 0; i < ids->count; i++)
        if (ids->ids[i] >= model->vocab_size)
            return fail(BAD_DATA,
                        "%s:%lld: choice %d has the token %d, but model.vocab_size is %lld: was the model "
                        "trained with tokenizer %s?",
                        reader->task->path, (long long)reader->line, choice, ids->ids[i],
                        (long long)model->vocab_size, tokenizer_name(reader->tokenizer));
    return OK;
}

static enum status add_choice(struct reader *reader, const struct texts *texts, int i)
{
    struct choice_task *task = reader->task;
    const char *context = text_chars(&texts->context), *choice = text_chars(&texts->choices[i]);
    const int32_t end = tokenizer_end_of_document(reader->tokenizer);
    struct text whole = {0};
    text_add(&whole, "%s %s", context, choice);
    enum status status = encode(reader, whole.chars, (int64_t)whole.length, &reader->whole);
    text_free(&whole);
    TRY(status);
    TRY(encode(reader, context, choice_text_stripped(context), &reader->context));
    if (reader->context.count == 0) {
        tokens_append(&reader->context, &end, 1);
        tokens_append(&reader->whole, &end, 1);
        memmove(reader->whole.ids + 1, reader->whole.ids, (size_t)(reader->whole.count - 1) * sizeof end);
        reader->whole.ids[0] = end;
    }
    TRY(check_tokens(reader, i));
    if (reader->whole.count <= reader->context.count)
        return refuse(reader, "a choice adds no token to its context");
    task->choices[task->choice_count++] =
        (struct choice){.first = task->ids.count,
                        .count = reader->whole.count,
                        .targets = reader->whole.count - reader->context.count,
                        .characters = (double)choice_text_characters(choice),
                        .bytes = (double)strlen(choice)};
    tokens_append(&task->ids, reader->whole.ids, reader->whole.count);
    return OK;
}

#define TASK "the items of a task (--task)"

/* Makes room for one more item, in doubling steps. */
static void reserve(struct choice_task *task, int choices)
{
    const int64_t items = task->item_count + 1, all = task->choice_count + choices;
    if ((items & (items - 1)) == 0)
        task->items = memory_resized(task->items, (size_t)(2 * items), sizeof *task->items, TASK);
    task->choices = memory_resized(task->choices, (size_t)all, sizeof *task->choices, TASK);
}

static enum status add_item(struct reader *reader, const json_t *object)
{
    struct choice_task *task = reader->task;
    AUTO(texts) texts = {.count = 0};
    TRY(read_texts(reader, object, &texts));
    reserve(task, texts.count);
    task->items[task->item_count++] = (struct choice_item){
        .line = reader->line, .first = task->choice_count, .count = texts.count, .correct = texts.correct};
    for (int i = 0; i < texts.count; i++)
        TRY(add_choice(reader, &texts, i));
    return OK;
}

static enum status read_line(struct reader *reader, const char *bytes, size_t length)
{
    json_error_t error;
    json_t *object = json_read(bytes, length, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        return fail(BAD_DATA, "%s:%lld: not JSON: %s at byte %d; use one object per line", reader->task->path,
                    (long long)reader->line, error.text, error.position);
    const enum status status =
        json_is_object(object) ? add_item(reader, object) : refuse(reader, "not an object; use {...}");
    json_decref(object);
    return status;
}

static enum status read_lines(struct reader *reader, const struct text *file)
{
    const char *at = text_chars(file), *end = at + file->length;
    if (file->length >= 3 && memcmp(at, "\xEF\xBB\xBF", 3) == 0)
        at += 3; // a byte order mark, which JSON does not allow
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t length = (size_t)((stop != NULL ? stop : end) - at);
        reader->line++;
        if (!is_blank(at, length))
            TRY(read_line(reader, at, length));
        at += length + 1;
    }
    return reader->task->item_count > 0
               ? OK
               : fail(BAD_DATA, "%s: no items; use one JSON object per line", reader->task->path);
}

enum status choice_task_read(const char *path, const struct recipe *recipe, const struct tokenizer *tokenizer,
                             struct choice_task *out)
{
    AUTO(text) file = {0};
    struct choice_task task = {.path = path};
    struct reader reader = {.task = &task, .recipe = recipe, .tokenizer = tokenizer};
    enum status status = file_read_small(path, MAX_FILE_BYTES, &file);
    if (status == IO_ERROR)
        status = fail(BAD_DATA, "--task: %s", fail_text());
    if (status == OK)
        status = encoder_create(tokenizer, &reader.encoder);
    if (status == OK)
        status = read_lines(&reader, &file);
    encoder_destroy(reader.encoder);
    tokens_free(&reader.context);
    tokens_free(&reader.whole);
    if (status == OK)
        *out = task;
    else
        choice_task_free(&task);
    return status;
}

void choice_task_free(struct choice_task *task)
{
    tokens_free(&task->ids);
    free(task->items);
    free(task->choices);
    *task = (struct choice_task){.path = NULL};
}

/* ---- scoring ---- */

static enum status read_window(const void *self, int64_t index, struct window *out)
{
    const struct choice_task *task = self;
    const struct choice *choice = &task->choices[index];
    memcpy(out->ids, task->ids.ids + choice->first, (size_t)choice->count * sizeof *out->ids);
    memset(out->counts, 1, (size_t)choice->count);
    out->count = choice->count;
    out->targets = choice->targets;
    out->text_size = 0;
    return OK;
}

struct window_source choice_task_source(const struct choice_task *task)
{
    return (struct window_source){
        .count = task->choice_count, .self = task, .read = read_window, .marks = {.end_of_document = -1}};
}

const char *choice_metric_name(enum choice_metric metric)
{
    static const char *const names[CHOICE_METRICS] = {
        [CHOICE_ACC] = "acc", [CHOICE_ACC_NORM] = "acc_norm", [CHOICE_ACC_BYTES] = "acc_bytes"};
    return names[metric];
}

static double divisor(const struct choice *choice, enum choice_metric metric)
{
    switch (metric) { // no default: a new metric is a compile error here
    case CHOICE_ACC:
        return 1.0;
    case CHOICE_ACC_NORM:
        return choice->characters;
    case CHOICE_ACC_BYTES:
        return choice->bytes;
    case CHOICE_METRICS:
        break;
    }
    return NAN;
}

int choice_task_chosen(const struct choice_task *task, const double *log_likelihood,
                       const struct choice_item *item, enum choice_metric metric)
{
    double best = -INFINITY;
    int chosen = 0;
    for (int i = 0; i < item->count; i++) {
        const int64_t at = item->first + i;
        const double score = log_likelihood[at] / divisor(&task->choices[at], metric);
        if (score > best) {
            best = score;
            chosen = i;
        }
    }
    return chosen;
}

/* The sample standard deviation of zeros and ones, over the square root of their number. */
void choice_task_accuracy(const struct choice_task *task, const double *log_likelihood,
                          struct choice_accuracy out[CHOICE_METRICS])
{
    const double n = (double)task->item_count;
    for (int metric = 0; metric < CHOICE_METRICS; metric++) {
        double right = 0.0;
        for (int64_t i = 0; i < task->item_count; i++)
            right += choice_task_chosen(task, log_likelihood, &task->items[i], (enum choice_metric)metric) ==
                             task->items[i].correct
                         ? 1.0
                         : 0.0;
        const double mean = right / n;
        out[metric] = (struct choice_accuracy){
            .mean = mean, .standard_error = n > 1.0 ? sqrt(mean * (1.0 - mean) / (n - 1.0)) : NAN};
    }
}
