// SPDX-License-Identifier: Apache-2.0
/* A cluster profile: the parameters of a machine for predictions.
 *
 *   device:    one GPU, or one CPU socket: peak FLOP/s per dtype, memory
 *   node:      devices with a fast interconnect (NVLink, NVSwitch) between them
 *   network:   NICs of a node
 *   model:     efficiency parameters, at most twenty
 *   measured:  tables of measured rates and times, which take precedence over `model`
 *   fit:       the error of a fit of `model` against measured step times
 *
 *   struct problems problems = {0};
 *   struct cluster_profile *profile = NULL;
 *   enum status status = profile_load("dgx-a100-80", &profile, &problems);
 *   problems_print(&problems, stderr);                      // all of them at once
 *   ...
 *   double peak = profile->device.peak_flops[PROFILE_BF16]; // 0: not supported
 *   profile_destroy(profile);
 *
 * A loaded profile is complete and within every range. It does not change after loading, so ranks that are
 * threads may share it. Units are bytes, seconds, FLOP and their quotients; a bandwidth is that of one
 * direction, except for device.memory_bandwidth, which counts bytes read plus bytes written.
 *
 * One table (profile_table.c) has a row for each key. Reader, writer, checks and docs/planning.md are derived
 * from it; a new key is a field here and a row there. */
#pragma once

#include "base/text.h"
#include "trainer/recipe/recipe.h"

/* Data types of matmuls: index of device.peak_flops. */
enum profile_dtype { PROFILE_FP32, PROFILE_TF32, PROFILE_BF16, PROFILE_FP16, PROFILE_FP8, PROFILE_DTYPES };
/* "fp32", "tf32", ... */
const char *profile_dtype_name(enum profile_dtype dtype);

struct profile_device {
    char *name;
    bool is_cpu;                       // ranks share its cores and its memory bandwidth
    int cores;                         // SMs of a GPU, cores of a CPU
    double peak_flops[PROFILE_DTYPES]; // dense; 0: not supported by the device
    int64_t memory_bytes;
    double memory_bandwidth; // read plus written
    double host_bandwidth;   // of copies to or from host memory, in one direction
    int64_t reserved_bytes;  // not available to the program: CUDA context, NCCL
};

struct profile_node {
    int devices;            // all pairs communicate at link_bandwidth
    double link_latency_s;  // 0 on a node of one device
    double link_bandwidth;  // of one device, in one direction; 0 on a node of one device
    double waiting_process; // of a CPU: fraction of a core that a process uses while it waits for a message
};

struct profile_network {
    int nics;         // of one node; 0: the cluster is a single node
    double latency_s; // 0 without a network
    double bandwidth; // of one NIC, in one direction; 0 without a network
};

/* Efficiency parameters. Nominal rate: the device's, the link's or the NIC's from the sections above. */
struct profile_model {
    /* A matmul of F = 2·m·n·k FLOPs takes
     *     F / (peak · matmul_efficiency · k/(k + matmul_half_k) · waves · alignment)
     *     + matmul_half_flops / top
     * top: the largest peak of the device; waves: utilization of the waves of tiles (1 if matmul_tile is
     * 0); alignment: matmul_unaligned for each halving of the width of loads, from 16 bytes on, until
     * it divides the rows of all operands, and at most the rate of fp32 if 4 bytes do not. */
    double matmul_efficiency;
    double matmul_half_flops;
    double matmul_half_k;
    int matmul_tile; // edge of the square output tile of one core
    double matmul_unaligned;
    /* Fused attention kernels: F / (peak · efficiency) + attention_half_flops / top, F the executed FLOPs. */
    double attention_forward, attention_backward;
    double attention_half_flops;
    /* Memory-bound kernels: memory_bandwidth · memory_efficiency · b/(b + memory_half_bytes). */
    double memory_efficiency;
    double memory_half_bytes;
    double launch_s; // exposed host or device time of one kernel launch
    /* Collectives: bus bandwidth (as in nccl-tests), nominal · efficiency · b/(b + half_bytes); between nodes
     * also / (1 + congestion · log2(nodes)). */
    double collective_link_efficiency, collective_link_half_bytes;
    double collective_network_efficiency, collective_network_half_bytes;
    double congestion;
    double p2p_efficiency;   // of send and receive, link or NIC
    double overlap_slowdown; // compute concurrent with communication takes 1 + this times as long
    double fragmentation;    // of the memory allocated
    double step_overhead_s;  // host time per step that is not hidden by kernels
};

/* Kinds of measured tables. A sample's shape has the columns of its kind, in this order; columns that a kind
 * lacks are 0. Transfers: among `ranks` ranks, evenly distributed over `nodes` nodes. */
enum profile_kind {
    MEASURED_MATMUL,             // m, n, k, dtype: FLOP/s
    MEASURED_ATTENTION_FORWARD,  // heads (sequences times heads), sequence, head_dim, dtype: FLOP/s, causal
    MEASURED_ATTENTION_BACKWARD, // same
    MEASURED_MEMORY,             // bytes (read plus written): bytes/s
    MEASURED_OP,                 // rows, columns (struct op_record), op, dtype: bytes/s
    MEASURED_ALL_REDUCE,         // ranks, nodes, bytes (of the whole tensor): s
    MEASURED_ALL_GATHER,         // same
    MEASURED_REDUCE_SCATTER,     // same
    MEASURED_P2P,                // ranks (each sends and receives), nodes, bytes (of one message): s
    MEASURED_KINDS
};
enum { MEASURED_COLUMNS = 3 };

struct profile_sample {
    int64_t shape[MEASURED_COLUMNS]; // >= 1
    enum profile_dtype dtype;        // PROFILE_FP32 for kinds without dtype
    double value;                    // > 0
    int threads;                     // per rank on a CPU, with all cores busy; 0: as many as cores
    int op;                          // of MEASURED_OP: enum op_kind
    bool transposed;                 // of MEASURED_MATMUL: as op_record.transposed
    /* For transfers on a CPU: the number of ranks of a node that communicate at the same time, in groups of
     * shape[0] ranks; 0: only this group. processes: ranks are processes, not threads of one process. */
    int node_ranks;
    bool processes;
};

struct profile_measured {
    struct profile_sample *list; // in file order; shapes are unique
    size_t count;                // 0: not measured
};

struct profile_fit {
    double error_fraction;        // median relative error of predicted step times; 0: not fitted
    double held_out_fraction;     // the same of step times left out of a fit; 0: not known
    int64_t rows;                 // number of step times
    struct recipe_names at_bound; // parameters of `model` that the fit left at a bound of their range
};

/* The origin of a value. */
struct profile_origin {
    const char *file; // belongs to the profile; NULL: the default
    int line;         // counted from 1
};

enum { PROFILE_MAX_ROWS = 64 }; // room for an origin of each row of the table

struct cluster_profile {
    char *name; // derived from the file name if not given
    char *description;
    struct profile_device device;
    struct profile_node node;
    struct profile_network network;
    struct profile_model model;
    struct profile_measured measured[MEASURED_KINDS];
    struct profile_fit fit;

    struct recipe_names files; // the profile, and its bases
    struct profile_origin origin[PROFILE_MAX_ROWS];
    struct profile_origin measured_origin[MEASURED_KINDS];
};

/* Loads a shipped profile by name, or a file by path: a value with a slash, or that ends in .yaml. On
 * BAD_RECIPE, `problems` lists everything that is wrong, and *out is untouched. */
MUST_USE enum status profile_load(const char *name_or_path, struct cluster_profile **out,
                                  struct problems *problems);

/* The profile that was loaded last; {0} at first. */
struct profile_cache {
    char *name;
    struct cluster_profile *profile;
};
/* profile_load(), unless it is the last one. */
MUST_USE enum status profile_cache_load(struct profile_cache *cache, const char *name_or_path,
                                        struct problems *problems);
void profile_cache_free(struct profile_cache *cache);

/* Creates a profile with all defaults, to be filled by measurements; required fields are 0 or NULL. */
struct cluster_profile *profile_create(void);
/* Takes NULL. */
void profile_destroy(struct cluster_profile *profile);

/* Adds a problem for each missing, inconsistent or out-of-range value. `where` is the prefix of each. */
void profile_check(const struct cluster_profile *profile, const char *where, struct problems *problems);

/* Appends the profile as YAML, complete and without a base. It loads back to an equal profile. */
void profile_text(const struct cluster_profile *profile, struct text *out);
/* What predictions with the profile rest on, and how wrong such predictions were: "fitted to 31 step times;
 * ...". One sentence without a full stop. */
void profile_basis_text(const struct cluster_profile *profile, struct text *out);
/* "profile NAME: " and the same; nothing if the profile cannot be loaded. */
void profile_named_basis_text(const char *name_or_path, struct text *out);
/* The same in a word or two, for lists: "31 step times", "measured", "data sheet". */
void profile_basis_word(const struct cluster_profile *profile, struct text *out);
/* A table of all keys: value, unit, origin. */
void profile_table_text(const struct cluster_profile *profile, struct text *out);
/* The keys with unit, range, default and meaning, as Markdown: the reference in docs/planning.md. */
void profile_reference(struct text *out);

/* Shipped profile `index`: its name and one-line description; NULL past the last. */
const char *profile_shipped_name(size_t index);
const char *profile_shipped_description(size_t index);

/* Replaces a text field by a copy. */
void profile_set_text(char **field, const char *text);
/* Appends a sample to a table. */
void profile_add_sample(struct cluster_profile *profile, enum profile_kind kind,
                        const struct profile_sample *sample);
