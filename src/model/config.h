/* Private to model: the parts that read the configuration. */
#ifndef SL_MODEL_CONFIG_H
#define SL_MODEL_CONFIG_H

#include "model/config_source.h"
#include "model/model_internal.h"

/* config_rope.c: rope, rope_theta, rope_dims; after head_dim and context. */
bool config_read_rope(sl_model *m, const config_source *s, sl_error *err);
/* config_layers.c: mixers and dense, of each layer. */
bool config_read_layers(sl_model *m, const config_source *s, sl_error *err);
/* As config_wrong, with the code for what is not done here. */
bool config_unsupported(const config_source *s, config_key key, const char *expected, sl_error *err);

#endif
