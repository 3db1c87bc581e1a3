// SPDX-License-Identifier: Apache-2.0
/* What `cuboid data prepare` reports at its end about its inputs: lines that it skipped, files with bytes
 * that are not UTF-8. */
#pragma once

#include "base/text.h"
#include "trainer/text/text_check.h"

enum { NOTES_SHOWN = 3 }; // messages; others are counted

/* {0} has none. */
struct prepare_notes {
    int64_t skipped, doubtful; // lines; files
    struct text skipped_shown[NOTES_SHOWN], doubtful_shown;
    char **files; // names that lines refer to
    int64_t file_count;
};

void prepare_notes_free(struct prepare_notes *notes); // accepts {0}
/* Adds a skipped line: the message about it. */
void prepare_notes_skip(struct prepare_notes *notes, const char *why);
/* Adds plain text with bytes that are not UTF-8, if they are at least one of a thousand. */
void prepare_notes_not_utf8(struct prepare_notes *notes, const char *file, const struct text_check *check);
/* A copy of the name, of the same address while the name is the same; valid until prepare_notes_free(). */
const char *prepare_notes_file(struct prepare_notes *notes, const char *file);
/* Prints them on standard error. */
void prepare_notes_print(const struct prepare_notes *notes);
