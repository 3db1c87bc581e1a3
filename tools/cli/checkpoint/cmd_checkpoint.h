// SPDX-License-Identifier: Apache-2.0
/* cuboid checkpoint inspect | diff | reshard | import | export */
#pragma once

#include "trainer/checkpoint/reader.h"

/* The subcommands; argv[0] is their name. Return the exit status. */
int checkpoint_inspect(int argc, char **argv);
int checkpoint_diff(int argc, char **argv);
int checkpoint_reshard(int argc, char **argv);
int checkpoint_import(int argc, char **argv);
int checkpoint_export(int argc, char **argv);

/* Opens the checkpoint at `path`, or the newest one in that directory. The caller frees *folder, after
 * closing the source. */
MUST_USE enum status checkpoint_argument(const char *path, char **folder, struct checkpoint_reader *out);
/* Prints the message of a failure, and returns the exit status. Bad checkpoints are bad input. */
int checkpoint_exit(enum status status);

/* The number of rows of a tensor that are read at once. */
enum { CHECKPOINT_BAND_BYTES = 8 << 20 };
int64_t checkpoint_band_rows(const struct shard *tensor);
