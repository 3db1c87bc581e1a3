// SPDX-License-Identifier: Apache-2.0
/* cuboid data prepare: from text to token ids on disk.
 *
 *     text_read() -> documents -> encode_pool -> dataset_writer -> PREFIX.bin, PREFIX.idx
 *                    lines                                         PREFIX.mask, of conversations
 *
 * Text is streamed, so a document may have any size if its tokenizer can cut it (encoder_cut()). */
#include "tools/cli/data/cmd_data.h"

#include "base/clock.h"
#include "base/machine.h"
#include "base/text.h"
#include "tools/cli/data/encode_pool.h"
#include "tools/cli/data/prepare_notes.h"
#include "trainer/data/data_text.h"
#include "trainer/data/dataset_writer.h"
#include "trainer/files/stop_signals.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_THREADS = 1024 };

static enum status text_options_of(const struct data_options *o, struct text_options *out)
{
    static const char *const rules[TEXT_DOCUMENTS_COUNT] = {[TEXT_FILE] = "file",
                                                            [TEXT_BLANK_LINE] = "blank-line",
                                                            [TEXT_FORM_FEED] = "form-feed",
                                                            [TEXT_LINES] = "line"};
    *out = (struct text_options){
        .documents = TEXT_FILE, .lines = 1, .json_key = o->json_key != NULL ? o->json_key : "text"};
    if (o->documents != NULL) {
        int rule = 0;
        while (rule < TEXT_DOCUMENTS_COUNT && strcmp(o->documents, rules[rule]) != 0)
            rule++;
        if (rule == TEXT_DOCUMENTS_COUNT)
            return fail(BAD_USAGE, "--documents %s is invalid; use file, blank-line, form-feed or line",
                        o->documents);
        out->documents = (enum text_documents)rule;
    }
    if (o->split_lines != NULL) {
        if (o->documents != NULL && out->documents != TEXT_LINES)
            return fail(BAD_USAGE, "--split-lines and --documents %s are mutually exclusive", o->documents);
        if (!integer_parse(o->split_lines, &out->lines) || out->lines < 1)
            return fail(BAD_USAGE, "--split-lines %s is invalid; use a number of lines, 1 or more",
                        o->split_lines);
        out->documents = TEXT_LINES;
    }
    if (o->format != NULL && strcmp(o->format, "text") == 0)
        out->format = TEXT_PLAIN;
    else if (o->format != NULL && strcmp(o->format, "jsonl") == 0)
        out->format = TEXT_JSON_LINES;
    else if (o->format != NULL && strcmp(o->format, "bytes") == 0)
        out->format = TEXT_BYTES;
    else if (o->format != NULL)
        return fail(BAD_USAGE, "--format %s is invalid; use text, jsonl or bytes", o->format);
    return OK;
}

/* The options of conversations. */
static enum status chat_options_of(const struct data_options *o, const struct tokenizer *tokenizer,
                                   struct text_options *text, struct chat_template *template,
                                   int64_t *seq_length)
{
    if (o->chat_template == NULL && o->seq_length != NULL)
        return fail(BAD_USAGE, "--seq-length %s limits conversations; use it with --chat-template",
                    o->seq_length);
    if (o->chat_template == NULL)
        return OK;
    if (o->documents != NULL || o->split_lines != NULL || o->json_key != NULL || text->format == TEXT_PLAIN ||
        text->format == TEXT_BYTES)
        return fail(BAD_USAGE,
                    "--chat-template reads one conversation from each line of JSON Lines; remove %s",
                    o->documents != NULL     ? "--documents"
                    : o->split_lines != NULL ? "--split-lines"
                    : o->json_key != NULL    ? "--json-key"
                                             : "--format");
    if (!o->append_eod)
        return fail(BAD_USAGE,
                    "--no-append-eod has no effect on conversations, which end as the template says; "
                    "remove it");
    if (o->seq_length != NULL && (!integer_parse(o->seq_length, seq_length) || *seq_length < 1))
        return fail(BAD_USAGE, "--seq-length %s is invalid; use a number of tokens, 1 or more",
                    o->seq_length);
    text->format = TEXT_JSON_LINES;
    return chat_template_create(o->chat_template, tokenizer, template);
}

/* The number of encoding threads; by default one for each available CPU. */
static enum status threads_of(const struct data_options *o, int *out)
{
    struct machine machine;
    int64_t threads = 0;
    machine_query(&machine);
    *out = machine_threads(&machine, 1, 1);
    if (o->threads == NULL)
        return OK;
    if (!integer_parse(o->threads, &threads) || threads < 1 || threads > MAX_THREADS)
        return fail(BAD_USAGE, "--threads %s is invalid; use 1 to %d", o->threads, MAX_THREADS);
    *out = (int)threads;
    return OK;
}

/* State of one prepare. */
struct pump {
    struct encode_options encode;
    struct encode_pool *pool;
    struct dataset_writer *writer;
    struct encode_counts counts; // when complete
    struct prepare_notes notes;
    int64_t documents; // read

    int64_t read_bytes, all_bytes; // for the progress; all_bytes 0: unknown
    double began_s, shown_s;
    bool terminal;
};

static enum status pump_append(void *context, const char *bytes, int64_t length)
{
    return encode_pool_append(((struct pump *)context)->pool, bytes, length);
}

static enum status pump_end_document(void *context)
{
    struct pump *p = context;
    p->documents++;
    return encode_pool_end_document(p->pool);
}

static enum status pump_line(void *context, const char *file, int64_t number, const char *bytes,
                             int64_t length)
{
    struct pump *p = context;
    p->documents++;
    return encode_pool_line(p->pool, prepare_notes_file(&p->notes, file), number, bytes, length);
}

static enum status pump_skip(void *context, const char *why)
{
    prepare_notes_skip(&((struct pump *)context)->notes, why);
    return OK;
}

static void pump_not_utf8(void *context, const char *file, const struct text_check *check)
{
    prepare_notes_not_utf8(&((struct pump *)context)->notes, file, check);
}

static enum status pump_progress(void *context, int64_t bytes)
{
    struct pump *p = context;
    p->read_bytes += bytes;
    double now = clock_s(), spent = now - p->began_s;
    if (p->terminal && now - p->shown_s > 0.2) {
        p->shown_s = now;
        char left[NUMBER_CHARS] = "", read[NUMBER_CHARS];
        if (p->all_bytes > 0)
            seconds_text(spent * fmax((double)(p->all_bytes - p->read_bytes), 0.0) / (double)p->read_bytes,
                         left);
        fprintf(stderr, "\r\033[K%s read  %.1f MB/s  %" PRId64 " documents%s%s",
                bytes_text(p->read_bytes, read), (double)p->read_bytes * 1e-6 / spent, p->documents,
                left[0] != 0 ? "  left " : "", left);
    }
    return stop_signals_check();
}

/* Returns the size of all inputs; 0 if one has no size, such as a pipe. */
static int64_t inputs_bytes(const struct data_options *o)
{
    int64_t total = 0;
    for (int i = 0; i < o->input_count; i++) {
        struct stat info;
        if (stat(o->inputs[i], &info) != 0 || !S_ISREG(info.st_mode))
            return 0;
        total += info.st_size;
    }
    return total;
}

/* Refuses to replace an input, and without --overwrite any file. */
static enum status refuse_replacing(const char *path, const struct data_options *o)
{
    struct stat old, input;
    if (stat(path, &old) != 0)
        return OK;
    for (int i = 0; i < o->input_count; i++)
        if (stat(o->inputs[i], &input) == 0 && input.st_dev == old.st_dev && input.st_ino == old.st_ino)
            return fail(BAD_USAGE, "-o %s: %s would be replaced, but is an input; use another PREFIX",
                        o->output, path);
    return o->overwrite ? OK : fail(BAD_USAGE, "%s already exists; use --overwrite to replace it", path);
}

static enum status check_replaced(const struct data_options *o)
{
    static const char *const endings[] = {"idx", "bin", "mask"};
    enum status status = OK;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && status == OK; i++) {
        struct text path = {0};
        text_add(&path, "%s.%s", o->output, endings[i]);
        status = refuse_replacing(path.chars, o);
        text_free(&path);
    }
    return status;
}

/* Names the inputs: no document has any text. */
static enum status refuse_no_text(const struct pump *p, const struct data_options *o,
                                  const struct text_options *text)
{
    enum { SHOWN = 3 };
    struct text inputs = {0};
    if (p->notes.skipped > 0)
        return fail(BAD_DATA, "all %" PRId64 " lines are invalid; the first: %s", p->notes.skipped,
                    p->notes.skipped_shown[0].chars);
    for (int i = 0; i < o->input_count && i < SHOWN; i++)
        text_add(&inputs, "%s%s", i > 0 ? ", " : "",
                 strcmp(o->inputs[i], "-") == 0 ? "standard input" : o->inputs[i]);
    if (o->input_count > SHOWN)
        text_add(&inputs, " and %d more", o->input_count - SHOWN);
    enum status status =
        o->chat_template != NULL
            ? fail(BAD_DATA, "%s: no conversations; use a file with one on each line", text_chars(&inputs))
        : text_is_json(o->inputs[0], text)
            ? fail(BAD_DATA, "%s: no text; use a file with {\"%s\": \"...\"} on each line",
                   text_chars(&inputs), text->json_key)
            : fail(BAD_DATA, "%s: no text; use a file that is not empty", text_chars(&inputs));
    text_free(&inputs);
    return status;
}

static enum status pump_all(struct pump *p, const struct data_options *o, const struct text_options *text)
{
    const struct text_sink sink = {.append = pump_append,
                                   .end_document = pump_end_document,
                                   .progress = pump_progress,
                                   .line = p->encode.chat != NULL ? pump_line : NULL,
                                   .skip = o->skip_invalid ? pump_skip : NULL,
                                   .not_utf8 = pump_not_utf8,
                                   .context = p};
    p->encode.skip = sink.skip;
    p->encode.skip_context = p;
    TRY(check_replaced(o));
    TRY(dataset_writer_create(o->output, tokenizer_vocab_size(p->encode.tokenizer), &p->writer));
    if (p->encode.chat != NULL)
        TRY(dataset_writer_with_mask(p->writer, p->encode.chat->name));
    TRY(encode_pool_create(&p->encode, p->writer, &p->pool));
    for (int i = 0; i < o->input_count; i++)
        TRY(text_read(o->inputs[i], text, &sink));
    TRY(encode_pool_finish(p->pool));
    p->counts = encode_pool_counts(p->pool);
    if (p->counts.tokens == 0)
        return refuse_no_text(p, o, text);
    return dataset_writer_finish(p->writer);
}

static void print_summary(const struct pump *p, const char *prefix)
{
    char size[NUMBER_CHARS], time[NUMBER_CHARS];
    double spent = clock_s() - p->began_s;
    const struct encode_counts *counts = &p->counts;
    print_line(stdout,
               "%s.bin, %s.idx: %" PRId64 " document%s, %" PRId64
               " tokens (%s), %s of text, %.2f bytes a token, %s, %.1f MB/s",
               prefix, prefix, counts->documents, counts->documents == 1 ? "" : "s", counts->tokens,
               tokenizer_name(p->encode.tokenizer), bytes_text(counts->text_bytes, size),
               (double)counts->text_bytes / (double)counts->tokens, seconds_text(spent, time),
               (double)p->read_bytes * 1e-6 / spent);
    if (p->encode.chat != NULL)
        print_line(stdout,
                   "%s.mask (%s): %" PRId64
                   " tokens (%.1f %%) count in the loss; the longest conversation has %" PRId64
                   " tokens (%s, line %" PRId64 ")",
                   prefix, p->encode.chat->name, counts->counted,
                   100.0 * (double)counts->counted / (double)counts->tokens, counts->longest,
                   counts->longest_file, counts->longest_line);
    if (counts->documents < 20)
        printf("A train/valid split cuts between documents; with %" PRId64 " it is coarse or impossible%s.\n",
               counts->documents, p->encode.chat == NULL ? " (--documents, --split-lines)" : "");
}

/* Checks that all inputs are readable, before anything is written. */
static enum status check_inputs(const struct data_options *o)
{
    struct text wrong = {0};
    for (int i = 0; i < o->input_count; i++) {
        struct stat info;
        bool there = strcmp(o->inputs[i], "-") == 0 ||
                     (stat(o->inputs[i], &info) == 0 && access(o->inputs[i], R_OK) == 0);
        int why = !there ? errno : strcmp(o->inputs[i], "-") != 0 && S_ISDIR(info.st_mode) ? EISDIR : 0;
        if (why != 0)
            text_add(&wrong, "%s%s: %s", wrong.length > 0 ? "; " : "", o->inputs[i], strerror(why));
    }
    enum status status = wrong.length > 0 ? fail(BAD_USAGE, "%s", text_chars(&wrong)) : OK;
    text_free(&wrong);
    return status;
}

/* Returns the parent directory: "a/b" of "a/b/c", "/" of "/c", "." of "c". */
static void add_folder_of(const char *path, struct text *out)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        text_add(out, ".");
    else
        text_add_bytes(out, path, slash > path ? (size_t)(slash - path) : 1);
}

/* Creates the directory of the dataset, but not its parents: several missing levels are probably a typing
 * error. */
static enum status check_folder(const char *prefix, const char *folder)
{
    struct text parent = {0};
    add_folder_of(folder, &parent);
    enum status status =
        access(folder, F_OK) == 0 || access(parent.chars, F_OK) == 0
            ? OK
            : fail(BAD_USAGE, "-o %s: folder %s does not exist, so %s cannot be created; run mkdir -p %s",
                   prefix, parent.chars, folder, folder);
    text_free(&parent);
    return status;
}

static enum status check_place(const char *prefix, const char *path)
{
    const char *fault = file_path_problem(path);
    return fault == NULL ? OK : fail(BAD_USAGE, "-o %s: %s: %s", prefix, path, fault);
}

/* Checks that the output can be written, before anything is read. */
static enum status check_output(const char *prefix)
{
    struct text folder = {0}, idx = {0}, bin = {0}, mask = {0};
    add_folder_of(prefix, &folder);
    text_add(&idx, "%s.idx", prefix);
    text_add(&bin, "%s.bin", prefix);
    text_add(&mask, "%s.mask", prefix);
    enum status status = check_folder(prefix, folder.chars);
    bool there = access(folder.chars, F_OK) == 0;
    if (status == OK)
        status = check_place(prefix, there ? idx.chars : folder.chars);
    if (status == OK && there)
        status = check_place(prefix, bin.chars);
    if (status == OK && there)
        status = check_place(prefix, mask.chars);
    text_free(&folder);
    text_free(&idx);
    text_free(&bin);
    text_free(&mask);
    return status;
}

static enum status prepare_with(const struct encode_options *encode, const struct data_options *o,
                                const struct text_options *text)
{
    struct pump pump = {
        .encode = *encode,
        .all_bytes = inputs_bytes(o),
        .began_s = clock_s(),
        .terminal = isatty(STDERR_FILENO) == 1,
    };
    struct stop_signals held;
    stop_signals_hold(&held);
    enum status status = pump_all(&pump, o, text);
    encode_pool_destroy(pump.pool);
    dataset_writer_destroy(pump.writer);
    stop_signals_release(&held);
    if (pump.terminal && pump.shown_s > 0.0)
        fputs("\r\033[K", stderr);
    if (status == OK) {
        print_summary(&pump, o->output);
        prepare_notes_print(&pump.notes);
    }
    prepare_notes_free(&pump.notes);
    return status;
}

enum status data_prepare(const struct data_options *options)
{
    struct text_options text;
    struct encode_options encode = {.append_eod = options->append_eod};
    struct chat_template chat;
    if (options->input_count == 0)
        return fail(BAD_USAGE, "prepare: no TEXT given; use - for standard input");
    if (options->output == NULL)
        return fail(BAD_USAGE, "prepare: no output given; use -o PREFIX to write PREFIX.bin and PREFIX.idx");
    TRY(text_options_of(options, &text));
    TRY(threads_of(options, &encode.threads));
    struct tokenizer *tokenizer = NULL;
    TRY(data_options_tokenizer(options, &tokenizer));
    encode.tokenizer = tokenizer;
    encode.chat = options->chat_template != NULL ? &chat : NULL;
    enum status status = chat_options_of(options, tokenizer, &text, &chat, &encode.seq_length);
    if (status == OK)
        status = check_inputs(options);
    if (status == OK)
        status = check_output(options->output);
    if (status == OK)
        status = prepare_with(&encode, options, &text);
    tokenizer_destroy(tokenizer);
    return status;
}
