// SPDX-License-Identifier: Apache-2.0
/* Checkpoints of whole worlds of ranks, with tiny models.
 *
 * local DEVICE: every layout resumes from every other's checkpoint. The loaded state is compared bitwise
 * with whole tensors assembled without files; where the arithmetic is the same (equal tp and dp) the next
 * steps are compared too. Also covers a disk that is full for one rank only.
 *
 * mpi DEVICE: stopped and resumed, as processes.
 * kill DEVICE: killed repeatedly while saving; a loadable checkpoint always exists.
 * A rank that detects an error returns, and the world ends with its message. */
#include "layers/model.h"
#include "planner/recipe/planned_recipe.h"
#include "tests/support/sanitized.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/store.h"
#include "trainer/data/dataset_writer.h"
#include "trainer/engine/snapshot.h"
#include "trainer/engine/step.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 2, MAX_OVERRIDES = 20 };

static const char recipe_text[] =
    "model: {num_layers: 4, hidden_size: 24, num_attention_heads: 6, seq_length: 8, vocab_size: 33}\n"
    "train: {global_batch_size: 8, micro_batch_size: 1, train_iters: 1000}\n"
    "optimizer: {lr: 1e-2, lr_decay_style: constant, weight_decay: 0.1}\n"
    "tokenizer: {tokenizer_type: none}\n"
    "data: {train: data}\n"
    "checkpoint: {save: saves, load: none}\n";

/* Two model families that cover all kinds of rows; and one whose embedding is read and written in several
 * chunks. */
static const char *const families[][8] = {
    {"model.hidden_dropout=0.1"},
    {"model.position_embedding_type=rope", "model.normalization=RMSNorm", "model.activation=swiglu",
     "model.add_bias_linear=false", "model.tie_word_embeddings=false", "model.num_query_groups=2",
     "model.ffn_hidden_size=36"},
    {"model.vocab_size=60000"},
};

static const struct layout_case {
    int size;
    int arithmetic; // layouts with the same number have bit-identical results
    const char *overrides[6];
} layouts[] = {
    {1, 1, {"tp=1"}},
    {8, 2, {"tp=2", "dp=2", "pp=2", "parallel.sequence_parallel=true"}},
    {4, 2, {"tp=2", "dp=2", "parallel.rank_order=dp-tp-cp-ep-pp", "parallel.sequence_parallel=true"}},
    {6, 3, {"tp=6"}},
    {4, 1, {"pp=4", "pipeline.schedule=zb-h1"}},
    {2, 1, {"pp=2", "pipeline.layout=[1,3]", "pipeline.schedule=gpipe"}},
    {4, 4, {"tp=2", "dp=2", "parallel.zero_stage=3", "parallel.rank_order=dp-tp-cp-ep-pp"}},
    {8, 5, {"pp=4", "dp=2", "pipeline.schedule=dualpipe", "parallel.zero_stage=1"}},
    {6, 6, {"dp=2", "pp=3", "pipeline.layout=[2,1,1]", "parallel.zero_stage=2"}},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* ---- a run ---- */

struct checkpoint_run {
    struct run run;
    struct recipe *recipe;
    const char *from;       // NULL: start from scratch
    int steps;              // number of steps
    bool saves;             // before these steps
    struct snapshot *begin; // NULL: not requested
    const struct snapshot *expected;
    double losses[STEPS], expected_losses[STEPS]; // of rank 0
    bool same_arithmetic;
};

static enum status run_open(const char *device, const struct layout_case *layout, int family, int process,
                            struct checkpoint_run *out)
{
    char device_key[64], data_key[64];
    const char *overrides[MAX_OVERRIDES] = {device_key, data_key, "cluster.threads_per_rank=1"};
    size_t count = 3;
    snprintf(device_key, sizeof device_key, "cluster.device=%s", device);
    snprintf(data_key, sizeof data_key, "data.train=data-%d", process);
    for (int i = 0; families[family][i] != NULL; i++)
        overrides[count++] = families[family][i];
    for (int i = 0; layout->overrides[i] != NULL; i++)
        overrides[count++] = layout->overrides[i];
    struct problems problems = {0};
    *out = (struct checkpoint_run){.steps = STEPS};
    enum status status =
        planned_recipe_load("recipe.yaml", overrides, count, layout->size, &out->recipe, &problems);
    problems_print(&problems, stderr);
    problems_free(&problems);
    TRY(status);
    return run_create(out->recipe, true, &out->run);
}

static void run_close(struct checkpoint_run *r)
{
    run_destroy(&r->run);
    recipe_destroy(r->recipe);
}

static const enum snapshot_kind kinds[] = {SNAPSHOT_WEIGHT, SNAPSHOT_M, SNAPSHOT_V};

/* Whole tensors, assembled without files, and compared by rank 0. */
static enum status compare(const struct checkpoint_run *r, const struct rank_state *w)
{
    for (int k = 0; k < 3; k++)
        for (int row = 0; w->world->rank == 0 && row < w->params.count; row++) {
            const struct snapshot *mine = r->begin, *theirs = r->expected;
            const char *name = w->params.list[row].name;
            if (mine->differs[kinds[k]][row] != 0)
                return fail(OUT_OF_BOUND, "%s: the copies of %s differ", r->from, name);
            if (theirs != NULL && mine->count[row] > 0 &&
                memcmp(mine->tensor[kinds[k]][row], theirs->tensor[kinds[k]][row],
                       (size_t)mine->count[row] * sizeof(float)) != 0)
                return fail(OUT_OF_BOUND, "%s: %s is not what was saved (state %d)", r->from, name, k);
        }
    return OK;
}

static enum status steps(struct checkpoint_run *r, struct rank_state *w)
{
    for (int i = 0; i < r->steps; i++) {
        struct step_result result;
        TRY(rank_step(w, &result));
        if (w->world->rank == 0)
            r->losses[i] = result.loss;
        if (r->same_arithmetic && result.loss != r->expected_losses[i])
            return fail(OUT_OF_BOUND, "%s: step %lld has loss %.17g and not %.17g", r->from,
                        (long long)w->step, result.loss, r->expected_losses[i]);
    }
    return OK;
}

static enum status run_steps(struct checkpoint_run *r, struct rank_state *w)
{
    struct step_result result;
    for (int i = 0; i < STEPS && r->from == NULL; i++)
        TRY(rank_step(w, &result));
    if (r->from != NULL)
        TRY(checkpoint_load(w, r->from, CHECKPOINT_RESUME));
    if (w->step != STEPS)
        return fail(OUT_OF_BOUND, "%s: step %lld", r->from, (long long)w->step);
    if (r->saves)
        TRY(checkpoint_save(w));
    if (r->begin != NULL) {
        for (int k = 0; k < 3; k++)
            TRY(snapshot_gather(r->begin, w, kinds[k]));
        TRY(compare(r, w));
    }
    return steps(r, w);
}

static enum status rank_main(struct world *world, void *argument)
{
    struct checkpoint_run *r = argument;
    struct rank_state state;
    TRY(rank_create(&r->run, world, &(struct rank_options){.training = true}, &state));
    enum status status = run_steps(r, &state);
    rank_destroy(&state);
    return status;
}

/* ---- files ---- */

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static void remove_all(const char *path)
{
    (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int entries(const char *path)
{
    int count = -3; // ., .. and run.json
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

static enum status write_data(int process)
{
    char prefix[32];
    struct dataset_writer *writer = NULL;
    snprintf(prefix, sizeof prefix, "data-%d", process);
    TRY(dataset_writer_create(prefix, 33, &writer));
    uint32_t random = 5;
    for (int d = 0; d < 50; d++) {
        int32_t ids[40];
        for (int i = 0; i < 40; i++) {
            random = random * 1664525U + 1013904223U;
            ids[i] = (int32_t)((random >> 16) % 33);
        }
        TRY(dataset_writer_add(writer, ids, 40));
        TRY(dataset_writer_end_document(writer));
    }
    TRY(dataset_writer_finish(writer));
    dataset_writer_destroy(writer);
    return OK;
}

/* ---- every layout resumes from every other ---- */

static enum status read_on(const char *device, int family, int reader, int writer,
                           const struct checkpoint_run *wrote)
{
    struct checkpoint_run r;
    struct params params;
    struct snapshot loaded;
    TRY(run_open(device, &layouts[reader], family, 0, &r));
    TRY(params_declare(&r.recipe->model, &r.run.mesh.degrees, false, &params));
    loaded = snapshot_create(&params);
    r.from = "saves";
    r.begin = &loaded;
    r.expected = wrote->begin;
    r.same_arithmetic = layouts[reader].arithmetic == layouts[writer].arithmetic;
    memcpy(r.expected_losses, wrote->losses, sizeof r.expected_losses);
    enum status status = world_run("local", layouts[reader].size, rank_main, &r);
    snapshot_destroy(&loaded);
    params_free(&params);
    run_close(&r);
    return status;
}

static enum status write_on(const char *device, int family, int writer)
{
    struct checkpoint_run r;
    struct params params;
    struct snapshot saved;
    remove_all("saves");
    TRY(run_open(device, &layouts[writer], family, 0, &r));
    TRY(params_declare(&r.recipe->model, &r.run.mesh.degrees, false, &params));
    saved = snapshot_create(&params);
    r.saves = true;
    r.begin = &saved;
    TRY(world_run("local", layouts[writer].size, rank_main, &r));
    enum status status = OK;
    // Itself and others; under a sanitizer only itself or the next.
    const int readers = UNDER_SANITIZER ? 2 : LAYOUTS, step = long_tests() ? 1 : 3;
    for (int i = UNDER_SANITIZER && writer > 0; status == OK && i < readers; i += step) {
        int reader = (writer + i) % LAYOUTS;
        status = read_on(device, family, reader, writer, &r);
        if (status != OK)
            fprintf(stderr, "family %d, layout %d on %d: %s\n", family, reader, writer, fail_text());
    }
    snapshot_destroy(&saved);
    params_free(&params);
    run_close(&r);
    return status;
}

/* ---- one corrupted byte in a tensor file ---- */

static enum status corruption(const char *device)
{
    static const char path[] = "saves/step-00000002/rank-00000.safetensors";
    struct checkpoint_run r;
    struct stat info;
    remove_all("saves");
    TRY(run_open(device, &layouts[0], 0, 0, &r));
    r.saves = true;
    r.steps = 0;
    TRY(world_run("local", 1, rank_main, &r));
    r.saves = false;
    r.from = "saves/step-00000002";
    if (stat(path, &info) != 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    int file = open(path, O_RDWR);
    enum status status = OK;
    for (off_t at = 8; status == OK && at < info.st_size; at += info.st_size / 7) {
        char byte = 0, other;
        ssize_t ignored = pread(file, &byte, 1, at);
        other = (char)(byte ^ 4);
        ignored += pwrite(file, &other, 1, at);
        bool caught = world_run("local", 1, rank_main, &r) == BAD_CHECKPOINT;
        ignored += pwrite(file, &byte, 1, at);
        if (!caught || ignored != 3)
            status = fail(OUT_OF_BOUND, "byte %lld of %s was corrupted, and no rank detected it",
                          (long long)at, path);
    }
    close(file);
    if (status == OK)
        status = world_run("local", 1, rank_main, &r);
    run_close(&r);
    return status;
}

/* ---- disk full for one rank ---- */

static void limit_files(struct world *world, struct rank_state *w, rlim_t bytes)
{
    MUST(group_barrier(w->groups->world, w->compute));
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes == 0 ? limit.rlim_max : bytes;
    if (world->rank == 0)
        setrlimit(RLIMIT_FSIZE, &limit);
    MUST(group_barrier(w->groups->world, w->compute));
}

static enum status full_disk(struct rank_state *w)
{
    struct stat small = {0}, large = {0};
    struct step_result result;
    char *found = NULL;
    TRY(rank_step(w, &result));
    TRY(checkpoint_save(w));
    stat("saves/step-00000001/rank-00000.safetensors", &small);
    stat("saves/step-00000001/rank-00001.safetensors", &large);
    if (small.st_size >= large.st_size)
        return fail(OUT_OF_BOUND, "expected the second stage to be the larger one");

    TRY(rank_step(w, &result));
    limit_files(w->world, w, (rlim_t)(small.st_size + large.st_size) / 2);
    enum status status = checkpoint_save(w);
    limit_files(w->world, w, 0);
    const char *expected =
        "checkpoint.save: saves/step-00000002.partial/rank-00001.safetensors: File too large; "
        "checkpoint.keep_last=1 needs space for one more checkpoint during a save";
    if (status != IO_ERROR || strcmp(fail_text(), expected) != 0)
        return fail(OUT_OF_BOUND, "rank %d reported \"%s\", expected \"%s\"", w->world->rank, fail_text(),
                    expected);
    TRY(store_find("saves", &found));
    bool right = found != NULL && strcmp(found, "saves/step-00000001") == 0 && entries("saves") == 1;
    free(found);
    if (!right)
        return fail(OUT_OF_BOUND, "a failed save left files");

    // The next save succeeds, and only then is the older checkpoint removed.
    TRY(group_barrier(w->groups->world, w->compute));
    TRY(checkpoint_save(w));
    TRY(group_barrier(w->groups->world, w->compute));
    TRY(store_find("saves", &found));
    right = found != NULL && strcmp(found, "saves/step-00000002") == 0 && entries("saves") == 1;
    free(found);
    return right ? OK : fail(OUT_OF_BOUND, "keep_last 1 did not keep exactly the last checkpoint");
}

static enum status full_disk_main(struct world *world, void *argument)
{
    struct checkpoint_run *r = argument;
    struct rank_state state;
    TRY(rank_create(&r->run, world, &(struct rank_options){.training = true}, &state));
    enum status status = full_disk(&state);
    rank_destroy(&state);
    return status;
}

static enum status disk(const char *device)
{
    struct checkpoint_run r;
    struct layout_case layout = layouts[5];
    layout.overrides[3] = "checkpoint.keep_last=1";
    remove_all("saves");
    TRY(run_open(device, &layout, 1, 0, &r));
    enum status status = world_run("local", layout.size, full_disk_main, &r);
    run_close(&r);
    return status;
}

/* ---- killed while saving ---- */

static enum status save_forever(struct world *world, void *argument)
{
    const struct checkpoint_run *r = argument;
    struct rank_state w;
    struct step_result result;
    char *found = NULL;
    TRY(rank_create(&r->run, world, &(struct rank_options){.training = true}, &w));
    TRY(store_find("saves", &found));
    if (found != NULL)
        TRY(checkpoint_load(&w, found, CHECKPOINT_RESUME));
    free(found);
    for (;;) {
        TRY(rank_step(&w, &result));
        TRY(checkpoint_save(&w));
    }
}

static _Noreturn void child(const char *device)
{
    struct checkpoint_run r;
    struct layout_case layout = layouts[5];
    layout.overrides[3] = "checkpoint.keep_last=1";
    MUST(run_open(device, &layout, 0, 0, &r));
    MUST(world_run("local", layout.size, save_forever, &r));
    _exit(3);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

static enum status killed(const char *device)
{
    char *found = NULL;
    long last = 0;
    for (int round = 0; round < 12; round++) {
        pid_t pid = fork(); // before this process starts a thread
        if (pid == 0)
            child(device);
        // Killed two saves after the start, and then at a random moment.
        for (;;) {
            struct dirent **names = NULL;
            int count = scandir("saves", &names, NULL, alphasort);
            long newest = 0;
            for (int i = 0; i < count; i++) {
                if (strncmp(names[i]->d_name, "step-", 5) == 0)
                    newest = strtol(names[i]->d_name + 5, NULL, 10);
                free(names[i]);
            }
            free(names);
            if (newest >= last + 2 || has_ended(pid))
                break;
            pause_ms(5);
        }
        pause_ms(round * 7 % 23);
        kill(pid, SIGKILL);
        int how = 0;
        if (waitpid(pid, &how, 0) == pid && !WIFSIGNALED(how))
            return fail(OUT_OF_BOUND, "round %d: the run ended by itself", round);
        TRY(store_find("saves", &found));
        long step = found != NULL ? strtol(strrchr(found, '-') + 1, NULL, 10) : 0;
        free(found);
        found = NULL;
        if (step <= last)
            return fail(OUT_OF_BOUND, "round %d: step %ld after step %ld", round, step, last);
        last = step;
    }
    return OK;
}

/* ---- main ---- */

static enum status local(const char *device)
{
    for (int family = 0; family < 2; family++)
        for (int writer = UNDER_SANITIZER ? family : 0; writer < LAYOUTS; writer += UNDER_SANITIZER ? 2 : 1)
            TRY(write_on(device, family, writer));
    if (!UNDER_TSAN) // one rank alone
        TRY(write_on(device, 2, 0));
    TRY(corruption(device));
    return disk(device);
}

/* A rank that cannot read the folder: existing checkpoints must not be ignored. */
static enum status check_unreadable_folder(struct rank_state *w)
{
    char *found = NULL;
    struct stat info;
    bool offloaded = w->world->rank == 1;
    if (offloaded && (mkdir("elsewhere", 0777) != 0 || chdir("elsewhere") != 0))
        return fail(IO_ERROR, "elsewhere: %s", strerror(errno));
    enum status status = checkpoint_load_newest(w, NULL, -1, &found);
    bool reported = strstr(fail_text(), "saves/step-00000001: ") != NULL;
    if (offloaded && chdir("..") != 0)
        return fail(IO_ERROR, "..: %s", strerror(errno));
    if (status != BAD_CHECKPOINT || !reported || found != NULL || stat("saves/step-00000001", &info) != 0)
        return fail(OUT_OF_BOUND, "one rank found no checkpoint, and %s",
                    status == OK ? "no rank returned an error" : fail_text());
    return OK;
}

/* Stopped and resumed, as processes: both runs in one world, as a process can have only one. */
static enum status resumed_main(struct world *world, void *argument)
{
    const struct checkpoint_run *r = argument;
    struct rank_state state;
    struct step_result result, again;
    TRY(rank_create(&r->run, world, &(struct rank_options){.training = true}, &state));
    TRY(rank_step(&state, &result));
    TRY(checkpoint_save(&state));
    TRY(rank_step(&state, &result));
    rank_destroy(&state);
    TRY(rank_create(&r->run, world, &(struct rank_options){.training = true}, &state));
    TRY(checkpoint_load(&state, "saves", CHECKPOINT_RESUME));
    TRY(rank_step(&state, &again));
    TRY(check_unreadable_folder(&state));
    rank_destroy(&state);
    if (result.loss != again.loss || result.grad_norm != again.grad_norm)
        return fail(OUT_OF_BOUND, "loss %.17g became %.17g", result.loss, again.loss);
    return OK;
}

static enum status mpi(const char *device, const struct launcher *launcher)
{
    struct checkpoint_run r;
    struct layout_case layout = {launcher->size, 1, {"tp=2", "parallel.sequence_parallel=true"}};
    TRY(run_open(device, &layout, 0, launcher->rank, &r));
    enum status status = world_run("mpi", layout.size, resumed_main, &r);
    run_close(&r);
    return status;
}

static enum status enter(const char *mode, const struct launcher *launcher, char folder[64])
{
    // Processes of one launcher share a parent, and so the folder.
    if (strcmp(mode, "mpi") == 0)
        snprintf(folder, 64, "/tmp/cuboid-checkpoint-%ld", (long)getppid());
    else
        snprintf(folder, 64, "/tmp/cuboid-checkpoint-local-%ld", (long)getpid());
    TRY(folder_make(folder));
    if (chdir(folder) != 0)
        return fail(IO_ERROR, "%s: %s", folder, strerror(errno));
    TRY(file_write_atomic("recipe.yaml", recipe_text, sizeof recipe_text - 1));
    return write_data(launcher->rank < 0 ? 0 : launcher->rank);
}

int main(int argc, char **argv)
{
    struct launcher launcher;
    char folder[64];
    if (argc != 3) {
        fprintf(stderr, "usage: %s local|mpi|kill DEVICE\n", argv[0]);
        return 2;
    }
    signal(SIGXFSZ, SIG_IGN);
    MUST(launcher_find(&launcher));
    MUST(enter(argv[1], &launcher, folder));
    enum status status = strcmp(argv[1], "local") == 0 ? local(argv[2])
                         : strcmp(argv[1], "mpi") == 0 ? mpi(argv[2], &launcher)
                                                       : killed(argv[2]);
    printf("%s %s: %s\n", argv[1], argv[2], status == OK ? "ok" : fail_text());
    if (launcher.rank <= 0 && chdir("/") == 0)
        remove_all(folder);
    return status != OK;
}
