// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "parallel/launcher.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/model/model_argument.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/huggingface/pretrained_ids.h"
#include "trainer/generate/generate.h"
#include "trainer/tokenizer/chat/chat_template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char help_generate[] =
    "cuboid generate RECIPE|CHECKPOINT|RUN-DIR [key=value ...] --prompt TEXT | --prompts FILE\n"
    "\n"
    "Generates text with a trained model, on one rank, whatever layout trained it; with tp=N or pp=N on N\n"
    "ranks, as threads or under mpirun or srun. Uses the newest complete checkpoint of the recipe's run or\n"
    "of the run directory, or the given checkpoint.\n"
    "\n"
    "  cuboid generate recipes/quickstart.yaml --prompt 'Ocean'\n"
    "  cuboid generate runs/quickstart --prompt 'Ocean' --tokens 500 --temperature 0.5\n"
    "  cuboid generate runs/quickstart/checkpoints/step-00000100 --prompt 'Ocean' --top-k 1\n"
    "\n"
    "  --prompt TEXT      text to continue; '': start a new document; -: read standard input\n"
    "  --prompts FILE     text file: continue every line, in one batch; prints a line of JSON for each\n"
    "  --tokens N         maximum number of tokens to generate (default 256)\n"
    "  --temperature T    sampling temperature; 0 = greedy (default 0.8)\n"
    "  --top-k K          sample from the K most likely tokens; 0 = all (default 0)\n"
    "  --top-p P          nucleus sampling: the fewest tokens whose probabilities add up to P (default 1)\n"
    "  --seed N           random seed (default: the recipe's)\n"
    "  --chat-template NAME   a prompt is a message of the user, and the text its answer, in this template\n"
    "                     (docs/finetuning.md); auto: in that of the run's conversations\n"
    "  --system TEXT      with --chat-template: the system message\n"
    "  --stop TEXT        end before this text; may be given several times\n"
    "  --no-stop          continue after the end of the document, and after the end of an answer\n"
    "\n"
    "Prompt and text go to standard output, followed by a newline; speed and checkpoint go to standard\n"
    "error. A pipe or a file gets the bytes unchanged. On a terminal, control characters and invalid\n"
    "UTF-8 are shown as U+FFFD.\n";

struct arguments {
    const char *prompt, *prompts;
    int64_t tokens, top_k, seed;
    double temperature, top_p;
    const char *chat_template, *system;
    struct option_texts stops;
    bool no_stop;
    const char **rest; // model, then overrides
    int rest_count;
};

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){.tokens = 256, .seed = -1, .temperature = 0.8, .top_p = 1.0};
    const struct option options[] = {
        {"--prompt", OPTION_TEXT, &out->prompt, 0, 0},
        {"--prompts", OPTION_TEXT, &out->prompts, 0, 0},
        {"--tokens", OPTION_INTEGER, &out->tokens, 1, 1e6},
        {"--temperature", OPTION_REAL, &out->temperature, 0, 1e3},
        {"--top-k", OPTION_INTEGER, &out->top_k, 0, 1e9},
        {"--top-p", OPTION_REAL, &out->top_p, 1e-6, 1},
        {"--seed", OPTION_INTEGER, &out->seed, 0, 1e18},
        {"--chat-template", OPTION_TEXT, &out->chat_template, 0, 0},
        {"--system", OPTION_TEXT, &out->system, 0, 0},
        {"--stop", OPTION_TEXTS, &out->stops, 0, 0},
        {"--no-stop", OPTION_FLAG, &out->no_stop, 0, 0},
    };
    out->rest = memory_zeroed((size_t)argc, sizeof *out->rest, "the arguments");
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->rest, &out->rest_count));
    if (out->rest_count == 0)
        return fail(BAD_USAGE, "generate: no model given; use a recipe, a checkpoint or a run directory: "
                               "cuboid generate runs/quickstart --prompt TEXT");
    if (out->prompts != NULL && out->prompts[0] == 0)
        return fail(BAD_USAGE, "generate: --prompts is empty; use a file with a prompt per line");
    if (out->prompt != NULL && out->prompts != NULL)
        return fail(BAD_USAGE, "generate: --prompt and --prompts are mutually exclusive; use one of them");
    if (out->prompt == NULL && out->prompts == NULL)
        return fail(BAD_USAGE,
                    "generate: no prompt given; use --prompt TEXT, or --prompt '' to start a document");
    if (out->system != NULL && out->chat_template == NULL)
        return fail(BAD_USAGE,
                    "generate: --system is a message of a conversation; use it with --chat-template");
    for (int i = 0; i < out->stops.count; i++)
        if (out->stops.list[i][0] == 0)
            return fail(BAD_USAGE, "generate: --stop is empty; use a text, or remove it");
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
    struct launcher launcher;
    if (strcmp(prompt, "-") != 0) {
        text_add(out, "%s", prompt);
        return OK;
    }
    TRY(launcher_find(&launcher));
    if (launcher.size > 1)
        return fail(BAD_USAGE,
                    "generate: --prompt -: only one of %d processes has a standard input; use "
                    "--prompt TEXT or --prompts FILE",
                    launcher.size);
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

/* The prompts, as parts of `text`. */
struct prompts {
    struct text text;
    struct generate_prompt *list;
    int64_t count;
};

enum { MAX_PROMPTS = 4096 };

/* Every line of a file is a prompt. A byte order mark, and the '\r' of a line end, are not part of it. */
static enum status split_lines(const char *path, struct prompts *out)
{
    const char *at = text_chars(&out->text), *end = at + out->text.length;
    if (out->text.length >= 3 && memcmp(at, "\xEF\xBB\xBF", 3) == 0)
        at += 3;
    for (; at < end && out->count <= MAX_PROMPTS; out->count++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const int64_t length = (stop != NULL ? stop : end) - at;
        const bool windows = stop != NULL && length > 0 && stop[-1] == '\r';
        if (out->count < MAX_PROMPTS)
            out->list[out->count] = (struct generate_prompt){.bytes = at, .length = length - windows};
        at += length + 1;
    }
    if (out->count == 0)
        return fail(BAD_USAGE, "generate: --prompts %s: the file is empty; use a prompt per line", path);
    if (out->count > MAX_PROMPTS)
        return fail(BAD_USAGE, "generate: --prompts %s: more than %d lines; use several files", path,
                    MAX_PROMPTS);
    return OK;
}

static enum status read_prompts(const struct arguments *a, struct prompts *out)
{
    out->list = memory_zeroed(a->prompts != NULL ? MAX_PROMPTS : 1, sizeof *out->list, "the prompts");
    if (a->prompts != NULL) {
        if (file_read_small(a->prompts, MAX_PROMPT_BYTES, &out->text) != OK)
            return fail(BAD_USAGE, "generate: --prompts: %s", fail_text());
        return split_lines(a->prompts, out);
    }
    TRY(read_prompt(a->prompt, &out->text));
    out->list[0] = (struct generate_prompt){text_chars(&out->text), (int64_t)out->text.length};
    out->count = 1;
    return OK;
}

/* ---- the layout ---- */

/* Whether an override sets the degree of tensor or pipeline parallelism, under any of its names. */
static bool sets_ranks(const char *override)
{
    char name[80];
    const size_t length = strcspn(override, "=");
    if (length >= sizeof name)
        return false;
    memcpy(name, override, length);
    name[length] = '\0';
    const char *key = recipe_key(&planner_keys, name);
    return key != NULL && (strcmp(key, "parallel.tensor_parallel_size") == 0 ||
                           strcmp(key, "parallel.pipeline_parallel_size") == 0);
}

/* One sequence at a time on one rank, except for the degrees that are given; ends with NULL. */
static const char **list_layout(const struct arguments *a)
{
    const char **list = memory_zeroed((size_t)a->rest_count + 3, sizeof *list, "the layout");
    int count = 0;
    list[count++] = "train.micro_batch_size=1";
    list[count++] = "train.global_batch_size=1";
    for (int i = 1; i < a->rest_count; i++)
        if (sets_ranks(a->rest[i]))
            list[count++] = a->rest[i];
    return list;
}

/* ---- conversations ---- */

/* What the files of the checkpoint say about its conversations. */
struct conversations {
    struct pretrained_ids ids;
    const char *trained, *asked; // templates: of its training data, of --chat-template; NULL: none
};

static enum status read_conversations(const struct arguments *a, const char *checkpoint,
                                      struct conversations *out)
{
    struct model_files files = {0};
    enum status status = model_files_read(checkpoint, MODEL_CHAT_TEMPLATE, MODEL_CONFIG, NULL, &files);
    if (status == OK)
        status = pretrained_ids_read(&files, &out->ids);
    const struct text *jinja = status == OK ? model_files_get(&files, MODEL_CHAT_TEMPLATE) : NULL;
    out->trained = jinja != NULL ? chat_template_of_jinja(text_chars(jinja)) : NULL;
    const bool is_auto = a->chat_template != NULL && strcmp(a->chat_template, "auto") == 0;
    out->asked = is_auto ? out->trained : a->chat_template;
    if (status == OK && is_auto && out->trained == NULL)
        status = fail(
            BAD_USAGE,
            "generate: --chat-template auto: %s %s; use the name of its template: chatml, llama3, llama2, "
            "mistral or plain",
            checkpoint,
            jinja != NULL ? "has a chat_template.jinja that is none of Cuboid's"
                          : "was not trained on data of data prepare --chat-template");
    model_files_free(&files);
    return status;
}

/* ---- running ---- */

/* One line of JSON for each prompt; bytes that are not UTF-8 become U+FFFD. */
static void print_results(const struct prompts *prompts, const struct generated *each)
{
    for (int64_t i = 0; i < prompts->count; i++) {
        struct text json = {0};
        text_add(&json, "{\"prompt\": ");
        text_add_json_bytes(&json, prompts->list[i].bytes, (size_t)prompts->list[i].length);
        text_add(&json, ", \"text\": ");
        text_add_json_bytes(&json, text_chars(&each[i].text), each[i].text.length);
        text_add(&json, ", \"tokens\": %lld, \"stopped\": %s}", (long long)each[i].tokens,
                 each[i].stopped ? "true" : "false");
        puts(json.chars);
        text_free(&json);
    }
}

static void report(const struct generate_options *o, const struct generated *each,
                   const struct generate_result *result)
{
    char time[NUMBER_CHARS], prompts[64];
    int64_t tokens = 0, prompt_tokens = 0;
    for (int64_t i = 0; i < o->count; i++) {
        tokens += each[i].tokens;
        prompt_tokens += each[i].prompt_tokens;
    }
    snprintf(prompts, sizeof prompts, o->count == 1 ? "prompt" : "%lld prompts", (long long)o->count);
    print_line(stderr, "generated %lld token%s%s in %s (%.0f tokens/s), %s of %lld tokens; %s, seed %llu",
               (long long)tokens, tokens == 1 ? "" : "s",
               o->count == 1 && each[0].stopped ? ", to an end," : "", seconds_text(result->seconds, time),
               result->seconds > 0.0 ? (double)tokens / result->seconds : 0.0, prompts,
               (long long)prompt_tokens, o->checkpoint, (unsigned long long)o->sampling.seed);
}

static enum status run(const struct arguments *a, const struct prompts *prompts, const char *checkpoint,
                       const struct recipe *recipe, struct generated *each)
{
    struct launcher launcher = {.rank = -1};
    struct conversations of;
    TRY(read_conversations(a, checkpoint, &of));
    const struct generate_options options = {
        .recipe = recipe,
        .size = recipe_world_size(recipe),
        .checkpoint = checkpoint,
        .prompts = prompts->list,
        .count = prompts->count,
        .tokens = a->tokens,
        .sampling = {.temperature = a->temperature,
                     .top_k = a->top_k,
                     .top_p = a->top_p,
                     .seed = a->seed >= 0 ? (uint64_t)a->seed : recipe->seed},
        .chat_template = of.asked,
        .system = a->system,
        .answer_template = of.trained,
        .ends = of.ids.ends,
        .end_count = of.ids.end_count,
        .no_stop = a->no_stop,
        .stops = {a->stops.list, a->stops.count},
        .to = a->prompts == NULL ? stdout : NULL,
        .raw = isatty(STDOUT_FILENO) != 1,
    };
    struct generate_result result = {0};
    TRY(generate(&options, each, &result));
    TRY(launcher_find(&launcher));
    if (launcher.rank > 0)
        return OK;
    if (a->prompts != NULL)
        print_results(prompts, each);
    else
        putchar('\n');
    fflush(stdout);
    report(&options, each, &result);
    return OK;
}

static int run_prompts(const struct arguments *a, const char *checkpoint, const struct recipe *recipe)
{
    struct prompts prompts = {.count = 0};
    int status = exit_status_of_world(read_prompts(a, &prompts));
    AUTO_FREE struct generated *each = memory_zeroed((size_t)prompts.count + 1, sizeof *each, "the results");
    if (status == 0)
        status = exit_status_of_world(run(a, &prompts, checkpoint, recipe, each));
    for (int64_t i = 0; i < prompts.count && i < MAX_PROMPTS; i++)
        text_free(&each[i].text);
    free(prompts.list);
    text_free(&prompts.text);
    return status;
}

/* Returns 0, or the exit status. */
static int run_command(const struct arguments *a)
{
    AUTO_FREE const char **layout = list_layout(a);
    const struct model_request request = {.command = "generate",
                                          .example = "--prompt TEXT",
                                          .words = a->rest,
                                          .count = a->rest_count,
                                          .one_rank = layout};
    char *checkpoint = NULL;
    struct recipe *recipe = NULL;
    int size, status = model_argument(&request, &checkpoint, &recipe, &size);
    if (status == 0)
        status = run_prompts(a, checkpoint, recipe);
    recipe_destroy(recipe);
    free(checkpoint);
    return status;
}

int cmd_generate(int argc, char **argv)
{
    struct arguments arguments;
    int status = exit_status(parse(argc, argv, &arguments));
    if (status == 0)
        status = run_command(&arguments);
    free(arguments.rest);
    return status;
}
