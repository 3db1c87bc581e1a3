// SPDX-License-Identifier: Apache-2.0
/* Attention's backward for sm_90a: products of warpgroups, and tiles that one thread copies (wgmma.h).
 *
 * The two passes are those of attention_mma.cu, and for the same reason: each makes the scores again, seven
 * products instead of five, so that nothing is added up across blocks and every sum has one order. One pass
 * of five products would have to add dq up in turn, block after block of keys, and wait: that costs
 * FlashAttention-3 up to 38 % of its rate (2601.21824), and two products of seven are 29 %.
 *
 *                       rows   x  y      columns   u  w        s = x u^T       first  += ds u
 *     for dk and dv     keys   k  v      queries   q  dout     dp = y w^T      second += p w
 *     for dq            queries q dout   keys      k  v        ds = p (dp - delta)
 *
 * A block has 128 rows, 64 for each of two warpgroups, which know nothing of each other: while one makes
 * weights, the other has the tensor cores. A third has one thread that works, and fetches columns ahead:
 *
 *     producer    wait for empty | announce bytes to full, begin the copies of u, w, lse, delta
 *     consumers   wait for full  | s, dp | p | second += p w, and meanwhile ds | first += ds u | arrive at
 * empty
 *
 * Weights and their gradients go from the registers of one product to those of the next. The products s and
 * dp read u and w along their rows, the sums read the same tiles across.
 *
 * The trap: every warp arrives at empty once for each tile, also for those that its warpgroup leaves out. */
#include "kernels/cuda/attention_pairs.h"
#include "kernels/cuda/wgmma.h"

extern "C" {
#include "kernels/cuda/tensor_map.h"
}

enum { TO_KEYS, TO_QUERIES }; // passes

/* What limits columns and stages is 240 registers to a thread and 227 KiB of shared memory. */
template <int D, int PASS> struct back_sizes {
    static constexpr bool KEYS = PASS == TO_KEYS;
    static constexpr int COLUMNS = KEYS && D == 128 ? 64 : 128, STAGES = !KEYS && D == 128 ? 2 : 4,
                         N = COLUMNS / 8;
};
constexpr int CONSUMERS = 2, THREADS = (1 + CONSUMERS) * WARPGROUP;
constexpr int MINE = 64, ROWS = CONSUMERS * MINE;                  // of a warpgroup, of a block
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;   // 168 on average
constexpr int BOX_ROWS = 64, PANEL = 64, PANEL_CHUNKS = PANEL / 8; // of a copy; columns of an operand

/* ROWS rows of D numbers in shared memory, as products read them: D / 64 panels, each of 64 columns. */
template <class T, int D, int ROWS> struct panels {
    static constexpr int PANEL_NUMBERS = ROWS * PANEL, PANEL_BYTES = PANEL_NUMBERS * int{sizeof(T)},
                         BYTES = D / PANEL * PANEL_BYTES;
    T *data;

    /* An operand of rows from `row` on, which are summed over 16 columns, the k-th. */
    __device__ uint64_t along(int row, int k) const
    {
        constexpr int STEPS = PANEL / 16;
        return operand_after(rows_operand(data + k / STEPS * PANEL_NUMBERS + row * PANEL),
                             k % STEPS * 16 * int{sizeof(T)});
    }

    /* An operand of all columns, which are summed over 16 rows, the k-th. */
    __device__ uint64_t across(int k) const
    {
        return columns_operand(data + 16 * k * PANEL, PANEL_BYTES);
    }

    __device__ T *at(int row, int chunk) const
    {
        return data + chunk / PANEL_CHUNKS * PANEL_NUMBERS + row * PANEL +
               (chunk % PANEL_CHUNKS ^ row % 8) * 8;
    }

    /* Rows [first, first + ROWS) of a head, zeros past the sequence's end. */
    __device__ void start(const CUtensorMap *map, uint64_t *barrier, int head, int first, int sequence) const
    {
        for (int p = 0; p < D / PANEL; p++)
            for (int r = 0; r < ROWS; r += BOX_ROWS)
                tensor_load(data + p * PANEL_NUMBERS + r * PANEL, map, barrier, p * PANEL, head, first + r,
                            sequence);
    }
};

/* Begins s = x's rows from `mine` on times the rows of u, as a group. */
template <class T, int D, int COLUMNS>
__device__ __forceinline__ void multiply_rows(float (&s)[COLUMNS / 8][4], const panels<T, D, ROWS> &x,
                                              int mine, const panels<T, D, COLUMNS> &u)
{
    UNROLL_ALL
    for (int k = 0; k < D / 16; k++)
        wgmma<T, COLUMNS>(s, x.along(mine, k), u.along(0, k), k > 0);
    wgmma_commit();
}

/* Begins sum += s w, as a group. */
template <class T, int D, int COLUMNS>
__device__ __forceinline__ void add_product(float (&sum)[D / 8][4], const uint32_t (&s)[COLUMNS / 16][4],
                                            const panels<T, D, COLUMNS> &w)
{
    UNROLL_ALL
    for (int k = 0; k < COLUMNS / 16; k++)
        wgmma<T, D, true>(sum, s[k], w.across(k), true);
    wgmma_commit();
}

/* Which weights dropout keeps: bit 4 n + i of word n / 8 for [n][i]. */
template <int N> struct kept {
    uint32_t word[N / 8];

    __device__ bool at(int n, int i) const
    {
        return (word[n / 8] >> (n % 8 * 4 + i) & 1) != 0;
    }
};

/* What a product has left, rounded, as the next one's operand. */
template <class T, int N>
__device__ __forceinline__ void narrow_all(uint32_t (&to)[N / 2][4], const float (&from)[N][4])
{
    UNROLL_ALL
    for (int i = 0; i < 2 * N; i++)
        to[i / 4][i % 4] = narrow_pair<T>(from[i / 2][i % 2 * 2], from[i / 2][i % 2 * 2 + 1]);
    wgmma_hold(to);
}

template <class T, int N>
__device__ __forceinline__ void narrow_kept(uint32_t (&to)[N / 2][4], const float (&from)[N][4],
                                            const kept<N> &mask)
{
    UNROLL_ALL
    for (int i = 0; i < 2 * N; i++) {
        const int n = i / 2, j = i % 2 * 2;
        to[i / 4][i % 4] =
            narrow_pair<T>(mask.at(n, j) ? from[n][j] : 0.0F, mask.at(n, j + 1) ? from[n][j + 1] : 0.0F);
    }
    wgmma_hold(to);
}

struct maps {
    CUtensorMap q, k, v, dout;
};

/* What weigh_queries() makes, for sequences of `padded` queries, whole tiles: the log of sums in units of log
 * 2, and dout . out, [head][sequence][query]; documents, [sequence][token], or NULL. */
struct measures {
    float *lse, *delta;
    int32_t *document;
    int padded, sequences;

    __device__ int64_t first(int head, int64_t sequence) const
    {
        return (static_cast<int64_t>(head) * sequences + sequence) * padded;
    }
};

/* In which order blocks come: of so many heads at a time as the second-level cache has room for, the long
 * ones first, so that the last ones are short. `heads` of all `sequences`; of keys: heads of k. */
struct order {
    int heads, sequences, tiles, together;

    /* The i-th: of which head of which sequence, and which tile, counted from the longest. */
    __device__ void find(int i, int *head, int *sequence, int *tile) const
    {
        const int first = i / (together * tiles) * together, left = heads * sequences - first,
                  here = left < together ? left : together, within = i % (together * tiles),
                  one = first + within % here;
        *head = one % heads;
        *sequence = one / heads;
        *tile = within / here;
    }
};

template <class T, int D, int PASS> struct back_stage {
    using is = back_sizes<D, PASS>;
    using tile = panels<T, D, is::COLUMNS>;
    static constexpr int NUMBERS_BYTES = is::COLUMNS * int{sizeof(float)}, // of queries that are columns
        COPIED = 2 * tile::BYTES + (is::KEYS ? 2 * NUMBERS_BYTES : 0),
                         BYTES = (COPIED + OPERAND_ATOM_BYTES - 1) / OPERAND_ATOM_BYTES * OPERAND_ATOM_BYTES;
    tile u, w;
    float *lse, *delta;

    __device__ explicit back_stage(unsigned char *memory)
        : u{reinterpret_cast<T *>(memory)}, w{reinterpret_cast<T *>(memory + tile::BYTES)},
          lse(reinterpret_cast<float *>(memory + 2 * tile::BYTES)), delta(lse + is::COLUMNS)
    {
    }

    /* For one thread: everything, as bytes of `full`. */
    __device__ void start(const struct maps &maps, const struct measures &of, const struct place &at,
                          int head, int column, uint64_t *full) const
    {
        const int sequence = static_cast<int>(at.number);
        mbarrier_arrive_expecting(full, COPIED);
        u.start(is::KEYS ? &maps.q : &maps.k, full, is::KEYS ? head : at.group, column, sequence);
        w.start(is::KEYS ? &maps.dout : &maps.v, full, is::KEYS ? head : at.group, column, sequence);
        if (is::KEYS) {
            const int64_t first = of.first(head, sequence) + column;
            bulk_load(lse, of.lse + first, NUMBERS_BYTES, full);
            bulk_load(delta, of.delta + first, NUMBERS_BYTES, full);
        }
    }
};

/* A block's shared memory. */
template <class T, int D, int PASS> struct back_desk {
    using is = back_sizes<D, PASS>;
    using tile = panels<T, D, ROWS>;
    static constexpr size_t BYTES = OPERAND_ATOM_BYTES + 2 * tile::BYTES +
                                    is::STAGES * back_stage<T, D, PASS>::BYTES +
                                    (1 + 2 * is::STAGES) * sizeof(uint64_t);
    tile x, y;
    unsigned char *stages;
    uint64_t *ready, *full, *empty; // barriers: of x and y; for each stage

    __device__ explicit back_desk(unsigned char *memory)
    {
        unsigned char *const begin = memory + -reinterpret_cast<uintptr_t>(memory) % OPERAND_ATOM_BYTES;
        x.data = reinterpret_cast<T *>(begin);
        y.data = reinterpret_cast<T *>(begin + tile::BYTES);
        stages = begin + 2 * tile::BYTES;
        ready = reinterpret_cast<uint64_t *>(stages + is::STAGES * back_stage<T, D, PASS>::BYTES);
        full = ready + 1;
        empty = full + is::STAGES;
    }

    __device__ back_stage<T, D, PASS> at(int i) const
    {
        return back_stage<T, D, PASS>(stages + i * back_stage<T, D, PASS>::BYTES);
    }

    __device__ void prepare(const struct maps &maps) const
    {
        if (threadIdx.x == 0) {
            tensor_prefetch(&maps.q);
            tensor_prefetch(&maps.k);
            tensor_prefetch(&maps.v);
            tensor_prefetch(&maps.dout);
            mbarrier_init(ready, 1);
            for (int i = 0; i < is::STAGES; i++) {
                mbarrier_init(full + i, 1);
                mbarrier_init(empty + i, CONSUMERS * WARPGROUP / WARP);
            }
            mbarrier_init_fence();
        }
        __syncthreads();
    }
};

/* A block's way through its tiles of columns: keys up to its queries; queries from its keys on, for each head
 * of the group. The stage that a tile lies in, and how often that was used before, as a parity. */
template <int D, int PASS> struct walk {
    using is = back_sizes<D, PASS>;
    int from, to, left, column, head, stage;
    unsigned parity;

    __device__ walk(int begin, int sequence, int first_head, int heads)
        : from(is::KEYS ? begin : 0), to(is::KEYS || begin + ROWS > sequence ? sequence : begin + ROWS),
          left((to - from + is::COLUMNS - 1) / is::COLUMNS * (is::KEYS ? heads : 1)), column(from),
          head(first_head), stage(0), parity(0)
    {
    }

    __device__ void next()
    {
        left--;
        column += is::COLUMNS;
        if (column >= to) {
            column = from;
            head++;
        }
        if (++stage == is::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct alignas(8) two {
    float at[2];
};

/* What a warpgroup knows and adds up. RARE: there may be documents or dropout, whose registers others need
 * not pay for. */
template <class T, int D, int PASS, bool RARE> struct gradient {
    using is = back_sizes<D, PASS>;
    static constexpr bool KEYS = is::KEYS;
    static constexpr int N = is::N;
    float first[D / 8][4], second[KEYS ? D / 8 : 1][4];
    struct two lse, delta; // of this lane's rows, where those are queries

    /* Those of queries that are columns, for the four numbers of tile n; x is what is known of rows. */
    static __device__ __forceinline__ struct two of_tile(const float *columns, int n, const struct two &x)
    {
        const int in_group = static_cast<int>(threadIdx.x % 4);
        return KEYS ? *reinterpret_cast<const struct two *>(columns + 8 * n + 2 * in_group) : x;
    }

    /* Scores become weights. `row` is this lane's first. */
    __device__ __forceinline__ void weigh(float (&s)[1][N][4], const operands<T> &a,
                                          const struct measures &of, const struct place &at,
                                          const float *of_columns, int row, int column) const
    {
        const int first_row = row - static_cast<int>(threadIdx.x % WARP / 4); // of the warp's 16
        const bool documents = RARE && a.document != nullptr;
        if (documents || (KEYS ? column < first_row + 15 : column + is::COLUMNS - 1 > first_row))
            mask_scores<KEYS, 1, N>(s, row, column, a.sequence, documents ? a.document + at.row : nullptr,
                                    documents ? of.document + at.number * of.padded + column : nullptr);
        UNROLL_ALL
        for (int n = 0; n < N; n++) {
            const struct two sum = of_tile(of_columns, n, lse);
            UNROLL_ALL
            for (int i = 0; i < 4; i++)
                s[0][n][i] = exp2_fast(fmaf(s[0][n][i], a.scale_log2, -sum.at[KEYS ? i % 2 : i / 2]));
        }
    }

    /* dp becomes ds; p are weights that no dropout has touched. */
    __device__ __forceinline__ void differentiate(float (&dp)[N][4], const float (&p)[N][4],
                                                  const operands<T> &a, const float *of_columns,
                                                  const kept<N> &mask) const
    {
        UNROLL_ALL
        for (int n = 0; n < N; n++) {
            const struct two less = of_tile(of_columns, n, delta);
            UNROLL_ALL
            for (int i = 0; i < 4; i++) {
                float x = dp[n][i];
                if (RARE && a.dropout.drops)
                    x = mask.at(n, i) ? x * a.dropout.rule.scale : 0.0F;
                dp[n][i] = p[n][i] * (x - less.at[KEYS ? i % 2 : i / 2]);
            }
        }
    }

    /* Begins second += p w. */
    __device__ __forceinline__ void add_weighed(uint32_t (&weights)[N / 2][4], const float (&p)[N][4],
                                                const operands<T> &a, const kept<N> &mask,
                                                const panels<T, D, is::COLUMNS> &w)
    {
        if (RARE && a.dropout.drops)
            narrow_kept<T, N>(weights, p, mask);
        else
            narrow_all<T, N>(weights, p);
        wgmma_fence();
        add_product<T, D, is::COLUMNS>(second, weights, w);
    }

    /* One tile of columns. Rows of x and y from `mine` on are this warpgroup's. */
    __device__ __forceinline__ void add_tile(const operands<T> &a, const struct measures &of,
                                             const struct place &at, const back_desk<T, D, PASS> &desk,
                                             const back_stage<T, D, PASS> &c, int mine, int row, int column)
    {
        float s[1][N][4], dp[N][4];
        uint32_t weights[KEYS ? N / 2 : 1][4], ds[N / 2][4];
        kept<N> mask = {};
        if (RARE && a.dropout.drops) // first, while there are registers for it
            for (int i = 0; i < N / 8; i++)
                mask.word[i] = kept_weights<8, KEYS>(a.dropout, at, row, column + 64 * i);
        wgmma_fence();
        multiply_rows<T, D, is::COLUMNS>(s[0], desk.x, mine, c.u);
        multiply_rows<T, D, is::COLUMNS>(dp, desk.y, mine, c.w);
        wgmma_wait<1>();
        wgmma_hold(s[0]);
        weigh(s, a, of, at, c.lse, row, column);
        if constexpr (KEYS && !RARE) // beside it dp becomes ds; RARE has no registers for that
            add_weighed(weights, s[0], a, mask, c.w);
        wgmma_wait<KEYS && !RARE ? 1 : 0>(); // for dp
        wgmma_hold(dp);
        differentiate(dp, s[0], a, c.delta, mask);
        if constexpr (KEYS && RARE)
            add_weighed(weights, s[0], a, mask, c.w);
        narrow_all<T, N>(ds, dp);
        wgmma_fence();
        add_product<T, D, is::COLUMNS>(first, ds, c.u);
        wgmma_wait<0>();
        wgmma_hold(first);
        if constexpr (KEYS)
            wgmma_hold(second);
    }
};

/* A sum, times `factor`, rounded, to rows [first + mine, ...) of `to`, by way of the warp's own 16 rows of a
 * tile that is done with: so whole lines of 16 bytes are written. */
template <class T, int D>
__device__ __forceinline__ void store_rows(const rows<T> &to, int64_t row, int64_t column, int first,
                                           int mine, int sequence, const float (&sum)[D / 8][4], float factor,
                                           const panels<T, D, ROWS> &by)
{
    const int lane = static_cast<int>(threadIdx.x % WARP), group = lane / 4, in_group = lane % 4;
    UNROLL_ALL
    for (int d = 0; d < D / 8; d++)
        UNROLL_ALL
    for (int half = 0; half < 2; half++)
        *reinterpret_cast<uint32_t *>(by.at(mine + 8 * half + group, d) + 2 * in_group) =
            narrow_pair<T>(sum[d][2 * half] * factor, sum[d][2 * half + 1] * factor);
    __syncwarp();
    for (int i = lane; i < 16 * (D / 8); i += WARP) {
        const int r = mine + i / (D / 8), chunk = i % (D / 8);
        if (first + r < sequence)
            *reinterpret_cast<piece<T> *>(to.row(row + first + r) + column + 8 * chunk) =
                *reinterpret_cast<const piece<T> *>(by.at(r, chunk));
    }
}

template <class T, int D, int PASS>
__device__ __forceinline__ void produce(const struct maps &maps, const struct measures &of,
                                        const struct place &at, const back_desk<T, D, PASS> &desk, int begin,
                                        walk<D, PASS> way)
{
    constexpr bool KEYS = PASS == TO_KEYS;
    const int sequence = static_cast<int>(at.number), head = KEYS ? at.group : at.head;
    mbarrier_arrive_expecting(desk.ready, 2 * desk.x.BYTES);
    desk.x.start(KEYS ? &maps.k : &maps.q, desk.ready, head, begin, sequence);
    desk.y.start(KEYS ? &maps.v : &maps.dout, desk.ready, head, begin, sequence);
    for (; way.left > 0; way.next()) {
        mbarrier_wait(desk.empty + way.stage, way.parity ^ 1);
        desk.at(way.stage).start(maps, of, at, way.head, way.column, desk.full + way.stage);
    }
}

template <class T, int D, int PASS, bool RARE>
__device__ __forceinline__ void consume(const operands<T> &a, const struct measures &of, struct place at,
                                        const back_desk<T, D, PASS> &desk, int begin, int consumer,
                                        walk<D, PASS> way)
{
    using is = back_sizes<D, PASS>;
    constexpr bool KEYS = is::KEYS;
    const int lane = static_cast<int>(threadIdx.x % WARP), mine = consumer * MINE,
              warp = static_cast<int>(threadIdx.x % WARPGROUP) / WARP,
              row = begin + mine + 16 * warp + lane / 4;
    const int64_t column = static_cast<int64_t>(KEYS ? at.group : at.head) * D;
    gradient<T, D, PASS, RARE> sum = {};
    for (int i = 0; !KEYS && i < 2; i++) {
        const int64_t query = of.first(at.head, at.number) + row + 8 * i;
        sum.lse.at[i] = of.lse[query];
        sum.delta.at[i] = of.delta[query];
    }
    mbarrier_wait(desk.ready, 0);
    for (; way.left > 0; way.next()) {
        mbarrier_wait(desk.full + way.stage, way.parity);
        at.head = KEYS ? way.head : at.head;
        if (!KEYS || way.column + is::COLUMNS > begin + mine)
            sum.add_tile(a, of, at, desk, desk.at(way.stage), mine, row, way.column);
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(desk.empty + way.stage);
    }
    named_barrier(1 + consumer, WARPGROUP); // nobody reads this warpgroup's rows of x and y any more
    store_rows<T, D>(KEYS ? a.dk : a.dq, at.row, column, begin, mine + 16 * warp, a.sequence, sum.first,
                     a.scale, desk.x);
    if constexpr (KEYS)
        store_rows<T, D>(a.dv, at.row, column, begin, mine + 16 * warp, a.sequence, sum.second,
                         RARE && a.dropout.drops ? a.dropout.rule.scale : 1.0F, desk.y);
}

template <class T, int D, int PASS, bool RARE>
__global__ void __launch_bounds__(THREADS, 1)
    differentiate_wgmma(const __grid_constant__ struct maps maps, const operands<T> a,
                        const struct measures of, const struct order order)
{
    constexpr bool KEYS = PASS == TO_KEYS;
    DYNAMIC_SHARED(unsigned char, memory);
    const back_desk<T, D, PASS> desk(memory);
    int one, number, tile;
    order.find(static_cast<int>(blockIdx.x), &one, &number, &tile);
    const int begin = (KEYS ? tile : order.tiles - 1 - tile) * ROWS, each = a.heads / a.groups;
    const struct place at = {static_cast<int64_t>(number) * a.sequence, number, KEYS ? one * each : one,
                             KEYS ? one : one / each};
    // The same in all lanes, and the compiler knows it.
    const int warpgroup = __shfl_sync(ALL_LANES, static_cast<int>(threadIdx.x) / WARPGROUP, 0);
    const walk<D, PASS> way(begin, a.sequence, at.head, each);
    desk.prepare(maps);
    if (warpgroup == 0) {
        give_registers<PRODUCER_REGISTERS>(); // first: the others wait for them
        if (threadIdx.x == 0)
            produce(maps, of, at, desk, begin, way);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        consume<T, D, PASS, RARE>(a, of, at, desk, begin, warpgroup - 1, way);
    }
}

/* Eight numbers of a head to a thread. */
template <class T, int D>
__global__ void __launch_bounds__(2 * WARPGROUP) weigh_queries(operands<T> a, const struct measures of)
{
    constexpr int LANES = D / EACH;
    const int lane = static_cast<int>(threadIdx.x) % LANES, head = static_cast<int>(blockIdx.y),
              query = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    const int64_t token = static_cast<int64_t>(blockIdx.z) * a.sequence + query,
                  column = static_cast<int64_t>(head) * D + EACH * lane;
    const bool present = query < a.sequence;
    float sum = 0.0F;
    if (present) {
        const piece<float> x = a.dout.load(token, column, EACH), y = a.out.load(token, column, EACH);
        UNROLL_ALL
        for (int i = 0; i < EACH; i++)
            sum = fmaf(x.at[i], y.at[i], sum);
    }
    UNROLL_ALL
    for (int other = LANES / 2; other > 0; other /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, other);
    if (lane != 0)
        return;
    const int64_t to = of.first(head, blockIdx.z) + query;
    of.delta[to] = sum;
    of.lse[to] = present ? a.lse.row(head)[token] * LOG2_E : 0.0F;
    if (head == 0 && of.document != nullptr)
        of.document[static_cast<int64_t>(blockIdx.z) * of.padded + query] = present ? a.document[token] : 0;
}

/* What a block's columns are made of is read by all blocks of its head, or of the heads that share keys. */
static struct order order_of(const struct attention_forward *op, bool keys)
{
    constexpr int64_t CACHE_BYTES = 32 << 20;
    const int64_t heads = op->q.dim[1] / op->head_dim, groups = op->k.dim[1] / op->head_dim,
                  bytes = op->sequence * op->head_dim * 4 * (keys ? heads / groups : 1),
                  room = CACHE_BYTES > bytes ? CACHE_BYTES / bytes : 1,
                  together = keys ? room : room * (heads / groups), all = (keys ? groups : heads) * op->batch;
    return {static_cast<int>(keys ? groups : heads), static_cast<int>(op->batch),
            static_cast<int>(blocks_of(op->sequence, ROWS)),
            static_cast<int>(together < all ? together : all)};
}

template <class T, int D, int PASS, bool RARE>
static enum status differentiate(struct cuda_queue *queue, const struct attention_backward *op,
                                 const struct maps &maps, const struct operands<T> &a,
                                 const struct measures &of)
{
    const struct order order = order_of(&op->forward, PASS == TO_KEYS);
    const dim3 grid(static_cast<unsigned>(order.heads * order.sequences * order.tiles));
    return LAUNCH(queue, (differentiate_wgmma<T, D, PASS, RARE>), grid, THREADS,
                  (back_desk<T, D, PASS>::BYTES), maps, a, of, order);
}

static enum status measures_of(struct cuda_queue *queue, const struct attention_forward *op, int64_t heads,
                               struct measures *out)
{
    const int64_t padded = blocks_of(op->sequence, ATTENTION_TILE) * ATTENTION_TILE,
                  queries = heads * op->batch * padded, tokens = op->batch * padded;
    void *memory;
    TRY(cuda_scratch(queue, static_cast<size_t>(2 * queries + tokens) * sizeof(float), &memory));
    out->lse = static_cast<float *>(memory);
    out->delta = out->lse + queries;
    out->document = op->document != NULL ? reinterpret_cast<int32_t *>(out->delta + queries) : NULL;
    out->padded = static_cast<int>(padded);
    out->sequences = static_cast<int>(op->batch);
    return OK;
}

template <class T, int D>
static enum status backward(struct cuda_queue *queue, const struct attention_backward *op)
{
    const struct attention_forward *f = &op->forward;
    const struct operands<T> a = operands_of<T>(op, NULL);
    struct measures of;
    struct maps maps;
    TRY(measures_of(queue, f, a.heads, &of));
    TRY(tensor_map_of(queue, &f->q, f->batch, D, BOX_ROWS, &maps.q));
    TRY(tensor_map_of(queue, &f->k, f->batch, D, BOX_ROWS, &maps.k));
    TRY(tensor_map_of(queue, &f->v, f->batch, D, BOX_ROWS, &maps.v));
    TRY(tensor_map_of(queue, &op->dout, f->batch, D, BOX_ROWS, &maps.dout));
    const dim3 queries(static_cast<unsigned>(of.padded * (D / EACH) / (2 * WARPGROUP)),
                       static_cast<unsigned>(a.heads), static_cast<unsigned>(f->batch));
    TRY(LAUNCH(queue, (weigh_queries<T, D>), queries, 2 * WARPGROUP, 0, a, of));
    if (a.document != NULL || a.dropout.drops) {
        TRY((differentiate<T, D, TO_KEYS, true>(queue, op, maps, a, of)));
        return differentiate<T, D, TO_QUERIES, true>(queue, op, maps, a, of);
    }
    TRY((differentiate<T, D, TO_KEYS, false>(queue, op, maps, a, of)));
    return differentiate<T, D, TO_QUERIES, false>(queue, op, maps, a, of);
}

bool attention_suits_wgmma(const struct cuda_queue *queue, const struct attention_backward *op)
{
    const struct tensor *const copied[] = {&op->forward.q, &op->forward.k, &op->forward.v, &op->dout};
    bool suits = queue->encode != NULL && attention_suits_mma(op);
    for (int i = 0; i < 4; i++)
        suits = suits && tensor_map_suits(copied[i], op->forward.head_dim);
    return suits;
}

enum status attention_wgmma_backward(struct cuda_queue *queue, const struct attention_backward *op)
{
    const bool narrow = op->forward.head_dim == 64;
    if (op->forward.q.dtype == BF16)
        return narrow ? backward<bf16, 64>(queue, op) : backward<bf16, 128>(queue, op);
    return narrow ? backward<f16, 64>(queue, op) : backward<f16, 128>(queue, op);
}
