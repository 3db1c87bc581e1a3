// SPDX-License-Identifier: Apache-2.0
/* The control connections of a job: one process of each node reports the progress of its ranks over TCP to
 * the first node (the node of rank 0), which detects hangs for the whole job. They use neither ranks nor
 * transports, so they work when all of these hang.
 *
 *     node b ── hello ──────────────────> first node     with the first half of the job's secret
 *            <─ welcome ─────────────────                 with the second half
 *            ── progress of its ranks ──>                 at each poll of its monitor
 *            <─ progress of the first ───                 so that a silent first node is noticed, too
 *            <─ send everything ─────────
 *            ── messages of its ranks ──>                 for the report
 *            <─ end ─────────────────────                 all processes of the node exit
 *
 * Rank 0 draws the secret at random and broadcasts it, with the address of the first node, over the transport
 * when the run starts. Each process of the first node listens, and the primary one (monitor.h) accepts: if
 * it is stopped, the others are tried in turn.
 *
 * Only the monitor's thread uses a control. A call blocks for at most about a second. Both ends must be the
 * same build. */
#pragma once

#include "trainer/progress/hang.h"

enum { CONTROL_PORTS = 64, CONTROL_SECRET = 32 };

/* Broadcast by rank 0. */
struct control_address {
    char node[HANG_NODE_CHARS], host[HANG_NODE_CHARS]; // of the first node
    int32_t ports[CONTROL_PORTS];                      // one per process of the first node; 0: none
    uint8_t secret[CONTROL_SECRET];
};

/* The progress of a rank, as its node reports it. */
struct control_rank {
    struct progress_head head;
    int64_t stalled_ns;
    int64_t lost; // its process exited without an error message
};

/* The state of another node: for the first node, any other one; for these, the first. */
struct control_node {
    char name[HANG_NODE_CHARS];
    int file;          // -1: not connected
    int64_t silent_ns; // since its last message
    bool ended;        // one of its ranks has ended: until control_take_ended()
    int count;
    struct control_rank *ranks; // [count]
    struct hang_rank *all;      // [count] after control_collect(); NULL: no answer
};

struct control;

/* Listens on a free port, of the loopback interface unless the job has several hosts. IO_ERROR. */
MUST_USE enum status control_open(bool several_hosts, struct control **out);
void control_close(struct control *control); // accepts NULL; reports the end to the first node
int control_port(const struct control *control);

/* Starts to use the connections, as a process of node `node`. */
void control_start(struct control *control, const struct control_address *address, const char *node);
bool control_is_started(const struct control *control);
/* Whether this process is on another node than the first. */
bool control_is_remote(const struct control *control);

/* For the judging process of the first node: accepts nodes, reads their progress, and answers with that of
 * its own ranks. passed_ns: since the last call. */
void control_serve(struct control *control, const struct control_rank *mine, int count, int64_t passed_ns);
int control_nodes(const struct control *control);
const struct control_node *control_node(const struct control *control, int index);
/* Requests the messages of all ranks from all nodes, and waits for their answers. */
void control_collect(struct control *control);
/* Ends the processes of all other nodes. */
void control_end(struct control *control);

/* For the judging process of another node: connects if necessary, sends the progress of its ranks, and
 * returns the request of the first node. */
enum control_request { CONTROL_NOTHING, CONTROL_EVERYTHING, CONTROL_END };
enum control_request control_report(struct control *control, const struct control_rank *mine, int count,
                                    int64_t passed_ns);
void control_send_all(struct control *control, const struct hang *hang);
/* The latest known state of the first node. */
const struct control_node *control_first(const struct control *control);

/* When a rank ends, others may have waited for it, and what it sent last may still be on its way. The time
 * without progress of all ranks is therefore counted from that moment on. control_restart(): one of this node
 * has ended; accepts NULL. control_take_ended(): whether one of another node has since the last call. */
void control_restart(struct control *control);
bool control_take_ended(struct control *control);
int64_t control_since_end_ns(const struct control *control);
