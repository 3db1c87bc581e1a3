// SPDX-License-Identifier: Apache-2.0
/* In place of a library that a program must load and does not need (criterion_start.c). */
extern const int empty_library;
const int empty_library = 0;
