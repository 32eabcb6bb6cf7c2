//! Kernels without a fault, and what their results must be.

use super::{Bench, random};
use half::bf16;
use ragen_cuda::driver::{Arg, Kind, Source};

static SOURCE: Source = Source { file: "sound.cu", text: include_str!("sound.cu") };

fn bench() -> Option<Bench> {
    Bench::new(&SOURCE, Kind::F32)
}

#[test]
fn sums_over_blocks() {
    let Some(bench) = bench() else { return };
    let numbers = random(1, 5 * 96);
    let (y, x) = (bench.buffer::<f64>("y", 15), bench.upload("x", &numbers));
    bench.launch("sums", [5, 1, 1], 96, 16 + 32, &[y, x]);
    let got = bench.download::<f64>(y, 15);
    for (block, own) in numbers.chunks(96).enumerate() {
        let exact: f64 = own.iter().map(|&x| f64::from(x)).sum();
        assert!((got[3 * block] - exact).abs() < 1e-5 && (got[3 * block + 2] - exact).abs() < 1e-13);
        assert_eq!(got[3 * block + 1], f64::from(own.iter().copied().fold(f32::MIN, f32::max)));
    }
}

#[test]
fn a_transpose_through_shared_memory() {
    let Some(bench) = bench() else { return };
    let (rows, columns) = (45, 70);
    let numbers = random(2, rows * columns);
    let (y, x) = (bench.buffer::<f32>("y", rows * columns), bench.upload("x", &numbers));
    let args = [y, x, Arg::U32(rows as u32), Arg::U32(columns as u32)];
    bench.launch("transpose", [3, 2, 1], 96, 4 * 32 * 33, &args);
    let got = bench.download::<f32>(y, rows * columns);
    assert!((0..rows * columns).all(|i| got[i] == numbers[i % rows * columns + i / rows]));
}

#[test]
fn warps_with_tiles_of_their_own() {
    let Some(bench) = bench() else { return };
    let y = bench.upload("y", &[-1.0f32; 96]);
    bench.launch("warp_tiles", [1, 1, 1], 96, 4 * 96, &[y, Arg::U32(2)]);
    let got = bench.download::<f32>(y, 96);
    for (i, x) in got.into_iter().enumerate() {
        // Three turns are one.
        assert_eq!(x, if i < 64 { (i / 32 * 32 + 31 - i % 32) as f32 } else { -1.0 });
    }
}

#[test]
fn pairs_that_meet_by_themselves() {
    let Some(bench) = bench() else { return };
    let y = bench.buffer::<f32>("y", 96);
    bench.launch("pairs", [1, 1, 1], 96, 4 * 96, &[y]);
    assert!(bench.download::<f32>(y, 96).into_iter().enumerate().all(|(i, x)| x == (i ^ 1) as f32 + 1.0));
}

#[test]
fn copies_while_the_slice_before_is_read() {
    let Some(bench) = bench() else { return };
    for slices in [1usize, 2, 5] {
        let numbers = random(3, slices * 4 * 96);
        let (y, x) = (bench.buffer::<f32>("y", 96), bench.upload("x", &numbers));
        bench.launch("double_buffered", [1, 1, 1], 96, 2 * 16 * 96, &[y, x, Arg::U32(slices as u32)]);
        let got = bench.download::<f32>(y, 96);
        for (i, got) in got.into_iter().enumerate() {
            assert_eq!(got, numbers.chunks(4 * 96).fold(0.0, |sum, slice| sum + slice[4 * 96 - 1 - i]));
        }
    }
}

#[test]
fn what_lanes_say_to_one_another() {
    let Some(bench) = bench() else { return };
    let y = bench.buffer::<u32>("y", 32 * 12);
    bench.launch("lanes", [1, 1, 1], 32, 0, &[y]);
    let thirds = (0..32).filter(|lane| lane % 3 == 0).map(|lane| 1u32 << lane).sum::<u32>();
    for (lane, row) in bench.download::<u32>(y, 32 * 12).chunks(12).enumerate() {
        let lane = lane as u32;
        let quad = lane / 4 * 4 + 100;
        let want = [
            105,
            100 + lane / 8 * 8 + 5,
            100 + (lane ^ 9),
            if lane < 3 { 100 + lane } else { 97 + lane },
            if lane > 28 { 100 + lane } else { 103 + lane },
            if lane % 16 > 12 { 100 + lane } else { 103 + lane },
            thirds,
            1,
            1,
            (100..132).sum(),
            4 * quad + 6,
            (quad + 3) * 1000 + 131,
        ];
        assert_eq!(row, want, "lane {lane}");
    }
}

#[test]
fn a_warps_sum_is_the_tree_of_shuffles_in_every_bit() {
    let Some(bench) = bench() else { return };
    let (y, x) = (bench.buffer::<f32>("y", 64), bench.upload("x", &random(4, 32)));
    bench.launch("sum_by_shuffles", [1, 1, 1], 32, 0, &[y, x]);
    let got = bench.download::<f32>(y, 64);
    assert!(got.iter().all(|x| x.to_bits() == got[0].to_bits()), "{got:?}");
}

#[test]
fn bf16_is_the_nearest_with_ties_to_even() {
    let Some(bench) = Bench::new(&SOURCE, Kind::Bf16) else { return };
    let mut numbers: Vec<f32> = random(5, 1000).into_iter().map(|x| x * 1e20).collect();
    // Halfway between two, next to it, and what is special.
    numbers.extend((0..64u32).map(|i| f32::from_bits(0x3f80_7fff + ((i / 3) << 16) + i % 3)));
    numbers.extend([
        0.0,
        -0.0,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        1e-40,
    ]);
    let n = numbers.len();
    let (y, pairs) = (bench.buffer::<u16>("y", n), bench.buffer::<u32>("pairs", n));
    let x = bench.upload("x", &numbers);
    bench.launch("round_all", [1, 1, 1], 32, 0, &[y, pairs, x, Arg::U32(n as u32)]);
    let (got, pairs) = (bench.download::<u16>(y, n), bench.download::<u32>(pairs, n));
    for (i, &x) in numbers.iter().enumerate() {
        let want = bf16::from_f32(x);
        assert!(want.to_bits() == got[i] || (x.is_nan() && bf16::from_bits(got[i]).is_nan()), "{x:e}");
        assert_eq!(pairs[i], u32::from(got[n - 1 - i]) << 16 | u32::from(got[i]));
    }
}

#[test]
fn threads_know_where_they_are() {
    let Some(bench) = bench() else { return };
    let y = bench.buffer::<u32>("y", 2 * 3 * 4 * 64);
    bench.launch("where", [2, 3, 4], 64, 0, &[y]);
    for (i, x) in bench.download::<u32>(y, 2 * 3 * 4 * 64).into_iter().enumerate() {
        let (thread, block) = (i % 64, i / 64);
        assert_eq!(x as usize, block % 2 + 10 * (block / 2 % 3) + 100 * (block / 6) + 1000 * thread);
    }
}
