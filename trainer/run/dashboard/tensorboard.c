// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/dashboard/tensorboard.h"

#include "base/memory.h"
#include "base/text.h"

#ifdef HAVE_PROTOBUF_C

#include <errno.h>
#include <event.pb-c.h> // generated from event.proto
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct tensorboard {
    int fd;
    off_t bytes;
    struct text path;
};

/* CRC-32C (Castagnoli), masked as in TFRecord files: a checksum of data that has checksums would be weak. */
static uint32_t masked_crc(const uint8_t *bytes, size_t length)
{
    uint32_t crc = ~0U;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78U : crc >> 1;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

static void put_little_endian(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* Appends bytes[0, length): all or nothing. */
static enum status append(struct tensorboard *b, const uint8_t *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        const ssize_t wrote = write(b->fd, bytes + done, length - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            const enum status status = fail(IO_ERROR, "%s: %s", b->path.chars, strerror(errno));
            (void)!ftruncate(b->fd, b->bytes);
            return status;
        }
        done += (size_t)wrote;
    }
    b->bytes += (off_t)length;
    return OK;
}

static enum status add_event(struct tensorboard *b, Tensorboard__Event *event)
{
    enum { HEAD = 12, TAIL = 4 };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    event->has_wall_time = true;
    event->wall_time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    const size_t length = tensorboard__event__get_packed_size(event);
    uint8_t *record = memory_zeroed(1, HEAD + length + TAIL, "an event for TensorBoard");
    put_little_endian(record, length, 8);
    put_little_endian(record + 8, masked_crc(record, 8), 4);
    tensorboard__event__pack(event, record + HEAD);
    put_little_endian(record + HEAD + length, masked_crc(record + HEAD, length), 4);
    const enum status status = append(b, record, HEAD + length + TAIL);
    free(record);
    return status;
}

static enum status create_file(struct tensorboard *b, const char *dir)
{
    char host[256] = "host";
    TRY(folder_make(dir));
    (void)gethostname(host, sizeof host - 1);
    text_add(&b->path, "%s/events.out.tfevents.%lld.%s.%d.cuboid", dir, (long long)time(NULL), host,
             (int)getpid());
    b->fd = open(b->path.chars, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    return b->fd >= 0 ? OK : fail(IO_ERROR, "%s: %s", b->path.chars, strerror(errno));
}

static enum status begin_file(struct tensorboard *b, const char *dir, int64_t first_step)
{
    TRY(create_file(b, dir));
    char version[] = "brain.Event:2";
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    event.file_version = version;
    TRY(add_event(b, &event));
    Tensorboard__SessionLog start = TENSORBOARD__SESSION_LOG__INIT;
    start.has_status = true;
    start.status = TENSORBOARD__SESSION_LOG__STATUS__START;
    Tensorboard__Event session = TENSORBOARD__EVENT__INIT;
    session.has_step = true;
    session.step = first_step;
    session.session_log = &start;
    return add_event(b, &session);
}

enum status tensorboard_open(const char *dir, int64_t first_step, struct tensorboard **out)
{
    struct tensorboard *b = memory_zeroed(1, sizeof *b, "the events for TensorBoard");
    b->fd = -1;
    enum status status = begin_file(b, dir, first_step);
    if (status == OK)
        *out = b;
    else {
        status = fail(status, "logging.tensorboard_dir: %s", fail_text());
        tensorboard_close(b);
    }
    return status;
}

enum status tensorboard_add(struct tensorboard *b, int64_t step, const struct dashboard_number *numbers,
                            int count)
{
    Tensorboard__Value values[DASHBOARD_NUMBERS];
    Tensorboard__Value *list[DASHBOARD_NUMBERS];
    char tags[DASHBOARD_NUMBERS][DASHBOARD_NAME_CHARS + sizeof "train/"];
    for (int i = 0; i < count; i++) {
        const char *name = numbers[i].name;
        snprintf(tags[i], sizeof tags[i], "%s%s", strchr(name, '/') == NULL ? "train/" : "", name);
        tensorboard__value__init(&values[i]);
        values[i].tag = tags[i];
        values[i].has_simple_value = true;
        values[i].simple_value = (float)numbers[i].value;
        list[i] = &values[i];
    }
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    summary.n_value = (size_t)count;
    summary.value = list;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    event.has_step = true;
    event.step = step;
    event.summary = &summary;
    return add_event(b, &event);
}

void tensorboard_close(struct tensorboard *board)
{
    if (board == NULL)
        return;
    if (board->fd >= 0)
        close(board->fd);
    text_free(&board->path);
    free(board);
}

#else

enum status tensorboard_open(const char *dir, int64_t first_step, struct tensorboard **out)
{
    (void)first_step;
    *out = NULL;
    return fail(
        NOT_SUPPORTED,
        "logging.tensorboard_dir: %s: this build writes no files for TensorBoard; install libprotobuf-c-dev "
        "and protobuf-c-compiler and build again, or leave the key out: metrics.jsonl has every step",
        dir);
}

enum status tensorboard_add(struct tensorboard *board, int64_t step, const struct dashboard_number *numbers,
                            int count)
{
    (void)board, (void)step, (void)numbers, (void)count;
    return OK;
}

void tensorboard_close(struct tensorboard *board)
{
    (void)board;
}

#endif
