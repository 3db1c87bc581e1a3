// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/post_validation.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* f64, in this order:  tokens known here [G] | report [R] | guesses [p] | notes [p][ranks of the stage]
 *                      `-- sum over the stage ------'                     gathered over the stage
 *                                            `------ passed along the pipeline -------------' */
struct post_validation {
    struct post_validation_config config;
    struct group *stage;   // the ranks of this pipeline coordinate
    struct stream *report; // stream of its messages
    int pp, last;          // this rank's and the last pipeline coordinate
    int64_t samples, entries, travelling;
    int64_t note, notes;               // elements of a rank's note, and of all notes of a stage
    struct buffer mine, before, whole; // before: from the ranks above; whole: not on the last rank
    struct buffer value, m, v, master; // the copy; not on the last rank
    struct event sent, arrived;        // completion of the last send; arrival of the complete report
    bool guessed;
    double *tokens, *host; // [G], [guesses and notes]
    double guess;
};

/* ---- creation ---- */

static enum status create_stage(struct post_validation *v)
{
    const struct post_validation_config *c = &v->config;
    const int axes = AXIS_TP | AXIS_CP | AXIS_DP;
    AUTO_FREE int *ranks = memory_zeroed((size_t)c->world->size, sizeof *ranks, "the ranks of a stage");
    char name[AXES_TEXT_CHARS];
    int count = mesh_group(&c->groups->mesh, MESH_DENSE, axes, c->world->rank, ranks);
    return group_create(c->world, mesh_axes_text(&c->groups->mesh, axes, name), GROUP_ID_AXES + axes, ranks,
                        count, &v->stage);
}

static int64_t tail_count(const struct post_validation *v)
{
    return (v->last + 1) * (1 + v->notes);
}

static enum status create_buffers(struct post_validation *v)
{
    struct weights *weights = v->config.weights;
    struct device *device = weights->device;
    size_t travelling = (size_t)v->travelling * sizeof(double);
    v->tokens = memory_zeroed((size_t)v->samples, sizeof *v->tokens, "the report of a pipeline");
    v->host = memory_zeroed((size_t)tail_count(v), sizeof *v->host, "the report of a pipeline");
    TRY(buffer_alloc(device, PART_DATA, (size_t)v->samples * sizeof(double) + travelling, &v->mine));
    TRY(buffer_alloc(device, PART_DATA, travelling, &v->before));
    if (v->pp == v->last)
        return OK;
    TRY(buffer_alloc(device, PART_DATA, travelling, &v->whole));
    TRY(buffer_alloc(device, weights->value.part, weights->value.bytes, &v->value));
    TRY(buffer_alloc(device, PART_MOMENTS, weights->m.bytes, &v->m));
    TRY(buffer_alloc(device, PART_MOMENTS, weights->v.bytes, &v->v));
    if (weights->master.bytes == 0)
        return OK;
    return buffer_alloc(device, PART_MASTERS, weights->master.bytes, &v->master);
}

enum status post_validation_create(const struct post_validation_config *config, struct post_validation **out)
{
    struct post_validation *v = memory_zeroed(1, sizeof *v, "the validation of steps");
    v->config = *config;
    v->pp = config->groups->coord.pp;
    v->last = config->groups->mesh.degrees.pp - 1;
    v->samples = config->global_batch_size;
    v->entries = tensor_count(optimizer_report(config->optimizer));
    v->note = (int64_t)(config->note_bytes / sizeof(double));
    v->notes = v->note * (config->world->size / (v->last + 1));
    v->travelling = v->entries + tail_count(v);
    enum status status = create_stage(v);
    if (status == OK)
        status = stream_create(config->weights->device, "report", &v->report);
    if (status == OK)
        status = create_buffers(v);
    if (status == OK)
        *out = v;
    else
        post_validation_destroy(v);
    return status;
}

void post_validation_destroy(struct post_validation *validation)
{
    if (validation == NULL)
        return;
    stream_destroy(validation->report);
    group_destroy(validation->stage);
    struct buffer *all[] = {&validation->mine, &validation->before, &validation->whole, &validation->value,
                            &validation->m,    &validation->v,      &validation->master};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
    free(validation->tokens);
    free(validation->host);
    free(validation);
}

double *post_validation_tokens(struct post_validation *validation)
{
    const struct mesh_coord coord = validation->config.groups->coord;
    return coord.tp == 0 && coord.cp == 0 ? validation->tokens : NULL;
}

/* ---- the copy ---- */

static enum status copy_flat(struct stream *stream, const struct buffer *from, const struct buffer *to)
{
    int64_t count = (int64_t)(from->bytes / sizeof(float));
    return copy(stream, (struct copy){.in = tensor_1d(from->data, F32, count),
                                      .out = tensor_1d(to->data, F32, count)});
}

/* Copies weights and moments to the backup, or back. */
static enum status back_up(const struct post_validation *v, bool restore)
{
    const struct weights *w = v->config.weights;
    const struct buffer *state[] = {&w->value, &w->m, &w->v, &w->master};
    const struct buffer *kept[] = {&v->value, &v->m, &v->v, &v->master};
    for (int i = 0; i < (w->master.bytes > 0 ? 4 : 3); i++)
        TRY(copy_flat(v->config.compute, restore ? kept[i] : state[i], restore ? state[i] : kept[i]));
    return OK;
}

/* ---- passing the report down ---- */

static struct tensor part(const struct post_validation *v, int64_t begin, int64_t count)
{
    return tensor_1d((double *)v->mine.data + begin, F64, count);
}

static struct tensor travelling(const struct post_validation *v)
{
    return part(v, v->samples, v->travelling);
}

static int64_t notes_begin(const struct post_validation *v)
{
    return v->samples + v->entries + v->last + 1;
}

/* `count` elements of 8 bytes, for a copy of their bits. */
static struct tensor words(double *data, int64_t count)
{
    return tensor_1d(data, F32, 2 * count);
}

static enum status transfer(struct post_validation *v, struct tensor data, int peer, bool send)
{
    struct message message = {.data = data, .peer = peer, .send = send};
    return group_exchange(v->config.groups->pp, v->report, &message, 1);
}

/* Sums report and tokens over the ranks of this stage, and gathers their notes. */
static enum status add_up_stage(struct post_validation *v, const void *note)
{
    struct stream *compute = v->config.compute;
    const int64_t begin = notes_begin(v) + v->pp * v->notes;
    struct tensor mine = part(v, begin + v->stage->rank * v->note, v->note);
    double *sent = v->host + (v->last + 1); // until finish() reads the notes of all ranks
    memcpy(sent, note, v->config.note_bytes);
    TRY(fill(compute, (struct fill){.out = part(v, 0, v->samples + v->travelling), .value = 0.0F}));
    if (post_validation_tokens(v) != NULL)
        TRY(copy_to_device(compute, v->mine.data, v->tokens, (size_t)v->samples * sizeof(double)));
    TRY(copy(compute, (struct copy){.in = optimizer_report(v->config.optimizer),
                                    .out = part(v, v->samples, v->entries)}));
    TRY(copy_to_device(compute, mine.data, sent, v->config.note_bytes));
    TRY(group_all_reduce(v->stage, compute, part(v, 0, v->samples + v->entries), REDUCE_SUM));
    return group_all_gather(v->stage, compute, mine, part(v, begin, v->notes));
}

static enum status add_those_above(struct post_validation *v)
{
    if (v->pp == 0)
        return OK;
    struct stream *compute = v->config.compute;
    const int64_t summed = v->entries + v->last + 1; // report and guesses
    double *before = v->before.data;
    TRY(transfer(v, tensor_1d(before, F64, v->travelling), v->pp - 1, false));
    TRY(stream_wait(compute, stream_record(v->report)));
    TRY(add(compute, (struct add){.in = tensor_1d(before, F64, summed), .out = part(v, v->samples, summed)}));
    return copy(compute, (struct copy){.in = words(before + summed, v->pp * v->notes),
                                       .out = words(part(v, notes_begin(v), 0).data, v->pp * v->notes)});
}

/* The best guess of a rank other than the last: the gradient scale without clipping, unless the norm so far
 * requires clipping or is not finite. 0: hold. */
static enum status find_guess(struct post_validation *v, double *out)
{
    struct optimizer *optimizer = v->config.optimizer;
    struct tensor report = part(v, v->samples, v->entries);
    struct step_result known;
    TRY(optimizer_compute_result(optimizer, report, part(v, 0, v->samples)));
    TRY(optimizer_read(optimizer, report, &known));
    float unclipped = (float)(1.0 / (known.tokens > 0.0 ? known.tokens : 1.0) / known.loss_scale);
    bool may = isfinite(known.grad_norm) && known.gradient_scale >= unclipped && unclipped > 0.0F;
    *out = may ? (double)known.gradient_scale : 0.0;
    return OK;
}

/* Passes the report down to the next rank, and when it comes back complete, up to the previous one. */
static enum status send_report(struct post_validation *v)
{
    struct tensor whole = travelling(v);
    TRY(stream_wait(v->report, stream_record(v->config.compute)));
    if (v->pp < v->last) {
        TRY(transfer(v, travelling(v), v->pp + 1, true));
        whole = tensor_1d(v->whole.data, F64, v->travelling);
        TRY(transfer(v, whole, v->pp + 1, false));
    }
    v->arrived = stream_record(v->report);
    if (v->pp > 0)
        TRY(transfer(v, whole, v->pp - 1, true));
    v->sent = stream_record(v->report);
    return OK;
}

static enum status update(struct post_validation *v)
{
    device_range_begin(v->config.weights->device, "update");
    TRY(optimizer_apply(v->config.optimizer));
    device_range_end(v->config.weights->device);
    return OK;
}

enum status post_validation_pass_down(struct post_validation *validation, int64_t step, bool may_guess,
                                      const void *note, bool *guessed)
{
    struct stream *compute = validation->config.compute;
    struct tensor slot = part(validation, validation->samples + validation->entries + validation->pp, 1);
    validation->guess = 0.0;
    TRY(stream_wait(compute, validation->sent)); // the last rank's report of the previous step
    TRY(add_up_stage(validation, note));
    TRY(add_those_above(validation));
    TRY(optimizer_set_hyper(validation->config.optimizer, step));
    if (may_guess && validation->pp < validation->last)
        TRY(find_guess(validation, &validation->guess));
    TRY(copy_to_device(compute, slot.data, &validation->guess, sizeof validation->guess));
    TRY(send_report(validation));
    *guessed = validation->guessed = validation->guess > 0.0;
    if (!validation->guessed)
        return OK;
    TRY(back_up(validation, false));
    return update(validation);
}

/* ---- passing the report up ---- */

enum status post_validation_finish(struct post_validation *validation, struct verdict *verdict,
                                   struct step_result *out)
{
    struct stream *compute = validation->config.compute;
    double *whole = validation->pp < validation->last ? validation->whole.data : travelling(validation).data;
    struct tensor report = tensor_1d(whole, F64, validation->entries),
                  tokens = tensor_1d(whole + validation->samples, F64, validation->samples);
    TRY(stream_wait(compute, validation->arrived));
    TRY(optimizer_compute_result(validation->config.optimizer, report, tokens));
    TRY(copy_to_host(compute, validation->host, whole + validation->entries,
                     (size_t)tail_count(validation) * sizeof *validation->host));
    TRY(optimizer_read(validation->config.optimizer, report, out));

    *verdict = (struct verdict){.notes = validation->host + validation->last + 1};
    for (int pp = 0; pp <= validation->last; pp++) {
        bool guessed = validation->host[pp] > 0.0;
        verdict->ahead = verdict->ahead || guessed;
        out->rollbacks += guessed && (float)validation->host[pp] != out->gradient_scale;
    }
    verdict->wrong = out->rollbacks > 0;
    if (validation->guessed && (float)validation->guess == out->gradient_scale)
        return OK;
    if (validation->guessed)
        TRY(back_up(validation, true));
    return update(validation);
}
