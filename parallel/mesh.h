// SPDX-License-Identifier: Apache-2.0
/* A mesh assigns every rank of the world a coordinate on each axis. The order of the axes, fastest first, is
 * the recipe's rank_order ("tp-cp-ep-dp-pp"): with tp fastest, a tensor-parallel group consists of
 * neighbouring ranks of one node, where links are fastest; with pp slowest, stage boundaries, which have the
 * least traffic, cross nodes.
 *
 *     world 8 = tp 2 x dp 2 x pp 2:   rank 5 is (tp 1, dp 0, pp 1)
 *
 * Two meshes cover the same world and share pp: the dense one (tp, cp, dp, pp) and the expert one (etp, ep,
 * edp, pp), where edp is the remainder. Axes of the two have the same names in code: on the expert mesh
 * AXIS_TP is etp, and AXIS_DP is edp. With ep 1 and etp = tp the meshes coincide, and dp*cp is edp. A group
 * is selected by mesh and a *set* of axes (AXIS_DP | AXIS_CP). It is ordered by coordinates, in the order tp,
 * cp, ep, dp, pp, independent of rank_order: sums add in group order, so rank_order moves ranks and changes
 * no bit.
 *
 * Pure arithmetic without communication; group.c creates the groups. */
#pragma once

#include "base/status.h"

enum axis { AXIS_TP = 1, AXIS_CP = 2, AXIS_EP = 4, AXIS_DP = 8, AXIS_PP = 16 };
enum { AXIS_COUNT = 5 }; // index of an axis: tp 0, cp 1, ep 2, dp 3, pp 4

enum mesh_kind { MESH_DENSE, MESH_EXPERT, MESH_COUNT };

struct degrees {
    int tp, cp, ep, dp, pp; // each at least 1
    int etp;                // tensor degree of the expert mesh; 0: tp. etp * ep divides tp * dp * cp
};

struct mesh {
    int world;
    struct degrees degrees;
    int order[AXIS_COUNT]; // axis indices, fastest first
};

/* Coordinates of a rank: on every axis an index below the degree. The expert mesh has its own tp and dp. */
struct mesh_coord {
    int tp, cp, ep, dp, pp;
};

/* rank_order NULL: "tp-cp-ep-dp-pp". BAD_RECIPE if an axis is missing, doubled or unknown, a degree is
 * invalid, or the two meshes would not share pp (experts need pp last, or strides that agree). */
MUST_USE enum status mesh_create(struct degrees degrees, const char *rank_order, struct mesh *out);

/* Invariants; BAD_ARGUMENT names the violated one: degrees of at least 1 whose product is the world, etp * ep
 * divides tp * dp * cp, an order with each axis once, and the same pipeline coordinate of each rank on both
 * meshes. */
MUST_USE enum status mesh_check(const struct mesh *mesh);

struct mesh_coord mesh_coord(const struct mesh *mesh, enum mesh_kind kind, int rank);
int mesh_rank(const struct mesh *mesh, enum mesh_kind kind, struct mesh_coord coord); // inverse of mesh_coord

/* Returns true if both meshes have the same ranks in the same tp and data groups. */
bool mesh_coincide(const struct mesh *mesh);

/* Lists the ranks that differ from `rank` only along `axes`, in coordinate order, including `rank`; out has
 * `world` elements. Returns the number of ranks. */
int mesh_group(const struct mesh *mesh, enum mesh_kind kind, int axes, int rank, int *out);

/* "tp", "cp|dp". */
enum { AXES_TEXT_CHARS = 24 };
const char *axes_text(int axes, char out[AXES_TEXT_CHARS]);
/* The same, as the name of a group: without cp and ep where their degree is 1. */
const char *mesh_axes_text(const struct mesh *mesh, int axes, char out[AXES_TEXT_CHARS]);
