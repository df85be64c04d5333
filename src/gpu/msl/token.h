/* Private to msl: tokens, the memory they live in, constant expressions, and the preprocessor.
 *
 * Everything a translation makes lives in one arena and goes with it. All sizes are bounded, since source is outside
 * input: files, tokens, nesting. */
#ifndef SL_MSL_TOKEN_H
#define SL_MSL_TOKEN_H

#include "gpu/msl/msl.h"

enum {
    MSL_MAX_SOURCE = 16 << 20,   /* bytes of one file */
    MSL_MAX_FILES = 256,         /* inclusions */
    MSL_MAX_INCLUDE_DEPTH = 48,  /* files inside files */
    MSL_MAX_TOKENS = 2 << 20,    /* after the preprocessor */
    MSL_MAX_EXPANSION = 4 << 20, /* tokens made by macros on the way */
    MSL_MAX_MEMORY = 512 << 20,  /* bytes of the arena */
    MSL_MAX_LIST = 512,          /* tokens of a template list */
    MSL_MAX_CONSTANTS = 512,     /* function constants, and as many derived ones */
    MSL_MAX_KERNELS = 16384,
    MSL_MAX_CHECKED = 2048,   /* functions up to which calls and declarations are checked */
    MSL_MAX_PARAMETERS = 256, /* of a kernel */
    MSL_MAX_DEPTH = 96        /* nesting of macro arguments, expressions, scopes */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct msl_arena {
    struct msl_block *blocks;
    size_t used; /* bytes of all blocks */
} msl_arena;

/* Zeroed; NULL where there is no memory or the arena's limit is reached. */
void *msl_alloc(msl_arena *a, size_t n);
char *msl_copy(msl_arena *a, const char *s, size_t n);
void msl_arena_free(msl_arena *a);

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

typedef enum msl_token_kind {
    MSL_END,
    MSL_NAME,
    MSL_NUMBER,
    MSL_STRING,
    MSL_CHAR,
    MSL_PUNCT,
    MSL_PRAGMA /* text: what follows #pragma */
} msl_token_kind;

enum {
    MSL_BOL = 1,      /* first of its line */
    MSL_SPACED = 2,   /* white space before it */
    MSL_NOEXPAND = 4, /* a macro's own name inside its expansion */
    MSL_PASTE = 8     /* `##` of a macro's body, an operator there */
};

typedef struct msl_token {
    const char *text;
    uint32_t size, line;
    uint16_t file; /* index in msl_source.names */
    uint8_t kind, flags;
} msl_token;

typedef struct msl_tokens {
    msl_token *at;
    size_t count, capacity;
} msl_tokens;

/* What a translation reads: tokens of all files, and where errors are said to be. */
typedef struct msl_source {
    msl_arena arena;
    const msl_options *options;
    char *names[MSL_MAX_FILES]; /* of files, for messages and #line */
    int files;
    sl_error *err;
} msl_source;

bool msl_push(msl_tokens *t, const msl_token *token);
bool msl_is(const msl_token *t, const char *s);
/* Same text. */
bool msl_same(const msl_token *a, const msl_token *b);
/* One of the words of a NULL-ended list. */
bool msl_among(const msl_token *t, const char *const *words);
/* Fails as FILE:LINE: what. */
bool msl_error_at(msl_source *s, const msl_token *at, const char *fmt, ...) SL_PRINTF(3, 4);
bool msl_no_memory(msl_source *s);

/* Tokens of a text, an MSL_END last. The text is copied. False: an error. */
bool msl_lex(msl_source *s, const char *text, size_t n, int file, msl_tokens *out);
/* The whole source with macros expanded, directives gone, pragmas kept; an MSL_END last. */
bool msl_preprocess(msl_source *s, const char *text, size_t n, msl_tokens *out);

/* ---- constant expressions ---------------------------------------------------------------------------------------- */

/* Value of a name (or a longer operand beginning at t[0], *used tokens); false: unknown. */
typedef bool (*msl_operand_fn)(void *user, const msl_token *t, size_t n, size_t *used, int64_t *value);

/* Integer expression of n tokens, all of them. False: not constant, malformed, or division by zero. */
bool msl_evaluate(const msl_token *t, size_t n, msl_operand_fn operand, void *user, int64_t *value);

#endif
