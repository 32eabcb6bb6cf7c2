//! What a checker's answer means for a tactic.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A tactic, judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Verdict {
    /// It may stay in the proof.
    pub(crate) accepted: bool,
    /// The proof is complete.
    pub(crate) success: bool,
    /// There was not time enough to say.
    pub(crate) timeout: bool,
    /// The messages as they came.
    pub(crate) messages: Vec<Value>,
}

impl Verdict {
    /// Not accepted, for a reason that is ours or the server's.
    pub(crate) fn rejected(why: &str) -> Verdict {
        let timeout = why.to_lowercase().contains("timed out");
        Verdict { timeout, messages: vec![json!({"severity": "error", "data": why})], ..Verdict::default() }
    }

    /// The messages as an observation shows them; `limit` characters of each (0: all).
    pub(crate) fn shown(&self, limit: usize) -> Vec<String> {
        if self.messages.is_empty() {
            return vec!["  (no Lean messages)".to_owned()];
        }
        self.messages.iter().enumerate().map(|(i, message)| shown(i + 1, message, limit)).collect()
    }
}

fn data(message: &Value) -> &str {
    message["data"].as_str().unwrap_or_default()
}

fn is_error(message: &Value) -> bool {
    message["severity"] == "error"
}

fn leaves_goals(message: &Value) -> bool {
    data(message).to_lowercase().contains("unsolved goals")
}

fn shown(number: usize, message: &Value, limit: usize) -> String {
    let place = |key: &str| {
        let (line, column) = (message[key]["line"].as_u64()?, message[key]["column"].as_u64()?);
        Some(format!("{line}:{column}"))
    };
    let label = match message["severity"].as_str() {
        Some("error") if leaves_goals(message) => "UNSOLVED GOALS".to_owned(),
        severity => severity.unwrap_or("info").to_uppercase(),
    };
    let place = match (place("pos"), place("endPos")) {
        (Some(from), Some(to)) => format!(" {from} → {to}"),
        (Some(from), None) => format!(" {from}"),
        _ => String::new(),
    };
    let text = data(message);
    let cut = limit > 0 && text.chars().count() > limit;
    let text = if cut { text.chars().take(limit).collect::<String>() + "…" } else { text.to_owned() };
    format!("  {number:02}. [{label}{place}] {text}")
}

/// Judges an answer. `sorry` in any form rejects, whether or not it is listed.
pub(crate) fn judge(answer: Result<Value, String>) -> Verdict {
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => return Verdict::rejected(&fault),
    };
    let Some(result) = answer["results"].as_array().and_then(|results| results.first()) else {
        return Verdict::rejected("Empty response from Lean server.");
    };
    if let Some(fault) = result["error"].as_str() {
        return Verdict::rejected(fault);
    }
    let response = &result["response"];
    if let Some(message) = response["message"].as_str() {
        let mut verdict = Verdict::rejected(message);
        verdict.timeout = false;
        verdict.messages[0]["pos"] = json!({});
        return verdict;
    }
    if !response.is_object() {
        return Verdict::rejected("the Lean server's answer has neither an error nor a response");
    }
    let messages = response["messages"].as_array().cloned().unwrap_or_default();
    let uses_sorry = response["sorries"].as_array().is_some_and(|sorries| !sorries.is_empty())
        || messages.iter().any(|message| {
            let text = data(message);
            text.contains("declaration uses") && text.contains("sorry")
        });
    let blocked = messages.iter().any(|message| is_error(message) && !leaves_goals(message));
    let failed = messages.iter().any(is_error);
    Verdict { accepted: !blocked && !uses_sorry, success: !failed && !uses_sorry, timeout: false, messages }
}
