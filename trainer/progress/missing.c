// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/missing.h"

#include "base/wire.h"
#include "trainer/progress/hang.h"
#include "trainer/progress/page.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a launcher gives all processes of a job, and no other job on this machine. */
static const char *const same[] = {
    "OMPI_MCA_orte_hnp_uri", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "MASTER_ADDR",           "MASTER_PORT",    "WORLD_SIZE",   "TORCHELASTIC_RUN_ID",
};
enum { SAME = sizeof same / sizeof *same, MAX_BYTES = 16 << 20 };

/* ---- /proc ---- */

/* Reads a file of a process; its size is unknown. Empty if that is not allowed, or the process is gone. */
static void read_proc(int process, const char *name, struct text *out)
{
    char path[64], bytes[4096];
    snprintf(path, sizeof path, "/proc/%d/%s", process, name);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t count; file >= 0 && out->length < MAX_BYTES;) {
        count = read(file, bytes, sizeof bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            break;
        text_add_bytes(out, bytes, (size_t)count);
    }
    if (file >= 0)
        close(file);
}

/* The value of a variable in an environment: strings, each with a zero. NULL: unset. */
static const char *value_of(const struct text *environment, const char *name)
{
    const size_t length = strlen(name);
    const char *at = text_chars(environment), *end = at + environment->length;
    for (; at < end; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at + length + 1;
    return NULL;
}

static bool is_same(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* The rank of a process of the job; -1: it is none. */
static int rank_in(const struct text *environment, const struct text *mine, const struct launcher *launcher)
{
    int64_t rank = -1;
    const char *text = value_of(environment, launcher->rank_variable);
    for (int i = 0; i < SAME; i++)
        if (!is_same(value_of(environment, same[i]), value_of(mine, same[i])))
            return -1;
    return text != NULL && integer_parse(text, &rank) && rank >= 0 && rank < launcher->size ? (int)rank : -1;
}

/* Whether two processes run the same executable file. */
static bool is_same_program(int process, int other)
{
    char path[64], a[4096], b[4096];
    snprintf(path, sizeof path, "/proc/%d/exe", process);
    const ssize_t length = readlink(path, a, sizeof a);
    snprintf(path, sizeof path, "/proc/%d/exe", other);
    return length > 0 && readlink(path, b, sizeof b) == length && memcmp(a, b, (size_t)length) == 0;
}

/* The path of the page that a process has opened; "": none. */
static void page_of(int process, char out[PAGE_PATH_CHARS])
{
    struct text maps = {0};
    char prefix[PAGE_PREFIX_CHARS];
    page_prefix(prefix);
    read_proc(process, "maps", &maps);
    const char *at = strstr(text_chars(&maps), prefix);
    const int length = at != NULL ? (int)strcspn(at, " \n") : 0; // the file may be deleted
    snprintf(out, PAGE_PATH_CHARS, "%.*s", length, at != NULL ? at : "");
    text_free(&maps);
}

static void describe(int process, const struct text *environment, struct missing_rank *out)
{
    const char *node = value_of(environment, "CUBOID_NODE");
    struct text program = {0};
    out->process = process;
    out->started = process_started(process);
    out->state = process_read_state(process, 0);
    if (node == NULL)
        node = value_of(environment, "SLURMD_NODENAME");
    if (node != NULL)
        snprintf(out->node, sizeof out->node, "%s", node);
    else if (gethostname(out->node, sizeof out->node - 1) != 0)
        out->node[0] = 0;
    out->program[0] = 0;
    if (!is_same_program(process, (int)getpid())) {
        read_proc(process, "comm", &program);
        snprintf(out->program, sizeof out->program, "%.*s", (int)strcspn(text_chars(&program), "\n"),
                 text_chars(&program));
    }
    text_free(&program);
}

/* ---- finding ---- */

/* A process of the job on this machine. Shells have the variables, too; those of other users may only
 * pretend. */
struct candidate {
    int process, rank;
    bool stopped;
    char page[PAGE_PATH_CHARS];
};

struct candidates {
    struct candidate *list;
    int count, capacity;
};

static enum status add_candidate(struct candidates *found, int process, int rank)
{
    if (found->count == found->capacity) {
        const int capacity = found->capacity > 0 ? 2 * found->capacity : 16;
        struct candidate *list = realloc(found->list, (size_t)capacity * sizeof *list);
        if (list == NULL)
            return fail(NO_MEMORY, "no memory for %d processes", capacity);
        found->list = list;
        found->capacity = capacity;
    }
    struct candidate *new = &found->list[found->count++];
    *new = (struct candidate){.process = process, .rank = rank};
    page_of(process, new->page);
    new->stopped = process_read_state(process, 0) == PROCESS_IS_STOPPED;
    return OK;
}

static enum status find_candidates(const struct launcher *launcher, struct candidates *out)
{
    struct text mine = {0};
    DIR *list = opendir("/proc");
    enum status status = OK;
    read_proc((int)getpid(), "environ", &mine);
    for (struct dirent *entry; list != NULL && status == OK && (entry = readdir(list)) != NULL;) {
        int64_t process;
        struct text environment = {0};
        if (!integer_parse(entry->d_name, &process) || !process_is_own((int)process))
            continue;
        read_proc((int)process, "environ", &environment);
        const int rank = rank_in(&environment, &mine, launcher);
        if (rank >= 0)
            status = add_candidate(out, (int)process, rank);
        text_free(&environment);
    }
    if (list != NULL)
        closedir(list);
    text_free(&mine);
    return status;
}

static bool is_watched(const struct missing_options *options, int process)
{
    bool found = process == (int)getpid();
    for (int i = 0; i < options->count; i++)
        found = found || options->watched[i] == process;
    return found;
}

/* Whether a process that runs has this page: then it watches the ranks of the page. */
static bool has_monitor(const struct candidates *all, const char *page)
{
    for (int i = 0; i < all->count; i++)
        if (!all->list[i].stopped && strcmp(all->list[i].page, page) == 0)
            return true;
    return false;
}

/* Whether a process has started, as far as it can, or a monitor reports it. */
static bool has_started(const struct missing_options *options, const struct candidates *all,
                        const struct candidate *one)
{
    if (is_watched(options, one->process))
        return true;
    if (one->page[0] == 0)
        return false;
    const bool is_mine = options->page != NULL && strcmp(options->page, one->page) == 0;
    return !one->stopped || (!is_mine && has_monitor(all, one->page));
}

enum { UNSEEN, SEEN, STARTED };

/* Describes a process that has not started; a shell that has started another one counts only if that is not
 * seen. */
static void note(const struct candidate *one, unsigned char *seen, struct missing_rank *ranks)
{
    struct missing_rank found = {.rank = one->rank};
    struct text environment = {0};
    if (seen[one->rank] == STARTED)
        return;
    read_proc(one->process, "environ", &environment);
    describe(one->process, &environment, &found);
    text_free(&environment);
    if (found.state == PROCESS_IS_GONE || (seen[one->rank] == SEEN && found.program[0] != 0))
        return;
    seen[one->rank] = SEEN;
    ranks[one->rank] = found;
}

static enum status scan(const struct missing_options *options, unsigned char *seen,
                        struct missing_rank *ranks)
{
    struct candidates all = {0};
    const enum status status = find_candidates(options->launcher, &all);
    for (int i = 0; i < all.count; i++)
        if (has_started(options, &all, &all.list[i]))
            seen[all.list[i].rank] = STARTED;
    for (int i = 0; i < all.count; i++)
        note(&all.list[i], seen, ranks);
    free(all.list);
    return status;
}

/* Keeps the ranks that are missing. */
static void choose(const struct missing_options *options, const unsigned char *seen, struct missing *out)
{
    bool here = false;
    for (int r = 0; r < out->size; r++)
        here = here || seen[r] == SEEN;
    for (int r = 0; r < out->size; r++) {
        if (seen[r] == STARTED || (seen[r] == UNSEEN && here && options->several_hosts))
            continue;
        out->known = out->known && (seen[r] == SEEN || !options->several_hosts);
        out->list[r].rank = r;
        out->list[out->count++] = out->list[r];
    }
}

enum status missing_find(const struct missing_options *options, struct missing *out)
{
    const size_t size = (size_t)options->launcher->size;
    unsigned char *seen = calloc(size, sizeof *seen);
    *out = (struct missing){.size = (int)size, .list = calloc(size, sizeof *out->list), .known = true};
    enum status status = seen != NULL && out->list != NULL
                             ? scan(options, seen, out->list)
                             : fail(NO_MEMORY, "no memory to find %zu processes", size);
    if (status == OK)
        choose(options, seen, out);
    else
        missing_free(out);
    free(seen);
    return status;
}

void missing_free(struct missing *missing)
{
    free(missing->list);
    *missing = (struct missing){0};
}

bool missing_is_stopped(const struct missing *missing)
{
    for (int i = 0; i < missing->count; i++)
        if (missing->list[i].process != 0 && missing->list[i].state == PROCESS_IS_STOPPED)
            return true;
    return false;
}

/* ---- reporting ---- */

void missing_report(const struct missing *missing, double waited_s, struct text *out)
{
    enum { SHOWN = 8 };
    int *others = calloc((size_t)missing->count + 1, sizeof *others), count = 0, more = 0;
    CHECK(others != NULL);
    text_add(out, "%d of %d processes %s" MISSING_NOT_CONNECTED "%.0f s", missing->count, missing->size,
             missing->count == 1 ? "has" : "have", waited_s);
    const char *separator = ": ";
    for (int i = 0; i < missing->count; i++) {
        const struct missing_rank *rank = &missing->list[i];
        if (rank->process == 0) {
            others[count++] = rank->rank;
            continue;
        }
        if (i - count >= SHOWN) {
            more++;
            continue;
        }
        text_add(out, "%srank %d (node %s, process %d%s%s): %s", separator, rank->rank, rank->node,
                 rank->process, rank->program[0] != 0 ? " of " : "", rank->program,
                 process_state_text(rank->state));
        separator = "; ";
    }
    if (more > 0)
        text_add(out, ", and %d more", more);
    if (count > 0) {
        text_add(out, "%s", separator);
        hang_ranks_text(others, count, out);
        text_add(out, count == 1 ? " has no process on this machine" : " have no processes on this machine");
    }
    if (missing->count == 0)
        text_add(out, ": all run on this machine, and wait for each other");
    text_add(out, "; if they only start late, set resilience.heartbeat_timeout_seconds above %.0f", waited_s);
    free(others);
}

void missing_kill(const struct missing *missing, const struct launcher *launcher)
{
    const bool is_mpirun = strcmp(launcher->name, "mpirun") == 0;
    for (int i = 0; i < missing->count && !is_mpirun; i++)
        if (missing->list[i].process != 0)
            process_signal(missing->list[i].process, missing->list[i].started, SIGKILL);
}

bool missing_claim(const struct launcher *launcher)
{
    char name[80];
    int file; // left open: the claim lasts as long as this process
    struct text mine = {0};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    read_proc((int)getpid(), "environ", &mine);
    for (int i = 0; i < SAME; i++) {
        const char *value = value_of(&mine, same[i]);
        for (const char *at = value != NULL ? value : "-"; *at != 0; at++)
            hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    }
    text_free(&mine);
    snprintf(name, sizeof name, "cuboid-missing-%u-%s-%016llx", (unsigned)getuid(), launcher->name,
             (unsigned long long)hash);
    return wire_claim_local(name, &file);
}
