// SPDX-License-Identifier: Apache-2.0
/* All synchronization is in one word, the gate:
 *
 *     gate = job number << 16 | open << 15 | workers inside
 *
 * A worker enters by compare-and-swap while the gate is open, so the job's fields are constant while any
 * worker is inside. An atomic counter assigns tasks. When no task is left, the caller closes the gate and
 * waits until no worker is inside: then every assigned task is complete. A worker that wakes too late finds
 * the gate closed, and the caller has not waited for it: small jobs do not pay for wake-ups.
 *
 * Sleeping uses the usual handshake: a thread announces that it sleeps and rechecks the gate; a thread that
 * changes the gate checks for sleepers afterwards. Both need sequentially consistent order. */
#include "kernels/cpu/pool.h"

#include "base/memory.h"
#include "kernels/cpu/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { GATE_OPEN = 1 << 15, GATE_INSIDE = GATE_OPEN - 1, GATE_JOB_SHIFT = 16 };
enum { SPINS = 2000 }; // about 20 to 50 us: longer than the gap between two ops, shorter than a message

struct cpu_pool {
    _Atomic uint64_t gate;
    _Atomic int64_t next_task;
    int64_t tasks;
    void (*body)(void *context, int64_t task);
    void *context;

    _Atomic int sleepers;
    _Atomic bool caller_sleeps, stop;
    pthread_mutex_t mutex;
    pthread_cond_t job_ready, all_out;
    int workers;
    pthread_t thread[];
};

static void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void run_tasks(struct cpu_pool *pool)
{
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&pool->next_task, 1, memory_order_relaxed);
        if (task >= pool->tasks)
            return;
        pool->body(pool->context, task);
    }
}

/* A job other than `seen` is open. */
static bool has_new_job(uint64_t gate, uint64_t seen)
{
    return (gate & GATE_OPEN) != 0 && gate >> GATE_JOB_SHIFT != seen;
}

/* Returns when there is a new job (possibly closed again) or the pool stops. */
static void worker_wait(struct cpu_pool *pool, uint64_t seen)
{
    for (int spin = 0; spin < SPINS; spin++) {
        if (has_new_job(atomic_load(&pool->gate), seen) || atomic_load(&pool->stop))
            return;
        spin_pause();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!has_new_job(atomic_load(&pool->gate), seen) && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->job_ready, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument)
{
    struct cpu_pool *pool = argument;
    uint64_t seen = 0;
    while (!atomic_load(&pool->stop)) {
        uint64_t gate = atomic_load(&pool->gate);
        if (!has_new_job(gate, seen)) {
            worker_wait(pool, seen);
            continue;
        }
        if (!atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1))
            continue;
        seen = gate >> GATE_JOB_SHIFT;
        run_tasks(pool);
        uint64_t after = atomic_fetch_sub(&pool->gate, 1) - 1;

        // The last worker to leave a closed job wakes the caller.
        if ((after & (GATE_OPEN | GATE_INSIDE)) == 0 && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->all_out);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
    return NULL;
}

static void wait_until_empty(struct cpu_pool *pool)
{
    for (int spin = 0; spin < SPINS; spin++) {
        if ((atomic_load(&pool->gate) & GATE_INSIDE) == 0)
            return;
        spin_pause();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while ((atomic_load(&pool->gate) & GATE_INSIDE) != 0)
        pthread_cond_wait(&pool->all_out, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
}

void cpu_pool_run(struct cpu_pool *pool, int64_t tasks, void (*body)(void *context, int64_t task),
                  void *context)
{
    if (pool->workers == 0 || tasks <= 1) {
        for (int64_t task = 0; task < tasks; task++)
            body(context, task);
        return;
    }

    // No worker is inside: the caller may write the fields until the gate opens.
    pool->tasks = tasks;
    pool->body = body;
    pool->context = context;
    atomic_store_explicit(&pool->next_task, 0, memory_order_relaxed);
    uint64_t job = (atomic_load(&pool->gate) >> GATE_JOB_SHIFT) + 1;
    atomic_store(&pool->gate, job << GATE_JOB_SHIFT | GATE_OPEN);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->job_ready);
        pthread_mutex_unlock(&pool->mutex);
    }

    run_tasks(pool);
    atomic_fetch_and(&pool->gate, ~(uint64_t)GATE_OPEN);
    wait_until_empty(pool);
}

int64_t cpu_pool_ns(const struct cpu_pool *pool)
{
    int64_t sum = 0;
    for (int w = 0; w < pool->workers; w++) {
        clockid_t clock;
        struct timespec now = {0};
        if (pthread_getcpuclockid(pool->thread[w], &clock) == 0 && clock_gettime(clock, &now) == 0)
            sum += now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    }
    return sum;
}

void cpu_parallel(struct device *device, int64_t tasks, void (*body)(void *context, int64_t task),
                  void *context)
{
    cpu_pool_run(((struct cpu_state *)device->state)->pool, tasks, body, context);
}

enum status cpu_pool_create(int threads, struct cpu_pool **out)
{
    int workers = threads - 1;
    if (threads < 1 || workers >= GATE_INSIDE)
        return fail(BAD_ARGUMENT, "a cpu device takes 1 to %d threads, not %d", GATE_INSIDE, threads);
    struct cpu_pool *pool =
        memory_zeroed(1, sizeof *pool + (size_t)workers * sizeof pool->thread[0], "a pool of threads");
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->job_ready, NULL);
    pthread_cond_init(&pool->all_out, NULL);
    for (; pool->workers < workers; pool->workers++) {
        if (pthread_create(&pool->thread[pool->workers], NULL, worker_main, pool) != 0) {
            int started = pool->workers + 1;
            cpu_pool_destroy(pool);
            return fail(
                NO_MEMORY,
                "only %d of %d compute threads could be started; use a smaller cluster.threads_per_rank",
                started, threads);
        }
    }
    *out = pool;
    return OK;
}

void cpu_pool_destroy(struct cpu_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->job_ready);
    pthread_mutex_unlock(&pool->mutex);
    for (int w = 0; w < pool->workers; w++)
        pthread_join(pool->thread[w], NULL);
    pthread_cond_destroy(&pool->all_out);
    pthread_cond_destroy(&pool->job_ready);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}
