/* What locate.c and the stores share. Included by src/checkpoint only. */
#ifndef SL_CHECKPOINT_LOCATE_H
#define SL_CHECKPOINT_LOCATE_H

#include "base/base.h"

/* A search: where a look-up does not succeed it adds a line to `tried`, which the final error shows. */
typedef struct locate {
    const char *model;
    sl_buf tried;
} locate;

/* Adds "what (why)"; returns NULL. */
char *locate_note(locate *l, const char *what, const char *why);
/* The model in a directory: the directory itself (config.json), or its only GGUF checkpoint (one file, or the shards of
 * one). file: NULL, or the path of a file inside. */
char *locate_in_dir(locate *l, const char *dir, const char *file);

/* The stores. Names are made of plain components: see locate.c. NULL: not there, a note says where. */
char *locate_hugging_face(locate *l, const char *org, const char *name, const char *file);
char *locate_lm_studio(locate *l, const char *publisher, const char *name, const char *file);
char *locate_ollama(locate *l, const char *host, const char *space, const char *name, const char *tag);

/* $HOME/below, NULL without HOME (or memory). */
char *locate_home(const char *below);

#endif
