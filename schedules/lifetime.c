// SPDX-License-Identifier: Apache-2.0
#include "schedules/lifetime.h"

#include "base/status.h"

const char *lifetime_name(enum lifetime lifetime)
{
    static const char *const names[SLOT_LIFETIMES] = {
        [KEEP_INPUT] = "input",
        [KEEP_UNTIL_BACKWARD_INPUT] = "until_input",
        [KEEP_UNTIL_BACKWARD_WEIGHT] = "until_weight",
        [KEEP_INPUT_TO_WEIGHT] = "input_to_weight",
        [STAGE_GRADIENT] = "gradient",
    };
    CHECK(lifetime < SLOT_LIFETIMES);
    return names[lifetime];
}
