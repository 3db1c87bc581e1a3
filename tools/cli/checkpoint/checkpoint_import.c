// SPDX-License-Identifier: Apache-2.0
/* cuboid checkpoint import: a model of Hugging Face's transformers library as a checkpoint. */
#include "base/memory.h"
#include "tools/cli/checkpoint/cmd_checkpoint.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/huggingface/pretrained_import.h"

#include <stdlib.h>

struct arguments {
    const char *folder, *out;
    enum pretrained_head head;
};

static enum status parse(int argc, char **argv, struct arguments *a)
{
    bool untie = false, tie = false;
    const struct option options[] = {{"-o", OPTION_TEXT, &a->out, 0, 0},
                                     {"--output", OPTION_TEXT, &a->out, 0, 0},
                                     {"--untie", OPTION_FLAG, &untie, 0, 0},
                                     {"--tie", OPTION_FLAG, &tie, 0, 0}};
    int count;
    const char **rest = memory_zeroed((size_t)argc + 1, sizeof *rest, "the arguments");
    enum status status = options_parse(argc, argv, options, sizeof options / sizeof *options, rest, &count);
    if (status == OK && count != 1)
        status =
            fail(BAD_USAGE, "checkpoint import: expected one folder with config.json and model.safetensors; "
                            "use cuboid checkpoint import DIR -o CKPT");
    if (status == OK && rest[0][0] == 0)
        status =
            fail(BAD_USAGE, "checkpoint import: the name of the model's folder is empty; use a folder with "
                            "config.json and model.safetensors");
    if (status == OK && a->out == NULL)
        status =
            fail(BAD_USAGE, "checkpoint import: no output given; use -o and a folder that does not exist");
    if (status == OK && untie && tie)
        status =
            fail(BAD_USAGE, "checkpoint import: --untie and --tie are mutually exclusive; use one of them");
    a->folder = rest[0];
    a->head = untie ? PRETRAINED_HEAD_UNTIED : tie ? PRETRAINED_HEAD_TIED : PRETRAINED_HEAD_REFUSED;
    free(rest);
    return status;
}

int checkpoint_import(int argc, char **argv)
{
    struct arguments a = {.head = PRETRAINED_HEAD_REFUSED};
    struct problems warnings = {0};
    struct pretrained_import_result result;
    enum status status = parse(argc, argv, &a);
    if (status == OK)
        status = pretrained_import(a.folder, a.out, a.head, &warnings, &result);
    problems_print(&warnings, stderr);
    problems_free(&warnings);
    if (status == OK) {
        char count[NUMBER_CHARS];
        print_line(stderr, "%s: %s%s, %s parameters, %d tensors in %d file%s, stored in %s%s%s", a.out,
                   result.architecture->name, a.head == PRETRAINED_HEAD_UNTIED ? " with its own head" : "",
                   count_text((double)result.elements, count), result.tensors, result.files,
                   result.files == 1 ? "" : "s", result.dtype,
                   result.tokenizer != NULL ? ", with " : "; no tokenizer",
                   result.tokenizer != NULL ? result.tokenizer : "");
        fputs(text_chars(&result.model_yaml), stdout);
        text_free(&result.model_yaml);
    }
    return exit_status(status);
}
