// SPDX-License-Identifier: Apache-2.0
/* cuboid doctor: which devices, libraries and launchers this machine has, what is missing and how to
 * install it, and measured rates, which it writes as a cluster profile. */
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "kernels/device.h"
#include "kernels/device_info.h"
#include "parallel/transports/transport_info.h"
#include "tools/cli/doctor/doctor_check.h"
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

enum { CPU_RANKS = 8, QUICK_RANKS = 2 };
static const double CHECK_S = 2.0;

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
    printf("memory      %.1f GB/s read and written by a copy", c->copy_bytes_per_s * 1e-9);
    if (c->vendor_copy_bytes_per_s > 0.0)
        printf(", %.1f GB/s by the vendor's", c->vendor_copy_bytes_per_s * 1e-9);
    printf("\n");
    if (c->link_ranks == 0)
        printf("link        not measured: %s\n", c->link_why);
    else
        printf(
            "link        %d ranks, transport %s: %.1f us, %.2f GB/s to the next rank; all_reduce %.2f GB/s\n",
            c->link_ranks, transport, c->latency_s * 1e6, c->bytes_per_s * 1e-9,
            c->all_reduce_bytes_per_s * 1e-9);
}

static int examine(const char *profile, bool quick)
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
    ranks = gpus > 0 ? gpus : quick ? QUICK_RANKS : CPU_RANKS;
    status = doctor_profile_write(profile, device, transport, ranks, quick, &ceilings);
    if (status != OK)
        return exit_status(status);
    print_line(stdout, "profile     %s", profile);
    return 0;
}

const char help_doctor[] =
    "cuboid doctor [--profile FILE [--quick]]\n"
    "cuboid doctor --check [RECIPE [key=value ...]] [--seconds S] [--report]\n"
    "\n"
    "Reports devices, libraries and launchers of this machine, and measures matrix multiplication,\n"
    "memory and messages, in a few seconds. FILE gets a cluster profile with tables of measured rates, in\n"
    "under a minute: cluster.profile=FILE uses it, cuboid profile check FILE prints it. Measure on an idle\n"
    "machine.\n"
    "\n"
    "  --quick      measure fewer ops and messages, in seconds: the profile predicts less precisely\n"
    "  --check      whether this node can train (the recipe): device, free memory, shared memory, the bits\n"
    "               of matrix multiplications, a message between two ranks; a line for each. Under a\n"
    "               launcher, one process of each node checks it: a line for each node, and each failure\n"
    "  --seconds S  how long each device multiplies matrices (default 2)\n"
    "  --report     print one line of JSON, and exit with 0 also if a check has failed\n"
    "\n"
    "Exit status: 0 all checks passed; 1 a check failed; 2 invalid usage or recipe.\n";

struct arguments {
    const char *profile;
    bool quick, messages, check, report;
    double seconds;
    const char **words; // after the command: the recipe and its overrides
    int word_count;
};

/* Under a launcher, one process of each node examines it as if it were alone. */
static int check_node(const struct arguments *arguments)
{
    struct launcher launcher;
    struct recipe *recipe = NULL;
    struct chosen chosen;
    int size = 0, status = 0;
    if (launcher_find(&launcher) != OK)
        return exit_status(BAD_USAGE);
    if (launcher.local_rank > 0)
        return 0;
    launcher_forget();
    if (arguments->word_count > 0) {
        const struct recipe_request request = {.alone = true, .quiet = true};
        status = recipe_argument_choose(arguments->word_count + 1, (char **)arguments->words, &request,
                                        &recipe, &chosen, &size);
        if (status != 0)
            return status;
        chosen_free(&chosen);
    }
    const struct doctor_check check = {.recipe = recipe,
                                       .seconds = arguments->seconds,
                                       .node = launcher.node,
                                       .brief = launcher.size > 1,
                                       .report = arguments->report};
    status = doctor_check(&check) > 0 && !arguments->report ? 1 : 0;
    recipe_destroy(recipe);
    return status;
}

static enum status parse(int argc, char **argv, struct arguments *out)
{
    const struct option options[] = {
        {.name = "--profile", .type = OPTION_TEXT, .value = &out->profile},
        {.name = "--quick", .type = OPTION_FLAG, .value = &out->quick},
        {.name = "--messages", .type = OPTION_FLAG, .value = &out->messages},
        {.name = "--check", .type = OPTION_FLAG, .value = &out->check},
        {.name = "--report", .type = OPTION_FLAG, .value = &out->report},
        {.name = "--seconds", .type = OPTION_REAL, .value = &out->seconds, .low = 0.0, .high = 86400.0},
    };
    struct launcher launcher;
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->words + 1,
                      &out->word_count));
    if (!out->check && out->word_count > 0)
        return fail(BAD_USAGE,
                    "doctor: unknown argument %s; use cuboid doctor [--profile FILE] or cuboid "
                    "doctor --check RECIPE",
                    out->words[1]);
    if (out->check && out->profile != NULL)
        return fail(BAD_USAGE, "doctor: --profile measures, --check does not; use one of them");
    if (out->quick && out->profile == NULL)
        return fail(BAD_USAGE, "doctor: --quick belongs to --profile FILE; add it");
    if (!out->check && (out->report || out->seconds != CHECK_S))
        return fail(BAD_USAGE, "doctor: --report and --seconds belong to --check; add --check");
    if (!out->check && !out->messages && launcher_find(&launcher) == OK && launcher.size > 1)
        return fail(BAD_USAGE,
                    "doctor examines one machine, but %s started %d processes; run it without a launcher",
                    launcher.name, launcher.size);
    // Checked before measuring for several seconds: the output file can be written.
    const char *fault = out->profile != NULL ? file_path_problem(out->profile) : NULL;
    if (fault != NULL)
        return fail(BAD_USAGE, "doctor: --profile \"%s\": %s", out->profile, fault);
    return OK;
}

int cmd_doctor(int argc, char **argv)
{
    struct arguments arguments = {.seconds = CHECK_S,
                                  .words = memory_zeroed((size_t)argc + 2, sizeof(char *), "the arguments")};
    arguments.words[0] = argv[0];
    const enum status status = parse(argc, argv, &arguments);
    int result;
    if (status != OK)
        result = exit_status(status);
    else if (arguments.messages) // a process started by doctor_messages()
        result = exit_status_of_world(doctor_messages_of_processes());
    else
        result = arguments.check ? check_node(&arguments) : examine(arguments.profile, arguments.quick);
    free(arguments.words);
    return result;
}
