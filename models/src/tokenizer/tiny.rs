//! The small model's vocabulary as a `tokenizer.json`.

use super::byte_chars;
use serde_json::{Map, Value, json};

/// Words that stand for themselves with a space before them.
const WORDS: &str = "\
    Up Down Left Right Player Box Target Goal near push from go || \
    0 1 2 3 4 5 6 7 8 9 # _ O G P X S * \
    choose arm arms and Which one do you pull Answer with its name \
    Teacher Trader Nurse StartupFounder Librarian Investor Accountant StockBroker Engineer RealEstateAgent Pharmacist \
    Musician Clerk Freelancer Technician Youtuber Planner Artist Postman Pilot Banker VentureCapitalist Gardener \
    Cryptominer Receptionist Explorer Archivist Filmmaker Bookkeeper Consultant SocialWorker Photographer Mechanic \
    GameDesigner Secretary Entrepreneur Cashier DataScientist CivilServant StartupAccelerator";

/// Words at the start of a line.
const FIRST_WORDS: &str = "Player Two";

const CONTROL: &str = "<bos> <eos> <pad> <system> <user> <assistant>";
const TAGS: &str = "<think> </think> <answer> </answer>";

/// The text of the file.
pub(super) fn json() -> String {
    let chars = byte_chars();
    let mut vocab: Map<String, Value> = Map::new();
    let mut push = |token: String| {
        let id = vocab.len();
        vocab.insert(token, id.into());
    };
    chars.iter().for_each(|c| push(c.to_string()));
    let space = chars[usize::from(b' ')];
    WORDS.split_whitespace().for_each(|word| push(format!("{space}{word}")));
    FIRST_WORDS.split_whitespace().for_each(|word| push(word.to_string()));

    let control = CONTROL.split_whitespace().map(|token| (token, true));
    let tags = TAGS.split_whitespace().map(|token| (token, false));
    let added: Vec<Value> = (vocab.len()..)
        .zip(control.chain(tags))
        .map(|(id, (content, special))| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let root = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        // Without merges every piece that is no whole word falls into its bytes.
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocab, "merges": []},
    });
    format!("{root:#}\n")
}

#[cfg(test)]
mod tests {
    use crate::random::Key;
    use crate::tokenizer::Tokenizer;

    const CONTROL_AND_TAGS: [&str; 10] = [
        "<bos>",
        "<eos>",
        "<pad>",
        "<system>",
        "<user>",
        "<assistant>",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
    ];

    #[test]
    fn bytes_come_first_words_next_and_control_tokens_last() {
        let tokenizer = Tokenizer::tiny();
        assert_eq!(tokenizer.vocab(), 352);
        for byte in 0..=255u32 {
            assert_eq!(tokenizer.bytes(byte), [byte as u8]);
        }
        assert_eq!(tokenizer.bytes(256), b" Up");
        assert_eq!(tokenizer.id("ĠUp"), Some(256));
        assert_eq!(tokenizer.id("Two"), Some(341));
        for (id, token) in (342..).zip(CONTROL_AND_TAGS) {
            assert_eq!(tokenizer.id(token), Some(id));
            assert_eq!(tokenizer.bytes(id), token.as_bytes());
            assert!(tokenizer.is_added(id) && tokenizer.is_special(id) == (id < 348));
        }
        assert!((0..342).all(|id| !tokenizer.is_added(id) && !tokenizer.is_special(id)));
        assert_eq!((tokenizer.id("<none>"), tokenizer.bytes(352), tokenizer.bytes(u32::MAX)), (None, &[][..], &[][..]));
    }

    #[test]
    fn a_word_or_a_cell_is_one_token() {
        let tokenizer = Tokenizer::tiny();
        for (text, tokens) in [
            ("######\n#_P__#\n#_X__#\n#_O__#\n#___##\n######\nPlayer 1 3 Box 2 2 Target 2 1", 51),
            ("____\n_P__\n_OOG\n___O\nPlayer 1 1 Goal 2 3 near Up _ Down O Left _ Right _", 35),
            ("<think> push Left from 2 3 go Down Left</think><answer> Down || Left</answer>", 15),
            ("<think> Player 1 1 Goal 2 3 go Down Right</think><answer> Down || Right</answer>", 16),
            ("Two arms: Nurse and StartupFounder. Which one do you pull? Answer with its name.", 18),
            ("<think> pull SocialWorker</think><answer> SocialWorker</answer>", 7),
            ("<bos><user>hi<assistant>", 5),
        ] {
            let ids = tokenizer.encode(text);
            assert_eq!(ids.len(), tokens, "{text:?}: {ids:?}");
            assert_eq!(tokenizer.decode(&ids), text);
        }
    }

    #[test]
    fn any_text_comes_back_and_plain_text_holds_no_control_token() {
        let tokenizer = Tokenizer::tiny();
        let pieces = [
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "Up",
            " Up",
            "Player",
            "Players",
            " Ġ",
            "é",
            "e\u{301}",
            "日本",
            "👩‍👩‍👧",
            "\u{0}",
            "\u{1b}",
            "\u{7f}",
            "\u{85}",
            "\u{a0}",
            "\u{feff}",
            "\u{fffd}",
            "<",
            "<|im_end|>",
            "</s>",
            "'s",
            "12",
            " 7",
            "||",
            "_",
            "٣",
            "<th",
            "ink>",
            "\u{10ffff}",
        ];
        for i in 0..3000 {
            let key = Key::new(3).with(i);
            let n = pieces.len() + CONTROL_AND_TAGS.len();
            let text: String = (0..key.below(0, 12) as u64)
                .map(|p| key.below(p + 1, n))
                .map(|piece| pieces.iter().chain(&CONTROL_AND_TAGS).nth(piece).copied().unwrap_or_default())
                .collect();
            let plain = tokenizer.encode_plain(&text);
            assert_eq!(tokenizer.decode(&plain), text);
            assert!(plain.iter().all(|&id| !tokenizer.is_added(id)), "{text:?}: {plain:?}");
            assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text);
        }
        for text in ["", " ", "\n\n"] {
            assert_eq!(tokenizer.decode(&tokenizer.encode_plain(text)), text);
        }
        let long = "  \n\t".repeat(200_000);
        assert_eq!(tokenizer.decode(&tokenizer.encode_plain(&long)), long);
    }

    #[test]
    fn a_character_cut_in_two_decodes_to_replacement_characters() {
        let tokenizer = Tokenizer::tiny();
        let ids = tokenizer.encode_plain("a日b");
        assert_eq!(ids, [0x61, 0xe6, 0x97, 0xa5, 0x62]);
        assert_eq!(tokenizer.decode(&ids[..3]), "a\u{fffd}");
        assert_eq!(tokenizer.decode(&ids[3..]), "\u{fffd}b");
        assert_eq!(tokenizer.decode(&[0x61, 9999, 0x62]), "ab");
    }
}
