// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void expect(struct env *env, bool holds, const char *format, ...)
{
    if (holds)
        return;
    if (env->failures++ > 0)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(env->first, sizeof env->first, format, args);
    va_end(args);
}

enum status env_open(struct env *env, struct world *world, const char *device)
{
    *env = (struct env){.world = world};
    TRY(device_open(&(struct device_options){.name = device, .threads = 1}, &env->device));
    TRY(stream_create(env->device, "test", &env->stream));
    int ranks[64];
    for (int r = 0; r < world->size; r++)
        ranks[r] = r;
    return group_create(world, "all", 1, ranks, world->size, &env->all);
}

enum status env_close(struct env *env)
{
    stream_destroy(env->stream);
    group_destroy(env->all);
    device_close(env->device);
    return env->failures == 0 ? OK : fail(OUT_OF_BOUND, "%s (and %d more)", env->first, env->failures - 1);
}

struct buffer put(struct env *env, const void *host, size_t bytes)
{
    struct buffer buffer = {0};
    MUST(buffer_alloc(env->device, PART_DATA, bytes, &buffer));
    MUST(copy_to_device(env->stream, buffer.data, host, bytes));
    MUST(stream_sync(env->stream));
    return buffer;
}

void get(struct env *env, const struct buffer *buffer, void *host, size_t bytes)
{
    MUST(copy_to_host(env->stream, host, buffer->data, bytes));
    MUST(stream_sync(env->stream));
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

float rough(int rank, int64_t i, int salt)
{
    uint32_t x = scramble((uint32_t)rank, (uint32_t)i, (uint32_t)salt);
    double unit = (double)(x >> 8) / 16777216.0;
    double value = pow(10.0, 8.0 * unit - 4.0);
    return (float)((x & 1) != 0 ? -value : value);
}
