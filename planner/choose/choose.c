// SPDX-License-Identifier: Apache-2.0
#include "planner/choose/choose.h"

#include "base/memory.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/sweep/sweep.h"
#include "trainer/recipe/recipe_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- values to search ---- */

enum { MAX_MICRO_BATCH = 64, MAX_TP = 64, MAX_PP = 128, REFINED = 3 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Powers of two up to `most`. */
static void add_powers(int64_t most, struct text *out)
{
    for (int64_t i = 1; i <= most; i *= 2)
        text_add(out, "%s%lld", i > 1 ? ", " : "", (long long)i);
}

static int64_t odd_part(int64_t number)
{
    return number / (number & -number);
}

/* Divisors of the number of layers, powers of two, and these times the odd part of the number of ranks, by
 * which a batch of a power of two cannot be divided; all divide the number of ranks. */
static void add_pipelines(int64_t layers, int64_t ranks, struct text *out)
{
    for (int64_t i = 1; i <= smaller(MAX_PP, layers); i++)
        if (ranks % i == 0 && (layers % i == 0 || odd_part(i) == 1 || odd_part(i) == odd_part(ranks)))
            text_add(out, "%s%lld", i > 1 ? ", " : "", (long long)i);
}

/* on_cpu: messages do not overlap with computation. */
static void add_axis(const struct recipe *base, int64_t ranks, bool on_cpu, const char *key, struct text *out)
{
    text_add(out, "  %s: [", key);
    if (strcmp(key, "train.micro_batch_size") == 0)
        add_powers(smaller(MAX_MICRO_BATCH, base->train.global_batch_size), out);
    else if (strcmp(key, "memory.recompute_granularity") == 0)
        text_add(out, "none, selective, full");
    else if (strcmp(key, "parallel.tensor_parallel_size") == 0)
        add_powers(smaller(smaller(MAX_TP, base->model.num_attention_heads), ranks), out);
    else if (strcmp(key, "parallel.pipeline_parallel_size") == 0)
        add_pipelines(base->model.num_layers, ranks, out);
    else if (strcmp(key, "parallel.zero_stage") == 0)
        text_add(out, "0, 1, 2, 3");
    else if (strcmp(key, "parallel.sequence_parallel") == 0)
        text_add(out, "true"); // with tp 1 it is disabled
    else if (strcmp(key, "parallel.tp_comm_overlap") == 0 ||
             strcmp(key, "parallel.overlap_param_gather") == 0)
        text_add(out, on_cpu ? "false" : "false, true");
    else if (strcmp(key, "parallel.bucket_size_mb") == 0)
        text_add(out, "auto"); // see refine_buckets()
    else if (strcmp(key, "pipeline.schedule") == 0)
        text_add(out, "1f1b, interleaved, zb-h1, zb-v");
    else if (strcmp(key, "pipeline.virtual_stages") == 0)
        text_add(out, "1, 2, 4");
    text_add(out, "]\n");
}

/* ---- overrides ---- */

bool override_sets_any(const char *override, const char *const *keys, int count)
{
    char name[80];
    const size_t length = strcspn(override, "=");
    if (length >= sizeof name)
        return false;
    memcpy(name, override, length);
    name[length] = 0;
    for (int i = 0; i < count; i++)
        if (recipe_key(&planner_keys, name) != NULL && strcmp(recipe_key(&planner_keys, name), keys[i]) == 0)
            return true;
    return false;
}

/* The overrides without those of `keys`, followed by the words of `more`. */
static void replace(const struct choose_options *options, const char *const *keys, int count,
                    const char *more, struct recipe_names *out)
{
    char *words = text_copy(more), *rest = NULL;
    out->list = calloc(options->override_count + RECIPE_MAX_CHOSEN + 4, sizeof *out->list);
    if (out->list == NULL)
        die(__FILE__, __LINE__, "choose", "out of memory for the overrides");
    for (size_t i = 0; i < options->override_count; i++)
        if (!override_sets_any(options->overrides[i], keys, count))
            out->list[out->count++] = text_copy(options->overrides[i]);
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        out->list[out->count++] = text_copy(word);
    free(words);
}

/* ---- the choice ---- */

struct choosing {
    const struct choose_options *options;
    bool layout;                             // parallel: auto
    bool layers;                             // also choose the layers of each stage
    bool on_cpu;                             // the profile is that of a CPU
    const char *keys[RECIPE_MAX_CHOSEN + 2]; // the axes, the data-parallel degree, parallel.search
    int axes;                                // keys that are searched
    int count;                               // keys with a value in the choice: without parallel.search
    const char **overrides;                  // as given; with `best` also `auto` for what is not given
    size_t override_count;
};

static void report(void *context, enum sweep_phase phase, int64_t done, int64_t count)
{
    const struct choose_options *options = context;
    if (options->progress != NULL)
        options->progress(options->context, phase == SWEEP_CHECKING ? "checking" : "planning", done, count);
}

/* Reports why no layout was planned: an error of one that may fit, else the layout that needs the least
 * memory. */
static void report_failure(const struct sweep *sweep, struct problems *problems)
{
    for (int i = 0; i < sweep->reason_count; i++)
        if (sweep->reasons[i].state == SWEEP_FAILED) {
            problems_add(problems, "auto: no layout can be planned: %s", sweep->reasons[i].example);
            return;
        }
    const struct sweep_layout *least = NULL;
    struct text layout = {0};
    for (size_t i = 0; i < sweep->count; i++)
        if ((sweep->layouts[i].state == SWEEP_TOO_LARGE || sweep->layouts[i].state == SWEEP_TIGHT) &&
            (least == NULL || sweep->layouts[i].needed_bytes < least->needed_bytes))
            least = &sweep->layouts[i];
    if (least == NULL) {
        problems_add(problems, "auto: none of %lld layouts is possible: %s", (long long)sweep->file->layouts,
                     sweep->reason_count > 0 ? sweep->reasons[0].example : "");
        return;
    }
    sweep_layout_text(sweep->file, least->number, &layout);
    if (least->state == SWEEP_TIGHT)
        problems_add(
            problems,
            "auto: no layout leaves cluster.memory_headroom free; the smallest, %s, needs %.2f GiB of "
            "%.2f GiB; set a smaller cluster.memory_headroom, or use more ranks",
            layout.chars, (double)least->needed_bytes / 0x1p30, (double)sweep->device_bytes / 0x1p30);
    else
        problems_add(
            problems,
            "auto: no layout fits; the smallest, %s, lacks %.2f GiB of %.2f GiB; use more ranks, or a "
            "smaller batch or model",
            layout.chars, (double)(least->needed_bytes - sweep->device_bytes) / 0x1p30,
            (double)sweep->device_bytes / 0x1p30);
    text_free(&layout);
}

static void count_layouts(const struct sweep *sweep, struct chosen *chosen)
{
    const int64_t valid = sweep->file->layouts - sweep->counts[SWEEP_INVALID] - sweep->counts[SWEEP_FAILED];
    chosen->layouts += sweep->file->layouts;
    chosen->valid += valid;
    chosen->fits += valid - sweep->counts[SWEEP_TOO_LARGE] - sweep->counts[SWEEP_TIGHT];
}

/* Appends pipeline.layout as one override. */
static void add_layers(const struct recipe *recipe, struct text *out)
{
    text_add(out, " pipeline.layout=[");
    for (size_t i = 0; i < recipe->pipeline.layout.count; i++)
        text_add(out, "%s%lld", i > 0 ? "," : "", (long long)recipe->pipeline.layout.list[i]);
    text_add(out, "]");
}

/* Takes the values of the resulting recipe, where options without effect are disabled. */
static enum status take_best(const struct choosing *choosing, const struct sweep *sweep,
                             const struct sweep_layout *best, struct chosen *chosen)
{
    struct recipe *recipe;
    TRY(sweep_recipe(sweep, best->number, &recipe));
    text_free(&chosen->keys);
    for (int i = 0; i < choosing->count; i++) {
        text_add(&chosen->keys, "%s%s=", i > 0 ? " " : "", choosing->keys[i]);
        recipe_value_text(recipe, &recipe_rows[recipe_row_index(choosing->keys[i])], &chosen->keys);
    }
    if (recipe->pipeline.layout.count > 0 && choosing->layers)
        add_layers(recipe, &chosen->keys);
    recipe_destroy(recipe);
    chosen->step_s = best->step_s;
    return OK;
}

static enum status make_sweep(const struct choosing *choosing, const struct sweep_file *file, int64_t best,
                              double limit_s, struct sweep *out, struct problems *problems)
{
    const struct sweep_options options = {.overrides = choosing->overrides,
                                          .override_count = choosing->override_count,
                                          .world_size = choosing->options->world_size,
                                          .best = best,
                                          .limit_s = limit_s,
                                          .progress = report,
                                          .context = (void *)(uintptr_t)choosing->options};
    return sweep_make(file, &options, out, problems);
}

/* Parses the sweep file `yaml`, with the recipe as its base. */
static enum status parse_axes(const struct choosing *choosing, const struct text *yaml,
                              struct sweep_file *out, struct problems *problems)
{
    TRY(sweep_file_parse("auto", yaml->chars, yaml->length, out, problems));
    free(out->base);
    out->base = text_copy(choosing->options->path);
    return OK;
}

/* Takes the fastest layout of `yaml` if its step is shorter than the current one, if any, by a fraction of
 * `gain`. */
static enum status take_faster(const struct choosing *choosing, const struct text *yaml, double gain,
                               struct chosen *chosen, struct problems *problems)
{
    struct sweep_file file;
    struct sweep sweep;
    TRY(parse_axes(choosing, yaml, &file, problems));
    enum status status = make_sweep(choosing, &file, 1, chosen->step_s * (1.0 - gain), &sweep, problems);
    if (status == OK) {
        count_layouts(&sweep, chosen);
        const struct sweep_layout *best = sweep.best_count > 0 ? &sweep.layouts[sweep.best[0]] : NULL;
        if (best != NULL && (chosen->keys.length == 0 || best->step_s < chosen->step_s * (1.0 - gain)))
            status = take_best(choosing, &sweep, best, chosen);
        sweep_free(&sweep);
    }
    sweep_file_free(&file);
    return status;
}

/* Tries a layout with other numbers of layers per stage. */
static enum status refine_layout(const struct choosing *choosing, const struct sweep *sweep, size_t index,
                                 struct chosen *chosen, struct problems *problems)
{
    const int64_t number = sweep->layouts[sweep->best[index]].number;
    struct recipe *recipe;
    struct text yaml = {0}, layers = {0};
    TRY(sweep_recipe(sweep, number, &recipe));
    choose_layers(recipe, &layers);
    recipe_destroy(recipe);
    text_add(&yaml, "base: recipe\naxes:\n");
    for (int i = 0; i < sweep->file->axis_count; i++)
        text_add(&yaml, "  %s: [%s]\n", sweep->file->axes[i].key,
                 sweep->file->axes[i].texts[sweep_value(sweep->file, number, i)]);
    text_add(&yaml, "  pipeline.layout: [%s]\n", text_chars(&layers));
    const enum status status = layers.length > 0 ? take_faster(choosing, &yaml, 0.0, chosen, problems) : OK;
    text_free(&yaml);
    text_free(&layers);
    return status;
}

/* Tries smaller and larger buckets in the chosen layout, if their size is open. */
static enum status refine_buckets(const struct choosing *choosing, struct chosen *chosen,
                                  struct problems *problems)
{
    static const char key[] = "parallel.bucket_size_mb=";
    static const double factors[] = {0.25, 4.0, 16.0}, min_gain = 0.005;
    const char *given = strstr(text_chars(&chosen->keys), key);
    if (given == NULL || choosing->on_cpu)
        return OK;
    const double size = strtod(given + sizeof key - 1, NULL);
    char *words = text_copy(chosen->keys.chars), *rest = NULL, number[NUMBER_CHARS];
    struct text yaml = {0};
    text_add(&yaml, "base: recipe\naxes:\n");
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        const int length = (int)strcspn(word, "=");
        text_add(&yaml, "  %.*s: [", length, word);
        if (strncmp(word, key, sizeof key - 1) != 0)
            text_add(&yaml, "%s", word + length + 1);
        else
            for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
                text_add(&yaml, "%s%s", i > 0 ? ", " : "", number_text(factors[i] * size, number));
        text_add(&yaml, "]\n");
    }
    const enum status status = take_faster(choosing, &yaml, min_gain, chosen, problems);
    text_free(&yaml);
    free(words);
    return status;
}

/* Appends the layout of the recipe itself as the axes of a sweep; nothing if it leaves keys open, is not
 * valid, or has its schedule in a file. */
static void add_own_axes(const struct choosing *choosing, struct text *yaml)
{
    const struct choose_options *options = choosing->options;
    const struct recipe_input input = {.path = options->path,
                                       .overrides = options->overrides,
                                       .override_count = options->override_count,
                                       .world_size = options->world_size,
                                       .addition = &planner_keys};
    struct problems unusable = {0};
    struct recipe *own = NULL;
    if (recipe_load(&input, &own, &unusable) == OK && strcmp(own->pipeline.schedule, "file") != 0 &&
        strcmp(own->pipeline.schedule, "auto") != 0) {
        text_add(yaml, "base: recipe\naxes:\n");
        for (int i = 0; i < choosing->axes; i++) {
            text_add(yaml, "  %s: [", choosing->keys[i]);
            recipe_value_text(own, &recipe_rows[recipe_row_index(choosing->keys[i])], yaml);
            text_add(yaml, "]\n");
        }
        if (choosing->layers && own->pipeline.layout.count > 0) {
            text_add(yaml, "  pipeline.layout: [");
            recipe_key_text(own, "pipeline.layout", yaml);
            text_add(yaml, "]\n");
        }
    }
    recipe_destroy(own);
    problems_free(&unusable);
}

/* Takes the layout of the recipe itself unless a faster one is chosen: its values need not be on the axes. */
static enum status take_own(const struct choosing *choosing, struct chosen *chosen, struct problems *problems)
{
    struct chosen own = {.layouts = 0};
    AUTO(text) yaml = {0};
    if (choosing->options->best)
        add_own_axes(choosing, &yaml);
    if (yaml.length == 0)
        return OK;
    enum status status = take_faster(choosing, &yaml, 0.0, &own, problems);
    chosen->own = own.keys.length > 0 && (chosen->keys.length == 0 || own.step_s <= chosen->step_s);
    if (chosen->own) {
        text_free(&chosen->keys);
        text_add(&chosen->keys, "%s", own.keys.chars);
        chosen->step_s = own.step_s;
        if (status == OK)
            status = refine_buckets(choosing, chosen, problems);
        chosen->own = chosen->step_s >= own.step_s;
    }
    text_free(&own.keys);
    return status;
}

static enum status search(struct choosing *choosing, const struct sweep_file *file, struct chosen *chosen,
                          struct problems *problems)
{
    struct sweep sweep;
    TRY(make_sweep(choosing, file, choosing->layers ? REFINED : 1, 0.0, &sweep, problems));
    count_layouts(&sweep, chosen);
    enum status status = OK;
    if (sweep.best_count > 0) {
        status = take_best(choosing, &sweep, &sweep.layouts[sweep.best[0]], chosen);
        for (size_t i = 0; choosing->layers && i < sweep.best_count && i < REFINED && status == OK; i++)
            status = refine_layout(choosing, &sweep, i, chosen, problems);
        if (status == OK)
            status = refine_buckets(choosing, chosen, problems);
    }
    if (status == OK)
        status = take_own(choosing, chosen, problems);
    if (status == OK && chosen->keys.length == 0) {
        report_failure(&sweep, problems);
        status = fail(BAD_RECIPE, "no layout fits");
    }
    sweep_free(&sweep);
    return status;
}

/* Adds `auto` for each key that can be chosen and is not given. */
static void open_all(struct choosing *choosing)
{
    static const char *const autos[] = {"parallel=auto", "train.micro_batch_size=auto",
                                        "memory.recompute_granularity=auto"};
    static const char *const keys[] = {"parallel.search", "train.micro_batch_size",
                                       "memory.recompute_granularity"};
    for (size_t k = 0; k < sizeof autos / sizeof *autos; k++) {
        bool given = false;
        for (size_t i = 0; i < choosing->override_count; i++)
            given = given || override_sets_any(choosing->overrides[i], &keys[k], 1);
        if (!given)
            choosing->overrides[choosing->override_count++] = autos[k];
    }
}

/* Whether all degrees of parallelism are given, and thus the number of ranks. */
static bool gives_degrees(const struct recipe *base)
{
    static const char *const keys[] = {"parallel.tensor_parallel_size", "parallel.pipeline_parallel_size",
                                       "parallel.data_parallel_size"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (base->origin[recipe_row_index(keys[i])].kind == FROM_DEFAULT)
            return false;
    return true;
}

/* The number of ranks; 0: unknown, and not needed. */
static enum status find_ranks(struct choosing *choosing, const struct recipe *base, int64_t *ranks,
                              struct problems *problems)
{
    const struct recipe_cluster *cluster = &base->cluster;
    struct cluster_profile *profile = NULL;
    if (cluster->profile == NULL) {
        problems_add(problems,
                     "%s: auto is chosen by a plan, which needs cluster.profile; add cluster.profile=NAME "
                     "(cuboid profile --list), or give a value",
                     choosing->layout ? "parallel" : choosing->keys[0]);
        return fail(BAD_RECIPE, "no cluster.profile");
    }
    TRY(profile_load(cluster->profile, &profile, problems));
    const bool on_cpu = profile->device.is_cpu; // ranks are threads or processes, in any number
    choosing->on_cpu = on_cpu;
    const int devices = cluster->gpus_per_node > 0 ? cluster->gpus_per_node
                        : on_cpu                   ? 0
                                                   : profile->node.devices;
    profile_destroy(profile);
    *ranks = choosing->options->world_size;
    if (*ranks == 0)
        *ranks = (int64_t)cluster->nodes * devices * cluster->ranks_per_gpu;
    if (*ranks == 0 && gives_degrees(base))
        *ranks = recipe_world_size(base);
    if (*ranks > 0 || !choosing->layout)
        return OK;
    problems_add(problems,
                 "parallel: auto needs the number of ranks; add cluster.nodes=N%s, or start the program with "
                 "a launcher",
                 on_cpu ? " and cluster.gpus_per_node=N, the ranks of a node"
                        : " (and cluster.gpus_per_node)");
    return fail(BAD_RECIPE, "no number of ranks");
}

static enum status choose(struct choosing *choosing, const struct recipe *base, struct chosen *chosen,
                          struct problems *problems)
{
    struct text yaml = {0};
    struct sweep_file file;
    int64_t ranks = 0;
    TRY(find_ranks(choosing, base, &ranks, problems));
    text_add(&yaml, "base: recipe\naxes:\n");
    for (int i = 0; i < choosing->axes; i++)
        add_axis(base, ranks, choosing->on_cpu, choosing->keys[i], &yaml);
    enum status status = parse_axes(choosing, &yaml, &file, problems);
    text_free(&yaml);
    TRY(status);
    status = search(choosing, &file, chosen, problems);
    sweep_file_free(&file);
    return status;
}

/* Finds the open keys and chooses their values. A recipe that cannot be read has none; loading it reports
 * why. */
static enum status find_and_choose(struct choosing *choosing, struct chosen *chosen,
                                   struct problems *problems)
{
    struct recipe_variants *variants;
    struct problems unreadable = {0};
    const struct choose_options *options = choosing->options;
    enum status opened =
        recipe_variants_open(&planner_keys, options->path, choosing->overrides, choosing->override_count,
                             options->world_size, &variants, &unreadable);
    problems_free(&unreadable);
    if (opened != OK)
        return opened == BAD_RECIPE ? OK : opened;
    const struct recipe *base = recipe_variants_base(variants);
    choosing->layout = base->parallel.search == SEARCH_AUTO;
    choosing->layers =
        choosing->layout && base->origin[recipe_row_index("pipeline.layout")].kind == FROM_DEFAULT;
    choosing->axes = choosing->count = recipe_variants_open_keys(variants, choosing->keys);
    if (choosing->layout &&
        base->origin[recipe_row_index("parallel.data_parallel_size")].kind == FROM_DEFAULT)
        choosing->keys[choosing->count++] = "parallel.data_parallel_size"; // the remaining ranks
    choosing->keys[choosing->count] = "parallel.search";
    enum status status = choosing->axes > 0 ? choose(choosing, base, chosen, problems) : OK;
    recipe_variants_close(variants);
    return status;
}

/* ---- the recipe ---- */

static enum status load(const struct choosing *choosing, struct chosen *chosen, struct recipe **out,
                        struct problems *problems)
{
    const struct choose_options *options = choosing->options;
    struct text more = {0};
    if (choosing->axes > 0)
        text_add(&more, "%s", chosen->keys.chars);
    else if (choosing->count > 0)
        text_add(&more, "parallel.data_parallel_size=auto");
    if (choosing->layers && strstr(text_chars(&more), "pipeline.layout=") == NULL)
        text_add(&more, " pipeline.layout=[]"); // that of the recipe is for another layout
    if (choosing->axes > 0 || choosing->layout)
        text_add(&more, " parallel.search=none");
    replace(options, choosing->keys, more.length > 0 ? choosing->count + 1 : 0, text_chars(&more),
            &chosen->overrides);
    const struct recipe_input input = {.path = options->path,
                                       .overrides = (const char *const *)chosen->overrides.list,
                                       .override_count = chosen->overrides.count,
                                       .world_size = options->world_size,
                                       .runs = options->files,
                                       .addition = &planner_keys};
    enum status status = recipe_load(&input, out, problems);
    for (int i = 0; i < choosing->count && status == OK; i++)
        (*out)->origin[recipe_row_index(choosing->keys[i])].kind = FROM_DERIVED;
    if (choosing->layers && status == OK)
        (*out)->origin[recipe_row_index("pipeline.layout")].kind = FROM_DERIVED;
    text_free(&more);
    return status;
}

enum status choose_load(const struct choose_options *options, struct recipe **out, struct chosen *chosen,
                        struct problems *problems)
{
    struct choosing choosing = {.options = options,
                                .overrides = calloc(options->override_count + 4, sizeof(char *)),
                                .override_count = options->override_count};
    *chosen = (struct chosen){.layouts = 0};
    if (choosing.overrides == NULL)
        return fail(NO_MEMORY, "no memory for the overrides");
    for (size_t i = 0; i < options->override_count; i++)
        choosing.overrides[i] = options->overrides[i];
    if (options->best)
        open_all(&choosing);
    enum status status = find_and_choose(&choosing, chosen, problems);
    if (status == OK)
        status = load(&choosing, chosen, out, problems);
    free(choosing.overrides);
    if (status != OK)
        chosen_free(chosen);
    return status;
}

void chosen_free(struct chosen *chosen)
{
    text_free(&chosen->keys);
    for (size_t i = 0; i < chosen->overrides.count; i++)
        free(chosen->overrides.list[i]);
    free(chosen->overrides.list);
    *chosen = (struct chosen){.layouts = 0};
}
