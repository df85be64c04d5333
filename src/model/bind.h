/* Private to model: binding tensors to roles, with their shapes checked. */
#ifndef SL_MODEL_BIND_H
#define SL_MODEL_BIND_H

#include "model/model_internal.h"

/* What a role must be: rows 0 is a vector of cols. */
typedef struct expected {
    role role;
    int64_t rows, cols;
    bool optional;
} expected;

/* Finds the tensors of a list in the checkpoint and binds them to slots[role]; an absent one that is optional stays
 * NULL. layer is -1 for roles outside layers. */
bool bind_all(sl_model *m, resident *slots, const expected *list, size_t n, int32_t layer, sl_error *err);
/* Binds rows of the tensor of role `from`, which has cols columns, to slots[to]. */
bool bind_split(sl_model *m, resident *slots, role to, role from, const row_split *split, int64_t cols, int32_t layer,
                sl_error *err);
/* Binds every second element, from the first or the second on, of the tensor of role `from` to slots[to] as rows x cols
 * floats. */
bool bind_alternate(sl_model *m, resident *slots, role to, role from, int32_t first, int64_t rows, int64_t cols,
                    int32_t layer, sl_error *err);
/* Binds the tensor of role `from` to slots[to] as rows x cols floats, whatever dimensions of size 1 lie between or
 * behind them. */
bool bind_floats(sl_model *m, resident *slots, role to, role from, int64_t rows, int64_t cols, int32_t layer,
                 sl_error *err);

/* Binds a tensor [count][rows][cols] as a matrix of count * rows rows. */
bool bind_stacked(sl_model *m, resident *slots, role r, int64_t count, int64_t rows, int64_t cols, int32_t layer,
                  sl_error *err);

/* The tensor of a role; NULL: there is none. */
const sl_tensor *bind_find(const sl_model *m, role r, int32_t layer);
bool bind_shape_error(const sl_model *m, const sl_tensor *t, int64_t rows, int64_t cols, sl_error *err);
void model_mark_used(sl_model *m, const sl_tensor *t);
/* The file a tensor lies in, for messages. */
const char *model_tensor_file(const sl_model *m, const sl_tensor *t);
bool model_is_gguf(const sl_model *m);

#endif
