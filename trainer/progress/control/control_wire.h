// SPDX-License-Identifier: Apache-2.0
/* The messages of control connections, sent with base/wire.h. */
#pragma once

#include "base/wire.h"

enum wire_kind {
    WIRE_HELLO,
    WIRE_WELCOME,
    WIRE_RANKS,
    WIRE_GIVE_ALL,
    WIRE_ALL,
    WIRE_END,
    WIRE_BYE,
    WIRE_KINDS
};
