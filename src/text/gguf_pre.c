/* Pre-tokenizers that GGUF names in tokenizer.ggml.pre: the expressions of the makers' own tokenizers, in Oniguruma's
 * syntax. */
#include "text/tokenizer_internal.h"

#include <string.h>

#define MERGES TEXT_PRE_IGNORE_MERGES
#define BOS    TEXT_PRE_ADDS_BOS
#define NFC    TEXT_PRE_NFC
#define NO_BOS TEXT_PRE_NO_BOS

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SPACE       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORD        "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"

#define LLAMA3 CONTRACTION "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" SPACE
#define QWEN2  CONTRACTION "|" WORD "|\\p{N}|" SYMBOLS "|" SPACE
#define QWEN35 CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACE

/* Words by case: "HTMLPage" -> "HTMLPage", "camelCase" -> "camel", "Case". */
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(end)                                                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" end "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" end
#define GPT4O  CASED(CONTRACTION "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE
#define TEKKEN CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE
#define NO_HAN "&&[^\\p{Han}]"
#define KIMI                                                                                                           \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[" UPPER NO_HAN "]*[" LOWER NO_HAN "]+" CONTRACTION                             \
    "?|[^\\r\\n\\p{L}\\p{N}]?[" UPPER NO_HAN "]+[" LOWER NO_HAN "]*" CONTRACTION "?|\\p{N}{1,3}|" SYMBOLS "|" SPACE

#define CJK          "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK3                                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "              \
    "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACE
#define SPARK                                                                                                          \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "              \
    "?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+"
/* Cased letters. */
#define DEEPSEEK_LETTERS                                                                                               \
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-"      \
    "\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-"     \
    "\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-"        \
    "\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"         \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-"        \
    "\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"           \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-"        \
    "\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"           \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"          \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"           \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-"        \
    "\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"       \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"        \
    "\\x{1e900}-\\x{1e943}]+"
#define DEEPSEEK_PUNCTUATION "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"

#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define JAIS2                                                                                                          \
    CONTRACTION "|" WORD "|\\p{N}{1,3}|" SYMBOLS                                                                       \
                "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|"        \
                "\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"
#define BAILING                                                                                                        \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|"        \
    "\\s+(?!\\S)|\\s+"
#define SEED CONTRACTION "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACE
#define EXAONE_MOE                                                                                                     \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|" \
                "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define YOUTU_CJK                                                                                                      \
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}"       \
    "\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|" CJK
#define YOUTU CASED(CONTRACTION "?") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE
#define AFMOE_ASIAN                                                                                                    \
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}\\x{ff65}-"       \
    "\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}\\x{e80}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-"   \
    "\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+"
/* Digits in threes from the right, of a number that is a piece of its own; ^ saves looking ahead at each place. */
#define THREES "^\\p{N}{1,2}(?=(?:\\p{N}{3})+$)|\\p{N}{3}"

static const text_pre_row rows[] = {
    {"default", 0, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},

    {"gpt-2", 0, {GPT2}},
    {"phi-2", 0, {GPT2}},
    {"jina-es", 0, {GPT2}},
    {"jina-de", 0, {GPT2}},
    {"jina-v2-es", 0, {GPT2}},
    {"jina-v2-de", 0, {GPT2}},
    {"jina-v1-en", 0, {GPT2}},
    {"jina-v2-code", 0, {GPT2}},
    {"roberta-bpe", 0, {GPT2}},
    {"gigachat", 0, {GPT2}},
    {"a.x-4.0", 0, {GPT2}},
    {"mellum", 0, {GPT2}},
    {"modern-bert", 0, {GPT2}},
    {"mpt", 0, {GPT2}},
    {"olmo", 0, {GPT2}},
    {"jais", 0, {GPT2}},
    {"trillion", 0, {GPT2}},
    {"granite-docling", 0, {GPT2}},
    {"exaone4", 0, {GPT2}},

    {"starcoder", 0, {"\\p{N}", GPT2}},
    {"refact", 0, {"\\p{N}", GPT2}},
    {"command-r", 0, {"\\p{N}", GPT2}},
    {"smollm", 0, {"\\p{N}", GPT2}},
    {"codeshell", 0, {"\\p{N}", GPT2}},
    {"exaone", 0, {"\\p{N}", GPT2}},
    {"minerva-7b", 0, {"\\p{N}", GPT2}},
    {"mellum2", 0, {"\\p{N}", GPT2}},

    {"llama3", MERGES | BOS, {LLAMA3}},
    {"llama-v3", MERGES | BOS, {LLAMA3}},
    {"llama-bpe", MERGES | BOS, {LLAMA3}},
    {"falcon3", MERGES | BOS, {LLAMA3}},
    {"falcon-h1", MERGES | BOS, {LLAMA3}},
    {"pixtral", MERGES | BOS, {LLAMA3}},
    {"midm-2.0", MERGES | BOS, {LLAMA3}},
    {"lfm2", MERGES | BOS, {LLAMA3}},
    {"jina-v5-nano", MERGES | BOS, {LLAMA3}},
    {"dbrx", 0, {LLAMA3}},
    {"smaug-bpe", 0, {LLAMA3}},
    {"glm4", NO_BOS, {LLAMA3}},
    {"chatglm-bpe", NO_BOS, {LLAMA3}},
    {"jais-2", 0, {JAIS2}},

    {"qwen2", NFC, {QWEN2}},
    {"qwen35", NFC, {QWEN35}},
    {"deepseek-r1-qwen", 0, {QWEN2}},
    {"kormo", 0, {QWEN2}},
    {"f2llmv2", 0, {QWEN2}},
    {"megrez", 0, {QWEN2}},
    {"stablelm2", 0, {QWEN2}},
    {"hunyuan", 0, {QWEN2}},
    {"solar-open", 0, {QWEN2}},
    {"grok-2", 0, {QWEN2}},
    {"laguna", 0, {"[^\\n]+|[\\n]+", QWEN2}},
    {"minicpm5", MERGES, {"\\p{N}{1,3}", CONTRACTION "|" WORD "|\\p{N}+|" SYMBOLS "|" SPACE}},
    {"ufakzeka", 0, {WORD "|\\p{N}|" SYMBOLS "|" SPACE}},
    {"seed-coder", 0, {SEED}},
    {"bailingmoe", 0, {BAILING}},
    {"bailingmoe2", 0, {BAILING}},
    {"llada-moe", 0, {BAILING}},
    {"exaone-moe", 0, {EXAONE_MOE}},

    {"gpt-4o", 0, {GPT4O}},
    {"llama4", 0, {GPT4O}},
    {"kanana2", 0, {GPT4O}},
    {"talkie", 0, {GPT4O}},
    {"minimax-m2", 0, {GPT4O}},
    {"tiny_aya", 0, {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}},
    {"cohere2moe", 0, {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}},
    {"tekken", MERGES | BOS, {TEKKEN}},
    {"kimi-k2", 0, {KIMI}},
    {"youtu", MERGES, {YOUTU_CJK, YOUTU}},

    {"deepseek-llm", 0, {"[\\r\\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, "\\s+$", DEEPSEEK_CJK, "\\p{N}+"}},
    {"deepseek-coder", 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {"deepseek-v3", 0, {"\\p{N}{1,3}", CJK, DEEPSEEK3}},
    {"hunyuan-dense", 0, {"\\p{N}{1,3}", CJK, DEEPSEEK3}},
    {"joyai-llm", 0, {"\\p{N}{1,3}", CJK, DEEPSEEK3}},
    {"hy_v4", 0, {"\\p{N}{1,3}", CJK, DEEPSEEK3}},
    {"spark2_5", 0, {"\\p{N}{1,3}", CJK, SPARK, "\\p{N}"}},
    {"afmoe", 0, {"\\p{N}+", THREES, AFMOE_ASIAN, DEEPSEEK3}},

    {"falcon", 0, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"superbpe", 0, {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {"poro-chat", 0, {BLOOM}},
    {"bloom", 0, {BLOOM}},
    {"gpt3-finnish", 0, {BLOOM}},
    {"viking", 0, {BLOOM, "\\p{N}"}},
    {"chameleon",
     BOS,
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
};

const text_pre_row *text_pre_find(const char *name, size_t n) {
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}

size_t text_pre_count(void) {
    return SL_COUNT(rows);
}
const text_pre_row *text_pre_at(size_t i) {
    return &rows[i];
}
