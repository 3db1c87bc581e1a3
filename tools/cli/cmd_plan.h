// SPDX-License-Identifier: Apache-2.0
#pragma once

int cmd_plan(int argc, char **argv);
