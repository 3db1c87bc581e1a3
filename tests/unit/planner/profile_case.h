// SPDX-License-Identifier: Apache-2.0
/* A profile from a string: written to a file and loaded; its messages in one text, with "F" for the folder's
 * name. */
#pragma once

#include "planner/profile/profile.h"
#include "trainer/files/problems.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The required keys; the smallest valid profile. */
#define DEVICE \
    "device: {name: X, cores: 4, peak_flops_fp32: 1e12, memory_bytes: 1e9, memory_bandwidth: 1e11}\n"
#define SMALL DEVICE "node: {devices: 1}\n"

struct loaded_profile {
    struct cluster_profile *profile; // NULL if it was rejected
    struct text messages;            // one line for each problem
};

struct profile_folder {
    char path[32];
};

static inline struct profile_folder folder_begin(void)
{
    struct profile_folder folder = {"/tmp/cuboid-profile-XXXXXX"};
    cr_assert_not_null(mkdtemp(folder.path));
    return folder;
}

static inline void folder_write(const struct profile_folder *folder, const char *name, const char *bytes,
                                size_t length)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    FILE *file = fopen(path, "w"); // without fsync: hundreds of files
    cr_assert(file != NULL && fwrite(bytes, 1, length, file) == length && fclose(file) == 0);
}

static inline struct loaded_profile folder_load(const struct profile_folder *folder, const char *name)
{
    struct loaded_profile loaded = {0};
    struct problems problems = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    enum status status = profile_load(path, &loaded.profile, &problems);
    cr_assert_eq(status == OK, problems.errors == 0);
    for (size_t i = 0; i < problems.count; i++) {
        for (const char *at = problems.list[i].text; *at != '\0';) {
            bool here = strncmp(at, folder->path, strlen(folder->path)) == 0;
            text_add(&loaded.messages, "%.*s", 1, here ? "F" : at);
            at += here ? strlen(folder->path) : 1;
        }
        text_add(&loaded.messages, "\n");
    }
    problems_free(&problems);
    return loaded;
}

static inline void folder_end(const struct profile_folder *folder, const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder->path, names[i]);
        unlink(path);
    }
    rmdir(folder->path);
}

static inline void loaded_free(struct loaded_profile *loaded)
{
    profile_destroy(loaded->profile);
    text_free(&loaded->messages);
}

/* One profile of these bytes, called P.yaml. */
static inline struct loaded_profile load_profile(const char *bytes, size_t length)
{
    struct profile_folder folder = folder_begin();
    folder_write(&folder, "P.yaml", bytes, length);
    struct loaded_profile loaded = folder_load(&folder, "P.yaml");
    folder_end(&folder, (const char *const[]){"P.yaml", NULL});
    return loaded;
}
