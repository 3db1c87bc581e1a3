// SPDX-License-Identifier: Apache-2.0
/* Text in memory: growing strings, numbers that round-trip exactly, and spelling suggestions. */
#pragma once

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* A growing string, terminated once anything was added. {0} is empty; accepted by text_free(). Ends the
 * program if out of memory, since no error message could be built either. */
struct text {
    char *chars; // NULL while empty: read it with text_chars()
    size_t length;
    size_t capacity;
};

void text_add(struct text *text, const char *format, ...) PRINTF_LIKE(2, 3);
void text_add_bytes(struct text *text, const char *bytes, size_t length);
/* Appends a JSON string, with quotes; bytes that are not UTF-8 become U+FFFD, and control characters are
 * escaped. */
void text_add_json(struct text *text, const char *string);
/* Same for bytes that may include zeros. */
void text_add_json_bytes(struct text *text, const char *bytes, size_t length);
/* Appends printable text: control characters, and bytes that are not UTF-8, become \xNN. */
void text_add_printable(struct text *text, const char *bytes, size_t length);
/* Same into out[capacity], without allocation; truncates. */
void text_printable(const char *string, char *out, size_t capacity);
/* Prints one line and a newline, in one write if `to` is unbuffered. Escapes like text_add_printable(), so
 * that a path, an environment variable or other user text cannot control a terminal: every line with such
 * text is printed with this function, or is the text of a fail(). */
void print_line(FILE *to, const char *format, ...) PRINTF_LIKE(2, 3);
/* Same on standard error: the reason why a run ends. */
void print_marked(const struct failure_mark *mark, const char *format, ...) PRINTF_LIKE(2, 3);
const char *text_chars(const struct text *text);
void text_free(struct text *text);
/* Returns a copy of `chars`, released with free(). Ends the program if out of memory, as above. */
char *text_copy(const char *chars);

/* Returns the length of the UTF-8 sequence at `string` (1 to 4; 1 at its end), or 0 if it is invalid. */
int utf8_length(const char *string);

/* Formats the shortest decimal that reads back to the same value, integers up to 1e18 without an exponent;
 * also "nan", "inf", "-inf". */
#define NUMBER_CHARS 32
const char *number_text(double value, char out[NUMBER_CHARS]);
/* The same with an exponent where that is shorter: 3.12e14. */
const char *number_text_short(double value, char out[NUMBER_CHARS]);

/* Parses the whole string as a number: no leading or trailing characters, no overflow. */
bool number_parse(const char *string, double *out);
bool integer_parse(const char *string, int64_t *out);

/* "1.5 GiB", "820 B"; "12.3 M" for counts. */
const char *bytes_text(int64_t bytes, char out[NUMBER_CHARS]);
const char *count_text(double count, char out[NUMBER_CHARS]);
/* "1 h 02 min", "3 min 20 s", "4.2 s". */
const char *seconds_text(double seconds, char out[NUMBER_CHARS]);

/* Returns the name in names[0..count) that begins with the words of `name`, else the nearest by edit distance
 * (case-insensitive, a swap counts one), or NULL if none is close enough. */
const char *nearest_name(const char *name, const char *const *names, size_t count);

/* Reads a whole file into `out` (terminated). Errors name the file and the reason. Directories, devices and
 * pipes, which may have no end or no writer, are rejected before reading. IO_ERROR. */
MUST_USE enum status file_read(const char *path, struct text *out);
/* Same for a file of at most `limit` bytes. */
MUST_USE enum status file_read_small(const char *path, size_t limit, struct text *out);

/* Returns the reason why no file can be created at `path`, to be appended to the path in a message; NULL
 * if it can. Only regular files may be replaced: a rename would turn a device, a pipe or a link into a
 * file. */
const char *file_path_problem(const char *path);

/* Writes `bytes` so that `path` is either unchanged or complete: a temporary file next to it (base/file.h),
 * fsync, rename, fsync of the directory. Removes the temporary file on failure, and those left by processes
 * killed during a write. */
MUST_USE enum status file_write_atomic(const char *path, const void *bytes, size_t length);

/* Creates a directory and its parents (mkdir -p), durably. */
MUST_USE enum status folder_make(const char *path);
/* The same; only this user may use the folders that it creates. */
MUST_USE enum status folder_make_private(const char *path);
