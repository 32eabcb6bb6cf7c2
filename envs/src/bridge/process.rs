//! `process`: a command that is asked on its standard input and answers on its standard output, a line of JSON each.
//!
//! It knows processes and lines. Nothing blocks without a limit: its three pipes are watched at once, so that a program which
//! does not read, does not answer, or writes without end can hold up nobody.

use super::{Bridge, Limits, Link};
use crate::registry::Spec;
use crate::settings::Reader;
use crate::{Env, EnvError, Recap, Setting};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process_group, setrlimit};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

const TYPE: &str = "process";

/// Bytes of the error output that are kept.
const TAIL: usize = 4096;

const SETTINGS: &[Setting] = &[
    Setting {
        name: "command",
        default: "[]",
        meaning: "the program and its arguments, a text each; one that is not on PATH is looked for from `dir`",
    },
    Setting { name: "dir", default: "\"\"", meaning: "the folder it runs in; empty: that of ragen" },
    Setting {
        name: "variables",
        default: "{}",
        meaning: "environment variables it gets beside those of ragen, a text each",
    },
    Setting { name: "settings", default: "{}", meaning: "passed on to the program in its first message" },
    Setting { name: "start_seconds", default: "30.0", meaning: "how long it may take to start and say hello" },
    Setting { name: "reset_seconds", default: "30.0", meaning: "how long a reset may take" },
    Setting { name: "step_seconds", default: "10.0", meaning: "how long a step may take" },
    Setting {
        name: "restarts",
        default: "1",
        meaning: "how often a reset that failed is tried again with the program started anew",
    },
    Setting { name: "max_bytes", default: "4194304", meaning: "bytes of an answer at most" },
];

/// What the registry knows of it.
pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "any environment that a command plays, asked over its standard input and output",
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
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let command: Vec<String> =
        reader.read("command", "a list of texts", |value| value.as_array()?.iter().map(text).collect());
    if command.is_empty() {
        reader.problem("command", "is needed: the program and its arguments, such as [\"python3\", \"server.py\"]");
    }
    let variables: Vec<(String, String)> = reader.read("variables", "a map of texts", |value| {
        value.as_object()?.iter().map(|(name, value)| Some((name.clone(), text(value)?))).collect()
    });
    let settings = reader.read("settings", "a map", |value| value.is_object().then(|| value.clone()));
    let link = Process {
        command,
        dir: reader.read("dir", "a text", text),
        variables,
        max_bytes: reader.integer("max_bytes", 64..=1 << 30),
        running: None,
    };
    let limits = Limits::read(&mut reader);
    let link = reader.finish(Box::new(link))?;
    Ok(Box::new(Bridge::new(format!("{TYPE} {config}"), TYPE, link, limits, settings)?))
}

/// A command, running or not.
struct Process {
    command: Vec<String>,
    dir: String,
    variables: Vec<(String, String)>,
    max_bytes: usize,
    running: Option<Running>,
}

struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// What it has written and was not yet taken.
    output: Vec<u8>,
    /// How its error output ends.
    tail: Vec<u8>,
}

impl Link for Process {
    fn exchange(&mut self, request: &Value, limit: Duration) -> Result<Value, String> {
        let until = Instant::now() + limit;
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let Some(running) = &mut self.running else { return Err("it is not running".to_owned()) };
        let said = running.line(format!("{request}\n").as_bytes(), until, self.max_bytes).and_then(|line| {
            serde_json::from_slice(&line).map_err(|error| {
                let line = super::message::shortened(&String::from_utf8_lossy(&line));
                format!("it answered what is no JSON ({error}): {line}")
            })
        });
        let Err(why) = said else { return said };
        let why = why.replace("LIMIT", &format!("{} s", limit.as_secs_f64()));
        let tail = running.tail();
        self.close();
        Err(format!("{why}{tail}"))
    }

    fn is_open(&self) -> bool {
        self.running.is_some()
    }

    fn close(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.kill();
        }
    }

    fn name(&self) -> String {
        format!("`{}`", self.command.join(" "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.close();
    }
}

impl Process {
    fn start(&self) -> Result<Running, String> {
        allow_many_files();
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that what it starts ends with it, and Ctrl-C reaches ragen alone.
        command.process_group(0);
        if !self.dir.is_empty() {
            command.current_dir(&self.dir);
        }
        let mut child = command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err("it has no pipes".to_owned()) };
        let running = Running { child, stdin, stdout, stderr: Some(stderr), output: Vec::new(), tail: Vec::new() };
        let set = rustix::io::ioctl_fionbio(&running.stdin, true)
            .and_then(|()| rustix::io::ioctl_fionbio(&running.stdout, true))
            .and_then(|()| running.stderr.as_ref().map_or(Ok(()), |stderr| rustix::io::ioctl_fionbio(stderr, true)));
        set.map_err(|error| format!("its pipes cannot be watched: {error}"))?;
        Ok(running)
    }
}

impl Running {
    /// Writes a line and reads one. `LIMIT` in an error stands for the time that was given.
    fn line(&mut self, request: &[u8], until: Instant, max_bytes: usize) -> Result<Vec<u8>, String> {
        let (mut written, mut searched) = (0, 0);
        loop {
            if let Some(end) = self.output[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.output.split_off(searched + end + 1);
                return Ok(std::mem::replace(&mut self.output, rest));
            }
            searched = self.output.len();
            if searched > max_bytes {
                return Err(format!("it writes a line of more than {max_bytes} bytes (`max_bytes`)"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = if written < request.len() { "it did not read the message" } else { "it did not answer" };
                return Err(format!("{why} within LIMIT"));
            }
            let ready = self.wait(written < request.len(), left)?;
            if ready.stderr {
                self.drain();
            }
            if ready.stdin {
                match self.stdin.write(&request[written..]) {
                    Ok(n) => written += n,
                    Err(error) if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::Interrupted => {}
                    // It reads no more; whether it still answers is seen from its output.
                    Err(_) => written = request.len(),
                }
            }
            if ready.stdout && !self.read(max_bytes)? {
                return Err(self.ended());
            }
        }
    }

    /// Waits until something can be read or, where asked for, written.
    fn wait(&self, writes: bool, left: Duration) -> Result<Ready, String> {
        let mut fds = vec![PollFd::new(&self.stdout, PollFlags::IN)];
        if let Some(stderr) = &self.stderr {
            fds.push(PollFd::new(stderr, PollFlags::IN));
        }
        if writes {
            fds.push(PollFd::new(&self.stdin, PollFlags::OUT));
        }
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("its pipes cannot be watched: {error}")),
        }
        let mut is_ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let stdout = is_ready.next().unwrap_or(false);
        let stderr = self.stderr.is_some() && is_ready.next().unwrap_or(false);
        Ok(Ready { stdout, stderr, stdin: writes && is_ready.next().unwrap_or(false) })
    }

    /// Reads what there is, a piece at a time; false at the end.
    fn read(&mut self, max_bytes: usize) -> Result<bool, String> {
        let mut piece = [0; 1 << 16];
        // What is beyond the limit stays in the pipe, where its writer waits.
        let most = piece.len().min(max_bytes + 1);
        match self.stdout.read(&mut piece[..most]) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.output.extend_from_slice(&piece[..n]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(format!("its output cannot be read: {error}")),
        }
    }

    /// Takes up what it writes to its error output, so that it never waits there, and keeps the end of it.
    fn drain(&mut self) {
        let mut piece = [0; 1 << 14];
        let Some(stderr) = &mut self.stderr else { return };
        match stderr.read(&mut piece) {
            Ok(n) if n > 0 => {
                self.tail.extend_from_slice(&piece[..n]);
                let cut = self.tail.len().saturating_sub(TAIL);
                self.tail.drain(..cut);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::Interrupted => {}
            _ => self.stderr = None,
        }
    }

    /// It has closed its output: how it ended.
    fn ended(&mut self) -> String {
        let until = Instant::now() + Duration::from_millis(200);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return format!("it ended ({status})"),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                _ => return "it closed its output".to_owned(),
            }
        }
    }

    /// How its error output ends, in words.
    fn tail(&mut self) -> String {
        for _ in 0..64 {
            let ready = self.wait(false, Duration::ZERO);
            if !ready.is_ok_and(|ready| ready.stderr) {
                break;
            }
            self.drain();
        }
        let text = String::from_utf8_lossy(&self.tail);
        match text.trim() {
            "" => "; its error output is empty".to_owned(),
            text => format!("; its error output ends with: {text}"),
        }
    }

    /// Ends it and all that it has started.
    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Ready {
    stdout: bool,
    stderr: bool,
    stdin: bool,
}

/// A process takes three files, and 256 of them more than the 1024 that many systems allow at first.
fn allow_many_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
    });
}
