// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matmul/algorithms.h"

#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY "cluster.matmul_algorithms"
static const char first_line[] = "cuboid matmul algorithms 1\n";
enum { PATH_CHARS = 4096, MAX_BYTES = 16 << 20 };

struct entry {
    char key[ALGORITHM_KEY_CHARS];
    struct algorithm algorithm;
    bool looked_up, ours; // looked_up: looked up by some rank; ours: absent at the first lookup
};

struct algorithms {
    char path[PATH_CHARS];
    struct entry *list;
    size_t count, capacity;
};

/* ---- in memory ---- */

static struct entry *find(const struct algorithms *a, const char *key)
{
    for (size_t i = 0; i < a->count; i++)
        if (strcmp(a->list[i].key, key) == 0)
            return &a->list[i];
    return NULL;
}

/* The first entry of a key wins. */
static void add(struct algorithms *a, const char *key, const struct algorithm *algorithm)
{
    if (find(a, key) != NULL)
        return;
    if (a->count == a->capacity) {
        size_t capacity = 2 * a->capacity + 32;
        a->list = memory_resized(a->list, capacity, sizeof *a->list, "algorithms of matrix multiplications");
        a->capacity = capacity;
    }
    struct entry *entry = &a->list[a->count++];
    *entry = (struct entry){.algorithm = *algorithm};
    snprintf(entry->key, sizeof entry->key, "%s", key);
}

/* ---- as text ---- */

/* FNV-1a: rejects lines that are truncated or interleaved. */
static uint64_t checksum(const char *text, size_t length)
{
    uint64_t sum = 0xcbf29ce484222325U;
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3U;
    return sum;
}

static void write_entry(const struct entry *entry, struct text *out)
{
    size_t begin = out->length;
    text_add(out, "%s|", entry->key);
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        text_add(out, "%016" PRIx64, entry->algorithm.word[i]);
    uint64_t sum = checksum(text_chars(out) + begin, out->length - begin);
    text_add(out, "|%016" PRIx64 "\n", sum);
}

/* Sixteen digits, as written by write_entry(). */
static bool read_word(const char *digits, uint64_t *out)
{
    uint64_t word = 0;
    for (int i = 0; i < 16; i++) {
        const char *all = "0123456789abcdef", *digit = digits[i] != 0 ? strchr(all, digits[i]) : NULL;
        if (digit == NULL)
            return false;
        word = word << 4 | (uint64_t)(digit - all);
    }
    *out = word;
    return true;
}

/* line: without its newline. */
static bool read_entry(const char *line, size_t length, struct entry *out)
{
    enum { TAIL = 1 + 16 * ALGORITHM_WORDS + 1 + 16 };
    uint64_t sum;
    if (length <= TAIL || length - TAIL >= sizeof out->key || memchr(line, 0, length) != NULL)
        return false;
    const char *words = line + length - TAIL, *end = words + 1 + (size_t)16 * ALGORITHM_WORDS;
    if (*words != '|' || *end != '|' || !read_word(end + 1, &sum) ||
        sum != checksum(line, (size_t)(end - line)))
        return false;
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        if (!read_word(words + 1 + (size_t)16 * (size_t)i, &out->algorithm.word[i]))
            return false;
    memcpy(out->key, line, length - TAIL);
    out->key[length - TAIL] = 0;
    return true;
}

/* ---- the file ---- */

static enum status read_lines(struct algorithms *a, const struct text *text)
{
    const size_t head = sizeof first_line - 1;
    if (text->length == 0)
        return OK;
    const char *at = text_chars(text), *end = at + text->length;
    if (text->length < head || memcmp(at, first_line, head) != 0)
        return fail(BAD_DATA,
                    KEY ": %s is not a file of algorithms, and is left unchanged; use another path or none",
                    a->path);
    for (at += head; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline != NULL ? newline : end) - at);
        struct entry entry;
        if (newline != NULL && read_entry(at, length, &entry))
            add(a, entry.key, &entry.algorithm);
        at += length + 1;
    }
    return OK;
}

static enum status read_file(struct algorithms *a)
{
    struct text text = {0};
    if (access(a->path, F_OK) != 0)
        return OK;
    enum status status = file_read_small(a->path, MAX_BYTES, &text);
    if (status == OK)
        status = read_lines(a, &text);
    text_free(&text);
    return status;
}

static enum status write_file(const struct algorithms *a)
{
    struct text text = {0};
    text_add(&text, "%s", first_line);
    for (size_t i = 0; i < a->count; i++)
        write_entry(&a->list[i], &text);
    enum status status = file_write_atomic(a->path, text_chars(&text), text.length);
    text_free(&text);
    return status;
}

/* One writer at a time, of threads and of processes. The lock is on a separate file, because the data file is
 * replaced. Without locks (-1), two ranks may choose differently, and nothing worse. */
static int lock(const struct algorithms *a)
{
    char path[PATH_CHARS + 8];
    snprintf(path, sizeof path, "%s.lock", a->path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && flock(fd, LOCK_EX) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* ---- opening ---- */

static bool is_auto(const char *setting)
{
    return strcmp(setting, "auto") == 0;
}

static enum status find_path(const char *setting, char out[PATH_CHARS])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (!is_auto(setting))
        length = snprintf(out, PATH_CHARS, "%s", setting);
    else if (cache != NULL && cache[0] == '/')
        length = snprintf(out, PATH_CHARS, "%s/cuboid/matmul-algorithms", cache);
    else if (home != NULL && home[0] == '/')
        length = snprintf(out, PATH_CHARS, "%s/.cache/cuboid/matmul-algorithms", home);
    else
        return fail(BAD_ARGUMENT,
                    KEY ": auto uses $XDG_CACHE_HOME or $HOME, and neither is set; set one, or use a path "
                        "or none");
    return length < PATH_CHARS ? OK : fail(BAD_ARGUMENT, KEY ": a path of %d characters", length);
}

/* Creates the folders above `path`. */
static void make_folders(const char *path)
{
    char folder[PATH_CHARS];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(folder, 0777); // a failure shows when the file is opened
        *slash = '/';
    }
}

/* Whether the file can be created. Missing folders are created for auto; in an explicit path they are more
 * likely a mistake. */
static enum status check_reachable(const struct algorithms *a, bool makes_folders)
{
    char at[PATH_CHARS];
    struct stat found;
    snprintf(at, sizeof at, "%s", a->path);
    if (stat(at, &found) == 0)
        return S_ISREG(found.st_mode)
                   ? OK
                   : fail(BAD_ARGUMENT, KEY ": %s is not a file; use another path or none", at);
    for (;;) {
        char *slash = strrchr(at, '/');
        if (slash == NULL)
            snprintf(at, sizeof at, ".");
        else
            slash[slash == at ? 1 : 0] = 0;
        bool there = stat(at, &found) == 0;
        if (there && S_ISDIR(found.st_mode) && access(at, W_OK | X_OK) == 0)
            return OK;
        if (there || errno != ENOENT || slash == NULL || slash == at || !makes_folders)
            return fail(IO_ERROR, KEY ": cannot write %s (%s: %s); use another path or none", a->path, at,
                        strerror(there && !S_ISDIR(found.st_mode) ? ENOTDIR : errno));
    }
}

/* Checked before any time is spent on tuning. */
static enum status check_writable(const struct algorithms *a)
{
    char path[PATH_CHARS + 8];
    snprintf(path, sizeof path, "%s.lock", a->path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail(IO_ERROR, KEY ": cannot write %s (%s); use another path or none", a->path,
                    strerror(errno));
    close(fd);
    return OK;
}

enum status algorithms_open(const char *path, struct algorithms **out)
{
    struct algorithms *a = memory_zeroed(1, sizeof *a, "the choices of algorithms");
    enum status status = find_path(path, a->path);
    if (status == OK && is_auto(path))
        make_folders(a->path);
    if (status == OK)
        status = check_writable(a);
    if (status == OK)
        status = read_file(a);
    if (status == OK)
        *out = a;
    else
        algorithms_close(a);
    return status;
}

enum status algorithms_check(const char *path)
{
    struct algorithms *a = memory_zeroed(1, sizeof *a, "the choices of algorithms");
    enum status status = find_path(path, a->path);
    if (status == OK)
        status = check_reachable(a, is_auto(path));
    if (status == OK)
        status = read_file(a);
    algorithms_close(a);
    return status;
}

void algorithms_close(struct algorithms *algorithms)
{
    if (algorithms == NULL)
        return;
    free(algorithms->list);
    free(algorithms);
}

enum status algorithms_find(struct algorithms *algorithms, const char *key, struct algorithm *out,
                            bool *found)
{
    struct entry *entry = find(algorithms, key);
    if (entry == NULL) {
        TRY(read_file(algorithms)); // replaced atomically, so the contents are complete
        entry = find(algorithms, key);
    }
    *found = entry != NULL;
    if (entry != NULL) {
        *out = entry->algorithm;
        entry->looked_up = true;
    }
    return OK;
}

enum status algorithms_keep(struct algorithms *algorithms, const char *key, struct algorithm *algorithm)
{
    int fd = lock(algorithms);
    bool found;
    struct algorithm theirs;
    enum status status = algorithms_find(algorithms, key, &theirs, &found);
    if (status == OK && found)
        *algorithm = theirs;
    if (status == OK && !found) {
        add(algorithms, key, algorithm);
        find(algorithms, key)->ours = true;
        status = write_file(algorithms);
    }
    unlock(fd);
    return status;
}

void algorithms_report(const struct algorithms *algorithms, struct text *out)
{
    int count[2] = {0, 0};
    for (size_t i = 0; i < algorithms->count; i++)
        if (algorithms->list[i].ours || algorithms->list[i].looked_up)
            count[algorithms->list[i].ours]++;
    text_add(out, "matmul: %d algorithms from %s, %d timed and added to it\n", count[false], algorithms->path,
             count[true]);
    for (size_t i = 0; i < algorithms->count; i++)
        if (algorithms->list[i].ours || algorithms->list[i].looked_up)
            text_add(out, "  %s: %s\n", algorithms->list[i].ours ? "timed" : "cached",
                     algorithms->list[i].key);
}
