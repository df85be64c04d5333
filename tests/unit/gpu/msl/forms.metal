#include <metal_stdlib>
using namespace metal;
/* Forms of declarations that decide over layout, over indices and over what is called. */
struct __attribute__((packed)) Gnu { uchar a; uint b; };
struct [[gnu::packed]] Cxx { uchar a; ushort b; };
#pragma pack(push, 1)
struct Pragma { uchar a; float b; };
#pragma pack(pop)
struct Loose { uchar a; float b; };
struct Behind { uchar a; float b; } __attribute__((packed));
typedef struct { uchar a; float b; } __attribute__((packed)) Typedef;
static_assert(sizeof(Typedef) == 5, "size");
static_assert(sizeof(Gnu) == 5 && sizeof(Cxx) == 3 && sizeof(Pragma) == 5 && sizeof(Loose) == 8 && sizeof(Behind) == 5, "sizes");
enum class Slot : uchar { in, out = 3 };
namespace slots { constant constexpr int third = 2; }
constant float3x3 identity = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
[[visible]] float twice(float x) { return 2 * x; }
kernel void forms(device const Pragma *in [[buffer(int(Slot::in))]], device float *out [[buffer(static_cast<uint>(Slot::out))]],
                  device float *mid [[buffer((int)Slot::in + 1)]], coherent(device) device uint *n [[buffer(slots::third)]],
                  uint i [[thread_position_in_grid]]) {
    float2x2 a = {{1, 2}, {3, 4}};
    half4x4 h = {half4(1), {1, 2, 3, 4}, half4(2), 3};
    out[i] = twice(in[i].b) + identity[1][1] + a[1].x + float(h[1][2]) + mid[0];
    n[i] = __builtin_bswap32(i) + __builtin_rotateleft32(i, 3) + __builtin_rotateright64(i, 3) + __builtin_bswap64(i) + __builtin_bswap16(i) + __builtin_popcountll(i) + __builtin_bitreverse32(i);
    simdgroup_float8x8 m = make_diagonal_simdgroup_matrix<float, 8, 8>(2.0f), k = m * m;
    simdgroup_store(k, out + 64);
}
