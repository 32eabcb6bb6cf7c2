//! Which tokens the published code trains and where it puts scores, on rows that a chat template rendered.
//!
//! Nothing here is trained on: a trajectory's mask is exactly what the policy sampled (decision D2), and each turn's score stands
//! on that turn's own last token. The published masks are told from the text by counting turn starts, and so also cover
//! template tokens and the forced opening tag. They are here to compare with.
//!
//! A row of L tokens has L − 1 predictions; index t is the prediction of token t + 1.

/// How a row shows its episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// All turns.
    Full,
    /// The last turns as a conversation; only the last response is trained.
    LimitedMultiTurn,
    /// One user message and one response.
    SingleTurn,
}

/// The control tokens that bound a turn, and how the chat template goes on behind one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Begins a message.
    pub start: u32,
    /// Ends it.
    pub end: u32,
    /// A line break follows the end, and a turn's score stands on its prediction (Qwen); else on that of the end (Llama 3).
    pub break_follows: bool,
}

/// Which predictions of a row are the model's responses: 1, and 0 elsewhere and in the padding.
///
/// In a full row: behind each odd turn start from the third on. In a single turn: from the prediction of the third turn
/// start on. In a window: from the prediction of the last one on.
pub fn response_mask(kind: RowKind, ids: &[u32], attention: &[u8], bounds: Bounds) -> Vec<f64> {
    let starts: Vec<usize> = (0..ids.len()).filter(|&i| ids[i] == bounds.start).collect();
    let marked = match kind {
        RowKind::Full => None,
        RowKind::SingleTurn => starts.get(2),
        RowKind::LimitedMultiTurn => starts.last(),
    };
    let first = marked.and_then(|start| start.checked_sub(1)).unwrap_or(ids.len());
    predictions(ids, attention, bounds, |t, seen| match kind {
        RowKind::Full => seen > 1 && seen % 2 == 1,
        _ => t >= first,
    })
}

/// Which predictions are trained: the responses, or with `all` everything behind the system message of a full row.
pub fn loss_mask(kind: RowKind, ids: &[u32], attention: &[u8], bounds: Bounds, all: bool) -> Vec<f64> {
    match (kind, all) {
        (RowKind::Full, true) => predictions(ids, attention, bounds, |_, seen| seen > 1),
        _ => response_mask(kind, ids, attention, bounds),
    }
}

/// The scores of a full row: each turn's on its own end, or all of it on the last prediction.
///
/// `turn_scores` are those of all turns of the episode, of which the row shows those from `first_shown` on; the scores of turns
/// that it does not show are in the sum only. The published code takes `first_shown` for 0 whatever was dropped.
pub fn scores(ids: &[u32], bounds: Bounds, turn_scores: &[f64], first_shown: usize, by_turn: bool) -> Vec<f64> {
    let mut scores = vec![0.0; ids.len().saturating_sub(1)];
    if !by_turn {
        scores.iter_mut().next_back().into_iter().for_each(|last| *last = turn_scores.iter().sum());
        return scores;
    }
    // Messages alternate behind the system's: every second end is a response's.
    let ends = (0..ids.len()).filter(|&i| ids[i] == bounds.end).skip(2).step_by(2);
    for (end, score) in ends.zip(turn_scores.iter().skip(first_shown)) {
        let at = if bounds.break_follows { Some(end) } else { end.checked_sub(1) };
        if let Some(place) = at.and_then(|at| scores.get_mut(at)) {
            *place = *score;
        }
    }
    scores
}

/// 1 for each prediction behind a token that is no padding where `is_on` holds of its index and the turn starts seen so far.
fn predictions(ids: &[u32], attention: &[u8], bounds: Bounds, is_on: impl Fn(usize, usize) -> bool) -> Vec<f64> {
    let mut seen = 0;
    let of = |t: usize| {
        seen += usize::from(ids[t] == bounds.start);
        f64::from(u8::from(attention[t] == 1 && is_on(t, seen)))
    };
    (0..ids.len().saturating_sub(1)).map(of).collect()
}
