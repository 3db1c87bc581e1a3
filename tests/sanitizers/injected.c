// SPDX-License-Identifier: Apache-2.0
/* Shows that the sanitizers are active: this program has one fault of each kind, and a build with a sanitizer
 * must end it with a failure:
 *
 *     injected race | overflow | heap | leak
 *
 * Without a sanitizer all of them usually exit with 0. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *add_one(void *counter)
{
    *(volatile int *)counter += 1;
    return NULL;
}

/* Two threads increment one integer without synchronization. */
static void race(void)
{
    int counter = 0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, add_one, &counter) != 0)
        return;
    add_one(&counter);
    pthread_join(thread, NULL);
}

static void overflow(void)
{
    volatile int large = INT_MAX;
    large = large + 1;
}

/* One byte past the end of an allocation. */
static void heap(void)
{
    volatile size_t length = 24;
    char *bytes = calloc(1, length);
    if (bytes != NULL)
        *(volatile char *)(bytes + length) = 1;
    free(bytes);
}

static void leak(void)
{
    char *volatile bytes = malloc(24); // NOLINT(clang-analyzer-deadcode.DeadStores)
    bytes = NULL;
    (void)bytes; // NOLINT(clang-analyzer-unix.Malloc): it is a leak
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*inject)(void);
    } faults[] = {{"race", race}, {"overflow", overflow}, {"heap", heap}, {"leak", leak}};
    for (size_t i = 0; count == 2 && i < sizeof faults / sizeof *faults; i++) {
        if (strcmp(arguments[1], faults[i].name) != 0)
            continue;
        faults[i].inject();
        printf("%s was not detected\n", arguments[1]);
        return 0;
    }
    return 0; // no fault by that name: should_fail then fails
}
