/* Renders a file of templates for the comparison with the reference (tests/e2e/test_templates_reference.py):
 * SL_TPL_INPUT: JSON lines {"template": text, "globals": object, "now": seconds}; SL_TPL_OUTPUT: JSON lines {"ok":
 * true, "out": text} or
 * {"ok": false, "error": text}, one for each. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *render_line(const json_t *job) {
    sl_error err = {0};
    sl_buf out = {0};
    const json_t *source = json_object_get(job, "template");
    int64_t now = json_integer_value(json_object_get(job, "now"));
    sl_template *t = sl_template_compile(json_string_value(source), json_string_length(source), &err);
    bool ok = t && sl_template_render(t, json_object_get(job, "globals"), now, &out, &err);
    json_t *answer = json_object();
    json_object_set_new(answer, "ok", json_boolean(ok));
    if (ok)
        json_object_set_new(answer, "out", json_stringn_nocheck(out.data ? out.data : "", out.size));
    else
        json_object_set_new(answer, "error", json_string(err.message));
    sl_template_free(t);
    sl_buf_free(&out);
    return answer;
}

int main(void) {
    const char *input = getenv("SL_TPL_INPUT"), *output = getenv("SL_TPL_OUTPUT");
    if (!input || !output) {
        printf("SKIP: SL_TPL_INPUT and SL_TPL_OUTPUT name no files\n");
        return 77;
    }
    FILE *in = fopen(input, "r"), *out = fopen(output, "w");
    char *line = NULL;
    size_t capacity = 0, done = 0;
    if (!in || !out)
        return 1;
    while (getline(&line, &capacity, in) > 0) {
        json_error_t why;
        json_t *job = json_loads(line, JSON_ALLOW_NUL, &why);
        if (!job) {
            fprintf(stderr, "%s:%zu: %s\n", input, done + 1, why.text);
            return 1;
        }
        json_t *answer = render_line(job);
        json_dumpf(answer, out, JSON_COMPACT);
        fputc('\n', out);
        fflush(out);
        json_decref(answer);
        json_decref(job);
        done++;
    }
    free(line);
    fclose(in);
    return fclose(out) ? 1 : 0;
}
