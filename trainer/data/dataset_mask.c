// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/dataset_mask.h"

#include "base/memory.h"
#include "trainer/data/dataset_blocks.h"
#include "trainer/files/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 2, HEADER_BYTES = 56, CHUNK_BYTES = 1 << 16 }; // the header of version 1 is the same
static const char magic[8] = {'C', 'U', 'B', 'O', 'I', 'D', 'L', 'M'};

/* The header as it is in the file. */
struct header {
    char magic[8];
    uint64_t version, tokens, counted, index_checksum, ids_checksum, bits_checksum;
};
_Static_assert(sizeof(struct header) == HEADER_BYTES, "the header has no padding");

static int64_t bytes_of(int64_t tokens)
{
    return tokens / 8 + (tokens % 8 != 0);
}

/* Reads `count` bytes from byte `at` on. */
static enum status read_at(int fd, const char *path, int64_t at, size_t count, void *out)
{
    for (size_t have = 0; have < count;) {
        ssize_t got = pread(fd, (char *)out + have, count - have, at + (int64_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(IO_ERROR, "%s, byte %" PRId64 ": %s", path, at + (int64_t)have, strerror(errno));
        if (got == 0)
            return fail(IO_ERROR,
                        "%s: ends at or before byte %" PRId64
                        ": the file was truncated while in use; restore it and restart",
                        path, at + (int64_t)have);
        have += (size_t)got;
    }
    return OK;
}

static enum status sum_blocks(int fd, const char *path, int64_t bytes, void *buffer, struct checksum *sum)
{
    for (int64_t i = 0; i < dataset_block_count(bytes, DATASET_BLOCKS); i++) {
        struct dataset_block block = dataset_block(bytes, DATASET_BLOCKS, i);
        TRY(read_at(fd, path, block.at, (size_t)block.bytes, buffer));
        checksum_add(sum, buffer, (size_t)block.bytes);
    }
    return OK;
}

enum status dataset_ids_checksum(int fd, const char *path, int64_t bytes, uint64_t *out)
{
    AUTO_FREE void *buffer = memory_zeroed(DATASET_BLOCK_BYTES, 1, "a block of a dataset");
    struct checksum *sum = checksum_begin();
    enum status status = sum_blocks(fd, path, bytes, buffer, sum);
    if (status == OK)
        *out = checksum_now(sum);
    checksum_free(sum);
    return status;
}

/* ---- reading ---- */

static enum status open_file(struct dataset_mask *mask, int64_t *bytes)
{
    struct stat info;
    const char *path = mask->path.chars;
    mask->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: opening a pipe must not block
    if (mask->fd < 0)
        return fail(
            IO_ERROR,
            "%s: %s (data.loss_mask needs the mask that `cuboid data prepare --chat-template` writes; set "
            "data.loss_mask=false to count all tokens)",
            path, strerror(errno));
    if (fstat(mask->fd, &info) != 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return fail(IO_ERROR, "%s: not a regular file", path);
    *bytes = info.st_size;
    return OK;
}

static enum status check_header(const struct dataset_mask *mask, const struct header *h, int64_t bytes,
                                const struct dataset_mask_of *of)
{
    const char *path = mask->path.chars;
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return fail(BAD_DATA, "%s: does not begin with CUBOIDLM: not the loss mask of a dataset", path);
    if (h->version < 1 || h->version > VERSION)
        return fail(BAD_DATA, "%s, byte 8: version %" PRIu64 "; only versions 1 to %d are supported", path,
                    h->version, VERSION);
    if (h->tokens != (uint64_t)of->tokens)
        return fail(BAD_DATA,
                    "%s, byte 16: a mask of %" PRIu64 " tokens, but the dataset has %" PRId64
                    ": it belongs to another dataset; prepare both again",
                    path, h->tokens, of->tokens);
    if (bytes != mask->bits_at + bytes_of(of->tokens))
        return fail(BAD_DATA,
                    "%s: %" PRId64 " bytes; a mask of %" PRId64 " tokens has %" PRId64
                    ": truncated or corrupt; prepare the dataset again",
                    path, bytes, of->tokens, mask->bits_at + bytes_of(of->tokens));
    bool same_index = h->index_checksum == of->index_checksum;
    if (!same_index || h->ids_checksum != of->ids_checksum)
        return fail(BAD_DATA,
                    "%s, byte %d: checksum %016" PRIx64 ", but the dataset's %s has %016" PRIx64
                    ": it belongs to another dataset; prepare both again",
                    path, same_index ? 40 : 32, same_index ? h->ids_checksum : h->index_checksum,
                    same_index ? ".bin" : ".idx", same_index ? of->ids_checksum : of->index_checksum);
    return OK;
}

/* Reads the name of the template: letters and digits, then zeros. */
static enum status read_name(struct dataset_mask *mask, struct checksum *sum)
{
    const size_t count = (size_t)(mask->bits_at - HEADER_BYTES);
    char name[MASK_TEMPLATE_CHARS + 1] = {0};
    TRY(read_at(mask->fd, mask->path.chars, HEADER_BYTES, count, name));
    checksum_add(sum, name, count);
    const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789");
    for (size_t i = length < MASK_TEMPLATE_CHARS ? length : MASK_TEMPLATE_CHARS - 1; i < count; i++)
        if (name[i] != 0)
            return fail(BAD_DATA, "%s, byte %d: value %d is not in the name of a chat template: corrupt",
                        mask->path.chars, HEADER_BYTES + (int)i, (unsigned char)name[i]);
    memcpy(mask->chat_template, name, sizeof mask->chat_template);
    return OK;
}

/* Reads all bits: their checksum, and the number of ones. */
static enum status read_bits(const struct dataset_mask *mask, unsigned char *chunk, struct checksum *sum,
                             int64_t *ones)
{
    const int64_t bytes = bytes_of(mask->tokens);
    unsigned char last = 0;
    for (int64_t at = 0, part; at < bytes; at += part) {
        part = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        TRY(read_at(mask->fd, mask->path.chars, mask->bits_at + at, (size_t)part, chunk));
        checksum_add(sum, chunk, (size_t)part);
        for (int64_t i = 0; i < part; i++)
            *ones += __builtin_popcount(chunk[i]);
        last = chunk[part - 1];
    }
    if (mask->tokens % 8 != 0 && last >> mask->tokens % 8 != 0)
        return fail(BAD_DATA, "%s, byte %" PRId64 ": value %d has bits after the last token: corrupt",
                    mask->path.chars, mask->bits_at + bytes - 1, last);
    return OK;
}

static enum status check_bits(struct dataset_mask *mask, const struct header *h)
{
    AUTO_FREE unsigned char *chunk = memory_zeroed(CHUNK_BYTES, 1, "a part of a loss mask");
    struct checksum *sum = checksum_begin();
    int64_t ones = 0;
    enum status status = read_name(mask, sum);
    if (status == OK)
        status = read_bits(mask, chunk, sum, &ones);
    if (status == OK)
        mask->checksum = checksum_now(sum);
    checksum_free(sum);
    TRY(status);
    if (h->bits_checksum != mask->checksum)
        return fail(BAD_DATA,
                    "%s, byte 48: checksum %016" PRIx64 ", but the bits have %016" PRIx64
                    ": corrupt; prepare the dataset again",
                    mask->path.chars, h->bits_checksum, mask->checksum);
    if (h->counted != (uint64_t)ones)
        return fail(BAD_DATA, "%s, byte 24: %" PRIu64 " tokens count, but %" PRId64 " bits are set: corrupt",
                    mask->path.chars, h->counted, ones);
    mask->counted = ones;
    return OK;
}

static enum status read_all(struct dataset_mask *mask, const struct dataset_mask_of *of)
{
    struct header header;
    int64_t bytes = 0;
    TRY(open_file(mask, &bytes));
    if (bytes < HEADER_BYTES)
        return fail(BAD_DATA, "%s: %" PRId64 " bytes; the header has %d: truncated, or not a loss mask",
                    mask->path.chars, bytes, HEADER_BYTES);
    TRY(read_at(mask->fd, mask->path.chars, 0, sizeof header, &header));
    mask->bits_at = HEADER_BYTES + (header.version == 1 ? 0 : MASK_TEMPLATE_CHARS);
    TRY(check_header(mask, &header, bytes, of));
    mask->tokens = of->tokens;
    return check_bits(mask, &header);
}

enum status mask_open(const char *prefix, const struct dataset_mask_of *of, struct dataset_mask *out)
{
    struct dataset_mask mask = {.fd = -1};
    text_add(&mask.path, "%s.mask", prefix);
    enum status status = read_all(&mask, of);
    if (status == OK)
        *out = mask;
    else
        mask_close(&mask);
    return status;
}

void mask_close(struct dataset_mask *mask)
{
    if (mask->fd >= 0)
        close(mask->fd);
    text_free(&mask->path);
    mask->fd = -1;
}

enum status mask_read(const struct dataset_mask *mask, int64_t first, int64_t count, uint8_t *out)
{
    enum { BYTES = 4096 };
    unsigned char bits[BYTES];
    CHECK(first >= 0 && count >= 0 && first + count <= mask->tokens);
    for (int64_t at = first, end = first + count, next; at < end; at = next) {
        int64_t byte = at / 8, bytes = bytes_of(end) - byte;
        bytes = bytes < BYTES ? bytes : BYTES;
        next = (byte + bytes) * 8 < end ? (byte + bytes) * 8 : end;
        TRY(read_at(mask->fd, mask->path.chars, mask->bits_at + byte, (size_t)bytes, bits));
        for (int64_t i = at; i < next; i++)
            out[i - first] = bits[i / 8 - byte] >> i % 8 & 1;
    }
    return OK;
}

/* ---- writing ---- */

static enum status io_failure(const struct mask_writer *w)
{
    return fail(IO_ERROR, "%s: %s", w->path.chars, strerror(errno));
}

static enum status open_stream(struct mask_writer *w)
{
    const struct header none = {.version = 0};
    file_temporary_sweep(w->path.chars);
    TRY(file_temporary_create(w->path.chars, &w->file));
    int fd = fcntl(w->file.fd, F_DUPFD_CLOEXEC, 0);
    w->stream = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (w->stream == NULL) {
        enum status status = io_failure(w);
        if (fd >= 0)
            close(fd);
        return status;
    }
    w->sum = checksum_begin();
    checksum_add(w->sum, w->chat_template, sizeof w->chat_template);
    return fwrite(&none, sizeof none, 1, w->stream) == 1 &&
                   fwrite(w->chat_template, sizeof w->chat_template, 1, w->stream) == 1
               ? OK
               : io_failure(w);
}

enum status mask_writer_create(const char *prefix, const char *chat_template, struct mask_writer *out)
{
    struct mask_writer writer = {.file.fd = -1};
    CHECK(strlen(chat_template) < sizeof writer.chat_template);
    memcpy(writer.chat_template, chat_template, strlen(chat_template));
    text_add(&writer.path, "%s.mask", prefix);
    enum status status = open_stream(&writer);
    if (status == OK)
        *out = writer;
    else
        mask_writer_destroy(&writer);
    return status;
}

static enum status put_byte(struct mask_writer *w)
{
    if (putc_unlocked(w->byte, w->stream) == EOF)
        return io_failure(w);
    checksum_add(w->sum, &w->byte, 1);
    w->byte = 0;
    return OK;
}

enum status mask_writer_add(struct mask_writer *writer, const uint8_t *counts, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        writer->byte = (uint8_t)(writer->byte | (counts[i] != 0) << writer->tokens % 8);
        writer->counted += counts[i] != 0;
        if (++writer->tokens % 8 == 0)
            TRY(put_byte(writer));
    }
    return OK;
}

enum status mask_writer_complete(struct mask_writer *writer, const struct dataset_mask_of *of)
{
    CHECK(writer->tokens == of->tokens);
    if (writer->tokens % 8 != 0)
        TRY(put_byte(writer));
    struct header header = {.version = VERSION,
                            .tokens = (uint64_t)writer->tokens,
                            .counted = (uint64_t)writer->counted,
                            .index_checksum = of->index_checksum,
                            .ids_checksum = of->ids_checksum,
                            .bits_checksum = checksum_now(writer->sum)};
    memcpy(header.magic, magic, sizeof magic);
    bool good = fseek(writer->stream, 0, SEEK_SET) == 0 &&
                fwrite(&header, sizeof header, 1, writer->stream) == 1 && fflush(writer->stream) == 0 &&
                fsync(fileno(writer->stream)) == 0;
    return good ? OK : io_failure(writer);
}

void mask_writer_destroy(struct mask_writer *writer)
{
    if (writer->stream != NULL)
        fclose(writer->stream);
    file_temporary_discard(&writer->file);
    text_free(&writer->path);
    checksum_free(writer->sum);
    *writer = (struct mask_writer){.file.fd = -1};
}
