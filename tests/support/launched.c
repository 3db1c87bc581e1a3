// SPDX-License-Identifier: Apache-2.0
#include "tests/support/launched.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* PROGRAM FOLDER FAMILY COMMON LAYOUT HOW OUT; HOW contains g if the run is resumed, s if it is
 * synchronous. */
enum { PROGRAM, FOLDER, FAMILY, COMMON, LAYOUT, HOW, OUT, WORDS };

static enum status world_of(const struct launch *what, int *ranks)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(what->tiny, what->family, what->common, what->layout, 0, &recipe));
    *ranks = recipe_world_size(recipe);
    recipe_destroy(recipe);
    return OK;
}

/* Open MPI's session files go into the folder: in the default one, shared by all runs of a user, a run that
 * starts while another creates or removes it occasionally fails ("unable to create the desired directory:
 * File exists"). */
static enum status run_words(const char *const *words, int ranks, const char *folder)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("OMPI_MCA_orte_tmpdir_base", folder, 1);
        execv(words[0], (char *const *)(uintptr_t)words);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return fail(PEER_LOST, "mpirun of %d ranks ended with status %d", ranks, status);
    return OK;
}

enum status launch(const struct launch *what, struct trace *out)
{
    char count[16], family[12], how[3] = "", path[TINY_FOLDER_CHARS + 20];
    int ranks;
    TRY(world_of(what, &ranks));
    snprintf(count, sizeof count, "%d", ranks);
    snprintf(family, sizeof family, "%d", (int)what->family);
    snprintf(how, sizeof how, "%s%s", what->goes_on ? "g" : "", what->synchronous ? "s" : "");
    snprintf(path, sizeof path, "%s/trace", what->tiny->folder);
    const char *words[3 + WORDS + 1] = {what->mpirun, "-n", count};
    const char **ours = words + 3;
    ours[PROGRAM] = what->program;
    ours[FOLDER] = what->tiny->folder;
    ours[FAMILY] = family;
    ours[COMMON] = what->common;
    ours[LAYOUT] = what->layout;
    ours[HOW] = how;
    ours[OUT] = path;
    enum status status = run_words(words, ranks, what->tiny->folder);
    if (status == OK)
        status = trace_read(path, out);
    unlink(path);
    return status;
}

bool launched_is_rank(int argc)
{
    return argc == WORDS;
}

int launched_rank(char **argv)
{
    struct tiny tiny;
    struct recipe *recipe = NULL;
    struct launcher launcher;
    struct trace trace = {.steps = 0};
    struct trace_options options = {.transport = "mpi",
                                    .goes_on = strchr(argv[HOW], 'g') != NULL,
                                    .synchronous = strchr(argv[HOW], 's') != NULL};
    int64_t family = 0;
    snprintf(tiny.folder, sizeof tiny.folder, "%s", argv[FOLDER]);
    enum status status = launcher_find(&launcher);
    if (status == OK && !integer_parse(argv[FAMILY], &family))
        status = fail(BAD_USAGE, "%s is no family", argv[FAMILY]);
    if (status == OK)
        status =
            tiny_recipe(&tiny, (enum tiny_family)family, argv[COMMON], argv[LAYOUT], launcher.size, &recipe);
    if (status == OK && strcmp(recipe->cluster.transport, "nccl") == 0)
        options.transport = "nccl";
    if (status == OK)
        status = trace_run(recipe, &options, &trace);
    if (status == OK && launcher.rank == 0)
        status = trace_write(&trace, argv[OUT]);
    if (status != OK)
        fprintf(stderr, "%s\n", fail_text());
    recipe_destroy(recipe);
    return status == OK ? 0 : 1;
}
