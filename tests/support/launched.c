// SPDX-License-Identifier: Apache-2.0
#include "tests/support/launched.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* PROGRAM --rank FOLDER, then for each run FAMILY COMMON LAYOUT HOW; HOW contains a for looks_ahead, s for
 * synchronous. The trace of run n is written to FOLDER/trace-n. */
enum { PROGRAM, MARK, FOLDER, HEAD };
enum { FAMILY, COMMON, LAYOUT, HOW, WORDS };
enum { MAX_RUNS = 64, PATH_CHARS = TINY_FOLDER_CHARS + 40 };
static const char mark[] = "--rank";

static enum status world_of(const struct tiny *tiny, const struct launch *run, int *ranks)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(tiny, run->family, run->common, run->layout, 0, &recipe));
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

static void trace_path(const char *folder, int number, char path[PATH_CHARS])
{
    snprintf(path, PATH_CHARS, "%s/trace-%d", folder, number);
}

/* Starts those that need this number of ranks. */
static enum status launch_ranks(const struct mpirun *mpirun, const struct launch *runs, const int *ranks,
                                int count, int number, struct trace *out)
{
    static const char *const family[] = {[TINY_GPT] = "0", [TINY_LLAMA] = "1"};
    static const char *const how[] = {"", "g", "s", "gs"};
    char digits[16], path[PATH_CHARS];
    snprintf(digits, sizeof digits, "%d", number);
    const char *words[3 + HEAD + MAX_RUNS * WORDS + 1] = {mpirun->path, "-n", digits};
    const char **ours = words + 3;
    ours[PROGRAM] = mpirun->program;
    ours[MARK] = mark;
    ours[FOLDER] = mpirun->tiny->folder;
    const char **word = ours + HEAD;
    for (int i = 0; i < count; i++) {
        if (ranks[i] != number)
            continue;
        word[FAMILY] = family[runs[i].family];
        word[COMMON] = runs[i].common;
        word[LAYOUT] = runs[i].layout;
        word[HOW] = how[runs[i].looks_ahead + 2 * runs[i].synchronous];
        word += WORDS;
    }
    enum status status = run_words(words, number, mpirun->tiny->folder);
    for (int i = 0, n = 0; i < count; i++) {
        if (ranks[i] != number)
            continue;
        trace_path(mpirun->tiny->folder, n++, path);
        if (status == OK)
            status = trace_read(path, &out[i]);
        unlink(path);
    }
    return status;
}

enum status launch(const struct mpirun *mpirun, const struct launch *runs, int count, struct trace *out)
{
    int ranks[MAX_RUNS];
    CHECK(count <= MAX_RUNS);
    for (int i = 0; i < count; i++)
        TRY(world_of(mpirun->tiny, &runs[i], &ranks[i]));
    for (int i = 0; i < count; i++) {
        bool started = false;
        for (int k = 0; k < i; k++)
            started = started || ranks[k] == ranks[i];
        if (!started)
            TRY(launch_ranks(mpirun, runs, ranks, count, ranks[i], out));
    }
    return OK;
}

/* ---- in a rank ---- */

bool launched_is_rank(int argc, char **argv)
{
    return argc > MARK && strcmp(argv[MARK], mark) == 0;
}

static enum status read_run(const struct tiny *tiny, char **words, int ranks, struct recipe **recipe,
                            struct trace_options *options)
{
    int64_t family = 0;
    if (!integer_parse(words[FAMILY], &family))
        return fail(BAD_USAGE, "%s is not a family", words[FAMILY]);
    TRY(tiny_recipe(tiny, (enum tiny_family)family, words[COMMON], words[LAYOUT], ranks, recipe));
    *options = (struct trace_options){
        .transport = strcmp((*recipe)->cluster.transport, "nccl") == 0 ? "nccl" : "mpi",
        .looks_ahead = strchr(words[HOW], 'g') != NULL,
        .synchronous = strchr(words[HOW], 's') != NULL,
    };
    return OK;
}

static enum status run_all(const struct tiny *tiny, char **words, int count)
{
    const struct recipe *recipes[MAX_RUNS] = {NULL};
    struct trace_options options[MAX_RUNS];
    struct launcher launcher;
    char path[PATH_CHARS];
    TRY(launcher_find(&launcher));
    struct trace *traces = calloc((size_t)count, sizeof *traces);
    enum status status = traces != NULL ? OK : fail(NO_MEMORY, "no memory for %d traces", count);
    for (int i = 0; status == OK && i < count; i++) {
        struct recipe *recipe = NULL;
        status = read_run(tiny, words + (ptrdiff_t)i * WORDS, launcher.size, &recipe, &options[i]);
        recipes[i] = recipe;
    }
    if (status == OK)
        status = trace_run_all(recipes, options, count, traces);
    for (int i = 0; status == OK && launcher.rank == 0 && i < count; i++) {
        trace_path(tiny->folder, i, path);
        status = trace_write(&traces[i], path);
    }
    for (int i = 0; i < count; i++)
        recipe_destroy((struct recipe *)(uintptr_t)recipes[i]);
    free(traces);
    return status;
}

int launched_rank(int argc, char **argv)
{
    struct tiny tiny;
    int count = (argc - HEAD) / WORDS;
    CHECK(count > 0 && count <= MAX_RUNS && (argc - HEAD) % WORDS == 0);
    snprintf(tiny.folder, sizeof tiny.folder, "%s", argv[FOLDER]);
    enum status status = run_all(&tiny, argv + HEAD, count);
    if (status != OK)
        fprintf(stderr, "%s\n", fail_text());
    return status == OK ? 0 : 1;
}
