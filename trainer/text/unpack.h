// SPDX-License-Identifier: Apache-2.0
/* What is in a compressed file or a tar archive, as sources of bytes (byte_source.h):
 *
 *     source ─> unpack_create() ─> unpack_next() ─> a source      once for a compressed file,
 *                                                                 for each member of an archive
 *
 * Nothing is written to disk, and any size is read in constant memory. Checksums are verified (a tar archive
 * has none for contents). gzip is read by zlib, since libarchive does not verify its checksum; the other
 * forms by libarchive.
 *
 * Caution: corruption is found where it is read, so bytes before it have already been returned. */
#pragma once

#include "trainer/text/byte_source.h"
#include "trainer/text/file_kind.h"

struct unpack;

/* Reads `packed`, whose first bytes are of `kind`, not KIND_OTHER; it must outlive the result. NOT_SUPPORTED
 * if this build cannot read the form. */
MUST_USE enum status unpack_create(const struct file_kind *kind, struct byte_source *packed,
                                   struct unpack **out);
void unpack_destroy(struct unpack *unpack); // accepts NULL

/* The next file, read from its beginning; what is left of the previous one is skipped. NULL after the last
 * one. Directories, links and the files of attributes that macOS adds ("._NAME") are left out. The source of
 * a compressed file has the name of `packed`, that of a member "PACKED: MEMBER". It is valid until the next
 * call. BAD_DATA names the file, the byte of it and the problem. */
MUST_USE enum status unpack_next(struct unpack *unpack, struct byte_source **out);
