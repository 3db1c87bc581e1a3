// SPDX-License-Identifier: Apache-2.0
/* Expected values of test_layers: small models, one microbatch, and for each layer under test its output and
 * the gradients of L, computed in double precision on one rank. L is <output, random>, or the loss where a
 * layer ends in one. */
#pragma once

#include "tests/support/reference_layers.h"

enum { B = 2, S = 6, T = B * S, LAYERS = 2, SEED = 9 };

struct family {
    const char *name;
    struct model_config model;
    bool documents;
};
enum { FAMILIES = 10 };
extern const struct family families[FAMILIES];

/* The arrays of one microbatch, the same on every rank. */
struct batch_arrays {
    int32_t token[T], label[T], position[T], document[T], place[T];
    float mask[T];
    int64_t sample[T];
};
struct batch_arrays batch_arrays_of(const struct family *family);

enum subject { COLUMN, ROW, NORM, ATTENTION, MLP, BLOCK, EMBEDDING, HEAD, WHOLE, SUBJECTS };
enum shape { NONE, HIDDEN, FUSED, FEATURES, LOSS }; // of input and output: [T, columns]

struct subject_facts {
    const char *name;
    enum shape in, out;
    const char *rows[4]; // a row belongs to the subject if its name begins with one of these
};
extern const struct subject_facts facts[SUBJECTS];

int64_t columns_of(const struct model_config *m, enum shape shape); // global
/* N of the bound: terms of all sums, forward and backward. */
double terms_of(const struct model_config *m, enum subject subject);

struct expected {
    enum subject subject;
    const struct family *family;
    struct params params; // of one rank
    struct reference_model reference;
    struct batch batch; // per element
    struct batch_arrays numbers;
    double *x, *random, *y, *dx, l;
    double **gradient; // [rows]; NULL where the row is not the subject's
};
/* Creates the inputs. Aborts when out of memory. */
void expected_create(const struct family *family, enum subject subject, struct expected *e);
/* Computes the expected values: y, l, dx and gradient. */
void expected_solve(struct expected *e);
void expected_destroy(struct expected *e);
