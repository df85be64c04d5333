/* Private to model: a checkpoint's configuration as one thing to ask: config.json's fields or GGUF's metadata. Every
 * answer is of the type asked for or an error that names file and field, what was found and what was expected; nothing
 * that is there is passed over because it looks odd. */
#ifndef SL_MODEL_CONFIG_SOURCE_H
#define SL_MODEL_CONFIG_SOURCE_H

#include "checkpoint/checkpoint.h"

typedef struct config_source {
    const sl_ckpt *ckpt;
    json_t *json;    /* config.json, or in it what describes the text model; NULL: GGUF */
    json_t *top;     /* config.json */
    char *file;      /* for messages */
    char prefix[64]; /* of GGUF's keys: "qwen3moe."; of config.json's fields: "", "text_config." */
    uint8_t *asked;  /* [GGUF's keys]: somebody asked for it */
} config_source;

/* False: out of memory, or a directory without config.json. config_source_free afterwards in any case. */
bool config_source_open(config_source *s, const sl_ckpt *c, sl_error *err);
void config_source_free(config_source *s);

/* GGUF: the keys of the architecture's own name that nobody asked for and that are not known to say nothing new, with
 * commas between them, cut where there are too many; "": none. For a warning: such a key is damaged, or says something
 * that is not done here. */
void config_unknown_keys(const config_source *s, const char *arch, char *out, size_t size);

/* A field's two names. hf NULL or gguf NULL: that kind of checkpoint has no such field. A field of config.json that is
 * there only under an alias (a table in config_source.c) is found by its name too. */
typedef struct config_key {
    const char *hf, *gguf;
} config_key;

/* Two spellings of one field that disagree are an error. */
bool config_check_aliases(const config_source *s, sl_error *err);

/* Fails with "FILE: field NAME is FOUND, EXPECTED expected". object: where the field is (NULL: where the text model is
 * described). */
bool config_wrong(const config_source *s, json_t *object, config_key key, const char *expected, sl_error *err);
bool config_missing(const config_source *s, config_key key, sl_error *err);

/* *found says whether the field is there (null is absent); *out is untouched where it is not. object as above. */
bool config_integer(const config_source *s, config_key key, int64_t min, int64_t max, int64_t *out, bool *found,
                    sl_error *err);
/* A finite number, min <= x <= max. */
bool config_number(const config_source *s, json_t *object, config_key key, double min, double max, double *out,
                   bool *found, sl_error *err);
bool config_flag(const config_source *s, config_key key, bool *out, bool *found, sl_error *err);
/* A string that lives as long as the checkpoint. */
bool config_text(const config_source *s, json_t *object, config_key key, sl_str *out, bool *found, sl_error *err);

#endif
