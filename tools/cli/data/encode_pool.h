// SPDX-License-Identifier: Apache-2.0
/* Encodes documents on threads and writes them in order; the result does not depend on the number of threads.
 *
 *     caller     append, append, end_document, ...       blocks of about 1 MiB: whole documents, or parts
 *     threads    encode a block at a time                cut where encoder_cut() permits
 *     caller     writes the oldest block when it is encoded
 *
 * A conversation is a document whose text is a line of JSON Lines; the threads parse it, too.
 *
 * All functions are called by one thread; the encoding threads are internal. */
#pragma once

#include "trainer/data/dataset_writer.h"
#include "trainer/tokenizer/chat/chat.h"

struct encode_pool;

struct encode_options {
    const struct tokenizer *tokenizer;
    bool append_eod;                  // to each document, unless the tokenizer's suffix ends with it
    const struct chat_template *chat; // documents are conversations; NULL: text
    int64_t seq_length;               // of a conversation, at most; 0: any
    int threads;                      // at least 1
    /* Receives the message about each invalid conversation, which is skipped. NULL: it is an error. */
    enum status (*skip)(void *context, const char *why);
    void *skip_context;
};

struct encode_counts {
    int64_t documents, tokens, text_bytes; // written; tokens with those that the tokenizer or append_eod add
    int64_t counted;                       // of the tokens of conversations: those that count in the loss
    int64_t longest, longest_line;         // the conversation with the most tokens
    const char *longest_file;
    int64_t too_long, too_long_line; // conversations with more tokens than seq_length; the first of them
    const char *too_long_file;
};

/* The tokenizer, the template and the writer must outlive the pool. */
MUST_USE enum status encode_pool_create(const struct encode_options *options, struct dataset_writer *writer,
                                        struct encode_pool **out);
/* Waits for the threads; discards what is not written. Accepts NULL. */
void encode_pool_destroy(struct encode_pool *pool);

/* Adds bytes to the current document. Any status of the encoder or the writer, also of earlier documents. */
MUST_USE enum status encode_pool_append(struct encode_pool *pool, const char *bytes, int64_t length);
MUST_USE enum status encode_pool_end_document(struct encode_pool *pool);
/* Adds a conversation: a line of JSON Lines. `file`, for messages, must outlive the pool. */
MUST_USE enum status encode_pool_line(struct encode_pool *pool, const char *file, int64_t line,
                                      const char *bytes, int64_t length);
/* Encodes and writes all that is left. */
MUST_USE enum status encode_pool_finish(struct encode_pool *pool);

struct encode_counts encode_pool_counts(const struct encode_pool *pool);
