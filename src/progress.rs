//! How a long job shows that it moves: on a terminal one line that is written over, elsewhere plain lines.
//!
//! Progress goes to standard error; results go to standard output.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Where progress goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Silent,
    Lines,
    OneLine,
}

/// The progress of a job of so many steps.
#[derive(Debug)]
pub struct Progress {
    style: Style,
    total: u64,
    /// Steps done before this process.
    first: u64,
    /// In plain lines, show every n-th step only.
    every: u64,
    started: Instant,
}

impl Progress {
    /// A job of `total` steps of which `first` are done; plain lines show every `every`-th step.
    pub fn new(quiet: bool, total: u64, first: u64, every: u64) -> Self {
        let style = match (quiet, io::stderr().is_terminal()) {
            (true, _) => Style::Silent,
            (false, true) => Style::OneLine,
            (false, false) => Style::Lines,
        };
        Progress { style, total, first, every: every.max(1), started: Instant::now() }
    }

    /// Shows a step with a few values.
    pub fn step(&mut self, step: u64, values: &[(&str, String)]) {
        let shown = match self.style {
            Style::Silent => false,
            Style::OneLine => true,
            Style::Lines => step.is_multiple_of(self.every) || step == self.total,
        };
        if !shown {
            return;
        }
        let values: String = values.iter().map(|(name, value)| format!("  {name} {value}")).collect();
        let done = (step - self.first).max(1) as f64;
        let left = self.started.elapsed().as_secs_f64() / done * (self.total - step) as f64;
        self.write(&format!("step {step}/{}{values}  left {}", self.total, clock(left)), false);
    }

    /// Says something once.
    pub fn say(&mut self, text: &str) {
        if self.style != Style::Silent {
            self.write(text, true);
        }
    }

    /// Shows what is being done until something else is shown; plain lines leave it out.
    pub fn doing(&mut self, text: &str) {
        if self.style == Style::OneLine {
            self.write(text, false);
        }
    }

    /// Ends the line that is written over.
    pub fn finish(&mut self) {
        if self.style == Style::OneLine {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }

    /// Nobody needs to read this, so an error of writing it is none.
    fn write(&self, text: &str, stays: bool) {
        let mut err = io::stderr().lock();
        let _ = match (self.style, stays) {
            (Style::OneLine, true) => writeln!(err, "\r\x1b[2K{text}"),
            (Style::OneLine, false) => write!(err, "\r\x1b[2K{text}"),
            _ => writeln!(err, "{text}"),
        };
        let _ = err.flush();
    }
}

/// Seconds as `m:ss` or `h:mm:ss`.
pub fn clock(seconds: f64) -> String {
    let seconds = seconds.round().max(0.0) as u64;
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

/// A rate a second, short: `850`, `12.3k`, `4.5M`.
pub fn rate(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{:.1}M", x / 1e6),
        x if x >= 1e3 => format!("{:.1}k", x / 1e3),
        x => format!("{x:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates() {
        assert_eq!([clock(0.0), clock(61.4), clock(3723.0)], ["0:00", "1:01", "1:02:03"]);
        assert_eq!([rate(12.0), rate(12_345.0), rate(2_500_000.0)], ["12", "12.3k", "2.5M"]);
    }
}
