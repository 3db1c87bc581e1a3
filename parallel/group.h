// SPDX-License-Identifier: Apache-2.0
/* Process groups: the checked API over comms. A group of one needs no transport: every call on it returns
 * immediately (all_gather and reduce_scatter copy if in and out differ).
 *
 * Calls are enqueued on `stream`, in order with its other work. For overlap, use a separate stream and order
 * the two with events. */
#pragma once

#include "parallel/comm.h"
#include "parallel/mesh.h"

struct group {
    char name[32];
    int rank, size;
    int *ranks;        // world ranks, in group order; owned
    struct comm *comm; // NULL for a group of one; owned
};

/* All groups of a training rank, created eagerly and in the same order on every rank. */
struct groups {
    struct mesh mesh;
    struct mesh_coord coord; // this rank's coordinates, on the dense mesh
    struct group *world;     // all ranks
    struct group *tp;        // AXIS_TP
    struct group *data;      // AXIS_DP | AXIS_CP: same weights, different tokens
    struct group *pp;        // AXIS_PP
    /* Of the expert mesh: etp and edp. NULL where the meshes coincide: then they are tp and data. */
    struct group *expert_tp, *expert_data;
    struct group *kv; // tp ranks with the same key/value heads (size kv_replicas)
    /* Holders of a tied weight: first and last pipeline stage; NULL on other ranks, and if one rank holds
     * both. */
    struct group *ties;
    /* Replicas of a stage in bidirectional schedules (DualPipe): this rank and its mirror image on the pp
     * axis, with the same stages and different microbatches; the lower coordinate first. NULL if each stage
     * has one copy. */
    struct group *stage_replicas;
};

/* Collective over the world. BAD_RECIPE if the mesh and the world differ in size. kv_replicas: number of
 * neighbouring tp ranks with the same key/value heads (1: no replicas). */
MUST_USE enum status groups_create(struct world *world, const struct mesh *mesh, int kv_replicas,
                                   struct groups **out);
void groups_destroy(struct groups *groups);
/* Creates `ties` from two different pp coordinates, those of the first and the last stage; collective over
 * the world. A rank with neither passes those of any other rank. */
MUST_USE enum status groups_add_ties(struct world *world, struct groups *groups, int first_pp, int last_pp);
/* Creates `stage_replicas`; collective over the world. BAD_ARGUMENT for an odd pp. */
MUST_USE enum status groups_add_replicas(struct world *world, struct groups *groups);
/* Returns true on exactly one of the ranks that hold the same shards of the same weights (data replicas,
 * stage replicas): the rank that reports for them. */
bool groups_is_primary_replica(const struct groups *groups);

/* The groups of the parameters of a mesh (param.mesh). */
struct mesh_groups {
    struct group *tp;   // AXIS_TP: shards of the same parameter
    struct group *data; // same weights, different tokens: sums gradients, and shards with ZeRO
};
struct mesh_groups groups_of(const struct groups *groups, enum mesh_kind mesh);

/* Ids of the comms of struct groups (plus its axes, on both meshes) and of p2p (plus the index of the edge);
 * ids of other groups are smaller. */
#define GROUP_ID_AXES     ((int64_t)1 << 32)
#define GROUP_ID_KV       ((int64_t)2 << 32)
#define GROUP_ID_TIES     ((int64_t)3 << 32)
#define GROUP_ID_P2P      ((int64_t)4 << 32)
#define GROUP_ID_REPLICAS ((int64_t)5 << 32)
#define GROUP_ID_EXPERT   ((int64_t)6 << 32)

/* Creates a group of any other ranks. Every rank of the world calls it in the same order; ranks not listed
 * get NULL. `id` is below 2^32 and, for the life of the group, unique among groups that share a rank. */
MUST_USE enum status group_create(struct world *world, const char *name, int64_t id, const int *ranks,
                                  int count, struct group **out);
void group_destroy(struct group *group); // accepts NULL; all messages must have been waited for

/* Return BAD_ARGUMENT for errors detectable on one rank: a tensor that is not dense, mismatched counts or
 * types, an invalid rank. Mismatches between ranks are detected by transports where possible, which name both
 * sides. Empty tensors send no message. */
MUST_USE enum status group_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                                      enum reduction how);
/* in: one slice per rank; out: this rank's slice of the sum. out may alias its slice of `in`. */
MUST_USE enum status group_reduce_scatter(struct group *group, struct stream *stream, struct tensor in,
                                          struct tensor out);
/* in: this rank's slice, which may alias its slice of out; out: one slice per rank. */
MUST_USE enum status group_all_gather(struct group *group, struct stream *stream, struct tensor in,
                                      struct tensor out);
/* Same with slices of different sizes, in place: data has counts[r] elements of each rank r, consecutive;
 * this rank's slice receives the sum (the others are undefined), or is the slice that it contributes. */
MUST_USE enum status group_reduce_scatter_v(struct group *group, struct stream *stream, struct tensor data,
                                            const int64_t *counts);
MUST_USE enum status group_all_gather_v(struct group *group, struct stream *stream, struct tensor data,
                                        const int64_t *counts);
MUST_USE enum status group_broadcast(struct group *group, struct stream *stream, struct tensor data,
                                     int root);
MUST_USE enum status group_all_to_all(struct group *group, struct stream *stream, struct tensor in,
                                      const int64_t *in_counts, struct tensor out, const int64_t *out_counts);
MUST_USE enum status group_exchange(struct group *group, struct stream *stream,
                                    const struct message *messages, int count);
/* Registers `data` for many messages of this group, so that a transport may send directly from it instead of
 * through an internal buffer (user-buffer registration). Collective. Pass *handle to group_unregister()
 * before the memory is freed and the group destroyed; NULL: nothing was registered. */
MUST_USE enum status group_register(struct group *group, struct tensor data, void **handle);
void group_unregister(struct group *group, void *handle); // accepts NULL handles
/* Blocks the host until every rank of the group has called it and `stream` has finished. */
MUST_USE enum status group_barrier(struct group *group, struct stream *stream);
