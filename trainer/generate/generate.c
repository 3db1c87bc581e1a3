// SPDX-License-Identifier: Apache-2.0
#include "trainer/generate/generate.h"

#include "base/clock.h"
#include "base/memory.h"
#include "trainer/checkpoint/load.h"
#include "trainer/data/recipe_data.h"
#include "trainer/engine/agree.h"
#include "trainer/generate/decoder.h"
#include "trainer/tokenizer/chat/chat.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/utf8_printer.h"

#include <stdlib.h>
#include <string.h>

/* State shared by the ranks of this process; rank 0 writes the results. */
struct generation {
    const struct generate_options *options;
    struct run run;
    struct tokenizer *tokenizer;
    struct chat_template chat; // with options.chat_template
    struct tokens ends;        // ids that end a text
    struct tokens *prompts;    // [count]
    int64_t longest;           // tokens of a prompt and its text
    struct generated *each;    // [count]
    struct generate_result result;
};

/* ---- stop texts ---- */

/* The position of the first stop text that ends after the first `seen` bytes; -1: there is none. */
static int64_t stop_text_find(const struct stop_texts *stops, const struct text *text, size_t seen)
{
    int64_t first = -1;
    for (int i = 0; i < stops->count; i++) {
        const size_t length = strlen(stops->list[i]), from = seen + 1 > length ? seen + 1 - length : 0;
        const char *found = from < text->length
                                ? memmem(text->chars + from, text->length - from, stops->list[i], length)
                                : NULL;
        if (found != NULL && (first < 0 || found - text->chars < first))
            first = found - text->chars;
    }
    return first;
}

/* The number of bytes at the end that begin a stop text. */
static size_t stop_text_held(const struct stop_texts *stops, const struct text *text)
{
    size_t most = 0;
    for (int i = 0; i < stops->count; i++) {
        const size_t limit = strlen(stops->list[i]) - 1;
        for (size_t held = limit < text->length ? limit : text->length; held > most; held--)
            if (memcmp(text->chars + text->length - held, stops->list[i], held) == 0)
                most = held; // ends the loop
    }
    return most;
}

/* ---- the prompts ---- */

static enum status encode(const struct generation *generation, struct encoder *encoder, int64_t i)
{
    const struct generate_prompt *prompt = &generation->options->prompts[i];
    const struct tokens *prefix = tokenizer_prefix(generation->tokenizer);
    struct tokens *ids = &generation->prompts[i];
    if (generation->options->chat_template != NULL) {
        if (chat_encode_prompt(&generation->chat, encoder, generation->options->system, prompt->bytes,
                               prompt->length, ids) != OK)
            return fail(BAD_USAGE, "prompt %lld: %s", (long long)i + 1, fail_text());
        generation->each[i].prompt_tokens = ids->count;
        return OK;
    }
    tokens_append(ids, prefix->ids, prefix->count);
    TRY(encoder_encode(encoder, prompt->bytes, prompt->length, ids));
    generation->each[i].prompt_tokens = ids->count;
    // Without a prompt, start at the beginning of a document: after an end-of-document token.
    const int32_t end = tokenizer_end_of_document(generation->tokenizer);
    if (ids->count == 0)
        tokens_append(ids, &end, 1);
    return OK;
}

static enum status check_prompt(const struct generation *generation, int64_t number)
{
    const struct model_config *model = &generation->options->recipe->model;
    const struct tokens *ids = &generation->prompts[number];
    char which[48] = "the prompt";
    if (generation->options->count > 1)
        snprintf(which, sizeof which, "prompt %lld", (long long)number + 1);
    if (ids->count > model->seq_length)
        return fail(BAD_USAGE,
                    "%s has %lld tokens, but the model has model.seq_length %lld; use a prompt of at most "
                    "%lld tokens",
                    which, (long long)ids->count, (long long)model->seq_length, (long long)model->seq_length);
    for (int64_t i = 0; i < ids->count; i++)
        if (ids->ids[i] >= model->vocab_size)
            return fail(BAD_USAGE,
                        "token %lld of %s has the id %d, but model.vocab_size is %lld: was the model trained "
                        "with tokenizer %s?",
                        (long long)i, which, ids->ids[i], (long long)model->vocab_size,
                        tokenizer_name(generation->tokenizer));
    return OK;
}

/* Lists the ids that end a text: of the tokenizer, of the model, and of the template of its answers. */
static void list_ends(struct generation *generation)
{
    const struct generate_options *o = generation->options;
    struct chat_template answers;
    const int32_t end = tokenizer_end_of_document(generation->tokenizer);
    if (o->no_stop)
        return;
    tokens_append(&generation->ends, &end, 1);
    tokens_append(&generation->ends, o->ends, o->end_count);
    const char *const names[] = {o->chat_template, o->answer_template};
    for (int i = 0; i < 2; i++)
        if (names[i] != NULL && chat_template_create(names[i], generation->tokenizer, &answers) == OK) {
            const int32_t id = chat_template_end(&answers);
            tokens_append(&generation->ends, &id, 1);
        }
}

static enum status encode_all(struct generation *generation)
{
    const struct generate_options *o = generation->options;
    struct encoder *encoder = NULL;
    TRY(recipe_create_tokenizer(o->recipe, &generation->tokenizer));
    if (o->chat_template != NULL)
        TRY(chat_template_create(o->chat_template, generation->tokenizer, &generation->chat));
    list_ends(generation);
    TRY(encoder_create(generation->tokenizer, &encoder));
    enum status status = OK;
    for (int64_t i = 0; status == OK && i < o->count; i++) {
        status = encode(generation, encoder, i);
        if (status == OK)
            status = check_prompt(generation, i);
        if (generation->prompts[i].count + o->tokens > generation->longest)
            generation->longest = generation->prompts[i].count + o->tokens;
    }
    encoder_destroy(encoder);
    return status;
}

/* ---- one rank ---- */

struct sequence {
    struct tokens ids; // of the prompt, then of the text
    int64_t tokens;    // of the text
    struct text text;
    size_t printed; // of the text
    bool stopped;
};

struct generator {
    const struct generation *generation;
    struct decoder *decoder;
    struct sampler *sampler;
    struct sequence *sequences; // [count]
    int32_t *next;              // [count] ids of the next step
    struct utf8_printer printer;
    bool prints;
};

static void sequence_free(struct sequence *sequence)
{
    tokens_free(&sequence->ids);
    text_free(&sequence->text);
}

static void generator_free(struct generator *generator)
{
    for (int64_t i = 0; generator->sequences != NULL && i < generator->generation->options->count; i++)
        sequence_free(&generator->sequences[i]);
    free(generator->sequences);
    free(generator->next);
    decoder_destroy(generator->decoder);
    sampler_destroy(generator->sampler);
    text_free(&generator->printer.pending);
}

/* Ids beyond the tokenizer's vocabulary (padding of the vocabulary) are never sampled. */
static enum status generator_create(struct rank_state *state, struct generator *out)
{
    const struct generation *generation = out->generation;
    const struct generate_options *o = generation->options;
    int64_t vocab = o->recipe->model.vocab_size, known = tokenizer_vocab_size(generation->tokenizer);
    out->prints = o->to != NULL && state->world->rank == 0;
    out->printer = (struct utf8_printer){.to = o->to, .raw = o->raw};
    out->sequences = memory_zeroed((size_t)o->count, sizeof *out->sequences, "sequences");
    out->next = memory_zeroed((size_t)o->count, sizeof *out->next, "sequences");
    for (int64_t i = 0; i < o->count; i++) {
        struct tokens *ids = &out->sequences[i].ids;
        tokens_reserve(ids, generation->prompts[i].count + o->tokens);
        tokens_append(ids, generation->prompts[i].ids, generation->prompts[i].count);
    }
    TRY(sampler_create(&o->sampling, known < vocab ? known : vocab, &out->sampler));
    return decoder_create(state, o->count, generation->longest, &out->decoder);
}

static bool is_done(const struct generator *generator, const struct sequence *sequence)
{
    return sequence->stopped || sequence->tokens == generator->generation->options->tokens;
}

/* Prints what was not printed; but what may begin a stop text only at the end. */
static enum status print_more(struct generator *generator, struct sequence *sequence)
{
    const struct stop_texts *stops = &generator->generation->options->stops;
    const size_t held = is_done(generator, sequence) ? 0 : stop_text_held(stops, &sequence->text);
    const size_t from = sequence->printed, end = sequence->text.length - held;
    if (end <= from)
        return OK;
    sequence->printed = end;
    return utf8_print(&generator->printer, sequence->text.chars + from, end - from);
}

static bool is_end(const struct generation *generation, int32_t id)
{
    for (int64_t i = 0; i < generation->ends.count; i++)
        if (generation->ends.ids[i] == id)
            return true;
    return false;
}

/* Appends the text of the last token, up to a stop text. */
static enum status add_last(const struct generation *generation, struct sequence *sequence)
{
    const size_t before = sequence->text.length;
    TRY(tokenizer_decode_more(generation->tokenizer, sequence->ids.ids + sequence->ids.count - 1, 1,
                              &sequence->text));
    const int64_t stop = stop_text_find(&generation->options->stops, &sequence->text, before);
    sequence->stopped = stop >= 0;
    if (stop >= 0)
        sequence->text.length = (size_t)stop;
    return OK;
}

/* Samples the next token of a sequence. */
static enum status sample(struct generator *generator, int64_t number)
{
    struct sequence *sequence = &generator->sequences[number];
    int32_t id;
    TRY(sampler_draw(generator->sampler, decoder_logits(generator->decoder, number), number, sequence->tokens,
                     &id));
    tokens_append(&sequence->ids, &id, 1);
    sequence->tokens++;
    sequence->stopped = is_end(generator->generation, id);
    if (!sequence->stopped)
        TRY(add_last(generator->generation, sequence));
    return generator->prints ? print_more(generator, sequence) : OK;
}

/* Computes the logits of the next token of all sequences that need one; *more: any. */
static enum status advance(struct generator *generator, bool *more)
{
    const int64_t count = generator->generation->options->count;
    struct decoder *decoder = generator->decoder;
    bool steps = false;
    *more = false;
    for (int64_t i = 0; i < count; i++) {
        const struct sequence *sequence = &generator->sequences[i];
        const bool done = is_done(generator, sequence), full = decoder_is_full(decoder, i);
        generator->next[i] = done || full ? -1 : sequence->ids.ids[sequence->ids.count - 1];
        steps = steps || generator->next[i] >= 0;
        *more = *more || !done;
    }
    if (steps)
        TRY(decoder_step(decoder, generator->next));
    for (int64_t i = 0; i < count; i++) {
        const struct sequence *sequence = &generator->sequences[i];
        if (generator->next[i] < 0 && !is_done(generator, sequence))
            TRY(decoder_start(decoder, i, sequence->ids.ids, sequence->ids.count));
    }
    return OK;
}

static enum status generate_text(struct generator *generator)
{
    const struct generate_options *o = generator->generation->options;
    bool more = true;
    if (generator->prints && o->chat_template == NULL)
        TRY(utf8_print(&generator->printer, o->prompts[0].bytes, (size_t)o->prompts[0].length));
    for (int64_t i = 0; i < o->count; i++)
        TRY(decoder_start(generator->decoder, i, generator->sequences[i].ids.ids,
                          generator->sequences[i].ids.count));
    while (more) {
        for (int64_t i = 0; i < o->count; i++)
            if (!is_done(generator, &generator->sequences[i]))
                TRY(sample(generator, i));
        TRY(advance(generator, &more));
    }
    return generator->prints ? utf8_print_end(&generator->printer) : OK;
}

/* ---- all ranks ---- */

/* Moves the texts to the caller. */
static void store_results(struct generator *generator, const struct generation *generation)
{
    for (int64_t i = 0; i < generation->options->count; i++) {
        struct sequence *sequence = &generator->sequences[i];
        struct generated *out = &generation->each[i];
        out->tokens = sequence->tokens;
        out->stopped = sequence->stopped;
        if (generation->options->to == NULL) {
            out->text = sequence->text;
            sequence->text = (struct text){0};
        }
    }
}

/* There are only forward passes: no training key would reduce the memory. */
static enum status explain(enum status status)
{
    if (status != NO_DEVICE_MEMORY)
        return status;
    return fail(status, "%s; use cluster.device=cpu to avoid GPU memory, or more tp", fail_text());
}

static enum status run_rank(struct generation *generation, struct rank_state *state,
                            struct generator *generator)
{
    TRY(checkpoint_load(state, generation->options->checkpoint, CHECKPOINT_WEIGHTS));
    TRY(rank_agree(state, generator_create(state, generator)));
    const double start = clock_s();
    TRY(generate_text(generator));
    if (state->world->rank != 0)
        return OK;
    generation->result = (struct generate_result){.step = state->step, .seconds = clock_s() - start};
    store_results(generator, generation);
    return OK;
}

static enum status rank_main(struct world *world, void *argument)
{
    struct generation *generation = argument;
    struct rank_state state;
    struct generator generator = {.generation = generation};
    // After a failure of this rank alone, peers may still use its memory; the process ends.
    enum status status =
        explain(rank_create(&generation->run, world, &(struct rank_options){.training = false}, &state));
    if (status != OK && world->size > 1)
        return status;
    if (status == OK)
        status = explain(run_rank(generation, &state, &generator));
    generator_free(&generator);
    rank_destroy(&state);
    return status;
}

static enum status run_job(struct generation *generation)
{
    const struct generate_options *o = generation->options;
    if (!device_traits(o->recipe->cluster.device)->computes)
        return fail(BAD_RECIPE,
                    "cluster.device %s computes nothing and cannot generate text; use cluster.device=cpu",
                    o->recipe->cluster.device);
    generation->prompts = memory_zeroed((size_t)o->count, sizeof *generation->prompts, "prompts");
    TRY(encode_all(generation));
    TRY(run_create(o->recipe, false, &generation->run));
    generation->run.row_tokens = decoder_row_tokens(o->recipe, generation->longest);
    const struct world_options world = recipe_world(o->recipe, o->size);
    return world_run_as(&world, rank_main, generation);
}

enum status generate(const struct generate_options *options, struct generated *each,
                     struct generate_result *out)
{
    struct generation generation = {.options = options, .each = each};
    const enum status status = run_job(&generation);
    run_destroy(&generation.run);
    for (int64_t i = 0; generation.prompts != NULL && i < options->count; i++)
        tokens_free(&generation.prompts[i]);
    free(generation.prompts);
    tokens_free(&generation.ends);
    tokenizer_destroy(generation.tokenizer);
    if (status == OK)
        *out = generation.result;
    return status;
}
