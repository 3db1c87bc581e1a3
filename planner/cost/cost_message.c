// SPDX-License-Identifier: Apache-2.0
/* Collectives as rings (Patarasuk and Yuan, JPDC 2009). The bus bandwidth, as nccl-tests define it, is that
 * of the ring's slowest link, which each byte of an all-reduce of n ranks crosses 2 (n - 1)/n times. */
#include "parallel/transports/nccl/comm_nccl_scratch.h"
#include "planner/cost/cost.h"
#include "planner/cost/cost_measured.h"

#include <math.h>

/* Number of ranks of the group on the node of its i-th rank; 0 if an earlier rank is on the same node. */
static int ranks_on_node(const int *ranks, int size, int i, int per_node)
{
    int here = 0;
    for (int k = 0; k < size; k++) {
        if (ranks[k] / per_node != ranks[i] / per_node)
            continue;
        if (k < i)
            return 0;
        here++;
    }
    return here;
}

/* The same for ranks in ascending order, where those of a node are consecutive: i is the first of them. */
static int ranks_in_run(const int *ranks, int size, int i, int per_node)
{
    int here = 1;
    while (i + here < size && ranks[i + here] / per_node == ranks[i] / per_node)
        here++;
    return here;
}

struct group_shape cost_group_shape(const struct cost_options *options, const int *ranks, int size)
{
    struct group_shape shape = {.ranks = size};
    const int per_node = options->ranks_per_node > 0 ? options->ranks_per_node : size;
    bool ascending = true;
    for (int i = 1; i < size; i++)
        ascending = ascending && ranks[i] > ranks[i - 1];
    for (int i = 0; i < size;) {
        const int here =
            ascending ? ranks_in_run(ranks, size, i, per_node) : ranks_on_node(ranks, size, i, per_node);
        shape.nodes += here > 0;
        shape.per_node = here > shape.per_node ? here : shape.per_node;
        i += ascending ? here : 1;
    }
    return shape;
}

/* Bandwidth between ranks of one node: of the link, or of memory if the profile has no link. */
static double link_bandwidth(const struct cost_options *options)
{
    const struct cluster_profile *p = options->profile;
    return p->node.link_bandwidth > 0.0 ? p->node.link_bandwidth : p->device.memory_bandwidth;
}

/* Bandwidth between nodes: the group's share of a node's NICs. */
static double network_bandwidth(const struct cost_options *options, int ranks_here)
{
    const struct profile_network *network = &options->profile->network;
    if (network->nics == 0 || network->bandwidth <= 0.0)
        return link_bandwidth(options); // a profile without a network
    double users = options->ranks_per_node > ranks_here ? options->ranks_per_node : ranks_here;
    return network->nics * network->bandwidth * ranks_here / users;
}

static double saturation(double bytes, double half_bytes)
{
    return bytes / (bytes + half_bytes);
}

static double bus_bandwidth(const struct cost_options *options, struct group_shape group, double bytes)
{
    const struct profile_model *model = &options->profile->model;
    double link = link_bandwidth(options) * model->collective_link_efficiency *
                  saturation(bytes, model->collective_link_half_bytes);
    if (group.nodes <= 1)
        return link;
    double network = network_bandwidth(options, group.per_node) * model->collective_network_efficiency *
                     saturation(bytes, model->collective_network_half_bytes) /
                     (1.0 + model->congestion * log2(group.nodes));
    return group.per_node > 1 ? fmin(link, network) : network;
}

/* Latency of one pass around the ring. */
static double round_latency(const struct cost_options *options, struct group_shape group)
{
    const double link = options->profile->node.link_latency_s, network = options->profile->network.latency_s;
    return (group.ranks - group.nodes) * link + (group.nodes > 1 ? group.nodes * network : 0.0);
}

/* Looks up a time in a measured table. */
static bool time_of(const struct cost_options *options, enum profile_kind kind, int ranks, int nodes,
                    double bytes, double *out)
{
    const struct measured_transfer transfer = {
        .ranks = ranks,
        .nodes = nodes,
        .bytes = bytes,
        .node_ranks = options->profile->device.is_cpu ? options->ranks_per_node : 0,
        .processes = options->processes};
    return measured_seconds(&options->profile->measured[kind], &transfer, out);
}

static double p2p_s(const struct cost_options *options, struct group_shape group, double bytes)
{
    const struct cluster_profile *p = options->profile;
    const int nodes = group.nodes > 1 ? 2 : 1;
    double seconds;
    if (group.ring > 2 && time_of(options, MEASURED_P2P, group.ring, nodes, bytes, &seconds))
        return seconds;
    if (time_of(options, MEASURED_P2P, 2, nodes, bytes, &seconds))
        return seconds;
    if (group.nodes > 1)
        return p->network.latency_s + bytes / (network_bandwidth(options, 1) * p->model.p2p_efficiency);
    return p->node.link_latency_s + bytes / (link_bandwidth(options) * p->model.p2p_efficiency);
}

static bool measured(const struct cost_options *options, enum call call, struct group_shape group,
                     double bytes, double *out)
{
    static const enum profile_kind kinds[CALL_COUNT] = {[CALL_ALL_REDUCE] = MEASURED_ALL_REDUCE,
                                                        [CALL_ALL_GATHER] = MEASURED_ALL_GATHER,
                                                        [CALL_REDUCE_SCATTER] = MEASURED_REDUCE_SCATTER};
    if (kinds[call] == MEASURED_MATMUL)
        return false;
    return time_of(options, kinds[call], group.ranks, group.nodes, bytes, out);
}

/* ---- sums in rank order: comm_nccl.c ---- */

/* One kernel that reads `parts` bytes, adds, and writes `bytes`. */
static double add_s(const struct cost_options *options, double parts, double bytes)
{
    const struct cluster_profile *p = options->profile;
    return p->model.launch_s + (parts + bytes) / (p->device.memory_bandwidth * p->model.memory_efficiency);
}

/* One chunk, of which every rank adds its share. */
static double chunk_s(const struct cost_options *options, struct group_shape group, double bytes,
                      bool gathers)
{
    const double n = group.ranks;
    const double wire_s = (n - 1.0) / n * bytes / bus_bandwidth(options, group, bytes);
    const double scatter_s = round_latency(options, group) + wire_s + add_s(options, bytes, bytes / n);
    return gathers ? scatter_s + round_latency(options, group) + wire_s : scatter_s;
}

static double in_order_s(const struct cost_options *options, struct group_shape group, double bytes,
                         bool gathers)
{
    const double n = group.ranks, whole = floor(bytes / CHUNK_BYTES), rest = bytes - whole * CHUNK_BYTES;
    if (bytes <= 0.0)
        return round_latency(options, group);
    if (gathers && bytes <= SMALL_BYTES)
        return round_latency(options, group) + (n - 1.0) * bytes / bus_bandwidth(options, group, n * bytes) +
               add_s(options, n * bytes, bytes);
    return whole * chunk_s(options, group, CHUNK_BYTES, gathers) +
           (rest > 0.0 ? chunk_s(options, group, rest, gathers) : 0.0);
}

/* The faster of a ring and, for few bytes, a tree. */
static double all_reduce_s(const struct cost_options *options, struct group_shape group, double bytes)
{
    const double n = group.ranks, link = options->profile->node.link_latency_s,
                 network = options->profile->network.latency_s;
    const double wire = bytes > 0.0 ? bytes / bus_bandwidth(options, group, bytes) : 0.0;
    const double depth_s = log2(group.per_node) * link + log2(group.nodes) * network;
    return fmin(2.0 * round_latency(options, group) + 2.0 * (n - 1.0) / n * wire, 2.0 * depth_s + 2.0 * wire);
}

double cost_of_message(const struct cost_options *options, enum call call, struct group_shape group,
                       int64_t bytes)
{
    const double n = group.ranks, b = (double)bytes, around = round_latency(options, group);
    double seconds;
    if (group.ranks < 2)
        return 0.0;
    if (measured(options, call, group, b, &seconds))
        return seconds;
    switch (call) {
    case CALL_SEND:
    case CALL_RECEIVE:
        return p2p_s(options, group, b);
    case CALL_ALL_REDUCE:
        return options->in_order ? in_order_s(options, group, b, true) : all_reduce_s(options, group, b);
    case CALL_REDUCE_SCATTER:
        if (options->in_order)
            return in_order_s(options, group, b, false);
        return around + (bytes > 0 ? (n - 1.0) / n * b / bus_bandwidth(options, group, b) : 0.0);
    case CALL_ALL_GATHER:
    case CALL_ALL_TO_ALL:
        return around + (bytes > 0 ? (n - 1.0) / n * b / bus_bandwidth(options, group, b) : 0.0);
    case CALL_BROADCAST:
        return around + (bytes > 0 ? b / bus_bandwidth(options, group, b) : 0.0);
    case CALL_BARRIER:
    case CALL_COUNT:
        break;
    }
    return around;
}
