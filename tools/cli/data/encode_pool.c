// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/data/encode_pool.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 20 };

/* A document, or a part of one. */
struct part {
    int64_t bytes, ids;
    bool begins, ends; // the document
    const char *file;  // of a conversation
    int64_t line;
    char *skipped; // why an invalid conversation is skipped
};

struct block {
    struct text text;
    struct part *parts;
    int64_t count, capacity;
    struct chat_tokens tokens; // counts: of conversations only
    bool encoded;
    enum status status;
    char *why; // message of a failure
};

/* Blocks in a ring: [written, taken) are being encoded or encoded, [taken, filled) wait for a thread, and
 * block `filled` is being filled by the caller. */
struct encode_pool {
    struct encode_options options;
    struct dataset_writer *writer;
    struct encoder *cutter;
    struct text held; // text of the current document that is in no block
    bool begun;       // some of the current document is in a block
    struct encode_counts counts;

    struct block *ring;
    int64_t size;
    pthread_t *threads;
    int thread_count;
    pthread_mutex_t lock; // of all below, and of `encoded` and `status` of blocks
    pthread_cond_t work, done;
    int64_t written, taken, filled;
    bool ends;
};

/* ---- the threads ---- */

static enum status encode_text(const struct encode_options *options, struct encoder *encoder,
                               const char *bytes, const struct part *part, struct tokens *ids)
{
    const struct tokens *prefix = tokenizer_prefix(options->tokenizer);
    const struct tokens *suffix = tokenizer_suffix(options->tokenizer);
    const int32_t end = tokenizer_end_of_document(options->tokenizer);
    if (part->begins)
        tokens_append(ids, prefix->ids, prefix->count);
    TRY(encoder_encode(encoder, bytes, part->bytes, ids));
    if (part->ends) {
        tokens_append(ids, suffix->ids, suffix->count);
        const bool ended = suffix->count > 0 && suffix->ids[suffix->count - 1] == end;
        if (options->append_eod && !ended)
            tokens_append(ids, &end, 1);
    }
    return OK;
}

/* A message about the part: a conversation has a file and a line. */
static char *why_of(const struct part *part)
{
    struct text why = {0};
    if (part->file != NULL)
        text_add(&why, "%s, line %lld: %s", part->file, (long long)part->line, fail_text());
    else
        text_add(&why, "%s", fail_text());
    char *copy = text_copy(why.chars);
    text_free(&why);
    return copy;
}

/* Encodes a conversation, or leaves it out. */
static enum status encode_chat(const struct encode_pool *pool, struct encoder *encoder, const char *bytes,
                               struct part *part, struct chat_tokens *out)
{
    const int64_t before = out->ids.count;
    const enum status status = chat_encode(pool->options.chat, encoder, bytes, part->bytes, out);
    if (status != BAD_DATA || pool->options.skip == NULL)
        return status;
    part->skipped = why_of(part);
    out->ids.count = before;
    out->counts.length = (size_t)before;
    return OK;
}

static enum status encode_part(const struct encode_pool *pool, struct encoder *encoder, const char *bytes,
                               struct part *part, struct chat_tokens *out)
{
    const int64_t before = out->ids.count;
    if (pool->options.chat != NULL)
        TRY(encode_chat(pool, encoder, bytes, part, out));
    else
        TRY(encode_text(&pool->options, encoder, bytes, part, &out->ids));
    part->ids = out->ids.count - before;
    return OK;
}

static void encode_block(const struct encode_pool *pool, struct encoder *encoder, struct block *block)
{
    const char *bytes = text_chars(&block->text);
    block->status = OK;
    block->why = NULL;
    block->tokens.ids.count = 0;
    block->tokens.counts.length = 0;
    for (int64_t i = 0; i < block->count; i++) {
        block->status = encode_part(pool, encoder, bytes, &block->parts[i], &block->tokens);
        if (block->status != OK) {
            block->why = why_of(&block->parts[i]);
            return;
        }
        bytes += block->parts[i].bytes;
    }
}

static void *thread_main(void *argument)
{
    struct encode_pool *pool = argument;
    struct encoder *encoder = NULL;
    enum status created = encoder_create(pool->options.tokenizer, &encoder);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->ends && pool->taken == pool->filled)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->ends)
            break;
        struct block *block = &pool->ring[pool->taken++ % pool->size];
        pthread_mutex_unlock(&pool->lock);
        if (created == OK) {
            encode_block(pool, encoder, block);
        } else {
            block->status = created;
            block->why = text_copy("no memory for an encoder; use fewer --threads");
        }
        pthread_mutex_lock(&pool->lock);
        block->encoded = true;
        pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    encoder_destroy(encoder);
    return NULL;
}

/* ---- the caller ---- */

static enum status start_threads(struct encode_pool *pool)
{
    const int threads = pool->options.threads;
    pool->size = 2 * (int64_t)threads + 1;
    pool->ring = memory_zeroed((size_t)pool->size, sizeof *pool->ring, "threads");
    pool->threads = memory_zeroed((size_t)threads, sizeof *pool->threads, "threads");
    TRY(encoder_create(pool->options.tokenizer, &pool->cutter));
    for (; pool->thread_count < threads; pool->thread_count++) {
        int why = pthread_create(&pool->threads[pool->thread_count], NULL, thread_main, pool);
        if (why != 0)
            return fail(NO_MEMORY, "cannot start thread %d: %s; use fewer --threads", pool->thread_count + 1,
                        strerror(why));
    }
    return OK;
}

enum status encode_pool_create(const struct encode_options *options, struct dataset_writer *writer,
                               struct encode_pool **out)
{
    struct encode_pool *pool = memory_zeroed(1, sizeof *pool, "threads");
    pool->options = *options;
    pool->writer = writer;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    enum status status = start_threads(pool);
    if (status == OK)
        *out = pool;
    else
        encode_pool_destroy(pool);
    return status;
}

void encode_pool_destroy(struct encode_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->ends = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    for (int64_t i = 0; pool->ring != NULL && i < pool->size; i++) {
        for (int64_t k = 0; k < pool->ring[i].count; k++)
            free(pool->ring[i].parts[k].skipped);
        text_free(&pool->ring[i].text);
        free(pool->ring[i].parts);
        chat_tokens_free(&pool->ring[i].tokens);
        free(pool->ring[i].why);
    }
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    encoder_destroy(pool->cutter);
    text_free(&pool->held);
    free(pool->ring);
    free(pool->threads);
    free(pool);
}

/* Writes a conversation. */
static enum status write_chat(struct encode_pool *pool, const struct part *part, const int32_t *ids,
                              const uint8_t *counts)
{
    struct encode_counts *all = &pool->counts;
    for (int64_t i = 0; i < part->ids; i++)
        all->counted += counts[i];
    if (part->ids > all->longest) {
        all->longest = part->ids;
        all->longest_file = part->file;
        all->longest_line = part->line;
    }
    if (pool->options.seq_length > 0 && part->ids > pool->options.seq_length && all->too_long++ == 0) {
        all->too_long_file = part->file;
        all->too_long_line = part->line;
    }
    return dataset_writer_add_masked(pool->writer, ids, counts, part->ids);
}

static enum status refuse_block(const struct encode_pool *pool, const struct block *block)
{
    if (pool->options.chat != NULL)
        return fail(block->status, "%s", block->why);
    return fail(block->status, "document %lld: %s", (long long)pool->counts.documents, block->why);
}

/* Reports a skipped conversation. */
static enum status report_skipped(const struct encode_pool *pool, struct part *part)
{
    const enum status status = pool->options.skip(pool->options.skip_context, part->skipped);
    free(part->skipped);
    part->skipped = NULL;
    return status;
}

/* Writes an encoded block, and empties it. */
static enum status write_block(struct encode_pool *pool, struct block *block)
{
    if (block->status != OK)
        return refuse_block(pool, block);
    const int32_t *ids = block->tokens.ids.ids;
    const uint8_t *counts = (const uint8_t *)text_chars(&block->tokens.counts);
    for (int64_t i = 0; i < block->count; i++) {
        struct part *part = &block->parts[i];
        if (part->skipped != NULL) {
            TRY(report_skipped(pool, part));
            continue;
        }
        if (pool->options.chat != NULL) {
            TRY(write_chat(pool, part, ids, counts));
            counts += part->ids;
        } else {
            TRY(dataset_writer_add(pool->writer, ids, part->ids));
        }
        ids += part->ids;
        pool->counts.tokens += part->ids;
        pool->counts.text_bytes += part->bytes;
        if (part->ends) {
            TRY(dataset_writer_end_document(pool->writer));
            pool->counts.documents++;
        }
    }
    block->count = 0;
    block->text.length = 0;
    block->encoded = false;
    return OK;
}

/* Waits for the oldest block, and writes it. */
static enum status write_oldest(struct encode_pool *pool)
{
    struct block *block = &pool->ring[pool->written % pool->size];
    pthread_mutex_lock(&pool->lock);
    while (!block->encoded)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    TRY(write_block(pool, block));
    pool->written++;
    return OK;
}

/* Passes the block being filled to the threads. */
static enum status submit(struct encode_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->filled++;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    return pool->filled - pool->written == pool->size ? write_oldest(pool) : OK;
}

/* Adds a part to the block being filled, with its text; passes the block to the threads when it is full. */
static enum status add_part(struct encode_pool *pool, const struct part *part, const char *bytes)
{
    struct block *block = &pool->ring[pool->filled % pool->size];
    if (block->count == block->capacity) {
        int64_t capacity = block->capacity < 64 ? 64 : 2 * block->capacity;
        block->parts =
            memory_resized(block->parts, (size_t)capacity, sizeof *block->parts, "the documents of a block");
        block->capacity = capacity;
    }
    block->parts[block->count++] = *part;
    text_add_bytes(&block->text, bytes, (size_t)part->bytes);
    return block->text.length >= BLOCK_BYTES || block->count >= BLOCK_BYTES / 16 ? submit(pool) : OK;
}

/* Moves the first `length` held bytes into the block. */
static enum status add_held(struct encode_pool *pool, int64_t length, bool ends)
{
    const struct part part = {.bytes = length, .begins = !pool->begun, .ends = ends};
    TRY(add_part(pool, &part, text_chars(&pool->held)));
    pool->begun = !ends;
    pool->held.length -= (size_t)length;
    if (pool->held.length > 0)
        memmove(pool->held.chars, pool->held.chars + length, pool->held.length);
    return OK;
}

enum status encode_pool_append(struct encode_pool *pool, const char *bytes, int64_t length)
{
    for (int64_t piece; length > 0; bytes += piece, length -= piece) {
        piece = length < BLOCK_BYTES ? length : BLOCK_BYTES;
        text_add_bytes(&pool->held, bytes, (size_t)piece);
        if (pool->held.length < BLOCK_BYTES)
            continue;
        int64_t cut = encoder_cut(pool->cutter, pool->held.chars, (int64_t)pool->held.length);
        if (cut > 0)
            TRY(add_held(pool, cut, false));
    }
    return OK;
}

enum status encode_pool_end_document(struct encode_pool *pool)
{
    return add_held(pool, (int64_t)pool->held.length, true);
}

enum status encode_pool_line(struct encode_pool *pool, const char *file, int64_t line, const char *bytes,
                             int64_t length)
{
    const struct part part = {.bytes = length, .begins = true, .ends = true, .file = file, .line = line};
    return add_part(pool, &part, bytes);
}

static enum status refuse_length(const struct encode_pool *pool)
{
    const struct encode_counts *c = &pool->counts;
    return fail(
        BAD_DATA,
        "%s, line %lld: more tokens than --seq-length %lld, as %lld of %lld conversations have; shorten "
        "them, use --seq-length %lld for the longest (%s, line %lld), or omit --seq-length and train "
        "with data.truncate_documents=true",
        c->too_long_file, (long long)c->too_long_line, (long long)pool->options.seq_length,
        (long long)c->too_long, (long long)c->documents, (long long)c->longest, c->longest_file,
        (long long)c->longest_line);
}

enum status encode_pool_finish(struct encode_pool *pool)
{
    if (pool->ring[pool->filled % pool->size].count > 0)
        TRY(submit(pool));
    while (pool->written < pool->filled)
        TRY(write_oldest(pool));
    return pool->counts.too_long > 0 ? refuse_length(pool) : OK;
}

struct encode_counts encode_pool_counts(const struct encode_pool *pool)
{
    return pool->counts;
}
