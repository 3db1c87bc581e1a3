// SPDX-License-Identifier: Apache-2.0
/* The software sm_90a instructions (tests/emulator/include/cuda_wgmma.h), compared with plain matrix
 * multiplication and the definitions of the PTX ISA; and detection of errors that a GPU shows only sometimes:
 * missing waits, missing fences, misalignment, lanes that disagree. Values are small integers, so every
 * comparison is bitwise. */
#include "kernels/cuda/tensor_core/wgmma.h"

extern "C" {
#include "kernels/cuda/runtime/message.h"
#include "kernels/cuda/tensor_core/tensor_map.h"
}
#include "kernels/cuda/tensor_core/tile.h"
#include "tests/unit/cuda/emulator_bench.h"

#include <criterion/criterion.h>

static const char *const orders[] = {"forward", "reverse", "7"};

static int whole(int i)
{
    return static_cast<int>(static_cast<unsigned>(i) * 2654435761U >> 13) % 9 - 4;
}

template <class T> static T *aligned(T *memory)
{
    return memory + (-shared_address(memory) & 1023U) / sizeof(T);
}

/* K elements of both operands; shared memory: 64 rows of a tile are 8 KiB. */
enum { M = 64, K = 64, MAX_N = 128, TILE = 64 * 64, MEMORY = (1 + 2) * TILE * 2 + 1024 };

/* matrix[rows][columns] as adjacent tiles of 64 columns. */
template <class T> static void write_tiles(T *to, const int *matrix, int rows, int columns)
{
    for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += WARPGROUP) {
        const int r = i / columns, c = i % columns;
        const tile<T, 64> part = {to + c / 64 * rows * 64};
        part.at(r, c % 64 / 8)[c % 8] = narrow<T>(static_cast<float>(matrix[i]));
    }
}

/* d = a b + c: a[M][K], or as [K][M]; b[K][N], or as [N][K]. */
struct matmul_args {
    const int *a, *b;
    float *d; // [M][N], c as input
};

template <class T, int N, bool TRANSPOSE_A, bool TRANSPOSE_B, bool FROM_REGISTERS>
static void multiply(struct matmul_args p)
{
    DYNAMIC_SHARED(T, memory);
    T *const left = aligned(memory), *const right = left + TILE;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int row = 16 * warp + lane / 4, column = lane % 4 * 2;
    float d[N / 8][4];
    uint32_t a[K / 16][4];
    for (int i = 0; i < N / 2; i++)
        d[i / 4][i % 4] = p.d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2];
    for (int i = 0; i < K / 4; i++) {
        const int r = row + i % 2 * 8, k = i / 4 * 16 + i / 2 % 2 * 8 + column;
        a[i / 4][i % 4] =
            narrow_pair<T>(static_cast<float>(p.a[r * K + k]), static_cast<float>(p.a[r * K + k + 1]));
    }
    write_tiles(left, p.a, 64, 64);
    write_tiles(right, p.b, TRANSPOSE_B ? K : N, TRANSPOSE_B ? N : K);
    async_fence();
    __syncthreads();
    wgmma_fence();
    for (int k = 0; k < K / 16; k++) {
        const uint64_t x = TRANSPOSE_A ? operand_after(columns_operand(left, 0), k * 16 * OPERAND_ROW_BYTES)
                                       : operand_after(rows_operand(left), k * 32);
        const uint64_t y = TRANSPOSE_B ? operand_after(columns_operand(right, K * OPERAND_ROW_BYTES),
                                                       k * 16 * OPERAND_ROW_BYTES)
                                       : operand_after(rows_operand(right), k * 32);
        if constexpr (FROM_REGISTERS)
            wgmma<T, N, TRANSPOSE_B>(d, a[k], y, true);
        else
            wgmma<T, N, TRANSPOSE_A, TRANSPOSE_B>(d, x, y, true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < N / 2; i++)
        p.d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2] = d[i / 4][i % 4];
}

template <class T, int N, bool TRANSPOSE_A, bool TRANSPOSE_B, bool FROM_REGISTERS>
static int count_wrong_results(const char *order)
{
    static int a[M * K], b[K * MAX_N];
    static float d[M * MAX_N];
    int wrong = 0;
    for (int i = 0; i < M * K; i++)
        a[i] = whole(i);
    for (int i = 0; i < K * N; i++)
        b[i] = whole(i + 5000);
    for (int i = 0; i < M * N; i++)
        d[i] = static_cast<float>(i % 7);
    bench bench(order);
    cr_assert_eq(LAUNCH(&bench.queue, (multiply<T, N, TRANSPOSE_A, TRANSPOSE_B, FROM_REGISTERS>), dim3(1),
                        WARPGROUP, MEMORY, (matmul_args{a, b, d})),
                 OK);
    for (int i = 0; i < M * N; i++) {
        int sum = i % 7;
        for (int k = 0; k < K; k++)
            sum += a[TRANSPOSE_A ? k * M + i / N : i / N * K + k] *
                   b[TRANSPOSE_B ? k * N + i % N : i % N * K + k];
        wrong += d[i] != static_cast<float>(sum);
    }
    return wrong;
}

template <class T, int N> static void expect_products(const char *order)
{
    cr_expect_eq((count_wrong_results<T, N, false, false, false>(order)), 0, "%d, order %s", N, order);
    cr_expect_eq((count_wrong_results<T, N, true, false, false>(order)), 0, "%d, order %s", N, order);
    cr_expect_eq((count_wrong_results<T, N, false, true, false>(order)), 0, "%d, order %s", N, order);
    cr_expect_eq((count_wrong_results<T, N, true, true, false>(order)), 0, "%d, order %s", N, order);
    cr_expect_eq((count_wrong_results<T, N, false, false, true>(order)), 0, "%d, order %s", N, order);
    cr_expect_eq((count_wrong_results<T, N, false, true, true>(order)), 0, "%d, order %s", N, order);
}

Test(wgmma, matmuls_match_the_reference)
{
    for (const char *order : orders) {
        expect_products<bf16, 64>(order);
        expect_products<f16, 128>(order);
    }
    expect_products<bf16, 128>("7");
    expect_products<f16, 64>("7");
}

/* The injected faults. */
enum fault {
    NONE,
    SUMS_READ_EARLY,
    OPERAND_OVERWRITTEN,
    WRITES_UNFENCED,
    SUMS_WRITTEN,
    REGISTERS_UNFENCED,
    LANES_DIFFER,
    NOT_WAITED_FOR,
    OPERAND_OUTSIDE,
    OPERAND_MISPLACED,
    WARP_MISSING,
    WARPS_DIFFER
};

/* All ones: sums of 16. */
static void run_with_fault(enum fault fault, float *out)
{
    DYNAMIC_SHARED(bf16, memory);
    bf16 *const ones = aligned(memory);
    for (int i = static_cast<int>(threadIdx.x); i < TILE; i += WARPGROUP)
        ones[i] = narrow<bf16>(1.0F);
    if (fault != WRITES_UNFENCED)
        async_fence();
    __syncthreads();
    float d[8][4] = {};
    const uint64_t operand = rows_operand(ones);
    if (fault != REGISTERS_UNFENCED)
        wgmma_fence();
    if (fault == WARP_MISSING && threadIdx.x >= 96)
        return;
    const bool first = fault != LANES_DIFFER || threadIdx.x != 5;
    const bool other = fault == WARPS_DIFFER && threadIdx.x >= 96; // the next slice of k: sums are the same
    const int far = fault == OPERAND_OUTSIDE ? MEMORY : fault == OPERAND_MISPLACED ? 128 : other ? 32 : 0;
    wgmma<bf16, 64>(d, operand, operand_after(operand, far), !first);
    wgmma_commit();
    if (fault == NOT_WAITED_FOR)
        return;
    const float early = d[3][1];
    if (fault == SUMS_WRITTEN)
        d[3][1] = 0.0F;
    if (fault == OPERAND_OVERWRITTEN) {
        ones[threadIdx.x] = narrow<bf16>(2.0F);
        async_fence();
    }
    wgmma_wait<0>();
    out[threadIdx.x] = fault == SUMS_READ_EARLY ? early : d[3][1];
}

static float sum_with(enum fault fault)
{
    float out[WARPGROUP] = {}, worst = 16.0F;
    bench bench("7");
    cr_assert_eq(LAUNCH(&bench.queue, run_with_fault, dim3(1), WARPGROUP, MEMORY, fault, out), OK);
    for (float sum : out)
        worst = sum == 16.0F ? worst : sum;
    return worst;
}

Test(wgmma, a_result_is_available_after_the_wait)
{
    cr_expect_eq(sum_with(NONE), 16.0F);
    cr_expect(isnan(sum_with(SUMS_READ_EARLY)));
    cr_expect_neq(sum_with(OPERAND_OVERWRITTEN), 16.0F);
    cr_expect(isnan(sum_with(WRITES_UNFENCED)));
}

Test(wgmma, accumulators_in_flight_must_not_be_written, .exit_code = 1)
{
    sum_with(SUMS_WRITTEN);
}

Test(wgmma, registers_must_be_fenced, .exit_code = 1)
{
    sum_with(REGISTERS_UNFENCED);
}

Test(wgmma, lanes_must_agree, .exit_code = 1)
{
    sum_with(LANES_DIFFER);
}

Test(wgmma, a_matmul_must_be_waited_for, .exit_code = 1)
{
    sum_with(NOT_WAITED_FOR);
}

Test(wgmma, an_operand_must_be_in_shared_memory, .exit_code = 1)
{
    sum_with(OPERAND_OUTSIDE);
}

Test(wgmma, an_operand_must_be_1024_byte_aligned, .exit_code = 1)
{
    sum_with(OPERAND_MISPLACED);
}

Test(wgmma, all_four_warps_must_participate, .exit_code = 1)
{
    sum_with(WARP_MISSING);
}

Test(wgmma, all_four_warps_must_agree, .exit_code = 1)
{
    sum_with(WARPS_DIFFER);
}

/* Registers: one of three warpgroups releases the registers that the others acquire. */
enum register_fault { NO_REGISTER_FAULT, RELEASED_BY_ONE_WARP, TOO_MANY_ACQUIRED };

static void share_registers(enum register_fault fault)
{
    if (threadIdx.x >= WARPGROUP && fault == TOO_MANY_ACQUIRED)
        acquire_registers<256>();
    else if (threadIdx.x >= WARPGROUP)
        acquire_registers<240>();
    else if (fault != RELEASED_BY_ONE_WARP || threadIdx.x < 32)
        release_registers<24>();
}

static void expect_shared_registers(enum register_fault fault)
{
    bench bench("7");
    cr_expect_eq(LAUNCH(&bench.queue, share_registers, dim3(1), 3 * WARPGROUP, 0, fault), OK);
}

Test(wgmma, registers_are_shared)
{
    expect_shared_registers(NO_REGISTER_FAULT);
}

Test(wgmma, all_warps_of_a_warpgroup_release_registers, .exit_code = 1)
{
    expect_shared_registers(RELEASED_BY_ONE_WARP);
}

Test(wgmma, acquired_registers_are_limited, .exit_code = 1)
{
    expect_shared_registers(TOO_MANY_ACQUIRED);
}

/* Tensor maps: 2 sequences of 5 tokens, 3 heads of 64, in rows of 4 heads. */
enum { SEQUENCE = 5, HEADS = 3, ROW = 4 * 64, BOX_ROWS = 8, BOX_BYTES = BOX_ROWS * OPERAND_ROW_BYTES };

static const struct cuda_gpu hopper = {{}, {}, 9, 0}, ampere = {{}, {}, 8, 0};

static struct tensor heads_of(uint16_t *data)
{
    struct tensor t = {};
    t.data = data;
    t.dtype = BF16;
    t.ndim = 2;
    t.dim[0] = 2 * SEQUENCE;
    t.dim[1] = HEADS * 64;
    t.stride[0] = ROW;
    t.stride[1] = 1;
    return t;
}

enum copy_fault {
    NO_FAULT,
    NOT_INIT,
    NOT_FENCED,
    MISALIGNED,
    NOT_A_MAP,
    TOO_LITTLE_EXPECTED,
    ARRIVES_TWICE,
    LEFT_ALONE,
    WRITTEN_BEFORE
};

static void copy_box(const CUtensorMap map, enum copy_fault fault, int head, int row, int number,
                     uint16_t *out, uint16_t *early)
{
    DYNAMIC_SHARED(uint16_t, memory);
    SHARED(uint64_t, barrier, 1);
    uint16_t *const box = aligned(memory);
    if (threadIdx.x == 0) {
        if (fault != NOT_INIT)
            mbarrier_init(barrier, 1);
        if (fault != NOT_FENCED)
            mbarrier_init_fence();
        mbarrier_arrive_expecting(barrier, fault == TOO_LITTLE_EXPECTED ? BOX_BYTES - 2 : BOX_BYTES);
        box[1] = 1; // visible to the copy, if fenced
        if (fault != WRITTEN_BEFORE)
            async_fence();
        tensor_load(fault == MISALIGNED ? box + 8 : box, &map, barrier, 0, head, row, number);
        *early = box[0];
        if (fault == ARRIVES_TWICE)
            mbarrier_arrive(barrier);
    }
    if (fault == LEFT_ALONE)
        return;
    __syncthreads();
    mbarrier_wait(barrier, 0);
    for (int i = static_cast<int>(threadIdx.x); i < BOX_BYTES / 2; i += 32)
        out[i] = box[i];
}

static int wrong_copies(enum copy_fault fault, int head, int row, int number, const char *order)
{
    alignas(16) static uint16_t data[2 * SEQUENCE * ROW];
    uint16_t out[BOX_BYTES / 2] = {}, early = 0;
    int wrong = 0;
    for (int i = 0; i < 2 * SEQUENCE * ROW; i++)
        data[i] = static_cast<uint16_t>(i + 1);
    bench bench(order);
    const struct tensor t = heads_of(data);
    CUtensorMap map = {};
    cr_assert_eq(tensor_map_open(&hopper, &bench.queue.encode), OK);
    cr_assert(bench.queue.encode != nullptr && tensor_map_suits(&t, 64));
    if (fault != NOT_A_MAP)
        cr_assert_eq(tensor_map_of(&bench.queue, &t, 2, 64, BOX_ROWS, &map), OK);
    cr_assert_eq(LAUNCH(&bench.queue, copy_box, dim3(1), 32, BOX_BYTES + 1024, map, fault, head, row, number,
                        out, &early),
                 OK);
    wrong += early != 0xffff; // must not be visible before the wait
    for (int r = 0; r < BOX_ROWS; r++) {
        for (int c = 0; c < 64; c++) {
            const bool inside = row + r >= 0 && row + r < SEQUENCE && head < HEADS && number < 2;
            const int from = ((number * SEQUENCE + row + r) * ROW + head * 64 + c);
            wrong += out[r * 64 + ((c / 8) ^ r) * 8 + c % 8] != (inside ? data[from] : 0);
        }
    }
    return wrong;
}

Test(wgmma, boxes_are_copied_swizzled_with_zeros_outside)
{
    for (const char *order : orders) {
        cr_expect_eq(wrong_copies(NO_FAULT, 0, 0, 0, order), 0);
        cr_expect_eq(wrong_copies(NO_FAULT, 2, 3, 1, order), 0);
        cr_expect_eq(wrong_copies(NO_FAULT, 1, -2, 1, order), 0);
        cr_expect_eq(wrong_copies(NO_FAULT, 3, 0, 0, order), 0, "a head out of bounds");
        cr_expect_eq(wrong_copies(NO_FAULT, 0, 0, 2, order), 0, "a sequence out of bounds");
    }
}

Test(wgmma, a_copy_requires_an_initialized_mbarrier, .exit_code = 1)
{
    wrong_copies(NOT_INIT, 0, 0, 0, "7");
}

Test(wgmma, a_copy_requires_a_fenced_mbarrier, .exit_code = 1)
{
    wrong_copies(NOT_FENCED, 0, 0, 0, "7");
}

Test(wgmma, a_copy_requires_128_byte_alignment, .exit_code = 1)
{
    wrong_copies(MISALIGNED, 0, 0, 0, "7");
}

Test(wgmma, a_copy_requires_a_tensor_map, .exit_code = 1)
{
    wrong_copies(NOT_A_MAP, 0, 0, 0, "7");
}

Test(wgmma, an_endless_wait_is_reported, .exit_code = 1)
{
    wrong_copies(TOO_LITTLE_EXPECTED, 0, 0, 0, "7");
}

Test(wgmma, earlier_writes_must_be_fenced, .exit_code = 1)
{
    wrong_copies(WRITTEN_BEFORE, 0, 0, 0, "7");
}

Test(wgmma, a_surplus_arrival_is_reported, .exit_code = 1)
{
    wrong_copies(ARRIVES_TWICE, 0, 0, 0, "7");
}

Test(wgmma, a_copy_must_be_waited_for, .exit_code = 1)
{
    wrong_copies(LEFT_ALONE, 0, 0, 0, "7");
}

/* Bulk copies without a tensor map. */
enum bulk_fault { NO_BULK_FAULT, BULK_TO_8, BULK_FROM_8, BULK_OF_8 };

static void copy_elements(const float *from, enum bulk_fault fault, float *out, float *early)
{
    DYNAMIC_SHARED(float, memory);
    SHARED(uint64_t, barrier, 1);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expecting(barrier, 64);
        bulk_load(memory + (fault == BULK_TO_8 ? 2 : 4), from + (fault == BULK_FROM_8 ? 2 : 0),
                  fault == BULK_OF_8 ? 56 : 64, barrier);
        *early = memory[4];
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    if (threadIdx.x < 16)
        out[threadIdx.x] = memory[4 + threadIdx.x];
}

static void expect_copied_elements(enum bulk_fault fault)
{
    alignas(16) float from[18] = {};
    float out[16] = {}, early = 0.0F;
    for (int i = 0; i < 16; i++)
        from[i] = static_cast<float>(i);
    bench bench("7");
    cr_assert_eq(LAUNCH(&bench.queue, copy_elements, dim3(1), 32, 80, from, fault, out, &early), OK);
    cr_expect(isnan(early));
    for (int i = 0; i < 16; i++)
        cr_expect_eq(out[i], from[i]);
}

Test(wgmma, bulk_copies_match)
{
    expect_copied_elements(NO_BULK_FAULT);
}

Test(wgmma, bulk_copies_require_an_aligned_target, .exit_code = 1)
{
    expect_copied_elements(BULK_TO_8);
}

Test(wgmma, bulk_copies_require_an_aligned_source, .exit_code = 1)
{
    expect_copied_elements(BULK_FROM_8);
}

Test(wgmma, bulk_copies_require_multiples_of_16_bytes, .exit_code = 1)
{
    expect_copied_elements(BULK_OF_8);
}

/* Each of these violates one rule of cuTensorMapEncodeTiled's documentation. */
Test(wgmma, invalid_tensor_maps_are_rejected)
{
    alignas(16) uint16_t data[64] = {};
    struct tensor t = heads_of(data);
    bench bench("7");
    CUtensorMap map;
    cr_assert_eq(tensor_map_open(&hopper, &bench.queue.encode), OK);
    cr_expect_eq(tensor_map_of(&bench.queue, &t, 2, 64, 257, &map), NOT_SUPPORTED);
    cr_expect_eq(tensor_map_of(&bench.queue, &t, 2, 64, 0, &map), NOT_SUPPORTED);
    t.stride[0] = ROW + 4; // 8 bytes
    cr_expect_eq(tensor_map_of(&bench.queue, &t, 2, 64, 64, &map), NOT_SUPPORTED);
    cr_expect_not(tensor_map_suits(&t, 64));
    t = heads_of(data + 4);
    cr_expect_eq(tensor_map_of(&bench.queue, &t, 2, 64, 64, &map), NOT_SUPPORTED);
    cr_expect_not(tensor_map_suits(&t, 64));
    t = heads_of(data);
    t.dim[0] = 0;
    cr_expect_eq(tensor_map_of(&bench.queue, &t, 2, 64, 64, &map), NOT_SUPPORTED);
}

Test(wgmma, other_gpus_have_no_encoder)
{
    cuda_tensor_encoder encode = reinterpret_cast<cuda_tensor_encoder>(abort);
    cr_expect_eq(tensor_map_open(&ampere, &encode), OK);
    cr_expect(encode == nullptr);
    setenv("EMULATOR_FAIL", "cudaGetDriverEntryPointByVersion", 1);
    cr_expect_eq(tensor_map_open(&hopper, &encode), NOT_SUPPORTED);
    cr_expect(strstr(fail_text(), "cuTensorMapEncodeTiled") != nullptr, "%s", fail_text());
}

/* A producer and three consumers pass values, through two stages, for several phases. */
enum { ROUNDS = 7, STAGES = 2 };

static void pass_on(int *out, int consumers, int arrivals)
{
    SHARED(uint64_t, full, STAGES);
    SHARED(uint64_t, empty, STAGES);
    SHARED(int, place, STAGES);
    const int me = static_cast<int>(threadIdx.x);
    if (me == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, arrivals);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int round = 0; round < ROUNDS && me <= consumers; round++) {
        const int at = round % STAGES;
        const unsigned parity = static_cast<unsigned>(round / STAGES % 2);
        if (me == 0) {
            mbarrier_wait(empty + at, parity ^ 1);
            place[at] = 10 * round;
            mbarrier_arrive(full + at);
        } else {
            mbarrier_wait(full + at, parity);
            out[round * consumers + me - 1] = place[at] + me;
            mbarrier_arrive(empty + at);
        }
    }
}

Test(wgmma, phases_follow_each_other)
{
    enum { CONSUMERS = 3 };
    for (const char *order : orders) {
        int out[ROUNDS * CONSUMERS] = {};
        bench bench(order);
        cr_assert_eq(LAUNCH(&bench.queue, pass_on, dim3(1), 32, 0, out, static_cast<int>(CONSUMERS),
                            static_cast<int>(CONSUMERS)),
                     OK);
        for (int i = 0; i < ROUNDS * CONSUMERS; i++)
            cr_expect_eq(out[i], 10 * (i / CONSUMERS) + i % CONSUMERS + 1);
    }
}

Test(wgmma, a_missing_arrival_is_reported, .exit_code = 1)
{
    int out[ROUNDS * 3];
    bench bench("7");
    cr_assert_eq(LAUNCH(&bench.queue, pass_on, dim3(1), 32, 0, out, 3, 4), OK);
}

/* Two warps take turns; the second must not start. */
static void take_turns(int *turn, int *out, int threads, bool leaves_early)
{
    const int me = static_cast<int>(threadIdx.x / 32), other = 1 - me;
    if (me == 0)
        named_barrier_arrive(1, threads);
    for (int i = 0; i < 3; i++) {
        named_barrier(1 + me, 64);
        if (threadIdx.x % 32 == 0)
            out[2 * i + me] = (*turn)++;
        if (me == 0 || i < 2 || leaves_early)
            named_barrier_arrive(1 + other, 64);
    }
}

Test(wgmma, named_barriers_alternate_warps)
{
    for (const char *order : orders) {
        int turn = 0, out[6] = {};
        bench bench(order);
        cr_assert_eq(LAUNCH(&bench.queue, take_turns, dim3(1), 64, 0, &turn, out, 64, false), OK);
        for (int i = 0; i < 6; i++)
            cr_expect_eq(out[i], i);
    }
}

Test(wgmma, named_barriers_require_one_thread_count, .exit_code = 1)
{
    int turn = 0, out[6];
    bench bench("7");
    cr_assert_eq(LAUNCH(&bench.queue, take_turns, dim3(1), 64, 0, &turn, out, 96, false), OK);
}

Test(wgmma, an_arrival_at_a_named_barrier_must_be_waited_for, .exit_code = 1)
{
    int turn = 0, out[6];
    bench bench("7");
    cr_assert_eq(LAUNCH(&bench.queue, take_turns, dim3(1), 64, 0, &turn, out, 64, true), OK);
}

/* A thread that runs ahead arrives instead of another that has not arrived. */
static void arrive_twice(int)
{
    named_barrier_arrive(1, 64);
    named_barrier_arrive(1, 64);
}

Test(wgmma, a_thread_must_not_arrive_for_another, .exit_code = 1)
{
    bench bench("7");
    cr_assert_eq(LAUNCH(&bench.queue, arrive_twice, dim3(1), 32, 0, 0), OK);
}
