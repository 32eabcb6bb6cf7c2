//! Products of fragments, of the emulator and of `device.cuh` in f32.

use super::{Bench, random};
use half::bf16;
use ragen_cuda::driver::{Arg, Kind, Source};

static TILES: Source = Source { file: "tiles.cu", text: include_str!("tiles.cu") };

fn round(kind: Kind, x: f32) -> f32 {
    if kind == Kind::Bf16 { bf16::from_f32(x).to_f32() } else { x }
}

/// Random numbers of a kind, uploaded, and as floats.
fn matrix(bench: &Bench, kind: Kind, seed: u64, len: usize) -> (Arg, Vec<f32>) {
    let numbers: Vec<f32> = random(seed, len).into_iter().map(|x| round(kind, x)).collect();
    let halves: Vec<u16> = numbers.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
    (if kind == Kind::Bf16 { bench.upload("matrix", &halves) } else { bench.upload("matrix", &numbers) }, numbers)
}

/// c [16, 8] += a [16, 16] · b [16, 8], one chain an element.
fn multiply(c: &mut [f32], a: &[f32], b: &[f32]) {
    for (i, c) in c.iter_mut().enumerate() {
        for k in 0..16 {
            *c = a[i / 8 * 16 + k].mul_add(b[k * 8 + i % 8], *c);
        }
    }
}

#[test]
fn fragments_give_the_plain_product_in_every_bit() {
    for kind in [Kind::F32, Kind::Bf16] {
        let Some(bench) = Bench::new(&TILES, kind) else { return };
        let size = if kind == Kind::F32 { 4 } else { 2 };
        let ((a, left), (b, right)) = (matrix(&bench, kind, 1, 256), matrix(&bench, kind, 2, 128));
        let mut want = vec![0.0; 128];
        multiply(&mut want, &left, &right);
        multiply(&mut want, &left, &right);
        for (transpose_a, transpose_b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let c = bench.buffer::<f32>("c", 128);
            let args = [c, a, b, Arg::U32(transpose_a), Arg::U32(transpose_b)];
            bench.launch("product", [1, 1, 1], 32, 2 * 16 * 24 * size, &args);
            assert_eq!(bench.download::<f32>(c, 128), want, "{kind:?} {transpose_a} {transpose_b}");
        }
    }
}

#[test]
fn two_accumulators_become_a_fragment() {
    for kind in [Kind::F32, Kind::Bf16] {
        let Some(bench) = Bench::new(&TILES, kind) else { return };
        let size = if kind == Kind::F32 { 4 } else { 2 };
        let ((a, left), (b, low), (right, high), (v, last)) = (
            matrix(&bench, kind, 1, 256),
            matrix(&bench, kind, 2, 128),
            matrix(&bench, kind, 3, 128),
            matrix(&bench, kind, 4, 128),
        );
        let (mut p, mut q, mut want) = (vec![0.0; 128], vec![0.0; 128], vec![0.0; 128]);
        multiply(&mut p, &left, &low);
        multiply(&mut q, &left, &high);
        let both: Vec<f32> = p.chunks(8).zip(q.chunks(8)).flat_map(|(p, q)| [p, q].concat()).collect();
        multiply(&mut want, &both.iter().map(|&x| round(kind, x)).collect::<Vec<_>>(), &last);
        let c = bench.buffer::<f32>("c", 128);
        bench.launch("product_of_product", [1, 1, 1], 32, 4 * 16 * 24 * size, &[c, a, b, right, v]);
        assert_eq!(bench.download::<f32>(c, 128), want, "{kind:?}");
    }
}

/// In f32 the GPU multiplies by shuffles. That text is compiled here under the emulator's shuffles, beside the emulator's own.
#[test]
fn the_gpus_products_of_floats_are_the_emulators_in_every_bit() {
    let device = include_str!("../../kernels/device.cuh");
    let begin = device.find("// In float there is no tensor core").expect("device.cuh has a section for floats");
    let section = &device[begin..begin + device[begin..].find("\n#endif").unwrap()];
    let kernels = TILES.text;
    for name in ["load_a", "load_a_t", "load_b", "load_b_t", "to_fragment", "mma"] {
        assert!(section.contains(&format!(" {name}(")), "the section for floats has no {name}");
    }
    // Qualified names: arguments of the emulator's types must not find its functions.
    let mut own = kernels.to_string();
    for name in ["load_a", "load_a_t", "load_b", "load_b_t", "to_fragment", "mma"] {
        own = own.replace(&format!(" {name}("), &format!(" hardware::{name}("));
        own = own.replace(&format!("({name}("), &format!("(hardware::{name}("));
    }
    let text = format!("namespace hardware {{\n{section}\n}}\n{own}");
    let source: &'static Source = Box::leak(Box::new(Source { file: "device.cu", text: text.leak() }));
    let (Some(gpu), Some(plain)) = (Bench::new(source, Kind::F32), Bench::new(&TILES, Kind::F32)) else { return };
    for (kernel, tiles) in [("product", 2), ("product_of_product", 4)] {
        let run = |bench: &Bench| {
            let c = bench.buffer::<f32>("c", 128);
            let numbers = |seed, len| matrix(bench, Kind::F32, seed, len).0;
            let more = if tiles == 2 { [Arg::U32(1), Arg::U32(0)] } else { [numbers(3, 128), numbers(4, 128)] };
            let args = [[c, numbers(1, 256), numbers(2, 128)].as_slice(), &more].concat();
            bench.launch(kernel, [1, 1, 1], 32, tiles * 16 * 24 * 4, &args);
            bench.download::<f32>(c, 128).into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(run(&gpu), run(&plain), "{kernel}");
    }
}
