//! What each tactic does to the goals.
//!
//! Nothing here is trusted: a tactic fills a hole with a proof that may have new holes, and the kernel judges the whole.

use super::expr::{Expr, Join, Quant, Rel};
use super::goal::{Done, Entry, Goal, Prover, flipped, is_same, turned};
use super::kernel::{EVALUATIONS, Proof, evaluate};
use super::linear::{equal, refute};
use super::syntax::{Fault, Kind, Pattern, Pre, Tactic};

/// Tactics run in a script, goals open at once, and nodes of a goal's target.
const MOST_WORK: usize = 500;
const MOST_GOALS: usize = 64;
const LARGEST: usize = 3000;

/// What a tactic does: a proof of the goal, and the goals that it leaves.
type Act<'a> = &'a mut dyn FnMut(&mut Prover, &Goal, &mut Vec<Goal>) -> Done<Proof>;

impl Prover {
    /// Runs tactics in turn; the first that fails ends it.
    pub(super) fn run(&mut self, tactics: &[Tactic]) -> Result<(), Fault> {
        tactics.iter().try_for_each(|tactic| self.tactic(tactic))
    }

    pub(super) fn tactic(&mut self, tactic: &Tactic) -> Result<(), Fault> {
        let fault = |text: String| Fault { at: tactic.at, text };
        self.work += 1;
        if self.work > MOST_WORK || self.goals.len() > MOST_GOALS {
            return Err(fault("too much work for the embedded checker".to_owned()));
        }
        if self.goals.is_empty() {
            return Err(fault("no goals to be proved".to_owned()));
        }
        match &tactic.kind {
            Kind::Dot(inner) => {
                let rest = self.goals.split_off(1);
                let ran = self.run(inner);
                let left = std::mem::replace(&mut self.goals, rest);
                ran?;
                match left.first() {
                    None => Ok(()),
                    Some(_) => Err(fault(unsolved(&left))),
                }
            }
            Kind::Chain(first, then) => {
                let rest = self.goals.split_off(1);
                let ran = self.tactic(first).and_then(|()| self.on_all(then));
                self.goals.extend(rest);
                ran
            }
            Kind::All(inner) => self.on_all(inner),
            Kind::Try(inner) => {
                let (goals, sorries) = (self.goals.clone(), self.sorries.len());
                if self.tactic(inner).is_err() {
                    self.goals = goals;
                    self.sorries.truncate(sorries);
                }
                Ok(())
            }
            Kind::Induction(subject, names, cases, induct) if !cases.is_empty() => {
                self.one(&mut |prover, goal, new| prover.split(goal, subject, names, *induct, new)).map_err(fault)?;
                self.by_cases(tactic, cases)
            }
            Kind::Plain(name) if name == "skip" => Ok(()),
            Kind::Plain(name) if name == "sorry" || name == "admit" => {
                let goal = self.goals.remove(0);
                self.sorries.push((tactic.at, goal));
                Ok(())
            }
            Kind::Names("clear" | "rename_i", names) => self.rename(&tactic.kind, names).map_err(fault),
            kind => self.one(&mut |prover, goal, new| prover.act(goal, kind, new)).map_err(fault),
        }
    }

    fn on_all(&mut self, tactic: &Tactic) -> Result<(), Fault> {
        let mut done = Vec::new();
        for goal in std::mem::take(&mut self.goals) {
            self.goals = vec![goal];
            self.tactic(tactic)?;
            done.append(&mut self.goals);
        }
        self.goals = done;
        Ok(())
    }

    /// Fills the first goal's hole; the goals that are new come first.
    fn one(&mut self, act: Act) -> Done<()> {
        let goal = self.goals[0].clone();
        let mut new = Vec::new();
        let proof = act(self, &goal, &mut new)?;
        if new.iter().any(|goal| goal.target.size() > LARGEST) {
            return Err("the goal grows too large for the embedded checker".to_owned());
        }
        self.holes[goal.hole] = Some(proof);
        self.goals.splice(..1, new);
        Ok(())
    }

    fn act(&mut self, goal: &Goal, kind: &Kind, new: &mut Vec<Goal>) -> Done<Proof> {
        let target = &goal.target;
        match kind {
            Kind::Plain(name) => self.plain(goal, name, new),
            Kind::Intro(patterns) => {
                let one = [Pattern::Name("_".to_owned())];
                self.intro(goal, if patterns.is_empty() { &one } else { patterns }, new)
            }
            Kind::Term("apply", pre) => {
                let (head, arguments) = match pre {
                    Pre::App(head, arguments) => (&**head, &arguments[..]),
                    other => (other, &[][..]),
                };
                self.apply(goal, head, arguments, Some(target), true, new).map(|made| made.0)
            }
            Kind::Term("show", pre) => {
                let claim = self.prop(goal, pre)?;
                match (claim == *target, &claim, target) {
                    (true, ..) => Ok(self.open(goal, claim, new)),
                    (false, Expr::Rel(rel, a, b), Expr::Rel(rel2, a2, b2))
                        if rel == rel2 && equal(a, a2) && equal(b, b2) =>
                    {
                        let hole = self.open(goal, claim, new);
                        Ok(Proof::Arithmetic(vec![hole], target.clone()))
                    }
                    _ => Err(format!("`show` failed: the goal is\n⊢ {target}")),
                }
            }
            Kind::Term("exact", pre) => {
                let proof = self.check(goal, pre, target, new)?;
                if new.is_empty() { Ok(proof) } else { Err("`exact` leaves goals; use `refine`".to_owned()) }
            }
            Kind::Term(_, pre) => self.check(goal, pre, target, new),
            Kind::Use(values) => self.use_values(goal, values, new),
            Kind::Rcases(pre, pattern) => {
                if let (Pre::Name(name), Pattern::Either(cases)) = (pre, pattern)
                    && let Some(Entry::Var(_)) = goal.entry(name)
                    && let [_, Pattern::Name(next)] = &cases[..]
                {
                    return self.split(goal, pre, std::slice::from_ref(next), false, new);
                }
                let (proof, prop) = self.infer(goal, pre, new)?;
                self.take_apart(goal, proof, &prop, pattern, &mut |prover, inner| {
                    Ok(prover.open(inner, inner.target.clone(), new))
                })
            }
            Kind::Induction(subject, names, _, induct) => self.split(goal, subject, names, *induct, new),
            Kind::ByCases(name, pre) => {
                let claim = self.prop(goal, pre)?;
                let either = Expr::join(Join::Or, claim.clone(), Expr::negation(claim));
                let proof = Proof::Arithmetic(Vec::new(), either.clone());
                let names = [Pattern::Name(name.clone()), Pattern::Name(name.clone())];
                self.take_apart(goal, proof, &either, &Pattern::Either(names.into()), &mut |prover, inner| {
                    Ok(prover.open(inner, inner.target.clone(), new))
                })
            }
            Kind::ByContra(name) => {
                let id = self.fresh();
                let falsehood = Expr::Truth(false);
                if let Expr::Not(inner) = target {
                    let inside = goal.with_hyp(name, id, *inner.clone());
                    let body = self.open(&inside, falsehood, new);
                    return Ok(Proof::Deny(id, *inner.clone(), Box::new(body)));
                }
                let inside = goal.with_hyp(name, id, Expr::negation(target.clone()));
                let body = self.open(&inside, falsehood, new);
                Ok(Proof::Classical(id, target.clone(), Box::new(body)))
            }
            Kind::Have(pattern, claim, value) => self.have(goal, pattern, claim.as_ref(), value.as_ref(), new),
            Kind::Rewrite(rules, places) => self.rewrite(goal, rules, places, new),
            Kind::Auto(name, hints) => self.auto(goal, name, hints, new),
            Kind::Specialize(pre) => {
                let name = match pre {
                    Pre::App(head, _) => match &**head {
                        Pre::Name(name) => name.clone(),
                        _ => return Err("`specialize` needs a hypothesis".to_owned()),
                    },
                    _ => return Err("`specialize` needs arguments".to_owned()),
                };
                self.have(goal, &Pattern::Name(name), None, Some(pre), new)
            }
            Kind::Names("subst", names) => self.subst(goal, names, new),
            _ => Err("unsupported by the embedded checker".to_owned()),
        }
    }

    fn plain(&mut self, goal: &Goal, name: &str, new: &mut Vec<Goal>) -> Done<Proof> {
        let target = &goal.target;
        let failed = || format!("`{name}` failed\n{goal}");
        match (name, target) {
            ("constructor", Expr::Join(Join::And, a, b)) => {
                let a = self.open(goal, *a.clone(), new);
                Ok(Proof::Both(Box::new(a), Box::new(self.open(goal, *b.clone(), new))))
            }
            ("constructor", Expr::Join(Join::Iff, a, b)) => {
                let there = self.open(goal, Expr::Join(Join::Imp, a.clone(), b.clone()), new);
                let back = self.open(goal, Expr::Join(Join::Imp, b.clone(), a.clone()), new);
                Ok(Proof::Equivalence(Box::new(there), Box::new(back)))
            }
            ("constructor" | "trivial", Expr::Truth(true)) => Ok(Proof::Truth),
            ("split_ands", target) => Ok(self.split_ands(goal, target, new)),
            ("left", Expr::Join(Join::Or, a, b)) => {
                Ok(Proof::Left(Box::new(self.open(goal, *a.clone(), new)), *b.clone()))
            }
            ("right", Expr::Join(Join::Or, a, b)) => {
                Ok(Proof::Right(*a.clone(), Box::new(self.open(goal, *b.clone(), new))))
            }
            ("rfl", target) => self.rfl(target),
            ("exfalso", target) => {
                Ok(Proof::Absurd(target.clone(), Box::new(self.open(goal, Expr::Truth(false), new))))
            }
            ("symm", target) => {
                let turned = turned(target).ok_or_else(failed)?;
                let hole = self.open(goal, turned.clone(), new);
                Ok(flipped(hole, &turned, target))
            }
            ("assumption", _) => self.assumption(goal).ok_or_else(failed),
            ("trivial", _) => {
                if let Some(proof) = self.assumption(goal) {
                    return Ok(proof);
                }
                self.rfl(target).or_else(|_| self.decide(goal)).map_err(|_| failed())
            }
            ("contradiction", _) => {
                let proof = self.contradiction(goal).ok_or_else(failed)?;
                Ok(Proof::Absurd(target.clone(), Box::new(proof)))
            }
            ("decide", _) => self.decide(goal),
            ("ring" | "ring_nf", Expr::Rel(Rel::Eq, a, b)) if equal(a, b) => Ok(Proof::Same(target.clone())),
            ("tauto" | "omega", _) => self.arithmetic(goal, goal.hyps().collect(), name),
            ("positivity", Expr::Rel(Rel::Lt | Rel::Le, zero, _)) if matches!(**zero, Expr::Num(0, _)) => {
                self.arithmetic(goal, Vec::new(), name)
            }
            _ => Err(failed()),
        }
    }

    fn split_ands(&mut self, goal: &Goal, target: &Expr, new: &mut Vec<Goal>) -> Proof {
        match target {
            Expr::Join(Join::And, a, b) => {
                let a = self.split_ands(goal, a, new);
                Proof::Both(Box::new(a), Box::new(self.split_ands(goal, b, new)))
            }
            one => self.open(goal, one.clone(), new),
        }
    }

    /// What needs no word: sides that are written alike, `True`, or what is known.
    fn plainly(&self, goal: &Goal) -> Option<Proof> {
        match &goal.target {
            Expr::Truth(true) => Some(Proof::Truth),
            target if is_same(target) => Some(Proof::Same(target.clone())),
            _ => self.assumption(goal),
        }
    }

    fn assumption(&self, goal: &Goal) -> Option<Proof> {
        goal.hyps().find(|(_, prop)| **prop == goal.target).map(|(id, _)| Proof::Hyp(id))
    }

    /// A proof of False from what is plainly contradictory.
    fn contradiction(&self, goal: &Goal) -> Option<Proof> {
        let hyps: Vec<(u32, &Expr)> = goal.hyps().collect();
        for (id, prop) in &hyps {
            if **prop == Expr::Truth(false) {
                return Some(Proof::Hyp(*id));
            }
            if let Expr::Not(inner) = prop {
                if let Some((other, _)) = hyps.iter().find(|(_, other)| *other == &**inner) {
                    return Some(Proof::Apply(Box::new(Proof::Hyp(*id)), Box::new(Proof::Hyp(*other))));
                }
                if let Expr::Rel(Rel::Eq, a, b) = &**inner
                    && a == b
                {
                    let same = Proof::Same(*inner.clone());
                    return Some(Proof::Apply(Box::new(Proof::Hyp(*id)), Box::new(same)));
                }
            }
            if evaluate(prop, &mut { EVALUATIONS }) == Some(false) {
                return Some(Proof::Arithmetic(vec![Proof::Hyp(*id)], Expr::Truth(false)));
            }
        }
        None
    }

    fn decide(&self, goal: &Goal) -> Done<Proof> {
        match evaluate(&goal.target, &mut { EVALUATIONS }) {
            Some(true) => Ok(Proof::Evaluate(goal.target.clone())),
            Some(false) => Err(format!("the proposition is false\n⊢ {}", goal.target)),
            None => Err(format!("cannot decide by evaluation\n⊢ {}", goal.target)),
        }
    }

    /// The target from hypotheses by arithmetic and propositional logic.
    fn arithmetic(&self, goal: &Goal, hyps: Vec<(u32, &Expr)>, name: &str) -> Done<Proof> {
        let facts: Vec<(Expr, bool)> = hyps.iter().map(|(_, prop)| ((*prop).clone(), true)).collect();
        let facts = facts.into_iter().chain([(goal.target.clone(), false)]).collect();
        match refute(facts) {
            true => {
                let proofs = hyps.into_iter().map(|(id, _)| Proof::Hyp(id)).collect();
                Ok(Proof::Arithmetic(proofs, goal.target.clone()))
            }
            false => Err(format!("`{name}` could not prove the goal\n{goal}")),
        }
    }

    fn auto(&mut self, goal: &Goal, name: &str, hints: &[Pre], new: &mut Vec<Goal>) -> Done<Proof> {
        let mut props = Vec::new();
        let mut proofs = Vec::new();
        for hint in hints {
            // A lemma that needs arguments is no fact of its own: its rules are built in.
            let Ok((proof, prop)) = self.infer(goal, hint, new) else {
                if name.ends_with("arith") {
                    return Err(format!("a hint of `{name}` proves nothing"));
                }
                continue;
            };
            proofs.push(proof);
            props.push(prop);
        }
        if name.ends_with("arith") {
            for (id, prop) in goal.hyps() {
                proofs.push(Proof::Hyp(id));
                props.push(prop.clone());
            }
        }
        let closed = name == "norm_num" && evaluate(&goal.target, &mut { EVALUATIONS }) == Some(true);
        if closed {
            return Ok(Proof::Evaluate(goal.target.clone()));
        }
        let facts = props.into_iter().map(|prop| (prop, true)).chain([(goal.target.clone(), false)]).collect();
        match refute(facts) {
            true => Ok(Proof::Arithmetic(proofs, goal.target.clone())),
            false => Err(format!("`{name}` could not prove the goal\n{goal}")),
        }
    }

    pub(super) fn intro(&mut self, goal: &Goal, patterns: &[Pattern], new: &mut Vec<Goal>) -> Done<Proof> {
        match patterns.split_first() {
            None => Ok(self.open(goal, goal.target.clone(), new)),
            Some((first, rest)) => self.introduce(goal, first, &mut |prover, inner| prover.intro(inner, rest, new)),
        }
    }

    fn use_values(&mut self, goal: &Goal, values: &[Pre], new: &mut Vec<Goal>) -> Done<Proof> {
        let Some((first, rest)) = values.split_first() else {
            // As in Lean, what is plain is closed at once.
            return Ok(self.plainly(goal).unwrap_or_else(|| self.open(goal, goal.target.clone(), new)));
        };
        let Expr::Quant(Quant::Some, _, sort, body) = &goal.target else {
            return Err(format!("nothing is to exist in\n⊢ {}", goal.target));
        };
        let value = goal.names().elaborate(first, Some(*sort))?;
        let inner = goal.with_target(body.instantiate(&value));
        let proof = self.use_values(&inner, rest, new)?;
        Ok(Proof::Witness(goal.target.clone(), value, Box::new(proof)))
    }

    fn have(
        &mut self,
        goal: &Goal,
        pattern: &Pattern,
        claim: Option<&Pre>,
        value: Option<&Pre>,
        new: &mut Vec<Goal>,
    ) -> Done<Proof> {
        let (proof, prop) = match (claim, value) {
            (Some(claim), value) => {
                let claim = self.prop(goal, claim)?;
                let proof = match value {
                    Some(value) => self.check(goal, value, &claim, new)?,
                    None => self.open(goal, claim.clone(), new),
                };
                (proof, claim)
            }
            (None, Some(value)) => self.infer(goal, value, new)?,
            (None, None) => return Err("expected a claim".to_owned()),
        };
        self.take_apart(goal, proof, &prop, pattern, &mut |prover, inner| {
            Ok(prover.open(inner, inner.target.clone(), new))
        })
    }
}

/// The message of goals that are left.
pub(super) fn unsolved(goals: &[Goal]) -> String {
    let shown: Vec<String> = goals.iter().map(Goal::to_string).collect();
    format!("unsolved goals\n{}", shown.join("\n\n"))
}
