// SPDX-License-Identifier: Apache-2.0
/* Predicted time of an op and of a message, alone on its device, cores or links. Values of the profile's
 * measured tables take precedence over its model (planner/profile/profile.h, docs/planning.md).
 *
 *   op           matmul, attention: FLOPs / (peak · efficiency); no op is faster than its memory traffic
 *   collective   ring: bytes over the slowest link of the ring, and a latency per step
 *   sum in rank  reduce-scatter by sends, and a kernel that adds; then an all-gather. Small ones: all ranks
 *     order      gather everything and add. In chunks of bounded scratch memory
 *   p2p          bytes over a link, or over the sender's share of its node's NICs */
#pragma once

#include "kernels/device_plan.h"
#include "parallel/comm.h"
#include "planner/assume/assume.h"
#include "planner/profile/profile.h"

/* How the ranks of a group are distributed over nodes. */
struct group_shape {
    int ranks;
    int nodes;
    int per_node; // maximum number of ranks on one node
    int ring;     // of a message between two ranks: the size of its group, all of which send and receive one;
                  // 0: only these two
};

/* Rank r runs on node r / ranks_per_node. */
struct cost_options {
    const struct cluster_profile *profile;
    int ranks_per_node;
    int threads;                      // per rank, on a CPU; 0: the cores of a node, divided by its ranks
    bool processes;                   // on a CPU: ranks are processes, not threads of one process
    bool tf32;                        // fp32 matmuls use TF32
    const struct assumptions *assume; // NULL: none
    struct assumed_model model;       // for assume
    struct group_shape tensor_group;  // for messages that it adds; ranks 0: none
    bool in_order; // sums over GPU ranks are in rank order (parallel/transports/nccl/) instead of NCCL's own
};

/* The dtype in which matmuls with operands of `dtype` are computed. */
enum profile_dtype cost_dtype(const struct cost_options *options, enum dtype dtype);

/* Cores of a CPU that an op of a rank keeps busy: its threads, or all cores if there are fewer. 1 on a
 * GPU. */
int cost_threads(const struct cost_options *options);

/* The categories of a step's compute time. COST_OVERLAP: the slowdown of ops that overlap with messages;
 * COST_SHARED_CORES: on a CPU, the slowdown while more threads are busy than there are cores. */
enum cost_class {
    COST_MATMUL,
    COST_ATTENTION,
    COST_MEMORY,
    COST_LAUNCH,
    COST_OVERLAP,
    COST_SHARED_CORES,
    COST_CLASSES
};
const char *cost_class_name(enum cost_class class);
enum cost_class cost_class_of(enum op_kind kind);

/* Time of an op without its kernel launches, and of its launches. On a CPU: with the threads of its rank on
 * separate cores; the prediction (predict.h) accounts for ranks that share cores. */
struct op_time {
    double run_s, launch_s;
};
struct op_time cost_of_op(const struct cost_options *options, const struct op_record *op);

struct group_shape cost_group_shape(const struct cost_options *options, const int *ranks, int size);

/* Seconds of a call. bytes: of the whole tensor, as in observed_message. Send and receive: between the two
 * ranks of the shape. 0 for a group of one rank. */
double cost_of_message(const struct cost_options *options, enum call call, struct group_shape group,
                       int64_t bytes);
