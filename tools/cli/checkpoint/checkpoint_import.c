// SPDX-License-Identifier: Apache-2.0
/* cuboid checkpoint import: a model of Hugging Face's transformers library as a checkpoint. */
#include "tools/cli/checkpoint/cmd_checkpoint.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/huggingface/pretrained_import.h"

#include <stdlib.h>

static enum status parse(int argc, char **argv, const char **out, const char **folder)
{
    const struct option options[] = {{"-o", OPTION_TEXT, out, 0, 0}, {"--output", OPTION_TEXT, out, 0, 0}};
    int count;
    const char **rest = calloc((size_t)argc + 1, sizeof *rest);
    if (rest == NULL)
        return fail(NO_MEMORY, "no memory for the arguments");
    enum status status = options_parse(argc, argv, options, 2, rest, &count);
    if (status == OK && count != 1)
        status =
            fail(BAD_USAGE, "checkpoint import: expected one folder with config.json and model.safetensors; "
                            "use cuboid checkpoint import DIR -o CKPT");
    if (status == OK && rest[0][0] == 0)
        status =
            fail(BAD_USAGE, "checkpoint import: the name of the model's folder is empty; use a folder with "
                            "config.json and model.safetensors");
    if (status == OK && *out == NULL)
        status =
            fail(BAD_USAGE, "checkpoint import: no output given; use -o and a folder that does not exist");
    *folder = rest[0];
    free(rest);
    return status;
}

int checkpoint_import(int argc, char **argv)
{
    const char *out = NULL, *folder = NULL;
    struct problems warnings = {0};
    struct pretrained_import_result result;
    enum status status = parse(argc, argv, &out, &folder);
    if (status == OK)
        status = pretrained_import(folder, out, &warnings, &result);
    problems_print(&warnings, stderr);
    problems_free(&warnings);
    if (status == OK) {
        char count[NUMBER_CHARS];
        print_line(stderr, "%s: %s, %s parameters, %d tensors in %d file%s, stored in %s%s%s", out,
                   result.architecture->name, count_text((double)result.elements, count), result.tensors,
                   result.files, result.files == 1 ? "" : "s", result.dtype,
                   result.tokenizer != NULL ? ", with " : "; no tokenizer",
                   result.tokenizer != NULL ? result.tokenizer : "");
        fputs(text_chars(&result.model_yaml), stdout);
        text_free(&result.model_yaml);
    }
    return exit_status(status);
}
