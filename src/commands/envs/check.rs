//! `ragen envs check`: the conformance suite on any environment, a line for each check.

use super::super::{Common, Failure, print};
use clap::Args;
use ragen_envs::conformance::{Build, CHECKS, fingerprint};
use serde_json::{Map, Value, json};

/// Which environment is checked.
#[derive(Args, Debug)]
pub struct Options {
    /// A tag or an environment type
    #[arg(required_unless_present_any = ["cmd", "url"], conflicts_with_all = ["cmd", "url"])]
    pub tag: Option<String>,
    /// A command for the shell that speaks the protocol of docs/environments/protocol.md
    #[arg(long, value_name = "COMMAND", conflicts_with = "url")]
    pub cmd: Option<String>,
    /// The address of a server that speaks it
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// What the command or server is told: `{"size": 8}`
    #[arg(long, value_name = "JSON", conflicts_with = "tag")]
    pub settings: Option<String>,
    /// Print a number made of what can be seen of some episodes, and check nothing
    #[arg(long, hide = true)]
    pub fingerprint: bool,
}

/// The command.
///
/// **Errors** [`Failure::Run`] if a check failed or the environment cannot be built.
pub fn run(common: &Common, options: &Options) -> Result<(), Failure> {
    let (name, env_type, config) = subject(options)?;
    let build: Build = &|| ragen_envs::make(&env_type, &config);
    drop(build()?);
    if options.fingerprint {
        return print(&format!("{}\n", fingerprint(build).map_err(Failure::Run)?));
    }
    let mut failed = Map::new();
    let mut tell = |check: &str, result: Result<(), String>| {
        let line = match &result {
            Ok(()) => format!("pass  {check}\n"),
            Err(why) => format!("FAIL  {check}: {why}\n"),
        };
        if let Err(why) = result {
            failed.insert(check.to_string(), Value::from(why));
        }
        if common.quiet { Ok(()) } else { print(&line) }
    };
    for (check, holds) in CHECKS {
        tell(check, holds(build))?;
    }
    tell("processes", is_the_same_in_another_process(build, options))?;
    let n = CHECKS.len() + 1;
    print(&format!("{name}: {} of {n} checks passed\n", n - failed.len()))?;
    if common.json {
        print(&format!("{}\n", json!({"name": name, "checks": n, "failed": failed})))?;
    }
    match failed.len() {
        0 => Ok(()),
        broken => Err(Failure::Run(format!("{name} breaks {broken} of {n} rules"))),
    }
}

/// Name, type and settings of what is checked.
fn subject(options: &Options) -> Result<(String, String, Value), Failure> {
    let settings: Value = match &options.settings {
        None => json!({}),
        Some(text) => serde_json::from_str(text).map_err(|e| Failure::Usage(format!("--settings is no JSON: {e}")))?,
    };
    match (&options.cmd, &options.url, &options.tag) {
        (Some(cmd), ..) => {
            Ok((cmd.clone(), "process".into(), json!({"command": ["sh", "-c", cmd], "settings": settings})))
        }
        (_, Some(url), _) => Ok((url.clone(), "http".into(), json!({"url": url, "settings": settings}))),
        (.., name) => {
            let (name, tag) = super::find(name.as_deref().unwrap_or_default())?;
            Ok((name, tag.r#type, Value::Object(tag.config)))
        }
    }
}

/// Another process of this program sees the same episodes.
fn is_the_same_in_another_process(build: Build, options: &Options) -> Result<(), String> {
    let here = fingerprint(build)?;
    let program = std::env::current_exe().map_err(|e| format!("this program cannot be found: {e}"))?;
    let mut command = std::process::Command::new(program);
    command.args(["envs", "check", "--fingerprint"]).args(options.tag.iter());
    for (name, value) in [("--cmd", &options.cmd), ("--url", &options.url), ("--settings", &options.settings)] {
        command.args(value.iter().flat_map(|value| [name, value.as_str()]));
    }
    let said = command.output().map_err(|e| format!("another process cannot be started: {e}"))?;
    match String::from_utf8_lossy(&said.stdout).trim() == here.to_string() {
        true => Ok(()),
        false if said.status.success() => Err("another process sees other episodes".into()),
        false => Err(format!("in another process: {}", String::from_utf8_lossy(&said.stderr).trim())),
    }
}
