// SPDX-License-Identifier: Apache-2.0
/* cuboid doctor --check on a node that computes or sends wrong bits: gemm() and group_exchange() are wrapped
 * by the linker, and fail if an environment variable is set. */
#include "kernels/ops.h"
#include "parallel/group.h"
#include "tools/cli/doctor/doctor_check.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdlib.h>
#include <string.h>

enum status __real_gemm(struct stream *stream, struct gemm args);
enum status __wrap_gemm(struct stream *stream, struct gemm args);
enum status __wrap_gemm(struct stream *stream, struct gemm args)
{
    enum status status = __real_gemm(stream, args);
    if (getenv("WRONG_MATMUL") != NULL)
        ((float *)args.c.data)[1234] += 1.0F; // a CPU has computed it by now
    return status;
}

enum status __real_group_exchange(struct group *group, struct stream *stream, const struct message *messages,
                                  int count);
enum status __wrap_group_exchange(struct group *group, struct stream *stream, const struct message *messages,
                                  int count);
enum status __wrap_group_exchange(struct group *group, struct stream *stream, const struct message *messages,
                                  int count)
{
    return getenv("LOST_MESSAGE") != NULL ? OK : __real_group_exchange(group, stream, messages, count);
}

static int check(void)
{
    const int failed = doctor_check(&(struct doctor_check){.node = "n1"});
    fflush(stdout);
    return failed;
}

/* What the check has printed. */
static void read_output(char *out, size_t capacity)
{
    FILE *file = cr_get_redirected_stdout();
    out[fread(out, 1, capacity - 1, file)] = 0;
}

Test(doctor_check, a_good_node, .init = cr_redirect_stdout)
{
    char out[4096];
    cr_assert_eq(check(), 0);
    read_output(out, sizeof out);
    cr_assert_not_null(strstr(out, "check n1: matmul ok ("));
    cr_assert_not_null(strstr(out, "check n1: message ok ("));
    cr_assert_not_null(strstr(out, "check n1: done, 0 of 5 failed\n"));
}

Test(doctor_check, wrong_bits_of_a_matmul, .init = cr_redirect_stdout)
{
    char out[4096];
    setenv("WRONG_MATMUL", "1", 1);
    cr_assert_eq(check(), 1);
    read_output(out, sizeof out);
    cr_assert_not_null(strstr(out, "check n1: matmul FAILED: device 0: wrong bits: checksum "));
}

Test(doctor_check, a_lost_message, .init = cr_redirect_stdout)
{
    char out[4096];
    setenv("LOST_MESSAGE", "1", 1);
    cr_assert_eq(check(), 1);
    read_output(out, sizeof out);
    cr_assert_not_null(strstr(out, "check n1: message FAILED: rank 0: wrong bits at element "));
}

/* Every device that computes has the same checksum, with any number of threads. */
Test(doctor_check, known_checksum)
{
    cr_expect_eq(doctor_check_matmul("cpu", 0, 1, 0.0), OK, "%s", fail_text());
    cr_expect_eq(doctor_check_matmul("cpu", 0, 3, 0.0), OK, "%s", fail_text());
    cr_expect_eq(doctor_check_matmul("strict", 0, 1, 0.0), OK, "%s", fail_text());
}
