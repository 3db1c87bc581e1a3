// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"

#include <string.h>
#include <sys/stat.h>

bool pretrained_tokenizer_in(const char *folder, const struct recipe *recipe, struct text *out)
{
    const char *model = recipe->tokenizer.tokenizer_model;
    if (recipe->tokenizer.tokenizer_type != TOKENIZER_HUGGING_FACE || model == NULL)
        return false;
    struct stat info;
    struct text path = {0};
    const char *slash = strrchr(model, '/');
    text_add(&path, "%s/%s", folder, slash != NULL ? slash + 1 : model);
    const bool found = stat(path.chars, &info) == 0 && S_ISREG(info.st_mode);
    if (found)
        text_add(out, "%s", path.chars);
    text_free(&path);
    return found;
}
