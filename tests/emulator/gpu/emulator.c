// SPDX-License-Identifier: Apache-2.0
/* Fibers: each thread that has to wait keeps its own stack; one that never waits passes its stack to the
 * next.
 *
 * A turn runs every ready thread, in the requested order: a thread that waits or ends switches to the next
 * one directly, and the last one to the scheduler. Afterwards, threads of complete warps and threads whose
 * condition holds become ready. If there are none, one of the copies in flight arrives (async.h); when all
 * wait for the block's barrier, all become ready. In a random order, one warp or warpgroup of each block is
 * slow: it proceeds only when nothing else can. */
#include "tests/emulator/gpu/emulator.h"

#include "base/philox.h"
#include "base/status.h"
#include "tests/emulator/gpu/async.h"
#include "tests/emulator/gpu/stack.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 1024, LANES = 32, SHARED_SITES = 32, MAX_COPIES = 256, SHARED_ALIGNMENT = 1024 };

enum fiber_state { NEW, READY, AT_BARRIER, AT_WARP, AT_CONDITION, DONE };

struct fiber {
    enum fiber_state state;
    bool is_slow;
    int stack;        // index, -1: none
    const char *file; // where it waits
    int line;
    unsigned parity; // of its next warp operation
    bool (*ready)(const void *what);
    const void *what;
    const char *kind;
    struct emulator_index index;
};

struct shared_array {
    const void *site;
    void *data, *memory;
    size_t bytes;
};

/* The copies in flight of a thread, oldest first. */
struct copies {
    int count, group; // group: the number of the open one
    struct {
        void *to;
        const void *from; // NULL: zeros
        size_t bytes;
        int group;
    } copy[MAX_COPIES];
};

struct emulator {
    struct emulator *next_unused;
    struct fiber fiber[MAX_THREADS];
    struct stack stack[MAX_THREADS];
    int free_stack[MAX_THREADS], free_stacks, stacks;
    unsigned order[MAX_THREADS];
    struct emulator_deposit deposit[MAX_THREADS / LANES][2][LANES];
    struct copies *copies; // per thread; NULL: no kernel has started any
    struct async *async;
    struct shared_array shared[SHARED_SITES];
    int shared_arrays;
    size_t dynamic_bytes;
    struct stack scheduler; // the CPU thread's own
    struct fiber *now;
    unsigned next; // of the turn: position in `order`
    bool slow;     // of the turn: runs the slow threads
    struct emulator_index block, grid, threads;
    unsigned slow_begin, slow_end; // threads that are delayed
    void (*body)(const void *context);
    const void *context;
    const char *kernel;
    enum { FORWARD, REVERSE, SHUFFLED } direction;
    uint64_t seed, launches, bank_conflicts;
};

/* The one that runs on this CPU thread, as threadIdx belongs to a GPU thread. */
static _Thread_local struct emulator *current;

/* Emulators of closed streams, for new ones: mapping and first touching hundreds of stacks takes long. */
static struct {
    pthread_mutex_t mutex;
    struct emulator *first;
} unused = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct emulator *emulator_create(void)
{
    pthread_mutex_lock(&unused.mutex);
    struct emulator *e = unused.first;
    if (e != NULL)
        unused.first = e->next_unused;
    pthread_mutex_unlock(&unused.mutex);
    if (e == NULL)
        CHECK((e = calloc(1, sizeof *e)) != NULL);
    e->launches = e->bank_conflicts = 0;
    emulator_order(e, NULL);
    return e;
}

void emulator_destroy(struct emulator *e)
{
    pthread_mutex_lock(&unused.mutex);
    e->next_unused = unused.first;
    unused.first = e;
    pthread_mutex_unlock(&unused.mutex);
}

void emulator_order(struct emulator *e, const char *order)
{
    if (order == NULL)
        order = getenv("EMULATOR_ORDER");
    e->direction = FORWARD;
    if (order != NULL && strcmp(order, "reverse") == 0)
        e->direction = REVERSE;
    else if (order != NULL && strcmp(order, "forward") != 0) {
        e->direction = SHUFFLED;
        e->seed = strtoull(order, NULL, 10);
    }
}

/* Switching. */

static void run_threads(void);

static int acquire_stack(struct emulator *e)
{
    if (e->free_stacks > 0)
        return e->free_stack[--e->free_stacks];
    CHECK(e->stacks < MAX_THREADS);
    stack_create(&e->stack[e->stacks], e->stacks, run_threads);
    return e->stacks++;
}

/* Makes the turn's next ready thread the running one. NULL: there is none. */
static struct fiber *next_fiber(struct emulator *e)
{
    while (e->next < e->threads.x) {
        struct fiber *f = &e->fiber[e->order[e->next++]];
        if ((f->state == NEW || f->state == READY) && f->is_slow == e->slow)
            return e->now = f;
    }
    return NULL;
}

/* Switches from this stack to that of the turn's next ready thread, or back to the scheduler. */
static void leave_stack(struct emulator *e, struct stack *stack)
{
    struct fiber *next = next_fiber(e);
    if (next != NULL && next->state == NEW) {
        next->stack = acquire_stack(e);
        next->state = READY;
    }
    struct stack *to = next != NULL ? &e->stack[next->stack] : &e->scheduler;
    if (to != stack) // a thread that has ended leaves its stack to a new one
        stack_change(stack, to);
}

/* Runs on a stack: the assigned thread; after its end, the next one. */
static void run_threads(void)
{
    for (;;) {
        struct emulator *e = current;
        struct fiber *me = e->now;
        e->body(e->context);
        async_settle(e->async, me->index.x);
        me->state = DONE;
        e->free_stack[e->free_stacks++] = me->stack;
        leave_stack(e, &e->stack[me->stack]);
    }
}

/* Synchronization points. */

_Noreturn static void fail_at(const struct emulator *e, const struct fiber *a, const struct fiber *b,
                              const char *why)
{
    static const char *const names[] = {"",      "runs",     "at the barrier", "at the warp operation",
                                        "waits", "has ended"};
    die(__FILE__, __LINE__, e->kernel, "block (%u, %u, %u): thread %u %s (%s:%d), thread %u %s (%s:%d): %s",
        e->block.x, e->block.y, e->block.z, a->index.x, names[a->state], a->file, a->line, b->index.x,
        names[b->state], b->file, b->line, why);
}

static bool same_location(const struct fiber *a, const struct fiber *b)
{
    return a->line == b->line && (a->file == b->file || strcmp(a->file, b->file) == 0);
}

_Noreturn static void fail_warp(const struct emulator *e, const struct fiber *lane, unsigned count)
{
    const struct fiber *one = NULL;
    for (unsigned i = 0; i < count; i++)
        one = lane[i].state == AT_WARP ? &lane[i] : one;
    for (unsigned i = 0; i < count; i++)
        if (lane[i].state != AT_WARP || !same_location(&lane[i], one))
            fail_at(e, one, &lane[i], "not all lanes take part in the warp's operation");
    fail_at(e, one, one, "a warp of fewer than 32 threads");
}

/* Releases a warp when all its lanes have reached the same operation. Returns whether it did. */
static bool release_warp(struct emulator *e, unsigned first)
{
    struct fiber *const lane = &e->fiber[first];
    const unsigned count = first + LANES < e->threads.x ? LANES : e->threads.x - first;
    unsigned waiting = 0, same = 0;
    bool late = false; // a lane may still arrive
    for (unsigned i = 0; i < count; i++) {
        waiting += lane[i].state == AT_WARP;
        same += lane[i].state == AT_WARP && same_location(&lane[i], lane);
        late = late || lane[i].state == AT_CONDITION || lane[i].state == READY;
    }
    if (waiting == 0 || late)
        return false;
    if (same < LANES)
        fail_warp(e, lane, count);
    async_settle(e->async, first);
    for (unsigned i = 0; i < LANES; i++)
        lane[i].state = READY;
    return true;
}

/* Releases the block when all its threads have reached the same barrier. False also when all have ended. */
static bool release_block(struct emulator *e)
{
    struct fiber *one = NULL;
    for (unsigned i = 0; i < e->threads.x; i++) {
        if (e->fiber[i].state == AT_BARRIER)
            one = &e->fiber[i];
        if (e->fiber[i].state == AT_CONDITION)
            return false; // it may still arrive
    }
    if (one == NULL)
        return false;
    for (unsigned i = 0; i < e->threads.x; i++) {
        struct fiber *f = &e->fiber[i];
        if (f->state != AT_BARRIER || !same_location(f, one))
            fail_at(e, one, f, "not all threads meet at the barrier");
    }
    for (unsigned i = 0; i < e->threads.x; i++)
        e->fiber[i].state = READY;
    return true;
}

/* Releases threads whose condition holds. Returns whether there were any. */
static bool release_ready(struct emulator *e)
{
    bool any = false;
    for (unsigned i = 0; i < e->threads.x; i++) {
        struct fiber *f = &e->fiber[i];
        if (f->state == AT_CONDITION && f->ready(f->what)) {
            f->state = READY;
            any = true;
        }
    }
    return any;
}

static bool any_waiting(const struct emulator *e)
{
    for (unsigned i = 0; i < e->threads.x; i++)
        if (e->fiber[i].state == AT_CONDITION)
            return true;
    return false;
}

static void expect_all_done(const struct emulator *e)
{
    for (unsigned i = 0; i < e->threads.x; i++) {
        const struct fiber *f = &e->fiber[i];
        if (f->state == AT_CONDITION)
            die(f->file, f->line, e->kernel, "block (%u, %u, %u): thread %u waits for %s forever", e->block.x,
                e->block.y, e->block.z, i, f->kind);
        if (f->state != DONE)
            fail_at(e, f, f, "it waits forever");
    }
}

/* Chooses the next copy to arrive. */
static uint32_t draw(const struct emulator *e, uint64_t number)
{
    if (e->direction == SHUFFLED)
        return philox_word((struct philox){.key = {(uint32_t)e->seed, 2}}, e->launches, number);
    return e->direction == FORWARD ? 0 : 3;
}

static void make_order(struct emulator *e, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        e->order[i] = e->direction == REVERSE ? count - 1 - i : i;
    for (unsigned i = count; e->direction == SHUFFLED && i > 1; i--) {
        uint32_t word = philox_word((struct philox){.key = {(uint32_t)e->seed, 1}}, e->launches, i);
        unsigned other = word % i, kept = e->order[i - 1];
        e->order[i - 1] = e->order[other];
        e->order[other] = kept;
    }
}

static void choose_slow(struct emulator *e, uint64_t block)
{
    const uint32_t word = philox_word((struct philox){.key = {(uint32_t)e->seed, 3}}, e->launches, block);
    const unsigned each = word % 2 == 0 ? LANES : 4 * LANES, count = (e->threads.x + each - 1) / each;
    e->slow_begin = word / 2 % count * each;
    e->slow_end = e->direction == SHUFFLED ? e->slow_begin + each : 0;
}

/* A turn: runs the ready threads, slow ones or others. Returns whether there were any. */
static bool run_ready(struct emulator *e, bool slow)
{
    e->next = 0;
    e->slow = slow;
    e->now = NULL;
    leave_stack(e, &e->scheduler);
    return e->now != NULL;
}

static void run_block(struct emulator *e)
{
    for (unsigned i = 0; i < e->threads.x; i++) {
        e->fiber[i] = (struct fiber){.state = NEW,
                                     .is_slow = i >= e->slow_begin && i < e->slow_end,
                                     .stack = -1,
                                     .file = "-",
                                     .index = {i, 0, 0}};
        if (e->copies != NULL)
            e->copies[i].count = e->copies[i].group = 0;
    }
    bool more = true;
    for (uint64_t turn = 0; more; turn++) {
        more = run_ready(e, false);
        for (unsigned first = 0; first < e->threads.x; first += LANES)
            more = release_warp(e, first) || more;
        more = release_ready(e) || more;
        more = more || (any_waiting(e) && async_move(e->async, draw(e, turn)));
        more = more || run_ready(e, true);
        more = more || release_block(e);
    }
    expect_all_done(e);
    async_end_block(e->async);
    for (unsigned i = 0; e->copies != NULL && i < e->threads.x; i++)
        if (e->copies[i].count > 0)
            fail_at(e, &e->fiber[i], &e->fiber[i], "the thread ended without waiting for its copies");
    for (int i = 0; i < e->shared_arrays; i++)
        free(e->shared[i].memory);
    e->shared_arrays = 0;
}

void emulator_launch(struct emulator *e, const char *kernel, struct emulator_index grid, unsigned threads,
                     size_t shared_bytes, void (*body)(const void *context), const void *context)
{
    CHECK(threads >= 1 && threads <= MAX_THREADS && current == NULL);
    e->kernel = kernel;
    e->grid = grid;
    e->threads = (struct emulator_index){threads, 1, 1};
    e->dynamic_bytes = shared_bytes;
    e->body = body;
    e->context = context;
    e->launches++;
    make_order(e, threads);
    current = e;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t stride = 1; // of a walk that visits every block once, in random order
    if (e->direction == SHUFFLED)
        for (stride = e->seed % blocks + 1; blocks % stride != 0 || stride == 0;)
            stride--;
    for (uint64_t offset = 0; offset < stride; offset++) {
        for (uint64_t i = offset; i < blocks; i += stride) {
            uint64_t b = e->direction == FORWARD ? i : blocks - 1 - i;
            e->block = (struct emulator_index){(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                                               (unsigned)(b / grid.x / grid.y)};
            choose_slow(e, b);
            run_block(e);
        }
    }
    current = NULL;
}

/* Of the running thread. */

const struct emulator_index *emulator_thread_index(void)
{
    return &current->now->index;
}

const struct emulator_index *emulator_block_index(void)
{
    return &current->block;
}

const struct emulator_index *emulator_block_size(void)
{
    return &current->threads;
}

const struct emulator_index *emulator_grid_size(void)
{
    return &current->grid;
}

static void wait_at(struct emulator *e, enum fiber_state state, const char *file, int line)
{
    if (state != AT_WARP) // at a warp operation, all lanes settle at once
        async_settle(e->async, e->now->index.x);
    e->now->state = state;
    e->now->file = file;
    e->now->line = line;
    leave_stack(e, &e->stack[e->now->stack]);
}

void emulator_wait_for(bool (*ready)(const void *what), const void *what, const char *kind, const char *file,
                       int line)
{
    struct fiber *me = current->now;
    me->ready = ready;
    me->what = what;
    me->kind = kind;
    wait_at(current, AT_CONDITION, file, line);
}

void emulator_barrier(const char *file, int line)
{
    wait_at(current, AT_BARRIER, file, line);
}

/* Of a warp operation. A lane can be one operation ahead of another, not two: double buffering suffices. */
static struct emulator_deposit *next_deposit(struct fiber *me)
{
    struct emulator_deposit *deposit = current->deposit[me->index.x / LANES][me->parity];
    me->parity ^= 1;
    return deposit;
}

const struct emulator_deposit *emulator_exchange(const void *mine, size_t bytes, const char *file, int line)
{
    struct emulator *e = current;
    struct emulator_deposit *deposit = next_deposit(e->now);
    CHECK(bytes <= EMULATOR_DEPOSIT_BYTES);
    memcpy(&deposit[e->now->index.x % LANES], mine, bytes);
    wait_at(e, AT_WARP, file, line);
    return deposit;
}

uint64_t emulator_shuffle(uint64_t value, unsigned from, const char *file, int line)
{
    struct emulator *e = current;
    struct emulator_deposit *deposit = next_deposit(e->now);
    deposit[e->now->index.x % LANES].word[0] = value;
    wait_at(e, AT_WARP, file, line);
    return deposit[from % LANES].word[0];
}

void *emulator_shared(const void *site, size_t bytes)
{
    struct emulator *e = current;
    for (int i = 0; i < e->shared_arrays; i++)
        if (e->shared[i].site == site)
            return e->shared[i].data;
    if (site == NULL)
        bytes = e->dynamic_bytes;
    CHECK(e->shared_arrays < SHARED_SITES);
    size_t all = e->dynamic_bytes + (site != NULL ? bytes : 0);
    for (int i = 0; i < e->shared_arrays; i++)
        all += e->shared[i].site != NULL ? e->shared[i].bytes : 0;
    if (all >
        (e->dynamic_bytes > EMULATOR_SHARED_BYTES ? emulator_most_shared_bytes() : EMULATOR_SHARED_BYTES))
        die(__FILE__, __LINE__, e->kernel, "%zu bytes of shared memory are more than a block can have", all);
    const size_t shift = site == NULL ? EMULATOR_SHARED_SHIFT : 0;
    void *memory = NULL;
    CHECK(posix_memalign(&memory, SHARED_ALIGNMENT, shift + (bytes > 0 ? bytes : 1)) == 0);
    char *data = (char *)memory + shift;
    memset(data, 0xff, bytes);
    e->shared[e->shared_arrays++] = (struct shared_array){site, data, memory, bytes};
    return data;
}

struct emulator_memory emulator_dynamic_shared(void)
{
    return (struct emulator_memory){emulator_shared(NULL, 0), current->dynamic_bytes};
}

struct async **emulator_async(void)
{
    return &current->async;
}

const char *emulator_kernel(void)
{
    return current->kernel;
}

void emulator_expect_shared(const void *data, size_t bytes, const char *file, int line)
{
    const struct emulator *e = current;
    const uintptr_t begin = (uintptr_t)data;
    bool inside = begin % bytes == 0;
    for (int i = 0; inside && i < e->shared_arrays; i++) {
        const uintptr_t block = (uintptr_t)e->shared[i].data;
        if (begin >= block && begin - block + bytes <= e->shared[i].bytes)
            return;
    }
    die(file, line, e->kernel, "thread %u: %p is not %zu aligned bytes of shared memory", e->now->index.x,
        data, bytes);
}

void emulator_copy(void *to, const void *from, size_t bytes, bool present, const char *file, int line)
{
    struct emulator *e = current;
    if (e->copies == NULL)
        CHECK((e->copies = calloc(MAX_THREADS, sizeof *e->copies)) != NULL);
    struct copies *c = &e->copies[e->now->index.x];
    emulator_expect_shared(to, bytes, file, line);
    if ((uintptr_t)from % bytes != 0 || c->count == MAX_COPIES)
        die(file, line, e->kernel, "thread %u: copy %d, of %zu bytes from %p", e->now->index.x, c->count,
            bytes, from);
    if (present)
        memcpy(to, from, bytes); // lets AddressSanitizer detect reads out of bounds
    memset(to, 0xff, bytes);
    c->copy[c->count].to = to;
    c->copy[c->count].from = present ? from : NULL;
    c->copy[c->count].bytes = bytes;
    c->copy[c->count++].group = c->group;
}

void emulator_copy_commit(void)
{
    if (current->copies != NULL)
        current->copies[current->now->index.x].group++;
}

void emulator_copy_wait(int groups)
{
    if (current->copies == NULL)
        return;
    struct copies *c = &current->copies[current->now->index.x];
    int kept = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->copy[i].group >= c->group - groups)
            c->copy[kept++] = c->copy[i];
        else if (c->copy[i].from != NULL)
            memcpy(c->copy[i].to, c->copy[i].from, c->copy[i].bytes);
        else
            memset(c->copy[i].to, 0, c->copy[i].bytes);
    }
    c->count = kept;
}

void emulator_bank_conflict(void)
{
    current->bank_conflicts++;
}

uint64_t emulator_bank_conflicts(const struct emulator *e)
{
    return e->bank_conflicts;
}
