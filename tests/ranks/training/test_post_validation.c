// SPDX-License-Identifier: Apache-2.0
/* Optimizer post-validation is bit-identical to the synchronous optimizer step: runs in which every stage
 * steps on its local information, compared with the synchronous run on one pipeline rank: losses, norms,
 * weights, moments, validation loss. Gradients are never clipped, clipped in every step, or in some; with a
 * gradient that is not finite in any stage; stopped and resumed. The speculation must be active: speculative
 * steps and rollbacks are counted.
 *     test_post_validation [MPIRUN]
 *
 * Pitfall: no rank speculates on the last step of a run, so of n steps n - 1 count. */
#include "layers/model.h"
#include "schedules/schedule.h"
#include "tests/support/launched.h"
#include "tests/support/sanitized.h"
#include "tests/support/traffic.h"
#include "trainer/engine/step.h"
#include "trainer/run/train.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ON         " pipeline.optimizer_post_validation=true "
#define CLIP(text) " optimizer.clip_grad=" text " "
/* With this learning rate the norm stays between 3 and 5. */
#define SLOW       " optimizer.lr=1e-4 optimizer.min_lr=1e-5 "

enum { AHEAD = TINY_STEPS - 1, WORDS_CHARS = 1200 };

/* Expected of the first rank, which holds no layers and so contributes little to the norm. */
enum outcome { SPECULATES, WAITS, ROLLS_BACK, BOTH, ANY };

static const struct clipping {
    const char *common;
    enum outcome outcome;
    bool schedules; // the full set is run with every second model
} clippings[] = {
    {CLIP("0"), SPECULATES, false},
    {CLIP("1000"), SPECULATES, false},
    {CLIP("0.01"), WAITS, false},
    {CLIP("2") SLOW, ROLLS_BACK, true},
    {CLIP("3"), UNDER_SANITIZER ? ANY : BOTH, true},
};
enum { CLIPPINGS = sizeof clippings / sizeof *clippings };

/* The first layout is also run under mpirun. */
struct subject {
    const char *name;
    enum tiny_family family;
    const char *common;
    const char *const *layouts;
    const char *pipelines[3]; // each with every schedule that supports it
};

static const char *const deep[] = {
    "pp=4 pipeline.layout=[0,2,1,2] pipeline.schedule=zb-h1",
    "pp=2 pipeline.layout=[0,5]",
    "pp=2 pipeline.layout=[0,5] cluster.device=strict",
    "pp=4 pipeline.layout=[0,2,1,2] pipeline.schedule=zb-h2 cluster.device=strict",
    "pp=4 pipeline.layout=[0,0,2,3] pipeline.schedule=gpipe",
    NULL,
};

static const char *const wide[] = {
    "pp=2 pipeline.layout=[0,5] pipeline.schedule=zb-h1",
    "pp=2 pipeline.layout=[0,5] parallel.rank_order=pp-dp-tp-cp-ep cluster.device=strict",
    "pp=2 pipeline.layout=[0,5] pipeline.schedule=zb-h2 parallel.rank_order=cp-ep-dp-pp-tp",
    NULL,
};

static const struct subject subjects[] = {
    {"gpt, tied", TINY_GPT, "", deep, {"pp=2", "pp=4"}},
    {"llama, untied, dropout", TINY_LLAMA, "model.attention_dropout=0.3", deep, {"pp=2", "pp=4"}},
    {"gpt, tp 2 dp 2, sequence parallel, dropout, documents",
     TINY_GPT,
     "tp=2 dp=2 parallel.sequence_parallel=true train.micro_batch_size=1" TINY_DROPOUT TINY_DOCUMENTS,
     wide,
     {"pp=2"}},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

struct test {
    struct tiny tiny;
    const char *program, *mpirun;
    int runs, failures;
};

static const struct trace_options as_one = {.transport = "local"};
static const struct trace_options ahead_of_steps = {.transport = "local", .looks_ahead = true};

static void record(struct test *test, const char *what, const char *layout, bool good, const char *why)
{
    test->runs++;
    if (good)
        return;
    test->failures++;
    printf("FAILED  %s: %s: %s\n", what, layout, why);
    fflush(stdout);
}

static enum status run(const struct test *test, const struct subject *subject, const char *common,
                       const char *layout, const struct trace_options *options, struct trace *out)
{
    char all[WORDS_CHARS];
    struct recipe *recipe = NULL;
    snprintf(all, sizeof all, "%s %s", subject->common, common);
    TRY(tiny_recipe(&test->tiny, subject->family, all, layout, 0, &recipe));
    enum status status = trace_run(recipe, options, out);
    recipe_destroy(recipe);
    return status;
}

/* ---- results and statistics ---- */

static bool has_outcome(enum outcome outcome, const struct trace *t, struct text *why)
{
    text_add(why, "speculation in %d of %d steps, %d updates rolled back", t->ahead, AHEAD, t->rollbacks);
    switch (outcome) {
    case SPECULATES:
        return t->ahead == AHEAD && t->rollbacks == 0;
    case WAITS:
        return t->ahead == 0 && t->rollbacks == 0;
    case ROLLS_BACK:
        return t->ahead == 0 && t->rollbacks >= AHEAD;
    case BOTH:
        return t->ahead > 0 && t->rollbacks > 0;
    case ANY: // too few steps to check
        return true;
    }
    return false;
}

static void check(struct test *test, const struct subject *subject, const struct clipping *clipping,
                  const char *layout, bool empty_first, const struct trace *reference)
{
    struct trace trace = {.steps = 0};
    struct text why = {0}, words = {0};
    text_add(&words, "%s%s%s", clipping->common, layout, ON);
    enum status status =
        run(test, subject, clipping->common, words.chars + strlen(clipping->common), &ahead_of_steps, &trace);
    bool differs = status == OK && trace_differs(reference, &trace, &why);
    record(test, subject->name, words.chars, status == OK && !differs,
           status == OK ? text_chars(&why) : fail_text());
    text_free(&why);
    if (status == OK && empty_first) {
        bool good = has_outcome(clipping->outcome, &trace, &why);
        record(test, subject->name, words.chars, good, text_chars(&why));
    }
    text_free(&why);
    text_free(&words);
}

static void check_schedules(struct test *test, const struct subject *subject, const struct clipping *clipping,
                            const char *pipeline, const struct trace *reference)
{
    for (int i = 0; schedule_about(i) != NULL; i++)
        for (int v = 1; v <= 2; v++) {
            if (!long_tests() && (2 * i + v + (int)(clipping - clippings)) % 12 != 0)
                continue; // test_schedules runs all of them
            char layout[200], all[WORDS_CHARS];
            struct recipe *recipe = NULL;
            int layers = 2 * v * (pipeline[3] - '0');
            snprintf(layout, sizeof layout, "%s pipeline.schedule=%s pipeline.virtual_stages=%d%s", pipeline,
                     schedule_about(i)->name, v,
                     layers > 5 && v > 1 ? " pipeline.layout=[0,1,0,1,1,0,1,1]" : "");
            snprintf(all, sizeof all, "%s%s", layout, ON);
            if (tiny_recipe(&test->tiny, subject->family, subject->common, all, 0, &recipe) == OK)
                check(test, subject, clipping, layout, false, reference);
            recipe_destroy(recipe);
        }
}

/* Each schedule with each clipping mode, with one of the models. */
static bool runs_all_schedules(const struct subject *subject, const struct clipping *clipping)
{
    return clipping->schedules && ((subject - subjects) + (clipping - clippings)) % 2 == 0;
}

static void check_subject(struct test *test, const struct subject *subject, const struct clipping *clipping)
{
    struct trace reference = {.steps = 0};
    enum status status = run(test, subject, clipping->common, "", &as_one, &reference);
    record(test, subject->name, clipping->common, status == OK, fail_text());
    for (int i = 0; status == OK && subject->layouts[i] != NULL; i++)
        if (long_tests() || (i + (int)(clipping - clippings)) % 2 == 0) // each with every second one
            check(test, subject, clipping, subject->layouts[i], true, &reference);
    if (status != OK || !runs_all_schedules(subject, clipping))
        return;
    int count = subject->pipelines[1] != NULL ? 2 : 1;
    for (int i = UNDER_SANITIZER ? count - 1 : 0; i < count; i++)
        check_schedules(test, subject, clipping, subject->pipelines[i], &reference);
}

/* Stopped in a run with post-validation and resumed by one without, and the reverse. */
static void check_resumed(struct test *test, const struct subject *subject, bool first_waits)
{
    const struct clipping *clipping = &clippings[CLIPPINGS - 1];
    struct trace reference = {.steps = 0}, trace = {.steps = 0};
    struct text words[2] = {{0}, {0}}, why = {0};
    for (int i = 0; i < 2; i++)
        text_add(&words[i], "%s%s checkpoint.save=%s/save-%d", subject->layouts[i],
                 (i == 0) == first_waits ? "" : ON, test->tiny.folder, test->runs);
    struct trace_options stop = ahead_of_steps, resume = ahead_of_steps;
    stop.stop_after = TINY_STEPS / 3;
    resume.resume = true;
    enum status status = run(test, subject, clipping->common, "", &as_one, &reference);
    if (status == OK)
        status = run(test, subject, clipping->common, words[0].chars, &stop, &trace);
    if (status == OK)
        status = run(test, subject, clipping->common, words[1].chars, &resume, &trace);
    bool differs = status == OK && trace_differs(&reference, &trace, &why);
    record(test, subject->name, words[1].chars, status == OK && !differs,
           status == OK ? text_chars(&why) : fail_text());
    text_free(&words[0]);
    text_free(&words[1]);
    text_free(&why);
}

/* ---- gradients that are not finite ---- */

struct fault {
    int64_t step;
    int pp; // the pipeline rank that gets it
    float value;
};

/* Before the squares are computed. */
static enum status inject(void *context, struct rank_state *w, int64_t step)
{
    const struct fault *fault = context;
    if (step != fault->step || w->groups->coord.pp != fault->pp)
        return OK;
    const struct held_param *held = &w->weights.list[w->weights.count - 1];
    TRY(copy_to_device(w->compute, held->gradient.data, &fault->value, sizeof fault->value));
    return stream_sync(w->compute);
}

/* The error message is the same with and without post-validation. */
static void check_fault(struct test *test, const struct subject *subject, const char *layout,
                        struct fault fault)
{
    char messages[2][1024], on[WORDS_CHARS], what[200];
    enum status status[2];
    struct trace_options options = ahead_of_steps;
    options.observer = (struct step_observer){.context = &fault, .on_gradients_reduced = inject};
    snprintf(on, sizeof on, "%s%s", layout, ON);
    snprintf(what, sizeof what, "%s, %g on pipeline rank %d in step %d", subject->name, (double)fault.value,
             fault.pp, (int)fault.step);
    for (int i = 0; i < 2; i++) {
        struct trace trace = {.steps = 0};
        status[i] = run(test, subject, CLIP("1"), i == 0 ? layout : on, &options, &trace);
        snprintf(messages[i], sizeof messages[i], "%s", status[i] == OK ? "nothing" : fail_text());
    }
    char step[40];
    snprintf(step, sizeof step, "step %d: the gradient of ", (int)fault.step);
    bool good = status[0] == NOT_FINITE && status[1] == NOT_FINITE && strcmp(messages[0], messages[1]) == 0 &&
                strstr(messages[0], step) != NULL;
    record(test, what, messages[0], good, messages[1]);
}

/* With the check disabled the results are the same too. */
static void check_unchecked(struct test *test, const struct subject *subject, const char *layout,
                            struct fault fault)
{
    const char *common = CLIP("1") "resilience.check_for_nan_in_loss_and_grad=false";
    char on[WORDS_CHARS];
    struct text why = {0};
    struct trace traces[2] = {{.steps = 0}, {.steps = 0}};
    struct trace_options options = ahead_of_steps;
    options.observer = (struct step_observer){.context = &fault, .on_gradients_reduced = inject};
    snprintf(on, sizeof on, "%s%s", layout, ON);
    enum status status = run(test, subject, common, layout, &options, &traces[0]);
    if (status == OK)
        status = run(test, subject, common, on, &options, &traces[1]);
    // Every rank that detects it stops.
    bool held = fault.pp > 0 || traces[1].ahead < fault.step;
    bool differs = status == OK && trace_differs(&traces[0], &traces[1], &why);
    record(test, "a gradient that is not finite, unchecked", on, status == OK && !differs && held,
           status == OK ? text_chars(&why) : fail_text());
    text_free(&why);
}

/* In fp16 such a step is skipped on all ranks; ranks that speculated roll their update back. */
static void check_skipped(struct test *test, const struct subject *subject, const char *layout,
                          const char *scale, struct fault fault)
{
    char on[WORDS_CHARS], common[WORDS_CHARS];
    struct text why = {0};
    struct trace traces[2] = {{.steps = 0}, {.steps = 0}};
    struct trace_options options = ahead_of_steps;
    options.observer = (struct step_observer){.context = &fault, .on_gradients_reduced = inject};
    snprintf(on, sizeof on, "%s%s", layout, ON);
    snprintf(common, sizeof common, "%s precision.params_dtype=fp16 precision.hysteresis=1 %s", CLIP("0"),
             scale);
    enum status status = run(test, subject, common, layout, &options, &traces[0]);
    if (status == OK)
        status = run(test, subject, common, on, &options, &traces[1]);
    bool differs = status == OK && trace_differs(&traces[0], &traces[1], &why);
    bool skipped = fault.step == 0 || !isfinite(traces[1].grad_norm[fault.step - 1]);
    bool rolled_back = fault.step == 0 || traces[1].rollbacks > 0;
    record(test, "fp16", on, status == OK && !differs && skipped && rolled_back,
           status == OK ? text_chars(&why) : fail_text());
    text_free(&why);
}

static void check_all_skipped(struct test *test)
{
    static const char empty_first[] = "pp=4 pipeline.layout=[0,2,1,2] pipeline.schedule=zb-h1";
    static const char moving[] = "precision.initial_loss_scale=16384 precision.loss_scale_window=3";
    check_skipped(test, &subjects[0], empty_first, "precision.loss_scale=1024",
                  (struct fault){2, 3, INFINITY});
    check_skipped(test, &subjects[1], empty_first, "precision.initial_loss_scale=1024",
                  (struct fault){3, 2, NAN});
    check_skipped(test, &subjects[0], "pp=2", moving, (struct fault){0, 0, 0.0F});
    check_skipped(test, &subjects[2], "pp=2", moving, (struct fault){0, 0, 0.0F});
}

static void check_faults(struct test *test)
{
    static const char *const layouts[] = {
        "pp=4 pipeline.layout=[0,2,1,2] pipeline.schedule=zb-h1",
        "pp=4 pipeline.layout=[0,2,1,2] pipeline.schedule=1f1b cluster.device=strict"};
    static const int where[] = {0, 2, 3};
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 3; i++) {
            if (UNDER_SANITIZER && i != 2 * s) // the first rank in one layout, the last in the other
                continue;
            check_fault(test, &subjects[s], layouts[s], (struct fault){1 + i, where[i], INFINITY});
            if (long_tests()) { // other values and steps, on the same code
                check_fault(test, &subjects[s], layouts[s], (struct fault){TINY_STEPS, where[i], -INFINITY});
                check_fault(test, &subjects[s], layouts[s], (struct fault){TINY_STEPS / 2, where[i], NAN});
                check_unchecked(test, &subjects[s], layouts[s], (struct fault){3, where[i], NAN});
            }
            check_unchecked(test, &subjects[s], layouts[s], (struct fault){2, where[i], INFINITY});
        }
    check_fault(test, &subjects[2], "pp=2", (struct fault){3, 0, INFINITY});
    check_fault(test, &subjects[2], "pp=2", (struct fault){3, 1, INFINITY});
}

/* ---- whole runs ---- */

/* The fields of a metrics.jsonl line that do not depend on time. */
static void add_line(const char *line, const char *end, struct text *out)
{
    static const char *const keys[] = {
        "\"step\": ", "\"loss\": ", "\"grad_norm\": ", "\"lr\": ", "\"tokens\": ", "\"valid_loss\": "};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const char *at = strstr(line, keys[k]);
        if (at != NULL && at < end)
            text_add(out, "%.*s ", (int)(strlen(keys[k]) + strcspn(at + strlen(keys[k]), ",}")), at);
    }
    text_add(out, "\n");
}

static int read_metrics(const struct test *test, const char *name, struct text *out)
{
    struct text path = {0}, all = {0};
    int rollbacks = 0;
    text_add(&path, "%s/%s/metrics.jsonl", test->tiny.folder, name);
    MUST(file_read(path.chars, &all));
    for (const char *line = text_chars(&all), *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        add_line(line, end, out);
        const char *count = strstr(line, "\"rollbacks\": ");
        if (count != NULL && count < end)
            rollbacks += (int)strtol(count + strlen("\"rollbacks\": "), NULL, 10);
    }
    text_free(&path);
    text_free(&all);
    return rollbacks;
}

static const char stop_variable[] = "POST_VALIDATION_STOPS";

/* Replaces the trainer's own function (ld --wrap): the signal arrives before the first step ends. */
void __real_stop_training(struct stop *stop);
void __wrap_stop_training(struct stop *stop);
void __wrap_stop_training(struct stop *stop)
{
    __real_stop_training(stop);
    if (rank_context()->rank == 0 && getenv(stop_variable) != NULL)
        kill(getpid(), SIGTERM);
    while (getenv(stop_variable) != NULL && !stop_requested(stop))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* One silent run of the trainer in a child process; `stops`: requests a stop in its first step. The
 * process's exit status is the trainer's status. */
static enum status train_in_child(const struct test *test, const struct subject *subject, const char *words,
                                  bool stops)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(&test->tiny, subject->family, subject->common, words, 0, &recipe));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1);
        if (stops)
            setenv(stop_variable, "", 1);
        enum status status = train(recipe, NULL, recipe_world_size(recipe));
        if (status != OK && status != STOPPED)
            fprintf(stderr, "%s\n", fail_text());
        _exit((int)status);
    }
    recipe_destroy(recipe);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return fail(PEER_LOST, "a run ended with status %d", status);
    return (enum status)WEXITSTATUS(status);
}

/* With evaluations and checkpoints; and stopped after its first step, which rank 0 has already left, and
 * resumed. metrics.jsonl has the same lines as that of the synchronous run, in the same order. */
static void check_whole_runs(struct test *test, const struct subject *subject, const char *clip,
                             bool rolls_back)
{
    static const char *const names[] = {"waits", "validates", "stopped"};
    struct text lines[3] = {{0}, {0}, {0}};
    int rollbacks = 0;
    for (int i = 0; i < 3; i++) {
        struct text words = {0};
        text_add(&words,
                 "%s%s%s train.eval_interval=3 checkpoint.save_interval=4 "
                 "checkpoint.save=%s/%s-%d/checkpoints logging.run_dir=%s/%s-%d",
                 subject->layouts[1], i > 0 ? ON : "", clip, test->tiny.folder, names[i], test->runs,
                 test->tiny.folder, names[i], test->runs);
        enum status status = train_in_child(test, subject, words.chars, i == 2);
        if (i == 2 && status == STOPPED)
            status = train_in_child(test, subject, words.chars, false);
        else if (i == 2)
            status = fail(OUT_OF_BOUND, "was not stopped: %s", status_name(status));
        char name[40];
        snprintf(name, sizeof name, "%s-%d", names[i], test->runs);
        if (status == OK)
            rollbacks = read_metrics(test, name, &lines[i]);
        else
            text_add(&lines[i], "%s", status_name(status));
        text_free(&words);
    }
    bool same = strcmp(text_chars(&lines[0]), text_chars(&lines[1])) == 0 &&
                strcmp(text_chars(&lines[0]), text_chars(&lines[2])) == 0 && strlen(lines[0].chars) > 200;
    record(test, subject->name, "metrics.jsonl", same && rolls_back == (rollbacks > 0),
           text_chars(&lines[2]));
    for (int i = 0; i < 3; i++)
        text_free(&lines[i]);
}

/* Only the end-of-run record follows the last weights, which are still being exchanged between ranks. */
static void check_ends(struct test *test, const char *layout)
{
    for (int i = 0; i < (long_tests() ? 5 : 2); i++) {
        struct text words = {0};
        text_add(&words,
                 "%s" ON
                 "train.train_iters=2 train.eval_interval=0 checkpoint.save=none optimizer.lr_warmup_iters=0 "
                 "model.hidden_size=48 train.micro_batch_size=1 logging.run_dir=%s/ends-%d",
                 layout, test->tiny.folder, test->runs);
        enum status status = train_in_child(test, &subjects[0], words.chars, false);
        record(test, "ends without evaluation and checkpoint", layout, status == OK, fail_text());
        text_free(&words);
    }
}

/* ---- messages ---- */

struct messages {
    struct run run;
    int64_t sent[4], received[4]; // of reports, by rank
    int64_t collectives[4];       // over the world
    int64_t bytes;                // of a report
};

static enum status count_messages(struct world *world, void *argument)
{
    struct messages *messages = argument;
    struct rank_state state;
    struct step_result result;
    struct traffic traffic = {.count = 0};
    TRY(world_observe(world, traffic_observer(&traffic)));
    TRY(rank_create(&messages->run, world, &(struct rank_options){.training = true}, &state));
    TRY(rank_step(&state, &result));
    const struct traffic_row pp = traffic_of(&traffic, "pp");
    messages->sent[world->rank] = pp.calls[CALL_SEND];
    messages->received[world->rank] = pp.calls[CALL_RECEIVE];
    if (world->rank == 0)
        messages->bytes = pp.bytes[CALL_SEND];
    const struct traffic_row all = traffic_of(&traffic, "world");
    messages->collectives[world->rank] = all.calls[CALL_ALL_REDUCE] + all.calls[CALL_ALL_GATHER];
    rank_destroy(&state);
    return OK;
}

/* One report down and one up across each boundary, and none over the world: the dry run counts the same. */
static void check_messages(struct test *test, bool dry)
{
    struct messages messages = {.bytes = 0};
    struct recipe *recipe = NULL;
    const char *layout = "pp=4" ON;
    MUST(tiny_recipe(&test->tiny, TINY_GPT, dry ? "cluster.device=dry" : "", layout, 0, &recipe));
    enum status status = run_create(recipe, !dry, &messages.run);
    if (status == OK && !dry)
        status = world_run("local", 4, count_messages, &messages);
    for (int rank = 0; status == OK && dry && rank < 4; rank++)
        status = world_run_dry(4, rank, count_messages, &messages);
    bool good = status == OK;
    for (int rank = 0; rank < 4; rank++) {
        int64_t expected = rank == 0 || rank == 3 ? 1 : 2;
        good = good && messages.sent[rank] == expected && messages.received[rank] == expected &&
               messages.collectives[rank] == 0;
    }
    // Losses and tokens of 8 samples, a sum of squares per parameter, a speculation flag and the statistics
    // of each rank.
    struct params params;
    MUST(params_declare(&recipe->model, &messages.run.mesh.degrees, false, &params));
    int64_t bytes = (2 * 8 + params.count + 4) * (int64_t)sizeof(double);
    good = good && messages.bytes == bytes + 4 * (int64_t)sizeof(struct step_stats);
    record(test, dry ? "messages of a dry run" : "messages", layout, good,
           "another number of messages than expected");
    params_free(&params);
    run_destroy(&messages.run);
    recipe_destroy(recipe);
}

/* ---- under mpirun ---- */

static void check_processes(struct test *test, const struct subject *subject)
{
    static const char *const names[] = {"mpirun", "mpirun, blocking sends"};
    const struct clipping *clipping = &clippings[CLIPPINGS - 1];
    struct trace reference = {.steps = 0}, traces[2] = {{.steps = 0}, {.steps = 0}};
    char layout[WORDS_CHARS], all[WORDS_CHARS];
    snprintf(all, sizeof all, "%s %s", subject->common, clipping->common);
    snprintf(layout, sizeof layout, "%s%s", subject->layouts[0], ON);
    const struct launch runs[] = {
        {.family = subject->family, .common = all, .layout = layout, .looks_ahead = true},
        {.family = subject->family,
         .common = all,
         .layout = layout,
         .looks_ahead = true,
         .synchronous = true},
    };
    enum status status = run(test, subject, clipping->common, "", &as_one, &reference);
    if (status == OK)
        status = launch(&(struct mpirun){test->mpirun, test->program, &test->tiny}, runs, 2, traces);
    for (int i = 0; i < 2; i++) {
        struct text why = {0};
        bool good = status == OK && !trace_differs(&reference, &traces[i], &why) &&
                    has_outcome(clipping->outcome, &traces[i], &why);
        record(test, names[i], layout, good, status == OK ? text_chars(&why) : fail_text());
        text_free(&why);
    }
}

int main(int argc, char **argv)
{
    if (launched_is_rank(argc, argv))
        return launched_rank(argc, argv);
    struct test test = {.program = argv[0], .mpirun = argc > 1 ? argv[1] : NULL};
    MUST(tiny_create(&test.tiny));
    for (int s = 0; s < SUBJECTS; s += UNDER_SANITIZER ? 2 : 1) {
        // Otherwise only some cases: the code paths are the same in all.
        for (int c = UNDER_SANITIZER ? CLIPPINGS - 1 : 0; c < CLIPPINGS; c++)
            check_subject(&test, &subjects[s], &clippings[c]);
        for (int waits = 0; waits < 2; waits++)
            if (long_tests() || s % 2 == waits)
                check_resumed(&test, &subjects[s], waits == 1);
        // ThreadSanitizer does not support new threads in a child of a multithreaded process.
        if (!UNDER_TSAN) {
            if (long_tests() || s == 0)
                check_whole_runs(&test, &subjects[s], CLIP("0"), false);
            check_whole_runs(&test, &subjects[s], CLIP("2") SLOW, true);
        }
        if (test.mpirun != NULL)
            check_processes(&test, &subjects[s]);
        printf("%s: %d runs, %d failures so far\n", subjects[s].name, test.runs, test.failures);
        fflush(stdout);
    }
    check_faults(&test);
    if (!UNDER_TSAN) {
        check_ends(&test, "dp=2 pp=4 parallel.zero_stage=1");
        check_ends(&test, "dp=2 pp=4 parallel.zero_stage=2");
    }
    check_all_skipped(&test);
    check_messages(&test, false);
    check_messages(&test, true);
    tiny_destroy(&test.tiny);
    printf("%d runs, %d failures\n", test.runs, test.failures);
    return test.failures != 0;
}
