// A libcublasLt that multiplies float matrices on the host, column-major as the real one. It proposes three algorithms: 0 splits k, 1
// does not do for 7 rows, 2 is good; a product by another than 2 is refused, and so is one that its descriptions do not fit.

#include <cstdint>
#include <cstring>
#include <functional>

typedef int Status;
static const Status SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15;
static const int FLOAT = 0, COMPUTE_FLOAT = 68;

struct Operation {
    int compute, scale, transpose[2];
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t distance;
};
struct Preference {
    uint64_t workspace;
    uint32_t reduction, alignment[4];
};
struct Algorithm {
    uint64_t data[8];
};
struct Result {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static int searches = 0, held = 0;
static bool refuse = false;
int fake_later(std::function<void()> what); // of the fake driver

// m, n, k of a product whose descriptions fit.
static bool shape(const Operation* op, const Layout* a, const Layout* b, const Layout* c, uint64_t& m, uint64_t& n, uint64_t& k) {
    m = op->transpose[0] ? a->columns : a->rows, k = op->transpose[0] ? a->rows : a->columns;
    n = op->transpose[1] ? b->rows : b->columns;
    for (const Layout* each : {a, b, c}) {
        if (each->distance < int64_t(each->rows) || each->type != FLOAT) return false;
    }
    return op->compute == COMPUTE_FLOAT && op->scale == FLOAT && c->rows == m && c->columns == n &&
           k == (op->transpose[1] ? b->columns : b->rows);
}

extern "C" {
int fake_searches() { return searches; }
int fake_refuses() { return refuse = true, 0; }
int fake_descriptions_held() { return held; }

size_t cublasLtGetVersion() { return 130002; }
const char* cublasLtGetStatusString(Status) { return "the fake library refuses"; }
Status cublasLtCreate(void** handle) {
    if (refuse) return refuse = false, NOT_SUPPORTED;
    return held++, *handle = &held, SUCCESS;
}
Status cublasLtDestroy(void*) { return held--, SUCCESS; }
Status cublasLtMatmulDescCreate(Operation** it, int compute, int scale) { return held++, *it = new Operation{compute, scale, {0, 0}}, SUCCESS; }
Status cublasLtMatmulDescDestroy(Operation* it) { return held--, delete it, SUCCESS; }
Status cublasLtMatmulDescSetAttribute(Operation* it, int attribute, const void* value, size_t bytes) {
    if ((attribute != 3 && attribute != 4) || bytes != 4) return INVALID_VALUE;
    return memcpy(&it->transpose[attribute - 3], value, 4), SUCCESS;
}
Status cublasLtMatrixLayoutCreate(Layout** it, int type, uint64_t rows, uint64_t columns, int64_t distance) {
    return held++, *it = new Layout{type, rows, columns, distance}, SUCCESS;
}
Status cublasLtMatrixLayoutDestroy(Layout* it) { return held--, delete it, SUCCESS; }
Status cublasLtMatmulPreferenceCreate(Preference** it) { return held++, *it = new Preference{0, 7, {256, 256, 256, 256}}, SUCCESS; }
Status cublasLtMatmulPreferenceDestroy(Preference* it) { return held--, delete it, SUCCESS; }
Status cublasLtMatmulPreferenceSetAttribute(Preference* it, int attribute, const void* value, size_t bytes) {
    if (bytes != (attribute == 1 ? 8 : 4)) return INVALID_VALUE;
    if (attribute == 1) return memcpy(&it->workspace, value, 8), SUCCESS;
    if (attribute == 3) return memcpy(&it->reduction, value, 4), SUCCESS;
    if (attribute < 5 || attribute > 8) return INVALID_VALUE;
    return memcpy(&it->alignment[attribute - 5], value, 4), SUCCESS;
}
Status cublasLtMatmulAlgoGetHeuristic(void*, Operation* op, Layout* a, Layout* b, Layout* c, Layout* d, Preference* wish, int places,
                                      Result* results, int* count) {
    uint64_t m, n, k;
    if (!shape(op, a, b, c, m, n, k) || c != d || places < 3 || (n != 256 && k != 256)) return INVALID_VALUE;
    if (wish->workspace != 32 << 20 || wish->reduction != 0) return INVALID_VALUE;
    for (uint32_t alignment : wish->alignment) {
        if (alignment != 16) return INVALID_VALUE;
    }
    for (int i = 0; i < 3; i++) results[i] = Result{{{uint64_t(i)}}, 0, SUCCESS, 1.0f, {}};
    return searches++, *count = 3, SUCCESS;
}
Status cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value, size_t bytes, size_t* written) {
    if ((attribute != 2 && attribute != 3) || bytes != 4) return INVALID_VALUE;
    int number = attribute == 2 ? (algorithm->data[0] == 0 ? 4 : 1) : 0;
    return memcpy(value, &number, 4), *written = 4, SUCCESS;
}
Status cublasLtMatmulAlgoCheck(void*, Operation* op, Layout* a, Layout* b, Layout* c, Layout*, const Algorithm* algorithm, Result* result) {
    uint64_t m, n, k;
    if (!shape(op, a, b, c, m, n, k) || (algorithm->data[0] == 1 && (n == 7 || k == 7))) return NOT_SUPPORTED;
    return *result = Result{*algorithm, 1000, SUCCESS, 1.0f, {}}, SUCCESS;
}
Status cublasLtMatmul(void*, Operation* op, const float* alpha, const float* A, Layout* a, const float* B, Layout* b, const float* beta,
                      const float* C, Layout* c, float* D, Layout* d, const Algorithm* algorithm, void* workspace, size_t bytes, void*) {
    uint64_t m, n, k;
    if (!shape(op, a, b, c, m, n, k) || c != d || algorithm->data[0] != 2 || !workspace || bytes < 1000) return INVALID_VALUE;
    const float scale = *alpha, keep = *beta;
    const int64_t lda = a->distance, ldb = b->distance, ldc = c->distance;
    const bool turn_a = op->transpose[0], turn_b = op->transpose[1];
    return fake_later([=] {
        for (uint64_t j = 0; j < n; j++) {
            for (uint64_t i = 0; i < m; i++) {
                float sum = 0.0f;
                for (uint64_t l = 0; l < k; l++) sum += (turn_a ? A[i * lda + l] : A[l * lda + i]) * (turn_b ? B[l * ldb + j] : B[j * ldb + l]);
                D[j * ldc + i] = scale * sum + (keep == 0.0f ? 0.0f : keep * C[j * ldc + i]);
            }
        }
    });
}
}
