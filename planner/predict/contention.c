// SPDX-License-Identifier: Apache-2.0

#include "planner/predict/lanes.h"

unsigned contention_uses(enum call call, struct group_shape shape)
{
    const unsigned out = shape.nodes > 1 ? NIC_OUT : LINKS_OUT, in = shape.nodes > 1 ? NIC_IN : LINKS_IN;
    if (shape.ranks < 2)
        return 0;
    return call == CALL_SEND ? out : call == CALL_RECEIVE ? in : out | in;
}

/* ---- the messages of a lane ---- */

static const struct lane_message *message_of(const struct lane *lane, int i)
{
    return &lane->rank->messages[lane->items->items[lane->at + i].index];
}

static unsigned uses_of(const struct lane *lane)
{
    unsigned uses = 0;
    for (int i = 0; i < lane->items_busy; i++)
        uses |= message_of(lane, i)->uses;
    return uses;
}

/* What the other rank of a message uses: it receives what this rank sends. */
static unsigned others_use(unsigned uses)
{
    return (uses & (NIC_OUT | LINKS_OUT)) << 1 | (uses & (NIC_IN | LINKS_IN)) >> 1;
}

/* ---- speed ---- */

static int most_users(const struct rank *rank, unsigned uses)
{
    int most = 1;
    for (int i = 0; i < CONTENDED; i++)
        if ((uses >> i & 1) != 0 && rank->contention.users[i] > most)
            most = rank->contention.users[i];
    return most;
}

/* The other rank of a message between two ranks; NULL for a collective. */
static struct rank *peer_of(const struct predictor *p, const struct lane_message *message)
{
    return message->peer == NO_PEER ? NULL : &p->ranks[message->peer];
}

/* By how much the messages of a lane are slowed down now. */
static int sharers(const struct predictor *p, const struct lane *lane)
{
    int most = most_users(lane->rank, lane->uses);
    for (int i = 0; i < lane->items_busy; i++) {
        const struct lane_message *message = message_of(lane, i);
        const struct rank *peer = peer_of(p, message);
        const int users = peer == NULL ? 1 : most_users(peer, others_use(message->uses));
        most = users > most ? users : most;
    }
    return most;
}

/* Updates the ends of all messages of this rank, and of those to and from it, except for `ended`. */
static void update(struct predictor *p, struct rank *rank, const struct lane *ended, double now_s)
{
    for (int i = 0; i < rank->tape->lane_count; i++) {
        struct lane *lane = &rank->lanes[i];
        if (lane != ended && lane->items_busy > 0 && lane->items->items[lane->at].kind == TAPE_MESSAGE)
            lane_change_speed(p, lane, sharers(p, lane), 1.0, now_s);
    }
    for (int i = 0; i < rank->contention.peer_lane_count; i++)
        lane_change_speed(p, rank->contention.peer_lanes[i], sharers(p, rank->contention.peer_lanes[i]), 1.0,
                          now_s);
}

/* ---- lanes of peers ---- */

/* Once, even if several messages of an exchange are between the same ranks. */
static void add_peer_lane(struct rank_contention *at, struct lane *lane)
{
    if (at->peer_lane_count == 0 || at->peer_lanes[at->peer_lane_count - 1] != lane)
        at->peer_lanes[at->peer_lane_count++] = lane;
}

static void remove_peer_lane(struct rank_contention *at, const struct lane *lane)
{
    int i = 0;
    while (i < at->peer_lane_count && at->peer_lanes[i] != lane)
        i++;
    if (i < at->peer_lane_count)
        at->peer_lanes[i] = at->peer_lanes[--at->peer_lane_count];
}

/* Adds the lane to, or removes it from, the lists of the other ranks of its messages. */
static void register_at_peers(struct predictor *p, struct lane *lane, bool begins)
{
    for (int i = 0; i < lane->items_busy; i++) {
        struct rank *peer = peer_of(p, message_of(lane, i));
        if (peer != NULL && begins)
            add_peer_lane(&peer->contention, lane);
        else if (peer != NULL)
            remove_peer_lane(&peer->contention, lane);
    }
}

/* Returns whether anything that the lane uses has another user. */
static bool count_users(struct rank *rank, unsigned uses, int change)
{
    bool shared = false;
    for (int i = 0; i < CONTENDED; i++)
        if ((uses >> i & 1) != 0) {
            shared = shared || rank->contention.users[i] > (change > 0 ? 0 : 1);
            rank->contention.users[i] += change;
        }
    return shared;
}

void contention_begin(struct predictor *predictor, struct lane *lane, double now_s)
{
    lane->uses = uses_of(lane);
    if (lane->uses == 0)
        return;
    register_at_peers(predictor, lane, true);
    if (count_users(lane->rank, lane->uses, 1))
        update(predictor, lane->rank, NULL, now_s);
    else
        lane_change_speed(predictor, lane, sharers(predictor, lane), 1.0, now_s);
}

void contention_end(struct predictor *predictor, struct lane *lane, double now_s)
{
    if (lane->uses == 0)
        return;
    register_at_peers(predictor, lane, false);
    if (count_users(lane->rank, lane->uses, -1))
        update(predictor, lane->rank, lane, now_s);
}
