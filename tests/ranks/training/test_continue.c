// SPDX-License-Identifier: Apache-2.0
/* Resumed runs: a run resumes from the newest loadable checkpoint, with a warning for each one that cannot
 * be loaded; and with a warning for each changed key that affects the results. */
#include "tests/support/tiny.h"
#include "trainer/run/train.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_STEPS = 8, RANKS = 4 };

static const char common[] = "cluster.threads_per_rank=1 train.eval_interval=0 "
                             "checkpoint.save_interval=1 checkpoint.keep_last=0 "
                             "resilience.heartbeat_timeout_seconds=60";

struct fixture {
    struct tiny tiny;
    double losses[MAX_STEPS + 1]; // of an uninterrupted run, by step
    struct text output;           // standard output and error of the last run
    enum status status;           // its exit status
};

/* ---- running ---- */

/* In a child process: a run that returns an error frees nothing, as the process is about to exit. */
static _Noreturn void run_child(const struct recipe *recipe, const char *output)
{
    int file = open(output, O_RDWR | O_CREAT | O_TRUNC, 0666);
    CHECK(file >= 0 && dup2(file, STDOUT_FILENO) >= 0 && dup2(file, STDERR_FILENO) >= 0);
    enum status status = train(recipe, NULL, recipe_world_size(recipe));
    if (status == OK)
        exit(OK); // LeakSanitizer reports them where it is enabled
    fflush(stdout);
    fprintf(stderr, "%s\n", fail_text());
    _exit((int)status);
}

/* Trains to step `steps` in the fixture's folder `name`, on four ranks unless the overrides set a
 * layout. */
static void run(struct fixture *s, const char *name, int steps, const char *more)
{
    char keys[1000], path[TINY_FOLDER_CHARS + 20];
    struct recipe *recipe = NULL;
    const char *layout = strstr(more, "tp=") != NULL ? "" : "tp=2 pp=2";
    const char *decay = strstr(more, "lr_decay_iters=") != NULL ? "" : "optimizer.lr_decay_iters=8";
    int how = 0;
    snprintf(keys, sizeof keys, "%s %s logging.run_dir=%s/%s train.train_iters=%d %s", layout, decay,
             s->tiny.folder, name, steps, more);
    MUST(tiny_recipe(&s->tiny, TINY_GPT, common, keys, 0, &recipe));
    snprintf(path, sizeof path, "%s/output", s->tiny.folder);
    fflush(stdout);
    pid_t child = fork(); // before this process starts a thread
    if (child == 0)
        run_child(recipe, path);
    CHECK(child > 0 && waitpid(child, &how, 0) == child && WIFEXITED(how));
    s->status = (enum status)WEXITSTATUS(how);
    recipe_destroy(recipe);
    text_free(&s->output);
    MUST(file_read(path, &s->output));
}

static void read_losses(const struct fixture *s, const char *name, double losses[MAX_STEPS + 1])
{
    struct text path = {0}, all = {0};
    text_add(&path, "%s/%s/metrics.jsonl", s->tiny.folder, name);
    MUST(file_read(path.chars, &all));
    memset(losses, 0, (MAX_STEPS + 1) * sizeof *losses);
    for (const char *at = text_chars(&all); (at = strstr(at, "{\"step\": ")) != NULL; at++) {
        char *end = NULL;
        long step = strtol(at + 9, &end, 10);
        CHECK(step >= 1 && step <= MAX_STEPS);
        losses[step] = strtod(strstr(end, "\"loss\": ") + 8, NULL);
    }
    text_free(&path);
    text_free(&all);
}

/* ---- checks ---- */

static enum status expect_output(const struct fixture *s, const char *format, const char *step)
{
    struct text words = {0};
    text_add(&words, format, s->tiny.folder, step);
    enum status status = strstr(text_chars(&s->output), words.chars) != NULL
                             ? OK
                             : fail(OUT_OF_BOUND, "missing: %s\nin: %s", words.chars, text_chars(&s->output));
    text_free(&words);
    return status;
}

static enum status expect_status(const struct fixture *s, enum status expected)
{
    return s->status == expected
               ? OK
               : fail(OUT_OF_BOUND, "ended with %s: %s", status_name(s->status), text_chars(&s->output));
}

/* The losses are bitwise those of the uninterrupted run. */
static enum status same_losses(const struct fixture *s, const char *name, int steps)
{
    double losses[MAX_STEPS + 1];
    read_losses(s, name, losses);
    for (int step = 1; step <= MAX_STEPS; step++)
        if (memcmp(&losses[step], step <= steps ? &s->losses[step] : &(double){0.0}, sizeof *losses) != 0)
            return fail(OUT_OF_BOUND, "step %d has loss %.17g, not %.17g", step, losses[step],
                        s->losses[step]);
    return OK;
}

static enum status expect_file(const struct fixture *s, const char *name, bool expected)
{
    char path[TINY_FOLDER_CHARS + 60];
    struct stat info;
    snprintf(path, sizeof path, "%s/run/checkpoints/%s", s->tiny.folder, name);
    return (stat(path, &info) == 0) == expected
               ? OK
               : fail(OUT_OF_BOUND, "%s %s", path, expected ? "is missing" : "exists");
}

/* ---- injected corruption ---- */

/* Flips a byte in the middle of a rank's tensor data, or truncates its file. */
static void damage(const struct fixture *s, int step, int rank, bool truncates)
{
    char path[TINY_FOLDER_CHARS + 80], byte = 0;
    struct stat info;
    snprintf(path, sizeof path, "%s/run/checkpoints/step-%08d/rank-%05d.safetensors", s->tiny.folder, step,
             rank);
    int file = open(path, O_RDWR);
    CHECK(file >= 0 && fstat(file, &info) == 0);
    off_t at = info.st_size - info.st_size / 4;
    CHECK(pread(file, &byte, 1, at) == 1);
    byte = (char)(byte ^ 4);
    CHECK(truncates ? ftruncate(file, at) == 0 : pwrite(file, &byte, 1, at) == 1);
    close(file);
}

/* Steps 1 to 4 exist. The newest has a corrupted byte, which only one rank of four reads. */
static enum status skips_a_corrupted_checkpoint(struct fixture *s)
{
    run(s, "run", 4, "");
    TRY(expect_status(s, OK));
    damage(s, 4, RANKS - 1, false);
    run(s, "run", 5, "");
    TRY(expect_status(s, OK));
    TRY(expect_output(s, "warning: %s/run/checkpoints/step-00000004/rank-%s.safetensors: the checksum of ",
                      "00003"));
    TRY(expect_output(s, "step-00000004 cannot be loaded; it is kept as %s/run/checkpoints/%s.broken\n",
                      "step-00000004"));
    TRY(expect_output(s, "resumes from %s/run/checkpoints/%s, step 3\n", "step-00000003"));
    TRY(expect_file(s, "step-00000004.broken/manifest.json", true));
    TRY(expect_file(s, "step-00000004/manifest.json", true)); // saved again
    return same_losses(s, "run", 5);
}

/* The newest checkpoint is truncated, and the previous one has a corrupted byte. */
static enum status skips_two_checkpoints(struct fixture *s)
{
    damage(s, 5, 0, true);
    damage(s, 4, 1, false);
    run(s, "run", 6, "");
    TRY(expect_status(s, OK));
    TRY(expect_output(s, "skipped: %s/run/checkpoints/%s", "step-00000005/rank-00000.safetensors: "));
    TRY(expect_output(s, "warning: %s/run/checkpoints/%s",
                      "step-00000004/rank-00001.safetensors: the checksum of "));
    TRY(expect_output(s, "resumes from %s/run/checkpoints/%s, step 3\n", "step-00000003"));
    TRY(expect_file(s, "step-00000005.broken", true));
    TRY(expect_file(s, "step-00000004.broken-2", true));
    return same_losses(s, "run", 6);
}

/* An explicit checkpoint is loaded or rejected. A different model is not treated as corruption. */
static enum status rejects_checkpoints(struct fixture *s)
{
    char named[TINY_FOLDER_CHARS + 80];
    damage(s, 6, 2, false);
    snprintf(named, sizeof named, "checkpoint.load=%s/run/checkpoints/step-00000006", s->tiny.folder);
    run(s, "run", 7, named);
    TRY(expect_status(s, BAD_CHECKPOINT));
    TRY(expect_output(s, "%s/run/checkpoints/step-00000006/rank-%s.safetensors: the checksum of ", "00002"));
    TRY(expect_file(s, "step-00000006.broken", false));
    run(s, "run", 7, "model.ffn_hidden_size=36");
    TRY(expect_status(s, WRONG_CHECKPOINT));
    TRY(expect_output(s, "%s/run/checkpoints/step-00000006: trained with model.ffn_hidden_size %s, but",
                      "48"));
    TRY(expect_file(s, "step-00000006.broken", false));
    for (int turn = 0; turn < 2; turn++) { // in the second one all files are truncated
        for (int step = 1; step <= 6; step++)
            damage(s, step, 0, turn > 0 || step == 2);
        run(s, "run", 7, "");
        TRY(expect_status(s, BAD_CHECKPOINT));
        TRY(expect_output(s, "checkpoint.save: %s/run/checkpoints: %s",
                          "none of its checkpoints can be loaded; start a new run with another "
                          "logging.run_dir, or set checkpoint.load to a checkpoint in another folder"));
    }
    return expect_file(s, "step-00000006.broken", false);
}

/* ---- another recipe ---- */

static enum status warns_of(struct fixture *s, const char *name, const char *keys, const char *lines)
{
    struct text expected = {0}, warnings = {0};
    run(s, name, 4, keys);
    TRY(expect_status(s, OK));
    for (const char *at = text_chars(&s->output); (at = strstr(at, "warning: ")) != NULL; at++)
        text_add_bytes(&warnings, at, strcspn(at, "\n") + 1);
    for (const char *line = lines; *line != 0; line += strcspn(line, "\n") + 1) {
        const int length = (int)strcspn(line, "\n");
        if (strncmp(line, "another ", strlen("another ")) == 0)
            text_add(&expected, "warning: data.train source 1 (%s/bytes): %.*s\n", s->tiny.folder, length,
                     line);
        else
            text_add(&expected, "warning: %s/%s/checkpoints/step-00000003: %.*s\n", s->tiny.folder, name,
                     length, line);
    }
    bool same = strcmp(text_chars(&expected), text_chars(&warnings)) == 0;
    enum status status = same ? OK
                              : fail(OUT_OF_BOUND, "%s printed\n%snot\n%s", keys, text_chars(&warnings),
                                     text_chars(&expected));
    text_free(&expected);
    text_free(&warnings);
    return status;
}

static enum status warns_of_changed_keys(struct fixture *s)
{
    run(s, "same", 3, "");
    TRY(expect_status(s, OK));
    // Changing the layout or the number of steps gives no warning.
    TRY(warns_of(s, "same", "tp=1 dp=2 pp=1 parallel.bucket_size_mb=1 train.micro_batch_size=1", ""));
    run(s, "other", 3, "");
    TRY(expect_status(s, OK));
    char keys[300], lines[1000];
    snprintf(keys, sizeof keys,
             "seed=77 optimizer.lr=0.004 model.hidden_dropout=0.1 data.eod_mask_loss=true "
             "train.global_batch_size=16 optimizer.lr_decay_style=linear");
    snprintf(
        lines, sizeof lines, "%s",
        "another seed (11, now 77) moves its samples: it continues after 14.9 % of epoch 1; about 20 of the "
        "161 samples of this epoch repeat text, and as much text is skipped (data.strict=true makes this an "
        "error)\nseed changed from 11 to 77\nmodel.hidden_dropout changed from 0 to "
        "0.1\noptimizer.lr changed from 0.005 to 0.004\noptimizer.lr_decay_style "
        "changed from cosine to linear\ndata.eod_mask_loss changed from false to "
        "true\nthe learning rate of step 4 changes from 0.00457 to 0.0033\n");
    TRY(warns_of(s, "other", keys, lines));
    run(s, "longer", 3, "");
    TRY(expect_status(s, OK));
    return warns_of(
        s, "longer", "optimizer.lr_decay_iters=16",
        "optimizer.lr_decay_iters changed from 8 to 16\n"
        "the learning rate of step 4 changes from 0.00457 to 0.00493; set optimizer.lr_decay_iters=8 to keep "
        "it\n");
}

/* The relative difference of step 4's loss from that of the unchanged run; it must not be zero. */
static enum status is_near(const struct fixture *s, const char *name)
{
    double losses[MAX_STEPS + 1];
    read_losses(s, name, losses);
    double apart = fabs(losses[4] - s->losses[4]);
    return apart > 0.0 && apart < s->losses[4] / 200.0
               ? OK
               : fail(OUT_OF_BOUND, "the loss of step 4 is %.9g, and was %.9g in fp32", losses[4],
                      s->losses[4]);
}

/* A checkpoint holds fp32 values, whatever the compute type: each type resumes from the other's, with a
 * warning. The loss of the next step is that of the unchanged run, within bf16 precision: over a hundred
 * tokens or so the errors are independent, 2^-8 of a logit each, and 3 standard deviations of those are far
 * below 1 in 200. */
static enum status changes_the_working_type(struct fixture *s)
{
    run(s, "narrow", 3, "precision.params_dtype=bf16");
    TRY(expect_status(s, OK));
    TRY(warns_of(s, "narrow", "precision.params_dtype=fp32",
                 "precision.params_dtype changed from bf16 to fp32\n"));
    run(s, "wide", 3, "");
    TRY(expect_status(s, OK));
    TRY(warns_of(s, "wide", "precision.params_dtype=bf16 tp=1 dp=2 pp=2 parallel.zero_stage=3",
                 "precision.params_dtype changed from fp32 to bf16\n"));
    return is_near(s, "wide");
}

/* Weights without master weights are bf16 in a checkpoint, too. Resumed from a checkpoint with master
 * weights they are rounded to nearest; in the other direction master weights start at the bf16 values.
 * Covers every ZeRO stage, which holds both as slices or whole. */
static enum status changes_master_weights(struct fixture *s)
{
#define BF16_ALONE "precision.params_dtype=bf16 precision.main_params_dtype=bf16"
    run(s, "masters", 3, "precision.params_dtype=bf16 tp=1 dp=2 pp=2 parallel.zero_stage=3");
    TRY(expect_status(s, OK));
    TRY(warns_of(s, "masters", BF16_ALONE, "precision.main_params_dtype changed from fp32 to bf16\n"));
    TRY(is_near(s, "masters"));
    run(s, "none", 3, BF16_ALONE);
    TRY(expect_status(s, OK));
    TRY(warns_of(s, "none", "precision.params_dtype=bf16 tp=1 dp=2 pp=2 parallel.zero_stage=3",
                 "precision.main_params_dtype changed from bf16 to fp32\n"));
    return is_near(s, "none");
}

/* The scale of each step, negative if the step was skipped. */
static void read_scales(const struct fixture *s, const char *name, double scales[MAX_STEPS + 1])
{
    struct text path = {0}, all = {0};
    text_add(&path, "%s/%s/metrics.jsonl", s->tiny.folder, name);
    MUST(file_read(path.chars, &all));
    memset(scales, 0, (MAX_STEPS + 1) * sizeof *scales);
    for (const char *at = text_chars(&all); (at = strstr(at, "{\"step\": ")) != NULL; at++) {
        const char *scale = strstr(at, "\"loss_scale\": "), *skipped = strstr(at, "\"skipped\": ");
        CHECK(scale != NULL && skipped != NULL);
        bool made = strncmp(skipped + 11, "false", 5) == 0;
        scales[strtol(at + 9, NULL, 10)] = strtod(scale + 14, NULL) * (made ? 1.0 : -1.0);
    }
    text_free(&path);
    text_free(&all);
}

/* The initial scale is four times too large for these gradients: it drops at the third overflow and at the
 * fourth, and rises after two good steps. A run that is stopped after each of its steps resumes as if
 * uninterrupted. */
static enum status resumes_its_loss_scale(struct fixture *s)
{
    static const char keys[] = "precision.params_dtype=fp16 precision.initial_loss_scale=32768 "
                               "precision.loss_scale_window=2 precision.hysteresis=3";
    double losses[2][MAX_STEPS + 1], scales[2][MAX_STEPS + 1];
    run(s, "half", MAX_STEPS, keys);
    TRY(expect_status(s, OK));
    if (strstr(text_chars(&s->output), " of 8 steps overflowed and were skipped\n") == NULL)
        return fail(OUT_OF_BOUND, "the number of skipped steps is not reported: %s", text_chars(&s->output));
    for (int step = 3; step <= MAX_STEPS; step += UNDER_SANITIZER ? MAX_STEPS - 3 : 1) { // warm-up takes 3
        run(s, "halves", step, keys);
        TRY(expect_status(s, OK));
    }
    for (int i = 0; i < 2; i++) {
        read_losses(s, i == 0 ? "half" : "halves", losses[i]);
        read_scales(s, i == 0 ? "half" : "halves", scales[i]);
    }
    if (memcmp(losses[0], losses[1], sizeof losses[0]) != 0 ||
        memcmp(scales[0], scales[1], sizeof scales[0]) != 0)
        return fail(OUT_OF_BOUND, "the resumed run differs");
    bool rises = false;
    for (int step = 2; step <= MAX_STEPS; step++)
        rises = rises || fabs(scales[0][step]) > fabs(scales[0][step - 1]);
    if (scales[0][3] != -32768.0 || scales[0][4] != -16384.0 || scales[0][5] != 8192.0 || !rises)
        return fail(OUT_OF_BOUND, "the scale was %g, %g, %g ...", scales[0][3], scales[0][4], scales[0][5]);
    return OK;
}

int main(void)
{
    static const struct {
        const char *what;
        enum status (*run)(struct fixture *s);
    } tests[] = {
        {"a corrupted checkpoint is skipped", skips_a_corrupted_checkpoint},
        {"two unusable checkpoints are skipped", skips_two_checkpoints},
        {"a named checkpoint, another model and a folder without a usable checkpoint are rejected",
         rejects_checkpoints},
        {"a loss scale", resumes_its_loss_scale},
        {"keys that change the mathematics", warns_of_changed_keys},
        {"another working type", changes_the_working_type},
        {"weights with and without masters", changes_master_weights},
    };
    // The last three add no threads: the values of keys, and conversions of what is read.
    const size_t count = sizeof tests / sizeof *tests - (UNDER_TSAN ? 3 : 0);
    struct fixture fixture = {.status = OK};
    int bad = 0;
    MUST(tiny_create(&fixture.tiny));
    run(&fixture, "whole", 6, "");
    MUST(expect_status(&fixture, OK));
    read_losses(&fixture, "whole", fixture.losses);
    for (size_t i = 0; i < count && bad == 0; i++) {
        enum status status = tests[i].run(&fixture);
        bad += status != OK;
        printf("%s: %s\n", tests[i].what, status == OK ? "ok" : fail_text());
    }
    text_free(&fixture.output);
    tiny_destroy(&fixture.tiny);
    return bad != 0;
}
