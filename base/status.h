// SPDX-License-Identifier: Apache-2.0
/* Error handling. There are two kinds of errors, before and after launch.
 *
 * Before the first collective an error is a status: the first function that detects it reports it once with
 * fail(), callers propagate the status with TRY, and the top level prints it. After it, a rank that returned
 * would leave its peers waiting; a broken invariant there ends the whole job with die(), which prints the
 * rank, step and action.
 *
 * The text of the last failure is thread-local, like errno, since ranks can be threads. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MUST_USE                   __attribute__((warn_unused_result))
#define PRINTF_LIKE(string, first) __attribute__((format(printf, string, first)))

enum status {
    OK,
    BAD_ARGUMENT,     // wrong arguments: a programming error
    BAD_USAGE,        // the command line
    BAD_RECIPE,       // a recipe, or its layout
    BAD_SCHEDULE,     // a pipeline schedule that is invalid, or does not support p, m, v
    BAD_DATA,         // a dataset, a tokenizer file
    BAD_CHECKPOINT,   // a checkpoint that is missing, incomplete or damaged
    WRONG_CHECKPOINT, // a checkpoint that does not fit the recipe; the message says what to set
    NO_MEMORY,        // on the host
    NO_DEVICE_MEMORY, // on a GPU
    IO_ERROR,         // the file system
    NOT_SUPPORTED,    // by this build or device
    NOT_FINITE,       // NaN or infinity in the loss or in a gradient
    PEER_LOST,        // another rank exited, or its message did not arrive
    STOPPED,          // stop requested; a complete checkpoint was written
    INTERRUPTED,      // stop requested, and there is no complete checkpoint to resume from
    OUT_OF_BOUND,     // a comparison that should hold did not
    STATUS_COUNT
};

/* Returns "out of memory" for NO_MEMORY, and so on. */
const char *status_name(enum status status);

/* Returns the exit status of a process: 0 success, 2 bad usage, recipe or input, 75 stopped on request with a
 * complete checkpoint, 1 all other errors. */
int status_exit(enum status status);

/* For failures to read input: a file that is missing, or cannot be read, is bad input. Returns BAD_DATA in
 * place of a status with exit status 1, but NO_MEMORY as it is. */
enum status status_of_input(enum status status);

/* Stores the message for fail_text() of this thread, and returns `status`. One line, no full stop. Control
 * characters and bytes that are not UTF-8 become \xNN, so that names from files cannot control a terminal.
 * The arguments may contain fail_text(), to add context: fail(status, "checkpoint.load: %s", fail_text()). */
enum status fail(enum status status, const char *format, ...) PRINTF_LIKE(2, 3);

/* Returns the message of the last fail() of this thread; "" before the first. Valid until the next fail(). */
const char *fail_text(void);

#define TRY(call)                     \
    do {                              \
        enum status status_ = (call); \
        if (status_ != OK)            \
            return status_;           \
    } while (0)

/* An action of a schedule (schedules/action.h); {0}: none. */
struct scheduled_action {
    bool exists;
    int kind; // enum action_kind
    int stage, microbatch;
};

/* The rank, step and action of a thread, for traces and for die(). rank -1: no rank yet. */
struct rank_context {
    int rank, pp, dp, tp;
    int step;                          // counted from 1; 0 before training
    int layer;                         // of the model, whose ops are enqueued; NO_LAYER: none
    char action[48];                   // "3F7", "optimizer"; "" if none
    struct scheduled_action scheduled; // the action, if it is one of a schedule
    char waiting_for[56];              // the message that it is waiting for, "exchange pp 0>1"; "" if none
};
enum { RANK_CONTEXT_CHARS = 160, NO_LAYER = -2 }; // -1 is the embedding

/* Returns the context of this thread; thread-local. */
struct rank_context *rank_context(void);
/* "r5 (pp 1 dp 0 tp 1) step 12 3F7" */
const char *rank_context_text(const struct rank_context *who, char out[RANK_CONTEXT_CHARS]);

/* Sets the current action of this thread. Every call counts as progress, also with an unchanged action. */
void rank_context_set_action(const char *action);
/* Same for an action of a schedule, of which `action` is the text. */
void rank_context_set_scheduled(const char *action, struct scheduled_action scheduled);
/* Sets the message that this thread is waiting for; "" once it has arrived. */
void rank_context_set_wait(const char *message);
/* Same, with its number in the flight recorder (base/progress.h). */
struct progress_range;
void rank_context_set_wait_for(const char *message, struct progress_range recorded);

/* A line that tells why a run ends begins with a mark if a supervisor (cuboid train --restarts) reads it. */
struct failure_mark {
    int rank;         // that failed; -1: unknown
    const char *node; // of it; "": unknown
    bool ends_all;    // all ranks exit at once
};
enum { FAILURE_MARK_CHARS = 112 };
#define FAILURE_MARK        "\x1e"
#define FAILURE_MARK_END    "\x1f"
#define SUPERVISED_VARIABLE "CUBOID_SUPERVISED" // set in the environment of a supervised process
/* FAILURE_MARK "0 5 n2" FAILURE_MARK_END; "" if the process is not supervised. */
const char *failure_mark_text(const struct failure_mark *mark, char out[FAILURE_MARK_CHARS]);

/* Prints "r5 (pp 1 dp 0 tp 1) step 12 3F7: WHAT: why" on standard error and ends the process with status 1,
 * which ends the job: the other ranks are threads of it, or the launcher ends them. */
_Noreturn void die(const char *file, int line, const char *what, const char *format, ...) PRINTF_LIKE(4, 5);

/* Same with status_exit(status), for errors that cannot be reported to the other ranks. The user may have
 * caused the error, so no source location is printed. */
_Noreturn void die_of(enum status status, const char *format, ...) PRINTF_LIKE(2, 3);
/* Same as "cuboid: rank 5: why", for a rank that has no step yet, or is not that of this thread. */
_Noreturn void die_of_rank(enum status status, int rank, const char *format, ...) PRINTF_LIKE(3, 4);
/* Ends the process with the exit status of `status`, silently: another process reports the reason. */
_Noreturn void exit_silently(enum status status);

/* Assertion, active in every build. */
#define CHECK(condition) ((condition) ? (void)0 : die(__FILE__, __LINE__, #condition, "is false"))

/* For calls after launch whose failure cannot be handled. */
#define MUST(call)                                             \
    do {                                                       \
        if ((call) != OK)                                      \
            die(__FILE__, __LINE__, #call, "%s", fail_text()); \
    } while (0)

/* MUST() of a thing_check() where an object is used, in debug builds: meson setup -Dbuildtype=debug, or with
 * a sanitizer. Not evaluated in other builds. Where an object is made, its check is called in every build. */
#ifdef CHECK_USES
#define CHECK_USE(check) MUST(check)
#else
#define CHECK_USE(check) ((void)sizeof(check))
#endif
