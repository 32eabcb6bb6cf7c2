//! What follows the name of a tactic.

use super::syntax::{Case, Kind, Parser, Pattern, Place, Pre, Tactic};

type Parsed<T> = Result<T, super::syntax::Fault>;

/// Tactics that take nothing.
const PLAIN: &[&str] = &[
    "constructor",
    "left",
    "right",
    "rfl",
    "trivial",
    "assumption",
    "contradiction",
    "exfalso",
    "symm",
    "skip",
    "sorry",
    "admit",
    "tauto",
    "omega",
    "decide",
    "ring",
    "ring_nf",
    "positivity",
    "split_ands",
];
/// Tactics that take hints in brackets.
const AUTO: &[&str] = &["simp", "norm_num", "linarith", "nlinarith"];

impl Parser<'_> {
    /// The arguments of the tactic `head`, which stands at `at`.
    pub(super) fn arguments(&mut self, head: &str, at: Place) -> Parsed<Kind> {
        if PLAIN.contains(&head) {
            return Ok(Kind::Plain(head.to_owned()));
        }
        if AUTO.contains(&head) {
            let hints = if self.peek() == "[" { self.bracketed()? } else { Vec::new() };
            return Ok(Kind::Auto(head.to_owned(), hints));
        }
        let term = ["exact", "refine", "apply", "show", "specialize"].into_iter().find(|known| *known == head);
        Ok(match head {
            "specialize" => Kind::Specialize(self.term()?),
            _ if term.is_some() => Kind::Term(term.unwrap_or("exact"), self.term()?),
            "intro" | "intros" => {
                let mut patterns = Vec::new();
                while !self.ends() {
                    patterns.push(self.one_pattern()?);
                }
                Kind::Intro(patterns)
            }
            "use" | "exists" => {
                let mut values = vec![self.term()?];
                while self.take(",") {
                    values.push(self.term()?);
                }
                Kind::Use(values)
            }
            "rcases" => {
                let term = self.term()?;
                self.must("with")?;
                Kind::Rcases(term, self.pattern()?)
            }
            "obtain" => {
                let pattern = self.pattern()?;
                let claim = if self.take(":") { Some(self.term()?) } else { None };
                let value = if self.take(":=") { Some(self.term()?) } else { None };
                match (claim, value) {
                    (None, Some(value)) => Kind::Rcases(value, pattern),
                    (claim @ Some(_), value) => Kind::Have(pattern, claim, value),
                    _ => return self.fault("expected `:=`"),
                }
            }
            "induction" | "induction'" | "cases" | "cases'" => self.by_constructor(head)?,
            "by_cases" => {
                let name = self.name()?;
                self.must(":")?;
                Kind::ByCases(name, self.term()?)
            }
            "by_contra" => Kind::ByContra(if self.ends() { "this".to_owned() } else { self.name()? }),
            "have" | "suffices" if head == "have" => {
                let pattern =
                    if matches!(self.peek(), ":" | ":=") { Pattern::Name("this".to_owned()) } else { self.pattern()? };
                let claim = if self.take(":") { Some(self.term()?) } else { None };
                let value = if self.take(":=") { Some(self.term()?) } else { None };
                if claim.is_none() && value.is_none() {
                    return self.fault("expected `:` or `:=`");
                }
                Kind::Have(pattern, claim, value)
            }
            "rw" | "rewrite" => self.rewrite()?,
            "subst" | "clear" | "rename_i" => {
                let mut names = vec![self.name()?];
                while !self.ends() {
                    names.push(self.name()?);
                }
                Kind::Names(["subst", "clear", "rename_i"].into_iter().find(|n| *n == head).unwrap_or("clear"), names)
            }
            "·" => Kind::Dot(self.block()?),
            "(" => {
                let inner = self.block()?;
                self.must(")")?;
                return match <[Tactic; 1]>::try_from(inner) {
                    Ok([only]) => Ok(only.kind),
                    Err(_) => self.fault("several tactics in parentheses: unsupported by the embedded checker"),
                };
            }
            "all_goals" => Kind::All(Box::new(self.single()?)),
            "try" => Kind::Try(Box::new(self.single()?)),
            _ => {
                let text = format!("unknown tactic `{head}`: unsupported by the embedded checker");
                return Err(super::syntax::Fault { at, text });
            }
        })
    }

    fn single(&mut self) -> Parsed<Tactic> {
        match <[Tactic; 1]>::try_from(self.block()?) {
            Ok([only]) => Ok(only),
            Err(_) => self.fault("expected one tactic"),
        }
    }

    fn ends(&self) -> bool {
        matches!(self.peek(), "" | "<;>" | ";" | ")" | ",")
    }

    fn one_pattern(&mut self) -> Parsed<Pattern> {
        if self.peek() == "⟨" || self.peek() == "(" { self.pattern() } else { self.pattern_name() }
    }

    fn pattern_name(&mut self) -> Parsed<Pattern> {
        Ok(Pattern::Name(if self.take("_") { "_".to_owned() } else { self.name()? }))
    }

    fn bracketed(&mut self) -> Parsed<Vec<Pre>> {
        self.must("[")?;
        let mut terms = Vec::new();
        while !self.take("]") {
            terms.push(self.term()?);
            if self.peek() != "]" {
                self.must(",")?;
            }
        }
        Ok(terms)
    }

    fn rewrite(&mut self) -> Parsed<Kind> {
        self.must("[")?;
        let mut rules = Vec::new();
        while !self.take("]") {
            let reversed = self.take("←") || self.take("<-");
            rules.push((reversed, self.term()?));
            if self.peek() != "]" {
                self.must(",")?;
            }
        }
        let mut places = Vec::new();
        if self.take("at") {
            while !self.ends() {
                places.push(self.name()?);
            }
            if places.is_empty() {
                return self.fault("expected a hypothesis");
            }
        }
        Ok(Kind::Rewrite(rules, places))
    }

    /// `induction x with | zero => … | succ k ih => …`, `induction' x with k ih`, and the same of cases.
    fn by_constructor(&mut self, head: &str) -> Parsed<Kind> {
        let is_induction = head.starts_with("induction");
        let subject = self.term()?;
        let (mut names, mut cases) = (Vec::new(), Vec::new());
        if self.take("with") {
            if head.ends_with('\'') {
                while !self.ends() {
                    match self.pattern_name()? {
                        Pattern::Name(name) => names.push(name),
                        _ => return self.fault("expected a name"),
                    }
                }
            } else {
                cases = self.cases()?;
            }
        }
        Ok(Kind::Induction(subject, names, cases, is_induction))
    }

    fn cases(&mut self) -> Parsed<Vec<Case>> {
        let mut cases = Vec::new();
        loop {
            self.free_column();
            let at = self.place();
            if !self.take("|") {
                break;
            }
            let constructor = self.name()?;
            let mut names = Vec::new();
            while !self.take("=>") {
                match self.pattern_name()? {
                    Pattern::Name(name) => names.push(name),
                    _ => return self.fault("expected a name"),
                }
            }
            // The tactics of a case start right of its bar.
            self.set_column(at.column);
            let body = self.block()?;
            cases.push(Case { at, constructor, names, body });
        }
        if cases.is_empty() { self.fault("expected `|`") } else { Ok(cases) }
    }
}
