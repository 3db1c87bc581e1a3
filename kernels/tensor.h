// SPDX-License-Identifier: Apache-2.0
/* A tensor is a non-owning view of elements in memory. Row-major, up to four dimensions, with a stride (in
 * elements) per dimension, so that q, k and v can be columns of one fused matrix.
 *
 * Caution: a view does not extend lifetimes. Its buffer must stay allocated until every stream that received
 * the view is past its last use. */
#pragma once

#include "base/status.h"

#include <stdint.h>

/* BF16 and F16 are storage types: every op computes in fp32, and rounds once when it stores. */
enum dtype { F32, F64, I32, I64, BF16, F16, DTYPE_COUNT };

size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype);
/* The types of activations and weights: f32, bf16, f16. */
bool dtype_is_working(enum dtype dtype);

enum { TENSOR_MAX_DIMS = 4 };

struct tensor {
    void *data; // NULL: no tensor
    enum dtype dtype;
    int ndim;
    int64_t dim[TENSOR_MAX_DIMS];
    int64_t stride[TENSOR_MAX_DIMS]; // in elements
};

/* Dense views. */
struct tensor tensor_1d(void *data, enum dtype dtype, int64_t count);
struct tensor tensor_2d(void *data, enum dtype dtype, int64_t rows, int64_t columns);

int64_t tensor_count(struct tensor t);
size_t tensor_bytes(struct tensor t);
bool tensor_is_dense(struct tensor t);
bool tensor_same_shape(struct tensor a, struct tensor b);

/* Rows [begin, end) and columns [begin, end) of a 2-D view. */
struct tensor tensor_rows(struct tensor t, int64_t begin, int64_t end);
struct tensor tensor_columns(struct tensor t, int64_t begin, int64_t end);

/* "f32[1024, 768]", for messages. */
enum { TENSOR_TEXT_CHARS = 96 };
const char *tensor_text(struct tensor t, char out[TENSOR_TEXT_CHARS]);
