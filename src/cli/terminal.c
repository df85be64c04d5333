/* What a person sees: standard output and its failures, messages, the status line, Ctrl-C. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The terminal is one thing per process, shared by the main thread and the engine's progress calls. */
static struct {
    pthread_mutex_t lock;
    bool out_tty, err_tty, quiet;
    bool status_shown;
    bool mid_line; /* text on a terminal ended inside a line */
    int out_error; /* errno of the first failed write to standard output */
    uint64_t moved_ns;
    uint64_t drawn_ns;
} term = {.lock = PTHREAD_MUTEX_INITIALIZER};

static volatile sig_atomic_t interrupts, second_ends, last_signal;

void cli_terminal_init(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            /* Lowest free descriptor first: this open gives fd itself. Writing to standard output fails as it should.
             */
            if (open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) < 0)
                return;
        }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* beyond ulimit -f a write fails, is said, and leaves nothing behind */
    term.out_tty = isatty(STDOUT_FILENO);
    const char *kind = getenv("TERM");
    term.err_tty = isatty(STDERR_FILENO) && !(kind && strcmp(kind, "dumb") == 0);
    term.moved_ns = sl_now_ns();
}

void cli_terminal_quiet(bool quiet) {
    term.quiet = quiet;
}

bool cli_stdout_is_tty(void) {
    return term.out_tty;
}

/* ---- standard output --------------------------------------------------------------------------------------------- */

/* A control character as a visible picture: the model must not move the cursor, set the title or write the clipboard.
 * Returns the bytes of `s` that were looked at. */
static size_t visible_char(const char *s, size_t n, sl_buf *out) {
    int32_t cp;
    int used = sl_utf8_decode(s, n, &cp);
    char c[4];
    if (cp == '\n' || cp == '\t' || cp >= 0xA0 || (cp >= 0x20 && cp < 0x7F))
        sl_buf_append(out, s, (size_t)used);
    else if (cp >= 0 && cp < 0x20)
        sl_buf_append(out, c, (size_t)sl_utf8_encode(0x2400 + cp, c)); /* control pictures */
    else if (cp == 0x7F)
        sl_buf_append(out, c, (size_t)sl_utf8_encode(0x2421, c));
    else /* C1 controls, bytes that are no UTF-8 */
        sl_buf_append(out, c, (size_t)sl_utf8_encode(0xFFFD, c));
    return (size_t)used;
}

enum { REASON_UNKNOWN = -1 }; /* of what stdio wrote on the way only the fact is kept */

static void note_output_error(void) {
    if (!term.out_error)
        term.out_error = errno ? errno : REASON_UNKNOWN;
}

static void erase_status(void) {
    if (!term.status_shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    term.status_shown = false;
}

/* stdio drops what a signal kept from being written; Ctrl-C stops an answer, not its last words. */
static bool write_whole(const char *text, size_t n) {
    if (fflush(stdout) != 0)
        return false;
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);
        if (done < 0 && errno != EINTR)
            return false;
        text += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

bool cli_put(const char *text, size_t n) {
    sl_buf shown = {0};
    if (term.out_tty) {
        for (size_t i = 0; i < n;)
            i += visible_char(text + i, n - i, &shown);
        text = shown.data ? shown.data : "";
        n = shown.size;
    }
    pthread_mutex_lock(&term.lock);
    erase_status();
    errno = 0;
    if (!write_whole(text, n))
        note_output_error();
    if (n > 0 && term.out_tty)
        term.mid_line = text[n - 1] != '\n';
    term.moved_ns = sl_now_ns();
    pthread_mutex_unlock(&term.lock);
    sl_buf_free(&shown);
    return !term.out_error;
}

bool cli_stdout_broken(void) {
    return term.out_error != 0;
}

int cli_finish(int status) {
    cli_status_clear();
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout))
        note_output_error();
    if (!term.out_error)
        return status;
    /* A reader that has seen enough (head, a pager) is no news to the person who closed it. */
    if (term.out_error != EPIPE)
        fprintf(stderr, "sluice: standard output: %s\n",
                term.out_error == REASON_UNKNOWN ? "not all could be written" : strerror(term.out_error));
    return status == CLI_OK ? CLI_FAILED : status;
}

int cli_print_json(json_t *document) {
    char *text = document ? json_dumps(document, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(document);
    if (!text)
        return cli_complain(CLI_FAILED, "out of memory for the JSON document");
    cli_put(text, strlen(text));
    cli_put("\n", 1);
    free(text);
    return CLI_OK;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void print_message(const char *line) {
    pthread_mutex_lock(&term.lock);
    erase_status();
    if (term.mid_line && term.err_tty)
        fputc('\n', stderr);
    term.mid_line = false;
    fprintf(stderr, "sluice: %s\n", line);
    fflush(stderr);
    pthread_mutex_unlock(&term.lock);
}

int cli_report(const sl_error *err) {
    print_message(err->message[0] ? err->message : "failed without saying why");
    return CLI_FAILED;
}

int cli_complain(int status, const char *fmt, ...) {
    char line[1024];
    sl_error err = {0};
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    sl_fail(&err, SL_ERR_ARGUMENT, "%s", line); /* escapes control bytes */
    print_message(err.message);
    return status;
}

void cli_note(const char *fmt, ...) {
    char line[1024];
    va_list args;
    if (term.quiet)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    print_message(line);
}

/* ---- status line ------------------------------------------------------------------------------------------------- */

static int terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

/* With the lock held: a status line would be seen and disturb nothing. */
static bool status_possible(void) {
    return term.err_tty && !term.quiet && !(term.mid_line && term.out_tty);
}

/* With the lock held. */
static void draw_status(const char *line) {
    if (!status_possible())
        return;
    fprintf(stderr, "\r\033[K%.*s", terminal_columns() - 1, line);
    fflush(stderr);
    term.status_shown = true;
}

void cli_touch(void) {
    pthread_mutex_lock(&term.lock);
    term.moved_ns = sl_now_ns();
    pthread_mutex_unlock(&term.lock);
}

bool cli_status(const char *fmt, ...) {
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    pthread_mutex_lock(&term.lock);
    bool shown = status_possible();
    draw_status(line);
    pthread_mutex_unlock(&term.lock);
    return shown;
}

void cli_status_clear(void) {
    pthread_mutex_lock(&term.lock);
    erase_status();
    pthread_mutex_unlock(&term.lock);
}

void cli_progress(const char *what, uint64_t done, uint64_t total, bool bytes) {
    static const char full[] = "####################";
    char amount[64], a[16], b[16], line[160];
    uint64_t now = sl_now_ns();
    int share = total ? (int)(done * 20 / total) : 0;
    if (bytes)
        snprintf(amount, sizeof amount, "%s of %s", cli_size(done, a), cli_size(total, b));
    else
        snprintf(amount, sizeof amount, "%llu of %llu tokens", (unsigned long long)done, (unsigned long long)total);
    snprintf(line, sizeof line, "%s [%-20.*s] %s", what, share, full, amount);
    pthread_mutex_lock(&term.lock);
    term.moved_ns = now;
    if (done >= total)
        erase_status();
    else if (now - term.drawn_ns > 100000000u) {
        term.drawn_ns = now;
        draw_status(line);
    }
    pthread_mutex_unlock(&term.lock);
}

static const char *clock_text(double seconds, char *out, size_t size) {
    uint64_t s = (uint64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, size, "%llu:%02llu:%02llu", (unsigned long long)(s / 3600), (unsigned long long)(s / 60 % 60),
                 (unsigned long long)(s % 60));
    else
        snprintf(out, size, "%llu:%02llu", (unsigned long long)(s / 60), (unsigned long long)(s % 60));
    return out;
}

void cli_bar_show(cli_bar *b, uint64_t done, uint64_t total) {
    enum { PLAIN_SECONDS = 10 };
    static const char full[] = "####################";
    char line[200], at[16], all[16], speed[16], left[32] = "";
    uint64_t now = sl_now_ns();
    if (!b->begun)
        *b = (cli_bar){
            .what = b->what, .bytes = b->bytes, .begun = true, .first = done, .first_ns = now, .said_ns = now};
    if (done < total && now - b->said_ns < 100000000u)
        return;
    double seconds = (double)(now - b->first_ns) / 1e9, rate = seconds > 0 ? (double)(done - b->first) / seconds : 0;
    if (rate > 0)
        clock_text((double)(total - done) / rate, left, sizeof left);
    if (b->bytes)
        snprintf(line, sizeof line, "%s [%-20.*s] %s of %s, %s/s, %s left", b->what,
                 total ? (int)(done * 20 / total) : 0, full, cli_size(done, at), cli_size(total, all),
                 cli_size((uint64_t)rate, speed), rate > 0 ? left : "?");
    else
        snprintf(line, sizeof line, "%s [%-20.*s] %llu of %llu tokens, %.1f/s, %s left", b->what,
                 total ? (int)(done * 20 / total) : 0, full, (unsigned long long)done, (unsigned long long)total, rate,
                 rate > 0 ? left : "?");
    pthread_mutex_lock(&term.lock);
    bool possible = status_possible();
    if (possible && done < total)
        draw_status(line);
    else
        erase_status();
    pthread_mutex_unlock(&term.lock);
    if (possible || (done < total && now - b->said_ns >= (uint64_t)PLAIN_SECONDS * 1000000000u)) {
        if (!possible)
            cli_note("%s", line);
        b->said_ns = now;
    }
}

uint64_t cli_idle_ns(void) {
    pthread_mutex_lock(&term.lock);
    uint64_t now = sl_now_ns(), idle = now > term.moved_ns ? now - term.moved_ns : 0;
    pthread_mutex_unlock(&term.lock);
    return idle;
}

/* ---- Ctrl-C ------------------------------------------------------------------------------------------------------ */

static void on_interrupt(int signal_number) {
    last_signal = signal_number;
    if (interrupts++ > 0 && second_ends) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

void cli_interrupt_begin(bool again_ends) {
    struct sigaction action = {.sa_handler = on_interrupt}; /* no SA_RESTART: a read of the terminal must return */
    interrupts = 0;
    second_ends = again_ends;
    sigaction(SIGINT, &action, NULL);
}

static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};

/* What the caller had ignored (nohup) stays ignored. */
void cli_stop_begin(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    interrupts = 0;
    second_ends = true;
    for (size_t i = 0; i < SL_COUNT(stop_signals); i++)
        if (sigaction(stop_signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stop_signals[i], &action, NULL);
}

int cli_stop_status(void) {
    return 128 + (last_signal ? last_signal : SIGINT);
}

void cli_interrupt_end(void) {
    struct sigaction now;
    for (size_t i = 0; i < SL_COUNT(stop_signals); i++)
        if (sigaction(stop_signals[i], NULL, &now) == 0 && now.sa_handler == on_interrupt)
            signal(stop_signals[i], SIG_DFL);
}

bool cli_interrupted(void) {
    return interrupts > 0;
}

void cli_interrupt_reset(void) {
    interrupts = 0;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

const char *cli_size(uint64_t bytes, char *out) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t unit = 0;
    while (v >= 1024 && unit + 1 < SL_COUNT(units)) {
        v /= 1024;
        unit++;
    }
    snprintf(out, 16, unit == 0 ? "%.0f %s" : "%.2f %s", v, units[unit]);
    return out;
}
