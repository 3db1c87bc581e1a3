// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/gpu/async.h"

#include "base/status.h"
#include "tests/emulator/include/cuda.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_BARRIERS = 64,
    MAX_LOADS = 64,
    MAX_WARPS = 32,
    MAX_WGMMAS = 128,
    REGISTERS = 65536,
    NAMED = 16,
    WARPGROUP_WARPS = 4,
    WARPGROUP = WARPGROUP_WARPS * EMULATOR_LANES,
    CHUNK = 16,
    LINE = 128, // within which chunks are swizzled
    MARK = 0x6d626172
};

struct mbarrier {
    uint64_t *at; // contains MARK
    int arrivals, pending;
    int64_t bytes; // expected bytes, less those that have arrived
    uint64_t phase;
    bool fenced;
};

struct load {
    char *to;
    const char *from; // for a copy without a map; else NULL
    struct emulated_map map;
    struct mbarrier *barrier;
    int at[EMULATED_RANK];
    size_t bytes;
};

struct named {
    int threads, arrived;
    uint64_t round, arrived_without_waiting[MAX_WARPS]; // a bit per lane that has arrived without waiting
};

/* Per warp: wgmma [begin, end) are in flight, counted from the block's first. */
struct warp {
    int begin, end, waits;
    uint64_t begun;                          // digest of all: the warps of a warpgroup must agree
    struct emulator_wgmma wgmma[MAX_WGMMAS]; // modulo
    struct {
        int begun, groups, waits, registers; // 0: the initial number
        bool fenced;
    } lane[EMULATOR_LANES];
};

/* For a warpgroup's wgmma: what its first warp has read as a. */
struct left_read {
    int number, warps;
    uint64_t digest;
};

struct async {
    struct left_read left[MAX_WARPS / WARPGROUP_WARPS][MAX_WGMMAS]; // modulo
    struct mbarrier barrier[MAX_BARRIERS];
    struct load load[MAX_LOADS];
    struct named named[NAMED];
    struct warp *warp[MAX_WARPS];
    int barriers, loads;
    struct emulator_memory memory; // dynamic shared memory
    char *seen;                    // the same, as seen by the async proxy
    bool fenced[MAX_WARPS];        // by a lane, not yet settled
};

/* The state of this block. */
static struct async *here(void)
{
    struct async **slot = emulator_async();
    if (*slot == NULL)
        CHECK((*slot = calloc(1, sizeof **slot)) != NULL);
    struct async *a = *slot;
    if (a->seen == NULL) {
        a->memory = emulator_dynamic_shared();
        CHECK((a->seen = malloc(a->memory.bytes + 1)) != NULL);
        memset(a->seen, 0xff, a->memory.bytes);
    }
    return a;
}

static unsigned thread(void)
{
    return emulator_thread_index()->x;
}

_Noreturn static void fail_at(const char *file, int line, const char *why)
{
    die(file, line, emulator_kernel(), "thread %u: %s", thread(), why);
}

/* Shared memory. A kernel must not assume its base address: it is not a multiple of 1024, and a shared-memory
 * address differs from the low bits of a pointer. */

enum { FIRST_ADDRESS = 1024 + 16 };
_Static_assert((FIRST_ADDRESS - EMULATOR_SHARED_SHIFT) % 1024 != 0,
               "a shared-memory address and its pointer must differ in alignment");

uint32_t emulator_shared_address(const void *data, const char *file, int line)
{
    const struct async *a = here();
    const uintptr_t offset = (uintptr_t)data - (uintptr_t)a->memory.data;
    if (offset > a->memory.bytes)
        fail_at(file, line, "this address is not in dynamic shared memory");
    return (uint32_t)offset + FIRST_ADDRESS;
}

const void *emulator_seen(uint32_t address)
{
    const struct async *a = here();
    const size_t offset = (size_t)address - FIRST_ADDRESS;
    return address % CHUNK == 0 && address >= FIRST_ADDRESS && offset + CHUNK <= a->memory.bytes
               ? a->seen + offset
               : NULL;
}

void emulator_async_fence(void)
{
    here()->fenced[thread() / EMULATOR_LANES] = true;
}

/* One copy for all lanes of a warp that fence before they synchronize. */
void async_settle(struct async *a, unsigned of_thread)
{
    const unsigned warp = of_thread / EMULATOR_LANES;
    if (a == NULL || !a->fenced[warp])
        return;
    a->fenced[warp] = false;
    memcpy(a->seen, a->memory.data, a->memory.bytes);
}

/* Barriers in shared memory */

static struct mbarrier *barrier_at(const uint64_t *at, const char *file, int line)
{
    struct async *a = here();
    for (int i = 0; i < a->barriers; i++) {
        if (a->barrier[i].at == at) {
            if (*at != MARK)
                fail_at(file, line, "this mbarrier has been overwritten");
            return &a->barrier[i];
        }
    }
    fail_at(file, line, "there is no initialized mbarrier here");
}

void emulator_mbarrier_init(uint64_t *at, int arrivals, const char *file, int line)
{
    struct async *a = here();
    emulator_expect_shared(at, sizeof *at, file, line);
    for (int i = 0; i < a->barriers; i++)
        if (a->barrier[i].at == at)
            fail_at(file, line, "this mbarrier is initialized already");
    if (arrivals < 1 || a->barriers == MAX_BARRIERS)
        fail_at(file, line, "an mbarrier without arrivals, or too many mbarriers");
    a->barrier[a->barriers++] = (struct mbarrier){.at = at, .arrivals = arrivals, .pending = arrivals};
    *at = MARK;
}

void emulator_mbarrier_init_fence(void)
{
    struct async *a = here();
    for (int i = 0; i < a->barriers; i++)
        a->barrier[i].fenced = true;
}

static void end_phase(struct mbarrier *b)
{
    if (b->pending == 0 && b->bytes == 0) {
        b->phase++;
        b->pending = b->arrivals;
    }
}

void emulator_mbarrier_arrive(uint64_t *at, int bytes, const char *file, int line)
{
    struct mbarrier *b = barrier_at(at, file, line);
    async_settle(here(), thread());
    if (b->pending == 0)
        fail_at(file, line, "more arrivals at an mbarrier than its phase expects");
    b->bytes += bytes;
    b->pending--;
    end_phase(b);
}

struct phase_wait {
    const struct mbarrier *barrier;
    unsigned parity;
};

static bool phase_is_over(const void *what)
{
    const struct phase_wait *w = what;
    return w->barrier->phase % 2 != w->parity;
}

void emulator_mbarrier_wait(uint64_t *at, unsigned parity, const char *file, int line)
{
    const struct phase_wait wait = {barrier_at(at, file, line), parity};
    if (parity > 1)
        fail_at(file, line, "a phase parity must be 0 or 1");
    if (!phase_is_over(&wait))
        emulator_wait_for(phase_is_over, &wait, "the end of an mbarrier's phase", file, line);
}

/* Named barriers */

struct round_wait {
    const struct named *barrier;
    uint64_t round;
};

static bool round_is_over(const void *what)
{
    const struct round_wait *w = what;
    return w->barrier->round != w->round;
}

void emulator_named_barrier(int number, int threads, bool waits, const char *file, int line)
{
    if (number < 1 || number >= NAMED || threads % EMULATOR_LANES != 0 || threads < EMULATOR_LANES)
        fail_at(file, line, "a named barrier must be 1 to 15, for whole warps");
    struct named *b = &here()->named[number];
    async_settle(here(), thread());
    const struct round_wait wait = {b, b->round};
    if (b->arrived > 0 && b->threads != threads)
        fail_at(file, line, "threads pass different counts to a named barrier");
    b->threads = threads;
    uint64_t *const arrived_without_waiting = &b->arrived_without_waiting[thread() / EMULATOR_LANES],
                    me = (uint64_t)1 << thread() % EMULATOR_LANES;
    if (!waits && (*arrived_without_waiting & me) != 0)
        fail_at(file, line, "a thread arrives twice in one round of a named barrier");
    *arrived_without_waiting |= waits ? 0 : me;
    if (++b->arrived == threads) {
        memset(b->arrived_without_waiting, 0, sizeof b->arrived_without_waiting);
        b->arrived = 0;
        b->round++;
    } else if (waits)
        emulator_wait_for(round_is_over, &wait, "other threads at a named barrier", file, line);
}

/* TMA copies */

/* The destination, NaN until arrival, and the barrier. */
static void begin_load(struct async *a, struct load *load, void *to, uint64_t *barrier, size_t alignment,
                       const char *file, int line)
{
    async_settle(a, thread());
    load->to = to;
    load->barrier = barrier_at(barrier, file, line);
    if (!load->barrier->fenced)
        fail_at(file, line, "the async proxy does not see this mbarrier: no fence after its initialization");
    const uint32_t address = emulator_shared_address(to, file, line);
    const size_t offset = address - FIRST_ADDRESS;
    if (address % alignment != 0 || offset + load->bytes > a->memory.bytes)
        fail_at(file, line,
                "a copy needs an aligned destination in shared memory: 16 bytes, 128 for a tensor");
    if (memcmp(to, a->seen + offset, load->bytes) != 0)
        fail_at(file, line, "a copy overwrites what threads wrote here without a fence");
    memset(to, 0xff, load->bytes);
    memset(a->seen + offset, 0xff, load->bytes);
    a->loads++;
}

void emulator_bulk_load(void *to, const void *from, int bytes, uint64_t *barrier, const char *file, int line)
{
    struct async *a = here();
    if (a->loads == MAX_LOADS)
        fail_at(file, line, "too many copies in flight");
    if (bytes <= 0 || bytes % CHUNK != 0 || (uintptr_t)from % CHUNK != 0)
        fail_at(file, line, "a copy must be a multiple of 16 bytes, from an aligned address");
    a->load[a->loads] = (struct load){.from = from, .bytes = (size_t)bytes};
    begin_load(a, &a->load[a->loads], to, barrier, CHUNK, file, line);
}

void emulator_tensor_load(void *to, const void *map, uint64_t *barrier, const int *at, int rank,
                          const char *file, int line)
{
    struct async *a = here();
    struct load *load = &a->load[a->loads];
    if (a->loads == MAX_LOADS)
        fail_at(file, line, "too many copies in flight");
    memcpy(&load->map, map, sizeof load->map);
    if (load->map.magic != EMULATED_MAP || (int)load->map.rank != rank || (uintptr_t)map % 64 != 0)
        fail_at(file, line, "not a tensor map with this number of dimensions, aligned to 64 bytes");
    load->from = NULL;
    load->bytes = load->map.number_bytes;
    for (int i = 0; i < rank; i++) {
        load->at[i] = at[i];
        load->bytes *= load->map.box[i];
    }
    begin_load(a, load, to, barrier, LINE, file, line);
}

/* The chunk at `offset` of the box: its row of the tensor, and first element. NULL: out of bounds. */
static const char *chunk_of(const struct load *l, size_t offset, int64_t *number)
{
    const struct emulated_map *m = &l->map;
    size_t rest = offset / m->number_bytes;
    const char *row = m->data;
    *number = l->at[0] + (int64_t)(rest % m->box[0]);
    rest /= m->box[0];
    for (uint32_t i = 1; i < m->rank; i++) {
        const int64_t at = l->at[i] + (int64_t)(rest % m->box[i]);
        rest /= m->box[i];
        if (at < 0 || at >= (int64_t)m->dim[i])
            return NULL;
        row += (uint64_t)at * m->stride[i - 1];
    }
    return row;
}

static void copy_chunk(const struct async *a, const struct load *l, size_t offset)
{
    const size_t begin = (size_t)(l->to - (char *)a->memory.data), each = l->map.number_bytes;
    const size_t address = begin + offset + FIRST_ADDRESS;
    const size_t swizzled = (address ^ (address / LINE % 8 * CHUNK)) - FIRST_ADDRESS;
    char chunk[CHUNK] = {0};
    int64_t first;
    const char *row = chunk_of(l, offset, &first);
    for (int64_t i = 0; row != NULL && i < (int64_t)(CHUNK / each); i++)
        if (first + i >= 0 && first + i < (int64_t)l->map.dim[0])
            memcpy(chunk + (size_t)i * each, row + (first + i) * (int64_t)each, each);
    memcpy((char *)a->memory.data + swizzled, chunk, CHUNK);
    memcpy(a->seen + swizzled, chunk, CHUNK);
}

bool async_move(struct async *a, uint32_t order)
{
    if (a == NULL || a->loads == 0)
        return false;
    const int which = (int)(order % (uint32_t)a->loads);
    struct load load = a->load[which];
    a->loads--;
    memmove(&a->load[which], &a->load[which + 1], (size_t)(a->loads - which) * sizeof load);
    if (load.from != NULL) {
        memcpy(load.to, load.from, load.bytes);
        memcpy(a->seen + (load.to - (char *)a->memory.data), load.from, load.bytes);
    }
    for (size_t offset = 0; load.from == NULL && offset < load.bytes; offset += CHUNK)
        copy_chunk(a, &load, offset);
    load.barrier->bytes -= (int64_t)load.bytes;
    end_phase(load.barrier);
    return true;
}

/* Warpgroup matmuls */

static struct warp *my_warp(void)
{
    struct async *a = here();
    struct warp **warp = &a->warp[thread() / EMULATOR_LANES];
    if (*warp == NULL)
        CHECK((*warp = calloc(1, sizeof **warp)) != NULL);
    return *warp;
}

_Noreturn void emulator_wgmma_fail(const struct emulator_wgmma *wgmma, const char *why)
{
    die(wgmma->file, wgmma->line, emulator_kernel(), "warp %d: %s", wgmma->warp, why);
}

void emulator_wgmma_fence(void)
{
    my_warp()->lane[thread() % EMULATOR_LANES].fenced = true;
}

void emulator_wgmma_commit(void)
{
    my_warp()->lane[thread() % EMULATOR_LANES].groups++;
}

static bool same_wgmma(const struct emulator_wgmma *a, const struct emulator_wgmma *b)
{
    return a->multiply == b->multiply && a->a == b->a && a->b == b->b && a->n == b->n &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->accumulate == b->accumulate && a->line == b->line && a->group == b->group;
}

/* The parameters in which the warps of a warpgroup must agree. */
static uint64_t digest(uint64_t before, const struct emulator_wgmma *p)
{
    const uint64_t word[] = {p->a,
                             p->b,
                             (uint64_t)p->n,
                             (uint64_t)p->transpose_a << 2 | (uint64_t)p->transpose_b << 1 | p->accumulate,
                             (uint64_t)p->line,
                             (uint64_t)p->group};
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        before = (before ^ word[i]) * 0x100000001b3U;
    return before;
}

/* Whether an earlier wgmma into d is in flight, which then owns d. */
static bool is_in_flight(const struct warp *w, const struct emulator_wgmma *p, unsigned lane, int number)
{
    for (int i = w->begin; i < number; i++) {
        const struct emulator_wgmma *other = &w->wgmma[i % MAX_WGMMAS];
        if (other->d[lane] == p->d[lane] && other->n != p->n)
            emulator_wgmma_fail(p, "wgmmas of different widths into the same registers");
        if (other->d[lane] == p->d[lane])
            return true;
    }
    return false;
}

void emulator_wgmma_begin(const struct emulator_wgmma *wgmma, float *d, const uint32_t *left,
                          const char *file, int line)
{
    struct warp *w = my_warp();
    const unsigned lane = thread() % EMULATOR_LANES;
    const int number = w->lane[lane].begun++;
    struct emulator_wgmma mine = *wgmma, *p = &w->wgmma[number % MAX_WGMMAS];
    mine.warp = (int)(thread() / EMULATOR_LANES);
    mine.group = w->lane[lane].groups;
    mine.number = number;
    mine.file = file;
    mine.line = line;
    if (!w->lane[lane].fenced)
        fail_at(file, line, "no wgmma_fence() since the last wait");
    if (number == w->end) {
        if (w->end - w->begin == MAX_WGMMAS)
            fail_at(file, line, "too many wgmmas in flight");
        *p = mine;
        w->end++;
        w->begun = digest(w->begun, &mine);
    } else if (!same_wgmma(p, &mine))
        fail_at(file, line, "the lanes of a warp issue different wgmmas");
    p->d[lane] = d;
    p->left[lane] = left;
    if (is_in_flight(w, p, lane, number))
        return;
    const size_t bytes = (size_t)p->n / 2 * sizeof *d;
    if (p->before == NULL)
        CHECK((p->before = malloc(EMULATOR_LANES * bytes)) != NULL);
    memcpy((char *)p->before + lane * bytes, d, bytes);
    memset(d, 0xff, bytes);
}

static void complete_wgmma(struct emulator_wgmma *p)
{
    const size_t numbers = (size_t)p->n / 2;
    for (size_t lane = 0; p->before != NULL && lane < EMULATOR_LANES; lane++) {
        for (size_t i = 0; i < numbers; i++) {
            uint32_t bits;
            memcpy(&bits, p->d[lane] + i, sizeof bits);
            if (bits != 0xffffffffU)
                emulator_wgmma_fail(p, "its accumulators were written while it was in flight");
        }
        memcpy(p->d[lane], p->before + lane * numbers, numbers * sizeof *p->before);
    }
    free(p->before);
    p->before = NULL;
    p->multiply(p);
}

void emulator_wgmma_left(const struct emulator_wgmma *p, const void *rows, size_t bytes)
{
    uint64_t digest = 0, word;
    struct left_read *read = &here()->left[p->warp / WARPGROUP_WARPS][p->number % MAX_WGMMAS];
    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, (const char *)rows + i, sizeof word);
        digest = (digest ^ word) * 0x100000001b3U;
    }
    if (read->warps == 0 || read->number != p->number)
        *read = (struct left_read){p->number, 0, digest};
    if (read->digest != digest)
        emulator_wgmma_fail(p, "rows of operand a changed after another warp of the warpgroup had read them");
    read->warps = (read->warps + 1) % WARPGROUP_WARPS;
}

/* All lanes have arrived; the first to continue does it for all. */
void emulator_wgmma_wait(int groups, const char *file, int line)
{
    struct warp *w = my_warp();
    const unsigned lane = thread() % EMULATOR_LANES;
    const int number = w->lane[lane].groups - groups;
    emulator_exchange(&number, sizeof number, file, line);
    w->lane[lane].fenced = false;
    if (++w->lane[lane].waits <= w->waits)
        return;
    w->waits = w->lane[lane].waits;
    for (int i = 0; i < EMULATOR_LANES; i++)
        if (w->lane[i].begun != w->lane[lane].begun || w->lane[i].groups != w->lane[lane].groups)
            fail_at(file, line, "the lanes of this warp issued different wgmmas");
    while (w->begin < w->end && w->wgmma[w->begin % MAX_WGMMAS].group < number)
        complete_wgmma(&w->wgmma[w->begin++ % MAX_WGMMAS]);
}

void emulator_registers(int count)
{
    my_warp()->lane[thread() % EMULATOR_LANES].registers = count;
}

/* All threads of a warpgroup set the same number, and the total fits the register file. */
static void expect_registers(const struct async *a)
{
    int all = 0;
    for (int i = 0; i < MAX_WARPS * EMULATOR_LANES; i++) {
        const struct warp *w = a->warp[i / EMULATOR_LANES], *first = a->warp[i / WARPGROUP * WARPGROUP_WARPS];
        const int mine = w != NULL ? w->lane[i % EMULATOR_LANES].registers : 0;
        if (mine != (first != NULL ? first->lane[0].registers : 0))
            die(__FILE__, __LINE__, emulator_kernel(),
                "thread %d sets a different register count than its warpgroup", i);
        all += mine;
    }
    if (all > REGISTERS)
        die(__FILE__, __LINE__, emulator_kernel(), "a block sets %d registers in all, over %d", all,
            (int)REGISTERS);
}

void async_end_block(struct async *a)
{
    if (a == NULL || a->seen == NULL)
        return;
    const char *left = a->loads > 0 ? "a copy of a box" : NULL;
    for (int i = 0; i < NAMED; i++)
        left = a->named[i].arrived > 0 ? "an arrival at a named barrier" : left;
    for (int i = 0; i < MAX_WARPS; i++) {
        const int leader = i / WARPGROUP_WARPS * WARPGROUP_WARPS;
        const struct warp *w = a->warp[i], *first = a->warp[leader];
        left = w != NULL && w->begin < w->end ? "a wgmma" : left;
        if ((w != NULL ? w->begun : 0) != (first != NULL ? first->begun : 0))
            die(__FILE__, __LINE__, emulator_kernel(), "warp %d issued other wgmmas than warp %d", i, leader);
    }
    expect_registers(a);
    if (left != NULL)
        die(__FILE__, __LINE__, emulator_kernel(), "the block ended without waiting for %s", left);
    free(a->seen);
    a->seen = NULL;
    a->barriers = 0;
    memset(a->fenced, 0, sizeof a->fenced);
    memset(a->left, 0, sizeof a->left);
    memset(a->named, 0, sizeof a->named);
    for (int i = 0; i < MAX_WARPS; i++) {
        if (a->warp[i] != NULL) {
            a->warp[i]->begin = a->warp[i]->end = a->warp[i]->waits = 0;
            a->warp[i]->begun = 0;
            memset(a->warp[i]->lane, 0, sizeof a->warp[i]->lane);
        }
    }
}
