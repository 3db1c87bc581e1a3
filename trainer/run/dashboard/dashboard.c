// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/dashboard/dashboard.h"

#include "base/memory.h"
#include "base/text.h"
#include "trainer/files/json_read.h"
#include "trainer/run/dashboard/dashboard_number.h"
#include "trainer/run/dashboard/tensorboard.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct dashboard {
    const struct recipe *recipe;
    struct tensorboard *tensorboard; // NULL: none, or no longer written
    bool prometheus;
};

/* ---- the numbers of a line ---- */

struct numbers {
    struct dashboard_number at[DASHBOARD_NUMBERS];
    int count;
};

/* The step is the axis, and the slots of activations do not change. */
static bool is_left_out(const char *key)
{
    return strcmp(key, "step") == 0 || strcmp(key, "activation_slots") == 0;
}

/* Adds the numbers in `value`; of two in a list (the ranks), the least and the most. */
static void find_numbers(const json_t *value, const char *name, struct numbers *out)
{
    static const char *const ends[] = {"least", "most"};
    char inner[DASHBOARD_NAME_CHARS];
    const char *key;
    json_t *member;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, member)
        {
            if (is_left_out(key))
                continue;
            snprintf(inner, sizeof inner, "%s%s%s", name, *name != 0 ? "/" : "", key);
            find_numbers(member, inner, out);
        }
    } else if (json_is_array(value) && json_array_size(value) == 2) {
        for (size_t i = 0; i < 2; i++) {
            snprintf(inner, sizeof inner, "%s/%s", name, ends[i]);
            find_numbers(json_array_get(value, i), inner, out);
        }
    } else if ((json_is_number(value) || json_is_boolean(value)) && out->count < DASHBOARD_NUMBERS) {
        struct dashboard_number *number = &out->at[out->count++];
        snprintf(number->name, sizeof number->name, "%s", name);
        number->value = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    }
}

/* ---- Prometheus ---- */

/* The name of a run as the value of a label. */
static void add_label(struct text *out, const char *value)
{
    for (; *value != 0; value++) {
        if (*value == '\\' || *value == '"')
            text_add(out, "\\");
        text_add(out, *value == '\n' ? "\\n" : "%c", *value);
    }
}

static void add_gauge(struct text *out, const char *run, const char *name, double value)
{
    char number[NUMBER_CHARS], metric[DASHBOARD_NAME_CHARS];
    snprintf(metric, sizeof metric, "%s", name);
    for (char *c = metric; *c != 0; c++)
        *c = *c == '/' ? '_' : *c;
    text_add(out, "# TYPE cuboid_%s gauge\ncuboid_%s{run=\"", metric, metric);
    add_label(out, run);
    text_add(out, "\"} %s\n", number_text(value, number));
}

/* Renames a complete file to its name. Unlike file_write_atomic() without fsync, which could hold up the
 * step: after a power failure the metrics are old anyway. */
static enum status replace(const char *path, const struct text *page)
{
    AUTO(text) temporary = {0};
    const char *problem = file_path_problem(path);
    if (problem != NULL)
        return fail(IO_ERROR, "%s: %s", path, problem);
    text_add(&temporary, "%s.tmp", path);
    (void)unlink(temporary.chars); // a pipe of that name would block
    FILE *file = fopen(temporary.chars, "wex");
    bool written = file != NULL && fwrite(page->chars, 1, page->length, file) == page->length;
    written = file != NULL && fclose(file) == 0 && written;
    if (written && rename(temporary.chars, path) == 0)
        return OK;
    const enum status status = fail(IO_ERROR, "%s: %s", path, strerror(errno));
    (void)unlink(temporary.chars);
    return status;
}

static enum status write_prometheus(const struct recipe *recipe, int64_t step, const struct numbers *numbers)
{
    AUTO(text) page = {0};
    add_gauge(&page, recipe->name, "step", (double)step);
    add_gauge(&page, recipe->name, "steps", (double)recipe->train.train_iters);
    add_gauge(&page, recipe->name, "last_step_timestamp_seconds", (double)time(NULL));
    for (int i = 0; i < numbers->count; i++)
        add_gauge(&page, recipe->name, numbers->at[i].name, numbers->at[i].value);
    return replace(recipe->logging.prometheus_file, &page);
}

/* ---- both ---- */

static enum status open_both(struct dashboard *d, int64_t first_step)
{
    const struct recipe_logging *keys = &d->recipe->logging;
    if (keys->tensorboard_dir != NULL)
        TRY(tensorboard_open(keys->tensorboard_dir, first_step, &d->tensorboard));
    d->prometheus = keys->prometheus_file != NULL;
    if (!d->prometheus)
        return OK;
    AUTO(text) metrics = {0};
    struct stat ours, theirs;
    text_add(&metrics, "%s/metrics.jsonl", keys->run_dir);
    if (stat(keys->prometheus_file, &theirs) == 0 && stat(metrics.chars, &ours) == 0 &&
        ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev)
        return fail(BAD_RECIPE,
                    "logging.prometheus_file: %s would replace the metrics of the run; use NAME.prom",
                    keys->prometheus_file);
    const struct numbers none = {.count = 0};
    const enum status status = write_prometheus(d->recipe, first_step - 1, &none);
    return status == OK ? OK : fail(status, "logging.prometheus_file: %s", fail_text());
}

enum status dashboard_open(const struct recipe *recipe, int64_t first_step, struct dashboard **out)
{
    *out = NULL;
    if (recipe->logging.tensorboard_dir == NULL && recipe->logging.prometheus_file == NULL)
        return OK;
    struct dashboard *d = memory_zeroed(1, sizeof *d, "the metrics for dashboards");
    d->recipe = recipe;
    const enum status status = open_both(d, first_step);
    if (status == OK)
        *out = d;
    else
        dashboard_close(d);
    return status;
}

static void add_numbers(struct dashboard *d, int64_t step, const struct numbers *numbers)
{
    const char *rest = "it is not written from here on; metrics.jsonl has every step";
    if (d->tensorboard != NULL && tensorboard_add(d->tensorboard, step, numbers->at, numbers->count) != OK) {
        print_line(stderr, "warning: logging.tensorboard_dir: %s; %s", fail_text(), rest);
        tensorboard_close(d->tensorboard);
        d->tensorboard = NULL;
    }
    if (d->prometheus && write_prometheus(d->recipe, step, numbers) != OK) {
        print_line(stderr, "warning: logging.prometheus_file: %s; %s", fail_text(), rest);
        d->prometheus = false;
    }
}

void dashboard_add(struct dashboard *d, const struct text *line)
{
    if (d == NULL)
        return;
    json_t *object = json_read(line->chars, line->length, 0, NULL);
    struct numbers numbers = {.count = 0};
    find_numbers(object, "", &numbers);
    add_numbers(d, json_integer_value(json_object_get(object, "step")), &numbers);
    json_decref(object);
}

void dashboard_close(struct dashboard *dashboard)
{
    if (dashboard == NULL)
        return;
    tensorboard_close(dashboard->tensorboard);
    free(dashboard);
}
