// SPDX-License-Identifier: Apache-2.0
/* Files of checkpoints. The first byte of an input is its form: some lengths and checksums have to be right
 * for the rest of a reader to be reached, so these are added here unless the form leaves the bytes as they
 * are. */
#include "tests/fuzz/fuzz.h"
#include "trainer/checkpoint/format/manifest.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/lock_owner.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/files/checksum.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FORM_WHOLE = 1, DATA_BYTES_SIZE = 2, DATA_MAX_BYTES = 4096 };

/* Writes a safetensors file: the bytes as they are, or a header that is followed by as many zeros as the
 * first two bytes say. */
static void write_safetensors(struct fuzz_input input, int form, struct text *path)
{
    struct text file = {0};
    if ((form & FORM_WHOLE) == 0) {
        static const char zeros[DATA_MAX_BYTES] = {0};
        const uint64_t data = fuzz_take(&input, DATA_BYTES_SIZE) % (DATA_MAX_BYTES + 1), length = input.size;
        text_add_bytes(&file, (const char *)&length, sizeof length);
        text_add_bytes(&file, (const char *)input.bytes, input.size);
        text_add_bytes(&file, zeros, data);
    } else {
        text_add_bytes(&file, (const char *)input.bytes, input.size);
    }
    fuzz_write(&input, "a.safetensors", text_chars(&file), file.length, path);
    text_free(&file);
}

/* Reads both ends of a tensor. */
static void read_ends(const struct safetensors *file, const struct safetensors_tensor *tensor)
{
    char bytes[64];
    const size_t count = tensor->bytes < (int64_t)sizeof bytes ? (size_t)tensor->bytes : sizeof bytes;
    fuzz_require(tensor->bytes >= 0 && tensor->ndim >= 0 && tensor->ndim <= SAFETENSORS_MAX_DIMS,
                 "a tensor has sizes");
    fuzz_require(safetensors_read(file, tensor, 0, count, bytes) == OK, "its first bytes are read");
    fuzz_require(safetensors_read(file, tensor, tensor->bytes - (int64_t)count, count, bytes) == OK,
                 "its last bytes are read");
}

static void read_safetensors(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    struct text path = {0};
    struct safetensors *file = NULL;
    write_safetensors(rest, (int)fuzz_take(&rest, 1), &path);
    if (safetensors_open(path.chars, &file) == OK) {
        for (int i = 0; i < safetensors_count(file); i++)
            read_ends(file, safetensors_at(file, i));
        (void)safetensors_find(file, "norm.weight");
        (void)safetensors_metadata(file, "format");
    }
    safetensors_close(file);
    text_free(&path);
}

static void read_checkpoint_file(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    const int form = (int)fuzz_take(&rest, 1);
    struct text path = {0};
    struct checkpoint_file *file = NULL;
    write_safetensors(rest, form, &path);
    if (checkpoint_file_open(path.chars, &file) == OK) {
        const struct safetensors *tensors = checkpoint_file_tensors(file);
        for (int i = 0; i < safetensors_count(tensors); i++) {
            const struct safetensors_tensor *tensor = safetensors_at(tensors, i);
            struct shard shard;
            char byte;
            if (checkpoint_file_shard(file, tensor, &shard) == OK)
                fuzz_require(slice_count(&shard.slice) >= 0, "a shard has elements");
            if (tensor->bytes > 0 && checkpoint_file_read(file, tensor, tensor->bytes - 1, 1, &byte) != OK)
                break;
        }
    }
    checkpoint_file_close(file);
    text_free(&path);
}

/* A manifest whose own checksum matches, unless it is taken as it is. */
static void read_manifest(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    const int form = (int)fuzz_take(&rest, 1);
    struct text file = {0};
    struct manifest manifest;
    text_add_bytes(&file, (const char *)rest.bytes, rest.size);
    if ((form & FORM_WHOLE) == 0)
        text_add(&file, "\"checksum\": \"%016" PRIx64 "\"}\n", checksum_of(text_chars(&file), file.length));
    fuzz_write(&rest, "manifest.json", text_chars(&file), file.length, NULL);
    if (manifest_read(rest.folder, &manifest) == OK) {
        for (int i = 0; i < manifest.tensor_count; i++)
            fuzz_require(manifest_tensor(&manifest, manifest.tensors[i].name) != NULL, "a tensor is found");
        manifest_free(&manifest);
    }
    text_free(&file);
}

/* The files that the manifest of a seed lists: none has bytes. */
static void prepare_manifest(const char *folder)
{
    const struct fuzz_input input = {.folder = folder};
    fuzz_write(&input, "recipe.yaml", "", 0, NULL);
    fuzz_write(&input, "rank-00000.safetensors", "", 0, NULL);
    fuzz_write(&input, "rank-00001.safetensors", "", 0, NULL);
}

/* run.json and owner.json of a folder of checkpoints. */
static void read_record(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    struct run_record record;
    struct lock_owner owner;
    struct text path = {0}, text = {0};
    const bool is_owner = (fuzz_take(&rest, 1) & 1) != 0;
    fuzz_write(&rest, is_owner ? "owner.json" : "run.json", rest.bytes, rest.size, &path);
    if (is_owner) {
        if (lock_owner_read(path.chars, &owner) == OK)
            lock_owner_describe(&owner, &text);
    } else if (run_record_read(rest.folder, &record) == OK) {
        fuzz_require(record.count >= 0 && record.count <= RUN_RECORD_MAX_FOLDERS, "few folders");
    }
    text_free(&path);
    text_free(&text);
}

const struct fuzz_reader fuzz_checkpoint_readers[] = {{"safetensors", read_safetensors, NULL},
                                                      {"checkpoint_file", read_checkpoint_file, NULL},
                                                      {"manifest", read_manifest, prepare_manifest},
                                                      {"record", read_record, NULL},
                                                      {NULL, NULL, NULL}};
