// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/cmd_data.h"

#include "base/text.h"
#include "tools/cli/cmd_data_options.h"

#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "cuboid data prepare TEXT... -o PREFIX   tokenize text into PREFIX.bin and PREFIX.idx\n"
    "cuboid data inspect PREFIX              print statistics and the first documents of a dataset\n"
    "\n"
    "TEXT is a plain text file, a JSON Lines file (.jsonl, .ndjson, .json: one object per line), or - for\n"
    "standard input. The result is a Megatron-LM indexed dataset; recipes refer to it by its PREFIX:\n"
    "\n"
    "    cuboid data prepare book.txt more.jsonl -o data/books\n"
    "    data: {train: [{path: data/books}]}\n"
    "\n"
    "Tokenizer\n"
    "  --tokenizer byte|gpt2    byte: 257 ids, any bytes, no files (default)\n"
    "                           gpt2: GPT-2's byte-level BPE, from the two files below\n"
    "  --vocab-file FILE        its vocab.json\n"
    "  --merge-file FILE        its merges.txt\n"
    "  --no-append-eod          do not append the end-of-document id to each document\n"
    "                           (--append-eod: default)\n"
    "\n"
    "Documents\n"
    "  --documents file         each plain text file is one document (default)\n"
    "  --documents blank-line   empty lines end a document, and are part of it\n"
    "  --documents form-feed    form feeds separate documents, and are removed\n"
    "  --documents line         each line is one document; --split-lines N: each N lines\n"
    "  --json-key KEY           key of the text in JSON Lines (default \"text\")\n"
    "  --format text|jsonl      overrides the file name; standard input is text by default\n"
    "\n"
    "  A recipe's train/valid split separates whole documents, so one large document cannot be split.\n"
    "  Plain text may contain any bytes: invalid UTF-8 and byte order marks are kept.\n"
    "  In JSON Lines a byte order mark is skipped.\n"
    "\n"
    "Output\n"
    "  -o, --output PREFIX      its folder is created, but not the parent of that; files get their final\n"
    "                           names only when both are complete\n"
    "  --overwrite              replace an existing dataset\n"
    "\n"
    "Inspect\n"
    "  Shows the first documents as text if a tokenizer is given, or if the ids look like bytes.\n"
    "  --documents N            number of documents (default 3)\n"
    "  --tokenizer, --vocab-file, --merge-file   as above\n";

enum option_kind { TAKES_VALUE, SETS, CLEARS };

static const struct option_row {
    const char *name;
    enum option_kind kind;
    size_t at; // of a string or a bool in struct data_options
} rows[] = {
    {"--output", TAKES_VALUE, offsetof(struct data_options, output)},
    {"--tokenizer", TAKES_VALUE, offsetof(struct data_options, tokenizer)},
    {"--vocab-file", TAKES_VALUE, offsetof(struct data_options, vocab_file)},
    {"--merge-file", TAKES_VALUE, offsetof(struct data_options, merge_file)},
    {"--documents", TAKES_VALUE, offsetof(struct data_options, documents)},
    {"--split-lines", TAKES_VALUE, offsetof(struct data_options, split_lines)},
    {"--json-key", TAKES_VALUE, offsetof(struct data_options, json_key)},
    {"--format", TAKES_VALUE, offsetof(struct data_options, format)},
    {"--append-eod", SETS, offsetof(struct data_options, append_eod)},
    {"--no-append-eod", CLEARS, offsetof(struct data_options, append_eod)},
    {"--overwrite", SETS, offsetof(struct data_options, overwrite)},
    {"--help", SETS, offsetof(struct data_options, help)},
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };

static const struct option_row *find_row(const char *name, size_t length)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (strlen(rows[i].name) == length && memcmp(rows[i].name, name, length) == 0)
            return &rows[i];
    return NULL;
}

static enum status refuse_option(const char *name)
{
    const char *names[ROW_COUNT];
    for (size_t i = 0; i < ROW_COUNT; i++)
        names[i] = rows[i].name;
    const char *nearest = nearest_name(name, names, ROW_COUNT);
    return fail(BAD_USAGE, "unknown option %s%s%s%s; run cuboid data --help", name,
                nearest != NULL ? " (did you mean " : "", nearest != NULL ? nearest : "",
                nearest != NULL ? "?)" : "");
}

/* One option at argv[*i], written "--name value", "--name=value" or "-o value"; moves *i to its last word. */
static enum status parse_option(int argc, char **argv, int *i, struct data_options *o)
{
    const char *word = argv[*i];
    if (strcmp(word, "-h") == 0)
        word = "--help";
    if (strcmp(word, "-o") == 0)
        word = "--output";
    const char *equals = strchr(word, '=');
    const struct option_row *row = find_row(word, equals != NULL ? (size_t)(equals - word) : strlen(word));
    if (row == NULL)
        return refuse_option(word);
    if (row->kind != TAKES_VALUE) {
        if (equals != NULL)
            return fail(BAD_USAGE, "%s: %s takes no value", word, row->name);
        *(bool *)((char *)o + row->at) = row->kind == SETS;
        return OK;
    }
    if (equals == NULL && *i + 1 >= argc)
        return fail(BAD_USAGE, "%s needs a value", argv[*i]);
    const char **value = (const char **)((char *)o + row->at), *before = *value;
    *value = equals != NULL ? equals + 1 : argv[++*i];
    if (before != NULL)
        return fail(BAD_USAGE, "%s is given twice (%s and %s); remove one of them", row->name, before,
                    *value);
    return OK;
}

static enum status parse_options(int argc, char **argv, struct data_options *o)
{
    bool only_inputs = false; // after "--"
    for (int i = 2; i < argc; i++) {
        if (!only_inputs && strcmp(argv[i], "--") == 0)
            only_inputs = true;
        else if (only_inputs || argv[i][0] != '-' || strcmp(argv[i], "-") == 0)
            o->inputs[o->input_count++] = argv[i];
        else
            TRY(parse_option(argc, argv, &i, o));
    }
    return OK;
}

enum status data_options_tokenizer(const struct data_options *options, struct tokenizer **out)
{
    const struct tokenizer_config config = {
        .type = options->tokenizer != NULL ? options->tokenizer : "byte",
        .vocab_file = options->vocab_file,
        .merge_file = options->merge_file,
    };
    bool files = options->vocab_file != NULL && options->merge_file != NULL;
    if (!files && (strcmp(config.type, "gpt2") == 0 || strcmp(config.type, "GPT2BPE") == 0))
        return fail(BAD_USAGE,
                    "--tokenizer %s needs two files; use --vocab-file vocab.json --merge-file merges.txt",
                    config.type);
    enum status status = tokenizer_create(&config, out);
    return status == OK || status == NO_MEMORY ? status : BAD_USAGE; // with what it said
}

static enum status run(int argc, char **argv, struct data_options *o)
{
    TRY(parse_options(argc, argv, o));
    const char *command = argc > 1 ? argv[1] : "";
    if (o->help || strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) {
        fputs(help_text, stdout);
        return OK;
    }
    if (strcmp(command, "prepare") == 0)
        return data_prepare(o);
    if (strcmp(command, "inspect") == 0)
        return data_inspect(o);
    if (argc < 2)
        return fail(BAD_USAGE, "no command given; use prepare or inspect; run cuboid data --help");
    const char *near = nearest_name(command, (const char *const[]){"prepare", "inspect"}, 2);
    return fail(BAD_USAGE, "unknown command %s%s%s%s; run cuboid data --help", command,
                near != NULL ? " (did you mean " : "", near != NULL ? near : "", near != NULL ? "?)" : "");
}

int cmd_data(int argc, char **argv)
{
    struct data_options options = {.append_eod = true};
    options.inputs = calloc((size_t)argc + 1, sizeof *options.inputs);
    enum status status =
        options.inputs == NULL ? fail(NO_MEMORY, "no memory for %d words", argc) : run(argc, argv, &options);
    free(options.inputs);
    if (status == OK)
        return 0;
    fprintf(stderr, "cuboid data: %s\n", fail_text());
    return status == STOPPED ? 1 : status_exit(status); // 75 promises that it can go on
}
