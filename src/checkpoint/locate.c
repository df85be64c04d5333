/* MODEL on the command line -> a path: a path as it is, else a name that Hugging Face's cache, Ollama or LM Studio
 * know.
 *
 * Names become parts of paths, so they are taken apart first: components between slashes, each of letters, digits and
 * "._-+", none that begins with a dot. What does not fit is only ever a path. */
#include "checkpoint/locate.h"
#include "checkpoint/internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define LISTED 4 /* files that an error names */

char *locate_note(locate *l, const char *what, const char *why) {
    sl_buf_printf(&l->tried, "%s%s (%s)", l->tried.size ? "; " : "", what, why);
    return NULL;
}

char *locate_home(const char *below) {
    const char *home = getenv("HOME");
    return home && home[0] ? sl_path_join(home, below) : NULL;
}

static bool has_file(const char *dir, const char *name) {
    char *path = sl_path_join(dir, name);
    bool there = path && sl_path_exists(path);
    free(path);
    return there;
}

/* ---- a directory --------------------------------------------------------------------------------------------------
 */

/* Is this the GGUF file to open: not a vision projector, not a later shard? */
static bool is_first_gguf(const char *name) {
    if (!ckpt_has_suffix(name, ".gguf") || strncmp(name, "mmproj", 6) == 0) {
        return false;
    }
    const char *of = strstr(name, "-of-");
    bool shard = of && of - name >= 6 && strlen(of) == strlen("-of-00001.gguf");
    return !shard || memcmp(of - 6, "-00001", 6) == 0;
}

/* Counts the GGUF checkpoints of a directory; *first (allocated) is one of them, *list names some. */
static int count_ggufs(const char *dir, char **first, sl_buf *list) {
    DIR *d = opendir(dir);
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (!is_first_gguf(e->d_name)) {
            continue;
        }
        if (n++ == 0) {
            *first = sl_path_join(dir, e->d_name);
        }
        if (n <= LISTED) {
            sl_buf_printf(list, "%s%s", n > 1 ? ", " : "", e->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    return n;
}

static bool is_hf_dir(const char *dir) {
    return has_file(dir, "config.json") &&
           (has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json"));
}

static char *note_several(locate *l, const char *dir, int n, const sl_buf *list) {
    char *why =
        sl_asprintf("%d GGUF models, name one: %s%s", n, list->data ? list->data : "", n > LISTED ? ", ..." : "");
    locate_note(l, dir, why ? why : "several GGUF models");
    free(why);
    return NULL;
}

static char *whole_dir(locate *l, const char *dir) {
    if (is_hf_dir(dir) || pack_is_dir(dir)) {
        return sl_strdup(dir);
    }
    char *found = NULL;
    sl_buf list = {0};
    int n = count_ggufs(dir, &found, &list);
    if (n == 0 && has_file(dir, "config.json")) {
        found = sl_strdup(dir); /* opening says what is missing */
    } else if (n == 0) {
        locate_note(l, dir, "neither config.json nor a .gguf file in it");
    } else if (n > 1) {
        free(found);
        found = note_several(l, dir, n, &list);
    }
    sl_buf_free(&list);
    return found;
}

char *locate_in_dir(locate *l, const char *dir, const char *file) {
    if (!sl_path_is_dir(dir)) {
        return locate_note(l, dir, "not there");
    }
    if (!file) {
        return whole_dir(l, dir);
    }
    char *path = sl_path_join(dir, file);
    if (path && sl_path_is_dir(path)) {
        char *found = whole_dir(l, path);
        free(path);
        return found;
    }
    if (path && !sl_path_exists(path)) {
        locate_note(l, path, "not there");
        free(path);
        path = NULL;
    }
    return path;
}

/* ---- a path ---------------------------------------------------------------------------------------------------------
 */

/* The directory of a .safetensors file. */
static char *parent(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) {
        return sl_strdup(".");
    }
    return slash == path ? sl_strdup("/") : sl_strndup(path, (size_t)(slash - path));
}

static char *as_path(locate *l) {
    if (!sl_path_exists(l->model)) {
        return locate_note(l, l->model, "no such path");
    }
    if (sl_path_is_dir(l->model)) {
        return whole_dir(l, l->model);
    }
    return ckpt_has_suffix(l->model, ".safetensors") ? parent(l->model) : sl_strdup(l->model);
}

/* ---- a name
 * ---------------------------------------------------------------------------------------------------------- */

#define MAX_COMPONENTS 6

/* A name taken apart; the components point into `text`. */
typedef struct name {
    char *text;
    char *part[MAX_COMPONENTS];
    int parts;
    const char *tag;  /* after a colon, NULL: none */
    const char *file; /* all after the second component, NULL: none; into `model` */
} name;

static bool is_component(const char *s) {
    if (s[0] == 0 || s[0] == '.' || strlen(s) > 200) {
        return false;
    }
    return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+") == strlen(s);
}

/* Splits at slashes. False where this cannot be a name. */
static bool take_apart(const char *model, name *out) {
    char *rest = out->text = sl_strdup(model);
    char *colon = rest ? strchr(rest, ':') : NULL;
    if (colon) {
        *colon = 0;
        out->tag = colon + 1;
    }
    while (rest) {
        char *slash = strchr(rest, '/');
        if (slash) {
            *slash = 0;
        }
        if (out->parts == MAX_COMPONENTS || !is_component(rest)) {
            return false;
        }
        if (out->parts == 2) {
            out->file = model + (rest - out->text);
        }
        out->part[out->parts++] = rest;
        rest = slash ? slash + 1 : NULL;
    }
    return out->text && (!out->tag || is_component(out->tag));
}

/* A name with a tag is Ollama's alone; one without may be anyone's. */
static char *as_name(locate *l, const name *n) {
    char *found = NULL;
    const char *tag = n->tag ? n->tag : "latest";
    if (!n->tag && n->parts >= 2) {
        found = locate_hugging_face(l, n->part[0], n->part[1], n->file);
        found = found ? found : locate_lm_studio(l, n->part[0], n->part[1], n->file);
    } else if (!n->tag) {
        found = locate_hugging_face(l, NULL, n->part[0], NULL);
    }
    if (!found && n->parts <= 3) {
        const char *host = n->parts == 3 ? n->part[0] : NULL, *space = n->parts >= 2 ? n->part[n->parts - 2] : NULL;
        found = locate_ollama(l, host, space, n->part[n->parts - 1], tag);
    }
    return found;
}

char *sl_model_locate(const char *model, sl_error *err) {
    if (!model || !model[0]) {
        return sl_fail_null(err, SL_ERR_ARGUMENT, "no model given, expected a path or a name");
    }
    locate l = {.model = model};
    char *found = as_path(&l);
    name n = {0};
    if (!found && take_apart(model, &n)) {
        found = as_name(&l, &n);
    }
    if (!found) {
        sl_fail(err, l.tried.failed ? SL_ERR_MEMORY : SL_ERR_IO, "model \"%.200s\" was not found; looked for: %s",
                model, l.tried.data ? l.tried.data : "?");
    }
    free(n.text);
    sl_buf_free(&l.tried);
    return found;
}
