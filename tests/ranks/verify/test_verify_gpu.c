// SPDX-License-Identifier: Apache-2.0
/* `verify` on the cuda device with emulated GPUs: perturbed runs change tensors that only the GPU can
 * access. One rank, with and without CUDA graphs, in device memory that the host cannot access; and eight
 * ranks with NCCL between them, whose bounds must equal those of the cpu device, up to the spread of four
 * random perturbations. */
#include "tests/support/tiny_verify.h"

#include <math.h>
#include <stdlib.h>

#define SMALL \
    "model.num_layers=2 train.global_batch_size=4 train.micro_batch_size=2 cluster.threads_per_rank=1 "
#define ON_GPU  "cluster.device=cuda "
#define EIGHT   "tp=2 dp=2 pp=2 parallel.sequence_parallel=true"
#define AT_MOST 1.5 // of the bounds of two devices

/* Passes, and with perturbed runs that changed the loss. */
static enum status check(const struct tiny *tiny, const struct comparison *comparison, double *loss_bound)
{
    struct verify_report report = {0};
    enum status status = tiny_verify(tiny, comparison, 1, (struct step_observer){0}, &report);
    if (status == OK && report.outside > 0)
        status = fail(OUT_OF_BOUND, "%s%s: %d comparisons are out of bounds", comparison->common,
                      comparison->layout, report.outside);
    if (status == OK)
        *loss_bound = report.step[0].loss_bound;
    verify_report_free(&report);
    return status;
}

static enum status check_one_rank(const struct tiny *tiny, const char *common, const char *layout)
{
    double bound;
    setenv("EMULATOR_MEMORY", "guarded", 1);
    enum status status = check(tiny, &(struct comparison){TINY_GPT, common, layout, ""}, &bound);
    unsetenv("EMULATOR_MEMORY");
    return status;
}

static enum status check_eight(const struct tiny *tiny)
{
    double cpu, cuda;
    TRY(check(tiny, &(struct comparison){TINY_LLAMA, SMALL, EIGHT, ""}, &cpu));
    TRY(check(tiny, &(struct comparison){TINY_LLAMA, SMALL ON_GPU, EIGHT, ""}, &cuda));
    printf("bounds of the loss: %.3g on the cpu, %.3g on the GPU\n", cpu, cuda);
    if (!(cuda <= AT_MOST * cpu && cpu <= AT_MOST * cuda))
        return fail(OUT_OF_BOUND, "bound of the loss: %.3g on the cpu, %.3g on the GPU", cpu, cuda);
    return OK;
}

int main(void)
{
    struct tiny tiny;
    MUST(tiny_create(&tiny));
    enum status status = check_one_rank(&tiny, SMALL ON_GPU, "cluster.cuda_graphs=true");
    if (status == OK)
        status = check_one_rank(&tiny, SMALL ON_GPU "precision.params_dtype=bf16", "");
    if (status == OK)
        status = check_eight(&tiny);
    tiny_destroy(&tiny);
    printf("%s\n", status == OK ? "ok" : fail_text());
    return status != OK;
}
