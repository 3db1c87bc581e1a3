// SPDX-License-Identifier: Apache-2.0
/* Merges one word exactly as GPT-2: in rounds, each of which selects the pair of lowest rank in the word and
 * joins all of its occurrences, from left to right; or one pair at a time (enum bpe_order). Two algorithms
 * with the same result:
 *
 *     short words  the rounds as described, over an array       O(n^2), n at most SHORT tokens
 *     long words   a heap of pairs by (rank, position)          O(n log n), for a megabyte without spaces
 *
 * The trap in the heap version: a pair created in a round may have a lower rank than the pair of the round
 * (merges.txt may be arbitrary), and must wait until the round ends; merged at once it would use up
 * occurrences of the round's pair. One by one, it is merged at once. */
#include "trainer/tokenizer/bpe.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 128 };

struct pair {
    int32_t rank;
    int32_t left, right; // token ids when the pair was added; it is stale if they have changed
    int64_t position;
};

/* A list of pairs; as a heap, the smallest is first. */
struct pairs {
    struct pair *list;
    int64_t count, capacity;
};

/* A doubly linked list over the bytes of the word; a merged token is stored at its left part. */
struct link {
    int32_t id; // -1: merged into another token
    int64_t previous, next;
};

struct bpe_scratch {
    struct pairs heap, waiting;
    struct link *links;
    int64_t link_capacity;
};

struct bpe_scratch *bpe_scratch_create(void)
{
    return memory_zeroed(1, sizeof(struct bpe_scratch), "an encoder");
}

void bpe_scratch_destroy(struct bpe_scratch *scratch)
{
    if (scratch == NULL)
        return;
    free(scratch->heap.list);
    free(scratch->waiting.list);
    free(scratch->links);
    free(scratch);
}

static int32_t rank_of(const struct bpe *bpe, int32_t left, int32_t right)
{
    const struct bpe_merge *merge = bpe_find(bpe, left, right);
    return merge != NULL ? merge->rank : BPE_NO_RANK;
}

/* One round over ids[0..count): joins every pair of this rank. ranks[i] is the rank of the pair (i, i + 1).
 * Returns the new count. */
static int join_everywhere(const struct bpe *bpe, int32_t *ids, int32_t *ranks, int count, int32_t rank)
{
    int kept = 0;
    bool changed = false; // whether the last kept token was just merged
    for (int i = 0; i < count; kept++) {
        bool joins = i + 1 < count && ranks[i] == rank;
        int32_t id = joins ? bpe_find(bpe, ids[i], ids[i + 1])->id : ids[i];
        int32_t next_rank = joins ? BPE_NO_RANK : ranks[i];
        i += joins ? 2 : 1;
        ids[kept] = id;
        ranks[kept] = next_rank;
        if (kept > 0 && (changed || joins))
            ranks[kept - 1] = rank_of(bpe, ids[kept - 1], id);
        changed = joins;
    }
    return kept;
}

/* Joins the pair (at, at + 1). Returns the new count. */
static int join_at(const struct bpe *bpe, int32_t *ids, int32_t *ranks, int count, int at)
{
    ids[at] = bpe_find(bpe, ids[at], ids[at + 1])->id;
    count--;
    memmove(ids + at + 1, ids + at + 2, (size_t)(count - at - 1) * sizeof *ids);
    memmove(ranks + at, ranks + at + 1, (size_t)(count - at - 1) * sizeof *ranks);
    if (at > 0)
        ranks[at - 1] = rank_of(bpe, ids[at - 1], ids[at]);
    if (at + 1 < count)
        ranks[at] = rank_of(bpe, ids[at], ids[at + 1]);
    return count;
}

static int merge_short(const struct bpe *bpe, int32_t *ids, int count)
{
    int32_t ranks[SHORT];
    for (int i = 0; i + 1 < count; i++)
        ranks[i] = rank_of(bpe, ids[i], ids[i + 1]);
    while (count > 1) {
        int at = 0;
        for (int i = 1; i + 1 < count; i++)
            at = ranks[i] < ranks[at] ? i : at;
        if (ranks[at] == BPE_NO_RANK)
            break;
        count = bpe->order == BPE_IN_ROUNDS ? join_everywhere(bpe, ids, ranks, count, ranks[at])
                                            : join_at(bpe, ids, ranks, count, at);
    }
    return count;
}

static void pairs_add(struct pairs *pairs, struct pair pair)
{
    if (pairs->count == pairs->capacity) {
        pairs->capacity = pairs->capacity < 1024 ? 1024 : pairs->capacity * 2;
        pairs->list =
            memory_resized(pairs->list, (size_t)pairs->capacity, sizeof *pairs->list, "a long word");
    }
    pairs->list[pairs->count++] = pair;
}

static bool comes_before(const struct pair *a, const struct pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct pairs *heap, struct pair pair)
{
    pairs_add(heap, pair);
    int64_t at = heap->count - 1;
    for (; at > 0 && comes_before(&pair, &heap->list[(at - 1) / 2]); at = (at - 1) / 2)
        heap->list[at] = heap->list[(at - 1) / 2];
    heap->list[at] = pair;
}

static struct pair heap_pop(struct pairs *heap)
{
    struct pair top = heap->list[0], moved = heap->list[--heap->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && comes_before(&heap->list[child + 1], &heap->list[child]))
            child++;
        if (!comes_before(&heap->list[child], &moved))
            break;
        heap->list[at] = heap->list[child];
        at = child;
    }
    heap->list[at] = moved;
    return top;
}

/* Adds the pair that begins at `position`, if it is listed, to the heap or to the list for the end of this
 * round. */
static void note_pair(const struct bpe *bpe, struct bpe_scratch *s, int64_t position, int32_t round)
{
    if (position < 0 || s->links[position].next < 0)
        return;
    int32_t left = s->links[position].id, right = s->links[s->links[position].next].id;
    struct pair pair = {rank_of(bpe, left, right), left, right, position};
    if (pair.rank == BPE_NO_RANK)
        return;
    if (pair.rank < round && bpe->order == BPE_IN_ROUNDS)
        pairs_add(&s->waiting, pair);
    else
        heap_push(&s->heap, pair);
}

static void join_one(const struct bpe *bpe, struct bpe_scratch *s, const struct pair *pair)
{
    struct link *left = &s->links[pair->position];
    if (left->id != pair->left || left->next < 0 || s->links[left->next].id != pair->right)
        return; // stale
    struct link *right = &s->links[left->next];
    left->id = bpe_find(bpe, pair->left, pair->right)->id;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0)
        s->links[left->next].previous = pair->position;
    note_pair(bpe, s, left->previous, pair->rank);
    note_pair(bpe, s, pair->position, pair->rank);
}

static void merge_long(const struct bpe *bpe, struct bpe_scratch *s, const char *word, int64_t length)
{
    if (length > s->link_capacity) {
        free(s->links);
        s->links = memory_zeroed((size_t)length, sizeof *s->links, "a long word");
        s->link_capacity = length;
    }
    for (int64_t i = 0; i < length; i++)
        s->links[i] =
            (struct link){bpe->byte_ids[(unsigned char)word[i]], i - 1, i + 1 < length ? i + 1 : -1};
    s->heap.count = s->waiting.count = 0;
    for (int64_t i = 0; i < length; i++)
        note_pair(bpe, s, i, -1);

    int32_t round = -1;
    while (s->heap.count > 0 || s->waiting.count > 0) {
        bool round_ends = s->heap.count == 0 || s->heap.list[0].rank != round;
        if (round_ends && s->waiting.count > 0) {
            while (s->waiting.count > 0)
                heap_push(&s->heap, s->waiting.list[--s->waiting.count]);
            continue;
        }
        struct pair pair = heap_pop(&s->heap);
        round = pair.rank;
        join_one(bpe, s, &pair);
    }
}

void bpe_encode_word(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, int64_t length,
                     struct tokens *out)
{
    tokens_reserve(out, length);
    int32_t *ids = out->ids + out->count;
    int32_t whole = bpe->whole != NULL ? bpe_find_whole(bpe, word, length) : -1;
    if (whole >= 0) {
        out->ids[out->count++] = whole;
        return;
    }
    if (length <= SHORT) {
        for (int64_t i = 0; i < length; i++)
            ids[i] = bpe->byte_ids[(unsigned char)word[i]];
        out->count += merge_short(bpe, ids, (int)length);
        return;
    }
    merge_long(bpe, scratch, word, length);
    for (int64_t i = 0; i >= 0; i = scratch->links[i].next)
        out->ids[out->count++] = scratch->links[i].id;
}
