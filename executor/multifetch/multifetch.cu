// One launch that copies or combines any number of boxes of elements.
//
// A segment is a box of a target; every element of it becomes the reducer's identity combined with the elements of the
// segment's terms at the same coordinates, in their order; a copy has one term and no reducer. No segment of a launch
// writes what another one reads or writes. The tables are made in table.py; types are spelt so that NVRTC needs no header.

typedef uint4 Byte16;

constexpr int DIMS = 6;
constexpr unsigned ELEMENTS_PER_BLOCK = 2048;

struct Segment {
    Byte8 target;
    long long strides[DIMS];  // in bytes
    unsigned shape[DIMS];
    unsigned elements;
    int dims;
    int first_term;
    int terms;
    int kind;  // 0 to 4: copies of 1, 2, 4, 8, 16 bytes; then 5 dtypes of each reducer
    int unused;
};

struct Term {
    Byte8 source;
    long long strides[DIMS];
};

static_assert(sizeof(Segment) == 104 && sizeof(Term) == 56, "table.py lays the tables out alike");

// Reducers. Integers wrap around; of a maximum or minimum one that is not a number remains.

struct Sum {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
    static __device__ __forceinline__ double of(double a, double b) { return a + b; }
    static __device__ __forceinline__ int of(int a, int b) { return int(unsigned(a) + unsigned(b)); }
    template <class T> static __device__ __forceinline__ T identity(T) { return T(0); }
};

struct Prod {
    static __device__ __forceinline__ float of(float a, float b) { return a * b; }
    static __device__ __forceinline__ double of(double a, double b) { return a * b; }
    static __device__ __forceinline__ int of(int a, int b) { return int(unsigned(a) * unsigned(b)); }
    template <class T> static __device__ __forceinline__ T identity(T) { return T(1); }
};

__device__ __forceinline__ float infinity(float) { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ double infinity(double) { return double(infinity(0.0f)); }
__device__ __forceinline__ int infinity(int) { return 0x7fffffff; }
__device__ __forceinline__ float lowest(float) { return -infinity(0.0f); }
__device__ __forceinline__ double lowest(double) { return -infinity(0.0); }
__device__ __forceinline__ int lowest(int) { return -0x7fffffff - 1; }

struct Max {
    template <class T> static __device__ __forceinline__ T of(T a, T b) { return a > b || a != a ? a : b; }
    template <class T> static __device__ __forceinline__ T identity(T kind) { return lowest(kind); }
};

struct Min {
    template <class T> static __device__ __forceinline__ T of(T a, T b) { return a < b || a != a ? a : b; }
    template <class T> static __device__ __forceinline__ T identity(T kind) { return infinity(kind); }
};

struct Place {
    unsigned at[DIMS];
};

__device__ __forceinline__ Place place(const Segment& segment, unsigned index) {
    Place found;
#pragma unroll
    for (int dim = DIMS - 1; dim >= 0; --dim) {
        if (dim >= segment.dims) {
            found.at[dim] = 0;
        } else if (dim == 0) {
            found.at[dim] = index;
        } else {
            unsigned extent = segment.shape[dim], quotient = index / extent;
            found.at[dim] = index - quotient * extent;
            index = quotient;
        }
    }
    return found;
}

__device__ __forceinline__ Byte8 address(Byte8 start, const long long* strides, const Place& place) {
#pragma unroll
    for (int dim = 0; dim < DIMS; ++dim) start += Byte8(strides[dim] * (long long)(place.at[dim]));
    return start;
}

template <class Unit> struct Copy {
    static __device__ __forceinline__ void run(const Segment& segment, const Term* terms, unsigned index) {
        Place here = place(segment, index);
        const Unit* source = (const Unit*)(address(terms[0].source, terms[0].strides, here));
        *(Unit*)(address(segment.target, segment.strides, here)) = *source;
    }
};

template <class Reducer, class Kind> struct Combine {
    static __device__ __forceinline__ void run(const Segment& segment, const Term* terms, unsigned index) {
        typedef typename Kind::Stored Stored;
        Place here = place(segment, index);
        Stored value = rounded(Reducer::identity(typename Kind::Wide()), Kind());
#pragma unroll 1
        for (int term = 0; term < segment.terms; ++term) {
            Stored found = *(const Stored*)(address(terms[term].source, terms[term].strides, here));
            value = rounded(Reducer::of(widened(value, Kind()), widened(found, Kind())), Kind());
        }
        *(Stored*)(address(segment.target, segment.strides, here)) = value;
    }
};

template <class Work> __device__ void each(const Segment& segment, const Term* terms, unsigned first) {
    unsigned last = segment.elements - first < ELEMENTS_PER_BLOCK ? segment.elements : first + ELEMENTS_PER_BLOCK;
#pragma unroll 1
    for (unsigned index = first + threadIdx.x; index < last; index += blockDim.x) Work::run(segment, terms, index);
}

template <class Reducer>
__device__ void combine(int dtype, const Segment& segment, const Term* terms, unsigned first) {
    switch (dtype) {
        case 0: return each<Combine<Reducer, Float16>>(segment, terms, first);
        case 1: return each<Combine<Reducer, BFloat16>>(segment, terms, first);
        case 2: return each<Combine<Reducer, Float32>>(segment, terms, first);
        case 3: return each<Combine<Reducer, Float64>>(segment, terms, first);
        case 4: return each<Combine<Reducer, Int32>>(segment, terms, first);
    }
}

// Block b works on the last segment whose first block is not behind b.
extern "C" __global__ void multifetch(
    const Segment* segments, const Term* all_terms, const int* first_blocks, int count) {
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first_blocks[middle] <= int(blockIdx.x)) low = middle; else high = middle;
    }
    const Segment& segment = segments[low];
    const Term* terms = all_terms + segment.first_term;
    unsigned first = (blockIdx.x - unsigned(first_blocks[low])) * ELEMENTS_PER_BLOCK;
    switch (segment.kind) {
        case 0: return each<Copy<Byte1>>(segment, terms, first);
        case 1: return each<Copy<Byte2>>(segment, terms, first);
        case 2: return each<Copy<Byte4>>(segment, terms, first);
        case 3: return each<Copy<Byte8>>(segment, terms, first);
        case 4: return each<Copy<Byte16>>(segment, terms, first);
    }
    int reducer = (segment.kind - 5) / 5, dtype = (segment.kind - 5) % 5;
    switch (reducer) {
        case 0: return combine<Sum>(dtype, segment, terms, first);
        case 1: return combine<Prod>(dtype, segment, terms, first);
        case 2: return combine<Max>(dtype, segment, terms, first);
        case 3: return combine<Min>(dtype, segment, terms, first);
    }
}
