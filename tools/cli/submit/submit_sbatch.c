// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"
#include "tools/cli/submit/submit.h"

#include <string.h>

/* The key that an error message of sbatch is about. */
static const char *key_of_refusal(const char *words)
{
    static const struct {
        const char *word, *key;
    } keys[] = {{"account", "cluster.account"},    {"partition", "cluster.partition"},
                {"time", "cluster.time"},          {"node", "cluster.nodes"},
                {"gres", "cluster.gpus_per_node"}, {"gpu", "cluster.gpus_per_node"},
                {"dependency", "--after"}};
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

/* Fails with the first line of sbatch's errors, without its "sbatch: error: ". */
static enum status refused(struct text *errors, int exit)
{
    static const char *const heads[] = {"sbatch: ", "error: "};
    char *words = errors->length > 0 ? errors->chars : NULL;
    struct text hint = {0};
    if (words == NULL)
        return fail(IO_ERROR, "sbatch failed with status %d, without a message", exit);
    if (exit == 127)
        return fail(IO_ERROR, "%.*s; is Slurm installed here? --print prints the script",
                    (int)strcspn(words, "\n"), words);
    for (size_t i = 0; i < 2; i++)
        if (strncmp(words, heads[i], strlen(heads[i])) == 0)
            words += strlen(heads[i]);
    words[strcspn(words, "\n")] = 0;
    const char *key = key_of_refusal(words);
    add_partitions(&hint);
    enum status status =
        fail(IO_ERROR, "sbatch rejected the job: %s; see %s%s", words, key, text_chars(&hint));
    text_free(&hint);
    return status;
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
        text_add(job, "%.*s", (int)strcspn(text_chars(&out), ";\n"), text_chars(&out));
    text_free(&out);
    text_free(&errors);
    return status;
}
