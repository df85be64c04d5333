/* Chat templates from hostile bytes. Input: a template, and behind a NUL byte the data as JSON; without that, a
 * conversation. A template that renders must give the same text again. */
#include "text/text.h"

#include "text/jinja.h"

#include <stdlib.h>
#include <string.h>

static const char conversation[] =
    "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true, \"x\": [1, 2.5, null, "
    "\"\\u00e9\"], \"n\": 7,"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": "
    "{\"type\": \"object\","
    " \"properties\": {\"a\": {\"type\": \"string\", \"enum\": [\"p\", \"q\"]}}, \"required\": [\"a\"]}}}],"
    " \"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": "
    "\"<b>h\\u00ebll\\u00f6</b> \\ud83d\\ude00\\n\"},"
    " {\"role\": \"assistant\", \"content\": \"<think>a</think>b\", \"tool_calls\": [{\"id\": \"123456789\", "
    "\"function\": {\"name\": \"f\","
    " \"arguments\": {\"a\": 1}}}]}, {\"role\": \"tool\", \"content\": [{\"type\": \"text\", \"text\": \"r\"}]}]}";

static const jinja_limits limits = {.steps = 200000, .memory = 16u << 20, .output = 1u << 20};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *source = (const char *)data, *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - source) : size;
    sl_error err = {0};
    sl_template *t = sl_template_compile(source, n, &err);
    if (!t)
        return 0;
    json_t *globals = nul ? json_loadb(nul + 1, size - n - 1, JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_is_object(globals)) {
        json_decref(globals);
        globals = json_loads(conversation, 0, NULL);
    }
    sl_buf first = {0}, second = {0};
    bool ok = jinja_render_within(t, globals, 1767323045, &limits, &first, &err);
    if (!ok && (first.size || err.code == SL_OK))
        abort();
    if (ok && (!jinja_render_within(t, globals, 1767323045, &limits, &second, &err) || first.size != second.size ||
               (first.size && memcmp(first.data, second.data, first.size) != 0)))
        abort();
    sl_buf_free(&first);
    sl_buf_free(&second);
    json_decref(globals);
    sl_template_free(t);
    return 0;
}
