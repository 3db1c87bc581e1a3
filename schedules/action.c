// SPDX-License-Identifier: Apache-2.0
#include "schedules/action.h"

#include <stdio.h>

const struct action_fact action_facts[] = {
    [FORWARD] = {.text = "F", .computes = true, .forwards = true},
    [BACKWARD] = {.text = "B", .computes = true, .backs_input = true, .backs_weight = true},
    [BACKWARD_INPUT] = {.text = "I", .computes = true, .backs_input = true},
    [BACKWARD_WEIGHT] = {.text = "W", .computes = true, .backs_weight = true},
    [SEND_ACTIVATION] = {.text = "SEND_F", .sends = true},
    [RECV_ACTIVATION] = {.text = "RECV_F", .receives = true},
    [SEND_GRADIENT] = {.text = "SEND_B", .sends = true, .gradient = true},
    [RECV_GRADIENT] = {.text = "RECV_B", .receives = true, .gradient = true},
};
_Static_assert(sizeof action_facts / sizeof *action_facts == ACTION_KIND_COUNT,
               "one row for each kind of action");

const char *action_text(struct action action, char out[ACTION_CHARS])
{
    bool known = action.kind >= 0 && action.kind < ACTION_KIND_COUNT;
    snprintf(out, ACTION_CHARS, "%d%s%d", action.stage, known ? action_fact(action.kind)->text : "?",
             action.microbatch);
    return out;
}
