/* random: numbers for forecasts, the same in every run. Private to engine. */
#ifndef SL_ENGINE_RANDOM_H
#define SL_ENGINE_RANDOM_H

#include <stdint.h>

/* splitmix64 */
static inline uint64_t engine_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* 0 to 1, without 1 */
static inline double engine_random_unit(uint64_t *state) {
    return (double)(engine_random(state) >> 11) * 0x1p-53;
}

#endif
