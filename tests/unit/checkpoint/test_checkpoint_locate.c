/* MODEL on the command line: paths and names of other programs' stores, in a made-up home directory. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME",
                                        "OLLAMA_MODELS"};

/* A home with nothing in it; no variable points elsewhere. */
static char *fresh_home(void) {
    for (size_t i = 0; i < SL_COUNT(variables); i++) {
        unsetenv(variables[i]);
    }
    char *home = make_dir();
    setenv("HOME", home, 1);
    return home;
}

static void finds(const char *model, const char *expected) {
    sl_error err = poisoned();
    char *path = sl_model_locate(model, &err);
    if (!path) {
        fail_msg("%s", err.message);
    }
    assert_string_equal(path, expected);
    free(path);
}

static void misses(const char *model, const char *one, const char *two, const char *three) {
    sl_error err = poisoned();
    char *path = sl_model_locate(model, &err);
    if (path) {
        fail_msg("\"%s\" was found at %s", model, path);
    }
    expect_error(&err, SL_ERR_IO, one, two, three, NULL);
}

static void put_hf_model(const char *home, const char *dir) {
    write_text(home, in_dir(dir, "config.json"), "{}");
    write_text(home, in_dir(dir, "model.safetensors"), "");
}

/* ---- paths ---- */

static void paths(void **state) {
    char *home = fresh_home();
    put_hf_model(home, "hf");
    write_text(home, "hf/extra.gguf", "");
    write_text(home, "one/m.gguf", "");
    write_text(home, "one/mmproj-m.gguf", "");
    write_text(home, "split/m-00001-of-00002.gguf", "");
    write_text(home, "split/m-00002-of-00002.gguf", "");
    write_text(home, "two/a.gguf", "");
    write_text(home, "two/b.gguf", "");
    write_text(home, "empty/readme", "");
    write_text(home, "bare/config.json", "{}");
    finds(in_dir(home, "hf"), in_dir(home, "hf"));
    finds(in_dir(home, "hf/model.safetensors"), in_dir(home, "hf"));
    finds(in_dir(home, "hf/extra.gguf"), in_dir(home, "hf/extra.gguf"));
    finds(in_dir(home, "one"), in_dir(home, "one/m.gguf"));
    finds(in_dir(home, "split"), in_dir(home, "split/m-00001-of-00002.gguf"));
    finds(in_dir(home, "split/m-00002-of-00002.gguf"), in_dir(home, "split/m-00002-of-00002.gguf"));
    finds(in_dir(home, "bare"), in_dir(home, "bare"));
    misses(in_dir(home, "two"), "2 GGUF models, name one: ", "a.gguf", "b.gguf");
    misses(in_dir(home, "empty"), "neither config.json nor a .gguf file in it", in_dir(home, "empty"), "");
    misses(in_dir(home, "none"), "no such path", in_dir(home, "none"), "was not found; looked for: ");
    char cwd[1024];
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir(in_dir(home, "hf")), 0);
    finds("model.safetensors", ".");
    finds(".", ".");
    assert_int_equal(chdir(cwd), 0);
    remove_dir(home);
}

static void nothing_given(void **state) {
    sl_error err = poisoned();
    assert_null(sl_model_locate("", &err));
    expect_error(&err, SL_ERR_ARGUMENT, "no model given", NULL);
    assert_null(sl_model_locate(NULL, &err));
}

/* ---- Hugging Face ---- */

static void put_snapshot(const char *home, const char *root, const char *repo, const char *hash) {
    char name[512];
    snprintf(name, sizeof name, "%s/%s/refs/main", root, repo);
    write_text(home, name, hash);
    snprintf(name, sizeof name, "%s/%s/snapshots/%s", root, repo, hash);
    put_hf_model(home, name);
}

static void hugging_face_cache(void **state) {
    char *home = fresh_home();
    put_snapshot(home, ".cache/huggingface/hub", "models--Org--Name-1.5B", "0123abcd");
    finds("Org/Name-1.5B", in_dir(home, ".cache/huggingface/hub/models--Org--Name-1.5B/snapshots/0123abcd"));
    misses("Org/Other", "models--Org--Other (not there)", ".lmstudio/models/Org/Other",
           ".ollama/models/manifests/registry.ollama.ai/Org/Other/latest");
    put_snapshot(home, "xdg/huggingface/hub", "models--a--b", "x1");
    setenv("XDG_CACHE_HOME", in_dir(home, "xdg"), 1);
    finds("a/b", in_dir(home, "xdg/huggingface/hub/models--a--b/snapshots/x1"));
    put_snapshot(home, "hfhome/hub", "models--a--b", "h1");
    setenv("HF_HOME", in_dir(home, "hfhome"), 1);
    finds("a/b", in_dir(home, "hfhome/hub/models--a--b/snapshots/h1"));
    put_snapshot(home, "cache", "models--a--b", "c1");
    put_snapshot(home, "cache", "models--gpt2", "g1");
    setenv("HF_HUB_CACHE", in_dir(home, "cache"), 1);
    finds("a/b", in_dir(home, "cache/models--a--b/snapshots/c1"));
    finds("gpt2", in_dir(home, "cache/models--gpt2/snapshots/g1"));
    remove_dir(home);
}

static void hugging_face_gguf_repository(void **state) {
    char *home = fresh_home();
    const char *snapshot = ".cache/huggingface/hub/models--o--g/snapshots/r1";
    char name[512];
    snprintf(name, sizeof name, "%s/m-Q4_0.gguf", snapshot);
    write_text(home, name, "");
    finds("o/g", in_dir(home, name)); /* no refs/main, but one snapshot only */
    snprintf(name, sizeof name, "%s/m-Q8_0.gguf", snapshot);
    write_text(home, name, "");
    misses("o/g", "2 GGUF models, name one: ", "m-Q4_0.gguf", "m-Q8_0.gguf");
    finds("o/g/m-Q8_0.gguf", in_dir(home, name));
    misses("o/g/m-Q5_0.gguf", "m-Q5_0.gguf (not there)", "", "");
    snprintf(name, sizeof name, "%s/Q5/m-Q5-00001-of-00002.gguf", snapshot);
    write_text(home, name, "");
    finds("o/g/Q5", in_dir(home, name));
    finds("o/g/Q5/m-Q5-00001-of-00002.gguf", in_dir(home, name));
    write_text(home, ".cache/huggingface/hub/models--o--g/snapshots/r2/x", "");
    misses("o/g", "models--o--g (refs/main names no snapshot)", "", "");
    write_text(home, ".cache/huggingface/hub/models--o--g/refs/main", "r3\n");
    misses("o/g", "snapshots/r3 (not there)", "", "");
    remove_dir(home);
}

/* ---- LM Studio ---- */

static void lm_studio(void **state) {
    char *home = fresh_home();
    put_hf_model(home, ".lmstudio/models/pub/mlx-model");
    write_text(home, ".cache/lm-studio/models/pub/old/m.gguf", "");
    write_text(home, ".lmstudio/models/pub/multi/a.gguf", "");
    write_text(home, ".lmstudio/models/pub/multi/b.gguf", "");
    finds("pub/mlx-model", in_dir(home, ".lmstudio/models/pub/mlx-model"));
    finds("pub/old", in_dir(home, ".cache/lm-studio/models/pub/old/m.gguf"));
    finds("pub/multi/b.gguf", in_dir(home, ".lmstudio/models/pub/multi/b.gguf"));
    misses("pub/multi", "2 GGUF models", "a.gguf", "b.gguf");
    remove_dir(home);
}

/* ---- Ollama ---- */

#define HEX              "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define LAYER(digest)    "{\"mediaType\":\"application/vnd.ollama.image.model\",\"digest\":\"" digest "\",\"size\":4}"
#define MANIFEST(layers) "{\"schemaVersion\":2,\"layers\":[" layers "]}"
#define LICENCE          "{\"mediaType\":\"application/vnd.ollama.image.license\",\"digest\":\"sha256:00\"}"

static void ollama(void **state) {
    char *home = fresh_home();
    const char *good = MANIFEST(LICENCE "," LAYER("sha256:" HEX));
    write_text(home, ".ollama/models/blobs/sha256-" HEX, "GGUF");
    write_text(home, ".ollama/models/manifests/registry.ollama.ai/library/llama3/8b", good);
    write_text(home, ".ollama/models/manifests/registry.ollama.ai/library/llama3/latest", good);
    write_text(home, ".ollama/models/manifests/registry.ollama.ai/someone/thing/q4_K_M", good);
    write_text(home, ".ollama/models/manifests/hf.co/org/repo-GGUF/Q4_0", good);
    const char *blob = in_dir(home, ".ollama/models/blobs/sha256-" HEX);
    finds("llama3:8b", blob);
    finds("llama3", blob);
    finds("someone/thing:q4_K_M", blob);
    finds("hf.co/org/repo-GGUF:Q4_0", blob);
    misses("no-such-llama:70b", "library/no-such-llama/70b (not there)", "/usr/share/ollama/", "");
    setenv("OLLAMA_MODELS", in_dir(home, "elsewhere"), 1);
    misses("llama3:8b", "elsewhere/manifests/registry.ollama.ai/library/llama3/8b (not there)", "", "");
    remove_dir(home);
}

static void ollama_manifests_that_lie(void **state) {
    static const struct {
        const char *manifest, *one;
    } rows[] = {
        {"{", "invalid JSON"},
        {"{}", "no layer of type application/vnd.ollama.image.model"},
        {"{\"layers\":{\"0\":1}}", "no layer of type"},
        {"{\"layers\":[1,null,\"x\"]}", "no layer of type"},
        {MANIFEST(LICENCE), "no layer of type"},
        {MANIFEST("{\"mediaType\":\"application/vnd.ollama.image.model\"}"), "no sha256 digest"},
        {MANIFEST(LAYER("sha256:../../../../etc/passwd")), "no sha256 digest"},
        {MANIFEST(LAYER("sha256:0123")), "no sha256 digest"},
        {MANIFEST(LAYER("md5:" HEX)), "no sha256 digest"},
        {MANIFEST(LAYER("sha256:" HEX) "," LAYER("sha256:" HEX)), "more than one model layer"},
        {MANIFEST(LAYER("sha256:" HEX)), "blobs/sha256-" HEX " (the manifest names it, but it is missing)"},
    };
    char *home = fresh_home();
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        write_text(home, ".ollama/models/manifests/registry.ollama.ai/library/m/latest", rows[i].manifest);
        misses("m", rows[i].one, "", "");
    }
    remove_dir(home);
}

/* ---- names that would escape ---- */

static void names_never_leave_the_store(void **state) {
    static const char *const models[] = {
        "../secret", "a/../../secret", "a/..",       "./x",   "a//b", "/a", "a/b/../../../x", "a\\b",
        "a b/c",     "a/.hidden",      "a:../../x",  "a:b/c", "a:",   ":b", "a/b/c/d/e/f/g",  "~/x",
        "a/b\n",     "a/b?c",          "\xff\xfe/b",
    };
    char *home = fresh_home();
    /* What an escaping name would find. */
    put_hf_model(home, ".cache/huggingface/secret");
    put_hf_model(home, ".lmstudio/secret");
    put_hf_model(home, ".lmstudio/models/a/.hidden");
    write_text(home, ".lmstudio/models/a/x", "");
    char *cwd = make_dir();
    assert_int_equal(chdir(cwd), 0);
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        sl_error err = poisoned();
        assert_null(sl_model_locate(models[i], &err));
        expect_error(&err, SL_ERR_IO, "no such path", NULL);
        assert_null(strstr(err.message, "; models--"));
        assert_null(strstr(err.message, "(not there)")); /* no store was asked */
    }
    put_snapshot(home, ".cache/huggingface/hub", "models--e--e", "r");
    write_text(home, ".cache/huggingface/hub/models--e--e/refs/main", "../../../secret");
    misses("e/e", "refs/main names no snapshot", "", "");
    assert_int_equal(chdir("/"), 0);
    remove_dir(cwd);
    remove_dir(home);
}

static void no_home(void **state) {
    char *home = fresh_home();
    unsetenv("HOME");
    misses("org/name", "no such path", "/usr/share/ollama/", "");
    remove_dir(home);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths),
        cmocka_unit_test(nothing_given),
        cmocka_unit_test(hugging_face_cache),
        cmocka_unit_test(hugging_face_gguf_repository),
        cmocka_unit_test(lm_studio),
        cmocka_unit_test(ollama),
        cmocka_unit_test(ollama_manifests_that_lie),
        cmocka_unit_test(names_never_leave_the_store),
        cmocka_unit_test(no_home),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
