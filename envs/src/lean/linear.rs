//! Whole-number arithmetic: polynomials in a normal form, and a procedure that refutes sets of propositions.
//!
//! It is a trusted part of the checker: [`refute`] says yes only if no values satisfy all propositions at once. What it
//! does not understand it leaves out, and fewer propositions are only harder to refute. Numbers are `i128`; an overflow
//! makes it give up, as does too much work.

use super::expr::{Expr, Join, Op, Rel, Sort};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// A number that the procedure does not look into, or looks into by facts of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Atom {
    Var(u32, Sort),
    Sub(Poly, Poly),
    Div(Poly, Poly, Sort),
    Mod(Poly, Poly, Sort),
    Pow(Poly, Poly, Sort),
}

/// A product of atoms with their exponents.
type Monomial = BTreeMap<Atom, u32>;

/// A sum of products; no coefficient is 0. Equal polynomials are equal for all values.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Poly(BTreeMap<Monomial, i128>);

const MOST_TERMS: usize = 400;
/// The largest coefficient: far from where `i128` ends.
const LARGEST: u128 = 1 << 100;
/// Terms of polynomials that are added in a script, after which no more are.
const FUEL: u64 = 30_000_000;

thread_local! {
    /// What is left of it; each script is checked in a thread of its own.
    static LEFT: Cell<u64> = const { Cell::new(FUEL) };
}

/// Takes `n` terms' worth of work.
fn burn(n: usize) -> Option<()> {
    LEFT.with(|left| {
        left.set(left.get().checked_sub(n as u64)?);
        Some(())
    })
}

/// A coefficient that is not too large.
fn modest(n: i128) -> Option<i128> {
    (n.unsigned_abs() <= LARGEST).then_some(n)
}
/// Propositions taken apart and rows added, after which the procedure gives up.
const WORK: usize = 60_000;

impl Poly {
    fn constant(n: i128) -> Poly {
        Poly(if n == 0 { BTreeMap::new() } else { BTreeMap::from([(Monomial::new(), n)]) })
    }

    fn atom(atom: Atom) -> Poly {
        Poly(BTreeMap::from([(Monomial::from([(atom, 1)]), 1)]))
    }

    /// Its value if it has no atoms.
    fn value(&self) -> Option<i128> {
        match self.0.len() {
            0 => Some(0),
            1 => self.0.get(&Monomial::new()).copied(),
            _ => None,
        }
    }

    /// `self + factor · other`.
    fn plus(&self, other: &Poly, factor: i128) -> Option<Poly> {
        burn(self.0.len() + other.0.len() + 1)?;
        let mut sum = self.0.clone();
        for (monomial, n) in &other.0 {
            let entry = sum.entry(monomial.clone()).or_insert(0);
            *entry = modest(entry.checked_add(n.checked_mul(factor)?)?)?;
        }
        sum.retain(|_, n| *n != 0);
        (sum.len() <= MOST_TERMS).then_some(Poly(sum))
    }

    fn times(&self, other: &Poly) -> Option<Poly> {
        let mut product = Poly::default();
        for (a, n) in &self.0 {
            let mut row = BTreeMap::new();
            for (b, m) in &other.0 {
                let mut monomial = a.clone();
                for (atom, power) in b {
                    let entry = monomial.entry(atom.clone()).or_insert(0);
                    *entry = entry.checked_add(*power)?;
                }
                row.insert(monomial, modest(n.checked_mul(*m)?)?);
            }
            product = product.plus(&Poly(row), 1)?;
        }
        Some(product)
    }

    fn power(&self, exponent: i128) -> Option<Poly> {
        let most = if self.value().is_some() { 130 } else { 12 };
        if self.value().is_some_and(|n| n == 0 || n == 1) && exponent > 0 {
            return Some(self.clone());
        }
        (0..=most).contains(&exponent).then_some(())?;
        (0..exponent).try_fold(Poly::constant(1), |power, _| power.times(self))
    }
}

/// The normal form of a number; that of a natural number is its value among the integers.
pub(super) fn poly(expr: &Expr) -> Option<Poly> {
    match expr {
        Expr::Free(var) if var.sort != Sort::Prop => Some(Poly::atom(Atom::Var(var.id, var.sort))),
        Expr::Num(n, _) => Some(Poly::constant(modest(*n)?)),
        Expr::Neg(a) => Poly::default().plus(&poly(a)?, -1),
        Expr::Cast(a) => poly(a),
        Expr::Bin(op, sort, a, b) => {
            let (a, b) = (poly(a)?, poly(b)?);
            match op {
                Op::Add => a.plus(&b, 1),
                Op::Mul => a.times(&b),
                Op::Sub if *sort == Sort::Int => a.plus(&b, -1),
                Op::Sub => match (a.value(), b.value()) {
                    (Some(a), Some(b)) => Some(Poly::constant(a.checked_sub(b)?.max(0))),
                    (_, Some(0)) => Some(a),
                    _ => Some(Poly::atom(Atom::Sub(a, b))),
                },
                Op::Div => match (a.value(), b.value()) {
                    (_, Some(0)) => Some(Poly::default()),
                    (Some(a), Some(b)) => Some(Poly::constant(a.checked_div_euclid(b)?)),
                    _ => Some(Poly::atom(Atom::Div(a, b, *sort))),
                },
                Op::Mod => match (a.value(), b.value()) {
                    (_, Some(0)) => Some(a),
                    (Some(a), Some(b)) => Some(Poly::constant(a.checked_rem_euclid(b)?)),
                    _ => Some(Poly::atom(Atom::Mod(a, b, *sort))),
                },
                Op::Pow => raise(&a, &b, *sort),
            }
        }
        _ => None,
    }
}

/// `base ^ (rest + k)` is `base ^ rest · base ^ k`.
fn raise(base: &Poly, exponent: &Poly, sort: Sort) -> Option<Poly> {
    let k = exponent.0.get(&Monomial::new()).copied().unwrap_or(0);
    let rest = exponent.plus(&Poly::constant(k), -1)?;
    // The rest must be a sum of natural numbers: what is taken away from cannot be torn apart.
    if rest.0.is_empty() {
        return base.power(k);
    }
    if k < 0 || rest.0.values().any(|n| *n < 0) {
        return Some(Poly::atom(Atom::Pow(base.clone(), exponent.clone(), sort)));
    }
    if base.value() == Some(1) {
        return Some(base.clone());
    }
    base.power(k)?.times(&Poly::atom(Atom::Pow(base.clone(), rest, sort)))
}

/// Whether the two numbers have one normal form.
pub(super) fn equal(a: &Expr, b: &Expr) -> bool {
    matches!((poly(a), poly(b)), (Some(a), Some(b)) if a == b)
}

/// What a branch holds: `polynomial ≤ 0` and `polynomial = 0`, the propositional letters with their values, and what is
/// still to be taken apart.
#[derive(Clone, Default)]
struct Branch {
    at_most: Vec<Poly>,
    zero: Vec<Poly>,
    letters: BTreeMap<u32, bool>,
    todo: Vec<(Expr, bool)>,
    /// Alternatives that wait: each `(proposition, its value)` of which one holds.
    splits: Vec<Vec<(Expr, bool)>>,
    /// Atoms whose facts are in.
    known: BTreeSet<Atom>,
}

/// Whether no values satisfy all of `facts` (each a proposition and whether it is claimed true or false).
pub(super) fn refute(facts: Vec<(Expr, bool)>) -> bool {
    Branch { todo: facts, ..Branch::default() }.closes(&mut { WORK })
}

impl Branch {
    fn closes(mut self, budget: &mut usize) -> bool {
        while let Some((expr, value)) = self.todo.pop() {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            if self.take(expr, value) {
                return true;
            }
        }
        let halves = self.add_facts();
        if contradictory(&self.at_most, &self.zero, budget) {
            return true;
        }
        // Every case must close.
        if let Some((low, high)) = halves {
            return [low, high].into_iter().all(|(at_most, zero)| {
                let mut branch = self.clone();
                branch.at_most.push(at_most);
                branch.zero.push(zero);
                *budget > 0 && branch.closes(budget)
            });
        }
        let Some(split) = self.splits.pop() else { return false };
        split.into_iter().all(|literal| {
            let mut branch = self.clone();
            branch.todo.push(literal);
            branch.closes(budget)
        })
    }

    /// Takes a proposition apart; true if that closes the branch.
    fn take(&mut self, expr: Expr, value: bool) -> bool {
        match (expr, value) {
            (Expr::Truth(truth), value) => return truth != value,
            (Expr::Free(var), value) => return *self.letters.entry(var.id).or_insert(value) != value,
            (Expr::Not(a), value) => self.todo.push((*a, !value)),
            (Expr::Join(Join::And, a, b), true) => self.todo.extend([(*a, true), (*b, true)]),
            (Expr::Join(Join::And, a, b), false) => self.splits.push(vec![(*a, false), (*b, false)]),
            (Expr::Join(Join::Or, a, b), true) => self.splits.push(vec![(*a, true), (*b, true)]),
            (Expr::Join(Join::Or, a, b), false) => self.todo.extend([(*a, false), (*b, false)]),
            (Expr::Join(Join::Imp, a, b), true) => self.splits.push(vec![(*a, false), (*b, true)]),
            (Expr::Join(Join::Imp, a, b), false) => self.todo.extend([(*a, true), (*b, false)]),
            (Expr::Join(Join::Iff, a, b), value) => {
                let case = |x: bool, y: bool| {
                    let literal = |e: &Expr, holds: bool| if holds { e.clone() } else { Expr::negation(e.clone()) };
                    (Expr::join(Join::And, literal(&a, x), literal(&b, y)), true)
                };
                self.splits.push(vec![case(true, value), case(false, !value)]);
            }
            (Expr::Rel(rel, a, b), value) => {
                self.relate(rel, *a, *b, value);
            }
            // Quantified statements are not looked into.
            _ => {}
        }
        false
    }

    /// Adds a comparison; `None` if it is left out.
    fn relate(&mut self, rel: Rel, a: Expr, b: Expr, value: bool) -> Option<()> {
        let difference = || poly(&a)?.plus(&poly(&b)?, -1);
        let one = Poly::constant(1);
        match (rel, value) {
            (Rel::Eq, true) => self.zero.push(difference()?),
            (Rel::Eq, false) => {
                let (less, more) = (Expr::rel(Rel::Lt, a.clone(), b.clone()), Expr::rel(Rel::Lt, b, a));
                self.splits.push(vec![(less, true), (more, true)]);
            }
            (Rel::Le, true) => self.at_most.push(difference()?),
            (Rel::Lt, true) => self.at_most.push(difference()?.plus(&one, 1)?),
            // Not a ≤ b is b + 1 ≤ a; not a < b is b ≤ a.
            (Rel::Le, false) => self.at_most.push(one.plus(&difference()?, -1)?),
            (Rel::Lt, false) => self.at_most.push(Poly::default().plus(&difference()?, -1)?),
            (Rel::Dvd, value) => {
                let sort = a.kind();
                let rest = Expr::bin(Op::Mod, sort, b, a);
                self.todo.push((Expr::rel(Rel::Eq, rest, Expr::Num(0, sort)), value));
            }
        }
        Some(())
    }

    /// Adds what holds of the atoms in sight. Returns the two cases of one subtraction not yet decided, each a
    /// `polynomial ≤ 0` and a `polynomial = 0`.
    fn add_facts(&mut self) -> Option<((Poly, Poly), (Poly, Poly))> {
        let mut halves = None;
        loop {
            let seen = self.at_most.iter().chain(&self.zero).flat_map(|poly| poly.0.keys()).flat_map(|m| m.keys());
            let fresh: Vec<Atom> = seen.filter(|atom| !self.known.contains(atom)).cloned().collect();
            let before = self.known.len();
            for atom in fresh {
                if self.known.contains(&atom) || (halves.is_some() && matches!(atom, Atom::Sub(..))) {
                    continue;
                }
                self.known.insert(atom.clone());
                match &atom {
                    Atom::Sub(a, b) => halves = self.halve(&atom, a, b),
                    Atom::Div(a, b, sort) | Atom::Mod(a, b, sort) => {
                        self.divide(a, b, *sort);
                    }
                    _ => {}
                }
            }
            if self.known.len() == before {
                return halves;
            }
        }
    }

    /// The truncated `s = a - b`: b ≤ a and s = a - b, or a ≤ b and s = 0.
    fn halve(&self, atom: &Atom, a: &Poly, b: &Poly) -> Option<((Poly, Poly), (Poly, Poly))> {
        let s = Poly::atom(atom.clone());
        let (over, under) = (b.plus(a, -1)?, a.plus(b, -1)?);
        Some(((over, s.plus(&under, -1)?), (under, s)))
    }

    /// a = b · q + r and 0 ≤ r < |b| for a literal b.
    fn divide(&mut self, a: &Poly, b: &Poly, sort: Sort) -> Option<()> {
        let n = b.value().filter(|n| *n != 0)?;
        let q = Poly::atom(Atom::Div(a.clone(), b.clone(), sort));
        let r = Poly::atom(Atom::Mod(a.clone(), b.clone(), sort));
        self.zero.push(a.plus(&q, n.checked_neg()?)?.plus(&r, -1)?);
        self.at_most.push(Poly::default().plus(&r, -1)?);
        self.at_most.push(r.plus(&Poly::constant(n.checked_abs()?.checked_sub(1)?), -1)?);
        Some(())
    }
}

/// Whether a product is never negative: natural numbers, and even powers.
fn is_nonnegative(monomial: &Monomial) -> bool {
    monomial.iter().all(|(atom, power)| {
        let sort = match atom {
            Atom::Var(_, sort) | Atom::Div(_, _, sort) | Atom::Mod(_, _, sort) | Atom::Pow(_, _, sort) => *sort,
            Atom::Sub(..) => Sort::Nat,
        };
        sort == Sort::Nat || power % 2 == 0
    })
}

/// Whether a product is at least 1: powers of literals that are.
fn is_positive(monomial: &Monomial) -> bool {
    monomial.keys().all(|atom| matches!(atom, Atom::Pow(base, _, _) if base.value().is_some_and(|n| n >= 1)))
}

/// A sum of multiples of unknowns, and a constant.
type Row = (BTreeMap<usize, i128>, i128);

fn add(a: &Row, m: i128, b: &Row, n: i128) -> Option<Row> {
    burn(a.0.len() + b.0.len() + 1)?;
    let mut sum = BTreeMap::new();
    for (row, factor) in [(a, m), (b, n)] {
        for (unknown, k) in &row.0 {
            let entry: &mut i128 = sum.entry(*unknown).or_insert(0);
            *entry = modest(entry.checked_add(k.checked_mul(factor)?)?)?;
        }
    }
    sum.retain(|_, k| *k != 0);
    Some((sum, modest(a.1.checked_mul(m)?.checked_add(b.1.checked_mul(n)?)?)?))
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.wrapping_abs() } else { gcd(b, a % b) }
}

fn divisor(row: &Row) -> i128 {
    row.0.values().fold(0, |d, k| gcd(d, *k))
}

/// Whether no whole numbers satisfy `p ≤ 0` for all of `at_most` and `p = 0` for all of `zero`, each product of atoms
/// being taken as an unknown of its own.
fn contradictory(at_most: &[Poly], zero: &[Poly], budget: &mut usize) -> bool {
    let monomials: BTreeSet<&Monomial> = at_most.iter().chain(zero).flat_map(|poly| poly.0.keys()).collect();
    let unknowns: Vec<&Monomial> = monomials.into_iter().filter(|monomial| !monomial.is_empty()).collect();
    let row = |poly: &Poly| -> Row {
        let of = |(monomial, k): (&Monomial, &i128)| unknowns.binary_search(&monomial).ok().map(|i| (i, *k));
        (poly.0.iter().filter_map(of).collect(), poly.0.get(&Monomial::new()).copied().unwrap_or(0))
    };
    let mut rows: Vec<Row> = at_most.iter().map(row).collect();
    for (i, monomial) in unknowns.iter().enumerate() {
        let least = if is_positive(monomial) { 1 } else { 0 };
        if is_nonnegative(monomial) || least == 1 {
            rows.push((BTreeMap::from([(i, -1)]), least));
        }
    }
    let equations = zero.iter().map(row).collect();
    solve(equations, rows, budget).unwrap_or(false)
}

/// Puts the value that `equation` gives to `unknown`, whose factor there is `sign` (±1), in the place of it.
fn replace(rows: &mut [Row], unknown: usize, sign: i128, equation: &Row) -> Option<()> {
    for row in rows {
        if let Some(k) = row.0.get(&unknown).copied() {
            *row = add(row, 1, equation, k.checked_mul(sign)?.checked_neg()?)?;
        }
    }
    Some(())
}

/// `equation`, whose factor of `unknown` is `k`, as the value of that unknown by a new one, `fresh`, and an equation of the
/// new one whose factors are smaller: k·x + Σ aᵢ·xᵢ + c = 0 is k·t + Σ (aᵢ mod k)·xᵢ + (c mod k) = 0 with
/// t = x + Σ ⌊aᵢ / k⌋·xᵢ + ⌊c / k⌋.
fn reduced(equation: &Row, unknown: usize, k: i128, fresh: usize) -> Option<(Row, Row)> {
    let mut whole: Row = (BTreeMap::from([(fresh, -1)]), equation.1.checked_div_euclid(k)?);
    let mut rest: Row = (BTreeMap::from([(fresh, k)]), equation.1.checked_rem_euclid(k)?);
    for (i, a) in equation.0.iter().filter(|(i, _)| **i != unknown) {
        whole.0.insert(*i, a.checked_div_euclid(k)?);
        rest.0.insert(*i, a.checked_rem_euclid(k)?);
    }
    whole.0.insert(unknown, 1);
    whole.0.retain(|_, k| *k != 0);
    rest.0.retain(|_, k| *k != 0);
    Some((whole, rest))
}

/// Takes unknowns out by equations, the rest by Fourier and Motzkin's method with coefficients divided and constants
/// rounded, as whole numbers allow. `None`: gave up.
fn solve(mut equations: Vec<Row>, mut rows: Vec<Row>, budget: &mut usize) -> Option<bool> {
    let known = equations.iter().chain(&rows).flat_map(|row| row.0.keys());
    let mut fresh = known.max().map_or(0, |last| last + 1);
    while let Some(mut equation) = equations.pop() {
        *budget = budget.checked_sub(1)?;
        let d = divisor(&equation);
        if d == 0 {
            if equation.1 != 0 {
                return Some(true);
            }
            continue;
        }
        if equation.1 % d != 0 {
            return Some(true);
        }
        equation.0.values_mut().for_each(|k| *k /= d);
        equation.1 /= d;
        let (unknown, k) = equation.0.iter().map(|(i, k)| (*i, *k)).min_by_key(|(_, k)| k.unsigned_abs())?;
        if k.abs() == 1 {
            replace(&mut equations, unknown, k, &equation)?;
            replace(&mut rows, unknown, k, &equation)?;
            continue;
        }
        let (whole, rest) = reduced(&equation, unknown, k, fresh)?;
        fresh += 1;
        replace(&mut equations, unknown, 1, &whole)?;
        replace(&mut rows, unknown, 1, &whole)?;
        equations.push(rest);
    }
    let mut rows: BTreeSet<Row> = rows.into_iter().collect();
    loop {
        let mut tight: BTreeMap<BTreeMap<usize, i128>, i128> = BTreeMap::new();
        for (mut factors, constant) in rows {
            let d = divisor(&(factors.clone(), 0));
            if d == 0 {
                if constant > 0 {
                    return Some(true);
                }
                continue;
            }
            factors.values_mut().for_each(|k| *k /= d);
            // d·x + c ≤ 0 is x + ⌈c / d⌉ ≤ 0.
            let constant = constant.checked_neg()?.div_euclid(d).checked_neg()?;
            let entry = tight.entry(factors).or_insert(constant);
            *entry = constant.max(*entry);
        }
        let unknowns: BTreeSet<usize> = tight.keys().flat_map(|factors| factors.keys().copied()).collect();
        let cost = |unknown: &usize| {
            let signs = tight.keys().filter_map(|factors| factors.get(unknown));
            let (up, down): (Vec<&i128>, Vec<&i128>) = signs.partition(|k| **k > 0);
            // Nothing is lost where all factors of one sign are ±1.
            let exact = [&up, &down].iter().any(|side| side.iter().all(|k| k.abs() == 1));
            (!exact, up.len() * down.len())
        };
        let Some(unknown) = unknowns.into_iter().min_by_key(cost) else { return Some(false) };
        let (with, without): (Vec<Row>, Vec<Row>) = tight.into_iter().partition(|row| row.0.contains_key(&unknown));
        rows = without.into_iter().collect();
        let (up, down): (Vec<Row>, Vec<Row>) = with.into_iter().partition(|row| row.0[&unknown] > 0);
        for above in &up {
            for below in &down {
                rows.insert(add(above, below.0[&unknown].checked_neg()?, below, above.0[&unknown])?);
                *budget = budget.checked_sub(1).filter(|_| rows.len() < 1500)?;
            }
        }
    }
}
