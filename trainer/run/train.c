// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/train.h"
#include "base/memory.h"
#include "trainer/checkpoint/load.h"
#include "trainer/run/compare_ranks.h"

#include "base/clock.h"
#include "base/machine.h"
#include "layers/model.h"
#include "trainer/checkpoint/best.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/in_memory/memory_checkpoint.h"
#include "trainer/checkpoint/store_lock.h"
#include "trainer/engine/agree.h"
#include "trainer/engine/step.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/progress/control/control.h"
#include "trainer/progress/monitor.h"
#include "trainer/run/data/run_data.h"
#include "trainer/run/metrics.h"
#include "trainer/run/run_dir.h"
#include "trainer/run/run_files.h"
#include "trainer/run/run_plan.h"
#include "trainer/run/saving.h"
#include "trainer/run/timeline_write.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct session {
    struct rank_state rank_state;
    struct metrics *metrics; // rank 0 only
    struct text choices;     // kernel choices of rank 0's device, as last printed
    struct text broken;      // why metrics cannot be written; empty: they can
    const struct run_dir *folder;
    const struct run_plan *plan;
    struct monitor *monitor; // NULL: none
    struct saver saver;
    bool stepped, warned, complete; // complete: there was no step left to train
};

static bool is_rank_zero(const struct session *s)
{
    return s->rank_state.world->rank == 0;
}

/* ---- one rank ---- */

/* Loads the checkpoint named by the recipe; on failure, the message lists the alternatives. */
static enum status load_named(struct session *s, const char *path)
{
    struct rank_state *state = &s->rank_state;
    const struct recipe_checkpoint *checkpoint = &state->run->recipe->checkpoint;
    AUTO(text) folder = {0};
    text_add(&folder, "%s", path);
    if (checkpoint->ckpt_step > 0)
        text_add(&folder, "/step-%08lld", (long long)checkpoint->ckpt_step);
    enum status status =
        checkpoint_load(state, folder.chars, checkpoint->finetune ? CHECKPOINT_FINETUNE : CHECKPOINT_RESUME);
    if (status == OK && checkpoint->finetune) {
        state->step = state->skipped = state->sample_offset = 0;
        state->scale.value = loss_scale_of(state->run->recipe);
    }
    if (status == IO_ERROR)
        return fail(status, "checkpoint.load: %s; use auto, none or a checkpoint that can be read",
                    fail_text());
    if (status != BAD_CHECKPOINT && status != WRONG_CHECKPOINT)
        return status;
    return fail(status, "checkpoint.load: %s%s", fail_text(),
                status == BAD_CHECKPOINT ? "; to load an older one set checkpoint.load=FOLDER/step-N" : "");
}

/* Loads the newest checkpoint of this run (and sets *own), unless checkpoint.load names one at least as
 * new. */
static enum status load_checkpoint(struct session *s, bool *own)
{
    struct rank_state *state = &s->rank_state;
    const char *load = state->run->recipe->checkpoint.load;
    bool is_auto = load != NULL && strcmp(load, "auto") == 0;
    double named = is_rank_zero(s) ? (double)s->folder->named : -1.0;
    char *path = NULL;
    *own = false;
    if (load == NULL)
        return OK;
    TRY(rank_agree_max(state, &named, 1));
    TRY(checkpoint_load_newest(state, s->saver.memory, (int64_t)named, &path));
    *own = path != NULL;
    if (!*own && !is_auto)
        TRY(load_named(s, load));
    if (is_rank_zero(s) && !*own && state->run->recipe->checkpoint.finetune)
        print_line(stdout, "starts at step 0 with weights of %s", load);
    else if (is_rank_zero(s) && (*own || !is_auto)) {
        AUTO(text) resharded = {0};
        checkpoint_add_resharded(state, *own ? path : load, &resharded);
        print_line(stdout, "resumes from %s, step %lld%s%s%s", *own ? path : load, (long long)state->step,
                   text_chars(&resharded), *own && !is_auto ? ", which is newer than checkpoint.load " : "",
                   *own && !is_auto ? load : "");
    }
    free(path);
    return OK;
}

/* Also renews the link, which an interrupted save may not have done. */
static void find_best(const struct recipe *recipe, struct best_checkpoint *out)
{
    out->step = -1;
    if (recipe->checkpoint.keep_best && recipe->checkpoint.save != NULL &&
        best_find(recipe->checkpoint.save, out) != OK)
        print_line(stderr, "warning: %s", fail_text());
}

static enum status begin(struct session *s)
{
    const struct recipe *recipe = s->rank_state.run->recipe;
    bool own;
    TRY(compare_ranks(&s->rank_state));
    TRY(memory_checkpoints_open(&s->rank_state, &s->saver.memory));
    TRY(load_checkpoint(s, &own));
    if (!is_rank_zero(s))
        return OK;
    TRY(run_dir_write_recipe(recipe));
    s->complete = s->rank_state.step >= recipe->train.train_iters && (s->rank_state.step > 0 || own);
    if (s->complete)
        printf("training is complete: step %lld, train.train_iters %lld\n", (long long)s->rank_state.step,
               (long long)recipe->train.train_iters);
    run_data_report(&s->rank_state);
    struct launcher launcher;
    struct best_checkpoint best;
    find_best(recipe, &best);
    TRY(launcher_find(&launcher));
    struct metrics_config config = {
        .recipe = recipe,
        .first_step = s->rank_state.step + 1,
        .flops_per_token = model_flops_per_token(&recipe->model),
        .world = s->rank_state.world->size,
        .predicted = s->plan->predicted,
        .launched = launcher.size > 0,
        .continues = own || s->folder->newest >= 0,
        .best_step = best.step,
        .best_valid = best.loss,
    };
    stop_training(s->rank_state.run->stop); // where metrics.jsonl exists, a signal finishes the running step
    TRY(metrics_open(&config, &s->metrics));
    return OK;
}

static void end(struct session *s)
{
    metrics_close(s->metrics);
    text_free(&s->choices);
    text_free(&s->broken);
    memory_checkpoints_close(s->saver.memory);
    rank_destroy(&s->rank_state);
}

static bool due(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

/* Reports the kernels that this rank's device has selected: on the terminal when first known, and in a file
 * of the run directory whenever the selection grows. */
static enum status report_choices(struct session *s)
{
    struct text now = {0};
    enum status status = OK;
    device_choices(s->rank_state.device, &now);
    if (strcmp(text_chars(&now), text_chars(&s->choices)) != 0) {
        for (const char *line = now.chars; !s->stepped && *line != '\0'; line += strcspn(line, "\n") + 1)
            if (*line != ' ')
                printf("%.*s\n", (int)strcspn(line, "\n"), line);
        status = run_dir_write_choices(s->rank_state.run->recipe, &now);
    }
    text_free(&s->choices);
    s->choices = now;
    s->stepped = true;
    return status;
}

static bool lies_in(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* If metrics cannot be written, the checkpoint disk may still have space: all ranks stop after the next
 * step, save it, and return this error. If the folder itself was removed together with its checkpoints,
 * another run may be using the name, and nothing more is written. */
static enum status stop_after_failure(struct session *s, enum status status)
{
    const struct recipe *recipe = s->rank_state.run->recipe;
    const char *save = recipe->checkpoint.save;
    if (status == OK || save == NULL ||
        (metrics_are_lost(s->metrics) && lies_in(save, recipe->logging.run_dir)))
        return status;
    if (s->broken.length == 0)
        text_add(&s->broken, "%s", fail_text());
    s->rank_state.requests.stop = true;
    return OK;
}

/* Makes all metrics lines up to a checkpoint durable before the checkpoint is written. */
static enum status sync_metrics(struct session *s)
{
    enum status status = metrics_sync(s->metrics);
    return metrics_are_lost(s->metrics) ? stop_after_failure(s, status) : status;
}

/* `last`: no step follows. */
static enum status save(struct session *s, bool last)
{
    const int64_t begin_ns = clock_ns();
    TRY(rank_agree(&s->rank_state, is_rank_zero(s) ? sync_metrics(s) : OK));
    TRY(saver_save(&s->saver, last));
    progress_took(clock_ns() - begin_ns);
    return OK;
}

/* All tokens are padding or masked: the step changes the weights by weight decay and decays the moments
 * only. */
static void warn_of_no_loss(struct session *s, const struct step_record *record)
{
    if (record->loss_tokens > 0 || s->warned)
        return;
    print_line(stderr,
               "warning: step %lld: all tokens of the batch are masked (data.eod_mask_loss, "
               "data.loss_mask): loss null, gradients 0; metrics.jsonl has \"loss_tokens\" "
               "for each step",
               (long long)record->step);
    s->warned = true;
}

/* True if the next step follows immediately. */
static bool continues_after(const struct session *s, int64_t step)
{
    const struct recipe *recipe = s->rank_state.run->recipe;
    return step < recipe->train.train_iters && !saver_acts_after(&s->saver, step) &&
           !evaluation_is_due(recipe, step);
}

/* The metrics.jsonl fields of a step, without those of an evaluation. */
static struct step_record record_of(const struct rank_state *state, const struct step_result *result,
                                    double time_s)
{
    const struct recipe *recipe = state->run->recipe;
    struct step_record record = {
        .step = state->step,
        .loss = result->tokens > 0.0 ? result->loss : NAN,
        .grad_norm = result->grad_norm,
        .lr = learning_rate(&recipe->optimizer, rank_updates(state) + result->skipped),
        .tokens = (int64_t)(recipe->train.global_batch_size * recipe->model.seq_length),
        .loss_tokens = (int64_t)result->tokens,
        .consumed_tokens = rank_consumed_samples(state) * recipe->model.seq_length,
        .step_time_s = time_s,
        .ranks = state->stats.all,
        .has_rollbacks = state->validation != NULL,
        .rollbacks = result->rollbacks,
        .loss_scale = state->scale.value.scale > 0.0 ? result->loss_scale : 0.0,
        .skipped = result->skipped,
        .has_valid = evaluation_is_due(recipe, state->step),
    };
    // On a device that is not synchronous the times are those of the step before: unknown after the first.
    if (!device_traits(recipe->cluster.device)->synchronous && !record.ranks.has_times)
        record.ranks.bubble_fraction = NAN;
    return record;
}

static enum status one_step(struct session *s, bool *stop)
{
    struct rank_state *state = &s->rank_state;
    double start = clock_s();
    struct step_result result;
    if (continues_after(s, state->step + 1))
        TRY(rank_step_look_ahead(state, &result));
    else
        TRY(rank_step(state, &result));
    TRY(rank_check_finite(state, &result));
    const int64_t stepped_ns = clock_ns();
    struct step_record record = record_of(state, &result, clock_s() - start);
    progress_took(stepped_ns - (int64_t)(1e9 * start));
    *stop = state->stats.all.request >= REQUEST_STOP;
    saver_read_requests(&s->saver);
    if (record.has_valid)
        TRY(rank_evaluate(state, &record.valid_loss, stop));
    progress_took(clock_ns() - stepped_ns);
    record.has_valid = record.has_valid && !*stop;
    monitor_step(s->monitor, state->step);
    if (is_rank_zero(s) && !s->stepped)
        TRY(report_choices(s));
    if (is_rank_zero(s)) {
        warn_of_no_loss(s, &record);
        TRY(stop_after_failure(s, metrics_step(s->metrics, &record)));
    }
    if (timeline_wanted(state->run->recipe, state->step))
        TRY(timeline_write(state));
    return OK;
}

/* The status of a run that ended regularly or on request. */
static enum status outcome(const struct session *s, bool stop)
{
    const struct recipe *recipe = s->rank_state.run->recipe;
    long long step = (long long)s->rank_state.step;
    if (s->broken.length > 0)
        return fail(IO_ERROR, "%s; saved step %lld in %s", s->broken.chars, step, recipe->checkpoint.save);
    if (!stop || s->rank_state.step >= recipe->train.train_iters)
        return OK;
    if (recipe->checkpoint.save == NULL)
        return fail(INTERRUPTED,
                    "stop requested after step %lld; nothing is saved, since checkpoint.save is "
                    "none",
                    step);
    return fail(STOPPED, "stop requested: saved step %lld in %s", step, recipe->checkpoint.save);
}

static enum status loop(struct session *s)
{
    struct rank_state *state = &s->rank_state;
    const struct recipe *recipe = state->run->recipe;
    bool stop, best, saved, saves = recipe->checkpoint.save != NULL;
    s->saver.saved = s->folder->newest;
    saver_plan(&s->saver);
    if (is_rank_zero(s) && recipe->resilience.exit_duration_in_mins > 0.0)
        state->requests.stop_at_s = clock_s() + 60.0 * recipe->resilience.exit_duration_in_mins;
    stop_training(state->run->stop);
    if (saves && recipe->train.train_iters == 0 && state->step == 0 && s->saver.saved < 0)
        TRY(save(s, true));
    TRY(evaluate_late(state, s->metrics, &best, &stop));
    if (best)
        TRY(saver_is_best(&s->saver, &best));
    if (best)
        TRY(save(s, state->step == recipe->train.train_iters));
    while (state->step < recipe->train.train_iters && !stop) {
        TRY(saver_rescue(&s->saver, one_step(s, &stop)));
        TRY(saver_is_best(&s->saver, &best));
        bool last = stop || state->step == recipe->train.train_iters;
        // The look-ahead of post-validation is valid only if the next step follows immediately.
        bool now = s->saver.due && !state->ahead;
        if (saves && (last || now || best || due(recipe->checkpoint.save_interval, state->step)))
            TRY(save(s, last));
        else if (s->saver.written && !state->ahead)
            TRY(saver_finish(&s->saver, &saved));
        if (!last && !state->ahead)
            TRY(saver_save_in_memory(&s->saver));
    }
    // Ranks may still be exchanging weights of the last step, from memory that is about to be freed.
    TRY(stream_sync(state->compute));
    if (is_rank_zero(s) && s->stepped)
        TRY(report_choices(s));
    if (is_rank_zero(s) && s->broken.length == 0)
        TRY(metrics_sync(s->metrics));
    if (state->step >= recipe->train.train_iters)
        memory_checkpoints_remove(s->saver.memory);
    return outcome(s, stop);
}

/* Shared by the ranks of this process. `status` and `why`: the result of the preparation. A process that
 * fails to prepare and exits would block the others; so under a launcher its failure is reported through
 * the world. */
struct training {
    struct run run;
    enum status status;
    struct text why;
    struct run_dir folder;
    const struct run_plan *plan;
    atomic_int ranks;             // number of ranks that completed successfully
    atomic_llong allocated_bytes; // maximum over these ranks
    struct monitor *monitor;      // NULL: disabled
    bool launched;                // several processes
    bool entered;                 // the thread is monitored: enter_early()
};

/* Connects the monitors of the nodes. Under a launcher only: all ranks decide alike. */
static enum status connect_monitors(struct rank_state *state, struct monitor *monitor)
{
    struct control_address address = {0};
    if (state->world->rank == 0)
        TRY(monitor_address(monitor, &address));
    TRY(rank_broadcast(state, 0, &address, sizeof address));
    monitor_connect(monitor, &address);
    return OK;
}

static enum status run_rank(struct session *session, const struct training *training, struct world *world)
{
    const struct memory_need *needs = training->plan->needs;
    TRY(rank_create_for_training(&training->run, world, needs != NULL ? &needs[world->rank] : NULL,
                                 &session->rank_state));
    TRY(checkpoint_reserve(&session->rank_state));
    if (training->launched)
        TRY(connect_monitors(&session->rank_state, training->monitor));
    saver_attach(&session->saver, &session->rank_state);
    const enum status status = begin(session);
    if (status != OK)
        memory_checkpoints_undo(session->saver.memory);
    return status != OK ? status : loop(session);
}

static enum status rank_main(struct world *world, void *argument)
{
    struct training *training = argument;
    struct session session = {
        .folder = &training->folder, .plan = training->plan, .monitor = training->monitor};
    if (training->status != OK)
        return fail(training->status, "%s", text_chars(&training->why));
    if (!training->entered)
        monitor_enter(training->monitor);
    rank_context()->rank = world->rank;
    rank_context_set_action("start");
    enum status status = run_rank(&session, training, world);
    monitor_leave(training->monitor);
    status = memory_need_explain(training->run.recipe, &session.rank_state, status);
    // After a failure, peers may still use memory shared by this rank; the process ends now.
    if (status != OK && status != STOPPED)
        return status;
    if (session.metrics != NULL && !session.complete)
        metrics_summary(session.metrics, status == OK ? "done" : "stopped on request");
    atomic_fetch_add(&training->ranks, 1);
    atomic_fetch_add(&training->allocated_bytes, device_memory(session.rank_state.device).peak_total_bytes);
    end(&session);
    return status;
}

/* Starts the monitor of this process. Under a launcher the processes of a node share a page. */
static enum status start_monitor(struct training *training, const struct recipe *recipe,
                                 const struct launcher *launcher, int size)
{
    bool launched = launcher->size > 1;
    int here = launched ? launcher_local_size(getenv, launcher->size) : 1;
    const struct monitor_config config = {
        .launcher = launched ? launcher : NULL,
        .page = {.job = launched ? launcher->job : NULL,
                 .node = launched ? launcher->node : "",
                 .processes = here,
                 .slots = launched ? here : size},
        .timeout_s = recipe->resilience.heartbeat_is_automatic && !launched
                         ? 0.0
                         : recipe->resilience.heartbeat_timeout_seconds,
        .automatic = recipe->resilience.heartbeat_is_automatic,
        .schedule = training->run.schedule,
        .run_dir = recipe->logging.run_dir,
        .several_hosts = launched && here < launcher->size,
        .several_nodes = launched && (here < launcher->size || launcher->names_node),
    };
    training->launched = launched;
    TRY(monitor_start(&config, &training->monitor));
    stop_set_monitor(training->run.stop, training->monitor);
    return OK;
}

/* Under a launcher this thread becomes the rank. It is monitored already while MPI or the rendezvous connects
 * the processes, since one of them may be stopped meanwhile. */
static void enter_early(struct training *training, const struct launcher *launcher)
{
    struct rank_context *me = rank_context();
    if (!training->launched || launcher->rank >= training->run.mesh.world)
        return;
    const struct mesh_coord coord = mesh_coord(&training->run.mesh, MESH_DENSE, launcher->rank);
    *me = (struct rank_context){
        .rank = launcher->rank, .pp = coord.pp, .dp = coord.dp, .tp = coord.tp, .layer = NO_LAYER};
    monitor_enter(training->monitor);
    training->entered = true;
    rank_context_set_action("connect");
}

/* Runs the ranks, and monitors them. */
static enum status run_world(struct training *training, const struct recipe *recipe,
                             const struct launcher *launcher, int size)
{
    if (training->status == OK) {
        training->status =
            start_monitor(training, recipe, launcher, size > 0 ? size : recipe_world_size(recipe));
        if (training->status != OK)
            text_add(&training->why, "%s", fail_text());
        else
            enter_early(training, launcher);
    }
    const struct world_options options = recipe_world(recipe, size);
    enum status status = world_run_as(&options, rank_main, training);
    stop_set_monitor(training->run.stop, NULL);
    monitor_stop(training->monitor);
    return status;
}

static enum status lock_checkpoints(const struct recipe *recipe, struct run *run)
{
    const struct store_lock_options options = {
        .save = recipe->checkpoint.save,
        .run_dir = recipe->logging.run_dir,
    };
    return options.save != NULL ? store_lock_acquire(&options, &run->checkpoint_lock) : OK;
}

/* All preparation before ranks start. *folder: the lock of the run directory. */
static enum status prepare(struct training *training, const struct recipe *recipe, bool first,
                           struct stop *stop, int *folder)
{
    const struct run_plan *plan = training->plan;
    if (plan->status != OK)
        return fail(plan->status, "%s", plan->why);
    TRY(run_create_with_schedule(recipe, plan->schedule, true, &training->run));
    training->run.stop = stop;
    TRY(run_dir_check(recipe, &training->folder));
    stop_set_checkpoint(stop, text_chars(&training->folder.from));
    if (!first)
        return OK;
    TRY(run_dir_claim(recipe, folder));
    TRY(lock_checkpoints(recipe, &training->run));
    TRY(run_files_collect(&training->run, training->folder.continues ? training->folder.newest : -1));
    TRY(run_plan_write(plan, recipe->logging.run_dir));
    if (plan->report != NULL)
        fputs(plan->report, stdout);
    fflush(stdout);
    return OK;
}

/* Prints the peak resident size of the process next to the total peak allocation of its ranks. */
static void report_resident(int ranks, int64_t allocated_bytes, FILE *to)
{
    struct rusage usage;
    char resident[NUMBER_CHARS], allocated[NUMBER_CHARS];
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return;
    // ru_maxrss is in KiB on Linux.
    bytes_text((int64_t)usage.ru_maxrss * 1024, resident);
    bytes_text(allocated_bytes, allocated);
    if (ranks == 1)
        fprintf(to, "peak memory: %s allocated by this rank, %s resident (process)\n", allocated, resident);
    else
        fprintf(to, "peak memory: %s allocated by %d ranks, %s resident (process)\n", allocated, ranks,
                resident);
}

static enum status train_until_stopped(const struct recipe *recipe, const struct run_plan *plan, int size,
                                       const struct launcher *launcher, struct stop *stop)
{
    struct training training = {.plan = plan};
    int folder = -1;
    bool first = launcher->rank <= 0;
    enum status status = training.status = prepare(&training, recipe, first, stop, &folder);
    if (status != OK)
        text_add(&training.why, "%s", fail_text());
    if (status == OK || launcher->size > 1)
        status = run_world(&training, recipe, launcher, size);
    if (first && (status == OK || status == STOPPED))
        report_resident(atomic_load(&training.ranks), atomic_load(&training.allocated_bytes), stdout);
    store_lock_release(training.run.checkpoint_lock);
    run_files_free(&training.run);
    run_destroy(&training.run);
    run_dir_free(&training.folder);
    text_free(&training.why);
    if (folder >= 0)
        close(folder);
    return status;
}

enum status train(const struct recipe *recipe, const struct run_plan *plan, int size)
{
    static const struct run_plan no_plan = {.status = OK};
    struct launcher launcher = {.rank = -1};
    struct stop *stop = NULL;
    TRY(launcher_find(&launcher));
    TRY(stop_create(&recipe->resilience.exit_signal, &recipe->resilience.save_signal, launcher.rank <= 0,
                    &stop));
    enum status status = train_until_stopped(recipe, plan != NULL ? plan : &no_plan, size, &launcher, stop);
    stop_destroy(stop);
    return status;
}
