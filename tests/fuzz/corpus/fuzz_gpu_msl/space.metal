namespace a { namespace { struct X { int x; X(int y) thread : x(y) {} X(int y) device : x(y) {} operator float() const constant { return 1; } }; } }
inline float g(device float *p) { return p ? *p : 0; } float g(threadgroup float *p) { return p ? *p : 0; }
template <typename T> struct E; template <typename T> struct E<device T *> {}; template <typename T> struct E<thread T *> {};
[[host_name("k.1")]] [[kernel]] [[max_total_threads_per_threadgroup(64)]] void k(constant float (&m)[2][3], device a::X &x) { ::g(0); m[0][1] >>= 1 >> 2; }
vertex float4 v(uint i [[vertex_id]]) { return 0; }
