// SPDX-License-Identifier: Apache-2.0
/* Shards, without files: every tensor of a model is a function of name, state and global index. It is cut
 * into shards on one layout and reassembled on another, for all pairs of layouts, and each element must
 * equal the function's value; so swapped rows and columns, or a missing shard, cannot cancel. */
#include "layers/model.h"
#include "trainer/checkpoint/distribute/save_plan.h"
#include "trainer/checkpoint/format/tiling.h"

#include "schedules/schedule.h"
#include "tests/fixtures/model_family.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct model_config model_at(int index)
{
    static const struct model_config gpt2 = {.num_layers = 5,
                                             .hidden_size = 24,
                                             .num_attention_heads = 6,
                                             .ffn_hidden_size = 36,
                                             .seq_length = 7,
                                             .vocab_size = 31,
                                             .make_vocab_size_divisible_by = 4};
    static const struct model_config llama = {.num_layers = 4,
                                              .hidden_size = 12,
                                              .num_attention_heads = 12,
                                              .num_query_groups = 2,
                                              .ffn_hidden_size = 24,
                                              .kv_channels = 2,
                                              .seq_length = 8,
                                              .vocab_size = 29};
    return index == 0 ? gpt2_model(gpt2) : llama_model(llama);
}

enum { MODELS = 2 };

static const struct layout_case {
    int tp, dp, pp;
    const char *rank_order, *schedule;
    int first[9]; // layer of each stage; all 0: even
} layouts[] = {
    {1, 1, 1, NULL, "1f1b", {0}},
    {2, 2, 2, NULL, "1f1b", {0}},
    {6, 1, 1, NULL, "gpipe", {0}},
    {3, 1, 4, "pp-dp-tp-ep-cp", "zb-h1", {0, 0, 1, 3}},
    {1, 3, 2, "dp-pp-cp-ep-tp", "1f1b", {0, 3}},
    {2, 1, 2, NULL, "interleaved", {0, 1, 1, 2}},
    {2, 1, 2, NULL, "zb-v", {0, 1, 2, 3}},
    {2, 2, 2, NULL, "dualpipe", {0, 2}},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* A hand-made run, and the parameter descriptors of its model. */
struct plan {
    struct run run;
    struct params params;
};

static void plan_open(const struct model_config *model, const struct layout_case *layout, struct plan *out)
{
    static const struct recipe no_zero;
    struct run *run = &out->run;
    struct degrees degrees = {.tp = layout->tp, .cp = 1, .ep = 1, .dp = layout->dp, .pp = layout->pp};
    struct schedule_options options = {.name = layout->schedule, .p = layout->pp, .m = 8};
    *out = (struct plan){.run = {.recipe = &no_zero}};
    cr_assert_eq(mesh_create(degrees, layout->rank_order, &run->mesh), OK, "%s", fail_text());
    cr_assert_eq(schedule_build(&options, &run->schedule), OK, "%s", fail_text());
    cr_assert_eq(params_declare(model, &degrees, layout->tp > 1, &out->params), OK);
    int stages = run->schedule->stages;
    run->stage_first_layer = calloc((size_t)stages + 1, sizeof *run->stage_first_layer);
    for (int s = 0; s < stages; s++)
        run->stage_first_layer[s] = layout->first[1] != 0 || layout->first[2] != 0 ? layout->first[s] : 0;
    if (stages > 1 && layout->first[1] == 0 && layout->first[2] == 0)
        for (int s = 0; s < stages; s++)
            run->stage_first_layer[s] = (int)model->num_layers * s / stages;
    run->stage_first_layer[stages] = (int)model->num_layers;
}

static void plan_close(struct plan *plan)
{
    schedule_destroy(plan->run.schedule);
    free(plan->run.stage_first_layer);
    params_free(&plan->params);
}

/* A different value for each element, small enough to be exact in fp32. */
static float element(int row, int state, int64_t i, int64_t j)
{
    return (float)(((row * STATE_COUNT + state) * 64 + i) * 64 + j);
}

/* Whether the pipeline rank holds the layer, as one of its chunks. */
static bool holds(const struct run *run, int pp, int layer)
{
    const struct schedule *schedule = run->schedule;
    for (int chunk = 0; chunk < schedule->chunks; chunk++) {
        int stage = schedule_stage(schedule, pp, chunk), last = schedule->stages - 1;
        bool inside = layer >= run->stage_first_layer[stage] && layer < run->stage_first_layer[stage + 1];
        if (inside || (layer == LAYER_EMBEDDING && stage == 0) ||
            (layer == run->stage_first_layer[last + 1] && stage == last))
            return true;
    }
    return false;
}

/* All shards of all ranks, and the elements of each. */
struct shard_set {
    struct shard *shards; // sorted by name in check_tiling()
    int count;
    float **values; // by shard.file: here its own index
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

/* Sorts the shards, and checks that those of each tensor tile it. */
static enum status check_tiling(struct shard_set *set)
{
    qsort(set->shards, (size_t)set->count, sizeof *set->shards, by_name);
    for (int i = 0, same; i < set->count; i += same) {
        for (same = 1; i + same < set->count && by_name(&set->shards[i], &set->shards[i + same]) == 0;)
            same++;
        TRY(shards_tile(&set->shards[i], same, "here"));
    }
    return OK;
}

/* The first of the *count shards of a tensor, once they are sorted. */
static struct shard *shards_of(const struct shard_set *set, const char *name, int *count)
{
    struct shard *first = NULL;
    *count = 0;
    for (int i = set->count - 1; i >= 0; i--)
        if (strcmp(set->shards[i].name, name) == 0) {
            first = &set->shards[i];
            (*count)++;
        }
    return first;
}

/* Adds a shard with the position and size of a slice; the caller appends its values. */
static struct shard *shard_add(struct shard_set *set, const struct param *row, const struct slice *slice)
{
    struct shard *shard = &set->shards[set->count];
    *shard = (struct shard){.file = set->count, .slice = *slice};
    memcpy(shard->dim, row->dim, sizeof shard->dim);
    return shard;
}

static void shards_of_all_ranks(const struct plan *plan, struct shard_set *out)
{
    size_t most = (size_t)plan->params.count * STATE_COUNT * (size_t)plan->run.mesh.world;
    *out = (struct shard_set){.shards = calloc(most, sizeof *out->shards),
                              .values = calloc(most, sizeof *out->values)};
    for (int rank = 0; rank < plan->run.mesh.world; rank++) {
        struct save_plan share;
        save_plan_of_rank(&plan->run, &plan->params, NULL, rank, &share);
        for (int p = 0; p < share.count; p++)
            for (enum state state = 0; state < STATE_COUNT; state++) {
                int r = share.parts[p].param;
                const struct param *row = &plan->params.list[r];
                cr_assert(holds(&plan->run, mesh_coord(&plan->run.mesh, row->mesh, rank).pp, row->layer));
                struct shard *shard = shard_add(out, row, &share.parts[p].slice);
                state_name(state, row->name, shard->name);
                float *values = calloc((size_t)slice_count(&shard->slice), sizeof *values);
                for (int64_t i = 0; i < slice_count(&shard->slice); i++)
                    values[i] = element(r, state, shard->slice.begin[0] + i / shard->slice.count[1],
                                        shard->slice.begin[1] + i % shard->slice.count[1]);
                out->values[out->count++] = values;
            }
        save_plan_free(&share);
    }
}

static void shard_set_free(struct shard_set *set)
{
    for (int i = 0; i < set->count; i++)
        free(set->values[i]);
    free(set->values);
    free(set->shards);
}

/* Assembles the slice of one rank from the shards, passed in chunks of all lengths. */
static void check_slice(const struct shard_set *set, const struct plan *plan, int r, enum state state,
                        int rank)
{
    const struct param *row = &plan->params.list[r];
    int original = row->tie >= 0 ? row->tie : r;
    struct mesh_coord coord = mesh_coord(&plan->run.mesh, row->mesh, rank);
    struct slice want = shard_slice(row->ndim, row->dim, row->shardings, row->sharding_count, coord);
    float *local = calloc((size_t)slice_padded(&want) + 1, sizeof *local);
    char name[SHARD_NAME_CHARS];
    int count;
    state_name(state, plan->params.list[original].name, name);
    const struct shard *shards = shards_of(set, name, &count);
    cr_assert(shards != NULL && count >= 1, "%s", name);
    struct slice common;
    int64_t given = 0, chunk = 1 + (r + rank) % 11;
    for (int p = 0; p < count; p++) {
        int64_t here = 0, elements = slice_count(&shards[p].slice);
        for (int64_t at = 0; at < elements; at += chunk)
            here += shard_copy(&shards[p], at, elements - at < chunk ? elements - at : chunk,
                               set->values[shards[p].file] + at, &want, local);
        cr_assert_eq(here > 0, slice_intersect(&shards[p].slice, &want, &common));
        cr_assert_eq(here, here > 0 ? slice_count(&common) : 0);
        given += here;
    }
    cr_assert_eq(given, slice_count(&want));
    for (int64_t i = 0; i < want.padded[0]; i++)
        for (int64_t j = 0; j < want.padded[1]; j++) {
            bool real = i < want.count[0] && j < want.count[1];
            float expected = real ? element(original, state, want.begin[0] + i, want.begin[1] + j) : 0.0F;
            cr_assert(local[i * want.padded[1] + j] == expected, "%s [%d, %d] on rank %d", name, (int)i,
                      (int)j, rank);
        }
    free(local);
}

static void check_pair(const struct model_config *model, const struct layout_case *from,
                       const struct layout_case *to)
{
    struct plan writer, reader;
    struct shard_set set;
    plan_open(model, from, &writer);
    plan_open(model, to, &reader);
    shards_of_all_ranks(&writer, &set);
    cr_assert_eq(check_tiling(&set), OK, "%s", fail_text());
    for (int r = 0; r < reader.params.count; r++)
        for (enum state state = 0; state < STATE_COUNT; state++)
            for (int rank = 0; rank < reader.run.mesh.world; rank++)
                check_slice(&set, &reader, r, state, rank);
    shard_set_free(&set);
    plan_close(&writer);
    plan_close(&reader);
}

Test(checkpoint_shard, any_layout_loads_on_any_other)
{
    for (int m = 0; m < MODELS; m++) {
        struct model_config model = model_at(m);
        for (int from = 0; from < LAYOUTS; from++)
            for (int to = 0; to < LAYOUTS; to++)
                check_pair(&model, &layouts[from], &layouts[to]);
    }
}

/* Every element has one writer, whatever the layout, and the writers of a replica group have the same
 * number of elements up to a row each. */
Test(checkpoint_shard, replicas_share_the_writing)
{
    const struct model_config model = model_at(0);
    for (int l = 0; l < LAYOUTS; l++) {
        struct plan plan;
        int64_t elements[16][8] = {{0}}; // [pipeline and tensor coordinate][writer]
        int writers[16] = {0};
        plan_open(&model, &layouts[l], &plan);
        bool mirrored = schedule_has_replicas(plan.run.schedule);
        for (int rank = 0; rank < plan.run.mesh.world; rank++) {
            struct save_plan share;
            struct mesh_coord coord = mesh_coord(&plan.run.mesh, MESH_DENSE, rank);
            int pp = mirrored && coord.pp >= layouts[l].pp / 2 ? layouts[l].pp - 1 - coord.pp : coord.pp;
            int group = pp * layouts[l].tp + coord.tp;
            save_plan_of_rank(&plan.run, &plan.params, NULL, rank, &share);
            for (int p = 0; p < share.count; p++) {
                elements[group][writers[group]] += slice_count(&share.parts[p].slice);
                cr_expect(p == 0 || share.parts[p].param > share.parts[p - 1].param);
            }
            writers[group]++;
            save_plan_free(&share);
        }
        for (int g = 0; g < layouts[l].tp * layouts[l].pp; g++)
            for (int i = 1; i < writers[g]; i++)
                cr_expect(llabs(elements[g][i] - elements[g][0]) <= 2 * 36, "layout %d: %lld and %lld", l,
                          (long long)elements[g][i], (long long)elements[g][0]);
        plan_close(&plan);
    }
}

/* The covers of all ranks add up to that of the whole tensors; not if a shard is lost, doubled or moved. */
Test(checkpoint_shard, covers_detect_missing_and_overlapping_shards)
{
    const struct model_config model = model_at(0);
    for (int l = 0; l < LAYOUTS; l++) {
        struct plan plan;
        struct shard_set set;
        struct cover whole = {0};
        plan_open(&model, &layouts[l], &plan);
        shards_of_all_ranks(&plan, &set);
        cr_assert_eq(check_tiling(&set), OK, "%s", fail_text());
        for (int i = 0; i < set.count; i++)
            if (i == 0 || by_name(&set.shards[i - 1], &set.shards[i]) != 0)
                cover_add_whole(&whole, &set.shards[i]);
        for (int fault = -1; fault < 4; fault++) {
            struct cover sum = {0};
            struct shard *one = &set.shards[set.count / 2];
            const struct shard kept = *one;
            one->slice.begin[0] += fault == 0;
            one->dim[0] += fault == 1;
            one->dtype = fault == 2 ? SAFETENSORS_BF16 : one->dtype;
            for (int i = fault == 3; i < set.count; i++)
                cover_add(&sum, &set.shards[i]);
            cr_expect_eq(cover_equal(&sum, &whole), fault < 0, "layout %d, fault %d", l, fault);
            *one = kept;
        }
        shard_set_free(&set);
        plan_close(&plan);
    }
}

/* A parameter unlike those of models: split in either dimension, unevenly, padded, with empty shards. */
static struct param random_row(uint32_t *random, int tp)
{
    int draw[5];
    for (int i = 0; i < 5; i++) {
        *random = *random * 1664525U + 1013904223U;
        draw[i] = (int)(*random >> 20);
    }
    struct param row = {.name = "random", .ndim = 2, .dim = {1 + draw[0] % 13, 1 + draw[1] % 13}, .tie = -1};
    row.shardings[0] =
        (struct sharding){.dim = draw[2] % 2, .axes = AXIS_TP, .parts = tp, .replicas = 1, .multiple = 1};
    row.shardings[0].multiple = 1 + draw[3] % 4;
    row.sharding_count = draw[4] % 4 > 0;
    return row;
}

/* A rank's memory, with noise in the padding, as a shard. */
static void add_random_shard(struct shard_set *set, const struct param *row, const struct slice *slice)
{
    struct shard *shard = shard_add(set, row, slice);
    snprintf(shard->name, sizeof shard->name, "%s", row->name);
    float *local = calloc((size_t)slice_padded(slice) + 1, sizeof *local);
    for (int64_t i = 0; i < slice->padded[0]; i++)
        for (int64_t j = 0; j < slice->padded[1]; j++)
            local[i * slice->padded[1] + j] = i < slice->count[0] && j < slice->count[1]
                                                  ? element(0, 0, slice->begin[0] + i, slice->begin[1] + j)
                                                  : -1.0F;
    shard_remove_padding(slice, local, sizeof *local);
    set->values[set->count++] = local;
}

Test(checkpoint_shard, any_shard_of_any_dimension)
{
    const struct model_config model = model_at(0);
    uint32_t random = 9;
    for (int round = 0; round < sampled(500); round++) {
        struct plan writer, reader;
        plan_open(&model, &layouts[round % 2 == 0 ? 2 : 1], &writer);
        plan_open(&model, &layouts[round % 3 == 0 ? 3 : 1], &reader);
        struct shard_set set = {.shards = calloc(8, sizeof *set.shards),
                                .values = calloc(8, sizeof *set.values)};
        uint32_t same = random;
        struct param row = random_row(&same, writer.run.mesh.degrees.tp);
        for (int rank = 0; rank < writer.run.mesh.world; rank++) {
            struct save_plan share;
            const struct params one = {.list = &row, .count = 1};
            row.layer = 0;
            save_plan_of_rank(&writer.run, &one, NULL, rank, &share);
            if (share.count > 0)
                add_random_shard(&set, &row, &share.parts[0].slice);
            save_plan_free(&share);
        }
        cr_assert_eq(check_tiling(&set), OK, "%s", fail_text());
        reader.params.list[0] = random_row(&random, reader.run.mesh.degrees.tp);
        memcpy(reader.params.list[0].dim, row.dim, sizeof row.dim);
        for (int rank = 0; rank < reader.run.mesh.world; rank++)
            check_slice(&set, &reader, 0, STATE_VALUE, rank);
        shard_set_free(&set);
        plan_close(&writer);
        plan_close(&reader);
    }
}

Test(checkpoint_shard, detects_missing_and_overlapping_shards)
{
    const struct model_config model = model_at(0);
    struct plan plan;
    plan_open(&model, &layouts[1], &plan);
    for (int fault = 0; fault < 6; fault++) {
        struct shard_set set;
        shards_of_all_ranks(&plan, &set);
        cr_assert_eq(check_tiling(&set), OK);
        int count;
        struct shard *cut = shards_of(&set, "layers.1.mlp.fc2.weight", &count);
        cr_assert_eq(count, 2); // columns 0..18 and 18..36
        const char *expected[] = {
            "here: the shards of layers.1.mlp.fc2.weight contain 432 of its 864 elements",
            "here: two shards of layers.1.mlp.fc2.weight overlap",
            "here: two shards of layers.1.mlp.fc2.weight overlap",
            "here: a shard of layers.1.mlp.fc2.weight exceeds its shape",
            "here: a shard of layers.1.mlp.fc2.weight exceeds its shape",
            "here: a shard of layers.1.mlp.fc2.weight exceeds its shape",
        };
        switch (fault) {
        case 0: // not written by any rank
            snprintf(cut[1].name, sizeof cut[1].name, "%s", "z");
            cut[1].slice.begin[1] = cut[1].dim[1] = 0;
            cut[1].dim[1] = cut[1].slice.count[1];
            break;
        case 1: // written by two ranks
            cut[1].slice.begin[1] = 0;
            break;
        case 2: // one element too far
            cut[1].slice.begin[1]--;
            break;
        case 3:
            cut[1].slice.begin[1]++;
            break;
        case 4: // another shape
            cut[1].dim[0]++;
            break;
        case 5: // integer overflow
            cut[1].slice.begin[1] = INT64_MAX;
            cut[1].slice.count[1] = INT64_MAX;
            break;
        }
        cr_expect_eq(check_tiling(&set), BAD_CHECKPOINT, "fault %d", fault);
        cr_expect_str_eq(fail_text(), expected[fault]);
        shard_set_free(&set);
    }
    plan_close(&plan);
}

Test(checkpoint_shard, text_round_trips_and_other_text_is_rejected)
{
    struct shard shard = {.dim = {257, INT64_MAX}, .slice = {.ndim = 2, .begin = {129, 0}}}, back = {0};
    char text[SHARD_TEXT_CHARS];
    cr_assert_str_eq(shard_text(&shard, text), "129,0 257,9223372036854775807");
    cr_assert(shard_parse(text, 2, &back));
    cr_assert(back.slice.begin[0] == 129 && back.slice.begin[1] == 0 && back.dim[0] == 257 &&
              back.dim[1] == INT64_MAX);
    shard.slice.ndim = 1;
    cr_assert_str_eq(shard_text(&shard, text), "129 257");
    cr_assert(shard_parse(text, 1, &back));
    cr_assert_not(shard_parse(text, 2, &back));
    const char *const wrong[] = {"",
                                 "1",
                                 "1,2",
                                 "1,2 3",
                                 "1,2 3,",
                                 "1,2 3,4 ",
                                 "-1,2 3,4",
                                 "1,2 3,4 5",
                                 " 1,2 3,4",
                                 "1,2  3,4",
                                 "1,2,3 4",
                                 "1,2 3,4,5",
                                 "1,99999999999999999999 3,4"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect_not(shard_parse(wrong[i], 2, &back), "%s", wrong[i]);
}
