//! Terms and statements from text: names get their meaning, numbers their sort.

use super::expr::{Expr, Join, Label, Op, Rel, Sort, Var};
use super::syntax::Pre;

/// What names mean: free variables, the latest last; a hypothesis hides a variable of its name.
#[derive(Clone, Default)]
pub(super) struct Names {
    /// A name with its variable, or none where it is a hypothesis.
    pub(super) free: Vec<(String, Option<Var>)>,
    /// Bound ones, the innermost last.
    bound: Vec<(String, Sort)>,
}

type Made<T> = Result<T, String>;

/// A statement without free names.
pub(super) fn closed(pre: &Pre) -> Made<Expr> {
    Names::default().elaborate(pre, Some(Sort::Prop))
}

fn unsupported<T>(what: &str) -> Made<T> {
    Err(format!("{what}: unsupported by the embedded checker"))
}

impl Names {
    fn lookup(&self, name: &str) -> Made<Expr> {
        if let Some(at) = self.bound.iter().rposition(|(known, _)| known == name) {
            return Ok(Expr::Bound((self.bound.len() - 1 - at) as u32, self.bound[at].1));
        }
        match self.free.iter().rev().find(|(known, _)| known == name) {
            Some((_, Some(var))) => Ok(Expr::Free(var.clone())),
            Some((_, None)) => Err(format!("`{name}` is a proof, not a value")),
            None if name == "True" || name == "False" => Ok(Expr::Truth(name == "True")),
            None => Err(format!("unknown identifier `{name}`")),
        }
    }

    /// The sort that a term has of its own; none if it is made of literals alone.
    fn sort_of(&self, pre: &Pre) -> Option<Sort> {
        match pre {
            Pre::Name(name) => self.lookup(name).ok().map(|expr| expr.kind()),
            Pre::Bin("+" | "-" | "*" | "/" | "%", a, b) => self.sort_of(a).max(self.sort_of(b)),
            Pre::Bin("^", a, _) => self.sort_of(a),
            Pre::Neg(a) => self.sort_of(a).max(Some(Sort::Int)),
            Pre::Up(_) => Some(Sort::Int),
            Pre::Ascribed(_, sort) => match **sort {
                Pre::Sort(sort) => Some(sort),
                _ => None,
            },
            Pre::App(head, _) if matches!(&**head, Pre::Name(name) if name == "Nat.succ") => Some(Sort::Nat),
            Pre::Num(_) | Pre::Blank => None,
            _ => Some(Sort::Prop),
        }
    }

    /// The expression of a term; `want` is the sort that is needed.
    pub(super) fn elaborate(&mut self, pre: &Pre, want: Option<Sort>) -> Made<Expr> {
        let own = self.sort_of(pre);
        let made = match pre {
            Pre::Name(name) => self.lookup(name)?,
            Pre::Num(n) => match own.or(want) {
                Some(Sort::Prop) => return Err("a number is no proposition".to_owned()),
                sort => Expr::Num(*n, sort.unwrap_or(Sort::Nat)),
            },
            Pre::Bin(sign @ ("+" | "-" | "*" | "/" | "%" | "^"), a, b) => {
                let op = match *sign {
                    "+" => Op::Add,
                    "-" => Op::Sub,
                    "*" => Op::Mul,
                    "/" => Op::Div,
                    "%" => Op::Mod,
                    _ => Op::Pow,
                };
                // Casts go to the leaves: the whole is of the largest sort in sight.
                let sort = own.max(want.filter(|want| *want != Sort::Prop)).unwrap_or(Sort::Nat);
                if sort == Sort::Prop {
                    return Err("arithmetic with a proposition".to_owned());
                }
                let right = if op == Op::Pow { Sort::Nat } else { sort };
                Expr::bin(op, sort, self.elaborate(a, Some(sort))?, self.elaborate(b, Some(right))?)
            }
            Pre::Neg(a) => Expr::Neg(Box::new(self.elaborate(a, Some(Sort::Int))?)),
            Pre::Up(a) => match self.elaborate(a, Some(Sort::Nat))? {
                inner if inner.kind() == Sort::Nat => Expr::Cast(Box::new(inner)),
                _ => return unsupported("↑ of what is no natural number"),
            },
            Pre::Ascribed(inner, sort) => match **sort {
                Pre::Sort(sort) => self.elaborate(inner, Some(sort))?,
                _ => return unsupported("a type that is none of ℕ, ℤ, Prop"),
            },
            Pre::App(head, arguments) => match (&**head, &arguments[..]) {
                (Pre::Name(name), [n]) if name == "Nat.succ" && self.lookup(name).is_err() => {
                    let n = self.elaborate(n, Some(Sort::Nat))?;
                    Expr::bin(Op::Add, Sort::Nat, n, Expr::Num(1, Sort::Nat))
                }
                _ => return unsupported("a function that is applied"),
            },
            _ => self.proposition(pre)?,
        };
        match (made.kind(), want) {
            (Sort::Nat, Some(Sort::Int)) => Ok(match made {
                Expr::Num(n, _) => Expr::Num(n, Sort::Int),
                made => Expr::Cast(Box::new(made)),
            }),
            (kind, Some(want)) if kind != want => Err(format!("type mismatch: `{made}` is {kind}, not {want}")),
            _ => Ok(made),
        }
    }

    fn proposition(&mut self, pre: &Pre) -> Made<Expr> {
        let prop = Some(Sort::Prop);
        Ok(match pre {
            Pre::Bin(sign @ ("∧" | "∨" | "→" | "↔"), a, b) => {
                let join = match *sign {
                    "∧" => Join::And,
                    "∨" => Join::Or,
                    "→" => Join::Imp,
                    _ => Join::Iff,
                };
                Expr::join(join, self.elaborate(a, prop)?, self.elaborate(b, prop)?)
            }
            Pre::Bin(sign, a, b) => {
                let sort = self.sort_of(a).max(self.sort_of(b)).unwrap_or(Sort::Nat);
                if sort == Sort::Prop {
                    return unsupported("a relation between propositions");
                }
                let (a, b) = (self.elaborate(a, Some(sort))?, self.elaborate(b, Some(sort))?);
                match *sign {
                    "=" => Expr::rel(Rel::Eq, a, b),
                    "≠" => Expr::negation(Expr::rel(Rel::Eq, a, b)),
                    "≤" => Expr::rel(Rel::Le, a, b),
                    "<" => Expr::rel(Rel::Lt, a, b),
                    "≥" => Expr::rel(Rel::Le, b, a),
                    ">" => Expr::rel(Rel::Lt, b, a),
                    "∣" => Expr::rel(Rel::Dvd, a, b),
                    sign => return unsupported(sign),
                }
            }
            Pre::Not(a) => Expr::negation(self.elaborate(a, prop)?),
            Pre::Quant(quant, name, sort, body) => {
                let sort = match sort {
                    Some(sort) => *sort,
                    None => self.guess(name, body)?,
                };
                self.bound.push((name.clone(), sort));
                let inner = self.elaborate(body, prop);
                self.bound.pop();
                let label = Label { text: name.clone(), implicit: false };
                Expr::Quant(*quant, label, sort, Box::new(inner?))
            }
            _ => return unsupported("this term"),
        })
    }

    /// The sort of a bound variable that has none: that of what it is compared with, ℕ if that is literals alone. Where Lean
    /// might find another, it must be given.
    fn guess(&self, name: &str, body: &Pre) -> Made<Sort> {
        let mut seen = Vec::new();
        self.company(name, body, &mut Vec::new(), &mut seen);
        match &seen[..] {
            [] => Ok(Sort::Nat),
            [Some(first), rest @ ..] if *first != Sort::Prop && rest.iter().all(|sort| *sort == Some(*first)) => {
                Ok(*first)
            }
            _ => Err(format!("the type of `{name}` must be given")),
        }
    }

    /// The sorts of what `name` is compared with; `inner` are the variables bound on the way, some without a sort.
    fn company(&self, name: &str, pre: &Pre, inner: &mut Vec<(String, Option<Sort>)>, seen: &mut Vec<Option<Sort>>) {
        match pre {
            Pre::Bin("∧" | "∨" | "→" | "↔", a, b) => {
                [a, b].into_iter().for_each(|side| self.company(name, side, inner, seen));
            }
            Pre::Not(a) => self.company(name, a, inner, seen),
            Pre::Quant(_, bound, sort, body) if bound != name => {
                inner.push((bound.clone(), *sort));
                self.company(name, body, inner, seen);
                inner.pop();
            }
            Pre::Bin(_, a, b) => {
                let mut leaves = Vec::new();
                let mut is_in = false;
                [a, b].into_iter().for_each(|side| self.leaves(name, side, inner, &mut leaves, &mut is_in));
                if is_in {
                    seen.append(&mut leaves);
                }
            }
            _ => {}
        }
    }

    /// The sorts of the parts of a number that have one (none: it is not known), but for `name`.
    fn leaves(
        &self,
        name: &str,
        pre: &Pre,
        inner: &[(String, Option<Sort>)],
        leaves: &mut Vec<Option<Sort>>,
        is_in: &mut bool,
    ) {
        match pre {
            Pre::Name(leaf) => match inner.iter().rev().find(|(bound, _)| bound == leaf) {
                Some((_, sort)) => leaves.push(*sort),
                None if leaf == name => *is_in = true,
                None => leaves.push(self.lookup(leaf).ok().map(|expr| expr.kind())),
            },
            // An exponent is a natural number whatever the base is.
            Pre::Bin("^", a, b) => {
                self.leaves(name, a, inner, leaves, is_in);
                let mut above = false;
                self.leaves(name, b, inner, &mut Vec::new(), &mut above);
                if above {
                    *is_in = true;
                    leaves.push(Some(Sort::Nat));
                }
            }
            Pre::Bin(_, a, b) => {
                [a, b].into_iter().for_each(|side| self.leaves(name, side, inner, leaves, is_in));
            }
            Pre::Neg(a) => {
                leaves.push(Some(Sort::Int));
                self.leaves(name, a, inner, leaves, is_in);
            }
            Pre::Num(_) => {}
            Pre::Ascribed(inside, sort) => {
                let (Pre::Sort(sort), mut within) = (&**sort, Vec::new()) else { return leaves.push(None) };
                let mut inside_is_in = false;
                self.leaves(name, inside, inner, &mut within, &mut inside_is_in);
                *is_in |= inside_is_in;
                leaves.push(Some(*sort));
            }
            _ => leaves.push(None),
        }
    }
}
