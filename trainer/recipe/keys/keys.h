// SPDX-License-Identifier: Apache-2.0
/* Every key of a recipe, in the order of the reference page. A row is all there is to a key but its use:
 *
 *     KEY(optimizer, clip_grad, REAL, "1", "Maximum global norm ...", NOT_NEGATIVE)
 *     UNUSED_IF(condition, "the.key.that.decides", "the reason")      condition: an expression in `r`
 *
 * declares the field `double clip_grad` of struct recipe_optimizer, and puts "optimizer.clip_grad" with its
 * default, help and range into the table. Included once for the structs (recipe.h), twice for the tables
 * (recipe_table.c) and once for the conditions (recipe_unused.c); each defines the macros that it needs:
 *
 *     SECTION(name, kind, help, ...)                 begins a section (struct recipe_section)
 *     BEGIN_FIELDS(struct tag) ... END_FIELDS        around rows that declare fields
 *     KEY(section, name, TYPE, default, help, ...)   type ROW_TYPE; the rest: members of struct recipe_row
 *     CHOICE_KEY(enum tag, section, name, ...)       the same of type CHOICE
 *     ROW("section.name", TYPE, field, default, help, ...)            of a field that is declared elsewhere
 *     FIELD(declaration)                             a field that is not a key, or that of a ROW
 *     UNUSED_IF(condition, key, reason)              of the row before; the warning: recipe_unused.c */
#ifndef SECTION
#define SECTION(...)
#endif
#ifndef BEGIN_FIELDS
#define BEGIN_FIELDS(...)
#define END_FIELDS
#define FIELD(...)
#endif
#ifndef ROW
#define ROW(...)
#endif
#ifndef KEY
#define KEY(section, name, type, ...)       ROW(#section "." #name, type, section.name, __VA_ARGS__)
#define CHOICE_KEY(tag, section, name, ...) ROW(#section "." #name, CHOICE, section.name, __VA_ARGS__)
#endif
#ifndef UNUSED_IF
#define UNUSED_IF(...)
#endif

#include "trainer/recipe/keys/keys_model.h"
#include "trainer/recipe/keys/keys_training.h"

#include "trainer/recipe/keys/keys_run.h" // after keys_training.h on the reference page

#undef SECTION
#undef BEGIN_FIELDS
#undef END_FIELDS
#undef FIELD
#undef ROW
#undef KEY
#undef CHOICE_KEY
#undef UNUSED_IF
