// SPDX-License-Identifier: Apache-2.0
/* The activation store without layers: the values that a "forward" wrote are those that its "backward"
 * reads, with offload, in the order of real schedules on the strict device, whose streams run as late as
 * possible. The copy stream is also made to run as early as possible, since a copy with a missing wait
 * would be correct when it runs late. And wrong slots are detected. */
#include "trainer/engine/activations/activation_store.h"
#include "trainer/engine/activations/offload.h"
#include "trainer/optimizer/moment_window.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { FLOATS = 32, LIFETIMES = 3 };

struct fixture {
    struct device *device;
    struct stream *compute;
    struct schedule *schedule;
    struct model_config model;
    struct layer_context context;
    struct stage stages[4];
    struct activation_store store;
    struct buffer seen; // [chunks · m][LIFETIMES][FLOATS]
    int rank;
    bool early;
};

static void fixture_open(struct fixture *f, const char *name, int p, int m, int rank, bool offload,
                         bool early)
{
    struct device_options options = {.name = "strict", .threads = 1};
    struct schedule_options schedule = {.name = name, .p = p, .m = m};
    *f = (struct fixture){.rank = rank, .early = early, .model = {.hidden_size = FLOATS}};
    cr_assert_eq(schedule_build(&schedule, &f->schedule), OK);
    cr_assert_eq(device_open(&options, &f->device), OK);
    cr_assert_eq(stream_create(f->device, "compute", &f->compute), OK);
    static const struct layer_options plain = {.sequence_parallel = false};
    f->context = (struct layer_context){.model = &f->model, .options = &plain, .tokens = 1, .sequences = 1};
    for (int chunk = 0; chunk < f->schedule->chunks; chunk++) {
        f->stages[chunk].context = &f->context;
        for (int lifetime = 0; lifetime < LIFETIMES; lifetime++)
            f->stages[chunk].layout.bytes[lifetime] = FLOATS * sizeof(float);
    }
    struct activation_store_config config = {.schedule = f->schedule,
                                             .pp_rank = rank,
                                             .stages = f->stages,
                                             .compute = f->compute,
                                             .training = true,
                                             .offload = offload};
    cr_assert_eq(activation_store_create(&config, &f->store), OK, "%s", fail_text());
    size_t cells = (size_t)f->schedule->chunks * (size_t)m;
    cr_assert_eq(buffer_alloc(f->device, PART_DATA, cells * LIFETIMES * FLOATS * sizeof(float), &f->seen),
                 OK);
}

static void fixture_close(struct fixture *f)
{
    buffer_free(&f->seen);
    activation_store_destroy(&f->store);
    stream_destroy(f->compute);
    device_close(f->device);
    schedule_destroy(f->schedule);
}

static void run_copies_early(struct fixture *f)
{
    if (f->early && f->store.offload != NULL)
        cr_assert_eq(stream_sync(offload_stream(f->store.offload)), OK);
}

static struct tensor view(char *data)
{
    return tensor_1d(data, F32, FLOATS);
}

static float value_of(int cell, int lifetime)
{
    return (float)(1 + cell * LIFETIMES + lifetime);
}

static void write_values(struct fixture *f, char *const base[LIFETIME_COUNT], int cell)
{
    for (int lifetime = 0; lifetime < LIFETIMES; lifetime++)
        cr_assert_eq(
            fill(f->compute, (struct fill){.out = view(base[lifetime]), .value = value_of(cell, lifetime)}),
            OK);
}

static void read_values(struct fixture *f, char *const base[LIFETIME_COUNT], int cell)
{
    for (int lifetime = 0; lifetime < LIFETIMES; lifetime++) {
        char *seen = (char *)f->seen.data + (size_t)(cell * LIFETIMES + lifetime) * FLOATS * sizeof(float);
        cr_assert_eq(copy(f->compute, (struct copy){.in = view(base[lifetime]), .out = view(seen)}), OK);
    }
}

/* Runs an action; transfers carry no data. All lifetimes are read where the last of them ends. */
static enum status run_action(struct fixture *f, struct action a)
{
    char *base[LIFETIME_COUNT];
    int cell = schedule_chunk(f->schedule, a.stage, a.microbatch) * f->schedule->m + a.microbatch;
    TRY(activation_store_acquire(&f->store, a, base));
    if (a.kind == FORWARD)
        write_values(f, base, cell);
    else if (action_traits(a.kind)->backward_weight)
        read_values(f, base, cell);
    return activation_store_release(&f->store, a);
}

static void check_seen(struct fixture *f, const char *name)
{
    size_t cells = (size_t)f->schedule->chunks * (size_t)f->schedule->m;
    float *seen = malloc(f->seen.bytes);
    cr_assert_not_null(seen);
    cr_assert_eq(copy_to_host(f->compute, seen, f->seen.data, f->seen.bytes), OK);
    cr_assert_eq(stream_sync(f->compute), OK);
    for (size_t cell = 0; cell < cells; cell++)
        for (int i = 0; i < LIFETIMES * FLOATS; i++) {
            int chunk = (int)cell / f->schedule->m, stage = schedule_stage(f->schedule, f->rank, chunk);
            if (schedule_rank(f->schedule, stage, (int)cell % f->schedule->m) != f->rank)
                continue; // a microbatch of the other direction
            cr_assert_eq(seen[cell * LIFETIMES * FLOATS + (size_t)i], value_of((int)cell, i / FLOATS),
                         "%s, rank %d%s: chunk %d, microbatch %d, lifetime %d: %g", name, f->rank,
                         f->early ? ", copies early" : "", chunk, (int)cell % f->schedule->m, i / FLOATS,
                         (double)seen[cell * LIFETIMES * FLOATS + (size_t)i]);
        }
    free(seen);
}

/* Two steps: slots have users of the previous step, too. Returns whether anything was offloaded. */
static bool run_two_steps(const char *name, int p, int m, int rank, bool early)
{
    struct fixture f;
    fixture_open(&f, name, p, m, rank, true, early);
    const struct action_list *list = &f.schedule->ranks[rank];
    for (int step = 0; step < 2; step++)
        for (int i = 0; i < list->count; i++) {
            cr_assert_eq(activation_store_prefetch(&f.store, i), OK);
            run_copies_early(&f);
            cr_assert_eq(run_action(&f, list->actions[i]), OK, "%s", fail_text());
            run_copies_early(&f);
        }
    check_seen(&f, name);
    bool offloaded = f.store.offload != NULL;
    fixture_close(&f);
    return offloaded;
}

Test(offload, offloaded_activations_return)
{
    // Those that split B end two lifetimes with I, which this test does not check.
    static const char *const names[] = {"gpipe", "looped-bfs", "1f1b", "interleaved"};
    int offloaded = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int rank = 0; rank < 4; rank++)
            for (int early = 0; early < 2; early++)
                offloaded += run_two_steps(names[k], 4, 8, rank, early);
    cr_assert_geq(offloaded, 20);
    cr_assert(!run_two_steps("1f1b", 1, 8, 0, true), "each backward follows its forward");
}

/* Slots outside of the memory; and a slot shared by two microbatches, which the first backward pass
 * detects. */
Test(offload, detects_wrong_slots)
{
    struct fixture f;
    fixture_open(&f, "1f1b", 4, 8, 0, false, false);
    int *slots = f.store.stash.plan->slot[KEEP_UNTIL_BACKWARD_WEIGHT], good = slots[1];
    cr_assert_eq(activation_store_check(&f.store), OK);
    slots[1] = 4;
    cr_assert_eq(activation_store_check(&f.store), BAD_SCHEDULE);
    cr_assert_str_eq(fail_text(), "chunk 0, microbatch 1: slot 4 of until_weight is outside of 512 bytes");
    slots[1] = -1;
    cr_assert_eq(activation_store_check(&f.store), BAD_SCHEDULE);
    slots[1] = good;
    f.store.stash.gradients.of[2] = f.store.stash.gradients.count;
    cr_assert_eq(activation_store_check(&f.store), BAD_SCHEDULE);
    f.store.stash.gradients.of[2] = 0;

    slots[1] = slots[0];
    const struct action_list *list = &f.schedule->ranks[0];
    enum status status = OK;
    int i = 0;
    for (; status == OK && i < list->count; i++)
        status = run_action(&f, list->actions[i]);
    cr_assert_eq(status, BAD_SCHEDULE);
    cr_assert(list->actions[i - 1].kind == BACKWARD && list->actions[i - 1].microbatch == 0);
    cr_assert_str_eq(fail_text(), "chunk 0, microbatch 0: its slot of until_weight holds microbatch 1");
    fixture_close(&f);
}

/* The first of eight 1F1B ranks at the end of its warm-up: 6 is offloaded while 0F7 runs, and 0 is
 * reloaded for 0B0. */
Test(offload, slots)
{
    struct schedule *schedule = NULL;
    struct offload_plan *offloaded = NULL;
    cr_assert_eq(schedule_build(&(struct schedule_options){.name = "1f1b", .p = 8, .m = 16}, &schedule), OK);
    cr_assert_eq(offload_plan_create(schedule, 0, &offloaded), OK);
    struct slot_plan *whole = slot_plan_create(schedule, 0);
    cr_assert(offloaded->any);
    cr_assert_eq(whole->peak[KEEP_UNTIL_BACKWARD_WEIGHT][0], 8);
    cr_assert_eq(offloaded->peak[KEEP_UNTIL_BACKWARD_WEIGHT][0], 3);
    offload_plan_destroy(offloaded);
    slot_plan_destroy(whole);
    schedule_destroy(schedule);
}

/* ---- moments ---- */

enum { ELEMENTS = 3 * MOMENT_CHUNK + 1000, VECTORS = 4 }; // weight, gradient, m, v

static void init_vectors(struct stream *stream, struct buffer of[VECTORS], enum part moments)
{
    float *host = malloc(ELEMENTS * sizeof *host);
    cr_assert_not_null(host);
    for (int k = 0; k < VECTORS; k++) {
        for (int i = 0; i < ELEMENTS; i++)
            host[i] = (float)((i * 31 + k * 17) % 257 + 1) * (k == 1 ? -0.01F : 0.02F);
        cr_assert_eq(
            buffer_alloc(stream_device(stream), k < 2 ? PART_DATA : moments, ELEMENTS * sizeof *host, &of[k]),
            OK);
        cr_assert_eq(copy_to_device(stream, of[k].data, host, ELEMENTS * sizeof *host), OK);
        cr_assert_eq(stream_sync(stream), OK);
    }
    free(host);
}

static struct adamw args_of(const struct buffer of[VECTORS], const struct buffer *hyper, enum dtype weight)
{
    return (struct adamw){.weight = tensor_1d(of[0].data, weight, ELEMENTS),
                          .gradient = tensor_1d(of[1].data, F32, ELEMENTS),
                          .m = tensor_1d(of[2].data, F32, ELEMENTS),
                          .v = tensor_1d(of[3].data, F32, ELEMENTS),
                          .hyper = hyper->data,
                          .decay = true,
                          .stochastic = {.begin = 5, .width = 1000, .columns = 1234}};
}

static void take_steps(struct stream *stream, const struct adamw *whole, const struct adamw *chunked)
{
    struct moment_window window;
    cr_assert_eq(moment_window_create(stream, &window), OK);
    for (int step = 0; step < 2; step++) {
        cr_assert_eq(adamw(stream, *whole), OK);
        cr_assert_eq(moment_window_begin(&window), OK);
        for (int i = 0; i < 2; i++) // two tensors in sequence: the second half is a whole tensor and a part
            cr_assert_eq(moment_window_step(&window, *chunked), OK);
        cr_assert_eq(adamw(stream, *whole), OK);
        cr_assert_eq(stream_wait(stream, stream_record(window.copies)), OK);
    }
    cr_assert_eq(stream_sync(stream), OK);
    moment_window_destroy(&window);
}

static void moments_in_chunks(enum dtype weight)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer hyper = {0}, device_side[VECTORS] = {0}, host_side[VECTORS] = {0};
    struct adamw_hyper values = {.lr = 0.01F,
                                 .one_minus_beta1 = 0.1F,
                                 .one_minus_beta2 = 0.01F,
                                 .epsilon = 1e-8F,
                                 .correction1 = 0.1F,
                                 .correction2 = 0.01F,
                                 .gradient_scale = 0.5F,
                                 .weight_decay = 0.1F,
                                 .step = 3};
    cr_assert_eq(device_open(&(struct device_options){.name = "strict", .threads = 1}, &device), OK);
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof values, &hyper), OK);
    cr_assert_eq(copy_to_device(stream, hyper.data, &values, sizeof values), OK);
    init_vectors(stream, device_side, PART_DATA);
    init_vectors(stream, host_side, PART_HOST);
    struct adamw whole = args_of(device_side, &hyper, weight), chunked = args_of(host_side, &hyper, weight);
    take_steps(stream, &whole, &chunked);
    for (int k = 0; k < VECTORS; k++)
        cr_assert_eq(memcmp(device_side[k].data, host_side[k].data, ELEMENTS * sizeof(float)), 0, "vector %d",
                     k);
    for (int k = 0; k < VECTORS; k++) {
        buffer_free(&device_side[k]);
        buffer_free(&host_side[k]);
    }
    buffer_free(&hyper);
    stream_destroy(stream);
    device_close(device);
}

/* For fp32 weights; and for bf16 weights without master weights, which are rounded by their global
 * index. */
Test(offload, moments_pass_through_the_window)
{
    moments_in_chunks(F32);
    moments_in_chunks(BF16);
}

/* Host memory of a device is not counted as device memory, and keeps its contents. */
Test(offload, host_memory)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer host = {0}, there = {0};
    enum { COUNT = 1 << 16 };
    float *in = malloc(COUNT * sizeof *in);
    cr_assert_not_null(in);
    cr_assert_eq(device_open(&(struct device_options){.name = "cpu", .threads = 1}, &device), OK);
    cr_assert_eq(stream_create(device, "test", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_HOST, COUNT * sizeof *in, &host), OK);
    cr_assert_eq(device_memory(device).now_bytes[PART_HOST], COUNT * sizeof *in);
    cr_assert_eq(device_memory(device).peak_total_bytes, 0);
    cr_assert_eq(buffer_alloc(device, PART_DATA, COUNT * sizeof *in, &there), OK);
    cr_assert_eq(fill(stream, (struct fill){.out = tensor_1d(there.data, F32, COUNT), .value = 3.0F}), OK);
    cr_assert_eq(copy_to_host(stream, host.data, there.data, there.bytes), OK);
    buffer_page_out(&host, 100, host.bytes - 100);
    cr_assert_eq(copy_to_host(stream, in, host.data, host.bytes), OK);
    cr_assert_eq(stream_sync(stream), OK);
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(in[i], 3.0F);
    setenv("TMPDIR", "/nowhere/at/all", 1);
    buffer_free(&host);
    cr_assert_eq(buffer_alloc(device, PART_HOST, 4096, &host), IO_ERROR);
    cr_assert_not_null(strstr(fail_text(), "/nowhere/at/all"));
    free(in);
    buffer_free(&there);
    stream_destroy(stream);
    device_close(device);
}
