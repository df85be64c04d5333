#include <metal_stdlib>
using namespace metal;
struct Ray { float3 o, d; float3 at(float t) const { return o + t * d; } };
struct Hit { bool ok = false; float t = INFINITY; uint id; };
class Rng { uint s; public: Rng(uint seed) : s(seed) {} float next() { s ^= s << 13; s ^= s >> 17; s ^= s << 5; return float(s) / 4294967295.0; } };
static Hit trace(const thread Ray &r, constant packed_float4 *sp, uint n) {
    Hit h;
    for (uint i = 0; i < n; ++i) {
        const packed_float4 s = sp[i];
        float3 oc = r.o - float3(s[0], s[1], s[2]);
        float b = dot(oc, r.d), c = dot(oc, oc) - s[3] * s[3];
        float d = b * b - c;
        if (d > 0 && -b - sqrt(d) < h.t) { h.ok = true; h.t = -b - sqrt(d); h.id = i; }
    }
    return h;
}
inline float3 operator^(float3 a, float3 b) { return cross(a, b); }
template <typename T> T sq(T x) { return x * x; }
template <uint N> float sum(thread const float (&a)[N]) { float s = 0; for (uint i = 0; i < N; ++i) s += a[i]; return s; }
void swp(thread float &a, thread float &b) { float t = a; a = b; b = t; }
kernel void c1(device float4 *img [[buffer(0)]], constant packed_float4 *sp [[buffer(1)]], constant uint2 &size [[buffer(2)]], constant uint &n [[buffer(3)]], uint2 g [[thread_position_in_grid]]) {
    if (any(g >= size)) return;
    Rng rng(g.x * 9781 + g.y * 6271 | 1);
    float2 uv = (float2(g) + float2(rng.next(), rng.next())) / float2(size) * 2 - 1;
    uv.y *= -1; uv.x *= float(size.x) / size.y;
    Ray r{float3(0), normalize(float3(uv, -1))};
    Hit h = trace(r, sp, n);
    float3 col = h.ok ? normalize(r.at(h.t)) * 0.5 + 0.5 : mix(float3(1), float3(0.5, 0.7, 1.0), 0.5 * (r.d.y + 1));
    float a[3] = {col.x, col.y, col.z}; float z = sum(a); swp(a[0], a[1]);
    col.rgb = col.bgr; col.rg += sq(col.gb); col = col ^ float3(0, 1, 0); col = max(col, 0); col = pow(col, 1.0 / 2.2); col = clamp(col, 0.0, 1.0); col = min(col, float3(1)) * (float3)z;
    img[g.y * size.x + g.x] = float4(col, 1.0);
}
#define MAKE(name, T, op) kernel void name(device const T *a [[buffer(0)]], device const T *b [[buffer(1)]], device T *o [[buffer(2)]], uint i [[thread_position_in_grid]]) { o[i] = a[i] op b[i]; }
MAKE(add_f, float, +)
MAKE(mul_h, half, *)
MAKE(and_u, uint, &)
namespace util { constant int K = 4; template <typename T> struct Op { static T apply(T a) { return a + T(K); } }; }
template <typename T, template <typename> class F> kernel void app(device T *o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i] = F<T>::apply(o[i]); }
template [[host_name("app_f")]] kernel void app<float, util::Op>(device float *, uint);
template [[host_name("app_h")]] kernel void app<half, util::Op>(device half *o [[buffer(0)]], uint i [[thread_position_in_grid]]);
kernel void c2(device float *o [[buffer(0)]], device const uchar *p [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float v = *((device const float *)(p + 4 * i)); uint4 q = *(device const uint4 *)p; half2 h = as_type<half2>(q.x); float f = as_type<float>(uchar4(p[0], p[1], p[2], p[3]));
    int idx = int(i); idx = idx > 3 ? idx : 3; float arr[2][3] = {{1, 2, 3}, {4, 5, 6}};
    o[i] = v + h.x + f + arr[idx & 1][idx % 3] + (idx ? 1.0 : 0) + (i & 1 ? h.x : 0.5h) + fabs(-1.0) + abs(-2) + max(1.0, v) + min(0.5, v) + pow(v, 2) + pow(2, v) + max(0, idx) + fmax(v, 0) + step(0.5, v) + mix(1.0, 2.0, v) + smoothstep(0, 1, v);
}
