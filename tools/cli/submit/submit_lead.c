// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/submit/submit.h"

#include "layers/model.h"
#include "trainer/checkpoint/store.h"
#include "trainer/run/run_summary.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

/* Slurm checks its jobs about every 30 s, and may send a signal a minute early or late. */
static const double CLOCK_S = 60.0;
static const double STEP_S = 30.0; // assumed until a step has been measured
static const double NODE_BYTES_PER_S =
    2e8; // assumed until a save has been measured: a busy shared file system
static const double SAFETY = 2.0;

/* Bytes of a checkpoint: fp32 values and two moments. */
static double checkpoint_bytes(const struct recipe *recipe)
{
    const struct model_config *m = &recipe->model;
    const double matmuls = (model_flops_per_token(m) - model_attention_flops_per_token(m)) / 6.0;
    const double embedding = (double)m->vocab_size * (double)m->hidden_size;
    return (matmuls + embedding) * (recipe->checkpoint.save_optim ? 12.0 : 4.0);
}

/* The seconds from the creation of the newest checkpoint's folder to that of its manifest; 0: unknown. */
static double measured_save_s(const struct recipe *recipe)
{
    struct text folder = {0}, skipped = {0};
    struct statx begun, ended;
    int64_t step = -1;
    double took = 0.0;
    if (recipe->checkpoint.save != NULL &&
        store_newest(recipe->checkpoint.save, INT64_MAX, &step, &skipped) == OK && step >= 0) {
        store_of_step(recipe->checkpoint.save, step, "", &folder);
        const bool known = statx(AT_FDCWD, folder.chars, 0, STATX_BTIME, &begun) == 0;
        text_add(&folder, "/manifest.json");
        if (known && (begun.stx_mask & STATX_BTIME) != 0 &&
            statx(AT_FDCWD, folder.chars, 0, STATX_MTIME, &ended) == 0)
            took = (double)(ended.stx_mtime.tv_sec - begun.stx_btime.tv_sec) +
                   1e-9 * ((double)ended.stx_mtime.tv_nsec - (double)begun.stx_btime.tv_nsec);
    }
    text_free(&folder);
    text_free(&skipped);
    return fmax(took, 0.0);
}

int64_t submit_lead(const struct recipe *recipe, int nodes, struct text *why)
{
    struct run_summary summary;
    double save_s = measured_save_s(recipe), step_s = STEP_S;
    const bool saved = save_s > 0.0;
    const bool stepped = run_summary_read(recipe->logging.run_dir, &summary) == OK && summary.step_s > 0.0;
    char save[NUMBER_CHARS], step[NUMBER_CHARS];
    if (!saved)
        save_s = checkpoint_bytes(recipe) / (NODE_BYTES_PER_S * nodes);
    if (stepped)
        step_s = summary.step_s;
    const double lead = CLOCK_S + SAFETY * (step_s + save_s);
    text_add(why, "twice a step of %s (%s) and a save of %s (%s), and 60 s for Slurm's timer",
             seconds_text(step_s, step), stepped ? "measured" : "assumed", seconds_text(save_s, save),
             saved ? "measured" : "at 200 MB/s per node");
    return 10 * (int64_t)ceil(lead / 10.0);
}
