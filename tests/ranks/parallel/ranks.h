// SPDX-License-Identifier: Apache-2.0
/* Shared code of the rank tests. A rank test is a plain main that runs one body on every rank of a world, as
 * threads or under mpirun. A rank that detects an error records the first one and continues: if it returned,
 * its peers would wait for it, and only the hang would be reported. */
#pragma once

#include "parallel/group.h"

struct rank_test {
    struct world *world;
    struct device *device;
    struct stream *stream;
    struct group *all;
    const char *transport;
    int failures;
    char first[512]; // the first error
};

/* Records a failed check. */
void expect(struct rank_test *test, bool holds, const char *format, ...) PRINTF_LIKE(3, 4);
#define EXPECT_OK(test, call) expect(test, (call) == OK, "%s: %s", #call, fail_text())

struct run {
    const char *device;
    bool synchronous; // sends complete only when received, and long messages are split into small chunks
};

/* Opens the device for this rank of a world, with a stream and a group of all ranks; rank_test_close reports
 * the first error. */
enum status rank_test_open(struct rank_test *test, struct world *world, const struct run *run);
enum status rank_test_close(struct rank_test *test);

/* main: TRANSPORT DEVICE [synchronous]; without a launcher in worlds of 2, 3, 4 and 8 threads. `body` gets a
 * struct run. */
int run_all(int argc, char **argv, enum status (*body)(struct world *world, void *argument));

/* A device buffer with these bytes in it; and the copy back, synchronized. */
struct buffer device_copy(struct rank_test *test, const void *host, size_t bytes);
void host_copy(struct rank_test *test, const struct buffer *buffer, void *host, size_t bytes);

/* A deterministic pseudorandom number. */
uint32_t scramble(uint32_t a, uint32_t b, uint32_t c);
/* Of magnitude 2^-13 to 2^14 and either sign: sums of these in another order give other bits. */
float order_sensitive(int rank, int64_t i, int salt);
