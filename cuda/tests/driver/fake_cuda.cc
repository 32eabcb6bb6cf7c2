// A libcuda that does its work on the host, as late as the real one may: what is started waits in a list until somebody synchronises,
// so host memory that is gone or changed by then shows. While the stream is captured it
// waits in a graph instead. It has one GPU of 1 GiB, knows a few kernels by name, and writes down what is asked for recordings.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

typedef int Result;
static const Result SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700;
static const Result CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901;

typedef std::vector<std::function<void()>> Work;
struct Graph {
    Work work;
    bool bad;
};
static Work work;
static Graph* capture = nullptr; // while the stream is captured
static bool invalidated = false;
static std::string calls; // of recordings and of what must not be called in them
static std::map<uint64_t, size_t> memory;
static std::map<std::string, unsigned> functions; // name to the dynamic shared memory that it may have
static int held = 0;                              // contexts, streams, modules, events, graphs and pinned memory not given back
static thread_local bool current = false;
static bool broken = false, pools = true, refuse_host_memory = false;
static int entered = 0;
static const size_t TOTAL = size_t(1) << 30;

// The device's pool: what is in use, what it keeps for later, and how much it may keep.
static std::map<uint64_t, size_t> pooled;
static std::multiset<size_t> kept;
static uint64_t threshold = 0;
static std::string memory_calls;
static size_t sum_kept() {
    size_t sum = 0;
    for (size_t each : kept) sum += each;
    return sum;
}
static size_t in_pool() {
    size_t sum = 0;
    for (auto& each : pooled) sum += each.second;
    return sum;
}
static void asked(const std::string& what) { memory_calls += (memory_calls.empty() ? "" : ", ") + what; }

static size_t used() {
    size_t sum = 0;
    for (auto& each : memory) sum += each.second;
    return sum + in_pool() + sum_kept();
}
static Result later(std::function<void()> what) {
    if (!current) return INVALID_VALUE;
    (capture ? capture->work : work).push_back(what);
    return SUCCESS;
}
static Result called(const std::string& what, Result result) {
    calls += (calls.empty() ? "" : ", ") + what;
    return result;
}
// Whether a call is one that a capture does not stand; it breaks the capture then.
static bool breaks_capture(const char* what) {
    if (capture) called(what, 0), invalidated = true;
    return capture;
}

int fake_later(std::function<void()> what) { return later(what); } // for the fake library

extern "C" {
int fake_held() { return held + int(memory.size()) + int(pooled.size()); }
int fake_entered() { return entered; }
int fake_without_pools() { return pools = false, 0; }
int fake_refuses_host_memory() { return refuse_host_memory = true, 0; }
// What was called for device memory since the last time.
const char* fake_memory_calls() {
    static std::string last;
    last.swap(memory_calls), memory_calls.clear();
    return last.c_str();
}
// What was called since the last time.
const char* fake_calls() {
    static std::string last;
    last.swap(calls), calls.clear();
    return last.c_str();
}

Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
Result cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
Result cuDeviceGet(int* device, int ordinal) { return *device = 40 + ordinal, SUCCESS; }
Result cuDeviceGetName(char* name, int, int) { return strcpy(name, "Fake GPU"), SUCCESS; }
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device != 40) return INVALID_VALUE;
    switch (attribute) {
        case 75: return *value = 9, SUCCESS;
        case 76: return *value = 0, SUCCESS;
        case 97: return *value = 227 << 10, SUCCESS;
        case 115: return *value = pools, SUCCESS;
    }
    return INVALID_VALUE;
}
Result cuDevicePrimaryCtxRetain(void** context, int) { return held++, *context = &held, SUCCESS; }
Result cuDevicePrimaryCtxRelease_v2(int) { return held--, current = false, broken = false, SUCCESS; }
Result cuCtxSetCurrent(void* context) { return entered++, current = context == &held, SUCCESS; }
Result cuStreamCreate(void** stream, unsigned) { return held++, *stream = &work, SUCCESS; }
Result cuStreamDestroy_v2(void*) { return held--, SUCCESS; }
Result cuStreamSynchronize(void* stream) {
    if (breaks_capture("synchronize")) return CAPTURE_UNSUPPORTED;
    if (stream != &work) return INVALID_VALUE;
    asked("wait");
    for (auto& each : work) each();
    work.clear();
    if (sum_kept() > threshold) kept.clear();
    return broken ? ILLEGAL_ADDRESS : SUCCESS;
}
Result cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = TOTAL - used(), *total = TOTAL, SUCCESS; }
Result cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    if (bytes == 0 || !current || breaks_capture("allocate")) return INVALID_VALUE;
    if (used() + bytes > TOTAL) return OUT_OF_MEMORY;
    *address = uint64_t(aligned_alloc(256, (bytes + 255) / 256 * 256));
    return asked("plain allocate"), memory[*address] = bytes, SUCCESS;
}
Result cuMemFree_v2(uint64_t address) {
    if (breaks_capture("free")) return CAPTURE_UNSUPPORTED;
    if (!memory.count(address) || !work.empty()) return held++, INVALID_VALUE; // work may still touch it
    return asked("plain free"), free((void*)address), memory.erase(address), SUCCESS;
}
Result cuDeviceGetDefaultMemPool(void** pool, int device) { return *pool = &pooled, pools && device == 40 ? SUCCESS : INVALID_VALUE; }
Result cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
    if (pool != &pooled || attribute != 4) return INVALID_VALUE;
    return threshold = *(uint64_t*)value, SUCCESS;
}
Result cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
    if (pool != &pooled || (attribute != 5 && attribute != 7)) return INVALID_VALUE;
    return *(uint64_t*)value = in_pool() + (attribute == 5 ? sum_kept() : 0), SUCCESS;
}
// Takes of a kept piece that is large enough, or new memory.
Result cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, void* pool, void* stream) {
    if (bytes == 0 || !current || pool != &pooled || stream != &work || breaks_capture("allocate")) return INVALID_VALUE;
    asked("allocate");
    auto piece = kept.lower_bound(bytes);
    if (piece == kept.end() && used() + bytes > TOTAL) return OUT_OF_MEMORY;
    if (piece != kept.end()) {
        if (*piece > bytes) kept.insert(*piece - bytes);
        kept.erase(piece);
    }
    *address = uint64_t(aligned_alloc(256, (bytes + 255) / 256 * 256));
    return pooled[*address] = bytes, SUCCESS;
}
// The memory goes when the work before it is done.
Result cuMemFreeAsync(uint64_t address, void* stream) {
    if (!pooled.count(address) || stream != &work || breaks_capture("free")) return held++, INVALID_VALUE;
    asked("free");
    kept.insert(pooled[address]), pooled.erase(address);
    return later([=] { free((void*)address); });
}
Result cuMemPoolTrimTo(void* pool, size_t keep) {
    if (pool != &pooled || keep != 0) return INVALID_VALUE;
    if (work.empty()) kept.clear(); // else it may be in use still
    return asked("trim"), SUCCESS;
}
Result cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    if (refuse_host_memory) return refuse_host_memory = false, OUT_OF_MEMORY;
    return held++, *pointer = malloc(bytes), SUCCESS;
}
Result cuMemFreeHost(void* pointer) { return held--, free(pointer), SUCCESS; }
Result cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
    if (breaks_capture("upload")) return CAPTURE_UNSUPPORTED;
    return later([=] { memcpy((void*)to, from, bytes); });
}
Result cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
    if (breaks_capture("download")) return CAPTURE_UNSUPPORTED;
    return later([=] { memcpy(to, (void*)from, bytes); });
}
Result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
    return later([=] { memcpy((void*)to, (void*)from, bytes); });
}
Result cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) {
    return later([=] { memset((void*)to, value, bytes); });
}
Result cuModuleLoadData(void** module, const void* image) {
    if (memcmp(image, "\x7f" "ELF", 4) != 0) return INVALID_VALUE;
    return held++, *module = &functions, SUCCESS;
}
Result cuModuleUnload(void*) { return held--, SUCCESS; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
    bool known = false;
    for (const char* each : {"fill", "twice", "breaks", "unrecordable", "unready"}) known |= std::string(name) == each;
    if (!known) return NOT_FOUND;
    auto each = functions.emplace(name, 48u << 10).first;
    return *function = &*each, SUCCESS;
}
Result cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
    return ((std::pair<const std::string, unsigned>*)function)->second = value, SUCCESS;
}
// KERNEL fill(float* x, u32 a, u64 b, float c, double d): x = a, b, c, d, blocks in x, y, z, threads, shared memory.
Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared, void*,
                      void** args, void**) {
    auto& kernel = *(std::pair<const std::string, unsigned>*)function;
    if (shared > kernel.second) return INVALID_VALUE;
    if (kernel.first == "breaks") return later([] { broken = true; });
    if (kernel.first == "unrecordable") return invalidated = capture, SUCCESS; // the driver only says so at the end
    if (kernel.first == "unready") return capture->bad = true, SUCCESS;
    float* to = *(float**)args[0];
    if (kernel.first == "twice") return later([=] { *to *= 2.0f; });
    float numbers[] = {float(*(uint32_t*)args[1]), float(*(uint64_t*)args[2]), *(float*)args[3], float(*(double*)args[4]), float(x), float(y),
                       float(z), float(threads), float(shared)};
    std::vector<float> values(numbers, numbers + 9);
    return later([=] { memcpy(to, values.data(), 9 * sizeof(float)); });
}
Result cuStreamBeginCapture_v2(void* stream, int mode) {
    if (stream != &work || capture || !current) return INVALID_VALUE;
    capture = new Graph{{}, false}, invalidated = false, held++;
    return called("begin " + std::to_string(mode), SUCCESS);
}
Result cuStreamEndCapture(void* stream, Graph** graph) {
    if (stream != &work || !capture) return called("end without begin", INVALID_VALUE);
    if (invalidated) delete capture, capture = nullptr, held--;
    *graph = capture, capture = nullptr;
    return called("end", invalidated ? CAPTURE_INVALIDATED : SUCCESS);
}
Result cuGraphInstantiateWithFlags(Graph** ready, Graph* graph, unsigned long long flags) {
    if (graph->bad) return called("instantiate", INVALID_VALUE);
    return held++, *ready = new Graph(*graph), called("instantiate " + std::to_string(flags), SUCCESS);
}
Result cuGraphDestroy(Graph* graph) { return held--, delete graph, called("destroy", SUCCESS); }
Result cuGraphExecDestroy(Graph* ready) { return held--, delete ready, called("forget", SUCCESS); }
Result cuGraphLaunch(Graph* ready, void* stream) {
    if (stream != &work || capture || !current) return INVALID_VALUE;
    for (auto& each : ready->work) later(each);
    return called("launch", SUCCESS);
}
Result cuEventCreate(void** event, unsigned) { return held++, *event = malloc(1), SUCCESS; }
Result cuEventRecord(void*, void*) { return current ? SUCCESS : INVALID_VALUE; }
Result cuEventSynchronize(void*) { return cuStreamSynchronize(&work); }
Result cuEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 2.5f, SUCCESS; }
Result cuEventDestroy_v2(void* event) { return held--, free(event), SUCCESS; }
Result cuGetExportTable(const void**, const void*) { return NOT_FOUND; } // asked for by NVRTC, which does without
Result cuGetErrorString(Result result, const char** text) {
    *text = result == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "the fake refuses";
    if (result == CAPTURE_INVALIDATED) *text = "operation failed due to a previous error during capture";
    return SUCCESS;
}
}
