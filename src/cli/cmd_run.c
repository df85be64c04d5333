/* sluice run: one prompt, one answer. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* The prompt's ids: through the chat template, or as plain text that the model continues. */
static bool prompt_ids(const sl_engine *e, const cli_args *a, const char *text, size_t n, int32_t **ids, size_t *count,
                       sl_error *err) {
    bool template = !a->raw && sl_has_chat_template(e);
    const char *needs = a->system ? "--system" : a->think == 1 ? "--think" : a->think == 0 ? "--no-think" : NULL;
    if (!template && needs)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s needs a chat template, and %s", needs,
                       a->raw ? "--raw uses none" : "the model has none");
    if (!template)
        return sl_tokenize(e, text, n, false, true, ids, count, err);
    json_t *messages = json_array();
    if (a->system)
        json_array_append_new(messages, cli_message("system", a->system, strlen(a->system)));
    json_array_append_new(messages, cli_message("user", text, n));
    bool ok = cli_chat_ids(e, messages, a->think, ids, count, err);
    json_decref(messages);
    return ok;
}

static json_t *ids_json(const int32_t *ids, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static int print_answer_json(const sl_engine *e, const cli_args *a, const cli_answer *answer) {
    json_t *doc = json_pack("{s:s, s:s#, s:s, s:I, s:I, s:o}", "model", a->operand[0], "text",
                            answer->text.data ? answer->text.data : "", (int)answer->text.size, "finish",
                            cli_finish_name(answer->finish), "prompt_tokens", (json_int_t)answer->prompt_tokens,
                            "completion_tokens", (json_int_t)answer->completion_tokens, "tokens",
                            ids_json(answer->ids, answer->count));
    if (answer->logprobs)
        json_object_set(doc, "logprobs", answer->logprobs);
    json_object_set_new(doc, "figures", cli_figures_json(e, a));
    return cli_print_json(doc);
}

static int answer_prompt(sl_engine *e, const cli_args *a, const int32_t *ids, size_t n) {
    cli_answer answer;
    int status = CLI_OK;
    cli_interrupt_begin(true);
    bool ok = cli_generate(e, a, NULL, ids, n, !a->json, &answer);
    bool begun = !a->json && answer.text.size > 0;
    if (begun && answer.text.data[answer.text.size - 1] != '\n')
        cli_put("\n", 1);
    if (!ok)
        status = cli_report(&answer.error);
    else if (answer.finish == SL_FINISH_CANCELLED)
        status = cli_stdout_broken() ? CLI_FAILED : CLI_INTERRUPTED;
    else if (a->json)
        status = print_answer_json(e, a, &answer);
    if (status == CLI_OK)
        cli_note_full(a, &answer, "the answer may not be complete");
    if (ok && cli_wants_figures(a))
        cli_print_figures(stderr, e, a);
    cli_interrupt_end();
    cli_answer_free(&answer);
    return status;
}

int cli_run(const cli_args *a) {
    sl_error err = {0};
    size_t size = 0, count = 0;
    int32_t *ids = NULL;
    int status;
    if (a->logprobs > 0 && !a->json)
        return cli_complain(CLI_USAGE, "--logprobs needs --json: they are part of its document");
    char *prompt = cli_read_prompt(a->operand[1], a->file, !a->raw, &size, &err);
    sl_engine *e = prompt ? cli_open(a, false, &err) : NULL;
    if (!e)
        status = cli_report(&err);
    else if (!prompt_ids(e, a, prompt, size, &ids, &count, &err))
        status = cli_report(&err);
    else
        status = answer_prompt(e, a, ids, count);
    sl_free(ids);
    cli_close(a, e);
    free(prompt);
    return status;
}
