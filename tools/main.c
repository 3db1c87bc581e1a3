// SPDX-License-Identifier: Apache-2.0
/* cuboid: one executable, a command per file. This one only finds the command. */
#include "base/text.h"
#include "tools/cmd_data.h"
#include "tools/cmd_generate.h"
#include "tools/cmd_recipe.h"
#include "tools/cmd_schedule.h"
#include "tools/cmd_train.h"
#include "tools/cmd_verify.h"

#include <signal.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv); // argv[0] is the command's name
    const char *arguments;
    const char *help;
} commands[] = {
    {"train", cmd_train, "RECIPE [key=value ...]",
     "trains a model; under mpirun or srun with one process per rank"},
    {"verify", cmd_verify, "RECIPE [key=value ...]",
     "compares a layout with one rank: losses, gradients, weights"},
    {"generate", cmd_generate, "RUN --prompt TEXT", "continues a text with a trained model"},
    {"schedule", cmd_schedule, "NAME -p P -m M", "draws a pipeline schedule, with its bubble and its memory"},
    {"data", cmd_data, "prepare | inspect", "turns text into datasets, and shows what one holds"},
    {"recipe", cmd_recipe, "RECIPE [key=value ...]",
     "checks a recipe and prints every key with its value and origin"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_help(FILE *to)
{
    fputs("cuboid trains GPTs on a data x tensor x pipeline parallel mesh, from one YAML recipe.\n\n", to);
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  cuboid %-9s %-25s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    fputs("\ncuboid COMMAND --help says more.  key=value sets any recipe key by its dotted name "
          "(parallel.tensor_parallel_size=2, or tp=2).\n"
          "Exit status: 0 done, 1 failed while running, 2 bad usage or recipe, 75 stopped on request with a "
          "complete "
          "checkpoint.\n",
          to);
}

int main(int argc, char **argv)
{
    // A file that may not grow further is an error of the write, to be said in words, and no signal's
    // business.
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    const char *names[COMMAND_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[1], names[i]) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    const char *near = nearest_name(argv[1], names, COMMAND_COUNT);
    fprintf(stderr, "cuboid: there is no command %s%s%s%s; cuboid --help lists them\n", argv[1],
            near != NULL ? " (did you mean " : "", near != NULL ? near : "", near != NULL ? "?)" : "");
    return 2;
}
