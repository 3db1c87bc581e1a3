// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_info.h"

#include "base/machine.h"
#include "kernels/device.h"

#include <string.h>
#include <unistd.h>

#ifdef HAVE_CUDA
#include "kernels/cuda/runtime/cuda_info.h"
#else
static enum status cuda_device_count(int *out)
{
    *out = 0;
    return fail(NOT_SUPPORTED, "this build has no device \"cuda\"");
}

static enum status cuda_describe(int index, struct text *out)
{
    (void)index;
    (void)out;
    return fail(NOT_SUPPORTED, "this build has no device \"cuda\"");
}

static enum status cuda_query_info(int index, struct device_info *out)
{
    (void)index;
    (void)out;
    return fail(NOT_SUPPORTED, "this build has no device \"cuda\"");
}

static void cuda_describe_libraries(struct text *out)
{
    (void)out;
}
#endif

/* The processor's name, from /proc/cpuinfo; nothing if it is unknown. */
static void add_processor(struct text *out)
{
    struct text info = {0};
    const char *name = NULL;
    if (file_read("/proc/cpuinfo", &info) == OK)
        name = strstr(text_chars(&info), "model name");
    if (name != NULL)
        name = strstr(name, ": ");
    if (name != NULL)
        text_add(out, "%.*s", (int)strcspn(name + 2, "\n"), name + 2);
    text_free(&info);
}

enum status device_count(const char *name, int *out)
{
    if (device_traits(name)->is_gpu)
        return cuda_device_count(out);
    *out = 1;
    return OK;
}

enum status device_describe(const char *name, int index, struct text *out)
{
    if (device_traits(name)->is_gpu)
        return cuda_describe(index, out);
    char memory[NUMBER_CHARS];
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t before = out->length;
    add_processor(out);
    text_add(out, "%s%ld core%s, %s", out->length > before ? ", " : "", cores, cores == 1 ? "" : "s",
             bytes_text((int64_t)bytes, memory));
    return OK;
}

enum status device_query_info(const char *name, int index, struct device_info *out)
{
    if (device_traits(name)->is_gpu)
        return cuda_query_info(index, out);
    struct machine machine;
    struct text processor = {0};
    machine_query(&machine);
    add_processor(&processor);
    *out = (struct device_info){.cores = machine.cpus, .memory_bytes = machine.memory_bytes};
    text_printable(processor.length > 0 ? processor.chars : "CPU", out->name, sizeof out->name);
    text_free(&processor);
    return OK;
}

void device_describe_libraries(const char *name, struct text *out)
{
    if (device_traits(name)->is_gpu)
        cuda_describe_libraries(out);
}
