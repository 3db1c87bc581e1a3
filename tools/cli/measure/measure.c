// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/measure/measure.h"

#include "base/memory.h"
#include "base/process.h"

#include "planner/recipe/planned_recipe.h"
#include "trainer/run/run_summary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CHARS = 4096 };

/* ---- the command line ---- */

static void PRINTF_LIKE(2, 3) set(struct recipe_names *overrides, const char *format, ...)
{
    char chars[PATH_CHARS];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(chars, sizeof chars, format, arguments);
    va_end(arguments);
    overrides_set(&planner_keys, overrides, chars);
}

/* Collects the overrides of the request, and those of a short run on random tokens. */
static void make_overrides(const struct measure *measure, const struct measure_request *request,
                           struct recipe_names *out)
{
    static const char *const fixed[] = {
        "train.eval_interval=0",
        "optimizer.lr_warmup_iters=0",
        "optimizer.lr_decay_iters=auto",
        "data.mock_data=true",
        "data.train=[]",
        "data.valid=[]",
        "data.split=auto",
        "data.strict=false",
        "tokenizer.tokenizer_type=none",
        "tokenizer.vocab_file=none",
        "tokenizer.merge_file=none",
        "tokenizer.tokenizer_model=none",
        "checkpoint.save=none",
        "checkpoint.load=none",
        "checkpoint.save_interval=0",
        "checkpoint.save_minutes=0",
        "data.reset_attention_mask=false",
        "data.reset_position_ids=false",
        "data.eod_mask_loss=false",
    };
    for (size_t i = 0; i < request->overrides->count; i++)
        overrides_set(&planner_keys, out, request->overrides->list[i]);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        overrides_set(&planner_keys, out, fixed[i]);
    set(out, "model.vocab_size=%lld", (long long)request->recipe->model.vocab_size);
    set(out, "train.train_iters=%lld", (long long)measure->options.steps);
    set(out, "logging.run_dir=%s/runs/%lld", measure->options.dir, (long long)request->number);
}

/* Appends the words of --launch, with the number of ranks. */
static int add_launch(const char *launch, int ranks, char **argv, int count)
{
    char *words = text_copy(launch), *rest = words;
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        struct text text = {0};
        char *at = strstr(word, "{ranks}");
        if (*word == 0)
            continue;
        if (at != NULL)
            text_add(&text, "%.*s%d%s", (int)(at - word), word, ranks, at + strlen("{ranks}"));
        else
            text_add(&text, "%s", word);
        argv[count++] = text.chars;
    }
    free(words);
    return count;
}

static enum status start(const struct measure *measure, const struct measure_request *request,
                         const struct recipe_names *overrides, const char *log, enum run_state *state)
{
    const char *launch = measure->options.launch;
    const size_t words = launch != NULL ? strlen(launch) + 1 : 0;
    AUTO_FREE char **argv =
        memory_zeroed(overrides->count + words + 4, sizeof *argv, "the arguments of a run");
    int count = 0;
    if (launch != NULL)
        count = add_launch(launch, recipe_world_size(request->recipe), argv, count);
    argv[count++] = text_copy(measure->program);
    argv[count++] = text_copy("train");
    argv[count++] = text_copy(request->path);
    for (size_t i = 0; i < overrides->count; i++)
        argv[count++] = text_copy(overrides->list[i]);
    const enum status status = measure_process(argv, log, measure->options.timeout_s, launch != NULL, state);
    for (int i = 0; i < count; i++)
        free(argv[i]);
    return status;
}

/* ---- one run ---- */

/* Fills an entry from the metrics of its run; a run without usable metrics has failed. */
static void take_metrics(const struct measure *measure, int64_t number, struct journal_entry *entry)
{
    struct run_summary summary;
    struct text dir = {0};
    text_add(&dir, "%s/runs/%lld", measure->options.dir, (long long)number);
    if (run_summary_read(dir.chars, &summary) != OK || summary.steps < measure->options.steps) {
        entry->state = RUN_FAILED;
    } else {
        entry->step_s = summary.step_s;
        entry->memory_bytes = summary.memory_peak_bytes;
    }
    text_free(&dir);
}

static enum status run(const struct measure *measure, const struct measure_request *request,
                       struct journal_entry *entry)
{
    struct recipe_names overrides = {0};
    struct text log = {0};
    text_add(&log, "%s/logs/%lld", measure->options.dir, (long long)request->number);
    make_overrides(measure, request, &overrides);
    enum status status = start(measure, request, &overrides, log.chars, &entry->state);
    if (status == OK && entry->state == RUN_DONE)
        take_metrics(measure, request->number, entry);
    for (size_t i = 0; i < overrides.count; i++)
        free(overrides.list[i]);
    free(overrides.list);
    text_free(&log);
    return status;
}

void measure_command(const struct measure *measure, const struct measure_request *request, struct text *out)
{
    struct recipe_names overrides = {0};
    make_overrides(measure, request, &overrides);
    text_add_shell_word(out, measure->program);
    text_add(out, " train ");
    text_add_shell_word(out, request->path);
    for (size_t i = 0; i < overrides.count; i++) {
        text_add(out, " ");
        text_add_shell_word(out, overrides.list[i]);
        free(overrides.list[i]);
    }
    free(overrides.list);
}

enum status measure_record(struct measure *measure, const struct measure_request *request, int exit,
                           struct journal_entry *out)
{
    struct text log = {0};
    char *name = text_copy(request->name);
    text_add(&log, "%s/logs/%lld", measure->options.dir, (long long)request->number);
    struct journal_entry entry = {.layout = name,
                                  .state = exit == 124 ? RUN_TIMEOUT : measure_state(exit, log.chars)};
    if (entry.state == RUN_DONE)
        take_metrics(measure, request->number, &entry);
    enum status status = journal_add(&measure->journal, &entry);
    free(name);
    text_free(&log);
    *out = journal_find(&measure->journal, request->name);
    return status;
}

enum status measure_run(struct measure *measure, const struct measure_request *request,
                        struct journal_entry *out)
{
    *out = journal_find(&measure->journal, request->name);
    if (out->state != RUN_QUEUED)
        return OK;
    char *name = text_copy(request->name);
    struct journal_entry entry = {.layout = name, .state = RUN_RUNNING};
    enum status status = journal_add(&measure->journal, &entry);
    if (status == OK)
        status = run(measure, request, &entry);
    if (status == OK)
        status = journal_add(&measure->journal, &entry);
    free(name);
    *out = journal_find(&measure->journal, request->name);
    return status;
}

void measure_print_log(const struct measure *measure, int64_t number)
{
    char end[1024] = "", *last = end;
    struct text path = {0};
    text_add(&path, "%s/logs/%lld", measure->options.dir, (long long)number);
    FILE *log = fopen(path.chars, "rb");
    if (log != NULL) {
        if (fseek(log, -(long)(sizeof end - 1), SEEK_END) != 0)
            rewind(log);
        end[fread(end, 1, sizeof end - 1, log)] = 0;
        (void)!fclose(log);
    }
    for (char *line, *rest = end; (line = strsep(&rest, "\n")) != NULL;)
        last = *line != 0 ? line : last;
    print_line(stdout, "     %s: %s", path.chars, *last != 0 ? last : "empty");
    text_free(&path);
}

/* ---- all ---- */

static enum status open_journal(struct measure *measure, const char *head)
{
    const struct measure_options *options = &measure->options;
    struct text path = {0}, line = {0};
    text_add(&path, "%s/logs", options->dir);
    enum status status = folder_make(path.chars);
    text_free(&path);
    TRY(status);
    text_add(&path, "%s/journal", options->dir);
    text_add(&line, "%s, %lld steps, %s", head, (long long)options->steps,
             options->launch != NULL ? options->launch : "threads");
    status = journal_open(path.chars, line.chars, &measure->journal);
    text_free(&path);
    text_free(&line);
    return status;
}

enum status measure_open(const struct measure_options *options, const char *head, struct measure *out)
{
    char program[PATH_CHARS] = "";
    *out = (struct measure){.options = *options, .journal.fd = -1};
    if (readlink("/proc/self/exe", program, sizeof program - 1) <= 0)
        return fail(IO_ERROR, "/proc/self/exe cannot be read: %s", strerror(errno));
    TRY(open_journal(out, head));
    out->program = text_copy(program);
    return OK;
}

void measure_close(struct measure *measure)
{
    journal_close(&measure->journal);
    free(measure->program);
    *measure = (struct measure){.program = NULL, .journal.fd = -1};
}
