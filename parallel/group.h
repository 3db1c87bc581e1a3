// SPDX-License-Identifier: Apache-2.0
/* A group is some ranks that can talk: the checked door to a comm. A group of one has nothing to say, and
 * every call on it returns at once without reaching a transport (all_gather and reduce_scatter copy
 * where in and out differ).
 *
 * Calls put the message on `stream`: what is put there before it is done first, what comes after it waits.
 * To overlap, give it a stream of its own and order the two with events. */
#pragma once

#include "parallel/comm.h"
#include "parallel/mesh.h"

struct group {
    char name[32];
    int rank, size;
    int *ranks;        // world ranks, in group order; owned
    struct comm *comm; // NULL for a group of one; owned
};

/* The whole set a rank of a trainer needs, made eagerly and in one order on every rank. */
struct groups {
    struct mesh mesh;
    struct place place;  // mine, on the dense mesh
    struct group *world; // everyone
    struct group *tp;    // AXIS_TP
    struct group *data;  // AXIS_DP | AXIS_CP: who shares weights and sees other tokens
    struct group *pp;    // AXIS_PP
    struct group *kv;    // the tp ranks that hold the same key/value heads (size kv_replicas)
    /* First and last pipeline stage's holders of a tied weight; NULL elsewhere, and where one rank holds
     * both.
     */
    struct group *ties;
    /* Where a schedule sends microbatches both ways through the pipeline: this rank and its mirror image on
     * the pp axis, which hold the same stages and see other microbatches; the lower coordinate first. NULL
     * where each stage has one holder. */
    struct group *stage_replicas;
};

/* Collective over the world. BAD_RECIPE when the mesh is of another size than the world.
 * kv_replicas: how many neighbouring tp ranks hold the same key/value heads (1: each its own). */
MUST_USE enum status groups_create(struct world *world, const struct mesh *mesh, int kv_replicas,
                                   struct groups **out);
void groups_destroy(struct groups *groups);
/* Makes `ties` of two different coordinates on the pp axis, the holders of the first and of the last stage;
 * collective over the world. A rank that holds neither gives those of any other. */
MUST_USE enum status groups_add_ties(struct world *world, struct groups *groups, int first_pp, int last_pp);
/* Makes `twins`; collective over the world, like all of this. BAD_ARGUMENT for an odd pp. */
MUST_USE enum status groups_add_replicas(struct world *world, struct groups *groups);
/* True on one of all ranks that hold the same shares of the same weights (data replicas, twins): what is
 * said once for them is said there. */
bool groups_is_primary(const struct groups *groups);

/* Ids of the comms that are pieces of struct groups (with its axes added) and p2p (with the index of the
 * edge added); those of other groups are smaller. */
#define GROUP_ID_AXES     ((int64_t)1 << 32)
#define GROUP_ID_KV       ((int64_t)2 << 32)
#define GROUP_ID_TIES     ((int64_t)3 << 32)
#define GROUP_ID_P2P      ((int64_t)4 << 32)
#define GROUP_ID_REPLICAS ((int64_t)5 << 32)

/* Any other set of ranks; every rank of the world calls it in the same order, those outside with
 * `ranks` that do not hold them: they get NULL. `id` is below 2^32 and unique for the life of the group
 * among groups that share a rank. */
MUST_USE enum status group_create(struct world *world, const char *name, int64_t id, const int *ranks,
                                  int count, struct group **out);
void group_destroy(struct group *group); // takes NULL; every message must have been waited for

/* BAD_ARGUMENT for what could not be right on any rank: a tensor that is not dense, counts or types that do
 * not fit each other, a rank that is not there. What differs from rank to rank a transport finds where it
 * can, and then says who brought what. Tensors of no elements are no message. */
MUST_USE enum status group_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                                      enum reduction how);
/* in: one slice for each rank; out: this rank's slice of the sum. It may be its own slice of `in`. */
MUST_USE enum status group_reduce_scatter(struct group *group, struct stream *stream, struct tensor in,
                                          struct tensor out);
/* in: this rank's slice, which may lie in its own place of out; out: one slice for each rank. */
MUST_USE enum status group_all_gather(struct group *group, struct stream *stream, struct tensor in,
                                      struct tensor out);
/* The same with slices of different sizes, in place: data holds counts[r] elements for each rank r, one after
 * the other, and this rank's own slice is what becomes the sum (the others are lost), or is what it gives. */
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
/* Says that `data` will be in many messages of this group, so that a transport may send it from where it lies
 * instead of from a buffer of its own (user-buffer registration). Collective. What it gives goes to
 * group_unregister() before the memory is freed and the group destroyed; NULL: nothing was to be done. */
MUST_USE enum status group_register(struct group *group, struct tensor data, void **handle);
void group_unregister(struct group *group, void *handle); // takes NULL handles
/* Blocks the host until every rank of the group has come here and `stream` is done. */
MUST_USE enum status group_barrier(struct group *group, struct stream *stream);
