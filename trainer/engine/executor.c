// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/executor.h"

#include "base/memory.h"
#include "layers/parameters/gradients.h"
#include "schedules/edges.h"
#include "schedules/look_ahead.h"
#include "trainer/recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

struct executor {
    struct executor_config config;
    struct layer_context context;
    struct stream *comm_stream; // of context; owned
    int pp_rank;
    struct stage *stages; // [chunks]
    struct activation_store store;
    struct p2p *p2p;
    struct event *activation; // [chunks][m] arrival of the input of this microbatch
    struct event *gradient;   // [chunks][m] arrival of the gradient of its output
    struct event *sent;       // [chunks] completion of the last message with an output
    const struct batch *batches;
    bool evaluating;
    int ahead;             // number of actions that may run before the step is confirmed
    int done;              // completed actions of the current step
    struct graph **graphs; // [actions of the list]; NULL: CUDA graphs are off
};

/* ---- creation ---- */

#define EXECUTOR "the executor of a rank's schedule"

static enum status create_stages(struct executor *e)
{
    const struct schedule *schedule = e->config.schedule;
    e->stages = memory_zeroed((size_t)schedule->chunks, sizeof *e->stages, EXECUTOR);
    for (int chunk = 0; chunk < schedule->chunks; chunk++) {
        int stage = schedule_stage(schedule, e->pp_rank, chunk);
        TRY(stage_create(&e->context, stage_span_of(e->config.stage_first_layer, schedule->stages, stage),
                         &e->stages[chunk]));
    }
    return OK;
}

static enum status create_p2p(struct executor *e)
{
    struct edges *edges = edges_create(e->config.schedule);
    AUTO_FREE struct p2p_edge *list =
        memory_zeroed((size_t)edges->count, sizeof *list, "the edges of a pipeline");
    for (int i = 0; i < edges->count; i++)
        list[i] = (struct p2p_edge){edges->edge[i].from, edges->edge[i].to, edges->edge[i].gradient};
    const enum status status = p2p_create(e->config.world, e->context.groups, e->context.weights->device,
                                          list, edges->count, &e->p2p);
    edges_destroy(edges);
    return status;
}

static void find_ahead(struct executor *e)
{
    AUTO_FREE int *count =
        memory_zeroed((size_t)e->config.schedule->p, sizeof *count, "the look-ahead of ranks");
    schedule_look_ahead(e->config.schedule, count);
    e->ahead = count[e->pp_rank];
}

static enum status create_store(struct executor *e)
{
    const struct activation_store_config config = {
        .schedule = e->config.schedule,
        .pp_rank = e->pp_rank,
        .stages = e->stages,
        .compute = e->context.compute,
        .training = e->config.training,
        .offload = e->config.recipe->memory.offload_activations,
    };
    return activation_store_create(&config, &e->store);
}

static enum status fill_executor(struct executor *e)
{
    const struct executor_config *config = &e->config;
    const struct layer_options *options = config->context.options;
    e->context = config->context;
    e->pp_rank = e->context.groups->coord.pp;
    e->context.split_weight = schedule_splits_backward(config->schedule, e->pp_rank);
    if (options->tp_comm_overlap && options->sequence_parallel)
        TRY(stream_create(e->context.weights->device, "tp overlap", &e->comm_stream));
    e->context.comm_stream = e->comm_stream;
    TRY(create_stages(e));
    TRY(create_p2p(e));
    find_ahead(e);
    TRY(create_store(e));
    if (config->training && config->recipe->cluster.cuda_graphs)
        e->graphs =
            memory_zeroed((size_t)config->schedule->ranks[e->pp_rank].count, sizeof *e->graphs, EXECUTOR);
    size_t cells = (size_t)config->schedule->chunks * (size_t)config->schedule->m;
    e->activation = memory_zeroed(cells, sizeof *e->activation, EXECUTOR);
    e->gradient = memory_zeroed(cells, sizeof *e->gradient, EXECUTOR);
    e->sent = memory_zeroed((size_t)config->schedule->chunks, sizeof *e->sent, EXECUTOR);
    return OK;
}

enum status executor_create(const struct executor_config *config, struct executor **out)
{
    CHECK_USE(schedule_check(config->schedule, NULL));
    struct executor *e = memory_zeroed(1, sizeof *e, EXECUTOR);
    e->config = *config;
    enum status status = fill_executor(e);
    if (status == OK)
        *out = e;
    else
        executor_destroy(e);
    return status;
}

void executor_destroy(struct executor *executor)
{
    if (executor == NULL)
        return;
    for (int chunk = 0; executor->stages != NULL && chunk < executor->config.schedule->chunks; chunk++)
        stage_destroy(&executor->stages[chunk]);
    free(executor->stages);
    const struct action_list *list = &executor->config.schedule->ranks[executor->pp_rank];
    for (int i = 0; executor->graphs != NULL && i < list->count; i++)
        graph_destroy(executor->graphs[i]);
    free(executor->graphs);
    stream_destroy(executor->comm_stream);
    p2p_destroy(executor->p2p);
    activation_store_destroy(&executor->store);
    free(executor->activation);
    free(executor->gradient);
    free(executor->sent);
    free(executor);
}

const struct activation_store *executor_store(const struct executor *executor)
{
    return &executor->store;
}

/* ---- execution ---- */

/* An action and its operands. */
struct running_action {
    struct action action;
    int chunk, cell; // cell: index of (chunk, microbatch)
    const struct stage *stage;
    struct pass pass; // without addresses
};

static struct running_action running_action_of(struct executor *e, struct action action)
{
    const struct schedule *schedule = e->config.schedule;
    struct running_action running = {.action = action,
                                     .chunk = schedule_chunk(schedule, action.stage, action.microbatch)};
    running.cell = running.chunk * schedule->m + action.microbatch;
    running.stage = &e->stages[running.chunk];
    running.pass = (struct pass){.context = &e->context,
                                 .batch = &e->batches[action.microbatch],
                                 .training = !e->evaluating,
                                 .is_last = schedule_is_last(schedule, action.microbatch)};
    return running;
}

/* True if this stage of the microbatch runs on this rank. */
static bool is_here(const struct executor *e, int stage, int microbatch)
{
    const struct schedule *schedule = e->config.schedule;
    return stage >= 0 && stage < schedule->stages && schedule_rank(schedule, stage, microbatch) == e->pp_rank;
}

/* Provides the input: a received message, or the output of the previous stage on this rank. The first stage
 * computes its own. */
static enum status provide_input(struct executor *e, const struct running_action *running)
{
    struct action before = running->action;
    before.stage--;
    if (running->action.stage == 0)
        return OK;
    if (!is_here(e, before.stage, before.microbatch))
        return stream_wait(e->context.compute, e->activation[running->cell]);
    struct running_action producer = running_action_of(e, before);
    activation_store_addresses(&e->store, before, producer.pass.base);
    struct tensor made = stage_output(producer.stage, &producer.pass);
    return copy(e->context.compute,
                (struct copy){.in = made, .out = stage_input(running->stage, &running->pass)});
}

/* Waits for the gradient of the output, unless the stage computes it. */
static enum status await_gradient(struct executor *e, const struct running_action *running)
{
    bool made_here = running->action.stage == e->config.schedule->stages - 1;
    return made_here ? OK : stream_wait(e->context.compute, e->gradient[running->cell]);
}

/* Waits for what the action reads, or provides it. */
static enum status await_inputs(struct executor *e, const struct running_action *running)
{
    const struct action_traits *traits = action_traits(running->action.kind);
    if (traits->forward)
        return provide_input(e, running);
    return traits->backward_input ? await_gradient(e, running) : OK;
}

static enum status send_activation(struct executor *e, const struct running_action *running)
{
    TRY(p2p_send(e->p2p, running->action.peer, false, stage_output(running->stage, &running->pass),
                 stream_record(e->context.compute), &e->sent[running->chunk]));
    activation_store_sent(&e->store, running->action, e->sent[running->chunk]);
    return OK;
}

/* Enqueues the ops or the message of an action. The gradient of the output becomes that of the input, in
 * place. graph: of its position in the list; NULL: none. */
static enum status run_ops(struct executor *e, const struct running_action *running, struct graph **graph)
{
    struct stream *compute = e->context.compute;
    const struct action action = running->action;
    const struct step_observer *o = e->config.observer;
    struct stage_gradient gradient = {.sent = NULL};
    if (e->config.training)
        gradient = activation_store_gradient(&e->store, action);
    struct stage_ops ops = {.kind = action.kind, .stage = running->stage, .pass = &running->pass};
    switch (action.kind) { // no default: a new kind is a compile error here
    case BACKWARD:
    case BACKWARD_INPUT:
        ops.dx = gradient.data;
        break;
    case FORWARD:
    case BACKWARD_WEIGHT:
        break;
    case RECV_ACTIVATION:
        return p2p_recv(e->p2p, action.peer, false, stage_input(running->stage, &running->pass),
                        stream_record(compute), &e->activation[running->cell]);
    case SEND_ACTIVATION:
        return send_activation(e, running);
    case RECV_GRADIENT:
        return p2p_recv(e->p2p, action.peer, true, gradient.data, stream_record(compute),
                        &e->gradient[running->cell]);
    case SEND_GRADIENT:
        return p2p_send(e->p2p, action.peer, true, gradient.data, stream_record(compute), gradient.sent);
    case ACTION_KIND_COUNT:
        return fail(BAD_SCHEDULE, "unknown kind of action %d", (int)action.kind);
    }
    return o != NULL ? o->run_stage_ops(o->context, &ops, graph) : stage_ops_run(&ops, graph);
}

/* Names what follows, for hang reports, traces and profilers, until device_range_end(). */
static void begin_range(struct executor *e, struct action action)
{
    char text[sizeof rank_context()->action];
    action_text(action, text);
    rank_context_set_scheduled(text, (struct scheduled_action){.exists = true,
                                                               .kind = (int)action.kind,
                                                               .stage = action.stage,
                                                               .microbatch = action.microbatch});
    device_range_begin(e->context.weights->device, text);
}

/* Runs the action at this position of the list. */
static enum status run_action(struct executor *e, int position)
{
    const struct action action = e->config.schedule->ranks[e->pp_rank].actions[position];
    const bool computes = action_traits(action.kind)->computes;
    struct running_action running = running_action_of(e, action);
    begin_range(e, action);
    TRY(activation_store_prefetch(&e->store, position));
    TRY(activation_store_acquire(&e->store, action, running.pass.base));
    TRY(await_inputs(e, &running));
    if (computes)
        event_log_begin(e->config.log, position, e->context.compute);
    TRY(run_ops(e, &running, e->graphs != NULL ? &e->graphs[position] : NULL));
    if (computes)
        event_log_end(e->config.log);
    device_range_end(e->context.weights->device);
    return activation_store_release(&e->store, action);
}

/* The same without graph, times and release. */
static enum status run_once(struct executor *e, struct running_action *running)
{
    TRY(activation_store_acquire(&e->store, running->action, running->pass.base));
    TRY(await_inputs(e, running));
    return run_ops(e, running, NULL);
}

/* A chunk without microbatches has its gradients at once: zeros. With a single microbatch this is the second
 * direction. */
static enum status complete_idle_chunks(struct executor *e)
{
    const struct schedule *schedule = e->config.schedule;
    for (int chunk = 0; chunk < schedule->chunks; chunk++) {
        int id = schedule_stage(schedule, e->pp_rank, chunk);
        if (schedule_rank(schedule, id, 0) == e->pp_rank ||
            schedule_rank(schedule, id, schedule->m - 1) == e->pp_rank)
            continue;
        TRY(stage_mark_gradients_ready(&e->stages[chunk]));
    }
    return OK;
}

enum status executor_step(struct executor *executor, const struct batch *batches)
{
    struct gradients *gradients = executor->context.weights->gradients;
    CHECK_USE(activation_store_check(&executor->store));
    TRY(gradients_zero(gradients, executor->context.compute));
    TRY(complete_idle_chunks(executor));
    executor->batches = batches;
    for (; executor->done < executor->config.schedule->ranks[executor->pp_rank].count; executor->done++)
        TRY(run_action(executor, executor->done));
    executor->done = 0;
    return gradients_finish_reduce(gradients, executor->context.compute);
}

/* ---- look-ahead ---- */

enum status executor_look_ahead(struct executor *executor, const struct batch *batches)
{
    executor->batches = batches;
    for (; executor->done < executor->ahead; executor->done++)
        TRY(run_action(executor, executor->done));
    return OK;
}

enum status executor_drop_ahead(struct executor *executor)
{
    const struct action_list *list = &executor->config.schedule->ranks[executor->pp_rank];
    for (int i = executor->done; i < executor->ahead; i++) {
        struct action action = list->actions[i];
        struct running_action running = running_action_of(executor, action);
        // The input of the forward pass is received all the same: a stage without layers passes it on.
        if (action.kind == FORWARD)
            TRY(stream_wait(executor->context.compute, executor->activation[running.cell]));
        else
            TRY(run_once(executor, &running));
    }
    executor->done = 0;
    return p2p_sync(executor->p2p);
}

/* ---- evaluation ---- */

/* Without a backward pass, only the message itself guarantees that an output was sent before its slot is
 * overwritten. */
static enum status evaluate_action(struct executor *e, struct action action)
{
    struct running_action running = running_action_of(e, action);
    begin_range(e, action);
    if (action.kind != SEND_ACTIVATION)
        TRY(stream_wait(e->context.compute, e->sent[running.chunk]));
    TRY(run_once(e, &running));
    device_range_end(e->context.weights->device);
    return OK;
}

static bool is_forward(enum action_kind kind)
{
    return kind == FORWARD || kind == RECV_ACTIVATION || kind == SEND_ACTIVATION;
}

enum status executor_evaluate(struct executor *executor, const struct batch *batches, int count)
{
    const struct schedule *schedule = executor->config.schedule;
    const struct action_list *list = &schedule->ranks[executor->pp_rank];
    enum status status = OK;
    executor->batches = batches;
    executor->evaluating = true;
    memset(executor->sent, 0, (size_t)schedule->chunks * sizeof *executor->sent);
    for (int i = 0; status == OK && i < list->count; i++)
        if (is_forward(list->actions[i].kind) && list->actions[i].microbatch < count)
            status = evaluate_action(executor, list->actions[i]);
    executor->evaluating = false;
    for (int chunk = 0; status == OK && chunk < schedule->chunks; chunk++)
        status = stream_wait(executor->context.compute, executor->sent[chunk]);
    return status;
}

struct tensor executor_logits(const struct executor *executor)
{
    for (int chunk = 0; chunk < executor->config.schedule->chunks; chunk++) {
        struct pass pass = {.context = &executor->context};
        stash_bases(&executor->store.stash, chunk, 0, false, pass.base);
        struct tensor logits = stage_logits(&executor->stages[chunk], &pass);
        if (logits.data != NULL)
            return logits;
    }
    return (struct tensor){0};
}
