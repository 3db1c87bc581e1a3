// SPDX-License-Identifier: Apache-2.0
#include "parallel/transports/store/store.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "parallel/transports/store/store_server.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double CLOSE_S = 10.0;       // for the other processes to close theirs
static const double CLOSE_FAILED_S = 0.3; // for the others to be notified
static const double NOTICE = 1.0 / 60.0;  // of the time limit has passed: the wait is reported
enum { RETRY_MS = 20, WELCOME_MS = 2000 };

struct store {
    int file;                    // to the server of this node
    struct store_server *server; // NULL: of another process
    struct text path;            // of rank 0's address
    bool is_first;               // this is rank 0
};

/* The file of rank 0. */
struct address {
    char host[64];
    int port;
    uint8_t secret[STORE_SECRET];
};

/* ---- the address of rank 0 ---- */

static uint64_t hash_of(uint64_t hash, const char *text)
{
    for (; *text != 0; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

/* One for each start of a job: Slurm starts a requeued job under the same number. */
static uint64_t hash_of_job(const struct launcher *launcher)
{
    const char *restarts = getenv("SLURM_RESTART_COUNT"), *name = launcher->job;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char job[sizeof launcher->job];
    snprintf(job, sizeof job, "%s", name);
    if (strcmp(launcher->name, "torchrun") == 0 && strstr(job, " rank ") != NULL)
        *strstr(job, " rank ") = 0; // the others have the same file
    return hash_of(hash_of(hash, job), restarts != NULL ? restarts : "");
}

static void name_file(const struct store_options *options, struct text *out)
{
    text_add(out, "%s/.rendezvous-%016llx", options->folder,
             (unsigned long long)hash_of_job(options->launcher));
}

static void name_local(const struct store_options *options, char out[80])
{
    const uint64_t hash = hash_of(hash_of_job(options->launcher), options->launcher->node);
    snprintf(out, 80, "cuboid-store-%u-%016llx-%d", (unsigned)getuid(), (unsigned long long)hash,
             options->launcher->rank - options->launcher->local_rank);
}

static enum status write_address(const struct store *store, const struct address *address)
{
    struct file_temporary file;
    struct text text = {0};
    text_add(&text, "%s %d ", address->host, address->port);
    for (int i = 0; i < STORE_SECRET; i++)
        text_add(&text, "%02x", address->secret[i]);
    text_add(&text, "\n");
    enum status status = file_temporary_create(store->path.chars, &file);
    if (status == OK &&
        (fchmod(file.fd, 0600) != 0 || write(file.fd, text.chars, text.length) != (ssize_t)text.length))
        status = fail(IO_ERROR, "%s cannot be written: %s", store->path.chars, strerror(errno));
    if (status == OK)
        status = file_temporary_commit(&file, store->path.chars);
    file_temporary_discard(&file);
    text_free(&text);
    return status;
}

/* False if there is no complete file of this user; a file server may show root's as those of another one, and
 * then the folder, too. */
static bool read_address(const char *folder, const char *path, struct address *out)
{
    struct text text = {0};
    struct stat about, around;
    char hex[2 * STORE_SECRET + 1] = "";
    bool good = stat(path, &about) == 0 && stat(folder, &around) == 0 &&
                (about.st_uid == getuid() || about.st_uid == around.st_uid) && (about.st_mode & 077) == 0 &&
                file_read_small(path, 4096, &text) == OK &&
                sscanf(text_chars(&text), "%63s %d %64s", out->host, &out->port, hex) == 3 && out->port > 0 &&
                out->port < 65536 && strlen(hex) == 2 * STORE_SECRET;
    for (int i = 0; good && i < STORE_SECRET; i++) {
        unsigned byte;
        good = sscanf(hex + 2 * i, "%2x", &byte) == 1;
        out->secret[i] = (uint8_t)byte;
    }
    text_free(&text);
    return good;
}

/* ---- servers ---- */

static enum status start_first(const struct store_options *options, struct store *store,
                               struct store_server_options *server)
{
    struct address address = {.port = 0};
    const char *host = options->launcher->host;
    if (server->absent == 0) // there is no other node
        return OK;
    for (size_t i = 0; i < sizeof address.secret; i += sizeof(uint64_t)) {
        uint64_t word;
        TRY(random_token(&word));
        memcpy(address.secret + i, &word, sizeof word);
    }
    memcpy(server->secret, address.secret, sizeof server->secret);
    TRY(wire_listen(options->several_hosts ? host : WIRE_LOOPBACK, &server->tcp, &address.port));
    if (host[0] != 0)
        snprintf(address.host, sizeof address.host, "%s", host);
    else if (gethostname(address.host, sizeof address.host - 1) != 0)
        return fail(IO_ERROR, "this machine has no host name: %s", strerror(errno));
    return write_address(store, &address);
}

/* Connects to rank 0, and shows it the secret. -1: not yet, with the reason. */
static int connect_first(const struct store_options *options, const char *path, uint8_t *secret,
                         struct text *why)
{
    struct address address;
    struct store_hello hello = {.node = ""};
    struct wire_message m = {0};
    text_free(why);
    if (!read_address(options->folder, path, &address)) {
        text_add(why, "%s is not there: all processes must use the folder %s", path, options->folder);
        return -1;
    }
    text_add(why, "no answer from %s port %d; the other nodes must reach %s", address.host, address.port,
             options->launcher->host[0] != 0 ? "MASTER_ADDR, an address of rank 0's node"
                                             : "rank 0's node by its host name");
    int file = wire_connect(address.host, address.port);
    if (file < 0)
        return -1;
    snprintf(hello.node, sizeof hello.node, "%s", options->launcher->node);
    hello.ranks = options->local_size;
    memcpy(hello.secret, address.secret, sizeof hello.secret);
    const bool good = wire_send(file, STORE_HELLO, &hello, sizeof hello) && wire_is_ready(file, WELCOME_MS) &&
                      wire_receive(file, STORE_SECRET / 2, &m) && m.kind == STORE_WELCOME &&
                      m.bytes == STORE_SECRET / 2 &&
                      store_secret_equal(m.data, address.secret + STORE_SECRET / 2);
    wire_free(&m);
    memcpy(secret, address.secret, sizeof address.secret);
    if (good)
        return file;
    close(file);
    return -1;
}

/* Connects to rank 0 within the time limit. */
static enum status wait_for_first(const struct store_options *options, const char *path,
                                  struct store_server_options *server)
{
    const double begun = clock_s();
    bool reported = false;
    AUTO(text) why = {0};
    for (;;) {
        server->upstream = connect_first(options, path, server->secret, &why);
        if (server->upstream >= 0)
            return OK;
        const double waited = clock_s() - begun;
        if (waited > options->start_s)
            return fail(PEER_LOST, "rank 0 has not been reached within %.0f s: %s", options->start_s,
                        why.chars);
        if (waited > NOTICE * options->start_s && !reported)
            print_line(stderr, "node %s waits for rank 0: %s", options->launcher->node, why.chars);
        reported |= waited > NOTICE * options->start_s;
        poll(NULL, 0, RETRY_MS);
    }
}

/* The first process of each node has its server. */
static enum status start_server(const struct store_options *options, struct store *store, const char *name)
{
    struct store_server_options server = {.local = -1,
                                          .claim = -1,
                                          .tcp = -1,
                                          .upstream = -1,
                                          .absent = options->launcher->size - options->local_size};
    enum status status = wire_claim_local(name, &server.claim)
                             ? wire_listen_local(name, &server.local)
                             : fail(IO_ERROR, "an earlier start of this job has not ended on this node");
    if (status == OK && store->is_first)
        status = start_first(options, store, &server);
    else if (status == OK)
        status = wait_for_first(options, store->path.chars, &server);
    if (status == OK)
        return store_server_start(&server, &store->server);
    const int files[] = {server.local, server.claim, server.tcp};
    for (int i = 0; i < 3; i++)
        if (files[i] >= 0)
            close(files[i]);
    return status;
}

static enum status open_store(const struct store_options *options, struct store *store)
{
    const double until = clock_s() + options->start_s;
    char name[80];
    name_file(options, &store->path);
    name_local(options, name);
    if (options->launcher->local_rank == 0)
        TRY(start_server(options, store, name));
    for (;;) {
        store->file = wire_connect_local(name);
        if (store->file >= 0)
            return OK;
        if (clock_s() > until)
            return fail(PEER_LOST, "the first process of this node has not started within %.0f s",
                        options->start_s);
        poll(NULL, 0, RETRY_MS);
    }
}

enum status store_open(const struct store_options *options, struct store **out)
{
    struct store *store = memory_zeroed(1, sizeof *store, "a store");
    store->file = -1;
    store->is_first = options->launcher->rank == 0;
    enum status status = open_store(options, store);
    if (status == OK)
        *out = store;
    else
        store_close(store, true);
    return status;
}

void store_close(struct store *store, bool failed)
{
    static const char why[160] = "a rank has failed";
    if (store == NULL)
        return;
    if (store->file >= 0) {
        (void)(failed ? wire_send(store->file, STORE_LOST, why, sizeof why)
                      : wire_send(store->file, STORE_BYE, NULL, 0));
        close(store->file);
    }
    store_server_stop(store->server, failed ? CLOSE_FAILED_S : CLOSE_S);
    if (store->is_first)
        unlink(text_chars(&store->path));
    text_free(&store->path);
    free(store);
}

/* ---- calls ---- */

static enum status lost(const char *why)
{
    return fail(PEER_LOST, "rendezvous: %s", why);
}

static void make_key(const char *key, char out[STORE_KEY_CHARS])
{
    memset(out, 0, STORE_KEY_CHARS);
    CHECK(strlen(key) < STORE_KEY_CHARS);
    memcpy(out, key, strlen(key));
}

enum status store_set(struct store *store, const char *key, const void *data, size_t bytes)
{
    CHECK(bytes <= STORE_MAX_BYTES);
    char *message = memory_zeroed(STORE_KEY_CHARS + bytes, 1, "a message");
    make_key(key, message);
    memcpy(message + STORE_KEY_CHARS, data, bytes);
    const bool sent = wire_send(store->file, STORE_SET, message, STORE_KEY_CHARS + bytes);
    free(message);
    return sent ? OK : lost("the first process of this node has exited");
}

enum status store_get(struct store *store, const char *key, double limit_s, void *data, size_t bytes)
{
    char message[STORE_KEY_CHARS];
    struct wire_message m = {0};
    make_key(key, message);
    if (!wire_send(store->file, STORE_GET, message, sizeof message))
        return lost("the first process of this node has exited");
    if (!wire_is_ready(store->file, limit_s > 0.0 ? (int)(1000.0 * limit_s) : -1))
        return lost("no answer within the limit");
    enum status status = OK;
    if (!wire_receive(store->file, STORE_KEY_CHARS + STORE_MAX_BYTES, &m))
        status = lost("the first process of this node has exited");
    else if (m.kind == STORE_LOST && m.bytes > 0) {
        m.data[m.bytes - 1] = 0;
        status = lost((const char *)m.data);
    } else if (m.kind != STORE_VALUE || m.bytes < STORE_KEY_CHARS ||
               memcmp(m.data, message, sizeof message) != 0)
        status = lost("an answer to another call");
    else if (m.bytes != STORE_KEY_CHARS + bytes)
        status = fail(BAD_ARGUMENT, "rendezvous: %s has %zu bytes, and %zu are expected", key,
                      m.bytes - STORE_KEY_CHARS, bytes);
    else
        memcpy(data, m.data + STORE_KEY_CHARS, bytes);
    wire_free(&m);
    return status;
}
