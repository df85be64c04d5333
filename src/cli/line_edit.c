#include "line_edit.h"

#include "cli.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

struct line_edit {
    EditLine *edit; /* NULL: input is not a terminal */
    History *history;
    HistEvent event;
    char *history_path; /* NULL: none is kept */
    bool joining;       /* this line continues the one before */
    char *plain;        /* getline's */
    size_t plain_size;
};

enum { HISTORY_LINES = 1000 };

static char *prompt(EditLine *edit) {
    static char first[] = "> ", more[] = ". ";
    line_edit *e;
    el_get(edit, EL_CLIENTDATA, (void *)&e);
    return e->joining ? more : first;
}

/* $SLUICE_HISTORY (empty: keep none), else the state directory of the XDG convention, made if it is not there. */
static char *find_history_path(void) {
    const char *named = getenv("SLUICE_HISTORY"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (named)
        return *named ? sl_strdup(named) : NULL;
    if (!(state && *state) && !(home && *home))
        return NULL;
    char *base = state && *state ? sl_strdup(state) : sl_asprintf("%s/.local/state", home);
    char *dir = base ? sl_path_join(base, "sluice") : NULL;
    char *path = dir ? sl_path_join(dir, "history") : NULL;
    if (path)
        sl_make_parents(path);
    free(dir);
    free(base);
    return path;
}

/* libedit shows a character as one only in a locale that has it. */
static void choose_locale(void) {
    const char *now = setlocale(LC_CTYPE, "");
    if (!now || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* ---- signals that end the program: the terminal, raw while a line is typed, becomes what it was before ----------- */

static const int ending[] = {SIGTERM, SIGHUP, SIGQUIT};
static struct termios before_editing; /* set before the handlers are */

/* All of it async-signal-safe. SIGTTOU is blocked meanwhile, so that a background process can restore it too. */
static void on_ending(int number) {
    tcsetattr(STDIN_FILENO, TCSANOW, &before_editing);
    signal(number, SIG_DFL);
    raise(number); /* delivered on return */
}

static void catch_ending(void) {
    struct sigaction action = {.sa_handler = on_ending}, now;
    sigfillset(&action.sa_mask);
    if (tcgetattr(STDIN_FILENO, &before_editing) != 0)
        return;
    for (size_t i = 0; i < SL_COUNT(ending); i++)
        if (sigaction(ending[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(ending[i], &action, NULL);
}

static void release_ending(void) {
    struct sigaction now;
    for (size_t i = 0; i < SL_COUNT(ending); i++)
        if (sigaction(ending[i], NULL, &now) == 0 && now.sa_handler == on_ending)
            signal(ending[i], SIG_DFL);
}

static bool open_editor(line_edit *e, sl_error *err) {
    choose_locale();
    catch_ending();
    e->edit = el_init("sluice", stdin, stdout, stderr);
    e->history = history_init();
    if (!e->edit || !e->history)
        return sl_fail(err, SL_ERR_MEMORY, "the line editor does not start (TERM is %s)",
                       getenv("TERM") ? getenv("TERM") : "not set");
    e->history_path = find_history_path();
    history(e->history, &e->event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &e->event, H_SETUNIQUE, 1);
    if (e->history_path)
        history(e->history, &e->event, H_LOAD, e->history_path);
    el_set(e->edit, EL_CLIENTDATA, e);
    el_set(e->edit, EL_PROMPT, prompt);
    el_set(e->edit, EL_EDITOR, "emacs");
    el_set(e->edit, EL_SIGNAL, 0); /* Ctrl-C is ours */
    el_set(e->edit, EL_HIST, history, e->history);
    el_set(e->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(e->edit, NULL);
    return true;
}

line_edit *line_edit_open(sl_error *err) {
    line_edit *e = calloc(1, sizeof *e);
    if (!e)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for the line editor");
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !open_editor(e, err)) {
        line_edit_close(e);
        return NULL;
    }
    return e;
}

void line_edit_close(line_edit *e) {
    if (!e)
        return;
    if (e->history_path && e->history) {
        mode_t before = umask(077); /* what was said is nobody else's business */
        if (history(e->history, &e->event, H_SAVE, e->history_path) < 0)
            cli_note("this conversation's lines are not kept: %s cannot be written", e->history_path);
        umask(before);
    }
    if (e->edit)
        el_end(e->edit);
    release_ending();
    if (e->history)
        history_end(e->history);
    free(e->history_path);
    free(e->plain);
    free(e);
}

/* One line without its newline, borrowed; NULL at the end of input. *interrupted: Ctrl-C came instead. */
static const char *read_line(line_edit *e, size_t *size, bool *interrupted) {
    int n = 0;
    const char *line;
    *interrupted = false;
    errno = 0;
    if (e->edit) {
        line = el_gets(e->edit, &n);
    } else {
        ssize_t got = getline(&e->plain, &e->plain_size, stdin);
        line = got >= 0 ? e->plain : NULL;
        n = (int)got;
    }
    if (cli_interrupted()) {
        *interrupted = true;
        cli_interrupt_reset();
        clearerr(stdin);
        return NULL;
    }
    if (!line || n <= 0)
        return NULL;
    *size = (size_t)n - (line[n - 1] == '\n');
    return line;
}

static void add_history(line_edit *e, const char *line) {
    if (e->history && *line)
        history(e->history, &e->event, H_ENTER, line);
}

char *line_edit_read(line_edit *e) {
    sl_buf text = {0};
    size_t n;
    bool interrupted, any = false;
    e->joining = false;
    for (;;) {
        const char *line = read_line(e, &n, &interrupted);
        if (interrupted) {
            if (e->edit)
                fputc('\n', stdout);
            sl_buf_clear(&text);
            e->joining = any = false;
            continue;
        }
        if (!line)
            break;
        any = true;
        bool more = n > 0 && line[n - 1] == '\\';
        sl_buf_append(&text, line, n - more);
        if (!more)
            break;
        sl_buf_puts(&text, "\n");
        e->joining = true;
    }
    if (!any || text.failed) {
        if (e->edit)
            fputc('\n', stdout);
        sl_buf_free(&text);
        return NULL;
    }
    sl_buf_append(&text, "", 0);
    char *all = sl_buf_take(&text, NULL);
    if (all)
        add_history(e, all);
    return all;
}
