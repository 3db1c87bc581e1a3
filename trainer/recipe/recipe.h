// SPDX-License-Identifier: Apache-2.0
/* A recipe: text in, struct out. Everything that a run depends on, in one struct with the sections of the
 * recipe: recipe->parallel.tensor_parallel_size is `parallel: {tensor_parallel_size: 2}`.
 *
 *   struct problems problems = {0};
 *   struct recipe *recipe = NULL;
 *   const struct recipe_input input = {.path = "recipes/quickstart.yaml", .overrides = ..., ...};
 *   enum status status = recipe_load(&input, &recipe, &problems);
 *   problems_print(&problems, stderr);         // all of them at once, warnings too
 *   problems_free(&problems);
 *   if (status != OK)
 *       return 2;
 *   ...
 *   recipe_destroy(recipe);
 *
 * A key that another folder reads is a field of a struct of that folder, which is embedded here; its row
 * names the field.
 *
 * A loaded recipe is complete (defaults and derived values filled in), within every range, consistent
 * across keys, and uses only implemented features: callers need not validate it. It does not change
 * after loading, so ranks that are threads may share it.
 *
 * keys/ has a row for each key, which is also its field. Parsing, defaults, ranges, the resolved text and the
 * reference page are read from these rows; a new key is a row there (docs/internals/extending.md). */
#pragma once

#include "base/text.h"
#include "kernels/device.h"
#include "layers/layer_options.h"
#include "layers/model_config.h"
#include "parallel/data_parallel_options.h"
#include "trainer/files/problems.h"

enum layout_search { SEARCH_NONE, SEARCH_AUTO };
/* TIMES_PLAN: times of a plan with cluster.profile; also the memory limit, unless the recipe has one. */
enum schedule_times { TIMES_GIVEN, TIMES_PLAN };
enum lr_decay { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_INVERSE_SQUARE_ROOT, LR_WSD };
enum wsd_decay { WSD_EXPONENTIAL, WSD_LINEAR, WSD_COSINE, WSD_MINUS_SQUARE_ROOT };
enum { MATMUL_FORMAT_SAME = MATMUL_FORMAT_COUNT }; // as precision.matmul_format
enum recipe_scaling { SCALE_AUTO, SCALE_TENSORWISE, SCALE_DELAYED, SCALE_BLOCKWISE };
enum amax_algorithm { AMAX_MAX, AMAX_MOST_RECENT };
enum tokenizer_type {
    TOKENIZER_BYTE, // 257 ids: the bytes, and 256 ends a document
    TOKENIZER_GPT2_BPE,
    TOKENIZER_HUGGING_FACE,
    TOKENIZER_SENTENCEPIECE,
    TOKENIZER_LLAMA2,
    TOKENIZER_NONE // ids from another program: no text input or output, and no end-of-document id
};

/* A dataset by the prefix of its .bin and .idx files, and its share among the sources. */
struct recipe_source {
    char *path;
    double weight; // > 0; shares are weight / sum of weights
};

struct recipe_sources {
    struct recipe_source *list;
    size_t count;
};

struct recipe_names {
    char **list;
    size_t count;
};

/* The costs for which `auto` searches a schedule; times in any unit. */
struct recipe_auto {
    enum schedule_times times;
    double f, i, w;      // of one stage
    double comm;         // of a message
    double memory_limit; // microbatches whose activations (all chunks, F to W) a rank may hold; 0: no limit
};

/* How layers are assigned to stages without pipeline.layout. A recipe of the trainer has PARTITION_EVEN. */
enum stage_partition {
    PARTITION_EVEN,
    PARTITION_PARAMETERS,         // stages with about the same number of parameters
    PARTITION_EMBEDDING_AS_LAYER, // embedding and head count as a layer each
    PARTITION_MODULES,            // embedding, final norm and head do; the first stages are the larger
};

/* Sizes of pipeline.schedule_file. */
struct schedule_file_sizes {
    int p, m, v;
    bool stage_replicas; // every stage is on two ranks
};

/* struct recipe_parallel to struct recipe_cluster: a field for each key, as keys/keys.h says. Every `char *`
 * belongs to the recipe and is NULL where the recipe says `none`. */
#define BEGIN_FIELDS(tag) struct tag {
#define END_FIELDS \
    }              \
    ;
#define FIELD(declaration)                  declaration;
#define KEY(section, name, type, ...)       RECIPE_FIELD_##type name;
#define CHOICE_KEY(tag, section, name, ...) tag name;
#define RECIPE_FIELD_BOOL                   bool
#define RECIPE_FIELD_INT                    int
#define RECIPE_FIELD_COUNT                  int64_t
#define RECIPE_FIELD_REAL                   double
#define RECIPE_FIELD_TEXT                   char *
#define RECIPE_FIELD_WORD                   char *
#define RECIPE_FIELD_LAYERS                 struct layer_list
#define RECIPE_FIELD_NAMES                  struct recipe_names
#define RECIPE_FIELD_SOURCES                struct recipe_sources
#include "trainer/recipe/keys/keys.h"

/* Seconds of a time limit in Slurm's notation ("90", "12:00:00", "2-00:00:00"); -1 if it is not one. */
int64_t slurm_seconds(const char *text);

/* The origin of a value. */
enum origin_kind {
    FROM_DEFAULT,
    FROM_FILE,
    FROM_COMMAND_LINE,
    FROM_DERIVED,
    TO_BE_CHOSEN // `auto` for a key that a plan chooses (planner/choose/choose.h); holds the default
};

struct recipe_origin {
    enum origin_kind kind;
    int line;         // FROM_FILE: counted from 1
    const char *file; // FROM_FILE: belongs to the recipe
};

enum { RECIPE_MAX_CHOSEN = 11 }; // keys that a plan can choose
enum { RECIPE_ADDED_ROWS = 32 }; // room for the rows of an addition
enum { RECIPE_MAX_ROWS = 256 };  // room for an origin of each row of the table, and of an addition

struct recipe {
    char *name;
    uint64_t seed;
    bool deterministic;
    struct model_config model;
    struct layer_options layers;   // keys of the sections parallel, precision and memory
    struct kernel_options kernels; // keys of the sections model, precision and cluster
    struct recipe_parallel parallel;
    struct data_parallel_options data_parallel; // keys of the section parallel
    struct recipe_pipeline pipeline;
    struct recipe_train train;
    struct recipe_optimizer optimizer;
    struct recipe_precision precision;
    struct recipe_memory memory;
    struct recipe_data data;
    struct recipe_tokenizer tokenizer;
    struct recipe_checkpoint checkpoint;
    struct recipe_logging logging;
    struct recipe_profile profile;
    struct recipe_resilience resilience;
    struct recipe_cluster cluster;

    /* Keys of a program above the trainer, and their fields (recipe_table.h); NULL: none. */
    const struct recipe_addition *addition;
    void *added;
    struct recipe_names files; // the recipe, and what it is based on
    struct recipe_origin origin[RECIPE_MAX_ROWS];
};

/* What a recipe is loaded from. */
struct recipe_input {
    const char *path;             // of the file, or what stands for it in messages about `text`
    const char *text;             // NULL: read the file
    const char *const *overrides; // each "key=value" with a dotted key (or tp, pp, dp, cp, ep)
    size_t override_count;
    int world_size; // ranks of the launcher; 0 without one, where `data_parallel_size: auto` is 1
    bool runs;      // each missing file that the recipe names is also an error
    const struct recipe_addition *addition; // NULL: the keys of the trainer only
};

/* Reads a recipe, then the overrides. On BAD_RECIPE, `problems` has at least one error and *out is untouched;
 * on OK it may have warnings. */
MUST_USE enum status recipe_load(const struct recipe_input *input, struct recipe **out,
                                 struct problems *problems);

/* Adds a warning for each missing file that a run of the recipe reads. */
void recipe_warn_of_files(const struct recipe *recipe, struct problems *problems);

/* Whether a run reads a tokenizer: not for mock data, unless it needs the id of the end of a document. */
bool recipe_needs_tokenizer(const struct recipe *recipe);

/* The value of tokenizer.tokenizer_type, "GPT2BPE". */
const char *recipe_tokenizer_name(const struct recipe *recipe);

/* Takes NULL. */
void recipe_destroy(struct recipe *recipe);

/* Replaces cluster.device=dry by the device that it simulates, before the recipe is written for a run. */
void recipe_use_dry_device(struct recipe *recipe);
/* The GPU device of the recipe, or the one that its dry device simulates; NULL: another device. */
const char *recipe_gpu(const struct recipe *recipe);

/* Number of ranks of the recipe: tp * cp * dp * pp. */
int recipe_world_size(const struct recipe *recipe);

/* cluster.transport; where that is auto and there are several ranks with GPUs, nccl. */
const char *recipe_transport(const struct recipe *recipe);
/* Whether ranks are processes of this machine's CPU: with transport auto, under a launcher. */
bool recipe_has_processes(const struct recipe *recipe);
/* Options for opening the recipe's world; `size` as for world_run(). */
struct world_options;
struct world_options recipe_world(const struct recipe *recipe, int size);
struct world_options recipe_world_of_threads(const struct recipe *recipe, int size);

/* m: microbatches of one step on one data-parallel rank. */
int64_t recipe_microbatches(const struct recipe *recipe);
/* Last step of profile.timeline. */
int64_t recipe_last_profiled_step(const struct recipe *recipe);

/* The number of layers of `stage`, 0 to p * v - 1 in the order of a forward pass; the schedule determines its
 * rank. As in pipeline.layout, if given. Otherwise as even as possible: the first num_layers % (p * v) stages
 * get one more, because the last one also has the head and the loss. */
int64_t recipe_stage_layers(const struct recipe *recipe, int stage);
/* The layers of a stage of another partition than PARTITION_EVEN. */
int64_t partition_stage_layers(const struct model_config *model, enum stage_partition partition,
                               int64_t stages, int64_t stage);

/* The name of the first format other than none, and the key that sets it; NULL: no matmul is quantized. */
const char *recipe_quantized_format(const struct recipe *recipe, const char **key);

/* The layers on all stages before `stage`: the index of its first. */
int64_t recipe_stage_first_layer(const struct recipe *recipe, int stage);

/* The name of precision.params_dtype. */
const char *recipe_dtype_name(const struct recipe *recipe);

/* Appends the recipe as YAML, every key with its value and, as a comment, its origin. It loads back to the
 * same recipe. */
void recipe_resolved_text(const struct recipe *recipe, struct text *out);
/* Appends a recipe with `base`, and the keys that the command line set, those of `chosen` ("key=value
 * key=value", may be empty) and cluster.device. */
void recipe_based_text(const struct recipe *recipe, const char *base, const char *chosen, struct text *out);
/* Same, of the keys that a file or the command line sets. */
void recipe_given_text(const struct recipe *recipe, struct text *out);

/* Functions that find a key by name also know those of an addition; `more` NULL: none.
 *
 * The main name of a key, given by any of its names ("pp"); NULL: unknown. The same key always returns the
 * same pointer. */
const char *recipe_key(const struct recipe_addition *more, const char *name);

/* The main name of the key of "key=value"; NULL: unknown. */
const char *override_key(const struct recipe_addition *more, const char *override);
/* Adds "key=value" to a list of overrides, replacing another value of the same key under any of its names. */
void overrides_set(const struct recipe_addition *more, struct recipe_names *overrides, const char *override);

/* The main name of the key nearest to an unknown one; NULL: none is near. */
const char *recipe_key_near(const struct recipe_addition *more, const char *name);

/* The key for an option in the style of other programs: "tp" for "--tp=2", "optimizer.lr" for "--lr". False
 * if there is none. */
enum { RECIPE_KEY_CHARS = 64 };
bool recipe_key_of_option(const struct recipe_addition *more, const char *argument,
                          char key[RECIPE_KEY_CHARS]);

/* Appends the value of a key ("model.norm_epsilon") as in recipe_resolved_text(). The key must exist. */
void recipe_key_text(const struct recipe *recipe, const char *key, struct text *out);

/* Appends, as "key=value" words, the keys that affect a plan but have no column in a published table: those
 * of the model, and those of layout, precision and cluster that differ from the default. */
void recipe_planned_text(const struct recipe *recipe, struct text *out);

/* Appends the default of a key in the form of recipe_key_text(); false if it has none, or a derived one. */
bool recipe_default_text(const struct recipe_addition *more, const char *key, struct text *out);

/* Key `index` of the section model: "model.norm_epsilon"; NULL past the last. */
const char *recipe_model_key(int index);

/* A warning for each key of the mathematics (model, optimizer, data, precision, seed) whose value differs,
 * with both: "WHAT: optimizer.lr changed from 0.001 to 0.002". Layout
 * keys may differ. checkpoint_load() reports a changed global batch size. */
void recipe_changes(const struct recipe *then, const struct recipe *now, const char *what,
                    struct problems *problems);

/* Overrides that reduce a layout to one rank: appends "key=value" for layout key `index` (sections parallel,
 * pipeline and memory, and the keys that count nodes); false past the last. */
bool recipe_one_rank_override(int index, struct text *out);
/* Whether any layout key differs. */
bool recipe_layouts_differ(const struct recipe *a, const struct recipe *b);

/* Appends the values, default and meaning of the key of this name, of each key with this name in a section,
 * or of all keys of the section; false if there is none. */
bool recipe_help(const struct recipe_addition *more, const char *name, struct text *out);

/* Appends the reference page: every key with its type, default, range and help, as Markdown. */
void recipe_reference(const struct recipe_addition *more, struct text *out);
