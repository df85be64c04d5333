/* Operators: arithmetic with Python's rules on int64 and double, joining, repeating, slices. */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

static bool is_number(jval v) {
    return v.kind == J_INT || v.kind == J_FLOAT || v.kind == J_BOOL;
}

static int64_t integer(jval v) {
    return v.kind == J_BOOL ? v.b : v.i;
}

static double real(jval v) {
    return v.kind == J_FLOAT ? v.f : (double)integer(v);
}

static const char *const op_names[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static _Noreturn void raise_types(jinja *j, jop op, jval a, jval b) {
    if (a.kind == J_UNDEFINED)
        jinja_raise_undefined(j, a.u);
    if (b.kind == J_UNDEFINED)
        jinja_raise_undefined(j, b.u);
    jinja_raise(j, "'%s' does not apply to a %s and a %s", op_names[op], jinja_type(a), jinja_type(b));
}

static _Noreturn void raise_overflow(jinja *j, jop op) {
    jinja_raise(j, "the result of '%s' does not fit in 64 bits", op_names[op]);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static jval int_power(jinja *j, int64_t base, int64_t exponent) {
    if (exponent < 0) {
        if (base == 0)
            jinja_raise(j, "0 to a negative power");
        return jinja_float(pow((double)base, (double)exponent));
    }
    int64_t result = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            raise_overflow(j, JOP_POW);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            raise_overflow(j, JOP_POW);
    }
    return jinja_int(result);
}

static int bits(uint64_t v) {
    return v ? 64 - __builtin_clzll(v) : 0;
}

/* a / b rounded once, also where a or b alone does not fit a double: the quotient to 55 bits or more, its last bit set
 * if anything is left over. */
static double int_ratio(int64_t a, int64_t b) {
    uint64_t x = a < 0 ? -(uint64_t)a : (uint64_t)a, y = b < 0 ? -(uint64_t)b : (uint64_t)b;
    if (bits(x) <= 53 && bits(y) <= 53)
        return (double)a / (double)b;
    int shift = bits(y) + 55 - bits(x);
    unsigned __int128 wide = (unsigned __int128)x << (shift > 0 ? shift : 0);
    uint64_t quotient = (uint64_t)(wide / y) | (wide % y != 0);
    double ratio = ldexp((double)quotient, shift > 0 ? -shift : 0);
    return (a < 0) != (b < 0) ? -ratio : ratio;
}

static jval int_op(jinja *j, jop op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool overflow = false;
    switch (op) {
    case JOP_ADD:
        overflow = __builtin_add_overflow(a, b, &r);
        break;
    case JOP_SUB:
        overflow = __builtin_sub_overflow(a, b, &r);
        break;
    case JOP_MUL:
        overflow = __builtin_mul_overflow(a, b, &r);
        break;
    case JOP_POW:
        return int_power(j, a, b);
    default:
        if (b == 0)
            jinja_raise(j, "division by zero");
        if (op == JOP_DIV)
            return jinja_float(int_ratio(a, b));
        if (b == -1) /* INT64_MIN / -1 traps */
            return op == JOP_MOD ? jinja_int(0) : int_op(j, JOP_SUB, 0, a);
        r = op == JOP_MOD ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0)) /* Python rounds down */
            r += op == JOP_MOD ? b : -1;
    }
    if (overflow)
        raise_overflow(j, op);
    return jinja_int(r);
}

static double float_mod(double a, double b) {
    double r = fmod(a, b);
    if (r == 0)
        return copysign(0, b);
    return (r < 0) != (b < 0) ? r + b : r;
}

static double float_floordiv(double a, double b) {
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0))
        div -= 1;
    if (div == 0)
        return copysign(0, a / b);
    double whole = floor(div);
    return div - whole > 0.5 ? whole + 1 : whole;
}

static jval float_op(jinja *j, jop op, double a, double b) {
    switch (op) {
    case JOP_ADD:
        return jinja_float(a + b);
    case JOP_SUB:
        return jinja_float(a - b);
    case JOP_MUL:
        return jinja_float(a * b);
    case JOP_POW:
        if (a == 0 && b < 0)
            jinja_raise(j, "0 to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
            jinja_raise(j, "a fractional power of a negative number is complex");
        if (isfinite(a) && isfinite(b) && isinf(pow(a, b)))
            jinja_raise(j, "the result of '**' does not fit a float");
        return jinja_float(pow(a, b));
    default:
        if (b == 0)
            jinja_raise(j, "division by zero");
        return jinja_float(op == JOP_DIV ? a / b : op == JOP_MOD ? float_mod(a, b) : float_floordiv(a, b));
    }
}

/* ---- strings and lists ----------------------------------------------------------------------- */

/* Does the tail's buffer have room for `more` elements right behind `end`? */
static bool can_append(const jtail *tail, const void *end, size_t size, size_t more) {
    return tail && tail->base && (const char *)tail->base + tail->used * size == (const char *)end &&
           tail->capacity - tail->used >= more;
}

#define SHARE_ABOVE 128 /* bytes: shorter results are simply copied */

jval jinja_concat(jinja *j, const jstr *a, const jstr *b, bool markup) {
    uint64_t n = (uint64_t)a->n + b->n;
    if (n > j->limits.output)
        jinja_raise(j, "a text longer than %zu MiB", j->limits.output >> 20);
    jstr *s = jinja_alloc(j, sizeof *s);
    *s = (jstr){.p = a->p, .n = (size_t)n, .points = -1, .markup = markup, .tail = a->tail};
    if (a->points >= 0 && b->points >= 0)
        s->points = a->points + b->points;
    jinja_work(j, b->n);
    if (can_append(a->tail, a->p + a->n, 1, b->n)) {
        memcpy((char *)a->p + a->n, b->p, b->n);
        a->tail->used += b->n;
        return jinja_of_str(s);
    }
    size_t capacity = n > SHARE_ABOVE ? (size_t)n * 2 : (size_t)n;
    char *p = jinja_alloc(j, capacity + 1);
    memcpy(p, a->p, a->n);
    memcpy(p + a->n, b->p, b->n);
    s->p = p;
    s->tail = NULL;
    if (n > SHARE_ABOVE) {
        s->tail = jinja_alloc(j, sizeof *s->tail);
        *s->tail = (jtail){.base = p, .used = (size_t)n, .capacity = capacity};
    }
    return jinja_of_str(s);
}

static jval add_str(jinja *j, jstr *a, jstr *b) {
    if (a->markup != b->markup) {
        a = jinja_escape(j, jinja_of_str(a)).s;
        b = jinja_escape(j, jinja_of_str(b)).s;
    }
    return jinja_concat(j, a, b, a->markup);
}

static jval add_seq(jinja *j, jkind kind, const jseq *a, const jseq *b) {
    jseq *s = jinja_alloc(j, sizeof *s);
    *s = (jseq){.at = a->at, .n = a->n + b->n, .tail = a->tail};
    jinja_work(j, b->n * sizeof *b->at);
    if (can_append(a->tail, a->at + a->n, sizeof *a->at, b->n)) {
        if (b->n)
            memcpy(a->at + a->n, b->at, b->n * sizeof *b->at);
        a->tail->used += b->n;
        return (jval){.kind = kind, .seq = s};
    }
    jval v = jinja_seq_new(j, kind, s->n + s->n / 2);
    *s = *v.seq;
    s->n = s->tail->used = a->n + b->n;
    if (a->n)
        memcpy(s->at, a->at, a->n * sizeof *a->at);
    if (b->n)
        memcpy(s->at + a->n, b->at, b->n * sizeof *b->at);
    return (jval){.kind = kind, .seq = s};
}

static jval repeat(jinja *j, jval v, int64_t count) {
    if (v.kind == J_STR) {
        jtext t = {.j = j};
        jinja_put_repeat(&t, v.s, count);
        jval out = jinja_text(&t);
        out.s->markup = v.s->markup;
        return out;
    }
    uint64_t n = 0;
    if (count > 0 && (!sl_mul_u64(v.seq->n, (uint64_t)count, &n) || n > j->limits.memory / sizeof(jval)))
        jinja_raise(j, "a list of %zu items repeated %lld times is too long", v.seq->n, (long long)count);
    jinja_work(j, (size_t)n * sizeof(jval));
    jval out = jinja_seq_new(j, v.kind, (size_t)n);
    for (uint64_t i = 0; i < n; i += v.seq->n)
        memcpy(out.seq->at + i, v.seq->at, v.seq->n * sizeof(jval));
    out.seq->n = out.seq->tail->used = (size_t)n;
    return out;
}

static bool is_repeatable(jval v) {
    return v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE;
}

jval jinja_binary(jinja *j, jop op, jval a, jval b) {
    if (is_number(a) && is_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT)
            return float_op(j, op, real(a), real(b));
        return int_op(j, op, integer(a), integer(b));
    }
    if (op == JOP_MOD && a.kind == J_STR)
        return jinja_percent_format(j, a.s, b);
    if (op == JOP_ADD && a.kind == b.kind) {
        if (a.kind == J_STR)
            return add_str(j, a.s, b.s);
        if (a.kind == J_LIST || a.kind == J_TUPLE)
            return add_seq(j, a.kind, a.seq, b.seq);
    }
    if (op == JOP_MUL) {
        if (is_repeatable(a) && (b.kind == J_INT || b.kind == J_BOOL))
            return repeat(j, a, integer(b));
        if (is_repeatable(b) && (a.kind == J_INT || a.kind == J_BOOL))
            return repeat(j, b, integer(a));
    }
    raise_types(j, op, a, b);
}

jval jinja_negate(jinja *j, jval v) {
    if (v.kind == J_FLOAT)
        return jinja_float(-v.f);
    return int_op(j, JOP_SUB, 0, jinja_arg_int(j, v, "'-'"));
}

jval jinja_positive(jinja *j, jval v) {
    if (v.kind == J_FLOAT)
        return v;
    return jinja_int(jinja_arg_int(j, v, "'+'"));
}

/* ---- slices ---------------------------------------------------------------------------------- */

typedef struct window {
    int64_t start, stop, step, n;
} window;

static int64_t bound(jinja *j, jval v, int64_t length, int64_t absent, int64_t low, int64_t high) {
    if (v.kind == J_NONE)
        return absent;
    int64_t i = jinja_arg_int(j, v, "a slice");
    if (i < 0)
        i = i < -length ? low - length : i;
    if (i < 0)
        i += length;
    return i < low ? low : i > high ? high : i;
}

/* Which items of `length` a slice takes, as PySlice_AdjustIndices does. */
static window slice_window(jinja *j, jval from, jval to, jval step, int64_t length) {
    window w = {.step = step.kind == J_NONE ? 1 : jinja_arg_int(j, step, "a slice")};
    if (w.step == 0)
        jinja_raise(j, "a slice with step 0");
    if (w.step < -INT64_MAX)
        w.step = -INT64_MAX;
    bool back = w.step < 0;
    int64_t low = back ? -1 : 0, high = back ? length - 1 : length;
    w.start = bound(j, from, length, back ? high : low, low, high);
    w.stop = bound(j, to, length, back ? low : high, low, high);
    if (back && w.stop < w.start)
        w.n = (w.start - w.stop - 1) / -w.step + 1;
    else if (!back && w.start < w.stop)
        w.n = (w.stop - w.start - 1) / w.step + 1;
    return w;
}

static jval slice_str(jinja *j, jstr *s, window w) {
    if (w.n <= 0)
        return jinja_substr(j, s, 0, 0);
    if (w.step == 1)
        return jinja_substr(j, s, jinja_offset(j, s, w.start), jinja_offset(j, s, w.start + w.n));
    jtext t = {.j = j};
    bool ascii = jinja_points(j, s) == (int64_t)s->n;
    size_t at = jinja_offset(j, s, w.start);
    for (int64_t i = 0;;) {
        int32_t cp;
        int bytes = sl_utf8_decode(s->p + at, s->n - at, &cp);
        jinja_put(&t, s->p + at, (size_t)bytes);
        if (++i == w.n)
            break;
        if (ascii) {
            at = (size_t)(w.start + i * w.step);
            continue;
        }
        for (int64_t k = 0; k < (w.step < 0 ? -w.step : w.step); k++) {
            jinja_work(j, 0);
            do
                at = w.step < 0 ? at - 1 : at + 1;
            while (((unsigned char)s->p[at] & 0xC0) == 0x80);
        }
    }
    jval v = jinja_text(&t);
    v.s->markup = s->markup;
    return v;
}

static jval slice_seq(jinja *j, jval v, window w) {
    if (w.step == 1 || w.n <= 0) { /* shares the items */
        jseq *s = jinja_alloc(j, sizeof *s);
        *s = (jseq){.at = v.seq->at, .n = w.n > 0 ? (size_t)w.n : 0, .tail = v.seq->tail};
        if (w.n > 0)
            s->at += w.start;
        return (jval){.kind = v.kind, .seq = s};
    }
    jval out = jinja_seq_new(j, v.kind, (size_t)w.n);
    for (int64_t i = 0; i < w.n; i++)
        jinja_push(j, out, v.seq->at[w.start + i * w.step]);
    return out;
}

/* The i-th number, also one behind the ends. */
static int64_t range_item(jinja *j, const jrange *r, int64_t i) {
    int64_t v;
    if (__builtin_mul_overflow(i, r->step, &v) || __builtin_add_overflow(r->start, v, &v))
        jinja_raise(j, "a slice of a range does not fit in 64 bits");
    return v;
}

static jval slice_range(jinja *j, const jrange *r, window w) {
    jrange *s = jinja_alloc(j, sizeof *s);
    *s = (jrange){.start = range_item(j, r, w.start), .stop = range_item(j, r, w.stop), .n = w.n > 0 ? w.n : 0};
    if (__builtin_mul_overflow(w.step, r->step, &s->step))
        jinja_raise(j, "a slice of a range does not fit in 64 bits");
    return (jval){.kind = J_RANGE, .range = s};
}

jval jinja_slice(jinja *j, jval v, jval from, jval to, jval step) {
    switch (v.kind) {
    case J_UNDEFINED:
        jinja_raise_undefined(j, v.u);
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
        break;
    default:
        jinja_raise(j, "a %s cannot be sliced", jinja_type(v));
    }
    window w = slice_window(j, from, to, step, jinja_length(j, v));
    if (v.kind == J_STR)
        return slice_str(j, v.s, w);
    if (v.kind == J_RANGE)
        return slice_range(j, v.range, w);
    return slice_seq(j, v, w);
}
