// SPDX-License-Identifier: Apache-2.0
/* Rates of the ops at the sizes of a model, compared with memory bandwidth:
 *
 *     bench_ops [device=cpu] [type=f32] [model=gpt2] [threads=2] [batch=4] [sequence=256] [rotate=0]
 *     bench_ops device=cuda type=bf16 model=gpt3-1.3b batch=4 sequence=2048
 *
 * Each line: milliseconds (the best of several runs), the rate, for memory-bound ops the fraction of the peak
 * rate, and the time of the op in a microbatch of the whole model, with the optimizer at 8 microbatches per
 * step. On a CPU the buffers are those of one layer, so, as in training, small ones are read from caches and
 * can exceed the peak. On asynchronous devices (GPUs) a run is ten calls, and each uses the next copy of its
 * operands: `rotate` megabytes of each, so that rates are those of memory (bench_buffers.h). attention=cudnn:
 * only cuDNN's attention, not our own.
 *
 * Matrix multiplications are timed with the heuristic's algorithm and with the fastest of its first eight.
 * The last lines compare the sum of the ops with that of the model's matrix multiplications, and fused
 * epilogues with separate kernels, and name the kernels that the device selected. */
#include "tools/benchmarks/bench_ops.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MICROBATCHES = 8 };

static const struct model models[] = {
    {"gpt2", 768, 12, 12, 64, 3072, 12, 124439808, 50257, 50304, 1},
    {"gpt3-1.3b", 2048, 16, 16, 128, 8192, 24, 1313722368, 50257, 50304, 1},
    {"llama3-8b", 4096, 32, 8, 128, 14336, 32, 8030261248, 128256, 128256, 2},
};
enum { MODELS = sizeof models / sizeof *models };

static void *host(int64_t bytes)
{
    void *data = malloc((size_t)bytes + 1);
    CHECK(data != NULL);
    return data;
}

struct tensor bench_matrix_of(struct bench *b, enum dtype dtype, int64_t rows, int64_t columns)
{
    return bench_normals(&b->memory, dtype, rows, columns);
}

struct tensor bench_matrix(struct bench *b, int64_t rows, int64_t columns)
{
    return bench_matrix_of(b, b->dtype, rows, columns);
}

struct tensor bench_vector(struct bench *b, int64_t count)
{
    return tensor_1d(bench_matrix(b, 1, count).data, b->dtype, count);
}

struct tensor bench_sums(struct bench *b, int64_t count)
{
    return tensor_1d(bench_matrix_of(b, F32, 1, count).data, F32, count);
}

static struct tensor ones(struct bench *b, int64_t count)
{
    float *x = host(count * (int64_t)sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = 1.0F;
    void *data = bench_filled(&b->memory, x, (size_t)count * sizeof *x);
    free(x);
    return tensor_1d(data, F32, count);
}

static int32_t *numbers(struct bench *b, int64_t below)
{
    int32_t *n = host(b->tokens * (int64_t)sizeof *n);
    for (int64_t t = 0; t < b->tokens; t++)
        n[t] = (int32_t)(t * 7919 % below);
    int32_t *data = bench_filled(&b->memory, n, (size_t)b->tokens * sizeof *n);
    free(n);
    return data;
}

int64_t *bench_samples(struct bench *b)
{
    int64_t *n = host(b->tokens * (int64_t)sizeof *n);
    for (int64_t t = 0; t < b->tokens; t++)
        n[t] = t / b->sequence;
    int64_t *data = bench_filled(&b->memory, n, (size_t)b->tokens * sizeof *n);
    free(n);
    return data;
}

double bench_report(struct bench *b, const char *name, double s, double amount, const char *unit,
                    double times)
{
    b->total_ms += times * s * 1e3;
    printf("%-32s %9.3f ms %9.1f %-8s", name, s * 1e3, amount / s * 1e-9, unit);
    if (unit[1] == 'B' && b->peak_bandwidth > 0.0)
        printf(" %5.1f %%", 100.0 * amount / s / b->peak_bandwidth);
    else
        printf("        ");
    printf(" x %-6.4g %9.2f ms\n", times, times * s * 1e3);
    return s;
}

static struct norm_forward norm_ahead(struct bench *b, struct tensor x)
{
    int64_t t = b->tokens, h = b->model.hidden;
    struct norm_forward f = {.kind = NORM_LAYER, .epsilon = 1e-5F, .x = x, .y = bench_matrix(b, t, h)};
    f.weight = bench_vector(b, h), f.bias = bench_vector(b, h), f.mean = bench_sums(b, t),
    f.rstd = bench_sums(b, t);
    return f;
}

static struct norm_backward norm_back(struct bench *b, const struct norm_forward *f)
{
    int64_t t = b->tokens, h = b->model.hidden;
    struct norm_backward n = {
        .kind = NORM_LAYER, .x = f->x, .weight = f->weight, .mean = f->mean, .rstd = f->rstd};
    n.dy = f->y, n.dx = n.dresidual = bench_matrix(b, t, h), n.dweight = bench_sums(b, h),
    n.dbias = bench_sums(b, h);
    return n;
}

/* The first norm of a block, and that of the head. */
static void bench_norms(struct bench *b)
{
    const double once = b->size * bench_elements(b->tokens, b->model.hidden),
                 times = (double)b->model.layers + 1;
    struct norm_forward f = norm_ahead(b, bench_matrix(b, b->tokens, b->model.hidden));
    struct norm_backward n = norm_back(b, &f);
    bench_report(b, "norm_forward", BEST_S(b, f, norm_forward(b->stream, f)), 2.0 * once, "GB/s", times);
    bench_report(b, "norm_backward", BEST_S(b, n, norm_backward(b->stream, n)), 4.0 * once, "GB/s", times);
    bench_release(&b->memory);
}

static void bench_activation(struct bench *b, enum activation kind, const char *name, double times)
{
    int64_t t = b->tokens, ffn = b->model.ffn, width = kind == ACTIVATION_SWIGLU ? 2 * ffn : ffn;
    struct activation_forward f = {
        .kind = kind, .x = bench_matrix(b, t, width), .y = bench_matrix(b, t, ffn)};
    struct activation_backward n = {.kind = kind, .x = f.x, .dy = f.y, .dx = bench_matrix(b, t, width)};
    printf("%s:\n", name);
    bench_report(b, "  activation_forward", BEST_S(b, f, activation_forward(b->stream, f)),
                 b->size * bench_elements(t, width + ffn), "GB/s", times);
    bench_report(b, "  activation_backward", BEST_S(b, n, activation_backward(b->stream, n)),
                 b->size * bench_elements(t, 2 * width + ffn), "GB/s", times);
    bench_release(&b->memory);
}

static void bench_residual(struct bench *b, float probability, double times)
{
    int64_t t = b->tokens, h = b->model.hidden;
    struct dropout d = {.probability = probability, .generator = philox_named(1, "bench"), .columns = h};
    d.sample = bench_samples(b);
    d.sample_offset = numbers(b, b->sequence);
    struct residual_forward f = {.x = bench_matrix(b, t, h),
                                 .bias = bench_vector(b, h),
                                 .residual = bench_matrix(b, t, h),
                                 .dropout = d};
    f.out = f.residual;
    struct residual_backward n = {.dout = f.x, .dx = bench_matrix(b, t, h), .dropout = d};
    printf("dropout %g:\n", (double)probability);
    bench_report(b, "  residual_forward", BEST_S(b, f, residual_forward(b->stream, f)),
                 3.0 * b->size * bench_elements(t, h), "GB/s", times);
    bench_report(b, "  residual_backward", BEST_S(b, n, residual_backward(b->stream, n)),
                 2.0 * b->size * bench_elements(t, h), "GB/s", times);

    // With the second norm of a block. Without dropout, dx is only needed for the branch.
    struct residual_norm_forward pair = {.residual = f, .norm = norm_ahead(b, f.out)};
    struct residual_norm_backward back = {.norm = norm_back(b, &pair.norm), .residual = n};
    if (probability == 0.0F)
        back.norm.dx = n.dx;
    back.residual.dout = back.norm.dx;
    bench_report(b, "  residual_norm_forward", BEST_S(b, pair, residual_norm_forward(b->stream, pair)),
                 4.0 * b->size * bench_elements(t, h), "GB/s", times);
    bench_report(b, "  residual_norm_backward", BEST_S(b, back, residual_norm_backward(b->stream, back)),
                 (probability == 0.0F ? 4.0 : 5.0) * b->size * bench_elements(t, h), "GB/s", times);
    bench_release(&b->memory);
}

static void bench_column_sums(struct bench *b)
{
    const int64_t h = b->model.hidden, widths[] = {h, 3 * h, b->model.ffn}, times[] = {2, 1, 1};
    for (int i = 0; i < 3; i++) {
        struct column_sum c = {.in = bench_matrix(b, b->tokens, widths[i]), .out = bench_sums(b, widths[i])};
        bench_report(b, "column_sum", BEST_S(b, c, column_sum(b->stream, c)),
                     b->size * bench_elements(b->tokens, widths[i]), "GB/s",
                     (double)(times[i] * b->model.layers));
        bench_release(&b->memory);
    }
}

static void bench_embedding(struct bench *b)
{
    const int64_t h = b->model.hidden, rows = b->model.padded;
    struct embedding_forward f = {
        .table = bench_matrix(b, rows, h), .id = numbers(b, b->model.vocabulary), .rows = rows};
    f.out = bench_matrix(b, b->tokens, h);
    bench_report(b, "embedding_forward", BEST_S(b, f, embedding_forward(b->stream, f)),
                 2.0 * b->size * bench_elements(b->tokens, h), "GB/s", 2);
    struct embedding_backward n = {
        .id = f.id, .rows = rows, .dout = f.out, .dtable = bench_matrix_of(b, F32, rows, h)};
    bench_report(b, "embedding_backward", BEST_S(b, n, embedding_backward(b->stream, n)),
                 (8.0 + b->size) * bench_elements(b->tokens, h), "GB/s", 2);
    bench_release(&b->memory);
}

static void bench_rope(struct bench *b)
{
    int64_t h = b->model.hidden;
    struct rope r = {.x = bench_matrix(b, b->tokens, h),
                     .position = numbers(b, b->sequence),
                     .head_dim = b->model.head_dim,
                     .base = 1e4};
    bench_report(b, "rope", BEST_S(b, r, rope(b->stream, r)), 2.0 * b->size * bench_elements(b->tokens, h),
                 "GB/s", 0);
    bench_release(&b->memory);
}

static void bench_loss(struct bench *b)
{
    const int64_t t = b->tokens, v = b->model.vocabulary;
    struct tensor logits = bench_matrix(b, t, b->model.padded), max = bench_sums(b, t), sum = ones(b, t),
                  target = bench_sums(b, t);
    int32_t *label = numbers(b, v);
    struct loss_max m = {.logits = logits, .columns = v, .max = max};
    struct loss_sum s = {
        .logits = logits, .max = max, .label = label, .columns = v, .sum = sum, .target = target};
    struct loss_backward n = {.logits = logits, .max = max, .sum = sum, .label = label, .columns = v};
    n.mask = ones(b, t).data;
    bench_report(b, "loss_max", BEST_S(b, m, loss_max(b->stream, m)), b->size * bench_elements(t, v), "GB/s",
                 1);
    bench_report(b, "loss_sum", BEST_S(b, s, loss_sum(b->stream, s)), b->size * bench_elements(t, v), "GB/s",
                 1);
    bench_report(b, "loss_backward", BEST_S(b, n, loss_backward(b->stream, n)),
                 2.0 * b->size * bench_elements(t, v), "GB/s", 1);
    bench_release(&b->memory);
}

/* Quantization before a low-precision matmul: of x [T, H], along its sum. Blocks read it twice. */
static void bench_formats(struct bench *b)
{
    const int64_t t = b->tokens, h = b->model.hidden;
    const double once = b->size * bench_elements(t, h), out = 4.0 * bench_elements(t, h);
    struct quantize q = {.in = bench_matrix(b, t, h),
                         .out = bench_matrix_of(b, F32, t, h),
                         .scale = SCALE_E8M0_UP,
                         .block_rows = 1,
                         .block_columns = 32,
                         .period = b->sequence,
                         .magnitude = bench_sums(b, 1)};
    bench_report(b, "quantize, mxfp8, rows", BEST_S(b, q, quantize(b->stream, q)), 2.0 * once + out, "GB/s",
                 0);
    q.block_rows = 32, q.block_columns = 1;
    bench_report(b, "quantize, mxfp8, columns", BEST_S(b, q, quantize(b->stream, q)), 2.0 * once + out,
                 "GB/s", 0);
    q.format = NUMBER_E2M1, q.scale = SCALE_E4M3, q.block_rows = 16;
    q.sample = bench_samples(b), q.sample_offset = numbers(b, b->sequence), q.columns = h;
    bench_report(b, "quantize, nvfp4, stochastic", BEST_S(b, q, quantize(b->stream, q)), 2.0 * once + out,
                 "GB/s", 0);
    q = (struct quantize){.in = q.in, .out = q.out, .magnitude = q.magnitude};
    bench_report(b, "quantize, tensorwise", BEST_S(b, q, quantize(b->stream, q)), once + out, "GB/s", 0);
    struct magnitude m = {.in = q.in, .out = q.magnitude};
    bench_report(b, "magnitude", BEST_S(b, m, magnitude(b->stream, m)), once, "GB/s", 0);
    if (t % HADAMARD_ROWS == 0) {
        struct hadamard transform = {.in = q.in, .out = q.out};
        bench_report(b, "hadamard", BEST_S(b, transform, hadamard(b->stream, transform)), once + out, "GB/s",
                     0);
    }
    bench_release(&b->memory);
}

static void bench_optimizer(struct bench *b)
{
    const int64_t count = 32 << 20;
    const double times = (double)b->model.parameters / (double)count / MICROBATCHES;
    struct adamw a = {.weight = bench_sums(b, count), .gradient = bench_sums(b, count), .decay = true};
    a.m = bench_sums(b, count), a.v = ones(b, count);
    if (b->dtype != F32)
        a.working = bench_vector(b, count);
    const struct adamw_hyper hyper = {1e-4F, 0.1F, 0.05F, 1e-8F, 0.5F, 0.5F, 1e-3F, 0.1F, 0.0F, 1};
    a.hyper = bench_filled(&b->memory, &hyper, sizeof hyper);
    bench_report(b, "adamw, 32 M", BEST_S(b, a, adamw(b->stream, a)),
                 (28.0 + (b->dtype == F32 ? 0.0 : b->size)) * (double)count, "GB/s", times);
    int64_t blocks = squares_blocks(a.gradient);
    struct squares s = {.x = a.gradient,
                        .out = tensor_1d(bench_alloc(&b->memory, (size_t)blocks * 8), F64, blocks)};
    bench_report(b, "squares, 32 M", BEST_S(b, s, squares(b->stream, s)), 4.0 * (double)count, "GB/s", times);
    bench_release(&b->memory);
}

/* Measures the peak bandwidth by a copy of memory larger than any cache, the faster one of our own and the
 * vendor's; on a CPU by an add, since a copy would also read its output (write allocation). */
static void bench_peak_bandwidth(struct bench *b, bool with_add)
{
    const int64_t count = 64 << 20;
    const size_t size = (size_t)count * sizeof(float);
    struct tensor in = bench_sums(b, count), out = bench_sums(b, count);
    struct add sum = {in, out};
    struct copy whole = {in, out};
    double s = with_add ? BEST_S(b, sum, add(b->stream, sum)) : BEST_S(b, whole, copy(b->stream, whole));
    double bytes = (with_add ? 12.0 : 8.0) * (double)count;
    b->peak_bandwidth = bytes / s;
    bench_report(b, with_add ? "add, 512 MB (peak bandwidth)" : "copy, 512 MB (peak bandwidth)", s, bytes,
                 "GB/s", 0);
    if (stream_vendor_copy(b->stream, out.data, in.data, size) == OK) {
        s = BEST_S(b, whole, stream_vendor_copy(b->stream, whole.out.data, whole.in.data, size));
        bench_report(b, "vendor's (peak bandwidth)", s, bytes, "GB/s", 0);
        b->peak_bandwidth = fmax(b->peak_bandwidth, bytes / s);
    }
    bench_release(&b->memory);
}

/* Parses "key=value" into *value; returns false for another key. */
static bool option(const char *argument, const char *key, const char **value)
{
    size_t length = strlen(key);
    if (strncmp(argument, key, length) != 0 || argument[length] != '=')
        return false;
    *value = argument + length + 1;
    return true;
}

static bool parse(struct bench *b, struct device_options *options, const char *argument)
{
    const char *value;
    if (option(argument, "device", &value)) {
        options->name = value;
        return true;
    }
    if (option(argument, "type", &value)) {
        const enum dtype types[] = {F32, BF16, F16};
        for (int i = 0; i < 3; i++) {
            if (strcmp(value, dtype_name(types[i])) == 0) {
                b->dtype = types[i];
                return true;
            }
        }
        return false;
    }
    if (option(argument, "model", &value)) {
        for (int i = 0; i < MODELS; i++) {
            if (strcmp(value, models[i].name) == 0) {
                b->model = models[i];
                return true;
            }
        }
        return false;
    }
    if (option(argument, "attention", &value)) {
        b->own_attention = strcmp(value, "own") == 0;
        options->kernels.attention = b->own_attention ? ATTENTION_OWN : ATTENTION_CUDNN;
        return b->own_attention || strcmp(value, "cudnn") == 0;
    }
    if (option(argument, "rotate", &value)) {
        b->rotate_mb = strtol(value, NULL, 10);
        return b->rotate_mb >= 0;
    }
    if (option(argument, "threads", &value))
        return (options->threads = (int)strtol(value, NULL, 10)) >= 1;
    if (option(argument, "batch", &value))
        return (b->batch = strtol(value, NULL, 10)) >= 1;
    return option(argument, "sequence", &value) && (b->sequence = strtol(value, NULL, 10)) >= 1;
}

static void bench_all(struct bench *b)
{
    const struct model *m = &b->model;
    const double layers = (double)m->layers;
    bench_norms(b);
    bench_activation(b, ACTIVATION_GELU, "gelu", 0);
    bench_activation(b, ACTIVATION_SWIGLU, "swiglu", 0);
    bench_activation(b, ACTIVATION_GELU_TANH, "gelu-tanh", layers);
    bench_residual(b, 0.1F, 0);
    bench_residual(b, 0.0F, layers);
    bench_column_sums(b);
    bench_embedding(b);
    bench_rope(b);
    if (b->own_attention) // cuDNN's attention does not implement our dropout
        bench_attention(b, 0.1F, 0);
    bench_attention(b, 0.0F, layers);
    bench_loss(b);
    bench_optimizer(b);
    bench_formats(b);
    const int64_t h = m->hidden, q = m->heads * m->head_dim, k = m->groups * m->head_dim;
    double gemm_ms = bench_gemm(b, q + 2 * k, h, layers) + bench_gemm(b, h, q, layers);
    gemm_ms += bench_gemm(b, m->gates * m->ffn, h, layers) + bench_gemm(b, h, m->ffn, layers) +
               bench_gemm(b, m->padded, h, 1);
    printf("per microbatch: %.0f ms in these ops, %.0f ms in gemm, %.1f %%\n", b->total_ms, gemm_ms,
           100.0 * b->total_ms / gemm_ms);
    if (b->fused != NULL)
        bench_epilogues(b);
}

/* Opens the device with other options. Returns NULL and the reason without cuDNN. */
static struct device *open_other(struct device_options options, enum attention_backend attention,
                                 enum matmul_epilogues epilogues, struct stream **stream)
{
    struct device *device = NULL;
    options.kernels.attention = attention;
    options.kernels.epilogues = epilogues;
    options.nondeterministic = true; // cuDNN's faster engines
    if (device_open(&options, &device) != OK) {
        printf("%s\n", fail_text());
        return NULL;
    }
    MUST(stream_create(device, "other", stream));
    return device;
}

enum { OTHERS = 4 };

/* The devices to compare with, of a GPU. `file` receives the algorithms of matrix multiplications. */
static void open_others(struct bench *b, struct device_options options, char *file,
                        struct device *devices[OTHERS])
{
    if (b->own_attention) {
        devices[0] = open_other(options, ATTENTION_CUDNN, EPILOGUES_APART, &b->cudnn);
        devices[1] = open_other(options, ATTENTION_OWN_MMA, EPILOGUES_APART, &b->mma);
    }
    devices[2] = open_other(options, ATTENTION_OWN, EPILOGUES_FUSED, &b->fused);
    if (b->dtype == F32) // no tensor cores, so it takes long, and a recipe trains with bf16
        return;
    const int fd = mkstemp(file);
    if (fd < 0) {
        printf("%s: no file for the algorithms of matrix multiplications\n", file);
        return;
    }
    close(fd); // empty is valid
    options.kernels.matmul_algorithms = file;
    devices[3] = open_other(options, ATTENTION_OWN, EPILOGUES_APART, &b->tuned);
}

static void remove_file(const char *file)
{
    char lock[64];
    snprintf(lock, sizeof lock, "%s.lock", file);
    remove(file);
    remove(lock);
}

/* The kernels that the device has selected. */
static void print_choices(const struct bench *b)
{
    struct text choices = {0};
    device_choices(b->memory.device, &choices);
    printf("%s", text_chars(&choices));
    text_free(&choices);
}

int main(int argc, char **argv)
{
    struct bench b = {.batch = 4, .sequence = 256, .model = models[0], .dtype = F32, .own_attention = true};
    b.rotate_mb = -1;
    struct device_options options = {.name = "cpu", .threads = 2, .kernels.attention = ATTENTION_OWN};
    struct device *others[OTHERS] = {NULL};
    char algorithms[] = "/tmp/bench_ops-XXXXXX";
    for (int i = 1; i < argc; i++) {
        if (!parse(&b, &options, argv[i])) {
            fprintf(stderr,
                    "bench_ops: %s: it takes device=NAME, type=f32|bf16|f16, threads=, batch= and "
                    "sequence= from 1, model=gpt2|gpt3-1.3b|llama3-8b, rotate=MEGABYTES and "
                    "attention=own|cudnn\n",
                    argv[i]);
            return 2;
        }
    }
    bool synchronous = device_traits(options.name)->synchronous;
    b.tokens = b.batch * b.sequence;
    b.size = (double)dtype_bytes(b.dtype);
    b.calls = synchronous ? 1 : 10;
    if (b.rotate_mb < 0)
        b.rotate_mb = synchronous ? 0 : BENCH_ROTATE_MB;
    options.nondeterministic = !b.own_attention; // cuDNN's faster engines
    MUST(device_open(&options, &b.memory.device));
    MUST(stream_create(b.memory.device, "bench", &b.stream));
    b.memory.stream = b.stream;
    b.memory.rotate_bytes = (size_t)b.rotate_mb * 1000000;
    printf("%s, %s, %s, %lld x %lld tokens\n", options.name, dtype_name(b.dtype), b.model.name,
           (long long)b.batch, (long long)b.sequence);
    if (device_traits(options.name)->computes && device_traits(options.name)->has_matmul_options)
        open_others(&b, options, algorithms, others);
    bench_peak_bandwidth(&b, synchronous);
    bench_all(&b);
    print_choices(&b);
    struct stream *streams[] = {b.cudnn, b.mma, b.fused, b.tuned, b.stream};
    for (int i = 0; i < OTHERS + 1; i++) {
        stream_destroy(streams[i]);
        device_close(i < OTHERS ? others[i] : b.memory.device);
    }
    remove_file(algorithms);
    return 0;
}
