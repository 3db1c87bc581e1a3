// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/parallel/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void expect(struct rank_test *test, bool holds, const char *format, ...)
{
    if (holds)
        return;
    if (test->failures++ > 0)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(test->first, sizeof test->first, format, args);
    va_end(args);
}

enum status rank_test_open(struct rank_test *test, struct world *world, const struct run *run)
{
    *test = (struct rank_test){.world = world};
    world->synchronous = run->synchronous;
    if (run->synchronous)
        world->chunk_bytes = 1000;
    TRY(device_open(&(struct device_options){.name = run->device, .threads = 1, .index = world->device_index},
                    &test->device));
    TRY(stream_create(test->device, "test", &test->stream));
    int ranks[64];
    for (int r = 0; r < world->size; r++)
        ranks[r] = r;
    return group_create(world, "all", 1, ranks, world->size, &test->all);
}

enum status rank_test_close(struct rank_test *test)
{
    stream_destroy(test->stream);
    group_destroy(test->all);
    device_close(test->device);
    return test->failures == 0 ? OK : fail(OUT_OF_BOUND, "%s (and %d more)", test->first, test->failures - 1);
}

struct buffer device_copy(struct rank_test *test, const void *host, size_t bytes)
{
    struct buffer buffer = {0};
    MUST(buffer_alloc(test->device, PART_DATA, bytes, &buffer));
    MUST(copy_to_device(test->stream, buffer.data, host, bytes));
    MUST(stream_sync(test->stream));
    return buffer;
}

void host_copy(struct rank_test *test, const struct buffer *buffer, void *host, size_t bytes)
{
    MUST(copy_to_host(test->stream, host, buffer->data, bytes));
    MUST(stream_sync(test->stream));
}

uint32_t scramble(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x = a * 0x9e3779b1U ^ b * 0x85ebca77U ^ c * 0xc2b2ae3dU;
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ x >> 16;
}

float order_sensitive(int rank, int64_t i, int salt)
{
    uint32_t x = scramble((uint32_t)rank, (uint32_t)i, (uint32_t)salt);
    uint32_t sign = x << 31, exponent = 127 - 13 + (x >> 1) % 27, mantissa = x >> 9;
    uint32_t bits = sign | exponent << 23 | mantissa;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int run_all(int argc, char **argv, enum status (*body)(struct world *world, void *argument))
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s TRANSPORT DEVICE [synchronous]\n", argv[0]);
        return 2;
    }
    struct run run = {.device = argv[2], .synchronous = argc > 3};
    const int sizes[] = {2, 3, 4, 8};
    int failures = 0;
    struct launcher launcher;
    MUST(launcher_find(&launcher));
    bool threads = launcher.size == 0;
    for (int s = 0; s < (threads ? 4 : 1); s++) {
        int size = threads ? sizes[s] : launcher.size;
        enum status status = world_run(argv[1], size, body, &run);
        failures += status != OK;
        if (launcher.rank <= 0)
            printf("%s %d %s%s: %s\n", argv[1], size, run.device, run.synchronous ? " synchronous" : "",
                   status == OK ? "ok" : fail_text());
    }
    return failures != 0;
}
