// SPDX-License-Identifier: Apache-2.0
/* Stacks of the emulator's fibers. */
#pragma once

#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct stack {
    void *pointer; // while suspended
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

/* Maps the stack of this number, on which `entry` is called at the first change to it; it must not return. */
void stack_create(struct stack *stack, int number, void (*entry)(void));

/* Suspends the running stack, `from`, and continues where `to` was suspended. */
void stack_change(struct stack *from, const struct stack *to);
