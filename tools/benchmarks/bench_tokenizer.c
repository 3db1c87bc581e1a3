// SPDX-License-Identifier: Apache-2.0
/* The speed of a tokenizer on one core: bench_tokenizer TYPE MODEL TEXT [SECONDS]
 *
 *     bench_tokenizer hf Llama-3/tokenizer.json book.txt
 *     bench_tokenizer gpt2 vocab.json,merges.txt book.txt
 *
 * Encodes the whole text repeatedly, with a warm word cache after the first time; prints the speed of the
 * first and of the fastest time. */
#include "base/text.h"
#include "trainer/tokenizer/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Processor time of this thread: other programs on the machine count less. */
static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status measure(struct encoder *encoder, const struct text *text, double seconds)
{
    struct tokens ids = {0};
    double begin = cpu_s(), first = 0.0, fastest = INFINITY;
    enum status status = OK;
    while (status == OK && cpu_s() - begin < seconds) {
        double start = cpu_s();
        ids.count = 0;
        status = encoder_encode(encoder, text_chars(text), (int64_t)text->length, &ids);
        double time = cpu_s() - start;
        first = isinf(fastest) ? time : first;
        fastest = fmin(fastest, time);
    }
    const double mb = (double)text->length * 1e-6;
    printf("%.1f MB, %lld tokens: first %.1f MB/s, fastest %.1f MB/s\n", mb, (long long)ids.count, mb / first,
           mb / fastest);
    tokens_free(&ids);
    return status;
}

static enum status run(int argc, char **argv)
{
    double seconds = 3.0;
    if (argc < 4 || (argc > 4 && !number_parse(argv[4], &seconds)))
        return fail(BAD_USAGE, "usage: bench_tokenizer TYPE MODEL TEXT [SECONDS]");
    struct text text = {0}, files = {0};
    struct tokenizer *tokenizer = NULL;
    struct encoder *encoder = NULL;
    text_add(&files, "%s", argv[2]);
    char *comma = strchr(files.chars, ','), *merges = comma != NULL ? comma + 1 : NULL;
    if (comma != NULL)
        *comma = 0;
    const struct tokenizer_config config = {
        .type = argv[1], .tokenizer_model = files.chars, .vocab_file = files.chars, .merge_file = merges};
    double start = cpu_s();
    enum status status = tokenizer_create(&config, &tokenizer);
    printf("%s: loaded in %.2f s\n", argv[2], cpu_s() - start);
    if (status == OK)
        status = encoder_create(tokenizer, &encoder);
    if (status == OK)
        status = file_read(argv[3], &text);
    if (status == OK)
        status = measure(encoder, &text, seconds);
    encoder_destroy(encoder);
    tokenizer_destroy(tokenizer);
    text_free(&text);
    text_free(&files);
    return status;
}

int main(int argc, char **argv)
{
    enum status status = run(argc, argv);
    if (status != OK)
        fprintf(stderr, "bench_tokenizer: %s\n", fail_text());
    return status_exit(status);
}
