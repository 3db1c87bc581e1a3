// SPDX-License-Identifier: Apache-2.0
/* Criterion forks for each test while a thread of its own allocates. The C library holds its allocator's
 * locks through a fork, but AddressSanitizer's allocator of clang 14 does not: where the other thread has one
 * of them just then, it stays locked in the child, whose next malloc waits forever. So they are taken here
 * before a fork, and given back behind it, by the functions that LeakSanitizer stops the world with. */
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

static void behind_fork(void)
{
    unlock_stack_depot();
    unlock_allocator();
}

__attribute__((constructor)) static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, behind_fork, behind_fork);
}
