// SPDX-License-Identifier: Apache-2.0
/* Schedules as files: a written schedule reads back unchanged, errors are reported with line and cell, and
 * arbitrary bytes are handled safely. */
#include "schedules/csv/csv.h"
#include "tests/unit/schedules/schedule_tools.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct schedule *parsed(const char *text)
{
    struct schedule *s = NULL;
    enum status status = schedule_parse_csv("x.csv", text, strlen(text), &s);
    cr_assert_eq(status, OK, "%s", fail_text());
    return s;
}

static void expect_refusal(const char *text, const char *words)
{
    struct schedule *s = NULL;
    cr_assert_eq(schedule_parse_csv("x.csv", text, strlen(text), &s), BAD_SCHEDULE, "accepted: %s", text);
    cr_assert_null(s);
    cr_assert_str_eq(fail_text(), words);
}

static void expect_written(struct schedule *s, const char *expected)
{
    struct text text = {0};
    cr_assert_eq(schedule_write_csv(s, &text), OK);
    cr_assert_str_eq(text_chars(&text), expected);
    text_free(&text);
    schedule_destroy(s);
}

/* A column is a unit of time, as in the papers' figures. */
Test(csv, columns_are_start_times)
{
    expect_written(build("1f1b", 2, 3, 0), "0F0,0F1,,0B0,0F2,0B1,,0B2\n"
                                           ",1F0,1B0,1F1,1B1,1F2,1B2\n");
    expect_written(build("zb-v", 2, 1, 0), "0F0,,,3F0,3I0,3W0,,0I0,0W0\n"
                                           ",1F0,2F0,,,2I0,1I0,2W0,1W0\n");
    expect_written(build("dualpipev", 1, 3, 0),
                   "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,(0F2;1B1)OVERLAP_F_B,(1F2;0B1)OVERLAP_F_B,1B2,0I2,"
                   "0W2\n");
}

/* A long pipeline with one microbatch is nearly all idle: 25 million cells for 20 thousand actions. */
Test(csv, idle_cells_are_omitted_in_sparse_tables)
{
    struct schedule *s = build("1f1b", 5000, 1, 0), *back = NULL;
    struct text text = {0};
    cr_assert_eq(schedule_write_csv(s, &text), OK);
    cr_assert_lt(text.length, 100000);
    cr_assert_eq(strncmp(text.chars, "0F0,0B0\n1F0,1B0\n", 16), 0);
    cr_assert_eq(schedule_parse_csv("x.csv", text.chars, text.length, &back), OK, "%s", fail_text());
    expect_same_lists(s, back);
    schedule_destroy(back);
    text_free(&text);
    schedule_destroy(s);
}

/* Files of other programs: CRLF line ends, a byte order mark, quotes and blanks, idle cells anywhere,
 * empty lines at the end. */
Test(csv, reads_other_programs_files)
{
    struct schedule *expected = build("1f1b", 2, 3, 0);
    const char *const files[] = {
        "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2",
        "0F0,0F1,,0B0,0F2,0B1,,0B2\r\n,1F0,1B0,1F1,1B1,1F2,1B2\r\n",
        "\357\273\2770F0,0F1,,0B0,0F2,0B1,,0B2\n,1F0,1B0,1F1,1B1,1F2,1B2,,,,\n\n \n\r\n",
        "\"0F0\", 0F1 ,\t,\"\",\" 0B0\",0F2,0B1,0B2\n\"\",1F0,1B0,1F1,1B1,1F2,1B2\n",
        "00F0,0F01,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct schedule *s = parsed(files[i]);
        expect_same_lists(expected, s);
        schedule_destroy(s);
    }
    schedule_destroy(expected);
    expected = build("dualpipev", 1, 3, 0);
    struct schedule *s = parsed("0F0,1F0,0F1,1B0,(1F1;0B0),(0F2;1B1)OVERLAP_F_B,(1F2;0B1),1B2,0I2,0W2");
    expect_same_lists(expected, s);
    schedule_destroy(s);
    schedule_destroy(expected);
}

/* Transfers in a file are kept as they are, and checked. */
Test(csv, reads_transfers)
{
    struct schedule *s = parsed("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
    struct text text = {0};
    cr_assert_str_eq(list_text(s, 1, true, &text), "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1");
    cr_assert_eq(s->ranks[1].actions[0].peer, 0);
    text_free(&text);
    schedule_destroy(s);
    expect_refusal("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                   "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1\n",
                   "x.csv, line 2 (rank 1): 1SEND_B1 is missing");
    expect_refusal("0F0,0SEND_F0,0RECV_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
                   "x.csv, line 1 (rank 0), cell 3: 0RECV_F0 crosses no boundary between ranks");
    expect_refusal(
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0RECV_B0,0B0,0B1\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
        "x.csv, line 1 (rank 0), cell 5: 0RECV_B1 is number 0 from rank 1, which sends it as number 1");
    expect_refusal(
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
        "x.csv, line 1 (rank 0), cell 4: 0SEND_F1 waits forever for rank 1 at 1SEND_B0, which waits "
        "for rank 0 at 0SEND_F1");
    expect_refusal(
        "0F0,(0SEND_F0;0RECV_B0),0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
        "x.csv, line 1 (rank 0), cell 2: 0SEND_F0 cannot overlap the next action: both must compute");
}

/* The file determines the placement: here rank 0 holds the middle of four stages, and rank 1 their ends. */
Test(csv, reads_any_valid_placement)
{
    struct schedule *s = parsed(",1F0,2F0,,,2B0,1B0\n0F0,,,3F0,3B0,,,0B0\n");
    cr_assert(s->p == 2 && s->m == 1 && s->v == 2 && s->chunks == 2);
    cr_assert(schedule_rank(s, 0, 0) == 1 && schedule_rank(s, 1, 0) == 0 && schedule_rank(s, 3, 0) == 1);
    cr_assert(schedule_stage(s, 1, 0) == 0 && schedule_stage(s, 1, 1) == 3);
    schedule_destroy(s);
    // Two directions, of which the second has one microbatch of three.
    s = parsed("0F0,0F1,0B0,1F2,1B2,0B1\n1F0,1B0,0F2,1F1,1B1,0B2\n");
    cr_assert(s->second_from == 2 && s->v == 1 && s->chunks == 2);
    cr_assert(schedule_rank(s, 0, 1) == 0 && schedule_rank(s, 0, 2) == 1 && schedule_rank(s, 1, 2) == 0);
    schedule_destroy(s);
}

Test(csv, names_the_invalid_cell)
{
    const char *const reason =
        "is not an action; use 0F3, 0B3, 0I3 or 0W3, (0F3;1B2) for a pair, or an empty cell for idle time";
    const struct {
        const char *cell, *shown;
    } rows[] = {
        {"0X0", "0X0"},
        {"F0", "F0"},
        {"0F", "0F"},
        {"0F0x", "0F0x"},
        {"0 F0", "0 F0"},
        {"-1F0", "-1F0"},
        {"0f0", "0f0"},
        {"(0F0)", "(0F0)"},
        {"(0F0;0B0", "(0F0;0B0"},
        {"(0F0,", "(0F0"},
        {"0F0;0B0", "0F0;0B0"},
        {"(0F0;0B0)x", "(0F0;0B0)x"},
        {"\"0F0", "\\\"0F0"},
        {"\x01\xff", "\\x01\\xff"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200], words[400];
        const char *shown =
            rows[i].shown[0] == '\\' && rows[i].shown[1] == '"' ? rows[i].shown + 1 : rows[i].shown;
        snprintf(text, sizeof text, "0F0,0B0\n,,%s,1F0", rows[i].cell);
        snprintf(words, sizeof words, "x.csv, line 2 (rank 1), cell 3: \"%s\" %s", shown, reason);
        expect_refusal(text, words);
    }
    static const char *const huge[] = {"4294967296F0", "0F2147483647", "(0F0;99999999999999999999B0)"};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        char words[200];
        snprintf(words, sizeof words,
                 "x.csv, line 1 (rank 0), cell 1: \"%s\": too large for a stage or microbatch", huge[i]);
        expect_refusal(huge[i], words);
    }
    expect_refusal(
        "0F0,0BW0",
        "x.csv, line 1 (rank 0), cell 2: \"0BW0\": use B for a whole backward, I and W for its halves");
    expect_refusal(
        "0UNSHARD,0F0,0B0",
        "x.csv, line 1 (rank 0), cell 1: \"0UNSHARD\": remove it: parallel.zero_stage determines when "
        "weights are gathered");
    expect_refusal(
        "0F0,0B0,0W0,",
        "x.csv, line 1 (rank 0), cell 3: 0W0 is in a file without I; write I instead of B for input "
        "gradients");
}

Test(csv, names_missing_duplicate_and_early_actions)
{
    expect_refusal("0F0,0F1,,0B0,0F2,0B1,,0B2\n,1F0,1B0,1F1,1B1,1B2\n",
                   "x.csv, line 2 (rank 1): 1F2 is missing");
    expect_refusal("0F0,0F1,,0B0,0F2,0B1,,0B2\n,1F0,1B0,1F1,1B1,1F2\n",
                   "x.csv, line 2 (rank 1): 1B2 is missing, and so are its I and W");
    expect_refusal("0F0,0I0\n1F0,1I0,1W0\n", "x.csv, line 1 (rank 0): 0W0 is missing");
    expect_refusal("0F0,0B0\n2F0,2B0\n", "x.csv: stage 1 is missing, but there is a stage 2");
    expect_refusal("0F0,,0F0,0B0\n1F0,1B0\n", "x.csv, line 1 (rank 0), cell 3: 0F0 is listed twice");
    expect_refusal("0F0,0F0,0B0,0B1\n1F0,1F1,1B0,1B1", "x.csv, line 1 (rank 0): 0F1 is missing");
    expect_refusal("0F0,0F0,0B0,0B1,0F0\n1F0,1F1,1B0,1B1", "x.csv, line 1 (rank 0): 0F1 is missing");
    expect_refusal("0F0,0I0,0W0,,0B0", "x.csv, line 1 (rank 0), cell 5: 0B0 is listed twice");
    expect_refusal("0F0,,0B0\n1B0,1F0\n", "x.csv, line 2 (rank 1), cell 1: 1B0 runs before 1F0");
    expect_refusal("0F0,0W0,0I0", "x.csv, line 1 (rank 0), cell 2: 0W0 runs before 0I0");
    expect_refusal(
        "0F0,0F1,,0B1,0B0",
        "x.csv, line 1 (rank 0), cell 5: 0B0 runs after microbatch 1: gradients must be accumulated in "
        "microbatch order");
    expect_refusal(
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
        "x.csv, line 1 (rank 0), cell 2: 0B0 waits forever for rank 1 at 1F1, which waits for rank 0 "
        "at 0B0");
    expect_refusal(
        "0F0,(0F1;0B0),0B1\n1F0,(1F1;1B1),1B0",
        "x.csv, line 2 (rank 1), cell 3: 1B0 runs after microbatch 1: gradients must be accumulated in "
        "microbatch order");
}

Test(csv, names_an_invalid_placement)
{
    expect_refusal("", "x.csv: is empty; a schedule has a line of actions for every rank");
    expect_refusal(" \n\r\n", "x.csv: is empty; a schedule has a line of actions for every rank");
    expect_refusal("0F0,0B0\n\n1F0,1B0\n",
                   "x.csv, line 2 (rank 1): has no actions; every rank must run a stage");
    expect_refusal("0F0\n1F0,1B0,0B0\n",
                   "x.csv, line 2 (rank 1), cell 3: 0B0: stage 0 of microbatch 0 is on line "
                   "1 (rank 0)");
    expect_refusal("0F0,0B0\n1F0,1B0,0F0\n",
                   "x.csv, line 2 (rank 1), cell 3: 0F0: stage 0 of microbatch 0 is on "
                   "line 1 (rank 0)");
    expect_refusal(
        "0F0,0B0,1F0,1B0\n2F0,2B0\n",
        "x.csv: 3 stages on 2 lines; every rank must hold the same number, so the lines must divide the "
        "stages");
    expect_refusal(
        "0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0\n",
        "x.csv, line 1 (rank 0): holds 3 of the 4 stages for microbatch 0; each of the 2 ranks must "
        "hold 2");
    expect_refusal(
        "0F0,0B0,1F1,1B1\n1F0,1B0\n0F1,0B1\n",
        "x.csv: 2 stages on 3 lines; every rank must hold the same number, so the lines must divide the "
        "stages");
    expect_refusal(
        "0F0,0B0,0F1,0B1,1F1,1B1\n1F0,1B0\n",
        "x.csv, line 1 (rank 0), cell 5: 1F1: stage 1 is on line 2 too, but stage 0 is on one line only: "
        "either all stages have replicas, or none");
    expect_refusal(
        "0F0,0B0\n1F0,1B0,0F1,0B1,1F1,1B1\n",
        "x.csv, line 2 (rank 1), cell 5: 1F1: all of stage 1 is on this line, but stage 0 is on two: "
        "either all stages have replicas, or none");
    expect_refusal(
        "0F0,0B0,0F1,0B1,1F2,1B2\n1F0,1B0,0F2,0B2\n1F1,1B1",
        "x.csv, line 3 (rank 2), cell 1: 1F1: stage 1 changes lines at microbatch 1, but stage 0 at 2");
    expect_refusal(
        "0F0,0B0,1F1,1B1,0F2,0B2\n1F0,1B0,0F1,0B1,1F2,1B2\n",
        "x.csv, line 1 (rank 0), cell 5: 0F2: stage 0 of microbatches 1 to 2 must be on one line; 0F1 "
        "is on line 2");
}

/* The two replicas of a stage add their gradients, rank r and rank p-1-r. */
Test(csv, names_replicas_that_are_not_mirrored)
{
    expect_refusal(
        "0F0,0B0,2F1,2B1\n1F0,1B0,3F1,3B1\n2F0,2B0,0F1,0B1\n3F0,3B0,1F1,1B1",
        "x.csv, line 3 (rank 2), cell 3: 0F1: the other replica of a stage on line 1 must be on line 4, "
        "its mirror image");
    expect_refusal(
        "0F0,0B0,1F1,1B1\n1F0,1B0,2F1,2B1\n2F0,2B0,0F1,0B1",
        "x.csv, line 3 (rank 2), cell 3: 0F1: a second replica; with two directions the number of lines "
        "must be even, not 3");
}

/* Huge numbers without the data to justify them. */
Test(csv, needs_no_more_memory_than_the_file_has)
{
    expect_refusal(
        "1999999999F0,1999999999B0",
        "x.csv, line 1 (rank 0), cell 1: 1999999999F0: a file with 2 actions has no stage 1999999999");
    expect_refusal("0F1999999999",
                   "x.csv, line 1 (rank 0), cell 1: 0F1999999999: a file with 1 actions has no "
                   "microbatch 1999999999");
    // 40,000 stages and 40,000 microbatches in 80,000 actions: 1.6e9 cells, too many to allocate a table.
    struct text text = {0};
    for (int i = 0; i < 40000; i++)
        text_add(&text, "%dF0,0F%d,", i, i);
    expect_refusal(text_chars(&text), "x.csv, line 1 (rank 0): 1F1 is missing");
    text_free(&text);
    for (int i = 0; i < 70000; i++)
        text_add_bytes(&text, "0\n", 2);
    expect_refusal(text_chars(&text), "x.csv: 139999 bytes in 70000 lines; too large for a schedule");
    text_free(&text);
}

/* One random change of a file's bytes. */
static void corrupt(struct text *text, struct rng *rng)
{
    static const char alphabet[] = "0123456789FIWB,,;()\n\r \"SENDRCV_\xef\xbb\xbf";
    int length = (int)text->length, at = rng_int(rng, 0, length > 0 ? length - 1 : 0);
    int other = rng_int(rng, 0, length > 0 ? length - 1 : 0);
    char letter = alphabet[rng_int(rng, 0, (int)sizeof alphabet - 2)];
    if (length == 0)
        return;
    switch (rng_int(rng, 0, 6)) {
    case 0: // truncated
        text->length = (size_t)at;
        break;
    case 1: // any byte
        text->chars[at] = (char)rng_int(rng, 0, 255);
        break;
    case 2:
        text->chars[at] = text->chars[other];
        break;
    case 3: // removed
        memmove(text->chars + at, text->chars + at + 1, (size_t)(length - at - 1));
        text->length--;
        break;
    case 4: // repeated
        text_add_bytes(text, "\n", 1);
        memcpy(text->chars + length, text->chars + at, 1);
        break;
    default:
        text->chars[at] = letter;
        break;
    }
}

/* Whatever the bytes: an error with a position, or a schedule that the checker accepts. Under the
 * sanitizers this also checks that nothing outside of the file is read. */
Test(csv, random_corruption_never_crashes)
{
    struct rng rng = {.generator = philox_named(12, "schedules")};
    int accepted = 0;
    for (int i = 0; i < cases(12000); i++) {
        struct schedule *s = build_with(random_options(&rng, i % family_count(), 4, 5));
        struct text text = {0};
        cr_assert_eq(schedule_write_csv(s, &text), OK);
        schedule_destroy(s);
        for (int change = rng_int(&rng, 1, 4); change > 0; change--)
            corrupt(&text, &rng);
        // A copy of exact length, so that reading past the end is detected.
        char *bytes = malloc(text.length + 1);
        cr_assert_not_null(bytes);
        memcpy(bytes, text.chars, text.length);
        char *exact = realloc(bytes, text.length > 0 ? text.length : 1);
        cr_assert_not_null(exact);
        s = NULL;
        enum status status = schedule_parse_csv("x.csv", exact, text.length, &s);
        cr_assert(status == BAD_SCHEDULE ? s == NULL && strncmp(fail_text(), "x.csv", 5) == 0 : status == OK);
        if (status == OK) {
            cr_assert_eq(schedule_check(s, NULL), OK);
            accepted++;
        }
        schedule_destroy(s);
        free(exact);
        text_free(&text);
    }
    cr_assert(accepted > cases(12000) / 100, "%d", accepted);
}

Test(csv, random_bytes_are_rejected)
{
    struct rng rng = {.generator = philox_named(13, "schedules")};
    char noise[400];
    for (int i = 0; i < cases(20000); i++) {
        int length = rng_int(&rng, 0, (int)sizeof noise), letters = rng_int(&rng, 0, 1);
        for (int k = 0; k < length; k++)
            noise[k] = letters == 0 ? (char)rng_int(&rng, 0, 255) : "01FB,\n;(I)W\0"[rng_int(&rng, 0, 11)];
        struct schedule *s = NULL;
        cr_assert_eq(schedule_parse_csv("x.csv", noise, (size_t)length, &s), BAD_SCHEDULE);
        cr_assert_null(s);
    }
}

Test(csv, missing_file)
{
    struct schedule *s = NULL;
    cr_assert_eq(schedule_read_csv("/nowhere/x.csv", &s), IO_ERROR);
    cr_assert_str_eq(fail_text(), "/nowhere/x.csv: No such file or directory");
    cr_assert_eq(schedule_read_csv("/dev/zero", &s), IO_ERROR);
    cr_assert_str_eq(fail_text(), "/dev/zero: is a device; use a regular file");
    char path[] = "/tmp/cuboid-csv-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    cr_assert_eq(file_write_atomic(path, "0F0,0B0\n", 8), OK);
    cr_assert_eq(schedule_read_csv(path, &s), OK);
    cr_assert(s->p == 1 && s->m == 1 && s->v == 1);
    schedule_destroy(s);
    unlink(path);
}
