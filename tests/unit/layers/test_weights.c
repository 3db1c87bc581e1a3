// SPDX-License-Identifier: Apache-2.0
/* The weights of one rank: offsets, initial values, and tied weights. */
#include "layers/model.h"
#include "layers/parameters/weights.h"
#include "tests/fixtures/model_family.h"
#include "tests/support/narrow/narrow_reference.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3 };

/* A rank's weights and the objects they depend on. */
struct fixture {
    struct device *device;
    struct stream *stream;
    struct params params;
    struct group data; // this rank alone
    struct groups groups;
    struct weights weights;
};

static struct model_config model_of(bool llama)
{
    const struct model_config sizes = {.num_layers = LAYERS,
                                       .hidden_size = 12,
                                       .num_attention_heads = 4,
                                       .num_query_groups = llama ? 2 : 4,
                                       .ffn_hidden_size = 20,
                                       .kv_channels = 6,
                                       .seq_length = 5,
                                       .vocab_size = 37,
                                       .make_vocab_size_divisible_by = 8,
                                       .init_method_std = 0.02};
    return llama ? llama_model(sizes) : gpt2_model(sizes);
}

/* The weights point at the neighboring rows, so a fixture must not move after it is opened. */
static void fixture_open(struct fixture *s, bool llama, int tp, int rank, const int *layers, int count)
{
    *s = (struct fixture){.data = {.name = "dp", .size = 1}, .groups = {.data = &s->data}};
    struct model_config model = model_of(llama);
    struct degrees degrees = {.tp = tp, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    cr_assert_eq(device_open(&(struct device_options){.name = "cpu", .threads = 1}, &s->device), OK);
    cr_assert_eq(stream_create(s->device, "test", &s->stream), OK);
    cr_assert_eq(params_declare(&model, &degrees, false, &s->params), OK);
    struct mesh_coord coord = {.tp = rank};
    struct weights_config config = {.device = s->device,
                                    .params = &s->params,
                                    .coord = coord,
                                    .layers = layers,
                                    .layer_count = count,
                                    .groups = &s->groups,
                                    .training = true};
    cr_assert_eq(weights_create(&config, &s->weights), OK, "%s", fail_text());
    cr_assert_eq(weights_initialize(&s->weights, s->stream, 7), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(s->stream), OK);
}

static void fixture_close(struct fixture *s)
{
    weights_destroy(&s->weights);
    params_free(&s->params);
    stream_destroy(s->stream);
    device_close(s->device);
}

/* Head first, embedding last: the order in which a backward pass finishes them. */
static const int whole_model[] = {LAYERS, 2, 1, 0, LAYER_EMBEDDING};
enum { WHOLE = sizeof whole_model / sizeof *whole_model };

static const struct held_param *by_name(const struct fixture *s, const char *name)
{
    return weights_held(&s->weights, params_find(&s->params, name));
}

Test(weights, are_in_layer_order_without_overlap)
{
    for (int llama = 0; llama <= 1; llama++) {
        struct fixture s;
        fixture_open(&s, llama == 1, 2, 1, whole_model, WHOLE);
        const struct weights *w = &s.weights;
        cr_assert_eq(w->count, s.params.count);
        int64_t value_end = 0, gradient_end = 0, position = 0;
        for (int i = 0; i < w->count; i++) {
            const struct held_param *held = &w->list[i];
            while (whole_model[position] != held->param->layer)
                cr_assert_lt(++position, WHOLE, "%s is out of order", held->param->name);
            int64_t count = slice_padded(&held->slice);
            cr_expect_geq(held->gradient_offset, gradient_end, "%s", held->param->name);
            gradient_end = held->gradient_offset + count;
            if (held->second_use)
                continue;
            cr_expect_geq(held->value_offset, value_end, "%s", held->param->name);
            value_end = held->value_offset + count;
            const struct owned_param *owned = weights_owned(w, held->index);
            cr_expect_eq((float *)owned->m.data - (float *)w->m.data, held->value_offset);
            cr_expect_eq((float *)owned->v.data - (float *)w->v.data, held->value_offset);
            cr_expect_eq(owned->value.data, held->weight.data);
        }
        cr_expect_leq((size_t)value_end * sizeof(float), w->value.bytes);
        cr_expect_leq((size_t)gradient_end * sizeof(float), w->gradient.bytes);
        cr_expect_eq(tensor_count(w->flat_gradient) * sizeof(float), w->gradient.bytes);
        fixture_close(&s);
    }
}

Test(weights, fused_rows_are_one_matrix)
{
    struct fixture s;
    fixture_open(&s, true, 2, 0, whole_model, WHOLE);
    int q = params_find(&s.params, "layers.1.attention.q.weight");
    const struct held_param *rows[] = {by_name(&s, "layers.1.attention.q.weight"),
                                       by_name(&s, "layers.1.attention.k.weight"),
                                       by_name(&s, "layers.1.attention.v.weight")};
    struct tensor value = weights_fused_value(&s.weights, q),
                  gradient = weights_fused_gradient(&s.weights, q);
    cr_expect(value.dim[0] == 12 + 6 + 6 && value.dim[1] == 12, "%lld", (long long)value.dim[0]);
    cr_expect_eq((uintptr_t)value.data % 64, 0);
    int64_t at = 0;
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(rows[i]->weight.data, (float *)value.data + at);
        cr_expect_eq(rows[i]->gradient.data, (float *)gradient.data + at);
        at += tensor_count(rows[i]->weight);
    }
    // A row without fused rows is a matrix of its own.
    int alone = params_find(&s.params, "layers.1.mlp.fc2.weight");
    cr_expect_eq(weights_fused_value(&s.weights, alone).dim[0], 12);
    fixture_close(&s);
}

/* Every slice of every tp equals the whole tensor at its global indices; padding is zero. */
static void compare_slice(const struct held_param *part, const struct held_param *whole)
{
    const struct slice *s = &part->slice;
    const float *a = part->weight.data, *b = whole->weight.data;
    for (int64_t i = 0; i < s->padded[0]; i++)
        for (int64_t j = 0; j < s->padded[1]; j++) {
            bool real = i < s->count[0] && j < s->count[1];
            float want = real ? b[(s->begin[0] + i) * whole->slice.padded[1] + s->begin[1] + j] : 0.0F;
            cr_assert_eq(memcmp(&a[i * s->padded[1] + j], &want, sizeof want), 0, "%s (%lld, %lld)",
                         part->param->name, (long long)i, (long long)j);
        }
}

Test(weights, slices_are_initialized_as_the_full_tensor)
{
    for (int llama = 0; llama <= 1; llama++) {
        struct fixture one;
        fixture_open(&one, llama == 1, 1, 0, whole_model, WHOLE);
        for (int tp = 2; tp <= 4; tp += 2)
            for (int rank = 0; rank < tp; rank++) {
                struct fixture s;
                fixture_open(&s, llama == 1, tp, rank, whole_model, WHOLE);
                for (int i = 0; i < s.weights.count; i++)
                    compare_slice(&s.weights.list[i], by_name(&one, s.weights.list[i].param->name));
                fixture_close(&s);
            }
        fixture_close(&one);
    }
}

/* The moments of normal initialization: mean within 5 standard errors, standard deviation likewise. */
Test(weights, initial_values)
{
    struct fixture s;
    fixture_open(&s, false, 1, 0, whole_model, WHOLE);
    for (int i = 0; i < s.weights.count; i++) {
        const struct held_param *held = &s.weights.list[i];
        const float *x = held->weight.data;
        int64_t n = slice_count(&held->slice);
        double sum = 0.0, squares = 0.0;
        for (int64_t k = 0; k < n; k++) {
            sum += (double)x[k];
            squares += (double)x[k] * (double)x[k];
        }
        if (held->param->init == INIT_NORMAL) {
            double std = (double)held->param->std, count = (double)n;
            cr_expect_lt(fabs(sum / count), 5.0 * std / sqrt(count), "%s", held->param->name);
            cr_expect_lt(fabs(squares / count / (std * std) - 1.0), 5.0 * sqrt(2.0 / count), "%s",
                         held->param->name);
        } else {
            cr_expect_eq(sum, held->param->init == INIT_ONE ? (double)n : 0.0, "%s", held->param->name);
        }
    }
    // The last matrix of a branch is smaller by sqrt(2 L).
    const struct held_param *q = by_name(&s, "layers.0.attention.q.weight"),
                            *proj = by_name(&s, "layers.0.attention.proj.weight");
    cr_expect_float_eq((double)(q->param->std / proj->param->std), sqrt(2.0 * LAYERS), 1e-6);
    fixture_close(&s);
}

/* pp 1: one value, two gradients. */
Test(weights, a_tied_weight_on_one_rank_is_held_once)
{
    struct fixture s;
    fixture_open(&s, false, 2, 1, whole_model, WHOLE);
    const struct held_param *head = by_name(&s, "head.weight"), *embedding = by_name(&s, "embedding.weight");
    cr_expect(head->second_use);
    cr_expect_not(embedding->second_use);
    cr_expect_eq(head->weight.data, embedding->weight.data);
    cr_expect_neq(head->gradient.data, embedding->gradient.data);
    cr_expect_null(weights_owned(&s.weights, head->index)->m.data);
    fixture_close(&s);
}

/* pp > 1: each end has its own copy, bit-identical. */
Test(weights, a_tied_weight_on_two_ranks_is_held_twice)
{
    const int first[] = {0, LAYER_EMBEDDING}, last[] = {LAYERS, 2};
    struct fixture a, b;
    fixture_open(&a, false, 2, 1, first, 2);
    fixture_open(&b, false, 2, 1, last, 2);
    const struct held_param *embedding = by_name(&a, "embedding.weight"), *head = by_name(&b, "head.weight");
    cr_assert(embedding != NULL && head != NULL && by_name(&a, "head.weight") == NULL);
    cr_expect_null(by_name(&a, "layers.2.norm1.weight"));
    cr_expect_not(head->second_use);
    cr_expect_not_null(weights_owned(&b.weights, head->index)->m.data);
    cr_expect_eq(memcmp(head->weight.data, embedding->weight.data, tensor_bytes(head->weight)), 0);
    fixture_close(&a);
    fixture_close(&b);
}

/* An untied head has its own random values. */
Test(weights, an_untied_head_is_another_matrix)
{
    struct fixture s;
    fixture_open(&s, true, 1, 0, whole_model, WHOLE);
    const struct held_param *head = by_name(&s, "head.weight"), *embedding = by_name(&s, "embedding.weight");
    cr_expect_not(head->second_use);
    cr_expect_neq(memcmp(head->weight.data, embedding->weight.data, 64), 0);
    fixture_close(&s);
}

Test(weights, values_only_have_no_gradients)
{
    struct fixture s;
    fixture_open(&s, false, 1, 0, whole_model, WHOLE);
    struct weights values;
    struct weights_config config = {
        .device = s.device, .params = &s.params, .layers = whole_model, .layer_count = WHOLE};
    cr_assert_eq(weights_create(&config, &values), OK);
    cr_expect_eq(values.gradient.bytes, 0);
    cr_expect_eq(values.m.bytes, 0);
    cr_expect_null(values.list[0].gradient.data);
    weights_destroy(&values);
    fixture_close(&s);
}

/* Every real element of the compute weights is the rounded master weight: returns the number that are not.
 * -1: there are none. */
static int64_t not_rounded(const struct weights *w)
{
    int64_t wrong = 0, seen = 0;
    for (int i = 0; i < w->owned_count; i++) {
        const struct owned_param *owned = &w->owned[i];
        for (int64_t e = 0; owned->value.data != NULL && e < tensor_count(owned->value); e++, seen++)
            wrong += ((const uint16_t *)owned->working.data)[e] !=
                     narrow_nearest(BF16, ((const float *)owned->value.data)[e]);
    }
    return seen > 0 ? wrong : -1;
}

/* In bf16 the master values equal those of fp32, and the compute weights are those values rounded; also on
 * a rank that owns a part only, and from values in host memory. */
Test(weights, bf16_weights_are_rounded_masters)
{
    struct fixture s;
    fixture_open(&s, false, 2, 1, whole_model, WHOLE);
    for (int rank = 0; rank < 2; rank++) {
        struct weights narrow;
        struct group data = {.rank = rank, .size = 2};
        const struct groups groups = {.data = &data};
        const struct data_parallel_options options = {.zero_stage = 1};
        struct weights_config config = {.device = s.device,
                                        .params = &s.params,
                                        .coord = {.tp = 1},
                                        .layers = whole_model,
                                        .layer_count = WHOLE,
                                        .working = BF16,
                                        .training = true,
                                        .options = &options,
                                        .groups = &groups};
        cr_assert_eq(weights_create(&config, &narrow), OK, "%s", fail_text());
        cr_assert_eq(weights_initialize(&narrow, s.stream, 7), OK, "%s", fail_text());
        cr_expect_eq(not_rounded(&narrow), 0);
        for (int i = 0; i < narrow.count; i++) {
            const struct held_param *held = &narrow.list[i], *wide = &s.weights.list[i];
            const float *value = wide->weight.data;
            cr_expect_eq(held->weight.dtype, BF16);
            for (int64_t e = 0; e < tensor_count(held->weight); e++)
                cr_assert_eq(((uint16_t *)held->weight.data)[e], narrow_nearest(BF16, value[e]), "%s",
                             held->param->name);
        }
        const struct held_param *held =
            weights_held(&narrow, params_find(&s.params, "layers.1.mlp.fc1.weight"));
        float numbers[20 * 12];
        for (int e = 0; e < 20 * 12; e++)
            numbers[e] = 1.0F + (float)e / 1000.0F;
        cr_assert_eq(weights_set(&narrow, s.stream, held, numbers), OK, "%s", fail_text());
        cr_expect_eq(not_rounded(&narrow), 0);
        cr_expect_eq(((uint16_t *)held->weight.data)[77], narrow_nearest(BF16, numbers[77]));
        weights_destroy(&narrow);
    }
    fixture_close(&s);
}
