// SPDX-License-Identifier: Apache-2.0
/* Clean runs of random small models, optimizers, precisions and layouts through verify: no comparison may be
 * out of bounds. Run N is a function of N alone, so that a failed run can be repeated by its number.
 *    soak_verify FIRST COUNT [STEPS]     a line for each run; exit status 1 if any was out of bounds or
 * failed
 *
 * CI runs a few of them; tools/soak runs thousands, and reads these lines. */
#include "tests/ranks/verify/random_recipe.h"
#include "tests/support/tiny_verify.h"

#include <stdlib.h>
#include <string.h>

/* The quantity and the row of the largest ratio. */
static void print_worst(const struct verify_report *report)
{
    for (int q = VERIFY_GRADIENT; q < QUANTITIES; q++) {
        double largest = largest_ratio(report, q, NULL);
        const char *name = "-";
        for (int row = 0; q < VERIFY_QUANTITIES && row < report->rows; row++)
            if (report->worst[q][row].ratio == largest)
                name = report->names[row];
        printf(" %s=%.3f:%s", q == QUANTITY_NORM ? "norm" : quantity_name(q), largest, name);
    }
}

static bool run_one(const struct tiny *tiny, uint64_t number, int steps, bool all)
{
    struct random_recipe draw;
    struct verify_report report = {0};
    enum status status = random_recipe(tiny, number, steps, &draw);
    if (status == OK) {
        const struct comparison comparison = {draw.family, draw.common, draw.layout, draw.one};
        status = tiny_verify(tiny, &comparison, steps, (struct step_observer){0}, &report);
    }
    bool good = status == OK && report.outside == 0;
    printf("run %llu %s", (unsigned long long)number, status != OK ? "FAILED" : good ? "ok" : "ALARM");
    if (status == OK)
        print_worst(&report);
    printf(" | %s %s| %s| %s\n", draw.family == TINY_GPT ? "gpt" : "llama", draw.common, draw.layout,
           draw.one);
    if (status != OK)
        printf("  %s\n", fail_text());
    else if (!good || all)
        verify_print(&report, all, stdout);
    fflush(stdout);
    verify_report_free(&report);
    return good;
}

int main(int argc, char **argv)
{
    struct tiny tiny;
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int steps = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 20, bad = 0;
    MUST(tiny_create(&tiny));
    for (uint64_t i = first; i < first + count; i++)
        bad += !run_one(&tiny, i, steps, argc > 4);
    tiny_destroy(&tiny);
    return bad != 0;
}
