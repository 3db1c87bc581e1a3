// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/sweep/sweep_run.h"

#include "tools/cli/sweep/sweep_output.h"
#include "trainer/data/dataset.h"
#include "trainer/plan/rows/rows.h"
#include "trainer/run/run_summary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DOCUMENTS = 64, PATH_CHARS = 4096 };

struct runner {
    const struct sweep *sweep;
    const struct sweep_run_options *options;
    struct journal journal;
    char program[PATH_CHARS];
};

/* ---- the dataset ---- */

/* Random ids below vocab_size, long enough for a few samples; training repeats them. */
static enum status write_tokens(struct dataset_writer *writer, int64_t vocab_size, int64_t length)
{
    uint64_t state = 1;
    for (int document = 0; document < DOCUMENTS; document++) {
        for (int64_t i = 0; i < length; i++) {
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
            const int32_t id = (int32_t)((state >> 33) % (uint64_t)vocab_size);
            TRY(dataset_writer_add(writer, &id, 1));
        }
        TRY(dataset_writer_end_document(writer));
    }
    return dataset_writer_finish(writer);
}

/* Makes the dataset of a vocabulary, unless it exists; `prefix` is its path. */
static enum status make_dataset(const struct runner *runner, const struct recipe *recipe, struct text *prefix)
{
    const int64_t vocab_size = recipe->model.vocab_size;
    struct dataset_writer *writer = NULL;
    struct text index = {0};
    text_add(prefix, "%s/data/random-%lld-%lld", runner->options->dir, (long long)vocab_size,
             (long long)recipe->model.seq_length);
    text_add(&index, "%s.idx", prefix->chars);
    const bool exists = access(index.chars, R_OK) == 0;
    text_free(&index);
    if (exists)
        return OK;
    TRY(dataset_writer_create(prefix->chars, vocab_size, &writer));
    const enum status status = write_tokens(writer, vocab_size, recipe->model.seq_length + 1);
    dataset_writer_destroy(writer);
    return status;
}

/* ---- the command line ---- */

static void PRINTF_LIKE(2, 3) set(struct recipe_names *overrides, const char *format, ...)
{
    struct text word = {0};
    char chars[PATH_CHARS];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(chars, sizeof chars, format, arguments);
    va_end(arguments);
    text_add(&word, "%s", chars);
    row_recipe_set(overrides, word.chars);
    text_free(&word);
}

/* Those of the sweep and of the layout, and what makes a short run on random tokens. */
static void make_overrides(const struct runner *runner, int64_t number, const struct recipe *recipe,
                           const char *dataset, struct recipe_names *out)
{
    static const char *const fixed[] = {
        "train.eval_interval=0",
        "optimizer.lr_warmup_iters=0",
        "optimizer.lr_decay_iters=auto",
        "data.split=1, 0, 0",
        "data.valid=[]",
        "tokenizer.tokenizer_type=none",
        "tokenizer.vocab_file=none",
        "tokenizer.merge_file=none",
        "checkpoint.save=none",
        "checkpoint.load=none",
        "checkpoint.save_interval=0",
        "checkpoint.save_minutes=0",
        "data.reset_attention_mask=false",
        "data.reset_position_ids=false",
        "data.eod_mask_loss=false",
    };
    const struct sweep_file *file = runner->sweep->file;
    for (size_t i = 0; i < runner->options->override_count; i++)
        if (strcmp(runner->options->overrides[i], "cluster.device=dry") != 0)
            row_recipe_set(out, runner->options->overrides[i]);
    for (int i = 0; i < file->axis_count; i++)
        set(out, "%s=%s", file->axes[i].key, file->axes[i].texts[sweep_value(file, number, i)]);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        row_recipe_set(out, fixed[i]);
    set(out, "model.vocab_size=%lld", (long long)recipe->model.vocab_size);
    set(out, "train.train_iters=%lld", (long long)runner->options->steps);
    set(out, "data.train=%s", dataset);
    set(out, "logging.run_dir=%s/runs/%lld", runner->options->dir, (long long)number);
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

static enum status start(const struct runner *runner, const struct recipe *recipe,
                         const struct recipe_names *overrides, const char *log, enum run_state *state)
{
    const char *launch = runner->options->launch;
    const size_t words = launch != NULL ? strlen(launch) + 1 : 0;
    char **argv = calloc(overrides->count + words + 4, sizeof *argv);
    int count = 0;
    if (argv == NULL)
        return fail(NO_MEMORY, "no memory for the arguments of a run");
    if (launch != NULL)
        count = add_launch(launch, recipe_world_size(recipe), argv, count);
    argv[count++] = text_copy(runner->program);
    argv[count++] = text_copy("train");
    argv[count++] = text_copy(runner->sweep->file->base);
    for (size_t i = 0; i < overrides->count; i++)
        argv[count++] = text_copy(overrides->list[i]);
    const enum status status = sweep_process(argv, log, runner->options->timeout_s, launch != NULL, state);
    for (int i = 0; i < count; i++)
        free(argv[i]);
    free(argv);
    return status;
}

/* ---- one layout ---- */

/* Fills a measured entry; a run without usable metrics has failed. */
static void take_metrics(const struct runner *runner, int64_t number, struct journal_entry *entry)
{
    struct run_summary summary;
    struct text dir = {0};
    text_add(&dir, "%s/runs/%lld", runner->options->dir, (long long)number);
    if (run_summary_read(dir.chars, &summary) != OK || summary.steps < runner->options->steps) {
        entry->state = RUN_FAILED;
    } else {
        entry->step_s = summary.step_s;
        entry->memory_bytes = summary.memory_peak_bytes;
    }
    text_free(&dir);
}

static enum status run_recipe(struct runner *runner, int64_t number, const struct recipe *recipe,
                              struct journal_entry *entry)
{
    struct recipe_names overrides = {0};
    struct text dataset = {0}, log = {0};
    enum status status = make_dataset(runner, recipe, &dataset);
    text_add(&log, "%s/logs/%lld", runner->options->dir, (long long)number);
    if (status == OK) {
        make_overrides(runner, number, recipe, dataset.chars, &overrides);
        status = start(runner, recipe, &overrides, log.chars, &entry->state);
    }
    if (status == OK && entry->state == RUN_DONE)
        take_metrics(runner, number, entry);
    for (size_t i = 0; i < overrides.count; i++)
        free(overrides.list[i]);
    free(overrides.list);
    text_free(&dataset);
    text_free(&log);
    return status;
}

static enum status run_layout(struct runner *runner, const struct sweep_layout *layout, char *text)
{
    struct recipe *recipe = NULL;
    struct journal_entry entry = {.layout = text, .state = RUN_RUNNING};
    TRY(journal_add(&runner->journal, &entry));
    TRY(sweep_recipe(runner->sweep, layout->number, &recipe));
    const enum status status = run_recipe(runner, layout->number, recipe, &entry);
    recipe_destroy(recipe);
    TRY(status);
    entry.layout = text;
    return journal_add(&runner->journal, &entry);
}

/* ---- all ---- */

/* The log of a run that failed, with its last line that is not empty: most often the reason. */
static void print_log(const struct runner *runner, const struct sweep_layout *layout)
{
    char end[1024] = "", *last = end;
    struct text path = {0};
    text_add(&path, "%s/logs/%lld", runner->options->dir, (long long)layout->number);
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

static void print_entry(const struct runner *runner, size_t index, const struct sweep_layout *layout,
                        const struct journal_entry *entry, const char *text)
{
    if (entry->state == RUN_DONE)
        print_line(stdout, "%4zu %-8s %10.4g %10.4g %+7.1f%%  %s", index + 1, run_state_name(entry->state),
                   layout->step_s, entry->step_s, 100.0 * (layout->step_s / entry->step_s - 1.0), text);
    else
        print_line(stdout, "%4zu %-8s %10.4g %10s %8s  %s", index + 1, run_state_name(entry->state),
                   layout->step_s, "-", "-", text);
    if (entry->state != RUN_DONE)
        print_log(runner, layout);
    fflush(stdout);
}

static enum status visit(struct runner *runner, size_t index, int64_t *done)
{
    const struct sweep_layout *layout = &runner->sweep->layouts[runner->sweep->best[index]];
    struct text text = {0};
    sweep_layout_text(runner->sweep->file, layout->number, &text);
    enum status status = OK;
    if (journal_find(&runner->journal, text.chars).state == RUN_QUEUED)
        status = run_layout(runner, layout, text.chars);
    if (status == OK) {
        const struct journal_entry entry = journal_find(&runner->journal, text.chars);
        print_entry(runner, index, layout, &entry, text.chars);
        *done += entry.state == RUN_DONE;
    }
    text_free(&text);
    return status;
}

static enum status run_all(struct runner *runner, int64_t *done)
{
    const struct sweep *sweep = runner->sweep;
    const size_t most = runner->options->count > 0 ? (size_t)runner->options->count : sweep->best_count;
    printf("runs in %s:\n%4s %-8s %10s %10s %8s  layout\n", runner->options->dir, "", "status", "predicted",
           "measured", "error");
    fflush(stdout);
    for (size_t i = 0; i < sweep->best_count && i < most; i++)
        TRY(visit(runner, i, done));
    return OK;
}

enum status sweep_run(const struct sweep *sweep, const struct sweep_run_options *options, int64_t *done)
{
    struct runner runner = {.sweep = sweep, .options = options};
    struct text path = {0}, head = {0};
    const ssize_t length = readlink("/proc/self/exe", runner.program, sizeof runner.program - 1);
    *done = 0;
    if (length <= 0)
        return fail(IO_ERROR, "/proc/self/exe cannot be read: %s", strerror(errno));
    text_add(&path, "%s/logs", options->dir);
    enum status status = folder_make(path.chars);
    text_free(&path);
    TRY(status);
    text_add(&path, "%s/journal", options->dir);
    text_add(&head, "sweep %s, %lld steps, %s:", sweep->file->base, (long long)options->steps,
             options->launch != NULL ? options->launch : "threads");
    for (size_t i = 0; i < options->override_count; i++)
        text_add(&head, " %s", options->overrides[i]);
    status = journal_open(path.chars, head.chars, &runner.journal);
    if (status == OK) {
        status = run_all(&runner, done);
        journal_close(&runner.journal);
    }
    text_free(&path);
    text_free(&head);
    return status;
}
