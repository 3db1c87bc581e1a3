// SPDX-License-Identifier: Apache-2.0
/* Files that runs leave: hang dumps, metrics, and the journal of a sweep. */
#include "tests/fuzz/fuzz.h"
#include "tools/cli/commands.h"
#include "tools/cli/measure/journal.h"
#include "tools/cli/restart/restart.h"
#include "trainer/progress/hang_dump.h"
#include "trainer/progress/hang_report.h"
#include "trainer/run/run_summary.h"

#include <stdlib.h>

/* Reads a dump, and finds its culprit like `cuboid hang`. */
static void read_hang(const struct fuzz_input *input)
{
    struct hang hang = {0};
    struct hang_finding finding = {0};
    struct text path = {0}, report = {0}, found = {0}, dump = {0};
    fuzz_write(input, "hang-1.json", input->bytes, input->size, &path);
    if (hang_dump_read(path.chars, &hang, &report) == OK) {
        fuzz_require(hang_find(&hang, &finding) == OK, "a finding for any dump");
        hang_report(&hang, &finding, &found);
        hang_dump_text(&hang, text_chars(&report), &dump);
        fuzz_require(finding.culprit < hang.count, "the culprit is a rank");
        hang_finding_free(&finding);
        hang_free(&hang); // the command reads it again: one reading at a time is within the bound on memory
        fuzz_require(cmd_hang(4, (char *[]){"hang", path.chars, "--messages", "3", NULL}) == 0,
                     "the command reads it, too");
    }
    hang_finding_free(&finding);
    hang_free(&hang);
    text_free(&path);
    text_free(&report);
    text_free(&found);
    text_free(&dump);
}

static void read_metrics(const struct fuzz_input *input)
{
    struct run_summary summary;
    int64_t last;
    fuzz_write(input, "metrics.jsonl", input->bytes, input->size, NULL);
    if (run_summary_read(input->folder, &summary) == OK)
        fuzz_require(summary.steps > 0, "a summary has steps");
    (void)productive_s(input->folder, 0, &last);
}

static void read_journal(const struct fuzz_input *input)
{
    struct text path = {0};
    struct journal journal;
    fuzz_write(input, "journal", input->bytes, input->size, &path);
    if (journal_open(path.chars, "sweep", &journal) == OK) {
        (void)journal_find(&journal, "tp=1");
        journal_close(&journal);
    }
    text_free(&path);
}

const struct fuzz_reader fuzz_run_readers[] = {{"hang", read_hang, NULL},
                                               {"metrics", read_metrics, NULL},
                                               {"journal", read_journal, NULL},
                                               {NULL, NULL, NULL}};
