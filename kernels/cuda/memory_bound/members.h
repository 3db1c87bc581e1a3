// SPDX-License-Identifier: Apache-2.0
/* One launch for a list of ops: each member has its own range of blocks in the grid.
 *
 *     blocks    0 1 2 3 4 | 5 | 6 7 ...
 *     member    0         | 1 | 2
 *
 * The members are a kernel parameter, which needs no copy to the GPU and no buffer that outlives the launch.
 * CUDA allows 32764 bytes of parameters since 12.1; longer lists take more launches. */
#pragma once

#include "kernels/cuda/runtime/launch.h"

template <class M> struct members {
    enum { MAX_MEMBERS = 160 };
    unsigned first[MAX_MEMBERS + 1]; // first block of each, and one past the last
    int count;
    M at[MAX_MEMBERS];

    /* The member of this block; `block` becomes its index within the member. */
    __device__ const M &of_block(unsigned &block) const
    {
        int low = 0, high = count; // first[low] <= block < first[high]
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (first[middle] <= block ? low : high) = middle;
        }
        block -= first[low];
        return at[low];
    }
};

/* member(i, m) fills m for the i-th list entry and returns its block count, 0 for none; launch(batch, blocks)
 * launches a batch. */
template <class M, class Member, class Launch>
static enum status launch_members(int64_t count, Member member, Launch launch)
{
    static_assert(sizeof(members<M>) <= 32764, "parameters of a kernel");
    members<M> batch = {};
    for (int64_t i = 0; i < count; i++) {
        const int64_t blocks = member(i, batch.at[batch.count]);
        if (blocks > 0) {
            batch.count++;
            batch.first[batch.count] = batch.first[batch.count - 1] + static_cast<unsigned>(blocks);
        }
        const bool full = batch.count == members<M>::MAX_MEMBERS;
        if (batch.count > 0 && (full || i + 1 == count)) {
            TRY(launch(batch, batch.first[batch.count]));
            batch.count = 0;
        }
    }
    return OK;
}
