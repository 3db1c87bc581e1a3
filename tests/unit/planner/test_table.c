// SPDX-License-Identifier: Apache-2.0
/* Predicted tables: statistics, rows of a small table, the tables that have a name. */
#include "planner/table/table.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

Test(table, rank_correlation_of_ranks_not_values)
{
    const double a[] = {1, 2, 3, 4}, cubed[] = {1, 8, 27, 64}, falling[] = {9, 5, 2, 1},
                 ties[] = {1, 1, 2, 2};
    cr_expect_float_eq(spearman_correlation(a, cubed, 4), 1.0, 1e-12);
    cr_expect_float_eq(spearman_correlation(a, falling, 4), -1.0, 1e-12);
    cr_expect_float_eq(spearman_correlation(a, ties, 4), 4.0 / sqrt(20.0), 1e-12);
    cr_expect(isnan(spearman_correlation(a, cubed, 2)));
    cr_expect(isnan(spearman_correlation((const double[]){1, 1, 1}, a, 3)));
}

static const char header[] =
    "paper,model,layers,hidden,heads,vocab,seq,tp,pp,dp,micro_batch,global_batch,schedule,"
    "recompute,precision,step_time_s,memory_gb,status,figure,overrides,gpu_type,tflops_per_gpu\n";

struct predicted {
    struct published published;
    struct table table;
};

static struct predicted predict(const char *rows, const char *profile)
{
    const struct shipped_table *base = table_shipped("default");
    struct predicted predicted;
    struct text text = {0};
    struct problems problems = {0};
    cr_assert_not_null(base);
    text_add(&text, "%s%s", header, rows);
    cr_assert_eq(published_parse("t.csv", text.chars, text.length, &predicted.published, &problems), OK, "%s",
                 rows);
    const struct table_options options = {.base = {base->name, base->yaml, true, true}, .profile = profile};
    cr_assert_eq(table_predict(&predicted.published, &options, &predicted.table), OK);
    text_free(&text);
    return predicted;
}

static void predicted_free(struct predicted *predicted)
{
    table_free(&predicted->table);
    published_free(&predicted->published);
}

Test(table, rows_are_predicted_and_compared)
{
    struct predicted predicted =
        predict("A,one,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.05,2,ok,,,,\n"
                "A,two,4,1024,16,1024,512,2,2,1,1,4,1F1B,none,bf16,,,oom,,,,\n"
                "B,three,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.05,,kernel_missing,,,,\n"
                "A,four,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.1,,ok,,cluster.profile=dgx-h100,,\n",
                NULL);
    const struct table_row *row = predicted.table.rows;
    cr_assert_not_null(row[0].reason);
    cr_expect_str_eq(row[0].reason,
                     "no cluster profile; fill in the column gpu_type (V100, A100, H100, H200, "
                     "B200, GB200), or add --profile NAME (cuboid profile --list)");
    cr_expect_str_eq(row[2].reason, "status is kernel_missing");
    cr_expect_null(row[3].reason, "%s", row[3].reason);
    cr_expect_str_eq(row[3].profile, "dgx-h100");
    predicted_free(&predicted);

    predicted = predict("A,one,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.05,2,ok,,,,\n"
                        "A,two,4,1024,16,1024,512,2,2,1,1,4,1F1B,none,bf16,,,oom,,,,\n"
                        "B,three,4,1024,16,1024,512,2,1,1,1,4,,none,fp8,0.05,,ok,,,,\n",
                        "dgx-a100-80");
    row = predicted.table.rows;
    cr_assert_null(row[0].reason, "%s", row[0].reason);
    cr_expect_str_eq(row[0].layout, "tp2 pp1 dp1 b1");
    cr_expect_str_eq(row[1].layout, "tp2 pp2 dp1 b1 1f1b");
    cr_expect_eq(row[0].printed.seconds, 0.05);
    cr_expect(row[0].step_s > row[0].ideal_s && row[0].ideal_s > 0.0);
    cr_expect(row[0].roofline_s > row[0].ideal_s && row[0].roofline_s < row[0].step_s);
    double sum = row[0].overhead_s + row[0].bubble_s;
    for (int c = 0; c < COST_CLASSES; c++)
        sum += row[0].run_s[c];
    for (int g = 0; g < PREDICT_GROUPS; g++)
        sum += row[0].exposed_s[g];
    cr_expect_float_eq(sum, row[0].step_s, 1e-9);
    cr_expect_eq(row[0].printed_bytes, 2e9);
    cr_expect_eq(row[0].fit, FIT_OK);
    cr_expect_eq(row[1].printed_fit, FIT_OOM);

    cr_assert_eq(predicted.table.group_count, 2);
    const struct table_group *group = predicted.table.groups;
    cr_expect_str_eq(group[0].paper, "A");
    cr_expect_eq(group[0].rows, 2);
    cr_expect_eq(group[0].predicted, 2);
    cr_expect_eq(group[0].step.count, 1);
    cr_expect_float_eq(group[0].step.median, fabs(row[0].step_s / 0.05 - 1.0), 1e-12);
    cr_expect_float_eq(group[0].scaled.worst, 0.0, 1e-12, "fitted to one row");
    cr_expect_float_eq(group[0].utilization, row[0].ideal_s / 0.05, 1e-12);
    cr_expect_float_eq(group[0].by_utilization.worst, 0.0, 1e-12, "fitted to one row");
    cr_expect_eq(group[0].fit_checked, 2);
    cr_expect_eq(group[0].fit_right, 1, "two was OOM and is predicted to fit");
    cr_expect_eq(group[1].predicted, 0);
    predicted_free(&predicted);
}

/* GPU types choose a profile, and must be those of a given one; a rate that no GPU has is flagged. */
Test(table, gpus_and_rates)
{
    static const char rows[] =
        "A,a,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.05,,,,,a100-80gb,\n"
        "A,b,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.05,,,,,H100 SXM,\n"
        "A,c,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.05,,,,,TPU v4,\n"
        "A,d,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,,,,,,A100,313\n"
        "A,e,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,,,,,,A100,312\n"
        "A,f,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,1e-5,,,,,A100,\n"
        "A,g,4,1024,16,64,8192,2,1,1,1,4,,none,bf16,0.032,,,,,A100,\n" // ideal: 0.037 s
        "A,h,4,1024,16,1024,512,2,1,1,1,4,,none,bf16,0.05,,,,,unknown,\n";
    struct predicted p = predict(rows, NULL);
    const struct table_row *row = p.table.rows;
    cr_assert_eq(p.table.count, 8);
    cr_expect_str_eq(row[0].profile, "dgx-a100-80");
    cr_expect_str_eq(row[1].profile, "dgx-h100");
    cr_expect_str_eq(row[2].reason,
                     "no cluster profile for gpu_type TPU v4; known are V100, A100, H100, H200, "
                     "B200, GB200, or add --profile NAME (cuboid profile --list)");
    cr_expect_not_null(strstr(row[3].warning, "313 TFLOP/s are above the peak of a GPU, 312 (bf16)"));
    cr_expect_null(row[4].warning, "%s", row[4].warning);
    cr_expect_not_null(strstr(row[5].warning, "even with the causal half of attention"), "%s",
                       row[5].warning);
    cr_expect_not_null(
        strstr(row[6].warning, "MFU 116 % counts all of attention; with the causal half it is 83 %"), "%s",
        row[6].warning);
    cr_expect_eq(row[0].printed_fit, FIT_OK, "it has a time, so it ran");
    cr_expect(row[0].may_shard == false && row[0].may_recompute == false, "dp 1, recompute none");
    predicted_free(&p);

    p = predict(rows, "dgx-h100");
    row = p.table.rows;
    cr_expect_str_eq(row[0].reason,
                     "gpu_type a100-80gb is not the H100-SXM5-80GB of cluster profile dgx-h100; "
                     "use a profile of that GPU, or correct the column");
    cr_expect_null(row[1].reason, "%s", row[1].reason);
    cr_expect_not_null(row[2].reason);
    cr_expect_null(row[7].reason, "%s", row[7].reason);
    predicted_free(&p);
}

/* One layer: a ninth of what nine layers add to none. */
Test(table, the_time_of_a_layer)
{
    struct predicted predicted =
        predict("A,step,8,2048,16,1024,1024,1,1,1,4,32,,none,bf16,1,,ok,,,,\n"
                "A,step,16,2048,16,1024,1024,1,1,1,4,32,,none,bf16,1,,ok,,,,\n"
                "A,layer,8,2048,16,1024,1024,1,1,1,4,32,,none,bf16,0.01,,,layer,,,\n",
                "dgx-a100-80");
    const struct table_row *row = predicted.table.rows;
    cr_assert_null(row[2].reason, "%s", row[2].reason);
    cr_expect_float_eq(row[2].step_s, (row[1].step_s - row[0].step_s) / (8 * 8), 0.01 * row[2].step_s);
    predicted_free(&predicted);
}

/* 2 + 2 + 12 bytes per parameter, and no activations. */
Test(table, memory_of_model_states)
{
    struct predicted predicted =
        predict("A,one,4,1024,16,1024,512,1,1,1,1,4,,none,bf16,,0.9,,model states,,,\n"
                "A,one,4,1024,16,1024,512,1,1,1,1,4,,none,bf16,,0.9,,,,,\n",
                "dgx-a100-80");
    const double parameters = 4 * (12 * 1024.0 * 1024 + 13 * 1024) + 1536 * 1024 + 2 * 1024;
    cr_expect_float_eq(predicted.table.rows[0].bytes, 18 * parameters, 18 * 0.01 * parameters,
                       "fp32 gradients");
    cr_expect_gt(predicted.table.rows[1].bytes, 1.1 * predicted.table.rows[0].bytes);
    predicted_free(&predicted);
}

Test(table, names_of_papers)
{
    cr_expect_str_eq(table_of_paper("Hagemann2023 main sweep")->name, "hagemann2023");
    cr_expect_str_eq(table_of_paper("Zero Bubble Table 4")->name, "zero-bubble");
    cr_expect_str_eq(table_of_paper("ZeRO Table 1")->name, "zero");
    cr_expect_null(table_of_paper("Hageman"));
    cr_expect_null(table_of_paper("default"));
    cr_expect_null(table_of_paper(""));
}

/* Every shipped table can be read, and its first row can be expressed. */
/* Of two stages the first has positions, too; what is kept between steps is counted once on each. */
Test(table, memory_of_the_last_stage)
{
    enum { KEPT = 1000000 };
    struct predicted p =
        predict("t,a,4,64,4,512,128,1,2,1,1,2,1f1b,none,bf16,,1,ok,model states,,,\n"
                "t,a,4,64,4,512,128,1,2,1,1,2,1f1b,none,bf16,,1,ok,model states,"
                "model.position_embedding_type=rope,,\n"
                "t,a,4,64,4,512,128,1,2,1,1,2,1f1b,none,bf16,,1,ok,model states,assume.kept_bytes=1000000,,\n"
                "t,a,4,64,4,512,128,1,2,1,1,2,1f1b,none,bf16,,1,ok,last stage,,,\n"
                "t,a,4,64,4,512,128,1,2,1,1,2,1f1b,none,bf16,,1,ok,last stage,assume.kept_bytes=1000000,,\n"
                "t,a,4,64,4,512,128,1,2,1,1,2,1f1b,none,bf16,,1,ok,,,,\n",
                "dgx-a100-80");
    const struct table_row *rows = p.table.rows;
    cr_assert_eq(p.table.count, 6);
    cr_expect_eq(rows[0].bytes, rows[1].bytes);
    cr_expect_eq(rows[2].bytes, rows[0].bytes + KEPT);
    cr_expect_eq(rows[4].bytes, rows[3].bytes + KEPT);
    cr_expect_leq(rows[3].bytes, rows[5].bytes);
    predicted_free(&p);
}

Test(table, shipped_tables_are_read)
{
    size_t count = 0;
    for (const struct shipped_table *shipped = shipped_tables; shipped->name != NULL; shipped++) {
        struct problems problems = {0};
        struct published published;
        cr_expect_gt(strlen(shipped->description), 20);
        if (*shipped->csv == 0)
            continue;
        cr_assert_eq(
            published_parse(shipped->name, shipped->csv, strlen(shipped->csv), &published, &problems), OK,
            "%s", shipped->name);
        for (size_t i = 0; i < published.count; i++) {
            struct published_recipe made;
            published_recipe_make(&published.rows[i], &made);
            cr_expect(*published.rows[i].cell[PUBLISHED_SOURCE] != 0, "%s:%d has no source", shipped->name,
                      published.rows[i].line);
            cr_expect(i > 0 || made.reason.length == 0, "%s: %s", shipped->name, text_chars(&made.reason));
            published_recipe_free(&made);
        }
        published_free(&published);
        count++;
    }
    cr_expect_eq(count, 11);
}
