/* Answers one prompt: opens a model, renders its chat template, prints the text as it comes.
 *
 *   example_generate MODEL PROMPT [MEMORY-IN-MIB]
 */
#include <sluice/sluice.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [{"role": "user", "content": PROMPT}]; quotes, backslashes and control bytes escaped. Caller frees. */
static char *user_message(const char *prompt) {
    char *json = malloc(6 * strlen(prompt) + 64), *p = json;
    if (!json)
        return NULL;
    p += sprintf(p, "[{\"role\":\"user\",\"content\":\"");
    for (; *prompt; prompt++) {
        if (*prompt == '"' || *prompt == '\\' || (unsigned char)*prompt < 0x20)
            p += sprintf(p, "\\u%04x", *prompt);
        else
            *p++ = *prompt;
    }
    strcpy(p, "\"}]");
    return json;
}

/* The prompt's token ids: through the chat template where the model has one. */
static bool tokenize(sl_engine *e, const char *prompt, int32_t **ids, size_t *count, sl_error *err) {
    if (!sl_has_chat_template(e))
        return sl_tokenize(e, prompt, strlen(prompt), false, true, ids, count, err);
    char *messages = user_message(prompt), *text;
    size_t size;
    bool ok = sl_chat_render(e, messages, NULL, true, &text, &size, err);
    free(messages);
    if (!ok)
        return false;
    /* special: the template's control tokens become ids. So do those a person typed: a server would guard against it.
     */
    ok = sl_tokenize(e, text, size, true, false, ids, count, err);
    sl_free(text);
    return ok;
}

static bool print_answer(sl_engine *e, const int32_t *ids, size_t count, sl_error *err) {
    sl_generate_options o = SL_GENERATE_OPTIONS_INIT;
    o.prompt = ids;
    o.prompt_count = count;
    o.max_tokens = 256;
    sl_request *r = sl_generate(e, &o, err);
    if (!r)
        return false;
    sl_event ev;
    while (sl_request_next(r, &ev, -1)) {
        fwrite(ev.text, 1, ev.text_size, stdout);
        fflush(stdout);
    }
    printf("\n");
    if (ev.finish == SL_FINISH_ERROR)
        *err = ev.error;
    sl_request_free(r);
    return ev.finish != SL_FINISH_ERROR;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [MEMORY-IN-MIB]\n", argv[0]);
        return 2;
    }
    sl_error err = {0};
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    o.model = argv[1];
    o.memory = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 0;
    sl_engine *e = sl_engine_open(&o, &err);
    int32_t *ids = NULL;
    size_t count;
    bool ok = e && tokenize(e, argv[2], &ids, &count, &err) && print_answer(e, ids, count, &err);
    if (!ok)
        fprintf(stderr, "%s: %s\n", argv[0], err.message);
    sl_free(ids);
    sl_engine_close(e);
    return ok ? 0 : 1;
}
