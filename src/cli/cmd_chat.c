/* sluice chat: a conversation in the terminal.
 *
 * One sequence lives as long as the conversation. Each turn renders the whole conversation, keeps the tokens that the
 * sequence and the rendering share from the beginning, and evaluates the rest. */
#include "cli.h"
#include "line_edit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct conversation {
    const cli_args *args;
    sl_engine *engine;
    line_edit *edit;
    json_t *messages; /* [{role, content}] */
    sl_seq *seq;
    int32_t *past; /* tokens the sequence holds, sl_seq_length of them */
    size_t past_capacity;
    bool over;
    bool failed; /* a turn had no answer, or broke off */
} conversation;

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static const char *role_of(const json_t *message) {
    return json_string_value(json_object_get(message, "role"));
}

static bool has_system(const conversation *c) {
    json_t *first = json_array_get(c->messages, 0);
    return first && strcmp(role_of(first), "system") == 0;
}

static void set_system(conversation *c, const char *text) {
    if (has_system(c))
        json_array_remove(c->messages, 0);
    if (*text)
        json_array_insert_new(c->messages, 0, cli_message("system", text, strlen(text)));
}

static void clear_messages(conversation *c) {
    while (json_array_size(c->messages) > (has_system(c) ? 1u : 0u))
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static void do_help(conversation *c, const char *rest);

static void do_clear(conversation *c, const char *rest) {
    clear_messages(c);
    cli_note("the conversation is empty%s", has_system(c) ? " but for its system message" : "");
}

static void do_system(conversation *c, const char *rest) {
    if (!*rest && has_system(c)) {
        json_t *first = json_array_get(c->messages, 0);
        const char *text = json_string_value(json_object_get(first, "content"));
        cli_put(text, strlen(text));
        cli_put("\n", 1);
    } else if (!*rest) {
        cli_note("no system message; /system TEXT sets one, /system none takes it away");
    } else {
        set_system(c, strcmp(rest, "none") == 0 ? "" : rest);
        cli_note("system message %s", strcmp(rest, "none") == 0 ? "taken away" : "set");
    }
}

static bool save_to(const json_t *document, const char *path, sl_error *err) {
    return cli_may_replace(path, NULL, 0, err) && cli_replace_json(path, document, JSON_INDENT(2), err);
}

/* "! FILE" may be there already. */
static void do_save(conversation *c, const char *rest) {
    sl_error err = {0};
    bool force = rest[0] == '!' && (rest[1] == ' ' || rest[1] == 0);
    rest += force ? 1 + strspn(rest + 1, " ") : 0;
    if (!*rest) {
        cli_complain(CLI_USAGE, "/save needs a file name");
        return;
    }
    if (sl_path_exists(rest) && !force) {
        cli_complain(CLI_USAGE, "%s is there already; /save ! %s overwrites it", rest, rest);
        return;
    }
    json_t *document = json_pack("{s:s, s:O}", "model", c->args->operand[0], "messages", c->messages);
    if (save_to(document, rest, &err))
        cli_note("%zu messages in %s", json_array_size(c->messages), rest);
    else
        cli_report(&err);
    json_decref(document);
}

static void do_stats(conversation *c, const char *rest) {
    cli_print_figures(stderr, c->engine, c->args);
    fprintf(stderr, "sequence  %d tokens\n", sl_seq_length(c->seq));
}

static void do_exit(conversation *c, const char *rest) {
    c->over = true;
}

static const struct chat_command {
    const char *name, *help;
    void (*run)(conversation *c, const char *rest);
} chat_commands[] = {
    {"/help", "show this", do_help},
    {"/clear", "forget the conversation", do_clear},
    {"/system", "[TEXT|none]  show, set or take away the system message", do_system},
    {"/save", "[!] FILE  write the conversation as JSON; ! overwrites", do_save},
    {"/stats", "speed, hit rate, memory since the beginning", do_stats},
    {"/exit", "end (so does Ctrl-D)", do_exit},
};

static void do_help(conversation *c, const char *rest) {
    for (size_t i = 0; i < SL_COUNT(chat_commands); i++)
        fprintf(stderr, "%-8s %s\n", chat_commands[i].name, chat_commands[i].help);
    fputs("Ctrl-C stops an answer. A line that ends in \\ goes on in the next one. Text that begins with // is sent "
          "with one slash.\n",
          stderr);
}

static void run_chat_command(conversation *c, const char *line) {
    size_t n = strcspn(line, " ");
    for (size_t i = 0; i < SL_COUNT(chat_commands); i++)
        if (strlen(chat_commands[i].name) == n && memcmp(chat_commands[i].name, line, n) == 0) {
            chat_commands[i].run(c, line + n + strspn(line + n, " "));
            return;
        }
    cli_complain(CLI_USAGE, "unknown command %.*s; /help lists them", (int)n, line);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* Cuts the sequence to what it shares with the new prompt (at least one token is left to evaluate); returns its length,
 * or -1. */
static int keep_common(conversation *c, const int32_t *ids, size_t n, sl_error *err) {
    int have = sl_seq_length(c->seq), same = 0;
    while (same < have && (size_t)same + 1 < n && c->past[same] == ids[same])
        same++;
    return same == have || sl_seq_truncate(c->seq, same, err) ? same : -1;
}

/* What the sequence holds now: the prompt, then as many of the answer's tokens as were evaluated. */
static bool remember_past(conversation *c, const int32_t *ids, size_t n, const cli_answer *answer, sl_error *err) {
    size_t length = (size_t)sl_seq_length(c->seq);
    if (!sl_grow((void **)&c->past, &c->past_capacity, n + answer->count + 1, sizeof *c->past))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the conversation");
    memcpy(c->past, ids, n * sizeof *ids);
    if (answer->count > 0)
        memcpy(c->past + n, answer->ids, answer->count * sizeof *answer->ids);
    return length <= n + answer->count || sl_seq_truncate(c->seq, (int)(n + answer->count), err);
}

/* The engine does not know what a person can do. */
static void note_way_on(const sl_error *err) {
    if (err->code == SL_ERR_CONTEXT)
        cli_note("/clear begins anew; --ctx gives a larger context");
}

static void end_answer(conversation *c, bool ok, const cli_answer *answer) {
    if (answer->text.size > 0 && answer->text.data[answer->text.size - 1] != '\n')
        cli_put("\n", 1);
    if (!ok) {
        cli_report(&answer->error);
        note_way_on(&answer->error);
    } else if (answer->finish == SL_FINISH_CANCELLED && answer->text.size > 0)
        cli_note("stopped");
    else
        cli_note_full(c->args, answer, "/clear begins anew");
    if (cli_wants_figures(c->args))
        cli_print_figures(stderr, c->engine, c->args);
}

/* Takes a question without an answer out of the conversation again, and says so. */
static void drop_question(conversation *c, const char *why) {
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
    cli_complain(CLI_FAILED, "%s: what you said is not part of the conversation", why);
}

/* Adds the answer to the conversation, as much as there is of it. */
static void conclude_turn(conversation *c, bool ok, const cli_answer *answer) {
    const char *text = answer->text.data ? answer->text.data : "";
    c->failed |= !ok;
    if (answer->text.size > 0 || (ok && answer->finish != SL_FINISH_CANCELLED))
        json_array_append_new(c->messages, cli_message("assistant", text, answer->text.size));
    else
        drop_question(c, ok ? "stopped before an answer" : "no answer");
    if (!ok && answer->text.size > 0)
        cli_complain(CLI_FAILED, "the answer broke off: what came of it stays in the conversation");
}

static void take_turn(conversation *c, const char *line) {
    sl_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    json_array_append_new(c->messages, cli_message("user", line, strlen(line)));
    int same = cli_chat_ids(c->engine, c->messages, c->args->think, &ids, &n, &err) ? keep_common(c, ids, n, &err) : -1;
    if (same < 0) {
        cli_report(&err);
        note_way_on(&err);
        c->failed = true;
        drop_question(c, "no answer");
    } else {
        cli_answer answer;
        cli_interrupt_reset();
        bool ok = cli_generate(c->engine, c->args, c->seq, ids + same, n - (size_t)same, true, &answer);
        end_answer(c, ok, &answer);
        conclude_turn(c, ok, &answer);
        if (!remember_past(c, ids, n, &answer, &err)) {
            cli_report(&err);
            c->over = true;
        }
        cli_answer_free(&answer);
    }
    free(ids);
}

static void converse(conversation *c) {
    while (!c->over && !cli_stdout_broken()) {
        cli_interrupt_reset();
        char *line = line_edit_read(c->edit);
        if (!line)
            break;
        if (line[0] == '/' && line[1] != '/')
            run_chat_command(c, line);
        else if (*line)
            take_turn(c, line[0] == '/' ? line + 1 : line);
        free(line);
    }
}

static bool begin(conversation *c, sl_error *err) {
    c->engine = cli_open(c->args, false, err);
    if (!c->engine)
        return false;
    if (!sl_has_chat_template(c->engine))
        return sl_fail(err, SL_ERR_TEXT, "%s has no chat template: 'sluice run --raw' continues a text",
                       c->args->operand[0]);
    c->messages = json_array();
    if (c->args->system)
        set_system(c, c->args->system);
    c->seq = sl_seq_new(c->engine, err);
    if (!c->seq)
        return false;
    c->edit = line_edit_open(err);
    return c->edit != NULL;
}

int cli_chat(const cli_args *a) {
    conversation c = {.args = a};
    sl_error err = {0};
    int status = CLI_OK;
    if (begin(&c, &err)) {
        cli_interrupt_begin(false);
        if (isatty(STDIN_FILENO))
            cli_note("talk; /help for commands, Ctrl-D to end");
        converse(&c);
        cli_interrupt_end();
        /* A person saw it; a script looks at the status. */
        status = c.failed && !isatty(STDIN_FILENO) ? CLI_FAILED : CLI_OK;
    } else {
        status = cli_report(&err);
    }
    line_edit_close(c.edit);
    json_decref(c.messages);
    sl_seq_free(c.seq);
    free(c.past);
    cli_close(a, c.engine);
    return status;
}
