#include "gpu/msl/token.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { BLOCK = 256 << 10 };

struct msl_block {
    struct msl_block *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};

void *msl_alloc(msl_arena *a, size_t n) {
    n = (n + 15) & ~(size_t)15;
    struct msl_block *b = a->blocks;
    if (!b || b->size - b->used < n) {
        size_t size = n > BLOCK ? n : BLOCK;
        if (size > MSL_MAX_MEMORY || a->used > MSL_MAX_MEMORY - size)
            return NULL;
        b = malloc(sizeof *b + size);
        if (!b)
            return NULL;
        b->used = 0;
        b->size = size;
        b->next = a->blocks;
        a->blocks = b;
        a->used += size;
    }
    void *p = b->bytes + b->used;
    b->used += n;
    return memset(p, 0, n);
}

char *msl_copy(msl_arena *a, const char *s, size_t n) {
    char *p = msl_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

void msl_arena_free(msl_arena *a) {
    while (a->blocks) {
        struct msl_block *next = a->blocks->next;
        free(a->blocks);
        a->blocks = next;
    }
    a->used = 0;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

bool msl_push(msl_tokens *t, const msl_token *token) {
    if (!sl_grow((void **)&t->at, &t->capacity, t->count + 1, sizeof *t->at))
        return false;
    t->at[t->count++] = *token;
    return true;
}

bool msl_is(const msl_token *t, const char *s) {
    return strncmp(t->text, s, t->size) == 0 && s[t->size] == 0 && t->kind != MSL_STRING && t->kind != MSL_END;
}

bool msl_same(const msl_token *a, const msl_token *b) {
    return a->size == b->size && memcmp(a->text, b->text, a->size) == 0;
}

bool msl_among(const msl_token *t, const char *const *words) {
    for (; *words; words++)
        if (msl_is(t, *words))
            return true;
    return false;
}

bool msl_error_at(msl_source *s, const msl_token *at, const char *fmt, ...) {
    char what[640];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    const char *file = at->file < s->files ? s->names[at->file] : "?";
    return sl_fail(s->err, SL_ERR_COMPILE, "%s:%u: %s", file, at->line, what);
}

bool msl_no_memory(msl_source *s) {
    return sl_fail(s->err, SL_ERR_MEMORY, "%s: no memory, or the source needs more than %d MiB to translate",
                   s->names[0] ? s->names[0] : "?", MSL_MAX_MEMORY >> 20);
}

/* ---- lexer ------------------------------------------------------------------------------------------------------- */

typedef struct lexer {
    msl_source *s;
    const char *p, *end;
    msl_tokens *out;
    uint32_t line;
    int file;
    uint8_t flags; /* of the next token */
} lexer;

/* Drops '\r' and joins lines that end in a backslash; the newlines that this removes follow the joined line, so later
 * lines keep their numbers. */
static char *join_lines(msl_source *s, const char *text, size_t n, size_t *size) {
    char *to = msl_alloc(&s->arena, n + 2);
    if (!to)
        return NULL;
    size_t k = 0, owed = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        if (text[i] == '\\') {
            size_t j = i + 1;
            while (j < n && (text[j] == ' ' || text[j] == '\t' || text[j] == '\r'))
                j++;
            if (j < n && text[j] == '\n') {
                owed++;
                i = j;
                continue;
            }
        }
        to[k++] = text[i];
        if (text[i] == '\n')
            for (; owed; owed--)
                to[k++] = '\n';
    }
    *size = k;
    return to;
}

static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || (unsigned char)c >= 0x80;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name_part(char c) {
    return is_name_start(c) || is_digit(c);
}

static bool at_text(const lexer *l, const char *s) {
    size_t n = strlen(s);
    return (size_t)(l->end - l->p) >= n && memcmp(l->p, s, n) == 0;
}

static bool fail_here(lexer *l, const char *what) {
    msl_token t = {.text = "", .line = l->line, .file = (uint16_t)l->file};
    return msl_error_at(l->s, &t, "%s", what);
}

/* Skips white space and comments. */
static bool skip_space(lexer *l) {
    while (l->p < l->end) {
        char c = *l->p;
        if (c == '\n') {
            l->line++;
            l->flags |= MSL_BOL;
        } else if (at_text(l, "//")) {
            while (l->p < l->end && *l->p != '\n')
                l->p++;
            continue;
        } else if (at_text(l, "/*")) {
            for (l->p += 2; l->p < l->end && !at_text(l, "*/"); l->p++)
                l->line += *l->p == '\n';
            if (l->p == l->end)
                return fail_here(l, "comment is not closed");
            l->p++;
        } else if (c != ' ' && c != '\t' && c != '\v' && c != '\f' && c != '\r') {
            return true;
        }
        l->p++;
        l->flags |= MSL_SPACED;
    }
    return true;
}

/* A preprocessing number: also 1.0e-5, 0x1p+3, 1h, 0.5bf. */
static void lex_number(lexer *l) {
    while (l->p < l->end) {
        char c = *l->p, before = l->p[-1];
        bool sign = (c == '+' || c == '-') && (before == 'e' || before == 'E' || before == 'p' || before == 'P');
        if (!sign && !is_name_part(c) && c != '.' && !(c == '\'' && l->p + 1 < l->end && is_name_part(l->p[1])))
            break;
        l->p++;
    }
}

/* In hexadecimal, e is a digit: 0xe+1 is three tokens. */
static void lex_hex(lexer *l) {
    while (l->p < l->end) {
        char c = *l->p, before = l->p[-1];
        bool sign = (c == '+' || c == '-') && (before == 'p' || before == 'P');
        if (!sign && !is_name_part(c) && c != '.')
            break;
        l->p++;
    }
}

static bool lex_quoted(lexer *l, char quote) {
    for (; l->p < l->end && *l->p != quote; l->p++) {
        if (*l->p == '\n')
            break;
        if (*l->p == '\\' && l->p + 1 < l->end && l->p[1] != '\n')
            l->p++;
    }
    if (l->p >= l->end || *l->p != quote)
        return fail_here(l, quote == '"' ? "string is not closed" : "character is not closed");
    l->p++;
    return true;
}

/* `>>` and what begins with it stay single characters, so that template lists close; they are joined in output. */
static size_t punct_size(const lexer *l) {
    static const char *const known[] = {"<<=", "...", "->*", "::", "->", "++", "--", "<<", "<=", ">=", "==", "!=",
                                        "&&",  "||",  "+=",  "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##", NULL};
    for (int i = 0; known[i]; i++)
        if (at_text(l, known[i]))
            return strlen(known[i]);
    return 1;
}

static bool lex_one(lexer *l, msl_token *t) {
    const char *start = l->p;
    char c = *l->p++;
    if (is_name_start(c)) {
        while (l->p < l->end && is_name_part(*l->p))
            l->p++;
        t->kind = MSL_NAME;
    } else if (is_digit(c) || (c == '.' && l->p < l->end && is_digit(*l->p))) {
        if (c == '0' && l->p < l->end && (*l->p == 'x' || *l->p == 'X'))
            lex_hex(l);
        else
            lex_number(l);
        t->kind = MSL_NUMBER;
    } else if (c == '"' || c == '\'') {
        if (!lex_quoted(l, c))
            return false;
        t->kind = c == '"' ? MSL_STRING : MSL_CHAR;
    } else {
        l->p = start + punct_size(&(lexer){.p = start, .end = l->end});
        t->kind = MSL_PUNCT;
    }
    t->size = (uint32_t)(l->p - start);
    return true;
}

/* Rest of a #pragma line as one token, `#` and `pragma` already pushed. */
static void lex_pragma(lexer *l, msl_token *t) {
    t->text = l->p;
    while (l->p < l->end && *l->p != '\n' && !at_text(l, "//"))
        l->p++;
    const char *end = l->p;
    while (end > t->text && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        end--;
    t->size = (uint32_t)(end - t->text);
    t->kind = MSL_PRAGMA;
}

static bool after_pragma(const msl_tokens *out) {
    size_t n = out->count;
    return n >= 2 && msl_is(&out->at[n - 1], "pragma") && msl_is(&out->at[n - 2], "#") &&
           (out->at[n - 2].flags & MSL_BOL) && !(out->at[n - 1].flags & MSL_BOL);
}

bool msl_lex(msl_source *s, const char *text, size_t n, int file, msl_tokens *out) {
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3, n -= 3;
    lexer l = {.s = s, .out = out, .line = 1, .file = file, .flags = MSL_BOL};
    if (n > MSL_MAX_SOURCE)
        return fail_here(&l, "source is larger than 16 MiB");
    if (n && memchr(text, 0, n))
        return fail_here(&l, "source contains a NUL byte");
    size_t size = 0;
    l.p = join_lines(s, text, n, &size);
    if (!l.p)
        return msl_no_memory(s);
    l.end = l.p + size;
    for (;;) {
        if (!skip_space(&l))
            return false;
        if (out->count > MSL_MAX_TOKENS)
            return fail_here(&l, "source has too many tokens");
        msl_token t = {.text = l.p, .line = l.line, .file = (uint16_t)file, .flags = l.flags};
        if (l.p < l.end) {
            if (after_pragma(out) && !(t.flags & MSL_BOL))
                lex_pragma(&l, &t);
            else if (!lex_one(&l, &t))
                return false;
        } else {
            t.text = "";
            t.flags |= MSL_BOL;
        }
        l.flags = 0;
        if (!msl_push(out, &t))
            return msl_no_memory(s);
        if (t.kind == MSL_END)
            return true;
    }
}
