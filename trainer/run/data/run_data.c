// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/data/run_data.h"

#include "base/memory.h"
#include "trainer/engine/agree.h"
#include "trainer/engine/step.h"

#include <string.h>

static void print_lines(const struct text *lines)
{
    for (const char *line = text_chars(lines); *line != 0; line += strcspn(line, "\n") + 1)
        print_line(stdout, "%.*s", (int)strcspn(line, "\n"), line);
}

void run_data_report(const struct rank_state *state)
{
    const struct recipe_train *train = &state->run->recipe->train;
    const int64_t left = train->train_iters > state->step ? train->train_iters - state->step : 0;
    const struct data_use use = {
        .samples = rank_consumed_samples(state) + left * train->global_batch_size,
        .steps = state->step + left,
        .batch = train->global_batch_size,
        .eval_samples = train->eval_interval > 0 ? train->eval_iters * train->global_batch_size : 0,
    };
    AUTO(text) lines = {0}, warning = {0};
    if (state->run->data == NULL)
        return;
    data_describe(state->run->data, &use, &lines, &warning);
    print_lines(&lines);
    if (warning.length > 0)
        print_line(stderr, "warning: %s", warning.chars);
}

bool evaluation_is_due(const struct recipe *recipe, int64_t step)
{
    const int64_t interval = recipe->train.eval_interval;
    return interval > 0 && step > 0 && (step % interval == 0 || step == recipe->train.train_iters);
}

enum status evaluate_late(struct rank_state *state, struct metrics *metrics, bool *evaluated, bool *stop)
{
    double lacks = metrics != NULL && metrics_lack_valid(metrics) ? 1.0 : 0.0, loss;
    *evaluated = *stop = false;
    if (!evaluation_is_due(state->run->recipe, state->step))
        return OK;
    TRY(rank_agree_max(state, &lacks, 1));
    if (!(lacks > 0.0))
        return OK;
    TRY(rank_evaluate(state, &loss, stop));
    *evaluated = !*stop;
    return rank_agree(state, metrics != NULL && !*stop ? metrics_add_valid(metrics, state->step, loss) : OK);
}
