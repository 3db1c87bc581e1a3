// SPDX-License-Identifier: Apache-2.0
/* Text in memory: a string that grows, numbers that read back to the same bits, and the nearest name
 * to a misspelt one. */
#pragma once

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* A growing string, always terminated once anything was added. {0} is empty; text_free() takes it.
 * Running out of memory here ends the program: no message could be built either. */
struct text {
    char *chars; // NULL while empty: read it through text_chars()
    size_t length;
    size_t capacity;
};

void text_add(struct text *text, const char *format, ...) PRINTF_LIKE(2, 3);
void text_add_bytes(struct text *text, const char *bytes, size_t length);
/* As a JSON string, with its quotes; bytes that are not UTF-8 become U+FFFD. */
void text_add_json(struct text *text, const char *string);
/* As it may be shown anywhere: control characters, and bytes that are not UTF-8, become \xNN. */
void text_add_printable(struct text *text, const char *bytes, size_t length);
/* The same into out[capacity], without memory of its own; what has no room is left out. */
void text_printable(const char *string, char *out, size_t capacity);
/* Prints one line, and its newline, in one write where `to` is not buffered. Escapes as text_add_printable()
 * does, so that a path, a variable of the environment or any other text of the user cannot control a
 * terminal: every line that holds one is printed through here, or is the text of a fail(). */
void print_line(FILE *to, const char *format, ...) PRINTF_LIKE(2, 3);
const char *text_chars(const struct text *text);
void text_free(struct text *text);

/* The length of the UTF-8 sequence at `string` (1 to 4; 1 at its end), or 0 when there is none. */
int utf8_length(const char *string);

/* The shortest decimal that reads back to the same value, a whole number up to 1e18 without an exponent;
 * "nan", "inf", "-inf" for those. */
#define NUMBER_CHARS 32
const char *number_text(double value, char out[NUMBER_CHARS]);
const char *number_text_f32(float value, char out[NUMBER_CHARS]);

/* The whole string as a number: no leading or trailing characters, no overflow. */
bool number_parse(const char *string, double *out);
bool integer_parse(const char *string, int64_t *out);

/* "1.5 GiB", "820 B"; "12.3 M" for counts. */
const char *bytes_text(int64_t bytes, char out[NUMBER_CHARS]);
const char *count_text(double count, char out[NUMBER_CHARS]);
/* "1 h 02 min", "3 min 20 s", "4.2 s". */
const char *seconds_text(double seconds, char out[NUMBER_CHARS]);

/* The name in names[0..count) nearest to `name` by edit distance (case ignored, swaps count one), or
 * NULL when none is near enough to be meant. */
const char *nearest_name(const char *name, const char *const *names, size_t count);

/* A whole file into `out` (a terminated text). Names the file and the reason when it fails. A folder, a
 * device or a pipe, which may have no end or no writer, is refused before it is read. IO_ERROR. */
MUST_USE enum status file_read(const char *path, struct text *out);
/* The same of a file of at most `most` bytes. */
MUST_USE enum status file_read_small(const char *path, size_t most, struct text *out);

/* Why no file can be put at `path`, as the rest of a sentence that names it; NULL when one can. A rename
 * would make a plain file of a device, a pipe or a link: only a file gives way to one. */
const char *file_place_fault(const char *path);

/* Writes `bytes` so that `path` is either its old self or complete: a temporary file next to it
 * (base/file.h), fsync, rename, fsync of the folder. The temporary file is removed on failure, and so are
 * those of processes that were killed at this. */
MUST_USE enum status file_write_atomic(const char *path, const void *bytes, size_t length);

/* mkdir -p; what it makes is durable. */
MUST_USE enum status folder_make(const char *path);
