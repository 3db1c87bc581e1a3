// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_floats.h"

#include "base/memory.h"
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

static void *narrow_room(struct tensor t)
{
    return memory_resized(NULL, tensor_bytes(t) + 1, 1, "the elements of a tensor");
}

enum status floats_from_device(struct stream *stream, struct tensor from, float *to)
{
    if (from.dtype == F32)
        return fetch(stream, from, to);
    void *narrow = narrow_room(from);
    enum status status = fetch(stream, from, narrow);
    if (status == OK)
        widen_floats(from.dtype, narrow, to, tensor_count(from));
    free(narrow);
    return status;
}

enum status floats_to_device(struct stream *stream, struct tensor to, const float *from)
{
    if (to.dtype == F32)
        return send(stream, to, from);
    void *narrow = narrow_room(to);
    narrow_floats(to.dtype, from, narrow, tensor_count(to));
    enum status status = send(stream, to, narrow);
    free(narrow);
    return status;
}
