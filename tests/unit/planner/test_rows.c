// SPDX-License-Identifier: Apache-2.0
/* Tables of published runs: reading CSV, columns, a row as a recipe, the printed step time. */
#include "base/philox.h"
#include "layers/model.h"
#include "planner/published/published.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum status parse(const char *text, struct published *table, struct problems *problems)
{
    *problems = (struct problems){0};
    return published_parse("t.csv", text, strlen(text), table, problems);
}

/* The text must be rejected, with exactly these problems; each string is part of one. */
static void expect_rejected(const char *text, const char *const *parts, size_t count)
{
    struct problems problems;
    struct published table;
    cr_assert_eq(parse(text, &table, &problems), BAD_DATA, "%s", text);
    cr_expect_eq(problems.count, count, "%zu problems: %s", problems.count, text);
    for (size_t i = 0; i < count && i < problems.count; i++)
        cr_expect(strstr(problems.list[i].text, parts[i]) != NULL, "%s; expected %s", problems.list[i].text,
                  parts[i]);
    cr_expect_eq(table.count, 0);
    problems_free(&problems);
}

#define EXPECT_REJECTED(text, ...)                            \
    expect_rejected(text, (const char *const[]){__VA_ARGS__}, \
                    sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *))

Test(rows, cells_as_in_rfc_4180)
{
    struct problems problems;
    struct published table;
    const char *text = "\xEF\xBB\xBFtp,model,notes\r\n"
                       "8,\"a, \"\"b\"\"\",\"two\nlines\"\r\n"
                       "\n"
                       ",plain,\"\"\n"
                       "16,last,\n";
    cr_assert_eq(parse(text, &table, &problems), OK);
    cr_assert_eq(table.count, 3);
    cr_expect_str_eq(table.rows[0].cell[PUBLISHED_MODEL], "a, \"b\"");
    cr_expect_str_eq(table.rows[0].cell[PUBLISHED_NOTES], "two\nlines");
    cr_expect_eq(table.rows[0].number[PUBLISHED_TP], 8.0);
    cr_expect_eq(table.rows[1].line, 5);
    cr_expect(isnan(table.rows[1].number[PUBLISHED_TP]));
    cr_expect_str_eq(table.rows[1].cell[PUBLISHED_PP], "", "a column that the file lacks");
    cr_expect_str_eq(table.rows[2].cell[PUBLISHED_NOTES], "");
    cr_expect_eq(table.rows[2].number[PUBLISHED_TP], 16.0);
    published_free(&table);
}

/* As many programs write the last line. */
Test(rows, a_last_line_without_line_end)
{
    const char *const ends[] = {"", "\n", "\r\n"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct text text = {0};
        struct problems problems;
        struct published table;
        text_add(&text, "\xEF\xBB\xBFtp,model,step_time_s\r\n8,GPT,12.5\r\n4,\"a \"\"b\"\"\",23.1%s",
                 ends[i]);
        cr_assert_eq(parse(text.chars, &table, &problems), OK, "%zu", i);
        cr_assert_eq(table.count, 2);
        cr_expect_eq(table.rows[1].number[PUBLISHED_STEP_TIME_S], 23.1);
        cr_expect_str_eq(table.rows[1].cell[PUBLISHED_MODEL], "a \"b\"");
        published_free(&table);
        text_free(&text);
    }
    EXPECT_REJECTED("tp,step_time_s\n8,12.5\n4", "t.csv:3: 1 cells; the header has 2 columns");
    EXPECT_REJECTED("tp,step_ti", "t.csv:1: unknown column 2: \"step_ti\"");
}

Test(rows, all_problems_of_a_file_at_once)
{
    EXPECT_REJECTED("tp,depth,step_time_s\n8,1,12.5\n0,1,3\n4,2\n2,1,\"250 ms\"\n4,x,23.",
                    "t.csv:1: unknown column 2: \"depth\"", "t.csv:3: column tp: \"0\" is not an integer",
                    "t.csv:4: 2 cells; the header has 3 columns; complete or remove the row",
                    "t.csv:5: column step_time_s: \"250 ms\" is not a number");
}

Test(rows, a_written_cell_reads_back)
{
    const char *const cells[] = {"plain", "a,b", "a \"b\"", "two\r\nlines", "", "\"", " x "};
    struct text line = {0};
    struct problems problems;
    struct published table;
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        text_add(&line, "model,notes\n");
        csv_add_cell(&line, cells[i]);
        text_add(&line, ",x\n");
        cr_assert_eq(parse(line.chars, &table, &problems), OK);
        cr_expect_str_eq(table.rows[0].cell[PUBLISHED_MODEL], cells[i]);
        published_free(&table);
        text_free(&line);
    }
}

Test(rows, the_header_for_writers_is_read)
{
    struct text header = {0};
    struct problems problems;
    struct published table;
    published_header(&header);
    cr_expect_eq(strncmp(header.chars, "paper,model,params_b,layers,", 28), 0);
    cr_assert_eq(parse(header.chars, &table, &problems), OK);
    cr_expect_eq(table.count, 0);
    published_free(&table);
    text_free(&header);
}

Test(rows, all_problems_at_once)
{
    EXPECT_REJECTED("tp,pp,step_time_s,mfu_pct\n"
                    "8.5,-1,0,0.43\n"
                    "8,1,nan,52\n"
                    "1,2,3\n"
                    "1,2,3,4,5\n"
                    "8,1,1e9,520\n",
                    "t.csv:2: column tp: \"8.5\" is not an integer from 1 to 65536",
                    "t.csv:2: column pp: \"-1\"", "t.csv:2: column step_time_s: \"0\" is not a number",
                    "t.csv:2: column mfu_pct: \"0.43\" is not a "
                    "number from 1 to 100 (percent)",
                    "t.csv:3: column step_time_s: \"nan\"", "t.csv:4: 3 cells; the header has 4 columns",
                    "t.csv:5: 5 cells", "t.csv:6: column step_time_s: \"1e9\"",
                    "t.csv:6: column mfu_pct: \"520\"");
    EXPECT_REJECTED("model,layer,tp,tp\n", "unknown column 2: \"layer\"; did you mean layers?",
                    "column tp occurs twice, as columns 3 and 4");
    EXPECT_REJECTED("", "t.csv: empty");
    EXPECT_REJECTED("model\n\"open\n", "t.csv:2: cell 1: the quote is never closed");
    EXPECT_REJECTED("model,tp\n\"a\"b,1\n", "t.csv:2: cell 1: expected a comma");
    EXPECT_REJECTED("model,tp\na\"b,1\n", "t.csv:2: cell 1: a quote in a cell without quotes");
}

/* A table takes memory in proportion to its bytes, and so do its problems. */
Test(rows, many_rows_without_values)
{
    enum { ROWS = 90000 };
    struct problems problems = {0};
    struct published table;
    struct text text = {0};
    text_add(&text, "model\n");
    for (int i = 0; i < ROWS; i++)
        text_add_bytes(&text, "a\n", 2);
    cr_assert_eq(published_parse("t.csv", text.chars, text.length, &table, &problems), BAD_DATA);
    cr_assert_eq(problems.errors, 1);
    problems_free(&problems);
    memcpy(text.chars, "tp,pp\n", 6);
    cr_assert_eq(published_parse("t.csv", text.chars, 6 + 4000, &table, &problems), BAD_DATA);
    cr_assert_eq(problems.errors, 2000);
    cr_assert_eq(problems.count, PROBLEMS_MAX);
    problems_free(&problems);
    text_free(&text);
}

Test(rows, bytes_that_are_not_text_are_rejected)
{
    struct problems problems = {0};
    struct published table;
    cr_expect_eq(published_parse("t.csv", "tp\n1\n\0\n", 7, &table, &problems), BAD_DATA);
    cr_assert_eq(problems.count, 1);
    cr_expect_str_eq(problems.list[0].text, "t.csv:3: a 0 byte; the file is not text");
    problems_free(&problems);

    struct text wide = {0};
    for (int i = 0; i <= CSV_MAX_CELLS; i++)
        text_add(&wide, ",");
    cr_expect_eq(published_parse("t.csv", wide.chars, wide.length, &table, &problems), BAD_DATA);
    cr_expect(strstr(problems.list[0].text, "more than 256 cells") != NULL);
    problems_free(&problems);
    text_free(&wide);

    text_add(&wide, "model\n");
    for (int i = 0; i <= CSV_MAX_CELL; i++)
        text_add(&wide, "x");
    cr_expect_eq(published_parse("t.csv", wide.chars, wide.length, &table, &problems), BAD_DATA);
    cr_expect(strstr(problems.list[0].text, "longer than 64 KiB") != NULL);
    problems_free(&problems);
    text_free(&wide);
}

/* Mutations of a valid table: each is read, or rejected with a problem. */
Test(rows, mutated_tables_are_read_or_rejected)
{
    const char valid[] = "model,layers,hidden,heads,vocab,seq,tp,pp,dp,notes\n"
                         "\"GPT, 1\",24,2048,16,50k,1024,2,2,4,\"a \"\"b\"\"\"\r\n"
                         "GPT 2,24,2048,16,50257,1024,,,,\n";
    const char bytes[] = ",\"\n\r\0x9-.k\xFF";
    int refused = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        char text[sizeof valid];
        size_t length = sizeof valid - 1;
        memcpy(text, valid, sizeof valid);
        uint32_t random[4];
        philox_words(philox_named(1, "mutation"), 0, i, random);
        for (int k = 0; k < 1 + (int)(i % 3); k++)
            text[random[k] % length] = bytes[(random[k] >> 16) % (sizeof bytes - 1)];
        length -= random[3] % 8 == 0 ? random[3] / 8 % length : 0;
        struct problems problems = {0};
        struct published table;
        char *exact = malloc(length > 0 ? length : 1); // a read past the end is found by the sanitizer
        memcpy(exact, text, length);
        const enum status status = published_parse("t.csv", exact, length, &table, &problems);
        cr_assert((status == OK && problems.errors == 0) || (status == BAD_DATA && problems.errors > 0));
        refused += status != OK;
        published_free(&table);
        problems_free(&problems);
        free(exact);
    }
    cr_expect_gt(refused, 2000);
    cr_expect_lt(refused, 19900);
}

/* ---- a row as a recipe ---- */

#define HEADER                                                                                           \
    "model,layers,hidden,heads,ffn,vocab,seq,gpus,tp,pp,dp,cp,ep,vpp,micro_batch,global_batch,schedule," \
    "recompute,seq_parallel,precision,zero_stage,status,overrides,step_time_s,samples_per_s_per_gpu,"    \
    "tokens_per_s_per_gpu,tflops_per_gpu,mfu_pct,hfu_pct,step_time_derived_s\n"

/* The overrides of one row as one line; the reason in brackets. */
static void expect_recipe(const char *cells, const char *expected)
{
    struct text text = {0}, found = {0};
    struct problems problems;
    struct published table;
    struct published_recipe made;
    text_add(&text, HEADER "%s\n", cells);
    cr_assert_eq(parse(text.chars, &table, &problems), OK, "%s", cells);
    published_recipe_make(&table.rows[0], &made);
    for (size_t i = 0; i < made.overrides.count; i++)
        text_add(&found, "%s ", made.overrides.list[i]);
    for (int i = 0; i < made.assumed_count; i++)
        text_add(&found, "?%s ", made.assumed[i].key);
    text_add(&found, "[%s]", text_chars(&made.reason));
    cr_expect(strstr(found.chars, expected) != NULL, "%s\n  expected %s", found.chars, expected);
    published_recipe_free(&made);
    published_free(&table);
    text_free(&text);
    text_free(&found);
}

Test(rows, a_row_is_overrides)
{
    expect_recipe(
        "GPT,48,8192,64,32768,51200,2048,512,8,2,32,,,3,4,1536,interleaved 1F1B,full (every layer),no,"
        "fp16/bf16 mixed,1 (distributed optimizer),ok,,,,,,,,",
        "model.num_layers=48 model.hidden_size=8192 model.num_attention_heads=64 "
        "model.ffn_hidden_size=32768 model.vocab_size=51200 model.seq_length=2048 "
        "train.micro_batch_size=4 train.global_batch_size=1536 parallel.tensor_parallel_size=8 "
        "parallel.pipeline_parallel_size=2 parallel.data_parallel_size=32 "
        "parallel.sequence_parallel=false parallel.zero_stage=1 pipeline.schedule=interleaved "
        "pipeline.virtual_stages=3 memory.recompute_granularity=full precision.params_dtype=bf16 []");
}

#define BEGIN "GPT,48,8192,64,,250k,2048,"

Test(rows, schedules_by_their_names)
{
    expect_recipe(BEGIN "512,8,2,,,,,4,1536,1F1B (DeepSpeed),none,,bf16,,,,,,,,,,",
                  "data_parallel_size=32 pipeline.schedule=1f1b");
    expect_recipe(BEGIN "8,1,8,,,,,4,1536,ZB-1p,none,,bf16,,,,,,,,,,",
                  "schedule=auto pipeline.auto_memory_limit=8 ");
    expect_recipe(BEGIN "8,1,8,,,,,4,1536,ZB-2p,none,,bf16,,,,,,,,,,", "pipeline.auto_memory_limit=16 ");
    expect_recipe(BEGIN "8,1,8,,,,,4,1536,ZB-H2,none,,bf16,,,,,,,,,,", "pipeline.schedule=zb-h2 ");
    expect_recipe(BEGIN "8,1,8,,,,max (one each),4,1536,1F1B-I,none,,bf16,,,,,,,,,,",
                  "schedule=interleaved pipeline.virtual_stages=6 ");
    expect_recipe(BEGIN "8,1,8,,,,3,4,1536,1F1B,none,,bf16,,,,,,,,,,",
                  "schedule=interleaved pipeline.virtual_stages=3 ");
    expect_recipe(BEGIN "8,1,8,,,,,4,1536,1F1B (non-interleaved),none,,bf16,,,,,,,,,,",
                  "pipeline.schedule=1f1b");
    expect_recipe(BEGIN "8,8,1,,,,,4,1536,interleaved,none,,bf16,,,,,,,,,,",
                  "schedule=1f1b pipeline.virtual_stages=1");
    expect_recipe(BEGIN "8,1,8,,,,,4,1536,chimera,none,,bf16,,,,,,,,,,",
                  "[schedule \"chimera\" is not implemented]");
}

Test(rows, missing_cells_are_listed)
{
    expect_recipe(BEGIN "512,8,2,32,,,,,1536,interleaved,not stated,,,,,,,,,,,,",
                  "?train.micro_batch_size ?pipeline.virtual_stages ?memory.recompute_granularity "
                  "?precision.params_dtype []");
    expect_recipe("GPT,48,8192,,,,2048,512,8,2,32,,,,4,1536,1F1B,none,,bf16,,,,,,,,,,",
                  "?model.num_attention_heads ?model.vocab_size []");
    expect_recipe(BEGIN "8192,8,16,4,16,,,1,16,1F1B,none,,bf16,,,,,,,,,,",
                  "[context parallelism (cp 16) is not implemented]");
    expect_recipe(BEGIN "16384,8,16,4,,,,1,16,1F1B,none,,bf16,,,,,,,,,,",
                  "[16384 GPUs are not tp 8 x pp 16 x cp 1 x dp 4 = 512]");
    expect_recipe(BEGIN "8,8,1,1,,8,,1,16,1F1B,none,,bf16,,,,,,,,,,", "[expert parallelism (ep 8) is not");
    expect_recipe(BEGIN "8,8,1,1,,,,1,16,1F1B,none,,fp8,,kernel_missing,,,,,,,,",
                  "[status is kernel_missing; precision \"fp8\"");
}

/* Against a base without a model: every column that neither the row nor an override gives. */
Test(rows, a_row_without_a_model)
{
    static const struct {
        const char *cells, *reason;
    } cases[] = {
        {"25B,,,,,,2048,8,1,1,8,,,,1,64,,none,,bf16,,,,,,,,,,",
         "no layers, hidden, heads, vocab; fill in the columns, or add for all rows model.num_layers=VALUE "
         "model.hidden_size=VALUE model.num_attention_heads=VALUE model.vocab_size=VALUE"},
        {"25B,,,,,,2048,8,1,1,8,,,,1,64,,none,,bf16,,,num_layer=4 model.vocab_size=512,,,,,,,",
         "overrides: \"num_layer=4\" is not key=value of a recipe; no layers, hidden, heads; fill in"},
        {"25B,4,64,4,,512,,8,1,1,8,,,,1,,,none,,,,,,,,,,,,",
         "no seq, global_batch; fill in the columns, or add for all rows model.seq_length=VALUE "
         "train.global_batch_size=VALUE"},
        {"25B,4,64,4,,512,64,8,1,1,8,,,,,8,,none,,,,,,,,,,,,",
         "no micro_batch; fill in the column, or add for all rows train.micro_batch_size=VALUE"},
        {"25B,4,64,4,,512,64,8,1,1,8,,,,1,8,,none,,,,,,,,,,,,", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text text = {0};
        struct problems problems;
        struct published table;
        struct published_recipe made;
        text_add(&text, HEADER "%s\n", cases[i].cells);
        cr_assert_eq(parse(text.chars, &table, &problems), OK, "%s", cases[i].cells);
        published_recipe_make(&table.rows[0], &made);
        published_recipe_check_whole(&made);
        cr_expect_eq(strncmp(text_chars(&made.reason), cases[i].reason, strlen(cases[i].reason)), 0,
                     "%s\n  expected %s", text_chars(&made.reason), cases[i].reason);
        cr_expect(*cases[i].reason != 0 || made.reason.length == 0, "%s", text_chars(&made.reason));
        published_recipe_free(&made);
        published_free(&table);
        text_free(&text);
    }
}

Test(rows, overrides_of_a_row_come_last)
{
    expect_recipe(BEGIN "8,8,1,1,,,,1,16,1F1B,none,,bf16,,,\"zero_stag=3 pipeline.layout=[3,5] tp=4\",,,,,,,",
                  "[overrides: \"zero_stag=3\" is not key=value of a recipe]");
    expect_recipe(
        BEGIN
        "8,8,1,1,,,,1,16,1F1B,none,,bf16,,,\" parallel.zero_stage=3  pipeline.layout=[3,5] tp=4\",,,,,,,",
        "tp=4 parallel.pipeline_parallel_size=1");
}

Test(rows, assumptions_implied_by_a_row)
{
    struct problems problems;
    struct published table;
    struct published_recipe made;
    struct text found = {0};
    cr_assert_eq(parse("model,notes,overrides\n"
                       "LLAMA 13B,kernel=flash_attention2 + RMS kernel; x,model.activation=gelu\n"
                       "GPT,kernel=torch,\n"
                       "GPT,no word,\n",
                       &table, &problems),
                 OK);
    for (size_t row = 0; row < 3; row++) {
        published_recipe_make(&table.rows[row], &made);
        published_recipe_infer(&table.rows[row], &made);
        for (size_t i = 0; i < made.overrides.count; i++)
            text_add(&found, "%s ", made.overrides.list[i]);
        text_add(&found, "|");
        published_recipe_free(&made);
    }
    cr_expect_not_null(strstr(found.chars, "model.activation=gelu model.position_embedding_type=rope "
                                           "model.normalization=RMSNorm model.add_bias_linear=false "
                                           "model.tie_word_embeddings=false assume.attention=flash2 "
                                           "assume.norm=fused assume.activation=unfused |"),
                       "%s", found.chars);
    cr_expect_not_null(strstr(found.chars, "assume.attention=eager assume.norm=unfused |"), "%s",
                       found.chars);
    const char *third = strchr(strchr(found.chars, '|') + 1, '|');
    cr_expect_null(strstr(third, "assume."), "%s", third);
    published_free(&table);
    text_free(&found);
}

/* ---- what was printed ---- */

static struct printed_step printed(const char *figures, const char *recompute, double peak)
{
    const struct model_config model = {.num_layers = 48,
                                       .hidden_size = 8192,
                                       .num_attention_heads = 64,
                                       .num_query_groups = 64,
                                       .kv_channels = 128,
                                       .ffn_hidden_size = 32768,
                                       .seq_length = 2048,
                                       .vocab_size = 51200};
    struct text text = {0};
    struct problems problems;
    struct published table;
    text_add(&text, HEADER BEGIN "512,8,2,32,,,3,4,1536,interleaved,%s,no,bf16,,ok,,%s\n", recompute,
             figures);
    cr_assert_eq(parse(text.chars, &table, &problems), OK, "%s", figures);
    const struct printed_step step = published_step(&table.rows[0], &model, peak);
    published_free(&table);
    text_free(&text);
    return step;
}

Test(rows, printed_step_times)
{
    const double tokens = 1536.0 * 2048.0,
                 layers = 72.0 * tokens * 48 * 8192.0 * 8192.0 * (1 + 2048 / (6 * 8192.0));
    const double head = 6.0 * tokens * 8192.0 * 51200.0;
    cr_expect_eq(printed("14.5,1,2,3,4,5,6", "full", 0).seconds, 14.5);
    cr_expect_eq(printed(",1,2,3,4,5,6.5", "full", 0).from, PRINTED_DERIVED_STEP_TIME);
    cr_expect_float_eq(printed(",2,,,,,", "full", 0).seconds, 1536 / 1024.0, 1e-12);
    cr_expect_float_eq(printed(",,100,,,,", "full", 0).seconds, tokens / 51200, 1e-9);
    cr_expect_float_eq(printed(",,,138,,,", "none", 0).seconds, (layers + head) / (138e12 * 512), 1e-9);
    cr_expect_float_eq(printed(",,,138,,,", "full", 0).seconds, (layers * 4 / 3 + head) / (138e12 * 512),
                       1e-9, "Narayanan et al. 2021, eq. 3");
    cr_expect_float_eq(printed(",,,138,,,", "full", 0).seconds, 14.45, 0.01, "its table 1 in seconds");
    cr_expect_float_eq(printed(",,,,50,,", "full", 3e14).seconds, (layers + head) / (1.5e14 * 512), 1e-9);
    cr_expect_float_eq(printed(",,,,,50,", "full", 3e14).seconds, (layers * 4 / 3 + head) / (1.5e14 * 512),
                       1e-9);
    cr_expect_eq(printed(",,,,50,50,", "full", 0).from, PRINTED_NOTHING, "no peak");
    cr_expect_eq(printed(",,,,,,", "full", 3e14).seconds, 0.0);
}
