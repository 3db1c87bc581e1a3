// SPDX-License-Identifier: Apache-2.0
#include "schedules/action.h"

#include <string.h>

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

/* Appends a decimal number; returns the end of the text. */
static char *append_number(char *out, int number)
{
    char digits[12];
    int count = 0;
    unsigned left = number < 0 ? 0U - (unsigned)number : (unsigned)number;
    do {
        digits[count++] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (number < 0)
        *out++ = '-';
    while (count > 0)
        *out++ = digits[--count];
    return out;
}

/* Without snprintf(): a plan names every action of every rank. */
const char *action_text(struct action action, char out[ACTION_CHARS])
{
    bool known = action.kind >= 0 && action.kind < ACTION_KIND_COUNT;
    char *end = append_number(out, action.stage);
    end = stpcpy(end, known ? action_traits(action.kind)->text : "?");
    *append_number(end, action.microbatch) = 0;
    return out;
}
