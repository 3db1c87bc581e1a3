// SPDX-License-Identifier: Apache-2.0
/* A change saves the ABI's callee-saved registers and the stack pointer only: swapcontext() makes a
 * system call for the signal mask and takes fifty times as long. */
#include "tests/emulator/gpu/stack.h"

#include "base/status.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { STACK_BYTES = 256 * 1024, GUARD_BYTES = 4096 };
/* Stacks begin in different cache sets: at equal offsets they would evict each other. */
enum { COLORS = 59, COLOR_BYTES = 17 * 64 };

#if defined(__x86_64__)
/* Naked functions may contain assembler only: the arguments are rdi and rsi. */
_Static_assert(offsetof(struct stack, pointer) == 0, "stack_change() reads and writes the pointer");
__attribute__((naked)) void stack_change(__attribute__((unused)) struct stack *from,
                                         __attribute__((unused)) const struct stack *to)
{
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n"
            "movq (%rsi), %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
            "popq %rcx\n"
            "jmpq *%rcx"); // a processor predicts that `ret` returns to the caller, which it does not
}

static void begin(struct stack *stack, char *memory, size_t bytes, void (*entry)(void))
{
    // As after a call: the stack pointer is 8 past a multiple of 16, and points to a (missing) return
    // address.
    void **top = (void **)(void *)(memory + bytes - 64 - 8);
    memset(top - 7, 0, 8 * sizeof *top);
    top[-1] = (void *)(uintptr_t)entry;
    stack->pointer = top - 7; // six registers, then the address
}
#else
void stack_change(struct stack *from, const struct stack *to)
{
    swapcontext(&from->context, &to->context);
}

static void begin(struct stack *stack, char *memory, size_t bytes, void (*entry)(void))
{
    getcontext(&stack->context);
    stack->context.uc_stack.ss_sp = memory + GUARD_BYTES;
    stack->context.uc_stack.ss_size = bytes - GUARD_BYTES;
    stack->context.uc_link = NULL;
    makecontext(&stack->context, entry, 0);
}
#endif

void stack_create(struct stack *stack, int number, void (*entry)(void))
{
    char *memory =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory, GUARD_BYTES, PROT_NONE) == 0);
    begin(stack, memory, STACK_BYTES - (size_t)(number % COLORS) * COLOR_BYTES, entry);
}
