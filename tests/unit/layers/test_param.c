// SPDX-License-Identifier: Apache-2.0
/* Parameter descriptors: names and sizes; and every sharding covers each element once. */
#include "layers/parameters/param.h"

#include "base/text.h"
#include "layers/model.h"
#include "tests/fixtures/model_family.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct degrees alone = {.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};

static struct model_config tiny_gpt2(void)
{
    return gpt2_model((struct model_config){.num_layers = 1,
                                            .hidden_size = 8,
                                            .num_attention_heads = 2,
                                            .ffn_hidden_size = 32,
                                            .seq_length = 16,
                                            .vocab_size = 37,
                                            .init_method_std = 0.02});
}

static struct model_config tiny_llama(void)
{
    struct model_config m = tiny_gpt2();
    m.num_query_groups = 1;
    m.ffn_hidden_size = 12;
    m.kv_channels = 6; // A * D differs from H
    return llama_model(m);
}

static struct params rows_of(const struct model_config *m, const struct degrees *degrees, bool sequence)
{
    struct params params;
    cr_assert_eq(params_declare(m, degrees, sequence, &params), OK, "%s", fail_text());
    return params;
}

/* "name [rows, columns]", line by line; vectors have one number; "=" marks a second use; "*" weight decay;
 * "+" fused with the row above. */
static void text_of_rows(const struct params *params, struct text *out)
{
    for (int i = 0; i < params->count; i++) {
        const struct param *row = &params->list[i];
        text_add(out, "%s%s [%lld", row->fuse < i ? "+" : "", row->name, (long long)row->dim[0]);
        if (row->ndim == 2)
            text_add(out, ", %lld", (long long)row->dim[1]);
        text_add(out, "]%s%s\n", row->decay ? " *" : "", row->tie >= 0 ? " =" : "");
    }
}

static void expect_rows(struct model_config m, const char *want)
{
    struct params params = rows_of(&m, &alone, false);
    struct text text = {0};
    text_of_rows(&params, &text);
    cr_expect_str_eq(text_chars(&text), want);
    text_free(&text);
    params_free(&params);
}

Test(param, gpt2_has_these_rows)
{
    expect_rows(tiny_gpt2(), "embedding.weight [37, 8] *\n"
                             "position.weight [16, 8] *\n"
                             "layers.0.norm1.weight [8]\n"
                             "layers.0.norm1.bias [8]\n"
                             "layers.0.attention.q.weight [8, 8] *\n"
                             "+layers.0.attention.k.weight [8, 8] *\n"
                             "+layers.0.attention.v.weight [8, 8] *\n"
                             "layers.0.attention.q.bias [8]\n"
                             "+layers.0.attention.k.bias [8]\n"
                             "+layers.0.attention.v.bias [8]\n"
                             "layers.0.attention.proj.weight [8, 8] *\n"
                             "layers.0.attention.proj.bias [8]\n"
                             "layers.0.norm2.weight [8]\n"
                             "layers.0.norm2.bias [8]\n"
                             "layers.0.mlp.fc1.weight [32, 8] *\n"
                             "layers.0.mlp.fc1.bias [32]\n"
                             "layers.0.mlp.fc2.weight [8, 32] *\n"
                             "layers.0.mlp.fc2.bias [8]\n"
                             "norm.weight [8]\n"
                             "norm.bias [8]\n"
                             "head.weight [37, 8] * =\n");
}

Test(param, llama_has_these_rows)
{
    expect_rows(tiny_llama(), "embedding.weight [37, 8] *\n"
                              "layers.0.norm1.weight [8]\n"
                              "layers.0.attention.q.weight [12, 8] *\n"
                              "+layers.0.attention.k.weight [6, 8] *\n"
                              "+layers.0.attention.v.weight [6, 8] *\n"
                              "layers.0.attention.proj.weight [8, 12] *\n"
                              "layers.0.norm2.weight [8]\n"
                              "layers.0.mlp.gate.weight [12, 8] *\n"
                              "+layers.0.mlp.up.weight [12, 8] *\n"
                              "layers.0.mlp.fc2.weight [8, 12] *\n"
                              "norm.weight [8]\n"
                              "head.weight [37, 8] *\n");
}

Test(param, finds_rows_by_name)
{
    struct model_config m = tiny_gpt2();
    struct params params = rows_of(&m, &alone, false);
    for (int i = 0; i < params.count; i++)
        cr_expect_eq(params_find(&params, params.list[i].name), i);
    static const char *const unknown[] = {"layers.9.norm1.weight",
                                          "layers.-1.norm1.weight",
                                          "layers.norm1.weight",
                                          "layers.00.norm1.weight",
                                          "layers.99999999999999999999.norm1.weight",
                                          "layers.",
                                          "norm1.weight",
                                          ""};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        cr_expect_eq(params_find(&params, unknown[i]), -1, "%s", unknown[i]);
    params_free(&params);
}

/* Roles agree with the parameters' names, and are unique within a layer. */
Test(param, roles_are_unique_and_agree_with_names)
{
    static const struct {
        const char *part;
        enum param_role role;
    } table[] = {{"embedding.", ROLE_TOKEN_EMBEDDING},
                 {"embedding_norm.", ROLE_EMBEDDING_NORM},
                 {"position.", ROLE_POSITION_EMBEDDING},
                 {".norm1.", ROLE_ATTENTION_NORM},
                 {".norm2.", ROLE_MLP_NORM},
                 {".attention.q.", ROLE_QUERY},
                 {".attention.k.", ROLE_KEY},
                 {".attention.v.", ROLE_VALUE},
                 {".attention.q_norm.", ROLE_QUERY_NORM},
                 {".attention.k_norm.", ROLE_KEY_NORM},
                 {".attention.proj.", ROLE_ATTENTION_OUT},
                 {".mlp.gate.", ROLE_MLP_GATE},
                 {".mlp.up.", ROLE_MLP_UP},
                 {".mlp.fc1.", ROLE_MLP_UP},
                 {".mlp.fc2.", ROLE_MLP_DOWN},
                 {"norm.", ROLE_FINAL_NORM},
                 {"head.", ROLE_HEAD}};
    for (int family = 0; family < 3; family++) {
        struct model_config m = family == 0 ? tiny_gpt2() : tiny_llama();
        m.num_layers = 3;
        m.add_bias_linear = family != 1;
        m.qk_layernorm = family == 1;
        m.embed_layernorm = family == 0;
        struct params params = rows_of(&m, &alone, false);
        for (int i = 0; i < params.count; i++) {
            const struct param *row = &params.list[i];
            enum param_role role = ROLE_COUNT;
            for (size_t k = 0; k < sizeof table / sizeof *table && role == ROLE_COUNT; k++)
                if (strstr(row->name, table[k].part) != NULL)
                    role = table[k].role;
            bool is_bias = strstr(row->name, ".bias") != NULL;
            cr_expect_eq(row->role, role, "%s", row->name);
            cr_expect_eq(row->is_bias, is_bias, "%s", row->name);
            cr_expect_eq((is_bias ? params_bias : params_weight)(&params, row->layer, role), i, "%s",
                         row->name);
            bool tied = m.tie_word_embeddings && (role == ROLE_TOKEN_EMBEDDING || role == ROLE_HEAD);
            cr_expect_eq(row->tied, tied, "%s", row->name);
        }
        cr_expect_eq(params_weight(&params, 1, ROLE_HEAD), -1);
        cr_expect_eq(params_bias(&params, LAYER_EMBEDDING, ROLE_TOKEN_EMBEDDING), -1);
        params_free(&params);
    }
}

Test(param, rows_of_a_layer_are_contiguous)
{
    struct model_config m = tiny_gpt2();
    m.num_layers = 3;
    struct params params = rows_of(&m, &alone, false);
    int next = 0;
    for (int layer = LAYER_EMBEDDING; layer <= 3; layer++) {
        int first, count = params_of_layer(&params, layer, &first);
        cr_expect_eq(first, next);
        cr_expect_gt(count, 0);
        for (next = first; next < first + count; next++)
            cr_expect_eq(params.list[next].layer, layer, "%s", params.list[next].name);
    }
    cr_expect_eq(next, params.count);
    params_free(&params);
}

/* ---- cuts ---- */

static struct slice slice_at(const struct param *row, struct mesh_coord coord)
{
    return shard_slice(row->ndim, row->dim, row->shardings, row->sharding_count, coord);
}

/* Counts how often the primary ranks of shards cover each element, and checks each rank's rectangle. */
static void expect_covered_once(const struct param *row, int tp, int64_t multiple)
{
    int64_t rows = row->dim[0], columns = row->dim[1];
    unsigned char *times = calloc((size_t)(rows * columns), 1);
    for (int r = 0; r < tp; r++) {
        struct slice s = slice_at(row, (struct mesh_coord){.tp = r});
        for (int d = 0; d < 2; d++)
            cr_assert(s.begin[d] >= 0 && s.count[d] >= 0 && s.begin[d] + s.count[d] <= row->dim[d] &&
                          s.padded[d] >= s.count[d],
                      "%s tp %d/%d", row->name, r, tp);
        cr_assert(s.padded[0] % multiple == 0 || s.padded[0] == rows);
        for (int64_t i = 0; s.first_replica && i < s.count[0]; i++)
            for (int64_t j = 0; j < s.count[1]; j++)
                times[(s.begin[0] + i) * columns + s.begin[1] + j]++;
    }
    for (int64_t i = 0; i < rows * columns; i++)
        cr_assert_eq(times[i], 1, "%s, tp %d: element %lld is covered %d times", row->name, tp, (long long)i,
                     times[i]);
    free(times);
}

/* Padding is memory only: it does not change the rows that a rank holds, and so no sum over shards. */
Test(param, padding_does_not_move_rows)
{
    for (int tp = 1; tp <= 8; tp++)
        for (int r = 0; r < tp; r++)
            for (int64_t rows = 1; rows < 300; rows += 37) {
                const int64_t dim[] = {rows, 4};
                struct sharding cut = {.axes = AXIS_TP, .parts = tp, .replicas = 1, .multiple = 1};
                const struct slice tight = shard_slice(2, dim, &cut, 1, (struct mesh_coord){.tp = r});
                cut.multiple = 128;
                const struct slice padded = shard_slice(2, dim, &cut, 1, (struct mesh_coord){.tp = r});
                cr_assert(tight.begin[0] == padded.begin[0] && tight.count[0] == padded.count[0] &&
                              padded.padded[0] % 128 == 0 && padded.padded[0] >= tight.padded[0],
                          "%lld rows, tp %d/%d", (long long)rows, r, tp);
            }
}

/* All ranks must have shards of one size: messages require it. */
static void expect_equal_shards(const struct param *row, int tp)
{
    struct slice first = slice_at(row, (struct mesh_coord){0});
    for (int r = 1; r < tp; r++) {
        struct slice s = slice_at(row, (struct mesh_coord){.tp = r});
        cr_assert(s.padded[0] == first.padded[0] && s.padded[1] == first.padded[1], "%s", row->name);
    }
}

static void check_cuts(struct model_config m, int tp, bool sequence)
{
    struct degrees degrees = alone;
    degrees.tp = tp;
    struct params params = rows_of(&m, &degrees, sequence);
    for (int i = 0; i < params.count; i++) {
        bool vocabulary = params.list[i].dim[0] == m.vocab_size;
        expect_covered_once(&params.list[i], tp, vocabulary ? m.make_vocab_size_divisible_by : 1);
        expect_equal_shards(&params.list[i], tp);
    }
    params_free(&params);
}

Test(param, every_cut_covers_every_element_once)
{
    const int64_t vocabularies[] = {1, 7, 37, 64, 101}, multiples[] = {1, 8, 128};
    for (int tp = 1; tp <= 8; tp++)
        for (int groups = 1; groups <= 2 * tp; groups++) {
            if (groups % tp != 0 && tp % groups != 0)
                continue;
            for (size_t v = 0; v < sizeof vocabularies / sizeof *vocabularies; v++)
                for (size_t k = 0; k < sizeof multiples / sizeof *multiples; k++) {
                    struct model_config m = v % 2 == 0 ? tiny_gpt2() : tiny_llama();
                    m.num_attention_heads = 2 * tp;
                    m.num_query_groups = groups;
                    m.ffn_hidden_size = 3 * tp;
                    m.vocab_size = vocabularies[v];
                    m.make_vocab_size_divisible_by = multiples[k];
                    check_cuts(m, tp, k % 2 == 0);
                }
        }
}

/* Rank r's query heads read the groups that rank r holds. */
Test(param, query_heads_are_on_the_rank_of_their_group)
{
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int groups = 1; groups <= 8; groups *= 2) {
            struct model_config m = tiny_llama();
            struct degrees degrees = alone;
            degrees.tp = tp;
            m.num_attention_heads = 8;
            m.num_query_groups = groups;
            struct params params = rows_of(&m, &degrees, false);
            const struct param *q = &params.list[params_find(&params, "layers.0.attention.q.weight")],
                               *k = &params.list[params_find(&params, "layers.0.attention.k.weight")];
            for (int r = 0; r < tp; r++) {
                struct slice a = slice_at(q, (struct mesh_coord){.tp = r}),
                             b = slice_at(k, (struct mesh_coord){.tp = r});
                int64_t d = m.kv_channels, per_group = 8 / groups;
                int64_t first = a.begin[0] / d / per_group,
                        last = ((a.begin[0] + a.count[0]) / d - 1) / per_group;
                cr_expect_eq(b.begin[0] / d, first, "tp %d groups %d rank %d", tp, groups, r);
                cr_expect_eq((b.begin[0] + b.count[0]) / d - 1, last, "tp %d groups %d rank %d", tp, groups,
                             r);
            }
            cr_expect_eq(params_kv_replicas(&m, tp), tp > groups ? tp / groups : 1);
            params_free(&params);
        }
}

/* Gradients that are partial over tp: vectors and positions that see this rank's tokens only, and
 * key/value heads that several ranks hold. */
Test(param, marks_partial_gradients)
{
    for (int sequence = 0; sequence <= 1; sequence++) {
        struct model_config m = tiny_gpt2();
        m.num_query_groups = 1;
        struct degrees degrees = alone;
        degrees.tp = 2;
        struct params params = rows_of(&m, &degrees, sequence == 1);
        for (int i = 0; i < params.count; i++) {
            const struct param *row = &params.list[i];
            bool kv = strstr(row->name, ".k.") != NULL || strstr(row->name, ".v.") != NULL;
            enum partial want = kv                                          ? PARTIAL_KV
                                : row->sharding_count == 0 && sequence == 1 ? PARTIAL_TP
                                                                            : PARTIAL_NONE;
            cr_expect_eq(row->partial, want, "%s", row->name);
            cr_expect_eq(row->decay, row->ndim == 2, "%s", row->name);
        }
        params_free(&params);
    }
}

/* ---- invariants ---- */

/* A model with tied weights and fused matrices; one field at a time is changed and restored. */
#define BREAK(field, value, words)                                                    \
    do {                                                                              \
        __typeof__(field) kept_ = (field);                                            \
        (field) = (value);                                                            \
        cr_expect_eq(params_check(&params), BAD_ARGUMENT, "%s: not detected", words); \
        cr_expect_str_eq(fail_text(), words);                                         \
        (field) = kept_;                                                              \
        cr_assert_eq(params_check(&params), OK);                                      \
    } while (0)

Test(param, detects_an_inconsistent_table)
{
    const struct model_config m = tiny_gpt2();
    struct degrees degrees = alone;
    degrees.tp = 2;
    struct params params = rows_of(&m, &degrees, false);
    struct param *q = &params.list[params_find(&params, "layers.0.attention.q.weight")],
                 *k = &params.list[params_find(&params, "layers.0.attention.k.weight")],
                 *v = &params.list[params_find(&params, "layers.0.attention.v.weight")],
                 *head = &params.list[params_find(&params, "head.weight")],
                 *embedding = &params.list[params_find(&params, "embedding.weight")];
    const int last = params.count - 1, first = (int)(q - params.list);
    char words[200];
    // Layers.
    snprintf(words, sizeof words, "parameters: the layers do not contain all %d of them", params.count);
    BREAK(params.begin[0], 1, words);
    BREAK(params.begin[params.layer_count], last, words);
    snprintf(words, sizeof words, "parameters: layer 0 has parameters [2, 1) of %d", params.count);
    BREAK(params.begin[2], 1, words);
    BREAK(q->layer, 1, "layers.0.attention.q.weight: is listed in layer 0, but belongs to layer 1");
    // Shapes.
    snprintf(words, sizeof words, "a parameter of role %d has the name \"\"", (int)ROLE_QUERY);
    BREAK(q->name[0], 0, words);
    snprintf(words, sizeof words, "a parameter of role %d has the name \"layers.0.attention.q.weight\"",
             (int)ROLE_COUNT);
    BREAK(q->role, ROLE_COUNT, words);
    BREAK(q->ndim, 3, "layers.0.attention.q.weight: 3 dimensions; the maximum is 2");
    BREAK(q->dim[1], 0, "layers.0.attention.q.weight: dimension 1 is 0");
    BREAK(q->sharding_count, 3, "layers.0.attention.q.weight: 3 sharded dimensions; the maximum is 2");
    BREAK(q->shardings[0].parts, 0, "sharding: 0 parts, 1 replicas, multiples of 1; each is at least 1");
    q->shardings[1] = q->shardings[0];
    BREAK(q->sharding_count, 2, "layers.0.attention.q.weight: two dimensions sharded along axis 1");
    BREAK(q->std, -1.0F, "layers.0.attention.q.weight: a standard deviation of -1");
    // Names and roles.
    BREAK(k->role, ROLE_QUERY,
          "layers.0.attention.k.weight: has the name or the role of layers.0.attention.q.weight");
    BREAK(k->name[19], 'q',
          "layers.0.attention.q.weight: has the name or the role of layers.0.attention.q.weight");
    // Ties.
    snprintf(words, sizeof words, "head.weight: shares the value of parameter %d of %d", params.count,
             params.count);
    BREAK(head->tie, params.count, words);
    BREAK(head->tie, last, "head.weight: cannot share the value of head.weight: another shape, or a tie");
    BREAK(head->tie, first,
          "head.weight: cannot share the value of layers.0.attention.q.weight: another shape, or a tie");
    BREAK(head->dim[0], 38,
          "head.weight: cannot share the value of embedding.weight: another shape, or a tie");
    BREAK(head->tied, false, "head.weight: shares a value, but is not marked as tied");
    BREAK(embedding->tied, false, "embedding.weight: shares a value, but is not marked as tied");
    // Fused matrices.
    snprintf(words, sizeof words,
             "layers.0.attention.v.weight: is fused with parameter %d, but not with all in between", first);
    BREAK(k->fuse, (int)(k - params.list), words);
    snprintf(words, sizeof words,
             "layers.0.attention.v.weight: is fused with parameter %d, but not with all in between", last);
    BREAK(v->fuse, last, words);
    BREAK(q->fuse, 0, "layers.0.attention.q.weight: is fused with parameter 0, but not with all in between");
    params_free(&params);
}
