/* Integer constant expressions, by precedence climbing. */
#include "gpu/msl/token.h"

#include <stdlib.h>
#include <string.h>

typedef struct evaluator {
    const msl_token *t, *end;
    msl_operand_fn operand;
    void *user;
    int depth;
} evaluator;

static bool expression(evaluator *e, int least, int64_t *v);
static bool unary(evaluator *e, int64_t *v);

static bool at(const evaluator *e, const char *s) {
    return e->t < e->end && msl_is(e->t, s);
}

static bool take(evaluator *e, const char *s) {
    if (!at(e, s))
        return false;
    e->t++;
    return true;
}

static bool number(const msl_token *t, int64_t *v) {
    char digits[72];
    size_t n = 0;
    for (size_t i = 0; i < t->size && n + 1 < sizeof digits; i++)
        if (t->text[i] != '\'')
            digits[n++] = t->text[i];
    digits[n] = 0;
    char *end;
    bool binary = n > 2 && digits[0] == '0' && (digits[1] == 'b' || digits[1] == 'B');
    *v = (int64_t)(binary ? strtoull(digits + 2, &end, 2) : strtoull(digits, &end, 0));
    return end != digits && strspn(end, "uUlLzZ") == strlen(end);
}

static bool character(const msl_token *t, int64_t *v) {
    if (t->size == 3) {
        *v = t->text[1];
        return true;
    }
    static const char codes[] = "n\nt\tr\r0\0\\\\''\"\"";
    if (t->size == 4 && t->text[1] == '\\')
        for (size_t i = 0; i + 1 < sizeof codes; i += 2)
            if (codes[i] == t->text[2]) {
                *v = codes[i + 1];
                return true;
            }
    return false;
}

/* v as a value of the type; false: it is none of these. */
static bool converted(const msl_token *type, int64_t *v) {
    static const struct {
        const char *name;
        int bits; /* < 0: signed */
    } types[] = {{"int", -32},     {"uint", 32},     {"long", -64},    {"ulong", 64},    {"short", -16},
                 {"ushort", 16},   {"char", -8},     {"uchar", 8},     {"unsigned", 32}, {"int32_t", -32},
                 {"uint32_t", 32}, {"int64_t", -64}, {"uint64_t", 64}, {"size_t", 64},   {"int16_t", -16},
                 {"uint16_t", 16}, {"int8_t", -8},   {"uint8_t", 8}};
    for (size_t i = 0; i < SL_COUNT(types); i++)
        if (msl_is(type, types[i].name)) {
            unsigned gone = 64u - (unsigned)abs(types[i].bits);
            uint64_t up = (uint64_t)*v << gone;
            *v = types[i].bits < 0 ? (int64_t)up >> gone : (int64_t)(up >> gone);
            return true;
        }
    return false;
}

/* `int(x)`, `(int)x` and `static_cast<int>(x)`, which headers write whose indices are enumerators of a class. *is: it
 * is one of these. */
static bool cast(evaluator *e, int64_t *v, bool *is) {
    size_t left = (size_t)(e->end - e->t), type = msl_is(e->t, "static_cast") ? 2 : 0;
    int64_t none = 0;
    bool c_style = msl_is(e->t, "(") && left > 3 && msl_is(e->t + 2, ")");
    type = c_style ? 1 : type;
    *is = left > type + 2 && converted(e->t + type, &none) && (type != 0 || msl_is(e->t + 1, "(")) &&
          (type != 2 || (msl_is(e->t + 1, "<") && msl_is(e->t + 3, ">")));
    if (!*is)
        return false;
    const msl_token *to = e->t + type;
    e->t += c_style ? 3 : type == 2 ? 4 : 1;
    return (c_style ? unary(e, v) : take(e, "(") && expression(e, 0, v) && take(e, ")")) && converted(to, v);
}

static bool primary(evaluator *e, int64_t *v) {
    if (e->t >= e->end)
        return false;
    bool is_cast, value = cast(e, v, &is_cast);
    if (is_cast)
        return value;
    if (take(e, "("))
        return expression(e, 0, v) && take(e, ")");
    const msl_token *t = e->t;
    if (t->kind == MSL_NUMBER) {
        e->t++;
        return number(t, v);
    }
    if (t->kind == MSL_CHAR) {
        e->t++;
        return character(t, v);
    }
    if (t->kind != MSL_NAME)
        return false;
    if (msl_is(t, "true") || msl_is(t, "false")) {
        *v = msl_is(t, "true");
        e->t++;
        return true;
    }
    size_t used = 0;
    if (!e->operand || !e->operand(e->user, t, (size_t)(e->end - t), &used, v) || used > (size_t)(e->end - t))
        return false;
    e->t += used;
    return true;
}

static bool unary(evaluator *e, int64_t *v) {
    if (++e->depth > MSL_MAX_DEPTH)
        return false;
    bool ok;
    if (take(e, "-")) {
        ok = unary(e, v);
        *v = (int64_t)(0 - (uint64_t)*v);
    } else if (take(e, "+")) {
        ok = unary(e, v);
    } else if (take(e, "!")) {
        ok = unary(e, v);
        *v = !*v;
    } else if (take(e, "~")) {
        ok = unary(e, v);
        *v = ~*v;
    } else {
        ok = primary(e, v);
    }
    e->depth--;
    return ok;
}

/* Operators; the lexer leaves `>` single, so `>>` is recognised here. */
static const struct {
    const char *text;
    int precedence;
} operators[] = {{"||", 1}, {"&&", 2}, {"|", 3},  {"^", 4}, {"&", 5}, {"==", 6}, {"!=", 6}, {"<=", 7}, {">=", 7},
                 {"<", 7},  {">", 7},  {"<<", 8}, {"+", 9}, {"-", 9}, {"*", 10}, {"/", 10}, {"%", 10}};

static int find_operator(const evaluator *e, char name[3], size_t *size) {
    if (e->t >= e->end || e->t->kind != MSL_PUNCT)
        return 0;
    *size = 1;
    if (at(e, ">") && e->t + 1 < e->end && msl_is(e->t + 1, ">") && !(e->t[1].flags & MSL_SPACED)) {
        *size = 2;
        memcpy(name, ">>", 3);
        return 8;
    }
    for (size_t i = 0; i < SL_COUNT(operators); i++)
        if (msl_is(e->t, operators[i].text)) {
            memcpy(name, operators[i].text, strlen(operators[i].text) + 1);
            return operators[i].precedence;
        }
    return 0;
}

static bool apply(const char *op, int64_t a, int64_t b, int64_t *v) {
    uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
    switch (op[0] | op[1] << 8) {
    case '|' | '|' << 8:
        *v = a || b;
        return true;
    case '&' | '&' << 8:
        *v = a && b;
        return true;
    case '=' | '=' << 8:
        *v = a == b;
        return true;
    case '!' | '=' << 8:
        *v = a != b;
        return true;
    case '<' | '=' << 8:
        *v = a <= b;
        return true;
    case '>' | '=' << 8:
        *v = a >= b;
        return true;
    case '<' | '<' << 8:
        *v = (int64_t)(ua << (ub & 63));
        return true;
    case '>' | '>' << 8:
        *v = a >> (ub & 63);
        return true;
    case '|':
        *v = a | b;
        return true;
    case '^':
        *v = a ^ b;
        return true;
    case '&':
        *v = a & b;
        return true;
    case '<':
        *v = a < b;
        return true;
    case '>':
        *v = a > b;
        return true;
    case '+':
        *v = (int64_t)(ua + ub);
        return true;
    case '-':
        *v = (int64_t)(ua - ub);
        return true;
    case '*':
        *v = (int64_t)(ua * ub);
        return true;
    case '/':
    case '%':
        if (b == 0 || (a == INT64_MIN && b == -1))
            return false;
        *v = op[0] == '/' ? a / b : a % b;
        return true;
    default:
        return false;
    }
}

/* Both sides of && and ||, and both branches of ?:, must be constant. */
static bool expression(evaluator *e, int least, int64_t *v) {
    if (++e->depth > MSL_MAX_DEPTH || !unary(e, v))
        return false;
    char op[3];
    size_t size;
    int p;
    while ((p = find_operator(e, op, &size)) > 0 && p >= least) {
        e->t += size;
        int64_t right = 0;
        if (!expression(e, p + 1, &right) || !apply(op, *v, right, v))
            return false;
    }
    if (least == 0 && take(e, "?")) {
        int64_t yes = 0, no = 0;
        if (!expression(e, 0, &yes) || !take(e, ":") || !expression(e, 0, &no))
            return false;
        *v = *v ? yes : no;
    }
    e->depth--;
    return true;
}

bool msl_evaluate(const msl_token *t, size_t n, msl_operand_fn operand, void *user, int64_t *value) {
    *value = 0;
    if (n == 0)
        return false;
    evaluator e = {.t = t, .end = t + n, .operand = operand, .user = user};
    return expression(&e, 0, value) && e.t == e.end;
}
