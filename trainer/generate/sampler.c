// SPDX-License-Identifier: Apache-2.0
#include "trainer/generate/sampler.h"

#include "base/memory.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    struct sampling sampling;
    int64_t count;
    struct candidate *candidates; // [count]
    double *weights;              // [count] unnormalized probabilities of the candidates
};

enum status sampler_create(const struct sampling *sampling, int64_t count, struct sampler **out)
{
    bool valid = isfinite(sampling->temperature) && sampling->temperature >= 0.0 && sampling->top_k >= 0 &&
                 sampling->top_p > 0.0 && sampling->top_p <= 1.0 && count >= 1 && count <= INT32_MAX;
    if (!valid)
        return fail(BAD_ARGUMENT,
                    "invalid sampling options: temperature %g, top-k %lld, top-p %g, of %lld ids",
                    sampling->temperature, (long long)sampling->top_k, sampling->top_p, (long long)count);
    struct sampler *s = memory_zeroed(1, sizeof *s, "a sampler");
    *s = (struct sampler){
        .sampling = *sampling,
        .count = count,
        .candidates = memory_zeroed((size_t)count, sizeof *s->candidates, "a sampler"),
        .weights = memory_zeroed((size_t)count, sizeof *s->weights, "a sampler"),
    };
    *out = s;
    return OK;
}

void sampler_destroy(struct sampler *sampler)
{
    if (sampler == NULL)
        return;
    free(sampler->candidates);
    free(sampler->weights);
    free(sampler);
}

/* Orders by descending logit, then by ascending id. */
static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int32_t most_likely(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

/* Computes the weights of the top-k candidates, and their sum. */
static int64_t weigh(struct sampler *s, double *sum)
{
    int64_t kept = s->sampling.top_k > 0 && s->sampling.top_k < s->count ? s->sampling.top_k : s->count;
    *sum = 0.0;
    for (int64_t i = 0; i < kept; i++) {
        double below = (double)s->candidates[i].logit - (double)s->candidates[0].logit;
        s->weights[i] = exp(below / s->sampling.temperature);
        *sum += s->weights[i];
    }
    return kept;
}

/* The fewest candidates whose share of `*sum` reaches top-p; replaces *sum by their sum. */
static int64_t cut(const struct sampler *s, int64_t kept, double *sum)
{
    if (s->sampling.top_p >= 1.0)
        return kept;
    double wanted = s->sampling.top_p * *sum, reached = 0.0;
    for (int64_t i = 0; i < kept; i++) {
        reached += s->weights[i];
        if (reached >= wanted) {
            *sum = reached;
            return i + 1;
        }
    }
    return kept;
}

/* Uniform in [0, 1) with 53 bits. */
static double uniform(uint64_t seed, int64_t sequence, int64_t index)
{
    uint32_t words[4];
    philox_words(philox_named(seed, "generate.sample"), (uint64_t)sequence, (uint64_t)index, words);
    return ((double)(words[0] >> 5) * 67108864.0 + (double)(words[1] >> 6)) * 0x1p-53;
}

enum status sampler_draw(struct sampler *sampler, const float *logits, int64_t sequence, int64_t index,
                         int32_t *out)
{
    for (int64_t i = 0; i < sampler->count; i++)
        if (!isfinite(logits[i]))
            return fail(NOT_FINITE, "the logit of id %lld is %g: the weights are not usable", (long long)i,
                        (double)logits[i]);
    if (!(sampler->sampling.temperature > 0.0)) {
        *out = most_likely(logits, sampler->count);
        return OK;
    }
    for (int64_t i = 0; i < sampler->count; i++)
        sampler->candidates[i] = (struct candidate){logits[i], (int32_t)i};
    qsort(sampler->candidates, (size_t)sampler->count, sizeof *sampler->candidates, by_logit);

    double sum, reached = 0.0;
    int64_t kept = weigh(sampler, &sum);
    kept = cut(sampler, kept, &sum);
    double target = uniform(sampler->sampling.seed, sequence, index) * sum;
    int64_t chosen = 0;
    for (int64_t i = 0; i < kept; i++) {
        reached += sampler->weights[i];
        chosen = i;
        if (reached > target)
            break;
    }
    *out = sampler->candidates[chosen].id;
    return OK;
}
