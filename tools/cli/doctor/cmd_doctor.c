// SPDX-License-Identifier: Apache-2.0
/* cuboid doctor: which devices, libraries and launchers this machine has, what is missing and how to
 * install it, and measured rates, which it writes as a cluster profile. */
#include "tools/cli/doctor/cmd_doctor.h"

#include "kernels/device.h"
#include "kernels/device_info.h"
#include "parallel/transports/transport_info.h"
#include "tools/cli/doctor/doctor_measure.h"
#include "tools/cli/doctor/doctor_messages.h"
#include "tools/cli/doctor/doctor_profile.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CPU_RANKS = 8 };

/* ---- inventory ---- */

static void print_built(void)
{
    printf("devices     ");
    for (size_t i = 0, shown = 0; device_at(i) != NULL; i++)
        if (device_at(i)->ops != NULL)
            printf("%s%s", shown++ > 0 ? ", " : "", device_at(i)->name);
    printf("\ntransports  ");
    for (size_t i = 0; transport_at(i) != NULL; i++)
        printf("%s%s", i > 0 ? ", " : "", transport_at(i)->name);
    putchar('\n');
}

/* Finds a program on PATH, as a shell does. */
static bool on_path(const char *program)
{
    const char *path = getenv("PATH");
    for (const char *at = path; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, ":");
        char file[1024];
        int chars = snprintf(file, sizeof file, "%.*s/%s", (int)length, at, program);
        if (chars > 0 && (size_t)chars < sizeof file && access(file, X_OK) == 0)
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

static void print_launchers(void)
{
    struct launcher launcher;
    const char *const programs[] = {"mpirun", "srun"};
    if (launcher_find(&launcher) != OK)
        printf("launcher    %s\n", fail_text());
    else if (launcher.size > 0)
        printf("launcher    %s, %d processes\n", launcher.name, launcher.size);
    else
        printf("launcher    none: ranks are threads of one process\n");
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        printf("            %s is %son PATH\n", programs[i], on_path(programs[i]) ? "" : "not ");
}

/* Environment variables that silently reduce performance. */
static void print_slow_variables(void)
{
    static const char *const names[] = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            print_line(stdout, "            %s=%s is set, and may slow OpenBLAS down; unset it", names[i],
                       getenv(names[i]));
}

static void print_cpu(void)
{
    struct text text = {0};
    if (device_describe("cpu", 0, &text) == OK)
        printf("cpu         %s\n", text_chars(&text));
    text_free(&text);
    print_slow_variables();
}

/* Returns the reason without the key before it and the advice after it, which apply to a run. */
static void print_no_gpu(const char *why)
{
    static const char key[] = "cluster.device cuda: ";
    why += strncmp(why, key, strlen(key)) == 0 ? strlen(key) : 0;
    printf("gpu         none (%.*s)\n", (int)strcspn(why, ";"), why);
}

/* Returns their number. */
static int print_gpus(void)
{
    int count = 0;
    if (device_count("cuda", &count) != OK) {
        print_no_gpu(fail_text());
        count = 0;
    }
    for (int i = 0; i < count; i++) {
        struct text text = {0};
        printf("gpu %d       %s\n", i,
               device_describe("cuda", i, &text) == OK ? text_chars(&text) : fail_text());
        text_free(&text);
    }
    struct text libraries = {0};
    device_describe_libraries("cuda", &libraries);
    transport_describe_library("nccl", &libraries);
    if (libraries.length > 0)
        printf("cuda        %s\n", text_chars(&libraries));
    text_free(&libraries);
    return count;
}

/* ---- measurements ---- */

static void print_rate(const char *what, const char *type, double flops, const char *why)
{
    if (flops > 0.0)
        printf("%-11s %s %.1f GFLOP/s\n", what, type, flops * 1e-9);
    else
        printf("%-11s %s %s\n", what, type, why);
}

static void print_ceilings(const char *device, const char *transport, const struct ceilings *c)
{
    printf("measured    device %s\n", device);
    for (enum rate rate = 0; rate < RATE_COUNT; rate++)
        print_rate("gemm", rate_name(rate), c->flops[rate], c->why[rate]);
    printf("memory      %.1f GB/s read and written by a copy\n", c->copy_bytes_per_s * 1e-9);
    if (c->link_ranks == 0)
        printf("link        not measured: %s\n", c->link_why);
    else
        printf(
            "link        %d ranks, transport %s: %.1f us, %.2f GB/s to the next rank; all_reduce %.2f GB/s\n",
            c->link_ranks, transport, c->latency_s * 1e6, c->bytes_per_s * 1e-9,
            c->all_reduce_bytes_per_s * 1e-9);
}

static int examine(const char *profile)
{
    struct ceilings ceilings = {.link_ranks = 0};
    print_built();
    print_cpu();
    print_launchers();
    int gpus = print_gpus();
    fflush(stdout);
    const char *device = gpus > 0 ? "cuda" : "cpu", *transport = gpus > 0 ? "nccl" : "local";
    int ranks = gpus > 0 ? gpus : 2;
    enum status status = doctor_measure(device, transport, ranks, &ceilings);
    if (status != OK) {
        printf("measured    nothing: %s\n", fail_text());
        return 0;
    }
    print_ceilings(device, transport, &ceilings);
    if (profile == NULL)
        return 0;
    // Ranks of a CPU are threads: also more of them than cores.
    status = doctor_profile_write(profile, device, transport, gpus > 0 ? gpus : CPU_RANKS, &ceilings);
    if (status != OK)
        return exit_status(status);
    print_line(stdout, "profile     %s", profile);
    return 0;
}

int cmd_doctor(int argc, char **argv)
{
    const char *profile = NULL, *rest[8];
    int rest_count = 0;
    bool messages = false;
    const struct option options[] = {
        {.name = "--profile", .type = OPTION_TEXT, .value = &profile},
        {.name = "--messages", .type = OPTION_FLAG, .value = &messages},
    };
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        printf(
            "cuboid doctor [--profile FILE]   report devices, libraries and launchers of this machine, and\n"
            "measure matrix multiplication, memory and messages, in a few seconds. FILE gets a cluster\n"
            "profile with tables of measured rates, in under a minute: cluster.profile=FILE uses it,\n"
            "cuboid profile check FILE prints it. Measure on an idle machine.\n");
        return 0;
    }
    struct launcher launcher;
    enum status status = argc < 8 ? options_parse(argc, argv, options, 2, rest, &rest_count)
                                  : fail(BAD_USAGE, "cuboid doctor [--profile FILE]");
    if (status == OK && rest_count > 0)
        status = fail(BAD_USAGE, "doctor: unknown argument %s; use cuboid doctor [--profile FILE]", rest[0]);
    if (status == OK && messages) // a process started by doctor_messages()
        return exit_status_of_world(doctor_messages_of_processes());
    if (status == OK && launcher_find(&launcher) == OK && launcher.size > 1)
        status = fail(BAD_USAGE,
                      "doctor examines one machine, but %s started %d processes; run it without a launcher",
                      launcher.name, launcher.size);
    // Checked before measuring for several seconds: the output file can be written.
    const char *fault = status == OK && profile != NULL ? file_path_problem(profile) : NULL;
    if (fault != NULL)
        status = fail(BAD_USAGE, "doctor: --profile \"%s\": %s", profile, fault);
    return status == OK ? examine(profile) : exit_status(status);
}
