// SPDX-License-Identifier: Apache-2.0
/* cuboid: one executable, a file per command. main() only selects the command, and handles help for all of
 * them: `cuboid train quickstart.yaml tp=2 --help` and `cuboid help train` are both `train --help`. */
#include "base/text.h"
#include "kernels/device.h"
#include "parallel/comm.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/commands.h"
#include "trainer/recipe/recipe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv); // argv[0] is the command's name
    const char *arguments, *summary;
    const char *help;
} commands[] = {
#define ROW(name, arguments, summary) {#name, cmd_##name, arguments, summary, help_##name},
    COMMANDS(ROW)
#undef ROW
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_help(FILE *to)
{
    fputs("cuboid trains GPTs on a data x tensor x pipeline parallel mesh, from one YAML recipe.\n\n", to);
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  cuboid %-10s %-26s %s\n", commands[i].name, commands[i].arguments,
                commands[i].summary);
    fputs(
        "\n'cuboid COMMAND --help' for details, 'cuboid help KEY' for a recipe key, 'cuboid --version' for\n"
        "build options. key=value sets any recipe key (parallel.tensor_parallel_size=2, or tp=2).\n"
        "Exit status: 0 success; 1 runtime failure; 2 invalid usage, recipe or input; 75 stopped on request\n"
        "with a complete checkpoint.\n"
        "CUBOID_TRACE=comm,action,memory (or all) traces messages, actions and allocations to standard\n"
        "error, or to the file CUBOID_TRACE_FILE, with the rank for %r (docs/debugging.md).\n",
        to);
}

/* Returns "yes" if this build contains the transport or device, else "no". */
static const char *has(const char *name)
{
    return transport_is_built(name) || device_is_built(name) ? "yes" : "no";
}

/* In the executable cuboid only (commit.c.in); "" if it was not built in a clone. */
extern __attribute__((weak)) const char cuboid_commit[];

static void print_version(void)
{
    const char *commit = cuboid_commit != NULL ? cuboid_commit : "";
    const bool known = *commit != 0;
    printf("cuboid %s%s%s%s\nmpi    %s\nblas   %s\ncuda   %s\n", VERSION, known ? " (commit " : "", commit,
           known ? ")" : "", has("mpi"), BLAS, has("cuda"));
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* --help is recognized anywhere, even as the value of an option; use --prompt=--help to pass it as text. */
static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i]))
            return true;
    return false;
}

static const struct command *find_command(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

/* cuboid help KEY: true if there is such a key, or section. */
static bool print_help_of_key(const char *name)
{
    struct text text = {0};
    const bool found = recipe_help(&planner_keys, name, &text);
    fputs(text_chars(&text), stdout);
    text_free(&text);
    return found;
}

static int refuse_command(const char *name)
{
    const char *names[COMMAND_COUNT], *dot = strrchr(name, '.');
    for (int i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    const char *near = nearest_name(name, names, COMMAND_COUNT);
    if (dot != NULL && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        (void)fail(BAD_USAGE,
                   "%s is a recipe, not a command; use cuboid train %s; run cuboid --help for the commands",
                   name, name);
    else
        (void)fail(BAD_USAGE, "unknown command %s%s%s%s; run cuboid --help", name,
                   near != NULL ? " (did you mean " : "", near != NULL ? near : "", near != NULL ? "?)" : "");
    fprintf(stderr, "cuboid: %s\n", fail_text());
    return 2;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    bool help = strcmp(argv[1], "help") == 0;
    if (is_help(argv[1]) || (help && (argc == 2 || is_help(argv[2]) || strcmp(argv[2], "help") == 0))) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        print_version();
        return 0;
    }
    char *name = help ? argv[2] : argv[1];
    const struct command *command = find_command(name);
    if (command == NULL && help && print_help_of_key(name))
        return 0;
    if (command == NULL)
        return refuse_command(name);
    if (!help && !asks_for_help(argc - 1, argv + 1))
        return command->run(argc - 1, argv + 1);
    fputs(command->help, stdout);
    return 0;
}

/* Opens a standard file descriptor that the caller has closed: otherwise the next opened file, perhaps a
 * checkpoint, would get its number, and output would be written into it. */
static void open_standard_files(void)
{
    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++)
        if (fcntl(file, F_GETFD) < 0)
            (void)!open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Detects errors of standard output once, at the end, instead of after each printf. */
static int check_output(int status)
{
    errno = 0;
    bool arrived = fflush(stdout) == 0;
    if ((arrived && ferror(stdout) == 0) || status != 0)
        return status;
    fprintf(stderr, "cuboid: standard output cannot be written%s%s\n", errno != 0 ? ": " : "",
            errno != 0 ? strerror(errno) : "");
    return 1;
}

/* std::set_new_handler() of the C++ library, if one is linked: a failed allocation in oneDNN, which is
 * C++, would end in abort(), since no caller in C can catch an exception. */
__attribute__((weak)) void *set_new_handler(void (*handler)(void)) __asm__("_ZSt15set_new_handlerPFvvE");

static void end_without_memory(void)
{
    die_of(NO_MEMORY,
           "out of memory: a library cannot allocate; raise the limit (ulimit -v), or use a smaller model "
           "or fewer ranks per machine");
}

int main(int argc, char **argv)
{
    if (set_new_handler != NULL)
        (void)set_new_handler(end_without_memory);
    // Ignore SIGXFSZ: exceeding the file size limit is a write error with a message, not a fatal
    // signal.
    signal(SIGXFSZ, SIG_IGN);
    open_standard_files();
    return check_output(run(argc, argv));
}
