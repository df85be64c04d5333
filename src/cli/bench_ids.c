/* The ids that a benchmark forces, so that every engine and every run does the same work. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

static const char text[] =
    "A mill stands where a stream falls, and the miller does not own the rain. What he owns is a gate. When the gate "
    "is "
    "shut the pond behind it fills; when it is open the wheel turns, and how far it is open decides whether the stones "
    "grind flour or only warm themselves. All the cleverness of the place is in that plank of oak: it must let through "
    "what is wanted now, at once, and keep back what will be wanted later.\n\n"
    "Most of the water never reaches the wheel. In March it runs over the weir in a brown sheet, in August there is "
    "hardly enough to wet the paddles, and the miller learns to read the sky, the colour of the pond, the sound of the "
    "race under the floor. He keeps a book. On Monday 14 April he ground 31 sacks of wheat in nine hours; on the 15th, "
    "with the same gate and a falling pond, only 22. He writes both down, because a number without its day is worth "
    "nothing.\n\n"
    "His daughter asked why he did not build a larger pond. \"Because the pond is not the stream,\" he said. \"A pond "
    "twice as large is full half as often. What we need is to open the gate before the stones run dry, and for that "
    "one "
    "must know which sacks come next.\" She thought about it, and painted marks on the sacks: wheat, rye, barley, "
    "oats. "
    "The carter grumbled, then began to load them in the order in which they would be ground; and from then on the "
    "stones seldom waited.\n\n"
    "Question: if the mill grinds 3.5 sacks an hour and a cart brings 12 sacks every 4 hours, how long until the yard, "
    "which holds 40, is empty? Answer: the mill takes 14 sacks in the time in which 12 arrive, so the yard loses 2 "
    "sacks every 4 hours, and 40 sacks last 80 hours. But that is an average. A cart that comes late finds the stones "
    "idle, and an idle hour cannot be made up, however full the yard is the next day.\n\n"
    "def grind(sacks, rate):\n"
    "    \"\"\"Hours until the last sack is flour.\"\"\"\n"
    "    hours = 0.0\n"
    "    for weight in sacks:\n"
    "        hours += weight / rate\n"
    "    return hours\n\n"
    "Years later engineers came with instruments of brass. They measured the fall of the stream (4.2 metres), its flow "
    "in a dry week (0.18 cubic metres a second) and in a wet one (2.6), multiplied, divided, and told the miller's "
    "daughter that her mill used less than half of what the water could give. She asked where the rest went. Some went "
    "over the weir at night, they said; some was lost where the race turned too sharply; and some, a surprising "
    "amount, "
    "was lost each time the gate was moved, because whoever moved it waited to see what the wheel did before moving it "
    "again. \"So it is not the water,\" she said, \"and it is not the wheel. It is the waiting.\" They agreed that one "
    "could put it so, and wrote it into their report on page seven, where nobody has read it since.\n";

static bool text_ids(const sl_engine *e, int32_t **ids, size_t *count, sl_error *err) {
    int32_t *got = NULL;
    if (!sl_tokenize(e, text, sizeof text - 1, false, false, &got, count, err))
        return false;
    *ids = malloc((*count + 1) * sizeof **ids);
    if (*ids)
        memcpy(*ids, got, *count * sizeof **ids);
    sl_free(got);
    return *ids || sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu ids", *count);
}

static bool random_ids(size_t need, int vocab, int32_t **ids, size_t *count, sl_error *err) {
    uint64_t state = 1;
    *ids = malloc((need + 1) * sizeof **ids);
    for (size_t i = 0; *ids && i < need; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        (*ids)[i] = (int32_t)((state >> 33) % (uint64_t)vocab);
    }
    *count = need;
    return *ids || sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu ids", need);
}

static bool file_ids(const char *path, int vocab, int32_t **ids, size_t *count, sl_error *err) {
    size_t size;
    char *file = cli_read_input(path, 256 << 20, &size, err);
    bool ok = file && cli_parse_ids(file, ids, count, err);
    free(file);
    for (size_t i = 0; ok && i < *count; i++)
        if ((*ids)[i] >= vocab)
            ok = sl_fail(err, SL_ERR_ARGUMENT, "%s: id %zu is %d, the vocabulary has %d", path, i, (*ids)[i], vocab);
    return ok;
}

/* Too few ids go round again. */
static bool repeat_ids(int32_t **ids, size_t count, size_t need, sl_error *err) {
    if (count == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "no ids to force");
    if (count >= need)
        return true;
    int32_t *more = realloc(*ids, need * sizeof **ids);
    if (!more)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu ids", need);
    for (size_t i = count; i < need; i++)
        more[i] = more[i - count];
    *ids = more;
    return true;
}

bool bench_ids(const sl_engine *e, const cli_args *a, size_t need, int32_t **ids, sl_error *err) {
    sl_engine_info info;
    size_t count = 0;
    bool ok;
    *ids = NULL;
    cli_get_info(e, &info);
    if (!a->ids)
        ok = text_ids(e, ids, &count, err);
    else if (strcmp(a->ids, "random") == 0)
        ok = random_ids(need, info.vocab, ids, &count, err);
    else
        ok = file_ids(a->ids, info.vocab, ids, &count, err);
    ok = ok && repeat_ids(ids, count, need, err);
    if (!ok) {
        free(*ids);
        *ids = NULL;
    }
    return ok;
}
