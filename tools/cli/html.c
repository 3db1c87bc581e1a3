// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/html.h"

#include <string.h>

static const char style[] =
    "<style>\n"
    "body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }\n"
    "table { border-collapse: collapse; margin: 1em 0; }\n"
    "th, td { padding: 2px 8px; border-bottom: 1px solid #ddd; text-align: right; }\n"
    "th.text, td.text { text-align: left; }\n"
    "h2 { font-size: 1.2em; } .map { display: inline-table; margin-right: 2em; vertical-align: top; }\n"
    ".none { color: #888; }\n"
    "svg text { fill: #222; font-size: 12px; }\n"
    ".axis { stroke: #888; fill: none; } .band { fill: #888; opacity: 0.18; }\n"
    "@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616; }\n"
    "  th, td { border-color: #444; } svg text { fill: #ddd; } }\n"
    "</style>\n";

void html_escaped(struct text *out, const char *chars)
{
    struct text safe = {0};
    text_add_printable(&safe, chars, strlen(chars));
    for (const char *c = text_chars(&safe); *c != 0; c++)
        switch (*c) {
        case '&':
            text_add(out, "&amp;");
            break;
        case '<':
            text_add(out, "&lt;");
            break;
        case '>':
            text_add(out, "&gt;");
            break;
        case '"':
            text_add(out, "&quot;");
            break;
        case '\'':
            text_add(out, "&#39;");
            break;
        default:
            text_add_bytes(out, c, 1);
        }
    text_free(&safe);
}

void html_begin(struct text *out, const char *title)
{
    text_add(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>");
    html_escaped(out, title);
    text_add(out, "</title>\n%s</head>\n<body>\n<h1>", style);
    html_escaped(out, title);
    text_add(out, "</h1>\n");
}

void html_end(struct text *out)
{
    text_add(out, "</body>\n</html>\n");
}

void html_text_cell(struct text *out, const char *chars)
{
    text_add(out, "<td class=\"text\">");
    html_escaped(out, chars);
    text_add(out, "</td>");
}
