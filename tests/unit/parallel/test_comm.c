// SPDX-License-Identifier: Apache-2.0
/* The registry, the launchers, and the dry world. Communication between ranks is tested in tests/ranks. */
#include "parallel/group.h"
#include "parallel/p2p.h"
#include "tests/support/traffic.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void expect_error(const char *words)
{
    cr_assert(strstr(fail_text(), words) != NULL, "\"%s\" lacks \"%s\"", fail_text(), words);
}

static enum status nothing(struct world *world, void *argument)
{
    int *ranks_seen = argument;
    *ranks_seen += world->rank + 1;
    return OK;
}

/* ---- registry ---- */

static void free_nothing(struct comm *comm, void *handle)
{
    (void)comm;
    (void)handle;
}

/* Every transport of this build is complete, and is rejected when any one of its entries is missing. */
Test(comm, rejects_an_incomplete_table)
{
    for (size_t i = 0; transport_at(i) != NULL; i++) {
        cr_assert_eq(transport_check(transport_at(i)), OK, "%s", fail_text());
        const size_t entries[] = {
            offsetof(struct transport_ops, name),
            offsetof(struct transport_ops, summary),
            offsetof(struct transport_ops, run),
            offsetof(struct transport_ops, comm_create),
            offsetof(struct transport_ops, comm_destroy),
            offsetof(struct transport_ops, all_reduce),
            offsetof(struct transport_ops, reduce_scatter),
            offsetof(struct transport_ops, all_gather),
            offsetof(struct transport_ops, broadcast),
            offsetof(struct transport_ops, all_to_all),
            offsetof(struct transport_ops, exchange),
            offsetof(struct transport_ops, barrier),
        };
        // All entries of the ops table; the others are `device`, a bool, and an optional pair.
        cr_assert_eq(sizeof(struct transport_ops), (sizeof entries / sizeof *entries + 4) * sizeof(void *));
        for (size_t e = 0; e < sizeof entries / sizeof *entries; e++) {
            struct transport_ops incomplete = *transport_at(i);
            memset((char *)&incomplete + entries[e], 0, sizeof(void *));
            cr_assert_eq(transport_check(&incomplete), BAD_ARGUMENT);
            expect_error("does not provide");
        }
        struct transport_ops half = *transport_at(i);
        half.register_memory = NULL;
        half.unregister_memory = free_nothing;
        cr_assert_eq(transport_check(&half), BAD_ARGUMENT);
        expect_error("both or neither");
    }
}

static void no_launcher(void)
{
    const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",    "SLURM_STEP_ID",       "SLURM_STEPID",
        "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_NNODES",
        "SLURM_LOCALID",        "SLURMD_NODENAME",      "RANK",         "WORLD_SIZE",          "MASTER_ADDR",
        "LOCAL_RANK",           "LOCAL_WORLD_SIZE",     "CUBOID_NODE",  "MASTER_PORT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

Test(comm, names_the_transports, .init = no_launcher)
{
    int seen = 0;
    cr_assert_eq(world_run("lokal", 2, nothing, &seen), NOT_SUPPORTED);
    expect_error("did you mean \"local\"");
    expect_error("dry");
    cr_assert_eq(seen, 0);
}

Test(comm, runs_every_rank_once, .init = no_launcher)
{
    int seen = 0;
    cr_assert_eq(world_run("local", 1, nothing, &seen), OK);
    cr_assert_eq(seen, 1);
    seen = 0;
    cr_assert_eq(world_run("auto", 1, nothing, &seen), OK);
    cr_assert_eq(seen, 1);
    seen = 0;
    cr_assert_eq(world_run("dry", 4, nothing, &seen), OK);
    cr_assert_eq(seen, 1 + 2 + 3 + 4);
    seen = 0;
    cr_assert_eq(world_run_dry(1024, 700, nothing, &seen), OK);
    cr_assert_eq(seen, 701);
    cr_assert_eq(world_run_dry(4, 4, nothing, &seen), BAD_ARGUMENT);
}

/* ---- launchers ---- */

static struct launcher found(void)
{
    struct launcher launcher = {0};
    cr_assert_eq(launcher_find(&launcher), OK, "%s", fail_text());
    return launcher;
}

Test(launcher, none, .init = no_launcher)
{
    struct launcher l = found();
    cr_assert(l.size == 0 && l.rank == -1);
    setenv("OMPI_COMM_WORLD_SIZE", "many", 1); // a value that must not be trusted
    cr_assert_eq(found().size, 0);
}

Test(launcher, mpirun, .init = no_launcher)
{
    setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("SLURM_NTASKS", "16", 1); // inside an allocation
    setenv("SLURM_JOB_NUM_NODES", "2", 1);
    struct launcher l = found();
    cr_assert(l.size == 8 && l.rank == 3);
    cr_assert_str_eq(l.name, "mpirun");

    int seen = 0;
    cr_assert_eq(world_run("local", 8, nothing, &seen), BAD_USAGE);
    expect_error("each would run alone; start it without mpirun");
    if (strcmp(transport_at(1)->name, "mpi") == 0) { // if it is built
        cr_assert_eq(world_run("auto", 4, nothing, &seen), BAD_USAGE);
        expect_error("needs 4 ranks, but mpirun started 8");
    }
    cr_assert_eq(seen, 0);
}

Test(launcher, srun_with_pmix, .init = no_launcher)
{
    setenv("PMIX_RANK", "5", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_PROCID", "5", 1);
    setenv("SLURM_NTASKS", "16", 1);
    setenv("SLURM_STEP_NUM_TASKS", "8", 1);
    setenv("SLURM_JOB_NUM_NODES", "2", 1);
    struct launcher l = found();
    cr_assert(l.size == 8 && l.rank == 5);
    cr_assert_str_eq(l.name, "srun");
}

Test(launcher, srun_without_pmix_has_no_mpi, .init = no_launcher)
{
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_LOCALID", "1", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    setenv("SLURMD_NODENAME", "n2", 1);
    struct launcher l = found();
    cr_assert(l.size == 4 && l.rank == 3 && l.local_rank == 1 && !l.has_mpi);
    cr_assert_str_eq(l.name, "srun");
    cr_assert_str_eq(l.node, "n2");
    int seen = 0;
    if (strcmp(transport_at(1)->name, "mpi") == 0) {
        cr_assert_eq(world_run("auto", 4, nothing, &seen), BAD_USAGE);
        expect_error("srun started 4 processes without MPI");
        expect_error("--mpi=pmix");
    }
    cr_assert_eq(seen, 0);
    launcher_forget();
    cr_assert_eq(found().size, 0);
}

Test(launcher, torchrun, .init = no_launcher)
{
    setenv("RANK", "5", 1);
    setenv("WORLD_SIZE", "8", 1);
    cr_assert_eq(found().size, 0, "without MASTER_ADDR these may be any program's");
    setenv("MASTER_ADDR", "pod-0", 1);
    struct launcher pod = found();
    cr_assert(pod.size == 8 && pod.rank == 5 && pod.local_rank == 0 && !pod.has_mpi);
    cr_assert_str_eq(pod.name, "torchrun");
    cr_assert_str_eq(pod.host, "pod-0");
    setenv("LOCAL_RANK", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    struct launcher l = found();
    cr_assert(l.local_rank == 1 && strcmp(l.job, pod.job) != 0);
    // torchrun is itself started by srun --mpi=pmix, once per node.
    setenv("PMIX_RANK", "1", 1);
    setenv("SLURM_NTASKS", "2", 1);
    cr_assert_eq(found().size, 8);
    setenv("SLURM_NTASKS", "8", 1);
    cr_assert_str_eq(found().name, "srun");
    setenv("RANK", "8", 1);
    unsetenv("PMIX_RANK");
    cr_assert_eq(found().size, 0);
}

/* The shell of salloc is itself a step, with one of the largest numbers below 2^32. */
Test(launcher, a_shell_in_an_allocation_is_alone, .init = no_launcher)
{
    setenv("SLURM_NTASKS", "8", 1);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_JOB_NUM_NODES", "1", 1);
    cr_assert_eq(found().size, 0);
    setenv("SLURM_STEP_ID", "4294967290", 1);
    cr_assert_eq(found().size, 0);
    setenv("SLURM_JOB_NUM_NODES", "2", 1);
    struct launcher l;
    cr_assert_eq(launcher_find(&l), BAD_USAGE);
    expect_error("2 nodes");
}

/* ---- the dry world ---- */

static enum status exchange_messages(struct world *world, void *argument)
{
    (void)argument;
    struct mesh mesh;
    struct traffic traffic = {.count = 0};
    struct groups *groups = NULL;
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer x = {0};
    struct p2p *p2p = NULL;
    struct event sent;
    TRY(mesh_create((struct degrees){.tp = 8, .cp = 1, .ep = 1, .dp = 16, .pp = 8}, NULL, &mesh));
    TRY(world_observe(world, traffic_observer(&traffic)));
    TRY(groups_create(world, &mesh, 2, &groups));
    TRY(device_open(&(struct device_options){.name = "dry", .threads = 1}, &device));
    TRY(stream_create(device, "dry", &stream));
    TRY(buffer_alloc(device, PART_WEIGHTS, (size_t)1 << 40, &x)); // no device has a TiB
    struct tensor whole = tensor_1d(x.data, F32, 1000), share = tensor_1d(x.data, F32, 125);
    TRY(group_all_reduce(groups->tp, stream, whole, REDUCE_SUM));
    TRY(group_all_reduce(groups->tp, stream, whole, REDUCE_MAX));
    TRY(group_all_gather(groups->tp, stream, tensor_1d((char *)x.data + 500 * groups->tp->rank, F32, 125),
                         whole));
    TRY(group_broadcast(groups->data, stream, share, 15));
    TRY(group_barrier(groups->world, stream));
    TRY(p2p_create(world, groups, device, &(struct p2p_edge){.from_pp = 3, .to_pp = 4}, 1, &p2p));
    TRY(p2p_send(p2p, 4, false, whole, stream_record(stream), &sent));
    TRY(event_sync(sent));

    const struct traffic_row tp = traffic_of(&traffic, "tp"), edge = traffic_of(&traffic, "pp 3>4");
    bool right = tp.calls[CALL_ALL_REDUCE] == 2 && tp.bytes[CALL_ALL_REDUCE] == 8000 &&
                 tp.bytes[CALL_ALL_GATHER] == 4000 && tp.calls[CALL_BROADCAST] == 0 &&
                 edge.calls[CALL_SEND] == 1 && edge.bytes[CALL_SEND] == 4000 &&
                 edge.calls[CALL_RECEIVE] == 0 && traffic_of(&traffic, "dp").bytes[CALL_BROADCAST] == 500 &&
                 traffic_of(&traffic, "world").calls[CALL_BARRIER] == 1;
    p2p_destroy(p2p);
    buffer_free(&x);
    stream_destroy(stream);
    device_close(device);
    groups_destroy(groups);
    return right ? OK : fail(OUT_OF_BOUND, "the byte counts are wrong");
}

Test(dry, counts_messages_of_one_rank_in_a_thousand)
{
    struct mesh mesh;
    cr_assert_eq(mesh_create((struct degrees){.tp = 8, .cp = 1, .ep = 1, .dp = 16, .pp = 8}, NULL, &mesh),
                 OK);
    int rank = mesh_rank(&mesh, MESH_DENSE, (struct mesh_coord){.tp = 5, .dp = 9, .pp = 3});
    cr_assert_eq(world_run_dry(1024, rank, exchange_messages, NULL), OK, "%s", fail_text());
}

static bool has_ranks(const struct group *group, int count, const int *ranks)
{
    return group->size == count && memcmp(group->ranks, ranks, (size_t)count * sizeof *ranks) == 0;
}

/* The groups of a parameter follow from its mesh: here rank 5 of tp 4 x dp 2, with etp 1 and ep 2. */
static enum status find_groups(struct world *world, void *argument)
{
    bool experts = *(bool *)argument;
    struct mesh mesh;
    struct groups *groups = NULL;
    struct degrees degrees = {.tp = 4, .cp = 1, .ep = experts ? 2 : 1, .dp = 2, .pp = 1, .etp = experts};
    TRY(mesh_create(degrees, NULL, &mesh));
    TRY(groups_create(world, &mesh, 1, &groups));
    struct mesh_groups dense = groups_of(groups, MESH_DENSE), expert = groups_of(groups, MESH_EXPERT);
    bool right = has_ranks(dense.tp, 4, (const int[]){4, 5, 6, 7}) &&
                 has_ranks(dense.data, 2, (const int[]){1, 5}) && dense.tp == groups->tp;
    if (experts)
        right = right && has_ranks(expert.tp, 1, (const int[]){5}) &&
                has_ranks(expert.data, 4, (const int[]){1, 3, 5, 7}) && expert.data != dense.data;
    else
        right = right && expert.tp == dense.tp && expert.data == dense.data;
    groups_destroy(groups);
    return right ? OK : fail(OUT_OF_BOUND, "the groups of a mesh have other ranks");
}

Test(dry, finds_the_groups_of_each_mesh, .init = no_launcher)
{
    for (int experts = 0; experts <= 1; experts++) {
        bool with = experts == 1;
        cr_assert_eq(world_run_dry(8, 5, find_groups, &with), OK, "%s", fail_text());
    }
}

/* A device that computes would wait for data that never arrives; one that does not has no data to send. */
static enum status mix(struct world *world, void *argument)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct group *group = NULL;
    const int ranks[] = {0, 1};
    float x = 0;
    TRY(device_open(&(struct device_options){.name = argument, .threads = 1}, &device));
    TRY(stream_create(device, "mix", &stream));
    TRY(group_create(world, "all", 1, ranks, 2, &group));
    enum status status = group_all_reduce(group, stream, tensor_1d(&x, F32, 1), REDUCE_SUM);
    group_destroy(group);
    stream_destroy(stream);
    device_close(device);
    return status;
}

Test(dry, does_not_mix, .init = no_launcher)
{
    char cpu[] = "cpu", dry[] = "dry";
    cr_assert_eq(world_run_dry(2, 0, mix, cpu), BAD_ARGUMENT);
    expect_error("transport dry does not support device cpu");
    cr_assert_eq(world_run_dry(2, 0, mix, dry), OK);
    cr_assert_eq(world_run("local", 2, mix, dry), BAD_ARGUMENT);
    expect_error("rank 0: all_reduce all: transport local does not support device dry");
}

static enum status invalid_groups(struct world *world, void *argument)
{
    static const struct {
        int ranks[2], count;
        const char *words;
    } bad[] = {
        {{1, 1}, 2, "comm bad: rank 1 is listed twice"},
        {{1, 4}, 2, "comm bad: there is no rank 4 in a world of 4"},
        {{-1, 1}, 2, "comm bad: there is no rank -1"},
        {{2, 3}, 2, "comm bad: rank 1 is not a member"},
        {{1, 1}, 1, "comm bad: 1 ranks; a comm needs at least 2"},
    };
    (void)argument;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct comm *comm = NULL;
        cr_expect_eq(comm_create(world, "bad", 4, bad[i].ranks, bad[i].count, &comm), BAD_ARGUMENT);
        expect_error(bad[i].words);
    }
    return OK;
}

Test(dry, rejects_impossible_groups)
{
    cr_assert_eq(world_run_dry(4, 1, invalid_groups, NULL), OK);
}
