// SPDX-License-Identifier: Apache-2.0
/* What a recipe takes from its cluster profile: checks, and values that are not given. */
#include "planner/recipe/planned_recipe.h"

#include "base/memory.h"
#include "planner/profile/profile.h"
#include "trainer/recipe/recipe_table.h"

#include <stdlib.h>

/* The dtype in which the recipe's matmuls are computed. */
static enum profile_dtype matmul_dtype(const struct recipe *recipe)
{
    const enum dtype dtype = recipe->precision.params_dtype;
    return dtype == BF16          ? PROFILE_BF16
           : dtype == F16         ? PROFILE_FP16
           : recipe->kernels.tf32 ? PROFILE_TF32
                                  : PROFILE_FP32;
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

static bool read_profile(struct recipe *recipe, struct profile_cache *cache, struct problems *problems)
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

bool planned_recipe_profile(struct recipe *recipe, void **kept, struct problems *problems)
{
    if (*kept == NULL)
        *kept = memory_zeroed(1, sizeof(struct profile_cache), "a profile");
    return read_profile(recipe, *kept, problems);
}

void planned_recipe_release(void *kept)
{
    if (kept != NULL)
        profile_cache_free(kept);
    free(kept);
}

enum status planned_recipe_load(const char *path, const char *const *overrides, size_t override_count,
                                int world_size, struct recipe **out, struct problems *problems)
{
    return recipe_load(&(struct recipe_input){.path = path,
                                              .overrides = overrides,
                                              .override_count = override_count,
                                              .world_size = world_size,
                                              .addition = &planner_keys},
                       out, problems);
}

enum status planned_recipe_load_text(const char *name, const char *text, const char *const *overrides,
                                     size_t override_count, struct recipe **out, struct problems *problems)
{
    return recipe_load(&(struct recipe_input){.path = name,
                                              .text = text,
                                              .overrides = overrides,
                                              .override_count = override_count,
                                              .addition = &planner_keys},
                       out, problems);
}
