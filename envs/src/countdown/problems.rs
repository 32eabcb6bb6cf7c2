//! Problems of Countdown: generated ones, and those of a file.
//!
//! It knows numbers and targets, and nothing of points.

use super::expression::{evaluate, has_signed_sum};
use crate::dataset::{self, Parts, Shared};
use crate::rng::hash_bytes;
use crate::{Mode, Stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A target to be made of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The numbers, each to be used once.
    pub nums: Vec<i64>,
    /// What the expression must be worth.
    pub target: i64,
}

impl Problem {
    /// A hash of what is asked: the order of the numbers does not count.
    pub(super) fn hash(&self) -> u64 {
        let mut sorted = self.nums.clone();
        sorted.sort_unstable();
        sorted.push(self.target);
        hash_bytes(sorted.into_iter().flat_map(i64::to_le_bytes))
    }
}

/// What makes a target of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    SignedSum,
    Arithmetic,
}

/// Generated problems of each part.
const SIZES: [u64; 3] = [20_000, 1_000, 1_000];

/// The generated problem of a row: the first of the row's draws that belongs to the part.
pub(super) fn generate(family: Family, row: u64, mode: Mode) -> Problem {
    let mut draws = Stream::derive(super::TYPE, row % SIZES[mode as usize], "problem").branch(mode as u64);
    loop {
        let nums: Vec<i64> = (0..3 + draws.below(2)).map(|_| 1 + draws.below(99) as i64).collect();
        let target = match family {
            Family::SignedSum => {
                let signed = nums.iter().map(|n| if draws.chance(0.5) { *n } else { -n });
                signed.sum()
            }
            Family::Arithmetic => chain(&nums, &mut draws),
        };
        let problem = Problem { nums, target };
        if (1..=999).contains(&target) && dataset::part(problem.hash()) == mode {
            return problem;
        }
    }
}

/// The value of the numbers joined from left to right by random signs, division only where it is exact.
fn chain(nums: &[i64], draws: &mut Stream) -> i64 {
    nums[1..].iter().fold(nums[0], |value, n| match draws.below(4) {
        0 => value + n,
        1 => value - n,
        2 if value % n == 0 => value / n,
        _ => value * n,
    })
}

static FILES: Shared<Parts<Problem>> = Shared::new();

/// The problems of a file's first rows, read once in a process; of the signed family only those that have such a sum.
pub(super) fn load(path: &Path, most: usize, family: Family) -> Result<Arc<Parts<Problem>>, String> {
    FILES.get(&format!("{} {most} {family:?}", path.display()), || {
        let records = dataset::records(path)?;
        let rows = records
            .iter()
            .take(most)
            .enumerate()
            .map(|(i, record)| problem(record).map_err(|what| format!("{} row {}: {what}", path.display(), i + 1)));
        let mut problems = rows.collect::<Result<Vec<_>, _>>()?;
        problems.retain(|Problem { nums, target }| family == Family::Arithmetic || has_signed_sum(nums, *target));
        match problems.is_empty() {
            true => Err(format!("{} has no row with a signed sum of the numbers that is the target", path.display())),
            false => Ok(Parts::new(problems, Problem::hash)),
        }
    })
}

fn problem(record: &Value) -> Result<Problem, String> {
    let column = |name: &str| record.get(name).ok_or_else(|| format!("there is no column `{name}`"));
    let (nums, target) = (column("nums")?, column("target")?);
    let number = |value: &Value| value.as_i64();
    let nums: Option<Vec<i64>> = nums.as_array().and_then(|nums| nums.iter().map(number).collect());
    let nums = nums.filter(|nums| !nums.is_empty()).ok_or("column `nums` must be a list of whole numbers")?;
    Ok(Problem { nums, target: number(target).ok_or("column `target` must be a whole number")? })
}

/// The points of an answer: full, for the right numbers alone, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Solved,
    RightNumbers,
    Wrong,
}

impl Problem {
    /// Judges an answer: the numbers must be those given, each as often as given, and the value the target.
    pub(super) fn judge(&self, answer: &str) -> Verdict {
        let mut used: Vec<&str> = super::expression::numbers(answer);
        if used.len() != self.nums.len() {
            return Verdict::Wrong;
        }
        let given: Vec<String> = self.nums.iter().map(i64::to_string).collect();
        let all_given = given.iter().all(|n| {
            let found = used.iter().position(|used| used == n);
            found.map(|i| used.swap_remove(i)).is_some()
        });
        match evaluate(answer) {
            _ if !all_given => Verdict::Wrong,
            Some(value) if (value - self.target as f64).abs() < 1e-5 => Verdict::Solved,
            _ => Verdict::RightNumbers,
        }
    }
}
