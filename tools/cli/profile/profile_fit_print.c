// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/profile/profile_fit.h"

static void print_keys(const struct fit_result *fitted, FILE *to)
{
    fprintf(to, "%-32s %10s %10s %12s\n", "model", "base", "fitted", "determined");
    for (int i = 0; i < fitted->key_count; i++) {
        const struct fit_parameter *p = &fitted->keys[i].parameter;
        const double share = 1.0 - p->uncertainty * p->uncertainty;
        fprintf(to, "%-32s %10.4g %10.4g %10.0f %%%s\n", fitted->keys[i].key, p->prior, p->value,
                share > 0.0 ? 100.0 * share : 0.0,
                p->at_bound   ? "  at a bound of its range"
                : share < 0.1 ? "  not determined by the rows"
                              : "");
    }
}

static void print_error(const struct fit_error *error, FILE *to)
{
    if (error->count > 0)
        fprintf(to, " %7.1f %6.1f", 100.0 * error->median, 100.0 * error->p90);
    else
        fprintf(to, " %7s %6s", "-", "-");
}

static void print_source(const char *name, const struct fit_error errors[4], FILE *to)
{
    fprintf(to, "%-34.34s %5zu", name, errors[0].count);
    for (int i = 0; i < 4; i++)
        print_error(&errors[i], to);
    fputc('\n', to);
}

static void print_third_rows(const struct fit_held_out *held_out, FILE *to)
{
    enum { PER_LINE = 15 };
    fprintf(to, "\n%% error of each row held out as every third one\n");
    for (size_t i = 0; i < held_out->third_count; i++) {
        const bool last = i + 1 == held_out->third_count || i % PER_LINE == PER_LINE - 1;
        fprintf(to, "%+6.1f%s", 100.0 * held_out->third_rows[i], last ? "\n" : "");
    }
}

void profile_fit_print(const struct fit_rows *rows, const double *base, const struct fit_result *fitted,
                       const struct fit_held_out *held_out, FILE *to)
{
    fprintf(to, "%zu step times; %zu rows without a step time or a prediction are left out\n\n",
            fit_rows_count(rows), fit_rows_left_out(rows));
    print_keys(fitted, to);
    fprintf(to,
            "\n%% error of the step, median and 90th percentile of absolute values; held out: on rows that\n"
            "the fit has not seen, a whole source or every third row of each\n");
    fprintf(to, "%-34s %5s %14s %14s %14s %14s\n", "source", "rows", "base", "fitted", "source out",
            "third out");
    for (int i = 0; i < held_out->source_count; i++) {
        const char *source = held_out->sources[i];
        const struct fit_error errors[] = {fit_error_of(rows, base, NULL, true, source),
                                           fit_error_of(rows, fitted->error, NULL, true, source),
                                           held_out->without[i], held_out->thirds[i]};
        print_source(source, errors, to);
    }
    const struct fit_error all[] = {fit_error_of(rows, base, NULL, true, NULL),
                                    fit_error_of(rows, fitted->error, NULL, true, NULL),
                                    {.count = 0},
                                    held_out->all_thirds};
    print_source("all", all, to);
    if (held_out->third_count > 0)
        print_third_rows(held_out, to);
}
