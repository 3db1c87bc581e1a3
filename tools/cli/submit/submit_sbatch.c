// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"
#include "base/process.h"
#include "tools/cli/submit/submit.h"

#include <string.h>

/* Whether sbatch could not ask Slurm: its words are not about the job. */
static bool is_unreachable(const char *words)
{
    static const char *const causes[] = {"timed out", "controller",   "configuration source",
                                         "dns_srv",   "connect fail", "connection refused",
                                         "munge",     "slurm.conf"};
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (strcasestr(words, causes[i]) != NULL)
            return true;
    return false;
}

/* The key that an error message of sbatch is about. */
static const char *key_of_refusal(const char *words)
{
    static const struct {
        const char *word, *key;
    } keys[] = {{"account", "cluster.account"},   {"partition", "cluster.partition"},
                {"time", "cluster.time"},         {"cpu count", "cluster.nodes and cluster.threads_per_rank"},
                {"node", "cluster.nodes"},        {"gres", "cluster.gpus_per_node"},
                {"gpu", "cluster.gpus_per_node"}, {"dependency", "--after"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcasestr(words, keys[i].word) != NULL)
            return keys[i].key;
    return "cluster.sbatch";
}

/* Appends "; partitions: a (2 nodes, up to 1:00:00), ..." from sinfo; nothing if it cannot be run. */
static void add_partitions(struct text *out)
{
    char program[] = "sinfo", no_header[] = "-h", format[] = "--format=%R (%D nodes, up to %l)";
    struct text list = {0}, errors = {0};
    int exit = 0;
    if (process_capture((char *[]){program, no_header, format, NULL}, NULL, &list, &errors, &exit) == OK &&
        exit == 0 && list.length > 0) {
        list.chars[list.length - 1] = 0;
        text_add(out, "; partitions: ");
        for (const char *at = list.chars; *at != 0; at++)
            text_add(out, "%.*s", *at == '\n' ? 2 : 1, *at == '\n' ? ", " : at);
    }
    text_free(&list);
    text_free(&errors);
}

/* The first line that is an error, or else the first line, without its "sbatch: error: ". NULL if there is
 * none. */
static char *first_error(struct text *errors)
{
    static const char *const heads[] = {"sbatch: ", "error: "};
    char *words = NULL;
    for (char *line = errors->chars, *next; line != NULL && *line != 0; line = next) {
        const size_t length = strcspn(line, "\n");
        const char *mark = memmem(line, length, "error: ", strlen("error: "));
        next = line + length + (line[length] != 0);
        line[length] = 0;
        if (words == NULL || mark != NULL)
            words = *line != 0 ? line : words;
        if (mark != NULL)
            break;
    }
    for (size_t i = 0; words != NULL && i < sizeof heads / sizeof *heads; i++)
        if (strncmp(words, heads[i], strlen(heads[i])) == 0)
            words += strlen(heads[i]);
    return words;
}

static enum status refused(struct text *errors, int exit)
{
    struct text hint = {0};
    char *words = first_error(errors);
    if (words == NULL)
        return fail(IO_ERROR, "sbatch failed with status %d, without a message", exit);
    if (exit == 127)
        return fail(IO_ERROR, "%s; is Slurm installed here? --print prints the script", words);
    if (is_unreachable(words))
        return fail(IO_ERROR, "sbatch cannot reach Slurm: %s; see whether sinfo works, or use --print",
                    words);
    const char *key = key_of_refusal(words);
    add_partitions(&hint);
    enum status status =
        fail(IO_ERROR, "sbatch rejected the job: %s; see %s%s", words, key, text_chars(&hint));
    text_free(&hint);
    return status;
}

/* "123" of "123;cluster". */
static enum status read_job(const char *out, struct text *job)
{
    const size_t digits = strspn(out, "0123456789");
    if (digits == 0 || strchr(";\n", out[digits]) == NULL)
        return fail(IO_ERROR, "sbatch returned no number of a job, but \"%.*s\"; see squeue",
                    (int)strcspn(out, "\n"), out);
    text_add(job, "%.*s", (int)digits, out);
    return OK;
}

/* Many clusters accept a job that no partition can run: it waits forever, for a reason that names a limit. */
static void warn_of_reason(const char *job)
{
    static const char *const limits[] = {"Partition", "BadConstraints", "Invalid", "NotAllowed", "PerJob"};
    char program[] = "squeue", no_header[] = "--noheader", format[] = "--format=%r";
    AUTO(text) words = {0};
    AUTO(text) reason = {0};
    AUTO(text) errors = {0};
    AUTO(text) hint = {0};
    int exit = 0;
    text_add(&words, "--jobs=%s", job);
    if (process_capture((char *[]){program, no_header, format, words.chars, NULL}, NULL, &reason, &errors,
                        &exit) != OK ||
        exit != 0)
        return;
    size_t limit = 0;
    while (limit < sizeof limits / sizeof *limits && strstr(text_chars(&reason), limits[limit]) == NULL)
        limit++;
    if (limit == sizeof limits / sizeof *limits)
        return;
    add_partitions(&hint);
    print_line(stderr,
               "warning: job %s does not start: %.*s; see cluster.partition, nodes, gpus_per_node and time%s",
               job, (int)strcspn(reason.chars, "\n"), reason.chars, text_chars(&hint));
}

/* sbatch may accept a job with warnings. */
static void print_warnings(const char *errors)
{
    for (size_t length; *errors != 0; errors += length + (errors[length] != 0)) {
        length = strcspn(errors, "\n");
        if (length > 0)
            print_line(stderr, "%.*s", (int)length, errors);
    }
}

enum status submit_sbatch(const char *script, struct text *job)
{
    char program[] = "sbatch", parsable[] = "--parsable";
    struct text out = {0}, errors = {0};
    int exit = 0;
    enum status status = process_capture((char *[]){program, parsable, NULL}, script, &out, &errors, &exit);
    if (status == OK && exit != 0)
        status = refused(&errors, exit);
    else if (status == OK)
        status = read_job(text_chars(&out), job);
    if (status == OK) {
        print_warnings(text_chars(&errors));
        warn_of_reason(text_chars(job));
    }
    text_free(&out);
    text_free(&errors);
    return status;
}
