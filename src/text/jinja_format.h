/* What jinja_format.c lends to jinja_format_syntax.c. Private to text. */
#ifndef SL_TEXT_JINJA_FORMAT_H
#define SL_TEXT_JINJA_FORMAT_H

#include "text/jinja.h"

/* How one value is to look, from either syntax. */
typedef struct jlayout {
    const jstr *fill;         /* one character; NULL: by default */
    char align;               /* '<' '>' '=' '^', 0: by default */
    char sign;                /* '+' '-' ' ', 0 */
    bool alternate;           /* '#' */
    char group;               /* ',' '_' between digits, 0 */
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
} jlayout;

void jinja_put_field(jtext *t, const jlayout *l, const char *sign, jstr *body, char default_align);
void jinja_put_integer(jtext *t, const jlayout *l, int64_t v);
void jinja_put_real(jtext *t, const jlayout *l, double f);
jval jinja_one_character(jinja *j, jval v);
jstr *jinja_repr_of(jinja *j, jval v, bool ascii);
int64_t jinja_as_int(jinja *j, jval v, const char *what);
double jinja_as_float(jinja *j, jval v);
int64_t jinja_number_in(jinja *j, const jstr *s, size_t *at);
const char *jinja_sign(bool negative, char sign);
bool jinja_take(const jstr *s, size_t *at, const char *any, char *out);
jstr *jinja_cut(jinja *j, jstr *s, int64_t precision);

#endif
