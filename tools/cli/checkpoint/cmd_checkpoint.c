// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/checkpoint/cmd_checkpoint.h"

#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/load.h"

#include <stdlib.h>
#include <string.h>

const char help_checkpoint[] =
    "cuboid checkpoint inspect CKPT [--json] [--verify]\n"
    "cuboid checkpoint diff A B [--json]\n"
    "cuboid checkpoint reshard CKPT -o OUT [tp=N] [pp=N] [dp=N] [key=value ...]\n"
    "cuboid checkpoint import DIR -o OUT [--untie | --tie]\n"
    "cuboid checkpoint export CKPT -o DIR [--dtype fp32|bf16|fp16] [--max-shard-mb N] [--architecture NAME]\n"
    "                              [--tokenizer PATH|none]\n"
    "\n"
    "CKPT is a checkpoint; or a directory of checkpoints or a run directory, whose newest complete one is\n"
    "used. No GPU and no data are needed. Tensors are read in bands, so that checkpoints of any size fit in\n"
    "memory.\n"
    "\n"
    "  inspect    step, layout and tensors; --verify reads all files and checks every checksum\n"
    "  diff       the tensors that differ, and by how much; exit status 1 if any does\n"
    "  reshard    rewrites the files for another layout, with the same bytes in each tensor\n"
    "  import     a model of Hugging Face (config.json, safetensors) as a checkpoint; prints the sections\n"
    "             model and tokenizer of its recipe (docs/huggingface.md)\n"
    "  export     a checkpoint as a folder that transformers' from_pretrained loads\n"
    "\n"
    "  -o OUT     directory of the new checkpoint or model, which must not exist\n"
    "  --untie    import an lm_head.weight that differs from the embedding, although config.json ties them\n"
    "  --tie      drop it\n"
    "  --dtype    type of the exported tensors (default: that of the checkpoint)\n"
    "  --max-shard-mb   largest file of an exported model, in millions of bytes (default 5000)\n"
    "  --architecture   of an exported model (default: that of its import, or the first one that\n"
    "             expresses it)\n"
    "  --tokenizer      its file or folder; none: export no tokenizer (default: that in the checkpoint)\n"
    "  --json     machine-readable output\n"
    "\n"
    "Exit status: 0 success (diff: equal); 1 a difference, or a runtime failure; 2 bad usage, or a damaged\n"
    "checkpoint.\n";

enum status checkpoint_argument(const char *path, char **folder, struct checkpoint_reader *out)
{
    TRY(checkpoint_resolve(path, folder));
    return checkpoint_reader_open(*folder, -1, out);
}

int checkpoint_exit(enum status status)
{
    return exit_status_of_input(status);
}

int64_t checkpoint_band_rows(const struct shard *tensor)
{
    int64_t row = tensor->dim[1] * (int64_t)safetensors_dtype_bytes(tensor->dtype);
    return row < CHECKPOINT_BAND_BYTES ? CHECKPOINT_BAND_BYTES / row : 1;
}

int cmd_checkpoint(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {
        {"inspect", checkpoint_inspect}, {"diff", checkpoint_diff},     {"reshard", checkpoint_reshard},
        {"import", checkpoint_import},   {"export", checkpoint_export},
    };
    static const char *const names[] = {"inspect", "diff", "reshard", "import", "export"};
    char name[32]; // of the subcommand, for its messages
    if (argc < 2)
        return checkpoint_exit(
            fail(BAD_USAGE, "checkpoint: subcommand missing; use inspect, diff, reshard, import or export"));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            argv[1] = name;
            snprintf(name, sizeof name, "checkpoint %s", commands[i].name);
            return commands[i].run(argc - 1, argv + 1);
        }
    const char *near = nearest_name(argv[1], names, sizeof names / sizeof *names);
    return checkpoint_exit(fail(BAD_USAGE, "checkpoint: unknown subcommand %s; use %s", argv[1],
                                near != NULL ? near : "inspect, diff, reshard, import or export"));
}
