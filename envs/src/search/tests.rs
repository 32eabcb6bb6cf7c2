//! The world, its questions, the back ends and the scripted player.

use super::*;
use crate::conformance;
use std::io::{Read, Write};
use std::net::TcpListener;

#[test]
fn the_world_is_as_large_as_said_and_names_are_its_own() {
    let world = library::world();
    assert_eq!(world.documents.len(), 2000);
    let lengths: Vec<usize> = world.documents.iter().map(|d| index::words(&d.text).count()).collect();
    assert!(lengths.iter().all(|n| (25..=120).contains(n)), "{:?}", (lengths.iter().min(), lengths.iter().max()));
    let mut titles: Vec<&String> = world.documents.iter().map(|d| &d.title).collect();
    titles.sort();
    titles.dedup();
    assert_eq!(titles.len(), 2000);
    // The same on every machine.
    let text: String = world.documents.iter().map(|d| format!("{}{}", d.title, d.text)).collect();
    assert_eq!(hash_bytes(text.bytes()), WORLD_HASH);
}

const WORLD_HASH: u64 = 0x8ea08b71eec29180;

#[test]
fn what_a_question_names_is_found_by_its_name() {
    let library = library::embedded();
    let (mut found, mut n) = (0, 0);
    for row in 0..400 {
        for title in ask(row, Mode::Train).titles {
            n += 1;
            found +=
                usize::from(library.search(&title, 5).iter().any(|hit| hit.content.starts_with(&format!("{title}\n"))));
        }
    }
    assert!(found as f64 >= 0.99 * n as f64, "{found} of {n}");
}

#[test]
fn the_documents_hold_the_answers_and_the_parts_are_apart() {
    let world = library::world();
    let text = |title: &str| &world.documents.iter().find(|d| d.title == title).unwrap().text;
    let mut asked: [std::collections::BTreeSet<String>; 3] = Default::default();
    for mode in [Mode::Train, Mode::Val, Mode::Test] {
        for row in 0..300 {
            let item = ask(row, mode);
            let answer = &item.ground_truth[0];
            if answer != "yes" && answer != "no" {
                let last = item.titles.iter().any(|title| text(title).contains(answer.as_str()));
                assert!(last, "{item:?}");
            }
            asked[mode as usize].insert(item.question);
        }
    }
    assert!(asked[0].is_disjoint(&asked[1]) && asked[0].is_disjoint(&asked[2]) && asked[1].is_disjoint(&asked[2]));
    let yes = (0..2000).map(|row| ask(row, Mode::Train)).filter(|item| item.ground_truth[0] == "yes").count();
    assert!(yes > 60, "{yes} of some 280 questions are answered by yes");
}

#[test]
fn the_player_answers_every_question() {
    let build = || crate::tag("SearchQA")?.make();
    let (success, turns) = conformance::demonstrated(&build, &Demonstration::perfect(1), 500, 10, 10).unwrap();
    assert!(success >= 0.99 && turns < 3.1, "{success} {turns}");
}

#[test]
fn a_corpus_and_questions_of_ones_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let corpus = path("corpus.jsonl", "\"Rome is old.\"\n{\"title\": \"Paris\", \"contents\": \"Paris is large.\"}\n");
    let asked =
        path("asked.jsonl", "{\"question\": \"Which is large?\", \"ground_truth\": [\"Paris\", \"City of Paris\"]}\n");
    let mut env = Search::new(&json!({"corpus_path": corpus, "train_path": asked})).unwrap();
    assert_eq!(env.backend().unwrap(), format!("2 documents of {corpus}; 1 questions of {asked}"));
    env.reset(3, 0, Mode::Val).unwrap();
    assert!(env.observation().starts_with("Question: Which is large?\nAvailable actions: search[<query>]"));
    env.step("search[paris]").unwrap();
    assert!(env.observation().contains("(ID: doc_2, Score: 0."), "{}", env.observation());
    assert!(env.observation().contains("\nParis\nParis is large.\n"));
    assert_eq!(env.demonstrate(&Demonstration::perfect(1), &mut Stream::new(1)), None);
    assert!(env.step("finish[city of Paris]").unwrap().success);
    let bad = path("bad.jsonl", "{\"question\": \"Which?\"}\n");
    let said = Search::new(&json!({"corpus_path": "none.jsonl", "train_path": bad})).unwrap_err().to_string();
    assert!(
        said.contains("corpus_path: cannot read none.jsonl") && said.contains("bad.jsonl row 1: question and"),
        "{said}"
    );
    let said = Search::new(&json!({"backend": "corpus"})).unwrap_err().to_string();
    assert!(said.contains("corpus_path: is missing, but `backend` asks for it"), "{said}");
}

#[test]
fn a_server_is_asked_and_its_failure_is_a_text() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        let mut asked = String::new();
        while !asked.ends_with('}') {
            let n = stream.read(&mut buffer).unwrap();
            asked.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        }
        let body = r#"{"results": [{"id": "doc_1", "content": "Rome", "score": 0.5}], "num_results": 1}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        asked
    });
    let mut env = Search::new(&json!({"retrieval_server_url": url, "max_search_results": 3})).unwrap();
    env.reset(1, 0, Mode::Train).unwrap();
    env.step("search[old town]").unwrap();
    assert!(
        env.observation()
            .starts_with("Search results for 'old town':\n[Document 1] (ID: doc_1, Score: 0.500)\nRome\n\n")
    );
    let asked = served.join().unwrap();
    assert!(asked.starts_with("POST /retrieve ") && asked.ends_with(r#"{"query":"old town","top_k":3}"#), "{asked}");
    // Nobody listens any more; the episode goes on.
    let step = env.step("search[again]").unwrap();
    assert!(!step.ended() && env.observation().contains("\nThe search failed: http://"), "{}", env.observation());
}
