// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/distribute/checkpoint_staging.h"

#include "trainer/engine/agree.h"

static enum status allocate(struct rank_state *w, size_t bytes, struct staging *out)
{
    TRY(buffer_alloc(w->device, PART_COMMUNICATION, bytes, &out->own));
    out->data = out->own.data;
    out->bytes = bytes;
    return OK;
}

enum status staging_open(struct rank_state *w, size_t bytes, struct staging *out)
{
    const struct buffer *gradient = &w->weights.gradient;
    *out = (struct staging){.data = gradient->data, .bytes = gradient->bytes};
    const enum status status = rank_agree(w, out->bytes >= bytes ? OK : allocate(w, bytes, out));
    if (status != OK)
        staging_close(out);
    return status;
}

void staging_close(struct staging *staging)
{
    buffer_free(&staging->own);
    *staging = (struct staging){0};
}
