// SPDX-License-Identifier: Apache-2.0
/* Quality of `auto` on random cost tables: bench_auto [TABLES [MAX_P [MAX_M]]], default 500, 8 and 32.
 * With a fourth argument, one line per table; then the summary that docs/schedules.md quotes. */
#include "base/text.h"
#include "tests/support/auto_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t argument(int argc, char **argv, int index, int64_t fallback)
{
    int64_t value = fallback;
    return index >= argc || integer_parse(argv[index], &value) ? value : -1;
}

int main(int argc, char **argv)
{
    int tables = (int)argument(argc, argv, 1, 500), most_p = (int)argument(argc, argv, 2, 8);
    int most_m = (int)argument(argc, argv, 3, 32), with_named = 0, longer = 0, shorter = 0;
    struct auto_outcome *all = calloc((size_t)(tables > 0 ? tables : 1), sizeof *all);
    if (all == NULL || tables < 1 || most_p < 2 || most_p > 32 || most_m < 1)
        return 2;
    double begun = now();
    for (int i = 0; i < tables; i++) {
        struct auto_outcome *o = &all[i];
        if (auto_table((uint64_t)i, most_p, most_m, o) != OK) {
            fprintf(stderr, "table %d: %s\n", i, fail_text());
            return 1;
        }
        if (o->named > 0.0) {
            with_named++;
            longer += o->makespan > o->named;
            shorter += o->makespan < o->named * (1.0 - 1e-6);
        }
        if (argc > 4)
            printf("%3d p %d m %2d v %d limit %5.2f: auto v %d %.3f, %s %.3f, bound %.3f (%.4f)\n", i, o->p,
                   o->m, o->v, o->limit, o->chosen_v, o->makespan, o->shortest, o->named, o->bound,
                   o->makespan / o->bound);
    }
    auto_sort(all, tables);
    printf("%d tables, p up to %d, m up to %d, in %.0f s\n", tables, most_p, most_m, now() - begun);
    printf("a named schedule is within the limit in %d; auto is longer than the shortest in %d, strictly "
           "shorter in %d\n",
           with_named, longer, shorter);
    printf("makespan / bound: median %.4f, 75 %% %.4f, 90 %% %.4f, largest %.4f\n",
           all[tables / 2].makespan / all[tables / 2].bound,
           all[tables * 3 / 4].makespan / all[tables * 3 / 4].bound,
           all[tables * 9 / 10].makespan / all[tables * 9 / 10].bound,
           all[tables - 1].makespan / all[tables - 1].bound);
    free(all);
    return 0;
}
