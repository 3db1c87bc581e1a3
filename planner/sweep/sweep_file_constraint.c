// SPDX-License-Identifier: Apache-2.0
#include "planner/recipe/planned_recipe.h"
#include "planner/sweep/sweep_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_CHARS = 200 };

enum compare { AT_MOST, BELOW, AT_LEAST, ABOVE, EQUAL, UNEQUAL, COMPARES };
static const char *const compares[COMPARES] = {"<=", "<", ">=", ">", "==", "!="};

/* ---- derived values ---- */

static double ranks_of(const struct recipe *recipe)
{
    return (double)recipe_world_size(recipe);
}

static double microbatches_of(const struct recipe *recipe)
{
    return (double)recipe_microbatches(recipe);
}

static double nodes_of(const struct recipe *recipe)
{
    return recipe->cluster.gpus_per_node > 0 ? ranks_of(recipe) / recipe->cluster.gpus_per_node : 1.0;
}

static double layers_per_stage_of(const struct recipe *recipe)
{
    return (double)recipe->model.num_layers /
           ((double)recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages);
}

static const struct derived {
    const char *name;
    double (*value)(const struct recipe *recipe);
} derived[] = {{"ranks", ranks_of},
               {"microbatches", microbatches_of},
               {"nodes", nodes_of},
               {"layers_per_stage", layers_per_stage_of}};
enum { DERIVED = sizeof derived / sizeof *derived };

static const struct derived *find_derived(const char *name)
{
    for (int i = 0; i < DERIVED; i++)
        if (strcmp(derived[i].name, name) == 0)
            return &derived[i];
    return NULL;
}

/* ---- parsing ---- */

/* Copies the next word, up to a space; false: there is none. */
static bool next_word(const char **at, char word[WORD_CHARS])
{
    *at += strspn(*at, " \t");
    const size_t length = strcspn(*at, " \t");
    snprintf(word, WORD_CHARS, "%.*s", (int)(length < WORD_CHARS ? length : WORD_CHARS - 1), *at);
    *at += length;
    return length > 0;
}

static int compare_of(const char *word)
{
    for (int i = 0; i < COMPARES; i++)
        if (strcmp(word, compares[i]) == 0)
            return i;
    return -1;
}

static struct sweep_factor factor_of(const char *word, bool is_divisor)
{
    struct sweep_factor factor = {.text = text_copy(word), .number = NAN, .is_divisor = is_divisor};
    if (number_parse(word, &factor.number))
        return factor;
    const struct derived *known = find_derived(word);
    factor.key = known != NULL ? known->name : recipe_key(&planner_keys, word);
    return factor;
}

/* Parses one side, up to a comparison or the end of the text. Returns the index of the comparison, -1 at the
 * end, -2 if the side is not valid. */
static int parse_side(const char **at, struct sweep_factor *side, int *count, struct text *why)
{
    char word[WORD_CHARS];
    bool is_divisor = false;
    for (;;) {
        if (!next_word(at, word) || compare_of(word) >= 0 || *count == SWEEP_MAX_FACTORS) {
            text_add(why,
                     *count == SWEEP_MAX_FACTORS ? "has more than %d factors on one side" : "lacks a value",
                     (int)SWEEP_MAX_FACTORS);
            return -2;
        }
        side[(*count)++] = factor_of(word, is_divisor);
        if (is_divisor && side[*count - 1].number == 0.0) {
            text_add(why, "divides by 0");
            return -2;
        }
        if (!next_word(at, word))
            return -1;
        if (compare_of(word) >= 0)
            return compare_of(word);
        if (strcmp(word, "*") != 0 && strcmp(word, "/") != 0) {
            text_add(why, "has \"%s\" where *, /, <=, <, >=, >, == or != is expected (with spaces around it)",
                     word);
            return -2;
        }
        is_divisor = *word == '/';
    }
}

static bool is_text(const struct sweep_factor *factor)
{
    return factor->key == NULL && isnan(factor->number);
}

/* Checks that a text on the right is a value that the key on the left can have. Derived values are
 * numbers. */
static bool check_value(const struct sweep_constraint *constraint, struct text *why)
{
    const char *key = constraint->left[0].key, *word = constraint->right[0].text;
    struct node *node = node_scalar(word);
    const struct recipe_change change = {key, node};
    struct text reason = {0};
    const bool known = find_derived(key) == NULL;
    const bool good = known && (node == NULL || recipe_change_is_valid(&planner_keys, &change, &reason));
    if (!known)
        text_add(why, "compares the number %s with %s", key, word);
    else if (!good)
        text_add(why, "can never hold or fail: %s %s", key, text_chars(&reason));
    node_free(node);
    text_free(&reason);
    return good;
}

/* Text must be alone on the right side, and compared with a recipe key by == or !=. */
static bool check_words(const struct sweep_constraint *constraint, struct text *why)
{
    const bool equality = constraint->compare == EQUAL || constraint->compare == UNEQUAL;
    const bool alone = constraint->left_count == 1 && constraint->right_count == 1 && equality &&
                       constraint->left[0].key != NULL;
    for (int i = 0; i < constraint->left_count + constraint->right_count; i++) {
        const bool on_left = i < constraint->left_count;
        const struct sweep_factor *factor =
            on_left ? &constraint->left[i] : &constraint->right[i - constraint->left_count];
        if (is_text(factor) && (on_left || !alone)) {
            text_add(why,
                     "%s is neither a number, a recipe key, nor ranks, microbatches, nodes or "
                     "layers_per_stage",
                     factor->text);
            return false;
        }
        if (is_text(factor))
            return check_value(constraint, why);
    }
    return true;
}

bool sweep_constraint_parse(const char *text, struct sweep_constraint *out, struct text *why)
{
    const char *at = text;
    *out = (struct sweep_constraint){.text = text_copy(text)};
    out->compare = parse_side(&at, out->left, &out->left_count, why);
    bool good = out->compare >= 0;
    if (out->compare == -1)
        text_add(why, "compares nothing; expected a form like tp * pp <= 64");
    if (good) {
        const int end = parse_side(&at, out->right, &out->right_count, why);
        good = end == -1;
        if (end >= 0)
            text_add(why, "has two comparisons; write two constraints");
    }
    good = good && check_words(out, why);
    if (!good)
        sweep_constraint_free(out);
    return good;
}

void sweep_constraint_free(struct sweep_constraint *constraint)
{
    for (int i = 0; i < constraint->left_count; i++)
        free(constraint->left[i].text);
    for (int i = 0; i < constraint->right_count; i++)
        free(constraint->right[i].text);
    free(constraint->text);
    *constraint = (struct sweep_constraint){.text = NULL};
}

/* ---- evaluation ---- */

static void text_of(const struct sweep_factor *factor, const struct recipe *recipe, struct text *out)
{
    const struct derived *known = factor->key != NULL ? find_derived(factor->key) : NULL;
    char number[NUMBER_CHARS];
    if (known != NULL)
        text_add(out, "%s", number_text(known->value(recipe), number));
    else if (factor->key != NULL)
        recipe_key_text(recipe, factor->key, out);
    else
        text_add(out, "%s", factor->text);
}

/* The value of a factor; NAN: not a number. */
static double number_of(const struct sweep_factor *factor, const struct recipe *recipe)
{
    struct text text = {0};
    double number = factor->number;
    if (factor->key == NULL)
        return number;
    text_of(factor, recipe, &text);
    if (!number_parse(text_chars(&text), &number))
        number = NAN;
    text_free(&text);
    return number;
}

static double product(const struct sweep_factor *side, int count, const struct recipe *recipe)
{
    double value = 1.0;
    for (int i = 0; i < count; i++)
        value =
            side[i].is_divisor ? value / number_of(&side[i], recipe) : value * number_of(&side[i], recipe);
    return value;
}

static bool equal_texts(const struct sweep_constraint *constraint, const struct recipe *recipe)
{
    struct text left = {0}, right = {0};
    text_of(&constraint->left[0], recipe, &left);
    text_of(&constraint->right[0], recipe, &right);
    const bool equal = strcmp(text_chars(&left), text_chars(&right)) == 0;
    text_free(&left);
    text_free(&right);
    return equal;
}

bool sweep_constraint_holds(const struct sweep_constraint *constraint, const struct recipe *recipe)
{
    const double left = product(constraint->left, constraint->left_count, recipe);
    const double right = product(constraint->right, constraint->right_count, recipe);
    if (isnan(left) || isnan(right))
        return constraint->left_count == 1 && constraint->right_count == 1 &&
               equal_texts(constraint, recipe) == (constraint->compare == EQUAL);
    switch ((enum compare)constraint->compare) {
    case AT_MOST:
        return left <= right;
    case BELOW:
        return left < right;
    case AT_LEAST:
        return left >= right;
    case ABOVE:
        return left > right;
    case EQUAL:
        return left == right;
    case UNEQUAL:
        return left != right;
    case COMPARES:
        break;
    }
    return false;
}
