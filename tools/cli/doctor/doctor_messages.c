// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/doctor/doctor_messages.h"

#include "base/clock.h"
#include "parallel/comm.h"
#include "tools/cli/doctor/doctor_time.h"
#include "tools/cli/measure/measure.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 8, TRIES = 3, PATH_CHARS = 1024, KIND_CHARS = 32 };
static const double LIMIT_S = 60.0; // timeout of one mpirun

static const struct {
    const char *name;
    enum profile_kind kind;
    enum status (*enqueue)(struct stream *stream, const void *context);
} transfers[] = {
    {"all_reduce", MEASURED_ALL_REDUCE, doctor_enqueue_all_reduce},
    {"all_gather", MEASURED_ALL_GATHER, doctor_enqueue_all_gather},
    {"reduce_scatter", MEASURED_REDUCE_SCATTER, doctor_enqueue_reduce_scatter},
    {"p2p", MEASURED_P2P, doctor_enqueue_exchange},
};
enum { TRANSFERS = sizeof transfers / sizeof *transfers };

struct message_bench {
    const char *device;
    bool processes;
    struct cluster_profile *profile; // written by rank 0
};

/* ---- a world ---- */

static const int64_t message_sizes[] = {1 << 10, 1 << 14, 1 << 18, 1 << 22};
enum { SIZES = sizeof message_sizes / sizeof *message_sizes };

/* An op before each message of a CPU, as in a training step: ranks then reach a message at different times,
 * and while some compute, others that wait for it have to be scheduled again. In a loop of messages only, two
 * ranks of eight find each other awake. */
struct step_task {
    struct gemm op;
    const struct message_task *message; // NULL: only the op
    enum status (*enqueue)(struct stream *stream, const void *context);
};

/* Seconds of `times` ops, each with a message if there is one, until all ranks have ended. */
static enum status time_steps(struct group *all, struct stream *stream, const struct step_task *task,
                              int times, double *out)
{
    TRY(group_barrier(all, stream));
    TRY(stream_sync(stream));
    const double begin_s = clock_s();
    for (int i = 0; i < times; i++) {
        TRY(doctor_enqueue_gemm(stream, &task->op));
        if (task->message != NULL)
            TRY(task->enqueue(stream, task->message));
    }
    TRY(group_barrier(all, stream));
    TRY(stream_sync(stream));
    *out = clock_s() - begin_s;
    return OK;
}

/* A message of this size. The buffer has room for one sent and one received. */
static struct tensor message_data(const struct buffer *buffer, enum profile_kind kind, int64_t bytes)
{
    const int64_t all = kind == MEASURED_P2P ? 2 * bytes : bytes;
    return tensor_1d(buffer->data, F32, all / (int64_t)sizeof(float));
}

/* What a message of each size adds to an op: the median of several rounds, in each of which all sizes are
 * compared with the op alone; a larger one takes at least as long as a smaller one. */
static enum status time_in_steps(struct group *all, struct stream *stream, const struct step_task *op_only,
                                 size_t transfer, const struct message_task tasks[SIZES],
                                 double seconds[SIZES])
{
    enum { OPS = 8, ROUNDS = 7 };
    static const double LEAST_S = 1e-7;
    double added_s[SIZES][ROUNDS], with_s, without_s;
    for (int round = -1; round < ROUNDS; round++) { // the first one allocates memory
        TRY(time_steps(all, stream, op_only, OPS, &without_s));
        for (int i = 0; i < SIZES; i++) {
            const struct step_task both = {
                .op = op_only->op, .message = &tasks[i], .enqueue = transfers[transfer].enqueue};
            TRY(time_steps(all, stream, &both, round < 0 ? 1 : OPS, &with_s));
            if (round >= 0)
                added_s[i][round] = (with_s - without_s) / OPS;
        }
    }
    for (int i = 0; i < SIZES; i++)
        seconds[i] = doctor_median(added_s[i], ROUNDS);
    doctor_make_rising(seconds, SIZES);
    for (int i = 0; i < SIZES; i++)
        seconds[i] = fmax(seconds[i], LEAST_S);
    return OK;
}

/* A message of each size in a loop. */
static enum status time_alone(struct stream *stream, size_t transfer, const struct message_task tasks[SIZES],
                              double seconds[SIZES])
{
    enum { MAX_BYTES = 1 << 20, MIN_TIMES = 4, MAX_TIMES = 32 };
    for (int i = 0; i < SIZES; i++) {
        const int64_t share = MAX_BYTES / message_sizes[i];
        const int times = share > MAX_TIMES ? MAX_TIMES : share > MIN_TIMES ? (int)share : MIN_TIMES;
        TRY(doctor_time_messages(stream, &tasks[i], transfers[transfer].enqueue, times, TRIES, &seconds[i]));
    }
    return OK;
}

/* A matmul of some 0.2 ms. */
static enum status create_op(struct device *device, struct stream *stream, struct buffer *operands,
                             struct gemm *out)
{
    enum { ROWS = 128, WIDTH = 256, ELEMENTS = (2 * ROWS + WIDTH) * WIDTH };
    TRY(buffer_alloc(device, PART_DATA, ELEMENTS * sizeof(float), operands));
    TRY(fill(stream, (struct fill){.out = tensor_1d(operands->data, F32, ELEMENTS), .value = 1.0F}));
    float *a = operands->data, *b = a + ROWS * WIDTH, *c = b + WIDTH * WIDTH;
    *out = (struct gemm){.a = tensor_2d(a, F32, ROWS, WIDTH),
                         .b = tensor_2d(b, F32, WIDTH, WIDTH),
                         .c = tensor_2d(c, F32, ROWS, WIDTH)};
    return OK;
}

/* Measures all transfers in groups of `size` ranks, all groups at the same time. */
static enum status time_groups(struct world *world, struct group *all_ranks, struct device *device,
                               struct stream *stream, int size, const struct message_bench *bench)
{
    enum { LARGEST = 1 << 22 };
    const int first = world->rank / size * size;
    int ranks[MAX_RANKS];
    struct group *group = NULL;
    struct step_task op_only = {.message = NULL};
    struct buffer buffer = {0}, operands = {0};
    const bool in_steps = !device_traits(bench->device)->is_gpu;
    for (int r = 0; r < size; r++)
        ranks[r] = first + r;
    TRY(group_create(world, "doctor", 1 + size, ranks, size, &group));
    TRY(buffer_alloc(device, PART_DATA, 2 * LARGEST, &buffer));
    TRY(fill(stream, (struct fill){.out = tensor_1d(buffer.data, F32, 2 * LARGEST / 4), .value = 0.0F}));
    if (in_steps)
        TRY(create_op(device, stream, &operands, &op_only.op));
    for (size_t t = 0; t < TRANSFERS; t++) {
        struct message_task tasks[SIZES];
        double seconds[SIZES];
        for (int i = 0; i < SIZES; i++)
            tasks[i] = (struct message_task){
                .all = group, .data = message_data(&buffer, transfers[t].kind, message_sizes[i])};
        TRY(in_steps ? time_in_steps(all_ranks, stream, &op_only, t, tasks, seconds)
                     : time_alone(stream, t, tasks, seconds));
        for (int i = 0; i < SIZES && world->rank == 0; i++)
            profile_add_sample(bench->profile, transfers[t].kind,
                               &(struct profile_sample){.shape = {size, 1, message_sizes[i]},
                                                        .node_ranks = size < world->size ? world->size : 0,
                                                        .processes = bench->processes,
                                                        .value = seconds[i]});
    }
    buffer_free(&operands);
    buffer_free(&buffer);
    group_destroy(group);
    return OK;
}

static enum status message_rank(struct world *world, void *argument)
{
    const struct message_bench *bench = argument;
    const bool is_gpu = device_traits(bench->device)->is_gpu;
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct group *all = NULL;
    int ranks[MAX_RANKS];
    struct device_options options = {.name = bench->device, .threads = 1, .index = world->device_index};
    TRY(device_open(&options, &device));
    TRY(stream_create(device, "doctor", &stream));
    for (int r = 0; r < world->size; r++)
        ranks[r] = r;
    TRY(group_create(world, "doctor", 1, ranks, world->size, &all));
    for (int size = is_gpu ? world->size : 2; size <= world->size; size *= 2)
        TRY(time_groups(world, all, device, stream, size, bench));
    group_destroy(all);
    stream_destroy(stream);
    device_close(device);
    return OK;
}

static void report(const struct cluster_profile *profile, size_t before, int ranks, const char *what)
{
    printf("measured    all_reduce, all_gather, reduce_scatter, p2p: %zu shapes each, %d %s\n",
           profile->measured[MEASURED_P2P].count - before, ranks, what);
    fflush(stdout);
}

/* ---- the least time of a message ---- */

/* Bytes that a rank receives. */
static double received_bytes(enum profile_kind kind, double ranks, double bytes)
{
    return kind == MEASURED_P2P          ? bytes
           : kind == MEASURED_ALL_REDUCE ? 2.0 * (ranks - 1.0) / ranks * bytes
                                         : (ranks - 1.0) / ranks * bytes;
}

void doctor_raise_messages(struct cluster_profile *profile)
{
    const struct profile_node *node = &profile->node;
    for (size_t t = 0; t < TRANSFERS && node->link_bandwidth > 0.0; t++)
        for (size_t i = 0; i < profile->measured[transfers[t].kind].count; i++) {
            struct profile_sample *sample = &profile->measured[transfers[t].kind].list[i];
            const double ranks = (double)sample->shape[0],
                         busy = sample->node_ranks > 0 ? sample->node_ranks : ranks;
            const double moved = received_bytes(transfers[t].kind, ranks, (double)sample->shape[2]);
            const double least_s = node->link_latency_s + moved / node->link_bandwidth;
            sample->value = fmax(sample->value, least_s * fmax(1.0, busy / profile->device.cores));
        }
}

/* ---- processes ---- */

/* Measures the CPU time per second that rank 0 uses while it waits for the last rank. */
static enum status time_waiting(struct world *world, void *argument)
{
    enum { WAITS = 8, WAIT_NS = 5000000 };
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct group *all = NULL;
    struct timespec begin, end;
    int ranks[MAX_RANKS];
    double *fraction = argument, begin_s = 0.0;
    for (int r = 0; r < world->size; r++)
        ranks[r] = r;
    TRY(device_open(&(struct device_options){.name = "cpu", .threads = 1}, &device));
    TRY(stream_create(device, "doctor", &stream));
    TRY(group_create(world, "doctor", 1, ranks, world->size, &all));
    for (int i = 0; i <= WAITS; i++) {
        if (world->rank == world->size - 1)
            nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
        TRY(group_barrier(all, stream));
        TRY(stream_sync(stream));
        CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, i == 0 ? &begin : &end) == 0);
        begin_s = i == 0 ? clock_s() : begin_s;
    }
    *fraction = ((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)) /
                (clock_s() - begin_s);
    group_destroy(all);
    stream_destroy(stream);
    device_close(device);
    return OK;
}

static enum status measure_rank(struct world *world, void *argument)
{
    struct message_bench *bench = argument;
    TRY(message_rank(world, argument));
    return time_waiting(world, &bench->profile->node.waiting_process);
}

enum status doctor_messages_of_processes(void)
{
    struct message_bench bench = {.device = "cpu", .processes = true, .profile = profile_create()};
    const struct world_options options = {.transport = "mpi", .nondeterministic = true};
    enum status status = world_run_as(&options, measure_rank, &bench);
    for (size_t t = 0; t < TRANSFERS && status == OK; t++)
        for (size_t i = 0; i < bench.profile->measured[transfers[t].kind].count; i++) {
            const struct profile_sample *sample = &bench.profile->measured[transfers[t].kind].list[i];
            printf("%s %lld %d %lld %.6g\n", transfers[t].name, (long long)sample->shape[0],
                   sample->node_ranks, (long long)sample->shape[2], sample->value);
        }
    if (status == OK && bench.profile->measured[MEASURED_P2P].count > 0) // rank 0
        printf("waiting 0 0 0 %.6g\n", bench.profile->node.waiting_process);
    profile_destroy(bench.profile);
    return status;
}

/* Adds the sample of one line. */
static bool add_line(struct cluster_profile *profile, const char *line)
{
    char name[KIND_CHARS];
    long long ranks, bytes;
    struct profile_sample sample = {.processes = true};
    if (sscanf(line, "%31s %lld %d %lld %lf", name, &ranks, &sample.node_ranks, &bytes, &sample.value) != 5)
        return false;
    sample.shape[0] = ranks;
    sample.shape[1] = 1;
    sample.shape[2] = bytes;
    if (strcmp(name, "waiting") == 0)
        profile->node.waiting_process = fmin(sample.value, 1.0);
    for (size_t t = 0; t < TRANSFERS; t++)
        if (strcmp(name, transfers[t].name) == 0)
            profile_add_sample(profile, transfers[t].kind, &sample);
    return true;
}

/* Adds the samples of a file. */
static bool add_lines(struct cluster_profile *profile, const char *path)
{
    struct text text = {0};
    bool any = false;
    if (file_read(path, &text) != OK)
        return false;
    for (const char *line = text_chars(&text); *line != '\0'; line += strcspn(line, "\n") + 1) {
        any = add_line(profile, line) || any;
        if (line[strcspn(line, "\n")] == '\0')
            break;
    }
    text_free(&text);
    return any;
}

/* Runs mpirun, with its output in the file `log`. The variables of Open MPI allow more processes than cores,
 * without binding. */
static bool run_processes(int ranks, const char *log, struct cluster_profile *profile)
{
    char program[PATH_CHARS] = "", count[NUMBER_CHARS];
    char *const argv[] = {(char *)"env",
                          (char *)"OMPI_MCA_rmaps_base_oversubscribe=1",
                          (char *)"OMPI_MCA_hwloc_base_binding_policy=none",
                          (char *)"PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
                          (char *)"mpirun",
                          (char *)"-n",
                          count,
                          program,
                          (char *)"doctor",
                          (char *)"--messages",
                          NULL};
    enum run_state state;
    snprintf(count, sizeof count, "%d", ranks);
    return readlink("/proc/self/exe", program, sizeof program - 1) > 0 &&
           measure_process(argv, log, LIMIT_S, true, &state) == OK && state == RUN_DONE &&
           add_lines(profile, log);
}

/* Why mpirun has failed: the first of its lines with a letter. */
static void print_failure(int ranks, const char *log)
{
    struct text text = {0};
    const char *line = file_read(log, &text) == OK ? text_chars(&text) : "";
    while (*line != '\0' && !isalpha((unsigned char)line[strspn(line, " ")]))
        line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n');
    printf("            messages between processes are not measured: mpirun -n %d fails%s%.*s%s\n", ranks,
           *line != '\0' ? ": " : "", (int)strcspn(line, "\n"), line,
           geteuid() == 0 && getenv("OMPI_ALLOW_RUN_AS_ROOT") == NULL
               ? " (as root, set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)"
               : "");
    text_free(&text);
}

/* Prints a line for each number of processes, or that there are none. */
static void measure_processes(int most_ranks, struct cluster_profile *profile)
{
    char log[] = "/tmp/cuboid-doctor-XXXXXX";
    const int file = mkstemp(log);
    for (int ranks = 2; file >= 0 && ranks <= most_ranks && ranks <= MAX_RANKS; ranks *= 2) {
        const size_t before = profile->measured[MEASURED_P2P].count;
        if (!run_processes(ranks, log, profile)) {
            print_failure(ranks, log);
            break;
        }
        report(profile, before, ranks, "processes");
    }
    if (file < 0)
        return;
    unlink(log);
    close(file);
}

static bool has_mpi(void)
{
    for (size_t i = 0; transport_at(i) != NULL; i++)
        if (strcmp(transport_at(i)->name, "mpi") == 0)
            return true;
    return false;
}

enum status doctor_messages(const char *device, const char *transport, int most_ranks,
                            struct cluster_profile *profile)
{
    struct message_bench bench = {.device = device, .profile = profile};
    const bool is_gpu = device_traits(device)->is_gpu;
    for (int ranks = 2; ranks <= most_ranks && ranks <= MAX_RANKS; ranks *= 2) {
        struct world_options options = {.transport = transport, .size = ranks, .nondeterministic = true};
        const size_t before = profile->measured[MEASURED_P2P].count;
        TRY(world_run_as(&options, message_rank, &bench));
        report(profile, before, ranks, "ranks");
    }
    if (!is_gpu && has_mpi())
        measure_processes(most_ranks, profile);
    if (!is_gpu)
        doctor_raise_messages(profile);
    return OK;
}
