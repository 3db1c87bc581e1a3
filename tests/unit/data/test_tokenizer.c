// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/tokenizer.h"

#include <criterion/criterion.h>
#include <string.h>

static struct tokenizer *byte_tokenizer(void)
{
    struct tokenizer *t = NULL;
    cr_assert_eq(tokenizer_create(&(struct tokenizer_config){.type = "Byte"}, &t), OK, "%s", fail_text());
    return t;
}

Test(tokenizer, bytes_are_their_own_ids)
{
    struct tokenizer *t = byte_tokenizer();
    cr_assert_str_eq(tokenizer_name(t), "byte");
    cr_assert(tokenizer_vocab_size(t) == 257 && tokenizer_end_of_document(t) == 256);

    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    struct encoder *e = NULL;
    struct tokens ids = {0};
    struct text back = {0};
    cr_assert_eq(encoder_create(t, &e), OK);
    cr_assert_eq(encoder_encode(e, all, 0, &ids), OK); // an empty prompt, before any token
    cr_assert_eq(encoder_encode(e, all, 256, &ids), OK);
    cr_assert_eq(encoder_encode(e, all, 0, &ids), OK);
    cr_assert_eq(encoder_cut(e, all, 256), 256);
    cr_assert_eq(ids.count, 256);
    for (int i = 0; i < 256; i++)
        cr_assert_eq(ids.ids[i], i);
    cr_assert_eq(tokenizer_decode(t, ids.ids, ids.count, &back), OK);
    cr_assert(back.length == 256 && memcmp(back.chars, all, 256) == 0);

    // The end-of-document token has no bytes; an id beyond it is rejected.
    const int32_t end[2] = {256, 257};
    cr_assert_eq(tokenizer_decode(t, end, 1, &back), OK);
    cr_assert_eq(back.length, 256);
    cr_assert_eq(tokenizer_decode(t, end, 2, &back), BAD_DATA);
    cr_assert(strstr(fail_text(), "id 257") != NULL, "%s", fail_text());

    text_free(&back);
    tokens_free(&ids);
    encoder_destroy(e);
    tokenizer_destroy(t);
}

Test(tokenizer, unknown_types_and_missing_files_are_named)
{
    struct tokenizer *t = NULL;
    cr_assert_eq(tokenizer_create(&(struct tokenizer_config){.type = "bites"}, &t), BAD_RECIPE);
    cr_assert(strstr(fail_text(), "did you mean \"byte\"") != NULL, "%s", fail_text());
    tokenizer_destroy(NULL);
    encoder_destroy(NULL);
}
