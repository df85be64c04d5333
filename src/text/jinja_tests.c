/* Tests: x is name(arguments). */
#include "text/jinja.h"

#include <string.h>

static bool is_number(jval v) {
    return v.kind == J_INT || v.kind == J_FLOAT || v.kind == J_BOOL;
}

static jval remainder_is(jinja *j, jval v, jval by, int64_t want) {
    return jinja_bool(jinja_equal(j, jinja_binary(j, JOP_MOD, v, by), jinja_int(want)));
}

static jval test_odd(jinja *j, jval self, const jval *a) {
    return remainder_is(j, self, jinja_int(2), 1);
}
static jval test_even(jinja *j, jval self, const jval *a) {
    return remainder_is(j, self, jinja_int(2), 0);
}
static jval test_divisibleby(jinja *j, jval self, const jval *a) {
    return remainder_is(j, self, a[0], 0);
}
static jval test_defined(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind != J_UNDEFINED);
}
static jval test_undefined(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_UNDEFINED);
}
static jval test_none(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_NONE);
}
static jval test_boolean(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_BOOL);
}
static jval test_true(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_BOOL && self.b);
}
static jval test_false(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_BOOL && !self.b);
}
static jval test_integer(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_INT);
}
static jval test_float(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_FLOAT);
}
static jval test_number(jinja *j, jval self, const jval *a) {
    return jinja_bool(is_number(self));
}
static jval test_string(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_STR);
}
static jval test_mapping(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_DICT);
}
static jval test_iterable(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_iterable(self));
}
static jval test_callable(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_callable(self));
}
static jval test_sameas(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_identical(self, a[0]));
}
static jval test_in(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_contains(j, a[0], self));
}

static jval test_escaped(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_STR && self.s->markup);
}

/* What has a length and items: also a dict, and Undefined. */
static jval test_sequence(jinja *j, jval self, const jval *a) {
    return jinja_bool(self.kind == J_STR || self.kind == J_LIST || self.kind == J_TUPLE || self.kind == J_DICT ||
                      self.kind == J_RANGE || self.kind == J_UNDEFINED);
}

/* At least one letter with case, and none of the other one. */
static bool all_case(jinja *j, const jstr *s, bool lower) {
    bool cased = false;
    jinja_work(j, s->n);
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        if (jinja_is_title(cp) || (lower ? jinja_is_upper(cp) : jinja_is_lower(cp)))
            return false;
        cased |= lower ? jinja_is_lower(cp) : jinja_is_upper(cp);
    }
    return cased;
}

static jval test_lower(jinja *j, jval self, const jval *a) {
    return jinja_bool(all_case(j, jinja_to_str(j, self), true));
}
static jval test_upper(jinja *j, jval self, const jval *a) {
    return jinja_bool(all_case(j, jinja_to_str(j, self), false));
}

static jval test_eq(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_compare(j, JOP_EQ, self, a[0]));
}
static jval test_ne(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_compare(j, JOP_NE, self, a[0]));
}
static jval test_gt(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_compare(j, JOP_GT, self, a[0]));
}
static jval test_ge(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_compare(j, JOP_GE, self, a[0]));
}
static jval test_lt(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_compare(j, JOP_LT, self, a[0]));
}
static jval test_le(jinja *j, jval self, const jval *a) {
    return jinja_bool(jinja_compare(j, JOP_LE, self, a[0]));
}

static jval known(jinja *j, jval name, const jbuiltin *(*find)(const jstr *)) {
    if (!jinja_hashable(j, name))
        jinja_raise(j, "a %s is no name", jinja_type(name));
    return jinja_bool(name.kind == J_STR && find(name.s));
}

static jval test_filter(jinja *j, jval self, const jval *a) {
    return known(j, self, jinja_find_filter);
}
static jval test_test(jinja *j, jval self, const jval *a) {
    return known(j, self, jinja_find_test);
}

static const jbuiltin tests[] = {
    {"!=", "/b", 1, test_ne, NULL},
    {"<", "/b", 1, test_lt, NULL},
    {"<=", "/b", 1, test_le, NULL},
    {"==", "/b", 1, test_eq, NULL},
    {">", "/b", 1, test_gt, NULL},
    {">=", "/b", 1, test_ge, NULL},
    {"boolean", "", 0, test_boolean, NULL},
    {"callable", "/", 0, test_callable, NULL},
    {"defined", "", 0, test_defined, NULL},
    {"divisibleby", "num", 1, test_divisibleby, NULL},
    {"eq", "/b", 1, test_eq, NULL},
    {"equalto", "/b", 1, test_eq, NULL},
    {"escaped", "", 0, test_escaped, NULL},
    {"even", "", 0, test_even, NULL},
    {"false", "", 0, test_false, NULL},
    {"filter", "", 0, test_filter, NULL},
    {"float", "", 0, test_float, NULL},
    {"ge", "/b", 1, test_ge, NULL},
    {"greaterthan", "/b", 1, test_gt, NULL},
    {"gt", "/b", 1, test_gt, NULL},
    {"in", "seq", 1, test_in, NULL},
    {"integer", "", 0, test_integer, NULL},
    {"iterable", "", 0, test_iterable, NULL},
    {"le", "/b", 1, test_le, NULL},
    {"lessthan", "/b", 1, test_lt, NULL},
    {"lower", "", 0, test_lower, NULL},
    {"lt", "/b", 1, test_lt, NULL},
    {"mapping", "", 0, test_mapping, NULL},
    {"ne", "/b", 1, test_ne, NULL},
    {"none", "", 0, test_none, NULL},
    {"number", "", 0, test_number, NULL},
    {"odd", "", 0, test_odd, NULL},
    {"sameas", "other", 1, test_sameas, NULL},
    {"sequence", "", 0, test_sequence, NULL},
    {"string", "", 0, test_string, NULL},
    {"test", "", 0, test_test, NULL},
    {"true", "", 0, test_true, NULL},
    {"undefined", "", 0, test_undefined, NULL},
    {"upper", "", 0, test_upper, NULL},
};

const jbuiltin *jinja_find_test(const jstr *name) {
    return jinja_find_builtin(tests, SL_COUNT(tests), name);
}
