// SPDX-License-Identifier: Apache-2.0
/* The cuda device's errors if cuDNN's attention is requested but not available: on the emulated GPU with the
 * emulated cuDNN, whose calls fail by EMULATOR_FAIL. */
#include "base/text.h"
#include "kernels/cuda/runtime/device_cuda.h"
#include "kernels/ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 16, HEADS = 2, WIDTH = 64 };

struct fixture {
    struct device *device;
    struct stream *stream;
    uint16_t qkv[TOKENS * 3 * HEADS * WIDTH], out[TOKENS * HEADS * WIDTH];
    float lse[HEADS * TOKENS];
    struct attention_forward op;
};

static enum status fixture_open(struct fixture *b, enum attention_backend backend, bool nondeterministic)
{
    struct device_options options = {
        .name = "cuda", .threads = 1, .kernels.attention = backend, .nondeterministic = nondeterministic};
    memset(b, 0, sizeof *b);
    TRY(device_open_with(&device_cuda, &options, &b->device));
    TRY(stream_create(b->device, "compute", &b->stream));
    const int64_t a = HEADS * WIDTH;
    struct tensor qkv = tensor_2d(b->qkv, BF16, TOKENS, 3 * a);
    b->op = (struct attention_forward){.q = tensor_columns(qkv, 0, a),
                                       .k = tensor_columns(qkv, a, 2 * a),
                                       .v = tensor_columns(qkv, 2 * a, 3 * a),
                                       .batch = 1,
                                       .sequence = TOKENS,
                                       .head_dim = WIDTH,
                                       .scale = 0.125F,
                                       .out = tensor_2d(b->out, BF16, TOKENS, a),
                                       .lse = tensor_2d(b->lse, F32, HEADS, TOKENS)};
    return OK;
}

static void fixture_close(struct fixture *b)
{
    unsetenv("EMULATOR_FAIL");
    stream_destroy(b->stream);
    device_close(b->device);
}

static void expect_call_error(const char *failing, const char *expected)
{
    struct fixture b;
    cr_assert_eq(fixture_open(&b, ATTENTION_CUDNN, false), OK, "%s", fail_text());
    setenv("EMULATOR_FAIL", failing, 1);
    cr_assert_eq(attention_forward(b.stream, b.op), NOT_SUPPORTED);
    cr_expect_str_eq(fail_text(), expected);
    fixture_close(&b);
}

Test(attention_backend, errors_name_the_call_the_shape_and_cudnns_message)
{
    expect_call_error("cudnnBackendExecute",
                      "cuda: cudnnBackendExecute: CUDNN_STATUS_INTERNAL_ERROR: injected by "
                      "EMULATOR_FAIL; stream compute, attention_forward(bf16[16, 128])");
    expect_call_error("cudnnBackendFinalize",
                      "cuda: cudnnBackendFinalize (Q): CUDNN_STATUS_INTERNAL_ERROR: injected by "
                      "EMULATOR_FAIL; stream compute, attention_forward(bf16[16, 128])");
    expect_call_error(
        "engines", "cuda: cudnnBackendFinalize (no deterministic engine; use model.attention_backend own): "
                   "CUDNN_STATUS_NOT_SUPPORTED; stream compute, attention_forward(bf16[16, 128])");
}

Test(attention_backend, a_machine_without_cudnn)
{
    struct fixture b;
    setenv("EMULATOR_FAIL", "cudnn", 1);
    cr_assert_eq(fixture_open(&b, ATTENTION_CUDNN, false), NOT_SUPPORTED);
    cr_expect_str_eq(
        fail_text(),
        "model.attention_backend cudnn: libcudnn.so.9: no such file; it requires cuDNN 9.15.1 or newer: "
        "put its folder on LD_LIBRARY_PATH; use model.attention_backend own");
    setenv("EMULATOR_FAIL", "cudnnCreate", 1);
    cr_assert_eq(fixture_open(&b, ATTENTION_CUDNN, false), NOT_SUPPORTED);
    cr_expect_str_eq(fail_text(),
                     "model.attention_backend cudnn: cuda: cudnnCreate: CUDNN_STATUS_INTERNAL_ERROR: "
                     "injected by EMULATOR_FAIL; use model.attention_backend own");
}

static void expect_choices(struct device *device, const char *expected)
{
    struct text choices = {0};
    device_choices(device, &choices);
    cr_expect_str_eq(text_chars(&choices), expected);
    text_free(&choices);
}

/* auto reports its choices with reasons: one line per shape and direction, however often it is called. */
Test(attention_backend, auto_reports_its_choice)
{
    struct fixture b;
    cr_assert_eq(fixture_open(&b, ATTENTION_AUTO, false), OK, "%s", fail_text());
    expect_choices(b.device, "");
    cr_expect_eq(attention_forward(b.stream, b.op), OK, "%s", fail_text());
    expect_choices(b.device, "attention: our own kernels; deterministic true disables choice by timing\n"
                             "attention kernels launched: wgmma (forward)\n");
    fixture_close(&b);

    setenv("EMULATOR_FAIL", "cudnn", 1);
    cr_assert_eq(fixture_open(&b, ATTENTION_AUTO, true), OK, "%s", fail_text());
    cr_expect_eq(attention_forward(b.stream, b.op), OK, "%s", fail_text());
    expect_choices(
        b.device,
        "attention: our own kernels; libcudnn.so.9: no such file; it requires cuDNN 9.15.1 or newer: put its "
        "folder on LD_LIBRARY_PATH\nattention kernels launched: wgmma (forward)\n");
    fixture_close(&b);

    cr_assert_eq(fixture_open(&b, ATTENTION_AUTO, true), OK, "%s", fail_text());
    for (int i = 0; i < 3; i++)
        cr_expect_eq(attention_forward(b.stream, b.op), OK, "%s", fail_text());
    struct text choices = {0};
    double cudnn_ms = 0.0, own_ms = 0.0;
    char chosen[20];
    int length = 0;
    device_choices(b.device, &choices);
    cr_expect_eq(
        sscanf(
            text_chars(&choices),
            "attention: forward, bf16, batch 1 x 16, 2 heads of 64 in 2 groups: %19[^(](cuDNN's %lf ms, our "
            "own %lf ms)\nattention kernels launched: wgmma (forward)\n%n", // in the trial, at least
            chosen, &cudnn_ms, &own_ms, &length),
        3, "%s", text_chars(&choices));
    cr_expect_eq((size_t)length, choices.length, "reported once");
    cr_expect(cudnn_ms > 0.0 && own_ms > 0.0);
    cr_expect_str_eq(chosen, cudnn_ms < own_ms ? "cuDNN's " : "our own kernels ");
    text_free(&choices);
    fixture_close(&b);

    cr_assert_eq(fixture_open(&b, ATTENTION_OWN, true), OK, "%s", fail_text());
    cr_expect_eq(attention_forward(b.stream, b.op), OK, "%s", fail_text());
    expect_choices(b.device, "attention kernels launched: wgmma (forward)\n");
    fixture_close(&b);
}

/* auto does not try cuDNN with deterministic sums, and works without cuDNN. */
Test(attention_backend, auto_falls_back)
{
    const char *const failing[] = {"cudnn", "cudnnCreate", "engines"};
    for (int i = 0; i < 3; i++) {
        struct fixture b;
        setenv("EMULATOR_FAIL", failing[i], 1);
        cr_assert_eq(fixture_open(&b, ATTENTION_AUTO, i != 0), OK, "%s", fail_text());
        cr_expect_eq(attention_forward(b.stream, b.op), OK, "%s", fail_text());
        cr_expect_eq(stream_sync(b.stream), OK);
        cr_expect_float_eq(b.lse[TOKENS - 1], logf((float)TOKENS), 1e-5);
        fixture_close(&b);
    }
}
