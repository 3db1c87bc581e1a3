// SPDX-License-Identifier: Apache-2.0
/* The functions of the SentencePiece library that sp_tokenizer.c needs, for C. Without the library
 * (-Dsentencepiece) sp_library.cc is not compiled, and nothing defines them. All except sp_load() and
 * sp_free() may be called by several threads. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sp_model;
struct tokens;

enum sp_result { SP_OK, SP_BAD, SP_NO_MEMORY };
enum sp_kind { SP_NORMAL, SP_CONTROL, SP_UNKNOWN, SP_BYTE };
enum { SP_WHY = 256 };

/* Reads a model; SP_BAD: `why` has the reason. */
enum sp_result sp_load(const char *path, struct sp_model **out, char why[SP_WHY]);
void sp_free(struct sp_model *model); /* accepts NULL */

int sp_size(const struct sp_model *model);
int sp_bos(const struct sp_model *model); /* -1: none */
int sp_eos(const struct sp_model *model); /* -1: none */

/* The text of a piece, with U+2581 for spaces; owned by the model. */
const char *sp_piece(const struct sp_model *model, int id, size_t *length, enum sp_kind *kind);

/* Passes the ids of bytes[0..length) to `append`. */
enum sp_result sp_encode(const struct sp_model *model, const char *bytes, size_t length,
                         void (*append)(struct tokens *out, const int *ids, size_t count), struct tokens *out,
                         char why[SP_WHY]);

#ifdef __cplusplus
}
#endif
