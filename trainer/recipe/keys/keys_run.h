// SPDX-License-Identifier: Apache-2.0
/* The keys of a run: what it reads and writes, and the machines that it uses; for keys.h only. */

#define MOCK_DATA   r->data.mock_data, "data.mock_data", "all tokens are random"
#define NEVER_SAVED r->checkpoint.save == NULL, "checkpoint.save", "nothing is saved"
#define NO_TIMELINE !r->profile.timeline, "profile.timeline", "no timeline is written"
#define SIGNALS                                                                            \
    CHOICES(NAMED("SIGTERM", SIGTERM), NAMED("SIGINT", SIGINT), NAMED("SIGUSR1", SIGUSR1), \
            NAMED("SIGUSR2", SIGUSR2))

SECTION(data, SECTION_MATHEMATICS, "Datasets.")
BEGIN_FIELDS(recipe_data)
KEY(data, train, SOURCES, NULL,
    "Prefix of the training dataset (PREFIX.bin and PREFIX.idx), or a list of `{path, weight}` whose "
    "weights are the sources' shares of the samples.",
    .example = "data/quickstart")
UNUSED_IF(MOCK_DATA)
KEY(data, mock_data, BOOL, "false",
    "Train and validate on random tokens, without any dataset: `train` is then not required. A token is "
    "a function of the seed, the sample and its position, so it is the same for every layout.")
KEY(data, valid, SOURCES, "[]", "The same for validation. Empty: the second part of `split`.")
UNUSED_IF(MOCK_DATA)
ROW("data.split", SPLIT, data.split, NULL,
    "Proportions of documents for training, validation and test; missing ones are 0.", NOT_NEGATIVE,
    .derived = "969, 30, 1; with data.valid 1, 0, 0")
KEY(data, reset_attention_mask, BOOL, "false", "Restrict attention to the token's own document.")
KEY(data, reset_position_ids, BOOL, "false", "Restart positions at each document.")
KEY(data, eod_mask_loss, BOOL, "false", "Mask the loss of the token after each end of document.")
KEY(data, loss_mask, BOOL, "false",
    "Count only the tokens in the loss that the mask of each source (PREFIX.mask) selects, such as the "
    "answers of conversations. The loss is the mean over the counted tokens of the global batch "
    "(docs/finetuning.md).")
UNUSED_IF(MOCK_DATA)
KEY(data, pack_documents, BOOL, "false",
    "Fill each sample with whole documents, then padding, instead of cutting a stream of documents every "
    "seq_length tokens. The first token of a document never counts in the loss.")
UNUSED_IF(MOCK_DATA)
KEY(data, truncate_documents, BOOL, "false",
    "With pack_documents, use only the first seq_length tokens of a longer document. `false`: refuse "
    "it.")
UNUSED_IF(MOCK_DATA)
UNUSED_IF(!r->data.mock_data && !r->data.pack_documents, "data.pack_documents",
          "a stream of documents is cut anywhere")
KEY(data, strict, BOOL, "false",
    "Refuse to resume from a checkpoint whose datasets differ from this run's in size, index or "
    "a sample of 64 blocks of each, or if samples would be skipped or repeated because their "
    "borders change, such as with another seq_length. `false`: warn. Another blend is no such "
    "change: each source continues after the samples that it gave.",
    .neutral = true)
FIELD(double split[3]) // shares of train, valid, test; any positive sum; 1, 0, 0 where `valid` is given
END_FIELDS

SECTION(tokenizer, SECTION_RUN, "Tokenizer.")
BEGIN_FIELDS(recipe_tokenizer)
CHOICE_KEY(enum tokenizer_type, tokenizer, tokenizer_type, "byte",
           "`byte`: 257 ids, the bytes and 256 for the end of a document. `GPT2BPE`: 50257 ids, or those "
           "of its files. Others: those of their file. `none`: the data is already tokenized, and vocab_size "
           "is required (docs/tokenizers.md).",
           .choices = CHOICES(NAMED("byte", TOKENIZER_BYTE), NAMED("GPT2BPE", TOKENIZER_GPT2_BPE),
                              NAMED("HuggingFaceTokenizer", TOKENIZER_HUGGING_FACE),
                              NAMED("GPTSentencePieceTokenizer", TOKENIZER_SENTENCEPIECE),
                              NAMED("Llama2Tokenizer", TOKENIZER_LLAMA2), NAMED("none", TOKENIZER_NONE)),
           .mathematics = true)
KEY(tokenizer, vocab_file, TEXT, "none", "`vocab.json` of GPT2BPE. Required to tokenize or detokenize text.",
    .optional = true)
KEY(tokenizer, merge_file, TEXT, "none", "`merges.txt` of GPT2BPE.", .aliases = "merges_file",
    .optional = true)
KEY(tokenizer, tokenizer_model, TEXT, "none", "`tokenizer.json` or its folder; `tokenizer.model`.",
    .optional = true)
FIELD(int64_t vocab_size) // of the files; 0: not read, since model.vocab_size is given, or they are absent
END_FIELDS

SECTION(checkpoint, SECTION_RUN, "Saving and resuming.")
BEGIN_FIELDS(recipe_checkpoint)
KEY(checkpoint, save, TEXT, NULL, "Folder for checkpoints; `none`: do not save.",
    .derived = "RUN_DIR/checkpoints", .optional = true)
KEY(checkpoint, load, TEXT, "auto",
    "`auto`: resume from the newest valid checkpoint in `save`, if there is one. `none`: start from "
    "scratch. A folder: start from its newest checkpoint, which must exist; later resume from newer "
    "ones in `save`.",
    .optional = true)
KEY(checkpoint, save_interval, COUNT, "0",
    "Steps between checkpoints; 0: save by `save_minutes` only, and at the end of the run.", STEPS)
KEY(checkpoint, save_minutes, REAL, "30",
    "Minutes between checkpoints, since the last one or the start, by rank 0's clock; 0: never.",
    NOT_NEGATIVE)
UNUSED_IF(NEVER_SAVED)
KEY(checkpoint, keep_last, COUNT, "2",
    "Number of complete checkpoints to keep; older ones are removed. 0: keep all.", BETWEEN(0, 1e6))
UNUSED_IF(r->checkpoint.save == NULL, "checkpoint.save", "there is nothing to remove")
KEY(checkpoint, save_retain_interval, COUNT, "0",
    "`keep_last` removes no checkpoint whose step is a multiple of this; 0: off.", STEPS)
UNUSED_IF(r->checkpoint.save == NULL || r->checkpoint.keep_last == 0, "checkpoint.keep_last",
          "nothing is removed")
KEY(checkpoint, keep_best, BOOL, "false",
    "Save after each evaluation with a new lowest validation loss, and keep this checkpoint besides "
    "those of `keep_last`; the link `best` in `save` leads to it.")
UNUSED_IF(NEVER_SAVED)
UNUSED_IF(r->train.eval_interval == 0, "train.eval_interval", "there is no validation loss")
KEY(checkpoint, save_optim, BOOL, "true",
    "Save the optimizer's moments; `false`: half or a third of the size, but training cannot resume "
    "exactly.")
UNUSED_IF(NEVER_SAVED)
KEY(checkpoint, load_optim, BOOL, "true",
    "Load the optimizer's moments; `false`: they start at zero, at the step of the checkpoint.")
UNUSED_IF(r->checkpoint.load == NULL, "checkpoint.load", "nothing is loaded")
KEY(checkpoint, ckpt_step, COUNT, "0",
    "Step of the checkpoint to start from, where `load` is a folder of several; 0: the newest.", STEPS)
KEY(checkpoint, finetune, BOOL, "false",
    "Use only the weights of the checkpoint in `load`: start at step 0 and at the first sample, with "
    "moments of zero. Checkpoints of the run itself are resumed as usual.")
KEY(checkpoint, async_save, BOOL, "false",
    "Copy the state to host memory (`staging_mb`) and write it in the background, while training "
    "continues. The last checkpoint of a run is not in the background.")
UNUSED_IF(NEVER_SAVED)
KEY(checkpoint, staging_mb, COUNT, "0",
    "MiB of host memory of each rank for the copy of `async_save`; what does not fit is written before "
    "training continues. 0: as much as its file needs.",
    BETWEEN(0, 1e9))
UNUSED_IF(!r->checkpoint.async_save, "checkpoint.async_save", "nothing is copied")
KEY(checkpoint, non_persistent_save_interval, COUNT, "0",
    "Steps between checkpoints in the memory of the nodes (`memory_dir`), which survive processes that "
    "fail and, through copies, lost nodes; 0: none.",
    STEPS)
KEY(checkpoint, memory_dir, TEXT, "none",
    "Folder on a tmpfs of each node, such as /dev/shm/NAME, for checkpoints in memory; `none`: none. "
    "`load: auto` resumes from there if they are newer than those in `save`.",
    .optional = true)
KEY(checkpoint, memory_copies, COUNT, "2",
    "Number of nodes that hold each shard in memory, including its owner.", BETWEEN(1, 16))
UNUSED_IF(r->checkpoint.non_persistent_save_interval == 0, "checkpoint.non_persistent_save_interval",
          "nothing is saved in memory")
END_FIELDS

SECTION(logging, SECTION_RUN, "Logs and metrics.")
BEGIN_FIELDS(recipe_logging)
KEY(logging, run_dir, TEXT, NULL, "Folder of the run: resolved recipe, metrics.jsonl, checkpoints.",
    .derived = "runs/NAME")
KEY(logging, log_interval, COUNT, "10",
    "Steps between log lines on the terminal. metrics.jsonl has every step.", BETWEEN(1, 1e12))
KEY(logging, peak_flops, REAL, NULL,
    "Peak FLOP/s of one rank's device, for mfu (full attention) and mfu_causal (causal half) in "
    "metrics.jsonl and the summary; 0: unknown.",
    NOT_NEGATIVE, .derived = "the peak of `cluster.profile` for `precision.params_dtype`; 0 without one")
KEY(logging, tensorboard_dir, TEXT, "none",
    "Folder for TensorBoard: each number of metrics.jsonl as a scalar.", .optional = true)
KEY(logging, prometheus_file, TEXT, "none",
    "File with the numbers of the last step for Prometheus, such as NAME.prom in the folder of "
    "node_exporter's textfile collector.",
    .optional = true)
END_FIELDS

SECTION(profile, SECTION_RUN, "Timelines.")
BEGIN_FIELDS(recipe_profile)
KEY(profile, timeline, BOOL, "false",
    "Write each rank's timeline next to the simulated one into the run's folder: timeline-step-N.json "
    "for ui.perfetto.dev and timeline-step-N.svg, with messages, copies and the optimizer.")
KEY(profile, profile_step_start, COUNT, "2", "First step to profile.", BETWEEN(1, 1e12))
UNUSED_IF(NO_TIMELINE)
KEY(profile, profile_step_end, COUNT, "0", "Last step to profile; 0: only the first.", STEPS)
UNUSED_IF(NO_TIMELINE)
END_FIELDS

SECTION(resilience, SECTION_RUN, "Fault handling.")
BEGIN_FIELDS(recipe_resilience)
KEY(resilience, check_for_nan_in_loss_and_grad, BOOL, "true",
    "Stop at the first NaN or infinity in a loss or gradient, and report the step, rank and "
    "parameter.")
KEY(resilience, heartbeat_timeout_seconds, REAL, NULL,
    "If a rank that the others wait for makes no progress for this long, report it and end the job "
    "(docs/hangs.md). Must exceed the longest single action. 0: off.",
    NOT_NEGATIVE,
    .derived = "under a launcher 60, or ten times the longest step, save or evaluation so far; else 0")
KEY(resilience, exit_duration_in_mins, REAL, "0",
    "Minutes after which the run finishes its step, saves a checkpoint and exits with status 75, by rank "
    "0's clock; 0: never.",
    NOT_NEGATIVE)
KEY(resilience, save_signal, NAMES, "[]",
    "Signals on which the run saves a checkpoint after its step, and resumes.", .choices = SIGNALS)
UNUSED_IF(NEVER_SAVED)
KEY(resilience, elastic, BOOL, "false",
    "With `train --restarts` and `--launch`: if nodes are missing, train on the others, with the largest "
    "`parallel.data_parallel_size` that keeps `train.global_batch_size` (docs/slurm.md).")
KEY(resilience, exit_signal, NAMES, "[SIGTERM, SIGINT]",
    "Signals on which the run finishes its step, saves a checkpoint and exits with status 75; before "
    "the first step it exits at once. A second SIGINT exits at once. mpirun forwards SIGUSR1, but "
    "follows SIGTERM with SIGKILL.",
    .choices = SIGNALS)
FIELD(bool heartbeat_is_automatic) // the timeout is at least ten times the longest step, save or evaluation
END_FIELDS

SECTION(cluster, SECTION_RUN, "Devices, transports and machines.")
BEGIN_FIELDS(recipe_cluster)
KEY(cluster, device, WORD, "cpu",
    "`cpu`; `cuda`: one NVIDIA GPU per rank (docs/cuda.md); `strict`: a CPU with adversarial "
    "asynchrony that exposes missing waits; `dry`: computes nothing and reports memory.",
    .names = device_choice)
KEY(cluster, dry_device, WORD, "cpu",
    "Device whose kernels' memory `cluster.device: dry` reports; `cuda` if the command line overrides "
    "a file's `cluster.device: cuda` with dry.",
    .names = planned_device_choice)
UNUSED_IF(device->computes &&strcmp(r->cluster.device, r->cluster.dry_device) != 0, "cluster.device",
          "only dry simulates another device")
KEY(cluster, transport, WORD, "auto",
    "`local`: ranks are threads of one process. `mpi`: processes. `nccl`: either, with one GPU each. "
    "`auto`: nccl between GPUs, else mpi under a launcher, else local.",
    .names = transport_choice)
KEY(cluster, ranks_per_gpu, INT, "1",
    "Number of ranks that share a GPU, to test a large layout on a small machine; they must be "
    "processes (mpirun). Slow: NCCL communicates over loopback.",
    BETWEEN(1, 64))
ROW("cluster.matmul_algorithms", TEXT, kernels.matmul_algorithms, "none",
    "On a GPU: file of the fastest cuBLASLt algorithm per shape, timed at the first use; entries "
    "never change. Its folder must exist; `auto` creates cuboid/matmul-algorithms in $XDG_CACHE_HOME "
    "or ~/.cache. `none`: cuBLASLt's heuristic.",
    .optional = true)
ROW("cluster.matmul_epilogues", CHOICE, kernels.epilogues, "apart",
    "On a GPU: fuse `gelu_tanh`, its gradient and bias gradients into the preceding matrix "
    "multiplication (cuBLASLt epilogues). `apart`: never. `fused`: where possible. `auto`: where "
    "faster, timed once per shape, with `matmul_algorithms` or `deterministic: false`; otherwise "
    "`apart`.",
    .choices = CHOICES(NAMED("apart", EPILOGUES_APART), NAMED("fused", EPILOGUES_FUSED),
                       NAMED("auto", EPILOGUES_AUTO)))
UNUSED_IF(r->kernels.epilogues == EPILOGUES_AUTO && r->deterministic && r->kernels.matmul_algorithms == NULL,
          "deterministic",
          "auto then equals apart; set it to false, or set cluster.matmul_algorithms, to time both")
KEY(cluster, cuda_graphs, BOOL, "false",
    "On a GPU: from the third step on, replay passes without communication as CUDA graphs.")
UNUSED_IF(device->computes && !device->supports_graphs, "cluster.device", "CUDA graphs need a GPU")
KEY(cluster, profile, TEXT, "none",
    "Cluster profile for predictions: the name of a shipped one (`cuboid profile --list`), or the path "
    "of a file, with a slash or ending in .yaml (docs/planning.md).",
    .optional = true)
KEY(cluster, memory_headroom, REAL, "0.05",
    "Fraction of a device's memory that a layout chosen by a plan (auto, --best, sweeps, suggested "
    "changes) leaves free. A layout that is given may use all.",
    BETWEEN(0, 0.99))
KEY(cluster, nodes, INT, "0",
    "Number of nodes; 0: unset. If nodes and gpus_per_node are set, nodes x gpus_per_node x "
    "ranks_per_gpu must be the number of ranks.",
    BETWEEN(0, 1e6), .one_rank = "0")
KEY(cluster, gpus_per_node, INT, "0", "Devices per node; 0: unset. At most node.devices of the profile.",
    BETWEEN(0, 1024), .one_rank = "0")
KEY(cluster, threads_per_rank, INT, "0",
    "CPU threads per rank. 0: the CPUs available to the job on this machine (affinity mask, cgroup "
    "CPU quota) divided by its ranks there. Results are bit-identical.",
    BETWEEN(0, 4096))
KEY(cluster, time, TEXT, "none",
    "Time limit of a job of `cuboid submit` in Slurm's notation: minutes, H:MM:SS or D-HH:MM:SS. `none`: "
    "that of the partition.",
    .optional = true)
KEY(cluster, partition, TEXT, "none", "Partition of a job of `cuboid submit`. `none`: Slurm's default.",
    .optional = true)
KEY(cluster, account, TEXT, "none", "Account of a job of `cuboid submit`. `none`: Slurm's default.",
    .optional = true)
KEY(cluster, sbatch, NAMES, "[]",
    "Further lines of the batch script of `cuboid submit`: options of sbatch (`--exclusive`), and "
    "commands to run before the training (`module load cuda`).")
END_FIELDS

#undef MOCK_DATA
#undef NEVER_SAVED
#undef NO_TIMELINE
#undef SIGNALS
