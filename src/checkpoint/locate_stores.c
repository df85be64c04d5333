/* Where other programs keep models: Hugging Face's cache, LM Studio's folder, Ollama's manifests and blobs. */
#include "checkpoint/locate.h"
#include "checkpoint/internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

/* ---- Hugging Face ---------------------------------------------------------------------------------------------- */

/* As huggingface_hub finds its cache: the first variable that is set decides alone. */
static char *hugging_face_root(void) {
    static const struct {
        const char *variable, *below;
    } places[] = {
        {"HF_HUB_CACHE", NULL},
        {"HUGGINGFACE_HUB_CACHE", NULL},
        {"HF_HOME", "hub"},
        {"XDG_CACHE_HOME", "huggingface/hub"},
    };
    for (size_t i = 0; i < SL_COUNT(places); i++) {
        const char *value = getenv(places[i].variable);
        if (value && value[0]) {
            return places[i].below ? sl_path_join(value, places[i].below) : sl_strdup(value);
        }
    }
    return locate_home(".cache/huggingface/hub");
}

/* The only entry of a directory, or NULL: a model fetched at one revision has no refs/main. */
static char *only_entry(const char *dir) {
    char *found = NULL;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') {
            continue;
        }
        if (found) {
            free(found);
            found = NULL;
            break;
        }
        found = sl_strdup(e->d_name);
    }
    if (d) {
        closedir(d);
    }
    return found;
}

/* The commit that refs/main names. */
static char *main_revision(const char *repo) {
    sl_error ignored;
    char *path = sl_path_join(repo, "refs/main");
    char *text = path && sl_path_exists(path) ? sl_read_text(path, 4096, NULL, &ignored) : NULL;
    free(path);
    if (text) {
        text[strcspn(text, " \t\r\n")] = 0;
    }
    return text;
}

static char *in_snapshot(locate *l, const char *repo, const char *file) {
    char *snapshots = sl_path_join(repo, "snapshots");
    char *revision = main_revision(repo);
    if (!revision && snapshots) {
        revision = only_entry(snapshots);
    }
    char *found = NULL;
    if (!snapshots || !revision || !ckpt_plain_name(revision)) {
        locate_note(l, repo, "refs/main names no snapshot");
    } else {
        char *dir = sl_path_join(snapshots, revision);
        found = dir ? locate_in_dir(l, dir, file) : NULL;
        free(dir);
    }
    free(revision);
    free(snapshots);
    return found;
}

char *locate_hugging_face(locate *l, const char *org, const char *name, const char *file) {
    char *root = hugging_face_root();
    char *folder = org ? sl_asprintf("models--%s--%s", org, name) : sl_asprintf("models--%s", name);
    char *repo = root && folder ? sl_path_join(root, folder) : NULL;
    char *found = NULL;
    if (repo && !sl_path_is_dir(repo)) {
        locate_note(l, repo, "not there");
    } else if (repo) {
        found = in_snapshot(l, repo, file);
    }
    free(repo);
    free(folder);
    free(root);
    return found;
}

/* ---- LM Studio ----------------------------------------------------------------------------------------------------
 */

static char *in_lm_studio(locate *l, const char *below, const char *publisher, const char *name, const char *file) {
    char *root = locate_home(below);
    char *dir = root ? sl_asprintf("%s/%s/%s", root, publisher, name) : NULL;
    char *found = dir ? locate_in_dir(l, dir, file) : NULL;
    free(dir);
    free(root);
    return found;
}

char *locate_lm_studio(locate *l, const char *publisher, const char *name, const char *file) {
    char *found = in_lm_studio(l, ".lmstudio/models", publisher, name, file);
    return found ? found : in_lm_studio(l, ".cache/lm-studio/models", publisher, name, file);
}

/* ---- Ollama ---------------------------------------------------------------------------------------------------------
 */

#define MODEL_LAYER    "application/vnd.ollama.image.model"
#define MANIFEST_LIMIT (1u << 20)

/* "sha256:" and 64 hexadecimal digits: what may become a file name. */
static bool is_digest(const char *s) {
    return s && strncmp(s, "sha256:", 7) == 0 && strlen(s) == 7 + 64 && strspn(s + 7, "0123456789abcdef") == 64;
}

/* The path of the blob of the layer that is the model. */
static char *blob_of_layer(locate *l, const char *root, const char *manifest_path, const json_t *layer) {
    const char *digest = json_string_value(json_object_get(layer, "digest"));
    if (!is_digest(digest)) {
        return locate_note(l, manifest_path, "its model layer has no sha256 digest");
    }
    char *path = sl_asprintf("%s/blobs/sha256-%s", root, digest + 7);
    if (path && !sl_path_exists(path)) {
        locate_note(l, path, "the manifest names it, but it is missing");
        free(path);
        path = NULL;
    }
    return path;
}

static const json_t *model_layer(locate *l, const char *manifest_path, const json_t *manifest) {
    const json_t *layers = json_object_get(manifest, "layers"), *found = NULL;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        if (!type || strcmp(type, MODEL_LAYER) != 0) {
            continue;
        }
        if (found) {
            locate_note(l, manifest_path, "more than one model layer");
            return NULL;
        }
        found = layer;
    }
    if (!found) {
        locate_note(l, manifest_path, "no layer of type " MODEL_LAYER);
    }
    return found;
}

static char *from_manifest(locate *l, const char *root, const char *path) {
    sl_error e = {0};
    size_t n;
    char *text = sl_read_text(path, MANIFEST_LIMIT, &n, &e);
    json_t *manifest = text ? ckpt_json_parse(text, n, path, &e) : NULL;
    free(text);
    if (!manifest) {
        return locate_note(l, path, e.message);
    }
    const json_t *layer = model_layer(l, path, manifest);
    char *found = layer ? blob_of_layer(l, root, path, layer) : NULL;
    json_decref(manifest);
    return found;
}

static char *in_ollama(locate *l, const char *root, const char *host, const char *space, const char *name,
                       const char *tag) {
    char *path = sl_asprintf("%s/manifests/%s/%s/%s/%s", root, host ? host : "registry.ollama.ai",
                             space ? space : "library", name, tag);
    char *found = NULL;
    if (path && !sl_path_exists(path)) {
        locate_note(l, path, "not there");
    } else if (path) {
        found = from_manifest(l, root, path);
    }
    free(path);
    return found;
}

char *locate_ollama(locate *l, const char *host, const char *space, const char *name, const char *tag) {
    const char *chosen = getenv("OLLAMA_MODELS");
    if (chosen && chosen[0]) {
        return in_ollama(l, chosen, host, space, name, tag);
    }
    char *root = locate_home(".ollama/models");
    char *found = root ? in_ollama(l, root, host, space, name, tag) : NULL;
    free(root);
    /* Where its Linux package keeps them for the service. */
    return found ? found : in_ollama(l, "/usr/share/ollama/.ollama/models", host, space, name, tag);
}
