/* Chat templates: the language (rows made by the reference), errors and their lines, limits, where checkpoints keep
 * templates. */
#include "support_tokenizer.h"
#include "template_rows.h"

#include "text/jinja.h"

#include <pthread.h>
#include <time.h>

#define NOW 1767323045 /* 2026-01-02 03:04:05 UTC */

static bool render(const char *source, const char *data, sl_buf *out, sl_error *err) {
    json_error_t why;
    json_t *globals = json_loads(data, JSON_DECODE_ANY, &why);
    if (!globals)
        fail_msg("%s: %s", data, why.text);
    *err = (sl_error){0};
    sl_template *t = sl_template_compile(source, strlen(source), err);
    bool ok = t && sl_template_render(t, globals, NOW, out, err);
    sl_template_free(t);
    json_decref(globals);
    return ok;
}

static void expect(const char *source, const char *data, const char *want) {
    sl_error err;
    sl_buf out = {0};
    if (!render(source, data, &out, &err))
        fail_msg("%s: %s", source, err.message);
    if (out.size != strlen(want) || (out.size && memcmp(out.data, want, out.size) != 0))
        fail_msg("%s\ngave     '%.*s'\nexpected '%s'", source, (int)out.size, out.data, want);
    sl_buf_free(&out);
}

static void expect_error(const char *source, const char *data, const char *want) {
    sl_error err;
    sl_buf out = {0};
    if (render(source, data, &out, &err))
        fail_msg("%s gave '%s', not an error", source, out.data);
    assert_int_equal(err.code, SL_ERR_TEXT);
    if (!strstr(err.message, want) || strchr(err.message, '\n'))
        fail_msg("%s\nfailed with '%s'\nexpected    '%s'", source, err.message, want);
    assert_int_equal(out.size, 0);
    sl_buf_free(&out);
}

static void renders_as_the_reference(void **state) {
    size_t fails = 0;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if (rows[i].want)
            expect(rows[i].source, ROW_VALUES, rows[i].want);
        else {
            expect_error(rows[i].source, ROW_VALUES, "");
            fails++;
        }
    }
    assert_true(SL_COUNT(rows) > 250 && fails > 80 && SL_COUNT(rows) - fails > 110);
}

static void renders_a_conversation(void **state) {
    expect("{{- bos_token }}{% for m in messages %}\n"
           "<|{{ m.role }}|>{{ m['content'] | trim }}<|end|>\n"
           "{% endfor %}\n"
           "{% if add_generation_prompt %}<|assistant|>{% endif %}\n",
           "{\"bos_token\": \"<s>\", \"add_generation_prompt\": true, \"messages\": ["
           "{\"role\": \"system\", \"content\": \" Be brief. \"}, {\"role\": \"user\", \"content\": \"H\\u00e9 "
           "\\ud83d\\ude00\"}]}",
           "<s><|system|>Be brief.<|end|>\n<|user|>H\xc3\xa9 \xf0\x9f\x98\x80<|end|>\n<|assistant|>");
}

static void strings_may_hold_nul(void **state) {
    sl_error err = {0};
    sl_buf out = {0};
    json_t *globals = json_loads("{\"s\": \"a\\u0000b\"}", JSON_ALLOW_NUL, NULL);
    const char *source = "{{ s }}{{ s|length }}{{ [s] }}";
    sl_template *t = sl_template_compile(source, strlen(source), &err);
    assert_true(sl_template_render(t, globals, NOW, &out, &err));
    assert_int_equal(out.size, 4 + 10);
    assert_memory_equal(out.data, "a\0b3['a\\x00b']", 14);
    sl_buf_free(&out);
    sl_template_free(t);
    json_decref(globals);
}

/* ---- errors ------------------------------------------------------------------------------------ */

static const struct {
    const char *source, *want;
} errors[] = {
    /* the line, counted in the source as it is */
    {"a\nb\n{{ missing.x }}", "line 3: 'missing' is undefined"},
    {"a\r\nb\r{{ missing.x }}", "line 3: 'missing' is undefined"},
    {"{#\n\n#}\n{% raw %}\n{% endraw %}\n{{ d.x.y }}", "line 6: a dict has no attribute or item 'x'"},
    {"{% set a = 'x\ny' %}\n{{ a + 1 }}", "line 3: '+' does not apply to a str and a int"},
    {"{% macro m() %}\n{{ 1 / 0 }}\n{% endmacro %}\n\n{{ m() }}", "line 2: division by zero"},
    {"{{ [1,\n2,\n3]|sum(\nstart='') }}", "line 3: sum"},
    {"{% if true %}\n{% for i in [1] %}\n{% endif %}", "line 3: unknown tag {% endif %}"},
    {"\n\n{% if true %}\n", "line 3: the template ends before {% endif %}"},
    {"{{ 1\n}}{{ 'a }}", "line 2: a string is not closed"},
    /* the construct */
    {"\n{% include 'x' %}", "line 2: {% include %} is not supported"},
    {"{% import 'x' as y %}", "{% import %} is not supported"},
    {"{% from 'x' import y %}", "{% from %} is not supported"},
    {"{% extends 'x' %}", "{% extends %} is not supported"},
    {"{% autoescape true %}{% endautoescape %}", "{% autoescape %} is not supported"},
    {"{% do x %}", "unknown tag {% do %}"},
    {"{{ x|nonsense }}", "unknown filter 'nonsense'"},
    {"{{ x is nonsense }}", "unknown test 'nonsense'"},
    {"{{ x }", "unexpected '}'"},
    {"{{ (x] }}", "unexpected ']'"},
    {"{{ x ! y }}", "unexpected character '!'"},
    {"{{ \xc3\xa9\xe2\x82\xac }}", "unexpected character '\xe2\x82\xac'"},
    {"{{ x y }}", "expected '}}', found 'y'"},
    {"{% for x on y %}", "expected 'in', found 'on'"},
    {"{% set x 1 %}", "expected '%}', found a number"},
    {"{{ f(1, a=2, 3) }}", "wrong order"},
    {"{{ f(a=1, a=2) }}", "'a' is given twice"},
    {"{% set 1 = 2 %}", "only a name"},
    {"{% macro m(a, a) %}{% endmacro %}", "parameter 'a' twice"},
    {"{% for i in x %}{% set loop = 1 %}{% endfor %}", "'loop' cannot be assigned"},
    {"{% break %}", "break outside of a loop"},
    {"{# x", "comment is not closed"},
    {"{% raw %} x", "raw %} is not closed"},
    {"{{ 99999999999999999999 }}", "does not fit in 64 bits"},
    {"{{ '\\ud800' }}", "half a character"},
    {"{{ '\\N{DIGIT ONE}' }}", "\\N{...} escapes are not supported"},
    /* what Python would raise */
    {"{{ d.pop('a') }}", "attribute 'pop' of a dict is not allowed in a template"},
    {"{{ [1].append(2) }}", "attribute 'append' of a list is not allowed"},
    {"{{ none.a.b }}", "None has no attribute or item 'a'"},
    {"{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names"},
    {"{% for a in 5 %}{% endfor %}", "a int cannot be iterated over"},
    {"{{ 'a' < 1 }}", "a str and a int cannot be ordered"},
    {"{{ 1 in 'a' }}", "'in' a str needs a str on its left, not a int"},
    {"{{ {[]: 1} }}", "a list cannot be a key"},
    {"{{ missing|tojson }}", "tojson: a Undefined has no JSON form"},
    {"{{ 'a'|center(1, 2) }}", "center takes at most 1 argument(s), not 2"},
    {"{{ 'a'|center(w=2) }}", "center takes no argument named 'w'"},
    {"{{ 'a'|replace('b') }}", "replace needs 2 argument(s)"},
    {"{{ range(200000) }}", "range of 200000 numbers; the limit is 100000"},
    {"{{ 9223372036854775807 + 1 }}", "the result of '+' does not fit in 64 bits"},
    {"{{ -9223372036854775807 - 2 }}", "does not fit in 64 bits"},
    {"{{ 3037000500 * 3037000500 }}", "does not fit in 64 bits"},
    {"{{ 2 ** 64 }}", "does not fit in 64 bits"},
    {"{{ (-9223372036854775807 - 1)|abs }}", "does not fit in 64 bits"},
    {"{{ 5() }}", "a int cannot be called"},
    {"{% set d.x = 1 %}", "'d' is no namespace: its attribute 'x' cannot be set"},
    {"{{ 'x'|random }}", "random: not supported"},
    {"{{ lipsum() }}", "not supported"},
    {"{{ raise_exception() }}", "raise_exception needs 1 argument(s)"},
    {"{{ 'caf\\xe9'.encode() }}", "not supported"},
};

static void errors_name_line_and_construct(void **state) {
    for (size_t i = 0; i < SL_COUNT(errors); i++)
        expect_error(errors[i].source, "{\"d\": {\"a\": 1}, \"x\": [1]}", errors[i].want);
}

static void raise_exception_gives_the_message(void **state) {
    sl_error err;
    sl_buf out = {0};
    sl_buf_puts(&out, "before ");
    assert_false(render("x{{ raise_exception('Roles must alternate: \xc3\xa9!') }}", "{}", &out, &err));
    assert_string_equal(err.message, "Roles must alternate: \xc3\xa9!");
    assert_int_equal(out.size, 7); /* nothing of a failed rendering is left in it */
    assert_true(render("after{{ 1 }}", "{}", &out, &err));
    assert_string_equal(out.data, "before after1");
    sl_buf_free(&out);
    expect_error("{{ raise_exception('two\nlines') }}", "{}", "two");
}

static void data_must_be_an_object(void **state) {
    sl_error err;
    sl_buf out = {0};
    assert_false(render("x", "[1]", &out, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_int_equal(out.size, 0);
    json_t *deep = json_array();
    for (int i = 0; i < 1000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_t *globals = json_object();
    json_object_set_new(globals, "deep", deep);
    sl_template *t = sl_template_compile("x", 1, &err);
    assert_false(sl_template_render(t, globals, NOW, &out, &err));
    assert_non_null(strstr(err.message, "nested more than"));
    sl_template_free(t);
    json_decref(globals);
}

static void source_must_be_utf8(void **state) {
    static const char *const bad[] = {"a\n\xff", "{{ '\xc3' }}", "\xed\xa0\x80", "{# \xf4\x90\x80\x80 #}",
                                      "{{ \xc0\xaf }}"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        expect_error(bad[i], "{}", "is not UTF-8");
    sl_error err = {0};
    sl_template *t = sl_template_compile("", 0, &err);
    assert_non_null(t);
    sl_template_free(t);
    char *big = calloc(1, JINJA_MAX_SOURCE + 1);
    memset(big, 'x', JINJA_MAX_SOURCE + 1);
    assert_null(sl_template_compile(big, JINJA_MAX_SOURCE + 1, &err));
    assert_non_null(strstr(err.message, "the limit is 1048576"));
    free(big);
}

/* ---- time -------------------------------------------------------------------------------------- */

static void strftime_now_sees_the_given_time(void **state) {
    setenv("TZ", "UTC0", 1);
    tzset();
    expect("{{ strftime_now('%Y-%m-%d %H:%M:%S %j %a %B %p') }}", "{}", "2026-01-02 03:04:05 002 Fri January AM");
    expect("{{ strftime_now('%f|%z|%Z|%%|%') }}", "{}", "000000|||%|%");
    expect("[{{ strftime_now('') }}]{{ strftime_now('\xc3\xa9') }}", "{}", "[]\xc3\xa9");
    setenv("TZ", "XYZ-5:30", 1); /* local time, east of Greenwich */
    tzset();
    expect("{{ strftime_now('%H:%M') }}", "{}", "08:34");
    setenv("TZ", "UTC0", 1);
    tzset();
    expect_error("{{ strftime_now(5) }}", "{}", "must be a str");
}

/* ---- limits ------------------------------------------------------------------------------------ */

/* Each would hang, exhaust memory or overflow the stack. */
static const struct {
    const char *source, *want;
} hostile[] = {
    {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps"},
    {"{% set ns = namespace(x='a') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "MiB"},
    {"{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "MiB"},
    {"{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
     "nested more than"},
    {"{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x == [ns.x] }}",
     "nested"},
    {"{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
     "nested"},
    {"{% set ns = namespace(x=(1,)) %}{% for i in range(9999) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}",
     "nested"},
    {"{% set ns = namespace(x=(1,)) %}{% for i in range(99999) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {}[ns.x] }}",
     "nested"},
    {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "nested"},
    {"{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = ns.x|map('string') %}{% endfor %}{{ "
     "ns.x|list }}",
     "lazy"},
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep"},
    {"{% macro m(x) %}{{ m([x, x]) }}{{ m(x) }}{% endmacro %}{{ m(1) }}", "deep"},
    {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deep"},
    {"{% macro m() %}{{ [[[[[[[[[[[[[[[[[[[[m()]]]]]]]]]]]]]]]]]]]]|first|first }}{% endmacro %}{{ m() }}", "deep"},
    {"{% macro m() %}{% for i in [1] if m() %}{% endfor %}{% endmacro %}{{ m() }}", "deep"},
    {"{% macro m() %}{% call m() %}x{% endcall %}{{ caller }}{% endmacro %}{{ m() }}", "deep"},
    {"{% macro m() %}{% filter trim %}{% set x %}{% with y = m() %}{% endwith %}{% endset %}{% endfilter %}{% endmacro "
     "%}{{ m() }}",
     "deep"},
    {"{% macro m(n, s) %}{{ ('{:{w}}'.format(m(n, s), w=m(n, s))) }}{% endmacro %}{{ m(1, 'x') }}", "deep"},
    {"{% macro m() %}{{ [1]|map('default', m())|list|join(m()) }}{% endmacro %}{{ m() }}", "deep"},
    {"{{ 'a' * 99999999999 }}", "MiB"},
    {"{{ [1] * 99999999999 }}", "too long"},
    {"{{ 'a'.ljust(99999999999) }}", "MiB"},
    {"{{ 'a'|center(99999999999) }}", "MiB"},
    {"{{ 'a'|indent(99999999999) }}", "MiB"},
    {"{{ '%099999999d' % 1 }}", "MiB"},
    {"{{ '%.99999999f' % 1.5 }}", "MiB"},
    {"{{ '{:>99999999999}'.format(1) }}", "too large"},
    {"{{ '{:0999999999}'.format(1) }}", "MiB"},
    {"{{ 'a'.expandtabs(99999999999) ~ '\\t'.expandtabs(99999999999) }}", "MiB"},
    {"{{ [1]|batch(99999999999, 0)|list }}", "M"},
    {"{{ [1]|slice(99999999999)|list }}", "M"},
    {"{{ [[]]|tojson(indent=99999999999) }}", "MiB"},
    {"{{ ('a' * 60000000) ~ ('a' * 60000000) }}", "MiB"},
    {"{% for i in range(100000) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 100 }}{% endfor %}", "M"},
    {"{{ 'aaaa'.replace('', 'b' * 60000000) }}", "MiB"},
    {"{{ strftime_now('%99999999Y')|length > 0 or 1 / 0 }}", "division"},
    {"{{ ('a' * 1000000)|list|map('list')|map('join', 'x' * 1000000)|join }}", "M"},
};

static void hostile_templates_end_with_an_error(void **state) {
    static const jinja_limits limits = {.steps = 4u << 20, .memory = 64u << 20, .output = 16u << 20};
    sl_error err = {0};
    json_t *globals = json_object();
    for (size_t i = 0; i < SL_COUNT(hostile); i++) {
        sl_buf out = {0};
        sl_template *t = sl_template_compile(hostile[i].source, strlen(hostile[i].source), &err);
        if (!t)
            fail_msg("%s: %s", hostile[i].source, err.message);
        if (jinja_render_within(t, globals, NOW, &limits, &out, &err))
            fail_msg("%s rendered", hostile[i].source);
        if (!strstr(err.message, hostile[i].want) && !strstr(err.message, "steps"))
            fail_msg("%s: %s", hostile[i].source, err.message);
        sl_template_free(t);
    }
    json_decref(globals);
}

/* "before" n times, middle, "after" n times */
static char *nested(const char *before, size_t n, const char *middle, const char *after) {
    sl_buf b = {0};
    for (size_t i = 0; i < n; i++)
        sl_buf_puts(&b, before);
    sl_buf_puts(&b, middle);
    for (size_t i = 0; i < n; i++)
        sl_buf_puts(&b, after);
    return sl_buf_take(&b, NULL);
}

static void nesting_has_an_end(void **state) {
    static const struct {
        const char *before, *middle, *after, *start, *end;
    } forms[] = {
        {"(", "1", ")", "{{ ", " }}"},
        {"[", "1", "]", "{{ ", " }}"},
        {"{'a':", "1", "}", "{{ ", " }}"},
        {"x(", "1", ")", "{{ ", " }}"},
        {"x[", "1", "]", "{{ ", " }}"},
        {"not ", "x", "", "{{ ", " }}"},
        {"- ", "1", "", "{{ ", " }}"},
        {"1 if 1 else ", "1", "", "{{ ", " }}"},
        {"", "x", ".a", "{{ ", " }}"},
        {"", "x", "|list", "{{ ", " }}"},
        {"", "x", "()", "{{ ", " }}"},
        {"", "1", " + 1", "{{ ", " }}"},
        {"", "x", " and x", "{{ ", " }}"},
        {"", "x", " if x", "{{ ", " }}"},
        {"{% if 1 %}", "x", "{% endif %}", "", ""},
        {"{% for i in x %}", "x", "{% endfor %}", "", ""},
        {"{% macro m() %}", "x", "{% endmacro %}", "", ""},
        {"{% set x %}", "x", "{% endset %}", "", ""},
        {"{% filter trim %}", "x", "{% endfilter %}", "", ""},
        {"{% call x() %}", "x", "{% endcall %}", "", ""},
        {"{% with %}", "x", "{% endwith %}", "", ""},
        {"{% generation %}", "x", "{% endgeneration %}", "", ""},
    };
    for (size_t i = 0; i < SL_COUNT(forms); i++) {
        for (size_t n = 20; n <= 20000; n *= 1000) {
            sl_error err = {0};
            char *inside = nested(forms[i].before, n, forms[i].middle, forms[i].after);
            char *source = sl_asprintf("%s%s%s", forms[i].start, inside, forms[i].end);
            sl_template *t = sl_template_compile(source, strlen(source), &err);
            if (n == 20 && !t)
                fail_msg("%s: %s", source, err.message);
            if (n > 20 && (t || !strstr(err.message, "more than")))
                fail_msg("%.80s...: %s", source, t ? "compiled" : err.message);
            sl_template_free(t);
            free(inside);
            free(source);
        }
    }
}

/* The highest expression in the deepest brackets in the deepest statements in the deepest macro calls. */
static void expect_deep_expressions_to_work(void) {
    sl_error err = {0};
    sl_buf out = {0}, b = {0};
    json_t *globals = json_object();
    sl_buf_puts(&b, "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(180) }}{{ ");
    for (int i = 0; i < 90; i++)
        sl_buf_puts(&b, "(");
    sl_buf_puts(&b, "1");
    for (int i = 0; i < 300; i++)
        sl_buf_puts(&b, " + 1");
    for (int i = 0; i < 90; i++)
        sl_buf_puts(&b, ")");
    sl_buf_puts(&b, " }}");
    sl_template *t = sl_template_compile(b.data, b.size, &err);
    if (!t || !sl_template_render(t, globals, NOW, &out, &err))
        fail_msg("%s", err.message);
    assert_string_equal(out.data, "301");
    sl_buf_free(&out);
    sl_buf_free(&b);
    sl_template_free(t);
    json_decref(globals);
}

/* The smallest stack that a thread has by default on the systems Sluice runs on; sanitizers need more for each frame.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_BYTES (8u << 20)
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STACK_BYTES (8u << 20)
#endif
#endif
#ifndef STACK_BYTES
#define STACK_BYTES (512u << 10)
#endif

static void *run_tests_of_depth(void *arg) {
    hostile_templates_end_with_an_error(NULL);
    nesting_has_an_end(NULL);
    expect_deep_expressions_to_work();
    return arg;
}

/* Recursion at its limits must not need more; an overflow ends the program. */
static void deepest_recursion_fits_a_small_stack(void **state) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attributes, run_tests_of_depth, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

/* Text gathered in a loop must not cost its length each time: 20000 times 100 bytes in 32 MiB. */
static void gathering_text_and_lists_is_linear(void **state) {
    static const jinja_limits limits = {.steps = 4u << 20, .memory = 32u << 20, .output = 8u << 20};
    const char *source = "{% set ns = namespace(s='', l=[]) %}{% set x = 'x' * 100 %}{% for i in range(20000) %}"
                         "{% set ns.s = ns.s + x %}{% set ns.l = ns.l + [i] %}{% endfor %}"
                         "{{ ns.s|length }} {{ ns.l|length }} {{ ns.l[-1] }} {{ ns.l[1:][0] }}";
    sl_error err = {0};
    sl_buf out = {0};
    json_t *globals = json_object();
    sl_template *t = sl_template_compile(source, strlen(source), &err);
    if (!jinja_render_within(t, globals, NOW, &limits, &out, &err))
        fail_msg("%s", err.message);
    assert_string_equal(out.data, "2000000 20000 19999 1");
    sl_buf_free(&out);
    sl_template_free(t);
    json_decref(globals);
}

/* Two strings that begin alike share a buffer: growing one must not show in the other. */
static void growing_one_value_leaves_others_alone(void **state) {
    expect("{% set a = 'x' * 200 + 'a' %}{% set b = a + 'b' %}{% set c = a + 'c' %}{% set d = a[:200] + 'd' %}"
           "{{ a[199:] }} {{ b[199:] }} {{ c[199:] }} {{ d[199:] }}",
           "{}", "xa xab xac xd");
    expect("{% set a = [1] + [2] %}{% set b = a + [3] %}{% set c = a + [4] %}{% set d = a[:1] + [5] %}{{ a }}{{ b }}{{ "
           "c }}{{ d }}",
           "{}", "[1, 2][1, 2, 3][1, 2, 4][1, 5]");
}

/* ---- threads ------------------------------------------------------------------------------------- */

static void *render_often(void *arg) {
    const sl_template *t = arg;
    json_t *globals = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "h\xc3\xa9");
    sl_error err = {0};
    bool ok = true;
    for (int i = 0; i < 200 && ok; i++) {
        sl_buf out = {0};
        ok = sl_template_render(t, globals, NOW, &out, &err) &&
             strcmp(out.data, "user: h\xc3\xa9 2 6 \xc3\xa9\xc3\xa9x") == 0;
        sl_buf_free(&out);
    }
    json_decref(globals);
    return ok ? arg : NULL;
}

static void one_template_serves_several_threads(void **state) {
    const char *source =
        "{% for m in messages %}{{ m.role }}: {{ m.content }} {{ m.content|length }} "
        "{{ '\xc3\xa9\xc3\xa9\xc3\xa9xyz'|length }} {{ '\xc3\xa9\xc3\xa9\xc3\xa9xyz'[1:4] }}{% endfor %}";
    sl_error err = {0};
    sl_template *t = sl_template_compile(source, strlen(source), &err);
    pthread_t threads[4];
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, t), 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, t);
    }
    sl_template_free(t);
}

/* ---- where checkpoints keep it ------------------------------------------------------------------- */

#define CONFIG "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\"}"

static char *source_of(const char *path, bool tools, sl_error *err) {
    size_t n = 77;
    sl_ckpt *c = sl_ckpt_open(path, err);
    if (!c)
        fail_msg("%s", err->message);
    err->code = SL_ERR_IO; /* poison */
    char *text = sl_template_source(c, tools, &n, err);
    if (text)
        assert_int_equal(n, strlen(text));
    sl_ckpt_close(c);
    return text;
}

static void expect_source(const char *path, bool tools, const char *want) {
    sl_error err = {0};
    char *text = source_of(path, tools, &err);
    assert_int_equal(err.code, SL_OK);
    if (!want)
        assert_null(text);
    else
        assert_string_equal(text, want);
    free(text);
}

static void template_of_a_directory(void **state) {
    static const char header[] =
        "\x40\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}            \0\0\0\0";
    sl_error err = {0};
    char *dir = make_folder();
    put_file(dir, "config.json", CONFIG, strlen(CONFIG));
    put_file(dir, "model.safetensors", header, 8 + 0x40 + 4);
    expect_source(dir, false, NULL);
    const char *one = "{\"chat_template\": \"one {{ x }}\"}";
    put_file(dir, "tokenizer_config.json", one, strlen(one));
    expect_source(dir, false, "one {{ x }}");
    expect_source(dir, true, "one {{ x }}");
    const char *two = "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"}, {\"name\": \"default\", "
                      "\"template\": \"D\"}]}";
    put_file(dir, "tokenizer_config.json", two, strlen(two));
    expect_source(dir, false, "D");
    expect_source(dir, true, "T");
    const char *no_default = "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"R\"}, 5]}";
    put_file(dir, "tokenizer_config.json", no_default, strlen(no_default));
    assert_null(source_of(dir, false, &err));
    assert_int_equal(err.code, SL_ERR_FORMAT);
    assert_non_null(strstr(err.message, "tokenizer_config.json"));
    const char *null = "{\"chat_template\": null}";
    put_file(dir, "tokenizer_config.json", null, strlen(null));
    expect_source(dir, true, NULL);
    put_file(dir, "tokenizer_config.json", two, strlen(two));
    put_file(dir, "chat_template.jinja", "file", 4);
    expect_source(dir, false, "file");
    remove_folder(dir);
}

/* A GGUF v3 file of string keys and no tensors. */
static void put_gguf(const char *dir, const char *const *pairs, size_t n) {
    sl_buf b = {0};
    uint32_t version = 3, string = 8;
    uint64_t tensors = 0, keys = n;
    sl_buf_append(&b, "GGUF", 4);
    sl_buf_append(&b, &version, 4);
    sl_buf_append(&b, &tensors, 8);
    sl_buf_append(&b, &keys, 8);
    for (size_t i = 0; i < 2 * n; i++) {
        uint64_t length = strlen(pairs[i]);
        if (i % 2)
            sl_buf_append(&b, &string, 4);
        sl_buf_append(&b, &length, 8);
        sl_buf_append(&b, pairs[i], length);
    }
    put_file(dir, "m.gguf", b.data, b.size);
    sl_buf_free(&b);
}

static void template_of_a_gguf_file(void **state) {
    static const char *const pairs[] = {
        "general.architecture", "llama", "tokenizer.chat_template", "D", "tokenizer.chat_template.tool_use", "T"};
    char *dir = make_folder(), *path = sl_path_join(dir, "m.gguf");
    put_gguf(dir, pairs, 1);
    expect_source(path, true, NULL);
    put_gguf(dir, pairs, 2);
    expect_source(path, false, "D");
    expect_source(path, true, "D");
    put_gguf(dir, pairs, 3);
    expect_source(path, false, "D");
    expect_source(path, true, "T");
    free(path);
    remove_folder(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_as_the_reference),
        cmocka_unit_test(renders_a_conversation),
        cmocka_unit_test(strings_may_hold_nul),
        cmocka_unit_test(errors_name_line_and_construct),
        cmocka_unit_test(raise_exception_gives_the_message),
        cmocka_unit_test(data_must_be_an_object),
        cmocka_unit_test(source_must_be_utf8),
        cmocka_unit_test(strftime_now_sees_the_given_time),
        cmocka_unit_test(hostile_templates_end_with_an_error),
        cmocka_unit_test(nesting_has_an_end),
        cmocka_unit_test(deepest_recursion_fits_a_small_stack),
        cmocka_unit_test(gathering_text_and_lists_is_linear),
        cmocka_unit_test(growing_one_value_leaves_others_alone),
        cmocka_unit_test(one_template_serves_several_threads),
        cmocka_unit_test(template_of_a_directory),
        cmocka_unit_test(template_of_a_gguf_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
