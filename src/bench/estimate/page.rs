//! The estimate of Qwen2.5-0.5B's shape on an H200 as the tables of docs/gpu.md.

use super::{Assumed, EngineError, Part, Seconds, Walker, Walks, decode, seconds, step, train};
use crate::bench::gpu::{Sizes, cost};
use crate::bench::half_billion;
use ragen_models::transformer::Config;
use std::fmt::Write;

const MACHINE: Assumed = Assumed::H200;

/// A walk with its times, at best and as expected.
struct Estimate {
    name: &'static str,
    walks: Walks,
    best: Seconds,
    expected: Seconds,
}

impl Estimate {
    fn new(name: &'static str, walks: Walks, c: &Config) -> Self {
        let [best, expected] = [MACHINE.at_best(), MACHINE].map(|on| seconds(&walks, c, &on));
        Estimate { name, walks, best, expected }
    }

    fn launches(&self) -> f64 {
        self.walks.iter().map(|(walk, times)| times * walk.launches() as f64).sum()
    }

    fn replayed(&self) -> f64 {
        let replayed = self.walks.iter().filter(|(walk, _)| walk.is_replayed());
        replayed.fold(0.0, |sum, (walk, times)| sum + times * walk.launches() as f64)
    }
}

/// A line of the table of targets: a figure at best and as expected, and what it should be.
struct Line {
    what: String,
    target: &'static str,
    figures: [String; 2],
    /// By what the expected figure is better than the target, as a factor.
    margin: Option<f64>,
}

/// The tables.
///
/// **Errors** none but those of a programming error.
pub fn page() -> Result<String, EngineError> {
    let (c, sizes) = (half_billion(), Sizes::device(usize::MAX));
    let mut walker = Walker::new(c.clone(), sizes.clone())?;
    let training = Estimate::new("training step", train(&mut walker)?, &c);
    let mut decoding = Vec::new();
    for (batch, name) in [(1, "decode, batch 1"), (32, "decode, batch 32"), (128, "decode, batch 128")] {
        decoding.push((batch, Estimate::new(name, decode(&mut walker, batch)?, &c)));
    }
    let (rollout, update) = step(&mut walker)?;
    let rollout = Estimate::new("Sokoban step, rollout", rollout, &c);
    let update = Estimate::new("Sokoban step, update", update, &c);

    let mut lines = vec![train_line(&c, &sizes, &training)];
    lines.extend(decoding.iter().rev().map(|(batch, estimate)| decode_line(&c, &sizes, *batch, estimate)));
    lines.push(step_line(&sizes, &rollout, &update));
    let mut text = assumptions();
    text.push_str(&targets(&lines));
    text.push_str(&what_it_takes(&c, &sizes, &training, &decoding[2].1));
    let (_, largest) = decoding.pop().expect("the largest batch");
    text.push_str(&parts(&[training, largest, rollout, update]));
    let gib = walker.most_bytes() as f64 / f64::from(1 << 30);
    let _ = writeln!(text, "\nDevice memory for all of it: {gib:.1} GiB at most.");
    Ok(text)
}

fn assumptions() -> String {
    let Assumed { bandwidth, rate, of_bandwidth, of_rate, attention_of_rate, shortest, launch, call, wait } = MACHINE;
    format!(
        "Assumed: {:.1} TB/s and {:.0} TFLOP/s in bf16. *At best* they are reached by everything and the host costs nothing. *Expected*: \
         {:.0} % of the bandwidth by\neverything, {:.0} % of the rate by products, {:.1} % of it by attention; a kernel takes {:.0} µs at \
         least, a launch {:.0} µs of the host (inside a replay none), another\ncall {:.0} µs, and a download keeps the device waiting for \
         {:.0} µs.\n\n",
        bandwidth / 1e12,
        rate / 1e12,
        of_bandwidth * 100.0,
        of_rate * 100.0,
        attention_of_rate * 100.0,
        shortest * 1e6,
        launch * 1e6,
        call * 1e6,
        wait * 1e6
    )
}

fn train_line(c: &Config, sizes: &Sizes, of: &Estimate) -> Line {
    let (rows, len) = sizes.train;
    let flops = cost::train(c, rows * len, rows * (len - 1), rows * cost::pairs(0, len)).flops;
    let mfu = |s: &Seconds| flops / s.total() / MACHINE.rate;
    let figure = |s: &Seconds| {
        let tokens = (rows * len) as f64 / s.total() / 1e3;
        format!("{:.0} % ({tokens:.0}k tokens/s)", 100.0 * mfu(s))
    };
    Line {
        what: format!("training, {rows} × {len} tokens a step: MFU in bf16"),
        target: "≥ 45 %",
        figures: [figure(&of.best), figure(&of.expected)],
        margin: Some(mfu(&of.expected) / 0.45),
    }
}

fn decode_line(c: &Config, sizes: &Sizes, batch: usize, of: &Estimate) -> Line {
    let (len, new) = sizes.decode;
    let bytes = cost::decode(c, 2, batch, len + new / 2, 1).bytes;
    let share = |s: &Seconds| bytes / s.total() / MACHINE.bandwidth;
    let figure = |s: &Seconds| {
        let tokens = batch as f64 / s.total() / 1e3;
        format!("{:.0} % ({tokens:.1}k tokens/s)", 100.0 * share(s))
    };
    Line {
        what: format!("decoding, batch {batch} after {len} tokens: share of bandwidth"),
        target: if batch == 128 { "≥ 40 %" } else { "" },
        figures: [figure(&of.best), figure(&of.expected)],
        margin: (batch == 128).then(|| share(&of.expected) / 0.4),
    }
}

fn step_line(sizes: &Sizes, rollout: &Estimate, update: &Estimate) -> Line {
    let of = sizes.step;
    let figure = |rollout: &Seconds, update: &Seconds| {
        format!("{:.1} s ({:.1} rollout)", rollout.total() + update.total(), rollout.total())
    };
    Line {
        what: format!(
            "Sokoban step, {} × {} episodes of {} turns, {} tokens each",
            of.groups,
            of.members,
            of.turns,
            of.row_tokens()
        ),
        target: "≤ 4 s",
        figures: [figure(&rollout.best, &update.best), figure(&rollout.expected, &update.expected)],
        margin: Some(4.0 / (rollout.expected.total() + update.expected.total())),
    }
}

fn targets(lines: &[Line]) -> String {
    let mut text = String::from(
        "| on one H200 | target | at best | expected | so | measured |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for Line { what, target, figures: [best, expected], margin } in lines {
        let verdict = match margin {
            None => String::new(),
            Some(margin) if *margin >= 1.0 => format!("reached, {:.1} × over", margin),
            Some(margin) => format!("missed, {:.2} of it", margin),
        };
        let _ = writeln!(text, "| {what} | {target} | {best} | {expected} | {verdict} | not yet measured |");
    }
    text
}

/// The share of `of` at which a figure is `target`, all else as expected; `None` where even all of it is too little.
fn needed(target: f64, set: &dyn Fn(&mut Assumed, f64), figure: &dyn Fn(&Assumed) -> f64) -> Option<f64> {
    let at = |share: f64| {
        let mut on = MACHINE;
        set(&mut on, share);
        figure(&on)
    };
    let (mut low, mut high) = (0.0, 1.0);
    if at(high) < target {
        return None;
    }
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if at(middle) < target { low = middle } else { high = middle }
    }
    Some(high)
}

/// How good one thing alone would have to be for a target, all else as expected.
fn what_it_takes(c: &Config, sizes: &Sizes, training: &Estimate, decoding: &Estimate) -> String {
    let (rows, len) = sizes.train;
    let flops = cost::train(c, rows * len, rows * (len - 1), rows * cost::pairs(0, len)).flops;
    let mfu = |on: &Assumed| flops / seconds(&training.walks, c, on).total() / on.rate;
    let bytes = cost::decode(c, 2, 128, sizes.decode.0 + sizes.decode.1 / 2, 1).bytes;
    let share = |on: &Assumed| bytes / seconds(&decoding.walks, c, on).total() / on.bandwidth;
    let at = |what: &str, of: &str, x: Option<f64>| match x {
        None => format!("more than {what}"),
        Some(x) => format!("{what} at {:.0} % of the {of}", 100.0 * x),
    };
    format!(
        "\nWith one thing better and all else as expected, 45 % in training takes\n{}, {}, or {};\n40 % in decoding takes {}.\n",
        at("products", "rate", needed(0.45, &|on, x| on.of_rate = x, &mfu)),
        at("attention", "rate", needed(0.45, &|on, x| on.attention_of_rate = x, &mfu)),
        at("what waits for memory", "bandwidth", needed(0.45, &|on, x| on.of_bandwidth = x, &mfu)),
        at("what waits for memory", "bandwidth", needed(0.4, &|on, x| on.of_bandwidth = x, &share)),
    )
}

fn parts(of: &[Estimate]) -> String {
    let mut text = String::from("\nWhere the expected time goes, in milliseconds:\n\n|");
    let row = |text: &mut String, name: &str, cell: &dyn Fn(&Estimate) -> String| {
        let _ = writeln!(text, " {name} | {} |", of.iter().map(cell).collect::<Vec<_>>().join(" | "));
        text.push('|');
    };
    row(&mut text, "", &|e| e.name.into());
    row(&mut text, "---", &|_| "---:".into());
    let ms =
        |seconds: f64| if seconds < 0.1 { format!("{:.2}", seconds * 1e3) } else { format!("{:.0}", seconds * 1e3) };
    for part in [Part::Products, Part::Attention, Part::Elementwise, Part::Logits, Part::Optimiser, Part::Copies] {
        row(&mut text, part.name(), &|e| ms(e.expected.parts.get(&part).copied().unwrap_or(0.0)));
    }
    row(&mut text, "the host, where it is slower", &|e| ms(e.expected.behind));
    row(&mut text, "waiting for downloads", &|e| ms(e.expected.waits));
    row(&mut text, "all", &|e| ms(e.expected.total()));
    row(&mut text, "all, at best", &|e| ms(e.best.total()));
    row(&mut text, "kernels and products started", &|e| format!("{:.0}", e.launches()));
    row(&mut text, "of them by a replay", &|e| format!("{:.0}", e.replayed()));
    text.pop();
    text
}
