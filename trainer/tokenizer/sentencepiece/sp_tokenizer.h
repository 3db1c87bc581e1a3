// SPDX-License-Identifier: Apache-2.0
/* SentencePiece models as tokenizers, with Megatron-LM's names. A document is encoded as a whole: there is no
 * position where it could be cut. */
#pragma once

#include "trainer/tokenizer/tokenizer_kind.h"

extern const struct tokenizer_kind kind_sentencepiece; // no ids around a text
extern const struct tokenizer_kind kind_llama2;        // the model's <s> before a text
