// SPDX-License-Identifier: Apache-2.0
/* cuboid report: runs as one page (tools/pages/report.js). */
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/page.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/runs/run_dirs.h"
#include "trainer/run/dashboard/run_curves.h"

#include <stdlib.h>

const char help_report[] =
    "cuboid report RUN ... -o FILE.html\n"
    "\n"
    "Writes one page about runs, which opens without a network: loss, gradient norm, learning rate, speed\n"
    "and memory on common axes (steps, tokens or time), and the recipe keys in which they differ. RUN is a\n"
    "run directory, with metrics.jsonl and recipe.yaml, or a folder of such. A run may still be training.\n"
    "\n"
    "  -o FILE    the page\n"
    "\n"
    "Exit status: 0 if the page was written; 1 if no run could be read; 2 for invalid usage.\n";

enum { POINTS = 1500 }; // of a curve: a page of a run stays below 1 MB

struct arguments {
    const char *out;
    const char **dirs;
    int count;
};

/* Appends {"name", "metrics", "recipe"}; nothing on failure. */
static enum status add_run(const char *dir, struct text *data)
{
    AUTO(text) path = {0}, metrics = {0}, recipe = {0};
    TRY(run_curves_json(dir, POINTS, &metrics));
    text_add(&path, "%s/recipe.yaml", dir);
    TRY(file_read(path.chars, &recipe));
    text_add(data, data->length > 0 ? ",\n{\"name\": " : "{\"name\": ");
    text_add_json(data, dir);
    text_add(data, ", \"metrics\": %s,\n\"recipe\": ", metrics.chars);
    text_add_json_bytes(data, text_chars(&recipe), recipe.length);
    text_add(data, "}");
    return OK;
}

static enum status write_page(const struct arguments *arguments, const struct text *runs)
{
    AUTO(text) data = {0}, command = {0}, page = {0};
    text_add(&command, "cuboid report");
    for (int i = 0; i < arguments->count; i++)
        text_add(&command, " %s", arguments->dirs[i]);
    text_add(&data, "{\"runs\": [%s]}", runs->chars);
    page_add(&(struct page){.script = "report.js",
                            .title = arguments->count == 1 ? arguments->dirs[0] : "runs",
                            .command = command.chars,
                            .data = &data},
             &page);
    const struct output output = {"report", "-o", arguments->out};
    return output_write(&output, &page, true);
}

/* The page must not replace what it is made of. */
static enum status check_output(const struct arguments *arguments, const char *dir)
{
    AUTO(text) metrics = {0}, recipe = {0};
    text_add(&metrics, "%s/metrics.jsonl", dir);
    text_add(&recipe, "%s/recipe.yaml", dir);
    const struct output page = {"report", "-o", arguments->out};
    const struct input inputs[] = {{"metrics", metrics.chars}, {"recipe", recipe.chars}};
    return outputs_check(&page, 1, inputs, 2, NULL);
}

/* A run that cannot be read is reported, and left out. */
static int report(const struct arguments *arguments)
{
    struct run_dirs dirs = {0};
    AUTO(text) runs = {0};
    enum status status = OK;
    for (int i = 0; i < arguments->count; i++)
        run_dirs_add(arguments->dirs[i], &dirs);
    for (int i = 0; i < dirs.count && status == OK; i++)
        status = check_output(arguments, dirs.list[i]);
    if (status != OK) {
        run_dirs_free(&dirs);
        return exit_status_of_input(status);
    }
    for (int i = 0; i < dirs.count; i++)
        if (add_run(dirs.list[i], &runs) != OK)
            print_line(stderr, "cuboid: %s", fail_text());
    run_dirs_free(&dirs);
    return runs.length == 0 ? 1 : exit_status_of_input(write_page(arguments, &runs));
}

static enum status parse(int argc, char **argv, struct arguments *out)
{
    const struct option options[] = {{"-o", OPTION_TEXT, &out->out, 0, 0}};
    out->dirs = memory_zeroed((size_t)argc + 1, sizeof *out->dirs, "the arguments");
    TRY(options_parse(argc, argv, options, 1, out->dirs, &out->count));
    if (out->count == 0)
        return fail(BAD_USAGE, "no run given; use cuboid report RUN ... -o FILE.html");
    if (out->out == NULL)
        return fail(BAD_USAGE, "no page given; use -o FILE.html");
    const struct output page = {"report", "-o", out->out};
    return outputs_check(&page, 1, NULL, 0, NULL);
}

int cmd_report(int argc, char **argv)
{
    struct arguments arguments = {0};
    int status = exit_status_of_input(parse(argc, argv, &arguments));
    if (status == 0)
        status = report(&arguments);
    free(arguments.dirs);
    return status;
}
