// SPDX-License-Identifier: Apache-2.0
#include "trainer/text/unpack.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_LIBARCHIVE
#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

enum { OUT_BYTES = 1 << 18 };

struct unpack {
    struct byte_source bytes; // first: the file that is being read
    const struct file_kind *kind;
    struct byte_source *packed;
    enum status packed_status; // of a failure of `packed` inside libarchive
    bool begun;                // unpack_next() was called
    struct text name;          // of the member
    int64_t member_bytes;      // returned
    struct archive *archive;   // not for gzip
    const char *last;          // the bytes that libarchive got last
    int64_t last_count;

    z_stream zlib;
    bool inside; // a gzip stream has begun, and has not ended
    char out[OUT_BYTES];
};

static enum status corrupt(const struct unpack *u, int64_t at, const char *why)
{
    return fail(BAD_DATA, "%s: corrupt, read up to byte %" PRId64 ": %s (%s); copy or download it again",
                u->packed->name, at, why != NULL ? why : "no reason given", u->kind->name);
}

static bool all_zero(const char *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

/* ---- gzip: one stream or several, as of `cat a.gz b.gz`; tapes add zeros ---- */

/* Reads packed bytes if there are none left; zlib.avail_in stays 0 at the end. */
static enum status fill(struct unpack *u)
{
    const char *bytes;
    int64_t count;
    if (u->zlib.avail_in > 0)
        return OK;
    TRY(source_next(u->packed, &bytes, &count));
    u->zlib.next_in = (z_const Bytef *)(uintptr_t)bytes;
    u->zlib.avail_in = (uInt)count;
    return OK;
}

static int64_t zlib_at(const struct unpack *u)
{
    return u->packed->taken - (int64_t)u->zlib.avail_in;
}

/* Between two streams: sets `inside` if another one begins. */
static enum status begin_stream(struct unpack *u)
{
    for (;;) {
        TRY(fill(u));
        if (u->zlib.avail_in == 0)
            return OK;
        if (*u->zlib.next_in != 0)
            break;
        u->zlib.next_in++;
        u->zlib.avail_in--;
    }
    if (*u->zlib.next_in != 0x1F)
        return corrupt(u, zlib_at(u), "other data after the end of the compressed data");
    u->inside = true;
    return inflateReset(&u->zlib) == Z_OK ? OK : fail(BAD_ARGUMENT, "zlib cannot be reset");
}

static enum status gzip_read(struct byte_source *source, const char **bytes, int64_t *count)
{
    struct unpack *u = (struct unpack *)source;
    *count = 0;
    while (*count == 0) {
        if (!u->inside)
            TRY(begin_stream(u));
        if (!u->inside)
            return OK;
        TRY(fill(u));
        if (u->zlib.avail_in == 0)
            return corrupt(u, u->packed->taken, "truncated");
        u->zlib.next_out = (Bytef *)u->out;
        u->zlib.avail_out = OUT_BYTES;
        const int code = inflate(&u->zlib, Z_NO_FLUSH);
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return code == Z_MEM_ERROR ? fail(NO_MEMORY, "%s: no memory to decompress it", source->name)
                                       : corrupt(u, zlib_at(u), u->zlib.msg);
        u->inside = code != Z_STREAM_END;
        *bytes = u->out;
        *count = OUT_BYTES - (int64_t)u->zlib.avail_out;
    }
    return OK;
}

/* ---- libarchive ---- */

static la_ssize_t give_packed(struct archive *archive, void *context, const void **bytes)
{
    struct unpack *u = context;
    (void)archive;
    u->packed_status = source_next(u->packed, &u->last, &u->last_count);
    *bytes = u->last;
    return u->packed_status == OK ? (la_ssize_t)u->last_count : ARCHIVE_FATAL;
}

/* Reports a failure of libarchive, or of the packed source. */
static enum status archive_failed(const struct unpack *u)
{
    const char *why = archive_error_string(u->archive);
    if (u->packed_status != OK)
        return u->packed_status; // with its message
    if (u->kind->form == KIND_ZSTD && why != NULL && strstr(why, "too much memory") != NULL)
        return fail(BAD_DATA,
                    "%s: zstd with a window above 128 MiB (--long), which libarchive does not read; use zstd "
                    "-dc --long=31 FILE | cuboid data prepare -",
                    u->packed->name);
    const int64_t at = archive_filter_bytes(u->archive, -1); // -1 after an error of a filter
    return corrupt(u, at >= 0 ? at : u->packed->taken, why);
}

/* libarchive ends at bytes that begin no further stream of the same form: whatever they are would be lost. */
static enum status check_end(struct unpack *u)
{
    const int64_t left = u->packed->taken - archive_filter_bytes(u->archive, -1);
    const char *rest = u->last + u->last_count - left;
    int64_t more = left;
    if (left < 0 || left > u->last_count)
        return corrupt(u, u->packed->taken - left, "other data after the end of the compressed data");
    for (int64_t at = u->packed->taken - left; more > 0; at += more) {
        if (!all_zero(rest, more))
            return corrupt(u, at, "other data after the end of the compressed data");
        TRY(source_next(u->packed, &rest, &more));
    }
    return OK;
}

static enum status archive_read_next(struct byte_source *source, const char **bytes, int64_t *count)
{
    struct unpack *u = (struct unpack *)source;
    const void *block = NULL;
    size_t length = 0;
    la_int64_t offset = 0;
    *count = 0;
    const int code = archive_read_data_block(u->archive, &block, &length, &offset);
    if (code == ARCHIVE_EOF)
        return u->kind->form == KIND_TAR ? OK : check_end(u);
    if (code != ARCHIVE_OK)
        return archive_failed(u);
    if (offset != u->member_bytes)
        return fail(BAD_DATA, "%s: a sparse file, with holes instead of text; pack it without --sparse",
                    source->name);
    u->member_bytes += (int64_t)length;
    *bytes = block;
    *count = (int64_t)length;
    return length > 0 ? OK : archive_read_next(source, bytes, count);
}

static enum status archive_create(struct unpack *u)
{
    static int (*const filters[])(struct archive *) = {
        [KIND_XZ] = archive_read_support_filter_xz,       [KIND_ZSTD] = archive_read_support_filter_zstd,
        [KIND_BZIP2] = archive_read_support_filter_bzip2, [KIND_LZ4] = archive_read_support_filter_lz4,
        [KIND_TAR] = archive_read_support_filter_none,    [KIND_OTHER] = NULL};
    u->archive = archive_read_new();
    if (u->archive == NULL)
        return fail(NO_MEMORY, "%s: no memory to read it", u->packed->name);
    // A warning: it would start another program.
    if (filters[u->kind->form](u->archive) != ARCHIVE_OK)
        return fail(NOT_SUPPORTED, "%s is %s, which this libarchive cannot read", u->packed->name,
                    u->kind->name);
    if (u->kind->form == KIND_TAR) {
        archive_read_support_format_tar(u->archive);
        archive_read_set_format_option(u->archive, "tar", "read_concatenated_archives", "1");
    } else {
        archive_read_support_format_raw(u->archive);
        archive_read_support_format_empty(u->archive);
    }
    u->bytes.read = archive_read_next;
    if (archive_read_open(u->archive, u, NULL, give_packed, NULL) != ARCHIVE_OK)
        return archive_failed(u);
    // A filter that does not recognize its own form, of which it needs more bytes, is left out.
    return u->kind->form == KIND_TAR || archive_filter_count(u->archive) > 1
               ? OK
               : corrupt(u, u->packed->taken, "truncated");
}

/* The name in the encoding of the archive; in the C locale, libarchive has none for UTF-8 of a pax header. */
static const char *path_of(struct archive_entry *entry)
{
    const char *path = archive_entry_pathname(entry);
    path = path != NULL ? path : archive_entry_pathname_utf8(entry);
    return path != NULL ? path : "?";
}

/* Whether the entry has contents that may be text. */
static bool is_file(struct archive_entry *entry)
{
    const char *path = path_of(entry), *slash = strrchr(path, '/');
    return archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == NULL &&
           strncmp(slash != NULL ? slash + 1 : path, "._", 2) != 0;
}

/* Moves to the next entry; *found false: there is none. */
static enum status next_entry(struct unpack *u, bool *found)
{
    struct archive_entry *entry = NULL;
    int code = archive_read_next_header(u->archive, &entry);
    while (u->kind->form == KIND_TAR && (code == ARCHIVE_OK || code == ARCHIVE_WARN) && !is_file(entry))
        code = archive_read_next_header(u->archive, &entry);
    *found = code == ARCHIVE_OK || code == ARCHIVE_WARN; // a name that is not UTF-8, for example
    if (code == ARCHIVE_EOF)
        return OK;
    if (!*found)
        return archive_failed(u);
    u->name.length = 0;
    text_add(&u->name, "%s", u->packed->name);
    if (u->kind->form == KIND_TAR)
        text_add(&u->name, ": %s", path_of(entry));
    u->bytes.name = u->name.chars;
    u->member_bytes = 0;
    return OK;
}

/* ---- both ---- */

static enum status gzip_create(struct unpack *u)
{
    enum { ONLY_GZIP = 16 };
    u->bytes.read = gzip_read;
    u->bytes.name = u->packed->name;
    return inflateInit2(&u->zlib, MAX_WBITS + ONLY_GZIP) == Z_OK
               ? OK
               : fail(NO_MEMORY, "%s: no memory to decompress it", u->packed->name);
}

enum status unpack_create(const struct file_kind *kind, struct byte_source *packed, struct unpack **out)
{
    struct unpack *u = memory_zeroed(1, sizeof *u, "a packed file to read");
    u->kind = kind;
    u->packed = packed;
    const enum status status = kind->form == KIND_GZIP ? gzip_create(u) : archive_create(u);
    if (status == OK)
        *out = u;
    else
        unpack_destroy(u);
    return status;
}

void unpack_destroy(struct unpack *unpack)
{
    if (unpack == NULL)
        return;
    if (unpack->archive != NULL)
        archive_read_free(unpack->archive);
    if (unpack->kind->form == KIND_GZIP)
        inflateEnd(&unpack->zlib);
    text_free(&unpack->name);
    text_free(&unpack->bytes.head);
    free(unpack);
}

enum status unpack_next(struct unpack *unpack, struct byte_source **out)
{
    bool found = !unpack->begun;
    unpack->begun = true;
    unpack->bytes.head.length = 0;
    unpack->bytes.taken = 0;
    if (unpack->archive != NULL)
        TRY(next_entry(unpack, &found));
    *out = found ? &unpack->bytes : NULL;
    return OK;
}

#else

enum status unpack_create(const struct file_kind *kind, struct byte_source *packed, struct unpack **out)
{
    static const char *const programs[] = {
        [KIND_GZIP] = "zcat ",  [KIND_XZ] = "xzcat ",     [KIND_ZSTD] = "zstdcat ", [KIND_BZIP2] = "bzcat ",
        [KIND_LZ4] = "lz4cat ", [KIND_TAR] = "tar -xOf ", [KIND_OTHER] = "cat "};
    (void)out;
    return fail(
        NOT_SUPPORTED,
        "%s is %s, and this build has no libarchive; use %s%s | cuboid data prepare - ..., or build with "
        "libarchive-dev and zlib1g-dev installed",
        packed->name, kind->name, programs[kind->form], packed->name);
}

void unpack_destroy(struct unpack *unpack)
{
    (void)unpack;
}

enum status unpack_next(struct unpack *unpack, struct byte_source **out)
{
    (void)unpack;
    *out = NULL;
    return OK;
}
#endif
