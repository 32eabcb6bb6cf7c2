// How the runtime goes from one stack to another, and makes a signal's fibre go on elsewhere.

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

namespace emulator {

// Stores where this stack goes on in *from and goes on with another: what a function must preserve is on the stack.
extern "C" void emulator_switch(void** from, void* to);
extern "C" void emulator_fibre();

#if defined(__x86_64__)
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emulator_switch, . - emulator_switch
)");
const u32 SAVED_WORDS = 6; // below the address to return to
static void* first_frame(u8* top) {
    void** words = reinterpret_cast<void**>(top) - 2; // so that the stack is aligned as after a call
    words[0] = reinterpret_cast<void*>(&emulator_fibre);
    return words - SAVED_WORDS;
}
static u64 program_counter(const ucontext_t* c) { return u64(c->uc_mcontext.gregs[REG_RIP]); }
static const char* access_verb(const ucontext_t* c) { return c->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads"; }
static void go_on_at(ucontext_t* c, void (*function)(), u8* top) {
    c->uc_mcontext.gregs[REG_RIP] = greg_t(function);
    c->uc_mcontext.gregs[REG_RSP] = greg_t(top - 8);
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, %function
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emulator_switch, . - emulator_switch
)");
static void* first_frame(u8* top) {
    void** words = reinterpret_cast<void**>(top) - 20;
    words[11] = reinterpret_cast<void*>(&emulator_fibre); // x30
    return words;
}
static u64 program_counter(const ucontext_t* c) { return c->uc_mcontext.pc; }
static const char* access_verb(const ucontext_t*) { return "touches"; }
static void go_on_at(ucontext_t* c, void (*function)(), u8* top) {
    c->uc_mcontext.pc = u64(function);
    c->uc_mcontext.sp = u64(top);
}
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif

} // namespace emulator
