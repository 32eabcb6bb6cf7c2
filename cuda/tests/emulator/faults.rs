//! Planted faults.

use super::{Bench, place, random};
use ragen_cuda::CudaError;
use ragen_cuda::driver::{Arg, Driver, Kind, Source, Unit};

static SOURCE: Source = Source { file: "faults.cu", text: include_str!("faults.cu") };

const THREADS: u32 = 64;
const FLOATS: u32 = 4 * THREADS;

/// The kernel's fault must be exactly this text, in which `{mark}` stands for the place of that mark.
fn expect(result: Result<(), CudaError>, kernel: &str, wanted: &str) {
    let mut wanted = wanted.to_string();
    while let (Some(open), Some(close)) = (wanted.find('{'), wanted.find('}')) {
        let place = place(&SOURCE, &wanted[open + 1..close]);
        wanted.replace_range(open..=close, &place);
    }
    match result {
        Err(CudaError::Fault { kernel: named, fault }) => {
            assert_eq!(named, kernel);
            // Addresses differ from run to run.
            let words = fault.split(' ').map(|word| if word.starts_with("0x") { "ADDRESS," } else { word });
            assert_eq!(words.collect::<Vec<_>>().join(" "), wanted, "of {kernel}");
        }
        other => panic!("{kernel}: {other:?} instead of {wanted}"),
    }
}

/// One block of a kernel that takes a buffer of 64 floats, and more.
fn run(kernel: &str, shared: u32, more: &[Arg], wanted: &str) {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let args = [&[bench.buffer::<f32>("y", 64)], more].concat();
    let wanted = format!("block (0, 0, 0), {wanted}");
    expect(bench.try_launch(kernel, [1, 1, 1], THREADS, shared, &args), kernel, &wanted);
}

#[test]
fn a_missing_barrier() {
    run(
        "missing_barrier",
        FLOATS,
        &[],
        "thread 32: race: writes element 32 of shared piece 0, which thread 31 has read ({barrier read}) with no barrier between \
         ({barrier write})",
    );
    run(
        "missing_second_barrier",
        FLOATS,
        &[],
        "thread 32: race: reads element 0 of shared piece 0, which thread 0 has written ({second write}) with no barrier between \
         ({second read})",
    );
}

#[test]
fn a_missing_meeting_of_a_warp() {
    run(
        "missing_syncwarp",
        FLOATS,
        &[],
        "thread 1: race: writes element 0 of shared piece 0, which thread 0 has read ({syncwarp read}) with no barrier between \
         ({syncwarp write})",
    );
}

#[test]
fn two_threads_write_one_element() {
    run(
        "two_writers",
        16,
        &[],
        "thread 1: race: writes element 0 of shared piece 0, which thread 0 has written ({two writers}) with no barrier between \
         ({two writers})",
    );
}

#[test]
fn shared_memory_touched_outside_its_piece() {
    run(
        "outside_shared",
        16 + FLOATS,
        &[Arg::U32(1)],
        "thread 63: touches element 64 of shared piece 1, which has 64 ({outside})",
    );
    run(
        "outside_shared_read",
        FLOATS,
        &[],
        "thread 0: touches element -1 of shared piece 0, which has 64 ({outside read})",
    );
}

/// The line is that of the header, where the access stands.
#[test]
fn shared_memory_touched_by_a_function_of_a_header() {
    let common = include_str!("../../kernels/common.cuh");
    let line = 1 + common.lines().position(|line| line.contains("sums[threadIdx.x / WARP] = x")).unwrap();
    let wanted = format!("thread 32: touches element 1 of shared piece 0, which has 1 (common.cuh:{line})");
    run("sum_with_too_little", 16, &[], &wanted);
}

#[test]
fn a_divergent_barrier() {
    run(
        "divergent_barrier",
        0,
        &[],
        "thread 0: divergent barrier: waits at __syncthreads, thread 40 has returned ({divergent})",
    );
    run(
        "two_barriers",
        0,
        &[],
        "thread 0: divergent barrier: waits at __syncthreads, thread 32 waits at another ({second of two}) ({first of two})",
    );
}

#[test]
fn shared_memory_read_before_it_is_written() {
    run(
        "unwritten",
        FLOATS,
        &[],
        "thread 5: reads element 5 of shared piece 0, which nobody has written ({unwritten})",
    );
}

#[test]
fn a_full_mask_in_a_partial_warp() {
    run(
        "partial_shuffle",
        0,
        &[Arg::U32(48)],
        "thread 32: __shfl_xor_sync of warp 1 with the mask ffffffff is reached by lanes 0-15 only: lanes 16-31 have returned \
         ({partial})",
    );
    run(
        "shuffle_against_vote",
        0,
        &[],
        "thread 31: __ballot_sync of warp 0 with the mask ffffffff is reached by lanes 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, \
         25, 27, 29, 31 only: lane 0 is at __shfl_xor_sync ({shuffle}) ({vote})",
    );
    run(
        "shuffle_against_barrier",
        0,
        &[],
        "thread 0: warp_sum of warp 0 with the mask ffffffff is reached by lanes 0-2, 4-31 only: lane 3 is at __syncthreads \
         ({lone barrier}) ({lonely sum})",
    );
    run("wrong_mask", 0, &[], "thread 16: __shfl_sync by lane 16, which its mask 0000ffff leaves out ({left out})");
    run(
        "from_nobody",
        0,
        &[],
        "thread 15: __shfl_sync: lane 0 asks lane 20, which the mask 0000ffff leaves out ({from nobody})",
    );
}

#[test]
fn asynchronous_copies_that_nobody_waits_for() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let (y, x) = (bench.buffer::<f32>("y", 64), bench.upload("x", &random(1, 4 * 64)));
    let shared = 4 * FLOATS;
    let under_way =
        "block (0, 0, 0), thread 0: reads element 0 of shared piece 0, into which the asynchronous copy of thread 0";
    for (kernel, wanted) in [
        ("missing_wait", format!("{under_way} ({{copy}}) is under way ({{copied}})")),
        ("missing_commit", format!("{under_way} ({{uncommitted copy}}) is under way ({{uncommitted}})")),
        (
            "copy_over_readers",
            "block (0, 0, 0), thread 32: race: reads element 127 of shared piece 0, which thread 31 has written ({over readers}) with \
             no barrier between ({reader})"
                .into(),
        ),
    ] {
        expect(bench.try_launch(kernel, [1, 1, 1], THREADS, shared, &[y, x]), kernel, &wanted);
    }
    let wanted = "block (0, 0, 0), thread 5: returns while its asynchronous copy is under way ({left behind})";
    expect(bench.try_launch("left_behind", [1, 1, 1], THREADS, shared, &[x]), "left_behind", wanted);
    for (kernel, wanted) in [
        ("crooked_copy", "async_copy16 at byte 4 of shared piece 0, not a multiple of 16 ({crooked copy})"),
        ("crooked_source", "async_copy16 from an address that is not a multiple of 16 ({crooked source})"),
    ] {
        let wanted = format!("block (0, 0, 0), thread 1: {wanted}");
        expect(bench.try_launch(kernel, [1, 1, 1], THREADS, shared, &[x]), kernel, &wanted);
    }
}

#[test]
fn tiles_that_do_not_lie_at_multiples_of_16_bytes() {
    for (element, size) in [(Kind::F32, 4), (Kind::Bf16, 2)] {
        let Some(bench) = Bench::new(&SOURCE, element) else { return };
        let y = bench.buffer::<f32>("y", 64);
        let launch = |thread: u32, at: u32, ld: u32, wanted: &str| {
            let args = [y, Arg::U32(at), Arg::U32(ld)];
            let wanted = format!("block (0, 0, 0), thread {thread}: {wanted} ({{crooked tile}})");
            let result = bench.try_launch("crooked_tile", [1, 1, 1], THREADS, 32 * 32 * size, &args);
            expect(result, "crooked_tile", &wanted);
        };
        launch(0, 2, 24, &format!("load_b at byte {} of shared piece 0, not a multiple of 16", 2 * size));
        launch(0, 0, 18, "load_b with rows of 18 elements, not a multiple of 16 bytes");
        launch(8, 32 * 30, 32, "touches element 1024 of shared piece 0, which has 1024");
    }
}

#[test]
fn more_shared_memory_than_the_launch_has_or_less() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let launch = |kernel: &str, shared: u32| bench.try_launch(kernel, [1, 1, 1], THREADS, shared, &[]);
    let wanted = "block (0, 0, 0), thread 0: takes 288 bytes of shared memory, the launch has 280 ({greedy})";
    expect(launch("greedy", 280), "greedy", wanted);
    launch("greedy", 288).unwrap();
    expect(launch("greedy", 300), "greedy", "launched with 300 bytes of shared memory, it took 288");
    let wanted = "block (0, 0, 0), thread 7: takes 4 elements of 4 bytes as shared piece 0, another thread took 8 of 4 ({undecided})";
    expect(launch("undecided", 32), "undecided", wanted);
}

#[test]
fn global_memory_touched_outside_a_buffer() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let (y, x) = (bench.buffer::<f32>("y", 256), bench.upload("x", &random(1, 64)));
    let write = |y: Arg, i: i32| bench.try_launch("outside_global", [4, 1, 1], THREADS, 0, &[y, Arg::U32(i as u32)]);
    write(y, 255).unwrap();
    let past = |bytes: u32| {
        format!(
            "block (2, 0, 0), thread 3: writes ADDRESS, {bytes} bytes past the end of `y` (1024 bytes) ({{outside global}})"
        )
    };
    expect(write(y, 256), "outside_global", &past(0));
    expect(write(y, 258), "outside_global", &past(8));
    let before =
        "block (2, 0, 0), thread 3: writes ADDRESS, 4096 bytes before the start of `y` (1024 bytes) ({outside global})";
    expect(write(y, -1024), "outside_global", before);
    expect(
        write(Arg::Address(0), 1),
        "outside_global",
        "block (2, 0, 0), thread 3: writes ADDRESS, at a null pointer ({outside global})",
    );

    let args = [y, x, Arg::U32(64)];
    let wanted =
        "block (0, 0, 0), thread 3: reads ADDRESS, 0 bytes past the end of `x` (256 bytes) ({outside global read})";
    expect(bench.try_launch("outside_global_read", [1, 1, 1], THREADS, 0, &args), "outside_global_read", wanted);
}

#[test]
fn a_write_into_the_rest_of_a_buffers_page() {
    for (i, wanted) in [(31, "0 bytes past the end"), (-3, "9 bytes before the start")] {
        let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
        let args = [bench.buffer::<f32>("odd", 31), Arg::U32(i as u32)];
        let wanted = format!("a thread has written to ADDRESS, {wanted} of `odd` (124 bytes)");
        expect(bench.try_launch("outside_global", [4, 1, 1], THREADS, 0, &args), "outside_global", &wanted);
    }
}

#[test]
fn global_memory_touched_by_threads_in_no_order() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let launch = |kernel: &str, blocks: u32| {
        let y = bench.upload("y", &[0.0f32; 128]);
        bench.try_launch(kernel, [blocks, 1, 1], THREADS, 0, &[y])
    };
    launch("blocks_share_a_sum", 1).unwrap();
    // Which of the two comes second is left to the host's threads.
    let result = launch("blocks_share_a_sum", 2);
    let (found, before) =
        if result.as_ref().is_err_and(|e| e.to_string().contains("block (1, 0, 0), ")) { (1, 0) } else { (0, 1) };
    let wanted = format!(
        "block ({found}, 0, 0), thread 5: race: after thread 5 of block ({before}, 0, 0) has written it with no barrier between, writes \
         ADDRESS, byte 4 of `y` (512 bytes) ({{shared sum}})"
    );
    expect(result, "blocks_share_a_sum", &wanted);
    let error = launch("reads_another_blocks_result", 2).unwrap_err().to_string();
    assert!(
        error.contains("race: after thread 0 of block (") && error.contains("byte 0 of `y` (512 bytes)"),
        "{error}"
    );
    expect(
        launch("missing_barrier_in_global", 1),
        "missing_barrier_in_global",
        "block (0, 0, 0), thread 32: race: after thread 31 of block (0, 0, 0) has read it with no barrier between, writes ADDRESS, \
         byte 128 of `y` (512 bytes) ({global write})",
    );
}

#[test]
fn global_memory_read_before_it_is_written() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let (y, x) = (bench.buffer::<f32>("y", 64), bench.buffer::<u32>("x", 64));
    let Arg::Address(address) = x else { unreachable!() };
    bench.emulator.zero(address, 128).unwrap();
    let wanted = "block (0, 0, 0), thread 32: reads what nobody has written, ADDRESS, byte 128 of `x` (256 bytes) ({unwritten global})";
    expect(bench.try_launch("unwritten_global", [1, 1, 1], THREADS, 0, &[y, x]), "unwritten_global", wanted);
    bench.emulator.zero(address, 256).unwrap();
    bench.try_launch("unwritten_global", [1, 1, 1], THREADS, 0, &[y, x]).unwrap();
}

#[test]
fn what_the_processor_finds() {
    let unlike = "goes outside a local array or touches a word at an address that is not a multiple of its size";
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let y = bench.buffer::<f32>("y", 64);
    for (kernel, arg, wanted) in [
        ("crooked_word", 3, format!("thread 0: {unlike} ({{crooked word}})")),
        ("outside_local", 1, format!("thread 3: {unlike} ({{outside local}})")),
        ("divide_by_zero", 0, "thread 0: divides an integer by zero ({division})".into()),
    ] {
        let wanted = format!("block (0, 0, 0), {wanted}");
        expect(bench.try_launch(kernel, [1, 1, 1], THREADS, 0, &[y, Arg::U32(arg)]), kernel, &wanted);
    }
}

#[test]
fn a_thread_that_needs_more_stack_than_there_is() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let y = bench.buffer::<f32>("y", 64);
    let error = bench.try_launch("huge_frame", [1, 1, 1], THREADS, 0, &[y, Arg::U32(0)]).unwrap_err().to_string();
    let begin = "huge_frame: block (0, 0, 0), thread 0: needs more than 65856 bytes of stack (faults.cu:";
    assert!(error.starts_with(begin), "{error}");
}

#[test]
fn a_thread_that_never_comes_back() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let y = bench.upload("y", &[0.0f32; 64]);
    match bench.try_launch("endless", [1, 1, 1], THREADS, 0, &[y]) {
        Err(CudaError::Fault { fault, .. }) => {
            let begin = "block (0, 0, 0), thread 0: goes on for ever, or waits for another thread outside of barriers";
            assert!(fault.starts_with(begin), "{fault}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_lowest_block_is_named_whatever_runs_first() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let y = bench.buffer::<f32>("y", 64);
    for _ in 0..20 {
        let result = bench.try_launch("unwritten", [50, 2, 2], THREADS, FLOATS, &[y]);
        expect(
            result,
            "unwritten",
            "block (0, 0, 0), thread 5: reads element 5 of shared piece 0, which nobody has written ({unwritten})",
        );
    }
}

#[test]
fn arguments_that_the_kernel_does_not_take() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let p = bench.buffer::<f32>("p", 64);
    let right = [p, Arg::U32(1), Arg::U64(2), Arg::F32(3.0), Arg::F64(4.0), Arg::U32((-5i32) as u32)];
    let launch = |args: &[Arg]| bench.try_launch("takes_all_kinds", [1, 1, 1], THREADS, 0, args);
    launch(&right).unwrap();
    assert_eq!(bench.download::<f32>(p, 1), [5.0]);

    expect(launch(&right[..5]), "takes_all_kinds", "launched with 5 arguments, it takes 6");
    let mut wrong = right;
    wrong[2] = Arg::U32(2);
    expect(launch(&wrong), "takes_all_kinds", "argument 2 is U32(2), the kernel takes a u64");
    wrong = right;
    wrong[3] = Arg::F64(3.0);
    expect(launch(&wrong), "takes_all_kinds", "argument 3 is F64(3.0), the kernel takes a float");
    wrong = right;
    wrong[0] = Arg::U64(0);
    expect(launch(&wrong), "takes_all_kinds", "argument 0 is U64(0), the kernel takes a pointer");
}

#[test]
fn launches_that_no_gpu_would_do() {
    let Some(bench) = Bench::new(&SOURCE, Kind::F32) else { return };
    let y = bench.buffer::<f32>("y", 64);
    let launch =
        |kernel: &str, grid: [u32; 3], threads: u32, shared: u32| bench.try_launch(kernel, grid, threads, shared, &[y]);
    let wanted = "launched with blocks of 32 threads, written for 64";
    expect(launch("unwritten", [1, 1, 1], 32, FLOATS), "unwritten", wanted);
    let wanted = "blocks of 48 threads: not a multiple of 32 from 32 to 1024";
    expect(launch("half_a_warp_too_much", [1, 1, 1], 48, 0), "half_a_warp_too_much", wanted);
    let wanted = "232452 bytes of shared memory, a block has 232448";
    expect(launch("unwritten", [1, 1, 1], THREADS, 227 * 1024 + 4), "unwritten", wanted);
    let wanted = "a grid of [1, 65536, 1] blocks: from 1 to 2^31 - 1, 65535 and 65535";
    expect(launch("unwritten", [1, 65536, 1], THREADS, FLOATS), "unwritten", wanted);

    let error = launch("no_such_kernel", [1, 1, 1], THREADS, 0).unwrap_err().to_string();
    assert_eq!(error, "launch failed: faults.cu has no kernel no_such_kernel");
}

#[test]
fn a_source_that_does_not_compile_shows_the_compilers_words() {
    static WRONG: Source = Source { file: "wrong.cu", text: "\nKERNEL(32) wrong(float* y) { y[0] = nonsense; }\n" };
    let Some(emulator) = super::emulator() else { return };
    let error = emulator.load(&Unit { source: &WRONG, element: Kind::F32, head_dim: 64 }).unwrap_err().to_string();
    assert!(error.starts_with("wrong.cu for f32 and heads of 64 does not compile:\n"), "{error}");
    assert!(error.contains("wrong.cu:2:") && error.contains("nonsense"), "{error}");
}
