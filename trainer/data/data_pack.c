// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_pack.h"

#include "base/memory.h"

#include <stdlib.h>

#define PACKS "packing the documents of a dataset (data.pack_documents)"

/* The open packs by their free space: a list for each space, and two levels of bits that tell which lists
 * have a pack. */
struct open_packs {
    int32_t *first;    // [S + 1] the last pack opened with this space; -1: none
    int32_t *next;     // [documents] of a pack: the next one with the same space
    uint64_t *some;    // bit s: first[s] is not -1
    uint64_t *summary; // bit w: some[w] is not 0
    int64_t words, summary_words;
};

struct packer {
    const int32_t *lengths;
    int32_t documents, seq_length;
    int32_t *order;   // documents with tokens, the longest first
    int32_t *pack_of; // [documents] of order[k]
    int64_t count, placed, filled;
    struct open_packs open;
};

/* The smallest space of at least `space` with an open pack; -1: none. */
static int64_t find_space(const struct open_packs *open, int64_t space)
{
    int64_t word = space / 64;
    uint64_t bits = open->some[word] & (UINT64_MAX << space % 64);
    if (bits != 0)
        return word * 64 + __builtin_ctzll(bits);
    for (int64_t s = ++word / 64; s < open->summary_words; s++) {
        uint64_t words = open->summary[s];
        if (s == word / 64)
            words &= UINT64_MAX << word % 64;
        if (words != 0) {
            word = s * 64 + __builtin_ctzll(words);
            return word * 64 + __builtin_ctzll(open->some[word]);
        }
    }
    return -1;
}

static void add_open(struct open_packs *open, int32_t pack, int64_t space)
{
    open->next[pack] = open->first[space];
    open->first[space] = pack;
    open->some[space / 64] |= 1ULL << space % 64;
    open->summary[space / 4096] |= 1ULL << space / 64 % 64;
}

static int32_t take_open(struct open_packs *open, int64_t space)
{
    int32_t pack = open->first[space];
    open->first[space] = open->next[pack];
    if (open->first[space] < 0)
        open->some[space / 64] &= ~(1ULL << space % 64);
    if (open->some[space / 64] == 0)
        open->summary[space / 4096] &= ~(1ULL << space / 64 % 64);
    return pack;
}

static void reserve(struct packer *p)
{
    struct open_packs *open = &p->open;
    const size_t documents = (size_t)p->documents + 1, spaces = (size_t)p->seq_length + 1;
    open->words = (int64_t)spaces / 64 + 1;
    open->summary_words = open->words / 64 + 1;
    open->first = memory_zeroed(spaces, sizeof *open->first, PACKS);
    open->next = memory_zeroed(documents, sizeof *open->next, PACKS);
    open->some = memory_zeroed((size_t)open->words, sizeof *open->some, PACKS);
    open->summary = memory_zeroed((size_t)open->summary_words, sizeof *open->summary, PACKS);
    p->order = memory_zeroed(documents, sizeof *p->order, PACKS);
    p->pack_of = memory_zeroed(documents, sizeof *p->pack_of, PACKS);
    for (size_t s = 0; s < spaces; s++)
        open->first[s] = -1;
}

static void release(struct packer *p)
{
    free(p->open.first);
    free(p->open.next);
    free(p->open.some);
    free(p->open.summary);
    free(p->order);
    free(p->pack_of);
}

/* Sorts the documents with tokens, the longest first, equal ones in their order. */
static void sort(struct packer *p)
{
    // Where documents of a length begin.
    AUTO_FREE int64_t *at = memory_zeroed((size_t)p->seq_length + 2, sizeof *at, PACKS);
    for (int32_t i = 0; i < p->documents; i++) {
        CHECK(p->lengths[i] >= 0 && p->lengths[i] <= p->seq_length);
        at[p->lengths[i]]++;
    }
    at[0] = 0; // not sorted
    for (int32_t length = p->seq_length; length > 0; length--) {
        int64_t many = at[length];
        at[length] = p->placed;
        p->placed += many;
    }
    for (int32_t i = 0; i < p->documents; i++)
        if (p->lengths[i] > 0)
            p->order[at[p->lengths[i]]++] = i;
}

static void place_all(struct packer *p)
{
    for (int64_t k = 0; k < p->placed; k++) {
        int32_t length = p->lengths[p->order[k]];
        int64_t space = find_space(&p->open, length);
        int32_t pack = space < 0 ? (int32_t)p->count++ : take_open(&p->open, space);
        add_open(&p->open, pack, (space < 0 ? p->seq_length : space) - length);
        p->pack_of[k] = pack;
        p->filled += length;
    }
}

/* Lists the documents of each pack. */
static struct data_pack list_packs(const struct packer *p)
{
    struct data_pack pack = {.count = p->count, .filled = p->filled};
    pack.starts = memory_zeroed((size_t)p->count + 2, sizeof *pack.starts, PACKS);
    pack.documents = memory_zeroed((size_t)p->placed + 1, sizeof *pack.documents, PACKS);
    int64_t *at = pack.starts + 1; // at[i]: where the next document of pack i goes; at the end, of pack i + 1
    for (int64_t k = 0; k < p->placed; k++)
        at[p->pack_of[k] + 1]++;
    for (int64_t i = 0; i < p->count; i++)
        at[i + 1] += at[i];
    for (int64_t k = 0; k < p->placed; k++)
        pack.documents[at[p->pack_of[k]]++] = p->order[k];
    return pack;
}

struct data_pack data_pack_create(const int32_t *lengths, int32_t documents, int32_t seq_length)
{
    struct packer p = {.lengths = lengths, .documents = documents, .seq_length = seq_length};
    CHECK(documents >= 0 && seq_length >= 1);
    reserve(&p);
    sort(&p);
    place_all(&p);
    const struct data_pack pack = list_packs(&p);
    release(&p);
    return pack;
}

void data_pack_free(struct data_pack *pack)
{
    free(pack->starts);
    free(pack->documents);
    *pack = (struct data_pack){0};
}
