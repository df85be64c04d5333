/* What each layer is made of, by configuration: its mixer and whether it has routed experts. */
#include "model/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- mixers ------------------------------------------------------------------------------------------------------ */

/* Names that layer_types uses. */
static const struct {
    const char *name;
    mixer mixer;
    bool windowed;
} layer_types[] = {{"full_attention", MIXER_ATTENTION, false},
                   {"sliding_attention", MIXER_ATTENTION, true},
                   {"linear_attention", MIXER_DELTA, false}};

static bool is_allowed(const sl_model *m, size_t type) {
    return (m->arch->mixers >> layer_types[type].mixer & 1) != 0 &&
           (!layer_types[type].windowed || m->config.window > 0);
}

/* "full_attention or linear_attention for each layer (no other is supported)" */
static bool wrong_type(const sl_model *m, const config_source *s, config_key key, sl_error *err) {
    char expected[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < SL_COUNT(layer_types); i++)
        if (is_allowed(m, i))
            used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", used ? " or " : "",
                                     layer_types[i].name);
    snprintf(expected + used, sizeof expected - used, " for each layer (no other is supported)");
    return config_unsupported(s, key, expected, err);
}

static bool read_layer_types(sl_model *m, const config_source *s, json_t *list, sl_error *err) {
    const config_key key = {"layer_types", NULL};
    char expected[64];
    snprintf(expected, sizeof expected, "a list of %d kinds of attention", m->config.layers);
    if (!json_is_array(list) || json_array_size(list) != (size_t)m->config.layers)
        return config_wrong(s, NULL, key, expected, err);
    for (int32_t l = 0; l < m->config.layers; l++) {
        const char *name = json_string_value(json_array_get(list, (size_t)l));
        size_t i = 0;
        while (i < SL_COUNT(layer_types) && !(name && strcmp(name, layer_types[i].name) == 0))
            i++;
        if (i == SL_COUNT(layer_types) || !is_allowed(m, i))
            return wrong_type(m, s, key, err);
        m->mixers[l] = (uint8_t)layer_types[i].mixer;
        m->windowed[l] = layer_types[i].windowed;
    }
    return true;
}

/* All layers alike; or every so many one of full attention, the others linear or with a window. */
static bool read_interval(sl_model *m, const config_source *s, sl_error *err) {
    const config_key key = {"full_attention_interval", "full_attention_interval"};
    int64_t interval = 4;
    bool found;
    bool latent = m->arch->mixers >> MIXER_MLA & 1, delta = m->arch->mixers >> MIXER_DELTA & 1;
    for (int32_t l = 0; l < m->config.layers; l++) {
        m->mixers[l] = latent ? MIXER_MLA : MIXER_ATTENTION;
        m->windowed[l] = m->config.window > 0 && (m->arch->sliding == 1 || (l + 1) % m->arch->sliding != 0);
    }
    if (!delta)
        return true;
    if (!config_integer(s, key, 1, INT32_MAX, &interval, &found, err))
        return false;
    for (int32_t l = 0; l < m->config.layers; l++)
        m->mixers[l] = (l + 1) % interval ? MIXER_DELTA : MIXER_ATTENTION;
    return true;
}

static bool read_mixers(sl_model *m, const config_source *s, sl_error *err) {
    json_t *list = s->json ? json_object_get(s->json, "layer_types") : NULL;
    int32_t attention = 0;
    if (!(list && !json_is_null(list) ? read_layer_types(m, s, list, err) : read_interval(m, s, err)))
        return false;
    for (int32_t l = 0; l < m->config.layers; l++)
        attention += m->mixers[l] != MIXER_DELTA;
    return attention > 0 ||
           sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %d layers, none of them of full attention", s->file, m->config.layers);
}

/* ---- which layers are MoE ---------------------------------------------------------------------------------------- */

static bool read_mlp_only(sl_model *m, const config_source *s, sl_error *err) {
    config_key key = {"mlp_only_layers", NULL};
    json_t *list = json_object_get(s->json, key.hf), *v;
    size_t k;
    if (list && !json_is_null(list) && !json_is_array(list))
        return config_wrong(s, NULL, key, "a list of layers", err);
    json_array_foreach(list, k, v) {
        int64_t layer = json_is_integer(v) ? json_integer_value(v) : -1;
        if (layer < 0 || layer >= m->config.layers) {
            char expected[64];
            snprintf(expected, sizeof expected, "a list of layers from 0 to %d", m->config.layers - 1);
            return config_wrong(s, NULL, key, expected, err);
        }
        m->dense[layer] = 1;
    }
    return true;
}

static bool read_dense(sl_model *m, const config_source *s, sl_error *err) {
    int64_t step = 1;
    bool found;
    if (!m->arch->moe) {
        memset(m->dense, 1, (size_t)m->config.layers);
        return true;
    }
    if (!s->json)
        return true; /* GGUF: decided by the tensors that are there */
    if (!config_integer(s, (config_key){"decoder_sparse_step", NULL}, 1, INT32_MAX, &step, &found, err))
        return false;
    for (int32_t i = 0; i < m->config.layers; i++)
        m->dense[i] = (i + 1) % step != 0 || i < m->config.first_dense;
    return read_mlp_only(m, s, err);
}

bool config_read_layers(sl_model *m, const config_source *s, sl_error *err) {
    m->mixers = calloc((size_t)m->config.layers, 1);
    m->dense = calloc((size_t)m->config.layers, 1);
    m->windowed = calloc((size_t)m->config.layers, 1);
    if (!m->mixers || !m->dense || !m->windowed)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    return read_mixers(m, s, err) && read_dense(m, s, err);
}
