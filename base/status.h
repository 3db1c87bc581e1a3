// SPDX-License-Identifier: Apache-2.0
/* How Cuboid fails. There are two kinds of failure and one line between them: launch.
 *
 * Before the first collective a failure is a status: the first function that knows what went wrong
 * says it once with fail(), callers pass the status up with TRY, and whoever decides prints it.
 * After it, a rank that quietly returned would leave its peers waiting for ever; so a broken promise
 * there ends the whole job through die(), which says who stood where.
 *
 * The text of the last failure belongs to the thread, as errno does: ranks can be threads. */
#pragma once

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MUST_USE                   __attribute__((warn_unused_result))
#define PRINTF_LIKE(string, first) __attribute__((format(printf, string, first)))

enum status {
    OK,
    BAD_ARGUMENT,     // a caller's mistake: a programming error
    BAD_USAGE,        // the command line
    BAD_RECIPE,       // a recipe, or a layout that it asks for
    BAD_SCHEDULE,     // a pipeline schedule that is not sound, or cannot take p, m, v
    BAD_DATA,         // a dataset, a tokenizer file
    BAD_CHECKPOINT,   // a checkpoint that is missing, torn, or of another model
    NO_MEMORY,        // of the host
    NO_DEVICE_MEMORY, // of a GPU
    IO_ERROR,         // the file system
    NOT_SUPPORTED,    // true on this build or device
    NOT_FINITE,       // NaN or infinity in the loss or in a gradient
    PEER_LOST,        // another rank died, or its message did not come
    STOPPED,          // asked to stop; a complete checkpoint was written
    INTERRUPTED,      // asked to stop, and there is no complete checkpoint to continue from
    OUT_OF_BOUND,     // a comparison that should hold did not
    STATUS_COUNT
};

/* "out of memory" for NO_MEMORY, and so on. */
const char *status_name(enum status status);

/* What a process whose work came to this ends with: 0 done, 2 bad usage, recipe or input, 75 stopped on
 * request with a complete checkpoint, 1 whatever else. */
int status_exit(enum status status);

/* Keeps the sentence for fail_text() of this thread, and returns `status`. One line, no full stop. Control
 * characters and bytes that are not UTF-8 become \xNN: whatever a name or a file holds, a terminal may show
 * it. */
enum status fail(enum status status, const char *format, ...) PRINTF_LIKE(2, 3);

/* What the last fail() of this thread said; "" before the first. Valid until the next fail(). */
const char *fail_text(void);

#define TRY(call)                     \
    do {                              \
        enum status status_ = (call); \
        if (status_ != OK)            \
            return status_;           \
    } while (0)

/* Where this thread stands, for traces and for die(). rank -1: no rank yet. */
struct who {
    int rank, pp, dp, tp;
    int step;        // counted from 1; 0 before training
    char action[48]; // "3F7", "optimizer"; "" when none
    char waits[56];  // the message that it waits for, "exchange pp 0>1"; "" when none
};
enum { WHO_CHARS = 160 };

/* This thread's own place; each thread writes and reads only its own. */
struct who *who_am_i(void);
/* "r5 (pp 1 dp 0 tp 1) step 12 3F7" */
const char *who_text(const struct who *who, char out[WHO_CHARS]);

/* What this thread does from now on. Saying so is progress, also when it is the same as before. */
void who_does(const char *action);
/* The message that it sleeps for; "" when that has come. */
void who_waits(const char *message);

/* A copy of a thread's place, for a thread that watches over others (trainer/engine/watchdog.h). */
struct watched {
    pthread_mutex_t lock; // of what follows
    struct who who;
    uint64_t progress; // how often this thread has reported progress
};
/* From now on the copy follows this thread; NULL: it does no more. */
void who_is_watched(struct watched *copy);

/* Prints "r5 (pp 1 dp 0 tp 1) step 12 3F7: WHAT: why" on standard error and ends the process with
 * status 1, which ends the job: the other ranks are threads here, or a launcher notices. */
_Noreturn void die(const char *file, int line, const char *what, const char *format, ...) PRINTF_LIKE(4, 5);

/* The same with status_exit(status), for a failure that the others cannot hear of: whoever runs the program
 * may have caused it, so it says no place in the source. */
_Noreturn void die_of(enum status status, const char *format, ...) PRINTF_LIKE(2, 3);
/* Ends the process with the exit status of `status`, without a message: another process reports the reason.
 */
_Noreturn void exit_silently(enum status status);

/* For promises, in every build. */
#define CHECK(promise) ((promise) ? (void)0 : die(__FILE__, __LINE__, #promise, "is false"))

/* For a status that past launch nobody could use. */
#define MUST(call)                                             \
    do {                                                       \
        if ((call) != OK)                                      \
            die(__FILE__, __LINE__, #call, "%s", fail_text()); \
    } while (0)
