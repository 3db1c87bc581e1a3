// SPDX-License-Identifier: Apache-2.0
#include "trainer/text/file_kind.h"

#include <stddef.h>
#include <string.h>

#define PREPARE      " | cuboid data prepare -"
#define PREPARE_JSON PREPARE " --format jsonl"
#define MAGIC(chars) (chars), (int)sizeof(chars) - 1

/* Of two rows that match, the first one counts: UTF-32's mark begins with that of UTF-16. */
static const struct file_kind kinds[] = {
    {"gzip", KIND_GZIP, MAGIC("\x1F\x8B\x08"), NULL},
    {"xz", KIND_XZ,
     MAGIC("\xFD"
           "7zXZ\0"),
     NULL},
    {"zstd", KIND_ZSTD, MAGIC("\x28\xB5\x2F\xFD"), NULL},
    {"lz4", KIND_LZ4, MAGIC("\x04\x22\x4D\x18"), NULL},
    {"zstd that begins with a skippable frame", KIND_OTHER, MAGIC("\x50\x2A\x4D\x18"), // by pzstd
     "zstd -dc FILE" PREPARE},
    {"UTF-32", KIND_OTHER, MAGIC("\xFF\xFE\0\0"), "iconv -f UTF-32 -t UTF-8 FILE" PREPARE},
    {"UTF-32", KIND_OTHER, MAGIC("\0\0\xFE\xFF"), "iconv -f UTF-32 -t UTF-8 FILE" PREPARE},
    {"UTF-16", KIND_OTHER, MAGIC("\xFF\xFE"), "iconv -f UTF-16 -t UTF-8 FILE" PREPARE},
    {"UTF-16", KIND_OTHER, MAGIC("\xFE\xFF"), "iconv -f UTF-16 -t UTF-8 FILE" PREPARE},
    {"a Parquet file", KIND_OTHER, MAGIC("PAR1"),
     "python3 -c \"import sys, pandas; pandas.read_parquet('FILE').to_json(sys.stdout, orient='records', "
     "lines=True)\"" PREPARE_JSON},
    {"an Arrow file", KIND_OTHER, MAGIC("ARROW1\0\0"),
     "python3 -c \"import sys, pandas; pandas.read_feather('FILE').to_json(sys.stdout, orient='records', "
     "lines=True)\"" PREPARE_JSON},
    {"a zip archive", KIND_OTHER, MAGIC("PK\3\4"), "unzip -p FILE" PREPARE},
    {"a zip archive", KIND_OTHER, MAGIC("PK\5\6"), "unzip -p FILE" PREPARE},
    {"a 7z archive", KIND_OTHER, MAGIC("7z\xBC\xAF\x27\x1C"), "7z x -so FILE" PREPARE},
    {"a PDF file", KIND_OTHER, MAGIC("%PDF-"), "pdftotext FILE -" PREPARE},
    {"an SQLite database", KIND_OTHER, MAGIC("SQLite format 3\0"),
     "sqlite3 FILE \"SELECT json_object('text', COLUMN) FROM TABLE\"" PREPARE_JSON},
    {"an ELF program or library", KIND_OTHER,
     MAGIC("\x7F"
           "ELF"),
     NULL},
    {"a PNG image", KIND_OTHER, MAGIC("\x89PNG\r\n\x1A\n"), NULL},
    {"a JPEG image", KIND_OTHER, MAGIC("\xFF\xD8\xFF"), NULL},
    {"a GIF image", KIND_OTHER, MAGIC("GIF8"), NULL},
    {"a NumPy array", KIND_OTHER, MAGIC("\x93NUMPY"), NULL},
    {"an HDF5 file", KIND_OTHER, MAGIC("\x89HDF\r\n\x1A\n"), NULL},
    {"a GGUF model", KIND_OTHER, MAGIC("GGUF"), NULL},
    {"the index of a tokenized dataset", KIND_OTHER, MAGIC("MMIDIDX\0\0"), NULL},
};

/* Kinds whose magic bytes could begin a text, or that have none. */
static const struct file_kind bzip2 = {"bzip2", KIND_BZIP2, NULL, 0, NULL};
static const struct file_kind tar = {"a tar archive", KIND_TAR, NULL, 0, NULL};
static const struct file_kind safetensors = {"a safetensors file", KIND_OTHER, NULL, 0, NULL};

static const struct file_kind arrow_stream = {
    "an Arrow stream", KIND_OTHER, NULL, 0,
    "python3 -c \"import sys, pyarrow.ipc; pyarrow.ipc.open_stream('FILE').read_pandas().to_json("
    "sys.stdout, orient='records', lines=True)\"" PREPARE_JSON};

/* "BZh", a digit, and the magic number of a block or of the end. */
static bool is_bzip2(const char *bytes, int64_t count)
{
    return count >= 10 && memcmp(bytes, "BZh", 3) == 0 && bytes[3] >= '1' && bytes[3] <= '9' &&
           (memcmp(bytes + 4, "1AY&SY", 6) == 0 || memcmp(bytes + 4, "\x17\x72\x45\x38\x50\x90", 6) == 0);
}

/* The sum of a header's bytes, in octal digits; its own field counts as spaces. */
static bool is_tar(const char *bytes, int64_t count)
{
    enum { HEADER = 512, SUM = 148, SUM_LENGTH = 8 };
    int64_t sum = 0, stored = 0;
    if (count < HEADER)
        return false;
    for (int i = 0; i < HEADER; i++)
        sum += i >= SUM && i < SUM + SUM_LENGTH ? ' ' : (unsigned char)bytes[i];
    int i = SUM;
    while (i < SUM + SUM_LENGTH && bytes[i] == ' ')
        i++;
    for (; i < SUM + SUM_LENGTH && bytes[i] >= '0' && bytes[i] <= '7'; i++)
        stored = stored * 8 + bytes[i] - '0';
    return sum == stored;
}

/* The length of its header in eight bytes, then the header, in JSON. */
static bool is_safetensors(const char *bytes, int64_t count)
{
    return count >= 10 && memcmp(bytes + 4, "\0\0\0\0{\"", 6) == 0;
}

/* Four bytes FF, and the length of the schema, below 16 MiB. */
static bool is_arrow_stream(const char *bytes, int64_t count)
{
    return count >= 8 && memcmp(bytes, "\xFF\xFF\xFF\xFF", 4) == 0 && bytes[7] == 0;
}

const struct file_kind *file_kind_of(const char *bytes, int64_t count)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (count >= kinds[i].length && memcmp(bytes, kinds[i].magic, (size_t)kinds[i].length) == 0)
            return &kinds[i];
    return is_bzip2(bytes, count)          ? &bzip2
           : is_tar(bytes, count)          ? &tar
           : is_safetensors(bytes, count)  ? &safetensors
           : is_arrow_stream(bytes, count) ? &arrow_stream
                                           : NULL;
}
