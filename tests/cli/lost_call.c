// SPDX-License-Identifier: Apache-2.0
/* Injected faults of communication, for docs/debugging.md: the environment variable INJECT names the call
 * that is omitted.
 *
 *     sum    data rank 1 omits the second all-reduce over tp of action 0F0, in every run: wrong results
 *     send   pipeline rank 0 omits action 0SEND_F2 of step 2: a hang */
#include "parallel/group.h"

#include <stdlib.h>
#include <string.h>

enum status real_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                            enum reduction how) __asm__("__real_group_all_reduce");
enum status faulty_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                              enum reduction how) __asm__("__wrap_group_all_reduce");
enum status real_exchange(struct group *group, struct stream *stream, const struct message *messages,
                          int count) __asm__("__real_group_exchange");
enum status faulty_exchange(struct group *group, struct stream *stream, const struct message *messages,
                            int count) __asm__("__wrap_group_exchange");

static bool injected(const char *fault)
{
    const char *name = getenv("INJECT");
    return name != NULL && strcmp(name, fault) == 0;
}

enum status faulty_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                              enum reduction how)
{
    enum { LOST = 2 };
    static _Thread_local int sums; // of this rank, in its first 0F0
    const struct who *me = who_am_i();
    bool counted = injected("sum") && strcmp(group->name, "tp") == 0 && strcmp(me->action, "0F0") == 0;
    sums += counted;
    return counted && me->dp == 1 && sums == LOST ? OK : real_all_reduce(group, stream, data, how);
}

enum status faulty_exchange(struct group *group, struct stream *stream, const struct message *messages,
                            int count)
{
    const struct who *me = who_am_i();
    bool lost = injected("send") && me->step == 2 && strcmp(me->action, "0SEND_F2") == 0;
    return lost ? OK : real_exchange(group, stream, messages, count);
}
