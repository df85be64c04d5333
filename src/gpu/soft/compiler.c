/* Runs clang on a translated unit and brings back a shared object, or the compiler's first error with the line of the
 * kernel's source, to which #line has led it. */
#include "gpu/soft/soft.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/resource.h>
#endif

extern char **environ;

enum { NEWEST_CLANG = 24, OLDEST_CLANG = 14, COMPILE_SECONDS = 300 };
#define COMPILER_MEMORY (6ull << 30)
#define MOST_OBJECT     (256ull << 20)
#define MOST_TEXT       (4ull << 20)
#define MOST_LINE       900

/* ---- which compiler ---- */

static char *find_on_path(const char *name) {
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        char *file = n ? sl_asprintf("%.*s/%s", (int)n, path, name) : NULL;
        if (file && access(file, X_OK) == 0 && !sl_path_is_dir(file))
            return file;
        free(file);
        path += n + (path[n] == ':');
    }
    return NULL;
}

char *soft_find_compiler(sl_error *err) {
    char *found = find_on_path("clang++");
    for (int v = NEWEST_CLANG; !found && v >= OLDEST_CLANG; v--) {
        char name[32];
        snprintf(name, sizeof name, "clang++-%d", v);
        found = find_on_path(name);
    }
    if (!found)
        return sl_fail_null(err, SL_ERR_DEVICE,
                            "soft: no clang++ on PATH (nor clang++-%d to clang++-%d): install clang %d or newer",
                            OLDEST_CLANG, NEWEST_CLANG, OLDEST_CLANG);
    return found;
}

/* ---- a temporary directory ---- */

typedef struct workplace {
    char *dir, *unit, *object, *text;
} workplace;

static void close_workplace(workplace *w) {
    char *files[] = {w->unit, w->object, w->text};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        if (files[i])
            unlink(files[i]);
        free(files[i]);
    }
    if (w->dir)
        rmdir(w->dir);
    free(w->dir);
}

static bool open_workplace(workplace *w, sl_error *err) {
    const char *base = getenv("TMPDIR");
    w->dir = sl_asprintf("%s/sluice-XXXXXX", base && *base ? base : "/tmp");
    if (w->dir && !mkdtemp(w->dir)) {
        sl_fail_errno(err, SL_ERR_IO, errno, "soft: temporary directory %s", w->dir);
        free(w->dir);
        w->dir = NULL;
        return false;
    }
    w->unit = w->dir ? sl_path_join(w->dir, "unit.cpp") : NULL;
    w->object = w->dir ? sl_path_join(w->dir, "unit.so") : NULL;
    w->text = w->dir ? sl_path_join(w->dir, "text") : NULL;
    return (w->unit && w->object && w->text) || sl_fail(err, SL_ERR_MEMORY, "soft: out of memory");
}

/* The library's functions get no lines of their own, so that what they do counts as done by the line that calls them.
 * user: where the translator's preamble ends. */
static const char library_begins[] =
    "#pragma clang attribute push(__attribute__((nodebug)), apply_to = hasType(functionType))\n";
static const char library_ends[] = "\n#pragma clang attribute pop\n";
static const char user_begins[] = "\nnamespace msl_unit {\nusing namespace metal;\n";

static bool put(FILE *f, const char *bytes, size_t n) {
    return fwrite(bytes, 1, n, f) == n;
}

static bool write_unit(const workplace *w, const char *code, size_t n, bool checked, sl_error *err) {
    FILE *f = fopen(w->unit, "wb");
    if (!f)
        return sl_fail_errno(err, SL_ERR_IO, errno, "soft: %s", w->unit);
    const char *user = memmem(code, n, user_begins, strlen(user_begins));
    size_t library = user ? (size_t)(user - code) : 0;
    bool ok = true;
    if (library)
        ok = put(f, library_begins, strlen(library_begins)) && put(f, code, library) &&
             put(f, library_ends, strlen(library_ends));
    ok = ok && put(f, code + library, n - library);
    if (checked)
        ok = ok && put(f, soft_hooks_text, strlen(soft_hooks_text));
    ok = fclose(f) == 0 && ok;
    return ok || sl_fail_errno(err, SL_ERR_IO, errno, "soft: %s", w->unit);
}

/* ---- running it ---- */

/* Own process group, so that a compiler that takes too long is ended with its children. */
static bool start(pid_t *pid, char *const *argv, const char *text, sl_error *err) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, text, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGINT);
    sigaddset(&usual, SIGTERM);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int e = posix_spawn(pid, argv[0], &files, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (e)
        return sl_fail_errno(err, SL_ERR_DEVICE, e, "soft: %s", argv[0]);
#if defined(__linux__)
    struct rlimit memory = {COMPILER_MEMORY, COMPILER_MEMORY};
    prlimit(*pid, RLIMIT_AS, &memory, NULL);
#endif
    return true;
}

/* Status of the process: 0 well, else not. A process whose children are reaped elsewhere is judged by its output. */
static bool await(pid_t pid, bool *well, sl_error *err) {
    uint64_t deadline = sl_now_ns() + COMPILE_SECONDS * 1000000000ull, pause = 1000000;
    for (;;) {
        int status;
        pid_t r = waitpid(pid, &status, WNOHANG);
        if (r == pid) {
            *well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
            return true;
        }
        if (r < 0 && errno != EINTR) {
            *well = true;
            return true;
        }
        if (sl_now_ns() > deadline) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return sl_fail(err, SL_ERR_TIMEOUT, "soft: the compiler took more than %d s", COMPILE_SECONDS);
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
        if (pause < 16000000)
            pause *= 2;
    }
}

static const char *const common_flags[] = {"-x",
                                           "c++",
                                           "-std=c++17",
                                           "-shared",
                                           "-fPIC",
                                           "-w",
                                           "-fno-exceptions",
                                           "-fno-rtti",
                                           "-fvisibility=hidden",
                                           "-ffp-contract=off",
                                           "-fno-math-errno",
                                           "-fno-strict-aliasing",
                                           "-fwrapv",
                                           "-fno-delete-null-pointer-checks",
                                           "-fno-finite-loops",
                                           "-fno-caret-diagnostics",
                                           "-fno-color-diagnostics",
                                           "-ferror-limit=20",
                                           "-fno-stack-protector",
                                           "-ftemplate-depth=512",
                                           "-gline-tables-only",
                                           "-gdwarf-4",
                                           "-nostdlib++"};
static const char *const plain_flags[] = {"-O2"};
/* No vectors wider than what the instrumentation sees; reads before writes too; atomics announce themselves. A thread's
 * own arrays: indices where the type says the length, traps where the optimiser knows it, each with its line. Addresses
 * that are not multiples of the alignment of the pointer's type. */
static const char *const checked_flags[] = {"-O1",
                                            "-DSL_MSL_CHECK=1",
                                            "-fno-vectorize",
                                            "-fno-slp-vectorize",
                                            "-Xclang",
                                            "-fsanitize=thread,array-bounds,local-bounds,alignment,object-size",
                                            "-Xclang",
                                            "-fsanitize-recover=array-bounds,alignment,object-size",
                                            "-mllvm",
                                            "-enable-tail-merge=0",
                                            "-mllvm",
                                            "-tsan-instrument-func-entry-exit=0",
                                            "-mllvm",
                                            "-tsan-instrument-atomics=0",
                                            "-mllvm",
                                            "-tsan-instrument-read-before-write=1"};

static int add_flags(const char **argv, int n, const char *const *flags, size_t count) {
    for (size_t i = 0; i < count; i++)
        argv[n++] = flags[i];
    return n;
}

/* Of all that shapes the code besides the unit: a library from the cache was made with the same. */
uint32_t soft_flags_hash(bool checked) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < SL_COUNT(common_flags) + SL_COUNT(checked_flags) + 2; i++) {
        size_t k = i - SL_COUNT(common_flags);
        const char *s = i < SL_COUNT(common_flags)    ? common_flags[i]
                        : !checked                    ? plain_flags[0]
                        : k < SL_COUNT(checked_flags) ? checked_flags[k]
                                                      : soft_hooks_text;
        for (; *s; s++)
            h = (h ^ (uint8_t)*s) * 16777619u;
    }
    return h;
}

static bool run_compiler(const soft_device *d, const workplace *w, bool fast_math, bool *well, sl_error *err) {
    const char *argv[64];
    pid_t pid;
    int n = 0;
    argv[n++] = d->compiler;
    n = add_flags(argv, n, common_flags, SL_COUNT(common_flags));
    if (d->checking)
        n = add_flags(argv, n, checked_flags, SL_COUNT(checked_flags));
    else
        n = add_flags(argv, n, plain_flags, SL_COUNT(plain_flags));
#if defined(__aarch64__) && defined(__GLIBC__)
    argv[n++] = "--target=aarch64-linux-gnu"; /* under an emulator the compiler is the host's */
#endif
#if defined(__x86_64__)
    argv[n++] = strcmp(d->base.info.family, "x86-64-v3") == 0 ? "-march=x86-64-v3" : "-march=x86-64";
#endif
    if (fast_math)
        argv[n++] = "-ffast-math";
    argv[n++] = "-o";
    argv[n++] = w->object;
    argv[n++] = w->unit;
    argv[n++] = "-lm";
    argv[n] = NULL;
    return start(&pid, (char *const *)(uintptr_t)argv, w->text, err) && await(pid, well, err);
}

/* ---- what it said ---- */

/* "FILE:LINE:COLUMN: KIND: what" at s? Fills where the parts are. */
typedef struct diagnostic {
    const char *file, *what;
    size_t file_size, what_size;
    int line;
    char kind; /* 'e' error, 'n' note, 0: no diagnostic */
} diagnostic;

static diagnostic parse_line(const char *s, size_t n) {
    static const struct {
        const char *word;
        char kind;
    } kinds[] = {{": fatal error: ", 'e'}, {": error: ", 'e'}, {": note: ", 'n'}};
    diagnostic d = {0};
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        const char *at = memmem(s, n, kinds[k].word, strlen(kinds[k].word));
        if (!at)
            continue;
        d.what = at + strlen(kinds[k].word);
        d.what_size = (size_t)(s + n - d.what);
        d.kind = kinds[k].kind;
        const char *end = at;
        for (int numbers = 0; numbers < 2; numbers++) { /* the column, the line */
            const char *digits = end;
            while (digits > s && digits[-1] >= '0' && digits[-1] <= '9')
                digits--;
            if (digits == end || digits == s || digits[-1] != ':')
                return d;
            d.line = (int)strtol(digits, NULL, 10);
            end = digits - 1;
        }
        d.file = s;
        d.file_size = (size_t)(end - s);
        return d;
    }
    return d;
}

static bool is_file(const diagnostic *d, const char *name) {
    return d->file && d->file_size == strlen(name) && memcmp(d->file, name, d->file_size) == 0;
}

/* Names as the kernel's author wrote them. */
static void without_namespaces(char *text) {
    static const char *const names[] = {"msl_user::", "metal::"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        for (char *at; (at = strstr(text, names[i]));)
            memmove(at, at + strlen(names[i]), strlen(at + strlen(names[i])) + 1);
}

/* The first error; where it lies in the library, the line of the source that led there, from the notes that follow. */
void soft_first_diagnostic(const char *text, const char *name, char *out, size_t size) {
    diagnostic first = {0};
    int line = 0;
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "\n");
        diagnostic d = parse_line(s, n);
        if (d.kind == 'e' && first.kind)
            break;
        if (d.kind == 'e')
            first = d;
        if (first.kind && !line && is_file(&d, name))
            line = d.line;
        s += n + (s[n] == '\n');
    }
    if (!first.kind)
        snprintf(out, size, "%s: the compiler failed: %.*s", name, (int)strcspn(text, "\n"), text);
    else if (line)
        snprintf(out, size, "%s:%d: %.*s", name, line, (int)first.what_size, first.what);
    else if (first.file)
        snprintf(out, size, "%.*s:%d: %.*s", (int)first.file_size, first.file, first.line, (int)first.what_size,
                 first.what);
    else
        snprintf(out, size, "%s: %.*s", name, (int)first.what_size, first.what);
    without_namespaces(out);
}

static bool read_object(const workplace *w, bool checked, sl_buf *payload, sl_error *err) {
    size_t size;
    char *object = sl_read_text(w->object, MOST_OBJECT, &size, err);
    if (!object)
        return false;
    soft_payload head = {.abi = SOFT_ABI, .checked = checked, .size = size};
    memcpy(head.magic, SOFT_MAGIC, sizeof head.magic);
    bool ok = sl_buf_append(payload, &head, sizeof head) && sl_buf_append(payload, object, size);
    free(object);
    return ok || sl_fail(err, SL_ERR_MEMORY, "soft: out of memory for %zu bytes of code", size);
}

/* A line for each error, and all that the compiler said for those who look into the matter. */
static void log_errors(const soft_device *d, const char *text, const char *name) {
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "\n");
        char line[MOST_LINE];
        if (parse_line(s, n).kind == 'e') {
            soft_first_diagnostic(s, name, line, sizeof line);
            sl_logf(&d->base.log, SL_LOG_ERROR, "%s", line);
        }
        sl_logf(&d->base.log, SL_LOG_DEBUG, "%.*s", (int)n, s);
        s += n + (s[n] == '\n');
    }
}

bool soft_compile_unit(gpu_device *device, const char *name, const char *code, size_t n, bool fast_math,
                       sl_buf *payload, sl_error *err) {
    soft_device *d = soft_of(device);
    workplace w = {0};
    bool well = false;
    bool ok = open_workplace(&w, err) && write_unit(&w, code, n, d->checking, err) &&
              run_compiler(d, &w, fast_math, &well, err);
    if (ok && !(well && sl_path_exists(w.object))) {
        char *text = sl_read_text(w.text, MOST_TEXT, NULL, NULL);
        char message[MOST_LINE];
        soft_first_diagnostic(text ? text : "", name, message, sizeof message);
        log_errors(d, text ? text : "", name);
        free(text);
        ok = sl_fail(err, SL_ERR_COMPILE, "%s", message);
    }
    ok = ok && read_object(&w, d->checking, payload, err);
    close_workplace(&w);
    return ok;
}

bool soft_compile(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err) {
    size_t n;
    const char *code = msl_module_code(s->module, &n);
    return soft_compile_unit(d, s->name, code, n, s->options && s->options->fast_math, payload, err);
}
