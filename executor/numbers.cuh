// Types and conversions that kernels share, put before their source; spelt so that NVRTC needs no header.

typedef unsigned char Byte1;
typedef unsigned short Byte2;
typedef unsigned int Byte4;
typedef unsigned long long Byte8;

// Elements as they are computed with (Wide), and how they are read and written.

struct Float32 { typedef float Stored; typedef float Wide; };
struct Float64 { typedef double Stored; typedef double Wide; };
struct Int32 { typedef int Stored; typedef int Wide; };
struct Float16 { typedef Byte2 Stored; typedef float Wide; };
struct BFloat16 { typedef Byte2 Stored; typedef float Wide; };

__device__ __forceinline__ float widened(float value, Float32) { return value; }
__device__ __forceinline__ double widened(double value, Float64) { return value; }
__device__ __forceinline__ int widened(int value, Int32) { return value; }
__device__ __forceinline__ float rounded(float value, Float32) { return value; }
__device__ __forceinline__ double rounded(double value, Float64) { return value; }
__device__ __forceinline__ int rounded(int value, Int32) { return value; }

__device__ __forceinline__ float widened(Byte2 bits, BFloat16) { return __uint_as_float(Byte4(bits) << 16); }

__device__ __forceinline__ Byte2 rounded(float value, BFloat16) {
    Byte4 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return Byte2((bits >> 16) | 0x40u);
    return Byte2((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ float widened(Byte2 bits, Float16) {
    Byte4 sign = Byte4(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
    if (exponent == 31u) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0u) return __uint_as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
    return __uint_as_float(sign | __float_as_uint(float(fraction) * 5.9604644775390625e-8f));  // 2^-24
}

__device__ __forceinline__ Byte2 rounded(float value, Float16) {
    Byte4 bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return Byte2(sign | 0x7e00u);
    if (size >= 0x477ff000u) return Byte2(sign | 0x7c00u);  // rounds to infinity
    if (size < 0x38800000u) return Byte2(sign | Byte4(rintf(__uint_as_float(size) * 16777216.0f)));
    return Byte2(sign | ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13));
}
