// SPDX-License-Identifier: Apache-2.0
/* The commands, in the order of `cuboid --help`: name, arguments, what it does. A new command is a row here
 * and a file, which defines
 *
 *     int cmd_NAME(int argc, char **argv)     argv[0] is NAME; returns the exit status
 *     const char help_NAME[]                  printed for --help, which main() handles for all of them */
#pragma once

// clang-format off
#define COMMANDS(row) \
    row(train, "RECIPE [key=value ...]", "train a model (under a launcher: one process per rank)") \
    row(verify, "RECIPE [key=value ...]", "compare a layout with one rank: losses, gradients, weights") \
    row(plan, "RECIPE [key=value ...]", "memory and step time of a recipe on a cluster") \
    row(sweep, "SWEEP.yaml [key=value ...]", "plan all layouts of a recipe, and compare them") \
    row(submit, "RECIPE [key=value ...]", "submit a recipe to Slurm: saves, requeues, resumes") \
    row(runs, "DIR ... [--csv]", "compare finished runs") \
    row(report, "RUN ... -o FILE.html", "one page about runs: curves, speed, memory, recipes") \
    row(table, "NAME | FILE.csv | --list", \
        "published scaling tables: published values next to predicted ones") \
    row(evaluate, "RUN [--data PREFIX]", "loss and accuracy of a trained model") \
    row(generate, "RUN --prompt TEXT", "generate text with a trained model") \
    row(checkpoint, "inspect | import | export", "inspect, compare, rewrite, import, export checkpoints") \
    row(schedule, "NAME -p P -m M", "simulate and draw a pipeline schedule") \
    row(data, "prepare | inspect", "tokenize text into datasets, and inspect them") \
    row(recipe, "RECIPE [key=value ...]", "validate a recipe; print every key with its value and origin") \
    row(profile, "check | fit | --list", "check, list and fit cluster profiles") \
    row(hang, "FILE", "explain a flight-recorder dump: who waits for whom") \
    row(doctor, "[--profile FILE]", "report this machine's devices, libraries and speed")
// clang-format on

#define DECLARE_COMMAND(name, arguments, summary) \
    int cmd_##name(int argc, char **argv);        \
    extern const char help_##name[];
COMMANDS(DECLARE_COMMAND)
#undef DECLARE_COMMAND
