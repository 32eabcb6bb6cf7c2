//! Taking things apart: patterns, cases and induction. Nothing here is trusted.

use super::expr::{Expr, Join, Op, Quant, Sort};
use super::goal::{Done, Entry, Goal, Prover};
use super::kernel::Proof;
use super::syntax::{Case, Fault, Kind, Pattern, Pre, Tactic};
use super::tactics::unsolved;

/// What is done with a goal once it has been taken apart.
type Then<'a> = &'a mut dyn FnMut(&mut Prover, &Goal) -> Done<Proof>;

impl Prover {
    /// Takes a proved claim apart as the pattern says; `then` proves the target from the parts.
    pub(super) fn take_apart(
        &mut self,
        goal: &Goal,
        proof: Proof,
        prop: &Expr,
        pattern: &Pattern,
        then: Then,
    ) -> Done<Proof> {
        let boxed = Box::new(proof);
        match (pattern, prop) {
            (Pattern::Name(name), _) if name == "rfl" => {
                let (id, named) = (self.fresh(), "rfl✝".to_owned());
                let inner = goal.with_hyp(&named, id, prop.clone());
                let mut opened = Vec::new();
                let body = self.subst(&inner, &[named], &mut opened)?;
                let Some(left) = opened.pop() else { return Err("`rfl` in a pattern failed".to_owned()) };
                let filled = then(self, &left)?;
                self.holes[left.hole] = Some(filled);
                Ok(Proof::Have(id, boxed, Box::new(body)))
            }
            (Pattern::Name(name), _) => {
                let id = self.fresh();
                let body = then(self, &goal.with_hyp(name, id, prop.clone()))?;
                Ok(Proof::Have(id, boxed, Box::new(body)))
            }
            (Pattern::Tuple(items), Expr::Join(Join::And, a, b)) if items.len() >= 2 => {
                let rest = remaining(&items[1..]);
                let id = self.fresh();
                let whole = || Box::new(Proof::Hyp(id));
                let body = self.take_apart(goal, Proof::First(whole()), a, &items[0], &mut |prover, inner| {
                    prover.take_apart(inner, Proof::Second(whole()), b, &rest, then)
                })?;
                Ok(Proof::Have(id, boxed, Box::new(body)))
            }
            (Pattern::Tuple(items), Expr::Join(Join::Iff, a, b)) if items.len() == 2 => {
                let (there, back) =
                    (Expr::Join(Join::Imp, a.clone(), b.clone()), Expr::Join(Join::Imp, b.clone(), a.clone()));
                let id = self.fresh();
                let whole = || Box::new(Proof::Hyp(id));
                let body = self.take_apart(goal, Proof::Forth(whole()), &there, &items[0], &mut |prover, inner| {
                    prover.take_apart(inner, Proof::Back(whole()), &back, &items[1], then)
                })?;
                Ok(Proof::Have(id, boxed, Box::new(body)))
            }
            (Pattern::Tuple(items), Expr::Quant(Quant::Some, label, sort, inside)) if items.len() >= 2 => {
                let name = match &items[0] {
                    Pattern::Name(name) if name != "_" => name.clone(),
                    _ => label.text.clone(),
                };
                let (var, id) = (self.variable(&name, *sort), self.fresh());
                let claim = inside.instantiate(&Expr::Free(var.clone()));
                let inner = goal.with_var(&var);
                let rest = remaining(&items[1..]);
                let body = self.take_apart(&inner, Proof::Hyp(id), &claim, &rest, then)?;
                Ok(Proof::Open(boxed, var, id, Box::new(body)))
            }
            (Pattern::Either(items), Expr::Join(Join::Or, a, b)) if items.len() >= 2 => {
                let rest = match &items[1..] {
                    [one] => one.clone(),
                    more => Pattern::Either(more.to_vec()),
                };
                let (left, right) = (self.fresh(), self.fresh());
                let one = self.take_apart(goal, Proof::Hyp(left), a, &items[0], then)?;
                let other = self.take_apart(goal, Proof::Hyp(right), b, &rest, then)?;
                Ok(Proof::Cases(boxed, left, Box::new(one), right, Box::new(other)))
            }
            _ => Err(format!("the pattern does not fit `{prop}`")),
        }
    }

    /// Induction, or the cases of a natural number, a disjunction, a conjunction or an existence.
    pub(super) fn split(
        &mut self,
        goal: &Goal,
        subject: &Pre,
        names: &[String],
        induct: bool,
        new: &mut Vec<Goal>,
    ) -> Done<Proof> {
        let named = |i: usize, other: &str| names.get(i).cloned().unwrap_or_else(|| other.to_owned());
        let Pre::Name(name) = subject else { return Err("only names are split".to_owned()) };
        let var = match goal.entry(name) {
            Some(Entry::Var(var)) if var.sort == Sort::Nat => var.clone(),
            Some(Entry::Hyp(id, prop)) if !induct => {
                let pattern = match prop {
                    Expr::Join(Join::Or, ..) => {
                        Pattern::Either(vec![Pattern::Name(named(0, "h✝")), Pattern::Name(named(1, &named(0, "h✝")))])
                    }
                    _ => Pattern::Tuple(vec![Pattern::Name(named(0, "_")), Pattern::Name(named(1, "h✝"))]),
                };
                let (id, prop) = (*id, prop.clone());
                if prop == Expr::Truth(false) {
                    return Ok(Proof::Absurd(goal.target.clone(), Box::new(Proof::Hyp(id))));
                }
                return self.take_apart(goal, Proof::Hyp(id), &prop, &pattern, &mut |prover, inner| {
                    Ok(prover.open(inner, inner.target.clone(), new))
                });
            }
            _ => return Err(format!("`{name}` cannot be split")),
        };
        // What is known of the variable goes into the claim, and comes out in each case.
        let about: Vec<(String, u32, Expr)> = goal
            .entries
            .iter()
            .filter_map(|(name, entry)| match entry {
                Entry::Hyp(id, prop) if prop.mentions(var.id) => Some((name.clone(), *id, prop.clone())),
                _ => None,
            })
            .collect();
        let claim = about
            .iter()
            .rev()
            .fold(goal.target.clone(), |claim, (_, _, prop)| Expr::join(Join::Imp, prop.clone(), claim));
        let mut outside = goal.clone();
        outside.entries.retain(|(_, entry)| match entry {
            Entry::Hyp(_, prop) => !prop.mentions(var.id),
            Entry::Var(other) => other.id != var.id,
        });
        let patterns: Vec<Pattern> = about.iter().map(|(name, ..)| Pattern::Name(name.clone())).collect();
        let zero = claim.substitute(var.id, &Expr::Num(0, Sort::Nat));
        let base = self.intro(&outside.with_target(zero), &patterns, new)?;
        let (next, hyp) = (self.variable(&named(0, "n✝"), Sort::Nat), self.fresh());
        let at = Expr::Free(next.clone());
        let after = Expr::bin(Op::Add, Sort::Nat, at.clone(), Expr::Num(1, Sort::Nat));
        let mut inner = outside.with_var(&next);
        if induct {
            inner = inner.with_hyp(&named(1, "ih✝"), hyp, claim.substitute(var.id, &at));
        }
        let step = self.intro(&inner.with_target(claim.substitute(var.id, &after)), &patterns, new)?;
        let (base, step) = (Box::new(base), Box::new(step));
        let proof = Proof::Induction { var, claim, base, next, hyp, step };
        Ok(about.into_iter().fold(proof, |proof, (_, id, _)| Proof::Apply(Box::new(proof), Box::new(Proof::Hyp(id)))))
    }

    /// Proves the goals that a split has opened by the cases written below it.
    pub(super) fn by_cases(&mut self, tactic: &Tactic, cases: &[Case]) -> Result<(), Fault> {
        let fault = |at, text: &str| Fault { at, text: text.to_owned() };
        let orders: [&[&str]; 3] = [&["zero", "succ"], &["inl", "inr"], &["intro"]];
        let order = orders.into_iter().find(|order| order.contains(&cases[0].constructor.as_str()));
        let order = order.ok_or_else(|| fault(cases[0].at, "unknown constructor"))?;
        let opened = order.len();
        if cases.len() != opened || self.goals.len() < opened {
            return Err(fault(tactic.at, "a case is missing, or there is one too many"));
        }
        let rest = self.goals.split_off(opened);
        let opened = std::mem::take(&mut self.goals);
        for (goal, constructor) in opened.into_iter().zip(order) {
            let case = cases.iter().find(|case| case.constructor == *constructor);
            let case = case.ok_or_else(|| fault(tactic.at, "a case is missing"))?;
            let mut goal = goal;
            let hidden = goal.entries.iter_mut().filter(|(name, _)| name.ends_with('✝'));
            hidden.zip(&case.names).for_each(|((name, entry), given)| {
                name.clone_from(given);
                if let Entry::Var(var) = entry {
                    var.name.clone_from(given);
                }
            });
            self.goals = vec![goal];
            self.run(&case.body)?;
            if !self.goals.is_empty() {
                return Err(fault(case.at, &unsolved(&self.goals)));
            }
        }
        self.goals = rest;
        Ok(())
    }

    pub(super) fn rename(&mut self, kind: &Kind, names: &[String]) -> Done<()> {
        let goal = &mut self.goals[0];
        if matches!(kind, Kind::Names("clear", _)) {
            for name in names {
                let Some(Entry::Hyp(id, _)) = goal.entry(name) else {
                    return Err(format!("`{name}` is no hypothesis"));
                };
                let id = *id;
                goal.entries.retain(|(_, entry)| !matches!(entry, Entry::Hyp(other, _) if *other == id));
            }
            return Ok(());
        }
        let hidden: Vec<usize> = (0..goal.entries.len()).filter(|i| goal.entries[*i].0.ends_with('✝')).collect();
        let from = hidden.len().checked_sub(names.len()).ok_or("too many names")?;
        for (at, name) in hidden[from..].iter().zip(names) {
            goal.entries[*at].0.clone_from(name);
        }
        Ok(())
    }
}

fn remaining(items: &[Pattern]) -> Pattern {
    match items {
        [one] => one.clone(),
        more => Pattern::Tuple(more.to_vec()),
    }
}
