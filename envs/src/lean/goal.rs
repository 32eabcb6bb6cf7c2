//! Open goals, and proof terms that are checked against them.
//!
//! Nothing here is trusted: what it builds is a [`Proof`], and the kernel has the last word.

use super::elaborate::Names;
use super::expr::{Expr, Join, Quant, Sort, Var};
use super::kernel::{Proof, number};
use super::lemmas::lemmas;
use super::syntax::{Pattern, Pre};

/// What is to be proved, and from what.
#[derive(Clone)]
pub(super) struct Goal {
    /// The hole that its proof fills.
    pub(super) hole: usize,
    pub(super) entries: Vec<(String, Entry)>,
    pub(super) target: Expr,
}

#[derive(Clone)]
pub(super) enum Entry {
    Var(Var),
    Hyp(u32, Expr),
}

impl Goal {
    pub(super) fn names(&self) -> Names {
        let mut names = Names::default();
        for (name, entry) in &self.entries {
            let var = match entry {
                Entry::Var(var) => Some(var.clone()),
                Entry::Hyp(..) => None,
            };
            names.free.push((name.clone(), var));
        }
        names
    }

    /// The latest thing of that name.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().rev().find(|(known, _)| known == name).map(|(_, entry)| entry)
    }

    pub(super) fn hyps(&self) -> impl Iterator<Item = (u32, &Expr)> {
        self.entries.iter().filter_map(|(_, entry)| match entry {
            Entry::Hyp(id, prop) => Some((*id, prop)),
            Entry::Var(_) => None,
        })
    }

    pub(super) fn with_hyp(&self, name: &str, id: u32, prop: Expr) -> Goal {
        let mut goal = self.clone();
        goal.entries.push((name.to_owned(), Entry::Hyp(id, prop)));
        goal
    }

    pub(super) fn with_var(&self, var: &Var) -> Goal {
        let mut goal = self.clone();
        goal.entries.push((var.name.clone(), Entry::Var(var.clone())));
        goal
    }

    pub(super) fn with_target(&self, target: Expr) -> Goal {
        Goal { target, ..self.clone() }
    }
}

/// One line for each thing known, and what is to be proved; what a later name hides has a dagger.
impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (name, entry)) in self.entries.iter().enumerate() {
            let hidden = name == "_" || self.entries[i + 1..].iter().any(|(later, _)| later == name);
            let name = if name == "_" { "this" } else { name };
            let dagger = if hidden { "✝" } else { "" };
            match entry {
                Entry::Var(var) => writeln!(f, "{name}{dagger} : {}", var.sort)?,
                Entry::Hyp(_, prop) => writeln!(f, "{name}{dagger} : {prop}")?,
            }
        }
        write!(f, "⊢ {}", self.target)
    }
}

pub(super) type Done<T> = Result<T, String>;

/// A proof under way.
#[derive(Default)]
pub(super) struct Prover {
    /// What is open, the present one first.
    pub(super) goals: Vec<Goal>,
    /// What fills each hole.
    pub(super) holes: Vec<Option<Proof>>,
    next: u32,
    /// Tactics run.
    pub(super) work: usize,
    /// Goals left by `sorry`.
    pub(super) sorries: Vec<(super::syntax::Place, Goal)>,
}

/// An argument on its way: a value, or the proof of a premise (none: a goal of its own).
enum Argument<'a> {
    Value(Expr),
    Premise(Expr, Option<&'a Pre>),
}

/// Values of unknowns, by their number.
#[derive(Default)]
pub(super) struct Unknowns(Vec<(Var, Option<Expr>)>);

impl Unknowns {
    fn value(&self, id: u32) -> Option<&Option<Expr>> {
        self.0.iter().find(|(var, _)| var.id == id).map(|(_, value)| value)
    }

    /// With the values that are known; none left if all are.
    fn fill(&self, expr: &Expr) -> Expr {
        expr.map(0, &mut |part, _| match part {
            Expr::Free(var) => self.value(var.id).cloned().flatten(),
            _ => None,
        })
    }

    pub(super) fn full(&self, expr: &Expr) -> Option<Expr> {
        let filled = self.fill(expr);
        (!filled.any(&mut |part| matches!(part, Expr::Free(var) if self.value(var.id).is_some()))).then_some(filled)
    }

    /// Finds values with which `pattern` is `expr`.
    pub(super) fn fit(&mut self, pattern: &Expr, expr: &Expr) -> bool {
        if let Expr::Free(var) = pattern
            && let Some(slot) = self.0.iter().position(|(known, _)| known.id == var.id)
        {
            if let Some(value) = &self.0[slot].1 {
                return value == expr;
            }
            let fits = expr.sort(&|_| true, &mut Vec::new()) == Some(var.sort);
            if fits {
                self.0[slot].1 = Some(expr.clone());
            }
            return fits;
        }
        match (pattern, expr) {
            (Expr::Bin(op, s, a, b), Expr::Bin(op2, s2, a2, b2)) => {
                (op, s) == (op2, s2) && self.fit(a, a2) && self.fit(b, b2)
            }
            (Expr::Rel(rel, a, b), Expr::Rel(rel2, a2, b2)) => rel == rel2 && self.fit(a, a2) && self.fit(b, b2),
            (Expr::Join(j, a, b), Expr::Join(j2, a2, b2)) => j == j2 && self.fit(a, a2) && self.fit(b, b2),
            (Expr::Neg(a), Expr::Neg(b)) | (Expr::Cast(a), Expr::Cast(b)) | (Expr::Not(a), Expr::Not(b)) => {
                self.fit(a, b)
            }
            (Expr::Quant(q, _, s, a), Expr::Quant(q2, _, s2, b)) => (q, s) == (q2, s2) && self.fit(a, b),
            (a, b) => a == b,
        }
    }
}

impl Prover {
    pub(super) fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn variable(&mut self, name: &str, sort: Sort) -> Var {
        Var { id: self.fresh(), sort, name: name.to_owned() }
    }

    /// A new goal with what `goal` knows; its proof is the hole that is returned.
    pub(super) fn open(&mut self, goal: &Goal, target: Expr, new: &mut Vec<Goal>) -> Proof {
        self.holes.push(None);
        let hole = self.holes.len() - 1;
        new.push(Goal { hole, target, ..goal.clone() });
        Proof::Hole(hole)
    }

    pub(super) fn prop(&self, goal: &Goal, pre: &Pre) -> Done<Expr> {
        goal.names().elaborate(pre, Some(Sort::Prop))
    }

    /// The proof of `target` that `pre` is; what it leaves open goes to `new`.
    pub(super) fn check(&mut self, goal: &Goal, pre: &Pre, target: &Expr, new: &mut Vec<Goal>) -> Done<Proof> {
        let goal = &goal.with_target(target.clone());
        match (pre, target) {
            (Pre::Query, _) => Ok(self.open(goal, target.clone(), new)),
            (Pre::Blank, _) => Err("cannot find what `_` stands for".to_owned()),
            (Pre::By(tactics), _) => {
                let mut inner = Vec::new();
                let hole = self.open(goal, target.clone(), &mut inner);
                let outer = std::mem::replace(&mut self.goals, inner);
                let ran = self.run(tactics).map_err(|fault| fault.text);
                let left = std::mem::replace(&mut self.goals, outer);
                ran?;
                match left.first() {
                    None => Ok(hole),
                    Some(goal) => Err(format!("unsolved goals in `by`\n{goal}")),
                }
            }
            (Pre::Fun(names, body), _) => {
                let Some((first, rest)) = names.split_first() else { return self.check(goal, body, target, new) };
                let rest = Pre::Fun(rest.to_vec(), body.clone());
                self.introduce(goal, first, &mut |prover, inner| {
                    let target = inner.target.clone();
                    prover.check(inner, &rest, &target, new)
                })
            }
            (Pre::Tuple(items), _) => self.tuple(goal, items, target, new),
            (Pre::Ascribed(inner, claim), _) => match self.prop(goal, claim)? == *target {
                true => self.check(goal, inner, target, new),
                false => Err(format!("type mismatch: `{}` is expected", target)),
            },
            (Pre::Name(name), _) if matches!(name.as_str(), "rfl" | "Iff.rfl") && goal.entry(name).is_none() => {
                self.rfl(target)
            }
            (Pre::Name(name), Expr::Truth(true)) if name == "trivial" => Ok(Proof::Truth),
            (Pre::App(head, arguments), _) => {
                self.apply(goal, head, arguments, Some(target), false, new).map(|made| made.0)
            }
            _ => self.apply(goal, pre, &[], Some(target), false, new).map(|made| made.0),
        }
    }

    /// By reflexivity: both sides are one, or closed numbers of one value.
    pub(super) fn rfl(&self, target: &Expr) -> Done<Proof> {
        let same = is_same(target)
            || match target {
                Expr::Rel(super::expr::Rel::Eq, a, b) => number(a).is_some_and(|a| number(b) == Some(a)),
                _ => false,
            };
        if same {
            Ok(Proof::Same(target.clone()))
        } else {
            Err(format!("`rfl` failed: the sides of\n⊢ {target}\ndiffer"))
        }
    }

    /// Takes the first of `∀`, `→` or `¬` of a goal's target under a name.
    pub(super) fn introduce(
        &mut self,
        goal: &Goal,
        pattern: &Pattern,
        then: &mut dyn FnMut(&mut Self, &Goal) -> Done<Proof>,
    ) -> Done<Proof> {
        let name = match pattern {
            Pattern::Name(name) => name.clone(),
            _ => "_".to_owned(),
        };
        let id = self.fresh();
        let (prop, target) = match &goal.target {
            Expr::Quant(Quant::All, label, sort, body) => {
                let name = if name == "_" { label.text.clone() } else { name };
                let var = Var { id, sort: *sort, name };
                let inner = goal.with_var(&var).with_target(body.instantiate(&Expr::Free(var.clone())));
                return Ok(Proof::Generalise(var, Box::new(then(self, &inner)?)));
            }
            Expr::Join(Join::Imp, a, b) => (*a.clone(), *b.clone()),
            Expr::Not(a) => (*a.clone(), Expr::Truth(false)),
            other => return Err(format!("nothing to introduce in\n⊢ {other}")),
        };
        let is_not = matches!(goal.target, Expr::Not(_));
        let inner = goal.with_hyp(&name, id, prop.clone()).with_target(target);
        let body = match pattern {
            Pattern::Name(_) => then(self, &inner)?,
            pattern => self.take_apart(&inner, Proof::Hyp(id), &prop, pattern, then)?,
        };
        Ok(if is_not { Proof::Deny(id, prop, Box::new(body)) } else { Proof::Assume(id, prop, Box::new(body)) })
    }

    fn tuple(&mut self, goal: &Goal, items: &[Pre], target: &Expr, new: &mut Vec<Goal>) -> Done<Proof> {
        let Some((first, rest)) = items.split_first() else { return Err("empty `⟨⟩`".to_owned()) };
        let rest = match rest {
            [] => return Err(format!("`⟨…⟩` with one part for\n⊢ {target}")),
            [one] => one.clone(),
            more => Pre::Tuple(more.to_vec()),
        };
        match target {
            Expr::Join(Join::And, a, b) => {
                let a = self.check(goal, first, a, new)?;
                Ok(Proof::Both(Box::new(a), Box::new(self.check(goal, &rest, b, new)?)))
            }
            Expr::Join(Join::Iff, a, b) => {
                let there = self.check(goal, first, &Expr::Join(Join::Imp, a.clone(), b.clone()), new)?;
                let back = self.check(goal, &rest, &Expr::Join(Join::Imp, b.clone(), a.clone()), new)?;
                Ok(Proof::Equivalence(Box::new(there), Box::new(back)))
            }
            Expr::Quant(Quant::Some, _, sort, body) => {
                let value = goal.names().elaborate(first, Some(*sort))?;
                let proof = self.check(goal, &rest, &body.instantiate(&value), new)?;
                Ok(Proof::Witness(target.clone(), value, Box::new(proof)))
            }
            _ => Err(format!("`⟨…⟩` does not build\n⊢ {target}")),
        }
    }

    /// What a term proves, with its proof.
    pub(super) fn infer(&mut self, goal: &Goal, pre: &Pre, new: &mut Vec<Goal>) -> Done<(Proof, Expr)> {
        match pre {
            Pre::Ascribed(inner, claim) => {
                let claim = self.prop(goal, claim)?;
                Ok((self.check(goal, inner, &claim, new)?, claim))
            }
            Pre::App(head, arguments) => self.apply(goal, head, arguments, None, false, new),
            _ => self.apply(goal, pre, &[], None, false, new),
        }
    }

    /// What a name may mean as a proof.
    fn heads(&mut self, goal: &Goal, pre: &Pre, new: &mut Vec<Goal>) -> Done<Vec<(Proof, Expr)>> {
        match pre {
            Pre::Name(name) => {
                if let Some(entry) = goal.entry(name) {
                    return match entry {
                        Entry::Hyp(id, prop) => Ok(vec![(Proof::Hyp(*id), prop.clone())]),
                        Entry::Var(_) => Err(format!("`{name}` is a value, not a proof")),
                    };
                }
                let named = lemmas().iter().enumerate().filter(|(_, lemma)| lemma.name == name);
                let found: Vec<(Proof, Expr)> = named.map(|(i, l)| (Proof::Lemma(i), l.statement.clone())).collect();
                match (name.rsplit_once('.'), found.is_empty()) {
                    (_, false) => Ok(found),
                    (Some((before, part)), true) => self.part(goal, &Pre::Name(before.to_owned()), part, new),
                    (None, true) => Err(format!("unknown identifier `{name}`")),
                }
            }
            Pre::Part(inner, part) => self.part(goal, inner, part, new),
            other => Ok(vec![self.infer(goal, other, new)?]),
        }
    }

    /// `h.1`, `h.symm` and the like, of each meaning of `h`.
    fn part(&mut self, goal: &Goal, pre: &Pre, part: &str, new: &mut Vec<Goal>) -> Done<Vec<(Proof, Expr)>> {
        let whole = match pre {
            Pre::Name(_) => self.heads(goal, pre, new)?,
            _ => vec![self.infer(goal, pre, new)?],
        };
        whole.into_iter().map(|(proof, prop)| self.part_of(proof, prop, part)).collect()
    }

    fn part_of(&mut self, proof: Proof, prop: Expr, part: &str) -> Done<(Proof, Expr)> {
        let boxed = Box::new(proof);
        Ok(match (part, prop) {
            (part, Expr::Quant(Quant::All, label, sort, body)) if label.implicit => {
                let var = self.variable(&label.text, sort);
                let value = Expr::Free(var.clone());
                let inner = Proof::Specialise(boxed, value.clone());
                let (proof, prop) = self.part_of(inner, body.instantiate(&value), part)?;
                let prop = Box::new(prop.abstracted(var.id));
                (Proof::Generalise(var, Box::new(proof)), Expr::Quant(Quant::All, label, sort, prop))
            }
            ("1" | "left", Expr::Join(Join::And, a, _)) => (Proof::First(boxed), *a),
            ("2" | "right", Expr::Join(Join::And, _, b)) => (Proof::Second(boxed), *b),
            ("1" | "mp", Expr::Join(Join::Iff, a, b)) => (Proof::Forth(boxed), Expr::Join(Join::Imp, a, b)),
            ("2" | "mpr", Expr::Join(Join::Iff, a, b)) => (Proof::Back(boxed), Expr::Join(Join::Imp, b, a)),
            ("symm", prop) => {
                let turned = turned(&prop).ok_or(format!("`symm` of `{prop}`"))?;
                (flipped(*boxed, &prop, &turned), turned)
            }
            ("le", Expr::Rel(super::expr::Rel::Lt, a, b)) => {
                let claim = Expr::Rel(super::expr::Rel::Le, a, b);
                (Proof::Arithmetic(vec![*boxed], claim.clone()), claim)
            }
            (part, prop) => return Err(format!("unknown identifier or part `{part}` of `{prop}`")),
        })
    }

    /// `head arguments`: tries each meaning of the head. `further` lets premises that are not given become goals.
    pub(super) fn apply(
        &mut self,
        goal: &Goal,
        head: &Pre,
        arguments: &[Pre],
        target: Option<&Expr>,
        further: bool,
        new: &mut Vec<Goal>,
    ) -> Done<(Proof, Expr)> {
        let mut fault = String::new();
        for (proof, prop) in self.heads(goal, head, new)? {
            let before = new.len();
            match self.apply_one(goal, (proof, prop), arguments, target, further, new) {
                Ok(made) => return Ok(made),
                Err(text) => fault = text,
            }
            new.truncate(before);
        }
        Err(fault)
    }

    fn apply_one(
        &mut self,
        goal: &Goal,
        (mut proof, mut prop): (Proof, Expr),
        arguments: &[Pre],
        target: Option<&Expr>,
        further: bool,
        new: &mut Vec<Goal>,
    ) -> Done<(Proof, Expr)> {
        let mut unknowns = Unknowns::default();
        let mut steps: Vec<Argument> = Vec::new();
        let mut given = arguments.iter();
        loop {
            // The claim is filled as far as it goes, so that it can be seen through.
            let implicit = matches!(&prop, Expr::Quant(Quant::All, label, ..) if label.implicit);
            let fits = |unknowns: &mut Unknowns| {
                target.is_some_and(|target| {
                    let mut tried = Unknowns(unknowns.0.clone());
                    let fits = tried.fit(&prop, target);
                    if fits {
                        *unknowns = tried;
                    }
                    fits
                })
            };
            let argument = if implicit { None } else { given.next() };
            let is_last = argument.is_none() && !implicit;
            if is_last && (target.is_none() || fits(&mut unknowns)) {
                break;
            }
            if is_last && !further {
                return Err(format!("type mismatch: it proves `{}`, not\n⊢ {}", unknowns.fill(&prop), goal.target));
            }
            prop = match prop {
                Expr::Quant(Quant::All, label, sort, body) => {
                    let value = match argument {
                        Some(pre) if !matches!(pre, Pre::Blank) => goal.names().elaborate(pre, Some(sort))?,
                        _ => {
                            let var = self.variable(&format!("?{}", label.text), sort);
                            unknowns.0.push((var.clone(), None));
                            Expr::Free(var)
                        }
                    };
                    steps.push(Argument::Value(value.clone()));
                    body.instantiate(&value)
                }
                Expr::Join(Join::Imp, a, b) => {
                    steps.push(Argument::Premise(*a, argument));
                    *b
                }
                Expr::Not(a) => {
                    steps.push(Argument::Premise(*a, argument));
                    Expr::Truth(false)
                }
                other if argument.is_some() => return Err(format!("`{other}` takes no further argument")),
                _ => {
                    return Err(format!("could not unify the conclusion with\n⊢ {}", goal.target));
                }
            };
        }
        let mut proofs = Vec::new();
        for step in &steps {
            if let Argument::Premise(premise, Some(pre)) = step {
                let made = match unknowns.full(premise) {
                    Some(premise) => self.check(goal, pre, &premise, new)?,
                    None => {
                        let (made, claim) = self.infer(goal, pre, new)?;
                        let pattern = unknowns.fill(premise);
                        if !unknowns.fit(&pattern, &claim) {
                            return Err(format!("type mismatch: `{claim}` is not of the form `{pattern}`"));
                        }
                        made
                    }
                };
                proofs.push(made);
            }
        }
        let mut proofs = proofs.into_iter();
        let unclear = || "cannot find the value of an argument".to_owned();
        for step in steps {
            proof = match step {
                Argument::Value(value) => {
                    Proof::Specialise(Box::new(proof), unknowns.full(&value).ok_or_else(unclear)?)
                }
                Argument::Premise(premise, pre) => {
                    let premise = unknowns.full(&premise).ok_or_else(unclear)?;
                    let made = match pre {
                        Some(_) => proofs.next().ok_or_else(unclear)?,
                        None => self.open(goal, premise, new),
                    };
                    Proof::Apply(Box::new(proof), Box::new(made))
                }
            };
        }
        Ok((proof, unknowns.full(&prop).ok_or_else(unclear)?))
    }

    /// An equation of which values may still be open, for rewriting: its proof is given when they are known.
    pub(super) fn equation(&mut self, goal: &Goal, pre: &Pre) -> Done<Vec<(Proof, Expr, Unknowns)>> {
        let (head, arguments) = match pre {
            Pre::App(head, arguments) => (&**head, &arguments[..]),
            other => (other, &[][..]),
        };
        let mut new = Vec::new();
        let mut found = Vec::new();
        for (mut proof, mut prop) in self.heads(goal, head, &mut new)? {
            let mut unknowns = Unknowns::default();
            let mut given = arguments.iter();
            let made = loop {
                prop = match prop {
                    Expr::Quant(Quant::All, label, sort, body) => {
                        let argument = if label.implicit { None } else { given.next() };
                        let value = match argument {
                            Some(pre) if !matches!(pre, Pre::Blank) => match goal.names().elaborate(pre, Some(sort)) {
                                Ok(value) => value,
                                Err(text) => break Err(text),
                            },
                            _ => {
                                let var = self.variable(&format!("?{}", label.text), sort);
                                unknowns.0.push((var.clone(), None));
                                Expr::Free(var)
                            }
                        };
                        proof = Proof::Specialise(Box::new(proof), value.clone());
                        body.instantiate(&value)
                    }
                    Expr::Join(Join::Imp, a, b) => {
                        let (Some(pre), Some(a)) = (given.next(), unknowns.full(&a)) else {
                            break Err("rewriting by what has premises: unsupported by the embedded checker".to_owned());
                        };
                        let premise = self.check(goal, pre, &a, &mut new)?;
                        proof = Proof::Apply(Box::new(proof), Box::new(premise));
                        *b
                    }
                    other => break Ok(other),
                };
            };
            if let Ok(prop) = made {
                found.push((proof, prop, unknowns));
            }
        }
        if found.is_empty() { Err("this is no rule to rewrite by".to_owned()) } else { Ok(found) }
    }
}

impl Unknowns {
    /// Fills the values of `∀` in a chain of specialisations.
    pub(super) fn settle(&self, proof: Proof) -> Option<Proof> {
        Some(match proof {
            Proof::Specialise(inner, value) => Proof::Specialise(Box::new(self.settle(*inner)?), self.full(&value)?),
            Proof::Apply(inner, premise) => Proof::Apply(Box::new(self.settle(*inner)?), premise),
            other => other,
        })
    }

    pub(super) fn forget(&self) -> Unknowns {
        Unknowns(self.0.iter().map(|(var, _)| (var.clone(), None)).collect())
    }
}

/// Whether both sides are written alike.
pub(super) fn is_same(prop: &Expr) -> bool {
    match prop {
        Expr::Rel(super::expr::Rel::Eq, a, b) | Expr::Join(Join::Iff, a, b) => a == b,
        _ => false,
    }
}

/// An equation or equivalence (or inequality `≠`) with its sides exchanged.
pub(super) fn turned(prop: &Expr) -> Option<Expr> {
    Some(match prop {
        Expr::Rel(super::expr::Rel::Eq, a, b) => Expr::Rel(super::expr::Rel::Eq, b.clone(), a.clone()),
        Expr::Join(Join::Iff, a, b) => Expr::Join(Join::Iff, b.clone(), a.clone()),
        Expr::Not(inner) => Expr::negation(turned(inner)?),
        _ => return None,
    })
}

/// The proof of the turned claim.
pub(super) fn flipped(proof: Proof, prop: &Expr, turned: &Expr) -> Proof {
    match prop {
        Expr::Join(Join::Iff, ..) => {
            Proof::Equivalence(Box::new(Proof::Back(Box::new(proof.clone()))), Box::new(Proof::Forth(Box::new(proof))))
        }
        _ => Proof::Arithmetic(vec![proof], turned.clone()),
    }
}
