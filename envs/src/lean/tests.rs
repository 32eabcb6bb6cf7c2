use super::*;
use crate::conformance;

fn judged(script: &str) -> Verdict {
    judge(Checker::Embedded.check(script))
}

fn at(index: usize) -> Lean {
    let mut lean = Lean::new(&json!({"theorem_idx": index, "backend": "embedded"})).unwrap();
    lean.reset(0, 0, Mode::Train).unwrap();
    lean
}

#[test]
fn the_player_proves_every_statement_step_by_step() {
    assert!(library().len() >= 150, "{}", library().len());
    let mut bad = Vec::new();
    for (index, proved) in library().iter().enumerate() {
        let mut lean = at(index);
        for (i, step) in proved.steps.iter().enumerate() {
            let turn = lean.demonstrate(&Demonstration::perfect(1), &mut Stream::new(0));
            assert_eq!(turn.map(|turn| turn.actions), Some(vec![step.clone()]));
            let did = lean.step(step).unwrap();
            if !did.valid || did.success != (i + 1 == proved.steps.len()) {
                bad.push(format!(
                    "{} step {i} `{step}`: {did:?}\n{}",
                    proved.theorem.formal_statement,
                    lean.last().unwrap().shown(0).join("\n")
                ));
                break;
            }
        }
    }
    assert!(bad.is_empty(), "{} failed:\n{}", bad.len(), bad.join("\n\n"));
}

/// `binders : claim` and a proof that must not pass, its tactics apart by `/`.
const WRONG: &[(&str, &str)] = &[
    // False closed statements.
    (": 2 + 2 = 5", "norm_num"),
    (": 2 + 2 = 5", "decide"),
    (": 2 + 2 = 5", "rfl"),
    (": 2 + 2 = 5", "omega"),
    (": 2 + 2 = 5", "simp"),
    (": 2 + 2 = 5", "ring"),
    (": 2 + 2 = 5", "linarith"),
    (": 7 * 8 = 54", "norm_num"),
    (": 2 ^ 10 = 1000", "norm_num"),
    (": 10 < 3", "decide"),
    (": 3 - 5 + 5 = 3", "norm_num"),
    (": 3 - 5 + 5 = 3", "ring"),
    (": 3 - 5 + 5 = 3", "omega"),
    (": (3 - 5 : ℕ) = 2", "omega"),
    (": (3 : ℤ) - 5 = 0", "norm_num"),
    (": 9 / 0 = 9", "norm_num"),
    (": 9 / 0 * 0 = 9", "norm_num"),
    (": 9 % 0 = 0", "norm_num"),
    (": (1 : ℤ) / 2 * 2 = 1", "ring"),
    (": 1 / 2 + 1 / 2 = 1", "norm_num"),
    (": (-7 : ℤ) % 3 = -1", "decide"),
    (": (-7 : ℤ) / 2 = -3", "decide"),
    (": 0 ∣ 5", "decide"),
    (": 7 ∣ 50", "norm_num"),
    (": 2 ∣ 7", "omega"),
    (": 0 ^ 0 = 0", "norm_num"),
    (": -2 ^ 2 = (4 : ℤ)", "norm_num"),
    (": 2 ^ 3 ^ 2 = 64", "norm_num"),
    (": False", "trivial"),
    (": False", "decide"),
    (": ¬True", "tauto"),
    (": ∀ n : ℕ, n < 5 → n * n < 16", "decide"),
    (": ∃ n : ℕ, n < 5 ∧ n * n = 2", "decide"),
    (": ∃ n : ℕ, n < 5 ∧ n * n = 2", "use 1"),
    // Truncated subtraction, division, remainders over variables.
    ("(a b : ℕ) : a - b + b = a", "omega"),
    ("(a b : ℕ) : a - b + b = a", "ring"),
    ("(a b : ℕ) : a - b + b = a", "simp"),
    ("(a b c : ℕ) : a - (b - c) = a - b + c", "omega"),
    ("(a b : ℕ) : (a - b) * (a + b) = a ^ 2 - b ^ 2 + 1", "ring"),
    ("(a b : ℕ) : a - b = 0 → a = b", "omega"),
    ("(n : ℕ) : n - 1 < n", "omega"),
    ("(n : ℕ) : n / 2 * 2 = n", "omega"),
    ("(n : ℕ) : n / 2 * 2 = n", "ring"),
    ("(n : ℕ) : n / 2 < n", "omega"),
    ("(n m : ℕ) : n / m * m + n % m = n + m", "ring"),
    ("(n m : ℕ) : n % m < m", "omega"),
    ("(a b : ℤ) : a / b * b = a", "ring"),
    ("(n : ℤ) : n % 2 = 1 ∨ n % 2 = -1", "omega"),
    ("(n : ℕ) : (n + n) / n = 2", "simp"),
    ("(a b : ℕ) : ((a - b : ℕ) : ℤ) = (a : ℤ) - (b : ℤ)", "simp"),
    ("(a b : ℕ) : ((a - b : ℕ) : ℤ) = (a : ℤ) - (b : ℤ)", "omega"),
    // False order and algebra.
    ("(a b : ℕ) : a < b", "omega"),
    ("(a b : ℤ) (h : a ≤ b) : a < b", "linarith"),
    ("(a b : ℤ) (h : a < b) : a + 1 < b", "omega"),
    ("(x : ℤ) (h : 2 * x ≤ 7) : x ≤ 2", "omega"),
    ("(x : ℤ) (h : 2 * x = 8) : x = 3", "omega"),
    ("(x y : ℤ) (h : x + y = 10) : x = 5", "linarith"),
    ("(a b : ℤ) : (a + b) ^ 2 = a ^ 2 + b ^ 2", "ring"),
    ("(a b : ℤ) : (a - b) ^ 2 = a ^ 2 - b ^ 2", "ring"),
    ("(a : ℤ) : 0 < a ^ 2", "positivity"),
    ("(a : ℤ) : 0 < a ^ 2", "nlinarith [sq_nonneg a]"),
    ("(a : ℤ) : a ≤ a ^ 3", "nlinarith [sq_nonneg a]"),
    ("(a : ℤ) : 0 ≤ a", "positivity"),
    ("(a : ℤ) : 0 ≤ a ^ 3", "positivity"),
    ("(a b : ℤ) : a * b ≤ a + b", "nlinarith [sq_nonneg (a - b)]"),
    ("(a b : ℤ) (h : a * b = 0) : a = 0", "exact mul_eq_zero.mp h"),
    ("(a b : ℤ) (h : 0 < a) : 0 < a * b", "exact mul_pos h h"),
    ("(n : ℕ) : n < n", "exact lt_irrefl n"),
    ("(n : ℕ) : 1 ≤ 2 * n", "positivity"),
    ("(n : ℕ) : n ^ 2 = 2 * n", "ring"),
    ("(n : ℕ) : 2 ^ n ≤ 2 * n + 1", "induction' n with k ih / norm_num / rw [pow_succ] / omega"),
    ("(n : ℕ) : n < n + 0", "induction' n with k ih / omega / omega"),
    ("(n : ℕ) : n = 0", "induction' n with k ih / rfl / exact ih"),
    ("(n : ℕ) : n = 0", "rcases n with _ | m / rfl / rfl"),
    ("(n : ℤ) : 0 ≤ n", "induction' n with k ih / norm_num / omega"),
    ("(n : ℕ) (h : n < 3) : n = 0 ∨ n = 1", "omega"),
    ("(h : ∀ n : ℕ, n < 5) : False", "have := h 3 / omega"),
    // Logic.
    ("(p q : Prop) : p → q", "intro h / exact h"),
    ("(p q : Prop) (h : p ∨ q) : p", "exact h.1"),
    ("(p q : Prop) (h : p ∨ q) : p", "rcases h with h | h / exact h / exact h"),
    ("(p q : Prop) (h : p ∨ q) : p ∧ q", "tauto"),
    ("(p q : Prop) (h : p → q) : q → p", "tauto"),
    ("(p q : Prop) (h : p → q) (hq : q) : p", "apply h / exact hq"),
    ("(p q : Prop) (h : p → q) : ¬p → ¬q", "exact mt h"),
    ("(p : Prop) : p", "by_contra h / exact h"),
    ("(p : Prop) : p", "tauto"),
    ("(p : Prop) : p", "assumption"),
    ("(p : Prop) : p", "exact p"),
    ("(p : Prop) : p", "apply absurd"),
    ("(p : Prop) : p ↔ ¬p", "constructor / intro h h2 / exact h2 / tauto"),
    ("(p q : Prop) : ¬(p ∧ q) ↔ ¬p ∧ ¬q", "tauto"),
    ("(p q : Prop) : p ∨ q", "left / assumption"),
    ("(p q : Prop) (h : p) : p ∧ q", "constructor / exact h"),
    ("(p q : Prop) (h : p) : p ∧ q", "exact ⟨h, h⟩"),
    ("(p q : Prop) (h : p ↔ q) : p", "exact h.mp"),
    // Names that hide others, claims that rest on themselves.
    ("(n : ℕ) (h : n = 0) : n = 1", "have h : n = 1 := h / exact h"),
    ("(n m : ℕ) (h : m = 1) : n = 1", "rcases m with _ | n / omega / omega"),
    ("(x : ℕ) : ∀ x : ℕ, x = 0", "intro x / rfl"),
    ("(x : ℕ) (h : x = 0) : ∀ x : ℕ, x = 0", "intro x / exact h"),
    ("(p : Prop) : p", "have h : p := h / exact h"),
    ("(p : Prop) : p", "have h : p := by exact h / exact h"),
    ("(p : Prop) : p", "have h : p → p := fun h => h / exact h h"),
    ("(p : Prop) : p", "have h : p / exact h / exact h"),
    (": 1 = 2", "have h : 1 = 2 := by exact this / exact h"),
    (": 1 = 2", "exact t"),
    (": 1 = 2", "apply t"),
    ("(h : ∃ n : ℕ, n > 5) : ∃ n : ℕ, n > 5 ∧ n < 3", "obtain ⟨n, hn⟩ := h / use n"),
    ("(h : ∃ n : ℕ, n = 1) (g : ∃ n : ℕ, n = 2) : False", "obtain ⟨n, hn⟩ := h / obtain ⟨n, hm⟩ := g / omega"),
    (": ∃ n : ℕ, ∀ m : ℕ, m = n", "use m / intro m / rfl"),
    (": ∃ n : ℕ, ∀ m : ℕ, n = m", "refine ⟨_, ?_⟩ / intro m / rfl"),
    ("(h : ∀ n : ℕ, ∃ m : ℕ, n < m) : ∃ m : ℕ, ∀ n : ℕ, n < m", "obtain ⟨m, hm⟩ := h 0 / use m / intro n / exact hm"),
    ("(a b : ℕ) (h : a = b) : a = 5", "subst h / rfl"),
    ("(a b c : ℕ) (h : a = b) : a = c", "rw [h]"),
    ("(a b : ℕ) (h : a ≠ b) : a = b", "rw [h]"),
    ("(a b : ℕ) : a = b", "rw [add_comm]"),
    ("(a b : ℕ) : a = b", "symm / rfl"),
    // Variables whose type must be found: Lean finds ℕ in these, or none.
    ("(z : ℤ) : ∃ k, k + 1 = 0 ∧ z = z", "use -1 / constructor / norm_num / rfl"),
    (": ∃ k, k + 1 = 0", "use -1 / norm_num"),
    (": ∃ k, ∀ m, k + m = 0 ∨ m = (1 : ℤ)", "use -1 / intro m / omega"),
    (": ∃ k, (2 : ℤ) ^ k = 4 ∧ k < 0", "use -2 / norm_num"),
    // At the end of the numbers that are calculated with.
    ("(x : ℤ) (h : x * (-170141183460469231731687303715884105727 - 1) ≤ 0) : x ≤ 0", "omega"),
    ("(x : ℤ) (h : 170141183460469231731687303715884105727 + 1 ≤ x) : x ≤ 0", "omega"),
    (": 170141183460469231731687303715884105727 + 1 ≤ 0", "norm_num"),
    (": (2 : ℤ) ^ 127 < 0", "norm_num"),
    // sorry and its kin, commands, look-alikes, comments.
    (": 1 = 2", "sorry"),
    (": 1 = 2", "admit"),
    (": 1 = 2", "exact sorry"),
    (": 1 = 2", "exact sorryAx _"),
    (": 1 = 2", "have h : 1 = 2 := by sorry / exact h"),
    (": 1 = 2", "try sorry"),
    (": 1 = 2", "exfalso / sorry"),
    (": 1 = 2", "all_goals sorry"),
    (": 1 = 2", "skip <;> sorry"),
    (": 1 = 2", "· sorry"),
    (": 1 = 2", "first | sorry | rfl"),
    (": 1 = 2", "/- rfl -/"),
    (": 1 = 2", "-- rfl"),
    (": 1 = 2", "/- sorry -/ rfl"),
    (": 1 = 2", "native_decide"),
    (": 1 = 2", "skip"),
    (": 1 = 2", "try rfl"),
    (": 1 = 2", "exact?"),
    (": 1 = 2", "aesop"),
    (": 1 = 2", "show 1 = 1 / rfl"),
    (": 1 = 2", "show (1 : ℤ) = 1 / rfl"),
    (": 1 = 2", "exact (rfl : 1 = 1)"),
    (": 1 = 2", "exact (by rfl : 1 = 1)"),
    (": 1 = 2", "exact fun h => h"),
    (": 1 ≠ 1", "intro h / exact h"),
    ("(n : ℕ) : n = 0", "exact Nat.zero_le n"),
    ("(а : ℕ) : а = 0", "omega"),
];

fn script(statement: &str, proof: &str) -> String {
    let steps: Vec<String> = proof.split(" / ").map(|step| format!("  {step}\n")).collect();
    format!("theorem t {statement} := by\n{}", steps.concat())
}

#[test]
fn what_is_false_or_not_proved_is_rejected() {
    assert!(WRONG.len() >= 100);
    for (statement, proof) in WRONG {
        let verdict = judged(&script(statement, proof));
        assert!(!verdict.success, "accepted: {statement} by {proof}");
        assert!(!verdict.messages.is_empty(), "no reason given: {statement} by {proof}");
    }
}

#[test]
fn what_surrounds_a_statement_cannot_make_it_true() {
    let proof = "theorem t : 1 = 2 := by\n  rfl\n";
    for before in [
        "axiom bad : 1 = 2\n",
        "theorem t : 1 = 1 := by\n  rfl\n",
        "macro \"rfl\" : tactic => `(tactic| sorry)\n",
        "set_option debug.skipKernelTC true\n",
        "local notation \"2\" => 1\n",
        "variable (h : False)\n",
        "/- ",
        "open Foo in\n",
    ] {
        assert!(!judged(&format!("{before}{proof}")).success, "{before}");
    }
    for after in ["\naxiom t : 1 = 2\n", "theorem u : 1 = 1 := by\n  rfl\n", "  rfl -/\n", "#eval 1\n", "end t\n"] {
        assert!(!judged(&format!("theorem t : 1 = 1 := by\n  rfl\n{after}")).success, "{after}");
    }
    assert!(
        judged("import Mathlib\nopen Nat\n/- a /- nested -/ note -/\ntheorem t : 1 = 1 := by\n  rfl -- so\n").success
    );
}

/// A random number term over the given variables, closed if there are none.
fn random_term(draws: &mut Stream, depth: usize, variables: &[&str]) -> String {
    if depth == 0 || draws.chance(0.25) {
        return match variables.is_empty() || draws.chance(0.5) {
            true => draws.below(6).to_string(),
            false => variables[draws.below(variables.len())].to_owned(),
        };
    }
    let sign = ["+", "-", "*", "/", "%", "-", "+"][draws.below(7)];
    let (a, b) = (random_term(draws, depth - 1, variables), random_term(draws, depth - 1, variables));
    if draws.chance(0.08) { format!("({a}) ^ {}", draws.below(4)) } else { format!("(({a}) {sign} ({b}))") }
}

fn random_claim(draws: &mut Stream, depth: usize, variables: &[&str], sort: &str) -> String {
    if depth > 0 && draws.chance(0.45) {
        let (a, b) = (random_claim(draws, depth - 1, variables, sort), random_claim(draws, depth - 1, variables, sort));
        return match draws.below(5) {
            0 => format!("({a}) ∧ ({b})"),
            1 => format!("({a}) ∨ ({b})"),
            2 => format!("({a}) → ({b})"),
            3 => format!("({a}) ↔ ({b})"),
            _ => format!("¬({a})"),
        };
    }
    let sign = ["=", "<", "≤", "≠", "∣", ">", "≥", "="][draws.below(8)];
    let (a, b) = (random_term(draws, 2, variables), random_term(draws, 2, variables));
    format!("(({a}) : {sort}) {sign} (({b}) : {sort})")
}

fn random_script(draws: &mut Stream) -> String {
    const TACTICS: &[&str] = &[
        "omega",
        "norm_num",
        "decide",
        "ring",
        "simp",
        "linarith",
        "tauto",
        "rfl",
        "constructor",
        "left",
        "right",
        "intro h",
        "exact h",
        "by_contra h",
        "exfalso",
        "contradiction",
        "assumption",
        "symm",
        "rcases h with h | h",
        "obtain ⟨h, g⟩ := h",
        "nlinarith",
        "positivity",
        "rw [h]",
        "rw [h] at g",
        "subst h",
        "rw [add_comm]",
        "rw [mul_comm]",
        "trivial",
        "induction' x with x h",
        "rcases x with _ | x",
        "have g : 1 = 1 := rfl",
        "constructor <;> intro h",
        "all_goals omega",
        "apply h",
        "exact h.1",
        "exact Or.inl h",
        "skip",
    ];
    let mut steps: Vec<String> = Vec::new();
    for _ in 0..draws.below(5) {
        let tactic = TACTICS[draws.below(TACTICS.len())];
        // Most go on where one fails; what is left is tried with a tactic that decides.
        steps.push(if draws.chance(0.8) { format!("try {tactic}") } else { tactic.to_owned() });
    }
    if steps.is_empty() || draws.chance(0.9) {
        let last = ["omega", "norm_num", "decide", "nlinarith", "simp", "tauto"][draws.below(6)];
        steps.push(if draws.chance(0.7) { format!("all_goals {last}") } else { last.to_owned() });
    }
    steps.join(" / ")
}

/// The truth of a claim for given values, by plain evaluation.
fn truth(claim: &str, variables: &[(&str, i128)], sort: &str) -> Option<bool> {
    let names: String = variables.iter().map(|(name, _)| format!("∀ {name} : {sort}, ")).collect();
    let words = syntax::words(&format!("{names}{claim}")).ok()?;
    let mut expr = elaborate::closed(&syntax::Parser::new(&words).term().ok()?).ok()?;
    for (_, value) in variables {
        let expr::Expr::Quant(_, _, sort, body) = expr else { return None };
        expr = body.instantiate(&expr::Expr::Num(*value, sort));
    }
    kernel::evaluate(&expr, &mut 10_000)
}

#[test]
fn what_is_accepted_of_random_closed_statements_is_true() {
    let mut draws = Stream::derive("lean", 1, "closed");
    let mut accepted = 0;
    for _ in 0..4000 {
        let sort = ["ℕ", "ℤ"][draws.below(2)];
        let claim = random_claim(&mut draws, 2, &[], sort);
        let proof = random_script(&mut draws);
        if judged(&script(&format!(": {claim}"), &proof)).success {
            accepted += 1;
            assert_eq!(truth(&claim, &[], sort), Some(true), "accepted: {claim} by {proof}");
        }
    }
    assert!(accepted > 100, "{accepted} accepted");
}

#[test]
fn a_statement_with_a_counterexample_is_never_accepted() {
    let mut draws = Stream::derive("lean", 2, "open");
    let (mut accepted, mut refutable) = (0, 0);
    for _ in 0..4000 {
        let sort = ["ℕ", "ℤ"][draws.below(2)];
        let claim = random_claim(&mut draws, 1, &["x", "y"], sort);
        let proof = random_script(&mut draws);
        let from = if sort == "ℕ" { 0 } else { -3 };
        let mut values = (from..4).flat_map(|x| (from..4).map(move |y| (x, y)));
        let counter = values.find(|(x, y)| truth(&claim, &[("x", *x), ("y", *y)], sort) == Some(false));
        let success = judged(&script(&format!("(x y : {sort}) : {claim}"), &proof)).success;
        accepted += usize::from(success);
        refutable += usize::from(counter.is_some());
        assert!(!(success && counter.is_some()), "accepted: {claim} by {proof}, but not for {counter:?}");
    }
    assert!(accepted > 50 && refutable > 500, "{accepted} accepted, {refutable} refutable");
}

#[test]
fn a_bound_variable_is_of_the_type_of_its_company() {
    for (statement, proof) in [
        ("(z : ℤ) : ∃ k, k + 1 = z", "use z - 1 / ring"),
        (": ∃ k, ∀ m : ℤ, k < m * m + 1", "use -3 / intro m / nlinarith [sq_nonneg m]"),
        (": ∃ k, k > 5", "use 6 / norm_num"),
        ("(n : ℕ) : ∃ k, n = 2 * k ∨ n = 2 * k + 1", "use n/2 / omega"),
    ] {
        let verdict = judged(&script(statement, proof));
        assert!(verdict.success, "{statement}: {:?}", verdict.messages);
    }
}

#[test]
fn deep_and_long_scripts_are_errors() {
    for proof in ["exact (((((".repeat(5000), "have h : 1 = 1 := by\n".repeat(2000), "(".repeat(100), "· ".repeat(300)]
    {
        assert!(!judged(&script(": 1 = 2", &proof)).success);
    }
}

#[test]
fn the_environment_keeps_the_contract_and_its_parts_are_apart() {
    let build = || crate::make(TYPE, &json!({"backend": "embedded"}));
    assert_eq!(conformance::check(&build), Vec::<String>::new());
    let mut lean = Lean::new(&json!({"backend": "embedded"})).unwrap();
    let mut seen = [const { Vec::new() }; 3];
    for (mode, seen) in [Mode::Train, Mode::Val, Mode::Test].into_iter().zip(&mut seen) {
        for seed in 0..300 {
            lean.reset(seed, 0, mode).unwrap();
            seen.push(lean.state()["theorem"]["name"].to_string());
        }
    }
    assert!(seen[0].iter().all(|name| !seen[1].contains(name) && !seen[2].contains(name)));
    assert!(seen[1].iter().all(|name| !seen[2].contains(name)));
    assert!(lean.backend().unwrap().starts_with("embedded checker"));
}

#[test]
fn words_that_could_forge_a_proof_are_not_sent() {
    for tactic in ["exact sorryAx _ false", "native_decide", "rfl\n\naxiom x : False", "#eval 1", ""] {
        let mut lean = at(0);
        let step = lean.step(tactic).unwrap();
        assert!(!step.valid && (step.reward + 1.1).abs() < 1e-9, "{tactic}: {step:?}");
    }
}

/// A server that gives each request the next answer; returns its URL and what it was asked.
fn serve(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<Value>>) {
    use std::io::{BufRead, BufReader, Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let answered = answers.into_iter().map(|answer| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            while reader.read_line(&mut head).unwrap() > 2 {
                let line = head.to_lowercase();
                if let Some(n) = line.strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
                if line.starts_with("authorization:") {
                    assert_eq!(line.trim(), "authorization: bearer secret");
                }
                head.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            serde_json::from_slice(&body).unwrap_or_default()
        });
        answered.collect()
    });
    (url, served)
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

#[test]
fn a_server_is_asked_and_its_word_is_taken() {
    let sorry = json!({"results": [{"id": "x", "response": {"messages": [
        {"severity": "warning", "pos": {"line": 1, "column": 0}, "data": "declaration uses 'sorry'"}]}}]});
    let good = json!({"results": [{"id": "x", "response": {"env": 0}}]});
    let answers = [
        http("200 OK", "{\"status\":\"ok\"}"),
        http("500 Internal Server Error", "broken"),
        http("200 OK", &sorry.to_string()),
        http("200 OK", &good.to_string()),
    ];
    let (url, served) = serve(answers.into());
    let config = json!({"server_url": url, "api_key": "secret", "max_retries": 0, "theorem_idx": 0});
    let mut lean = Lean::new(&config).unwrap();
    assert_eq!(lean.backend().unwrap(), format!("Lean server at {url}; {} embedded statements", library().len()));
    lean.reset(0, 0, Mode::Train).unwrap();
    // A failure of the server costs the step; sorry in disguise is rejected; the third is a proof.
    for (tactic, success, reward) in [("intro h", false, -1.1), ("exact foo", false, -1.1), ("tauto", true, 10.9)] {
        let step = lean.step(tactic).unwrap();
        assert_eq!((step.success, step.valid), (success, success), "{tactic}");
        assert!((step.reward - reward).abs() < 1e-9, "{tactic}: {step:?}");
    }
    let asked = served.join().unwrap();
    assert_eq!(asked[1]["snippets"].as_array().unwrap().len(), 1);
    assert_ne!(asked[1]["snippets"][0]["id"], asked[2]["snippets"][0]["id"]);
    assert!(asked[3]["snippets"][0]["code"].as_str().unwrap().ends_with(" := by\n  tauto\n"));
}

#[test]
fn a_server_that_is_too_slow_costs_the_timeout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = json!({"backend": "server", "server_url": url, "http_timeout": 1, "theorem_idx": 0});
    let mut lean = Lean::new(&config).unwrap();
    lean.reset(0, 0, Mode::Train).unwrap();
    let step = lean.step("trivial").unwrap();
    assert!((step.reward + 2.1).abs() < 1e-9, "{step:?}: {:?}", lean.last());
}

#[cfg(unix)]
#[test]
fn a_local_lean_is_run_and_killed_when_it_is_too_slow() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("lean");
    let says = |body: &str| {
        std::fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = json!({"backend": "local", "lean_command": program, "request_timeout": 1, "theorem_idx": 0});
        let mut lean = Lean::new(&config).unwrap();
        lean.reset(0, 0, Mode::Train).unwrap();
        lean.step("trivial").unwrap()
    };
    let error = r#"{"severity":"error","pos":{"line":7,"column":2},"endPos":null,"data":"no"}"#;
    assert!(says("grep -q trivial \"$2\" && exit 0; exit 1").success);
    assert_eq!(says(&format!("echo '{error}'; exit 1")).reward, -1.1);
    assert!(!says("exit 3").valid, "ending without a message is no proof");
    assert!((says("exec sleep 20").reward + 2.1).abs() < 1e-9);
}

#[test]
fn the_embedded_checker_agrees_with_lean_where_it_is() {
    if std::process::Command::new("lean").arg("--version").output().is_err() {
        println!("skipped: no `lean` on PATH to compare with");
        return;
    }
    let lean = Checker::Local(vec!["lean".to_owned()], 120.0);
    for proved in library().iter().filter(|proved| proved.steps.iter().all(|step| step == "omega" || step == "decide"))
    {
        let script = format!("{}\n  {}\n", proved.theorem.formal_statement, proved.steps.join("\n  "));
        assert!(judge(lean.check(&script.replace('ℕ', "Nat").replace('ℤ', "Int"))).success, "{script}");
    }
}

#[test]
fn statements_of_a_file_are_read_and_faults_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    let raw = "import Mathlib\nopen Nat\n@[simp] theorem a (n : ℕ) : n + 0 = n := by sorry";
    let row = json!({"id": "a", "formal_statement": raw, "natural_language_statement": "Zero."});
    let other = json!({"name": "b", "formal_statement": "theorem b : True := by", "split": "test"});
    std::fs::write(&path, format!("{row}\n{other}\n{{\"name\": \"c\"}}\n")).unwrap();
    let mut lean = Lean::new(&json!({"dataset_name_or_path": path, "backend": "embedded"})).unwrap();
    lean.reset(5, 0, Mode::Val).unwrap();
    let theorem = lean.state()["theorem"].clone();
    assert_eq!((&theorem["name"], &theorem["imports"]), (&json!("a"), &json!("import Mathlib")));
    assert_eq!(theorem["preamble"], "open Nat");
    assert_eq!(theorem["formal_statement"], "@[simp] theorem a (n : ℕ) : n + 0 = n := by");
    let missing = Lean::new(&json!({"dataset_name_or_path": "none.json"})).err().unwrap().to_string();
    assert!(missing.contains("dataset_name_or_path: ") && missing.contains("none.json"), "{missing}");
}
