//! Equals for equals: `rw` and `subst`. Nothing here is trusted.

use super::expr::{Expr, Join, Rel};
use super::goal::{Done, Entry, Goal, Prover, is_same};
use super::kernel::Proof;
use super::syntax::Pre;

impl Prover {
    pub(super) fn rewrite(
        &mut self,
        goal: &Goal,
        rules: &[(bool, Pre)],
        places: &[String],
        new: &mut Vec<Goal>,
    ) -> Done<Proof> {
        let Some(((reversed, pre), rest)) = rules.split_first() else {
            let plain = is_same(&goal.target) && places.is_empty();
            let closed = plain.then(|| Proof::Same(goal.target.clone()));
            return Ok(closed.unwrap_or_else(|| self.open(goal, goal.target.clone(), new)));
        };
        let Some(place) = places.first() else {
            let (equation, after) = self.rewritten(goal, pre, *reversed, &goal.target)?;
            let body = self.rewrite(&goal.with_target(after), rest, places, new)?;
            return Ok(Proof::Rewrite(Box::new(equation), goal.target.clone(), Box::new(body)));
        };
        if places.len() > 1 {
            return Err("rewriting at several places: unsupported by the embedded checker".to_owned());
        }
        let Some(Entry::Hyp(id, prop)) = goal.entry(place) else { return Err(format!("`{place}` is no hypothesis")) };
        let (id, prop) = (*id, prop.clone());
        let (equation, after) = self.rewritten(goal, pre, *reversed, &prop)?;
        let proof = Proof::Rewrite(Box::new(equation), after.clone(), Box::new(Proof::Hyp(id)));
        let fresh = self.fresh();
        let mut inner = goal.clone();
        for (_, entry) in &mut inner.entries {
            if matches!(entry, Entry::Hyp(known, _) if *known == id) {
                *entry = Entry::Hyp(fresh, after.clone());
            }
        }
        let body = self.rewrite(&inner, rest, places, new)?;
        Ok(Proof::Have(fresh, Box::new(proof), Box::new(body)))
    }

    /// The equation as it applies to `prop`, with `prop` rewritten by it.
    fn rewritten(&mut self, goal: &Goal, pre: &Pre, reversed: bool, prop: &Expr) -> Done<(Proof, Expr)> {
        for (proof, equation, unknowns) in self.equation(goal, pre)? {
            let (from, to) = match &equation {
                Expr::Rel(Rel::Eq, a, b) | Expr::Join(Join::Iff, a, b) if reversed => (b, a),
                Expr::Rel(Rel::Eq, a, b) | Expr::Join(Join::Iff, a, b) => (a, b),
                _ => continue,
            };
            let mut found = None;
            prop.any(&mut |part| {
                let mut tried = unknowns.forget();
                let fits = part.sort(&|_| true, &mut Vec::new()).is_some() && tried.fit(from, part);
                if fits && found.is_none() {
                    found = Some(tried);
                }
                fits
            });
            let Some(found) = found else { continue };
            let (Some(from), Some(to), Some(proof)) = (found.full(from), found.full(to), found.settle(proof)) else {
                continue;
            };
            let after = prop.map(0, &mut |part, _| (*part == from).then(|| to.clone()));
            return Ok((proof, after));
        }
        Err(format!("`rw` failed: did not find the pattern in\n{prop}"))
    }

    /// Puts the value of a variable in its place wherever it is known: `h : x = e` or `h : e = x`.
    pub(super) fn subst(&mut self, goal: &Goal, names: &[String], new: &mut Vec<Goal>) -> Done<Proof> {
        let Some((name, rest)) = names.split_first() else { return Ok(self.open(goal, goal.target.clone(), new)) };
        let Some(Entry::Hyp(id, Expr::Rel(Rel::Eq, a, b))) = goal.entry(name) else {
            return Err(format!("`subst` needs an equation, which `{name}` is not"));
        };
        let (id, a, b) = (*id, *a.clone(), *b.clone());
        let (var, value) = match (&a, &b) {
            (value, Expr::Free(var)) if !value.mentions(var.id) => (var.clone(), value.clone()),
            (Expr::Free(var), value) if !value.mentions(var.id) => (var.clone(), value.clone()),
            _ => return Err(format!("`subst` needs a variable on one side of `{a} = {b}`")),
        };
        let target = goal.target.substitute(var.id, &value);
        let mut inner = goal.with_target(target);
        let mut changed = Vec::new();
        for (_, entry) in &mut inner.entries {
            if let Entry::Hyp(known, prop) = entry
                && *known != id
                && prop.mentions(var.id)
            {
                let after = prop.substitute(var.id, &value);
                let fresh = self.fresh();
                let moved = Proof::Rewrite(Box::new(Proof::Hyp(id)), after.clone(), Box::new(Proof::Hyp(*known)));
                changed.push((fresh, moved));
                *entry = Entry::Hyp(fresh, after);
            }
        }
        inner.entries.retain(|(_, entry)| match entry {
            Entry::Hyp(known, _) => *known != id,
            Entry::Var(known) => known.id != var.id,
        });
        let body = self.subst(&inner, rest, new)?;
        let body = Proof::Rewrite(Box::new(Proof::Hyp(id)), goal.target.clone(), Box::new(body));
        Ok(changed
            .into_iter()
            .rev()
            .fold(body, |body, (fresh, moved)| Proof::Have(fresh, Box::new(moved), Box::new(body))))
    }
}
