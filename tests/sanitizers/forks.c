// SPDX-License-Identifier: Apache-2.0
/* Forks while another thread allocates, and allocates in each child: without fork_lock.c a child among the
 * first ones waits forever, and its alarm ends it. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 30, HELD = 512, MAX_BYTES = 3000, CHILD_LIMIT_S = 20 };

static void *churn(void *context)
{
    void *held[HELD] = {NULL};
    for (uint32_t state = 1;; state = state * 1664525U + 1013904223U) {
        void **one = &held[state >> 23];
        free(*one);
        *one = malloc(16 + (state >> 8) % MAX_BYTES);
    }
    return context;
}

/* Without free(): about once per megabyte it takes a lock inside the allocator, which a fork handler cannot
 * take. */
static void allocate(void)
{
    char *volatile last = NULL;
    for (int i = 0; i < 2000; i++)
        last = malloc(16 + (size_t)i % MAX_BYTES); // NOLINT(clang-analyzer-unix.Malloc)
    (void)last;
}

int main(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, churn, NULL) != 0)
        return 1;
    for (int i = 0; i < FORKS; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_LIMIT_S);
            allocate();
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "fork %d: status %d\n", i, status);
            _exit(1);
        }
    }
    _exit(0); // the other thread is still running
}
