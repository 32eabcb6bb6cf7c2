//! The answer protocol: from a response as text to the actions it names.
//!
//! Text is only a view of a trajectory (decision D2): what is parsed here decides what the environment does, never which
//! ids are trained. How prompts are laid out is the context manager's.

/// Opens the reasoning.
pub const THINK_OPEN: &str = "<think>";
/// Closes the reasoning.
pub const THINK_CLOSE: &str = "</think>";
/// Opens the answer.
pub const ANSWER_OPEN: &str = "<answer>";
/// Closes the answer; generation stops after it.
pub const ANSWER_CLOSE: &str = "</answer>";

/// Removed from reasoning and answer, in this order.
const SPECIAL: [&str; 6] = [THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE, "<|im_start|>", "<|im_end|>"];

/// What a response must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerFormat {
    /// Reasoning between think tags comes before the answer.
    pub think: bool,
    /// What separates two actions; empty means that answers are not split.
    pub separator: String,
    /// Further actions are dropped.
    pub max_actions_per_turn: usize,
    /// The whole answer is one action: it is not split.
    pub single_action: bool,
}

impl AnswerFormat {
    /// The tag that a response begins with.
    pub fn opening_tag(&self) -> &'static str {
        if self.think { THINK_OPEN } else { ANSWER_OPEN }
    }
}

/// What a response says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The tags were found in their order.
    pub format_ok: bool,
    /// The reasoning without special tags; empty without a match or without thinking.
    pub think: String,
    /// The answer without special tags and dropped actions; empty without a match.
    pub answer: String,
    /// The actions, in order.
    pub actions: Vec<String>,
    /// The response in its plain form, tags included; the text as it stood when nothing matched.
    pub response_text: String,
}

/// Parses a whole response, the opening tag included.
///
/// Takes the first `<think>…</think> <answer>…</answer>` (only the answer part without thinking); case counts, nothing is
/// anchored and text around it is ignored. Reasoning and answer are as short as a match allows and lose all special tags.
/// Never fails: a response without a match has no actions.
pub fn parse(text: &str, format: &AnswerFormat) -> Parsed {
    let Some((think, answer)) = find(text, format.think) else {
        return Parsed { response_text: text.to_string(), ..Parsed::default() };
    };
    let think = without_specials(think);
    let mut answer = without_specials(answer);
    let mut actions: Vec<String> = if format.single_action || format.separator.is_empty() {
        vec![answer.clone()]
    } else {
        answer.split(&format.separator).map(|part| strip(part).to_string()).collect()
    };
    actions.retain(|action| !action.is_empty());
    if actions.len() > format.max_actions_per_turn {
        actions.truncate(format.max_actions_per_turn);
        answer = actions.join(&format!(" {} ", format.separator));
    }
    let mut response_text = String::new();
    if format.think {
        response_text += &format!("{THINK_OPEN}{think}{THINK_CLOSE}");
    }
    response_text += &format!("{ANSWER_OPEN}{answer}{ANSWER_CLOSE}");
    Parsed { format_ok: true, think, answer, actions, response_text }
}

/// The reasoning of a response for the collapse detector: what stands between the first `<think>` and the `</think>` that
/// follows it, whether or not an answer comes after. `None` if it is not closed or empty.
pub fn reasoning(text: &str) -> Option<String> {
    let (_, rest) = text.split_once(THINK_OPEN)?;
    let (think, _) = rest.split_once(THINK_CLOSE)?;
    let think = without_specials(think);
    (!think.is_empty()).then_some(think)
}

/// Reasoning and answer of the first match.
fn find(text: &str, think: bool) -> Option<(&str, &str)> {
    if !think {
        let (_, rest) = text.split_once(ANSWER_OPEN)?;
        return Some(("", rest.split_once(ANSWER_CLOSE)?.0));
    }
    let (_, body) = text.split_once(THINK_OPEN)?;
    // The reasoning ends at the first closing tag that only blanks part from an answer. A later opening tag need not be
    // tried: what closes it also closes the first one.
    body.match_indices(THINK_CLOSE).find_map(|(end, _)| {
        let after = body[end + THINK_CLOSE.len()..].trim_start_matches(is_blank);
        let (answer, _) = after.strip_prefix(ANSWER_OPEN)?.split_once(ANSWER_CLOSE)?;
        Some((&body[..end], answer))
    })
}

/// One pass in a fixed order: a tag that a removal puts together stays unless its turn is still to come.
fn without_specials(text: &str) -> String {
    SPECIAL.iter().fold(text.to_string(), |text, tag| strip(&text.replace(tag, "")).to_string())
}

/// Blank as Python's `str.strip` sees it: Unicode White_Space and the four ASCII separators.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip(text: &str) -> &str {
    text.trim_matches(is_blank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragen_models::random::Key;

    fn format(think: bool, separator: &str, max_actions_per_turn: usize) -> AnswerFormat {
        AnswerFormat { think, separator: separator.into(), max_actions_per_turn, single_action: false }
    }

    #[test]
    fn a_single_action_is_not_split() {
        let format = AnswerFormat { single_action: true, ..format(false, "||", 2) };
        let parsed = parse("<answer> a || b\n</answer>", &format);
        assert_eq!((parsed.actions, parsed.answer.as_str()), (vec!["a || b".to_string()], "a || b"));
        assert!(parse("<answer> </answer>", &format).actions.is_empty());
    }

    #[test]
    fn reasoning_needs_its_closing_tag_only() {
        assert_eq!(reasoning("<think> go <answer>Up </think>").as_deref(), Some("go Up"));
        assert_eq!(reasoning("<think> </think><answer>Up</answer>"), None);
        assert_eq!(reasoning("<think>go"), None);
    }

    /// Any text: no panic, never too many actions, none of them blank; parsing the plain form again changes nothing.
    #[test]
    fn parse_holds_its_promises_on_arbitrary_text() {
        let pieces = [
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "<|im_end|>",
            "<|im_start|>",
            "||",
            "|",
            " ",
            "\u{a0}",
            "\n",
            "Up",
            "é",
            "<",
            "/think>",
            "\u{1c}",
            "日本",
            "<thi",
            "nk>",
        ];
        let mut n_matches = 0;
        for i in 0..20_000 {
            let key = Key::new(7).with(i);
            let n = key.below(0, 14);
            let text: String = (1..=n as u64).map(|p| pieces[key.below(p, pieces.len())]).collect();
            let format = format(key.below(100, 2) == 0, ["||", "|", "", "é"][key.below(101, 4)], key.below(102, 4));
            let parsed = parse(&text, &format);
            assert!(parsed.actions.len() <= format.max_actions_per_turn, "{text:?}");
            assert!(parsed.actions.iter().all(|a| !a.is_empty() && strip(a) == a), "{text:?}");
            if parsed.format_ok {
                n_matches += 1;
            } else {
                assert_eq!((parsed.response_text.as_str(), parsed.actions.len()), (text.as_str(), 0));
            }
            reasoning(&text);
        }
        assert!(n_matches > 500, "only {n_matches} texts matched");
    }
}
