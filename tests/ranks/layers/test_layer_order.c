// SPDX-License-Identifier: Apache-2.0
/* A stage's actions in other orders: B is bitwise I and W, whether W follows at once or much later, as long
 * as the microbatches' weight gradients are accumulated in order. And a backward pass reports finished
 * layers in the order of the weights, the last layer first.
 *     test_layer_order DEVICE... */
#include "layers/parameters/gradients.h"
#include "tests/ranks/layers/layers_bench.h"
#include "tests/support/sanitized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MICROBATCHES = 3, MAX_ACTIONS = 9, MAX_DONE = MICROBATCHES * (LAYERS + 2) };

/* F0 F1 ..: a letter and a microbatch for each action. */
struct order {
    const char *actions;
    bool equal; // bitwise equal to the first
};
static const struct order orders[] = {
    {"F0 B0 F1 B1 F2 B2", true},           {"F0 F1 F2 B0 B1 B2", true},
    {"F0 I0 W0 F1 I1 W1 F2 I2 W2", true},  {"F0 F1 F2 I0 I1 I2 W0 W1 W2", true},
    {"F0 F1 I0 F2 I1 W0 I2 W1 W2", true},  {"F2 F1 F0 I2 I0 I1 W0 W1 W2", true},
    {"F0 F1 F2 I0 I1 I2 W2 W1 W0", false}, // or the comparison detects nothing
};
enum { ORDERS = sizeof orders / sizeof *orders };

struct result {
    float *gradient; // all of the rank's
    size_t bytes;
    float dx[MICROBATCHES][T * 8];
    int done[MAX_DONE], done_count;
};

/* Options and results of the ranks of one world. */
struct order_run {
    struct trial trial;
    const char *actions;
    struct result result[MAX_RANKS];
};

/* The slots of one microbatch. */
struct slots {
    struct buffer lifetime[LIFETIME_COUNT], dx;
    struct batch batch;
    struct pass pass;
};

/* Wraps gradients, and records the layers whose gradients end. */
struct recorder {
    struct gradients base;
    struct result *result;
};

static enum status note_end(struct gradients *gradients, struct stream *compute,
                            const struct held_layer *layer)
{
    struct result *result = ((struct recorder *)gradients)->result;
    (void)compute;
    if (result->done_count < MAX_DONE)
        result->done[result->done_count++] = layer->layer;
    return OK;
}

static const struct gradients_ops recording = {.end = note_end};

/* Another microbatch of the same shape: other tokens and samples, by shifting the starts of the arrays. */
static enum status slots_open(struct bench *b, int microbatch, struct slots *s)
{
    const struct slot_layout *layout = &b->layer.stage.layout;
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++)
        if (lifetime != SCRATCH)
            TRY(buffer_alloc(b->device, PART_ACTIVATIONS, layout->bytes[lifetime], &s->lifetime[lifetime]));
    TRY(buffer_alloc(b->device, PART_ACTIVATIONS, sizeof(float) * T * 8, &s->dx));
    s->batch = b->batch;
    if (microbatch == 1)
        s->batch.token = b->batch.label; // token ids stay valid
    if (microbatch == 2)
        s->batch.label = b->batch.token;
    s->pass = b->pass;
    s->pass.batch = &s->batch;
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++)
        s->pass.base[lifetime] =
            lifetime == SCRATCH ? b->lifetime[lifetime].data : s->lifetime[lifetime].data;
    return OK;
}

static void slots_close(struct slots *s)
{
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++)
        buffer_free(&s->lifetime[lifetime]);
    buffer_free(&s->dx);
}

static enum status run_action(struct bench *b, struct slots *s, char kind)
{
    const struct stage *stage = &b->layer.stage;
    struct tensor dx =
        tensor_2d(s->dx.data, F32, context_local_tokens(&b->context), b->context.model->hidden_size);
    switch (kind) {
    case 'F':
        return stage_forward(stage, &s->pass);
    case 'B':
        return stage_backward(stage, &s->pass, dx);
    case 'I':
        return stage_backward_input(stage, &s->pass, dx);
    case 'W':
        return stage_backward_weight(stage, &s->pass);
    default:
        return fail(BAD_ARGUMENT, "unknown action '%c'", kind);
    }
}

static enum status run_actions(struct bench *b, struct slots *slots, const char *actions,
                               struct result *result)
{
    struct gradients *gradients = b->weights.gradients;
    struct recorder recorder = {.base = {.ops = &recording, .weights = &b->weights}, .result = result};
    enum status status = OK;
    b->weights.gradients = &recorder.base;
    for (const char *at = actions; status == OK && *at != '\0'; at += at[2] == ' ' ? 3 : 2)
        status = run_action(b, &slots[at[1] - '0'], at[0]);
    b->weights.gradients = gradients;
    TRY(status);
    result->bytes = tensor_bytes(b->weights.flat_gradient);
    result->gradient = malloc(result->bytes);
    if (result->gradient == NULL)
        return fail(NO_MEMORY, "no memory for gradients");
    TRY(copy_to_host(b->stream, result->gradient, b->weights.flat_gradient.data, result->bytes));
    size_t bytes =
        (size_t)(context_local_tokens(&b->context) * b->context.model->hidden_size) * sizeof(float);
    for (int m = 0; m < MICROBATCHES; m++)
        TRY(copy_to_host(b->stream, result->dx[m], slots[m].dx.data, bytes));
    return stream_sync(b->stream);
}

static enum status rank_body(struct world *world, void *argument)
{
    struct order_run *run = argument;
    struct bench bench;
    struct slots slots[MICROBATCHES] = {0};
    enum status status = bench_open(&run->trial, world, &bench);
    for (int m = 0; status == OK && m < MICROBATCHES; m++)
        status = slots_open(&bench, m, &slots[m]);
    if (status == OK)
        status = run_actions(&bench, slots, run->actions, &run->result[world->rank]);
    for (int m = 0; m < MICROBATCHES; m++)
        slots_close(&slots[m]);
    bench_close(&bench);
    return status;
}

static bool same(const struct order_run *a, const struct order_run *b, int ranks)
{
    for (int r = 0; r < ranks; r++)
        if (a->result[r].bytes != b->result[r].bytes ||
            memcmp(a->result[r].gradient, b->result[r].gradient, a->result[r].bytes) != 0 ||
            memcmp(a->result[r].dx, b->result[r].dx, sizeof a->result[r].dx) != 0)
            return false;
    return true;
}

/* Each microbatch reports head, blocks from the last, embedding. */
static bool done_in_order(const struct result *result)
{
    static const int order[] = {LAYERS, 1, 0, LAYER_EMBEDDING};
    bool good = result->done_count == MAX_DONE;
    for (int i = 0; i < result->done_count; i++)
        good = good && result->done[i] == order[i % (LAYERS + 2)];
    return good;
}

static int check_order(const struct order_run *first, const struct order_run *run, const struct order *order,
                       int ranks)
{
    bool equal = same(first, run, ranks), done = true;
    for (int r = 0; r < ranks; r++)
        done = done && done_in_order(&run->result[r]);
    bool good = equal == order->equal && done;
    if (!good)
        printf("  %s: %s%s\n", order->actions, equal ? "equal" : "other bits",
               done ? "" : "; layers out of order");
    return !good;
}

static int check_world(const struct family *family, const char *device, int ranks, bool sequence_parallel)
{
    struct expected expected;
    expected_create(family, WHOLE, &expected);
    struct order_run *runs = calloc(ORDERS, sizeof *runs);
    CHECK(runs != NULL);
    int bad = 0;
    for (int o = 0; o < ORDERS; o++) {
        runs[o] = (struct order_run){.actions = orders[o].actions,
                                     .trial = {.expected = &expected,
                                               .device = device,
                                               .sequence_parallel = sequence_parallel,
                                               .fused = strchr(orders[o].actions, 'B') != NULL}};
        if (world_run("local", ranks, rank_body, &runs[o]) != OK) {
            printf("  %s: FAILED: %s\n", orders[o].actions, fail_text());
            bad++;
        } else {
            bad += check_order(&runs[0], &runs[o], &orders[o], ranks);
        }
    }
    printf("%s, %s, tp %d%s: %s\n", family->name, device, ranks,
           sequence_parallel ? ", sequence parallel" : "", bad == 0 ? "ok" : "WRONG");
    for (int o = 0; o < ORDERS; o++)
        for (int r = 0; r < MAX_RANKS; r++)
            free(runs[o].result[r].gradient);
    free(runs);
    expected_destroy(&expected);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_layer_order DEVICE...\n");
        return 2;
    }
    int bad = 0;
    for (int i = 0; i < (argc - 1) * FAMILIES; i++) {
        const int f = i % FAMILIES;
        const char *device = argv[1 + i / FAMILIES];
        if (f % 2 == 0 || long_tests())
            bad += check_world(&families[f], device, 1, false);
        if (f % 2 == 1 || long_tests())
            bad += check_world(&families[f], device, 2, true);
    }
    return bad == 0 ? 0 : 1;
}
