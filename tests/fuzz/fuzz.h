// SPDX-License-Identifier: Apache-2.0
/* Readers of files as functions of bytes, for libFuzzer (fuzz.c) and for stored inputs (replay.c).
 *
 *     bytes ──> FOLDER/manifest.json ──> manifest_read() ──> OK, or a status with a message
 *
 * A reader may refuse an input. It must not crash, leak, hang, end the process, or have more than
 * FUZZ_TIMES_SIZE times the input plus FUZZ_SPARE_BYTES allocated at any time. */
#pragma once

#include "base/text.h"

enum { FUZZ_TIMES_SIZE = 64, FUZZ_SPARE_BYTES = 16 << 20 };

struct fuzz_input {
    const uint8_t *bytes;
    size_t size;
    const char *folder; // for the files of one input; keeps those of the previous one
};

struct fuzz_reader {
    const char *name;
    void (*read)(const struct fuzz_input *input);
    /* Writes files that do not depend on the input, before the first one. NULL: none. */
    void (*prepare)(const char *folder);
};

/* Reader `index`; NULL past the last. */
const struct fuzz_reader *fuzz_reader(int index);
/* NULL: unknown. */
const struct fuzz_reader *fuzz_reader_find(const char *name);

/* Creates an empty folder in $TMPDIR, or /tmp. Ends the program if that fails. */
char *fuzz_folder_create(void);
void fuzz_folder_remove(char *folder);

/* Reads one input. Prints a line on standard error and aborts if it takes too much memory; counted only in
 * builds with AddressSanitizer. */
void fuzz_read(const struct fuzz_reader *reader, const struct fuzz_input *input);

/* ---- for the readers ---- */

/* Replaces FOLDER/NAME. Appends the path to `path`, unless that is NULL. */
void fuzz_write(const struct fuzz_input *input, const char *name, const void *bytes, size_t size,
                struct text *path);
/* Takes `count` bytes, at most 8, off the front as a little-endian number; missing ones are 0. */
uint64_t fuzz_take(struct fuzz_input *input, int count);
/* Whether a property that must hold after a successful reading does; if not, prints it and aborts. */
void fuzz_require(bool holds, const char *property);

/* The readers, by file. */
extern const struct fuzz_reader fuzz_checkpoint_readers[], fuzz_data_readers[], fuzz_recipe_readers[],
    fuzz_run_readers[], fuzz_pretrained_readers[]; // the last row has no name
