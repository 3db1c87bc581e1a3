// SPDX-License-Identifier: Apache-2.0
/* Fits of profiles: known parameters are found again; a wrong row and an undetermined parameter do no
 * harm. */
#include "planner/fit/fit.h"

#include "planner/fit/fit_rows.h"
#include "planner/profile/profile_table.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- least squares alone ---- */

enum { ROWS = 12 };

/* measured = work / rate + fixed, with rate 4 and fixed 0.25; the third parameter has no effect. */
struct line {
    double work[ROWS], measured[ROWS];
};

static void predict_line(void *context, const double *values, double *error)
{
    const struct line *line = context;
    for (int i = 0; i < ROWS; i++)
        error[i] = log((line->work[i] / values[0] + values[1]) / line->measured[i]);
}

static struct fit_solver solve_line(struct line *line)
{
    struct fit_solver solver = {.parameter_count = 3, .rows = ROWS, .predict = predict_line, .context = line};
    solver.parameters[0] = (struct fit_parameter){.prior = 2.0, .spread = 1.0, .low = 0.0, .high = 100.0};
    solver.parameters[1] = (struct fit_parameter){.prior = 0.1, .spread = 1.0, .low = 0.0, .high = 100.0};
    solver.parameters[2] = (struct fit_parameter){.prior = 7.0, .spread = 0.5, .low = 0.0, .high = 100.0};
    cr_assert_eq(fit_solve(&solver), OK);
    return solver;
}

static struct line exact_line(void)
{
    struct line line;
    for (int i = 0; i < ROWS; i++) {
        line.work[i] = 0.5 * (i + 1);
        line.measured[i] = line.work[i] / 4.0 + 0.25;
    }
    return line;
}

Test(fit, finds_the_parameters_that_the_rows_determine)
{
    struct line line = exact_line();
    if (!fit_is_available())
        cr_skip("built without cminpack");
    struct fit_solver solver = solve_line(&line);
    cr_expect_float_eq(solver.parameters[0].value, 4.0, 0.01, "%g", solver.parameters[0].value);
    cr_expect_float_eq(solver.parameters[1].value, 0.25, 0.001, "%g", solver.parameters[1].value);
    cr_expect_lt(solver.parameters[0].uncertainty, 0.1);
    cr_expect_lt(solver.parameters[1].uncertainty, 0.1);
    cr_expect_float_eq(solver.parameters[2].value, 7.0, 1e-9, "the prior");
    cr_expect_float_eq(solver.parameters[2].uncertainty, 1.0, 1e-6);
    for (int i = 0; i < ROWS; i++)
        cr_expect_lt(fabs(solver.error[i]), 0.001);
    free(solver.error);
}

Test(fit, a_wrong_row_has_a_bounded_pull)
{
    struct line line = exact_line();
    if (!fit_is_available())
        cr_skip("built without cminpack");
    line.measured[5] *= 100.0;
    struct fit_solver solver = solve_line(&line);
    cr_expect_float_eq(solver.parameters[0].value, 4.0, 0.2, "%g", solver.parameters[0].value);
    cr_expect_float_eq(solver.parameters[1].value, 0.25, 0.02, "%g", solver.parameters[1].value);
    cr_expect_float_eq(solver.error[5], log(0.01), 0.05);
    free(solver.error);
}

Test(fit, a_parameter_stops_at_the_bound_of_its_range)
{
    struct line line = exact_line();
    if (!fit_is_available())
        cr_skip("built without cminpack");
    struct fit_solver solver = {
        .parameter_count = 2, .rows = ROWS, .predict = predict_line, .context = &line};
    solver.parameters[0] = (struct fit_parameter){.prior = 2.0, .spread = 1.0, .low = 0.0, .high = 3.0};
    solver.parameters[1] = (struct fit_parameter){.prior = 0.1, .spread = 1.0, .low = 0.0, .high = 100.0};
    cr_assert_eq(fit_solve(&solver), OK);
    cr_expect_eq(solver.parameters[0].value, 3.0);
    cr_expect(solver.parameters[0].at_bound);
    cr_expect_not(solver.parameters[1].at_bound);
    free(solver.error);
}

/* ---- a profile ---- */

enum { LAYOUTS = 6, SIZES = 4, RUNS = LAYOUTS * SIZES };

/* Small models in several layouts, as a table of two sources; seconds: NULL for 1 s each. */
static void write_rows(const double *seconds, struct text *out)
{
    static const char *const layouts[LAYOUTS] = {"1,1,1,1,8,,none",      "2,1,1,2,8,,none",
                                                 "4,1,2,4,32,,full",     "1,4,1,1,16,1F1B,none",
                                                 "2,2,2,2,32,1F1B,full", "8,1,1,8,16,,none"};
    text_add(out, "paper,model,layers,hidden,heads,vocab,seq,tp,pp,dp,micro_batch,global_batch,schedule,"
                  "recompute,precision,step_time_s\n");
    for (int i = 0; i < RUNS; i++)
        text_add(out, "%s,G,4,%d,16,1024,512,%s,bf16,%.9g\n", i % 2 == 0 ? "A" : "B", 1024 << i / LAYOUTS,
                 layouts[i % LAYOUTS], seconds != NULL ? seconds[i] : 1.0);
}

static void parse_rows(const double *seconds, struct published *out)
{
    struct problems problems = {0};
    struct text csv = {0};
    write_rows(seconds, &csv);
    cr_assert_eq(published_parse("t.csv", csv.chars, csv.length, out, &problems), OK);
    text_free(&csv);
}

static struct table_base default_base(void)
{
    return (struct table_base){"default", table_shipped("default")->yaml, true, true};
}

/* Step times on a machine that is like dgx-a100-80, but for two parameters. */
static void true_times(double *seconds)
{
    char path[] = "/tmp/cuboid-fit-XXXXXX.yaml";
    static const char yaml[] = "base: dgx-a100-80\nmodel: {matmul_efficiency: 0.6, step_overhead_s: 0.03}\n";
    struct published published;
    struct table table;
    int file = mkstemps(path, 5);
    cr_assert(file >= 0 && write(file, yaml, strlen(yaml)) == (ssize_t)strlen(yaml) && close(file) == 0);
    parse_rows(NULL, &published);
    const struct table_options options = {.base = default_base(), .profile = path};
    cr_assert_eq(table_predict(&published, &options, &table), OK);
    for (int i = 0; i < RUNS; i++) {
        cr_assert_null(table.rows[i].reason, "%s", table.rows[i].reason);
        seconds[i] = table.rows[i].step_s;
    }
    table_free(&table);
    published_free(&published);
    unlink(path);
}

/* ---- critical paths ---- */

static const double CHANGE = 0.01; // of a parameter

static double simulated(const struct step_plan *plan, const struct cluster_profile *profile)
{
    struct cost_options options = plan->cost;
    struct prediction *step;
    options.profile = profile;
    cr_assert_eq(predict_step(&options, plan->tapes, plan->count, &step), OK);
    const double seconds = step->step_s + profile->model.step_overhead_s;
    prediction_destroy(step);
    return seconds;
}

/* The time that other messages add to those of the critical path. */
static double contended(const struct step_plan *plan, const struct cluster_profile *profile)
{
    struct cost_options options = plan->cost;
    struct prediction *step;
    double seconds = 0.0;
    options.profile = profile;
    cr_assert_eq(predict_timeline(&options, plan->tapes, plan->count, &step), OK);
    for (int64_t i = 0; i < step->span_count; i++) {
        const struct predicted_span *span = &step->spans[i];
        const struct tape *tape = plan->tapes[span->rank];
        const struct tape_item *items = &tape->lanes[span->lane].items[span->first];
        double alone_s = 0.0;
        if (!span->critical || items->kind != TAPE_MESSAGE)
            continue;
        for (int k = 0; k < span->count; k++) {
            const struct message_kind kind =
                predict_message_kind(&options, tape, &tape->messages[items[k].index]);
            alone_s = fmax(alone_s, predict_message_s(&options, &kind));
        }
        seconds += span->end_s - span->begin_s - alone_s;
    }
    prediction_destroy(step);
    return seconds;
}

/* With each parameter changed a little, the path changes like the step that is simulated. Ops that end next
 * to messages that began before them are slowed by parts that the path does not follow; nor does it follow
 * the time that messages lose to others, which changes by about the same fraction as the parameter. */
static void check_paths(const struct step_plan *plan, struct cluster_profile *profile, const char *layout)
{
    struct fit_paths *paths;
    double seconds;
    paths = fit_paths_create(plan);
    cr_assert_eq(fit_paths_simulate(paths, profile, &seconds), OK);
    cr_expect_eq(seconds, simulated(plan, profile), "%s", layout);
    const double lost_s = contended(plan, profile);
    cr_expect_float_eq(fit_paths_seconds(paths, profile), seconds, 1e-9 * seconds, "%s", layout);
    for (int i = 0; i < profile_row_count; i++) {
        const struct profile_row *row = &profile_rows[i];
        const double before = profile_is_number(row) ? profile_number(profile, row) : 0.0;
        if (row->spread <= 0.0)
            continue;
        profile_set_number(profile, row, (1.0 - CHANGE) * before);
        const double changed = simulated(plan, profile), path = fit_paths_seconds(paths, profile);
        cr_expect_float_eq(path - seconds, changed - seconds,
                           3e-5 * seconds + 0.15 * fabs(changed - seconds) + CHANGE * lost_s,
                           "%s %s: %.3g instead of %.3g", layout, row->key, path / seconds - 1.0,
                           changed / seconds - 1.0);
        profile_set_number(profile, row, before);
    }
    fit_paths_destroy(paths);
}

Test(fit, paths_follow_the_parameters)
{
    struct published published;
    struct text reason = {0};
    struct problems problems = {0};
    struct cluster_profile *profile;
    const struct table_options options = {.base = default_base(), .profile = "dgx-a100-80"};
    parse_rows(NULL, &published);
    cr_assert_eq(profile_load("dgx-a100-80", &profile, &problems), OK);
    profile->model.overlap_slowdown = 0.3;
    for (int i = 0; i < RUNS; i++) {
        struct recipe *recipe = table_row_recipe(&options, &published.rows[i], 0, &reason);
        struct run run;
        struct step_plan plan;
        char layout[32];
        snprintf(layout, sizeof layout, "row %d", i);
        cr_assert_not_null(recipe, "%s", text_chars(&reason));
        cr_assert_eq(run_create(recipe, false, &run), OK);
        cr_assert_eq(step_plan_make(&run, profile, &plan), OK);
        check_paths(&plan, profile, layout);
        step_plan_free(&plan);
        run_destroy(&run);
        recipe_destroy(recipe);
    }
    profile_destroy(profile);
    published_free(&published);
}

static double fitted_value(const struct fit_result *result, const char *key)
{
    for (int i = 0; i < result->key_count; i++)
        if (strcmp(result->keys[i].key, key) == 0)
            return result->keys[i].parameter.value;
    cr_assert(false, "%s is not fitted", key);
    return 0.0;
}

Test(fit, a_profile_is_recovered_from_step_times)
{
    double seconds[RUNS];
    bool used[RUNS];
    struct published published;
    struct fit_rows *rows = NULL;
    struct fit_result result;
    struct cluster_profile *profile = NULL;
    const struct fit_options options = {.profile = "dgx-a100-80"};
    if (!fit_is_available())
        cr_skip("built without cminpack");
    true_times(seconds);
    parse_rows(seconds, &published);
    const struct fit_table table = {.published = &published, .base = default_base()};
    cr_assert_eq(fit_rows_plan(&table, 1, &options, &rows), OK, "%s", fail_text());
    cr_assert_eq(fit_rows_count(rows), RUNS);
    double base[RUNS];
    fit_base_error(rows, base);
    cr_expect_gt(fit_error_of(rows, base, NULL, true, NULL).median, 0.3, "dominated by the overhead");

    for (int i = 0; i < RUNS; i++)
        used[i] = i % 3 != 2;
    cr_assert_eq(fit_model(rows, &options, &(struct fit_choice){.used = used}, &result), OK);
    cr_expect_float_eq(fitted_value(&result, "matmul_efficiency"), 0.6, 0.03);
    cr_expect_float_eq(fitted_value(&result, "step_overhead_s"), 0.03, 0.001);
    cr_expect_lt(fit_error_of(rows, result.error, used, true, NULL).p90, 0.01);
    cr_expect_lt(fit_error_of(rows, result.error, used, false, NULL).p90, 0.02, "rows held out");
    cr_expect_eq(fit_error_of(rows, result.error, used, false, NULL).count, RUNS / 3);
    cr_expect_eq(fit_error_of(rows, result.error, NULL, true, "B").count, RUNS / 2);

    cr_assert_eq(fit_profile(rows, &options, &result, &profile), OK);
    cr_expect_eq(profile->model.matmul_efficiency, fitted_value(&result, "matmul_efficiency"));
    cr_expect_eq(profile->fit.rows, RUNS);
    cr_expect_eq(profile->fit.error_fraction, fit_error_of(rows, result.error, NULL, true, NULL).median);
    profile_destroy(profile);
    fit_result_free(&result);
    fit_rows_destroy(rows);
    published_free(&published);
}

Test(fit, rows_without_a_step_time_are_left_out)
{
    struct published published;
    struct fit_rows *rows = NULL;
    const struct fit_options options = {.profile = "dgx-a100-80"};
    parse_rows(NULL, &published);
    for (size_t i = 1; i < published.count; i++)
        published.rows[i].number[PUBLISHED_STEP_TIME_S] = NAN;
    const struct fit_table table = {.published = &published, .base = default_base()};
    cr_assert_eq(fit_rows_plan(&table, 1, &options, &rows), OK);
    cr_expect_eq(fit_rows_count(rows), 1);
    cr_expect_eq(fit_rows_left_out(rows), RUNS - 1);
    fit_rows_destroy(rows);
    published.rows[0].number[PUBLISHED_STEP_TIME_S] = NAN;
    rows = NULL;
    cr_expect_eq(fit_rows_plan(&table, 1, &options, &rows), BAD_DATA);
    cr_expect_null(rows);
    published_free(&published);
}
