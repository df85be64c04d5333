/* Inside of the tokenizer. Text becomes ids in stages, each a file:
 *
 * - added_tokens.c finds tokens matched in the text itself (control tokens, "<think>"), raw and after normalising;
 * - normalize.c rewrites the text between them (NFC, replace, prepend);
 * - pretokenize.c cuts it into pieces (regex splits, Metaspace, byte-level);
 * - bpe.c turns one piece into ids: merges of pairs, lowest rank first;
 * - tokenizer.c drives these and adds BOS and EOS; decode.c goes the way back.
 *
 * tokenizer_json.c and tokenizer_gguf.c fill the same structures from the two kinds of checkpoint. Everything here is
 * read-only after loading except text_bpe.whole (atomics); what a call needs to write lives in its own text_scratch. */
#ifndef SL_TEXT_TOKENIZER_INTERNAL_H
#define SL_TEXT_TOKENIZER_INTERNAL_H

#include "text/regex.h"
#include "text/text.h"

#include <stdatomic.h>

/* ---- vocabulary: id <-> bytes ----------------------------------------------------------------------------------- */

typedef struct text_piece {
    uint32_t offset; /* UINT32_MAX: no piece has this id */
    uint32_t length;
} text_piece;

typedef struct text_vocab {
    char *bytes;
    size_t used, capacity;
    text_piece *pieces;
    size_t size, pieces_capacity; /* ids are 0..size-1 */
    uint32_t *slots;              /* open addressing, id + 1; 0 = empty */
    size_t slot_count, filled;
    size_t longest;
} text_vocab;

/* Ids above this are refused: they would cost memory for nothing. */
#define TEXT_MAX_ID ((1 << 24) - 1)

/* False: out of memory. Of two ids with equal bytes the first is found. */
bool text_vocab_add(text_vocab *v, int32_t id, const char *p, size_t n);
int32_t text_vocab_find(const text_vocab *v, const char *p, size_t n); /* -1: none */
bool text_vocab_has(const text_vocab *v, int64_t id);
sl_str text_vocab_get(const text_vocab *v, int32_t id); /* {NULL, 0} for a hole */
void text_vocab_free(text_vocab *v);
uint64_t text_hash(const char *p, size_t n);

/* ---- Unicode ---------------------------------------------------------------------------------------------------- */

bool text_is_space(int32_t cp); /* White_Space */
bool text_is_word(int32_t cp);  /* \w of a whole-word test */
bool text_is_mark(int32_t cp);  /* general category M */
/* No normal form changes it or moves marks across it (in the reference). */
bool text_is_inert(int32_t cp);
/* GPT-2's byte alphabet: a byte as a printable character, and back (-1: not of the alphabet). */
int32_t text_byte_char(uint8_t byte);
int text_char_byte(int32_t cp);
bool text_append_byte_chars(sl_buf *out, const char *p, size_t n);
/* A copy of text for PCRE2 to look at: equal length, valid UTF-8, and characters that PCRE2's Unicode version does not
 * know (or treats unlike the reference) replaced by known ones of their category. Returns text itself where no copy is
 * needed. NULL: no memory. */
const char *text_shadow(const char *text, size_t n, sl_buf *copy);

/* The byte of "<0x0A>"; -1: not of that form. */
int text_byte_token(const char *p, size_t n);

/* ---- one call's working memory ---------------------------------------------------------------------------------- */

typedef struct text_span {
    size_t begin, end;
} text_span;

typedef struct text_spans {
    text_span *at;
    size_t count, capacity;
} text_spans;

typedef struct text_ids {
    int32_t *at;
    size_t count, capacity;
} text_ids;

typedef struct text_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t prev, next;
} text_symbol;

typedef struct text_candidate {
    uint32_t rank, at; /* at: index of the left symbol */
    int32_t left, right, merged;
} text_candidate;

typedef struct text_scratch {
    text_matcher matcher;
    sl_buf normal, spare; /* normalised text and the other half of its ping-pong */
    sl_buf edited, edit_spare;
    sl_buf shadow, key;
    text_spans pieces, pieces_next;
    text_symbol *symbols;
    size_t symbols_capacity;
    text_candidate *heap;
    size_t heap_count, heap_capacity;
    text_ids ids;
} text_scratch;

bool text_spans_push(text_spans *s, size_t begin, size_t end);
bool text_ids_push(text_ids *ids, int32_t id);
void text_scratch_free(text_scratch *s);
bool text_no_memory(sl_error *err); /* fills err, returns false */

/* ---- normalizer ------------------------------------------------------------------------------------------------- */

typedef enum text_edit_kind {
    TEXT_NFC,
    TEXT_NFD,
    TEXT_NFKC,
    TEXT_NFKD,
    TEXT_LOWERCASE,
    TEXT_STRIP,
    TEXT_STRIP_ACCENTS,
    TEXT_PREPEND,
    TEXT_REPLACE,     /* also a decoder step */
    TEXT_BYTE_CHARS,  /* normalizer ByteLevel: bytes to their characters */
    TEXT_CHAR_BYTES,  /* decoder ByteLevel: characters to their bytes */
    TEXT_BYTE_TOKEN,  /* decoder ByteFallback: "<0x0A>" to its byte */
    TEXT_SUFFIX_SPACE /* decoder BPEDecoder: an end-of-word suffix to a space */
} text_edit_kind;

typedef struct text_edit {
    text_edit_kind kind;
    bool left, right;  /* strip */
    text_regex *regex; /* replace; NULL: the literal `from` */
    char *from, *to;
    size_t from_size, to_size;
} text_edit;

typedef struct text_edits {
    text_edit *at;
    size_t count, capacity;
} text_edits;

/* Takes edit's allocations in any case. */
bool text_edits_push(text_edits *e, text_edit edit);
void text_edits_free(text_edits *e);
/* *out and *out_size: the edited text, in s or the input itself. */
bool text_edits_run(const text_edits *e, text_matcher *m, sl_buf *a, sl_buf *b, const char *text, size_t n,
                    const char **out, size_t *out_size, sl_error *err);

/* ---- pre-tokenizer ---------------------------------------------------------------------------------------------- */

typedef enum text_behavior {
    TEXT_REMOVED,
    TEXT_ISOLATED,
    TEXT_MERGED_WITH_PREVIOUS,
    TEXT_MERGED_WITH_NEXT,
    TEXT_CONTIGUOUS
} text_behavior;

typedef enum text_cut_kind {
    TEXT_SPLIT,       /* by regex */
    TEXT_FIXED,       /* every `length` characters */
    TEXT_SPACE_FIRST, /* every piece begins with a space */
    TEXT_METASPACE,   /* spaces become `mark`, which is put in front according to `prepend` */
    TEXT_BYTES        /* bytes become their characters (only where another step follows; else text_bpe.byte_level) */
} text_cut_kind;

typedef enum text_prepend { TEXT_PREPEND_NEVER, TEXT_PREPEND_FIRST, TEXT_PREPEND_ALWAYS } text_prepend;

typedef struct text_cut {
    text_cut_kind kind;
    text_regex *regex;
    text_behavior behavior;
    bool invert;
    size_t length;
    char mark[8];
    text_prepend prepend;
} text_cut;

typedef struct text_cuts {
    text_cut *at;
    size_t count, capacity;
} text_cuts;

/* Takes cut.regex in any case. */
bool text_cuts_push(text_cuts *c, text_cut cut);
void text_cuts_free(text_cuts *c);
/* Cuts text into s->pieces, spans of *out. at_start: text begins the whole input. */
bool text_cuts_run(const text_cuts *c, text_scratch *s, const char *text, size_t n, bool at_start, const char **out,
                   sl_error *err);

/* ---- model ------------------------------------------------------------------------------------------------------ */

typedef struct text_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX = empty */
    uint32_t rank;
    int32_t merged;
} text_merge;

typedef struct text_bpe {
    const text_vocab *vocab;
    const uint8_t *attr; /* TEXT_ATTR_* by id */
    text_merge *merges;  /* open addressing */
    size_t merge_slots, merge_count;
    text_vocab extra;      /* characters that occur only inside pieces; their symbol is vocab->size + id */
    int32_t byte_ids[256]; /* symbol of a byte: its character, or its "<0xXX>" piece; -1: none */
    int32_t unk;           /* -1: none */
    bool byte_level;       /* pieces are bytes, not characters */
    bool byte_fallback;
    bool fuse_unk;
    bool ignore_merges;    /* a piece that is in the vocabulary is that id */
    bool cut_marks;        /* no merge crosses into a U+2581: cutting there changes nothing and keeps pieces short */
    char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL: none */
    _Atomic uint8_t
        *whole; /* by id, what encoding its bytes gives: 0 not yet tried, 1 the id itself, 2 something else */
} text_bpe;

/* Room for about n merges. */
bool text_bpe_reserve(text_bpe *b, size_t n);
/* Last of equal pairs counts. */
bool text_bpe_add_merge(text_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged);
/* SentencePiece: every way to cut a piece in two that both can be symbols is a merge; the rank is that of the piece's
 * score (higher first). */
bool text_bpe_merges_from_scores(text_bpe *b, const float *scores, sl_error *err);
/* After vocabulary, attributes and merges are complete. */
bool text_bpe_finish(text_bpe *b, sl_error *err);
/* Appends the ids of one piece to s->ids. */
bool text_bpe_encode(const text_bpe *b, text_scratch *s, const char *p, size_t n, sl_error *err);
void text_bpe_free(text_bpe *b);

/* ---- added tokens ----------------------------------------------------------------------------------------------- */

typedef struct text_added {
    int32_t id;
    char *content;
    size_t size;
    bool special, lstrip, rstrip, single_word, normalized;
} text_added;

typedef struct text_trie_node {
    int32_t sibling, child; /* -1: none */
    int32_t token;          /* index into added; -1: none ends here */
    uint8_t byte;
} text_trie_node;

typedef struct text_trie {
    text_trie_node *nodes;
    size_t count, capacity;
    int32_t root[256];
} text_trie;

typedef struct text_added_list {
    text_added *at;
    size_t count, capacity;
    text_trie raw, normal;
} text_added_list;

typedef struct text_hit {
    size_t begin, end;
    const text_added *token;
} text_hit;

/* Copies content. */
bool text_added_push(text_added_list *l, text_added token);
/* Builds both tries; `edits` is the normalizer, which also normalises the tokens that ask for it. */
bool text_added_finish(text_added_list *l, const text_edits *edits, sl_error *err);
/* First token at or after *from; *from moves behind what was looked at. Leftmost, longest. `floor`: end of the hit
 * before. */
bool text_added_next(const text_added_list *l, bool normal, bool special, const char *text, size_t n, size_t floor,
                     size_t *from, text_hit *hit);
void text_added_free(text_added_list *l);

/* ---- tokenizer -------------------------------------------------------------------------------------------------- */

enum {
    TEXT_ATTR_CONTROL = 1, /* special: not shown, not reached by plain text */
    TEXT_ATTR_STOP = 2,
    TEXT_ATTR_BYTE = 4,  /* "<0xXX>" */
    TEXT_ATTR_ADDED = 8, /* matched in the text; its bytes are its content */
    TEXT_ATTR_NO_MODEL = TEXT_ATTR_CONTROL | TEXT_ATTR_BYTE
};

/* What encoding puts in front of a text, so that decoding takes it off. */
typedef enum text_lead { TEXT_LEAD_NONE, TEXT_LEAD_FIRST, TEXT_LEAD_EACH } text_lead;

struct sl_tokenizer {
    char *name; /* for messages */
    text_vocab vocab;
    uint8_t *attr;
    size_t attr_capacity;
    text_edits normalizer, decoder;
    text_cuts cuts;
    text_bpe bpe;
    text_added_list added;
    text_lead lead;
    int32_t bos, eos;
    text_ids before, after; /* what bos_eos adds */
};

sl_tokenizer *text_tokenizer_new(const char *name, sl_error *err);
/* One more added token: into vocabulary, attributes and list. A content that the vocabulary has keeps its id there. */
bool text_tokenizer_add_token(sl_tokenizer *t, text_added token, sl_error *err);
/* Sizes attr; call after the model's vocabulary is complete. */
bool text_tokenizer_vocab_done(sl_tokenizer *t, sl_error *err);
/* A stop token is a control token too: no text a user writes may end a generation. */
void text_tokenizer_set_stop(sl_tokenizer *t, int64_t id);
/* Marks the well-known end-of-turn tokens, builds tries and tables. */
bool text_tokenizer_finish(sl_tokenizer *t, sl_error *err);

/* extra_stops: an id or a list of ids that end a generation too; NULL: none. */
sl_tokenizer *text_tokenizer_from_json(const char *json, size_t n, const json_t *config, const json_t *extra_stops,
                                       const char *name, sl_error *err);

/* Components of tokenizer.json (tokenizer_parts.c); `where` names the field in messages. */
bool text_parse_normalizer(text_edits *out, const json_t *j, const char *where, int depth, sl_error *err);
bool text_parse_pre_tokenizer(sl_tokenizer *t, const json_t *j, const char *where, int depth, sl_error *err);
bool text_parse_decoder(text_edits *out, const json_t *j, const char *where, int depth, sl_error *err);
bool text_parse_post_processor(sl_tokenizer *t, const json_t *j, const char *where, int depth, sl_error *err);

/* Pre-tokenizers of GGUF by name (gguf_pre.c). */
enum { TEXT_PRE_IGNORE_MERGES = 1, TEXT_PRE_ADDS_BOS = 2, TEXT_PRE_NFC = 4, TEXT_PRE_NO_BOS = 8 };

typedef struct text_pre_row {
    const char *name;
    unsigned flags;
    const char *regex[6]; /* applied one after the other, matches isolated */
} text_pre_row;

const text_pre_row *text_pre_find(const char *name, size_t n);
size_t text_pre_count(void);
const text_pre_row *text_pre_at(size_t i);

sl_tokenizer *text_tokenizer_from_gguf(const sl_ckpt *c, sl_error *err);

#endif
