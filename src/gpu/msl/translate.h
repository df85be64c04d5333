/* Private to msl: a translation under way.
 *
 * One walk over the preprocessed tokens: declarations are recognised (walk.c), functions, kernels, constants and types
 * each handled by a file of that name, and everything else is copied (emit.c). What the walk learns is kept in tables
 * here; entries and tables of the generated unit come at the end (entry.c). */
#ifndef SL_MSL_TRANSLATE_H
#define SL_MSL_TRANSLATE_H

#include "gpu/msl/token.h"

#define MSL_USER "user_" /* before names of the source that generated code has for itself */

typedef struct msl_range {
    size_t begin, end; /* tokens [begin, end) */
} msl_range;

/* ---- names that the source declares ------------------------------------------------------------------------------ */

typedef enum msl_symbol_kind {
    MSL_SYMBOL_TYPE,
    MSL_SYMBOL_STRUCT,
    MSL_SYMBOL_VALUE,
    MSL_SYMBOL_REFUSED,
    MSL_SYMBOL_POSITION, /* `uint gid [[thread_position_in_grid]];` at namespace scope; type: its type */
    MSL_SYMBOL_FORWARD   /* a struct of which only the name is known so far */
} msl_symbol_kind;

typedef struct msl_symbol {
    struct msl_symbol *next;
    msl_token name;
    msl_symbol_kind kind;
    msl_range
        range; /* type: what it stands for; struct: its body; value: its initialiser; refused: the reason's token */
    msl_range parameters;         /* of its template */
    const char *position;         /* attribute of a position */
    int64_t offset;               /* value: added to the initialiser's (enumerators) */
    bool packed, is_union, twice; /* twice: declared again with another meaning */
    uint32_t align;               /* of alignas; 0: its members' */
} msl_symbol;

/* Template parameters bound to arguments, for sizes of types. */
typedef struct msl_binding {
    msl_range parameters, arguments; /* inside the angles */
    const struct msl_binding *outer; /* where the arguments' names are looked up */
    const msl_symbol *locals;        /* types and constants of a kernel's body, by next */
} msl_binding;

typedef struct msl_layout {
    uint64_t size, align; /* 0: unknown */
} msl_layout;

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef enum msl_parameter_kind {
    MSL_PARAMETER_BUFFER,
    MSL_PARAMETER_THREADGROUP,
    MSL_PARAMETER_POSITION
} msl_parameter_kind;

/* A struct passed by value: its members, and theirs, are arguments. */
typedef struct msl_within {
    const struct msl_within *outer;
    msl_range parameters, arguments; /* of its template */
} msl_within;

typedef struct msl_parameter {
    msl_parameter_kind kind;
    sl_gpu_arg_kind arg;
    int slot;             /* -1: not said */
    const char *position; /* attribute's name */
    msl_token name;
    msl_range type;       /* pointed or referred to */
    msl_range dimensions; /* of an array referred to: `[4][2]` */
    msl_range condition;  /* of [[function_constant(x)]] */
    bool reference, atomic;
    size_t members;           /* of a struct passed by value that begins here; the rest of them have 0 */
    bool listed;              /* such a struct has positions too: it is built from a list of its members */
    const msl_within *within; /* NULL: the kernel's own */
} msl_parameter;

/* A variable of threadgroup storage. */
typedef struct msl_storage {
    msl_range type, dimensions;
} msl_storage;

typedef struct msl_definition {
    msl_token name;
    msl_range template_parameters, arguments; /* of its template head; of a specialisation's name */
    msl_range host_name;                      /* the string's token */
    size_t scope;                             /* in scopes */
    msl_range max_threads;                    /* of [[max_total_threads_per_threadgroup(..)]] */
    msl_parameter *parameters;
    size_t parameter_count, open, body; /* open, body: `(` of the parameters, `{` */
    bool is_template;
} msl_definition;

typedef struct msl_instance {
    const char *host_name;
    msl_range arguments; /* inside the angles; empty: none */
    size_t definition, scope;
    msl_range max_threads;
    int line, file;
} msl_instance;

/* ---- function constants ------------------------------------------------------------------------------------------ */

typedef struct msl_late {
    msl_token name;
    msl_range type, value; /* value: of a derived constant; empty for a function constant */
    int index;             /* in module's constants; -1: derived */
    const char *raw;       /* type of the raw value, where sl_gpu_type lacks the constant's own */
    size_t scope;
} msl_late;

/* A kernel that is left out because of what it uses. */
/* ---- functions that have a body, for checks over calls ------------------------------------------------------------
 */

typedef struct msl_function_record {
    msl_token name;
    size_t open, body, end; /* `(`, `{`, behind `}` */
    bool member, is_template;
} msl_function_record;

/* ---- overloads --------------------------------------------------------------------------------------------------- */

typedef struct msl_signature {
    struct msl_signature *next;
    const char *key;
    uint64_t body; /* 0: declared only */
    uint32_t line;
} msl_signature;

enum { MSL_BUCKETS = 1024, MSL_LAYOUT_STEPS = 20 << 20, MSL_MAX_CODE = 256 << 20 };

struct msl_module {
    msl_source s;
    sl_error error;
    msl_target target;
    msl_tokens tokens;
    uint32_t *match; /* of a bracket: the other */
    sl_buf out;
    uint32_t out_line;
    int out_file;
    bool has_positions;         /* of namespace scope */
    bool out_muted, has_halves; /* has_halves: 16-bit floats occur */
    int out_joined, arm_depth;  /* > 0: copying out of place, no line is noted; nesting of `?:` */
    size_t out_at;              /* size of out where the current line began */

    msl_symbol *symbols[MSL_BUCKETS];
    msl_signature *signatures[MSL_BUCKETS];
    int *layout_budget;  /* steps left for sizes of types */
    size_t record_at;    /* the struct being walked: its `{` */
    const char **scopes; /* paths of namespaces: "", "a", "a::b" */
    size_t scope_count, scope_capacity, scope;
    msl_definition *definitions;
    size_t definition_count, definition_capacity;
    msl_instance *instances;
    size_t instance_count, instance_capacity;
    msl_late *late;
    size_t late_count, late_capacity;
    msl_function_record *functions;
    size_t function_count, function_capacity;
    msl_refusal *refused;
    size_t refused_count, refused_capacity;
    msl_storage *storage;
    size_t storage_count, storage_capacity;
    int sites; /* of threadgroup storage */
    int packs; /* nesting of #pragma pack */

    msl_kernel *kernels;
    size_t kernel_count;
    msl_constant *constants;
    size_t constant_count, constant_capacity;
};

typedef msl_module tr;

/* ---- scan.c: reading tokens -------------------------------------------------------------------------------------- */

bool msl_match_brackets(tr *m);
const msl_token *msl_at(const tr *m, size_t i);
bool msl_here(const tr *m, size_t i, const char *s);
bool msl_name_at(const tr *m, size_t i);
/* Index behind the bracket that closes the one at i. */
size_t msl_behind(const tr *m, size_t i);
/* Index behind the `>` that closes the `<` at i; 0: it is not a list. */
size_t msl_behind_angle(const tr *m, size_t i, size_t end);
bool msl_attribute_at(const tr *m, size_t i); /* `[[` */
size_t msl_skip_attributes(const tr *m, size_t i);
/* `__attribute__((..))` or `alignas(..)` at i: index behind it; else i. */
size_t msl_skip_gnu(const tr *m, size_t i);
/* End of the piece that begins at i: the next comma outside brackets and angles, or end. */
size_t msl_piece_end(const tr *m, size_t i, size_t end);
/* First `name` among the attributes `[[..]]` of [begin, end); its argument, if any, in *argument. False: none. */
bool msl_find_attribute(const tr *m, size_t begin, size_t end, const char *name, msl_range *argument);
bool msl_is_address_space(const msl_token *t);
bool msl_range_same(const tr *m, msl_range a, msl_range b);
msl_range msl_trim(const tr *m, msl_range r); /* without const, volatile and address spaces at its ends */

/* ---- emit.c ------------------------------------------------------------------------------------------------------ */

void msl_put(tr *m, size_t at, const char *fmt, ...) SL_PRINTF(3, 4);
void msl_put_line(tr *m, uint32_t line, int file);
bool msl_emit(tr *m, size_t begin, size_t end);
/* Members of the struct with its body at `{` that are called as swizzles are: what answers `.MSL_SW(0, 1)` for them. */
void msl_put_swizzle_members(tr *m, size_t body);
void msl_find_halves(tr *m);

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

bool msl_walk(tr *m, size_t begin, size_t end, const char *record, int depth);
bool msl_function_at(const tr *m, size_t i, size_t end);
/* The function at i with its template head, emitted; *next behind it. */
bool msl_function(tr *m, msl_range head, size_t i, size_t end, const char *record, size_t *next);
/* Behind the parameters at `)`+1: *body its `{`, or where the declaration's `;` is; false where neither comes. */
bool msl_function_body(const tr *m, size_t i, size_t end, size_t *body);
bool msl_emit_body(tr *m, size_t begin, size_t end);
/* A position at namespace scope, `uint i [[thread_position_in_grid]];`: every use of its name asks for it. */
bool msl_position_declaration(tr *m, size_t i, size_t stop, bool *found);
/* The position that the name at i asks for; NULL: it is no such name, or what is declared nearer hides it. */
const msl_symbol *msl_position_used(const tr *m, size_t i);
bool msl_constant_declaration(tr *m, msl_range head, size_t i, size_t end, const char *record, size_t *next);
bool msl_is_late(const tr *m, msl_range r);

bool msl_kernel_at(const tr *m, size_t i, size_t *name);
bool msl_kernel_function(tr *m, msl_range head, size_t i, size_t end, size_t *next);
bool msl_instantiation(tr *m, size_t i, size_t end, size_t *next);
/* Name of the position attribute among the attributes of [begin, end); NULL: none. */
const char *msl_position_in(const tr *m, size_t begin, size_t end);

/* ---- deduce.c --- */

/* Template arguments of an instance with its parameters at `(`: those in *arguments, then what the parameters say. */
bool msl_deduce(tr *m, const msl_definition *d, size_t open, msl_range *arguments);

/* ---- calls.c --- */

bool msl_note_function(tr *m, const msl_function_record *f);
/* Pointers handed or cast to another address space, recursion. */
bool msl_check_calls(tr *m);

/* ---- declarations.c --- */

/* Variables that are pointers to functions, and static ones of functions. */
bool msl_check_declarations(tr *m);

/* ---- refuse.c ---------------------------------------------------------------------------------------------------- */

/* What MSL itself forbids: an error. */
bool msl_check_forbidden(tr *m);
/* What MSL has and this translator does not, in [begin, end); NULL: nothing. */
const char *msl_refused_in(const tr *m, size_t begin, size_t end, size_t *at);

/* ---- layout.c ---------------------------------------------------------------------------------------------------- */

bool msl_declare(tr *m, const msl_symbol *symbol);
const msl_symbol *msl_lookup(const tr *m, const msl_token *name);
msl_layout msl_type_layout(const tr *m, msl_range type, const msl_binding *binding);
bool msl_range_value(const tr *m, msl_range r, const msl_binding *binding, int64_t *value);

/* ---- entry.c ----------------------------------------------------------------------------------------------------- */

bool msl_build_kernels(tr *m);
/* Bytes of threadgroup storage that an instance's body declares; 0: none, or not known (storage.c). */
uint32_t msl_storage_bytes(tr *m, const msl_instance *x);
bool msl_note_storage(tr *m, msl_range type, msl_range dimensions);
bool msl_emit_entries(tr *m);

#endif
