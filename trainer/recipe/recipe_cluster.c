// SPDX-License-Identifier: Apache-2.0
/* Section `cluster` of a recipe. */
#include "kernels/device.h"
#include "trainer/recipe/recipe_rules.h"

#include <stdlib.h>
#include <string.h>

int64_t recipe_cluster_ranks(const struct recipe *recipe)
{
    const struct recipe_cluster *cluster = &recipe->cluster;
    return (int64_t)cluster->nodes * cluster->gpus_per_node * cluster->ranks_per_gpu;
}

bool rule_degree_of_nodes(const struct view *view)
{
    return recipe_cluster_ranks(view->recipe) > 0 && view->world == 0 && !view->given[GIVEN_DP];
}

bool rule_replicas_hold(const struct view *view)
{
    const struct recipe_parallel *p = &view->recipe->parallel;
    const int64_t replica = (int64_t)p->tensor_parallel_size * p->pipeline_parallel_size;
    return !rule_degree_of_nodes(view) || recipe_cluster_ranks(view->recipe) % replica == 0;
}

void rule_replicas_message(const struct view *view, struct text *out)
{
    const struct recipe_cluster *c = &view->recipe->cluster;
    const struct recipe_parallel *p = &view->recipe->parallel;
    text_add(out, "cluster.nodes %d x cluster.gpus_per_node %d", c->nodes, c->gpus_per_node);
    if (c->ranks_per_gpu > 1)
        text_add(out, " x cluster.ranks_per_gpu %d", c->ranks_per_gpu);
    text_add(out, " are %lld ranks, not a multiple of the %lld of a replica (tp %d x pp %d)",
             (long long)recipe_cluster_ranks(view->recipe),
             (long long)p->tensor_parallel_size * p->pipeline_parallel_size, p->tensor_parallel_size,
             p->pipeline_parallel_size);
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

void recipe_use_dry_device(struct recipe *recipe)
{
    free(recipe->cluster.device);
    recipe->cluster.device = text_copy(recipe->cluster.dry_device);
    recipe->origin[recipe_row_index("cluster.device")] = (struct recipe_origin){.kind = FROM_DERIVED};
}

const char *recipe_gpu(const struct recipe *recipe)
{
    const char *device = recipe->cluster.device;
    if (!device_traits(device)->computes)
        device = recipe->cluster.dry_device;
    return device_traits(device)->is_gpu ? device : NULL;
}
