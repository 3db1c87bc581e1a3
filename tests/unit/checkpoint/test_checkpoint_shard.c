// SPDX-License-Identifier: Apache-2.0
/* Shards, without files: every tensor of a model is a function of name, state and global index. It is cut
 * into shards on one layout and reassembled on another, for all pairs of layouts, and each element must
 * equal the function's value; so swapped rows and columns, or a missing shard, cannot cancel. */
#include "trainer/checkpoint/format/checkpoint_manifest.h"

#include "schedules/schedule.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const struct model_config models[] = {
    {.num_layers = 5,
     .hidden_size = 24,
     .num_attention_heads = 6,
     .num_query_groups = 6,
     .ffn_hidden_size = 36,
     .kv_channels = 4,
     .seq_length = 7,
     .vocab_size = 31,
     .make_vocab_size_divisible_by = 4,
     .add_bias_linear = true,
     .tie_word_embeddings = true},
    {.num_layers = 4,
     .hidden_size = 12,
     .num_attention_heads = 12,
     .num_query_groups = 2,
     .ffn_hidden_size = 24,
     .kv_channels = 2,
     .seq_length = 8,
     .vocab_size = 29,
     .make_vocab_size_divisible_by = 1,
     .position_embedding = ROPE,
     .normalization = RMS_NORM,
     .activation = SWIGLU},
};
enum { MODELS = sizeof models / sizeof *models };

static const struct where {
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

/* A run by hand, and the rows of its model. */
struct plan {
    struct run run;
    struct params params;
};

static void plan_open(const struct model_config *model, const struct where *layout, struct plan *out)
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

/* Exact in f32: rows are few. */
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
struct stock {
    struct manifest manifest;
    float **values; // by shard.file: here its own index
};

static void stock_take(const struct plan *plan, struct stock *out)
{
    size_t most = (size_t)plan->params.count * STATE_COUNT * (size_t)plan->run.mesh.world;
    *out = (struct stock){.values = calloc(most, sizeof *out->values)};
    struct manifest *m = &out->manifest;
    m->shards = calloc(most, sizeof *m->shards);
    for (int rank = 0; rank < plan->run.mesh.world; rank++) {
        bool any = false;
        for (int r = 0; r < plan->params.count; r++)
            for (enum state state = 0; state < STATE_COUNT; state++) {
                const struct param *row = &plan->params.rows[r];
                struct slice slice;
                if (!shard_of_rank(&plan->run, row, rank, &slice))
                    continue;
                cr_assert(holds(&plan->run, mesh_coord(&plan->run.mesh, row->mesh, rank).pp, row->layer));
                struct shard *shard = &m->shards[m->shard_count];
                *shard = (struct shard){.file = m->shard_count, .ndim = row->ndim};
                state_name(state, row->name, shard->name);
                memcpy(shard->dim, row->dim, sizeof shard->dim);
                memcpy(shard->begin, slice.begin, sizeof shard->begin);
                memcpy(shard->count, slice.count, sizeof shard->count);
                float *values = calloc((size_t)shard_elements(shard), sizeof *values);
                for (int64_t i = 0; i < shard_elements(shard); i++)
                    values[i] = element(r, state, shard->begin[0] + i / shard->count[1],
                                        shard->begin[1] + i % shard->count[1]);
                out->values[m->shard_count++] = values;
                any = true;
            }
        cr_assert_eq(any, shard_of_rank_any(&plan->run, &plan->params, rank));
    }
}

static void stock_free(struct stock *stock)
{
    for (int i = 0; i < stock->manifest.shard_count; i++)
        free(stock->values[i]);
    free(stock->values);
    manifest_free(&stock->manifest);
}

/* Assembles the slice of one rank from the shards, passed in chunks of all lengths. */
static void check_slice(const struct stock *stock, const struct plan *plan, int r, enum state state, int rank)
{
    const struct param *row = &plan->params.rows[r];
    int original = row->tie >= 0 ? row->tie : r;
    struct mesh_coord coord = mesh_coord(&plan->run.mesh, row->mesh, rank);
    struct slice want = shard_slice(row->ndim, row->dim, row->cuts, row->cut_count, coord);
    float *local = calloc((size_t)slice_padded(&want) + 1, sizeof *local);
    char name[SHARD_NAME_CHARS];
    int count;
    state_name(state, plan->params.rows[original].name, name);
    const struct shard *shards = manifest_find(&stock->manifest, name, &count);
    cr_assert(shards != NULL && count >= 1, "%s", name);
    int64_t given = 0, chunk = 1 + (r + rank) % 11;
    for (int p = 0; p < count; p++) {
        int64_t here = 0, elements = shard_elements(&shards[p]);
        for (int64_t at = 0; at < elements; at += chunk)
            here += shard_copy(&shards[p], at, elements - at < chunk ? elements - at : chunk,
                               stock->values[shards[p].file] + at, &want, local);
        cr_assert_eq(here > 0, shard_overlaps(&shards[p], &want));
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

static void check_pair(const struct model_config *model, const struct where *from, const struct where *to)
{
    struct plan writer, reader;
    struct stock stock;
    plan_open(model, from, &writer);
    plan_open(model, to, &reader);
    stock_take(&writer, &stock);
    cr_assert_eq(manifest_complete(&stock.manifest, "here"), OK, "%s", fail_text());
    for (int r = 0; r < reader.params.count; r++)
        for (enum state state = 0; state < STATE_COUNT; state++)
            for (int rank = 0; rank < reader.run.mesh.world; rank++)
                check_slice(&stock, &reader, r, state, rank);
    stock_free(&stock);
    plan_close(&writer);
    plan_close(&reader);
}

Test(checkpoint_shard, any_layout_loads_on_any_other)
{
    for (int m = 0; m < MODELS; m++)
        for (int from = 0; from < LAYOUTS; from++)
            for (int to = 0; to < LAYOUTS; to++)
                check_pair(&models[m], &layouts[from], &layouts[to]);
}

/* Rows that no model has yet: split in either dimension, unevenly, padded, with empty shards. */
static struct param random_row(uint32_t *random, int tp)
{
    int dice[5];
    for (int i = 0; i < 5; i++) {
        *random = *random * 1664525U + 1013904223U;
        dice[i] = (int)(*random >> 20);
    }
    struct param row = {.name = "random", .ndim = 2, .dim = {1 + dice[0] % 13, 1 + dice[1] % 13}, .tie = -1};
    row.cuts[0] =
        (struct cut){.dim = dice[2] % 2, .axes = AXIS_TP, .parts = tp, .replicas = 1, .multiple = 1};
    row.cuts[0].multiple = 1 + dice[3] % 4;
    row.cut_count = dice[4] % 4 > 0;
    return row;
}

/* A rank's memory, with noise in the padding, as a shard. */
static void stock_add(struct stock *stock, const struct param *row, const struct slice *slice)
{
    struct shard *shard = &stock->manifest.shards[stock->manifest.shard_count];
    *shard = (struct shard){.file = stock->manifest.shard_count, .ndim = row->ndim, .name = "random"};
    memcpy(shard->dim, row->dim, sizeof shard->dim);
    memcpy(shard->begin, slice->begin, sizeof shard->begin);
    memcpy(shard->count, slice->count, sizeof shard->count);
    float *local = calloc((size_t)slice_padded(slice) + 1, sizeof *local);
    for (int64_t i = 0; i < slice->padded[0]; i++)
        for (int64_t j = 0; j < slice->padded[1]; j++)
            local[i * slice->padded[1] + j] = i < slice->count[0] && j < slice->count[1]
                                                  ? element(0, 0, slice->begin[0] + i, slice->begin[1] + j)
                                                  : -1.0F;
    shard_remove_padding(slice, local, sizeof *local);
    stock->values[stock->manifest.shard_count++] = local;
}

Test(checkpoint_shard, any_shard_of_any_dimension)
{
    uint32_t random = 9;
    for (int round = 0; round < 500; round++) {
        struct plan writer, reader;
        plan_open(&models[0], &layouts[round % 2 == 0 ? 2 : 1], &writer);
        plan_open(&models[0], &layouts[round % 3 == 0 ? 3 : 1], &reader);
        struct stock stock = {.values = calloc(8, sizeof *stock.values)};
        stock.manifest.shards = calloc(8, sizeof *stock.manifest.shards);
        uint32_t same = random;
        struct param row = random_row(&same, writer.run.mesh.degrees.tp);
        for (int rank = 0; rank < writer.run.mesh.world; rank++) {
            struct slice slice;
            row.layer = 0;
            if (shard_of_rank(&writer.run, &row, rank, &slice))
                stock_add(&stock, &row, &slice);
        }
        cr_assert_eq(manifest_complete(&stock.manifest, "here"), OK, "%s", fail_text());
        reader.params.rows[0] = random_row(&random, reader.run.mesh.degrees.tp);
        memcpy(reader.params.rows[0].dim, row.dim, sizeof row.dim);
        for (int rank = 0; rank < reader.run.mesh.world; rank++)
            check_slice(&stock, &reader, 0, STATE_VALUE, rank);
        stock_free(&stock);
        plan_close(&writer);
        plan_close(&reader);
    }
}

Test(checkpoint_shard, the_cover_is_checked)
{
    struct plan plan;
    plan_open(&models[0], &layouts[1], &plan);
    for (int fault = 0; fault < 6; fault++) {
        struct stock stock;
        stock_take(&plan, &stock);
        struct manifest *m = &stock.manifest;
        cr_assert_eq(manifest_complete(m, "here"), OK);
        int count;
        struct shard *cut = (struct shard *)(uintptr_t)manifest_find(m, "layers.1.mlp.fc2.weight", &count);
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
        case 0: // written by no rank
            snprintf(cut[1].name, sizeof cut[1].name, "%s", "z");
            cut[1].begin[1] = cut[1].dim[1] = 0;
            cut[1].dim[1] = cut[1].count[1];
            break;
        case 1: // written by two
            cut[1].begin[1] = 0;
            break;
        case 2: // one element too far
            cut[1].begin[1]--;
            break;
        case 3:
            cut[1].begin[1]++;
            break;
        case 4: // of another shape
            cut[1].dim[0]++;
            break;
        case 5: // and an overflow
            cut[1].begin[1] = INT64_MAX;
            cut[1].count[1] = INT64_MAX;
            break;
        }
        cr_expect_eq(manifest_complete(m, "here"), BAD_CHECKPOINT, "fault %d", fault);
        cr_expect_str_eq(fail_text(), expected[fault]);
        stock_free(&stock);
    }
    plan_close(&plan);
}

Test(checkpoint_shard, text_round_trips_and_other_text_is_rejected)
{
    struct shard shard = {.ndim = 2, .dim = {257, INT64_MAX}, .begin = {129, 0}}, back = {0};
    char text[SHARD_TEXT_CHARS];
    cr_assert_str_eq(shard_text(&shard, text), "129,0 257,9223372036854775807");
    cr_assert(shard_parse(text, 2, &back));
    cr_assert(back.begin[0] == 129 && back.begin[1] == 0 && back.dim[0] == 257 && back.dim[1] == INT64_MAX);
    shard.ndim = 1;
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
