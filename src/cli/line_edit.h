/* Lines typed by a person: libedit with history on a terminal, plain lines elsewhere. */
#ifndef SL_CLI_LINE_EDIT_H
#define SL_CLI_LINE_EDIT_H

#include "base/base.h"

typedef struct line_edit line_edit;

line_edit *line_edit_open(sl_error *err);
/* Saves the history. */
void line_edit_close(line_edit *e);
/* The next line without its newline, allocated; lines joined where they end in a backslash. Ctrl-C drops what was typed
 * and begins a new line; NULL at the end of input. */
char *line_edit_read(line_edit *e);

#endif
