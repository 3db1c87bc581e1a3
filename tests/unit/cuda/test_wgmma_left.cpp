// SPDX-License-Identifier: Apache-2.0
/* The left operand of a wgmma in shared memory is in use by all four warps until each has waited: CUDA does
 * not specify which warp reads which rows. The emulator ends the program if one of them overwrites rows too
 * early. */
#include "kernels/cuda/tensor_core/wgmma.h"
#include "tests/unit/cuda/emulator_bench.h"

#include <criterion/criterion.h>
#include <initializer_list>

enum { ROWS = 64, COLUMNS = 64, ELEMENTS = ROWS * COLUMNS, MEMORY = 2 * ELEMENTS * 2 + 1024 };

/* Sums of 16 ones; then every warp overwrites its own 16 rows of the operand. */
static void overwrite(bool synchronizes, float *out)
{
    DYNAMIC_SHARED(bf16, memory);
    bf16 *const left = reinterpret_cast<bf16 *>(reinterpret_cast<unsigned char *>(memory) +
                                                (-shared_address(memory) & 1023U));
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < 2 * ELEMENTS; i += WARPGROUP)
        left[i] = narrow<bf16>(1.0F);
    async_fence();
    __syncthreads();
    float d[8][4] = {};
    wgmma_fence();
    wgmma<bf16, 64>(d, rows_operand(left), rows_operand(left + ELEMENTS), false);
    wgmma_commit();
    wgmma_wait<0>();
    if (synchronizes)
        named_barrier(1, WARPGROUP);
    for (int i = thread % 32; i < 16 * COLUMNS; i += 32)
        left[thread / 32 * 16 * COLUMNS + i] = narrow<bf16>(2.0F);
    async_fence();
    out[thread] = d[3][1];
}

static void run(bool synchronizes, const char *order)
{
    float out[WARPGROUP];
    bench bench(order);
    cr_assert_eq(LAUNCH(&bench.queue, overwrite, dim3(1), WARPGROUP, MEMORY, synchronizes, out), OK);
    for (float sum : out)
        cr_expect_eq(sum, 16.0F);
}

Test(wgmma_left, rows_are_overwritten_after_all_warps_have_waited)
{
    for (const char *order : {"forward", "reverse", "7"})
        run(true, order);
}

Test(wgmma_left, rows_are_not_overwritten_before, .exit_code = 1)
{
    run(false, "forward");
}
