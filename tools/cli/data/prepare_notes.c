// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/data/prepare_notes.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void prepare_notes_free(struct prepare_notes *notes)
{
    for (int i = 0; i < NOTES_SHOWN; i++)
        text_free(&notes->skipped_shown[i]);
    text_free(&notes->doubtful_shown);
    for (int64_t i = 0; i < notes->file_count; i++)
        free(notes->files[i]);
    free(notes->files);
    *notes = (struct prepare_notes){0};
}

void prepare_notes_skip(struct prepare_notes *notes, const char *why)
{
    if (notes->skipped < NOTES_SHOWN)
        text_add(&notes->skipped_shown[notes->skipped], "%s", why);
    notes->skipped++;
}

void prepare_notes_not_utf8(struct prepare_notes *notes, const char *file, const struct text_check *check)
{
    if (check->wrong < (check->bytes + 999) / 1000)
        return;
    if (notes->doubtful++ == 0)
        text_add(&notes->doubtful_shown,
                 "%s: %" PRId64 " bytes (%.1f %%) are not UTF-8 text, the first one at byte %" PRId64, file,
                 check->wrong, 100.0 * (double)check->wrong / (double)check->bytes, check->first_wrong);
}

const char *prepare_notes_file(struct prepare_notes *notes, const char *file)
{
    if (notes->file_count > 0 && strcmp(notes->files[notes->file_count - 1], file) == 0)
        return notes->files[notes->file_count - 1];
    if ((notes->file_count & (notes->file_count - 1)) == 0) { // full at each power of two
        const size_t capacity = notes->file_count > 0 ? 2 * (size_t)notes->file_count : 1;
        notes->files = memory_resized(notes->files, capacity, sizeof *notes->files, "the names of files");
    }
    return notes->files[notes->file_count++] = text_copy(file);
}

void prepare_notes_print(const struct prepare_notes *notes)
{
    if (notes->skipped > 0) {
        print_line(stderr, "warning: %" PRId64 " invalid line%s skipped:", notes->skipped,
                   notes->skipped == 1 ? "" : "s");
        for (int i = 0; i < NOTES_SHOWN && i < notes->skipped; i++)
            print_line(stderr, "  %s", notes->skipped_shown[i].chars);
        if (notes->skipped > NOTES_SHOWN)
            print_line(stderr, "  and %" PRId64 " more", notes->skipped - NOTES_SHOWN);
    }
    if (notes->doubtful > 0) {
        struct text others = {0};
        if (notes->doubtful > 1)
            text_add(&others, ", and so in %" PRId64 " more file%s", notes->doubtful - 1,
                     notes->doubtful == 2 ? "" : "s");
        print_line(stderr, "warning: %s%s; is it another encoding? (iconv -f ENCODING -t UTF-8)",
                   notes->doubtful_shown.chars, text_chars(&others));
        text_free(&others);
    }
}
