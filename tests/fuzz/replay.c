// SPDX-License-Identifier: Apache-2.0
/* Reads the stored inputs of one reader again: replay CORPUS/NAME.txt. A line of the file is a label and the
 * base64 of an input; lines that begin with # are comments. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static int value_of(char c)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != 0 ? strchr(alphabet, c) : NULL;
    return at != NULL ? (int)(at - alphabet) : -1;
}

/* Decodes up to the end of the line. */
static void decode(const char *base64, struct text *out)
{
    uint32_t bits = 0;
    int count = 0;
    for (; value_of(*base64) >= 0; base64++) {
        bits = bits << 6 | (uint32_t)value_of(*base64);
        count += 6;
        if (count < 8)
            continue;
        count -= 8;
        const char byte = (char)(bits >> count & 0xFF);
        text_add_bytes(out, &byte, 1);
    }
}

/* Copies the input to memory of exactly its size, so that a sanitizer sees reads past its end. */
static void read_one(const struct fuzz_reader *reader, const char *folder, const struct text *input)
{
    uint8_t *bytes = malloc(input->length > 0 ? input->length : 1);
    if (bytes == NULL)
        abort();
    if (input->length > 0)
        memcpy(bytes, input->chars, input->length);
    fuzz_read(reader, &(struct fuzz_input){.bytes = bytes, .size = input->length, .folder = folder});
    free(bytes);
}

static int replay(const struct fuzz_reader *reader, const struct text *corpus, const char *folder)
{
    int count = 0;
    for (const char *line = text_chars(corpus), *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const char *space = memchr(line, ' ', (size_t)(end - line));
        struct text input = {0};
        if (*line == '#' || space == NULL)
            continue;
        print_line(stderr, "%.*s", (int)(space - line), line);
        decode(space + 1, &input);
        read_one(reader, folder, &input);
        text_free(&input);
        count++;
    }
    return count;
}

int main(int argc, char **argv)
{
    struct text corpus = {0}, name = {0};
    if (argc != 2 || file_read(argv[1], &corpus) != OK) {
        print_line(stderr, "usage: replay CORPUS/NAME.txt (%s)", fail_text());
        return 2;
    }
    const char *slash = strrchr(argv[1], '/'), *begin = slash != NULL ? slash + 1 : argv[1];
    text_add(&name, "%.*s", (int)strcspn(begin, "."), begin);
    const struct fuzz_reader *reader = fuzz_reader_find(name.chars);
    if (reader == NULL) {
        print_line(stderr, "there is no reader %s", name.chars);
        return 2;
    }
    char *folder = fuzz_folder_create();
    if (reader->prepare != NULL)
        reader->prepare(folder);
    const int count = replay(reader, &corpus, folder);
    printf("%s: %d inputs\n", reader->name, count);
    fuzz_folder_remove(folder);
    text_free(&corpus);
    text_free(&name);
    return count > 0 ? 0 : 1;
}
