//! How the vectors are read so that no case, operation or field in them is passed over.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Rows of numbers, one a predicted token; a mask holds 1 where the token is trained.
pub type Matrix = Vec<Vec<f64>>;

/// The folder of this repository.
pub fn repository_golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The folder of the vectors: below `RAGEN_GOLDEN`, else below the repository's tests/golden.
pub fn vectors() -> PathBuf {
    std::env::var_os("RAGEN_GOLDEN").map_or_else(repository_golden, PathBuf::from).join("vectors")
}

/// Whether the plain fields are tested where we differ on purpose, against a transcription of the published rule, instead of
/// the `sane_*` ones against ours.
pub fn parity() -> bool {
    std::env::var_os("RAGEN_PARITY").is_some_and(|value| value == "1")
}

/// What later issues owe of the vectors: `file` or `file#operation`.
pub fn pending() -> Vec<String> {
    let text = std::fs::read_to_string(repository_golden().join("PENDING")).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()?.strip_prefix("vectors/")).map(String::from).collect()
}

/// The cases of a file as they stand.
pub fn read(file: &str) -> Vec<Map<String, Value>> {
    let path = vectors().join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut top: Map<String, Value> = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
    let cases = top.remove("cases").unwrap_or_else(|| panic!("{file} has no cases"));
    top.retain(|key, _| key != "source" && key != "schema");
    assert!(top.is_empty(), "{file}: unknown keys {:?}", top.keys());
    serde_json::from_value(cases).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The operation of a case; empty in files with one operation only.
pub fn operation(case: &Map<String, Value>) -> &str {
    case["inputs"].get("op").and_then(Value::as_str).unwrap_or_default()
}

/// The inputs or expected values of a case; each is taken once.
pub struct Fields {
    what: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// Fields that messages call `what`.
    pub fn new(what: String, fields: Map<String, Value>) -> Fields {
        Fields { what, fields }
    }

    /// The field, which stays.
    pub fn peek<T: DeserializeOwned>(&self, key: &str) -> T {
        serde_json::from_value(self.fields[key].clone()).unwrap_or_else(|e| panic!("{} {key}: {e}", self.what))
    }

    /// The field, if it is there and not null.
    #[track_caller]
    pub fn find<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        match self.fields.remove(key)? {
            Value::Null => None,
            value => Some(serde_json::from_value(value).unwrap_or_else(|e| panic!("{} {key}: {e}", self.what))),
        }
    }

    /// The field.
    #[track_caller]
    pub fn take<T: DeserializeOwned>(&mut self, key: &str) -> T {
        self.find(key).unwrap_or_else(|| panic!("{} has no {key}", self.what))
    }

    /// The field as it should be. Where the recorded code has a defect that is `sane_KEY`, or nothing if there is none; with
    /// `RAGEN_PARITY=1` it is what was recorded.
    #[track_caller]
    pub fn by_rule<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let is_defect = self.fields.contains_key("reference_bug");
        let sane: Option<T> = self.find(&format!("sane_{key}"));
        let recorded: T = self.take(key);
        match (is_defect, parity()) {
            (false, _) | (true, true) => Some(recorded),
            (true, false) => sane,
        }
    }

    /// All fields that are left.
    pub fn rest(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.fields)
    }

    /// Fails if a field was not looked at.
    pub fn finish(self) {
        let left: Vec<_> = self.fields.keys().collect();
        assert!(left.is_empty(), "{}: nothing tests {left:?}", self.what);
    }
}

/// One case.
pub struct Case {
    /// File and name, for messages.
    pub name: String,
    /// The operation; empty in files with one operation only.
    pub op: String,
    /// What goes in.
    pub inputs: Fields,
    /// What must come out.
    pub expected: Fields,
}

impl Case {
    /// Fails unless |got − want| ≤ tolerance × max(1, |want|).
    #[track_caller]
    pub fn close(&self, what: &str, got: f64, want: f64, tolerance: f64) {
        let allowed = tolerance * want.abs().max(1.0);
        assert!((got - want).abs() <= allowed, "{} {what}: {got}, not {want}", self.name);
    }

    /// [`Case::close`] element by element.
    #[track_caller]
    pub fn all_close(&self, what: &str, got: &[f64], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len(), "{} {what}: number of elements", self.name);
        for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
            self.close(&format!("{what}[{i}]"), got, want, tolerance);
        }
    }

    /// Every metric by name, and no other one.
    #[track_caller]
    pub fn same_metrics(&self, got: &[(String, f64)], want: &Map<String, Value>) {
        let names = |mut names: Vec<String>| {
            names.sort();
            names
        };
        let ours = names(got.iter().map(|metric| metric.0.clone()).collect());
        assert_eq!(ours, names(want.keys().cloned().collect()), "{}: names of the metrics", self.name);
        for (name, value) in got {
            // Scores divided by a small spread amplify the rounding of the recorded numbers.
            let tolerance = if name.contains("mi_zscore") { 1e-3 } else { 1e-4 };
            self.close(name, *value, want[name].as_f64().unwrap(), tolerance);
        }
    }
}

/// Runs `check` on every case of a file. It returns false for an operation that it does not know, which must then be
/// pending; a field that it has not taken fails the test.
pub fn for_each(file: &str, check: impl Fn(&mut Case) -> bool) {
    let cases = read(file);
    assert!(!cases.is_empty(), "{file} has no cases");
    let pending = pending();
    for mut case in cases {
        let name = format!("{file} {}", case["name"].as_str().unwrap());
        let op = operation(&case).to_string();
        let mut fields = |key: &str| match case.remove(key) {
            Some(Value::Object(fields)) => Fields::new(format!("{name} {key}"), fields),
            _ => panic!("{name}: no {key}"),
        };
        let (mut inputs, expected) = (fields("inputs"), fields("expected"));
        inputs.fields.remove("op");
        let mut case = Case { name, op, inputs, expected };
        let is_pending = pending.contains(&format!("{file}#{}", case.op));
        if check(&mut case) {
            assert!(!is_pending, "{}: {} is tested, so it is not pending", case.name, case.op);
            case.inputs.finish();
            case.expected.finish();
        } else {
            assert!(is_pending, "{}: unknown operation {}", case.name, case.op);
            println!("pending: {}", case.name);
        }
    }
}

/// The values where the mask is 1, rows in order.
pub fn trained(values: &Matrix, mask: &Matrix) -> Vec<f64> {
    assert_eq!(values.len(), mask.len());
    let rows = values.iter().zip(mask).map(|(row, mask)| {
        assert_eq!(row.len(), mask.len());
        row.iter().zip(mask).filter(|(_, mask)| **mask == 1.0).map(|(value, _)| *value)
    });
    rows.flatten().collect()
}

/// Trained tokens of each row.
pub fn lengths(mask: &Matrix) -> Vec<usize> {
    mask.iter().map(|row| row.iter().filter(|mask| **mask == 1.0).count()).collect()
}

/// As single precision.
pub fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}
