// SPDX-License-Identifier: Apache-2.0
/* Command lines: all of cuboid schedule, and what cuboid generate rejects before it loads a model. */
#include "tests/unit/commands/words.h"
#include "tools/cli/commands.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/schedule/cmd_schedule_print.h"
#include "tools/cli/schedule/cmd_schedule_progress.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int run(int (*command)(int argc, char **argv), const char *text)
{
    struct line line;
    split_line(text, &line);
    int status = command(line.count, line.words);
    fflush(stdout);
    fflush(stderr);
    return status;
}

/* ---- cuboid schedule ---- */

Test(schedule_command, draws_a_chart_with_totals, .init = cr_redirect_stdout)
{
    cr_assert_eq(run(cmd_schedule, "schedule 1f1b -p 2 -m 2"), 0);
    cr_assert_stdout_eq_str("1f1b   p 2, m 2, v 1   step time 9, bubble 3 (33.3 %), peak 2 microbatches\n"
                            "rank 0  |F0 F1 ......B0--- ...B1--- |  33.3 % idle  peak 2\n"
                            "rank 1  |   F0 B0--- F1 B1---       |   0.0 % idle  peak 1\n"
                            "         0              5\n"
                            "step time 9, bubble 3 on rank 0 (33.3 %), peaks 2 1\n"
                            "critical path: rank 0: 0F0; rank 1: 1F0 .. 1B1 (4); rank 0: 0B1\n"
                            "F, I, W of a whole rank: 1, 1, 1; a message: 0\n");
}

/* A measured B is one time: it is not halved for schedules that need I and W. */
Test(schedule_command, accepts_the_time_of_a_whole_backward, .init = cr_redirect_stdout)
{
    cr_redirect_stderr();
    cr_assert_eq(run(cmd_schedule, "schedule 1f1b -p 1 -m 1 --cost f=1,b=3"), 0);
    cr_assert_eq(run(cmd_schedule, "schedule 1f1b -p 1 -m 1 --cost b=1.5,i=1,w=1"), 0);
    cr_assert_eq(run(cmd_schedule, "schedule zb-h1 -p 1 -m 1 --cost b=3"), 2);
    cr_assert_eq(run(cmd_schedule, "schedule compare -p 1 -m 1 --cost b=3"), 2);
    cr_assert_eq(run(cmd_schedule, "schedule 1f1b -p 1 -m 1 --cost b=3,i=1"), 2);
    cr_assert_stderr_eq_str(
        "cuboid: schedule: zb-h1 has I and W apart, and --cost has only b, the time of both; add i= and w=\n"
        "cuboid: schedule: compare has I and W apart, and --cost has only b, the time of both; add i= and "
        "w=\n"
        "cuboid: schedule: --cost b=3,i=1: with b, give both i and w, or neither\n");
    cr_assert_stdout_eq_str("1f1b   p 1, m 1, v 1   step time 4, bubble 0 (0.0 %), peak 1 microbatch\n"
                            "rank 0  |F0 B0------ |   0.0 % idle  peak 1\n"
                            "         0\n"
                            "step time 4, bubble 0 on rank 0 (0.0 %), peaks 1\n"
                            "critical path: rank 0: 0F0 0B0\n"
                            "F, B of a whole rank: 1, 3; a message: 0\n"
                            "1f1b   p 1, m 1, v 1   step time 2.5, bubble 0 (0.0 %), peak 1 microbatch\n"
                            "rank 0  |F0 B0-- |   0.0 % idle  peak 1\n"
                            "         0\n"
                            "step time 2.5, bubble 0 on rank 0 (0.0 %), peaks 1\n"
                            "critical path: rank 0: 0F0 0B0\n"
                            "F, I, W, B of a whole rank: 1, 1, 1, 1.5; a message: 0\n");
}

/* no-color.org: set and not empty. */
Test(schedule_command, colours_on_capable_terminals)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY), plain = open("/dev/null", O_WRONLY);
    cr_assert(master >= 0 && plain >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    cr_assert_geq(terminal, 0);
    cr_assert(setenv("TERM", "xterm-256color", 1) == 0 && unsetenv("NO_COLOR") == 0);
    cr_expect(terminal_colours(terminal) && !terminal_colours(plain));
    cr_assert_eq(setenv("NO_COLOR", "1", 1), 0);
    cr_expect(!terminal_colours(terminal));
    cr_assert_eq(setenv("NO_COLOR", "", 1), 0);
    cr_expect(terminal_colours(terminal));
    cr_assert_eq(setenv("TERM", "dumb", 1), 0);
    cr_expect(!terminal_colours(terminal));
    cr_assert_eq(unsetenv("TERM"), 0);
    cr_expect(!terminal_colours(terminal));
    close(terminal);
    close(plain);
    close(master);
}

/* By hand: rank 1 has F at 2.5 to 4.5, I to 5.5, W to 6.5; rank 0 its I from 6 to 7, W to 8.
 * A message is critical where it is received. */
Test(schedule_command, lists_every_action_with_its_costs, .init = cr_redirect_stdout)
{
    cr_assert_eq(run(cmd_schedule, "schedule zb-h1 -p 2 -m 1 --times --cost comm=0.5,f=2"), 0);
    cr_assert_stdout_eq_str("rank,position,action,kind,stage,chunk,microbatch,peer,start,end,critical\n"
                            "0,0,0F0,F,0,0,0,,0,2,1\n"
                            "0,1,0SEND_F0,SEND_F,0,0,0,1,2,2.5,0\n"
                            "0,2,0RECV_B0,RECV_B,0,0,0,1,5.5,6,1\n"
                            "0,3,0I0,I,0,0,0,,6,7,1\n"
                            "0,4,0W0,W,0,0,0,,7,8,1\n"
                            "1,0,1RECV_F0,RECV_F,1,0,0,0,2,2.5,1\n"
                            "1,1,1F0,F,1,0,0,,2.5,4.5,1\n"
                            "1,2,1I0,I,1,0,0,,4.5,5.5,1\n"
                            "1,3,1SEND_B0,SEND_B,1,0,0,0,5.5,6,0\n"
                            "1,4,1W0,W,1,0,0,,5.5,6.5,0\n");
}

Test(schedule_command, writes_json, .init = cr_redirect_stdout)
{
    cr_assert_eq(run(cmd_schedule, "schedule gpipe -p 1 -m 1 --json"), 0);
    cr_assert_stdout_eq_str(
        "{\"schedule\": \"gpipe\", \"p\": 1, \"m\": 1, \"v\": 1,\n"
        " \"cost\": {\"f\": 1, \"i\": 1, \"w\": 1, \"comm\": 0},\n"
        " \"makespan\": 3, \"bubble\": 0, \"bubble_fraction\": 0,\n"
        " \"ranks\": [\n"
        "  {\"rank\": 0, \"first_start\": 0, \"last_end\": 3, \"busy\": 3, \"bubble\": 0, \"peak\": 1, "
        "\"peak_whole\": 1, "
        "\"actions\": [\n"
        "      {\"action\": \"0F0\", \"kind\": \"F\", \"stage\": 0, \"chunk\": 0, \"microbatch\": 0, "
        "\"start\": 0, \"end\": 1, \"critical\": true},\n"
        "      {\"action\": \"0B0\", \"kind\": \"B\", \"stage\": 0, \"chunk\": 0, \"microbatch\": 0, "
        "\"start\": 1, \"end\": 3, \"critical\": true}]}]}\n");
}

/* A file written by --csv is a schedule like any other, and determines p, m and v. */
Test(schedule_command, writes_and_reads_files, .init = cr_redirect_stdout)
{
    static const char csv[] = "0F0,,0B0\n,1F0,1B0\n";
    char folder[] = "/tmp/cuboid-command-XXXXXX", path[64], again[96], given[96];
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/a.csv", folder);
    snprintf(again, sizeof again, "schedule %s --csv --cost f=3", path);
    snprintf(given, sizeof given, "schedule %s -m 1", path);
    cr_assert_eq(file_write_atomic(path, csv, sizeof csv - 1), OK);
    cr_assert_eq(run(cmd_schedule, "schedule gpipe -p 2 -m 1 --csv"), 0);
    cr_assert_eq(run(cmd_schedule, again), 0);
    cr_assert_eq(run(cmd_schedule, given), 0);
    unlink(path);
    rmdir(folder);
    cr_assert_stdout_eq_str("0F0,,,0B0\n,1F0,1B0\n"
                            "0F0,,,0B0\n,1F0,1B0\n"
                            "file   p 2, m 1, v 1   step time 6, bubble 3 (50.0 %), peak 1 microbatch\n"
                            "rank 0  |F0 .........B0--- |  50.0 % idle  peak 1\n"
                            "rank 1  |   F0 B0---       |   0.0 % idle  peak 1\n"
                            "         0              5\n"
                            "step time 6, bubble 3 on rank 0 (50.0 %), peaks 1 1\n"
                            "critical path: rank 0: 0F0; rank 1: 1F0 1B0; rank 0: 0B0\n"
                            "F, I, W of a whole rank: 1, 1, 1; a message: 0\n");
}

/* Costs are those of a whole rank, whatever v is: by hand, a chunk's F takes 1, its I 2 and its W 3. */
Test(schedule_command, costs_are_those_of_a_whole_rank, .init = cr_redirect_stdout)
{
    cr_assert_eq(run(cmd_schedule, "schedule zb-v -p 1 -m 1 --times --cost f=2,i=4,w=6"), 0);
    cr_assert_eq(run(cmd_schedule, "schedule zb-v -p 1 -m 1 --cost f=2,i=4,w=6"), 0);
    cr_assert_stdout_eq_str(
        "rank,position,action,kind,stage,chunk,microbatch,peer,start,end,critical\n"
        "0,0,0F0,F,0,0,0,,0,1,1\n"
        "0,1,1F0,F,1,1,0,,1,2,1\n"
        "0,2,1I0,I,1,1,0,,2,4,1\n"
        "0,3,1W0,W,1,1,0,,4,7,1\n"
        "0,4,0I0,I,0,0,0,,7,9,1\n"
        "0,5,0W0,W,0,0,0,,9,12,1\n"
        "zb-v   p 1, m 1, v 2   step time 12, bubble 0 (0.0 %), peak 1 microbatch\n"
        "rank 0  |0F0 1F0 1I0---- 1W0-------- 0I0---- 0W0-------- |   0.0 % idle  peak 1\n"
        "         0                   5                   10\n"
        "step time 12, bubble 0 on rank 0 (0.0 %), peaks 1\n"
        "critical path: rank 0: 0F0 .. 0W0 (6)\n"
        "F, I, W of a whole rank: 2, 4, 6 (of a chunk 1/2 of that); a message: 0\n");
}

/* By hand: one microbatch after the other, 7 each. */
Test(schedule_command, searches, .init = cr_redirect_stdout)
{
    cr_assert_eq(run(cmd_schedule, "schedule auto -p 2 -m 2 -v 1 --memory-limit 1 --cost i=2"), 0);
    cr_assert_eq(run(cmd_schedule, "schedule auto -p 1 -m 1 -v 2 --csv"), 0);
    cr_assert_stdout_eq_str("auto   p 2, m 2, v 1   step time 14, bubble 6 (42.9 %), peak 1 microbatch\n"
                            "rank 0  |F0 .........I0--- W0 F1 .........I1--- W1 |  42.9 % idle  peak 1\n"
                            "rank 1  |   F0 I0--- W0 .........F1 I1--- W1       |  27.3 % idle  peak 1\n"
                            "         0              5              10\n"
                            "step time 14, bubble 6 on rank 0 (42.9 %), peaks 1 1\n"
                            "critical path: rank 0: 0F0; rank 1: 1F0 1I0; rank 0: 0I0 .. 0F1 (3); rank 1: "
                            "1F1 1I1; rank 0: 0I1 0W1\n"
                            "F, I, W of a whole rank: 1, 2, 1; a message: 0\n"
                            "0F0,1F0,1B0,0B0\n");
}

Test(schedule_command, rejects_invalid_arguments, .init = cr_redirect_stderr)
{
    static const char *const lines[] = {
        "schedule",
        "schedule 1f1b -p 4",
        "schedule 1f1b -m 4",
        "schedule 1f1b gpipe -p 4 -m 4",
        "schedule 1f1b -p 4 -m 4 --times --json",
        "schedule 1f1b -p 0 -m 4",
        "schedule 1f1b -p 4 -m 4 --cost f=1,g=1",
        "schedule 1f1b -p 4 -m 4 --cost f=-1",
        "schedule 1f1b -p 4 -m 4 --cost f=1,\ti\t=\t2,f=3",
        "schedule 1f1b -p 4 -m 4 --cost f=1,,i=1",
        "schedule 1f1b -p 65537 -m 4",
        "schedule 1f1b -p 4 -m 4 -p 8",
        "schedule 1f1b -p 4 -m 4 --cost f=0,i=0,w=0",
        "schedule 1f2b -p 4 -m 4",
        "schedule 1f1b -p 4 -m 4 -v 2",
        "schedule 1f1b -p 4 -m 4 --critical",
        "schedule compare -p 4 -m 4 --svg a.svg",
        "schedule compare -p 4",
        "schedule 1f1b -p 4 -m 4 --svg /dev/null",
        "schedule ./nothing.csv",
        "schedule compare -p 4 -m 4 --csv",
        "schedule auto -p 4 -m 4 --memory-limit 0.5",
        "schedule 1f1b -p 4 -m 4 --memory-limit 5",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_eq(run(cmd_schedule, lines[i]), 2, "%s", lines[i]);
    cr_assert_stderr_eq_str(
        "cuboid: schedule: no schedule given; use cuboid schedule 1f1b -p 4 -m 8, or --list for "
        "all\ncuboid: schedule: -m, the number of microbatches, is missing; use cuboid schedule 1f1b -p 4 "
        "-m 8\ncuboid: schedule: -p, the number of ranks, is missing; use cuboid schedule 1f1b -p 4 -m "
        "8\ncuboid: schedule: expected one name, not 1f1b and gpipe\ncuboid: schedule: --text, --times, "
        "--csv and --json are mutually exclusive\ncuboid: schedule: -p 0 is invalid; use an integer from "
        "1 to 65536\ncuboid: schedule: --cost \"g=1\" is invalid; use f=1,i=1,w=1,b=2,comm=0 or a part of "
        "it\ncuboid: schedule: --cost f=-1 is invalid; use a time from 0 to 1e12\ncuboid: schedule: "
        "--cost has f twice\ncuboid: schedule: --cost \"\" is invalid; use f=1,i=1,w=1,b=2,comm=0 or a "
        "part of it\ncuboid: schedule: -p 65537 is invalid; use an integer from 1 to 65536\ncuboid: "
        "schedule: -p is given twice (4 and 8); remove one of them\ncuboid: schedule: --cost f=0,i=0,w=0: "
        "all times are 0; set at least one\ncuboid: unknown schedule 1f2b (did you mean 1f1b?); available: "
        "gpipe, looped-bfs, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe, dualpipev, "
        "auto\ncuboid: 1f1b does not support p 4, m 4, v 2: each rank holds one stage; it supports any p, "
        "any m, "
        "v = 1\ncuboid: schedule: --critical needs --svg FILE; a chart prints the critical path in its "
        "last line\ncuboid: schedule: compare prints a table or --json; --svg applies to one "
        "schedule\ncuboid: schedule: -m, the number of microbatches, is missing; use cuboid schedule "
        "compare -p 4 -m 8\ncuboid: schedule: --svg /dev/null: not a file; use the name of a new "
        "file\ncuboid: ./nothing.csv: No such file or directory\ncuboid: schedule: compare prints a "
        "table or --json; --csv applies to one schedule\ncuboid: schedule: --memory-limit 0.5: use a "
        "number of microbatches from 1 to 1e9, or 0 for no limit\ncuboid: schedule: --memory-limit "
        "applies to auto and compare, not to 1f1b\n");
}

static void enter_folder(char *folder)
{
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static void write_file(const char *path, const char *text)
{
    cr_assert_eq(file_write_atomic(path, text, strlen(text)), OK, "%s", fail_text());
}

/* By hand: F of stage 0 takes 1 and of stage 1 2, I of both 1, W of stage 0 nothing and of stage 1 3.
 * With p 1 the file's two stages are v 2 for auto. */
Test(schedule_command, reads_the_times_of_each_stage, .init = cr_redirect_stdout)
{
    char folder[] = "/tmp/cuboid-command-XXXXXX";
    enter_folder(folder);
    write_file("a.csv", "stage,f,i,w\r\n 1, 2,1 ,3\r\n\n0,1,1,0\n");
    cr_assert_eq(run(cmd_schedule, "schedule zb-h1 -p 2 -m 1 --cost comm=0.5 --cost-file a.csv --times"), 0);
    cr_assert_eq(run(cmd_schedule, "schedule auto -p 1 -m 1 --cost-file a.csv"), 0);
    cr_assert_eq(run(cmd_schedule, "schedule zb-v -p 1 -m 1 --cost-file a.csv --json"), 0);
    cr_assert(unlink("a.csv") == 0 && chdir("/") == 0 && rmdir(folder) == 0);
    cr_assert_stdout_eq_str("rank,position,action,kind,stage,chunk,microbatch,peer,start,end,critical\n"
                            "0,0,0F0,F,0,0,0,,0,1,1\n"
                            "0,1,0SEND_F0,SEND_F,0,0,0,1,1,1.5,0\n"
                            "0,2,0RECV_B0,RECV_B,0,0,0,1,4.5,5,0\n"
                            "0,3,0I0,I,0,0,0,,5,6,0\n"
                            "0,4,0W0,W,0,0,0,,6,6,0\n"
                            "1,0,1RECV_F0,RECV_F,1,0,0,0,1,1.5,1\n"
                            "1,1,1F0,F,1,0,0,,1.5,3.5,1\n"
                            "1,2,1I0,I,1,0,0,,3.5,4.5,1\n"
                            "1,3,1SEND_B0,SEND_B,1,0,0,0,4.5,5,0\n"
                            "1,4,1W0,W,1,0,0,,4.5,7.5,1\n"
                            "auto   p 1, m 1, v 2   step time 8, bubble 0 (0.0 %), peak 1 microbatch\n"
                            "rank 0  |0F0 1F0---- 1B0------------ 0B0 |   0.0 % idle  peak 1\n"
                            "         0                   5\n"
                            "step time 8, bubble 0 on rank 0 (0.0 %), peaks 1\n"
                            "critical path: rank 0: 0F0 .. 0B0 (4)\n"
                            "F, I, W of each stage: from its file; a message: 0\n"
                            "{\"schedule\": \"zb-v\", \"p\": 1, \"m\": 1, \"v\": 2,\n"
                            " \"cost\": {\"comm\": 0, \"stages\": [{\"f\": 1, \"i\": 1, \"w\": 0}, {\"f\": "
                            "2, \"i\": 1, \"w\": 3}]},\n"
                            " \"makespan\": 8, \"bubble\": 0, \"bubble_fraction\": 0,\n"
                            " \"ranks\": [\n"
                            "  {\"rank\": 0, \"first_start\": 0, \"last_end\": 8, \"busy\": 8, \"bubble\": "
                            "0, \"peak\": 2, \"peak_whole\": 1, \"actions\": [\n"
                            "      {\"action\": \"0F0\", \"kind\": \"F\", \"stage\": 0, \"chunk\": 0, "
                            "\"microbatch\": 0, \"start\": 0, \"end\": 1, \"critical\": true},\n"
                            "      {\"action\": \"1F0\", \"kind\": \"F\", \"stage\": 1, \"chunk\": 1, "
                            "\"microbatch\": 0, \"start\": 1, \"end\": 3, \"critical\": true},\n"
                            "      {\"action\": \"1I0\", \"kind\": \"I\", \"stage\": 1, \"chunk\": 1, "
                            "\"microbatch\": 0, \"start\": 3, \"end\": 4, \"critical\": true},\n"
                            "      {\"action\": \"1W0\", \"kind\": \"W\", \"stage\": 1, \"chunk\": 1, "
                            "\"microbatch\": 0, \"start\": 4, \"end\": 7, \"critical\": true},\n"
                            "      {\"action\": \"0I0\", \"kind\": \"I\", \"stage\": 0, \"chunk\": 0, "
                            "\"microbatch\": 0, \"start\": 7, \"end\": 8, \"critical\": true},\n"
                            "      {\"action\": \"0W0\", \"kind\": \"W\", \"stage\": 0, \"chunk\": 0, "
                            "\"microbatch\": 0, \"start\": 8, \"end\": 8, \"critical\": false}]}]}\n");
}

Test(schedule_command, names_errors_in_the_times, .init = cr_redirect_stderr)
{
    static const struct {
        const char *text, *line;
    } cases[] = {
        {"0,1,1\n", "schedule 1f1b -p 2 -m 1 --cost-file t"},
        {"0,1,1,1\n0,1,1,1\n", "schedule 1f1b -p 2 -m 1 --cost-file t"},
        {"0,1,1,1\n2,1,1,1\n", "schedule 1f1b -p 2 -m 1 --cost-file t"},
        {"0,1,1,-1\n", "schedule 1f1b -p 2 -m 1 --cost-file t"},
        {"stage,f,i,w\n", "schedule 1f1b -p 2 -m 1 --cost-file t"},
        {"0,1,1,1\n1,1,1,1\n2,1,1,1\n", "schedule zb-v -p 2 -m 1 --cost-file t"},
        {"0,1,1,1\n1,1,1,1\n2,1,1,1\n", "schedule auto -p 2 -m 1 --cost-file t"},
        {"0,1,1,1\n", "schedule 1f1b -p 1 -m 1 --cost-file t --cost f=1"},
        {"0,1,1,1\n", "schedule compare -p 1 -m 1 --cost-file t"},
        {"0,1,1,1\n", "schedule 1f1b -p 1 -m 1 --cost-file t --svg ./t"},
        {"0,1,1,1\n", "schedule 1f1b -p 1 -m 1 --cost-file t.csv"},
        {"0,0,0,0\n", "schedule ./t --cost-file t"},
        {"stage,f,w,i\n0,1,2,3\n", "schedule 1f1b -p 1 -m 1 --cost-file t"},
        {"stages,1,1,1\n0,1,2,3\n", "schedule 1f1b -p 1 -m 1 --cost-file t"},
        {"stage\n0,1,2,3\n", "schedule 1f1b -p 1 -m 1 --cost-file t"},
    };
    char folder[] = "/tmp/cuboid-command-XXXXXX";
    enter_folder(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("t", cases[i].text);
        cr_expect_eq(run(cmd_schedule, cases[i].line), 2, "%s", cases[i].line);
    }
    cr_assert(unlink("t") == 0 && chdir("/") == 0 && rmdir(folder) == 0);
    cr_assert_stderr_eq_str(
        "cuboid: t, line 1: use stage,f,i,w: a stage and three times from 0 to 1e12, such as "
        "0,1,1.2,0.9\ncuboid: t, line 2: stage 0 is given twice\ncuboid: t, line 2: stage 2; 2 lines have "
        "the times of stages 0 to 1\ncuboid: t, line 1: use stage,f,i,w: a stage and three times from 0 "
        "to 1e12, such as 0,1,1.2,0.9\ncuboid: t: all times are 0; set at least one\ncuboid: schedule: "
        "--cost-file t has the times of 3 stages; zb-v with p 2 and v 2 has 4\ncuboid: schedule: "
        "--cost-file t has the times of 3 stages; auto with p 2 and v 1 has 2\ncuboid: schedule: --cost "
        "f=1 and --cost-file both set the times of F, I and W; with a file, use only --cost "
        "comm=0.1\ncuboid: schedule: --cost-file applies to one schedule, not to compare\ncuboid: "
        "schedule: --svg ./t would overwrite the costs; use another name\ncuboid: t.csv: No such file or "
        "directory\ncuboid: t: all times are 0; set at least one\ncuboid: t, line 1: the columns are "
        "stage,f,i,w, in this order; a file without a heading has them too\ncuboid: t, line 1: the "
        "columns are stage,f,i,w, in this order; a file without a heading has them too\ncuboid: t, line "
        "1: the columns are stage,f,i,w, in this order; a file without a heading has them too\n");
}

/* Input files are never overwritten, under whatever name; and only one output goes to standard output. */
Test(schedule_command, keeps_existing_files, .init = cr_redirect_stderr)
{
    static const char csv[] = "0F0,0B0\n";
    static const char *const lines[] = {
        "schedule ./a.csv --svg a.csv",
        "schedule hard.csv --trace ./a.csv",
        "schedule a.csv --svg soft",
        "schedule a.csv --svg new --trace ../here/new",
        "schedule a.csv --svg - --trace -",
        "schedule a.csv --svg - --csv",
        "schedule a.csv --svg=",
        "schedule a.csv --trace there/new",
        "schedule a.csv --svg new --svg new",
        "schedule a.csv --svg ../here",
        "schedule ../here/",
    };
    char folder[] = "/tmp/cuboid-command-XXXXXX";
    enter_folder(folder);
    cr_assert(mkdir("here", 0700) == 0 && chdir("here") == 0);
    write_file("a.csv", csv);
    cr_assert(link("a.csv", "hard.csv") == 0 && symlink("a.csv", "soft") == 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_eq(run(cmd_schedule, lines[i]), 2, "%s", lines[i]);
    struct text left = {0};
    cr_assert_eq(file_read("a.csv", &left), OK);
    cr_assert_str_eq(left.chars, csv);
    text_free(&left);
    cr_assert(unlink("a.csv") == 0 && unlink("hard.csv") == 0 && unlink("soft") == 0);
    cr_assert(chdir("..") == 0 && rmdir("here") == 0 && chdir("/") == 0 && rmdir(folder) == 0);
    cr_assert_stderr_eq_str(
        "cuboid: schedule: --svg a.csv would overwrite the schedule; use another name\ncuboid: schedule: "
        "--trace ./a.csv would overwrite the schedule; use another name\ncuboid: schedule: --svg soft: is "
        "a symbolic link; use the name of the file itself\ncuboid: schedule: --svg new and --trace "
        "../here/new "
        "are the same file; use two names\ncuboid: schedule: --svg - and --trace - both write to standard "
        "output; use a file for one of them\ncuboid: schedule: --csv and --svg - both write to standard "
        "output; use --svg FILE\ncuboid: schedule: --svg has an empty name; use a file name, or - for "
        "standard output\ncuboid: schedule: --trace there/new: there is no such folder\ncuboid: schedule: "
        "--svg is given twice (new and new); remove one of them\ncuboid: schedule: --svg ../here: not a "
        "file; use the name of a new file\ncuboid: ../here/: is a folder; use a regular file\n");
}

/* Names and contents of files are escaped before they reach the terminal. */
Test(schedule_command, shows_no_control_characters, .init = cr_redirect_stderr)
{
    cr_assert_eq(run(cmd_schedule, "schedule /tmp/\033[2J\xC2\x9B.csv"), 2);
    cr_assert_eq(run(cmd_schedule, "schedule 1f1b\007 -p 1 -m 1"), 2);
    cr_assert_stderr_eq_str(
        "cuboid: /tmp/\\x1b[2J\\xc2\\x9b.csv: No such file or directory\n"
        "cuboid: unknown schedule 1f1b\\x07 (did you mean 1f1b?); available: gpipe, looped-bfs, 1f1b, "
        "interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe, dualpipev, auto\n");
}

/* On a terminal, progress is shown after one second, for the whole search, and erased at the end; elsewhere
 * nothing is printed. */
Test(schedule_command, reports_its_duration, .init = cr_redirect_stderr)
{
    struct reporter r;
    for (int terminal = 0; terminal < 2; terminal++) {
        reporter_begin(&r, "compare");
        cr_assert(!r.terminal);
        r.terminal = terminal == 1;
        r.progress.report(r.progress.context, 50.0); // within the first second
        r.begun -= 600.0;
        reporter_part(&r, "auto", 0.0, 50.0);
        r.progress.report(r.progress.context, 50.0);
        r.progress.report(r.progress.context, 60.0); // too soon after the previous report: not printed
        reporter_end(&r);
        r.progress.report(r.progress.context, 70.0);
    }
    fflush(stderr);
    cr_assert_stderr_eq_str("\r\033[Kauto: 25 %, about 30 min 00 s left\r\033[K");
}

/* ---- cuboid generate ---- */

Test(generate_command, rejects_invalid_arguments, .init = cr_redirect_stderr)
{
    static const char *const lines[] = {
        "generate",
        "generate nothing.yaml",
        "generate nothing.yaml --prompt x",
        "generate / --prompt x",
        "generate x --prompt x --tokens 0",
        "generate x --prompt x --top-p 1.5",
        "generate x --prompt x --temprature 1",
        "generate x --prompt",
    };
    static const int expected[] = {2, 2, 2, 2, 2, 2, 2, 2};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_eq(run(cmd_generate, lines[i]), expected[i], "%s", lines[i]);
    cr_assert_stderr_eq_str(
        "cuboid: generate: no model given; use a recipe, a checkpoint or a run directory: "
        "cuboid generate runs/quickstart --prompt TEXT\ncuboid: generate: no prompt "
        "given; use --prompt TEXT, or --prompt '' to start a document\nerror: "
        "nothing.yaml: No such file or directory\ncuboid: /: not a checkpoint: "
        "contains neither manifest.json nor a complete step-... directory; use a checkpoint, a directory of "
        "checkpoints or a run directory\ncuboid: "
        "generate: --tokens 0 is invalid; use an integer from 1 to 1000000\ncuboid: "
        "generate: --top-p 1.5 is invalid; use a number from 1e-06 to 1\ncuboid: "
        "generate: unknown option --temprature (did you mean --temperature?); valid "
        "options: --prompt, --prompts, --tokens, --temperature, --top-k, --top-p, "
        "--seed, --chat-template, --system, --stop, --no-stop\n"
        "cuboid: generate: --prompt needs a value\n");
}

/* For a run that was stopped before its first checkpoint, the error names the command to run. */
Test(generate_command, names_the_command_to_run_first, .init = cr_redirect_stderr)
{
    static const char recipe[] =
        "model: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 8}\n"
        "train: {global_batch_size: 8, train_iters: 10}\n"
        "optimizer: {lr: 1e-3}\n"
        "data: {train: d}\n"
        "logging: {run_dir: run}\n";
    char folder[] = "/tmp/cuboid-command-XXXXXX";
    enter_folder(folder);
    cr_assert_eq(folder_make("run"), OK);
    write_file("run/recipe.yaml", recipe);
    cr_expect_eq(run(cmd_generate, "generate run --prompt x"), 2);
    cr_expect_eq(run(cmd_generate, "generate run/recipe.yaml checkpoint.save=none --prompt x"), 2);
    unlink("run/recipe.yaml");
    rmdir("run");
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rmdir(folder), 0);
    cr_assert_stderr_eq_str(
        "cuboid: run/checkpoints: no complete checkpoint; run cuboid train run/recipe.yaml first\ncuboid: "
        "checkpoint.save is none, so there is no checkpoint of this recipe; use cuboid generate "
        "CHECKPOINT --prompt TEXT\n");
}

/* ---- cuboid hang ---- */

/* A node that did not answer has sent no messages. */
Test(hang_command, reports_that_there_are_no_messages, .init = cr_redirect_stdout)
{
    char folder[] = "/tmp/cuboid-command-XXXXXX";
    enter_folder(folder);
    write_file("hang-1.json",
               "{\"format\": 1, \"report\": \"r\", \"ranks\": [{\"rank\": 3, \"recorded\": 9}]}");
    cr_expect_eq(run(cmd_hang, "hang hang-1.json --messages 3"), 0);
    char output[2000] = "";
    FILE *out = cr_get_redirected_stdout();
    cr_assert(fread(output, 1, sizeof output - 1, out) > 0);
    const char *calls = strstr(output, "\ncalls of");
    cr_expect_str_eq(
        calls != NULL ? calls : output,
        "\ncalls of each communicator: the file has none\n\nrank 3: the last messages: the file has "
        "none (a node that did not answer has sent none)\n");
    cr_redirect_stderr();
    cr_expect_eq(run(cmd_hang, "hang a b"), 2);
    cr_expect_stderr_eq_str("cuboid: hang: 2 files given; use cuboid hang RUN_DIR/hang-STEP.json\n");
    unlink("hang-1.json");
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rmdir(folder), 0);
}

/* The arguments of a command line whose words are separated by "|". */
struct piped {
    char text[400], *argv[8];
    int argc;
};

static void split_at_pipes(const char *text, struct piped *out)
{
    snprintf(out->text, sizeof out->text, "%s", text);
    char *rest = out->text;
    out->argc = 0;
    while (out->argc < 8 && (out->argv[out->argc] = strsep(&rest, "|")) != NULL)
        out->argc++;
}

/* Whatever layout a recipe has, one rank can run it. */
Test(recipe, on_one_rank)
{
    struct piped line;
    struct recipe *recipe = NULL;
    split_at_pipes("verify|" SOURCE_ROOT "/recipes/quickstart.yaml|pp=2|pipeline.schedule=zb-v|"
                   "pipeline.optimizer_post_validation=true|"
                   "pipeline.num_layers_per_virtual_pipeline_stage=1",
                   &line);
    cr_assert_eq(recipe_argument_one_rank(line.argc, line.argv, NULL, &recipe), 0);
    cr_assert_eq(recipe_world_size(recipe), 1);
    recipe_destroy(recipe);
    // Keys of the caller take precedence.
    cr_assert_eq(recipe_argument_one_rank(line.argc, line.argv, (const char *const[]){"tp=2", NULL}, &recipe),
                 0);
    cr_assert_eq(recipe_world_size(recipe), 2);
    recipe_destroy(recipe);
}

/* Not only the degrees: verify would compare any layout key that one rank keeps with itself. */
Test(recipe, one_rank_resets_every_layout_key)
{
    struct piped line;
    struct recipe *recipe = NULL;
    split_at_pipes("verify|" SOURCE_ROOT "/recipes/quickstart.yaml|memory.recompute_granularity=full|"
                   "memory.offload_activations=true|parallel.bucket_size_mb=1|dp=2|parallel.zero_stage=1",
                   &line);
    cr_assert_eq(recipe_argument_one_rank(line.argc, line.argv, NULL, &recipe), 0);
    struct text override = {0};
    for (int i = 0; recipe_one_rank_override(i, &override); i++) {
        char *value = strchr(override.chars, '=');
        struct text text = {0};
        *value++ = 0;
        recipe_key_text(recipe, override.chars, &text);
        if (strcmp(value, "auto") != 0) // which is replaced by a derived value
            cr_assert_str_eq(text_chars(&text), value, "%s", override.chars);
        text_free(&text);
        text_free(&override);
    }
    recipe_destroy(recipe);
}
