// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/lock_owner.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/files/json_read.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 14 };

/* ---- this process ---- */

/* Start time of a process in ticks since boot; -1 if it does not exist. */
static int64_t start_of(int64_t pid)
{
    enum { FIELDS_AFTER_NAME = 20 };
    AUTO(text) path = {0}, text = {0};
    int64_t started = -1;
    text_add(&path, "/proc/%" PRId64 "/stat", pid);
    if (access(path.chars, F_OK) == 0 && file_read_small(path.chars, MAX_BYTES, &text) == OK) {
        const char *at = strrchr(text_chars(&text), ')'); // the process name may contain anything
        for (int i = 0; i < FIELDS_AFTER_NAME && at != NULL; i++)
            at = strchr(at + 1, ' ');
        started = at != NULL ? strtoll(at, NULL, 10) : -1;
    }
    return started;
}

static void machine_text(char out[LOCK_OWNER_TEXT_CHARS])
{
    struct text boot = {0};
    char space[64] = "";
    if (file_read_small("/proc/sys/kernel/random/boot_id", MAX_BYTES, &boot) != OK)
        text_free(&boot);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
        space[0] = 0;
    snprintf(out, LOCK_OWNER_TEXT_CHARS, "%.*s %s", (int)strcspn(text_chars(&boot), "\n"), text_chars(&boot),
             space);
    text_free(&boot);
}

static void job_text(char out[LOCK_OWNER_TEXT_CHARS])
{
    static const char *const names[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"};
    out[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && out[0] == 0; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && *value != 0)
            snprintf(out, LOCK_OWNER_TEXT_CHARS, "%s %.64s", names[i], value);
    }
}

enum status lock_owner_self(struct lock_owner *out)
{
    uint64_t token;
    *out = (struct lock_owner){.pid = getpid(), .started = start_of(getpid())};
    TRY(random_token(&token));
    snprintf(out->token, sizeof out->token, "%016" PRIx64, token);
    if (gethostname(out->host, sizeof out->host - 1) != 0)
        snprintf(out->host, sizeof out->host, "%s", "unknown");
    machine_text(out->machine);
    job_text(out->job);
    return OK;
}

bool lock_owner_is_local(const struct lock_owner *owner)
{
    char machine[LOCK_OWNER_TEXT_CHARS];
    machine_text(machine);
    return strcmp(owner->machine, machine) == 0;
}

bool lock_owner_is_alive(const struct lock_owner *owner)
{
    int64_t started = start_of(owner->pid);
    return started >= 0 && started == owner->started;
}

/* ---- as text ---- */

void lock_owner_describe(const struct lock_owner *owner, struct text *out)
{
    if (owner->token[0] == 0) {
        text_add(out, "an unknown process");
        return;
    }
    text_add(out, "pid %" PRId64 " on ", owner->pid);
    text_add_printable(out, owner->host, strlen(owner->host));
    if (owner->job[0] != 0)
        text_add(out, ", ");
    text_add_printable(out, owner->job, strlen(owner->job));
}

void lock_owner_text(const struct lock_owner *owner, struct text *out)
{
    text_add(out, "{\"token\": \"%s\", \"host\": ", owner->token);
    text_add_json(out, owner->host);
    text_add(out, ", \"machine\": ");
    text_add_json(out, owner->machine);
    text_add(out, ", \"job\": ");
    text_add_json(out, owner->job);
    text_add(out, ", \"pid\": %" PRId64 ", \"started\": %" PRId64 "}\n", owner->pid, owner->started);
}

static bool take_text(const json_t *root, const char *key, size_t size, char *out)
{
    const char *value = json_string_value(json_object_get(root, key));
    if (value == NULL || strlen(value) >= size)
        return false;
    memcpy(out, value, strlen(value) + 1);
    return true;
}

static bool parse(const struct text *text, struct lock_owner *out)
{
    json_t *root = json_read(text_chars(text), text->length, JSON_REJECT_DUPLICATES, NULL);
    const json_t *pid = json_object_get(root, "pid"), *started = json_object_get(root, "started");
    bool good = take_text(root, "token", sizeof out->token, out->token) && out->token[0] != 0 &&
                take_text(root, "host", sizeof out->host, out->host) &&
                take_text(root, "machine", sizeof out->machine, out->machine) &&
                take_text(root, "job", sizeof out->job, out->job) && json_is_integer(pid) &&
                json_is_integer(started);
    out->pid = json_integer_value(pid);
    out->started = json_integer_value(started);
    json_decref(root);
    return good;
}

/* Reopened each time, so that a network file system revalidates its cache. */
enum status lock_owner_read(const char *path, struct lock_owner *out)
{
    struct stat info;
    AUTO(text) text = {0};
    *out = (struct lock_owner){.pid = 0};
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? OK : fail(IO_ERROR, "%s: %s", path, strerror(errno));
    bool good = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    char chunk[1024];
    ssize_t got;
    while (good && text.length < MAX_BYTES && (got = read(fd, chunk, sizeof chunk)) > 0)
        text_add_bytes(&text, chunk, (size_t)got);
    close(fd);
    if (!good || !parse(&text, out))
        *out = (struct lock_owner){.pid = 0};
    out->renewed_ns = good ? info.st_mtim.tv_sec * INT64_C(1000000000) + info.st_mtim.tv_nsec : 0;
    return OK;
}
