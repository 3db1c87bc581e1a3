// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/model/cmd_generate.h"

#include "tools/cli/model/model_argument.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/generate/generate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "cuboid generate RECIPE|CHECKPOINT|RUN-FOLDER [key=value ...] --prompt TEXT\n"
    "\n"
    "Generates text with a trained model, on one rank, whatever layout trained it. Uses the newest\n"
    "complete checkpoint of the recipe's run or of the run folder, or the given checkpoint.\n"
    "\n"
    "  cuboid generate recipes/quickstart.yaml --prompt 'Ocean'\n"
    "  cuboid generate runs/quickstart --prompt 'Ocean' --tokens 500 --temperature 0.5\n"
    "  cuboid generate runs/quickstart/checkpoints/step-00000100 --prompt 'Ocean' --top-k 1\n"
    "\n"
    "  --prompt TEXT      text to continue; '': start a new document; -: read standard input\n"
    "  --tokens N         maximum number of tokens to generate (default 256)\n"
    "  --temperature T    sampling temperature; 0 = greedy (default 0.8)\n"
    "  --top-k K          sample from the K most likely tokens; 0 = all (default 0)\n"
    "  --top-p P          nucleus sampling: the fewest tokens whose probabilities add up to P (default 1)\n"
    "  --seed N           random seed (default: the recipe's)\n"
    "  --no-stop          continue after the end of the document\n"
    "\n"
    "Prompt and text go to standard output, followed by a newline; speed and checkpoint go to standard\n"
    "error. A pipe or a file gets the bytes unchanged. On a terminal, control characters and invalid\n"
    "UTF-8 are shown as U+FFFD.\n";

struct arguments {
    const char *prompt;
    int64_t tokens, top_k, seed;
    double temperature, top_p;
    bool no_stop, help, short_help;
    const char **rest; // model, then overrides
    int rest_count;
};

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){.tokens = 256, .seed = -1, .temperature = 0.8, .top_p = 1.0};
    const struct option options[] = {
        {"--prompt", OPTION_TEXT, &out->prompt, 0, 0},
        {"--tokens", OPTION_INTEGER, &out->tokens, 1, 1e6},
        {"--temperature", OPTION_REAL, &out->temperature, 0, 1e3},
        {"--top-k", OPTION_INTEGER, &out->top_k, 0, 1e9},
        {"--top-p", OPTION_REAL, &out->top_p, 1e-6, 1},
        {"--seed", OPTION_INTEGER, &out->seed, 0, 1e18},
        {"--no-stop", OPTION_FLAG, &out->no_stop, 0, 0},
        {"--help", OPTION_FLAG, &out->help, 0, 0},
        {"-h", OPTION_FLAG, &out->short_help, 0, 0},
    };
    out->rest = calloc((size_t)argc, sizeof *out->rest);
    if (out->rest == NULL)
        return fail(NO_MEMORY, "no memory for the arguments");
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->rest, &out->rest_count));
    if (out->help || out->short_help)
        return OK;
    if (out->rest_count == 0)
        return fail(BAD_USAGE, "generate: no model given; use a recipe, a checkpoint or a run folder: "
                               "cuboid generate runs/quickstart --prompt TEXT");
    if (out->prompt == NULL)
        return fail(BAD_USAGE,
                    "generate: no prompt given; use --prompt TEXT, or --prompt '' to start a document");
    return OK;
}

/* ---- the prompt ---- */

enum { MAX_PROMPT_BYTES = 1 << 26 };

/* Reads --prompt - from standard input, to its end, byte for byte: a final line break is part of the
 * prompt. */
static enum status read_prompt(const char *prompt, struct text *out)
{
    char chunk[1 << 16];
    size_t got;
    if (strcmp(prompt, "-") != 0) {
        text_add(out, "%s", prompt);
        return OK;
    }
    while ((got = fread(chunk, 1, sizeof chunk, stdin)) > 0 && out->length <= MAX_PROMPT_BYTES)
        text_add_bytes(out, chunk, got);
    if (out->length > MAX_PROMPT_BYTES)
        return fail(BAD_USAGE,
                    "generate: --prompt -: standard input has more than %d bytes; use a shorter one",
                    MAX_PROMPT_BYTES);
    return ferror(stdin) == 0
               ? OK
               : fail(BAD_USAGE, "generate: --prompt -: standard input cannot be read: %s", strerror(errno));
}

/* ---- running ---- */

/* Sets one sequence at a time; training options are not used. */
static const char *const one_sequence[] = {
    "train.micro_batch_size=1",
    "train.global_batch_size=1",
    NULL,
};

static enum status run(const struct arguments *a, const struct text *prompt, const char *checkpoint,
                       const struct recipe *recipe)
{
    struct generate_options options = {
        .recipe = recipe,
        .transport = "local",
        .checkpoint = checkpoint,
        .prompt = text_chars(prompt),
        .prompt_bytes = (int64_t)prompt->length,
        .tokens = a->tokens,
        .sampling = {.temperature = a->temperature,
                     .top_k = a->top_k,
                     .top_p = a->top_p,
                     .seed = a->seed >= 0 ? (uint64_t)a->seed : recipe->seed},
        .no_stop = a->no_stop,
        .to = stdout,
        .raw = isatty(STDOUT_FILENO) != 1,
    };
    struct generate_result result = {0};
    TRY(generate(&options, &result));
    putchar('\n');
    fflush(stdout);
    char time[NUMBER_CHARS];
    print_line(stderr,
               "generated %lld token%s%s in %s (%.0f tokens/s), prompt of %lld tokens; %s, seed "
               "%llu",
               (long long)result.tokens, result.tokens == 1 ? "" : "s",
               result.stopped ? ", to the end of the document," : "", seconds_text(result.seconds, time),
               result.seconds > 0.0 ? (double)result.tokens / result.seconds : 0.0,
               (long long)result.prompt_tokens, checkpoint, (unsigned long long)options.sampling.seed);
    return OK;
}

/* Returns 0, or the exit status. */
static int run_command(const struct arguments *a)
{
    const struct model_request request = {.command = "generate",
                                          .example = "--prompt TEXT",
                                          .words = a->rest,
                                          .count = a->rest_count,
                                          .one_rank = one_sequence};
    char *checkpoint = NULL;
    struct recipe *recipe = NULL;
    struct text prompt = {0};
    int size, status = model_argument(&request, &checkpoint, &recipe, &size);
    if (status == 0)
        status = exit_status(read_prompt(a->prompt, &prompt));
    if (status == 0)
        status = exit_status(run(a, &prompt, checkpoint, recipe));
    text_free(&prompt);
    recipe_destroy(recipe);
    free(checkpoint);
    return status;
}

int cmd_generate(int argc, char **argv)
{
    struct arguments arguments;
    int status = exit_status(parse(argc, argv, &arguments));
    if (status == 0 && (arguments.help || arguments.short_help))
        fputs(help, stdout);
    else if (status == 0)
        status = run_command(&arguments);
    free(arguments.rest);
    return status;
}
