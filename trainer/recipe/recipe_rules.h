// SPDX-License-Identifier: Apache-2.0
/* Rules across the keys of a recipe, private to recipe_check.c and recipe_rules_*.c.
 *
 * A rule is a pure predicate with the list of keys that it reads, so that suggestions are tried, not
 * guessed (recipe_check.c). Caution: a rule that reads a key which is missing in `reads` allows invalid
 * suggestions; the tests apply every suggestion. */
#pragma once

#include "trainer/recipe/recipe_table.h"

/* The keys whose presence matters to derived values and rules. */
enum given_key {
    GIVEN_GROUPS,
    GIVEN_FFN,
    GIVEN_KV,
    GIVEN_VOCAB,
    GIVEN_DP,
    GIVEN_DECAY,
    GIVEN_SPLIT,
    GIVEN_SAVE,
    GIVEN_VIRTUAL,
    GIVEN_TIMES,
    GIVEN_BUCKET,
    GIVEN_COUNT
};

struct view {
    const struct recipe *recipe; // derived values filled in; name, run_dir and save may still be NULL
    int world;                   // number of ranks; 0: no launcher
    bool given[GIVEN_COUNT];     // by the recipe or the command line
};

/* A possible fix: change the integer `key`, searching from guess() in steps of grid(). */
struct fix {
    const char *key;
    int64_t (*guess)(const struct recipe *recipe); // NULL: the current value
    int64_t (*grid)(const struct recipe *recipe);  // NULL: 1
    int64_t min;                                   // smaller values, such as 0 for "unset", are not suggested
    bool (*applies)(const struct view *view);      // NULL: always
    bool also;                                     // an alternative to the fix before it
};

enum { RULE_FIXES = 5 };

struct rule {
    const char *reads; // keys, separated by spaces; the problem is reported at the first one that was given
    bool (*holds)(const struct view *view);
    /* Appends the message, with the fix if `fix` is empty. */
    void (*message)(const struct view *view, struct text *out);
    struct fix fix[RULE_FIXES]; // in the order in which they are tried
};

enum { RULE_MAX_WORLD = 1 << 20 };

struct rules {
    const struct rule *list;
    int count;
};
#define RULES_OF(table)                                           \
    {                                                             \
        .list = (table), .count = sizeof(table) / sizeof *(table) \
    }
extern const struct rules recipe_model_rules;  // the model
extern const struct rules recipe_layout_rules; // how the model is partitioned
extern const struct rules recipe_save_rules;   // saving and resuming
extern const struct rules recipe_run_rules;    // learning rate, data, tokenizer, files
extern const struct rules recipe_precision_rules;
extern const struct rules recipe_plan_rules;

/* Like recipe_world_size(), for degrees that are not checked yet: their product may exceed an int. */
int64_t recipe_ranks(const struct recipe *recipe);

/* nodes x gpus_per_node x ranks_per_gpu; 0: unset. */
int64_t recipe_cluster_ranks(const struct recipe *recipe);

/* The data-parallel degree follows from the nodes: neither the recipe nor a launcher gives it. */
bool rule_degree_of_nodes(const struct view *view);
/* Then, whether the nodes have whole replicas of the model (tp x pp ranks). */
bool rule_replicas_hold(const struct view *view);
void rule_replicas_message(const struct view *view, struct text *out);

/* cluster.time is none, or in Slurm's notation. */
bool rule_time_holds(const struct view *view);
void rule_time_message(const struct view *view, struct text *out);

/* Vocabulary size of the recipe's tokenizer; 0: unknown. */
int64_t rule_tokenizer_vocab(const struct recipe *recipe);
