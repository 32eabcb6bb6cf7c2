//! Propositions and numbers: what the embedded checker speaks of.
//!
//! It knows how expressions are built, printed and substituted, and nothing of proofs. Bound variables are indices (0 is
//! the innermost binder), free ones carry a number that is never used twice in a script, so that a name written twice
//! names two things and no substitution can capture.

use std::fmt;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sort {
    /// 0, 1, 2, …; subtraction stops at 0.
    Nat,
    /// Whole numbers.
    Int,
    /// A statement, true or false.
    Prop,
}

/// A free variable; two are the same if their numbers are.
#[derive(Clone, Debug)]
pub(crate) struct Var {
    pub(crate) id: u32,
    pub(crate) sort: Sort,
    pub(crate) name: String,
}

impl PartialEq for Var {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.sort) == (other.id, other.sort)
    }
}

/// The name of a bound variable: for the eye alone, so that all are equal.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) text: String,
    /// Left out where the statement is used, as `{x : ℕ}` is.
    pub(crate) implicit: bool,
}

impl PartialEq for Label {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    /// The exponent is a natural number.
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rel {
    Eq,
    Le,
    Lt,
    Dvd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    And,
    Or,
    Imp,
    Iff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quant {
    All,
    Some,
}

/// A number or a proposition. `>` and `≥` are `<` and `≤` turned round, `≠` is the negation of `=`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Free(Var),
    Bound(u32, Sort),
    Num(i128, Sort),
    Bin(Op, Sort, Box<Expr>, Box<Expr>),
    Neg(Box<Expr>),
    /// A natural number as an integer.
    Cast(Box<Expr>),
    Rel(Rel, Box<Expr>, Box<Expr>),
    Truth(bool),
    Join(Join, Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Quant(Quant, Label, Sort, Box<Expr>),
}

impl Expr {
    pub(crate) fn bin(op: Op, sort: Sort, a: Expr, b: Expr) -> Expr {
        Expr::Bin(op, sort, Box::new(a), Box::new(b))
    }

    pub(crate) fn rel(rel: Rel, a: Expr, b: Expr) -> Expr {
        Expr::Rel(rel, Box::new(a), Box::new(b))
    }

    pub(crate) fn join(join: Join, a: Expr, b: Expr) -> Expr {
        Expr::Join(join, Box::new(a), Box::new(b))
    }

    pub(crate) fn negation(a: Expr) -> Expr {
        Expr::Not(Box::new(a))
    }

    /// What it is, if it is well formed: operands of one sort, no negative natural numbers, bound variables of their
    /// binder's sort (`binders` from the outermost), free ones among `scope`.
    pub(crate) fn sort(&self, scope: &dyn Fn(&Var) -> bool, binders: &mut Vec<Sort>) -> Option<Sort> {
        let number = |sort: &Sort| *sort != Sort::Prop;
        match self {
            Expr::Free(var) => scope(var).then_some(var.sort),
            Expr::Bound(i, sort) => {
                let at = binders.len().checked_sub(*i as usize + 1)?;
                (binders[at] == *sort).then_some(*sort)
            }
            Expr::Num(n, sort) => (number(sort) && (*sort == Sort::Int || *n >= 0)).then_some(*sort),
            Expr::Bin(op, sort, a, b) => {
                let right = if *op == Op::Pow { Sort::Nat } else { *sort };
                let fits = a.sort(scope, binders)? == *sort && b.sort(scope, binders)? == right;
                (number(sort) && fits).then_some(*sort)
            }
            Expr::Neg(a) => (a.sort(scope, binders)? == Sort::Int).then_some(Sort::Int),
            Expr::Cast(a) => (a.sort(scope, binders)? == Sort::Nat).then_some(Sort::Int),
            Expr::Rel(_, a, b) => {
                let sort = a.sort(scope, binders)?;
                (number(&sort) && b.sort(scope, binders)? == sort).then_some(Sort::Prop)
            }
            Expr::Truth(_) => Some(Sort::Prop),
            Expr::Join(_, a, b) => {
                let fits = a.sort(scope, binders)? == Sort::Prop && b.sort(scope, binders)? == Sort::Prop;
                fits.then_some(Sort::Prop)
            }
            Expr::Not(a) => (a.sort(scope, binders)? == Sort::Prop).then_some(Sort::Prop),
            Expr::Quant(_, _, sort, body) => {
                binders.push(*sort);
                let inner = body.sort(scope, binders);
                binders.pop();
                (inner? == Sort::Prop).then_some(Sort::Prop)
            }
        }
    }

    /// The sort of a well-formed expression, at a glance.
    pub(crate) fn kind(&self) -> Sort {
        match self {
            Expr::Free(var) => var.sort,
            Expr::Bound(_, sort) | Expr::Num(_, sort) | Expr::Bin(_, sort, ..) => *sort,
            Expr::Neg(_) | Expr::Cast(_) => Sort::Int,
            _ => Sort::Prop,
        }
    }

    /// Rebuilds it: where `change` gives an expression for a part (met with the number of binders above it) that takes
    /// the part's place, else its own parts are rebuilt.
    pub(crate) fn map(&self, depth: u32, change: &mut dyn FnMut(&Expr, u32) -> Option<Expr>) -> Expr {
        if let Some(changed) = change(self, depth) {
            return changed;
        }
        let mut go = |part: &Expr, deeper: u32| Box::new(part.map(depth + deeper, change));
        match self {
            Expr::Bin(op, sort, a, b) => Expr::Bin(*op, *sort, go(a, 0), go(b, 0)),
            Expr::Neg(a) => Expr::Neg(go(a, 0)),
            Expr::Cast(a) => Expr::Cast(go(a, 0)),
            Expr::Rel(rel, a, b) => Expr::Rel(*rel, go(a, 0), go(b, 0)),
            Expr::Join(join, a, b) => Expr::Join(*join, go(a, 0), go(b, 0)),
            Expr::Not(a) => Expr::Not(go(a, 0)),
            Expr::Quant(quant, label, sort, body) => Expr::Quant(*quant, label.clone(), *sort, go(body, 1)),
            leaf => leaf.clone(),
        }
    }

    /// The body of a binder with `value` for its variable. `value` must not have loose bound variables.
    pub(crate) fn instantiate(&self, value: &Expr) -> Expr {
        self.map(0, &mut |part, depth| match part {
            Expr::Bound(i, _) if *i == depth => Some(value.clone()),
            _ => None,
        })
    }

    /// The body of a binder over the free variable `id`.
    pub(crate) fn abstracted(&self, id: u32) -> Expr {
        self.map(0, &mut |part, depth| match part {
            Expr::Free(var) if var.id == id => Some(Expr::Bound(depth, var.sort)),
            _ => None,
        })
    }

    /// With `value` for the free variable `id`.
    pub(crate) fn substitute(&self, id: u32, value: &Expr) -> Expr {
        self.map(0, &mut |part, _| match part {
            Expr::Free(var) if var.id == id => Some(value.clone()),
            _ => None,
        })
    }

    /// Whether some part satisfies `test`.
    pub(crate) fn any(&self, test: &mut dyn FnMut(&Expr) -> bool) -> bool {
        let mut found = false;
        self.map(0, &mut |part, _| {
            found = found || test(part);
            found.then(|| part.clone())
        });
        found
    }

    /// Whether the free variable `id` is in it.
    pub(crate) fn mentions(&self, id: u32) -> bool {
        self.any(&mut |part| matches!(part, Expr::Free(var) if var.id == id))
    }

    /// How many nodes it has.
    pub(crate) fn size(&self) -> usize {
        let mut n = 0;
        self.map(0, &mut |_, _| {
            n += 1;
            None
        });
        n
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sort::Nat => "ℕ",
            Sort::Int => "ℤ",
            Sort::Prop => "Prop",
        })
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self, 0, &mut Vec::new()))
    }
}

/// Text of an expression where the surroundings bind as strongly as `level`.
fn show(expr: &Expr, level: u32, names: &mut Vec<String>) -> String {
    let mut infix = |sign: &str, own: u32, a: &Expr, left: u32, b: &Expr, right: u32| {
        (own, format!("{} {sign} {}", show(a, left, names), show(b, right, names)))
    };
    let (own, text) = match expr {
        Expr::Free(var) => (100, var.name.clone()),
        Expr::Bound(i, _) => {
            let at = names.len().checked_sub(*i as usize + 1);
            (100, at.map_or_else(|| format!("#{i}"), |at| names[at].clone()))
        }
        Expr::Num(n, _) => (if *n < 0 { 75 } else { 100 }, n.to_string()),
        Expr::Bin(op, _, a, b) => match op {
            Op::Add => infix("+", 65, a, 65, b, 66),
            Op::Sub => infix("-", 65, a, 65, b, 66),
            Op::Mul => infix("*", 70, a, 70, b, 71),
            Op::Div => infix("/", 70, a, 70, b, 71),
            Op::Mod => infix("%", 70, a, 70, b, 71),
            Op::Pow => infix("^", 75, a, 76, b, 75),
        },
        Expr::Neg(a) => (75, format!("-{}", show(a, 76, names))),
        Expr::Cast(a) => (100, format!("↑{}", show(a, 100, names))),
        Expr::Rel(rel, a, b) => {
            let sign = ["=", "≤", "<", "∣"][*rel as usize];
            infix(sign, 50, a, 51, b, 51)
        }
        Expr::Truth(value) => (100, if *value { "True" } else { "False" }.to_owned()),
        Expr::Join(join, a, b) => match join {
            Join::And => infix("∧", 35, a, 36, b, 35),
            Join::Or => infix("∨", 30, a, 31, b, 30),
            Join::Imp => infix("→", 25, a, 26, b, 25),
            Join::Iff => infix("↔", 20, a, 21, b, 21),
        },
        Expr::Not(a) => match &**a {
            Expr::Rel(Rel::Eq, a, b) => infix("≠", 50, a, 51, b, 51),
            a => (40, format!("¬{}", show(a, 41, names))),
        },
        Expr::Quant(quant, label, sort, body) => {
            let sign = if *quant == Quant::All { "∀" } else { "∃" };
            names.push(label.text.clone());
            let inner = show(body, 0, names);
            names.pop();
            (0, format!("{sign} {} : {sort}, {inner}", label.text))
        }
    };
    if own < level { format!("({text})") } else { text }
}
