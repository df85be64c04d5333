/* Explicit instantiations that leave template arguments of the kernel to be deduced, all or the last ones:
 * `template [[host_name("f")]] kernel void add(device const float4 *, device float4 *, uint);`. */
#include "gpu/msl/translate.h"

enum { MOST_TOKENS = 64 }; /* of what a parameter points to */

/* What a parameter points or refers to, token by token, without qualifiers. */
typedef struct target {
    size_t at[MOST_TOKENS], count;
    bool indirect;
} target;

static target read_target(const tr *m, size_t i, size_t end) {
    target t = {.count = 0};
    while (i < end && t.count < MOST_TOKENS) {
        size_t next = msl_skip_attributes(m, i);
        t.indirect |= msl_here(m, i, "*") || msl_here(m, i, "&");
        if (t.indirect)
            break;
        if (next == i && !msl_is_address_space(msl_at(m, i)) && !msl_here(m, i, "const") && !msl_here(m, i, "volatile"))
            t.at[t.count++] = i;
        i = next > i ? next : i + 1;
    }
    return t;
}

static bool same(const tr *m, size_t a, size_t b) {
    return msl_same(msl_at(m, a), msl_at(m, b));
}

/* What name stands for, where `known` has it and `given` is the same but for that. */
static bool match(const tr *m, const target *known, const target *given, const msl_token *name, msl_range *found) {
    size_t before = 0, occurrences = 0;
    for (size_t k = 0; k < known->count; k++)
        if (msl_same(msl_at(m, known->at[k]), name)) {
            before = k;
            occurrences++;
        }
    size_t behind = known->count - before - 1;
    if (occurrences != 1 || given->count < known->count || !known->indirect || !given->indirect)
        return false;
    for (size_t k = 0; k < before; k++)
        if (!same(m, known->at[k], given->at[k]))
            return false;
    for (size_t k = 1; k <= behind; k++)
        if (!same(m, known->at[known->count - k], given->at[given->count - k]))
            return false;
    *found = (msl_range){given->at[before], given->at[given->count - behind - 1] + 1};
    for (size_t k = found->begin; k < found->end; k++)
        if (msl_behind(m, k) > k + 1)
            return false;
    return true;
}

static bool find(const tr *m, size_t open, size_t given_open, const msl_token *name, msl_range *found) {
    size_t close = m->match[open], given_close = m->match[given_open];
    for (size_t i = open + 1, k = given_open + 1; i < close && k < given_close;) {
        size_t i_end = msl_piece_end(m, i, close), k_end = msl_piece_end(m, k, given_close);
        target known = read_target(m, i, i_end), given = read_target(m, k, k_end);
        if (match(m, &known, &given, name, found))
            return true;
        i = i_end + 1;
        k = k_end + 1;
    }
    return false;
}

/* The name of the template parameter in [i, end). */
static size_t parameter_name(const tr *m, size_t i, size_t end) {
    size_t name = i;
    for (; i < end && !msl_here(m, i, "="); i++)
        if (msl_name_at(m, i))
            name = i;
    return name;
}

/* Behind all tokens, whose last remains the end. */
static bool append(tr *m, msl_token t) {
    msl_token end = *msl_at(m, m->tokens.count - 1);
    m->tokens.at[m->tokens.count - 1] = t;
    return msl_push(&m->tokens, &end) || msl_no_memory(&m->s);
}

static size_t pieces(const tr *m, msl_range r) {
    size_t n = 0;
    for (size_t i = r.begin; i < r.end; i = msl_piece_end(m, i, r.end) + 1)
        n++;
    return n;
}

bool msl_deduce(tr *m, const msl_definition *d, size_t open, msl_range *arguments) {
    msl_range all = d->template_parameters, found;
    msl_token comma = *msl_at(m, open);
    comma.text = ",";
    if (pieces(m, *arguments) >= pieces(m, all))
        return true;
    size_t begin = m->tokens.count - 1, said = arguments->begin;
    for (size_t i = all.begin; i < all.end;) {
        size_t end = msl_piece_end(m, i, all.end);
        if (said < arguments->end)
            found = (msl_range){said, msl_piece_end(m, said, arguments->end)};
        else if (!find(m, d->open, open, msl_at(m, parameter_name(m, i, end)), &found))
            break; /* the rest have defaults */
        said = said < arguments->end ? found.end + 1 : said;
        if (i > all.begin && !append(m, comma))
            return false;
        for (size_t k = found.begin; k < found.end; k++)
            if (!append(m, *msl_at(m, k)))
                return false;
        i = end + 1;
    }
    *arguments = (msl_range){begin, m->tokens.count - 1};
    return true;
}
