// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/restart/restart.h"

#include "trainer/checkpoint/format/manifest.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/checkpoint/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DIGITS "0123456789"

void failure_free(struct failure *failure)
{
    text_free(&failure->why);
    text_free(&failure->who);
}

/* The number after `key` in a line of metrics.jsonl; -1: none. */
static double number_after(const char *line, const char *end, const char *key)
{
    const char *at = memmem(line, (size_t)(end - line), key, strlen(key));
    return at != NULL ? strtod(at + strlen(key), NULL) : -1.0;
}

double productive_s(const char *run_dir, int64_t after, int64_t *last)
{
    struct text path = {0}, bytes = {0};
    double sum = 0.0;
    *last = 0;
    text_add(&path, "%s/metrics.jsonl", run_dir);
    if (file_read(path.chars, &bytes) == OK)
        for (const char *line = text_chars(&bytes), *end; (end = strchr(line, '\n')) != NULL;
             line = end + 1) {
            const double step = number_after(line, end, "\"step\": ");
            const double seconds = number_after(line, end, "\"step_time_s\": ");
            if (step > (double)*last && step < 1e18)
                *last = (int64_t)step;
            if (step > (double)after && seconds > 0.0)
                sum += seconds;
        }
    text_free(&path);
    text_free(&bytes);
    return sum;
}

/* Parses Slurm's message: "rank 2-3, node n2" of "srun: error: n2: tasks 2-3: Killed", as the tasks of srun
 * are the ranks. False if it is another message. */
static bool add_tasks(const char *why, struct text *out)
{
    static const char head[] = "srun: error: ", *const words[] = {": task ", ": tasks "};
    if (strncmp(why, head, strlen(head)) != 0)
        return false;
    const char *node = why + strlen(head);
    for (int i = 0; i < 2; i++) {
        const char *tasks = strstr(node, words[i]);
        if (tasks == NULL || strcspn(node, ": ") != (size_t)(tasks - node))
            continue;
        const char *numbers = tasks + strlen(words[i]);
        text_add(out, "rank %.*s, node %.*s", (int)strspn(numbers, DIGITS ",-"), numbers, (int)(tasks - node),
                 node);
        return true;
    }
    return false;
}

struct metrics_state metrics_state_of(const struct recipe *recipe)
{
    struct metrics_state state = {0};
    struct text path = {0};
    struct stat about;
    text_add(&path, "%s/metrics.jsonl", recipe->logging.run_dir);
    if (stat(path.chars, &about) == 0)
        state = (struct metrics_state){.file = about.st_ino,
                                       .bytes = about.st_size,
                                       .changed_ns = about.st_mtim.tv_sec * INT64_C(1000000000) +
                                                     about.st_mtim.tv_nsec};
    text_free(&path);
    return state;
}

/* The newest checkpoint of the run in a folder; 0: none. run NULL: of any run. */
static int64_t newest_in(const char *folder, const char *run)
{
    int64_t step = -1;
    struct text skipped = {0};
    struct manifest manifest = {0};
    const bool found = store_newest_manifest(folder, INT64_MAX, &step, &manifest, &skipped) == OK &&
                       step >= 0 && (run == NULL || strcmp(run, manifest.identity.run) == 0);
    manifest_free(&manifest);
    text_free(&skipped);
    return found ? step : 0;
}

/* On the disk, and in the memory of the node of this process. */
static int64_t newest_saved(const struct recipe_checkpoint *recipe)
{
    int64_t newest = newest_in(recipe->save, NULL);
    struct run_record record;
    struct dirent *entry;
    DIR *nodes = recipe->memory_dir != NULL && run_record_read(recipe->save, &record) == OK
                     ? opendir(recipe->memory_dir)
                     : NULL;
    while (nodes != NULL && (entry = readdir(nodes)) != NULL) {
        struct text folder = {0};
        text_add(&folder, "%s/%s", recipe->memory_dir, entry->d_name);
        const int64_t step = entry->d_name[0] != '.' ? newest_in(folder.chars, record.run) : 0;
        newest = step > newest ? step : newest;
        text_free(&folder);
    }
    if (nodes != NULL)
        closedir(nodes);
    return newest;
}

void failure_find(const struct recipe *recipe, const struct attempt *attempt,
                  const struct metrics_state *before, struct failure *out)
{
    const struct metrics_state now = metrics_state_of(recipe);
    *out = (struct failure){.saved = newest_saved(&recipe->checkpoint)};
    (void)productive_s(recipe->logging.run_dir, 0, &out->step);
    const bool stepped =
        now.file != before->file || now.bytes != before->bytes || now.changed_ns != before->changed_ns;
    if (!stepped || out->step < out->saved)
        out->step = out->saved;
    text_add(&out->why, "%s", text_chars(&attempt->why));
    if (!add_tasks(text_chars(&attempt->why), &out->who))
        text_add(&out->who, "%s", text_chars(&attempt->who));
}

bool failure_equal(const struct failure *a, const struct failure *b)
{
    const char *p = text_chars(&a->why), *q = text_chars(&b->why);
    for (;; p++, q++) {
        p += strspn(p, DIGITS ".");
        q += strspn(q, DIGITS ".");
        if (*p != *q)
            return false;
        if (*p == 0)
            return a->step == b->step;
    }
}

static void add_time(struct text *out)
{
    const time_t now = time(NULL);
    struct tm utc;
    char text[32];
    gmtime_r(&now, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    text_add(out, "%s", text);
}

enum status failure_log(const struct recipe *recipe, const struct failure *failure, int64_t restart, int exit)
{
    struct text path = {0}, line = {0};
    text_add(&path, "%s/restarts.jsonl", recipe->logging.run_dir);
    text_add(&line, "{\"restart\": %lld, \"time\": \"", (long long)restart);
    add_time(&line);
    text_add(&line, "\", \"status\": %d, \"step\": %lld, \"saved\": %lld, \"lost\": %lld, \"who\": ", exit,
             (long long)failure->step, (long long)failure->saved,
             (long long)(failure->step - failure->saved));
    text_add_json(&line, text_chars(&failure->who));
    text_add(&line, ", \"why\": ");
    text_add_json(&line, text_chars(&failure->why));
    text_add(&line, "}\n");
    enum status status = folder_make(recipe->logging.run_dir);
    const int file = status == OK ? open(path.chars, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (status == OK && (file < 0 || write(file, line.chars, line.length) != (ssize_t)line.length))
        status = fail(IO_ERROR, "%s cannot be written: %s", path.chars, strerror(errno));
    if (file >= 0)
        close(file);
    text_free(&path);
    text_free(&line);
    return status;
}
