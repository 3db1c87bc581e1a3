// SPDX-License-Identifier: Apache-2.0
/* The compute threads of one cpu device: threads - 1 workers, made when the device opens, and the
 * caller, who works too.
 *
 *     caller:   publish job ─ take tasks 0, 2, 3 ... ─ close ─ wait for those inside ─ return
 *     worker:   (spins a little, then sleeps)  enter ─ take tasks 1, 4 ... ─ leave
 *
 * Who takes which task is chance; what a task computes must not be. So the law for callers: cut the
 * work into tasks by its *shape* only, never by the number of threads, and let no two tasks add into
 * the same number. Then one thread, three threads and a busy machine give the same bits.
 *
 * The trap: a task may not call cpu_parallel() again. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct device;
struct cpu_pool;

/* Runs body(context, 0) ... body(context, tasks - 1), each once, in any order and possibly at the same
 * time, and returns when all are done. With one thread, or one task, it is a plain loop. */
void cpu_parallel(struct device *device, int64_t tasks, void (*body)(void *context, int64_t task),
                  void *context);

/* For cpu_parallel's own use and the device's. threads >= 1. */
MUST_USE enum status cpu_pool_create(int threads, struct cpu_pool **out);
void cpu_pool_destroy(struct cpu_pool *pool); // takes NULL
void cpu_pool_run(struct cpu_pool *pool, int64_t tasks, void (*body)(void *context, int64_t task),
                  void *context);
