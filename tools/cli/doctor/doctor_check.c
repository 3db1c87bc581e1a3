// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/doctor/doctor_check.h"

#include "base/clock.h"
#include "base/machine.h"
#include "base/memory.h"
#include "kernels/device_info.h"
#include "kernels/ops.h"
#include "parallel/group.h"
#include "planner/plan/step_plan.h"
#include "planner/schedule/choose_schedule.h"
#include "tools/cli/doctor/doctor_time.h"
#include "tools/cli/submit/submit.h"
#include "trainer/files/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char shared_memory[] = "/dev/shm";
static const int64_t SHARED_BYTES = INT64_C(16) << 20; // pages of monitors, and what NCCL and MPI need
enum { CPUS_OF_RANK = 2 };                             // on a GPU
static const int64_t ANY_BYTES = INT64_C(256) << 20;   // without a recipe

/* What the node has, and what the recipe needs of it. */
struct node {
    const struct doctor_check *check;
    const char *device;
    int devices;      // to be checked
    int threads;      // of a CPU
    int64_t needed;   // bytes per GPU, or of the host
    struct text note; // about a check that has passed
};

/* ---- a matmul ---- */

enum { M = 256, N = 256, K = 512 };
/* Of C = A B^T as int32. The sums are below 2^24 and the elements have 6 bits: exact in every format from
 * bf16 on, in any order. */
static const uint64_t MATMUL_CHECKSUM = UINT64_C(0x4f2a8c7ffbc78dee);

static void fill_integers(float *out, int count, uint32_t seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        out[i] = (float)((int)(seed >> 26) - 32);
    }
}

struct matmul_check {
    struct buffer a, b, c;
    float *host; // [M K + N K + M N]
};

static enum status alloc_matmul(struct device *device, struct stream *stream, struct matmul_check *m)
{
    m->host = memory_zeroed(M * K + N * K + M * N, sizeof(float), "a matrix multiplication");
    TRY(buffer_alloc(device, PART_DATA, sizeof(float) * M * K, &m->a));
    TRY(buffer_alloc(device, PART_DATA, sizeof(float) * N * K, &m->b));
    TRY(buffer_alloc(device, PART_DATA, sizeof(float) * M * N, &m->c));
    fill_integers(m->host, M * K, 1);
    fill_integers(m->host + M * K, N * K, 2);
    TRY(copy_to_device(stream, m->a.data, m->host, m->a.bytes));
    return copy_to_device(stream, m->b.data, m->host + M * K, m->b.bytes);
}

static enum status multiply(struct stream *stream, struct matmul_check *m)
{
    float *c = m->host + (M + N) * K;
    int32_t *integers = (int32_t *)(void *)c;
    TRY(gemm(stream, (struct gemm){.a = tensor_2d(m->a.data, F32, M, K),
                                   .b = tensor_2d(m->b.data, F32, N, K),
                                   .c = tensor_2d(m->c.data, F32, M, N),
                                   .transpose_b = true}));
    TRY(copy_to_host(stream, c, m->c.data, sizeof(float) * M * N));
    TRY(stream_sync(stream));
    for (int i = 0; i < M * N; i++) {
        const int32_t value = c[i] > -16777216.0F && c[i] < 16777216.0F ? (int32_t)c[i] : INT32_MIN;
        memcpy(&integers[i], &value, sizeof value);
    }
    const uint64_t found = checksum_of(integers, sizeof(int32_t) * M * N);
    return found == MATMUL_CHECKSUM
               ? OK
               : fail(NOT_SUPPORTED, "wrong bits: checksum %016llx, and %016llx is right",
                      (unsigned long long)found, (unsigned long long)MATMUL_CHECKSUM);
}

enum status doctor_check_matmul(const char *device, int index, int threads, double seconds)
{
    const struct device_options options = {.name = device, .threads = threads, .index = index};
    struct device *opened = NULL;
    struct stream *stream = NULL;
    struct matmul_check matmul = {.host = NULL};
    const double until = clock_s() + seconds;
    enum status status = device_open(&options, &opened);
    if (status == OK)
        status = stream_create(opened, "check", &stream);
    if (status == OK)
        status = alloc_matmul(opened, stream, &matmul);
    if (status == OK)
        do
            status = multiply(stream, &matmul);
        while (status == OK && clock_s() < until);
    buffer_free(&matmul.a);
    buffer_free(&matmul.b);
    buffer_free(&matmul.c);
    free(matmul.host);
    stream_destroy(stream);
    device_close(opened);
    return status;
}

static enum status check_matmul(struct node *node)
{
    for (int i = 0; i < node->devices; i++)
        if (doctor_check_matmul(node->device, i, node->threads, node->check->seconds) != OK)
            return fail(NOT_SUPPORTED, "device %d: %s", i, fail_text());
    text_add(&node->note, "%d x %d x %d", M, N, K);
    return OK;
}

/* ---- device and memory ---- */

static enum status check_device(struct node *node)
{
    int count;
    TRY(device_count(node->device, &count));
    if (count < node->devices)
        return fail(NOT_SUPPORTED, "%d GPU%s found, and the ranks of a node need %d", count,
                    count == 1 ? "" : "s", node->devices);
    if (node->check->recipe == NULL)
        node->devices = count;
    for (int i = 0; i < node->devices; i++) {
        struct device_info info;
        TRY(device_query_info(node->device, i, &info));
        if (i == 0)
            text_add(&node->note, "%d x %s", node->devices, info.name);
    }
    return OK;
}

/* MemAvailable of /proc/meminfo, at most the limit of the cgroup; -1: unknown. */
static int64_t available_bytes(void)
{
    static const char key[] = "\nMemAvailable:";
    struct machine machine;
    struct text info = {0};
    int64_t bytes = -1;
    if (file_read("/proc/meminfo", &info) == OK) {
        const char *at = strstr(text_chars(&info), key);
        bytes = at != NULL ? 1024 * strtoll(at + strlen(key), NULL, 10) : -1;
    }
    text_free(&info);
    machine_query(&machine);
    return bytes < machine.memory_bytes ? bytes : machine.memory_bytes;
}

static enum status check_free(struct node *node, const char *what, int64_t bytes)
{
    char left[NUMBER_CHARS], needed[NUMBER_CHARS];
    bytes_text(bytes, left);
    if (bytes >= 0 && bytes < node->needed)
        return fail(NO_MEMORY, "%s%s free, and %s needed", what, left, bytes_text(node->needed, needed));
    if (node->note.length == 0 && bytes >= 0)
        text_add(&node->note, "%s%s free", what, left);
    return OK;
}

static enum status check_memory(struct node *node)
{
    if (!device_traits(node->device)->is_gpu)
        return check_free(node, "", available_bytes());
    for (int i = 0; i < node->devices; i++) {
        struct device_info info;
        char what[24];
        TRY(device_query_info(node->device, i, &info));
        snprintf(what, sizeof what, "GPU %d: ", i);
        TRY(check_free(node, what, info.memory_bytes - info.reserved_bytes));
    }
    return OK;
}

/* Writes to the folder in which the processes of a node share memory. */
static enum status check_shared_memory(struct node *node)
{
    char path[64], left[NUMBER_CHARS];
    struct statvfs about;
    snprintf(path, sizeof path, "%s/cuboid-check-%d", shared_memory, (int)getpid());
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return fail(IO_ERROR, "%s cannot be written: %s", shared_memory, strerror(errno));
    unlink(path);
    const int full = posix_fallocate(file, 0, SHARED_BYTES);
    close(file);
    if (full != 0)
        return fail(IO_ERROR, "%s has no space for %lld MiB: %s", shared_memory,
                    (long long)(SHARED_BYTES >> 20), strerror(full));
    if (statvfs(shared_memory, &about) == 0)
        text_add(&node->note, "%s: %s free", shared_memory,
                 bytes_text((int64_t)(about.f_bavail * about.f_frsize), left));
    return OK;
}

/* ---- a message ---- */

enum { RANKS = 2, ELEMENTS = 1 << 16 };

static float element(int rank, int index)
{
    return (float)(1000 * rank + index % 997);
}

/* Each rank has sent its first half to the other one, and then both have added all elements. */
static enum status compare_received(const float *data, int rank)
{
    const int half = ELEMENTS / 2;
    for (int i = 0; i < ELEMENTS; i++)
        if (data[i] != element(0, i % half) + element(1, i % half))
            return fail(PEER_LOST, "wrong bits at element %d of rank %d", i, rank);
    return OK;
}

static enum status send_and_receive(struct device *device, struct stream *stream, struct world *world)
{
    const int ranks[RANKS] = {0, 1}, rank = world->rank;
    struct message_task task = {.all = NULL};
    struct buffer buffer = {0};
    float *host = memory_zeroed(ELEMENTS, sizeof *host, "a message");
    for (int i = 0; i < ELEMENTS / 2; i++)
        host[i] = element(rank, i);
    TRY(group_create(world, "check", 1, ranks, RANKS, &task.all));
    TRY(buffer_alloc(device, PART_DATA, ELEMENTS * sizeof *host, &buffer));
    task.data = tensor_1d(buffer.data, F32, ELEMENTS);
    TRY(copy_to_device(stream, buffer.data, host, ELEMENTS * sizeof *host));
    TRY(doctor_enqueue_exchange(stream, &task));
    TRY(doctor_enqueue_all_reduce(stream, &task));
    TRY(copy_to_host(stream, host, buffer.data, ELEMENTS * sizeof *host));
    TRY(stream_sync(stream));
    enum status status = compare_received(host, rank);
    buffer_free(&buffer);
    group_destroy(task.all);
    free(host);
    return status;
}

static enum status message_rank(struct world *world, void *argument)
{
    const struct node *node = argument;
    struct device *device = NULL;
    struct stream *stream = NULL;
    TRY(device_open(
        &(struct device_options){.name = node->device, .threads = 1, .index = world->device_index}, &device));
    TRY(stream_create(device, "check", &stream));
    TRY(send_and_receive(device, stream, world));
    stream_destroy(stream);
    device_close(device);
    return OK;
}

static enum status check_message(struct node *node)
{
    const bool is_gpu = device_traits(node->device)->is_gpu;
    const struct world_options options = {.transport = is_gpu ? "nccl" : "local", .size = RANKS};
    if (is_gpu && node->devices < RANKS) {
        text_add(&node->note, "one GPU: none");
        return OK;
    }
    TRY(world_run_as(&options, message_rank, node));
    text_add(&node->note, "2 ranks, %s", options.transport);
    return OK;
}

/* ---- all ---- */

/* Memory of the ranks of a node, or of a GPU. */
static enum status find_needs(struct node *node)
{
    const struct recipe *recipe = node->check->recipe;
    struct run run = {0};
    int nodes, ranks;
    int64_t bytes = 0;
    node->needed = ANY_BYTES;
    if (recipe == NULL)
        return OK;
    const bool is_gpu = device_traits(recipe->cluster.device)->is_gpu;
    if (submit_nodes(recipe, &nodes, &ranks) != OK)
        ranks = recipe_world_size(recipe);
    const int shared = recipe->cluster.ranks_per_gpu;
    node->devices = is_gpu ? (ranks + shared - 1) / shared : 1;
    enum status status = planned_run_create(recipe, &run);
    if (status == OK)
        status = step_plan_formula_bytes(&run, &bytes);
    run_destroy(&run);
    node->needed = bytes * (is_gpu ? shared : ranks);
    return status;
}

static const struct {
    const char *what;
    enum status (*run)(struct node *node);
    bool needs_device;
} checks[] = {{"device", check_device, false},
              {"memory", check_memory, true},
              {"tmpfs", check_shared_memory, false},
              {"matmul", check_matmul, true},
              {"message", check_message, true}};
enum { CHECKS = sizeof checks / sizeof *checks };

/* What the checks have found that is not printed yet. */
struct found {
    struct text passed;   // notes of a brief output
    struct text failures; // of a report: "\"memory FAILED: ...\", ..."
};

/* Runs a check and prints its line, unless the output is brief and it has passed, or a report. */
static enum status run_check(struct node *node, int index, struct found *found)
{
    const struct doctor_check *check = node->check;
    const enum status status = checks[index].run(node);
    const char *note = text_chars(&node->note);
    AUTO(text) failure = {0};
    if (status != OK)
        text_add(&failure, "%s FAILED: %s", checks[index].what, fail_text());
    if (status != OK && check->report) {
        text_add(&found->failures, "%s", found->failures.length > 0 ? ", " : "");
        text_add_json(&found->failures, failure.chars);
    } else if (status != OK)
        print_line(stdout, "check %s: %s", check->node, failure.chars);
    else if (check->brief || check->report)
        text_add(&found->passed, "%s%s", found->passed.length > 0 ? "; " : "", note);
    else
        print_line(stdout, "check %s: %s ok (%s)", check->node, checks[index].what, note);
    text_free(&node->note);
    fflush(stdout);
    return status;
}

static void print_report(const char *node, const char *failures)
{
    AUTO(text) line = {0};
    text_add(&line, "{\"node\": ");
    text_add_json(&line, node);
    text_add(&line, ", \"failed\": [%s]}\n", failures);
    fputs(line.chars, stdout);
}

/* A rank on a GPU has its host loop, and threads of NCCL, data and checkpoints. A job that asks for CPUs gets
 * them; this process has those of the job only if it was started as the ranks are. */
static void warn_cpus(const struct node *node)
{
    const struct recipe *recipe = node->check->recipe;
    const int ranks = node->devices * (recipe != NULL ? recipe->cluster.ranks_per_gpu : 1);
    struct machine machine;
    machine_query(&machine);
    if (!device_traits(node->device)->is_gpu || machine.cpus >= CPUS_OF_RANK * ranks ||
        (recipe != NULL && recipe->cluster.threads_per_rank >= CPUS_OF_RANK))
        return;
    print_line(stdout,
               "check %s: warning: %d CPU%s for %d rank%s, and each needs %d or more; set "
               "cluster.threads_per_rank to the CPUs of a node / %d",
               node->check->node, machine.cpus, machine.cpus == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s",
               CPUS_OF_RANK, ranks);
}

/* Returns the number of checks that failed. Those that need the device are not run without it. */
static int run_checks(struct node *node)
{
    int failed = 0;
    bool has_device = true;
    struct found found = {0};
    AUTO(text) left_out = {0};
    for (int i = 0; i < CHECKS; i++) {
        if (checks[i].needs_device && !has_device) {
            text_add(&left_out, "%s%s", left_out.length > 0 ? ", " : "", checks[i].what);
            continue;
        }
        const enum status status = run_check(node, i, &found);
        failed += status != OK;
        has_device = has_device && (status == OK || checks[i].run != check_device);
    }
    const char *name = node->check->node;
    if (node->check->report)
        print_report(name, text_chars(&found.failures));
    else if (left_out.length > 0)
        print_line(stdout, "check %s: %s not checked: they need the device", name, left_out.chars);
    if (!node->check->report && has_device)
        warn_cpus(node);
    if (!node->check->report)
        print_line(stdout, "check %s: done, %d of %d failed%s%s%s", name, failed, CHECKS,
                   found.passed.length > 0 ? " (" : "", text_chars(&found.passed),
                   found.passed.length > 0 ? ")" : "");
    text_free(&found.passed);
    text_free(&found.failures);
    return failed;
}

int doctor_check(const struct doctor_check *check)
{
    struct machine machine;
    int gpus = 0;
    const bool has_gpus = device_count("cuda", &gpus) == OK && gpus > 0;
    machine_query(&machine);
    struct node node = {.check = check, .devices = 1, .threads = machine_threads(&machine, 1, 1)};
    node.device = check->recipe != NULL ? check->recipe->cluster.device : has_gpus ? "cuda" : "cpu";
    enum status ready = find_needs(&node);
    if (ready != OK)
        print_line(stderr, "cuboid: the memory that the recipe needs is unknown: %s", fail_text());
    return run_checks(&node);
}
