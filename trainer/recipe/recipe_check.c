// SPDX-License-Identifier: Apache-2.0
/* Derived values, the rules applied, and suggestions.
 *
 * A suggestion is tried, not guessed: on a copy of the recipe with one key changed and everything derived
 * again, every rule that reads this key must hold, and no other may be newly violated. From
 *     model.num_attention_heads 12 is not divisible by parallel.tensor_parallel_size 5
 * the search away from 5 finds 4 and 6, because they also divide ffn_hidden_size 3072 and the rest. */
#include "base/memory.h"
#include "schedules/csv/csv.h"
#include "trainer/recipe/recipe_rules.h"
#include "trainer/recipe/recipe_variants.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RULES = 128, WALK = 4096 };

static const char *const given_keys[GIVEN_COUNT] = {
    [GIVEN_GROUPS] = "model.num_query_groups",
    [GIVEN_FFN] = "model.ffn_hidden_size",
    [GIVEN_KV] = "model.kv_channels",
    [GIVEN_VOCAB] = "model.vocab_size",
    [GIVEN_DP] = "parallel.data_parallel_size",
    [GIVEN_DECAY] = "optimizer.lr_decay_iters",
    [GIVEN_SPLIT] = "data.split",
    [GIVEN_SAVE] = "checkpoint.save",
    [GIVEN_VIRTUAL] = "pipeline.virtual_stages",
    [GIVEN_TIMES] = "pipeline.auto_times",
    [GIVEN_BUCKET] = "parallel.bucket_size_mb",
};

static void read_given(const struct recipe *recipe, bool given[GIVEN_COUNT])
{
    for (int i = 0; i < GIVEN_COUNT; i++) {
        enum origin_kind kind = recipe->origin[recipe_row_index(given_keys[i])].kind;
        given[i] = kind == FROM_FILE || kind == FROM_COMMAND_LINE;
    }
}

/* ---- derived values ---- */

int64_t rule_tokenizer_vocab(const struct recipe *recipe)
{
    if (recipe->tokenizer.vocab_size > 0)
        return recipe->tokenizer.vocab_size;
    switch (recipe->tokenizer.tokenizer_type) {
    case TOKENIZER_BYTE:
        return 257;
    case TOKENIZER_GPT2_BPE:
        return 50257;
    case TOKENIZER_HUGGING_FACE:
    case TOKENIZER_SENTENCEPIECE:
    case TOKENIZER_LLAMA2:
    case TOKENIZER_NONE:
        break;
    }
    return 0;
}

static int64_t default_ffn(const struct model_config *model)
{
    if (!model_is_gated(model))
        return 4 * model->hidden_size;
    // Three matrices instead of two: 2/3 of the width keeps the parameters.
    int64_t ffn = 8 * model->hidden_size / 3 / 64 * 64;
    return ffn > 0 ? ffn : 64;
}

/* The number of virtual stages if it is not set, at most the largest value of the key; a rule reports a
 * layers_per_stage that does not divide the layers. */
static int default_virtual_stages(const struct recipe *r)
{
    const struct recipe_pipeline *pipeline = &r->pipeline;
    int64_t own = 0;
    if (pipeline->layers_per_stage > 0)
        own =
            r->model.num_layers / ((int64_t)pipeline->layers_per_stage * r->parallel.pipeline_parallel_size);
    else if (pipeline->schedule != NULL)
        own = strcmp(pipeline->schedule, "file") == 0 ? pipeline->file.v
                                                      : schedule_default_v(pipeline->schedule);
    double most = recipe_rows[recipe_row_index("pipeline.virtual_stages")].high;
    return own > 0 ? (int)(own < (int64_t)most ? own : (int64_t)most) : 1;
}

/* The default of pipeline.auto_times: given times are used. */
static enum schedule_times default_times(const struct recipe *r)
{
    static const char *const keys[] = {"pipeline.auto_f", "pipeline.auto_i", "pipeline.auto_w",
                                       "pipeline.auto_comm"};
    if (r->cluster.profile == NULL || r->pipeline.schedule == NULL ||
        strcmp(r->pipeline.schedule, "auto") != 0)
        return TIMES_GIVEN;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const enum origin_kind kind = r->origin[recipe_row_index(keys[i])].kind;
        if (kind == FROM_FILE || kind == FROM_COMMAND_LINE)
            return TIMES_GIVEN;
    }
    return TIMES_PLAN;
}

/* As Megatron-core: 40 Mi gradients in fp32, or 1 Mi for each data-parallel rank. A ring sends an n-th of a
 * bucket at a time, so larger groups need larger buckets. */
static double default_bucket_mb(int data_parallel_size)
{
    const double least = 160.0, each = 4.0;
    return each * data_parallel_size > least ? each * data_parallel_size : least;
}

static void derive(struct recipe *r, int world_size, const bool given[GIVEN_COUNT])
{
    struct model_config *model = &r->model;
    struct recipe_parallel *parallel = &r->parallel;
    int64_t heads = model->num_attention_heads;
    if (!given[GIVEN_GROUPS])
        model->num_query_groups = heads;
    if (!given[GIVEN_FFN])
        model->ffn_hidden_size = default_ffn(model);
    if (!given[GIVEN_KV])
        model->kv_channels = heads > 0 ? model->hidden_size / heads : 0;
    if (!given[GIVEN_VOCAB])
        model->vocab_size = rule_tokenizer_vocab(r);
    if (!given[GIVEN_DECAY])
        r->optimizer.lr_decay_iters = r->train.train_iters > 0 ? r->train.train_iters : 1;
    if (!given[GIVEN_DP]) {
        int64_t others = (int64_t)parallel->tensor_parallel_size * parallel->pipeline_parallel_size;
        int64_t ranks = world_size > 0 ? world_size : recipe_cluster_ranks(r);
        int64_t data = others > 0 ? ranks / others : 0;
        parallel->data_parallel_size = data > 0 ? (int)data : 1;
    }
    if (!given[GIVEN_BUCKET])
        r->data_parallel.bucket_size_mb = default_bucket_mb(parallel->data_parallel_size);
    if (!given[GIVEN_VIRTUAL])
        r->pipeline.virtual_stages = default_virtual_stages(r);
    if (!given[GIVEN_TIMES])
        r->pipeline.search.times = default_times(r);
    if (r->addition != NULL)
        r->addition->derive(r);
    recipe_derive_layers(r);
    if (!given[GIVEN_SPLIT]) {
        bool own_valid = r->data.valid.count > 0;
        r->data.split[0] = own_valid ? 1 : 969;
        r->data.split[1] = own_valid ? 0 : 30;
        r->data.split[2] = own_valid ? 0 : 1;
    }
}

void recipe_derive(struct recipe *recipe, int world_size)
{
    bool given[GIVEN_COUNT];
    read_given(recipe, given);
    derive(recipe, world_size, given);
}

bool recipe_read_schedule(struct recipe *recipe, struct problems *problems)
{
    struct recipe_pipeline *pipeline = &recipe->pipeline;
    int file = recipe_row_index("pipeline.schedule_file"), name = recipe_row_index("pipeline.schedule");
    if (pipeline->schedule_file == NULL)
        return true;
    if (recipe->origin[name].kind == FROM_DEFAULT) {
        free(pipeline->schedule);
        pipeline->schedule = text_copy("file");
        recipe->origin[name].kind = FROM_DERIVED;
    }
    struct schedule *schedule = NULL;
    if (schedule_read_csv(pipeline->schedule_file, &schedule) != OK) {
        AUTO(text) where = {0};
        recipe_origin_text(recipe, file, &where);
        problems_add(problems, "%s: pipeline.schedule_file: %s", where.chars, fail_text());
        return false;
    }
    pipeline->file.p = schedule->p;
    pipeline->file.m = schedule->m;
    pipeline->file.v = schedule->v;
    pipeline->file.stage_replicas = schedule_has_replicas(schedule);
    schedule_destroy(schedule);
    return true;
}

/* ---- rules ---- */

/* A check in progress: which rule reads which row, which rules apply, and which hold for the current
 * recipe. */
struct check {
    struct view view;
    int given_row[GIVEN_COUNT];
    bool reads[MAX_RULES][RECIPE_MAX_ROWS];
    bool applies[MAX_RULES];
    bool held[MAX_RULES];
};

static const struct rules *const tables[] = {&recipe_model_rules,     &recipe_layout_rules,
                                             &recipe_run_rules,       &recipe_save_rules,
                                             &recipe_precision_rules, &recipe_plan_rules};

static int rule_count(const struct recipe_addition *more)
{
    int count = more != NULL ? more->rules->count : 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        count += tables[t]->count;
    CHECK(count <= MAX_RULES);
    return count;
}

/* Those of the recipe, then those of an addition. */
static const struct rule *rule_at(const struct recipe_addition *more, int i)
{
    for (size_t table = 0; table < sizeof tables / sizeof *tables; i -= tables[table++]->count)
        if (i < tables[table]->count)
            return &tables[table]->list[i];
    return &more->rules->list[i];
}

/* The rows that a rule reads, in its order; returns their number. */
static int rule_rows(const struct recipe_addition *more, const struct rule *rule, int rows[16])
{
    int count = 0;
    for (const char *at = rule->reads; *at != 0 && count < 16;) {
        char key[64];
        size_t length = strcspn(at, " ");
        CHECK(length < sizeof key);
        memcpy(key, at, length);
        key[length] = 0;
        rows[count] = recipe_row_find_dotted(more, key);
        CHECK(rows[count++] >= 0);
        at += length;
        at += strspn(at, " ");
    }
    return count;
}

static void check_begin(struct check *check, const bool bad[RECIPE_MAX_ROWS])
{
    const struct recipe_addition *more = check->view.recipe->addition;
    for (int i = 0; i < rule_count(more); i++) {
        int rows[16];
        int count = rule_rows(more, rule_at(more, i), rows);
        check->applies[i] = true;
        for (int k = 0; k < count; k++) {
            check->reads[i][rows[k]] = true;
            check->applies[i] = check->applies[i] && !bad[rows[k]];
        }
    }
    for (int i = 0; i < GIVEN_COUNT; i++)
        check->given_row[i] = recipe_row_index(given_keys[i]);
    read_given(check->view.recipe, check->view.given);
    for (int i = 0; i < rule_count(more); i++)
        check->held[i] = !check->applies[i] || rule_at(more, i)->holds(&check->view);
}

/* Tries a value. strict: every rule that reads the changed row must hold. Otherwise this rule must hold, and
 * no other rule may be newly violated: the best possible result if several problems involve one key. */
static bool candidate_works(const struct check *check, int broken, int row, int64_t value, bool strict)
{
    const struct recipe_addition *more = check->view.recipe->addition;
    const struct recipe_row *changed = recipe_row_at(more, row);
    if ((double)value < changed->low || (double)value > changed->high)
        return false;
    struct recipe copy = *check->view.recipe; // shares the strings and lists, which nothing here changes
    recipe_value_set_integer(&copy, changed, value);
    struct view view = check->view;
    view.recipe = &copy;
    for (int i = 0; i < GIVEN_COUNT; i++)
        view.given[i] = view.given[i] || check->given_row[i] == row;
    derive(&copy, view.world, view.given);
    for (int i = 0; i < rule_count(more); i++) {
        bool must = i == broken || check->held[i] || (strict && check->reads[i][row]);
        if (check->applies[i] && must && !rule_at(more, i)->holds(&view))
            return false;
    }
    return true;
}

/* The nearest values of fix->key, at most one below and one above, that are valid: "; use KEY=4 or 6". `use`:
 * the word, "use" or "or". */
static bool suggest(const struct check *check, int broken, const struct fix *fix, bool strict,
                    const char *use, struct text *out)
{
    const struct recipe *recipe = check->view.recipe;
    int row = recipe_row_index(fix->key);
    int64_t start = fix->guess != NULL ? fix->guess(recipe) : recipe_value_integer(recipe, &recipe_rows[row]);
    int64_t grid = fix->grid != NULL ? fix->grid(recipe) : 1;
    int64_t low = start - (start % grid + grid) % grid, found[2] = {0};
    bool has[2] = {false, false};
    if (fix->guess != NULL && candidate_works(check, broken, row, start, strict)) {
        text_add(out, "; %s %s=%lld", use, fix->key, (long long)start);
        return true;
    }
    for (int side = 0; side < 2; side++)
        for (int64_t step = 0; step < WALK && !has[side]; step++) {
            found[side] = side == 0 ? low - step * grid : low + (step + 1) * grid;
            has[side] = found[side] >= fix->min && candidate_works(check, broken, row, found[side], strict);
        }
    if (has[0] && has[1])
        text_add(out, "; %s %s=%lld or %lld", use, fix->key, (long long)found[0], (long long)found[1]);
    else if (has[0] || has[1])
        text_add(out, "; %s %s=%lld", use, fix->key, (long long)found[has[0] ? 0 : 1]);
    return has[0] || has[1];
}

/* The first fix that works, and an alternative to it. */
static void add_fixes(const struct check *check, int broken, struct text *out)
{
    const struct fix *fixes = rule_at(check->view.recipe->addition, broken)->fix;
    bool found = false;
    for (int k = 0; k < RULE_FIXES && fixes[k].key != NULL; k++) {
        const char *use = found ? "or" : "use";
        const bool tried = fixes[k].applies == NULL || fixes[k].applies(&check->view);
        if (tried && (!found || fixes[k].also))
            found = suggest(check, broken, &fixes[k], true, use, out) ||
                    suggest(check, broken, &fixes[k], false, use, out) || found;
    }
}

/* Appends the origin of the first key that was given, where a user would fix it. */
static void add_origin(const struct check *check, const struct rule *rule, struct text *out)
{
    const struct recipe *recipe = check->view.recipe;
    int rows[16];
    int count = rule_rows(recipe->addition, rule, rows), chosen = rows[0];
    for (int k = count - 1; k >= 0; k--) {
        enum origin_kind kind = recipe->origin[rows[k]].kind;
        if (kind == FROM_FILE || kind == FROM_COMMAND_LINE)
            chosen = rows[k];
    }
    recipe_origin_text(recipe, chosen, out);
}

int recipe_first_violation(const struct recipe *recipe, int world_size)
{
    struct view view = {.recipe = recipe, .world = world_size};
    read_given(recipe, view.given);
    for (int i = 0; i < rule_count(recipe->addition); i++)
        if (!rule_at(recipe->addition, i)->holds(&view))
            return i;
    return -1;
}

const char *recipe_rule_keys(const struct recipe_addition *more, int rule)
{
    return rule_at(more, rule)->reads;
}

void recipe_check(const struct recipe *recipe, int world_size, const bool bad[RECIPE_MAX_ROWS],
                  struct problems *problems)
{
    struct check check = {.view = {.recipe = recipe, .world = world_size}};
    check_begin(&check, bad);
    for (int i = 0; i < rule_count(recipe->addition); i++) {
        const struct rule *rule = rule_at(recipe->addition, i);
        if (check.held[i])
            continue;
        AUTO(text) line = {0};
        add_origin(&check, rule, &line);
        text_add(&line, ": ");
        rule->message(&check.view, &line);
        add_fixes(&check, i, &line);
        problems_add(problems, "%s", line.chars);
    }
}
