// SPDX-License-Identifier: Apache-2.0
/* The table of keys and the table of sections, from the rows in keys/. */
#include "trainer/recipe/recipe_table.h"
#include "parallel/comm.h"
#include "schedules/schedule.h"

#include <math.h>
#include <signal.h>

/* The names of registries, for keys of type WORD: choice 0, 1, ...; NULL after the last. */
static const char *schedule_choice(size_t index)
{
    const struct schedule_about *about = schedule_about((int)index);
    if (about != NULL)
        return about->name;
    return schedule_about((int)index - 1) != NULL ? "file" : NULL; // "file" follows the last family
}

static const char *device_choice(size_t index)
{
    return device_at(index) != NULL ? device_at(index)->name : NULL;
}

static const char *planned_device_choice(size_t index)
{
    for (size_t i = 0; device_at(i) != NULL; i++)
        if (device_at(i)->can_be_planned && index-- == 0)
            return device_at(i)->name;
    return NULL;
}

static const char *transport_choice(size_t index)
{
    return index == 0 ? "auto" : transport_name(index - 1);
}

/* A name of a choice and its value; ALIAS: name used by another program. */
#define NAMED(name_, value_)               \
    {                                      \
        .name = (name_), .value = (value_) \
    }
#define ALIAS(name_, value_)                              \
    {                                                     \
        .name = (name_), .value = (value_), .alias = true \
    }
#define CHOICES(...) ((const struct choice[]){__VA_ARGS__, {0}})

#define BETWEEN(from, to) .low = (from), .high = (to)
#define SHARE             BETWEEN(0, 1), .below = true, .example = "0.1"
#define POSITIVE          BETWEEN(0, INFINITY), .above = true, .below = true
#define NOT_NEGATIVE      BETWEEN(0, INFINITY), .below = true
#define LOSS_SCALES       BETWEEN(0, 1e18)
#define SOME_LOSS_SCALE   BETWEEN(1e-6, 1e18)
#define STEPS             BETWEEN(0, 1e12)
#define UNITS             BETWEEN(0, 1e12)

const struct recipe_row recipe_rows[] = {
#define ROW(key_, type_, field_, fallback_, help_, ...) \
    {.key = (key_),                                     \
     .type = ROW_##type_,                               \
     .offset = offsetof(struct recipe, field_),         \
     .fallback = (fallback_),                           \
     .help = help_,                                     \
     ##__VA_ARGS__},
#include "trainer/recipe/keys/keys.h"
};

const int recipe_row_count = sizeof recipe_rows / sizeof *recipe_rows;
_Static_assert(sizeof recipe_rows / sizeof *recipe_rows + RECIPE_ADDED_ROWS <= RECIPE_MAX_ROWS,
               "raise RECIPE_MAX_ROWS");

const struct recipe_section recipe_sections[] = {
#define SECTION(name_, kind_, help_, ...) {.name = #name_, .kind = kind_, .help = help_, ##__VA_ARGS__},
#include "trainer/recipe/keys/keys.h"
};
const int recipe_section_count = sizeof recipe_sections / sizeof *recipe_sections;
_Static_assert(sizeof recipe_sections / sizeof *recipe_sections < RECIPE_MAX_SECTIONS,
               "raise RECIPE_MAX_SECTIONS");
