// SPDX-License-Identifier: Apache-2.0
/* The state of a process or a thread according to the operating system: /proc/PID/stat. */
#pragma once

#include "base/status.h"

enum process_state {
    PROCESS_UNKNOWN,
    PROCESS_RUNS,        // R: on a CPU, or ready
    PROCESS_SLEEPS,      // S: in a system call
    PROCESS_WAITS_DISK,  // D
    PROCESS_IS_STOPPED,  // T, t: by a signal or a debugger
    PROCESS_IS_GONE,     // it has exited, or is a zombie (Z)
    PROCESS_NODE_SILENT, // its node does not answer
    PROCESS_STATES
};
/* "its process is stopped (T)". */
const char *process_state_text(enum process_state state);
/* A short name, "stopped", and the state of that name; PROCESS_UNKNOWN for any other. */
const char *process_state_name(enum process_state state);
enum process_state process_state_named(const char *name);

/* The state of a thread (0: the main thread) of a process of this machine. */
enum process_state process_read_state(int process, int thread);
/* Processor time of a thread so far; -1: unknown. */
int64_t process_ran_ns(int process, int thread);
/* Parses the text of /proc/PID/stat; *started: ticks since boot, which with its id identifies a process. */
enum process_state process_parse(const char *stat, uint64_t *started);
/* The start time of a process; 0 if it is gone. */
uint64_t process_started(int process);
/* Whether the process with this id and start time has exited. */
bool process_is_gone(int process, uint64_t started);
/* Whether it is one of this user. */
bool process_is_own(int process);
/* Sends a signal to the process of this user with this id and start time, and to no other one. */
void process_signal(int process, uint64_t started, int number);
