// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_floats.h"

#include "kernels/numbers/narrow.h"

#include <stdlib.h>

static enum status fetch(struct stream *stream, struct tensor from, void *to)
{
    TRY(copy_to_host(stream, to, from.data, tensor_bytes(from)));
    return stream_sync(stream);
}

static enum status send(struct stream *stream, struct tensor to, const void *from)
{
    TRY(copy_to_device(stream, to.data, from, tensor_bytes(to)));
    return stream_sync(stream);
}

static enum status narrow_room(struct tensor t, void **out)
{
    *out = malloc(tensor_bytes(t) + 1);
    return *out != NULL ? OK : fail(NO_MEMORY, "no memory for %zu bytes", tensor_bytes(t));
}

enum status floats_from_device(struct stream *stream, struct tensor from, float *to)
{
    void *narrow = NULL;
    if (from.dtype == F32)
        return fetch(stream, from, to);
    TRY(narrow_room(from, &narrow));
    enum status status = fetch(stream, from, narrow);
    if (status == OK)
        widen_floats(from.dtype, narrow, to, tensor_count(from));
    free(narrow);
    return status;
}

enum status floats_to_device(struct stream *stream, struct tensor to, const float *from)
{
    void *narrow = NULL;
    if (to.dtype == F32)
        return send(stream, to, from);
    TRY(narrow_room(to, &narrow));
    narrow_floats(to.dtype, from, narrow, tensor_count(to));
    enum status status = send(stream, to, narrow);
    free(narrow);
    return status;
}
