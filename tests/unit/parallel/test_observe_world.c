// SPDX-License-Identifier: Apache-2.0
/* An observer of a world is called for each call of its communicators, with the bytes of every peer. */
#include "parallel/observe_world.h"

#include "base/text.h"
#include "parallel/group.h"

#include <criterion/criterion.h>
#include <string.h>

enum { RANKS = 4, ME = 1 };

struct rank {
    struct group *group;
    struct device *device;
    struct stream *stream;
    struct buffer x, y;
    struct text seen;
    bool called[CALL_COUNT];
};

/* "send tp[0] #3 40: 0>40<0 2>0<0": the call, its bytes, and the bytes to and from each peer. */
static void note(void *context, const struct observation *seen)
{
    struct rank *r = context;
    const struct observed_message *m = seen->message;
    cr_assert(seen->what == OBSERVED_MESSAGE && seen->stream == r->stream);
    r->called[m->call] = true;
    text_add(&r->seen, "%s %s #%lld %lld:", call_name(m->call), m->comm->name, (long long)m->sequence,
             (long long)message_bytes(m));
    for (int peer = 0; peer < m->comm->size; peer++)
        if (peer != m->comm->rank)
            text_add(&r->seen, " %d>%lld<%lld", m->comm->ranks[peer], (long long)message_bytes_to(m, peer),
                     (long long)message_bytes_from(m, peer));
    text_add(&r->seen, "\n");
}

static enum status open_rank(struct world *world, struct rank *r)
{
    const int ranks[] = {7, 1, 3, 5}; // world rank 1 is rank 1 of the group
    TRY(device_open(&(struct device_options){.name = "dry", .threads = 1}, &r->device));
    TRY(stream_create(r->device, "dry", &r->stream));
    TRY(buffer_alloc(r->device, PART_DATA, 4000, &r->x));
    TRY(buffer_alloc(r->device, PART_DATA, 4000, &r->y));
    return group_create(world, "g", 1, ranks, RANKS, &r->group);
}

static void close_rank(struct rank *r)
{
    group_destroy(r->group);
    buffer_free(&r->x);
    buffer_free(&r->y);
    stream_destroy(r->stream);
    device_close(r->device);
    text_free(&r->seen);
}

static enum status every_call(struct world *world, void *argument)
{
    (void)argument;
    const struct transport_ops *own = world->ops;
    struct rank r = {.group = NULL};
    TRY(world_observe(world, (struct observer){.notify = note, .context = &r}));
    TRY(open_rank(world, &r));
    const struct tensor whole = tensor_1d(r.x.data, F32, 100), share = tensor_1d(r.y.data, F32, 25);
    const int64_t counts[] = {10, 20, 30, 40}, out_counts[] = {1, 20, 3, 4};
    const struct message batch[] = {{.data = tensor_1d(r.x.data, F32, 5), .peer = 2, .send = true},
                                    {.data = tensor_1d(r.y.data, F32, 6), .peer = 0}};
    TRY(group_all_reduce(r.group, r.stream, whole, REDUCE_SUM));
    TRY(group_reduce_scatter(r.group, r.stream, whole, share));
    TRY(group_reduce_scatter_v(r.group, r.stream, whole, counts));
    TRY(group_all_gather(r.group, r.stream, share, whole));
    TRY(group_all_gather_v(r.group, r.stream, whole, counts));
    TRY(group_broadcast(r.group, r.stream, whole, 2));
    TRY(group_all_to_all(r.group, r.stream, whole, counts, tensor_1d(r.y.data, F32, 28), out_counts));
    TRY(group_exchange(r.group, r.stream, batch, 2));
    TRY(group_barrier(r.group, r.stream));
    cr_expect_str_eq(text_chars(&r.seen), "all_reduce g #1 400: 7>400<400 3>400<400 5>400<400\n"
                                          "reduce_scatter g #2 400: 7>100<100 3>100<100 5>100<100\n"
                                          "reduce_scatter g #3 400: 7>40<80 3>120<80 5>160<80\n"
                                          "all_gather g #4 400: 7>100<100 3>100<100 5>100<100\n"
                                          "all_gather g #5 400: 7>80<40 3>80<120 5>80<160\n"
                                          "broadcast g #6 400: 7>0<0 3>0<400 5>0<0\n"
                                          "all_to_all g #7 400: 7>40<4 3>120<12 5>160<16\n"
                                          "send g #8 20: 7>0<0 3>20<0 5>0<0\n"
                                          "receive g #8 24: 7>0<24 3>0<0 5>0<0\n"
                                          "barrier g #9 0: 7>0<0 3>0<0 5>0<0\n");
    for (int call = 0; call < CALL_COUNT; call++)
        cr_expect(r.called[call], "no %s is observed", call_name((enum call)call));
    close_rank(&r);
    world_stop_observing(world);
    return world->ops == own ? OK : fail(OUT_OF_BOUND, "the table was not restored");
}

Test(observe_world, every_call_has_its_bytes)
{
    cr_assert_eq(world_run_dry(2 * RANKS, ME, every_call, NULL), OK, "%s", fail_text());
}

static enum status unobserved(struct world *world, void *argument)
{
    struct rank r = {.group = NULL};
    const struct transport_ops *own = world->ops;
    *(bool *)argument = true;
    TRY(open_rank(world, &r));
    cr_expect(r.group->comm->ops == own && r.group->comm->observed_calls == 0);
    close_rank(&r);
    world_stop_observing(world); // nothing to stop
    return OK;
}

Test(observe_world, without_an_observer_comms_have_the_transports_table)
{
    bool ran = false;
    cr_assert_eq(world_run_dry(2 * RANKS, ME, unobserved, &ran), OK, "%s", fail_text());
    cr_assert(ran);
}

/* Closing a world detaches observers that were left. */
static enum status left_open(struct world *world, void *argument)
{
    return world_observe(world, (struct observer){.notify = note, .context = argument});
}

Test(observe_world, closing_a_world_detaches)
{
    struct rank r = {.group = NULL};
    cr_assert_eq(world_run_dry(2, 0, left_open, &r), OK);
}
