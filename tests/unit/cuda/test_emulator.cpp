// SPDX-License-Identifier: Apache-2.0
/* Tests of the emulator: correct kernels give correct results in every order, and errors that a GPU shows
 * only sometimes, or as a hang, are detected. The injected faults are kernels with a barrier too few, or too
 * many. */
#include "kernels/cuda/memory_bound/reduce.h"
#include "tests/unit/cuda/emulator_bench.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static const char *const orders[] = {"forward", "reverse", "1", "2", "3"};
enum { ORDERS = 5 };

static void count_thread(int *seen, int threads)
{
    int block = static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
    seen[block * threads + static_cast<int>(threadIdx.x)] +=
        static_cast<int>(blockDim.x) == threads ? 1 : 100;
}

Test(emulator, every_thread_of_every_block_runs_once)
{
    for (const char *order : orders) {
        bench b(order);
        int seen[3 * 4 * 2 * 5] = {};
        cr_assert_eq(LAUNCH(&b.queue, count_thread, dim3(3, 4, 2), 5, 0, seen, 5), OK);
        for (int count : seen)
            cr_assert_eq(count, 1, "order %s", order);
    }
}

static void sum_block(const float *x, int count, float *out)
{
    float sum = 0.0F;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
        sum += x[i];
    sum = block_sum(sum);
    float again = block_sum(sum); // immediately: the second sum must not overwrite the first's memory
    if (threadIdx.x == 7)
        *out = sum + again;
}

static void nothing(int)
{
    DYNAMIC_SHARED(float, line);
    if (line == nullptr)
        abort();
}

/* Launches that CUDA rejects, and cudaGetLastError() afterwards, which reports it once. */
Test(emulator, invalid_launches_are_rejected)
{
    bench b("forward");
    static const struct {
        unsigned x, y, z;
        int threads;
        size_t shared;
    } bad[] = {{0, 1, 1, 32, 0},        {1, 0, 1, 32, 0}, {1, 65536, 1, 32, 0}, {1, 1, 65536, 32, 0},
               {1U << 31, 1, 1, 32, 0}, {1, 1, 1, 0, 0},  {1, 1, 1, 1025, 0},   {1, 1, 1, 32, 228 * 1024}};
    for (const auto &l : bad) {
        cr_expect_eq(LAUNCH(&b.queue, nothing, dim3(l.x, l.y, l.z), l.threads, l.shared, 0), NOT_SUPPORTED);
        cr_expect_neq(cudaGetLastError(), cudaSuccess);
        cr_expect_eq(cudaGetLastError(), cudaSuccess);
    }
    cr_expect_eq(LAUNCH(&b.queue, nothing, dim3(1, 65535, 1), 1, sizeof(float), 0), OK);
    cr_expect_eq(LAUNCH(&b.queue, nothing, dim3(1), 1024, 227 * 1024, 0), OK);
    cudaLaunchConfig_t unrequested = {dim3(1), dim3(32), 228 * 1024, b.queue.stream, nullptr, 0};
    const char *const name = "nothing";
    cr_expect_eq(cudaLaunchKernelEx(&unrequested, nothing, 0), cudaErrorInvalidValue);
}

Test(emulator, a_block_sum_has_the_same_bits_in_every_order)
{
    float x[1000], first = 0.0F;
    for (int i = 0; i < 1000; i++)
        x[i] = 1.0F / static_cast<float>(i + 1);
    for (const char *order : orders) {
        bench b(order);
        float sum = 0.0F;
        cr_assert_eq(LAUNCH(&b.queue, sum_block, dim3(1), 96, 0, x, 1000, &sum), OK);
        first = order == orders[0] ? sum : first;
        cr_assert_float_eq(sum / 97.0F, 7.48547F, 1e-3F);
        cr_assert_eq(sum, first, "the order of the terms does not depend on that of the threads (%s)", order);
    }
}

/* Counts threads that complete all rounds before one of four warps has started. */
static void run_ahead(int *ahead)
{
    SHARED(int, begun, 4);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    begun[warp] = 1;
    for (int round = 0; round < 8; round++)
        __syncwarp();
    for (int other = 0; other < 4; other++)
        *ahead += begun[other] != 1;
}

Test(emulator, random_orders_delay_a_warp)
{
    for (const char *order : orders) {
        bench b(order);
        int ahead = 0;
        cr_assert_eq(LAUNCH(&b.queue, run_ahead, dim3(16), 128, 0, &ahead), OK);
        cr_expect_eq(ahead > 0, strtol(order, nullptr, 10) > 0, "order %s: %d", order, ahead);
    }
}

/* Each thread reads its neighbour's word; without a barrier it may not have been written yet. */
static void neighbour(int *out, bool with_barrier)
{
    SHARED(int, word, 64);
    word[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (with_barrier)
        __syncthreads();
    out[threadIdx.x] = word[(threadIdx.x + 1) % 64];
}

static int wrong_neighbours(const char *order, bool with_barrier)
{
    bench b(order);
    int out[64], wrong = 0;
    cr_assert_eq(LAUNCH(&b.queue, neighbour, dim3(1), 64, 0, out, with_barrier), OK);
    for (int i = 0; i < 64; i++)
        wrong += out[i] != (i + 1) % 64;
    return wrong;
}

Test(emulator, a_missing_barrier_is_detected)
{
    for (const char *order : orders) {
        cr_expect_eq(wrong_neighbours(order, true), 0, "order %s", order);
        cr_expect_gt(wrong_neighbours(order, false), 0, "order %s", order);
    }
}

/* The first warp adds the others' results: the error is hidden in forward order, and shows in reverse. */
static void late_reader(int *out)
{
    SHARED(int, word, 64);
    if (threadIdx.x < 63)
        word[threadIdx.x] = 1;
    int sum = 0;
    for (int i = 0; threadIdx.x == 63 && i < 63; i++)
        sum += word[i];
    if (threadIdx.x == 63)
        *out = sum;
}

Test(emulator, a_race_shows_in_one_of_two_orders)
{
    int forward = 0, reverse = 0;
    bench f("forward"), r("reverse");
    cr_assert_eq(LAUNCH(&f.queue, late_reader, dim3(1), 64, 0, &forward), OK);
    cr_assert_eq(LAUNCH(&r.queue, late_reader, dim3(1), 64, 0, &reverse), OK);
    cr_expect_eq(forward, 63);
    cr_expect_neq(reverse, 63);
}

static void dynamic(float *out, int count)
{
    DYNAMIC_SHARED(float, line);
    if (threadIdx.x == 0)
        for (int i = 0; i < count; i++)
            out[i] = line[i];
    __syncthreads();
    line[threadIdx.x] = 1.0F;
}

Test(emulator, shared_memory_is_nan_at_the_start_of_every_block)
{
    bench b("forward");
    float out[32];
    cr_assert_eq(LAUNCH(&b.queue, dynamic, dim3(3), 32, 32 * sizeof(float), out, 32), OK);
    for (float x : out)
        cr_expect(isnan(x));
}

static void some_barrier(unsigned each)
{
    if (threadIdx.x % each == 0)
        __syncthreads();
}

Test(emulator, a_barrier_that_some_threads_skip_is_rejected, .exit_code = 1)
{
    bench b("forward");
    cr_assert_eq(LAUNCH(&b.queue, some_barrier, dim3(1), 32, 0, 2U), OK);
}

static void two_barriers(unsigned first)
{
    if (threadIdx.x < first)
        __syncthreads();
    else
        __syncthreads();
}

Test(emulator, threads_at_different_barriers_are_rejected, .exit_code = 1)
{
    bench b("7");
    cr_assert_eq(LAUNCH(&b.queue, two_barriers, dim3(1), 64, 0, 32U), OK);
}

static void half_of_the_lanes(int *out)
{
    if (threadIdx.x != 5)
        *out = __shfl_sync(ALL_LANES, static_cast<int>(threadIdx.x), 0);
}

Test(emulator, a_shuffle_without_all_lanes_is_rejected, .exit_code = 1)
{
    bench b("reverse");
    int out;
    cr_assert_eq(LAUNCH(&b.queue, half_of_the_lanes, dim3(1), 64, 0, &out), OK);
}

Test(emulator, a_shuffle_in_half_a_warp_is_rejected, .exit_code = 1)
{
    bench b("forward");
    int out;
    cr_assert_eq(LAUNCH(&b.queue, half_of_the_lanes, dim3(1), 4, 0, &out), OK);
}
