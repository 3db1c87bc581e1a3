// SPDX-License-Identifier: Apache-2.0
#include "tools/recipe_argument.h"

#include "parallel/comm.h"

int recipe_argument(int argc, char **argv, bool alone, struct recipe **recipe, int *size)
{
    if (argc < 2) {
        fprintf(stderr, "cuboid %s: which recipe? cuboid %s recipes/quickstart.yaml\n", argv[0], argv[0]);
        return 2;
    }
    struct launcher launcher = {.name = "none", .rank = -1};
    if (!alone && launcher_find(&launcher) != OK) {
        fprintf(stderr, "cuboid: %s\n", fail_text());
        return 2;
    }
    struct problems problems = {0};
    enum status status = recipe_load(argv[1], (const char *const *)(argv + 2), (size_t)(argc - 2),
                                     launcher.size, recipe, &problems);
    if (launcher.rank <= 0)
        problems_print(&problems, stderr);
    problems_free(&problems);
    if (status != OK)
        return 2;
    *size = launcher.size > 0 ? launcher.size : recipe_world_size(*recipe);
    return 0;
}

int exit_status(enum status status)
{
    if (status == OK)
        return 0;
    fprintf(stderr, "cuboid: %s\n", fail_text());
    if (status == STOPPED)
        return 75;
    return status == BAD_RECIPE || status == BAD_USAGE || status == BAD_SCHEDULE ? 2 : 1;
}
