// SPDX-License-Identifier: Apache-2.0
/* A rank is a mixed-radix number whose digits are the coordinates; the fastest axis is the least significant
 * digit. Both meshes use the same number and axis order with different radices:
 *
 *     dense   (tp,  cp, 1,  dp,  pp)
 *     expert  (etp, 1,  ep, edp, pp)      edp = tp * cp * dp / (etp * ep)
 *
 * Caution: the pp digit is the same in both only if the radices of the axes faster than pp have the same
 * product in both. This is checked, not assumed. */
#include "parallel/mesh.h"

#include "base/text.h"

#include <limits.h>
#include <string.h>

static const char *const axis_names[AXIS_COUNT] = {"tp", "cp", "ep", "dp", "pp"};
static const char default_order[] = "tp-cp-ep-dp-pp";

struct digits {
    int of[AXIS_COUNT];
};

static struct digits radices(const struct mesh *mesh, enum mesh_kind kind)
{
    struct degrees d = mesh->degrees;
    if (kind == MESH_EXPERT)
        return (struct digits){{d.etp, 1, d.ep, mesh->world / d.pp / d.etp / d.ep, d.pp}};
    return (struct digits){{d.tp, d.cp, 1, d.dp, d.pp}};
}

static struct digits digits_of(struct mesh_coord coord)
{
    return (struct digits){{coord.tp, coord.cp, coord.ep, coord.dp, coord.pp}};
}

static struct mesh_coord coord_of(struct digits digits)
{
    const int *d = digits.of;
    return (struct mesh_coord){.tp = d[0], .cp = d[1], .ep = d[2], .dp = d[3], .pp = d[4]};
}

struct mesh_coord mesh_coord(const struct mesh *mesh, enum mesh_kind kind, int rank)
{
    CHECK_USE(mesh_check(mesh));
    CHECK(rank >= 0 && rank < mesh->world);
    struct digits radix = radices(mesh, kind), digit;
    for (int i = 0; i < AXIS_COUNT; i++) {
        int axis = mesh->order[i];
        digit.of[axis] = rank % radix.of[axis];
        rank /= radix.of[axis];
    }
    return coord_of(digit);
}

int mesh_rank(const struct mesh *mesh, enum mesh_kind kind, struct mesh_coord coord)
{
    struct digits radix = radices(mesh, kind), digit = digits_of(coord);
    int rank = 0;
    for (int i = AXIS_COUNT - 1; i >= 0; i--) {
        int axis = mesh->order[i];
        CHECK(digit.of[axis] >= 0 && digit.of[axis] < radix.of[axis]);
        rank = rank * radix.of[axis] + digit.of[axis];
    }
    return rank;
}

bool mesh_coincide(const struct mesh *mesh)
{
    return mesh->degrees.ep == 1 && mesh->degrees.etp == mesh->degrees.tp;
}

int mesh_group(const struct mesh *mesh, enum mesh_kind kind, int axes, int rank, int *out)
{
    struct digits radix = radices(mesh, kind);
    struct digits digit = digits_of(mesh_coord(mesh, kind, rank));
    int count = 1;
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        if ((axes & (1 << axis)) != 0)
            count *= radix.of[axis];

    for (int member = 0; member < count; member++) {
        int rest = member;
        for (int axis = 0; axis < AXIS_COUNT; axis++) {
            if ((axes & (1 << axis)) == 0)
                continue;
            digit.of[axis] = rest % radix.of[axis];
            rest /= radix.of[axis];
        }
        out[member] = mesh_rank(mesh, kind, coord_of(digit));
    }
    return count;
}

const char *axes_text(int axes, char out[AXES_TEXT_CHARS])
{
    size_t length = 0;
    out[0] = 0;
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        if ((axes & (1 << axis)) == 0)
            continue;
        int added =
            snprintf(out + length, AXES_TEXT_CHARS - length, "%s%s", length > 0 ? "|" : "", axis_names[axis]);
        length += (size_t)added;
    }
    return out;
}

const char *mesh_axes_text(const struct mesh *mesh, int axes, char out[AXES_TEXT_CHARS])
{
    int used = axes;
    if (mesh->degrees.cp == 1)
        used &= ~AXIS_CP;
    if (mesh->degrees.ep == 1)
        used &= ~AXIS_EP;
    return axes_text(used != 0 ? used : axes, out);
}

/* Returns the axis of this name; -1 if there is none. */
static int axis_named(const char *name, size_t length)
{
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        if (strlen(axis_names[axis]) == length && memcmp(axis_names[axis], name, length) == 0)
            return axis;
    return -1;
}

static enum status order_parse(const char *text, int order[AXIS_COUNT])
{
    bool seen[AXIS_COUNT] = {false};
    int count = 0;
    const char *at = text;
    for (bool more = true; more;) {
        size_t length = strcspn(at, "-");
        int axis = axis_named(at, length);
        if (axis < 0)
            return fail(BAD_RECIPE,
                        "parallel.rank_order \"%s\": \"%.*s\" is not an axis; join the five axes with -, for "
                        "example %s",
                        text, (int)(length < 20 ? length : 20), at, default_order);
        if (seen[axis])
            return fail(BAD_RECIPE,
                        "parallel.rank_order \"%s\": %s is listed twice; list each axis once, as in %s", text,
                        axis_names[axis], default_order);
        seen[axis] = true;
        order[count++] = axis;
        more = at[length] == '-';
        at += length + (more ? 1 : 0);
    }
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        if (!seen[axis])
            return fail(BAD_RECIPE,
                        "parallel.rank_order \"%s\": %s is missing; list each axis once, as in %s", text,
                        axis_names[axis], default_order);
    return OK;
}

/* Returns the largest divisor of n up to `limit`. */
static int divisor_below(int n, int limit)
{
    int below = limit < n ? limit : n;
    while (n % below != 0)
        below--;
    return below;
}

static enum status experts_check(struct degrees d)
{
    int ranks = d.tp * d.dp * d.cp, replicas = ranks / d.etp;
    if (d.etp < 1 || ranks % d.etp != 0)
        return fail(
            BAD_RECIPE,
            "the expert tensor-parallel degree %d does not divide tp %d x dp %d x cp %d = %d; %d does", d.etp,
            d.tp, d.dp, d.cp, ranks, divisor_below(ranks, d.etp < 1 ? 1 : d.etp));
    if (replicas % d.ep != 0)
        return fail(BAD_RECIPE,
                    "parallel.expert_parallel_size %d does not divide the %d ranks of dp x cp%s; %d does",
                    d.ep, replicas, d.etp != d.tp ? " x tp / expert tp" : "", divisor_below(replicas, d.ep));
    return OK;
}

static enum status degrees_check(struct degrees d, int *world)
{
    const struct {
        const char *key;
        int degree;
    } rows[] = {
        {"tensor_parallel_size", d.tp}, {"context_parallel_size", d.cp},  {"expert_parallel_size", d.ep},
        {"data_parallel_size", d.dp},   {"pipeline_parallel_size", d.pp},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].degree < 1)
            return fail(BAD_RECIPE, "parallel.%s is %d; the minimum is 1", rows[i].key, rows[i].degree);

    int64_t ranks = 1;
    const int factors[] = {d.tp, d.cp, d.dp, d.pp};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        ranks *= factors[i];
        if (ranks > INT_MAX)
            return fail(BAD_RECIPE,
                        "parallel: tp %d x cp %d x dp %d x pp %d exceeds the largest number of ranks (%d)",
                        d.tp, d.cp, d.dp, d.pp, INT_MAX);
    }
    *world = (int)ranks;

    return experts_check(d);
}

/* Returns the product of the radices of the axes faster than pp. */
static int pipeline_stride(const struct mesh *mesh, enum mesh_kind kind)
{
    struct digits radix = radices(mesh, kind);
    int stride = 1;
    for (int i = 0; mesh->order[i] != AXIS_COUNT - 1; i++)
        stride *= radix.of[mesh->order[i]];
    return stride;
}

enum status mesh_check(const struct mesh *mesh)
{
    const struct degrees *d = &mesh->degrees;
    bool seen[AXIS_COUNT] = {false};
    if (d->tp < 1 || d->cp < 1 || d->ep < 1 || d->dp < 1 || d->pp < 1 || d->etp < 1)
        return fail(BAD_ARGUMENT, "mesh: a degree of tp %d cp %d ep %d dp %d pp %d etp %d is below 1", d->tp,
                    d->cp, d->ep, d->dp, d->pp, d->etp);
    if ((int64_t)d->tp * d->cp * d->dp * d->pp != mesh->world)
        return fail(BAD_ARGUMENT, "mesh: tp %d x cp %d x dp %d x pp %d is not %d ranks", d->tp, d->cp, d->dp,
                    d->pp, mesh->world);
    if (mesh->world / d->pp % ((int64_t)d->etp * d->ep) != 0)
        return fail(BAD_ARGUMENT, "mesh: etp %d x ep %d does not divide tp %d x dp %d x cp %d", d->etp, d->ep,
                    d->tp, d->dp, d->cp);
    for (int i = 0; i < AXIS_COUNT; i++) {
        int axis = mesh->order[i];
        if (axis < 0 || axis >= AXIS_COUNT || seen[axis])
            return fail(BAD_ARGUMENT, "mesh: axis %d is invalid or twice in the order of ranks", axis);
        seen[axis] = true;
    }
    if (!mesh_coincide(mesh) && d->pp > 1 &&
        pipeline_stride(mesh, MESH_DENSE) != pipeline_stride(mesh, MESH_EXPERT))
        return fail(BAD_ARGUMENT, "mesh: a rank has other pipeline coordinates on the expert mesh");
    return OK;
}

enum status mesh_create(struct degrees degrees, const char *rank_order, struct mesh *out)
{
    if (degrees.etp == 0)
        degrees.etp = degrees.tp;
    struct mesh mesh = {.degrees = degrees};
    TRY(degrees_check(degrees, &mesh.world));
    TRY(order_parse(rank_order != NULL ? rank_order : default_order, mesh.order));
    if (!mesh_coincide(&mesh) && degrees.pp > 1 &&
        pipeline_stride(&mesh, MESH_DENSE) != pipeline_stride(&mesh, MESH_EXPERT))
        return fail(
            BAD_RECIPE,
            "parallel.rank_order \"%s\": with expert_parallel_size %d the expert and dense meshes would "
            "disagree on the ranks of a pipeline stage; put pp last, as in %s",
            rank_order, degrees.ep, default_order);
    TRY(mesh_check(&mesh));
    *out = mesh;
    return OK;
}
