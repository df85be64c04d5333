/* Use of the engine over the tiny checkpoints of tests/golden, through the public header. What fails, fails the test.
 */
#ifndef SUPPORT_MODEL_H
#define SUPPORT_MODEL_H

#include "engine/internal.h"

#define GOLDEN SL_SOURCE_DIR "/tests/golden/arch/"
#define MIB    ((uint64_t)1 << 20)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

typedef struct model_text {
    int32_t tokens[300];
    int count;
    char bytes[4096];
    size_t size;
    sl_event last;
} model_text;

sl_engine_options model_options_of(const char *model);
sl_engine *model_must_open(const sl_engine_options *o);
sl_engine_info model_info_of(const sl_engine *e);
sl_stats model_stats_of(const sl_engine *e);
int32_t model_token_at(int stream, int i);
sl_seq *model_new_seq(sl_engine *e);
/* Appends tokens [from, to) of a stream; logits of the last row into out (NULL: none). */
void model_append(sl_engine *e, sl_seq *s, int stream, int from, int to, float *out);
sl_request *model_start(sl_engine *e, int stream, int n, int max_tokens, float temperature);
void model_collect(sl_request *r, model_text *t);
/* Goes on from s with `prompt` tokens of a stream and generates at most `most`. */
sl_request *model_answer(sl_seq *s, int stream, int prompt, int most);
/* `calls` calls in turn over the sequences, of 1, 2, 3 or 20 rows each; those that fail, of a read, take nothing in.
 * at: how far each sequence came. Returns how many failed. */
int model_disturbed(sl_engine *e, sl_seq **s, int *at, int seqs, int calls);

enum { MODEL_VOCAB = 1024 }; /* more than any of them has */
/* Logits after these tokens in a sequence of its own. */
void model_straight(sl_engine *e, const int32_t *tokens, int n, float *logits);
/* s goes on with one more token as a straight run of all of them does in `undisturbed`: the same bits. */
void model_check_continues(sl_seq *s, sl_engine *undisturbed);

#endif
