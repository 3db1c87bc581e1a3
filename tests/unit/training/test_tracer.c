// SPDX-License-Identifier: Apache-2.0
/* CUBOID_TRACE: the words that it accepts, and the columns of its lines. */
#include "trainer/trace/tracer.h"

#include "base/text.h"
#include "kernels/ops.h"
#include "parallel/observe_world.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

static struct tracing parsed(const char *words)
{
    struct tracing tracing;
    cr_assert_eq(tracing_parse(words, NULL, &tracing), OK, "%s", fail_text());
    return tracing;
}

Test(tracer, words)
{
    cr_assert(!parsed(NULL).any && !parsed("").any);
    struct tracing two = parsed("memory,comm"), all = parsed("all");
    cr_assert(two.any && two.of[TRACE_COMM] && two.of[TRACE_MEMORY] && !two.of[TRACE_ACTION]);
    cr_assert(all.any && all.of[TRACE_COMM] && all.of[TRACE_MEMORY] && all.of[TRACE_ACTION]);
    cr_assert(parsed("action,").of[TRACE_ACTION]);
}

static void expect_rejected(const char *words, const char *text)
{
    struct tracing tracing;
    cr_assert_eq(tracing_parse(words, NULL, &tracing), BAD_USAGE, "%s", words);
    cr_assert_str_eq(fail_text(), text);
}

Test(tracer, rejects_unknown_words)
{
    expect_rejected("com,memory",
                    "CUBOID_TRACE: \"com\" cannot be traced (did you mean \"comm\"?); use comm, action, "
                    "memory, joined by commas, or all");
    expect_rejected(
        "network",
        "CUBOID_TRACE: \"network\" cannot be traced; use comm, action, memory, joined by commas, or all");
    expect_rejected(
        "comm,,memory",
        "CUBOID_TRACE: \"\" cannot be traced; use comm, action, memory, joined by commas, or all");
    expect_rejected(
        "\033[2J", "CUBOID_TRACE: \"\\x1b[2J\" cannot be traced; use comm, action, memory, joined by commas, "
                   "or all");
}

static const int64_t noon_ns = 93417024999;

/* A line of an observation by rank 1 in step 2, action 0F3. */
struct line {
    char text[TRACE_LINE_CHARS];
};

static struct line line_of(struct observation seen)
{
    struct line line = {""};
    struct tracing all = parsed("all");
    struct rank_context who = {.rank = 1, .tp = 1, .step = 2, .action = "0F3"};
    seen.who = &who;
    seen.at_ns = noon_ns;
    cr_expect_eq(trace_line(&all, &seen, line.text), line.text[0] != 0);
    return line;
}

static struct line line_of_message(const struct comm *comm, struct observed_message message)
{
    message.comm = comm;
    return line_of((struct observation){.what = OBSERVED_MESSAGE, .message = &message});
}

#define WHERE "s000002 r00001 pp000 dp0000 tp01 00000093.417024 "
#define EXPECT_LINE(made, expected)                               \
    do {                                                          \
        struct line line_ = (made);                               \
        cr_expect_str_eq(line_.text, expected, "%s", line_.text); \
    } while (0)

Test(tracer, messages)
{
    const int ranks[] = {1, 3};
    float data[8];
    struct comm tp = {.name = "tp", .rank = 0, .size = 2, .ranks = ranks};
    struct comm edge = {.name = "pp 0>1 gradient", .rank = 1, .size = 2, .ranks = ranks};
    const struct tensor x = tensor_1d(data, F32, 8);
    const struct observed_message sum = {.call = CALL_ALL_REDUCE, .sequence = 12, .data = x, .peer = -1},
                                  send = {.call = CALL_SEND, .sequence = 1234567, .data = x, .peer = 1},
                                  barrier = {.call = CALL_BARRIER, .sequence = 1, .peer = -1};
    EXPECT_LINE(line_of_message(&tp, sum),
                WHERE "0F3        all_reduce               32 -      tp[1,3]      #000012");
    EXPECT_LINE(line_of_message(&edge, send),
                WHERE "0F3        send                     32 r00003 pp_0>1_gradient[1,3] #1234567");
    tp.ranks = NULL; // of a comm without a group
    EXPECT_LINE(line_of_message(&tp, barrier),
                WHERE "0F3        barrier                   0 -      tp           #000001");
}

/* The column of the group for these ranks. */
static struct line group_of(const int *ranks, int size)
{
    struct line group;
    struct comm comm = {.name = "g", .size = size, .ranks = ranks};
    struct line line =
        line_of_message(&comm, (struct observed_message){.call = CALL_BARRIER, .sequence = 1, .peer = -1});
    cr_assert_eq(sscanf(strstr(line.text, " g"), "%399s", group.text), 1);
    return group;
}

Test(tracer, ranks_of_a_group)
{
    cr_expect_str_eq(group_of((const int[]){4, 5}, 2).text, "g[4,5]");
    cr_expect_str_eq(group_of((const int[]){4, 5, 6}, 3).text, "g[4-6]");
    cr_expect_str_eq(group_of((const int[]){0, 2, 4, 6}, 4).text, "g[0-6/2]");
    cr_expect_str_eq(group_of((const int[]){6, 4, 2}, 3).text, "g[6-2/-2]");
    cr_expect_str_eq(group_of((const int[]){0, 1, 4, 5}, 4).text, "g[0,1,4,5]");
    int many[100];
    for (int i = 0; i < 100; i++)
        many[i] = i * i * 100000;
    struct line group = group_of(many, 100);
    const char *text = group.text;
    cr_expect(strncmp(text, "g[0,100000,400000,", 18) == 0 && strcmp(text + strlen(text) - 5, ",...]") == 0,
              "%s", text);
    cr_expect_lt(strlen(text), 120);
}

Test(tracer, actions_and_memory)
{
    const struct observed_memory memory = {.part = PART_ACTIVATIONS, .bytes = 4096};
    EXPECT_LINE(line_of((struct observation){.what = OBSERVED_RANGE, .range = "0F4"}),
                WHERE "0F4        action                    0 -      -            -");
    EXPECT_LINE(line_of((struct observation){.what = OBSERVED_ALLOC, .memory = memory}),
                WHERE "0F3        alloc                  4096 -      activations  -");
    EXPECT_LINE(line_of((struct observation){.what = OBSERVED_FREE, .memory = memory}),
                WHERE "0F3        free                   4096 -      activations  -");
    EXPECT_LINE(line_of((struct observation){.what = OBSERVED_RANGE}), ""); // the end of a range
    EXPECT_LINE(line_of((struct observation){.what = OBSERVED_OP}), "");
}

Test(tracer, traces_only_selected_kinds)
{
    char line[TRACE_LINE_CHARS];
    struct tracing comm = parsed("comm");
    struct observation seen = {.what = OBSERVED_ALLOC, .who = rank_context()};
    cr_expect(!trace_line(&comm, &seen, line));
    seen.what = OBSERVED_RANGE;
    seen.range = "load";
    cr_expect(!trace_line(&comm, &seen, line));
}

/* Names are printed without control characters and without spaces. */
Test(tracer, names_are_escaped)
{
    EXPECT_LINE(line_of((struct observation){.what = OBSERVED_RANGE, .range = "a b\n\033[2J"}),
                WHERE "a_b\\x0a\\x1b[2J action                    0 -      -            -");
}

/* ---- files ---- */

static enum status traced(struct world *world, void *argument)
{
    const struct tracing *tracing = argument;
    struct device *device = NULL;
    struct buffer x = {0};
    struct tracer *tracer = NULL;
    TRY(device_open(&(struct device_options){.name = "dry", .threads = 1}, &device));
    enum status status = tracer_create(tracing, device, world, &tracer);
    if (status == OK)
        status = buffer_alloc(device, PART_DATA, 10, &x);
    buffer_free(&x);
    device_close(device);
    world_stop_observing(world);
    tracer_destroy(tracer);
    return status;
}

Test(tracer, appends_to_a_file_per_rank)
{
    char folder[] = "/tmp/tracer-XXXXXX", pattern[64], path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(pattern, sizeof pattern, "%s/r%%r.%%x", folder);
    snprintf(path, sizeof path, "%s/r3.%%x", folder);
    struct tracing tracing;
    cr_assert_eq(tracing_parse("memory", pattern, &tracing), OK);
    for (int run = 0; run < 2; run++)
        cr_assert_eq(world_run_dry(4, 3, traced, &tracing), OK, "%s", fail_text());
    struct text lines = {0};
    cr_assert_eq(file_read(path, &lines), OK, "%s", fail_text());
    int count = 0;
    for (const char *at = text_chars(&lines); *at != 0; at = strchr(at, '\n') + 1)
        cr_expect(strstr(at, count++ % 2 == 0 ? " alloc " : " free ") != NULL);
    cr_expect_eq(count, 4);
    text_free(&lines);
    unlink(path);
    rmdir(folder);
}

Test(tracer, a_file_that_cannot_be_opened_is_an_error)
{
    struct tracing tracing;
    cr_assert_eq(tracing_parse("memory", "/no/such/folder/%r", &tracing), OK);
    cr_assert_eq(world_run_dry(4, 2, traced, &tracing), IO_ERROR);
    cr_assert_str_eq(fail_text(),
                     "rank 2: CUBOID_TRACE_FILE: cannot append to /no/such/folder/2: No such file or "
                     "directory");
}
