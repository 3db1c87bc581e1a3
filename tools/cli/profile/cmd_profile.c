// SPDX-License-Identifier: Apache-2.0
/* cuboid profile: checks and lists cluster profiles; fits one (profile_fit.c). */
#include "tools/cli/commands.h"

#include "planner/profile/profile.h"
#include "tools/cli/options.h"
#include "tools/cli/profile/profile_fit.h"
#include "tools/cli/profile/profile_validate.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/files/problems.h"

#include <stdio.h>
#include <string.h>

const char help_profile[] =
    "cuboid profile check FILE|NAME   check a cluster profile; print every key with its unit and origin\n"
    "cuboid profile fit TABLE...      fit a profile to step times\n"
    "cuboid profile validate TABLE@PROFILE...   errors on rows that a fit has not seen\n"
    "cuboid profile --list            list the shipped profiles\n"
    "cuboid profile --reference       print every key with its range, default and meaning\n"
    "A FILE has a slash in its path or ends in .yaml. cuboid doctor --profile FILE measures one.\n"
    "\n"
    "cuboid profile fit TABLE... --base PROFILE -o FILE [--recipe R] [--fast] [key=value ...]\n"
    "\n"
    "Fits the efficiency parameters (section `model`) of a cluster profile to step times of your own runs\n"
    "or published ones. Prints how well the rows determine each parameter, and the error of the step\n"
    "times, including that on held-out rows.\n"
    "\n"
    "  TABLE           a FILE.csv, with columns as for cuboid table, or the name of a published table\n"
    "  --base PROFILE  the profile to start from; its values are the prior. Rows that name another GPU\n"
    "                  than its device (gpu_type) are left out\n"
    "  -o FILE         the fitted profile, complete; without it, only the tables are printed\n"
    "  --recipe R      base recipe of the rows of a FILE.csv\n"
    "  --fast          do not fit again with rows held out\n"
    "  key=value       recipe keys for all rows; they override those of the row\n"
    "\n"
    "cuboid profile validate TABLE@PROFILE...\n"
    "\n"
    "How well step times of clusters with the same device are predicted: the rows of all tables share the\n"
    "parameters of the device, and each PROFILE has its own of network and program. Prints the errors of\n"
    "\n"
    "  one device        a fit to all rows\n"
    "  paper out         the rows of a table, fitted to the others; its cluster has another table\n"
    "  cluster out       the rows of a cluster, fitted to the others; its network as in PROFILE\n"
    "  fitted to 15      the other rows of that cluster, after a fit to 15 of them that starts there\n"
    "  utilization       constant utilization, the median of the published ones of each experiment\n"
    "  FLOPs, bytes      FLOPs plus bytes at the efficiencies of PROFILE, without messages and schedule\n";

static const char usage[] =
    "cuboid profile check FILE|NAME, cuboid profile fit TABLE..., cuboid profile validate TABLE@PROFILE..., "
    "or cuboid profile --list";

static enum status list(void)
{
    struct text notes = {0};
    printf("%-19s %-13s %s\n", "name", "fitted to", "cluster");
    for (size_t i = 0; profile_shipped_name(i) != NULL; i++) {
        struct cluster_profile *profile = NULL;
        struct problems problems = {0};
        struct text basis = {0};
        TRY(problems_report(&problems, profile_load(profile_shipped_name(i), &profile, &problems)));
        profile_basis_word(profile, &basis);
        printf("%-19s %-13s %s\n", profile_shipped_name(i), basis.chars, profile_shipped_description(i));
        text_free(&basis);
        if (profile->fit.rows == 0 && notes.length == 0)
            profile_basis_text(profile, &notes);
        profile_destroy(profile);
    }
    printf("%s\n", text_chars(&notes));
    text_free(&notes);
    return OK;
}

static int print_and_free(struct text *text)
{
    fputs(text_chars(text), stdout);
    text_free(text);
    return 0;
}

static int check(const char *name_or_path)
{
    struct problems problems = {0};
    struct cluster_profile *profile = NULL;
    struct text table = {0}, basis = {0};
    enum status status = profile_load(name_or_path, &profile, &problems);
    status = problems_report(&problems, status);
    if (status != OK)
        return exit_status(status);
    profile_table_text(profile, &table);
    profile_basis_text(profile, &basis);
    text_add(&table, "%s: %s\n", profile->name, basis.chars);
    text_free(&basis);
    profile_destroy(profile);
    return print_and_free(&table);
}

static int print_reference(void)
{
    struct text reference = {0};
    profile_reference(&reference);
    return print_and_free(&reference);
}

int cmd_profile(int argc, char **argv)
{
    bool wants_list = false, wants_reference = false;
    const char *rest[4];
    char fit[] = "profile fit"; // for its messages
    int rest_count = 0;
    const struct option options[] = {
        {.name = "--list", .type = OPTION_FLAG, .value = &wants_list},
        {.name = "--reference", .type = OPTION_FLAG, .value = &wants_reference},
    };
    if (argc > 1 && strcmp(argv[1], "fit") == 0) {
        argv[1] = fit;
        return profile_fit(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "validate") == 0)
        return profile_validate(argc - 1, argv + 1);
    enum status status =
        argc <= 4 ? options_parse(argc, argv, options, 2, rest, &rest_count) : fail(BAD_USAGE, "%s", usage);
    bool checks = status == OK && rest_count == 2 && strcmp(rest[0], "check") == 0;
    if (status == OK && wants_list + wants_reference + checks == 1 && (checks || rest_count == 0))
        return checks ? check(rest[1]) : wants_list ? exit_status(list()) : print_reference();
    if (status == OK)
        status = fail(BAD_USAGE, "profile: use %s", usage);
    return exit_status(status);
}
