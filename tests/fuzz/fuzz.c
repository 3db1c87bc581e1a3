// SPDX-License-Identifier: Apache-2.0
/* The entry points of libFuzzer: fuzz --reader=NAME [its options] [FOLDER of inputs ...]. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* libFuzzer calls with bytes only. */
static const struct fuzz_reader *reader;
static const char *folder;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char option[] = "--reader=";
    for (int i = 1; i < *argc; i++)
        if (strncmp((*argv)[i], option, sizeof option - 1) == 0)
            reader = fuzz_reader_find((*argv)[i] + sizeof option - 1);
    if (reader == NULL) {
        fprintf(stderr, "use --reader=NAME, one of:\n");
        for (int i = 0; fuzz_reader(i) != NULL; i++)
            fprintf(stderr, "  %s\n", fuzz_reader(i)->name);
        exit(2);
    }
    folder = fuzz_folder_create();
    if (reader->prepare != NULL)
        reader->prepare(folder);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_read(reader, &(struct fuzz_input){.bytes = bytes, .size = size, .folder = folder});
    return 0;
}
