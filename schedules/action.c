// SPDX-License-Identifier: Apache-2.0
#include "schedules/action.h"

#include <stdio.h>

const struct action_traits action_traits_of_kind[] = {
    [FORWARD] = {.text = "F", .computes = true, .forward = true},
    [BACKWARD] = {.text = "B", .computes = true, .backward_input = true, .backward_weight = true},
    [BACKWARD_INPUT] = {.text = "I", .computes = true, .backward_input = true},
    [BACKWARD_WEIGHT] = {.text = "W", .computes = true, .backward_weight = true},
    [SEND_ACTIVATION] = {.text = "SEND_F", .sends = true},
    [RECV_ACTIVATION] = {.text = "RECV_F", .receives = true},
    [SEND_GRADIENT] = {.text = "SEND_B", .sends = true, .gradient = true},
    [RECV_GRADIENT] = {.text = "RECV_B", .receives = true, .gradient = true},
};
_Static_assert(sizeof action_traits_of_kind / sizeof *action_traits_of_kind == ACTION_KIND_COUNT,
               "one row for each kind of action");

const char *action_text(struct action action, char out[ACTION_CHARS])
{
    bool known = action.kind >= 0 && action.kind < ACTION_KIND_COUNT;
    snprintf(out, ACTION_CHARS, "%d%s%d", action.stage, known ? action_traits(action.kind)->text : "?",
             action.microbatch);
    return out;
}
