// SPDX-License-Identifier: Apache-2.0
/* Cluster profiles: reading, writing, bases, and shipped profiles. */
#include "tests/unit/planner/profile_case.h"

#include "kernels/ops.h"
#include "planner/profile/gpu_type.h"
#include "planner/profile/profile_table.h"

#define FULL                                                                                     \
    "name: \"a: b\"\n"                                                                           \
    "description: none\n"                                                                        \
    "device:\n"                                                                                  \
    "  name: \"X # 1\"\n"                                                                        \
    "  is_cpu: true\n"                                                                           \
    "  cores: 4\n"                                                                               \
    "  peak_flops_fp32: 1.2345678901234567e12\n"                                                 \
    "  peak_flops_bf16: 0.1e15\n"                                                                \
    "  memory_bytes: 85899345920\n"                                                              \
    "  memory_bandwidth: 1e11\n"                                                                 \
    "  reserved_bytes: 1e6\n"                                                                    \
    "node: {devices: 8, link_latency_s: 1e-6, link_bandwidth: 3e11}\n"                           \
    "network: {nics: 2, latency_s: 1e-5, bandwidth: 25e9}\n"                                     \
    "model: {matmul_efficiency: 0.3333333333333333, matmul_tile: 0, congestion: 0}\n"            \
    "measured:\n"                                                                                \
    "  matmul:\n"                                                                                \
    "    - {m: 16, n: 32, k: 64, dtype: bf16, flops: 1.5e11}\n"                                  \
    "    - {flops: 1e10, dtype: fp32, k: 64, n: 32, m: 16}\n"                                    \
    "    - {m: 16, n: 32, k: 64, dtype: fp32, threads: 2, flops: 2e10}\n"                        \
    "    - {m: 16, n: 32, k: 64, dtype: fp32, threads: 2, transposed: true, flops: 3e10}\n"      \
    "  op: [{rows: 2, columns: 3, op: adamw, dtype: fp32, threads: 1, bytes_per_s: 1e10},\n"     \
    "       {rows: 2, columns: 3, op: fill, dtype: fp32, bytes_per_s: 2e10}]\n"                  \
    "  attention_backward: [{heads: 8, sequence: 128, head_dim: 64, dtype: bf16, flops: 1e9}]\n" \
    "  memory: [{bytes: 1e6, bytes_per_s: 1e10}]\n"                                              \
    "  all_reduce: [{ranks: 8, nodes: 2, bytes: 1024, seconds: 1e-4}]\n"                         \
    "  all_gather:\n"                                                                            \
    "    - {ranks: 2, nodes: 1, bytes: 1024, seconds: 1e-4}\n"                                   \
    "    - {ranks: 2, nodes: 1, bytes: 1024, node_ranks: 4, seconds: 2e-4}\n"                    \
    "    - {ranks: 2, nodes: 1, bytes: 1024, processes: true, node_ranks: 4, seconds: 3e-4}\n"   \
    "  p2p: []\n"                                                                                \
    "fit: {error_fraction: 0.02, held_out_fraction: 0.03, rows: 40, at_bound: [congestion, launch_s]}\n"

static void expect_messages(const char *yaml, const char *expected)
{
    struct loaded_profile loaded = load_profile(yaml, strlen(yaml));
    cr_expect_str_eq(text_chars(&loaded.messages), expected, "%s", text_chars(&loaded.messages));
    loaded_free(&loaded);
}

static struct cluster_profile *load_good(const char *yaml)
{
    struct loaded_profile loaded = load_profile(yaml, strlen(yaml));
    cr_assert_not_null(loaded.profile, "%s", text_chars(&loaded.messages));
    text_free(&loaded.messages);
    return loaded.profile;
}

static bool equal_rows(const struct cluster_profile *a, const struct cluster_profile *b)
{
    bool equal = true;
    for (int i = 0; i < profile_row_count; i++) {
        struct text one = {0}, other = {0};
        profile_value_text(a, &profile_rows[i], &one);
        profile_value_text(b, &profile_rows[i], &other);
        equal = equal && strcmp(one.chars, other.chars) == 0;
        if (profile_is_number(&profile_rows[i]))
            equal = equal && profile_number(a, &profile_rows[i]) == profile_number(b, &profile_rows[i]);
        text_free(&one);
        text_free(&other);
    }
    return equal;
}

static bool equal_tables(const struct cluster_profile *a, const struct cluster_profile *b)
{
    bool equal = true;
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++) {
        const struct profile_measured *one = &a->measured[kind], *other = &b->measured[kind];
        equal = equal && one->count == other->count;
        for (size_t i = 0; equal && i < one->count; i++)
            equal = memcmp(one->list[i].shape, other->list[i].shape, sizeof one->list[i].shape) == 0 &&
                    one->list[i].dtype == other->list[i].dtype &&
                    one->list[i].value == other->list[i].value &&
                    one->list[i].threads == other->list[i].threads && one->list[i].op == other->list[i].op &&
                    one->list[i].node_ranks == other->list[i].node_ranks &&
                    one->list[i].processes == other->list[i].processes;
    }
    return equal;
}

static void round_trips(const char *yaml)
{
    struct cluster_profile *first = load_good(yaml);
    struct text written = {0};
    profile_text(first, &written);
    struct cluster_profile *second = load_good(written.chars);
    cr_expect(equal_rows(first, second) && equal_tables(first, second), "%s", written.chars);
    text_free(&written);
    profile_destroy(first);
    profile_destroy(second);
}

Test(profile, round_trips)
{
    round_trips(SMALL);
    round_trips(FULL);
}

Test(profile, reads_every_field)
{
    struct cluster_profile *p = load_good(FULL);
    cr_expect_str_eq(p->name, "a: b");
    cr_expect_str_eq(p->device.name, "X # 1");
    cr_expect(p->device.is_cpu && p->device.cores == 4);
    cr_expect_eq(p->device.peak_flops[PROFILE_FP32], 1.2345678901234567e12);
    cr_expect_eq(p->device.peak_flops[PROFILE_BF16], 1e14);
    cr_expect_eq(p->device.peak_flops[PROFILE_FP8], 0.0);
    cr_expect_eq(p->device.memory_bytes, 85899345920);
    cr_expect_eq(p->device.reserved_bytes, 1000000);
    cr_expect(p->node.devices == 8 && p->node.link_latency_s == 1e-6 && p->node.link_bandwidth == 3e11);
    cr_expect(p->network.nics == 2 && p->network.bandwidth == 25e9);
    cr_expect(p->model.matmul_tile == 0 && p->model.congestion == 0.0);
    cr_expect_eq(p->model.attention_forward, 0.6); // a default
    const struct profile_sample *second = &p->measured[MEASURED_MATMUL].list[1];
    cr_expect(p->measured[MEASURED_MATMUL].count == 4 && second->shape[0] == 16 && second->shape[1] == 32 &&
              second->shape[2] == 64 && second->dtype == PROFILE_FP32 && second->value == 1e10);
    cr_expect(second->threads == 0 && second[1].threads == 2 && !second[1].transposed &&
              second[2].transposed);
    const struct profile_sample *op = p->measured[MEASURED_OP].list;
    cr_expect(op[0].op == OP_ADAMW && op[0].threads == 1 && op[1].op == OP_FILL && op[1].threads == 0);
    cr_expect_eq(p->measured[MEASURED_ALL_REDUCE].list[0].shape[1], 2);
    cr_expect(p->fit.rows == 40 && p->fit.at_bound.count == 2);
    cr_expect_str_eq(p->fit.at_bound.list[1], "launch_s");
    profile_destroy(p);
}

Test(profile, the_name_defaults_to_that_of_the_file)
{
    struct cluster_profile *p = load_good(SMALL);
    cr_expect_str_eq(p->name, "P");
    profile_destroy(p);
}

Test(profile, at_most_twenty_parameters_each_with_a_source)
{
    int parameters = 0;
    for (int i = 0; i < profile_row_count; i++) {
        bool is_parameter = profile_row_in(&profile_rows[i], "model");
        parameters += is_parameter;
        cr_expect_eq(profile_rows[i].source != NULL, is_parameter, "%s", profile_rows[i].key);
        cr_expect(!profile_is_number(&profile_rows[i]) || profile_rows[i].low < profile_rows[i].high);
    }
    cr_expect_leq(parameters, 20);
}

Test(profile, the_documentation_is_current)
{
    struct text page = {0}, reference = {0};
    cr_assert_eq(file_read(SOURCE_ROOT "/docs/planning.md", &page), OK, "%s", fail_text());
    profile_reference(&reference);
    cr_expect(strstr(page.chars, reference.chars) != NULL,
              "replace the reference in docs/planning.md by the output of cuboid profile --reference");
    text_free(&page);
    text_free(&reference);
}

/* ---- bad input ---- */

Test(profile, bad_numbers)
{
    expect_messages(
        SMALL "model: {matmul_efficiency: 1.2}\n",
        "F/P.yaml:3: model.matmul_efficiency 1.2 is out of range; expected a number above 0 up to 1\n");
    expect_messages(
        SMALL "model: {memory_efficiency: nan}\n",
        "F/P.yaml:3: model.memory_efficiency nan is out of range; expected a number above 0 up to 1\n");
    expect_messages(SMALL "model: {launch_s: inf}\n",
                    "F/P.yaml:3: model.launch_s inf is out of range; expected a number from 0 to 1\n");
    expect_messages(SMALL "model: {launch_s: -1e-9}\n",
                    "F/P.yaml:3: model.launch_s -1e-9 is out of range; expected a number from 0 to 1\n");
    expect_messages(SMALL "model: {launch_s: \"1\"}\n",
                    "F/P.yaml:3: model.launch_s \"1\" is text; remove the quotes\n");
    expect_messages(SMALL "model: {launch_s: [1]}\n",
                    "F/P.yaml:3: model.launch_s is a list; expected a number from 0 to 1\n");
    expect_messages(SMALL "model: {launch_s: }\n",
                    "F/P.yaml:3: model.launch_s is empty; expected a number from 0 to 1\n");
    expect_messages(SMALL "model: {matmul_tile: 1.5}\n",
                    "F/P.yaml:3: model.matmul_tile \"1.5\" is not an integer from 0 to 4096; use 1 or 2\n");
    expect_messages(
        SMALL "network: {nics: 2, latency_s: 1e-5, bandwidth: 0}\n",
        "F/P.yaml:3: network.bandwidth 0 is out of range; expected a number from 100000 to 1e15\n");
    expect_messages(
        "device: {name: X, cores: 4, peak_flops_fp32: 1e12, peak_flops_bf16: 312, peak_flops_fp16: 0,\n"
        "  memory_bytes: 1e9, memory_bandwidth: 1e11}\nnode: {devices: 1}\n",
        "F/P.yaml:1: device.peak_flops_bf16 312 is out of range; expected a number from 1e6 to 1e18, "
        "or 0\n");
    expect_messages(DEVICE "node: {devices: 1025}\n",
                    "F/P.yaml:2: node.devices 1025 is out of range; expected an integer from 1 to 1024\n");
    expect_messages(
        "device: {name: X, cores: 4, peak_flops_fp32: 1e12, memory_bytes: 1e9, memory_bandwidth: 1e11,\n"
        "  reserved_bytes: 2e9}\nnode: {devices: 1}\n",
        "F/P.yaml: device.reserved_bytes 2000000000 is not below device.memory_bytes 1000000000; "
        "reduce it\n");
}

Test(profile, bad_texts)
{
    expect_messages(DEVICE "node: {devices: 1.5e0}\n",
                    "F/P.yaml:2: node.devices \"1.5e0\" is not an integer from 1 to 1024; use 1 or 2\n");
    expect_messages(SMALL "description: \"\"\nmodel: {matmul_tile: 1.28e2}\n", "");
    expect_messages(SMALL "description: [1]\n",
                    "F/P.yaml:3: description is a list; expected a text of at most 200 characters\n");
    expect_messages("device: {name: X, is_cpu: yes, cores: 4, peak_flops_fp32: 1e12, memory_bytes: 1e9, "
                    "memory_bandwidth: 1e11}\nnode: {devices: 1}\n",
                    "F/P.yaml:1: device.is_cpu \"yes\" is not true or false\n");
    expect_messages(
        SMALL "fit: {at_bound: [speed]}\n",
        "F/P.yaml:3: fit.at_bound speed is not a key of the section model; expected a list of keys of the "
        "section model\n");
}

Test(profile, unknown_keys_name_the_nearest)
{
    expect_messages(
        SMALL "model: {matmul_eficiency: 0.5}\n",
        "F/P.yaml:3: unknown key model.matmul_eficiency; did you mean model.matmul_efficiency?\n");
    expect_messages(SMALL "model: {cores: 2}\n",
                    "F/P.yaml:3: unknown key model.cores; did you mean device.cores?\n");
    expect_messages(SMALL "device.cores: 2\n",
                    "F/P.yaml:3: unknown key device.cores; did you mean device.cores?\n");
    expect_messages(SMALL "netwrk: {nics: 0}\n", "F/P.yaml:3: unknown key netwrk; did you mean network?\n");
    expect_messages(SMALL "fit: {zzzzzzzz: 0}\n",
                    "F/P.yaml:3: unknown key fit.zzzzzzzz; expected one of error_fraction, "
                    "held_out_fraction, rows, at_bound\n");
    expect_messages(SMALL "model: 3\n",
                    "F/P.yaml:3: model is a section; expected keys and values below it\n");
    expect_messages(SMALL "model: {launch_s: 0, launch_s: 0}\n",
                    "F/P.yaml:3: model.launch_s is given twice, first in line 3; remove one of them\n");
    expect_messages(
        "- 1\n", "F/P.yaml:1: expected keys and values, such as `node: {devices: 8}`\n"
                 "F/P.yaml: device.name is missing; expected a text of at most 200 characters\n"
                 "F/P.yaml: device.cores is missing; expected an integer from 1 to 65536\n"
                 "F/P.yaml: device.peak_flops_fp32 is missing; expected a number from 1e6 to 1e18 in FLOP/s\n"
                 "F/P.yaml: device.memory_bytes is missing; expected an integer from 1e6 to 1e15 in B\n"
                 "F/P.yaml: device.memory_bandwidth is missing; expected a number from 1e6 to 1e15 in B/s\n"
                 "F/P.yaml: node.devices is missing; expected an integer from 1 to 1024\n");
}

Test(profile, missing_keys)
{
    expect_messages(
        DEVICE "node: {devices: 8}\nnetwork: {nics: 1}\n",
        "F/P.yaml: node.link_latency_s is missing; expected a number above 0 up to 1 in s, since "
        "node.devices is above 1\n"
        "F/P.yaml: node.link_bandwidth is missing; expected a number from 1e6 to 1e15 in B/s, since "
        "node.devices is above 1\n"
        "F/P.yaml: network.latency_s is missing; expected a number above 0 up to 1 in s, since network.nics "
        "is above 0\n"
        "F/P.yaml: network.bandwidth is missing; expected a number from 100000 to 1e15 in B/s, since "
        "network.nics is above 0\n");
    // A rejected value is not reported as missing too, and all problems are reported.
    expect_messages(
        "device: {name: X, cores: 0, peak_flops_fp32: 1e12, memory_bytes: 1e9}\nnode: {devices: 1}\nx: 1\n",
        "F/P.yaml:1: device.cores 0 is out of range; expected an integer from 1 to 65536\n"
        "F/P.yaml:3: unknown key x; expected one of name, description, base, device, node, network, model, "
        "fit, measured\n"
        "F/P.yaml: device.memory_bandwidth is missing; expected a number from 1e6 to 1e15 in B/s\n");
}

Test(profile, bad_tables)
{
    expect_messages(SMALL "measured: {matmull: []}\n",
                    "F/P.yaml:3: unknown table measured.matmull; did you mean measured.matmul?\n");
    expect_messages(SMALL "measured: {memory: {bytes: 1}}\n",
                    "F/P.yaml:3: measured.memory is not a list; expected one entry for each shape\n");
    expect_messages(
        SMALL "measured:\n  memory:\n    - 3\n    - {bytes: 1}\n    - {bytes: 0, bytes_per_s: 1e9}\n"
              "    - {bytes: 1, bytes_per_s: 0}\n    - {byte: 1, bytes_per_s: 1e9}\n"
              "    - {bytes: 1, bytes: 2, bytes_per_s: 1e9}\n    - {bytes: 1.5, bytes_per_s: 1e9}\n",
        "F/P.yaml:5: measured.memory entry 1: is not a mapping; expected {bytes: ..., bytes_per_s: ...}\n"
        "F/P.yaml:6: measured.memory entry 2: bytes_per_s is missing\n"
        "F/P.yaml:7: measured.memory entry 3: bytes 0 is out of range; expected an integer from 1 to 1e15\n"
        "F/P.yaml:8: measured.memory entry 4: bytes_per_s 0 is out of range; expected a number from 1000 to "
        "1e15\n"
        "F/P.yaml:9: measured.memory entry 5: unknown key byte; did you mean bytes?\n"
        "F/P.yaml:10: measured.memory entry 6: bytes is given twice; remove one of them\n"
        "F/P.yaml:11: measured.memory entry 7: bytes 1.5 is not an integer; expected an integer from 1 to "
        "1e15\n");
    expect_messages(SMALL "measured:\n  matmul: [{m: 1, n: 1, k: 1, dtype: fp64, flops: 1e9}]\n",
                    "F/P.yaml:4: measured.matmul entry 1: dtype fp64 is unknown; did you mean fp32?\n");
    expect_messages(
        SMALL "measured:\n  memory:\n    - {bytes: 2, bytes_per_s: 1e9}\n    - {bytes: 1, bytes_per_s: 1e9}\n"
              "    - {bytes: 2, bytes_per_s: 2e9}\n",
        "F/P.yaml:7: measured.memory entry 3: the same shape as entry 1; remove one of them\n");
    expect_messages(
        SMALL "measured:\n  matmul: [{m: 1, n: 1, k: 1, dtype: fp32, flops: 1.2e12}]\n",
        "F/P.yaml: measured.matmul entry 1: flops 1.2e12 exceeds device.peak_flops_fp32 1e12; correct one of "
        "them\n");
    expect_messages(SMALL
                    "measured:\n  op: [{rows: 1, columns: 1, op: adam, dtype: fp32, bytes_per_s: 1e9}]\n",
                    "F/P.yaml:4: measured.op entry 1: op adam is unknown; did you mean adamw?\n");
    expect_messages(
        SMALL "measured:\n  matmul: [{m: 1, n: 1, k: 1, dtype: fp32, threads: 0, flops: 1e9}]\n",
        "F/P.yaml:4: measured.matmul entry 1: threads 0 is out of range; expected an integer from 1 to "
        "65536\n");
    expect_messages(SMALL "measured:\n  p2p: [{ranks: 3, nodes: 2, bytes: 1, seconds: 1}]\n",
                    "F/P.yaml:4: measured.p2p entry 1: ranks 3 is not a multiple of nodes 2\n");
}

/* ---- bases ---- */

struct file {
    const char *name, *yaml;
};

/* Loads files[0]; its messages, or "". */
static struct loaded_profile load_files(const struct file *files, size_t count)
{
    struct profile_folder folder = folder_begin();
    const char *names[16] = {NULL};
    for (size_t i = 0; i < count; i++) {
        folder_write(&folder, files[i].name, files[i].yaml, strlen(files[i].yaml));
        names[i] = files[i].name;
    }
    struct loaded_profile loaded = folder_load(&folder, files[0].name);
    folder_end(&folder, names);
    return loaded;
}

Test(profile, a_profile_extends_others)
{
    const struct file files[] = {
        {"a.yaml", "base: ./b.yaml\nmodel: {launch_s: 1e-6}\nmeasured: {memory: []}\n"},
        {"b.yaml", "base: dgx-a100-80\nname: b\ndescription: of b\n"
                   "model: {launch_s: 2e-6, congestion: 0.5}\nmeasured:\n"
                   "  memory: [{bytes: 1, bytes_per_s: 1e9}]\n"
                   "  p2p: [{ranks: 2, nodes: 1, bytes: 1, seconds: 1}]\n"},
    };
    struct loaded_profile loaded = load_files(files, 2);
    struct cluster_profile *p = loaded.profile;
    cr_assert_not_null(p, "%s", text_chars(&loaded.messages));
    cr_expect_str_eq(p->name, "a"); // a base's name is its own
    cr_expect_str_eq(p->description, "");
    cr_expect(p->model.launch_s == 1e-6 && p->model.congestion == 0.5);
    cr_expect_eq(p->device.peak_flops[PROFILE_BF16], 312e12);
    cr_expect(p->measured[MEASURED_MEMORY].count == 0 && p->measured[MEASURED_P2P].count == 1);
    const struct profile_origin *origin = p->origin;
    cr_expect(origin[profile_row_index("model.launch_s")].line == 2);
    cr_expect_str_eq(strrchr(origin[profile_row_index("model.congestion")].file, '/'), "/b.yaml");
    cr_expect_str_eq(origin[profile_row_index("device.cores")].file, "dgx-a100-80");
    cr_expect_null(origin[profile_row_index("model.matmul_half_k")].file);
    loaded_free(&loaded);
}

static void expect_file_messages(const struct file *files, size_t count, const char *expected)
{
    struct loaded_profile loaded = load_files(files, count);
    cr_expect_str_eq(text_chars(&loaded.messages), expected, "%s", text_chars(&loaded.messages));
    loaded_free(&loaded);
}

Test(profile, bad_bases)
{
    expect_file_messages(
        (struct file[]){{"a.yaml", "base: b.yaml\n"}, {"b.yaml", "\nbase: ./a.yaml\n"}}, 2,
        "F/b.yaml:2: base: F/./a.yaml is already a base of this profile; remove one of them\n");
    expect_file_messages((struct file[]){{"a.yaml", "base: no.yaml\n"}}, 1,
                         "F/a.yaml:1: base: F/no.yaml: No such file or directory\n");
    expect_file_messages((struct file[]){{"a.yaml", "base: [b.yaml]\n"}}, 1,
                         "F/a.yaml:1: base: expected the name or the path of one profile\n");
    expect_file_messages((struct file[]){{"0.yaml", "base: 1.yaml\n"},
                                         {"1.yaml", "base: 2.yaml\n"},
                                         {"2.yaml", "base: 3.yaml\n"},
                                         {"3.yaml", "base: 4.yaml\n"},
                                         {"4.yaml", "base: 5.yaml\n"},
                                         {"5.yaml", "base: 6.yaml\n"},
                                         {"6.yaml", "base: 7.yaml\n"},
                                         {"7.yaml", "base: 8.yaml\n"},
                                         {"8.yaml", SMALL}},
                         9, "F/7.yaml:1: base: more than 8 profiles, each the base of the previous one\n");
    // Problems of a base and of the profile together.
    expect_file_messages(
        (struct file[]){{"a.yaml", "base: b.yaml\nx: 1\n"}, {"b.yaml", SMALL "model: {launch_s: x}\n"}}, 2,
        "F/b.yaml:3: model.launch_s \"x\" is not a number from 0 to 1\n"
        "F/a.yaml:2: unknown key x; expected one of name, description, base, device, node, network, "
        "model, fit, measured\n");
}

Test(profile, an_unknown_name_says_where_the_names_are)
{
    struct problems problems = {0};
    struct cluster_profile *profile = NULL;
    cr_assert_eq(profile_load("dgx-a100-8", &profile, &problems), BAD_RECIPE);
    cr_expect_eq(problems.errors, 1);
    cr_expect(
        strstr(problems.list[0].text, "unknown cluster profile dgx-a100-8; did you mean dgx-a100-80?") ==
        problems.list[0].text);
    cr_expect_not_null(strstr(problems.list[0].text, "cuboid profile --list"));
    problems_free(&problems);
}

/* ---- shipped profiles ---- */

/* Orders of magnitude of accelerators from 2017 on; a wrong unit is outside of them. */
static void expect_plausible(const struct cluster_profile *p)
{
    const struct profile_device *d = &p->device;
    cr_expect(!d->is_cpu && d->cores >= 80 && d->cores <= 256);
    cr_expect(d->peak_flops[PROFILE_FP32] >= 1e13 && d->peak_flops[PROFILE_FP32] <= 2e14);
    cr_expect(d->peak_flops[PROFILE_FP16] >= 1e14 && d->peak_flops[PROFILE_FP16] <= 5e15);
    cr_expect(d->peak_flops[PROFILE_BF16] == 0.0 ||
              d->peak_flops[PROFILE_BF16] == d->peak_flops[PROFILE_FP16]);
    const double memory = (double)d->memory_bytes;
    cr_expect(memory >= 30e9 && memory <= 300e9 && (double)d->reserved_bytes <= 5e9);
    cr_expect(d->memory_bandwidth >= 8e11 && d->memory_bandwidth <= 1e13);
    cr_expect(p->node.devices == 8 || p->node.devices == 72);
    cr_expect(p->node.link_bandwidth >= 1e11 && p->node.link_bandwidth <= 1e12);
    cr_expect(p->node.link_latency_s >= 1e-7 && p->node.link_latency_s <= 1e-4);
    cr_expect(p->network.nics >= 1 && p->network.nics <= p->node.devices);
    cr_expect(p->network.bandwidth >= 1e10 && p->network.bandwidth <= 1e11);
    cr_expect(p->network.bandwidth * p->network.nics <= p->node.link_bandwidth * p->node.devices);
    cr_expect(p->network.latency_s >= p->node.link_latency_s && p->network.latency_s <= 1e-4);
}

Test(profile, shipped_profiles_are_valid)
{
    size_t count = 0;
    for (; profile_shipped_name(count) != NULL; count++) {
        struct problems problems = {0};
        struct cluster_profile *profile = NULL;
        const char *name = profile_shipped_name(count);
        cr_assert_eq(profile_load(name, &profile, &problems), OK, "%s: %s", name, fail_text());
        cr_expect_str_eq(profile->name, name);
        cr_expect_str_eq(profile->description, profile_shipped_description(count));
        expect_plausible(profile);
        profile_destroy(profile);
        problems_free(&problems);
    }
    cr_expect_geq(count, 14);
}

/* ---- kinds of GPUs ---- */

Test(profile, names_of_gpus)
{
    static const struct {
        const char *text, *profile;
        int compute_capability; // 0: unknown
    } cases[] = {
        {"A100", "dgx-a100-80", 80},
        {"a100-80gb", "dgx-a100-80", 80},
        {"A100_80GB", "dgx-a100-80", 80},
        {"A100-80GB SXM (Selene; 8xNVSwitch, 8x200Gb/s HDR IB per node)", "dgx-a100-80", 80},
        {"A100-80GB SXM, 40Gb/s Ethernet, 40GB/s", "dgx-a100-80", 80},
        {"A100 DGX-A100 (40GB era)", "dgx-a100-40", 80},
        {"a100 40 gb", "dgx-a100-40", 80},
        {"A100-SXM4-40GB", "dgx-a100-40", 80},
        {"8xA100s", "dgx-a100-80", 80},
        {"A100 PCIe", NULL, 80},
        {"h100 sxm", "dgx-h100", 90},
        {"H100SXM5", "dgx-h100", 90},
        {"NVIDIA H100 80GB HBM3", "dgx-h100", 90},
        {"H100 96GB HBM2e 500W", NULL, 90},
        {"H100 NVL", NULL, 90},
        {"DGX-H200", "dgx-h200", 90},
        {"b200", "dgx-b200", 100},
        {"GB200 NVL72", "gb200-nvl72", 100},
        {"DGX-GB200", "gb200-nvl72", 100},
        {"V100 DGX-2", "dgx-v100-32", 70},
        {"V100-SXM2-16GB", NULL, 70},
        {"GH200", NULL, 0},
        {"DGX-GB300", NULL, 0},
        {"A1000", NULL, 0},
        {"RTX 4090", NULL, 0},
        {"TPU v4", NULL, 0},
        {"", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *profile = gpu_type_profile(cases[i].text);
        const struct gpu_type *type = gpu_type_find(cases[i].text);
        cr_expect_str_eq(profile != NULL ? profile : "-", cases[i].profile != NULL ? cases[i].profile : "-",
                         "%s", cases[i].text);
        cr_expect_eq(type != NULL ? type->compute_capability : 0, cases[i].compute_capability, "%s",
                     cases[i].text);
    }
    cr_expect(gpu_type_matches("a100", "A100-SXM4-80GB"));
    cr_expect(gpu_type_matches("RTX 4090", "my GPU"), "a device that is not known can be any");
    cr_expect(!gpu_type_matches("A100-40GB", "A100-SXM4-80GB"));
    cr_expect(!gpu_type_matches("H200", "H100-SXM5-80GB"));
    cr_expect(!gpu_type_matches("RTX 4090", "H100-SXM5-80GB"));
}

/* Each shipped profile of GPUs is of a kind that is known, so that its attention kernels are. */
Test(profile, shipped_gpus_are_known)
{
    for (size_t i = 0; profile_shipped_name(i) != NULL; i++) {
        struct problems problems = {0};
        struct cluster_profile *profile = NULL;
        cr_assert_eq(profile_load(profile_shipped_name(i), &profile, &problems), OK);
        cr_expect_not_null(gpu_type_find(profile->device.name), "%s", profile->device.name);
        cr_expect_eq(strncmp(profile_shipped_name(i), "dgx-", 4) != 0 ||
                         strcmp(gpu_type_profile(profile->device.name), profile_shipped_name(i)) == 0,
                     true, "%s", profile_shipped_name(i));
        profile_destroy(profile);
    }
}

/* What a profile rests on: a fit, measurements, or a data sheet. */
Test(profile, basis)
{
    struct cluster_profile *profile = profile_create();
    struct text text = {0};
    profile_basis_text(profile, &text);
    cr_expect_not_null(strstr(text.chars, "data sheet and estimates, not fitted; "), "%s", text.chars);
    text_free(&text);
    profile_add_sample(profile, MEASURED_MEMORY, &(struct profile_sample){.shape = {8, 1, 1}, .value = 1e9});
    profile_basis_text(profile, &text);
    cr_expect_str_eq(text.chars, "measured rates, not fitted to step times");
    text_free(&text);
    profile->fit.rows = 31;
    profile->fit.error_fraction = 0.015;
    profile_basis_text(profile, &text);
    cr_expect_str_eq(text.chars,
                     "fitted to 31 step times; median error 1.5 %, unknown for step times left out of "
                     "the fit");
    text_free(&text);
    profile->fit.held_out_fraction = 0.023;
    profile_basis_text(profile, &text);
    cr_expect_str_eq(text.chars,
                     "fitted to 31 step times; median error 1.5 %, 2.3 % for step times left out of the "
                     "fit");
    text_free(&text);
    profile_named_basis_text("selene", &text);
    cr_expect_str_eq(text.chars,
                     "profile selene: fitted to 31 step times; median error 1.5 %, 2.3 % for step times "
                     "left out of the fit");
    text_free(&text);
    profile_named_basis_text("none-such", &text);
    cr_expect_eq(text.length, 0);
    profile_basis_word(profile, &text);
    cr_expect_str_eq(text.chars, "31 step times");
    text_free(&text);
    profile_destroy(profile);
}

/* ---- damaged files ---- */

/* Every truncation, and every byte replaced by some: never a crash, and an error names the file. */
Test(profile, damaged_files_are_rejected_or_read)
{
    static const unsigned char values[] = {0, '\n', ' ', ':', '{', '-', '9', 0xFF};
    const size_t length = strlen(FULL);
    char bytes[4096];
    struct profile_folder folder = folder_begin();
    for (size_t i = 0; i < length; i++) {
        const bool cut = i % 2 == 0;
        memcpy(bytes, FULL, length);
        bytes[i] = (char)values[i / 2 % sizeof values];
        folder_write(&folder, "P.yaml", bytes, cut ? i : length);
        struct loaded_profile loaded = folder_load(&folder, "P.yaml");
        cr_expect(loaded.profile != NULL || strncmp(text_chars(&loaded.messages), "F/P.yaml", 8) == 0,
                  "%zu: %s", i, text_chars(&loaded.messages));
        loaded_free(&loaded);
    }
    folder_end(&folder, (const char *const[]){"P.yaml", NULL});
}
