// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/data/run_data.h"

#include <string.h>

static void print_lines(const struct text *lines)
{
    for (const char *line = text_chars(lines); *line != 0; line += strcspn(line, "\n") + 1)
        print_line(stdout, "%.*s", (int)strcspn(line, "\n"), line);
}

void run_data_report(const struct rank_state *w)
{
    const struct recipe_train *train = &w->run->recipe->train;
    const int64_t left = train->train_iters > w->step ? train->train_iters - w->step : 0;
    const struct data_use use = {
        .samples = rank_consumed_samples(w) + left * train->global_batch_size,
        .steps = w->step + left,
        .batch = train->global_batch_size,
        .eval_samples = train->eval_interval > 0 ? train->eval_iters * train->global_batch_size : 0,
    };
    struct text lines = {0}, warning = {0};
    if (w->run->data == NULL)
        return;
    data_describe(w->run->data, &use, &lines, &warning);
    print_lines(&lines);
    if (warning.length > 0)
        print_line(stderr, "warning: %s", warning.chars);
    text_free(&lines);
    text_free(&warning);
}
