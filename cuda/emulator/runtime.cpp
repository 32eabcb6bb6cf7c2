// The schedule of a block, and the words for what goes wrong. runtime.h, switch.h and global.h stand above it.

namespace emulator {

// ------------------------------------------------------------------------------------------------------------------ fibres

// Stacks lie this far apart: not a power of two, or the same local of all threads would fall into one set of the cache.
const u64 STACK_BYTES = 64 * 1024 + 320;
static u8* stack_top(const Machine* m, u32 thread) {
    return reinterpret_cast<u8*>(u64(m->stacks + (thread + 1) * STACK_BYTES) & ~u64(63));
}

// Lets the next lane of the warp run, or the scheduler.
static void pause() {
    Machine* m = machine;
    Fibre* own = m->fibre;
    Warp* warp = own->warp;
    if (warp->ready) {
        const u32 lane = u32(__builtin_ctz(warp->ready));
        warp->ready &= warp->ready - 1;
        Fibre* next = &warp->lanes[lane];
        m->fibre = next, m->thread = next->thread, m->thread_index.x = next->thread;
        next->state = READY;
        emulator_switch(&own->stack, next->stack);
    } else {
        m->fibre = nullptr;
        emulator_switch(&own->stack, m->scheduler_stack);
    }
}

static void land_copies(Fibre* fibre, u32 batches) {
    u32 kept = 0;
    for (u32 i = 0; i < fibre->copies_count; i++) {
        const Copy& copy = fibre->copies[i];
        if (copy.batch >= batches) {
            fibre->copies[kept++] = copy;
            continue;
        }
        memcpy(copy.to, copy.bytes, sizeof copy.bytes);
        for (u32 k = 0; k < copy.count; k++) copy.cells[k].written = machine->now, copy.cells[k].writer = u16(fibre->thread);
    }
    fibre->copies_count = kept;
}

// What a fibre runs.
extern "C" void emulator_fibre() {
    machine->job->entry->run(machine->job->args);
    Fibre* own = machine->fibre;
    // The block's shared memory may be another's by the time that it lands.
    if (own->copies_count) emulator_fault(own->copies[0].cells->written_at, "returns while its asynchronous copy is under way");
    own->state = RETURNED;
    pause();
    __builtin_unreachable();
}

// ------------------------------------------------------------------------------------------------------------------- words

// A line as text; a few results live at once.
static const char* line(Site site) {
    static __thread char texts[4][160];
    static __thread u32 next = 0;
    char* text = texts[next++ % 4];
    const char* file = machine->job->files;
    while (*file && file_number(file) != site >> 12) file += strlen(file) + 1;
    snprintf(text, sizeof texts[0], "%s:%d", *file ? file : "?", site & 0xfff);
    return text;
}

// Notes what the thread that runs, or on whose behalf the scheduler speaks, has done.
__attribute__((format(printf, 2, 0))) static void record(Site site, const char* format, va_list list) {
    Machine* m = machine;
    const int room = int(sizeof m->fault->text), length = vsnprintf(m->fault->text, size_t(room), format, list);
    if (site && length < room) snprintf(m->fault->text + length, size_t(room - length), " (%s)", line(site));
    m->fault->thread = m->thread;
    m->faulted = true;
}
__attribute__((format(printf, 2, 3))) static void note_fault(Site site, const char* format, ...) {
    va_list list;
    va_start(list, format);
    record(site, format, list);
    va_end(list);
}

// Leaves the fibre for good.
[[noreturn]] static void abandon() {
    Machine* m = machine;
    m->fibre = nullptr;
    void* lost;
    emulator_switch(&lost, m->scheduler_stack);
    abort(); // nobody comes back
}

extern "C" void emulator_fault(Site site, const char* format, ...) {
    va_list list;
    va_start(list, format);
    record(site, format, list);
    va_end(list);
    abandon();
}

extern "C" void emulator_outside(u32 piece, long long index, u32 count, Site site) {
    emulator_fault(site, "touches element %lld of shared piece %u, which has %u", index, piece, count);
}

[[noreturn]] static void copy_under_way(const char* verb, const Cell* cell, u32 piece, long long index, Site site) {
    emulator_fault(site, "%s element %lld of shared piece %u, into which the asynchronous copy of thread %u (%s) is under way", verb, index,
                   piece, cell->writer & ~COPYING, line(cell->written_at));
}

extern "C" void emulator_unwritten(const Cell* cell, u32 piece, long long index, Site site) {
    if (cell->writer & COPYING) copy_under_way("reads", cell, piece, index, site);
    emulator_fault(site, "reads element %lld of shared piece %u, which nobody has written", index, piece);
}

// `who` "has read" or "has written" it `before`.
[[noreturn]] static void race(const char* verb, const char* who, Site before, u32 piece, long long index, Site site) {
    emulator_fault(site, "race: %s element %lld of shared piece %u, which %s (%s) with no barrier between", verb, index, piece, who,
                   line(before));
}

[[noreturn]] static void race_with_writer(const char* verb, const Cell* cell, u32 piece, long long index, Site site) {
    char who[40];
    snprintf(who, sizeof who, "thread %u has written", cell->writer);
    race(verb, who, cell->written_at, piece, index, site);
}

extern "C" void emulator_read_after(const Cell* cell, u32 piece, long long index, Site site) {
    if (!met_since(cell->writer, cell->written)) race_with_writer("reads", cell, piece, index, site);
}

extern "C" void emulator_write_after(const Cell* cell, u32 piece, long long index, Site site) {
    const Machine* m = machine;
    if (cell->writer & COPYING) copy_under_way("writes", cell, piece, index, site);
    if (cell->written >= m->last_barrier && cell->writer != m->thread && !met_since(cell->writer, cell->written)) {
        race_with_writer("writes", cell, piece, index, site);
    }
    if (!read_unordered(cell->reader, cell->read)) return;
    char who[40];
    if (cell->reader == SEVERAL_WARPS) snprintf(who, sizeof who, "several warps have read");
    else if (cell->reader & SEVERAL_LANES) snprintf(who, sizeof who, "several lanes of warp %d have read", cell->reader & ~SEVERAL_LANES);
    else snprintf(who, sizeof who, "thread %u has read", cell->reader);
    race("writes", who, cell->read_at, piece, index, site);
}

// ----------------------------------------------------------------------------------------------------------- shared memory

extern "C" Piece emulator_take(u32 index, u32 used, u64 count, u32 size, Site site) {
    Machine* m = machine;
    const u64 end = used + (count * size + 15) / 16 * 16;
    if (index >= MOST_PIECES) emulator_fault(site, "takes more than %u pieces of shared memory", MOST_PIECES);
    if (end > m->job->shared_bytes) {
        emulator_fault(site, "takes %llu bytes of shared memory, the launch has %u", end, m->job->shared_bytes);
    }
    Piece piece = {used, u32(count), size};
    if (index == m->pieces_count) {
        m->pieces[m->pieces_count++] = piece;
        if (end > m->taken) m->taken = u32(end);
    }
    const Piece& first = m->pieces[index];
    if (first.offset != piece.offset || first.count != piece.count || first.size != piece.size) {
        emulator_fault(site, "takes %u elements of %u bytes as shared piece %u, another thread took %u of %u", piece.count, size, index,
                       first.count, first.size);
    }
    return piece;
}

extern "C" void emulator_async_copy(u8* to, Cell* cells, u32 count, const void* from, u32 piece, long long index, Site site) {
    Fibre* own = machine->fibre;
    if (own->copies_count == own->copies_room) {
        own->copies_room = own->copies_room ? 2 * own->copies_room : 16;
        own->copies = static_cast<Copy*>(realloc(own->copies, own->copies_room * sizeof(Copy)));
    }
    Copy& copy = own->copies[own->copies_count];
    copy.to = to, copy.cells = cells, copy.count = count, copy.batch = own->batch;
    watch_read(from, sizeof copy.bytes, __builtin_return_address(0));
    memcpy(copy.bytes, from, sizeof copy.bytes);
    for (u32 k = 0; k < count; k++) {
        Cell& cell = cells[k];
        emulator_write_after(&cell, piece, index + k, site);
        // Nobody may touch it now: the copy may land at any time.
        cell.written = 0, cell.writer = u16(own->thread | COPYING), cell.written_at = site;
    }
    own->copies_count++;
}
extern "C" void emulator_async_commit() { machine->fibre->batch++; }
extern "C" void emulator_async_wait(u32 under_way) {
    Fibre* own = machine->fibre;
    if (own->batch > under_way) land_copies(own, own->batch - under_way);
}

// ---------------------------------------------------------------------------------------------------------------- meetings

extern "C" void emulator_barrier(Site site) {
    Fibre* own = machine->fibre;
    own->state = AT_BARRIER, own->site = site, own->call = "__syncthreads";
    pause();
}

// "0-15" or "3".
static void lane_range(char* text, size_t room, u32 lanes) {
    size_t length = 0;
    for (u32 lane = 0; lane < LANES && length < room; lane++) {
        if (!(lanes >> lane & 1)) continue;
        u32 end = lane;
        while (end + 1 < LANES && lanes >> (end + 1) & 1) end++;
        length += size_t(snprintf(text + length, room - length, end > lane ? "%s%u-%u" : "%s%u", length ? ", " : "", lane, end));
        lane = end;
    }
}

// The lanes of a call's mask do not come: says where one of them is instead.
static void partial_warp(const Fibre* waiting) {
    const Warp* warp = waiting->warp;
    u32 same = 0, returned = 0;
    const Fibre* other = nullptr;
    for (u32 lane = 0; lane < LANES; lane++) {
        const Fibre* f = &warp->lanes[lane];
        if (f->state == AT_COLLECTIVE && f->call == waiting->call && f->mask == waiting->mask && f->site == waiting->site) {
            same |= 1u << lane;
        } else if (waiting->mask >> lane & 1) {
            if (f->state == RETURNED) returned |= 1u << lane;
            else if (!other) other = f;
        }
    }
    char here[100], there[100], where[200];
    lane_range(here, sizeof here, same);
    if (returned) {
        lane_range(there, sizeof there, returned);
        snprintf(where, sizeof where, "lanes %s have returned", there);
    } else if (other) {
        snprintf(where, sizeof where, "lane %u is at %s (%s)", other->lane, other->call, line(other->site));
    } else {
        snprintf(where, sizeof where, "none of the others comes");
    }
    machine->thread = waiting->thread;
    note_fault(waiting->site, "%s of warp %u with the mask %08x is reached by lanes %s only: %s", waiting->call, warp->index, waiting->mask,
                   here, where);
}

static bool same_call(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }

extern "C" Warp* emulator_arrive(const char* call, u32 mask, void* data, Site site) {
    Fibre* own = machine->fibre;
    Warp* warp = own->warp;
    if (!(mask >> own->lane & 1)) emulator_fault(site, "%s by lane %u, which its mask %08x leaves out", call, own->lane, mask);
    own->call = call, own->mask = mask, own->data = data, own->site = site;
    if (warp->arrived) {
        const Fibre* first = &warp->lanes[__builtin_ctz(warp->arrived)];
        warp->mixed |= first->site != site || first->mask != mask || !same_call(first->call, call);
    } else {
        warp->mixed = false;
    }
    warp->arrived |= 1u << own->lane;
    own->state = AT_COLLECTIVE;
    if ((warp->arrived & mask) != mask) return pause(), nullptr;
    if (warp->mixed) {
        for (u32 lane = 0; lane < LANES; lane++) {
            const Fibre* f = &warp->lanes[lane];
            if (mask >> lane & 1 && (f->site != site || f->mask != mask || !same_call(f->call, call))) partial_warp(own), abandon();
        }
    }
    return warp;
}

extern "C" void emulator_leave(Warp* warp, u32 mask) {
    const u32 tick = ++machine->now;
    if (mask == ~0u) {
        warp->met = tick;
    } else {
        warp->partial = true;
        for (u32 a = 0; a < LANES; a++) {
            for (u32 b = 0; b < LANES; b++) {
                if (mask >> a & mask >> b & 1) warp->pair_met[a][b] = tick;
            }
        }
    }
    warp->arrived &= ~mask;
    warp->ready |= mask & ~(1u << machine->fibre->lane);
    machine->fibre->state = READY;
}

extern "C" void emulator_product(float c[16][8], const float a[16][16], const float b[16][8]) {
    for (int m = 0; m < 16; m++) {
        float sums[8];
        memcpy(sums, c[m], sizeof sums);
        for (int k = 0; k < 16; k++) {
            for (int n = 0; n < 8; n++) sums[n] = fmaf(a[m][k], b[k][n], sums[n]);
        }
        memcpy(c[m], sums, sizeof sums);
    }
}

// --------------------------------------------------------------------------------------------------------------- processor

// A lane that runs this long (in time of its host thread) without meeting another one will never do so.
const u64 ENDLESS_SECONDS = 5;
const int ENDLESS = SIGVTALRM;

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, ENDLESS};
static struct sigaction old_actions[sizeof SIGNALS / sizeof SIGNALS[0]];

// Where a fibre goes on that a signal has stopped.
static void stopped_by_signal() {
    Machine* m = machine;
    const u64 stack = u64(m->stacks);
    switch (m->signal) {
    case SIGFPE: emulator_fault(0, "divides an integer by zero");
    case SIGILL: emulator_fault(0, "goes outside a local array or touches a word at an address that is not a multiple of its size");
    case ENDLESS: emulator_fault(0, "goes on for ever, or waits for another thread outside of barriers");
    }
    if (m->fault->address >= stack && m->fault->address < stack + MOST_THREADS * STACK_BYTES) {
        m->fault->at_address = 0;
        emulator_fault(0, "needs more than %llu bytes of stack", STACK_BYTES);
    }
    if (!m->fault->at_address) emulator_fault(0, "touches an address that is none");
    emulator_fault(0, "%s", m->verb);
}

static void on_signal(int signal, siginfo_t* info, void* context) {
    Machine* m = machine;
    const bool ours = m && m->fibre && (signal != ENDLESS || m->endless);
    if (!ours) {
        if (signal == ENDLESS) return; // the block has ended in the meantime
        // The one before us gets it when the instruction is tried again.
        for (u32 i = 0; i < sizeof SIGNALS / sizeof SIGNALS[0]; i++) {
            if (SIGNALS[i] == signal) sigaction(signal, &old_actions[i], nullptr);
        }
        return;
    }
    ucontext_t* c = static_cast<ucontext_t*>(context);
    m->fault->pc = m->pc ? m->pc : reinterpret_cast<const void*>(program_counter(c));
    // Addresses that no pointer can have come without being told.
    m->fault->at_address = (signal == SIGSEGV || signal == SIGBUS) && info->si_code > 0 && info->si_code != SI_KERNEL;
    m->fault->address = u64(info->si_addr);
    m->signal = signal, m->verb = access_verb(c);
    go_on_at(c, stopped_by_signal, stack_top(m, m->thread));
}

// All machines, for the watch.
static Machine* machines = nullptr;

// Looks once a second whether a lane runs without end.
static void* watch(void*) {
    for (;;) {
        sleep(1);
        for (Machine* m = __atomic_load_n(&machines, __ATOMIC_ACQUIRE); m; m = m->next) {
            const u32 running = __atomic_load_n(&m->running, __ATOMIC_ACQUIRE);
            const u64 turn = __atomic_load_n(&m->turn, __ATOMIC_RELAXED);
            clockid_t clock;
            timespec now;
            if (!running || pthread_getcpuclockid(m->host, &clock) != 0 || clock_gettime(clock, &now) != 0) continue;
            if (turn != m->watched_turn) {
                m->watched_turn = turn, m->watched_since = now.tv_sec;
            } else if (now.tv_sec - m->watched_since >= (long long)ENDLESS_SECONDS) {
                m->endless = true;
                pthread_kill(m->host, ENDLESS);
            }
        }
    }
    return nullptr;
}

// Catches what the processor finds in kernels, and starts the watch. Once a process.
extern "C" void emulator_start() {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (u32 i = 0; i < sizeof SIGNALS / sizeof SIGNALS[0]; i++) sigaction(SIGNALS[i], &action, &old_actions[i]);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, watch, nullptr) == 0) pthread_detach(thread);
}

// ------------------------------------------------------------------------------------------------------------------ blocks

extern "C" {
Index3 emulator_thread_index() { return machine->thread_index; }
Index3 emulator_block_index() { return machine->block_index; }
Index3 emulator_block_size() { return machine->block_size; }
Index3 emulator_grid_size() { return machine->grid_size; }
}

// A new machine, or null when the host has no memory for it. It is zero where nothing is said.
extern "C" Machine* emulator_machine() {
    Machine* m = static_cast<Machine*>(map(sizeof(Machine)));
    if (!m) return nullptr;
    m->stacks = static_cast<u8*>(map(MOST_THREADS * STACK_BYTES));
    m->shared = static_cast<u8*>(map(MOST_SHARED_BYTES));
    m->cells = static_cast<Cell*>(map(u64(MOST_SHARED_BYTES) * sizeof(Cell)));
    m->signal_stack = static_cast<u8*>(map(64 * 1024));
    if (!m->stacks || !m->shared || !m->cells || !m->signal_stack) return nullptr;
    for (u32 thread = 0; thread < MOST_THREADS; thread++) {
        // The lowest whole page of each stack stops what runs over it.
        u64 low = (u64(m->stacks + thread * STACK_BYTES) + PAGE - 1) / PAGE * PAGE;
        mprotect(reinterpret_cast<void*>(low), PAGE, PROT_NONE);
        m->fibres[thread].thread = thread, m->fibres[thread].lane = thread % LANES;
        m->fibres[thread].warp = &m->warps[thread / LANES];
    }
    for (u32 warp = 0; warp < MOST_THREADS / LANES; warp++) {
        m->warps[warp].index = warp, m->warps[warp].lanes = &m->fibres[warp * LANES];
    }
    m->next = __atomic_load_n(&machines, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&machines, &m->next, m, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    return m;
}

static void forget_shared(Machine* m) {
    memset(m->cells, 0, u64(MOST_SHARED_BYTES) * sizeof(Cell));
    m->now = 0;
    for (u32 warp = 0; warp < MOST_THREADS / LANES; warp++) {
        memset(m->warps[warp].pair_met, 0, sizeof m->warps[warp].pair_met);
    }
}

static void prepare(Machine* m, const Job* job, u64 block, Fault* fault) {
    if (m->now > 0x7fffffff) forget_shared(m);
    m->job = job, m->fault = fault, m->faulted = false;
    m->block = u32(block), m->pc = nullptr;
    m->block_start = m->last_barrier = ++m->now;
    m->pieces_count = m->taken = 0;
    m->grid_size = job->grid;
    m->block_size = {job->threads, 1, 1};
    m->block_index = {u32(block % job->grid.x), u32(block / job->grid.x % job->grid.y), u32(block / job->grid.x / job->grid.y)};
    m->thread_index = {0, 0, 0};
    for (u32 thread = 0; thread < job->threads; thread++) {
        Fibre& fibre = m->fibres[thread];
        fibre.stack = first_frame(stack_top(m, thread));
        fibre.state = READY, fibre.copies_count = fibre.batch = 0;
    }
    for (u32 warp = 0; warp < job->threads / LANES; warp++) {
        Warp& w = m->warps[warp];
        w.ready = ~0u, w.arrived = 0, w.mixed = w.partial = false, w.met = m->now;
    }
}

// Runs the lanes of a warp until none can go on.
static void run_warp(Machine* m, Warp* warp) {
    if (!warp->ready) return;
    const u32 lane = u32(__builtin_ctz(warp->ready));
    warp->ready &= warp->ready - 1;
    Fibre* first = &warp->lanes[lane];
    first->state = READY;
    m->turn++;
    m->fibre = first, m->thread = first->thread, m->thread_index.x = first->thread;
    emulator_switch(&m->scheduler_stack, first->stack);
    if (!m->faulted && warp->arrived) partial_warp(&warp->lanes[__builtin_ctz(warp->arrived)]);
}

// All threads wait at a barrier or have returned: opens the barrier. False if there is none left, or after a fault.
static bool open_barrier(Machine* m, u32 threads) {
    const Fibre *at = nullptr, *other = nullptr;
    for (u32 thread = 0; thread < threads; thread++) {
        const Fibre* f = &m->fibres[thread];
        if (f->state == AT_BARRIER && !at) at = f;
        if (at && !other && (f->state != AT_BARRIER || f->site != at->site)) other = f;
    }
    if (!at) return false;
    if (m->fibres[0].state == RETURNED) other = &m->fibres[0];
    if (other) {
        char where[200];
        if (other->state == RETURNED) snprintf(where, sizeof where, "thread %u has returned", other->thread);
        else snprintf(where, sizeof where, "thread %u waits at another (%s)", other->thread, line(other->site));
        m->thread = at->thread;
        note_fault(at->site, "divergent barrier: waits at __syncthreads, %s", where);
        return false;
    }
    m->last_barrier = ++m->now;
    for (u32 warp = 0; warp < threads / LANES; warp++) m->warps[warp].ready = ~0u;
    return true;
}

// Runs one block; true if nothing went wrong.
extern "C" bool emulator_run(Machine* m, const Job* job, u64 block, Fault* fault) {
    stack_t own = {}, before;
    own.ss_sp = m->signal_stack, own.ss_size = 64 * 1024;
    sigaltstack(&own, &before);
    machine = m;
    prepare(m, job, block, fault);
    m->host = pthread_self(), m->endless = false, m->turn++;
    __atomic_store_n(&m->running, 1, __ATOMIC_RELEASE);
    do {
        for (u32 warp = 0; warp < job->threads / LANES && !m->faulted; warp++) run_warp(m, &m->warps[warp]);
    } while (!m->faulted && open_barrier(m, job->threads));
    __atomic_store_n(&m->running, 0, __ATOMIC_RELEASE);
    machine = nullptr;
    sigaltstack(&before, nullptr);
    if (m->faulted) {
        forget_shared(m);
        return false;
    }
    fault->taken = m->taken;
    return true;
}

// The file that an instruction was loaded from, and where in it the instruction is.
extern "C" bool emulator_place(const void* pc, char* file, u64 room, u64* offset) {
    Dl_info info;
    if (!pc || !dladdr(pc, &info) || !info.dli_fname) return false;
    snprintf(file, room, "%s", info.dli_fname);
    *offset = u64(pc) - u64(info.dli_fbase);
    return true;
}

} // namespace emulator
