// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/schedule/cmd_schedule_progress.h"
#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

static void show(void *context, double percent)
{
    enum { SILENT_SECONDS = 1 };
    struct reporter *r = context;
    double done = r->from + (r->to - r->from) * percent / 100.0, time = clock_s(), passed = time - r->begun;
    char left[NUMBER_CHARS];
    if (!r->terminal || passed < SILENT_SECONDS || time - r->shown < 0.1 || !(done > 0.0 && done < 100.0))
        return;
    r->shown = time;
    fprintf(stderr, "\r\033[K%s: %.0f %%, about %s left", r->what, done,
            seconds_text(passed * (100.0 - done) / done, left));
    fflush(stderr);
}

void reporter_begin(struct reporter *reporter, const char *what)
{
    *reporter = (struct reporter){
        .progress = {.report = show, .context = reporter}, .what = what, .to = 100.0, .begun = clock_s()};
    reporter->terminal = isatty(STDERR_FILENO) == 1;
}

void reporter_part(struct reporter *reporter, const char *what, double from, double to)
{
    reporter->what = what;
    reporter->from = from;
    reporter->to = to;
    show(reporter, 0.0);
}

void reporter_end(struct reporter *reporter)
{
    if (reporter->shown > 0.0)
        fputs("\r\033[K", stderr);
    reporter->shown = 0.0;
    reporter->terminal = false;
}
