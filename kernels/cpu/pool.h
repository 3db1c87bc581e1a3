// SPDX-License-Identifier: Apache-2.0
/* The compute threads of one cpu device: threads - 1 workers, created with the device, and the caller, which
 * works too.
 *
 *     caller:   publish job ─ run tasks 0, 2, 3 ... ─ close ─ wait for those inside ─ return
 *     worker:   (spins a little, then sleeps)  enter ─ run tasks 1, 4 ... ─ leave
 *
 * The assignment of tasks to threads is nondeterministic; results must not be. Callers therefore divide the
 * work into tasks by *shape* only, never by the number of threads, and no two tasks accumulate into the same
 * element. One thread, three threads and a busy machine then give the same bits.
 *
 * Caution: a task must not call cpu_parallel(). */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct device;
struct cpu_pool;

/* Runs body(context, 0) ... body(context, tasks - 1), each once, in any order and possibly concurrently, and
 * returns when all are complete. With one thread, or one task, it is a plain loop. */
void cpu_parallel(struct device *device, int64_t tasks, void (*body)(void *context, int64_t task),
                  void *context);

/* Internal to cpu_parallel and the device. threads >= 1. */
MUST_USE enum status cpu_pool_create(int threads, struct cpu_pool **out);
void cpu_pool_destroy(struct cpu_pool *pool); // accepts NULL
/* Processor time of the workers so far, without the caller's. */
int64_t cpu_pool_ns(const struct cpu_pool *pool);
void cpu_pool_run(struct cpu_pool *pool, int64_t tasks, void (*body)(void *context, int64_t task),
                  void *context);
