// sums[r, c] is the sum of values[order[n], c] over all n with rows[n] == r, in ascending order of n.
//
// `rows` ascends, so a row's values are neighbours, which each thread finds by bisection; rows outside [0, count) are of
// no sum. A thread adds up elements of one row, up to COLUMNS of them, which neighbouring threads have in turn; each is
// added up by one thread, so that the order of additions, and with it every bit, is always the same.

const long long COLUMNS = 8;

__device__ long long lower_bound(const long long* rows, long long size, long long row) {
    long long low = 0, high = size;
    while (low < high) {
        long long middle = (low + high) / 2;
        if (rows[middle] < row) low = middle + 1; else high = middle;
    }
    return low;
}

template <class Kind>
__device__ void segment_sums(const long long* rows, const long long* order, const typename Kind::Stored* values,
                             typename Kind::Stored* sums, long long size, long long count, long long columns) {
    long long group = (long long)(blockIdx.x) * blockDim.x + threadIdx.x, groups = (columns + COLUMNS - 1) / COLUMNS;
    if (group >= count * groups) return;
    long long row = group / groups, first = lower_bound(rows, size, row);
    for (long long column = group % groups; column < columns; column += groups) {
        typename Kind::Wide sum = 0;
        for (long long n = first; n < size && rows[n] == row; ++n)
            sum += widened(values[order[n] * columns + column], Kind());
        sums[row * columns + column] = rounded(sum, Kind());
    }
}

extern "C" __global__ void segment_sums_float32(const long long* rows, const long long* order, const float* values, float* sums,
                                            long long size, long long count, long long columns) {
    segment_sums<Float32>(rows, order, values, sums, size, count, columns);
}

extern "C" __global__ void segment_sums_float64(const long long* rows, const long long* order, const double* values, double* sums,
                                            long long size, long long count, long long columns) {
    segment_sums<Float64>(rows, order, values, sums, size, count, columns);
}

extern "C" __global__ void segment_sums_int32(const long long* rows, const long long* order, const int* values, int* sums,
                                            long long size, long long count, long long columns) {
    segment_sums<Int32>(rows, order, values, sums, size, count, columns);
}

extern "C" __global__ void segment_sums_float16(const long long* rows, const long long* order, const Byte2* values, Byte2* sums,
                                            long long size, long long count, long long columns) {
    segment_sums<Float16>(rows, order, values, sums, size, count, columns);
}

extern "C" __global__ void segment_sums_bfloat16(const long long* rows, const long long* order, const Byte2* values, Byte2* sums,
                                            long long size, long long count, long long columns) {
    segment_sums<BFloat16>(rows, order, values, sums, size, count, columns);
}
