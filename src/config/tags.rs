//! The shipped environment tags: data, one entry a tag, with instructions of our own wording.

use super::Tag;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SOKOBAN: &str = "Solve the Sokoban puzzle: push every box onto a target. You walk Up, Down, Left or Right; walking into a box \
    pushes it, if the cell behind it is free. A box can never be pulled.";
const FROZEN_LAKE: &str = "Cross the frozen lake: walk from the start to the goal without stepping into a hole.";
const SLIPPERY: &str = " The ice is slippery: a move may slide to one side instead.";
const BANDIT: &str = "You stand before two slot machines whose names hint at how they pay. Choose one of them by its name, once; \
    try to get the highest expected reward.";

/// All shipped tags by name.
pub fn shipped() -> BTreeMap<String, Tag> {
    let tag = |r#type: &str, max_actions: usize, max_tokens: usize, instruction: String, config: Value| Tag {
        r#type: r#type.into(),
        max_actions,
        instruction,
        single_action: false,
        max_tokens,
        config: config.as_object().cloned().unwrap_or_default(),
    };
    let sokoban = |max_tokens, config| tag("sokoban", 10, max_tokens, SOKOBAN.into(), config);
    let lake = |max_tokens, config| tag("frozen_lake", 10, max_tokens, [FROZEN_LAKE, SLIPPERY].concat(), config);
    let bandit = |split: &str| tag("bandit", 1, 100, BANDIT.into(), json!({ "split": split }));
    BTreeMap::from(
        [
            ("SimpleSokoban", sokoban(100, json!({"dim_room": [6, 6], "num_boxes": 1, "max_steps": 100}))),
            (
                "LargerSokoban",
                sokoban(100, json!({"dim_room": [8, 8], "num_boxes": 2, "max_steps": 100, "search_depth": 10})),
            ),
            (
                "SokobanDifferentGridVocab",
                sokoban(
                    100,
                    json!({"dim_room": [6, 6], "num_boxes": 1, "max_steps": 100, "search_depth": 30,
                    "grid_lookup": {"0": "W", "1": ".", "2": "G", "3": "C", "4": "B", "5": "A", "6": "@"},
                    "grid_vocab": {"W": "wall", ".": "empty", "G": "target", "C": "box on target", "B": "box",
                        "A": "player", "@": "player on target"}}),
                ),
            ),
            (
                "CoordSokoban",
                sokoban(
                    120,
                    json!({"dim_room": [6, 6], "num_boxes": 1, "max_steps": 100, "observation_format": "grid_coord"}),
                ),
            ),
            ("FrozenLake", lake(100, json!({"success_rate": 0.8}))),
            ("CoordFrozenLake", lake(120, json!({"success_rate": 0.8, "observation_format": "grid_coord"}))),
            ("Bandit", bandit("train")),
            ("BanditTest", bandit("test")),
        ]
        .map(|(name, tag)| (name.to_string(), tag)),
    )
}
