// Global memory: where it lies, and what g++ tells of every access to it.
//
// Kernels are compiled as for the thread sanitizer, which calls a function before each access; these functions are ours. They know
// who has touched what in this launch, so that races show which no emulator that runs thread after thread could see in the results:
// two threads touch the same place, one of them writes, and they are of different blocks, or no barrier lies between.

namespace emulator {

// In the part of a thread's memory that is there from the start, or else no unit that says so of it could be opened once it was used.
extern "C" {
__thread Machine* machine __attribute__((tls_model("initial-exec"))) = nullptr;
}

const u64 PAGE = 4096;
// Addresses for what is watched; larger buffers lie elsewhere and are not, for their cells would be sixteen times as large.
const u64 ARENA_BYTES = 1ull << 36;
const u64 MOST_WATCHED_BYTES = 16 << 20;
const u64 BYTES_OF_CELL = 2;

struct Arena {
    u64 start, end;
    GlobalCell* cells;
    u64 next; // nothing above was ever in use
    std::map<u64, std::vector<u64>> idle; // by length
    std::mutex mutex;
};
static Arena arena;

static void* map(u64 bytes, int access = PROT_READ | PROT_WRITE) {
    void* memory = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

// Whether this thread has met a thread of its warp since then.
static bool met_since(u32 thread, u32 tick) {
    const Machine* m = machine;
    const Warp* warp = m->fibre->warp;
    if (thread / LANES != warp->index) return false;
    return tick < warp->met || (warp->partial && tick < warp->pair_met[m->fibre->lane][thread % LANES]);
}

// Whether one of those who have read so far can have done so after what this thread does now.
static bool read_unordered(u16 reader, u32 tick) {
    const Machine* m = machine;
    if (tick < m->last_barrier || reader == m->thread) return false;
    if (reader == SEVERAL_WARPS) return true;
    if (reader & SEVERAL_LANES) return (reader & ~SEVERAL_LANES) != m->thread / LANES || tick >= m->fibre->warp->met;
    return !met_since(reader, tick);
}

// Whether what another thread did in this launch can have been before or after what this one does now.
static bool unordered(u32 block, u32 thread, u32 tick) {
    const Machine* m = machine;
    if (block != m->block) return true;
    return thread != m->thread && tick >= m->last_barrier && !met_since(thread, tick);
}

[[noreturn]] static void global_fault(u64 address, const void* pc, const char* text) {
    Machine* m = machine;
    m->fault->address = address, m->fault->at_address = 1;
    m->fault->pc = static_cast<const u8*>(pc) - 1;
    emulator_fault(0, "%s", text);
}

[[noreturn]] static void global_race(u64 address, const void* pc, const char* verb, u32 block, u32 thread, const char* before) {
    const Index3& grid = machine->grid_size;
    char where[60], who[120], text[200];
    snprintf(where, sizeof where, "block (%u, %u, %u)", block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y);
    if (block == SEVERAL_BLOCKS) snprintf(who, sizeof who, "several blocks have");
    else if (thread & SEVERAL_LANES) snprintf(who, sizeof who, "several threads of %s have", where);
    else snprintf(who, sizeof who, "thread %u of %s has", thread, where);
    snprintf(text, sizeof text, "race: after %s %s it with no barrier between, %s", who, before, verb);
    global_fault(address, pc, text);
}

// This thread reads a cell.
static void note_read(GlobalCell& cell, u64 address, const void* pc) {
    Machine* m = machine;
    const u32 launch = m->job->launch;
    if (cell.write_launch == 0) {
        // Outside of all buffers this touch is the fault.
        m->pc = static_cast<const u8*>(pc) - 1;
        *reinterpret_cast<volatile const u8*>(address);
        global_fault(address, pc, "reads what nobody has written,");
    }
    if (cell.write_launch == launch && unordered(cell.write_block, cell.writer, cell.written)) {
        global_race(address, pc, "reads", cell.write_block, cell.writer, "written");
    }
    u16 reader = u16(m->thread);
    if (cell.read_launch == launch) {
        if (cell.read_block == m->block) reader = merge_reader(cell.reader, cell.read, reader);
        else cell.read_block = SEVERAL_BLOCKS;
    } else {
        cell.read_launch = launch, cell.read_block = m->block;
    }
    cell.read = m->now, cell.reader = reader;
}

// This thread writes a cell.
static void note_write(GlobalCell& cell, u64 address, const void* pc) {
    const Machine* m = machine;
    const u32 launch = m->job->launch;
    if (cell.write_launch == launch && unordered(cell.write_block, cell.writer, cell.written)) {
        global_race(address, pc, "writes", cell.write_block, cell.writer, "written");
    }
    if (cell.read_launch == launch && (cell.read_block != m->block || read_unordered(cell.reader, cell.read))) {
        global_race(address, pc, "writes", cell.read_block, cell.reader, "read");
    }
    cell.write_launch = launch, cell.write_block = m->block, cell.written = m->now, cell.writer = u16(m->thread);
}

template <void (*note)(GlobalCell&, u64, const void*)>
static inline void watch(const void* memory, u64 bytes, const void* pc) {
    const u64 address = u64(memory);
    // Mostly it is the kernel's own stack. Outside of launches nothing of a unit runs.
    if (__builtin_expect(address < arena.start || address >= arena.end, 1)) return;
    const u64 first = (address - arena.start) / BYTES_OF_CELL, last = (address - arena.start + bytes - 1) / BYTES_OF_CELL;
    for (u64 i = first; i <= last; i++) note(arena.cells[i], i == first ? address : arena.start + i * BYTES_OF_CELL, pc);
}
static void watch_read(const void* memory, u64 bytes, const void* pc) { watch<note_read>(memory, bytes, pc); }

// What g++ calls before each access of a kernel.
#define ACCESS(name, note, bytes) \
    extern "C" void name(void* memory) { watch<note>(memory, bytes, __builtin_return_address(0)); }
ACCESS(__tsan_read1, note_read, 1)
ACCESS(__tsan_read2, note_read, 2)
ACCESS(__tsan_read4, note_read, 4)
ACCESS(__tsan_read8, note_read, 8)
ACCESS(__tsan_read16, note_read, 16)
ACCESS(__tsan_unaligned_read2, note_read, 2)
ACCESS(__tsan_unaligned_read4, note_read, 4)
ACCESS(__tsan_unaligned_read8, note_read, 8)
ACCESS(__tsan_unaligned_read16, note_read, 16)
ACCESS(__tsan_write1, note_write, 1)
ACCESS(__tsan_write2, note_write, 2)
ACCESS(__tsan_write4, note_write, 4)
ACCESS(__tsan_write8, note_write, 8)
ACCESS(__tsan_write16, note_write, 16)
ACCESS(__tsan_unaligned_write2, note_write, 2)
ACCESS(__tsan_unaligned_write4, note_write, 4)
ACCESS(__tsan_unaligned_write8, note_write, 8)
ACCESS(__tsan_unaligned_write16, note_write, 16)
#undef ACCESS
extern "C" void __tsan_read_range(void* memory, u64 bytes) { watch<note_read>(memory, bytes, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* memory, u64 bytes) { watch<note_write>(memory, bytes, __builtin_return_address(0)); }
extern "C" void __tsan_init() {}

// The host has written memory.
extern "C" void emulator_written(u64 address, u64 bytes) {
    if (address < arena.start || address >= arena.end || bytes == 0) return;
    const u64 first = (address - arena.start) / BYTES_OF_CELL, last = (address - arena.start + bytes - 1) / BYTES_OF_CELL;
    for (u64 i = first; i <= last; i++) arena.cells[i].write_launch = BY_HOST;
}

// -------------------------------------------------------------------------------------------------------------- allocation

static u64 pages(u64 bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// Addresses for this many bytes that nobody may touch yet; 0 if there are none.
static u64 reserve(u64 bytes) {
    if (bytes > MOST_WATCHED_BYTES) return u64(map(bytes, PROT_NONE));
    std::lock_guard<std::mutex> lock(arena.mutex);
    if (!arena.cells) {
        arena.start = u64(map(ARENA_BYTES, PROT_NONE));
        arena.cells = static_cast<GlobalCell*>(map(ARENA_BYTES / BYTES_OF_CELL * sizeof(GlobalCell)));
        if (!arena.start || !arena.cells) return 0;
        arena.next = arena.start, arena.end = arena.start + ARENA_BYTES;
    }
    std::vector<u64>& idle = arena.idle[bytes];
    u64 start = arena.next;
    if (idle.empty()) {
        if (arena.next + bytes > arena.end) return 0;
        arena.next += bytes;
    } else {
        start = idle.back();
        idle.pop_back();
    }
    return start;
}

// Memory that ends (rounded up to 16 bytes) where a page begins that nobody may touch, with such a page before it too; all bits are
// one, so that a float that nobody has written is not a number. 0 when the host has no memory for it.
extern "C" u64 emulator_map(u64 bytes) {
    const u64 length = (bytes + 15) / 16 * 16, inside = pages(length);
    const u64 start = reserve(inside + 2 * PAGE);
    if (!start) return 0;
    u8* memory = reinterpret_cast<u8*>(start) + PAGE;
    if (mprotect(memory, inside, PROT_READ | PROT_WRITE) != 0) return 0;
    memset(memory, 0xff, inside);
    return u64(memory + inside - length);
}
extern "C" void emulator_unmap(u64 address, u64 bytes) {
    const u64 length = (bytes + 15) / 16 * 16, inside = pages(length), all = inside + 2 * PAGE;
    const u64 start = address + length - inside - PAGE;
    void* memory = reinterpret_cast<void*>(start);
    if (all > MOST_WATCHED_BYTES) {
        munmap(memory, all);
        return;
    }
    std::lock_guard<std::mutex> lock(arena.mutex);
    mprotect(memory, all, PROT_NONE);
    madvise(memory, all, MADV_DONTNEED);
    madvise(arena.cells + (start - arena.start) / BYTES_OF_CELL, all / BYTES_OF_CELL * sizeof(GlobalCell), MADV_DONTNEED);
    arena.idle[all].push_back(start);
}
// Distance from `address` of a byte before or after its memory that was written; 0 if there is none.
extern "C" long long emulator_stray(u64 address, u64 bytes) {
    const u64 length = (bytes + 15) / 16 * 16, inside = pages(length);
    const u8* memory = reinterpret_cast<const u8*>(address);
    for (long long i = (long long)bytes; i < (long long)length; i++) {
        if (memory[i] != 0xff) return i;
    }
    for (long long i = -1; i >= (long long)length - (long long)inside; i--) {
        if (memory[i] != 0xff) return i;
    }
    return 0;
}

} // namespace emulator
