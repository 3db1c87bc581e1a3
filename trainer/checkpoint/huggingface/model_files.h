// SPDX-License-Identifier: Apache-2.0
/* The small files of a model besides its weights, under the names that transformers reads: those of its
 * tokenizer, config.json, generation_config.json and chat_template.jinja. An imported checkpoint has those
 * of the model, a run copies them into its checkpoints (trainer/run/run_files.h), and an export takes them
 * from there: a checkpoint can be moved, and the original may disappear.
 *
 * The folder of another user is not trusted: only files inside it are read (trainer/files/inside.h), each is
 * parsed before it is copied, and a copy has no permission that the original lacks. */
#pragma once

#include "base/text.h"
#include "trainer/files/problems.h"

#include <sys/types.h>

enum model_file {
    MODEL_TOKENIZER_JSON,
    MODEL_TOKENIZER_MODEL, // SentencePiece
    MODEL_VOCAB_JSON,
    MODEL_MERGES_TXT,
    MODEL_TOKENIZER_CONFIG,
    MODEL_SPECIAL_TOKENS_MAP,
    MODEL_ADDED_TOKENS,
    MODEL_CHAT_TEMPLATE,
    MODEL_GENERATION_CONFIG,
    MODEL_CONFIG,
    MODEL_FILE_COUNT
};

struct model_files {
    struct {
        struct text bytes; // chars NULL: there is no such file
        mode_t mode;
    } list[MODEL_FILE_COUNT];
};

const char *model_file_name(enum model_file file);
/* Whether a name, of `length` characters, is one of these. */
bool model_files_has_name(const char *name, size_t length);

/* Reads those of files first .. last that the folder has and `out` does not. A file that is a link to
 * elsewhere, or is not what its name says, is BAD_CHECKPOINT, or with `warnings` a warning, and omitted;
 * tokenizer.json and tokenizer.model are omitted silently, since who uses them reports why they cannot be
 * read. */
MUST_USE enum status model_files_read(const char *folder, enum model_file first, enum model_file last,
                                      struct problems *warnings, struct model_files *out);
/* Reads a file of another name, which the user named, as `file`. */
MUST_USE enum status model_files_read_as(const char *path, enum model_file file, struct model_files *out);
/* Replaces a file; `text` may be NULL: removes it. */
void model_files_set(struct model_files *files, enum model_file file, const struct text *text);

/* NULL: there is no such file. */
const struct text *model_files_get(const struct model_files *files, enum model_file file);
/* Whether there are files of a tokenizer. */
bool model_files_has_tokenizer(const struct model_files *files);

MUST_USE enum status model_files_write(const struct model_files *files, const char *folder);
void model_files_free(struct model_files *files); // accepts {0}
