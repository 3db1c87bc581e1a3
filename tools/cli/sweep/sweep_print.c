// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/sweep/sweep_output.h"

#include <string.h>

static const char *plural(int64_t count, const char *noun, char out[2 * NUMBER_CHARS])
{
    snprintf(out, 2 * NUMBER_CHARS, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return out;
}

static void print_counts(const struct sweep *sweep, FILE *to)
{
    char layouts[2 * NUMBER_CHARS];
    print_line(to, "%s: %s of %s", sweep->file->path, plural(sweep->file->layouts, "layout", layouts),
               sweep->file->base);
    fprintf(to, "  %lld planned, %lld do not fit, %lld rejected by rules",
            (long long)sweep->counts[SWEEP_PLANNED], (long long)sweep->counts[SWEEP_TOO_LARGE],
            (long long)sweep->counts[SWEEP_INVALID]);
    if (sweep->counts[SWEEP_TIGHT] > 0)
        fprintf(to, ", %lld tight in memory", (long long)sweep->counts[SWEEP_TIGHT]);
    if (sweep->counts[SWEEP_SLOWER] > 0)
        fprintf(to, ", %lld slower by their bound", (long long)sweep->counts[SWEEP_SLOWER]);
    if (sweep->counts[SWEEP_FAILED] > 0)
        fprintf(to, ", %lld cannot be planned", (long long)sweep->counts[SWEEP_FAILED]);
    fputs("\n", to);
}

static void print_best(const struct sweep *sweep, int64_t top, FILE *to)
{
    const size_t count = (size_t)top < sweep->best_count ? (size_t)top : sweep->best_count;
    if (count == 0)
        return;
    fprintf(to, "%4s %10s %10s %9s %7s %7s %11s  layout\n", "", "step s", "tokens/s", "TFLOP/s", "mfu",
            "bubble", "memory");
    for (size_t i = 0; i < count; i++) {
        const struct sweep_layout *layout = &sweep->layouts[sweep->best[i]];
        char step[NUMBER_CHARS], memory[NUMBER_CHARS], tflops[NUMBER_CHARS];
        struct text text = {0};
        sweep_layout_text(sweep->file, layout->number, &text);
        snprintf(step, sizeof step, "%.4g", layout->step_s);
        snprintf(tflops, sizeof tflops, "%.4g", layout->tflops_per_rank);
        print_line(to, "%4zu %10s %10.0f %9s %6.1f%% %6.1f%% %11s  %s", i + 1, step, layout->tokens_per_s,
                   tflops, 100.0 * layout->mfu, 100.0 * layout->bubble_fraction,
                   bytes_text(layout->needed_bytes, memory), text.chars);
        text_free(&text);
    }
}

static void print_reasons(const struct sweep *sweep, FILE *to)
{
    for (int i = 0; i < sweep->reason_count; i++) {
        const struct sweep_reason *reason = &sweep->reasons[i];
        if (i == 0)
            fputs("layouts without a plan, by reason:\n", to);
        print_line(to, "%10lld  %s", (long long)reason->count, reason->what);
        print_line(to, "%10s  example: %s", "", reason->example);
    }
}

void sweep_print(const struct sweep *sweep, int64_t top, FILE *to)
{
    struct text basis = {0};
    print_counts(sweep, to);
    print_best(sweep, top, to);
    sweep_basis_text(sweep, &basis);
    if (basis.length > 0)
        print_line(to, "%s", basis.chars);
    text_free(&basis);
    print_reasons(sweep, to);
}
