// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/data/cmd_data.h"

#include "base/memory.h"
#include "base/text.h"
#include "tools/cli/commands.h"
#include "tools/cli/options.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char help_data[] =
    "cuboid data prepare TEXT... -o PREFIX   tokenize text into PREFIX.bin and PREFIX.idx\n"
    "cuboid data inspect PREFIX              print statistics and the first documents of a dataset\n"
    "\n"
    "TEXT is a plain text file, a JSON Lines file (.jsonl, .ndjson, .json: one object per line), either\n"
    "of them compressed (gzip, xz, zstd, bzip2, lz4), a tar archive of such files, or - for standard input.\n"
    "The result is a Megatron-LM indexed dataset; recipes refer to it by its PREFIX:\n"
    "\n"
    "    cuboid data prepare book.txt more.jsonl.gz -o data/books\n"
    "    data: {train: [{path: data/books}]}\n"
    "\n"
    "Tokenizer\n"
    "  --tokenizer byte|gpt2|hf|sentencepiece|llama2, or the tokenizer_type of a recipe (GPT2BPE, ...)\n"
    "                           byte: 257 ids, any bytes, no files (default)\n"
    "                           gpt2: GPT-2's byte-level BPE, from the next two files\n"
    "                           hf: Hugging Face's tokenizer.json (byte-level BPE: Llama 3, Qwen, ...)\n"
    "                           sentencepiece, llama2: a SentencePiece model; llama2 adds its <s>\n"
    "  --vocab-file FILE        vocab.json of gpt2\n"
    "  --merge-file FILE        merges.txt of gpt2\n"
    "  --tokenizer-model FILE   tokenizer.json of hf, or its folder; tokenizer.model of sentencepiece\n"
    "  --no-append-eod          do not append the end-of-document id to each document\n"
    "                           (default: --append-eod, once: not if the tokenizer adds it, too)\n"
    "  --threads N              threads that encode (default: one per CPU); the result is the same\n"
    "\n"
    "Documents\n"
    "  --documents file         each plain text file is one document (default)\n"
    "  --documents blank-line   empty lines end a document, and are part of it\n"
    "  --documents form-feed    form feeds separate documents, and are removed\n"
    "  --documents line         each line is one document; --split-lines N: each N lines\n"
    "  --json-key KEY           key of the text in JSON Lines (default \"text\")\n"
    "  --skip-invalid           skip and count invalid lines of JSON Lines; else the first one is an error\n"
    "  --format text|jsonl      overrides the file name; standard input is text by default\n"
    "  --format bytes           plain text of any bytes: not decompressed, not checked\n"
    "\n"
    "  A recipe's train/valid split separates whole documents, so one large document cannot be split.\n"
    "  Compressed files and archives are recognized by their contents; in an archive, each file is read by\n"
    "  its own name. Parquet, UTF-16, images and the like are refused, as is plain text of which a tenth is\n"
    "  not UTF-8. Fewer such bytes are kept, and reported from 0.1 % on. A byte order mark is kept in plain\n"
    "  text, and skipped in JSON Lines.\n"
    "\n"
    "Conversations (docs/finetuning.md)\n"
    "  --chat-template chatml|llama2|llama3|mistral|plain\n"
    "                           each line of JSON Lines is a conversation, {\"messages\": [{\"role\": ...,\n"
    "                           \"content\": ...}]} or {\"prompt\": ..., \"completion\": ...}; PREFIX.mask\n"
    "                           selects the answers for the loss (data.loss_mask)\n"
    "  --seq-length N           refuse a conversation of more than N tokens\n"
    "\n"
    "Output\n"
    "  -o, --output PREFIX      its folder is created, but not the parent of that; files get their final\n"
    "                           names only when both are complete\n"
    "  --overwrite              replace an existing dataset\n"
    "\n"
    "Inspect\n"
    "  Shows the first documents as text if a tokenizer is given, or if the ids look like bytes.\n"
    "  --documents N            number of documents (default 3)\n"
    "  --tokenizer, --vocab-file, --merge-file, --tokenizer-model   as above\n";

static enum status parse_options(int argc, char **argv, struct data_options *o)
{
    const struct option options[] = {
        {"--output", OPTION_TEXT, &o->output, 0, 0},
        {"-o", OPTION_TEXT, &o->output, 0, 0},
        {"--tokenizer", OPTION_TEXT, &o->tokenizer, 0, 0},
        {"--vocab-file", OPTION_TEXT, &o->vocab_file, 0, 0},
        {"--merge-file", OPTION_TEXT, &o->merge_file, 0, 0},
        {"--tokenizer-model", OPTION_TEXT, &o->tokenizer_model, 0, 0},
        {"--documents", OPTION_TEXT, &o->documents, 0, 0},
        {"--split-lines", OPTION_TEXT, &o->split_lines, 0, 0},
        {"--json-key", OPTION_TEXT, &o->json_key, 0, 0},
        {"--format", OPTION_TEXT, &o->format, 0, 0},
        {"--threads", OPTION_TEXT, &o->threads, 0, 0},
        {"--chat-template", OPTION_TEXT, &o->chat_template, 0, 0},
        {"--seq-length", OPTION_TEXT, &o->seq_length, 0, 0},
        {"--append-eod", OPTION_FLAG, &o->append_eod, 0, 0},
        {"--no-append-eod", OPTION_CLEAR, &o->append_eod, 0, 0},
        {"--skip-invalid", OPTION_FLAG, &o->skip_invalid, 0, 0},
        {"--overwrite", OPTION_FLAG, &o->overwrite, 0, 0},
        {"-", OPTION_REST, NULL, 0, 0}, // standard input
        {"--", OPTION_END, NULL, 0, 0},
    };
    return options_parse(argc, argv, options, sizeof options / sizeof *options, o->inputs, &o->input_count);
}

enum status data_options_tokenizer(const struct data_options *options, struct tokenizer **out)
{
    const struct tokenizer_config config = {
        .type = options->tokenizer != NULL ? options->tokenizer : "byte",
        .vocab_file = options->vocab_file,
        .merge_file = options->merge_file,
        .tokenizer_model = options->tokenizer_model,
    };
    static const char *const with_model[] = {
        "hf",     "HuggingFaceTokenizer", "sentencepiece", "GPTSentencePieceTokenizer",
        "llama2", "Llama2Tokenizer"};
    for (size_t i = 0; i < sizeof with_model / sizeof *with_model && options->tokenizer_model == NULL; i++)
        if (strcasecmp(config.type, with_model[i]) == 0)
            return fail(BAD_USAGE, "--tokenizer %s needs a file; use --tokenizer-model %s", config.type,
                        i < 2 ? "tokenizer.json, or its folder" : "tokenizer.model");
    bool files = options->vocab_file != NULL && options->merge_file != NULL;
    if (!files && (strcmp(config.type, "gpt2") == 0 || strcmp(config.type, "GPT2BPE") == 0))
        return fail(BAD_USAGE,
                    "--tokenizer %s needs two files; use --vocab-file vocab.json --merge-file merges.txt",
                    config.type);
    enum status status = tokenizer_create(&config, out);
    return status == OK || status == NO_MEMORY ? status : BAD_USAGE; // with the same message
}

/* argv[0] is the command, if there is one; then its options. */
static enum status run(const char *command, int argc, char **argv, struct data_options *o)
{
    TRY(parse_options(argc, argv, o));
    for (int i = 0; i < o->input_count; i++)
        if (o->inputs[i][0] == 0)
            return fail(BAD_USAGE, "%s: the name of input %d is empty; use %s", command, i + 1,
                        strcmp(command, "inspect") == 0 ? "the prefix of a dataset" : "a file with text");
    if (strcmp(command, "prepare") == 0)
        return data_prepare(o);
    if (strcmp(command, "inspect") == 0)
        return data_inspect(o);
    if (*command == 0)
        return fail(BAD_USAGE, "no command given; use prepare or inspect; run cuboid data --help");
    const char *near = nearest_name(command, (const char *const[]){"prepare", "inspect"}, 2);
    return fail(BAD_USAGE, "unknown command %s%s%s%s; run cuboid data --help", command,
                near != NULL ? " (did you mean " : "", near != NULL ? near : "", near != NULL ? "?)" : "");
}

int cmd_data(int argc, char **argv)
{
    struct data_options options = {.append_eod = true};
    options.inputs = memory_zeroed((size_t)argc + 1, sizeof *options.inputs, "the arguments");
    const enum status status =
        argc < 2 ? run("", argc, argv, &options) : run(argv[1], argc - 1, argv + 1, &options);
    free(options.inputs);
    if (status == OK)
        return 0;
    fprintf(stderr, "cuboid data: %s\n", fail_text());
    return status_exit(status);
}
