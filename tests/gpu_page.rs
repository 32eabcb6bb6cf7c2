//! docs/gpu.md against the code.

use ragen::bench::estimate;

const PAGE: &str = "docs/gpu.md";

/// `RAGEN_WRITE_PAGES=1` makes the tables anew.
#[test]
fn the_page_has_the_estimate_that_the_code_makes() {
    let text = std::fs::read_to_string(PAGE).unwrap();
    let (begin, end) = ("<!-- estimate begins -->\n", "<!-- estimate ends -->");
    let at = text.find(begin).unwrap() + begin.len();
    let to = at + text[at..].find(end).unwrap();
    let wanted = estimate::page().unwrap();
    assert!(wanted.contains("| not yet measured |") && wanted.lines().count() > 20, "{wanted}");
    if std::env::var_os("RAGEN_WRITE_PAGES").is_some_and(|on| on == "1") {
        std::fs::write(PAGE, format!("{}{wanted}{}", &text[..at], &text[to..])).unwrap();
        return;
    }
    assert_eq!(&text[at..to], wanted, "RAGEN_WRITE_PAGES=1 cargo test --test gpu_page makes the tables of {PAGE} anew");
}
