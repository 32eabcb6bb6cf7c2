//! What checks a script: a Lean server, Lean itself, or the embedded checker.
//!
//! All answer alike: as a server's `response` does, with `messages` and `sorries`.

use super::checker;
use crate::http::post;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Where a server is looked for if none is named.
const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// A server that speaks Kimina's protocol.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Server {
    pub(super) url: String,
    pub(super) key: Option<String>,
    /// Seconds that the server gives a script.
    pub(super) request_timeout: f64,
    /// Seconds until a request is given up.
    pub(super) http_timeout: f64,
    pub(super) max_retries: usize,
}

/// What checks scripts here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Checker {
    Server(Server),
    /// Lean's command line, and seconds for a script.
    Local(Vec<String>, f64),
    Embedded,
}

/// A setting, else a variable of the environment; none if neither says anything.
pub(super) fn setting_or_variable(setting: Option<String>, variables: &[&str]) -> Option<String> {
    let given = variables.iter().find_map(|name| std::env::var(name).ok());
    setting.or(given).filter(|text| !text.is_empty())
}

impl Checker {
    /// Picks by `backend`: 0 auto, 1 server, 2 local, 3 embedded.
    pub(super) fn choose(backend: usize, url: Option<String>, server: Server, command: Vec<String>) -> Checker {
        let limit = server.request_timeout;
        match (backend, url) {
            (0, Some(url)) if is_healthy(&url) => Checker::Server(Server { url, ..server }),
            (1, url) => Checker::Server(Server { url: url.unwrap_or(DEFAULT_URL.to_owned()), ..server }),
            (0, _) if on_path(&command[0]) && has_mathlib(&command) => Checker::Local(command, limit),
            (2, _) => Checker::Local(command, limit),
            _ => Checker::Embedded,
        }
    }

    /// Which one it is, in a line.
    pub(super) fn name(&self) -> String {
        match self {
            Checker::Server(server) => format!("Lean server at {}", server.url),
            Checker::Local(command, _) => format!("local Lean: {}", command.join(" ")),
            Checker::Embedded => "embedded checker of a fragment of Lean".to_owned(),
        }
    }

    /// Checks a script: what the server would send.
    ///
    /// **Errors** in words; with "timed out" in them if time was what lacked.
    pub(super) fn check(&self, code: &str) -> Result<Value, String> {
        match self {
            Checker::Server(server) => server.check(code),
            Checker::Local(command, limit) => Ok(answered(run(command, code, *limit)?)),
            Checker::Embedded => Ok(answered(checker::check(code))),
        }
    }
}

fn answered(response: Value) -> Value {
    json!({"results": [{"response": response}]})
}

/// Whether a server says that it is well; asked once for each URL.
fn is_healthy(url: &str) -> bool {
    static KNOWN: LazyLock<Mutex<BTreeMap<String, bool>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(url.to_owned()).or_insert_with(|| {
        let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(3))).proxy(None);
        let agent: ureq::Agent = config.build().into();
        agent.get(format!("{}/health", url.trim_end_matches('/'))).call().is_ok()
    })
}

/// What is sent to a server.
pub(crate) fn request(id: &str, code: &str, timeout: f64) -> Value {
    json!({
        "snippets": [{"id": id, "code": code}], "timeout": timeout as u64, "debug": true, "reuse": true, "infotree": "tactics",
    })
}

impl Server {
    fn check(&self, code: &str) -> Result<Value, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = format!("ragen-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let url = format!("{}/api/check", self.url.trim_end_matches('/'));
        let body = request(&id, code, self.request_timeout);
        let limit = Duration::from_secs_f64(self.http_timeout);
        let mut wait = 1;
        for attempt in 0.. {
            match post(&url, &body, self.key.as_deref(), limit) {
                Ok(answer) => return Ok(answer),
                // A server that is too slow once is not asked again at once.
                Err(fault) if fault.contains("within") => return Err(format!("timed out: {fault}")),
                Err(fault) if attempt >= self.max_retries => return Err(fault),
                Err(_) => std::thread::sleep(Duration::from_secs(wait)),
            }
            wait = (wait * 2).min(10);
        }
        Err("the Lean server was not asked".to_owned())
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether Lean finds Mathlib; tried once.
fn has_mathlib(command: &[String]) -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let answer = run(command, "import Mathlib\nexample : 1 = 1 := rfl\n", 120.0);
        answer.is_ok_and(|answer| answer["messages"].as_array().is_some_and(Vec::is_empty))
    })
}

/// Removes the file when done.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs Lean on a script and gathers its messages.
fn run(command: &[String], code: &str, limit: f64) -> Result<Value, String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("ragen-{}-{}.lean", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let file = Scratch(std::env::temp_dir().join(name));
    std::fs::write(&file.0, code).map_err(|error| format!("cannot write {}: {error}", file.0.display()))?;
    let (program, options) = command.split_first().ok_or("lean_command is empty")?;
    let mut lean = Command::new(program)
        .args(options)
        .arg("--json")
        .arg(&file.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    let mut output = lean.stdout.take().ok_or("no output of Lean")?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.by_ref().take(16 << 20).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = lean.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if start.elapsed().as_secs_f64() > limit {
            let _ = lean.kill();
            let _ = lean.wait();
            return Err(format!("Lean timed out in {limit} seconds"));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = reader.join().unwrap_or_default();
    let messages: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .map(|message: Value| {
            let severity = message["severity"].as_str().unwrap_or("error");
            json!({"severity": severity, "pos": message["pos"], "endPos": message["endPos"], "data": message["data"]})
        })
        .collect();
    let failed = messages.iter().any(|message| message["severity"] == "error");
    match status.success() || failed {
        true => Ok(json!({"messages": messages})),
        false => Err(format!("{program} ended with {status} and no message")),
    }
}
