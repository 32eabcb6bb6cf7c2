// What the emulator's runtime and the kernels compiled for it both see: the state of a block that is being run.
//
// A CUDA thread is a fibre with its own stack. One host thread runs one block at a time: a warp's lanes in turn until each waits or
// has returned, then the next warp. So only one fibre of a block runs at any time, always in the same order, and what it finds
// does not depend on the machine. Blocks know nothing of each other and run on as many host threads as there are cores.

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace emulator {

const u32 LANES = 32;
const u32 MOST_THREADS = 1024;
const u32 MOST_SHARED_BYTES = 227 * 1024;
const u32 MOST_PIECES = 64;

// A line of a source: the lowest 12 bits are its number, the others the file's (0 is the .cu), from what the compiler knows of its
// name at once: the first letter and the length.
typedef u16 Site;

constexpr u32 file_number(const char* file) {
    const u32 length = u32(__builtin_strlen(file));
    return file[length - 1] == 'h' ? 1 + (u32(file[0]) * 7 + length) % 15 : 0;
}
constexpr Site site(const char* file, int line) { return Site((line & 0xfff) | file_number(file) << 12); }
// As the default of a parameter it is the line of the call.
#define HERE emulator::site(__builtin_FILE(), __builtin_LINE())

// What is known of one element of shared memory. Times are ticks of Machine::now.
struct Cell {
    u32 written; // when; before Machine::block_start: never in this block
    u32 read;    // when last
    u16 writer;  // thread, or thread | COPYING while an asynchronous copy of that thread into it is under way
    u16 reader;  // thread, SEVERAL_LANES | warp, or SEVERAL_WARPS
    Site written_at, read_at;
};
const u16 COPYING = 0x8000;
const u16 SEVERAL_LANES = 0x8000;
const u16 SEVERAL_WARPS = 0xffff;

// The same of two neighbouring bytes of global memory, in which blocks also touch what others do.
struct GlobalCell {
    u32 write_launch; // 0: never written; BY_HOST
    u32 write_block, written;
    u32 read_launch, read_block, read;
    u16 writer, reader;
    u32 unused;
};
const u32 BY_HOST = 1;
const u32 SEVERAL_BLOCKS = ~0u;

struct Index3 {
    u32 x, y, z;
};

// An asynchronous copy that is under way.
struct Copy {
    u8* to;
    Cell* cells;
    u32 count, batch;
    u8 bytes[16];
};

enum State : u8 { READY, AT_COLLECTIVE, AT_BARRIER, RETURNED };

struct Warp;

// A CUDA thread.
struct Fibre {
    void* stack; // where it goes on
    Warp* warp;
    u32 thread, lane;
    State state;
    Site site;        // where it waits
    const char* call; // what it waits in
    u32 mask;         // of that call
    void* data;       // what it brings to it
    Copy* copies;
    u32 copies_count, copies_room, batch;
};

struct Warp {
    Fibre* lanes;
    u32 index;
    u32 ready;    // lanes that can run and do not
    u32 arrived;  // lanes that wait in a collective
    bool mixed;   // not all of them in the same
    u32 met;      // tick of the last collective of all lanes
    bool partial; // whether there were collectives of some lanes; then when each pair last met:
    u32 pair_met[LANES][LANES];
};

struct Piece {
    u32 offset, count, size;
};

// What one host thread needs to run blocks. The kernels find it by `machine`.
struct Machine {
    // Hot: of the fibre that runs.
    u32 now, block_start, last_barrier, thread;
    Fibre* fibre;
    Index3 thread_index, block_index, block_size, grid_size;

    Fibre fibres[MOST_THREADS];
    Warp warps[MOST_THREADS / LANES];
    void* scheduler_stack;
    const struct Job* job;
    u32 block; // its number in the grid

    u8* shared;  // the block's shared memory
    Cell* cells; // a cell a byte: that of its first byte stands for an element
    Piece pieces[MOST_PIECES];
    u32 pieces_count, taken;

    u8* stacks;
    u8* signal_stack;
    struct Fault* fault;
    bool faulted;

    // What a signal has told.
    int signal;
    const char* verb;
    bool endless;
    const void* pc; // of an access that the runtime makes for a kernel

    // For the watch over lanes that run without end.
    Machine* next;
    pthread_t host;
    u32 running;
    u64 turn; // changes whenever the scheduler lets a warp run
    u64 watched_turn;
    long long watched_since;
};

extern "C" {
extern __thread Machine* machine __attribute__((tls_model("initial-exec")));

// Where the thread that runs is; the same as long as it lives.
Index3 emulator_thread_index() __attribute__((const));
Index3 emulator_block_index() __attribute__((const));
Index3 emulator_block_size() __attribute__((const));
Index3 emulator_grid_size() __attribute__((const));
// Ends the block with a fault of the thread that runs.
[[noreturn]] void emulator_fault(Site site, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The block meets.
void emulator_barrier(Site site);
// The lanes of `mask` meet. The last one to come gets the warp, does what is to do with the data of all, and calls leave; the others
// get null once that is done.
Warp* emulator_arrive(const char* call, u32 mask, void* data, Site site);
void emulator_leave(Warp* warp, u32 mask);
// The next piece of shared memory.
Piece emulator_take(u32 index, u32 used, u64 count, u32 size, Site site);
// Faults of an access to element `index` of a piece.
[[noreturn]] void emulator_outside(u32 piece, long long index, u32 count, Site site);
[[noreturn]] void emulator_unwritten(const Cell* cell, u32 piece, long long index, Site site);
// What is not quite obvious about an access to a cell; returns if all is well.
void emulator_read_after(const Cell* cell, u32 piece, long long index, Site site);
void emulator_write_after(const Cell* cell, u32 piece, long long index, Site site);
void emulator_async_copy(u8* to, Cell* cells, u32 count, const void* from, u32 piece, long long index, Site site);
void emulator_async_commit();
void emulator_async_wait(u32 under_way);
// C[16, 8] += A[16, 16] · B[16, 8], each element one chain of fused multiply-adds, k ascending.
void emulator_product(float c[16][8], const float a[16][16], const float b[16][8]);
}

// Who has read, when `reader` has and now `thread` of the same block does.
static inline u16 merge_reader(u16 reader, u32 tick, u16 thread) {
    const Machine* m = machine;
    if (tick < m->last_barrier || reader == thread) return thread;
    const u16 warp = thread / LANES;
    const u16 readers_warp = reader & SEVERAL_LANES ? reader & ~SEVERAL_LANES : reader / LANES;
    if (reader == SEVERAL_WARPS || readers_warp != warp) return SEVERAL_WARPS;
    return tick >= m->fibre->warp->met ? u16(SEVERAL_LANES | warp) : thread;
}

// The kinds of arguments, numbered as the launcher's `Arg`.
enum Kind : u8 { ADDRESS, U32, U64, F32, F64, OTHER };

// A kernel as the launcher finds it.
struct Entry {
    const char* name;
    u32 threads, count;
    const u8* kinds;
    void (*run)(const u64* args);
};

// A launch.
struct Job {
    const Entry* entry;
    const u64* args;
    const char* files; // names of the source and the headers, each ended by a zero, then an empty one
    Index3 grid;
    u32 threads, shared_bytes;
    u32 launch; // its number, above BY_HOST
};

// What went wrong first in a block.
struct Fault {
    u64 address;     // of the global memory that was touched, if `at_address`
    const void* pc;  // the instruction, if it was found by the processor
    u32 thread;
    u32 at_address;
    u32 taken;       // bytes of shared memory taken, when nothing went wrong
    char text[500];
};

} // namespace emulator
