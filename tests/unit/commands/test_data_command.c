// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "tests/fixtures/bpe_fixture.h"
#include "tools/cli/commands.h"
#include "trainer/data/dataset.h"
#include "trainer/tokenizer/tokenizer.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void silence(void)
{
    cr_redirect_stdout();
    cr_redirect_stderr();
}

/* Each test works in a folder of its own, and leaves it empty. */
static void enter(char folder[32])
{
    snprintf(folder, 32, "/tmp/cuboid-command-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static int files_here(bool remove)
{
    int count = 0;
    DIR *dir = opendir(".");
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        if (entry->d_name[0] != '.') {
            count++;
            if (remove)
                unlink(entry->d_name);
        }
    closedir(dir);
    return count;
}

static void leave(const char *folder)
{
    files_here(true);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rmdir(folder), 0);
}

enum { WORDS = 16 };
static int run(const char *line)
{
    char copy[256], *words[WORDS], *rest = copy;
    int count = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strsep(&rest, " "); word != NULL && count < WORDS; word = strsep(&rest, " "))
        words[count++] = word;
    return cmd_data(count, words);
}

static void write_file(const char *path, const char *bytes, size_t length)
{
    cr_assert_eq(file_write_atomic(path, bytes, length), OK);
}

/* The ids of a dataset with a -1 after each document. */
static int read_back(const char *prefix, int32_t *out, int capacity)
{
    struct dataset *d = NULL;
    int count = 0;
    cr_assert_eq(dataset_open(prefix, &d), OK, "%s", fail_text());
    for (int64_t i = 0; i < dataset_documents(d); i++) {
        int64_t length = dataset_length(d, i);
        cr_assert_lt(count + length, capacity);
        cr_assert_eq(dataset_read(d, i, 0, length, 257, out + count), OK);
        count += (int)length;
        out[count++] = -1;
    }
    dataset_close(d);
    return count;
}

Test(data_command, arbitrary_bytes_round_trip, .init = silence)
{
    char folder[32], all[1024];
    enter(folder);
    for (int i = 0; i < 1024; i++)
        all[i] = (char)(i < 256 ? i : i * 7919 >> 3);
    write_file("a.txt", all, sizeof all);
    write_file("b.txt", "xyz", 3);
    cr_assert_eq(run("data prepare a.txt b.txt -o out --format bytes"), 0);
    int32_t ids[2000];
    cr_assert_eq(read_back("out", ids, 2000), 1024 + 2 + 3 + 2);
    for (int i = 0; i < 1024; i++)
        cr_assert_eq(ids[i], (unsigned char)all[i]);
    cr_assert(ids[1024] == 256 && ids[1025] == -1 && ids[1026] == 'x' && ids[1029] == 256);

    cr_assert_eq(run("data prepare b.txt --output=out --no-append-eod --overwrite --split-lines 1"), 0);
    cr_assert_eq(read_back("out", ids, 2000), 4);
    cr_assert(ids[2] == 'z' && ids[3] == -1);
    cr_assert_eq(run("data inspect out"), 0);
    cr_assert_eq(run("data inspect out.idx --documents 0"), 0);
    leave(folder);
}

/* Text longer than the read buffer. */
Test(data_command, large_documents, .init = silence)
{
    enum { LENGTH = 5000000 };
    char folder[32], *text = malloc(LENGTH);
    enter(folder);
    for (int i = 0; i < LENGTH; i++)
        text[i] = (char)('a' + i * 7919LL % 26);
    write_file("a.txt", text, LENGTH);
    cr_assert_eq(run("data prepare a.txt -o deep/out"), 0);
    int32_t *ids = malloc((LENGTH + 10) * sizeof *ids);
    cr_assert_eq(read_back("deep/out", ids, LENGTH + 10), LENGTH + 2);
    for (int i = 0; i < LENGTH; i++)
        cr_assert_eq(ids[i], text[i]);
    unlink("deep/out.bin");
    unlink("deep/out.idx");
    rmdir("deep");
    free(ids);
    free(text);
    leave(folder);
}

/* A large text is cut only where this does not change the ids. */
Test(data_command, gpt2_ids_are_those_of_the_whole_text, .init = silence)
{
    static const char *const parts[] = {"the ", "\n\n ", "  ", "\xE6\x9D\xB1", "it's", "12", "\xFF"};
    char folder[32];
    struct text text = {0};
    enter(folder);
    write_file("vocab.json", fixture_vocab, strlen(fixture_vocab));
    write_file("merges.txt", fixture_merges, strlen(fixture_merges));
    unsigned seed = 5;
    while (text.length < 2500000) {
        seed = seed * 1664525U + 1013904223U;
        text_add(&text, "%s", parts[(seed >> 10) % (sizeof parts / sizeof *parts)]);
    }
    write_file("a.txt", text.chars, text.length);
    cr_assert_eq(
        run("data prepare a.txt -o x --tokenizer gpt2 --vocab-file vocab.json --merge-file=merges.txt"), 0);

    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    struct tokens whole = {0};
    struct dataset *d = NULL;
    cr_assert_eq(tokenizer_create(&(struct tokenizer_config){.type = "gpt2",
                                                             .vocab_file = "vocab.json",
                                                             .merge_file = "merges.txt"},
                                  &t),
                 OK);
    cr_assert_eq(encoder_create(t, &e), OK);
    cr_assert_eq(encoder_encode(e, text.chars, (int64_t)text.length, &whole), OK);
    cr_assert_eq(dataset_open("x", &d), OK);
    cr_assert_eq(dataset_tokens(d), whole.count + 1);
    int32_t *ids = malloc(((size_t)whole.count + 1) * sizeof *ids);
    cr_assert_eq(dataset_read(d, 0, 0, whole.count + 1, tokenizer_vocab_size(t), ids), OK);
    cr_assert_eq(memcmp(ids, whole.ids, (size_t)whole.count * sizeof *ids), 0);
    cr_assert_eq(ids[whole.count], tokenizer_end_of_document(t));
    cr_assert_eq(run("data inspect x --tokenizer gpt2 --vocab-file vocab.json --merge-file merges.txt"), 0);
    free(ids);
    tokens_free(&whole);
    dataset_close(d);
    encoder_destroy(e);
    tokenizer_destroy(t);
    text_free(&text);
    leave(folder);
}

/* Returns the number of files. */
static int write_bad_files(void)
{
    write_file("a.txt", "text", 4);
    write_file("empty.txt", "", 0);
    write_file("bad.jsonl", "{\"text\": \"a\"}\n{", 15);
    cr_assert_eq(run("data prepare a.txt -o truncated"), 0);
    cr_assert_eq(run("data prepare a.txt -o half"), 0);
    cr_assert(truncate("truncated.idx", 20) == 0 && unlink("half.bin") == 0 && mkfifo("half.bin", 0600) == 0);
    cr_assert(mkdir("pipes", 0700) == 0 && mkfifo("pipes/x.idx", 0600) == 0);
    return files_here(false);
}

/* A pipe without a writer is rejected, not waited for. */
Test(data_command, rejections_have_the_right_status, .init = silence)
{
    char folder[32];
    enter(folder);
    const int before = write_bad_files();
    const char *const wrong[] = {
        "data",
        "data prepares",
        "data prepare",
        "data prepare a.txt",
        "data prepare a.txt -o",
        "data prepare a.txt -o x --output y",
        "data prepare a.txt -o x --split-lines 2 --split-lines=3",
        "data prepare a.txt -o x --documents paragraph",
        "data prepare a.txt -o x --split-lines 0",
        "data prepare a.txt -o x --split-lines 3 --documents file",
        "data prepare a.txt -o x --format xml",
        "data prepare a.txt -o x --tokenizer bpe",
        "data prepare a.txt -o x --overwrite=1",
        "data prepare a.txt -o x --no-such",
        "data prepare a.txt -o x/",
        "data inspect",
        "data inspect a b",
        "data inspect a --documents many",
        "data inspect missing",
        "data inspect a.txt",
        "data prepare missing.txt -o x",
        "data prepare . -o x",
        "data prepare a.txt -o no/such/x",
        "data prepare a.txt -o x --tokenizer gpt2 --vocab-file no --merge-file no",
        "data prepare empty.txt -o x",
        "data prepare a.txt bad.jsonl -o x",
        "data prepare bad.jsonl --json-key title -o x",
        "data prepare /dev/null -o x",
        "data prepare a.txt -o a.txt/x",
        "data prepare a.txt -o pipes/x --overwrite",
        "data prepare a.txt -o x --tokenizer gpt2 --vocab-file pipes/x.idx --merge-file no",
        "data inspect pipes/x",
        "data inspect half",
        "data inspect truncated",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_eq(run(wrong[i]), 2, "\"%s\"", wrong[i]);
    cr_assert_eq(files_here(false), before, "a rejected command left a file");

    cr_assert_eq(run("data prepare a.txt -o x"), 0);
    cr_assert_eq(run("data prepare a.txt -o x"), 2); // exists already
    cr_assert_eq(run("data inspect x --tokenizer gpt2 --vocab-file pipes/x.idx --merge-file no"), 2);
    cr_assert_eq(files_here(false), before + 2);
    cr_assert(unlink("pipes/x.idx") == 0 && rmdir("pipes") == 0);
    leave(folder);
}

Test(data_command, a_full_disk_or_interrupt_leaves_no_files, .init = silence)
{
    char folder[32], text[8000];
    enter(folder);
    memset(text, 'a', sizeof text);
    write_file("a.txt", text, sizeof text);

    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 6000;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_eq(run("data prepare a.txt -o x"), 1);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_eq(files_here(false), 1);

    // The signal is pending before the first chunk is read.
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, NULL);
    raise(SIGINT);
    cr_assert_eq(run("data prepare a.txt -o x"), 1);
    cr_assert_eq(files_here(false), 1);
    cr_assert_eq(run("data prepare a.txt -o x"), 0);
    leave(folder);
}

/* A dataset of documents from nothing to 3 MB, of which the largest are encoded in parts. */
Test(data_command, any_number_of_threads_writes_the_same_dataset, .init = silence)
{
    static const char *const parts[] = {"the dog", " ",  "\n",   "\xE6\x9D\xB1",
                                        "it's",    "12", "\xFF", "<|end_of_text|>"};
    char folder[32], line[256];
    struct text text = {0}, bytes[2] = {{0}};
    enter(folder);
    unsigned seed = 9;
    for (int document = 0; document < 3000; document++) {
        size_t length = text.length + (document == 700 ? 3000000 : document % 50 == 0 ? 0 : seed % 1000);
        while (text.length < length) {
            seed = seed * 1664525U + 1013904223U;
            text_add(&text, "%s", parts[(seed >> 10) % (sizeof parts / sizeof *parts)]);
        }
        text_add(&text, "\f");
    }
    write_file("a.txt", text.chars, text.length);
    for (int threads = 1; threads <= 4; threads += 3) {
        snprintf(
            line, sizeof line,
            "data prepare a.txt -o x --overwrite --documents form-feed --tokenizer hf --tokenizer-model %s "
            "--threads %d",
            SOURCE_ROOT "/tests/fixtures/tokenizers/llama3.json", threads);
        cr_assert_eq(run(line), 0, "%s", fail_text());
        cr_assert_eq(file_read("x.bin", &bytes[threads > 1]), OK);
        cr_assert_eq(file_read("x.idx", &bytes[threads > 1]), OK); // appended
    }
    cr_assert_eq(bytes[0].length, bytes[1].length);
    cr_assert_eq(memcmp(bytes[0].chars, bytes[1].chars, bytes[0].length), 0);

    // The documents begin with the tokenizer's prefix, and end with its end of a document.
    struct dataset *d = NULL;
    int32_t ids[2];
    cr_assert_eq(dataset_open("x", &d), OK);
    for (int64_t i = 0; i < dataset_documents(d); i += 100) {
        cr_assert_eq(dataset_read(d, i, 0, 1, 461, ids), OK);
        cr_assert_eq(dataset_read(d, i, dataset_length(d, i) - 1, 1, 461, ids + 1), OK);
        cr_assert(ids[0] == 0 && ids[1] == 1);
    }
    dataset_close(d);
    cr_assert_eq(run("data prepare a.txt -o x --overwrite --threads 0"), 2);
    cr_assert_eq(run("data prepare a.txt -o x --overwrite --tokenizer hf"), 2);
    for (int i = 0; i < 2; i++)
        text_free(&bytes[i]);
    text_free(&text);
    leave(folder);
}
