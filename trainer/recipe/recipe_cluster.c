// SPDX-License-Identifier: Apache-2.0
/* Section `cluster` of a recipe: the profile, and the number of ranks per node. */
#include "trainer/recipe/recipe_rules.h"

#include "planner/profile/profile.h"

#include <stdlib.h>
#include <string.h>

int64_t recipe_cluster_ranks(const struct recipe *recipe)
{
    const struct recipe_cluster *cluster = &recipe->cluster;
    return (int64_t)cluster->nodes * cluster->gpus_per_node * cluster->ranks_per_gpu;
}

/* Splits "2-12:30:00" into days and up to three fields; false if it is not of that form. */
static bool time_fields(const char *text, int64_t *days, int64_t fields[3], int *count)
{
    const char *dash = strchr(text, '-');
    int used = 0;
    long long number;
    *days = -1;
    if (dash != NULL) {
        if (sscanf(text, "%9lld-%n", &number, &used) != 1 || used != dash + 1 - text || *text == '+')
            return false;
        *days = number;
        text = dash + 1;
    }
    for (*count = 0; *count < 3; text++) {
        const size_t digits = strspn(text, "0123456789");
        if (digits == 0 || digits > 9)
            return false;
        fields[(*count)++] = strtoll(text, NULL, 10);
        text += digits;
        if (*text != ':')
            return *text == 0;
    }
    return false;
}

int64_t slurm_seconds(const char *text)
{
    // After days: hours[:minutes[:seconds]]. Without days: minutes[:seconds] or hours:minutes:seconds.
    int64_t days, f[3] = {0, 0, 0};
    int count;
    if (*text == '-' || !time_fields(text, &days, f, &count))
        return -1;
    if (days >= 0)
        return ((days * 24 + f[0]) * 60 + f[1]) * 60 + f[2];
    if (count == 3)
        return (f[0] * 60 + f[1]) * 60 + f[2];
    return f[0] * 60 + f[1];
}

bool rule_time_holds(const struct view *view)
{
    const char *time = view->recipe->cluster.time;
    return time == NULL || slurm_seconds(time) > 0;
}

void rule_time_message(const struct view *view, struct text *out)
{
    text_add(out,
             "cluster.time %s is not a time limit of Slurm; use minutes (90), hours:minutes:seconds "
             "(12:00:00) or days-hours (2-12), in quotes",
             view->recipe->cluster.time);
}

/* The dtype in which the recipe's matmuls are computed. */
static enum profile_dtype matmul_dtype(const struct recipe *recipe)
{
    switch (recipe->precision.params_dtype) {
    case RECIPE_FP32:
        break;
    case RECIPE_BF16:
        return PROFILE_BF16;
    case RECIPE_FP16:
        return PROFILE_FP16;
    }
    return recipe->kernels.tf32 ? PROFILE_TF32 : PROFILE_FP32;
}

static bool was_given(const struct recipe *recipe, const char *key)
{
    enum origin_kind kind = recipe->origin[recipe_row_index(key)].kind;
    return kind == FROM_FILE || kind == FROM_COMMAND_LINE;
}

/* With cluster.nodes only: uses all devices of the profile's nodes. */
static void derive_node(struct recipe *recipe, const struct cluster_profile *profile)
{
    struct recipe_cluster *cluster = &recipe->cluster;
    if (cluster->nodes == 0 || cluster->gpus_per_node > 0 || profile->device.is_cpu)
        return;
    cluster->gpus_per_node = profile->node.devices;
    recipe->origin[recipe_row_index("cluster.gpus_per_node")].kind = FROM_DERIVED;
}

/* A plan for GPUs counts the memory of GPUs. */
static void derive_dry_device(struct recipe *recipe, const struct cluster_profile *profile)
{
    const int row = recipe_row_index("cluster.dry_device");
    if (profile->device.is_cpu || device_traits(recipe->cluster.device)->computes ||
        recipe->origin[row].kind != FROM_DEFAULT)
        return;
    free(recipe->cluster.dry_device);
    recipe->cluster.dry_device = text_copy("cuda");
    recipe->origin[row].kind = FROM_DERIVED;
}

void recipe_use_dry_device(struct recipe *recipe)
{
    free(recipe->cluster.device);
    recipe->cluster.device = text_copy(recipe->cluster.dry_device);
    recipe->origin[recipe_row_index("cluster.device")] = (struct recipe_origin){.kind = FROM_DERIVED};
}

static void derive_peak(struct recipe *recipe, const struct cluster_profile *profile, const char *where,
                        struct problems *problems)
{
    enum profile_dtype dtype = matmul_dtype(recipe);
    if (was_given(recipe, "logging.peak_flops"))
        return;
    recipe->logging.peak_flops = profile->device.peak_flops[dtype];
    if (recipe->logging.peak_flops == 0.0)
        problems_warn(problems,
                      "%s: cluster.profile %s has no peak for %s, so mfu is not reported; set "
                      "logging.peak_flops",
                      where, recipe->cluster.profile, profile_dtype_name(dtype));
}

bool recipe_read_profile(struct recipe *recipe, struct profile_cache *cache, struct problems *problems)
{
    const struct recipe_cluster *cluster = &recipe->cluster;
    struct problems faults = {0};
    struct text where = {0};
    if (cluster->profile == NULL)
        return true;
    recipe_origin_text(recipe, recipe_row_index("cluster.profile"), &where);
    bool good = profile_cache_load(cache, cluster->profile, &faults) == OK;
    const struct cluster_profile *profile = cache->profile;
    for (size_t i = 0; i < faults.count; i++)
        problems_add(problems, "%s: cluster.profile: %s", where.chars, faults.list[i].text);
    if (good && !profile->device.is_cpu && cluster->gpus_per_node > profile->node.devices) {
        problems_add(problems,
                     "%s: cluster.gpus_per_node %d, but a node of cluster.profile %s has %d devices; use "
                     "cluster.gpus_per_node=%d",
                     where.chars, cluster->gpus_per_node, cluster->profile, profile->node.devices,
                     profile->node.devices);
        good = false;
    }
    if (good) {
        derive_dry_device(recipe, profile);
        derive_node(recipe, profile);
        derive_peak(recipe, profile, where.chars, problems);
    }
    problems_free(&faults);
    text_free(&where);
    return good;
}
