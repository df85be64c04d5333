/* The journal of a pack being written: which units are in their files, with their checksums, and which files are whole.
 *
 * Text in lines of one length, appended in the order of writing, each by one write: what a kill leaves is a prefix. A
 * line says a unit's bytes were handed to the system; "file" that the whole file is on the disk and was read back. The
 * open journal is locked, so that two programs do not write one pack.
 * May include: pack_doc.h. Included by pack_write.c and pack_journal.c. */
#ifndef SL_CHECKPOINT_PACK_JOURNAL_H
#define SL_CHECKPOINT_PACK_JOURNAL_H

#include "checkpoint/pack_doc.h"

typedef struct pack_journal {
    char *path;
    int fd;
    size_t files;        /* that are whole */
    size_t units;        /* of the file after them that were written */
    uint64_t end;        /* of the lines that hold */
    uint64_t file_begin; /* where the lines of the file after them begin */
} pack_journal;

/* The number of a pack's files: resident.bin, then the layers'. */
pack_units *pack_file(pack *p, size_t i);

/* Opens or makes DIR's journal for this job and fills the checksums of p that it knows. */
bool pack_journal_open(pack_journal *j, const char *dir, uint64_t job, pack *p, sl_error *err);
/* Only the first n units of the file being written hold. */
bool pack_journal_cut(pack_journal *j, size_t n, sl_error *err);
bool pack_journal_unit(pack_journal *j, uint64_t sum, sl_error *err);
bool pack_journal_file(pack_journal *j, sl_error *err);
/* The job the journal of a directory is of; false: there is none that can be read. */
bool pack_journal_peek(const char *dir, uint64_t *job);
void pack_journal_close(pack_journal *j, bool remove);

#endif
