//! The trusted kernel: which proofs prove what.
//!
//! It knows the rules and nothing of tactics or text: whatever a script does, it counts only if the [`Proof`] that came
//! of it is checked here against the statement. Truth is truth in the standard numbers with classical logic, as in Lean
//! with Mathlib. Besides the rules the kernel trusts [`linear`](super::linear) and the list of known lemmas.

use super::expr::{Expr, Join, Op, Quant, Rel, Sort, Var};
use super::lemmas;
use super::linear;

/// A proof. Numbers name hypotheses and holes; neither is used twice.
#[derive(Clone, Debug)]
pub(super) enum Proof {
    /// A hypothesis in scope.
    Hyp(u32),
    /// A lemma of the list, by its place.
    Lemma(usize),
    /// What another goal's proof gives.
    Hole(usize),
    Truth,
    /// `body` proves the second of `hyp : prop → …`.
    Assume(u32, Expr, Box<Proof>),
    /// `body` proves False from `hyp : prop`, so it proves ¬prop.
    Deny(u32, Expr, Box<Proof>),
    /// `body` proves False from `hyp : ¬prop`, so it proves prop.
    Classical(u32, Expr, Box<Proof>),
    /// For all: the variable is new.
    Generalise(Var, Box<Proof>),
    Specialise(Box<Proof>, Expr),
    /// An implication (or negation, or either side of an equivalence from the other is [`Proof::Forth`]) with its premise.
    Apply(Box<Proof>, Box<Proof>),
    Both(Box<Proof>, Box<Proof>),
    First(Box<Proof>),
    Second(Box<Proof>),
    /// Left of `… ∨ other`.
    Left(Box<Proof>, Expr),
    /// Right of `other ∨ …`.
    Right(Expr, Box<Proof>),
    /// From a disjunction: either hypothesis proves the claim.
    Cases(Box<Proof>, u32, Box<Proof>, u32, Box<Proof>),
    /// The claim is `∃`: its value, and that it fits.
    Witness(Expr, Expr, Box<Proof>),
    /// From an `∃`: a new variable and what is known of it prove the claim.
    Open(Box<Proof>, Var, u32, Box<Proof>),
    /// Anything, from False.
    Absurd(Expr, Box<Proof>),
    Equivalence(Box<Proof>, Box<Proof>),
    Forth(Box<Proof>),
    Back(Box<Proof>),
    /// `e = e`, or `p ↔ p`, or what differs from it only in its normal form as a polynomial.
    Same(Expr),
    /// The first proves `a = b` or `a ↔ b`; the second proves what the claim becomes when some are exchanged.
    Rewrite(Box<Proof>, Expr, Box<Proof>),
    /// An intermediate claim.
    Have(u32, Box<Proof>, Box<Proof>),
    /// The claim follows from these by arithmetic and propositional logic.
    Arithmetic(Vec<Proof>, Expr),
    /// The claim is true by trying all values.
    Evaluate(Expr),
    /// For the variable (of type ℕ) in the claim: at 0; and at `next + 1` if at `next`, a new variable.
    Induction {
        var: Var,
        claim: Expr,
        base: Box<Proof>,
        next: Var,
        hyp: u32,
        step: Box<Proof>,
    },
}

/// What is in scope.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub(super) vars: Vec<Var>,
    pub(super) hyps: Vec<(u32, Expr)>,
}

type Checked<T> = Result<T, String>;

fn no<T>(why: &str) -> Checked<T> {
    Err(format!("the kernel refuses the proof: {why}"))
}

/// Whether some `a` of `x` have become `b`, or the other way round, and all else is equal.
fn exchanged(x: &Expr, y: &Expr, a: &Expr, b: &Expr) -> bool {
    let also = |x: &Expr, y: &Expr| exchanged(x, y, a, b);
    if x == y || (x == a && y == b) || (x == b && y == a) {
        return true;
    }
    match (x, y) {
        (Expr::Bin(op, s, p, q), Expr::Bin(op2, s2, p2, q2)) => (op, s) == (op2, s2) && also(p, p2) && also(q, q2),
        (Expr::Rel(rel, p, q), Expr::Rel(rel2, p2, q2)) => rel == rel2 && also(p, p2) && also(q, q2),
        (Expr::Join(join, p, q), Expr::Join(join2, p2, q2)) => join == join2 && also(p, p2) && also(q, q2),
        (Expr::Neg(p), Expr::Neg(p2)) | (Expr::Cast(p), Expr::Cast(p2)) | (Expr::Not(p), Expr::Not(p2)) => also(p, p2),
        (Expr::Quant(quant, _, sort, p), Expr::Quant(quant2, _, sort2, p2)) => {
            (quant, sort) == (quant2, sort2) && also(p, p2)
        }
        _ => false,
    }
}

/// The truth of a closed statement by trying all values: quantifiers must be bounded, as in `∀ x, x < 10 → …` over ℕ.
/// `None`: cannot be told.
pub(super) fn evaluate(expr: &Expr, budget: &mut usize) -> Option<bool> {
    *budget = budget.checked_sub(1)?;
    Some(match expr {
        Expr::Truth(value) => *value,
        Expr::Not(a) => !evaluate(a, budget)?,
        Expr::Join(join, a, b) => {
            let (a, b) = (evaluate(a, budget)?, evaluate(b, budget)?);
            match join {
                Join::And => a && b,
                Join::Or => a || b,
                Join::Imp => !a || b,
                Join::Iff => a == b,
            }
        }
        Expr::Rel(rel, a, b) => {
            let (a, b) = (number(a)?, number(b)?);
            match rel {
                Rel::Eq => a == b,
                Rel::Le => a <= b,
                Rel::Lt => a < b,
                Rel::Dvd if a == 0 => b == 0,
                Rel::Dvd => b.checked_rem(a)? == 0,
            }
        }
        Expr::Quant(quant, _, Sort::Nat, body) => {
            let all = *quant == Quant::All;
            let (Expr::Join(join, bound, _), true) = (&**body, true) else { return None };
            if *join != (if all { Join::Imp } else { Join::And }) {
                return None;
            }
            let Expr::Rel(rel @ (Rel::Lt | Rel::Le), x, limit) = &**bound else { return None };
            if !matches!(**x, Expr::Bound(0, Sort::Nat)) {
                return None;
            }
            let limit = number(limit)?.checked_add(i128::from(*rel == Rel::Le))?;
            let mut value = all;
            for n in 0..limit {
                if evaluate(&body.instantiate(&Expr::Num(n, Sort::Nat)), budget)? != all {
                    value = !all;
                    break;
                }
            }
            value
        }
        _ => return None,
    })
}

/// The value of a closed number.
pub(super) fn number(expr: &Expr) -> Option<i128> {
    Some(match expr {
        Expr::Num(n, _) => *n,
        Expr::Neg(a) => number(a)?.checked_neg()?,
        Expr::Cast(a) => number(a)?,
        Expr::Bin(op, sort, a, b) => {
            let (a, b) = (number(a)?, number(b)?);
            match op {
                Op::Add => a.checked_add(b)?,
                Op::Sub if *sort == Sort::Nat => a.checked_sub(b)?.max(0),
                Op::Sub => a.checked_sub(b)?,
                Op::Mul => a.checked_mul(b)?,
                Op::Div if b == 0 => 0,
                Op::Div => a.checked_div_euclid(b)?,
                Op::Mod if b == 0 => a,
                Op::Mod => a.checked_rem_euclid(b)?,
                Op::Pow => a.checked_pow(u32::try_from(b).ok()?)?,
            }
        }
        _ => return None,
    })
}

/// Steps of evaluation in all.
pub(super) const EVALUATIONS: usize = 20_000;

/// Checks proofs; `holes` gives what fills each hole, none where a goal is open.
pub(super) struct Kernel<'a> {
    holes: &'a [Option<Proof>],
    budget: usize,
    inside: Option<usize>,
    depth: usize,
}

/// Rules applied in a proof, and how deep they may lie in one another.
const MOST_RULES: usize = 20_000;
const DEEPEST: usize = 3000;

impl<'a> Kernel<'a> {
    /// A kernel that fills holes by `holes`, each with holes of higher numbers alone.
    pub(super) fn new(holes: &'a [Option<Proof>]) -> Self {
        Kernel { holes, budget: MOST_RULES, inside: None, depth: 0 }
    }
}

impl Kernel<'_> {
    /// Whether `proof` proves the closed `statement`.
    ///
    /// **Errors** with the rule that is broken.
    pub(super) fn accept(&mut self, statement: &Expr, scope: &Scope, proof: &Proof) -> Checked<()> {
        for (_, prop) in &scope.hyps {
            self.proposition(prop, scope)?;
        }
        self.proposition(statement, scope)?;
        match self.claim(proof, scope)? == *statement {
            true => Ok(()),
            false => no("it proves something else"),
        }
    }

    fn well_formed(&self, expr: &Expr, scope: &Scope, sort: Sort) -> Checked<()> {
        let known = |var: &Var| scope.vars.contains(var);
        match expr.sort(&known, &mut Vec::new()) == Some(sort) {
            true => Ok(()),
            false => no(&format!("`{expr}` is no {sort} here")),
        }
    }

    fn proposition(&self, expr: &Expr, scope: &Scope) -> Checked<()> {
        self.well_formed(expr, scope, Sort::Prop)
    }

    fn with_hyp(&self, scope: &Scope, id: u32, prop: &Expr) -> Checked<Scope> {
        if scope.hyps.iter().any(|(known, _)| *known == id) {
            return no("a hypothesis is named twice");
        }
        self.proposition(prop, scope)?;
        let mut inner = scope.clone();
        inner.hyps.push((id, prop.clone()));
        Ok(inner)
    }

    fn with_var(&self, scope: &Scope, var: &Var) -> Checked<Scope> {
        if scope.vars.iter().any(|known| known.id == var.id) {
            return no("a variable is not new");
        }
        let mut inner = scope.clone();
        inner.vars.push(var.clone());
        Ok(inner)
    }

    fn falsehood(&mut self, proof: &Proof, scope: &Scope) -> Checked<()> {
        match self.claim(proof, scope)? {
            Expr::Truth(false) => Ok(()),
            _ => no("False is not proved"),
        }
    }

    /// What `proof` proves in `scope`; the claim is well formed there.
    fn claim(&mut self, proof: &Proof, scope: &Scope) -> Checked<Expr> {
        self.depth += 1;
        let claim = if self.depth > DEEPEST { no("it is too deep") } else { self.rule(proof, scope) };
        self.depth -= 1;
        claim
    }

    fn rule(&mut self, proof: &Proof, scope: &Scope) -> Checked<Expr> {
        self.budget = match self.budget.checked_sub(1) {
            Some(rest) => rest,
            None => return no("it is too long"),
        };
        Ok(match proof {
            Proof::Hyp(id) => match scope.hyps.iter().find(|(known, _)| known == id) {
                Some((_, prop)) => prop.clone(),
                None => return no("a hypothesis is out of scope"),
            },
            Proof::Lemma(at) => match lemmas::lemmas().get(*at) {
                Some(lemma) => lemma.statement.clone(),
                None => return no("no such lemma"),
            },
            Proof::Hole(at) => {
                let (holes, outer) = (self.holes, self.inside);
                if outer.is_some_and(|outer| outer >= *at) {
                    return no("it rests on itself");
                }
                let Some(Some(filling)) = holes.get(*at) else { return no("a goal is open") };
                self.inside = Some(*at);
                let claim = self.claim(filling, scope);
                self.inside = outer;
                claim?
            }
            Proof::Truth => Expr::Truth(true),
            Proof::Assume(id, prop, body) => {
                let inner = self.with_hyp(scope, *id, prop)?;
                Expr::join(Join::Imp, prop.clone(), self.claim(body, &inner)?)
            }
            Proof::Deny(id, prop, body) => {
                let inner = self.with_hyp(scope, *id, prop)?;
                self.falsehood(body, &inner)?;
                Expr::negation(prop.clone())
            }
            Proof::Classical(id, prop, body) => {
                let inner = self.with_hyp(scope, *id, &Expr::negation(prop.clone()))?;
                self.falsehood(body, &inner)?;
                prop.clone()
            }
            Proof::Generalise(var, body) => {
                let inner = self.with_var(scope, var)?;
                let claim = self.claim(body, &inner)?;
                let label = super::expr::Label { text: var.name.clone(), implicit: false };
                Expr::Quant(Quant::All, label, var.sort, Box::new(claim.abstracted(var.id)))
            }
            Proof::Specialise(proof, value) => match self.claim(proof, scope)? {
                Expr::Quant(Quant::All, _, sort, body) => {
                    self.well_formed(value, scope, sort)?;
                    body.instantiate(value)
                }
                _ => return no("it is not for all"),
            },
            Proof::Apply(proof, premise) => {
                let premise = self.claim(premise, scope)?;
                match self.claim(proof, scope)? {
                    Expr::Join(Join::Imp, a, b) if *a == premise => *b,
                    Expr::Not(a) if *a == premise => Expr::Truth(false),
                    _ => return no("the premise is another"),
                }
            }
            Proof::Same(claim) => {
                self.proposition(claim, scope)?;
                match claim {
                    Expr::Rel(Rel::Eq, a, b) if a == b || linear::equal(a, b) => claim.clone(),
                    Expr::Join(Join::Iff, a, b) if a == b => claim.clone(),
                    _ => return no("the sides differ"),
                }
            }
            Proof::Have(id, proof, body) => {
                let prop = self.claim(proof, scope)?;
                let inner = self.with_hyp(scope, *id, &prop)?;
                self.claim(body, &inner)?
            }
            Proof::Absurd(claim, proof) => {
                self.proposition(claim, scope)?;
                self.falsehood(proof, scope)?;
                claim.clone()
            }
            Proof::Arithmetic(facts, claim) => {
                self.proposition(claim, scope)?;
                let mut props = Vec::new();
                for fact in facts {
                    props.push((self.claim(fact, scope)?, true));
                }
                props.push((claim.clone(), false));
                if !linear::refute(props) {
                    return no("it does not follow by arithmetic");
                }
                claim.clone()
            }
            Proof::Evaluate(claim) => {
                self.proposition(claim, scope)?;
                if evaluate(claim, &mut { EVALUATIONS }) != Some(true) {
                    return no("it is not true by evaluation");
                }
                claim.clone()
            }
            other => self.structural(other, scope)?,
        })
    }

    /// The rules of the connectives, of rewriting and of induction.
    fn structural(&mut self, proof: &Proof, scope: &Scope) -> Checked<Expr> {
        Ok(match proof {
            Proof::Both(a, b) => Expr::join(Join::And, self.claim(a, scope)?, self.claim(b, scope)?),
            Proof::First(pair) | Proof::Second(pair) => match self.claim(pair, scope)? {
                Expr::Join(Join::And, a, b) => *if matches!(proof, Proof::First(_)) { a } else { b },
                _ => return no("it is not a pair"),
            },
            Proof::Equivalence(there, back) => match (self.claim(there, scope)?, self.claim(back, scope)?) {
                (Expr::Join(Join::Imp, a, b), Expr::Join(Join::Imp, b2, a2)) if a == a2 && b == b2 => {
                    Expr::Join(Join::Iff, a, b)
                }
                _ => return no("the two ways do not meet"),
            },
            Proof::Forth(proof) => match self.claim(proof, scope)? {
                Expr::Join(Join::Iff, a, b) => Expr::Join(Join::Imp, a, b),
                _ => return no("it is no equivalence"),
            },
            Proof::Back(proof) => match self.claim(proof, scope)? {
                Expr::Join(Join::Iff, a, b) => Expr::Join(Join::Imp, b, a),
                _ => return no("it is no equivalence"),
            },
            Proof::Left(proof, other) => {
                self.proposition(other, scope)?;
                Expr::join(Join::Or, self.claim(proof, scope)?, other.clone())
            }
            Proof::Right(other, proof) => {
                self.proposition(other, scope)?;
                Expr::join(Join::Or, other.clone(), self.claim(proof, scope)?)
            }
            Proof::Cases(either, id_a, body_a, id_b, body_b) => match self.claim(either, scope)? {
                Expr::Join(Join::Or, a, b) => {
                    let (in_a, in_b) = (self.with_hyp(scope, *id_a, &a)?, self.with_hyp(scope, *id_b, &b)?);
                    let claim = self.claim(body_a, &in_a)?;
                    if self.claim(body_b, &in_b)? != claim {
                        return no("the cases prove two things");
                    }
                    claim
                }
                _ => return no("it is no disjunction"),
            },
            Proof::Witness(claim, value, proof) => {
                self.proposition(claim, scope)?;
                let Expr::Quant(Quant::Some, _, sort, body) = claim else { return no("nothing is to exist") };
                self.well_formed(value, scope, *sort)?;
                if self.claim(proof, scope)? != body.instantiate(value) {
                    return no("the witness does not fit");
                }
                claim.clone()
            }
            Proof::Open(some, var, id, body) => match self.claim(some, scope)? {
                Expr::Quant(Quant::Some, _, sort, inside) if sort == var.sort => {
                    let inner = self.with_var(scope, var)?;
                    let inner = self.with_hyp(&inner, *id, &inside.instantiate(&Expr::Free(var.clone())))?;
                    let claim = self.claim(body, &inner)?;
                    // The variable must not get out.
                    self.proposition(&claim, scope)?;
                    claim
                }
                _ => return no("nothing is said to exist"),
            },
            Proof::Rewrite(equation, claim, proof) => {
                self.proposition(claim, scope)?;
                let (Expr::Rel(Rel::Eq, a, b) | Expr::Join(Join::Iff, a, b)) = self.claim(equation, scope)? else {
                    return no("it is no equation");
                };
                let before = self.claim(proof, scope)?;
                if !exchanged(&before, claim, &a, &b) {
                    return no("the rewritten claim is another");
                }
                claim.clone()
            }
            Proof::Induction { var, claim, base, next, hyp, step } => {
                self.proposition(claim, scope)?;
                if var.sort != Sort::Nat || next.sort != Sort::Nat {
                    return no("induction is over ℕ");
                }
                if self.claim(base, scope)? != claim.substitute(var.id, &Expr::Num(0, Sort::Nat)) {
                    return no("the base is another");
                }
                let inner = self.with_var(scope, next)?;
                let at = Expr::Free(next.clone());
                let after = Expr::bin(Op::Add, Sort::Nat, at.clone(), Expr::Num(1, Sort::Nat));
                let inner = self.with_hyp(&inner, *hyp, &claim.substitute(var.id, &at))?;
                if self.claim(step, &inner)? != claim.substitute(var.id, &after) {
                    return no("the step is another");
                }
                claim.clone()
            }
            _ => return no("no such rule"),
        })
    }
}
