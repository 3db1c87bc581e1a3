// SPDX-License-Identifier: Apache-2.0
/* Predicted times of ops and messages: closed forms, precedence of measured tables, monotonicity. */
#include "tests/unit/planner/ideal_profile.h"

#include "base/philox.h"
#include "planner/cost/cost.h"
#include "planner/cost/cost_measured.h"

#include <criterion/criterion.h>
#include <math.h>

static void expect_near(double got, double expected)
{
    cr_expect(fabs(got - expected) <= 1e-12 * fabs(expected), "%.17g instead of %.17g", got, expected);
}

static struct op_record matmul(int64_t m, int64_t n, int64_t k)
{
    return (struct op_record){.kind = OP_GEMM,
                              .dtype = BF16,
                              .shape = {m, n, k},
                              .launches = 1,
                              .cost = {2.0 * (double)(m * n * k), 0.0}};
}

/* ---- ops ---- */

Test(cost, matmul_at_peak)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8};
    struct op_record op = matmul(1024, 2048, 512);
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 1024 * 2048 * 512 / 1e14);
    p->model.matmul_efficiency = 0.5;
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 2.0 * 1024 * 2048 * 512 / 1e14);
    p->model.matmul_half_k = 512.0; // half the rate at k 512
    expect_near(cost_of_op(&options, &op).run_s, 4.0 * 2.0 * 1024 * 2048 * 512 / 1e14);
    p->model.matmul_half_flops = 3e8; // 3 us, whatever the rate of this shape
    expect_near(cost_of_op(&options, &op).run_s, 4.0 * 2.0 * 1024 * 2048 * 512 / 1e14 + 3e-6);
    op.cost.bytes = 1e9; // limited by memory
    expect_near(cost_of_op(&options, &op).run_s, 1e9 / 1e12);
    profile_destroy(p);
}

Test(cost, waves_and_alignment)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8};
    p->device.cores = 100;
    p->model.matmul_tile = 128;
    p->model.matmul_unaligned = 0.5;
    // 16 x 16 tiles on 100 cores: 3 rounds of 100 for 256 tiles
    struct op_record op = matmul(2048, 2048, 1024), odd = matmul(2048, 2048, 1023),
                     even = matmul(2048, 2048, 1020);
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 2048 * 2048 * 1024 / 1e14 * 300.0 / 256.0);
    // loads of 8 and of 2 bytes instead of 16
    expect_near(cost_of_op(&options, &even).run_s, 2.0 * 2.0 * 2048 * 2048 * 1020 / 1e14 * 300.0 / 256.0);
    expect_near(cost_of_op(&options, &odd).run_s, 8.0 * 2.0 * 2048 * 2048 * 1023 / 1e14 * 300.0 / 256.0);
    // without tensor cores, at most the rate of fp32; loads of 8 bytes feed them
    p->device.peak_flops[PROFILE_FP32] = 1e14 / 16.0;
    expect_near(cost_of_op(&options, &odd).run_s, 16.0 * 2.0 * 2048 * 2048 * 1023 / 1e14 * 300.0 / 256.0);
    expect_near(cost_of_op(&options, &even).run_s, 2.0 * 2.0 * 2048 * 2048 * 1020 / 1e14 * 300.0 / 256.0);
    profile_destroy(p);
}

Test(cost, memory_and_launches)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8};
    p->model.launch_s = 5e-6;
    p->model.memory_efficiency = 0.5;
    p->model.memory_half_bytes = 1e6;
    struct op_record op = {.kind = OP_ADD, .dtype = F32, .launches = 1, .cost = {0.0, 1e6}};
    expect_near(cost_of_op(&options, &op).run_s, 1e6 / (1e12 * 0.5 * 0.5));
    expect_near(cost_of_op(&options, &op).launch_s, 5e-6);
    struct op_record nothing = {.kind = OP_POISON, .dtype = F32};
    expect_near(cost_of_op(&options, &nothing).run_s, 0.0);
    expect_near(cost_of_op(&options, &nothing).launch_s, 0.0);
    profile_destroy(p);
}

/* A rank has its threads' part of the cores and the memory bandwidth of a CPU, and a GPU of its own. */
Test(cost, shared_cpu)
{
    struct cluster_profile *p = ideal_profile(1e12, 1e10);
    struct cost_options options = {.profile = p, .ranks_per_node = 4, .threads = 1};
    struct op_record op = matmul(64, 64, 64), copy = {.kind = OP_COPY, .launches = 1, .cost = {0.0, 1e6}};
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 64 * 64 * 64 / 1e12);
    p->device.is_cpu = true;
    p->device.cores = 2;
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 2.0 * 64 * 64 * 64 / 1e12);
    expect_near(cost_of_op(&options, &copy).run_s, 2.0 * 1e6 / 1e10);
    cr_expect(cost_threads(&options) == 1);
    options.threads = 0; // a thread for each of four ranks on two cores
    cr_expect(cost_threads(&options) == 1);
    options.ranks_per_node = 1; // all cores
    cr_expect(cost_threads(&options) == 2);
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 64 * 64 * 64 / 1e12);
    options.threads = 5;
    cr_expect(cost_threads(&options) == 2);
    profile_destroy(p);
}

Test(cost, measured_tables_take_precedence)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8};
    struct op_record op = matmul(64, 64, 64), between = matmul(128, 64, 64);
    profile_add_sample(p, MEASURED_MATMUL,
                       &(struct profile_sample){.shape = {64, 64, 64}, .dtype = PROFILE_BF16, .value = 1e12});
    profile_add_sample(
        p, MEASURED_MATMUL,
        &(struct profile_sample){.shape = {256, 64, 64}, .dtype = PROFILE_BF16, .value = 4e12});
    profile_add_sample(p, MEASURED_MATMUL,
                       &(struct profile_sample){.shape = {64, 64, 64}, .dtype = PROFILE_FP16, .value = 1e9});
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 64 * 64 * 64 / 1e12);
    // equally far from both, in log space: their geometric mean
    expect_near(cost_of_op(&options, &between).run_s, 2.0 * 128 * 64 * 64 / 2e12);
    profile_destroy(p);
}

/* Weight gradients have samples of their own; without any, those of other matmuls. */
Test(cost, measured_weight_gradients)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8};
    struct op_record op = matmul(64, 64, 64), gradient = op;
    struct profile_sample sample = {.shape = {64, 64, 64}, .dtype = PROFILE_BF16, .value = 4e12};
    gradient.transposed = true;
    profile_add_sample(p, MEASURED_MATMUL, &sample);
    expect_near(cost_of_op(&options, &gradient).run_s, 2.0 * 64 * 64 * 64 / 4e12);
    sample.shape[2] = 128;
    sample.transposed = true;
    sample.value = 1e12;
    profile_add_sample(p, MEASURED_MATMUL, &sample);
    expect_near(cost_of_op(&options, &gradient).run_s, 2.0 * 64 * 64 * 64 / 1e12);
    expect_near(cost_of_op(&options, &op).run_s, 2.0 * 64 * 64 * 64 / 4e12);
    profile_destroy(p);
}

/* Of a CPU with 4 cores, with `threads` for each rank. */
static double cpu_op_s(struct cluster_profile *p, int threads, const struct op_record *op)
{
    const struct cost_options options = {.profile = p, .ranks_per_node = 4, .threads = threads};
    return cost_of_op(&options, op).run_s;
}

/* Rows of a multiple of a page are slow on a CPU: samples with such rows count, whatever their size. On a GPU
 * only sizes count. */
Test(cost, row_alignment)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct op_record aligned = matmul(4096, 64, 64), odd = matmul(3840, 64, 64), by_n = matmul(64, 4096, 64);
    struct profile_sample sample = {.dtype = PROFILE_BF16, .threads = 1, .transposed = true};
    aligned.transposed = odd.transposed = by_n.transposed = true;
    p->device.cores = 4;
    for (int n = 0; n < 2; n++) {
        for (int i = 0; i < 2; i++) {
            const int64_t rows[] = {2048, 1920};
            const double rates[] = {1e9, 2e9};
            sample.shape[n] = rows[i];
            sample.shape[1 - n] = sample.shape[2] = 64;
            sample.value = rates[i];
            profile_add_sample(p, MEASURED_MATMUL, &sample);
        }
    }
    cr_expect_float_eq(cpu_op_s(p, 1, &aligned) / cpu_op_s(p, 1, &odd), 4096.0 / 3840, 0.1); // a GPU
    p->device.is_cpu = true;
    cr_expect_float_eq(cpu_op_s(p, 1, &aligned), 2.0 * 4096 * 64 * 64 / 1e9, 1e-3);
    cr_expect_float_eq(cpu_op_s(p, 1, &by_n), 2.0 * 4096 * 64 * 64 / 1e9, 1e-3);
    cr_expect_float_eq(cpu_op_s(p, 1, &odd), 2.0 * 3840 * 64 * 64 / 2e9, 1e-3);
    profile_destroy(p);
}

/* One thread at 1e9 B/s, four at 2e9: two are in between, in log space. */
Test(cost, measured_threads)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    p->device.is_cpu = true;
    p->device.cores = 4;
    const struct op_record op = {.kind = OP_ADAMW, .dtype = F32, .shape = {1, 64, 0}, .cost = {0.0, 1e6}};
    struct op_record other = op;
    other.kind = OP_FILL; // not measured
    profile_add_sample(
        p, MEASURED_OP,
        &(struct profile_sample){.shape = {1, 64}, .op = OP_ADAMW, .threads = 1, .value = 1e9});
    expect_near(cpu_op_s(p, 1, &op), 1e-3);
    expect_near(cpu_op_s(p, 2, &op), 5e-4); // twice as fast, as far as is known
    expect_near(cpu_op_s(p, 4, &other), 1e-6);
    profile_add_sample(p, MEASURED_OP,
                       &(struct profile_sample){.shape = {1, 64}, .op = OP_ADAMW, .value = 2e9}); // all cores
    expect_near(cpu_op_s(p, 1, &op), 1e-3);
    expect_near(cpu_op_s(p, 2, &op), 1e-3 / sqrt(2.0));
    expect_near(cpu_op_s(p, 4, &op), 5e-4);
    profile_destroy(p);
}

/* A measured matmul includes its memory traffic. More threads are faster as far as they divide it. */
Test(cost, measured_matmuls_of_threads)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    p->device.is_cpu = true;
    p->device.cores = 4;
    struct op_record large = matmul(2048, 2048, 64), small = matmul(16, 16, 64);
    large.dtype = small.dtype = F32;
    large.cost.bytes = 1e15;
    profile_add_sample(p, MEASURED_MATMUL,
                       &(struct profile_sample){.shape = {2048, 2048, 64}, .threads = 1, .value = 1e9});
    for (int threads = 1; threads <= 4; threads++) {
        expect_near(cpu_op_s(p, threads, &large),
                    2.0 * 2048 * 2048 * 64 / 1e9 / cpu_matmul_speedup(2048, 2048, threads));
        expect_near(cpu_op_s(p, threads, &small), 2.0 * 16 * 16 * 64 / 1e9);
    }
    expect_near(cpu_matmul_speedup(16, 16, 8), 1.0);
    expect_near(cpu_matmul_speedup(2048, 2048, 1), 1.0);
    expect_near(cpu_matmul_speedup(2048, 2048, 2), 2.0);
    cr_expect(cpu_matmul_speedup(4096, 1024, 3) > 2.5 && cpu_matmul_speedup(4096, 1024, 3) <= 3.0);
    profile_destroy(p);
}

/* ---- messages ---- */

Test(cost, rings)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8};
    const struct group_shape eight = {.ranks = 8, .nodes = 1, .per_node = 8};
    p->node.link_bandwidth = 1e11;
    expect_near(cost_of_message(&options, CALL_ALL_REDUCE, eight, 1000000000), 2.0 * 7.0 / 8.0 * 1e9 / 1e11);
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, eight, 1000000000), 7.0 / 8.0 * 1e9 / 1e11);
    expect_near(cost_of_message(&options, CALL_REDUCE_SCATTER, eight, 1000000000), 7.0 / 8.0 * 1e9 / 1e11);
    expect_near(cost_of_message(&options, CALL_BROADCAST, eight, 1000000000), 1e9 / 1e11);
    expect_near(cost_of_message(&options, CALL_SEND, eight, 1000000000), 1e9 / 1e11);
    expect_near(cost_of_message(&options, CALL_ALL_REDUCE,
                                (struct group_shape){.ranks = 1, .nodes = 1, .per_node = 1}, 1000),
                0.0);
    profile_destroy(p);
}

/* On a GPU with deterministic: true. Chunks of 64 MiB; up to 64 KiB all ranks gather and add everything. */
Test(cost, sums_in_rank_order)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8, .in_order = true};
    const struct group_shape four = {.ranks = 4, .nodes = 1, .per_node = 4};
    const double chunk = 64 << 20, latency = 3 * 1e-6, launch = 2e-6;
    p->node.link_bandwidth = 1e11;
    p->node.link_latency_s = 1e-6;
    p->model.launch_s = launch;
    const double wire = 0.75 * chunk / 1e11, add = launch + 1.25 * chunk / 1e12;
    expect_near(cost_of_message(&options, CALL_REDUCE_SCATTER, four, 2 * (64 << 20)),
                2 * (latency + wire + add));
    expect_near(cost_of_message(&options, CALL_ALL_REDUCE, four, 2 * (64 << 20)),
                2 * (2 * latency + 2 * wire + add));
    expect_near(cost_of_message(&options, CALL_ALL_REDUCE, four, 1000),
                latency + 3 * 1000 / 1e11 + launch + 5 * 1000 / 1e12);
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, four, 1000), latency + 0.75 * 1000 / 1e11);
    options.in_order = false;
    expect_near(cost_of_message(&options, CALL_REDUCE_SCATTER, four, 2 * (64 << 20)), latency + 2 * wire);
    profile_destroy(p);
}

/* Data ranks on every eighth GPU of 4 nodes share the NICs with the 7 other groups. */
Test(cost, between_nodes)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    struct cost_options options = {.profile = p, .ranks_per_node = 8};
    p->node.link_bandwidth = 1e12;
    p->network.nics = 4;
    p->network.bandwidth = 2e10;
    const int apart[] = {0, 8, 16, 24}, together[] = {0, 1, 2, 3, 8, 9, 10, 11};
    struct group_shape shape = cost_group_shape(&options, apart, 4);
    cr_expect(shape.ranks == 4 && shape.nodes == 4 && shape.per_node == 1);
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, shape, 1000000000),
                3.0 / 4.0 * 1e9 / (4 * 2e10 / 8.0));
    shape = cost_group_shape(&options, together, 8);
    cr_expect(shape.ranks == 8 && shape.nodes == 2 && shape.per_node == 4);
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, shape, 1000000000),
                7.0 / 8.0 * 1e9 / (4 * 2e10 * 4.0 / 8.0));
    p->network.latency_s = 1e-3; // one round: 4 links between nodes
    shape = cost_group_shape(&options, apart, 4);
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, shape, 0), 4e-3);
    expect_near(cost_of_message(&options, CALL_ALL_REDUCE, shape, 0), 4e-3); // a tree of depth 2, twice
    profile_destroy(p);
}

/* Below 0: not measured. */
static double transfer_s(const struct profile_measured *table, int ranks, int nodes, double bytes)
{
    const struct measured_transfer transfer = {.ranks = ranks, .nodes = nodes, .bytes = bytes};
    double seconds;
    return measured_seconds(table, &transfer, &seconds) ? seconds : -1.0;
}

Test(cost, measured_messages)
{
    struct profile_sample list[] = {{.shape = {4, 1, 1000}, .value = 1e-5},
                                    {.shape = {4, 1, 3000}, .value = 2e-5},
                                    {.shape = {2, 1, 1000}, .value = 1.0}};
    const struct profile_measured table = {.list = list, .count = 3};
    expect_near(transfer_s(&table, 4, 1, 2000.0), 1.5e-5);
    expect_near(transfer_s(&table, 4, 1, 6000.0), 4e-5);
    expect_near(transfer_s(&table, 4, 1, 10.0), 1e-5);
    expect_near(transfer_s(&table, 4, 1, 1000.0), 1e-5);
    cr_expect(transfer_s(&table, 8, 1, 1000.0) < 0.0);
    cr_expect(transfer_s(&table, 4, 2, 1000.0) < 0.0);
}

/* On a CPU: of samples with other ranks on the node, the nearest; of processes, if there are any. */
Test(cost, measured_messages_of_a_cpu)
{
    static const double seconds[] = {1e-3, 2e-3, 4e-3, 8e-3};
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    const struct group_shape two = {.ranks = 2, .nodes = 1, .per_node = 2};
    p->device.is_cpu = true;
    for (int i = 0; i < 3; i++) // 2 of 2, of 4, of 16 ranks
        profile_add_sample(p, MEASURED_ALL_GATHER,
                           &(struct profile_sample){.shape = {2, 1, 1000},
                                                    .node_ranks = i > 0 ? 4 * i * i : 0,
                                                    .value = seconds[i]});
    struct cost_options options = {.profile = p, .ranks_per_node = 2};
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, two, 1000), 1e-3);
    options.ranks_per_node = 4;
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, two, 1000), 2e-3);
    options.ranks_per_node = 64;
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, two, 1000), 4e-3);
    options.processes = true;
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, two, 1000), 4e-3);
    profile_add_sample(
        p, MEASURED_ALL_GATHER,
        &(struct profile_sample){.shape = {2, 1, 1000}, .processes = true, .value = seconds[3]});
    expect_near(cost_of_message(&options, CALL_ALL_GATHER, two, 1000), 8e-3);
    profile_destroy(p);
}

/* A message between two ranks of a larger group is one of its ring, if that is measured. */
Test(cost, measured_messages_of_a_ring)
{
    struct cluster_profile *p = ideal_profile(1e14, 1e12);
    const struct cost_options options = {.profile = p, .ranks_per_node = 8};
    struct group_shape two = {.ranks = 2, .nodes = 1, .per_node = 2};
    for (int ranks = 2; ranks <= 4; ranks *= 2)
        profile_add_sample(p, MEASURED_P2P,
                           &(struct profile_sample){.shape = {ranks, 1, 1000}, .value = 1e-3 * ranks});
    expect_near(cost_of_message(&options, CALL_SEND, two, 1000), 2e-3);
    two.ring = 4;
    expect_near(cost_of_message(&options, CALL_SEND, two, 1000), 4e-3);
    two.ring = 8;
    expect_near(cost_of_message(&options, CALL_RECEIVE, two, 1000), 2e-3);
    profile_destroy(p);
}

/* No op and no message takes longer on a faster device, link or network. */
Test(cost, faster_is_never_slower)
{
    const struct philox generator = philox_named(7, "cost");
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t draw = 16 * i;
#define DRAW(most) ((int64_t)(philox_uniform(philox_word(generator, i, draw++)) * (most)) + 1)
        const double peak = 1e9 * (double)DRAW(1000), memory = 1e9 * (double)DRAW(100);
        struct cluster_profile *slow = ideal_profile(peak, memory),
                               *fast = ideal_profile(2.0 * peak, 3.0 * memory);
        slow->node.link_bandwidth = 1e9 * (double)DRAW(100);
        slow->network.nics = fast->network.nics = (int)DRAW(8);
        slow->network.bandwidth = 1e9 * (double)DRAW(10);
        fast->node.link_bandwidth = 1.5 * slow->node.link_bandwidth;
        fast->network.bandwidth = 2.0 * slow->network.bandwidth;
        struct cost_options options[] = {{.profile = slow, .ranks_per_node = 8},
                                         {.profile = fast, .ranks_per_node = 8}};
        const int64_t m = DRAW(4096), n = DRAW(4096), k = DRAW(4096);
        struct op_record op = matmul(m, n, k);
        op.cost.bytes = (double)DRAW(1e8);
        cr_expect(cost_of_op(&options[1], &op).run_s <= cost_of_op(&options[0], &op).run_s);
        const struct group_shape shape = {.ranks = 16, .nodes = 4, .per_node = 4};
        const enum call call = (enum call)(DRAW(CALL_COUNT) - 1);
        const int64_t bytes = DRAW(1e9);
        cr_expect(cost_of_message(&options[1], call, shape, bytes) <=
                  cost_of_message(&options[0], call, shape, bytes));
        profile_destroy(slow);
        profile_destroy(fast);
#undef DRAW
    }
}
