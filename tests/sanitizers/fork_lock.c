// SPDX-License-Identifier: Apache-2.0
/* Criterion forks for each test while a thread of its own allocates. The C library holds its allocator's
 * locks through a fork, but AddressSanitizer's allocator of clang 14 does not: a lock that the other thread
 * holds at that moment stays locked in the child, whose next malloc waits forever. So the locks are acquired
 * here before a fork and released after it, with the functions that LeakSanitizer uses to stop the world. */
#include <pthread.h>

void lock_allocator(void) __asm__("_ZN6__lsan13LockAllocatorEv");
void unlock_allocator(void) __asm__("_ZN6__lsan15UnlockAllocatorEv");
void lock_stack_depot(void) __asm__("_ZN11__sanitizer17StackDepotLockAllEv");
void unlock_stack_depot(void) __asm__("_ZN11__sanitizer19StackDepotUnlockAllEv");

static void before_fork(void)
{
    lock_allocator();
    lock_stack_depot();
}

static void after_fork(void)
{
    unlock_stack_depot();
    unlock_allocator();
}

__attribute__((constructor)) static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, after_fork);
}
