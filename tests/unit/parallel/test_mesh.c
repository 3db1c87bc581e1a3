// SPDX-License-Identifier: Apache-2.0
#include "parallel/mesh.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct mesh make_mesh(struct degrees degrees, const char *order)
{
    struct mesh mesh;
    cr_assert_eq(mesh_create(degrees, order, &mesh), OK, "%s", fail_text());
    return mesh;
}

/* "0 2 8 10": the group of `rank`, as text. */
static const char *group_text(const struct mesh *mesh, enum mesh_kind kind, int axes, int rank, char out[256])
{
    int ranks[256];
    size_t length = 0;
    int count = mesh_group(mesh, kind, axes, rank, ranks);
    for (int i = 0; i < count; i++)
        length += (size_t)snprintf(out + length, 256 - length, "%s%d", i > 0 ? " " : "", ranks[i]);
    return out;
}

Test(mesh, has_the_coordinates_of_the_figure)
{
    struct mesh mesh = make_mesh((struct degrees){.tp = 2, .cp = 1, .ep = 1, .dp = 2, .pp = 2}, NULL);
    cr_assert_eq(mesh.world, 8);
    struct mesh_coord coord = mesh_coord(&mesh, MESH_DENSE, 5);
    cr_assert(coord.tp == 1 && coord.dp == 0 && coord.pp == 1 && coord.cp == 0 && coord.ep == 0);
}

/* Groups of Megatron-LM's RankGenerator for the same degrees and order. */
Test(mesh, has_the_groups_of_megatron)
{
    char text[256];
    struct mesh m =
        make_mesh((struct degrees){.tp = 2, .cp = 2, .ep = 1, .dp = 2, .pp = 2}, "tp-cp-ep-pp-dp");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_TP, 9, text), "8 9");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_CP, 9, text), "9 11");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_PP, 9, text), "9 13");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_DP, 9, text), "1 9");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_DP | AXIS_CP, 8, text), "0 2 8 10");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_TP | AXIS_PP, 0, text), "0 1 4 5");

    m = make_mesh((struct degrees){.tp = 2, .cp = 1, .ep = 4, .dp = 32, .pp = 1}, "tp-cp-ep-pp-dp");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_EP, 11, text), "9 11 13 15");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_DP, 11, text), "3 11 19 27 35 43 51 59");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_TP | AXIS_EP, 11, text), "8 9 10 11 12 13 14 15");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_TP, 11, text), "10 11");

    m = make_mesh((struct degrees){.tp = 4, .cp = 1, .ep = 4, .dp = 4, .pp = 8}, NULL);
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_PP, 3, text), "3 19 35 51 67 83 99 115");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_PP, 3, text), "3 19 35 51 67 83 99 115");
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_DP, 16, text), "16 20 24 28");
}

/* Experts with a tensor degree of their own: etp 1, ep 4, edp 2 of tp 4 x dp 2. Groups of Megatron-LM's
 * RankGenerator for expert_tensor_parallel_size 1. */
Test(mesh, has_an_expert_tensor_degree)
{
    char text[256];
    struct degrees degrees = {.tp = 4, .cp = 1, .ep = 4, .dp = 2, .pp = 2, .etp = 1};
    struct mesh m = make_mesh(degrees, NULL);
    cr_assert_str_eq(group_text(&m, MESH_DENSE, AXIS_TP, 5, text), "4 5 6 7");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_TP, 5, text), "5");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_EP, 5, text), "4 5 6 7");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_DP, 5, text), "1 5");
    cr_assert_str_eq(group_text(&m, MESH_EXPERT, AXIS_PP, 5, text), "5 13");
    cr_assert(!mesh_coincide(&m));
    degrees.ep = 1;
    degrees.etp = 0; // tp
    m = make_mesh(degrees, NULL);
    cr_assert(mesh_coincide(&m));
    for (int rank = 0; rank < m.world; rank++) {
        struct mesh_coord dense = mesh_coord(&m, MESH_DENSE, rank),
                          expert = mesh_coord(&m, MESH_EXPERT, rank);
        cr_assert(dense.tp == expert.tp && dense.dp == expert.dp && dense.pp == expert.pp);
    }
}

/* All 120 orders: coordinate and rank are inverse, every group contains its rank exactly once, and is the
 * same list for each of its members. */
static void check_one(const struct mesh *mesh, enum mesh_kind kind)
{
    for (int rank = 0; rank < mesh->world; rank++)
        cr_assert_eq(mesh_rank(mesh, kind, mesh_coord(mesh, kind, rank)), rank);
    for (int axes = 0; axes < 1 << AXIS_COUNT; axes++) {
        int mine[64], theirs[64];
        for (int rank = 0; rank < mesh->world; rank++) {
            int count = mesh_group(mesh, kind, axes, rank, mine), met = 0;
            for (int i = 0; i < count; i++) {
                met += mine[i] == rank;
                cr_assert_eq(mesh_group(mesh, kind, axes, mine[i], theirs), count);
                cr_assert_eq(memcmp(mine, theirs, (size_t)count * sizeof *mine), 0);
            }
            cr_assert_eq(met, 1);
        }
    }
}

Test(mesh, accepts_any_rank_order)
{
    const char *names[] = {"tp", "cp", "ep", "dp", "pp"};
    int checked = 0;
    for (int code = 0; code < 5 * 5 * 5 * 5 * 5; code++) {
        int at[5] = {code % 5, code / 5 % 5, code / 25 % 5, code / 125 % 5, code / 625}, seen = 0;
        for (int i = 0; i < 5; i++)
            seen |= 1 << at[i];
        if (seen != 31)
            continue;
        char order[32];
        snprintf(order, sizeof order, "%s-%s-%s-%s-%s", names[at[0]], names[at[1]], names[at[2]],
                 names[at[3]], names[at[4]]);
        struct mesh mesh = make_mesh((struct degrees){.tp = 2, .cp = 2, .ep = 1, .dp = 3, .pp = 2}, order);
        check_one(&mesh, MESH_DENSE);
        checked++;
    }
    cr_assert_eq(checked, 120);
    struct mesh experts =
        make_mesh((struct degrees){.tp = 2, .cp = 1, .ep = 2, .dp = 4, .pp = 2}, "ep-tp-dp-cp-pp");
    check_one(&experts, MESH_EXPERT);
    experts = make_mesh((struct degrees){.tp = 4, .cp = 1, .ep = 2, .dp = 3, .pp = 2, .etp = 2}, NULL);
    check_one(&experts, MESH_EXPERT);
}

/* Sums are in group order, so the placement of a group's ranks must not change their order. */
Test(mesh, orders_groups_by_coordinates_for_any_rank_order)
{
    const char *orders[] = {"tp-cp-ep-dp-pp", "tp-dp-ep-cp-pp", "pp-dp-tp-ep-cp"};
    for (size_t i = 0; i < 3; i++) {
        struct mesh mesh =
            make_mesh((struct degrees){.tp = 2, .cp = 2, .ep = 1, .dp = 3, .pp = 2}, orders[i]);
        int ranks[24];
        cr_assert_eq(mesh_group(&mesh, MESH_DENSE, AXIS_CP | AXIS_DP, 7, ranks), 6);
        for (int member = 0; member < 6; member++) {
            struct mesh_coord coord = mesh_coord(&mesh, MESH_DENSE, ranks[member]);
            cr_assert(coord.cp == member % 2 && coord.dp == member / 2);
        }
    }
}

static void expect_rejected(struct degrees degrees, const char *order, const char *words)
{
    struct mesh mesh;
    cr_assert_eq(mesh_create(degrees, order, &mesh), BAD_RECIPE);
    cr_assert(strstr(fail_text(), words) != NULL, "\"%s\" lacks \"%s\"", fail_text(), words);
}

Test(mesh, rejects_invalid_options)
{
    struct degrees good = {.tp = 2, .cp = 1, .ep = 1, .dp = 2, .pp = 2};
    expect_rejected(good, "tp-cp-ep-dp", "pp is missing");
    expect_rejected(good, "tp-cp-ep-dp-pp-tp", "tp is listed twice");
    expect_rejected(good, "tp-cp-ep-dp-xp", "\"xp\" is not an axis");
    expect_rejected(good, "", "\"\" is not an axis");
    expect_rejected(good, "tp-cp-ep-dp-pp-", "\"\" is not an axis");
    expect_rejected((struct degrees){.tp = 0, .cp = 1, .ep = 1, .dp = 1, .pp = 1}, NULL,
                    "tensor_parallel_size is 0");
    expect_rejected((struct degrees){.tp = 1, .cp = 2, .ep = 4, .dp = 3, .pp = 1}, NULL, "3 does");
    expect_rejected((struct degrees){.tp = 4, .cp = 1, .ep = 1, .dp = 2, .pp = 1, .etp = 3}, NULL, "2 does");
    expect_rejected((struct degrees){.tp = 4, .cp = 1, .ep = 2, .dp = 2, .pp = 1, .etp = 8}, NULL, "1 does");
    expect_rejected((struct degrees){.tp = 4, .cp = 1, .ep = 1, .dp = 2, .pp = 2, .etp = 2}, "tp-pp-dp-cp-ep",
                    "put pp last");
    expect_rejected((struct degrees){.tp = 65536, .cp = 1, .ep = 1, .dp = 65536, .pp = 65536}, NULL,
                    "largest number of ranks");
    expect_rejected((struct degrees){.tp = 2, .cp = 2, .ep = 8, .dp = 8, .pp = 2}, "tp-cp-ep-pp-dp",
                    "put pp last");
}

Test(mesh, writes_sets_of_axes)
{
    char text[AXES_TEXT_CHARS];
    cr_assert_str_eq(axes_text(AXIS_TP, text), "tp");
    cr_assert_str_eq(axes_text(AXIS_DP | AXIS_CP, text), "cp|dp");
    cr_assert_str_eq(axes_text(31, text), "tp|cp|ep|dp|pp");
    cr_assert_str_eq(axes_text(0, text), "");
    const struct mesh dense = {.degrees = {.tp = 2, .cp = 1, .ep = 1, .dp = 2, .pp = 1}},
                      mixed = {.degrees = {.tp = 2, .cp = 2, .ep = 1, .dp = 2, .pp = 1}};
    cr_assert_str_eq(mesh_axes_text(&dense, AXIS_DP | AXIS_CP, text), "dp");
    cr_assert_str_eq(mesh_axes_text(&dense, AXIS_CP, text), "cp");
    cr_assert_str_eq(mesh_axes_text(&mixed, AXIS_DP | AXIS_CP | AXIS_EP, text), "cp|dp");
}

/* ---- invariants ---- */

static void expect_detected(const struct mesh *mesh, const char *words)
{
    cr_expect_eq(mesh_check(mesh), BAD_ARGUMENT, "%s was not detected", words);
    cr_expect_str_eq(fail_text(), words);
}

Test(mesh, detects_an_inconsistent_mesh)
{
    const struct mesh good = make_mesh((struct degrees){.tp = 2, .cp = 1, .ep = 2, .dp = 4, .pp = 2}, NULL);
    cr_assert_eq(mesh_check(&good), OK);
    struct mesh bad = good;
    bad.degrees.cp = 0;
    expect_detected(&bad, "mesh: a degree of tp 2 cp 0 ep 2 dp 4 pp 2 etp 2 is below 1");
    bad = good;
    bad.world = 8;
    expect_detected(&bad, "mesh: tp 2 x cp 1 x dp 4 x pp 2 is not 8 ranks");
    bad = good;
    bad.degrees.ep = 3;
    expect_detected(&bad, "mesh: etp 2 x ep 3 does not divide tp 2 x dp 4 x cp 1");
    bad = good;
    bad.order[1] = bad.order[0];
    expect_detected(&bad, "mesh: axis 0 is invalid or twice in the order of ranks");
    bad.order[1] = AXIS_COUNT;
    expect_detected(&bad, "mesh: axis 5 is invalid or twice in the order of ranks");
    bad = make_mesh((struct degrees){.tp = 2, .cp = 1, .ep = 1, .dp = 4, .pp = 2}, "ep-pp-dp-tp-cp");
    bad.degrees.ep = 2; // before pp on the expert mesh only
    expect_detected(&bad, "mesh: a rank has other pipeline coordinates on the expert mesh");
}
