// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/progress_line.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static const double SOON_S = 0.5, INTERVAL_S = 0.1;

struct progress_line progress_line_begin(void)
{
    return (struct progress_line){.begun = clock_s(), .on = isatty(STDERR_FILENO) == 1};
}

void progress_line_show(struct progress_line *progress, const char *format, ...)
{
    const double now = clock_s();
    va_list arguments;
    if (!progress->on || now - progress->begun < SOON_S || now - progress->shown < INTERVAL_S)
        return;
    progress->shown = now;
    fputs("\r\033[K", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

void progress_line_clear(const struct progress_line *progress)
{
    if (progress->shown > 0.0)
        fputs("\r\033[K", stderr);
}
