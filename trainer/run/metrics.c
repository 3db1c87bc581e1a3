// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/metrics.h"

#include "base/memory.h"
#include "layers/model.h"
#include "trainer/checkpoint/best.h"
#include "trainer/run/dashboard/dashboard.h"
#include "trainer/run/metrics_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

struct metrics {
    struct metrics_config config;
    struct metrics_file *file;
    struct dashboard *dashboard; // NULL: none
    bool terminal;
    int64_t steps, tokens;        // of this process
    double time_s, recent_time_s; // of all steps; since the last line
    double first_s;               // of the first step
    double wait_s[2];             // least and most of any rank, sums over the other steps; NAN: unknown
    int64_t recent_tokens, recent_steps;
    int64_t rolled_back; // steps with a rollback on some rank
    int64_t skipped;     // steps without an update
    struct step_record last;
    double best_valid;
    int64_t best_step;
};

enum status metrics_open(const struct metrics_config *config, struct metrics **out)
{
    struct metrics *m = memory_zeroed(1, sizeof *m, "the metrics");
    m->config = *config;
    // A launcher gives its ranks a pseudo-terminal, regardless of its own output.
    m->terminal = isatty(STDOUT_FILENO) == 1 && !config->launched;
    m->best_valid = config->best_step >= 0 ? config->best_valid : INFINITY;
    m->best_step = config->best_step;
    const struct metrics_file_config file = {
        .run_dir = config->recipe->logging.run_dir,
        .save = config->recipe->checkpoint.save,
        .first_step = config->first_step,
        .continues = config->continues,
    };
    enum status status = metrics_file_open(&file, &m->file);
    if (status == OK)
        status = dashboard_open(config->recipe, config->first_step, &m->dashboard);
    if (status == OK)
        *out = m;
    else
        metrics_close(m);
    return status;
}

static void add_number(struct text *line, const char *key, double value)
{
    char number[NUMBER_CHARS];
    text_add(line, ", \"%s\": %s", key, isfinite(value) ? number_text(value, number) : "null");
}

static void add_times(struct text *line, const struct step_summary *ranks)
{
    const struct {
        const char *key;
        struct step_range range;
    } times[] = {{"compute_s", ranks->compute_s}, {"wait_s", ranks->wait_s}, {"data_s", ranks->data_s}};
    text_add(line, ", \"ranks\": {");
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        text_add(line, "\"%s\": [%.6f, %.6f], ", times[i].key, times[i].range.least, times[i].range.most);
    text_add(line, "\"slowest\": %d}", ranks->slowest);
}

/* The time of day in UTC: "2026-11-28T14:31:02Z". */
static void add_time(struct text *line)
{
    char time_text[32];
    struct tm utc;
    const time_t now = time(NULL);
    if (gmtime_r(&now, &utc) != NULL && strftime(time_text, sizeof time_text, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0)
        text_add(line, ", \"time\": \"%s\"", time_text);
}

static enum status write_line(struct metrics *m, const struct step_record *r)
{
    double per_rank = r->step_time_s > 0.0 ? m->config.flops_per_token * (double)r->tokens / r->step_time_s /
                                                 (double)m->config.world
                                           : 0.0;
    double peak = m->config.recipe->logging.peak_flops;
    double share = peak > 0.0 ? per_rank / peak : NAN;
    AUTO(text) line = {0};
    text_add(&line, "{\"step\": %lld", (long long)r->step);
    add_number(&line, "loss", r->loss);
    add_number(&line, "grad_norm", r->grad_norm);
    add_number(&line, "lr", r->lr);
    text_add(&line, ", \"tokens\": %lld, \"loss_tokens\": %lld, \"consumed_tokens\": %lld",
             (long long)r->tokens, (long long)r->loss_tokens, (long long)r->consumed_tokens);
    add_time(&line);
    add_number(&line, "step_time_s", r->step_time_s);
    add_number(&line, "tokens_per_s", r->step_time_s > 0.0 ? (double)r->tokens / r->step_time_s : NAN);
    add_number(&line, "model_tflops_per_rank", per_rank * 1e-12);
    add_number(&line, "mfu", share);
    add_number(&line, "mfu_causal", share * model_causal_share(&m->config.recipe->model));
    add_number(&line, "bubble_fraction", r->ranks.bubble_fraction);
    text_add(&line, ", \"memory_peak_bytes\": %lld, \"memory_bytes\": {",
             (long long)r->ranks.peak_total_bytes);
    for (int part = 0; part < PART_COUNT; part++)
        text_add(&line, "%s\"%s\": %lld", part > 0 ? ", " : "", part_name((enum part)part),
                 (long long)r->ranks.peak_bytes[part]);
    text_add(&line, "}, \"activation_slots\": {");
    for (int kind = 0; kind < SLOT_LIFETIMES; kind++)
        text_add(&line, "%s\"%s\": {\"slots\": %lld, \"bytes\": %lld}", kind > 0 ? ", " : "",
                 lifetime_name((enum lifetime)kind), (long long)r->ranks.slots[kind].slots,
                 (long long)r->ranks.slots[kind].bytes);
    text_add(&line, "}");
    if (r->ranks.has_times)
        add_times(&line, &r->ranks);
    if (r->has_rollbacks)
        text_add(&line, ", \"rollbacks\": %d", r->rollbacks);
    if (r->loss_scale > 0.0) {
        add_number(&line, "loss_scale", r->loss_scale);
        text_add(&line, ", \"skipped\": %s", r->skipped ? "true" : "false");
    }
    if (r->has_valid)
        add_number(&line, "valid_loss", r->valid_loss);
    if (m->config.predicted.step_s > 0.0)
        add_number(&line, "predicted_step_time_s", m->config.predicted.step_s);
    text_add(&line, "}\n");
    enum status status = metrics_file_append(m->file, &line);
    dashboard_add(m->dashboard, &line);
    return status;
}

/* "none" if no token counts. */
static const char *loss_text(double loss, char out[NUMBER_CHARS])
{
    snprintf(out, NUMBER_CHARS, isnan(loss) ? "none" : "%.4f", loss);
    return out;
}

/* "14:31:02 step  120/400 | " */
static void add_beginning(const struct metrics *m, int64_t step, struct text *line)
{
    const int64_t total = m->config.recipe->train.train_iters;
    char clock[16] = "";
    struct tm local;
    const time_t now = time(NULL);
    if (localtime_r(&now, &local) != NULL)
        strftime(clock, sizeof clock, "%H:%M:%S ", &local);
    text_add(line, "%sstep %*lld/%lld | ", clock, total > 9999 ? 6 : 4, (long long)step, (long long)total);
}

/* Model FLOP/s of a rank, and its share of the peak, if that is known. */
static void add_rate(const struct metrics *m, double tokens_per_s, struct text *line)
{
    const struct recipe *recipe = m->config.recipe;
    const double flops = tokens_per_s * m->config.flops_per_token / (double)m->config.world;
    if (device_traits(recipe->cluster.device)->is_gpu)
        text_add(line, " | %.0f TFLOP/s/GPU", 1e-12 * flops);
    if (recipe->logging.peak_flops > 0.0)
        text_add(line, " | MFU %.1f %%", 100.0 * flops / recipe->logging.peak_flops);
}

/* "loss 2.3145 | grad 0.910 | lr 3.00e-03 | 118 ms | 17.4 K tok/s | 412 TFLOP/s/GPU | MFU 41.2 % | 61.3 GiB |
 * 1.2 B tokens | 1 min 20 s left": what is known of it. */
static void add_step(const struct metrics *m, const struct step_record *r, struct text *line)
{
    const int64_t total = m->config.recipe->train.train_iters;
    const double mean_s = m->recent_time_s / (double)m->recent_steps,
                 tokens_per_s = (double)m->recent_tokens / m->recent_time_s;
    char loss[NUMBER_CHARS], number[NUMBER_CHARS];
    text_add(line, "loss %s | ", loss_text(r->loss, loss));
    text_add(line, r->skipped ? "grad overflow" : "grad %.3f", r->grad_norm);
    text_add(line, " | lr %.2e", r->lr);
    if (r->loss_scale > 0.0)
        text_add(line, " | scale %.4g%s", r->loss_scale, r->skipped ? ", skipped" : "");
    text_add(line, " | %.*f ms", mean_s < 0.01 ? 1 : 0, 1e3 * mean_s);
    text_add(line, " | %s tok/s", count_text(tokens_per_s, number));
    add_rate(m, tokens_per_s, line);
    text_add(line, " | %s", bytes_text(r->ranks.peak_total_bytes, number));
    text_add(line, " | %s tokens", count_text((double)r->consumed_tokens, number));
    if (r->step < total)
        text_add(line, " | %s left", seconds_text(mean_s * (double)(total - r->step), number));
}

/* The columns of a terminal. */
static int columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* stays: the line is not replaced by that of the next step. */
static void show(struct metrics *m, const struct step_record *r, bool stays)
{
    AUTO(text) line = {0};
    char loss[NUMBER_CHARS];
    add_beginning(m, r->step, &line);
    add_step(m, r, &line);
    fputs(m->terminal ? "\r\x1b[K" : "", stdout);
    if (m->terminal && !stays) {
        printf("%.*s", columns() - 1, line.chars); // a wrapped line cannot be replaced
        fflush(stdout);
        return;
    }
    if (r->has_valid) {
        text_add(&line, "\n");
        add_beginning(m, r->step, &line);
        text_add(&line, "valid loss %s", loss_text(r->valid_loss, loss));
    }
    puts(line.chars);
    fflush(stdout);
}

static void take_valid(struct metrics *m, int64_t step, double loss)
{
    if (!(loss < m->best_valid))
        return;
    m->best_valid = loss;
    m->best_step = step;
}

enum status metrics_step(struct metrics *metrics, const struct step_record *record)
{
    metrics->steps++;
    metrics->recent_steps++;
    metrics->tokens += record->tokens;
    metrics->recent_tokens += record->tokens;
    metrics->time_s += record->step_time_s;
    metrics->first_s = metrics->steps == 1 ? record->step_time_s : metrics->first_s;
    if (metrics->steps > 1) {
        metrics->wait_s[0] += record->ranks.has_times ? record->ranks.wait_s.least : NAN;
        metrics->wait_s[1] += record->ranks.has_times ? record->ranks.wait_s.most : NAN;
    }
    metrics->rolled_back += record->rollbacks > 0;
    metrics->skipped += record->skipped;
    metrics->recent_time_s += record->step_time_s;
    metrics->last = *record;
    if (record->has_valid)
        take_valid(metrics, record->step, record->valid_loss);
    TRY(write_line(metrics, record));

    int64_t interval = metrics->config.recipe->logging.log_interval;
    bool stays = record->has_valid || record->step % (interval > 0 ? interval : 1) == 0 ||
                 metrics->steps == 1 || record->step == metrics->config.recipe->train.train_iters;
    if (stays || metrics->terminal)
        show(metrics, record, stays);
    if (stays) {
        metrics->recent_steps = metrics->recent_tokens = 0;
        metrics->recent_time_s = 0.0;
    }
    return OK;
}

bool metrics_lack_valid(const struct metrics *metrics)
{
    return metrics_file_lacks(metrics->file, "valid_loss");
}

enum status metrics_add_valid(struct metrics *metrics, int64_t step, double loss)
{
    AUTO(text) line = {0};
    AUTO(text) field = {0};
    char number[NUMBER_CHARS];
    add_number(&field, "valid_loss", loss);
    text_add(&line, "{\"step\": %lld%s}", (long long)step, field.chars);
    dashboard_add(metrics->dashboard, &line);
    take_valid(metrics, step, loss);
    printf("step %lld: valid %s, evaluated after the resume\n", (long long)step, loss_text(loss, number));
    return metrics_file_amend(metrics->file, &field);
}

enum status metrics_sync(struct metrics *metrics)
{
    return metrics_file_sync(metrics->file);
}

bool metrics_are_lost(const struct metrics *metrics)
{
    return metrics_file_is_lost(metrics->file);
}

/* Prints the share of the peak of all ranks, if known. */
static void print_share(const struct metrics *m, double tokens_per_s)
{
    const struct recipe *recipe = m->config.recipe;
    double peak = recipe->logging.peak_flops * (double)m->config.world;
    double share = peak > 0.0 ? tokens_per_s * m->config.flops_per_token / peak : 0.0;
    if (peak > 0.0)
        printf(": %.1f %% of the peak, %.1f %% with attention's causal half only", 100.0 * share,
               100.0 * share * model_causal_share(&recipe->model));
    fputs("\n", stdout);
}

/* Names the checkpoint that has it, or the key that keeps it. */
static void print_best(const struct metrics *m)
{
    const struct recipe_checkpoint *checkpoint = &m->config.recipe->checkpoint;
    printf(", best validation loss %.4f at step %lld", m->best_valid, (long long)m->best_step);
    if (checkpoint->save == NULL || (!checkpoint->keep_best && m->best_step == m->last.step))
        return;
    AUTO(text) hint = {0}, shown = {0}, folder = {0};
    store_of_step(checkpoint->save, m->best_step, "", &folder); // if the link could not be renewed
    if (!checkpoint->keep_best)
        text_add(&hint, " (checkpoint.keep_best=true keeps its weights)");
    else if (best_read(checkpoint->save).step == m->best_step)
        text_add(&hint, " (%s/best)", checkpoint->save);
    else
        text_add(&hint, " (%s)", folder.chars);
    text_add_printable(&shown, hint.chars, hint.length);
    fputs(shown.chars, stdout);
}

void metrics_summary(struct metrics *metrics, const char *why)
{
    char tokens[NUMBER_CHARS], speed[NUMBER_CHARS], time[NUMBER_CHARS], loss[NUMBER_CHARS];
    if (metrics->terminal)
        fputs("\r\x1b[K", stdout);
    printf("\n%s: %lld steps, %s tokens in %s", why, (long long)metrics->steps,
           count_text((double)metrics->tokens, tokens), seconds_text(metrics->time_s, time));
    if (metrics->steps > 0 && metrics->time_s > 0.0) {
        double rate = (double)metrics->tokens / metrics->time_s;
        printf(", %s tok/s, %.4g model TFLOP/s", count_text(rate, speed),
               1e-12 * rate * metrics->config.flops_per_token);
        print_share(metrics, rate);
        printf("last loss %s at step %lld", loss_text(metrics->last.loss, loss),
               (long long)metrics->last.step);
        if (isfinite(metrics->best_valid))
            print_best(metrics);
    }
    if (metrics->last.has_rollbacks)
        printf("\noptimizer post-validation: %lld of %lld steps were rolled back and repeated",
               (long long)metrics->rolled_back, (long long)metrics->steps);
    if (metrics->last.loss_scale > 0.0)
        printf("\nloss scale %.9g; %lld of %lld steps overflowed and were skipped", metrics->last.loss_scale,
               (long long)metrics->skipped, (long long)metrics->steps);
    fputs("\n", stdout);
    const int64_t later = metrics->steps - 1;
    struct run_measured measured = {
        .steps = later,
        .step_s = later > 0 ? (metrics->time_s - metrics->first_s) / (double)later : 0.0,
        .bubble_fraction = metrics->last.ranks.bubble_fraction,
        .memory_peak_bytes = metrics->last.ranks.peak_total_bytes,
    };
    for (int i = 0; i < 2; i++)
        measured.wait_s[i] = later > 0 ? metrics->wait_s[i] / (double)later : NAN;
    memcpy(measured.part_peak_bytes, metrics->last.ranks.peak_bytes, sizeof measured.part_peak_bytes);
    run_plan_compare(&metrics->config.predicted, &measured, stdout);
    printf("metrics: %s\n", metrics_file_path(metrics->file));
    fflush(stdout);
}

void metrics_close(struct metrics *metrics)
{
    if (metrics == NULL)
        return;
    metrics_file_close(metrics->file);
    dashboard_close(metrics->dashboard);
    free(metrics);
}
