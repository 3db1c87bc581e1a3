// SPDX-License-Identifier: Apache-2.0
/* CUBOID_TRACE of whole steps: the bytes of each group are those computed by hand, all ranks of a group
 * report the same calls in the same order, both ends of a transfer the same bytes, and every line is
 * complete, with ranks as threads and as processes that write to one file.
 *     test_traced [MPIRUN] */
#include "planner/plan/memory_plan.h"
#include "tests/support/launched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Every tensor of this model is a multiple of 64 bytes, so that the flat gradient has no padding. */
#define EVEN "model.hidden_size=32 train.train_iters=2 optimizer.lr_warmup_iters=0 "
enum {
    LAYERS = 5,
    HIDDEN = 32,
    PROJECTED = 48,
    FFN = 48,
    VOCAB = 257,
    SEQUENCE = 12,
    BATCH = 2,
    SAMPLES = 8
};
enum {
    TOKENS = BATCH * SEQUENCE,         // of a microbatch
    MICROBATCHES = SAMPLES / BATCH,    // of a step on one data rank
    WORD = 4,                          // bytes of an fp32 element
    BOUNDARY = WORD * TOKENS * HIDDEN, // activations of a microbatch
    ATTENTION = 4 * PROJECTED * HIDDEN + 3 * PROJECTED + HIDDEN,
    MLP = 2 * FFN * HIDDEN + FFN + HIDDEN,
    LAYER = ATTENTION + MLP + 4 * HIDDEN, // two norms with a weight and a bias each
    TABLE = VOCAB * HIDDEN,               // embedding; the head shares its values, but has its own gradient
    PARAMETERS = LAYERS * LAYER + TABLE + SEQUENCE * HIDDEN + 2 * HIDDEN,
    GRADIENTS = WORD * (PARAMETERS + TABLE)
};

enum { STEPS = 2, EVALUATED = 2 }; // eval_iters of tiny.h

/* ---- lines ---- */

struct line {
    int step, rank, pp, dp, tp, peer; // peer: -1: none
    double time;
    char action[60], what[20], group[120];
    long long bytes, number;
};

struct lines {
    struct line *list;
    int count;
};

/* False if it is not exactly one line of the format. */
static bool parse(const char *text, struct line *out)
{
    char peer[20], number[30];
    int end = 0;
    int fields = sscanf(text, "s%6d r%5d pp%3d dp%4d tp%2d %lf %59s %19s %lld %19s %119s %29s%n", &out->step,
                        &out->rank, &out->pp, &out->dp, &out->tp, &out->time, out->action, out->what,
                        &out->bytes, peer, out->group, number, &end);
    if (sscanf(peer, "r%d", &out->peer) != 1)
        out->peer = -1;
    if (sscanf(number, "#%lld", &out->number) != 1)
        out->number = -1;
    return fields == 12 && text[end] == 0 && text[0] == 's' && text[7] == ' ' && text[8] == 'r';
}

static enum status read_lines(const char *path, struct lines *out)
{
    struct text text = {0};
    TRY(file_read(path, &text));
    size_t most = 1;
    for (size_t i = 0; i < text.length; i++)
        most += text.chars[i] == '\n';
    out->list = calloc(most, sizeof *out->list);
    CHECK(out->list != NULL);
    enum status status = OK;
    char *rest = NULL;
    for (char *at = strtok_r(text.chars, "\n", &rest); at != NULL && status == OK;
         at = strtok_r(NULL, "\n", &rest))
        if (!parse(at, &out->list[out->count++]))
            status = fail(OUT_OF_BOUND, "not a line of a trace: %s", at);
    text_free(&text);
    return status;
}

/* ---- agreement ---- */

/* The number of ranks in "tp[0,1]", "tp[0-3]", "tp[0-6/2]". */
static int group_size(const char *group)
{
    int first, last, step = 1, commas = 0;
    const char *at = strchr(group, '[');
    if (at == NULL)
        return 0;
    if (sscanf(at, "[%d-%d/%d]", &first, &last, &step) >= 2)
        return (last - first) / step + 1;
    for (; *at != 0; at++)
        commas += *at == ',';
    return commas + 1;
}

static int by_call(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int group = strcmp(x->group, y->group);
    if (group != 0)
        return group;
    return x->number != y->number ? (x->number < y->number ? -1 : 1) : x->rank - y->rank;
}

static bool is_transfer(const struct line *line)
{
    return strcmp(line->what, "send") == 0 || strcmp(line->what, "receive") == 0;
}

/* Two ends of one message. */
static bool match(const struct line *a, const struct line *b)
{
    return is_transfer(a) && is_transfer(b) && strcmp(a->what, b->what) != 0 && a->peer == b->rank &&
           b->peer == a->rank && a->bytes == b->bytes && a->step == b->step;
}

/* Lines [0, count) are one call of a group: the same line of each rank, or both ends of each message. */
static enum status check_call(const struct line *line, int count)
{
    if (!is_transfer(line) && count != group_size(line->group))
        return fail(OUT_OF_BOUND, "%s %s number %lld in step %d: %d ranks", line->what, line->group,
                    line->number, line->step, count);
    for (int i = 0; i < count; i++) {
        const struct line *other = &line[i];
        int ends = 0;
        for (int j = 0; j < count; j++)
            ends += match(other, &line[j]);
        bool same =
            other->bytes == line->bytes && other->step == line->step && strcmp(other->what, line->what) == 0;
        if (is_transfer(line) ? ends != 1 : !same)
            return fail(OUT_OF_BOUND, "%s number %lld: r%d has %s of %lld, r%d %s of %lld", line->group,
                        line->number, line->rank, line->what, line->bytes, other->rank, other->what,
                        other->bytes);
    }
    return OK;
}

static enum status check_agreement(const struct lines *lines)
{
    struct line *sorted = malloc((size_t)lines->count * sizeof *sorted + 1);
    CHECK(sorted != NULL);
    memcpy(sorted, lines->list, (size_t)lines->count * sizeof *sorted);
    qsort(sorted, (size_t)lines->count, sizeof *sorted, by_call);
    enum status status = OK;
    for (int begin = 0, end; begin < lines->count && status == OK; begin = end) {
        for (end = begin + 1; end < lines->count && sorted[end].number == sorted[begin].number &&
                              strcmp(sorted[end].group, sorted[begin].group) == 0;)
            end++;
        if (sorted[begin].number >= 0)
            status = check_call(&sorted[begin], end - begin);
    }
    free(sorted);
    return status;
}

/* ---- layouts ---- */

struct expected {
    const char *group, *what;
    long long calls, bytes;
};

/* In step 1 on each rank that has any call of the group. */
struct traced_layout {
    const char *overrides;
    struct expected sums[5]; // ends with {NULL}
};

static const struct traced_layout layouts[] = {
    // Each gradient once: the buckets of ZeRO 0 are all-reduced.
    {"dp=2", {{"dp[0,1]", "all_reduce", 1, GRADIENTS}}},
    // Row-parallel forward and column-parallel backward: two of attention and mlp each; embedding and head.
    // The loss needs a maximum, a sum and the logit of the label of each token.
    {"tp=2",
     {{"tp[0,1]", "all_reduce", MICROBATCHES *(4 * LAYERS + 2 + 2),
       MICROBATCHES *((4 * LAYERS + 2) * BOUNDARY + 3 * WORD * TOKENS)}}},
    {"pp=2",
     {{"pp_0>1[0,1]", "send", MICROBATCHES, MICROBATCHES *BOUNDARY},
      {"pp_0>1[0,1]", "receive", MICROBATCHES, MICROBATCHES *BOUNDARY},
      {"pp_1>0_gradient[1,0]", "send", MICROBATCHES, MICROBATCHES *BOUNDARY},
      {"ties[0,1]", "all_reduce", 1, WORD *TABLE}}},
    // ZeRO 1: gradients once, then weights once. A tied weight has one value.
    {"dp=2 parallel.zero_stage=1",
     {{"dp[0,1]", "reduce_scatter", 5, GRADIENTS}, {"dp[0,1]", "all_gather", 4, WORD *PARAMETERS}}},
    // ZeRO 3: in each of two microbatches gradients once, and weights in the forward and the backward pass.
    {"dp=2 parallel.zero_stage=3",
     {{"dp[0,1]", "reduce_scatter", 2 * 9, 2 * GRADIENTS},
      {"dp[0,1]", "all_gather", 2 * 2 * 9, 2 * 2 * GRADIENTS}}},
    {"dp=2 tp=2 pp=2 parallel.sequence_parallel=true parallel.tp_comm_overlap=true "
     "pipeline.schedule=interleaved",
     {{0}}},
    {"pp=4 pipeline.schedule=dualpipev pipeline.layout=[1,0,2,0,0,1,0,1]", {{0}}},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* required: at least one rank must have such a call. */
static enum status check_sum(const struct lines *lines, const struct expected *sum, bool required)
{
    enum { RANKS = 8 };
    long long calls[RANKS] = {0}, bytes[RANKS] = {0};
    bool seen = false;
    for (int i = 0; i < lines->count; i++) {
        const struct line *line = &lines->list[i];
        CHECK(line->rank < RANKS);
        if (line->step != 1 || strcmp(line->group, sum->group) != 0 || strcmp(line->what, sum->what) != 0)
            continue;
        calls[line->rank]++;
        bytes[line->rank] += line->bytes;
    }
    for (int rank = 0; rank < RANKS; rank++) {
        seen = seen || calls[rank] > 0;
        if (calls[rank] > 0 && (calls[rank] != sum->calls || bytes[rank] != sum->bytes))
            return fail(OUT_OF_BOUND, "%s %s on rank %d: %lld calls of %lld bytes, not %lld of %lld",
                        sum->what, sum->group, rank, calls[rank], bytes[rank], sum->calls, sum->bytes);
    }
    return seen || !required ? OK : fail(OUT_OF_BOUND, "no %s %s", sum->what, sum->group);
}

static enum status check_trace(const struct traced_layout *layout, const struct lines *lines)
{
    bool kinds[3] = {false};
    int forwards = 0; // of microbatch 0: one in training, and one for each batch of the evaluation
    TRY(check_agreement(lines));
    for (const struct expected *sum = layout->sums; sum->group != NULL; sum++)
        TRY(check_sum(lines, sum, true));
    for (int i = 0; i < lines->count; i++) {
        kinds[0] = kinds[0] || lines->list[i].number >= 0;
        kinds[1] = kinds[1] || strcmp(lines->list[i].what, "action") == 0;
        kinds[2] = kinds[2] || strcmp(lines->list[i].what, "alloc") == 0;
    }
    for (int i = 0; i < lines->count; i++) {
        const struct line *line = &lines->list[i];
        forwards += line->step == STEPS && line->rank == 0 && strcmp(line->what, "action") == 0 &&
                    strcmp(line->action, "0F0") == 0;
    }
    if (forwards != 1 + EVALUATED)
        return fail(OUT_OF_BOUND, "0F0 ran %d times in the last step and its evaluation", forwards);
    return kinds[0] && kinds[1] && kinds[2] ? OK : fail(OUT_OF_BOUND, "a kind of line is missing");
}

/* A missing call of a rank, and other bytes, must be detected. */
static enum status check_detection(const struct lines *lines)
{
    struct lines fewer = {lines->list, lines->count - 1};
    int at = lines->count - 1;
    while (at >= 0 && lines->list[at].number < 0)
        at--;
    struct line *line = &lines->list[at], kept = *line;
    line->bytes++;
    if (check_agreement(lines) == OK)
        return fail(OUT_OF_BOUND, "a call with other bytes is not detected");
    *line = lines->list[fewer.count]; // removes it
    if (check_agreement(&fewer) == OK)
        return fail(OUT_OF_BOUND, "a missing call is not detected");
    *line = kept;
    return OK;
}

static enum status run_layout(const struct tiny *tiny, const struct traced_layout *layout, char **argv,
                              bool processes, struct trace *trace)
{
    const struct mpirun mpirun = {argv[1], argv[0], tiny};
    const struct launch launched = {.family = TINY_GPT, .common = EVEN, .layout = layout->overrides};
    const struct trace_options threads = {.transport = "local"};
    struct recipe *recipe = NULL;
    if (processes)
        return launch(&mpirun, &launched, 1, trace);
    TRY(tiny_recipe(tiny, TINY_GPT, EVEN, layout->overrides, 0, &recipe));
    enum status status = trace_run(recipe, &threads, trace);
    recipe_destroy(recipe);
    return status;
}

/* The result is that of an untraced run. */
static enum status check_layout(const struct tiny *tiny, const struct traced_layout *layout, char **argv,
                                bool processes)
{
    struct trace traced = {.steps = 0}, untraced = {.steps = 0};
    struct lines lines = {NULL, 0};
    struct text why = {0};
    const char *path = getenv("CUBOID_TRACE_FILE");
    TRY(run_layout(tiny, layout, argv, false, &untraced));
    setenv("CUBOID_TRACE", "all", 1);
    enum status status = run_layout(tiny, layout, argv, processes, &traced);
    unsetenv("CUBOID_TRACE");
    if (status == OK && trace_differs(&traced, &untraced, &why))
        status = fail(OUT_OF_BOUND, "tracing changes the result: %s", text_chars(&why));
    if (status == OK)
        status = read_lines(path, &lines);
    if (status == OK)
        status = check_trace(layout, &lines);
    if (status == OK)
        status = check_detection(&lines);
    unlink(path);
    free(lines.list);
    text_free(&why);
    return status;
}

/* A dry run is traced; the planning pass before a run is not, only the run itself. */
static enum status check_planning(const struct tiny *tiny, const struct traced_layout *layout, bool dry)
{
    struct lines lines = {NULL, 0};
    struct recipe *recipe = NULL;
    struct run run = {.recipe = NULL};
    struct memory_plan plan;
    const char *path = getenv("CUBOID_TRACE_FILE");
    TRY(tiny_recipe(tiny, TINY_GPT, dry ? EVEN "cluster.device=dry" : EVEN, layout->overrides, 0, &recipe));
    setenv("CUBOID_TRACE", "all", 1);
    enum status status = run_create(recipe, false, &run);
    unsetenv("CUBOID_TRACE");
    if (status == OK)
        status = memory_plan_make(&run, 0, NULL, &plan);
    if (status == OK && dry)
        status = read_lines(path, &lines);
    if (status == OK && !dry && access(path, F_OK) == 0)
        status = fail(OUT_OF_BOUND, "the planning pass of a run is traced");
    for (const struct expected *sum = layout->sums; status == OK && dry && sum->group != NULL; sum++)
        status = check_sum(&lines, sum, false); // of rank 0, which is not at both ends of a transfer
    unlink(path);
    free(lines.list);
    run_destroy(&run);
    recipe_destroy(recipe);
    return status;
}

static int report(const struct traced_layout *layout, const char *how, enum status status)
{
    printf("%s %s%s: %s\n", status == OK ? "ok  " : "FAIL", layout->overrides, how,
           status == OK ? "as computed by hand" : fail_text());
    return status != OK;
}

int main(int argc, char **argv)
{
    struct tiny tiny;
    char path[TINY_FOLDER_CHARS + 20];
    int failures = 0;
    if (launched_is_rank(argc, argv))
        return launched_rank(argc, argv);
    MUST(tiny_create(&tiny));
    snprintf(path, sizeof path, "%s/lines", tiny.folder);
    setenv("CUBOID_TRACE_FILE", path, 1);
    for (int processes = 0; processes <= (argc > 1); processes++)
        for (int i = 0; i < LAYOUTS; i++) {
            if (processes && layouts[i].sums[0].group != NULL)
                continue; // the lines are those of threads: only the layout with most ranks
            failures += report(&layouts[i], processes ? " (processes)" : "",
                               check_layout(&tiny, &layouts[i], argv, processes));
        }
    for (int i = 0; i < LAYOUTS; i++)
        failures += report(&layouts[i], " (dry)", check_planning(&tiny, &layouts[i], true));
    failures += report(&layouts[0], " (planned)", check_planning(&tiny, &layouts[0], false));
    tiny_destroy(&tiny);
    printf("%d failures\n", failures);
    return failures > 0;
}
