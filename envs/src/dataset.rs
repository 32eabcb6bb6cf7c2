//! Data sets of a user: the records of a file, whatever it is written in, and the part that each is kept for.
//!
//! It knows formats and nothing of tasks; each task says which fields it reads of a record.

use crate::{Mode, Stream};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The records of a file, in its order: Parquet by its extension, else a JSON array, or JSON lines (one record a line;
/// empty lines are skipped).
///
/// **Errors** in words, with the file and the line: it cannot be read, or is none of these.
pub(crate) fn records(path: &Path) -> Result<Vec<Value>, String> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet")) {
        return parquet_records(path);
    }
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(&text).map_err(|error| format!("{shown} is not a JSON array of records: {error}"));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|error| format!("{shown} line {}: not a JSON record: {error}", i + 1))
        })
        .collect()
}

#[cfg(feature = "parquet")]
fn parquet_records(path: &Path) -> Result<Vec<Value>, String> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let shown = path.display();
    let file = std::fs::File::open(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let wrong = |error| format!("{shown} is not a Parquet file that can be read: {error}");
    let read = || {
        let reader = SerializedFileReader::new(file).map_err(wrong)?;
        reader.get_row_iter(None).map_err(wrong)?.map(|row| Ok(row.map_err(wrong)?.to_json_value())).collect()
    };
    // The crate panics at some kinds of damage; what it was reading is thrown away with it.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(format!("{shown} is a damaged Parquet file")))
}

#[cfg(not(feature = "parquet"))]
fn parquet_records(path: &Path) -> Result<Vec<Value>, String> {
    Err(format!(
        "{} is a Parquet file, which this build does not read; build with `--features parquet`, or write it as JSON lines",
        path.display()
    ))
}

/// The part that a question belongs to, by a hash of what it asks: of 22 questions 20 are trained on, one validates, one
/// tests. No question is in two parts, whatever file or generator it comes from.
pub(crate) fn part(hash: u64) -> Mode {
    match Stream::new(hash).below(22) {
        0 => Mode::Val,
        1 => Mode::Test,
        _ => Mode::Train,
    }
}

/// The items of a file by part; the three share one copy.
#[derive(Debug)]
pub(crate) struct Parts<T> {
    items: Vec<T>,
    of: [Vec<u32>; 3],
}

impl<T> Parts<T> {
    /// Sorts items into parts by a hash of what they ask.
    pub(crate) fn new(items: Vec<T>, mut hash: impl FnMut(&T) -> u64) -> Self {
        let mut of: [Vec<u32>; 3] = Default::default();
        items.iter().enumerate().for_each(|(i, item)| of[part(hash(item)) as usize].push(i as u32));
        Parts { items, of }
    }

    /// All items, in the order of the file.
    pub(crate) fn all(&self) -> &[T] {
        &self.items
    }

    /// The item of a row number, taken modulo the size of the part; of all items where the part is empty, which happens
    /// in files of a few rows, or where `mixed` asks for it. `None` if there is no item at all.
    pub(crate) fn item(&self, row: u64, mode: Mode, mixed: bool) -> Option<&T> {
        let part = &self.of[mode as usize];
        if self.items.is_empty() {
            return None;
        }
        Some(match mixed || part.is_empty() {
            true => &self.items[(row % self.items.len() as u64) as usize],
            false => &self.items[part[(row % part.len() as u64) as usize] as usize],
        })
    }
}

/// What is built once in a process and shared by all environments of equal settings.
pub(crate) struct Shared<T>(Mutex<BTreeMap<String, Arc<T>>>);

impl<T> Shared<T> {
    pub(crate) const fn new() -> Self {
        Shared(Mutex::new(BTreeMap::new()))
    }

    /// What lies under the key; built now if nothing does. Others wait meanwhile, so that it is built once.
    ///
    /// **Errors** those of `build`; nothing is kept then.
    pub(crate) fn get(&self, key: &str, build: impl FnOnce() -> Result<T, String>) -> Result<Arc<T>, String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.get(key) {
            return Ok(found.clone());
        }
        let built = Arc::new(build()?);
        kept.insert(key.to_owned(), built.clone());
        Ok(built)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arrays_and_lines_are_read_and_faults_name_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            records(&path)
        };
        let want = Ok(vec![json!({"a": 1}), json!({"a": 2})]);
        assert_eq!(file("array.json", "[{\"a\": 1},\n {\"a\": 2}]"), want);
        assert_eq!(file("lines.jsonl", "{\"a\": 1}\n\n{\"a\": 2}\n"), want);
        assert!(
            file("bad.jsonl", "{\"a\": 1}\n{\"a\": }\n").unwrap_err().contains("bad.jsonl line 2: not a JSON record")
        );
        assert!(records(&dir.path().join("none")).unwrap_err().starts_with("cannot read "));
        let said = file("rows.parquet", "PAR0").unwrap_err();
        let want = if cfg!(feature = "parquet") { "is not a Parquet file" } else { "build with `--features parquet`" };
        assert!(said.contains("rows.parquet is ") && said.contains(want), "{said}");
    }

    #[test]
    fn parts_share_nothing_and_have_their_sizes() {
        let parts = Parts::new((0..22_000_u64).collect(), |item| crate::rng::hash_bytes(item.to_le_bytes()));
        let sizes = [Mode::Train, Mode::Val, Mode::Test].map(|mode| parts.of[mode as usize].len());
        assert_eq!(sizes.iter().sum::<usize>(), 22_000);
        assert!(
            (19_700..20_300).contains(&sizes[0]) && sizes[1..].iter().all(|n| (850..1150).contains(n)),
            "{sizes:?}"
        );
        let val = *parts.item(7, Mode::Val, false).unwrap();
        assert_eq!(part(crate::rng::hash_bytes(val.to_le_bytes())), Mode::Val);
        assert_eq!(parts.item(22_007, Mode::Val, true), Some(&7));
        assert_eq!(Parts::new(vec![5], |_| 0).item(3, Mode::Test, false), Some(&5), "an empty part lends from all");
        assert_eq!(Parts::<u8>::new(vec![], |_| 0).item(3, Mode::Test, false), None);
    }

    #[test]
    fn what_is_shared_is_built_once_and_failures_are_not_kept() {
        let shared = Shared::new();
        assert_eq!(shared.get("a", || Err::<u8, _>("no".to_owned())), Err("no".to_owned()));
        let one = shared.get("a", || Ok(1)).unwrap();
        assert!(Arc::ptr_eq(&one, &shared.get("a", || Err("built twice".to_owned())).unwrap()));
        assert_eq!(*shared.get("b", || Ok(2)).unwrap(), 2);
    }

    /// The files were written by pyarrow, with Snappy.
    #[cfg(feature = "parquet")]
    mod parquet {
        use super::*;

        fn file(name: &str) -> std::path::PathBuf {
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
        }

        #[test]
        fn lists_and_texts_are_read_through_all_row_groups() {
            let problems = json!([
                {"target": 4, "nums": [3, 5, 2]}, {"target": 42, "nums": [6, 7]}, {"target": 3, "nums": [1, 2]}
            ]);
            assert_eq!(records(&file("countdown.parquet")).map(Value::from), Ok(problems));
            let questions = json!([
                {"question": "6*7?", "answer": "6*7=42\n#### 42"}, {"question": "1+1?", "answer": "#### 2"}
            ]);
            assert_eq!(records(&file("questions.parquet")).map(Value::from), Ok(questions));
        }

        #[test]
        fn damaged_files_are_errors_or_other_rows_but_no_panic() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("damaged.parquet");
            let mut errors = 0;
            for name in ["countdown.parquet", "questions.parquet"] {
                let whole = std::fs::read(file(name)).unwrap();
                for i in (0..whole.len()).step_by(5) {
                    for change in [0x01, 0x80] {
                        let mut damaged = whole.clone();
                        damaged[i] ^= change;
                        std::fs::write(&path, damaged).unwrap();
                        errors += usize::from(records(&path).is_err());
                    }
                    std::fs::write(&path, &whole[..i]).unwrap();
                    assert!(records(&path).is_err(), "{name} cut after {i} bytes");
                }
            }
            assert!(errors > 200, "{errors}");
        }
    }
}
