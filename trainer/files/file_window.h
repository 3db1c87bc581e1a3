// SPDX-License-Identifier: Apache-2.0
/* A part of a file on a tmpfs, mapped for reading so that each of its huge pages takes one fault. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct file_window {
    char *reserved;    // addresses for it; NULL: none so far
    char *data;        // its beginning
    int64_t at, bytes; // of the file; bytes 0: nothing is mapped
};

/* Moves the window to the huge page that contains byte `from`; it ends 8 MiB later, or with the file, which
 * has `file_bytes`. It is small because it counts as resident memory. Returns false if it cannot be mapped;
 * then nothing is. */
bool file_window_move(struct file_window *window, int fd, int64_t file_bytes, int64_t from);
void file_window_close(struct file_window *window); // accepts {0}

/* Opens the window at the beginning of the file if it is on a tmpfs and begins with a huge page. */
bool file_window_open_huge(struct file_window *window, int fd, int64_t file_bytes);
