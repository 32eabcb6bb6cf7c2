//! Lean text as a tree: words, terms and tactics of the fragment, with Lean's rules of precedence and columns.
//!
//! It knows no meaning. What it does not know is an error that says so; nothing is skipped but white space and comments.

use super::expr::{Quant, Sort};

/// A place in a script: line from 1, column from 0, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// What is wrong, and where.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) at: Place,
    pub(super) text: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) at: Place,
    first: bool,
    /// No white space before it.
    tight: bool,
}

/// A term or proof as written.
#[derive(Clone, Debug)]
pub(super) enum Pre {
    Name(String),
    Num(i128),
    App(Box<Pre>, Vec<Pre>),
    Bin(&'static str, Box<Pre>, Box<Pre>),
    Not(Box<Pre>),
    Neg(Box<Pre>),
    Up(Box<Pre>),
    Quant(Quant, String, Option<Sort>, Box<Pre>),
    Sort(Sort),
    Ascribed(Box<Pre>, Box<Pre>),
    Tuple(Vec<Pre>),
    Fun(Vec<Pattern>, Box<Pre>),
    By(Vec<Tactic>),
    Blank,
    Query,
    Part(Box<Pre>, String),
}

/// What names are given to when something is taken apart.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    Name(String),
    Tuple(Vec<Pattern>),
    Either(Vec<Pattern>),
}

/// A tactic and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Tactic {
    pub(super) at: Place,
    pub(super) kind: Kind,
}

/// A case of `induction … with`: constructor, names, tactics.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) at: Place,
    pub(super) constructor: String,
    pub(super) names: Vec<String>,
    pub(super) body: Vec<Tactic>,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// A tactic without arguments.
    Plain(String),
    Intro(Vec<Pattern>),
    /// `exact`, `refine`, `apply`, `show`, `by_contra` …: one term.
    Term(&'static str, Pre),
    Use(Vec<Pre>),
    Rcases(Pre, Pattern),
    Induction(Pre, Vec<String>, Vec<Case>, bool),
    ByCases(String, Pre),
    ByContra(String),
    Have(Pattern, Option<Pre>, Option<Pre>),
    Rewrite(Vec<(bool, Pre)>, Vec<String>),
    /// `simp`, `linarith`, …: with hints.
    Auto(String, Vec<Pre>),
    Names(&'static str, Vec<String>),
    Specialize(Pre),
    Dot(Vec<Tactic>),
    Chain(Box<Tactic>, Box<Tactic>),
    All(Box<Tactic>),
    Try(Box<Tactic>),
}

const MOST_DEPTH: usize = 60;
const SIGNS: &[&str] = &[
    "<;>", ":=", "=>", "←", "→", "↔", "∧", "∨", "¬", "∀", "∃", "≤", "≥", "≠", "<-", "->", "<=", ">=", "·", "∣", "⟨",
    "⟩", "↑", "⊢", "×", "(", ")", "{", "}", "[", "]", ",", ";", ":", "=", "<", ">", "+", "-", "*", "/", "%", "^", "|",
    "?", "_", ".", "λ", "@", "!",
];
/// Words that are no names.
const KEYWORDS: &[&str] = &[
    "theorem", "lemma", "by", "fun", "at", "with", "from", "have", "show", "let", "if", "then", "else", "match", "do",
    "where", "end", "in", "sorry", "axiom", "def", "example", "instance", "open", "import", "Prop", "Type", "Sort",
];

fn starts_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || (('α'..='ω').contains(&c) && c != 'λ') || c == 'ℕ' || c == 'ℤ'
}

fn in_name(c: char) -> bool {
    starts_name(c) || c.is_ascii_digit() || c == '\'' || ('₀'..='₉').contains(&c)
}

/// Splits a script into words; comments and white space go.
pub(super) fn words(script: &str) -> Result<Vec<Word>, Fault> {
    let chars: Vec<char> = script.chars().collect();
    let (mut words, mut i) = (Vec::new(), 0);
    let (mut at, mut first, mut tight) = (Place { line: 1, column: 0 }, true, false);
    while i < chars.len() {
        let rest = |sign: &str| {
            chars[i..].iter().copied().zip(sign.chars()).filter(|(a, b)| a == b).count() == sign.chars().count()
        };
        let mut length = 1;
        if rest("--") {
            length = chars[i..].iter().take_while(|c| **c != '\n').count();
        } else if rest("/-") {
            length = comment(&chars[i..]).ok_or(Fault { at, text: "unterminated comment".to_owned() })?;
        } else if chars[i] == '\n' {
            (first, at) = (true, Place { line: at.line + 1, column: 0 });
            (i, tight) = (i + 1, false);
            continue;
        } else if chars[i] != ' ' {
            length = word(&chars[i..]).ok_or_else(|| Fault { at, text: strange(chars[i]) })?;
            let text = chars[i..i + length].iter().collect();
            words.push(Word { text, at, first, tight });
            (first, tight, i, at.column) = (false, true, i + length, at.column + length);
            continue;
        }
        tight = false;
        for c in &chars[i..i + length] {
            at =
                if *c == '\n' { Place { line: at.line + 1, column: 0 } } else { Place { column: at.column + 1, ..at } };
            first |= *c == '\n';
        }
        i += length;
    }
    Ok(words)
}

fn strange(c: char) -> String {
    format!("unexpected character {c:?}: unsupported by the embedded checker")
}

/// Length of a comment that may hold others; `None` if it does not end.
fn comment(chars: &[char]) -> Option<usize> {
    let (mut depth, mut i) = (0, 0);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '-') => (depth, i) = (depth + 1, i + 2),
            ('-', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// Length of the first word.
fn word(chars: &[char]) -> Option<usize> {
    if chars[0].is_ascii_digit() {
        let n = chars.iter().take_while(|c| c.is_ascii_digit()).count();
        // 1.5, 0x1F and 1e3 are not in the fragment.
        let ends = chars.get(n).is_none_or(|c| !in_name(*c));
        return ends.then_some(n);
    }
    if starts_name(chars[0]) && !(chars[0] == '_' && chars.get(1).is_none_or(|c| !in_name(*c))) {
        let mut n = chars.iter().take_while(|c| in_name(**c)).count();
        while chars.get(n) == Some(&'.') && chars.get(n + 1).is_some_and(|c| in_name(*c)) {
            n += 1 + chars[n + 1..].iter().take_while(|c| in_name(**c)).count();
        }
        return Some(n);
    }
    let fits = |sign: &&&str| sign.chars().count() <= chars.len() && sign.chars().zip(chars).all(|(a, b)| a == *b);
    SIGNS.iter().find(fits).map(|sign| sign.chars().count())
}

/// Reads terms and tactics from words.
pub(super) struct Parser<'a> {
    words: &'a [Word],
    at: usize,
    /// A line that starts at or before this column ends what is read.
    column: Option<usize>,
    depth: usize,
}

type Parsed<T> = Result<T, Fault>;

impl<'a> Parser<'a> {
    pub(super) fn new(words: &'a [Word]) -> Self {
        Parser { words, at: 0, column: None, depth: 0 }
    }

    fn next(&self) -> Option<&'a Word> {
        let word = self.words.get(self.at)?;
        let ends = word.first && self.column.is_some_and(|column| word.at.column <= column);
        (!ends).then_some(word)
    }

    pub(super) fn peek(&self) -> &'a str {
        self.next().map_or("", |word| &word.text)
    }

    /// Where the next word is, or the last one ends.
    pub(super) fn place(&self) -> Place {
        match (self.words.get(self.at), self.words.last()) {
            (Some(word), _) => word.at,
            (None, Some(last)) => Place { column: last.at.column + last.text.chars().count(), ..last.at },
            _ => Place { line: 1, column: 0 },
        }
    }

    pub(super) fn fault<T>(&self, text: impl Into<String>) -> Parsed<T> {
        Err(Fault { at: self.place(), text: text.into() })
    }

    /// Lets lines start anywhere: for the bars of cases, which may stand in the column of their tactic.
    pub(super) fn free_column(&mut self) {
        self.column = None;
    }

    pub(super) fn set_column(&mut self, column: usize) {
        self.column = Some(column);
    }

    fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let found = self.words.get(self.at).map_or("the end".to_owned(), |word| format!("`{}`", word.text));
        self.fault(format!(
            "unexpected {found}; expected {wanted} (what is beyond the fragment is unsupported by the embedded checker)"
        ))
    }

    pub(super) fn is_done(&self) -> bool {
        self.at >= self.words.len()
    }

    pub(super) fn take(&mut self, text: &str) -> bool {
        let taken = self.peek() == text && self.next().is_some();
        self.at += usize::from(taken);
        taken
    }

    pub(super) fn must(&mut self, text: &str) -> Parsed<()> {
        if self.take(text) { Ok(()) } else { self.unexpected(&format!("`{text}`")) }
    }

    /// Whether the next word is a name.
    fn at_name(&self) -> bool {
        let text = self.peek();
        text.starts_with(starts_name) && text != "_" && !KEYWORDS.contains(&text) && text != "ℕ" && text != "ℤ"
    }

    pub(super) fn name(&mut self) -> Parsed<String> {
        if !self.at_name() {
            return self.unexpected("a name");
        }
        let text = self.peek().to_owned();
        self.at += 1;
        Ok(text)
    }

    /// A new name: no dots.
    fn fresh_name(&mut self) -> Parsed<String> {
        if self.take("_") {
            return Ok("_".to_owned());
        }
        let plain =
            self.at_name() && !self.peek().contains('.') && !matches!(self.peek(), "Nat" | "Int" | "True" | "False");
        if plain { self.name() } else { self.unexpected("a new name") }
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MOST_DEPTH {
            return self.fault("too deeply nested for the embedded checker");
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    pub(super) fn term(&mut self) -> Parsed<Pre> {
        self.deeper(|parser| parser.level(0))
    }

    /// A term whose signs bind at least as strongly as `least`.
    fn level(&mut self, least: u32) -> Parsed<Pre> {
        let mut left = self.prefix()?;
        let mut related = 0;
        loop {
            let (sign, own, right) = match self.peek() {
                "↔" => ("↔", 20, 21),
                "→" | "->" => ("→", 25, 25),
                "∨" => ("∨", 30, 30),
                "∧" => ("∧", 35, 35),
                "=" => ("=", 50, 51),
                "≠" => ("≠", 50, 51),
                "≤" | "<=" => ("≤", 50, 51),
                "≥" | ">=" => ("≥", 50, 51),
                "<" => ("<", 50, 51),
                ">" => (">", 50, 51),
                "∣" => ("∣", 50, 51),
                "+" => ("+", 65, 66),
                "-" => ("-", 65, 66),
                "*" => ("*", 70, 71),
                "/" => ("/", 70, 71),
                "%" => ("%", 70, 71),
                "^" => ("^", 75, 75),
                _ => return Ok(left),
            };
            if own < least {
                return Ok(left);
            }
            // `a < b < c` is no term.
            if (own == 50 || own == 20) && related == own {
                return self.unexpected("no second relation");
            }
            related = own;
            self.at += 1;
            let right = self.deeper(|parser| parser.level(right))?;
            left = Pre::Bin(sign, Box::new(left), Box::new(right));
        }
    }

    fn prefix(&mut self) -> Parsed<Pre> {
        if self.take("¬") {
            return Ok(Pre::Not(Box::new(self.deeper(|parser| parser.level(40))?)));
        }
        if self.take("-") {
            return Ok(Pre::Neg(Box::new(self.deeper(|parser| parser.level(75))?)));
        }
        if self.take("∀") {
            return self.quantified(Quant::All);
        }
        if self.take("∃") {
            return self.quantified(Quant::Some);
        }
        if self.take("fun") || self.take("λ") {
            let mut names = Vec::new();
            while !self.take("=>") {
                names.push(self.pattern_atom()?);
            }
            return Ok(Pre::Fun(names, Box::new(self.term()?)));
        }
        if self.peek() == "by" {
            self.at += 1;
            return Ok(Pre::By(self.block()?));
        }
        self.application()
    }

    fn quantified(&mut self, quant: Quant) -> Parsed<Pre> {
        let mut binders: Vec<(String, Option<Sort>)> = Vec::new();
        let mut bound = None;
        if self.peek() == "(" {
            while self.take("(") {
                self.binder(&mut binders)?;
                self.must(")")?;
            }
        } else {
            self.binder(&mut binders)?;
            if let sign @ ("<" | "≤" | ">" | "≥") = self.peek() {
                if binders.len() != 1 {
                    return self.unexpected("`,`");
                }
                let sign = ["<", "≤", ">", "≥"].into_iter().find(|known| *known == sign).unwrap_or("<");
                self.at += 1;
                let limit = self.deeper(|parser| parser.level(51))?;
                bound = Some(Pre::Bin(sign, Box::new(Pre::Name(binders[0].0.clone())), Box::new(limit)));
            }
        }
        self.must(",")?;
        let mut body = self.term()?;
        if let Some(bound) = bound {
            let sign = if quant == Quant::All { "→" } else { "∧" };
            body = Pre::Bin(sign, Box::new(bound), Box::new(body));
        }
        Ok(binders.into_iter().rev().fold(body, |body, (name, sort)| Pre::Quant(quant, name, sort, Box::new(body))))
    }

    fn binder(&mut self, binders: &mut Vec<(String, Option<Sort>)>) -> Parsed<()> {
        let from = binders.len();
        while self.at_name() || self.peek() == "_" {
            let name = self.fresh_name()?;
            binders.push((name, None));
        }
        if from == binders.len() || binders.len() > 20 {
            return self.unexpected("a name");
        }
        if self.take(":") {
            let sort = self.sort()?;
            binders[from..].iter_mut().for_each(|binder| binder.1 = Some(sort));
        }
        Ok(())
    }

    pub(super) fn sort(&mut self) -> Parsed<Sort> {
        for (word, sort) in
            [("ℕ", Sort::Nat), ("Nat", Sort::Nat), ("ℤ", Sort::Int), ("Int", Sort::Int), ("Prop", Sort::Prop)]
        {
            if self.take(word) {
                return Ok(sort);
            }
        }
        self.unexpected("ℕ, ℤ or Prop")
    }

    fn application(&mut self) -> Parsed<Pre> {
        let Some(head) = self.atom()? else { return self.unexpected("a term") };
        let mut arguments = Vec::new();
        while let Some(argument) = self.atom()? {
            arguments.push(argument);
        }
        Ok(if arguments.is_empty() { head } else { Pre::App(Box::new(head), arguments) })
    }

    fn atom(&mut self) -> Parsed<Option<Pre>> {
        let text = self.peek();
        let mut atom = if text.starts_with(|c: char| c.is_ascii_digit()) {
            let Ok(n) = text.parse() else { return self.fault("number too large for the embedded checker") };
            self.at += 1;
            Pre::Num(n)
        } else if let "ℕ" | "ℤ" | "Nat" | "Int" | "Prop" = text {
            Pre::Sort(self.sort()?)
        } else if self.at_name() {
            Pre::Name(self.name()?)
        } else if self.take("_") {
            Pre::Blank
        } else if self.take("?") {
            self.must("_")?;
            Pre::Query
        } else if self.take("↑") {
            match self.deeper(|parser| parser.atom())? {
                Some(inner) => Pre::Up(Box::new(inner)),
                None => return self.unexpected("a term"),
            }
        } else if self.take("⟨") {
            let mut items = vec![self.term()?];
            while self.take(",") {
                items.push(self.term()?);
            }
            self.must("⟩")?;
            Pre::Tuple(items)
        } else if self.take("(") {
            let inner = self.term()?;
            let inner = if self.take(":") { Pre::Ascribed(Box::new(inner), Box::new(self.term()?)) } else { inner };
            self.must(")")?;
            inner
        } else {
            return Ok(None);
        };
        while self.peek() == "." && self.next().is_some_and(|word| word.tight) {
            self.at += 1;
            let part = self.peek().to_owned();
            if !(part == "1" || part == "2" || self.at_name()) {
                return self.unexpected("a part");
            }
            self.at += 1;
            atom = Pre::Part(Box::new(atom), part);
        }
        Ok(Some(atom))
    }

    /// `⟨a, b⟩`, a name, or `_`.
    fn pattern_atom(&mut self) -> Parsed<Pattern> {
        if self.take("⟨") {
            let mut items = vec![self.deeper(|parser| parser.pattern())?];
            while self.take(",") {
                items.push(self.deeper(|parser| parser.pattern())?);
            }
            self.must("⟩")?;
            return Ok(Pattern::Tuple(items));
        }
        if self.take("(") {
            let inner = self.deeper(|parser| parser.pattern())?;
            self.must(")")?;
            return Ok(inner);
        }
        Ok(Pattern::Name(self.fresh_name()?))
    }

    pub(super) fn pattern(&mut self) -> Parsed<Pattern> {
        let mut items = vec![self.pattern_atom()?];
        while self.take("|") {
            items.push(self.pattern_atom()?);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Pattern::Either(items) })
    }

    /// Tactics one below the other, in the column of the first; those of one line apart by `;`.
    pub(super) fn block(&mut self) -> Parsed<Vec<Tactic>> {
        self.deeper(|parser| {
            let outer = parser.column;
            let Some(column) = parser.next().map(|word| word.at.column) else { return Ok(Vec::new()) };
            let mut tactics = vec![parser.tactic(column)?];
            loop {
                let below = parser.words.get(parser.at).is_some_and(|word| word.first && word.at.column == column);
                if !(below || parser.take(";")) {
                    break;
                }
                tactics.push(parser.tactic(column)?);
            }
            parser.column = outer;
            Ok(tactics)
        })
    }

    /// A tactic and what is chained to it; its lines after the first start right of `column`.
    fn tactic(&mut self, column: usize) -> Parsed<Tactic> {
        let Some(word) = self.words.get(self.at) else { return self.unexpected("a tactic") };
        self.column = None;
        let head = if self.at_name() || KEYWORDS.contains(&word.text.as_str()) || matches!(self.peek(), "·" | "(") {
            self.at += 1;
            word.text.as_str()
        } else {
            return self.unexpected("a tactic");
        };
        self.column = Some(column);
        let kind = self.deeper(|parser| parser.arguments(head, word.at))?;
        self.column = Some(column);
        let mut tactic = Tactic { at: word.at, kind };
        while self.take("<;>") {
            let column = self.column;
            let place = self.place();
            let then = self.deeper(|parser| parser.tactic(place.column))?;
            self.column = column;
            tactic = Tactic { at: word.at, kind: Kind::Chain(Box::new(tactic), Box::new(then)) };
        }
        Ok(tactic)
    }
}
