#include "support_stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CUT_STEP = 5 };

char stored_directory[] = "/tmp/sluice-stored-XXXXXX";

int stored_make_directory(void **state) {
    strcpy(stored_directory + strlen(stored_directory) - 6, "XXXXXX");
    return mkdtemp(stored_directory) ? 0 : -1;
}

int stored_remove_directory(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", stored_directory);
    return system(command);
}

void stored_write(const char *path, const char *text, size_t n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

void stored_record(const char *name, const char *text) {
    char *path = sl_asprintf("%s%s", stored_directory, name), *command = sl_asprintf("mkdir -p $(dirname '%s')", path);
    assert_int_equal(system(command), 0);
    stored_write(path, text, strlen(text));
    free(command);
    free(path);
}

void stored_check_damage(const char *path, const stored_damage *damage, size_t n,
                         bool (*load)(const char *path, sl_error *err)) {
    sl_error err = {0};
    size_t size;
    char *good = sl_read_text(path, 1 << 20, &size, &err);
    assert_non_null(good);
    for (size_t i = 0; i < n; i++) {
        char *at = strstr(good, damage[i].from);
        if (!at)
            fail_msg("no %s in %s", damage[i].from, good);
        char *bad = sl_asprintf("%.*s%s%s", (int)(at - good), good, damage[i].to, at + strlen(damage[i].from));
        stored_write(path, bad, strlen(bad));
        if (load(path, &err))
            fail_msg("%s was taken", damage[i].to);
        if (!strstr(err.message, damage[i].says) || strncmp(err.message, path, strlen(path)) != 0)
            fail_msg("\"%s\" does not say %s and the file", err.message, damage[i].says);
        free(bad);
    }
    for (size_t cut = 0; cut + 1 < size; cut += CUT_STEP) { /* its last byte may be white space */
        stored_write(path, good, cut);
        assert_false(load(path, &err));
        assert_int_not_equal(err.code, SL_OK);
    }
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(load(path, &err));
    assert_non_null(strstr(err.message, "plain file"));
    unlink(path);
    free(good);
}
