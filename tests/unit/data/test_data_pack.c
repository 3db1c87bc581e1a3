// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"
#include "trainer/data/data_pack.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { MOST = 400 };

/* The space that best fit leaves in each pack, by trying all packs for each document, the longest first. */
static int reference_packs(const int32_t *lengths, int documents, int seq_length, int32_t *left)
{
    int packs = 0;
    for (int length = seq_length; length > 0; length--)
        for (int i = 0; i < documents; i++) {
            int best = -1;
            if (lengths[i] != length)
                continue;
            for (int p = 0; p < packs; p++)
                if (left[p] >= length && (best < 0 || left[p] < left[best]))
                    best = p;
            if (best < 0)
                left[best = packs++] = seq_length;
            left[best] -= length;
        }
    return packs;
}

static int compare(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Each document with tokens is in one pack; which of the packs with equal space receives it is not fixed, but
 * the space that is left is. */
static void check_packs(const int32_t *lengths, int documents, int seq_length)
{
    struct data_pack pack;
    int32_t expected[MOST], left[MOST];
    bool seen[MOST] = {false};
    int64_t filled = 0;
    pack = data_pack_create(lengths, documents, seq_length);
    cr_assert_eq(pack.count, reference_packs(lengths, documents, seq_length, expected));
    for (int64_t p = 0; p < pack.count; p++) {
        left[p] = seq_length;
        cr_assert_lt(pack.starts[p], pack.starts[p + 1]);
        for (int64_t i = pack.starts[p]; i < pack.starts[p + 1]; i++) {
            int32_t document = pack.documents[i];
            cr_assert(document >= 0 && document < documents && !seen[document]);
            seen[document] = true;
            left[p] -= lengths[document];
            filled += lengths[document];
        }
        cr_assert_geq(left[p], 0);
    }
    for (int i = 0; i < documents; i++)
        cr_assert_eq(seen[i], lengths[i] > 0);
    cr_assert_eq(pack.filled, filled);
    qsort(left, (size_t)pack.count, sizeof *left, compare);
    qsort(expected, (size_t)pack.count, sizeof *expected, compare);
    cr_assert_arr_eq(left, expected, (size_t)pack.count * sizeof *left);
    data_pack_free(&pack);
}

Test(data_pack, the_example_of_the_header)
{
    const int32_t lengths[] = {3, 9, 4, 2, 5}, documents[] = {1, 4, 2, 0, 3};
    const int64_t starts[] = {0, 1, 3, 5};
    struct data_pack pack;
    pack = data_pack_create(lengths, 5, 10);
    cr_assert_eq(pack.count, 3);
    cr_assert_eq(pack.filled, 23);
    cr_assert_arr_eq(pack.starts, starts, sizeof starts);
    cr_assert_arr_eq(pack.documents, documents, sizeof documents);
    data_pack_free(&pack);
}

/* Lengths beyond 64 and 4096 use every level of the search. */
Test(data_pack, equals_best_fit_by_trial)
{
    static const int seq_lengths[] = {1, 2, 10, 63, 64, 65, 300, 4095, 4096, 9000};
    for (uint64_t round = 0; round < 60; round++) {
        struct philox generator = philox_named(round, "lengths");
        const int seq_length = seq_lengths[round % 10], documents = (int)(round * 7 % (MOST + 1));
        const uint32_t most = round % 3 == 0 ? (uint32_t)seq_length : (uint32_t)seq_length / 3 + 1;
        int32_t lengths[MOST];
        for (int i = 0; i < documents; i++) {
            uint32_t word[4];
            philox_words(generator, (uint64_t)i, 0, word);
            lengths[i] = (int32_t)(word[0] % (most + 1));
            lengths[i] = lengths[i] < seq_length ? lengths[i] : seq_length;
        }
        check_packs(lengths, documents, seq_length);
    }
}

Test(data_pack, nothing_to_pack)
{
    const int32_t none[3] = {0, 0, 0};
    check_packs(none, 0, 8);
    check_packs(none, 3, 8);
}
