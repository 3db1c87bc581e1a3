// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/distribute/checkpoint_staging.h"

enum status staging_open(struct rank_state *w, size_t bytes, struct staging *out)
{
    const struct buffer *gradient = &w->weights.gradient;
    *out = (struct staging){.data = gradient->data, .bytes = gradient->bytes};
    if (out->bytes >= bytes)
        return OK;
    TRY(buffer_alloc(w->device, PART_COMMUNICATION, bytes, &out->own));
    out->data = out->own.data;
    out->bytes = bytes;
    return OK;
}

void staging_close(struct staging *staging)
{
    buffer_free(&staging->own);
    *staging = (struct staging){0};
}
