// SPDX-License-Identifier: Apache-2.0
#include "trainer/generate/generate.h"

#include "base/clock.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/engine/host_floats.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/utf8_printer.h"

#include <stdlib.h>
#include <string.h>

/* State shared by the functions of this file. */
struct generation {
    const struct generate_options *options;
    struct recipe recipe; // from the options, possibly with shorter sequences; not owned
    struct run run;
    struct tokenizer *tokenizer;
    struct tokens ids; // of the prompt, then of the generated text
    struct generate_result result;
};

/* ---- the prompt ---- */

static enum status encode(struct generation *generation)
{
    const struct generate_options *o = generation->options;
    struct encoder *encoder = NULL;
    TRY(run_tokenizer(o->recipe, &generation->tokenizer));
    TRY(encoder_create(generation->tokenizer, &encoder));
    const struct tokens *prefix = tokenizer_prefix(generation->tokenizer);
    enum status status = tokens_append(&generation->ids, prefix->ids, prefix->count);
    if (status == OK)
        status = encoder_encode(encoder, o->prompt, o->prompt_bytes, &generation->ids);
    encoder_destroy(encoder);
    TRY(status);
    generation->result.prompt_tokens = generation->ids.count;
    TRY(tokens_reserve(&generation->ids, o->tokens + 1));
    // Without a prompt, start at the beginning of a document: after an end-of-document token.
    if (generation->ids.count == 0)
        generation->ids.ids[generation->ids.count++] = tokenizer_end_of_document(generation->tokenizer);
    return OK;
}

static enum status check_prompt(const struct generation *generation)
{
    const struct model_config *model = &generation->options->recipe->model;
    if (generation->ids.count > model->seq_length)
        return fail(BAD_USAGE,
                    "the prompt has %lld tokens, but the model has model.seq_length %lld; use a "
                    "prompt of at most %lld tokens",
                    (long long)generation->ids.count, (long long)model->seq_length,
                    (long long)model->seq_length);
    for (int64_t i = 0; i < generation->ids.count; i++)
        if (generation->ids.ids[i] >= model->vocab_size)
            return fail(BAD_USAGE,
                        "token %lld of the prompt has the id %d, but model.vocab_size is %lld: was the "
                        "model trained with tokenizer %s?",
                        (long long)i, generation->ids.ids[i], (long long)model->vocab_size,
                        tokenizer_name(generation->tokenizer));
    return OK;
}

/* Rotary embeddings and ALiBi need no table: a window no longer than the text avoids computing on padding. */
static int64_t window_length(const struct generation *generation)
{
    const struct model_config *model = &generation->options->recipe->model;
    enum { STEP = 32 };
    int64_t all = generation->ids.count + generation->options->tokens,
            rounded = (all + STEP - 1) / STEP * STEP;
    return model->position_embedding != LEARNED_ABSOLUTE && rounded < model->seq_length ? rounded
                                                                                        : model->seq_length;
}

/* ---- the window: one sequence on the device ---- */

struct window {
    int64_t length; // S
    struct buffer device;
    char *host; // host copy
    struct batch batch;
};

/* Widest elements first, which aligns all arrays: sample i64[S], two sums f64[1], then five arrays of 32 bits
 * [S]. */
static enum status window_create(struct rank_state *w, struct window *out)
{
    size_t s = (size_t)w->run->recipe->model.seq_length, narrow = s * sizeof(int32_t);
    size_t sums = s * sizeof(int64_t), arrays = sums + 2 * sizeof(double), bytes = arrays + 5 * narrow;
    *out = (struct window){.length = (int64_t)s, .host = calloc(1, bytes)};
    if (out->host == NULL)
        return fail(NO_MEMORY, "no memory for a window of %zu tokens", s);
    for (size_t i = 0; i < s; i++) {
        ((int32_t *)(out->host + arrays + narrow))[i] = (int32_t)i;
        ((int32_t *)(out->host + arrays + 2 * narrow))[i] = (int32_t)i;
    }
    TRY(buffer_alloc(w->device, PART_DATA, bytes, &out->device));
    TRY(copy_to_device(w->compute, out->device.data, out->host, bytes));
    char *base = out->device.data;
    out->batch = (struct batch){
        .sample = (const int64_t *)base,
        .token = (const int32_t *)(base + arrays),
        .position = (const int32_t *)(base + arrays + narrow),
        .sample_offset = (const int32_t *)(base + arrays + 2 * narrow),
        .label = (const int32_t *)(base + arrays + 3 * narrow),
        .loss_mask = (const float *)(base + arrays + 4 * narrow), // zero: the loss is not used
        .sample_loss = tensor_1d(base + sums, F64, 1),
        .sample_tokens = tensor_1d(base + sums + sizeof(double), F64, 1),
    };
    return stream_sync(w->compute);
}

static void window_destroy(struct window *window)
{
    buffer_free(&window->device);
    free(window->host);
    *window = (struct window){0};
}

/* Computes the logits f32[V] of the next id after ids[0..count); the window holds the last ids. */
static enum status window_logits(struct rank_state *w, struct window *window, const struct tokens *ids,
                                 float *logits)
{
    int64_t held = ids->count < window->length ? ids->count : window->length;
    size_t bytes = (size_t)held * sizeof *ids->ids;
    memcpy(window->host, ids->ids + ids->count - held, bytes);
    TRY(copy_to_device(w->compute, (void *)(uintptr_t)window->batch.token, window->host, bytes));
    TRY(executor_evaluate(w->executor, &window->batch, 1));
    struct tensor row = tensor_rows(executor_logits(w->executor), held - 1, held);
    // In precision.params_dtype and padded: only the first V columns are ids.
    return floats_from_device(w->compute, tensor_1d(row.data, row.dtype, w->run->recipe->model.vocab_size),
                              logits);
}

/* ---- generation ---- */

struct generator {
    struct window window;
    struct sampler *sampler;
    float *logits; // [V]
    struct utf8_printer printer;
};

static void generator_free(struct generator *generator)
{
    window_destroy(&generator->window);
    sampler_destroy(generator->sampler);
    free(generator->logits);
    text_free(&generator->printer.pending);
}

/* Ids beyond the tokenizer's vocabulary (padding of the vocabulary) are never sampled. */
static enum status generator_create(struct generation *generation, struct rank_state *w,
                                    struct generator *out)
{
    int64_t vocab = generation->recipe.model.vocab_size, known = tokenizer_vocab_size(generation->tokenizer);
    *out = (struct generator){.printer = {.to = generation->options->to, .raw = generation->options->raw}};
    out->logits = calloc((size_t)vocab, sizeof *out->logits);
    if (out->logits == NULL)
        return fail(NO_MEMORY, "no memory for %lld logits", (long long)vocab);
    TRY(sampler_create(&generation->options->sampling, known < vocab ? known : vocab, &out->sampler));
    return window_create(w, &out->window);
}

static enum status print_ids(struct generation *generation, struct generator *generator, int64_t begin)
{
    struct text bytes = {0};
    enum status status = tokenizer_decode_more(generation->tokenizer, generation->ids.ids + begin,
                                               generation->ids.count - begin, &bytes);
    if (status == OK)
        status = utf8_print(&generator->printer, text_chars(&bytes), bytes.length);
    text_free(&bytes);
    return status;
}

static enum status generate_text(struct generation *generation, struct rank_state *w,
                                 struct generator *generator)
{
    const struct generate_options *o = generation->options;
    struct generate_result *result = &generation->result;
    int32_t end = tokenizer_end_of_document(generation->tokenizer);
    TRY(utf8_print(&generator->printer, o->prompt, (size_t)o->prompt_bytes));
    double start = clock_s();
    while (result->tokens < o->tokens && !result->stopped) {
        int32_t id;
        TRY(window_logits(w, &generator->window, &generation->ids, generator->logits));
        TRY(sampler_draw(generator->sampler, generator->logits, result->tokens, &id));
        generation->ids.ids[generation->ids.count++] = id;
        result->tokens++;
        result->stopped = id == end && !o->no_stop;
        if (!result->stopped)
            TRY(print_ids(generation, generator, generation->ids.count - 1));
    }
    result->seconds = clock_s() - start;
    return utf8_print_end(&generator->printer);
}

/* There is one rank and only forward passes: no layout or training key would reduce the memory. */
static enum status explain(enum status status)
{
    if (status != NO_DEVICE_MEMORY)
        return status;
    return fail(status, "%s; use cluster.device=cpu to avoid GPU memory", fail_text());
}

static enum status rank_main(struct world *world, void *argument)
{
    struct generation *generation = argument;
    struct rank_state state;
    struct generator generator = {0};
    enum status status = rank_create(&generation->run, world, false, &state);
    if (status == OK && !device_computes(state.device))
        status = fail(BAD_RECIPE,
                      "cluster.device %s computes nothing and cannot generate text; use cluster.device=cpu",
                      generation->recipe.cluster.device);
    if (status == OK)
        status = checkpoint_load(&state, generation->options->checkpoint, false);
    if (status == OK)
        status = generator_create(generation, &state, &generator);
    if (status == OK) {
        generation->result.step = state.step;
        status = generate_text(generation, &state, &generator);
    }
    status = explain(status);
    generator_free(&generator);
    rank_destroy(&state);
    return status;
}

static enum status run_job(struct generation *generation)
{
    TRY(encode(generation));
    TRY(check_prompt(generation));
    generation->recipe = *generation->options->recipe;
    generation->recipe.model.seq_length = window_length(generation);
    TRY(run_create(&generation->recipe, false, &generation->run));
    return world_run(generation->options->transport, 1, rank_main, generation);
}

enum status generate(const struct generate_options *options, struct generate_result *out)
{
    struct generation generation = {.options = options};
    enum status status = run_job(&generation);
    run_destroy(&generation.run);
    tokens_free(&generation.ids);
    tokenizer_destroy(generation.tokenizer);
    if (status == OK)
        *out = generation.result;
    return status;
}
