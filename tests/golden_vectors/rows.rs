//! The published masks, the placement of scores, and the adjustment of a batch's size.

use crate::cases::{Case, Matrix, parity};
use ragen::config::BatchAdjust;
use ragen::env_manager::scale_groups;
use ragen::reward::reference::{Bounds, RowKind, loss_mask, response_mask, scores};
use ragen::update::adjust::{adjust, divisor, published_size};
use ragen_models::random::Key;
use std::collections::BTreeSet;

/// Masks and scores of rows that a chat template rendered.
pub fn check_masks(case: &mut Case) -> bool {
    let ids: Vec<Vec<u32>> = case.inputs.take("input_ids");
    let attention: Vec<Vec<u8>> = case.inputs.take("attention_mask");
    let kind = match case.inputs.take::<String>("mode").as_str() {
        "full" => RowKind::Full,
        "limited_multi_turn" => RowKind::LimitedMultiTurn,
        "single_turn" => RowKind::SingleTurn,
        _ => return false,
    };
    let break_follows = match case.inputs.take::<String>("family").as_str() {
        "qwen" => true,
        "llama-3" => false,
        _ => return false,
    };
    let bounds =
        Bounds { start: case.inputs.take("turn_start_id"), end: case.inputs.take("turn_end_id"), break_follows };
    let all = !case.inputs.take::<bool>("enable_response_mask");
    let rows = || ids.iter().zip(&attention);
    let responses: Matrix = rows().map(|(ids, seen)| response_mask(kind, ids, seen, bounds)).collect();
    let losses: Matrix = rows().map(|(ids, seen)| loss_mask(kind, ids, seen, bounds, all)).collect();
    assert_eq!(responses, case.expected.take::<Matrix>("response_mask"), "{}", case.name);
    assert_eq!(losses, case.expected.take::<Matrix>("loss_mask"), "{}", case.name);
    let want = case.expected.take("response_length_mean");
    case.close("response_length_mean", responses.concat().iter().sum::<f64>() / ids.len() as f64, want, 1e-4);

    let by_turn = case.inputs.find::<bool>("use_turn_scores");
    let turn_scores: Matrix = case.inputs.find("turn_scores").unwrap_or_default();
    if let Some(by_turn) = by_turn {
        let want = case.expected.by_rule::<Matrix>("scores");
        let placed: Vec<f64> = ids
            .iter()
            .zip(&turn_scores)
            .flat_map(|(ids, turn_scores)| {
                let shown = ids.iter().filter(|id| **id == bounds.end).count().saturating_sub(1) / 2;
                let first_shown = if parity() { 0 } else { turn_scores.len().saturating_sub(shown) };
                scores(ids, bounds, turn_scores, first_shown, by_turn)
            })
            .collect();
        if let Some(want) = want {
            case.all_close("scores", &placed, &want.concat(), 1e-4);
        }
    }
    case.expected.find::<String>("reference_bug");
    true
}

/// Divisible batches, and groups scaled to another number.
pub fn check_adjust(case: &mut Case) -> bool {
    match case.op.as_str() {
        "adjust" => check_size(case),
        "scale_groups" => {
            let base: Vec<usize> = case.inputs.take("base");
            let scaled = scale_groups(&base, case.inputs.take("target"));
            assert_eq!(scaled, case.expected.take::<Vec<usize>>("scaled"), "{}", case.name);
        }
        _ => return false,
    }
    true
}

fn check_size(case: &mut Case) {
    let n: usize = case.inputs.take("batch");
    let divisor = divisor(case.inputs.take("env_groups"), case.inputs.take("mini_batch"), case.inputs.take("n_gpus"));
    let how: BatchAdjust = case.inputs.take("mode");
    assert_eq!(divisor, case.expected.take::<usize>("divisor"), "{}", case.name);
    let (added, removed): (usize, usize) = (case.expected.take("added"), case.expected.take("removed"));
    let adjusted = adjust(how, n, divisor, Key::new(1));
    let size = if parity() { published_size(how, n, divisor) } else { adjusted.picked.len() };
    assert_eq!(Some(size), case.expected.by_rule("new_size"), "{}", case.name);
    let is_defect = case.expected.find::<String>("reference_bug").is_some();
    if !is_defect {
        assert_eq!((adjusted.added, adjusted.removed), (added, removed), "{}", case.name);
    }
    let picked = &adjusted.picked;
    let distinct = |places: &[usize]| places.iter().collect::<BTreeSet<_>>().len() == places.len();
    if case.expected.find::<bool>("originals_first").is_some_and(|wanted| wanted) {
        assert!(picked[..n].iter().copied().eq(0..n), "{}", case.name);
    }
    if case.expected.find::<bool>("duplicates_distinct").is_some_and(|wanted| wanted) {
        assert!(distinct(&picked[n..]), "{}", case.name);
    }
    let (in_order, once) = (case.expected.find::<bool>("order_preserved"), case.expected.find::<bool>("no_duplicates"));
    if !is_defect && in_order.is_some_and(|wanted| wanted) && once.is_some_and(|wanted| wanted) {
        assert!(picked.is_sorted() && distinct(picked), "{}", case.name);
    }
}
