// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/profile/profile_fit.h"

#include "base/clock.h"
#include "base/memory.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/table/table_argument.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct arguments {
    const char *base, *out, *recipe;
    bool fast;
    const char **tables, **overrides;
    int table_count, override_count;
};

static void show_progress(void *context, const char *what, size_t done, size_t count)
{
    if (count > 0)
        progress_line_show(context, "%s: %zu of %zu rows", what, done, count);
    else
        progress_line_show(context, "%s: round %zu", what, done);
}

/* ---- rows held out ---- */

static void list_sources(const struct fit_rows *rows, struct fit_held_out *out)
{
    for (size_t r = 0; r < fit_rows_count(rows); r++) {
        const char *source = fit_rows_source(rows, r);
        bool known = false;
        for (int i = 0; i < out->source_count; i++)
            known = known || strcmp(out->sources[i], source) == 0;
        if (!known && out->source_count < FIT_MAX_SOURCES)
            out->sources[out->source_count++] = source;
    }
}

static enum status hold_out_source(const struct fit_rows *rows, const struct fit_options *options,
                                   const char *source, bool *used, struct fit_error *out)
{
    struct fit_result result;
    char what[80];
    for (size_t r = 0; r < fit_rows_count(rows); r++)
        used[r] = strcmp(fit_rows_source(rows, r), source) != 0;
    snprintf(what, sizeof what, "without %s", source);
    TRY(fit_model(rows, options, &(struct fit_choice){.what = what, .used = used}, &result));
    *out = fit_error_of(rows, result.error, used, false, NULL);
    fit_result_free(&result);
    return OK;
}

/* Holds out the third, sixth, ... row of each source. */
static enum status hold_out_thirds(const struct fit_rows *rows, const struct fit_options *options, bool *used,
                                   struct fit_held_out *out)
{
    struct fit_result result;
    for (int i = 0; i < out->source_count; i++) {
        int number = 0;
        for (size_t r = 0; r < fit_rows_count(rows); r++)
            if (strcmp(fit_rows_source(rows, r), out->sources[i]) == 0)
                used[r] = ++number % 3 != 0;
    }
    const struct fit_choice choice = {.what = "without every third row", .used = used};
    TRY(fit_model(rows, options, &choice, &result));
    for (int i = 0; i < out->source_count; i++)
        out->thirds[i] = fit_error_of(rows, result.error, used, false, out->sources[i]);
    out->all_thirds = fit_error_of(rows, result.error, used, false, NULL);
    out->third_rows = memory_zeroed(fit_rows_count(rows) + 1, sizeof *out->third_rows, "a fit");
    for (size_t r = 0; r < fit_rows_count(rows); r++)
        if (!used[r])
            out->third_rows[out->third_count++] = result.error[r];
    fit_result_free(&result);
    return OK;
}

static enum status hold_out(const struct fit_rows *rows, const struct fit_options *options,
                            struct fit_held_out *out)
{
    AUTO_FREE bool *used = memory_zeroed(fit_rows_count(rows) + 1, sizeof *used, "a fit");
    for (int i = 0; i < out->source_count && out->source_count > 1; i++)
        TRY(hold_out_source(rows, options, out->sources[i], used, &out->without[i]));
    return hold_out_thirds(rows, options, used, out);
}

/* ---- the fit ---- */

static enum status write_profile(const struct fit_rows *rows, const struct fit_options *options,
                                 const struct fit_result *fitted, const struct fit_held_out *held_out,
                                 const char *path)
{
    struct cluster_profile *profile;
    struct text yaml = {0};
    TRY(fit_profile(rows, options, fitted, &profile));
    profile->fit.held_out_fraction = held_out->third_count > 0 ? held_out->all_thirds.median : 0.0;
    profile_text(profile, &yaml);
    enum status status = file_write_atomic(path, text_chars(&yaml), yaml.length);
    profile_destroy(profile);
    text_free(&yaml);
    return status;
}

static enum status fit_and_print(const struct fit_rows *rows, const struct fit_options *options,
                                 const struct arguments *arguments)
{
    struct fit_held_out held_out = {.source_count = 0};
    struct fit_result fitted;
    double *base = memory_zeroed(fit_rows_count(rows), sizeof *base, "a fit");
    fit_base_error(rows, base);
    list_sources(rows, &held_out);
    enum status status = fit_model(rows, options, &(struct fit_choice){.what = "fitting"}, &fitted);
    if (status == OK && !arguments->fast)
        status = hold_out(rows, options, &held_out);
    progress_line_clear(options->context);
    if (status == OK)
        profile_fit_print(rows, base, &fitted, &held_out, stdout);
    if (status == OK && arguments->out != NULL)
        status = write_profile(rows, options, &fitted, &held_out, arguments->out);
    if (status == OK)
        fit_result_free(&fitted);
    free(held_out.third_rows);
    free(base);
    return status;
}

static enum status open_tables(const struct arguments *arguments, struct published *published,
                               struct fit_table *tables)
{
    for (int i = 0; i < arguments->table_count; i++) {
        struct table_title title;
        TRY(table_open(arguments->tables[i], arguments->recipe, &published[i], &tables[i].base, &title));
        tables[i].published = &published[i];
    }
    return OK;
}

static int fit(const struct arguments *arguments)
{
    const size_t count = (size_t)arguments->table_count;
    AUTO_FREE struct published *published = memory_zeroed(count + 1, sizeof *published, "the tables");
    AUTO_FREE struct fit_table *tables = memory_zeroed(count + 1, sizeof *tables, "the tables");
    struct fit_rows *rows = NULL;
    struct progress_line progress = progress_line_begin();
    const struct fit_options options = {.profile = arguments->base,
                                        .overrides = arguments->overrides,
                                        .override_count = (size_t)arguments->override_count,
                                        .progress = show_progress,
                                        .context = &progress};
    int exit = exit_status_of_input(open_tables(arguments, published, tables));
    if (exit == 0)
        exit = exit_status_of_input(fit_rows_plan(tables, count, &options, &rows));
    if (exit == 0)
        exit = exit_status(fit_and_print(rows, &options, arguments));
    fit_rows_destroy(rows);
    for (size_t i = 0; i < count; i++)
        published_free(&published[i]);
    return exit;
}

/* Checks the output before the fit, which may take long. */
static enum status check_output(const struct arguments *arguments)
{
    const struct output out = {"profile fit", "-o", arguments->out};
    const struct input inputs[] = {{"base profile", arguments->base}, {"base recipe", arguments->recipe}};
    TRY(outputs_check(&out, 1, inputs, 2, "the report"));
    for (int i = 0; i < arguments->table_count; i++)
        TRY(outputs_check(&out, 1, &(struct input){"table", arguments->tables[i]}, 1, "the report"));
    return OK;
}

/* Splits the positional arguments into tables and overrides, which contain "=". */
static enum status parse(int argc, char **argv, struct arguments *out)
{
    const struct option options[] = {
        {.name = "--base", .type = OPTION_TEXT, .value = &out->base},
        {.name = "-o", .type = OPTION_TEXT, .value = &out->out},
        {.name = "--recipe", .type = OPTION_TEXT, .value = &out->recipe},
        {.name = "--fast", .type = OPTION_FLAG, .value = &out->fast},
    };
    int count = 0;
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->tables, &count));
    for (int i = 0; i < count; i++)
        if (strchr(out->tables[i], '=') != NULL)
            out->overrides[out->override_count++] = out->tables[i];
        else
            out->tables[out->table_count++] = out->tables[i];
    if (out->table_count == 0)
        return fail(BAD_USAGE, "profile fit: no table given; use cuboid profile fit TABLE... --base PROFILE "
                               "(cuboid table --list has the published ones)");
    if (out->base == NULL)
        return fail(BAD_USAGE, "profile fit: no --base PROFILE given; cuboid profile --list has those with a "
                               "name");
    TRY(table_check_shared(out->recipe, out->overrides, (size_t)out->override_count));
    return check_output(out);
}

int profile_fit(int argc, char **argv)
{
    struct arguments arguments = {.tables = memory_zeroed((size_t)argc + 1, sizeof(char *), "the arguments"),
                                  .overrides =
                                      memory_zeroed((size_t)argc + 1, sizeof(char *), "the arguments")};
    int status = exit_status_of_input(parse(argc, argv, &arguments));
    if (status == 0)
        status = fit(&arguments);
    free(arguments.tables);
    free(arguments.overrides);
    return status;
}
