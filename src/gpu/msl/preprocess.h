/* Private to msl: the preprocessor's state. Input is a stack: files, and what macros have made, the top read first. */
#ifndef SL_MSL_PREPROCESS_H
#define SL_MSL_PREPROCESS_H

#include "gpu/msl/token.h"

typedef struct msl_macro {
    struct msl_macro *next; /* of its hash chain */
    msl_token name;
    msl_token *parameters;
    const msl_token *body;
    size_t parameter_count, body_count;
    bool function, variadic, defined;
    bool busy; /* its expansion is being read: its name stays as it is */
} msl_macro;

typedef struct msl_input {
    const msl_token *at;
    size_t count, next;
    msl_macro *macro; /* busy until this is read */
    char *dir;        /* of a file: where its own includes are looked for first */
    bool file, barrier;
    int conditionals; /* open when the file began */
    int64_t shift;    /* #line: added to lines */
    int named;        /* #line: index of the file's name + 1; 0: as it was read */
} msl_input;

typedef struct msl_conditional {
    msl_token at;
    bool taking, taken, last; /* this branch is read; one was; #else was seen */
} msl_conditional;

enum { MSL_MACRO_BUCKETS = 1024, MSL_MAX_CONDITIONALS = 256 };

typedef struct msl_preprocessor {
    msl_source *s;
    msl_macro *macros[MSL_MACRO_BUCKETS];
    msl_input *input;
    size_t inputs, input_capacity;
    msl_conditional conditionals[MSL_MAX_CONDITIONALS];
    int conditional_count, include_depth, argument_depth, counter;
    size_t expanded; /* tokens made by macros so far */
    char *once[MSL_MAX_FILES];
    int once_count;
} msl_preprocessor;

/* ---- macros (macro.c) ---- */

msl_macro *msl_macro_find(msl_preprocessor *p, const msl_token *name);
/* line: the tokens of a #define behind that word. */
bool msl_macro_define(msl_preprocessor *p, const msl_token *line, size_t n, const msl_token *at);
void msl_macro_undefine(msl_preprocessor *p, const msl_token *name);
/* Next token with macros expanded; MSL_END when the input down to the nearest barrier is read. */
bool msl_expanded(msl_preprocessor *p, msl_token *out);
/* Expands n tokens apart from the rest of the input. */
bool msl_expand_list(msl_preprocessor *p, const msl_token *t, size_t n, msl_tokens *out);
bool msl_input_push(msl_preprocessor *p, const msl_input *in);

/* ---- directives (preprocess.c) ---- */

/* Next token before expansion, directives carried out; MSL_END at the nearest barrier. */
bool msl_raw(msl_preprocessor *p, msl_token *out);

#endif
