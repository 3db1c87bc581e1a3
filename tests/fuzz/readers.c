// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz.h"
#include "tests/support/sanitized.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct fuzz_reader *const lists[] = {fuzz_checkpoint_readers, fuzz_data_readers,
                                                  fuzz_recipe_readers, fuzz_run_readers,
                                                  fuzz_pretrained_readers};

const struct fuzz_reader *fuzz_reader(int index)
{
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct fuzz_reader *at = lists[i]; at->name != NULL; at++)
            if (index-- == 0)
                return at;
    return NULL;
}

const struct fuzz_reader *fuzz_reader_find(const char *name)
{
    const struct fuzz_reader *reader;
    for (int i = 0; (reader = fuzz_reader(i)) != NULL; i++)
        if (strcmp(reader->name, name) == 0)
            return reader;
    return NULL;
}

/* ---- files ---- */

static _Noreturn void end(const char *what)
{
    print_line(stderr, "fuzz: %s: %s", what, strerror(errno));
    abort();
}

char *fuzz_folder_create(void)
{
    const char *parent = getenv("TMPDIR");
    struct text path = {0};
    text_add(&path, "%s/cuboid-fuzz-XXXXXX", parent != NULL ? parent : "/tmp");
    if (mkdtemp(path.chars) == NULL)
        end(path.chars);
    return path.chars;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

void fuzz_folder_remove(char *folder)
{
    if (nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        end(folder);
    free(folder);
}

void fuzz_write(const struct fuzz_input *input, const char *name, const void *bytes, size_t size,
                struct text *path)
{
    struct text own = {0};
    text_add(&own, "%s/%s", input->folder, name);
    const int file = open(own.chars, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || write(file, bytes, size) != (ssize_t)size || close(file) != 0)
        end(own.chars);
    if (path != NULL)
        text_add(path, "%s", own.chars);
    text_free(&own);
}

uint64_t fuzz_take(struct fuzz_input *input, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) {
        value |= (input->size > 0 ? (uint64_t)*input->bytes : 0) << 8 * i;
        input->bytes += input->size > 0;
        input->size -= input->size > 0;
    }
    return value;
}

void fuzz_require(bool holds, const char *property)
{
    if (holds)
        return;
    print_line(stderr, "fuzz: does not hold: %s (%s)", property, fail_text());
    abort();
}

/* ---- memory ---- */

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
/* Of the runtime of the sanitizers. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *memory);

static int64_t now_bytes, peak_bytes;

static void on_malloc(const volatile void *memory, size_t bytes)
{
    now_bytes += memory != NULL ? (int64_t)bytes : 0;
    peak_bytes = now_bytes > peak_bytes ? now_bytes : peak_bytes;
}

static void on_free(const volatile void *memory)
{
    now_bytes -= memory != NULL ? (int64_t)__sanitizer_get_allocated_size(memory) : 0;
}

__attribute__((constructor)) static void count(void)
{
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}

static void begin_count(void)
{
    now_bytes = peak_bytes = 0;
}

static int64_t peak(void)
{
    return peak_bytes;
}
#else
static void begin_count(void)
{
}

static int64_t peak(void)
{
    return 0;
}
#endif

void fuzz_read(const struct fuzz_reader *reader, const struct fuzz_input *input)
{
    const int64_t most = FUZZ_TIMES_SIZE * (int64_t)input->size + FUZZ_SPARE_BYTES;
    begin_count();
    reader->read(input);
    if (peak() <= most)
        return;
    print_line(stderr, "fuzz: %s takes %lld bytes for an input of %zu; the limit is %lld", reader->name,
               (long long)peak(), input->size, (long long)most);
    abort();
}
