// SPDX-License-Identifier: Apache-2.0
/* A cluster without losses: every matmul and attention runs at `peak_flops`, everything else at
 * `memory_bandwidth`; launches, latencies and overheads take no time. Messages take no time until a bandwidth
 * is set. profile_destroy() frees it. */
#pragma once

#include "planner/profile/profile.h"

static inline struct cluster_profile *ideal_profile(double peak_flops, double memory_bandwidth)
{
    static const double UNLIMITED = 1e30;
    struct cluster_profile *p = profile_create();
    for (int i = 0; i < PROFILE_DTYPES; i++)
        p->device.peak_flops[i] = peak_flops;
    p->device.cores = 1;
    p->device.memory_bandwidth = memory_bandwidth;
    p->device.host_bandwidth = UNLIMITED;
    p->device.memory_bytes = INT64_C(1) << 50;
    p->node = (struct profile_node){.devices = 8, .link_bandwidth = UNLIMITED};
    p->network = (struct profile_network){.nics = 8, .bandwidth = UNLIMITED};
    p->model = (struct profile_model){.matmul_efficiency = 1.0,
                                      .matmul_unaligned = 1.0,
                                      .attention_forward = 1.0,
                                      .attention_backward = 1.0,
                                      .memory_efficiency = 1.0,
                                      .collective_link_efficiency = 1.0,
                                      .collective_network_efficiency = 1.0,
                                      .p2p_efficiency = 1.0};
    return p;
}
