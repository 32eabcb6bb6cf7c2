//! The page of each environment type, `docs/environments/TYPE.md`, says what the code says.

use ragen_envs::{Setting, specs, tags};
use std::fs;
use std::path::Path;

const HEADINGS: [&str; 11] = [
    "Description",
    "Action Space",
    "Observation Space",
    "Starting State",
    "Rewards",
    "Episode End",
    "Information",
    "Arguments",
    "Scripted Player",
    "Differences from RAGEN",
    "References",
];

fn page(env_type: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/environments/{env_type}.md"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_page_has_its_headings_in_order_with_something_below() {
    for spec in specs() {
        let page = page(spec.env_type);
        let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
        let found: Vec<&str> = sections.iter().map(|section| section.lines().next().unwrap()).collect();
        let of_all: Vec<&str> = found.iter().copied().filter(|heading| *heading != "Back Ends").collect();
        assert_eq!(of_all, HEADINGS, "{}", spec.env_type);
        for section in sections {
            assert!(
                section.split_once('\n').is_some_and(|(_, text)| text.trim().len() > 3),
                "{}: {section}",
                spec.env_type
            );
        }
    }
}

#[test]
fn every_table_of_arguments_is_the_table_of_the_code() {
    for spec in specs() {
        let page = page(spec.env_type);
        let (_, arguments) = page.split_once("\n## Arguments\n").unwrap();
        let arguments = arguments.split("\n## ").next().unwrap();
        let cells = |line: &str| -> Vec<String> {
            line.replace("\\|", "\0").split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
        };
        let rows: Vec<Vec<String>> = arguments.lines().filter(|line| line.starts_with("| `")).map(cells).collect();
        let said: Vec<(String, String)> = rows.iter().map(|row| (row[1].clone(), row[2].clone())).collect();
        let code = |setting: &Setting| (format!("`{}`", setting.name), format!("`{}`", setting.default));
        let known: Vec<(String, String)> = spec.settings.iter().map(code).collect();
        assert_eq!(said, known, "{}", spec.env_type);
        assert!(rows.iter().all(|row| row.len() == 5 && !row[3].is_empty()), "{}: a meaning is missing", spec.env_type);
    }
}

/// A tag that is shipped is named on the page of its type, and the list of pages has a line for each type.
#[test]
fn every_tag_is_named() {
    for tag in tags() {
        assert!(page(&tag.env_type).contains(&format!("`{}`", tag.name)), "{}", tag.name);
    }
    let list = page("README");
    for spec in specs() {
        let link = format!("[{0}]({0}.md)", spec.env_type);
        assert!(list.contains(&link), "docs/environments/README.md lacks {link}");
    }
}
