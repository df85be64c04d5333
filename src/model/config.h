/* Private to model: the parts that read the configuration. */
#ifndef SL_MODEL_CONFIG_H
#define SL_MODEL_CONFIG_H

#include "model/config_source.h"
#include "model/model_internal.h"

/* config_rope.c: rope, rope_theta, rope_dims; after head_dim and context. */
bool config_read_rope(sl_model *m, const config_source *s, sl_error *err);

#endif
