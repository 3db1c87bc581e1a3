// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/runs/run_dirs.h"

#include "base/memory.h"
#include "base/text.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_metrics(const char *dir)
{
    AUTO(text) path = {0};
    text_add(&path, "%s/metrics.jsonl", dir);
    return access(path.chars, F_OK) == 0;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void add(const char *dir, struct run_dirs *out)
{
    out->list = memory_resized(out->list, (size_t)out->count + 1, sizeof *out->list, "the runs");
    out->list[out->count++] = text_copy(dir);
}

void run_dirs_add(const char *dir, struct run_dirs *out)
{
    struct dirent **entries = NULL;
    const int count = has_metrics(dir) ? 0 : scandir(dir, &entries, is_visible, alphasort);
    const int before = out->count;
    for (int i = 0; i < count; i++) {
        AUTO(text) path = {0};
        const size_t length = strlen(dir);
        text_add(&path, "%s%s%s", dir, length > 0 && dir[length - 1] == '/' ? "" : "/", entries[i]->d_name);
        if (has_metrics(path.chars))
            add(path.chars, out);
        free(entries[i]);
    }
    free(entries);
    if (out->count == before)
        add(dir, out);
}

void run_dirs_free(struct run_dirs *dirs)
{
    for (int i = 0; i < dirs->count; i++)
        free(dirs->list[i]);
    free(dirs->list);
    *dirs = (struct run_dirs){0};
}
