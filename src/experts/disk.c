/* Which disk a path lies on: its name for this program, the file system, whether it turns. */
#include "experts/calibrate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#endif

enum { LINE_MOST = 4096 };

static bool is_one_of(const char *const *names, size_t n, const char *type) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], type) == 0)
            return true;
    return false;
}

static void judge_type(sl_disk *d) {
    static const char *const network[] = {"nfs",    "nfs4",       "cifs",      "smb3",           "smbfs",
                                          "9p",     "ceph",       "afs",       "lustre",         "gfs2",
                                          "beegfs", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "fuse.rclone"};
    static const char *const memory[] = {"tmpfs", "ramfs"};
    d->network = is_one_of(network, SL_COUNT(network), d->type);
    d->in_memory = is_one_of(memory, SL_COUNT(memory), d->type);
}

/* The first line of a small file without its end; "" where there is none. */
static void read_line(const char *root, const char *path, char *out, size_t size) {
    char *whole = sl_asprintf("%s%s", root, path);
    FILE *f = whole ? fopen(whole, "re") : NULL;
    *out = 0;
    if (f && fgets(out, (int)size, f))
        out[strcspn(out, "\n")] = 0;
    if (f)
        fclose(f);
    free(whole);
}

/* These end in files and on terminals: what is not plain text becomes ?. */
static void make_plain(char *text) {
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e)
            *text = '?';
}

static void copy_word(char *out, size_t size, const char *word) {
    snprintf(out, size, "%s", word ? word : "");
    make_plain(out);
}

/* "ID PARENT MAJOR:MINOR ROOT MOUNT OPTIONS [FIELDS...] - TYPE SOURCE OPTIONS" */
static bool take_mount(char *line, unsigned major, unsigned minor, unsigned long long mount, sl_disk *d) {
    char *word[5], *save = NULL;
    unsigned a, b;
    char *rest = strstr(line, " - ");
    if (!rest)
        return false;
    *rest = 0;
    for (size_t i = 0; i < SL_COUNT(word); i++)
        if (!(word[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    if (mount ? strtoull(word[0], NULL, 10) != mount
              : sscanf(word[2], "%u:%u", &a, &b) != 2 || a != major || b != minor)
        return false;
    copy_word(d->mount, sizeof d->mount, word[4]);
    char *type = strtok_r(rest + 3, " \n", &save);
    copy_word(d->type, sizeof d->type, type);
    copy_word(d->source, sizeof d->source, type ? strtok_r(NULL, " \n", &save) : NULL);
    return true;
}

static void find_mount(const char *root, unsigned major, unsigned minor, unsigned long long mount, sl_disk *d) {
    char line[LINE_MOST];
    char *path = sl_asprintf("%s/proc/self/mountinfo", root);
    FILE *f = path ? fopen(path, "re") : NULL;
    while (f && fgets(line, sizeof line, f))
        if (take_mount(line, major, minor, mount, d))
            break;
    if (f)
        fclose(f);
    free(path);
}

/* Of the device, or of the disk that it is a partition of. */
static void read_attribute(const char *root, unsigned major, unsigned minor, const char *name, char *out, size_t size) {
    static const char *const up[] = {"", "../"};
    *out = 0;
    for (size_t i = 0; i < SL_COUNT(up) && !*out; i++) {
        char path[128];
        snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s%s", major, minor, up[i], name);
        read_line(root, path, out, size);
    }
}

void sl_disk_describe(const char *root, unsigned major, unsigned minor, unsigned long long mount, sl_disk *d) {
    static const char *const serials[] = {"device/serial", "serial", "wwid", "device/wwid"};
    const char *base = root ? root : "";
    char serial[128] = "", turns[16], partition[16];
    *d = (sl_disk){.rotational = -1};
    find_mount(base, major, minor, mount, d);
    judge_type(d);
    for (size_t i = 0; i < SL_COUNT(serials) && !*serial; i++)
        read_attribute(base, major, minor, serials[i], serial, sizeof serial);
    read_attribute(base, major, minor, "queue/rotational", turns, sizeof turns);
    read_attribute(base, major, minor, "partition", partition, sizeof partition);
    if (strcmp(turns, "0") == 0 || strcmp(turns, "1") == 0)
        d->rotational = *turns - '0';
    /* The device's number may change from one start of the machine to the next. */
    if (*serial)
        snprintf(d->id, sizeof d->id, "serial %s partition %s", serial, *partition ? partition : "none");
    else
        snprintf(d->id, sizeof d->id, "%u:%u %s on %.256s", major, minor, d->source, d->mount);
    make_plain(d->id);
}

bool sl_disk_of(const char *root, const char *path, sl_disk *out, sl_error *err) {
    struct stat st;
    if (stat(path, &st) != 0)
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot stat", path);
    unsigned long long mount = 0;
#ifdef __linux__
#ifdef STATX_MNT_ID
    struct statx x;
    if (!root && statx(AT_FDCWD, path, 0, STATX_MNT_ID, &x) == 0 && (x.stx_mask & STATX_MNT_ID))
        mount = x.stx_mnt_id;
#endif
    sl_disk_describe(root, major(st.st_dev), minor(st.st_dev), mount, out);
#else
    sl_disk_describe(root, 0, (unsigned)st.st_dev, mount, out);
#endif
    return true;
}
