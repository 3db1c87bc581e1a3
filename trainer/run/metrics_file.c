// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/metrics_file.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/run/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char unwritten_name[] = "metrics-unwritten.jsonl";

struct metrics_file {
    int fd;
    off_t bytes; // in complete lines
    bool lost;
    time_t checked; // time of the last check of the path
    struct text path, run_dir;
    struct text resumed;        // the line of the step before the first one; empty: not kept
    struct text unwritten;      // lines pending until there is space
    struct text unwritten_path; // destination if the disk stays full; empty: none
};

/* ---- reading ---- */

/* The step of a line (without newline); -1 if it is not a complete metrics line. */
static int64_t step_of_line(const char *line, size_t length)
{
    static const char begin[] = "{\"step\": ";
    const size_t head = sizeof begin - 1;
    if (length <= head || memcmp(line, begin, head) != 0 || line[length - 1] != '}' ||
        memchr(line, 0, length) != NULL || memmem(line + 1, length - 1, begin, head) != NULL)
        return -1;
    char *end = NULL;
    long long step = strtoll(line + head, &end, 10);
    return step > 0 && (*end == ',' || *end == '}') ? (int64_t)step : -1;
}

/* Result of reading the lines of a file. */
struct kept {
    struct text lines;
    int64_t first, last; // steps; 0: none
    size_t begin;        // of the last line
    int64_t missing, first_missing;
    int bad, first_bad; // damaged lines; number of the first
};

static void keep_line(struct kept *kept, const char *line, size_t length, int64_t step)
{
    int64_t expected = kept->last + 1;
    if (kept->last > 0 && step > expected) {
        kept->first_missing = kept->missing == 0 ? expected : kept->first_missing;
        kept->missing += step - expected;
    }
    kept->begin = kept->lines.length;
    text_add_bytes(&kept->lines, line, length);
    text_add(&kept->lines, "\n");
    kept->first = kept->first > 0 ? kept->first : step;
    kept->last = step > kept->last ? step : kept->last;
}

/* Adds the lines of `all` with a step below `below`. newer: only steps that are not in `kept` yet. */
static void keep_lines(const struct text *all, int64_t below, bool newer, struct kept *kept)
{
    int number = 1;
    for (size_t at = 0; at < all->length; number++) {
        const char *line = all->chars + at, *end = memchr(line, '\n', all->length - at);
        size_t length = end != NULL ? (size_t)(end - line) : all->length - at;
        int64_t step = end != NULL ? step_of_line(line, length) : -1;
        if (step < 0)
            kept->first_bad = kept->bad++ == 0 ? number : kept->first_bad;
        else if (step < below && (!newer || step > kept->last))
            keep_line(kept, line, length, step);
        at += length + 1;
    }
}

/* The first unused RUN_DIR/metrics-N.jsonl. */
static void free_name(const char *run_dir, struct text *out)
{
    struct stat info;
    for (int n = 1; out->length == 0 || lstat(out->chars, &info) == 0; n++) {
        text_free(out);
        text_add(out, "%s/metrics-%d.jsonl", run_dir, n);
    }
}

static enum status report_damage(const struct metrics_file *file, const struct kept *kept, int64_t first_step,
                                 const struct text *all)
{
    if (kept->bad > 0) {
        AUTO(text) copy = {0};
        free_name(file->run_dir.chars, &copy);
        enum status status = file_write_atomic(copy.chars, all->chars, all->length);
        if (status == OK)
            print_line(stderr,
                       "warning: %s: line %d is incomplete or corrupt (%d such lines in total) and is "
                       "dropped; the original file is kept as %s",
                       file->path.chars, kept->first_bad, kept->bad, copy.chars);
        TRY(status);
    }
    int64_t tail = first_step - 1 - kept->last, missing = kept->missing + (tail > 0 ? tail : 0);
    if (missing > 0)
        print_line(stderr, "warning: %s lacks %lld of the steps up to %lld; the first is step %lld",
                   file->path.chars, (long long)missing, (long long)(first_step - 1),
                   (long long)(kept->missing > 0 ? kept->first_missing : kept->last + 1));
    return OK;
}

/* Keeps the lines of steps before first_step, and drops later ones. A missing file has no lines. */
static enum status trim(struct metrics_file *file, int64_t first_step)
{
    struct kept kept = {.first = 0};
    AUTO(text) all = {0}, rest = {0};
    struct stat info;
    const bool exists = stat(file->path.chars, &info) == 0;
    enum status status = exists ? file_read(file->path.chars, &all) : OK;
    if (status == OK && exists)
        keep_lines(&all, first_step, false, &kept);
    bool waiting = file->unwritten_path.length > 0 && stat(file->unwritten_path.chars, &info) == 0;
    if (status == OK && waiting)
        status = file_read(file->unwritten_path.chars, &rest);
    if (status == OK)
        keep_lines(&rest, first_step, true, &kept);
    if (status == OK)
        status = report_damage(file, &kept, first_step, &all);
    if (status == OK)
        status = file_write_atomic(file->path.chars, text_chars(&kept.lines), kept.lines.length);
    if (status == OK && waiting)
        (void)unlink(file->unwritten_path.chars);
    if (kept.last > 0 && kept.last == first_step - 1)
        text_add_bytes(&file->resumed, kept.lines.chars + kept.begin, kept.lines.length - kept.begin);
    text_free(&kept.lines);
    return status;
}

/* For a run without a complete checkpoint. */
static enum status rename_old_file(const struct metrics_file *file, int64_t first_step, off_t bytes)
{
    AUTO(text) kept = {0};
    free_name(file->run_dir.chars, &kept);
    enum status status = bytes == 0 || rename(file->path.chars, kept.chars) == 0
                             ? OK
                             : fail(IO_ERROR, "logging.run_dir: %s: cannot be renamed to %s: %s",
                                    file->path.chars, kept.chars, strerror(errno));
    if (status == OK)
        print_line(stdout, "%s has no complete checkpoint of its own: restarting from step %lld%s%s",
                   file->run_dir.chars, (long long)first_step,
                   bytes > 0 ? "; the earlier metrics are kept as " : "", bytes > 0 ? kept.chars : "");
    return status;
}

/* ---- writing ---- */

static enum status cannot_write(const struct metrics_file *file)
{
    const bool full = errno == ENOSPC || errno == EDQUOT;
    return fail(IO_ERROR, "logging.run_dir: %s: %s%s", file->path.chars, strerror(errno),
                full ? "; remove files there, or set logging.run_dir to a directory on another disk" : "");
}

static enum status open_end(struct metrics_file *file)
{
    struct stat info;
    file->fd = open(file->path.chars, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file->fd < 0 || fstat(file->fd, &info) != 0)
        return cannot_write(file);
    file->bytes = info.st_size;
    return OK;
}

static enum status open_file(struct metrics_file *file, const struct metrics_file_config *config)
{
    struct stat info;
    const bool exists = stat(file->path.chars, &info) == 0;
    if (config->continues && (exists || config->first_step > 1))
        TRY(run_dir_explain(trim(file, config->first_step), file->path.chars));
    else if (exists)
        TRY(rename_old_file(file, config->first_step, info.st_size));
    TRY(open_end(file));
    return folder_sync(file->run_dir.chars);
}

enum status metrics_file_open(const struct metrics_file_config *config, struct metrics_file **out)
{
    struct metrics_file *file = memory_zeroed(1, sizeof *file, "the metrics");
    file->fd = -1;
    text_add(&file->run_dir, "%s", config->run_dir);
    text_add(&file->path, "%s/metrics.jsonl", config->run_dir);
    if (config->save != NULL)
        text_add(&file->unwritten_path, "%s/%s", config->save, unwritten_name);
    enum status status = open_file(file, config);
    if (status == OK)
        *out = file;
    else
        metrics_file_close(file);
    return status;
}

void metrics_file_close(struct metrics_file *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    text_free(&file->path);
    text_free(&file->run_dir);
    text_free(&file->resumed);
    text_free(&file->unwritten);
    text_free(&file->unwritten_path);
    free(file);
}

/* Checks whether the path still names the open file. */
static enum status check_path(struct metrics_file *file)
{
    struct stat open_one, named;
    file->lost = file->lost || fstat(file->fd, &open_one) != 0 || stat(file->path.chars, &named) != 0 ||
                 open_one.st_ino != named.st_ino || open_one.st_dev != named.st_dev;
    return !file->lost
               ? OK
               : fail(IO_ERROR, "logging.run_dir: %s was removed or renamed while this run was writing in it",
                      file->run_dir.chars);
}

/* Writes all pending lines or none: a partial write is truncated. */
static enum status flush(struct metrics_file *file)
{
    const char *from = text_chars(&file->unwritten);
    size_t left = file->unwritten.length;
    while (left > 0) {
        ssize_t put = write(file->fd, from, left);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            enum status status = cannot_write(file);
            (void)!ftruncate(file->fd, file->bytes);
            return status;
        }
        from += put;
        left -= (size_t)put;
    }
    file->bytes += (off_t)file->unwritten.length;
    file->unwritten.length = 0;
    return OK;
}

enum status metrics_file_append(struct metrics_file *file, const struct text *line)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    text_add_bytes(&file->unwritten, line->chars, line->length);
    if (now.tv_sec != file->checked)
        TRY(check_path(file));
    file->checked = now.tv_sec;
    return flush(file);
}

bool metrics_file_lacks(const struct metrics_file *file, const char *name)
{
    AUTO(text) field = {0};
    text_add(&field, "\"%s\": ", name);
    const bool lacks = file->resumed.length > 0 && strstr(file->resumed.chars, field.chars) == NULL;
    return lacks;
}

enum status metrics_file_amend(struct metrics_file *file, const struct text *fields)
{
    static const char end[] = "}\n";
    AUTO(text) lines = {0};
    TRY(check_path(file));
    TRY(file_read(file->path.chars, &lines));
    CHECK(lines.length > strlen(end) && file->unwritten.length == 0);
    lines.length -= strlen(end);
    text_add_bytes(&lines, fields->chars, fields->length);
    text_add(&lines, end);
    enum status status =
        run_dir_explain(file_write_atomic(file->path.chars, lines.chars, lines.length), file->path.chars);
    TRY(status);
    close(file->fd);
    return open_end(file);
}

enum status metrics_file_sync(struct metrics_file *file)
{
    TRY(check_path(file));
    if (flush(file) == OK)
        return fsync(file->fd) == 0 ? OK : cannot_write(file);
    if (file->unwritten_path.length == 0)
        return IO_ERROR;
    AUTO(text) why = {0};
    text_add(&why, "%s", fail_text());
    enum status status =
        file_write_atomic(file->unwritten_path.chars, file->unwritten.chars, file->unwritten.length);
    if (status != OK)
        status = fail(status,
                      "%s; checkpoint.save: %s; free space on both disks and start the run again: it resumes "
                      "from the newest checkpoint",
                      text_chars(&why), fail_text());
    return status;
}

bool metrics_file_is_lost(const struct metrics_file *file)
{
    return file->lost;
}

const char *metrics_file_path(const struct metrics_file *file)
{
    return file->path.chars;
}
