//! docs/configuration.md is what the table of keys says.

#[test]
fn the_document_lists_exactly_the_keys_there_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let text = ragen::settings::reference::render();
    if std::env::var_os("RAGEN_WRITE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    let differs = found.lines().zip(text.lines()).find(|(a, b)| a != b);
    assert!(
        found == text,
        "docs/configuration.md is stale, first at {differs:?}: RAGEN_WRITE_DOCS=1 cargo test --test configuration"
    );
}
