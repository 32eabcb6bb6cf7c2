//! The known lemmas: statements that the kernel takes for true, each tried over small numbers by a test.

use super::expr::{Expr, Quant};
use super::syntax::{Parser, words};
use std::sync::LazyLock;

/// A known lemma.
pub(super) struct Lemma {
    pub(super) name: &'static str,
    pub(super) statement: Expr,
}

/// Names with statements; `α` is ℕ and ℤ, each a lemma of its own; a `!` before a name: its variables are left out when
/// it is used.
const TABLE: &[(&str, &str)] = &[
    ("add_comm", "∀ a b : α, a + b = b + a"),
    ("add_assoc", "∀ a b c : α, a + b + c = a + (b + c)"),
    ("add_left_comm", "∀ a b c : α, a + (b + c) = b + (a + c)"),
    ("mul_comm", "∀ a b : α, a * b = b * a"),
    ("mul_assoc", "∀ a b c : α, a * b * c = a * (b * c)"),
    ("mul_add", "∀ a b c : α, a * (b + c) = a * b + a * c"),
    ("add_mul", "∀ a b c : α, (a + b) * c = a * c + b * c"),
    ("add_zero", "∀ a : α, a + 0 = a"),
    ("zero_add", "∀ a : α, 0 + a = a"),
    ("mul_one", "∀ a : α, a * 1 = a"),
    ("one_mul", "∀ a : α, 1 * a = a"),
    ("mul_zero", "∀ a : α, a * 0 = 0"),
    ("zero_mul", "∀ a : α, 0 * a = 0"),
    ("pow_zero", "∀ a : α, a ^ 0 = 1"),
    ("pow_one", "∀ a : α, a ^ 1 = a"),
    ("pow_succ", "∀ a : α, ∀ n : ℕ, a ^ (n + 1) = a ^ n * a"),
    ("pow_two", "∀ a : α, a ^ 2 = a * a"),
    ("pow_add", "∀ a : α, ∀ m n : ℕ, a ^ (m + n) = a ^ m * a ^ n"),
    ("one_pow", "∀ n : ℕ, 1 ^ n = 1"),
    ("two_mul", "∀ a : α, 2 * a = a + a"),
    ("le_refl", "∀ a : α, a ≤ a"),
    ("!le_rfl", "∀ a : α, a ≤ a"),
    ("!le_trans", "∀ a b c : α, a ≤ b → b ≤ c → a ≤ c"),
    ("!lt_trans", "∀ a b c : α, a < b → b < c → a < c"),
    ("!lt_of_lt_of_le", "∀ a b c : α, a < b → b ≤ c → a < c"),
    ("!lt_of_le_of_lt", "∀ a b c : α, a ≤ b → b < c → a < c"),
    ("!le_antisymm", "∀ a b : α, a ≤ b → b ≤ a → a = b"),
    ("!le_of_lt", "∀ a b : α, a < b → a ≤ b"),
    ("!le_of_eq", "∀ a b : α, a = b → a ≤ b"),
    ("!not_lt", "∀ a b : α, ¬a < b ↔ b ≤ a"),
    ("!not_le", "∀ a b : α, ¬a ≤ b ↔ b < a"),
    ("lt_irrefl", "∀ a : α, ¬a < a"),
    ("!ne_of_lt", "∀ a b : α, a < b → a ≠ b"),
    ("!ne_of_gt", "∀ a b : α, b < a → a ≠ b"),
    ("le_total", "∀ a b : α, a ≤ b ∨ b ≤ a"),
    ("lt_or_ge", "∀ a b : α, a < b ∨ b ≤ a"),
    ("lt_trichotomy", "∀ a b : α, a < b ∨ a = b ∨ b < a"),
    ("!add_le_add", "∀ a b c d : α, a ≤ b → c ≤ d → a + c ≤ b + d"),
    ("!mul_pos", "∀ a b : α, 0 < a → 0 < b → 0 < a * b"),
    ("!mul_nonneg", "∀ a b : α, 0 ≤ a → 0 ≤ b → 0 ≤ a * b"),
    ("sq_nonneg", "∀ a : ℤ, 0 ≤ a ^ 2"),
    ("mul_self_nonneg", "∀ a : ℤ, 0 ≤ a * a"),
    ("!mul_eq_zero", "∀ a b : α, a * b = 0 ↔ a = 0 ∨ b = 0"),
    ("sub_self", "∀ a : α, a - a = 0"),
    ("neg_neg", "∀ a : ℤ, - -a = a"),
    ("sub_eq_add_neg", "∀ a b : ℤ, a - b = a + -b"),
    ("dvd_refl", "∀ a : α, a ∣ a"),
    ("!dvd_trans", "∀ a b c : α, a ∣ b → b ∣ c → a ∣ c"),
    ("dvd_zero", "∀ a : α, a ∣ 0"),
    ("one_dvd", "∀ a : α, 1 ∣ a"),
    ("dvd_mul_right", "∀ a b : α, a ∣ a * b"),
    ("dvd_mul_left", "∀ a b : α, a ∣ b * a"),
    ("!dvd_add", "∀ a b c : α, a ∣ b → a ∣ c → a ∣ b + c"),
    ("!dvd_mul_of_dvd_left", "∀ a b : α, a ∣ b → ∀ c : α, a ∣ b * c"),
    ("!dvd_mul_of_dvd_right", "∀ a b : α, a ∣ b → ∀ c : α, a ∣ c * b"),
    ("Nat.zero_le", "∀ n : ℕ, 0 ≤ n"),
    ("Nat.add_comm", "∀ a b : ℕ, a + b = b + a"),
    ("Nat.add_assoc", "∀ a b c : ℕ, a + b + c = a + (b + c)"),
    ("Nat.mul_comm", "∀ a b : ℕ, a * b = b * a"),
    ("Nat.mul_assoc", "∀ a b c : ℕ, a * b * c = a * (b * c)"),
    ("Nat.mul_add", "∀ a b c : ℕ, a * (b + c) = a * b + a * c"),
    ("Nat.add_mul", "∀ a b c : ℕ, (a + b) * c = a * c + b * c"),
    ("Nat.add_zero", "∀ n : ℕ, n + 0 = n"),
    ("Nat.zero_add", "∀ n : ℕ, 0 + n = n"),
    ("Nat.mul_one", "∀ n : ℕ, n * 1 = n"),
    ("Nat.one_mul", "∀ n : ℕ, 1 * n = n"),
    ("Nat.pow_succ", "∀ b n : ℕ, b ^ (n + 1) = b ^ n * b"),
    ("Nat.sub_self", "∀ n : ℕ, n - n = 0"),
    ("Nat.le_refl", "∀ n : ℕ, n ≤ n"),
    ("!Nat.le_trans", "∀ a b c : ℕ, a ≤ b → b ≤ c → a ≤ c"),
    ("!Nat.le_of_lt", "∀ a b : ℕ, a < b → a ≤ b"),
    ("!Nat.le_antisymm", "∀ a b : ℕ, a ≤ b → b ≤ a → a = b"),
    ("Nat.le_total", "∀ a b : ℕ, a ≤ b ∨ b ≤ a"),
    ("Nat.lt_irrefl", "∀ n : ℕ, ¬n < n"),
    ("!Nat.succ_le_of_lt", "∀ a b : ℕ, a < b → a + 1 ≤ b"),
    ("Nat.div_add_mod", "∀ m k : ℕ, k * (m / k) + m % k = m"),
    ("Nat.mod_add_div", "∀ m k : ℕ, m % k + k * (m / k) = m"),
    ("Nat.mod_two_eq_zero_or_one", "∀ n : ℕ, n % 2 = 0 ∨ n % 2 = 1"),
    ("!Nat.pos_of_ne_zero", "∀ n : ℕ, n ≠ 0 → 0 < n"),
    ("em", "∀ p : Prop, p ∨ ¬p"),
    ("Classical.em", "∀ p : Prop, p ∨ ¬p"),
    ("!not_not", "∀ p : Prop, ¬¬p ↔ p"),
    ("!and_comm", "∀ p q : Prop, p ∧ q ↔ q ∧ p"),
    ("!or_comm", "∀ p q : Prop, p ∨ q ↔ q ∨ p"),
    ("!not_and_or", "∀ p q : Prop, ¬(p ∧ q) ↔ ¬p ∨ ¬q"),
    ("!not_or", "∀ p q : Prop, ¬(p ∨ q) ↔ ¬p ∧ ¬q"),
    ("!absurd", "∀ p q : Prop, p → ¬p → q"),
    ("!mt", "∀ p q : Prop, (p → q) → ¬q → ¬p"),
    ("!And.intro", "∀ p q : Prop, p → q → p ∧ q"),
    ("!Or.inl", "∀ p q : Prop, p → p ∨ q"),
    ("!Or.inr", "∀ p q : Prop, q → p ∨ q"),
    ("!Or.elim", "∀ p q r : Prop, p ∨ q → (p → r) → (q → r) → r"),
    ("!Iff.intro", "∀ p q : Prop, (p → q) → (q → p) → (p ↔ q)"),
    ("!Iff.mp", "∀ p q : Prop, (p ↔ q) → p → q"),
    ("!Iff.mpr", "∀ p q : Prop, (p ↔ q) → q → p"),
    ("!False.elim", "∀ p : Prop, False → p"),
    ("!And.left", "∀ p q : Prop, p ∧ q → p"),
    ("!And.right", "∀ p q : Prop, p ∧ q → q"),
    ("True.intro", "True"),
];

/// The lemmas, those of `α` twice.
pub(super) fn lemmas() -> &'static [Lemma] {
    static LEMMAS: LazyLock<Vec<Lemma>> = LazyLock::new(|| TABLE.iter().flat_map(read).collect());
    &LEMMAS
}

fn read((name, text): &'static (&'static str, &'static str)) -> Vec<Lemma> {
    let sorts: &[&str] = if text.contains('α') { &["ℕ", "ℤ"] } else { &["ℕ"] };
    let statement = |sort: &&str| {
        let words = words(&text.replace('α', sort)).ok()?;
        let pre = Parser::new(&words).term().ok()?;
        let statement = super::elaborate::closed(&pre).ok()?;
        Some(if name.starts_with('!') { implicit(statement) } else { statement })
    };
    let named = |statement| Lemma { name: name.trim_start_matches('!'), statement };
    sorts.iter().filter_map(statement).map(named).collect()
}

/// The leading variables are left out in use.
fn implicit(statement: Expr) -> Expr {
    match statement {
        Expr::Quant(Quant::All, mut label, sort, body) => {
            label.implicit = true;
            Expr::Quant(Quant::All, label, sort, Box::new(implicit(*body)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lean::expr::Sort;

    /// Whether it holds for all values from -3 (or 0) to 3.
    fn holds(statement: &Expr) -> Option<bool> {
        match statement {
            Expr::Quant(Quant::All, _, sort, body) => {
                let values: Vec<Expr> = match sort {
                    Sort::Prop => [false, true].map(Expr::Truth).into(),
                    Sort::Nat => (0..4).map(|n| Expr::Num(n, *sort)).collect(),
                    Sort::Int => (-3..4).map(|n| Expr::Num(n, *sort)).collect(),
                };
                values.iter().map(|value| holds(&body.instantiate(value))).try_fold(true, |all, one| Some(all && one?))
            }
            Expr::Join(super::super::expr::Join::Imp, a, b) if matches!(**b, Expr::Quant(..)) => {
                Some(!holds(a)? || holds(b)?)
            }
            other => super::super::kernel::evaluate(other, &mut 1000),
        }
    }

    #[test]
    fn every_lemma_holds_for_small_numbers() {
        let twice = TABLE.iter().filter(|(_, text)| text.contains('α')).count();
        assert_eq!(lemmas().len(), TABLE.len() + twice, "one cannot be read");
        for lemma in lemmas() {
            assert_eq!(holds(&lemma.statement), Some(true), "{}", lemma.name);
        }
    }
}
