// SPDX-License-Identifier: Apache-2.0
#include "trainer/generate/decoder.h"

#include "base/memory.h"
#include "kernels/host_floats.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 }; // tokens of a sequence that are computed at once

/* The rows of one forward pass, on the device. */
struct rows {
    int64_t sequences, tokens; // B; T
    struct buffer device;
    char *host;
    struct batch batch;
};

struct decoder {
    struct rank_state *state;
    int64_t sequences, vocab, length; // B; V; S
    int64_t longest;                  // tokens of a sequence at most
    bool cached;
    struct rows chunk, step;
    struct executor *stepper; // NULL without a cache
    float *logits;            // [B, V]
    struct buffer exchange;   // f32[B, V]; none in a world of one rank
};

static bool has_cache(const struct recipe *recipe)
{
    return device_traits(recipe->cluster.device)->attends_to_earlier_keys &&
           !linear_precision_quantizes(&recipe->layers.precision);
}

int64_t decoder_row_tokens(const struct recipe *recipe, int64_t longest)
{
    const int64_t rounded = (longest + CHUNK - 1) / CHUNK * CHUNK;
    const int64_t window = rounded < recipe->model.seq_length ? rounded : recipe->model.seq_length;
    return has_cache(recipe) && window > CHUNK ? CHUNK : window;
}

/* ---- rows ---- */

/* Offsets of the arrays, widest elements first, which aligns all of them: sample i64[T], two sums f64[B],
 * then five arrays of 32 bits [T]. */
static size_t narrow_at(const struct rows *rows, int array)
{
    return (size_t)rows->tokens * sizeof(int64_t) + 2 * (size_t)rows->sequences * sizeof(double) +
           (size_t)array * (size_t)rows->tokens * sizeof(int32_t);
}

static int32_t *host_array(const struct rows *rows, int array)
{
    return (int32_t *)(void *)(rows->host + narrow_at(rows, array));
}

enum { TOKEN, POSITION, SAMPLE_OFFSET, LABEL, LOSS_MASK, NARROW_ARRAYS };

static enum status rows_create(struct rank_state *state, int64_t sequences, int64_t tokens, struct rows *out)
{
    *out = (struct rows){.sequences = sequences, .tokens = tokens};
    const size_t bytes = narrow_at(out, NARROW_ARRAYS), sums = (size_t)tokens * sizeof(int64_t);
    out->host = memory_zeroed(1, bytes, "tokens");
    TRY(buffer_alloc(state->device, PART_DATA, bytes, &out->device));
    char *base = out->device.data;
    out->batch = (struct batch){
        .sample = (const int64_t *)(void *)base,
        .token = (const int32_t *)(void *)(base + narrow_at(out, TOKEN)),
        .position = (const int32_t *)(void *)(base + narrow_at(out, POSITION)),
        .sample_offset = (const int32_t *)(void *)(base + narrow_at(out, SAMPLE_OFFSET)),
        .label = (const int32_t *)(void *)(base + narrow_at(out, LABEL)),
        .loss_mask = (const float *)(void *)(base + narrow_at(out, LOSS_MASK)), // zero: the loss is not used
        .sample_loss = tensor_1d(base + sums, F64, sequences),
        .sample_tokens = tensor_1d(base + sums + (size_t)sequences * sizeof(double), F64, sequences),
    };
    return OK;
}

static void rows_destroy(struct rows *rows)
{
    buffer_free(&rows->device);
    free(rows->host);
    *rows = (struct rows){0};
}

static enum status rows_send(const struct rows *rows, struct stream *stream)
{
    return copy_to_device(stream, rows->device.data, rows->host, narrow_at(rows, NARROW_ARRAYS));
}

/* ---- creation ---- */

static enum status create_cache(struct decoder *d)
{
    struct rank_state *state = d->state;
    const struct model_config *model = &state->run->recipe->model;
    const int layers = (int)model->num_layers, tp = state->groups->tp->size;
    bool *held = memory_zeroed((size_t)layers, sizeof *held, "the list of layers");
    for (int layer = 0; layer < layers; layer++)
        held[layer] = run_rank_of_layer(state->run, layer) == state->groups->coord.pp;
    const struct key_value_cache_config config = {
        .device = state->device,
        .dtype = state->weights.working,
        .layers = layers,
        .held = held,
        .columns = model->num_query_groups * params_kv_replicas(model, tp) / tp * model->kv_channels,
        .sequences = d->sequences,
        .capacity = (d->longest < d->length ? d->longest : d->length) + d->chunk.tokens,
    };
    const enum status status = key_value_cache_create(&config, &state->cache);
    free(held);
    return status;
}

static enum status create(struct decoder *d)
{
    struct rank_state *state = d->state;
    TRY(rows_create(state, 1, state->run->row_tokens, &d->chunk));
    TRY(rows_create(state, d->sequences, d->sequences, &d->step));
    if (d->cached) {
        TRY(create_cache(d));
        const struct executor_config config = rank_executor_config(state, false, d->sequences, 1);
        TRY(executor_create(&config, &d->stepper));
    }
    d->logits = memory_zeroed((size_t)(d->sequences * d->vocab), sizeof *d->logits, "logits");
    return state->world->size > 1
               ? buffer_alloc(state->device, PART_COMMUNICATION,
                              (size_t)(d->sequences * d->vocab) * sizeof *d->logits, &d->exchange)
               : OK;
}

enum status decoder_create(struct rank_state *state, int64_t sequences, int64_t longest, struct decoder **out)
{
    const struct recipe *recipe = state->run->recipe;
    struct decoder *d = memory_zeroed(1, sizeof *d, "a decoder");
    *d = (struct decoder){
        .state = state,
        .sequences = sequences,
        .vocab = recipe->model.vocab_size,
        .length = recipe->model.seq_length,
        .longest = longest,
        .cached = has_cache(recipe),
    };
    const enum status status = create(d);
    if (status == OK)
        *out = d;
    else
        decoder_destroy(d);
    return status;
}

void decoder_destroy(struct decoder *decoder)
{
    if (decoder == NULL)
        return;
    executor_destroy(decoder->stepper);
    rows_destroy(&decoder->chunk);
    rows_destroy(&decoder->step);
    buffer_free(&decoder->exchange);
    free(decoder->logits);
    free(decoder);
}

/* ---- logits ---- */

/* This rank's columns of the logits of `row`, in precision.params_dtype and padded: the head's slice of the
 * vocabulary. Nothing on ranks without the head. */
static enum status read_columns(struct decoder *d, const struct executor *executor, int64_t row, float *to)
{
    struct rank_state *state = d->state;
    const struct tensor logits = executor_logits(executor);
    if (logits.data == NULL)
        return OK;
    const int head = params_weight(&state->params, (int)state->run->recipe->model.num_layers, ROLE_HEAD);
    const struct slice *slice = &weights_held(&state->weights, head)->slice;
    const struct tensor all = tensor_rows(logits, row, row + 1);
    return floats_from_device(state->compute, tensor_1d(all.data, all.dtype, slice->count[0]),
                              to + slice->begin[0]);
}

/* Combines the columns of all ranks: each has one contributor, so the sum is exact. */
static enum status exchange(struct decoder *d, float *logits, int64_t count)
{
    struct rank_state *state = d->state;
    const size_t bytes = (size_t)count * sizeof *logits;
    if (state->world->size == 1)
        return OK;
    const struct tensor all = tensor_1d(d->exchange.data, F32, count);
    TRY(copy_to_device(state->compute, all.data, logits, bytes));
    TRY(group_all_reduce(state->groups->world, state->compute, all, REDUCE_SUM));
    TRY(copy_to_host(state->compute, logits, all.data, bytes));
    return stream_sync(state->compute);
}

const float *decoder_logits(const struct decoder *decoder, int64_t sequence)
{
    return decoder->logits + sequence * decoder->vocab;
}

/* ---- forward passes ---- */

/* Positions after the end of the window belong to padding: its results are not used. */
static int32_t position_of(const struct decoder *d, int64_t position)
{
    return (int32_t)(position < d->length ? position : d->length - 1);
}

/* Computes ids[0, count) from position `begin` on. */
static enum status run_chunk(struct decoder *d, int64_t begin, const int32_t *ids, int64_t count)
{
    struct rows *rows = &d->chunk;
    TRY(stream_sync(d->state->compute)); // the host copy is in use until then
    for (int64_t i = 0; i < rows->tokens; i++) {
        host_array(rows, TOKEN)[i] = i < count ? ids[i] : 0;
        host_array(rows, POSITION)[i] = host_array(rows, SAMPLE_OFFSET)[i] = position_of(d, begin + i);
    }
    TRY(rows_send(rows, d->state->compute));
    return executor_evaluate(d->state->executor, &rows->batch, 1);
}

enum status decoder_start(struct decoder *decoder, int64_t sequence, const int32_t *ids, int64_t count)
{
    struct key_value_cache *cache = &decoder->state->cache;
    float *logits = decoder->logits + sequence * decoder->vocab;
    const int64_t held = count < decoder->length ? count : decoder->length;
    int64_t begin = 0, part = 0;
    ids += count - held;
    if (decoder->cached) {
        cache->first = sequence;
        cache->length[sequence] = 0;
    }
    CHECK(held >= 1 && (decoder->cached || held <= decoder->chunk.tokens));
    for (; begin < held; begin += part) {
        part = held - begin < decoder->chunk.tokens ? held - begin : decoder->chunk.tokens;
        TRY(run_chunk(decoder, begin, ids + begin, part));
        if (decoder->cached)
            cache->length[sequence] += part;
    }
    memset(logits, 0, (size_t)decoder->vocab * sizeof *logits);
    TRY(read_columns(decoder, decoder->state->executor, part - 1, logits));
    return exchange(decoder, logits, decoder->vocab);
}

enum status decoder_step(struct decoder *decoder, const int32_t *ids)
{
    struct key_value_cache *cache = &decoder->state->cache;
    struct rows *rows = &decoder->step;
    CHECK(decoder->cached);
    cache->first = 0;
    TRY(stream_sync(decoder->state->compute)); // the host copies are in use until then
    for (int64_t b = 0; b < decoder->sequences; b++) {
        CHECK(ids[b] < 0 || !decoder_is_full(decoder, b));
        host_array(rows, TOKEN)[b] = ids[b] >= 0 ? ids[b] : 0;
        host_array(rows, POSITION)[b] = host_array(rows, SAMPLE_OFFSET)[b] =
            position_of(decoder, cache->length[b]);
    }
    TRY(rows_send(rows, decoder->state->compute));
    TRY(executor_evaluate(decoder->stepper, &rows->batch, 1));
    memset(decoder->logits, 0, (size_t)(decoder->sequences * decoder->vocab) * sizeof *decoder->logits);
    for (int64_t b = 0; b < decoder->sequences; b++) {
        cache->length[b] += ids[b] >= 0 ? 1 : 0;
        TRY(read_columns(decoder, decoder->stepper, b, decoder->logits + b * decoder->vocab));
    }
    return exchange(decoder, decoder->logits, decoder->sequences * decoder->vocab);
}

bool decoder_is_full(const struct decoder *decoder, int64_t sequence)
{
    return !decoder->cached || decoder->state->cache.length[sequence] >= decoder->length;
}
