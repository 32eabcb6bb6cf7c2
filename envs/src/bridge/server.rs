//! `http`: a server that is asked by POST, a JSON object each way.
//!
//! It knows addresses. A server may play many environments: each has a name of its own, which every message bears.

use super::{Bridge, Limits, Link};
use crate::registry::Spec;
use crate::settings::Reader;
use crate::{Env, EnvError, Recap, Setting, http};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TYPE: &str = "http";

const SETTINGS: &[Setting] = &[
    Setting { name: "url", default: "\"\"", meaning: "where messages are posted to, `http://` alone" },
    Setting { name: "settings", default: "{}", meaning: "passed on to the server in the first message" },
    Setting { name: "start_seconds", default: "30.0", meaning: "how long it may take to say hello" },
    Setting { name: "reset_seconds", default: "30.0", meaning: "how long a reset may take" },
    Setting { name: "step_seconds", default: "10.0", meaning: "how long a step may take" },
    Setting { name: "restarts", default: "1", meaning: "how often a reset that failed is asked for again" },
];

/// What the registry knows of it.
pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "any environment that a server plays, asked over HTTP",
    many_starts: false,
    waits: true,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: Vec::new,
    unavailable: || None,
    build,
};

fn build(config: &Value) -> Result<Box<dyn Env>, EnvError> {
    let mut reader = Reader::new(TYPE, SETTINGS, config);
    let url = reader.read("url", "a text", |value| value.as_str().map(str::to_owned));
    if !url.starts_with("http://") {
        reader.problem("url", format!("is \"{url}\" but must be an address such as http://127.0.0.1:8000"));
    }
    let settings = reader.read("settings", "a map", |value| value.is_object().then(|| value.clone()));
    let limits = Limits::read(&mut reader);
    let link = reader.finish(Box::new(Server { url, name: None }))?;
    Ok(Box::new(Bridge::new(format!("{TYPE} {config}"), TYPE, link, limits, settings)?))
}

/// A name that no other environment has at the server, not even one of another process. It reaches no result.
pub(super) fn fresh_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{}-{:x}-{}", std::process::id(), nanos, COUNT.fetch_add(1, Ordering::Relaxed))
}

struct Server {
    url: String,
    /// The environment that the server has been told of.
    name: Option<Value>,
}

impl Link for Server {
    fn exchange(&mut self, request: &Value, limit: Duration) -> Result<Value, String> {
        let answer = http::post(&self.url, request, None, limit);
        match answer {
            Ok(_) => self.name = request.get("env").cloned(),
            Err(_) => self.close(),
        }
        answer
    }

    fn is_open(&self) -> bool {
        self.name.is_some()
    }

    /// Lets the server forget the environment, if it can be reached at once.
    fn close(&mut self) {
        if let Some(name) = self.name.take() {
            let _ = http::post(&self.url, &json!({"id": 0, "env": name, "op": "close"}), None, Duration::from_secs(1));
        }
    }

    fn name(&self) -> String {
        self.url.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}
