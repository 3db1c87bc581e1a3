// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/checksum_v1.h"

#include <string.h>

/* Odd, and without a pattern: digits of the golden ratio and of the roots of 2 and 3. */
static const uint64_t odd = 0x9E3779B97F4A7C15U;
static const uint64_t start[CHECKSUM_V1_LANES] = {0x6A09E667F3BCC908U, 0xBB67AE8584CAA73BU,
                                                  0xB504F333F9DE6484U, 0xDDB3D742C265539DU};

static uint64_t rotate(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

/* A multiplication propagates changes upwards only: a change of the uppermost bit would remain a change of
 * one bit, which the next word could undo. Three rotations (an odd number of them is bijective) move it down
 * first, and a change of fewer than 43 bits in a word never becomes a change of the uppermost bit alone. */
static uint64_t mix(uint64_t lane, uint64_t word)
{
    lane ^= word;
    return (lane ^ rotate(lane, 23) ^ rotate(lane, 41)) * odd;
}

/* Words are little endian, as in the files. */
static uint64_t word_at(const unsigned char *bytes)
{
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
                   "files are little endian and summed as they lie");
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static void add_stripes(struct checksum_v1 *sum, const unsigned char *bytes, size_t count)
{
    uint64_t lane[CHECKSUM_V1_LANES];
    memcpy(lane, sum->lane, sizeof lane);
    for (size_t i = 0; i < count; i++, bytes += CHECKSUM_V1_STRIPE_BYTES)
        for (int l = 0; l < CHECKSUM_V1_LANES; l++)
            lane[l] = mix(lane[l], word_at(bytes + 8 * l));
    memcpy(sum->lane, lane, sizeof lane);
}

void checksum_v1_begin(struct checksum_v1 *sum)
{
    *sum = (struct checksum_v1){0};
    memcpy(sum->lane, start, sizeof sum->lane);
}

void checksum_v1_add(struct checksum_v1 *sum, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    size_t waiting = (size_t)(sum->bytes % CHECKSUM_V1_STRIPE_BYTES);
    sum->bytes += length;
    if (waiting > 0) {
        size_t wanted = CHECKSUM_V1_STRIPE_BYTES - waiting, take = length < wanted ? length : wanted;
        memcpy(sum->rest + waiting, at, take);
        if (take < wanted)
            return;
        add_stripes(sum, sum->rest, 1);
        at += take;
        length -= take;
    }
    size_t stripes = length / CHECKSUM_V1_STRIPE_BYTES, left = length % CHECKSUM_V1_STRIPE_BYTES;
    add_stripes(sum, at, stripes);
    if (left > 0)
        memcpy(sum->rest, at + stripes * CHECKSUM_V1_STRIPE_BYTES, left);
}

uint64_t checksum_v1_end(const struct checksum_v1 *sum)
{
    // The last stripe is padded with zeros; the length distinguishes them from zeros in the data.
    struct checksum_v1 last = *sum;
    size_t waiting = (size_t)(sum->bytes % CHECKSUM_V1_STRIPE_BYTES);
    if (waiting > 0) {
        memset(last.rest + waiting, 0, CHECKSUM_V1_STRIPE_BYTES - waiting);
        add_stripes(&last, last.rest, 1);
    }
    uint64_t whole = mix(odd, sum->bytes);
    for (int l = 0; l < CHECKSUM_V1_LANES; l++)
        whole = mix(whole, last.lane[l]);
    whole = mix(whole, 0);
    return whole ^ (whole >> 32);
}

uint64_t checksum_v1_of(const void *bytes, size_t length)
{
    struct checksum_v1 sum;
    checksum_v1_begin(&sum);
    checksum_v1_add(&sum, bytes, length);
    return checksum_v1_end(&sum);
}
