// SPDX-License-Identifier: Apache-2.0
/* The software tensor cores (tests/emulator/include/cuda_mma.h), compared with plain matrix multiplication
 * and the layouts of the PTX ISA, element by element; copies without a wait; rounding. Values are small
 * integers where possible, so that sums are exact and every comparison is bitwise. */
#include "kernels/cuda/tensor_core/tile.h"
#include "tests/unit/cuda/emulator_bench.h"

#include <criterion/criterion.h>

static const char *const orders[] = {"forward", "reverse", "7"};

static int whole(int i)
{
    return static_cast<int>(static_cast<unsigned>(i) * 2654435761U >> 13) % 9 - 4;
}

/* Rows are an odd number of 16-byte chunks apart: 8 rows of a matrix fall into 8 different banks. */
enum { PITCH = 24 };

template <class T> static void fill_tile(T *tile, const int *from, int rows, int columns)
{
    for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += 32)
        tile[i / columns * PITCH + i % columns] = narrow<T>(static_cast<float>(from[i]));
}

/* d = a b, with operands in registers according to the ISA's formulas; then e = round(d) c with d as an
 * operand, 16 x 16 of it made of two d; c is loaded by ldmatrix, transposed. */
template <class T> static void two_matmuls(const int *a, const int *b, const int *c, float *d, float *e)
{
    SHARED(T, tile, 16 * PITCH);
    const int lane = static_cast<int>(threadIdx.x), group = lane / 4, in_group = lane % 4;
    uint32_t left[4], right[2][2];
    for (int i = 0; i < 8; i += 2) {
        const int row = i % 4 < 2 ? group : group + 8, column = in_group * 2 + (i < 4 ? 0 : 8);
        left[i / 2] = narrow_pair<T>(static_cast<float>(a[row * 16 + column]),
                                     static_cast<float>(a[row * 16 + column + 1]));
    }
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 4; i += 2) {
            const int row = in_group * 2 + (i < 2 ? 0 : 8), column = 8 * half + group;
            right[half][i / 2] = narrow_pair<T>(static_cast<float>(b[row * 16 + column]),
                                                static_cast<float>(b[(row + 1) * 16 + column]));
        }
    }
    float sum[2][4] = {};
    for (int half = 0; half < 2; half++) {
        mma_m16n8k16<T>(sum[half], left, right[half]);
        for (int i = 0; i < 4; i++)
            d[(group + i / 2 * 8) * 16 + 8 * half + 2 * in_group + i % 2] = sum[half][i];
    }
    const uint32_t again[4] = {narrow_pair<T>(sum[0][0], sum[0][1]), narrow_pair<T>(sum[0][2], sum[0][3]),
                               narrow_pair<T>(sum[1][0], sum[1][1]), narrow_pair<T>(sum[1][2], sum[1][3])};
    fill_tile(tile, c, 16, 16);
    __syncwarp();
    uint32_t third[4];
    ldmatrix_x4_trans(third, tile + lane % 16 * PITCH + lane / 16 * 8);
    for (int half = 0; half < 2; half++) {
        float out[4] = {};
        mma_m16n8k16<T>(out, again, third + 2 * half);
        for (int i = 0; i < 4; i++)
            e[(group + i / 2 * 8) * 16 + 8 * half + 2 * in_group + i % 2] = out[i];
    }
}

template <class T> static int count_wrong_results(const char *order)
{
    bench bench(order);
    int a[256], b[256], c[256], wrong = 0;
    float d[256], e[256];
    for (int i = 0; i < 256; i++) {
        a[i] = whole(i);
        b[i] = whole(i + 300);
        c[i] = whole(i + 600);
    }
    cr_assert_eq(LAUNCH(&bench.queue, two_matmuls<T>, dim3(1), 32, 0, a, b, c, d, e), OK);
    for (int i = 0; i < 256; i++) {
        int sum = 0, next = 0;
        for (int k = 0; k < 16; k++) {
            sum += a[i / 16 * 16 + k] * b[k * 16 + i % 16];
            int inner = 0;
            for (int m = 0; m < 16; m++)
                inner += a[i / 16 * 16 + m] * b[m * 16 + k];
            next += static_cast<int>(widen(narrow<T>(static_cast<float>(inner)))) * c[k * 16 + i % 16];
        }
        wrong += d[i] != static_cast<float>(sum);
        wrong += e[i] != static_cast<float>(next);
    }
    return wrong;
}

Test(mma, matmuls_match_the_reference)
{
    for (const char *order : orders) {
        cr_expect_eq(count_wrong_results<bf16>(order), 0, "order %s", order);
        cr_expect_eq(count_wrong_results<f16>(order), 0, "order %s", order);
    }
}

/* d[i] = c[i] + 16 times a[i]. */
static void add_sixteen(const float *a, const float *c, float *d)
{
    const unsigned group = threadIdx.x / 4;
    const uint32_t upper = narrow_pair<bf16>(a[group], a[group]),
                   lower = narrow_pair<bf16>(a[group + 8], a[group + 8]),
                   left[4] = {upper, lower, upper, lower}, one = narrow_pair<bf16>(1.0F, 1.0F),
                   right[2] = {one, one};
    float sum[4] = {c[group], c[group], c[group + 8], c[group + 8]};
    mma_m16n8k16<bf16>(sum, left, right);
    if (threadIdx.x % 4 == 0) {
        d[group] = sum[0];
        d[group + 8] = sum[2];
    }
}

/* Terms are cut at the last place of the largest one, 1 for 2^23, and the sum at its own. */
Test(mma, sums_are_aligned_and_truncated)
{
    const float last = 0x1p23F, a[16] = {1.75F, -1.75F, 0.875F, 1.0F, 0x1.8p-24F, 3.0F, INFINITY, NAN},
                c[16] = {last, last, -last, 0x1p24F - 1.0F, 1.0F, 0.0F, 1.0F, 1.0F},
                want[16] = {last + 16.0F, last - 16.0F, -last, 0x1p24F + 14.0F, 1.0F, 48.0F, INFINITY, NAN};
    bench bench("7");
    float d[16];
    cr_assert_eq(LAUNCH(&bench.queue, add_sixteen, dim3(1), 32, 0, a, c, d), OK);
    for (int i = 0; i < 16; i++)
        cr_expect(d[i] == want[i] || (isnan(d[i]) && isnan(want[i])), "%d: %a, not %a", i,
                  static_cast<double>(d[i]), static_cast<double>(want[i]));
}

static void read_matrices(uint32_t *plain, uint32_t *transposed, int pitch)
{
    DYNAMIC_SHARED(uint16_t, tile);
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 8; i++)
        tile[lane * pitch + i] = static_cast<uint16_t>(100 * lane + i);
    __syncwarp();
    ldmatrix_x4(plain + 4 * lane, tile + lane * pitch);
    ldmatrix_x4_trans(transposed + 4 * lane, tile + lane * pitch);
}

/* Matrix i is rows 8 i to 8 i + 7, with elements 100 row + column. */
Test(mma, ldmatrix_gives_each_lane_its_pair)
{
    bench bench("7");
    uint32_t plain[128], transposed[128];
    cr_assert_eq(LAUNCH(&bench.queue, read_matrices, dim3(1), 32, 32 * PITCH * sizeof(uint16_t) - 32, plain,
                        transposed, static_cast<int>(PITCH)),
                 OK);
    for (unsigned lane = 0; lane < 32; lane++) {
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = 8 * i + lane / 4, column = lane % 4 * 2;
            cr_assert_eq(plain[4 * lane + i], (100 * row + column) | (100 * row + column + 1) << 16);
            const unsigned r = 8 * i + lane % 4 * 2, c = lane / 4;
            cr_assert_eq(transposed[4 * lane + i], (100 * r + c) | (100 * (r + 1) + c) << 16);
        }
    }
    cr_expect_eq(emulator_bank_conflicts(emulator_of(bench.queue.stream)), 0);
}

Test(mma, bank_conflicts_are_counted)
{
    bench bench("7");
    uint32_t plain[128], transposed[128];
    cr_assert_eq(LAUNCH(&bench.queue, read_matrices, dim3(1), 32, 32 * 64 * sizeof(uint16_t), plain,
                        transposed, 64), // row stride of 128 bytes
                 OK);
    cr_expect_eq(emulator_bank_conflicts(emulator_of(bench.queue.stream)), 8, "of 8 matrices");
}

static void read_at(int offset, bool shared)
{
    DYNAMIC_SHARED(uint16_t, tile);
    uint16_t own[64];
    uint32_t out[4];
    ldmatrix_x4(out, shared ? tile + offset : own);
}

Test(mma, ldmatrix_requires_aligned_rows, .exit_code = 1)
{
    bench bench("forward");
    cr_assert_eq(LAUNCH(&bench.queue, read_at, dim3(1), 32, 64, 4, true), OK);
}

Test(mma, ldmatrix_requires_shared_memory, .exit_code = 1)
{
    bench bench("forward");
    cr_assert_eq(LAUNCH(&bench.queue, read_at, dim3(1), 32, 64, 0, false), OK);
}

Test(mma, ldmatrix_requires_rows_in_bounds, .exit_code = 1)
{
    bench bench("forward");
    cr_assert_eq(LAUNCH(&bench.queue, read_at, dim3(1), 32, 64, 32, true), OK);
}

/* Each thread copies four floats and reads them, or its neighbour's, at different times. */
static void copy(const float *from, float *out)
{
    SHARED(float, line, 3 * 4 * 64);
    float *mine = line + 4 * threadIdx.x, *second = mine + 4 * 64, *third = second + 4 * 64;
    cp_async<16>(mine, from + 4 * threadIdx.x, true);
    cp_async_commit();
    cp_async<4>(second, from + threadIdx.x, true);
    cp_async<16>(third, from, false);
    cp_async_commit();
    out[threadIdx.x] = mine[1];
    cp_async_wait<1>();
    out[64 + threadIdx.x] = mine[1];
    out[128 + threadIdx.x] = second[0];
    cp_async_wait<0>();
    out[192 + threadIdx.x] = second[0] + third[3];
    const unsigned neighbour = (threadIdx.x + 1) % 64;
    out[256 + threadIdx.x] = line[4 * 64 + 4 * neighbour];
    __syncthreads();
    out[320 + threadIdx.x] = line[4 * 64 + 4 * neighbour];
}

Test(mma, copies_complete_when_waited_for)
{
    for (const char *order : orders) {
        bench bench(order);
        float from[256], out[384];
        for (int i = 0; i < 256; i++)
            from[i] = static_cast<float>(i);
        cr_assert_eq(LAUNCH(&bench.queue, copy, dim3(1), 64, 0, from, out), OK);
        int invisible = 0;
        for (int i = 0; i < 64; i++) {
            cr_expect(isnan(out[i]), "the copy has not been waited for");
            cr_expect_eq(out[64 + i], static_cast<float>(4 * i + 1));
            cr_expect(isnan(out[128 + i]), "one group may still be in flight");
            cr_expect_eq(out[192 + i], static_cast<float>(i));
            invisible += isnan(out[256 + i]);
            cr_expect_eq(out[320 + i], static_cast<float>((i + 1) % 64));
        }
        cr_expect_gt(invisible, 0, "another thread's copy, without a barrier");
    }
}

static void copy_without_wait(const float *from)
{
    SHARED(float, line, 4 * 32);
    cp_async<16>(line + 4 * threadIdx.x, from, true);
    cp_async_commit();
    cp_async_wait<1>();
}

Test(mma, a_copy_without_a_wait_is_detected, .exit_code = 1)
{
    bench bench("forward");
    alignas(16) float from[4] = {};
    cr_assert_eq(LAUNCH(&bench.queue, copy_without_wait, dim3(1), 32, 0, static_cast<const float *>(from)),
                 OK);
}

/* A value between two neighbours rounds to the nearer one, a midpoint to the even one. */
template <class T> static int wrong_roundings()
{
    int wrong = 0;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        const T x = {static_cast<uint16_t>(bits)}, next = {static_cast<uint16_t>(bits + 1)};
        const float low = widen(x), high = widen(next);
        if (isnan(low)) {
            wrong += !isnan(widen(narrow<T>(low)));
            continue;
        }
        wrong += narrow<T>(low).bits != bits;
        if (isinf(low) || isinf(high) || isnan(high))
            continue;
        const float middle = low + (high - low) / 2.0F;
        wrong += narrow<T>(middle).bits != (bits % 2 == 0 ? bits : bits + 1);
        wrong += narrow<T>(nextafterf(middle, low)).bits != bits;
        wrong += narrow<T>(nextafterf(middle, high)).bits != bits + 1;
    }
    return wrong;
}

Test(mma, rounding_is_to_the_nearest)
{
    cr_expect_eq(wrong_roundings<bf16>(), 0);
    cr_expect_eq(wrong_roundings<f16>(), 0);
    cr_expect_eq(narrow<f16>(65519.996F).bits, 0x7bff);
    cr_expect_eq(narrow<f16>(65520.0F).bits, 0x7c00);
    cr_expect_eq(narrow<f16>(-INFINITY).bits, 0xfc00);
    cr_expect_eq(narrow<bf16>(INFINITY).bits, 0x7f80);
    cr_expect_eq(narrow_pair<bf16>(1.0F, -2.0F), 0xc0003f80U);
}

/* s = x u^T and sum = round(s) u, from shared-memory tiles filled by cp.async; 2 warps of 16 rows. */
template <class T>
static void multiply_tiles(rows<T> x, rows<T> u, int row_count, float *s_out, float *sum_out)
{
    DYNAMIC_SHARED(T, memory);
    const tile<T, 64> left = {memory}, right = {memory + 32 * 64};
    start_rows<T, 64, 32, 64>(left, x, 0, 0, 0, row_count);
    start_rows<T, 64, 16, 64>(right, u, 0, 0, 0, 16);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x % WARP), mine = static_cast<int>(threadIdx.x / WARP) * 16;
    float s[1][2][4], sum[1][8][4] = {};
    multiply_rows<1, 2>(s, left, mine, right);
    add_matmul<1, 2>(sum, s, right);
    for (int i = 0; i < 4; i++) {
        const int row = mine + lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int n = 0; n < 2; n++)
            s_out[row * 16 + 8 * n + column] = s[0][n][i];
        for (int d = 0; d < 8; d++)
            sum_out[row * 64 + 8 * d + column] = sum[0][d][i];
    }
}

Test(mma, tiled_matmuls_match_the_reference)
{
    enum { ROWS = 30 };
    alignas(16) bf16 x[32 * 64], u[16 * 64];
    float s[32 * 16], sum[32 * 64];
    for (int i = 0; i < 32 * 64; i++)
        x[i] = narrow<bf16>(static_cast<float>(whole(i)));
    for (int i = 0; i < 16 * 64; i++)
        u[i] = narrow<bf16>(static_cast<float>(whole(i + 5000)));
    bench bench("7");
    cr_assert_eq(LAUNCH(&bench.queue, multiply_tiles<bf16>, dim3(1), 64, 48 * 64 * sizeof(bf16),
                        (rows<bf16>{x, 64, true}), (rows<bf16>{u, 64, true}), static_cast<int>(ROWS), s, sum),
                 OK);
    for (int r = 0; r < 32; r++) {
        float line[64] = {};
        for (int c = 0; c < 16; c++) {
            float dot = 0.0F; // exact: integers
            for (int k = 0; k < 64; k++)
                dot += r < ROWS ? widen(x[r * 64 + k]) * widen(u[c * 64 + k]) : 0.0F;
            cr_assert_eq(s[r * 16 + c], dot, "row %d, column %d", r, c);
            for (int k = 0; k < 64; k++)
                line[k] += widen(narrow<bf16>(dot)) * widen(u[c * 64 + k]);
        }
        cr_assert_eq(memcmp(line, sum + r * 64, sizeof line), 0, "row %d", r);
    }
    cr_expect_eq(emulator_bank_conflicts(emulator_of(bench.queue.stream)), 0);
}
