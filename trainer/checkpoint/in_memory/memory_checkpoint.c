// SPDX-License-Identifier: Apache-2.0
/* The folders of the nodes, and the checks before step 0. */
#include "trainer/checkpoint/in_memory/memory_checkpoint.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/checkpoint/in_memory/memory_copy.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/checkpoint/store.h"
#include "trainer/checkpoint/store_lock.h"
#include "trainer/checkpoint/writer.h"
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

bool memory_is_leader(const struct memory_checkpoints *memory)
{
    return rank_nodes_is_leader(&memory->nodes, memory->rank_state->world->rank);
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

static enum status refuse_dir(const char *path, const char *why)
{
    return fail(BAD_RECIPE, "checkpoint.memory_dir: %s: %s; use a directory in /dev/shm", path, why);
}

static enum status refuse_owner(const char *path, const struct stat *info)
{
    char why[120];
    if (info->st_uid != geteuid())
        snprintf(why, sizeof why, "belongs to another user (%u), who could place weights there",
                 (unsigned)info->st_uid);
    else
        snprintf(why, sizeof why, "others may write (mode %o), and could place weights there; remove it",
                 (unsigned)(info->st_mode & 07777));
    return refuse_dir(path, why);
}

/* A run resumes from these folders. That of the node belongs to this user alone; memory_dir may be one of all
 * users, such as /dev/shm, in which they cannot rename those of others. */
static enum status check_owner(const struct memory_checkpoints *m)
{
    const char *dir = recipe_of(m)->memory_dir, *folder = m->folder.chars;
    struct stat info;
    if (stat(dir, &info) == 0 && ((info.st_uid != geteuid() && info.st_uid != 0) ||
                                  ((info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0)))
        return refuse_owner(dir, &info);
    if (lstat(folder, &info) != 0)
        return OK;
    if (!S_ISDIR(info.st_mode))
        return refuse_dir(folder, "a symbolic link or a file; remove it");
    return info.st_uid != geteuid() || (info.st_mode & 022) != 0 ? refuse_owner(folder, &info) : OK;
}

/* Makes the folder of the node, in which other users may not read either. */
static enum status make_private(const struct memory_checkpoints *m)
{
    if (folder_make_private(m->folder.chars) != OK)
        return fail(BAD_RECIPE, "checkpoint.memory_dir: %s; use a directory in /dev/shm", fail_text());
    TRY(check_owner(m));
    return chmod(m->folder.chars, 0700) == 0 ? OK : refuse_dir(m->folder.chars, strerror(errno));
}

/* Removes the last component of a path, with the slashes before it. */
static void remove_last(struct text *path)
{
    while (path->length > 0 && path->chars[path->length - 1] != '/')
        path->length--;
    while (path->length > 1 && path->chars[path->length - 1] == '/')
        path->length--;
    path->chars[path->length] = 0;
}

/* Finds the first folder of a path that exists: the path itself, or a folder that contains it. *missing: the
 * last one that does not exist, if any. Returns OK, or BAD_RECIPE if it is not a folder. */
static enum status find_existing(const char *dir, struct text *existing, struct text *missing)
{
    struct stat info;
    text_add(existing, "%s", dir);
    while (stat(existing->length > 0 ? existing->chars : ".", &info) != 0) {
        if (errno != ENOENT || existing->length == 0)
            return refuse_dir(existing->chars, strerror(errno));
        missing->length = 0;
        text_add(missing, "%s", existing->chars);
        remove_last(existing);
    }
    if (existing->length == 0)
        text_add(existing, ".");
    return S_ISDIR(info.st_mode) ? OK : refuse_dir(existing->chars, "not a folder");
}

/* The folder of the node can be created, in memory. */
static enum status check_dir(const struct memory_checkpoints *m, struct text *missing)
{
    struct statfs info = {.f_type = 0};
    AUTO(text) existing = {0};
    enum status status = find_existing(m->folder.chars, &existing, missing);
    if (status == OK && (statfs(existing.chars, &info) != 0 || info.f_type != TMPFS_MAGIC))
        status = refuse_dir(recipe_of(m)->memory_dir, "not in memory (no tmpfs)");
    else if (status == OK && access(existing.chars, W_OK | X_OK) != 0)
        status = refuse_dir(existing.chars, strerror(errno));
    return status == OK ? check_owner(m) : status;
}

/* All that can be known before a folder is created. */
static enum status check_keys(struct memory_checkpoints *m)
{
    AUTO(text) why = {0};
    enum status status = check_copies(m);
    if (status != OK)
        text_add(&why, "%s", fail_text());
    if (memory_is_leader(m) && check_dir(m, &m->made) != OK) {
        status = BAD_RECIPE;
        text_add(&why, "%s%s", why.length > 0 ? "; and " : "", fail_text());
    }
    if (status != OK)
        status = fail(status, "%s", why.chars);
    return status;
}

/* Adds the sizes of the files in the checkpoints of a folder, which later saves replace. */
static int64_t bytes_in(const char *path)
{
    int64_t bytes = 0;
    struct dirent *entry;
    DIR *folder = opendir(path);
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        AUTO(text) name = {0};
        struct stat info;
        text_add(&name, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.' && lstat(name.chars, &info) == 0)
            bytes += S_ISDIR(info.st_mode) ? bytes_in(name.chars) : (int64_t)info.st_blocks * 512;
    }
    if (folder != NULL)
        closedir(folder);
    return bytes;
}

static enum status check_room(const struct memory_checkpoints *m, int64_t needed)
{
    struct statfs info = {.f_blocks = 0};
    AUTO(text) existing = {0}, missing = {0};
    char available[NUMBER_CHARS], wanted[NUMBER_CHARS];
    enum status status = find_existing(m->folder.chars, &existing, &missing);
    if (status == OK && statfs(existing.chars, &info) != 0)
        status = refuse_dir(existing.chars, strerror(errno));
    const int64_t room = (int64_t)info.f_bavail * (int64_t)info.f_bsize + bytes_in(m->folder.chars);
    if (status == OK && info.f_blocks > 0 && needed > room) // 0: a tmpfs without a limit
        status = fail(BAD_RECIPE,
                      "checkpoint.memory_dir: %s has room for %s, but %d checkpoints with "
                      "checkpoint.memory_copies %lld need %s; use a larger tmpfs%s",
                      existing.chars, bytes_text(room, available), GENERATIONS,
                      (long long)recipe_of(m)->memory_copies, bytes_text(needed, wanted),
                      recipe_of(m)->memory_copies > 1 ? ", or fewer copies" : "");
    return status;
}

/* The file sizes of all ranks, for the node of this rank. */
static enum status check_sizes(const struct memory_checkpoints *m, const int64_t *bytes)
{
    const struct rank_nodes *nodes = &m->nodes;
    const int node = nodes->node_of[m->rank_state->world->rank];
    int64_t needed = 0;
    AUTO_FREE int *sources = memory_zeroed((size_t)nodes->world * (size_t)m->placement.copies,
                                           sizeof *sources, "the sources of copies");
    for (int i = 0; i < nodes->ranks[node]; i++) {
        const int rank = rank_nodes_at(nodes, node, i);
        const int count = memory_copy_sources(nodes, &m->placement, rank, sources);
        needed += bytes[rank];
        for (int s = 0; s < count; s++)
            needed += bytes[sources[s]];
    }
    return check_room(m, GENERATIONS * needed);
}

/* At least the size of this rank's file. */
static int64_t estimate_file(const struct memory_checkpoints *m)
{
    enum { PAGE = 4096, HEADER = 2048, SHARD = 2 * SHARD_NAME_CHARS + SHARD_TEXT_CHARS, SUM = 16 };
    struct rank_writer writer = {.count = 0};
    rank_writer_create(m->rank_state, &writer);
    const int64_t bytes =
        writer.count > 0 ? (int64_t)rank_writer_bytes(&writer) + HEADER + writer.count * (int64_t)SHARD : 0;
    rank_writer_free(&writer);
    return (bytes + bytes / CHECKPOINT_BLOCK_BYTES * SUM + PAGE - 1) / PAGE * PAGE;
}

static enum status check_memory(struct memory_checkpoints *m)
{
    struct rank_state *w = m->rank_state;
    if (recipe_of(m)->non_persistent_save_interval == 0)
        return OK;
    const int64_t mine = estimate_file(m);
    AUTO_FREE int64_t *bytes = memory_zeroed((size_t)w->world->size, sizeof *bytes, "the sizes of files");
    TRY(gather_words(w, &mine, sizeof mine / sizeof(int32_t), bytes));
    return rank_agree(w, memory_is_leader(m) ? check_sizes(m, bytes) : OK);
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

static const char *const records[MEMORY_RECORDS] = {"run.json", "owner.json", "owner.lock"};

static bool is_record(const char *name)
{
    for (int i = 0; i < MEMORY_RECORDS; i++)
        if (strcmp(name, records[i]) == 0)
            return true;
    return false;
}

/* Finds which records the folder of the node has before it is locked. */
static void find_records(struct memory_checkpoints *m)
{
    for (int i = 0; i < MEMORY_RECORDS; i++) {
        AUTO(text) path = {0};
        struct stat info;
        text_add(&path, "%s/%s", m->folder.chars, records[i]);
        m->had[i] = lstat(path.chars, &info) == 0;
    }
}

static enum status lock_folder(struct memory_checkpoints *m)
{
    const struct store_lock_options options = {
        .save = m->folder.chars,
        .run = m->run,
        .key = "checkpoint.memory_dir",
        .value = recipe_of(m)->memory_dir,
    };
    find_records(m);
    TRY(make_private(m));
    return store_lock_acquire(&options, &m->lock);
}

/* Creates the folder of this node if it is missing: it must be in memory, since a tmpfs may be unmounted. */
static enum status make_folder(const struct memory_checkpoints *m, bool *missing)
{
    struct text made = {0};
    enum status status = check_dir(m, &made);
    *missing = made.length > 0;
    text_free(&made);
    if (status == OK && *missing)
        status = make_private(m);
    return status == OK ? OK : fail(IO_ERROR, "%s", fail_text());
}

enum status memory_restore_folder(const struct memory_checkpoints *memory)
{
    struct run_record record;
    bool missing;
    TRY(make_folder(memory, &missing));
    TRY(store_lock_check(memory->lock));
    TRY(run_record_read(memory->folder.chars, &record));
    if (strcmp(record.run, memory->run) == 0)
        return OK;
    print_line(stderr, "warning: checkpoint.memory_dir: %s%s was removed; it is created again",
               memory->folder.chars, missing ? "" : "/run.json");
    memcpy(record.run, memory->run, sizeof record.run);
    return run_record_write(memory->folder.chars, &record);
}

static enum status open_folders(struct memory_checkpoints *m)
{
    struct rank_state *w = m->rank_state;
    TRY(rank_nodes_find(w, &m->nodes));
    const int64_t copies = recipe_of(m)->memory_copies;
    m->placement = (struct placement){.nodes = m->nodes.count, .copies = (int)copies};
    text_add(&m->folder, "%s/%s", recipe_of(m)->memory_dir, m->nodes.name);
    TRY(rank_agree(w, check_keys(m)));
    TRY(check_memory(m));
    TRY(share_run(m));
    return rank_agree(w, memory_is_leader(m) ? lock_folder(m) : OK);
}

enum status memory_checkpoints_open(struct rank_state *state, struct memory_checkpoints **out)
{
    const struct recipe_checkpoint *recipe = &state->run->recipe->checkpoint;
    *out = NULL;
    if (recipe->memory_dir == NULL || recipe->save == NULL || !device_computes(state->device))
        return OK;
    struct memory_checkpoints *m = memory_zeroed(1, sizeof *m, "checkpoints in memory");
    m->rank_state = state;
    m->complete = -1;
    enum status status = open_folders(m);
    if (status == OK) {
        *out = m;
        return OK;
    }
    AUTO(text) why = {0};
    text_add(&why, "%s", fail_text());
    memory_checkpoints_undo(m);
    memory_checkpoints_close(m);
    return fail(status, "%s", why.chars);
}

void memory_checkpoints_close(struct memory_checkpoints *memory)
{
    if (memory == NULL)
        return;
    store_lock_release(memory->lock);
    rank_nodes_free(&memory->nodes);
    reader_nodes_free(&memory->holders);
    manifest_free(&memory->manifest);
    text_free(&memory->folder);
    text_free(&memory->made);
    free(memory);
}

static bool has_other_files(const char *path)
{
    bool found = false;
    const struct dirent *entry;
    DIR *folder = opendir(path);
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL)
        found =
            strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && !is_record(entry->d_name);
    if (folder != NULL)
        closedir(folder);
    return found;
}

void memory_checkpoints_undo(struct memory_checkpoints *memory)
{
    if (memory == NULL)
        return;
    for (int i = 0; i < MEMORY_RECORDS && memory->lock != NULL && !has_other_files(memory->folder.chars);
         i++) {
        AUTO(text) path = {0};
        text_add(&path, "%s/%s", memory->folder.chars, records[i]);
        if (!memory->had[i])
            (void)unlink(path.chars);
    }
    AUTO(text) made = {0};
    text_add(&made, "%s", memory->folder.chars);
    for (; memory->made.length > 0 && made.length >= memory->made.length && rmdir(made.chars) == 0;)
        remove_last(&made);
}

void memory_checkpoints_remove(struct memory_checkpoints *memory)
{
    if (memory == NULL || !memory_is_leader(memory))
        return;
    if (store_keep_only(memory->folder.chars, memory->run, -1) != OK ||
        store_clean(memory->folder.chars) != OK || folder_remove(memory->folder.chars, is_record) != OK)
        print_line(stderr, "warning: checkpoint.memory_dir: %s", fail_text());
    (void)rmdir(recipe_of(memory)->memory_dir); // unless it has other files
}

void memory_checkpoints_resumed(struct memory_checkpoints *memory, int64_t step)
{
    memory->complete = step;
}
