// SPDX-License-Identifier: Apache-2.0
/* The functions of wgmma.h in software, strict: an operand's descriptor is decoded as specified in the PTX
 * ISA, and the operand is read at its address when the wgmma is waited for (async.h); test_wgmma.cpp compares
 * with plain matrix multiplication. */
#pragma once

/* Eight 16-bit elements of an operand: `along` chunks in the row direction and `across` rows further. */
inline const uint16_t *emulated_chunk(const emulator_wgmma *p, uint64_t operand, bool transpose, int row,
                                      int chunk)
{
    const uint32_t begin = static_cast<uint32_t>(operand & 0x3fff) * 16,
                   leading = static_cast<uint32_t>(operand >> 16 & 0x3fff) * 16,
                   stride = static_cast<uint32_t>(operand >> 32 & 0x3fff) * 16;
    if (operand >> 62 != 1 || (operand >> 46 & 0xffff) != 0 || (operand & 0xc000c000U) != 0)
        emulator_wgmma_fail(p, "the emulator supports only operands with 128-byte swizzle and base offset 0");
    if (begin % 1024 > 96 || begin % 32 != 0 || (transpose && begin % 1024 != 0))
        emulator_wgmma_fail(p, "an operand must start at a multiple of 1024 bytes, or a k step into the row");
    const uint32_t line = static_cast<uint32_t>(row);
    uint32_t address = begin + line / 8 * stride + line % 8 * 128;
    address += transpose ? static_cast<uint32_t>(chunk / 8) * leading + static_cast<uint32_t>(chunk % 8) * 16
                         : static_cast<uint32_t>(chunk) * 16;
    const void *seen = emulator_seen(address ^ (address / 128 % 8 * 16));
    if (seen == nullptr)
        emulator_wgmma_fail(p, "an operand leaves dynamic shared memory");
    return static_cast<const uint16_t *>(seen);
}

/* lines[first ..][16 k] of an operand, `count` of them: rows of a, columns of b. */
template <class T>
void emulated_operand(const emulator_wgmma *p, uint64_t operand, bool transpose, int first, int count,
                      float out[][16])
{
    for (int i = 0; i < 2 * count; i++) {
        const int line = transpose ? i % 16 : i / 2, chunk = transpose ? i / 16 : i % 2;
        const uint16_t *from = transpose ? emulated_chunk(p, operand, true, line, first / 8 + chunk)
                                         : emulated_chunk(p, operand, false, first + line, chunk);
        for (int j = 0; j < 8; j++) {
            if (transpose)
                out[8 * chunk + j][line] = widen(T{from[j]});
            else
                out[line][8 * chunk + j] = widen(T{from[j]});
        }
    }
}

/* a from registers: this warp's 16 rows. */
template <class T> void emulated_left(const emulator_wgmma *p, float (*out)[16])
{
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 8; i++) {
            const uint32_t pair = p->left[lane][i / 2];
            const uint16_t bits = static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16);
            out[lane / 4 + i / 2 % 2 * 8][2 * (lane % 4) + i % 2 + i / 4 * 8] = widen(T{bits});
        }
    }
}

/* d of all lanes, as a matrix: gathers, or scatters. */
template <int COLUMNS> void emulated_sums(const emulator_wgmma *p, bool in, float (&sums)[16][COLUMNS])
{
    for (int lane = 0; lane < 32; lane++) {
        float *const d = p->d[lane];
        for (int i = 0; i < p->n / 8; i++) {
            float *const up = &sums[lane / 4][8 * i + 2 * (lane % 4)], *const down = up + 8 * COLUMNS;
            float *const at[4] = {up, up + 1, down, down + 1};
            for (int j = 0; j < 4; j++) {
                if (in)
                    *at[j] = p->accumulate ? d[4 * i + j] : 0.0F;
                else
                    d[4 * i + j] = *at[j];
            }
        }
    }
}

/* One warp's rows, as mma_m16n8k16 adds them. */
template <class T> void emulated_multiply(const emulator_wgmma *p)
{
    enum { MAX_COLUMNS = 256 };
    float all[64][16], b[MAX_COLUMNS][16], across[16][MAX_COLUMNS], sums[16][MAX_COLUMNS];
    float(*const a)[16] = all + p->warp % 4 * 16; // this warp's rows
    if (p->left[0] != nullptr)
        emulated_left<T>(p, a);
    else {
        emulated_operand<T>(p, p->a, p->transpose_a, 0, 64, all);
        emulator_wgmma_left(p, all, sizeof all);
    }
    emulated_operand<T>(p, p->b, p->transpose_b, 0, p->n, b);
    for (int k = 0; k < 16; k++)
        for (int column = 0; column < p->n; column++)
            across[k][column] = b[column][k];
    emulated_sums(p, true, sums);
    for (int row = 0; row < 16; row++) {
        for (int begin = 0; begin < p->n; begin += TENSOR_CORE_LANES) {
            tensor_core_floats sum, product[TENSOR_CORE_STEP];
            memcpy(&sum, &sums[row][begin], sizeof sum);
            for (int k = 0; k < TENSOR_CORE_STEP; k++) {
                memcpy(&product[k], &across[k][begin], sizeof product[k]);
                product[k] *= a[row][k];
            }
            tensor_core_add(&sum, product);
            memcpy(&sums[row][begin], &sum, sizeof sum);
        }
    }
    emulated_sums(p, false, sums);
}

template <class T, int N>
void emulated_begin(float (&d)[N / 8][4], uint64_t a, bool transpose_a, const uint32_t *left, uint64_t b,
                    bool transpose_b, bool accumulate, const char *file, int line)
{
    emulator_wgmma p = {};
    p.multiply = emulated_multiply<T>;
    p.a = a;
    p.b = b;
    p.n = N;
    p.transpose_a = transpose_a;
    p.transpose_b = transpose_b;
    p.accumulate = accumulate;
    emulator_wgmma_begin(&p, d[0], left, file, line);
}

template <class T, int N, bool TRANSPOSE_A = false, bool TRANSPOSE_B = false>
void wgmma(float (&d)[N / 8][4], uint64_t a, uint64_t b, bool accumulate, CALLED_FROM)
{
    emulated_begin<T, N>(d, a, TRANSPOSE_A, nullptr, b, TRANSPOSE_B, accumulate, file, line);
}

template <class T, int N, bool TRANSPOSE_B = false>
void wgmma(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, bool accumulate, CALLED_FROM)
{
    emulated_begin<T, N>(d, 0, false, a, b, TRANSPOSE_B, accumulate, file, line);
}

inline void wgmma_fence()
{
    emulator_wgmma_fence();
}

inline void wgmma_commit()
{
    emulator_wgmma_commit();
}

template <int GROUPS> void wgmma_wait(CALLED_FROM)
{
    emulator_wgmma_wait(GROUPS, file, line);
}

template <int TILES> void wgmma_hold(float (&)[TILES][4])
{
}

template <int FRAGMENTS> void wgmma_hold(uint32_t (&)[FRAGMENTS][4])
{
}

inline void mbarrier_init(uint64_t *barrier, int arrivals, CALLED_FROM)
{
    emulator_mbarrier_init(barrier, arrivals, file, line);
}

inline void mbarrier_init_fence()
{
    emulator_mbarrier_init_fence();
}

inline void mbarrier_arrive(uint64_t *barrier, CALLED_FROM)
{
    emulator_mbarrier_arrive(barrier, 0, file, line);
}

inline void mbarrier_arrive_expecting(uint64_t *barrier, int bytes, CALLED_FROM)
{
    emulator_mbarrier_arrive(barrier, bytes, file, line);
}

inline void mbarrier_wait(uint64_t *barrier, unsigned parity, CALLED_FROM)
{
    emulator_mbarrier_wait(barrier, parity, file, line);
}

inline void tensor_load(void *to, const CUtensorMap *map, uint64_t *barrier, int c0, int c1, int c2, int c3,
                        CALLED_FROM)
{
    const int at[4] = {c0, c1, c2, c3};
    emulator_tensor_load(to, map, barrier, at, 4, file, line);
}

inline void bulk_load(void *to, const void *from, int bytes, uint64_t *barrier, CALLED_FROM)
{
    emulator_bulk_load(to, from, bytes, barrier, file, line);
}

inline void tensor_prefetch(const CUtensorMap *)
{
}

inline void async_fence()
{
    emulator_async_fence();
}

inline void named_barrier(int number, int threads, CALLED_FROM)
{
    emulator_named_barrier(number, threads, true, file, line);
}

inline void named_barrier_arrive(int number, int threads, CALLED_FROM)
{
    emulator_named_barrier(number, threads, false, file, line);
}

template <int REGISTERS> void release_registers()
{
    emulator_registers(REGISTERS);
}

template <int REGISTERS> void acquire_registers()
{
    emulator_registers(REGISTERS);
}
