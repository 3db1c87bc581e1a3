// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/in_memory/rank_nodes.h"

#include "base/memory.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/engine/agree.h"
#include "trainer/files/checksum.h"

#include <stdlib.h>
#include <string.h>

enum { HASH_WORDS = sizeof(uint64_t) / sizeof(int32_t) };

/* Entry `index` of a list separated by commas. */
static void take_entry(const char *list, int index, char out[NODE_NAME_CHARS])
{
    for (; index > 0; index--)
        list += strcspn(list, ",") + 1;
    size_t length = strcspn(list, ",");
    length = length < NODE_NAME_CHARS - 1 ? length : NODE_NAME_CHARS - 1;
    memset(out, 0, NODE_NAME_CHARS);
    memcpy(out, list, length);
}

/* The name of this rank's node. */
static enum status name_node(const struct world *world, char out[NODE_NAME_CHARS])
{
    struct launcher launcher;
    int entries = 1;
    TRY(launcher_find(&launcher));
    for (const char *at = launcher.node; *at != 0; at++)
        entries += *at == ',';
    take_entry(launcher.node, launcher.size > 0 ? 0 : world->rank * entries / world->size, out);
    for (char *at = out; *at != 0; at++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._", *at) == NULL)
            *at = '_';
    if (out[0] == 0 || out[0] == '.')
        out[0] = '_';
    return OK;
}

static void number_nodes(const uint64_t *hashes, struct rank_nodes *out)
{
    for (int rank = 0; rank < out->world; rank++) {
        int before = 0;
        while (hashes[before] != hashes[rank])
            before++;
        int node = before < rank ? out->node_of[before] : out->count++;
        out->node_of[rank] = node;
        out->index[rank] = out->ranks[node]++;
    }
    for (int node = 1; node < out->count; node++)
        out->first[node] = out->first[node - 1] + out->ranks[node - 1];
    for (int rank = 0; rank < out->world; rank++)
        out->list[out->first[out->node_of[rank]] + out->index[rank]] = rank;
}

enum status rank_nodes_find(struct rank_state *state, struct rank_nodes *out)
{
    const size_t world = (size_t)state->world->size;
    *out = (struct rank_nodes){.world = state->world->size};
    AUTO_FREE uint64_t *hashes = memory_zeroed(world, sizeof *hashes, "the names of nodes");
    TRY(rank_agree(state, name_node(state->world, out->name)));
    const uint64_t mine = checksum_of(out->name, strlen(out->name));
    TRY(gather_words(state, &mine, HASH_WORDS, hashes));
    out->node_of = memory_zeroed(world, sizeof *out->node_of, "the nodes of ranks");
    out->index = memory_zeroed(world, sizeof *out->index, "the ranks of nodes");
    out->ranks = memory_zeroed(world, sizeof *out->ranks, "the ranks of nodes");
    out->first = memory_zeroed(world, sizeof *out->first, "the ranks of nodes");
    out->list = memory_zeroed(world, sizeof *out->list, "the ranks of nodes");
    number_nodes(hashes, out);
    return OK;
}

void rank_nodes_free(struct rank_nodes *nodes)
{
    free(nodes->node_of);
    free(nodes->index);
    free(nodes->ranks);
    free(nodes->first);
    free(nodes->list);
    *nodes = (struct rank_nodes){.count = 0};
}

int rank_nodes_at(const struct rank_nodes *nodes, int node, int index)
{
    return nodes->list[nodes->first[node] + index];
}

bool rank_nodes_is_leader(const struct rank_nodes *nodes, int rank)
{
    return nodes->index[rank] == 0;
}
