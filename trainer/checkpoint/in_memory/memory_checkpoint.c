// SPDX-License-Identifier: Apache-2.0
/* The folders of the nodes, and the checks before step 0. */
#include "trainer/checkpoint/in_memory/memory_checkpoint.h"

#include "base/file.h"
#include "trainer/checkpoint/checkpoint_lock.h"
#include "trainer/checkpoint/checkpoint_record.h"
#include "trainer/checkpoint/distribute/checkpoint_gather.h"
#include "trainer/checkpoint/in_memory/memory_copy.h"
#include "trainer/checkpoint/in_memory/memory_state.h"
#include "trainer/engine/agree.h"

#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { GENERATIONS = 2 };

bool memory_is_leader(const struct memory_checkpoints *m)
{
    return rank_nodes_is_leader(&m->nodes, m->rank_state->world->rank);
}

static const struct recipe_checkpoint *recipe_of(const struct memory_checkpoints *m)
{
    return &m->rank_state->run->recipe->checkpoint;
}

/* ---- checks ---- */

static enum status check_copies(const struct memory_checkpoints *m)
{
    const long long copies = (long long)recipe_of(m)->memory_copies;
    if (copies <= m->nodes.count || recipe_of(m)->non_persistent_save_interval == 0)
        return OK;
    return fail(BAD_RECIPE,
                "checkpoint.memory_copies %lld: the run has %d node%s, and each holds at most one copy; use "
                "checkpoint.memory_copies=%d",
                copies, m->nodes.count, m->nodes.count == 1 ? "" : "s", m->nodes.count);
}

static enum status refuse_dir(const char *why)
{
    return fail(BAD_RECIPE, "checkpoint.memory_dir: %s; use a directory in /dev/shm", why);
}

/* Of the first folder of the path that exists. */
static enum status check_tmpfs(const char *dir)
{
    struct statfs info = {.f_type = 0};
    struct text path = {0}, why = {0};
    text_add(&path, "%s", dir);
    while (statfs(path.chars, &info) != 0 && errno == ENOENT && path.length > 0) {
        while (path.length > 0 && path.chars[path.length - 1] != '/')
            path.length--;
        while (path.length > 1 && path.chars[path.length - 1] == '/')
            path.length--;
        path.chars[path.length] = 0;
    }
    if (path.length == 0)
        (void)statfs(".", &info);
    text_free(&path);
    if (info.f_type == TMPFS_MAGIC)
        return OK;
    text_add(&why, "%s is not in memory (no tmpfs)", dir);
    enum status status = refuse_dir(why.chars);
    text_free(&why);
    return status;
}

/* Creates the folder of the node. */
static enum status make_folder(const struct memory_checkpoints *m)
{
    struct text why = {0};
    TRY(check_tmpfs(recipe_of(m)->memory_dir));
    if (folder_make(m->folder.chars) != OK)
        return refuse_dir(fail_text());
    if (access(m->folder.chars, W_OK | X_OK) == 0)
        return OK;
    text_add(&why, "%s: cannot be written: %s", m->folder.chars, strerror(errno));
    enum status status = refuse_dir(why.chars);
    text_free(&why);
    return status;
}

/* Adds the sizes of the files in the checkpoints of a folder, which later saves replace. */
static int64_t bytes_in(const char *path)
{
    int64_t bytes = 0;
    struct dirent *entry;
    DIR *folder = opendir(path);
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        struct text name = {0};
        struct stat info;
        text_add(&name, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.' && lstat(name.chars, &info) == 0)
            bytes += S_ISDIR(info.st_mode) ? bytes_in(name.chars) : (int64_t)info.st_blocks * 512;
        text_free(&name);
    }
    if (folder != NULL)
        closedir(folder);
    return bytes;
}

static enum status check_room(const struct memory_checkpoints *m, int64_t needed)
{
    struct statfs info;
    char available[NUMBER_CHARS], wanted[NUMBER_CHARS];
    if (statfs(m->folder.chars, &info) != 0)
        return fail(BAD_RECIPE, "checkpoint.memory_dir: %s: %s", m->folder.chars, strerror(errno));
    const int64_t room = (int64_t)info.f_bavail * (int64_t)info.f_bsize + bytes_in(m->folder.chars);
    if (info.f_blocks == 0 || needed <= room) // 0: a tmpfs without a limit
        return OK;
    return fail(
        BAD_RECIPE,
        "checkpoint.memory_dir: %s has room for %s, but %d checkpoints with checkpoint.memory_copies %lld "
        "need %s; use a larger tmpfs%s",
        m->folder.chars, bytes_text(room, available), GENERATIONS, (long long)recipe_of(m)->memory_copies,
        bytes_text(needed, wanted), recipe_of(m)->memory_copies > 1 ? ", or fewer copies" : "");
}

/* The file sizes of all ranks, for the node of this rank. */
static enum status check_sizes(const struct memory_checkpoints *m, const int64_t *bytes)
{
    const struct rank_nodes *nodes = &m->nodes;
    const int node = nodes->node_of[m->rank_state->world->rank];
    int64_t needed = 0;
    int *sources = calloc((size_t)nodes->world * (size_t)m->placement.copies, sizeof *sources);
    if (sources == NULL)
        return fail(NO_MEMORY, "no memory for a list of %d ranks", nodes->world);
    for (int i = 0; i < nodes->ranks[node]; i++) {
        const int rank = rank_nodes_at(nodes, node, i);
        const int count = memory_copy_sources(nodes, &m->placement, rank, sources);
        needed += bytes[rank];
        for (int s = 0; s < count; s++)
            needed += bytes[sources[s]];
    }
    free(sources);
    return check_room(m, GENERATIONS * needed);
}

/* At least the size of this rank's file. */
static enum status estimate_file(const struct memory_checkpoints *m, int64_t *bytes)
{
    enum { PAGE = 4096, HEADER = 2048, SHARD = 2 * SHARD_NAME_CHARS + SHARD_TEXT_CHARS, SUM = 16 };
    struct save_job job = {.count = 0};
    *bytes = 0;
    enum status status = save_job_create(m->rank_state, &job);
    if (status == OK && job.count > 0)
        *bytes = (int64_t)save_job_bytes(&job) + HEADER + job.count * (int64_t)SHARD;
    *bytes = (*bytes + *bytes / CHECKPOINT_BLOCK_BYTES * SUM + PAGE - 1) / PAGE * PAGE;
    save_job_free(&job);
    return status;
}

static enum status check_memory(struct memory_checkpoints *m)
{
    int64_t mine = 0;
    struct rank_state *w = m->rank_state;
    if (recipe_of(m)->non_persistent_save_interval == 0)
        return OK;
    int64_t *bytes = calloc((size_t)w->world->size, sizeof *bytes);
    enum status status =
        bytes != NULL ? estimate_file(m, &mine) : fail(NO_MEMORY, "no memory for sizes of files");
    status = rank_agree(w, status);
    if (status == OK)
        status = gather_words(w, &mine, sizeof mine / sizeof(int32_t), bytes);
    if (status == OK)
        status = rank_agree(w, memory_is_leader(m) ? check_sizes(m, bytes) : OK);
    free(bytes);
    return status;
}

/* ---- opening and closing ---- */

/* Rank 0 knows the identity of the run. */
static enum status share_run(struct memory_checkpoints *m)
{
    struct run_record record = {.count = 0};
    struct text run = {0};
    struct rank_state *w = m->rank_state;
    TRY(rank_agree(w, w->world->rank == 0 ? run_record_read(recipe_of(m)->save, &record) : OK));
    text_add(&run, "%s", record.run);
    enum status status = broadcast_text(w, 0, &run);
    if (status == OK && run.length == RUN_CHARS - 1)
        memcpy(m->run, run.chars, RUN_CHARS);
    text_free(&run);
    if (status == OK && m->run[0] == 0)
        status = fail(BAD_RECIPE, "checkpoint.save: %s has no run.json: checkpoints in memory need it",
                      recipe_of(m)->save);
    return status;
}

static enum status lock_folder(struct memory_checkpoints *m)
{
    const struct checkpoint_lock_options options = {
        .save = m->folder.chars,
        .run = m->run,
        .key = "checkpoint.memory_dir",
        .value = recipe_of(m)->memory_dir,
    };
    TRY(make_folder(m));
    return checkpoint_lock_acquire(&options, &m->lock);
}

static enum status open_folders(struct memory_checkpoints *m)
{
    struct rank_state *w = m->rank_state;
    TRY(rank_nodes_find(w, &m->nodes));
    const int64_t copies = recipe_of(m)->memory_copies;
    m->placement = (struct placement){.nodes = m->nodes.count, .copies = (int)copies};
    TRY(check_copies(m));
    text_add(&m->folder, "%s/%s", recipe_of(m)->memory_dir, m->nodes.name);
    TRY(share_run(m));
    TRY(rank_agree(w, memory_is_leader(m) ? lock_folder(m) : OK));
    return check_memory(m);
}

enum status memory_checkpoints_open(struct rank_state *w, struct memory_checkpoints **out)
{
    const struct recipe_checkpoint *recipe = &w->run->recipe->checkpoint;
    *out = NULL;
    if (recipe->memory_dir == NULL || recipe->save == NULL || !device_computes(w->device))
        return OK;
    struct memory_checkpoints *m = calloc(1, sizeof *m);
    if (m == NULL)
        die_of(NO_MEMORY, "no memory for checkpoints in memory");
    m->rank_state = w;
    m->complete = -1;
    enum status status = open_folders(m);
    if (status == OK) {
        *out = m;
        return OK;
    }
    struct text why = {0};
    text_add(&why, "%s", fail_text());
    memory_checkpoints_close(m);
    status = fail(status, "%s", why.chars);
    text_free(&why);
    return status;
}

void memory_checkpoints_close(struct memory_checkpoints *m)
{
    if (m == NULL)
        return;
    checkpoint_lock_release(m->lock);
    rank_nodes_free(&m->nodes);
    source_nodes_free(&m->holders);
    manifest_free(&m->manifest);
    text_free(&m->folder);
    free(m);
}

static bool is_record(const char *name)
{
    return strcmp(name, "run.json") == 0 || strcmp(name, "owner.json") == 0 ||
           strcmp(name, "owner.lock") == 0;
}

void memory_checkpoints_remove(struct memory_checkpoints *m)
{
    if (m == NULL || !memory_is_leader(m))
        return;
    if (folder_keep_only(m->folder.chars, m->run, -1) != OK || folder_clean(m->folder.chars) != OK ||
        folder_remove(m->folder.chars, is_record) != OK)
        print_line(stderr, "warning: checkpoint.memory_dir: %s", fail_text());
    (void)rmdir(recipe_of(m)->memory_dir); // unless it has other files
}

void memory_checkpoints_resumed(struct memory_checkpoints *m, int64_t step)
{
    m->complete = step;
}
